"""Gradients of people: each the sum over the slots of one person, in every engine."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.training.gradients.oracle import alone, squares
from tests.training.gradients.toys import Decoder, VisionTransformer, sequence_loss

PEOPLE, SLOTS = 3, 4


@pytest.fixture(autouse=True)
def _double_precision():
    torch.manual_seed(3)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


class Derived(nn.Module):
    """A weight that is computed from parameters, and one that is used on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.shift = nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x + self.shift, torch.tanh(self.weight))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(5, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


def tokens(length: int) -> Tensor:
    return torch.randint(0, 23, (PEOPLE * SLOTS, length))


def values(*shape: int) -> Tensor:
    return torch.randn(PEOPLE * SLOTS, *shape)


MODELS = {
    "wide linear": lambda: (nn.Linear(40, 60), values(40)),
    "linear on positions": lambda: (nn.Linear(6, 5), values(7, 6)),
    "perceptron": lambda: (nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2)), values(6)),
    "small table": lambda: (nn.Embedding(23, 3), tokens(7)),
    "large table": lambda: (nn.Embedding(1000, 3), tokens(2)),
    "formed convolution": lambda: (nn.Conv2d(3, 4, 3, padding=1), values(3, 6, 6)),
    "kept convolution": lambda: (nn.Conv2d(30, 40, 3), values(30, 3, 4)),
    "norms": lambda: (
        nn.Sequential(nn.Conv1d(4, 4, 3), nn.GroupNorm(2, 4), nn.LayerNorm(5)),
        values(4, 7),
    ),
    "recurrent": lambda: (Recurrent(), values(6, 5)),
    "derived weight": lambda: (Derived(), values(5)),
    "vision transformer": lambda: (VisionTransformer(), values(3, 8, 8)),
    "tied decoder": lambda: (Decoder(), tokens(6)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_persons_gradient_is_that_of_all_her_records(engine, name):
    model, inputs = MODELS[name]()
    targets = torch.randn(PEOPLE * SLOTS)
    loss = squares
    if isinstance(model, Decoder):
        targets, loss = tokens(6), sequence_loss
    shares = torch.rand(PEOPLE * SLOTS)
    shares[torch.tensor([1, 5, 6, 7])] = 0.0  # empty slots
    each = alone(model, loss, inputs, targets, PEOPLE * SLOTS)
    truth = {
        name: torch.einsum("psr,ps->pr", rows.reshape(PEOPLE, SLOTS, -1), shares.view(PEOPLE, -1))
        for name, rows in each.items()
    }
    gradients = engine(model, loss, slots=SLOTS)(model, inputs, (targets, shares))
    norms = torch.stack([rows.square().sum(1) for rows in truth.values()]).sum(0).sqrt()
    torch.testing.assert_close(gradients.norms, norms, rtol=1e-9, atol=1e-9)
    weights = torch.tensor([0.3, 1.7, 0.0])
    total = gradients.weighted_sum(weights)
    for name, rows in truth.items():
        torch.testing.assert_close(
            total[name].flatten(), weights @ rows, rtol=1e-9, atol=1e-9, msg=name
        )


def test_an_empty_slot_adds_nothing(engine):
    """Whatever finite values its row holds, bit for bit."""
    model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2))
    inputs, targets, shares = values(6), torch.randn(PEOPLE * SLOTS), torch.rand(PEOPLE * SLOTS)
    shares[1::SLOTS] = 0.0
    made = engine(model, squares, slots=SLOTS)
    found = []
    for filled in (inputs, inputs.index_fill(0, torch.arange(1, PEOPLE * SLOTS, SLOTS), 3.5)):
        gradients = made(model, filled, (targets, shares))
        found.append((gradients.norms, gradients.weighted_sum(torch.ones(PEOPLE))))
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(found[0][1][name], found[1][1][name]) for name in found[0][1])


def test_a_person_with_a_refused_record_is_refused_alone(engine):
    model, inputs = nn.Linear(6, 3), values(6)
    targets = torch.arange(PEOPLE * SLOTS) % 3
    shares = torch.ones(PEOPLE * SLOTS)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none")

    made = engine(model, loss, slots=SLOTS)
    whole = made(model, inputs, (targets, shares))
    targets = targets.index_fill(0, torch.tensor([5]), 99)
    part = made(model, inputs, (targets, shares))
    assert part.norms.isnan().tolist() == [False, True, False]
    kept = torch.tensor([True, False, True])
    torch.testing.assert_close(part.norms[kept], whole.norms[kept])
    weights = kept.double()
    one, other = whole.weighted_sum(weights), part.weighted_sum(weights)
    assert all(torch.allclose(one[name], other[name]) for name in one)


def test_rows_of_half_a_person_are_refused(engine):
    made = engine(nn.Linear(6, 3), squares, slots=SLOTS)
    with pytest.raises(ValueError, match="4 rows for every person"):
        made(made.model, values(6)[:6], (torch.randn(6), torch.ones(6)))
