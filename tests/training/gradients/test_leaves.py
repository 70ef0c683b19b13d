"""No gradient is left out in silence."""

import functools
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.training.gradients.oracle import assert_agrees, cross_entropy


class Captured(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.call = functools.partial(functional.linear, weight=self.layer.weight)

    def forward(self, x):
        return self.call(x) + self.layer.bias


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.all = list(self.layer.parameters())

    def forward(self, x):
        return functional.linear(x, *self.all)


class Checkpointed(Captured):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


class Hiding(Captured):
    def forward(self, x):
        with torch._C.DisableTorchFunction():
            return self.call(x)


def batch():
    return torch.randn(5, 4).double(), torch.arange(5) % 3


@pytest.mark.parametrize("kind", [Captured, Listed, Checkpointed, Hiding])
def test_a_captured_parameter_is_refused(engine, kind):
    model = kind().double()
    with pytest.raises(RuntimeError, match=r"parameter 'layer\.\w+' by another reference"):
        engine(model, cross_entropy)(model, *batch())
    with torch.no_grad(), pytest.raises(RuntimeError, match="by another reference"):
        engine(model, cross_entropy)(model, *batch())


def test_a_parameter_of_the_loss_is_refused(engine):
    model, scale = nn.Linear(4, 3).double(), torch.ones(3).double().requires_grad_()
    for loss, named in (
        (lambda o, t: cross_entropy(o, t) + model.weight.square().sum(), "'weight'"),
        (lambda o, t: cross_entropy(o * scale, t), r"a tensor of shape \(3,\)"),
    ):
        with pytest.raises(RuntimeError, match=named):
            engine(model, loss)(model, *batch())


def test_a_penalty_among_the_outputs_counts(engine):
    class Penalised(nn.Linear):
        def forward(self, x):
            return torch.cat([super().forward(x), self.weight.square().sum().expand(1, 1)], 1)

    model = Penalised(4, 3).double()
    made = engine(model, lambda o, t: cross_entropy(o[:, :-1], t) + o[:, -1])
    inputs, targets = batch()
    norms = made(model, inputs, targets).norms
    plain = engine(nn.Linear(4, 3).double(), cross_entropy)
    assert (norms != plain(plain.model, inputs, targets).norms).all()


def test_captured_without_a_gradient_is_allowed(engine):
    model, teacher = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()

    def loss(outputs, targets):
        return cross_entropy(outputs, targets) * teacher.weight.detach().sum()

    assert_agrees(engine(model, loss), *batch(), 5)


def test_inputs_may_require_gradients(engine):
    model = nn.Linear(4, 3).double()
    inputs, targets = batch()
    norms = engine(model, cross_entropy)(model, inputs.requires_grad_(), targets).norms
    assert not norms.requires_grad


def contrastive(outputs, targets):
    """Each output should be nearest to its own target among those of the batch."""
    return functional.cross_entropy(
        outputs @ targets.T, torch.arange(len(outputs)), reduction="none"
    )


def test_a_loss_over_the_batch_is_warned_of(engine):
    model = nn.Linear(4, 3)
    with pytest.warns(RuntimeWarning, match="both have the gradient zero"):
        engine(model, contrastive).rehearse(model, lambda: (torch.randn(6, 4), torch.randn(6, 3)))


def test_a_rehearsal_of_any_other_loss_is_silent(engine):
    model = nn.Sequential(nn.Dropout(), nn.Linear(4, 3))
    before = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine(model, cross_entropy).rehearse(model, lambda: (torch.randn(6, 4), torch.arange(6)))
        engine(model, lambda o, t: (o / 0).sum(1)).rehearse(
            model, lambda: (torch.randn(5, 4), torch.arange(5))
        )
    assert torch.equal(torch.get_rng_state(), before)
