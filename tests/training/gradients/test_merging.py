"""Contributions that are joined stand for the same sum."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional

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


class Difference(nn.Module):
    """Two uses whose gradients, which are formed, are opposite for equal inputs."""

    def __init__(self, looks_up):
        super().__init__()
        self.looks_up = looks_up
        self.weight = nn.Parameter(torch.ones(4, 1))

    def forward(self, first, second, places):
        if not self.looks_up:
            return self.weight[:, 0] * first - self.weight[:, 0] * second
        one, two = (functional.embedding(places, self.weight)[..., 0] for _ in range(2))
        return one * first - two * second


@pytest.mark.parametrize("looks_up", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
def test_large_terms_that_cancel_leave_the_others_their_contributions(looks_up, recompute):
    """A record is added over its uses before it is added to others, whose digits it would take."""
    torch.manual_seed(0)
    places = torch.arange(4).expand(3, 4).contiguous()
    first, second = torch.rand(3, 4), torch.rand(3, 4)
    first[1] = second[1] = 1e30
    engine = BookKeeping(
        Difference(looks_up), lambda outputs, _: outputs.sum(1), recompute=recompute
    )
    gradients = engine(engine.model, (first, second, places), ())
    assert gradients.norms[1] < 1e-6  # so its weight is that of any other
    (total,) = gradients.weighted_sum(torch.ones(3).double()).values()
    torch.testing.assert_close(total[:, 0].float(), (first - second).sum(0))
