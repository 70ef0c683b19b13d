"""A running average of the weights is shown, stays at the end, and steers nothing."""

import pytest
import torch
from torch import nn

from prudent.training import Execution, Plan, Reporting, Sum, fit
from tests.training.gradients.oracle import cross_entropy


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def batch(size=20):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(size, 4, generator=generator, dtype=torch.float64), torch.arange(size) % 3


def train(**options):
    weights = []
    model = network()

    class Noting(torch.optim.SGD):
        def step(self, closure=None):
            super().step(closure)
            weights.append(model[0].weight.detach().clone())

    shown = []

    def evaluate(model):
        shown.append(model[0].weight.detach().clone())
        return {}

    plan = Plan(sampling_rate=0.3, steps=12, aggregation=Sum(clip=1.0, noise_multiplier=1.0))
    fit(
        plan,
        model,
        cross_entropy,
        batch(),
        optimizer=Noting,
        lr=0.5,
        execution=Execution(seed=1),
        reporting=Reporting(evaluate=evaluate, evaluate_every=6),
        **options,
    )
    return weights, shown, model[0].weight.detach()


def test_it_is_shown_and_stays_and_steers_nothing():
    plain, _, last = train()
    assert torch.equal(plain[-1], last)
    weights, shown, end = train(average=0.75)
    assert all(map(torch.equal, weights, plain))
    average = torch.zeros_like(end)
    for number, weight in enumerate(weights):
        average = average.lerp(weight, max(0.25, 1 / (number + 1)))
        if number + 1 in (6, 12):
            assert torch.allclose(shown[(number + 1) // 6], average, atol=1e-14)
    assert torch.equal(shown[-1], end)
    assert not torch.allclose(end, last)


def test_a_share_of_one_would_never_move():
    with pytest.raises(ValueError, match="average"):
        train(average=1.0)
