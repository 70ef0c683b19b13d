"""Nothing of a record may outlive its pass: the next batch would see it."""

from collections import deque

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.training.gradients.oracle import cross_entropy

OUTSIDE = []


class Remembering(nn.Module):
    """Adds what it kept of the last batch; where it keeps it is what the tests vary."""

    def __init__(self, keep, recall):
        super().__init__()
        self.layer = nn.Linear(4, 3).double()
        self.state, self.items, self.named = None, deque(maxlen=2), {}
        self.keep, self.recall = keep, recall

    def forward(self, x):
        outputs = self.layer(x)
        before = self.recall(self)
        self.keep(self, outputs.detach())
        return outputs if before is None else outputs + before


PLACES = {
    "attribute": (lambda m, t: setattr(m, "state", t), lambda m: m.state),
    "layer": (lambda m, t: setattr(m.layer, "last", t), lambda m: getattr(m.layer, "last", None)),
    "queue": (lambda m, t: m.items.append(t), lambda m: m.items[-1] if m.items else None),
    "dictionary": (lambda m, t: m.named.update(h=[t]), lambda m: m.named.get("h", [None])[0]),
    "class": (lambda m, t: setattr(Remembering, "own", t), lambda m: getattr(m, "own", None)),
    "global": (lambda m, t: OUTSIDE.append(t), lambda m: OUTSIDE[-1] if OUTSIDE else None),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_record_that_is_kept_is_refused(engine, place):
    try:
        model = Remembering(*PLACES[place])
        with pytest.raises(ValueError, match="keeps nothing of a record"):
            engine(model, cross_entropy)(model, torch.randn(5, 4).double(), torch.arange(5) % 3)
    finally:
        OUTSIDE.clear()
        if "own" in vars(Remembering):
            del Remembering.own


class KeepingInputs(nn.Linear):
    def forward(self, x):
        self.inputs = x
        return super().forward(x)


class KeepingInAPart(nn.Linear):
    def run(self, x):
        self.last = super().forward(x)
        return self.last

    def forward(self, x):
        return checkpoint(self.run, x, use_reentrant=False)


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda: nn.Sequential(Remembering(*PLACES["attribute"])), r"kept at '0\.state'"),
        (lambda: KeepingInputs(4, 3), "kept at 'inputs'"),
        (lambda: KeepingInAPart(4, 3), "kept at 'last'"),
    ],
)
def test_the_place_is_named(engine, make, place):
    model = make().double()
    with pytest.raises(ValueError, match=place):
        engine(model, cross_entropy)(model, torch.randn(2, 4).double(), torch.arange(2))


def test_a_loss_that_keeps_a_record_is_refused(engine):
    model, kept = nn.Linear(4, 3).double(), []

    def loss(outputs, targets):
        kept.append(targets)
        return cross_entropy(outputs, targets)

    with pytest.raises(ValueError, match="outside of its attributes"):
        engine(model, loss)(model, torch.randn(2, 4).double(), torch.arange(2))


def test_state_that_is_forgotten_in_time_is_none(engine):
    class Cell(nn.Module):
        """A recurrent cell that keeps its state for the time of one forward."""

        def __init__(self):
            super().__init__()
            self.cell = nn.Linear(6, 3)
            self.state = None

        def forward(self, x):
            self.state = x.new_zeros(len(x), 3)
            for step in x.unbind(1):
                self.state = torch.tanh(self.cell(torch.cat([step, self.state], 1)))
            state, self.state = self.state, None
            return state

    model = Cell().double()
    made = engine(model, cross_entropy)
    inputs = torch.randn(4, 5, 3).double()
    first = made(model, inputs, torch.arange(4) % 3).norms
    made(model, 100 * inputs, torch.arange(4) % 3)
    assert torch.equal(made(model, inputs, torch.arange(4) % 3).norms, first)


def test_tensors_of_no_record_may_be_kept(engine):
    class Masked(nn.Linear):
        mask = None

        def forward(self, x):
            if self.mask is None:
                self.mask = torch.tril(torch.ones(3, 4, dtype=x.dtype, device=x.device))
            return nn.functional.linear(x, self.weight * self.mask, self.bias)

    model = Masked(4, 3).double()
    made = engine(model, cross_entropy)
    batch = torch.randn(2, 4).double(), torch.arange(2)
    made(model, *batch)
    assert model.mask is None  # what a pass leaves behind is undone
    made.rehearse(model, lambda: batch)
    mask = model.mask
    assert mask is not None  # but what the rehearsal made is kept
    made(model, *batch).weighted_sum(torch.ones(2))
    assert model.mask is mask


def test_what_a_cycle_holds_is_not_kept(engine):
    class Cyclic(nn.Linear):
        def forward(self, x):
            circle = [super().forward(x)]
            circle.append(circle)
            return circle[0]

    model = Cyclic(4, 3).double()
    engine(model, cross_entropy)(model, torch.randn(2, 4).double(), torch.arange(2))


def test_a_buffer_that_changes_is_refused(engine):
    """With one chunk it would change once, with two twice: other records decide how many."""

    class Counting(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return super().forward(x) * self.calls

    model = Counting().double()
    with pytest.raises((ValueError, RuntimeError), match=r"\['calls'\].*eval|in-place operation"):
        engine(model, cross_entropy)(model, torch.randn(2, 4).double(), torch.arange(2))
