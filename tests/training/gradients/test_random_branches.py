"""Models that draw on the host or decide by values: a program follows them."""

import warnings

import pytest
import torch
from torch import nn

from prudent.training import Chunk, Plan, Step, Sum
from prudent.training.compiled import Compiled
from prudent.training.gradients import BookKeeping
from prudent.training.gradients.record_streams import Branches
from prudent.training.gradients.watching import _span_masks
from prudent.training.keystream import Key
from tests.training.gradients.oracle import alone, cross_entropy

PLAN = Plan(
    sampling_rate=0.1,
    steps=100,
    expected_batch=8,
    aggregation=Sum(clip=1.0, noise_multiplier=1.0),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bart", "wav2vec"])
def test_networks_that_skip_layers_are_traced(name, monkeypatch):
    """LayerDrop draws on the host; BART reads its mask, and wav2vec masks spans with numpy."""
    pytest.importorskip("transformers")
    from benchmarks.huggingface import losses
    from benchmarks.network_cases import CASES

    monkeypatch.setattr(
        "prudent.training.step.Compiled", lambda f: Compiled(f, backend=lambda graph, _: graph)
    )
    torch.manual_seed(0)
    model = CASES[name].model(True).train()
    step = Step(PLAN, model, losses, compile=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "The step could not be compiled")
        for _ in range(4):  # the first changes the state, and programs are dropped once
            step([Chunk(*CASES[name].draw(2, True, "cpu"))])
    ((_, branches),) = step.programs[0]._programs.values()
    assert len(branches._taken) == 2


class Skipping(nn.Module):
    """Skips a layer in half of the steps."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, values):
        return self.inner(values) * (2 if torch.rand([]) < 0.5 else 1)


def test_a_program_around_a_compiled_step_has_the_branches_that_were_taken(monkeypatch):
    monkeypatch.setattr(
        "prudent.training.step.Compiled", lambda f: Compiled(f, backend=lambda graph, _: graph)
    )
    step = Step(PLAN, Skipping(), cross_entropy, compile=True, key=Key(bytes(32)))
    chunk = Chunk(torch.randn(3, 4), torch.tensor([0, 1, 2]))
    step([chunk])
    ((_, compiled),) = step._run._programs.values()
    held = set()
    for _ in range(10):
        outer = Branches()
        with outer.followed():
            step([chunk])
        assert outer.holds()
        held.add(compiled.holds())
    assert held == {True, False}


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
