"""Contributions that are joined stand for the same sum."""

import itertools

import pytest
import torch
from torch import nn

from prudent.training.gradients import BookKeeping
from prudent.training.gradients.factors.contributions import (
    Outer,
    merged,
)
from prudent.training.gradients.factors.norms import squared_norms
from tests.training.gradients.test_contributions import RECORDS, contributions, random, shaped


def factors(positions: int, form=shaped) -> Outer:
    return Outer(random(1, RECORDS, positions, 9), random(1, RECORDS, positions, 8), form)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_sum_stays_the_same(count):
    for chosen in itertools.combinations(contributions(), count):
        given = [*chosen, *contributions()[:2]]
        joined = merged(given)
        total = sum(each.per_example() for each in given)
        torch.testing.assert_close(sum(each.per_example() for each in joined), total)
        torch.testing.assert_close(squared_norms(joined), total.square().sum((1, 2)))
        assert len(joined) <= len(given)


class Multiplied(nn.Module):
    """The uses of a layer cancel, but for what single precision cannot tell."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)

    def forward(self, first, second):
        both = (first + second) * (1 + 2e-7)
        return self.inner(first) + self.inner(second) - self.inner(both)


class Scaled(nn.Module):
    """The same with a parameter of which each use is a formed gradient."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, first, second):
        both = (first + second) * (1 + 2e-7)
        return self.scale * first + self.scale * second - self.scale * both


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("made", [Multiplied, Scaled])
def test_terms_that_cancel_add_no_more_than_their_norm(made, recompute):
    """The sum rounds the uses of a shared parameter as the norm did."""
    torch.manual_seed(0)
    inputs = torch.rand(64, 4) + 0.5, torch.rand(64, 4) + 0.5
    engine = BookKeeping(made(), lambda outputs, _: 1e9 * outputs.sum(1), recompute=recompute)
    weights = (1 / engine(engine.model, inputs, ()).norms).clamp_max(1).double()
    for record in range(64):
        one = slice(record, record + 1)
        gradients = engine(engine.model, tuple(each[one] for each in inputs), ())
        (total,) = gradients.weighted_sum(weights[one]).values()
        assert total.norm() < 1.001
