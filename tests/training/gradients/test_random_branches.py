"""Models that draw on the host or decide by values: a captured graph follows them."""

import pytest
import torch
from torch import nn

from prudent._torch_private import TorchDispatchMode
from prudent.training import Chunk, Plan, Step, Sum
from prudent.training.captured import PlacedNumbers
from prudent.training.gradients import BookKeeping
from prudent.training.gradients.record_streams import Branches
from prudent.training.gradients.watching import _span_masks
from prudent.training.keystream import Key
from tests.training.gradients.oracle import alone, cross_entropy

PLAN = Plan(
    sampling_rate=0.1, steps=100, expected_batch=8, aggregation=Sum(clip=1.0, noise_multiplier=1.0)
)


class Skipping(nn.Module):
    """Skips a layer in half of the steps."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, values):
        return self.inner(values) * (2 if torch.rand([]) < 0.5 else 1)


def test_the_branches_of_a_program_hold_in_the_steps_that_take_them():
    step = Step(PLAN, Skipping(), cross_entropy, key=Key(bytes(32)))
    chunk = Chunk(torch.randn(3, 4), torch.tensor([0, 1, 2]))
    step([chunk])  # rehearses
    first, held = Branches(), set()
    with first.followed():
        step([chunk])
    for _ in range(10):
        other = Branches()
        with other.followed():
            step([chunk])
        assert other.holds()
        assert first.holds() == (first._taken == other._taken)
        held.add(first.holds())
    assert held == {True, False}


class Either(nn.Module):
    """Leaves out one of its layers."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.chosen = nn.Linear(4, 3), nn.Linear(4, 3), "one"

    def forward(self, values):
        return getattr(self, self.chosen)(values)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_sums_of_layers_that_are_left_out_have_the_form_of_others(autocast):
    """Else every graph would hold a sum of its own, as large as the model."""
    model, inputs, targets = Either(), torch.randn(3, 4), torch.tensor([0, 1, 2])
    kinds = set()
    for model.chosen in ("one", "two"):
        engine = BookKeeping(model, cross_entropy, autocast=autocast)
        total = engine(model, inputs, targets).weighted_sum(torch.ones(3))
        kinds.add(tuple((name, value.dtype, value.shape) for name, value in total.items()))
    assert len(kinds) == 1


def test_spans_have_the_length_and_the_number_that_is_asked_for():
    torch.manual_seed(0)
    draw = _span_masks(torch.device("cpu"))(None)
    masks = draw((2000, 40), mask_prob=0.25, mask_length=4)
    assert masks.shape == (2000, 40)
    # 2.5 spans on average, each with as many starts as fit; fewer than 10 where they overlap.
    assert 7 < masks.sum(1).float().mean() < 10
    assert masks.sum(1).max() <= 12
    assert masks.sum(1).min() >= 4
    padded = torch.arange(40) < torch.tensor([[40], [10], [2]])
    masks = draw((3, 40), mask_prob=0.5, mask_length=4, attention_mask=padded.long(), min_masks=2)
    assert not (masks & ~padded).any()
    assert masks.any(1).tolist() == [True, True, False]


class Masked(nn.Module):
    """Replaces what a record selects by a parameter, in place."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.token = nn.Parameter(torch.randn(4))

    def forward(self, values):
        hidden = self.inner(values)
        hidden[values[..., 0] > 0] = self.token
        return self.head(hidden.mean(1))


def test_what_a_record_selects_may_be_replaced_in_place():
    torch.manual_seed(0)
    model, inputs = Masked().double(), torch.randn(5, 6, 4).double()
    targets = torch.randint(0, 3, (5,))
    truth = alone(model, cross_entropy, inputs, targets, 5)
    gradients = BookKeeping(model, cross_entropy)(model, inputs, targets)
    norms = torch.cat([g.flatten(1) for g in truth.values()], 1).norm(dim=1)
    torch.testing.assert_close(gradients.norms, norms)
    total = gradients.weighted_sum(torch.ones(5).double())
    for name, each in truth.items():
        torch.testing.assert_close(total[name], each.sum(0))


class _Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def three_of(x):
    return torch.tensor(3).type_as(x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_numbers_of_torchscript_are_placed_by_kernels():
    """As DeBERTa's scripted functions make them; a graph can repeat a kernel, but no copy."""
    scripted = torch.jit.script(three_of)
    with _Calls() as before:
        scripted(torch.ones(2, device="meta"))
    with _Calls() as calls, PlacedNumbers():
        placed = scripted(torch.ones(2, device="meta"))
    assert "aten._to_copy.default" in before.names
    assert "aten._to_copy.default" not in calls.names
    assert "aten.full.default" in calls.names
    assert (placed.device.type, placed.dtype, placed.ndim) == ("meta", torch.float32, 0)
