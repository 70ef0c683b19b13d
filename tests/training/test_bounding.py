"""What one record may add along the way: bounded by itself alone, and free."""

import math

import attrs
import pytest
import torch
from torch import nn

from prudent.accounting import GaussianTest
from prudent.training import (
    AdaptiveScale,
    Chunk,
    DirectionBound,
    Plan,
    ProposeTestRelease,
    Step,
    Sum,
)
from tests.training.gradients.oracle import cross_entropy

CLIP, ONE = 1.5, torch.ones(())
SILENT = Sum(clip=CLIP, noise_multiplier=1e-6)


def gradients(records=30, seed=0):
    generator = torch.Generator().manual_seed(seed)
    size = torch.logspace(-2, 2, records, dtype=torch.float64)[:, None]
    whole = size * torch.randn(records, 12, generator=generator, dtype=torch.float64)
    return {"weight": whole[:, :10].reshape(-1, 2, 5), "bias": whole[:, 10:]}


def flat(values):
    return torch.cat([value.flatten(1) for value in values.values()], 1)


def sums(count=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 12, generator=generator, dtype=torch.float64)


def directions(rows):
    return torch.linalg.qr(rows.T).Q


@pytest.mark.parametrize("factor", [0.25, 1.0, 64.0])
@pytest.mark.parametrize("share", [0.0, 0.05, 0.4, 1.0])
def test_the_part_along_is_bounded_and_the_rest_is_left(share, factor):
    raw, rows = gradients(), sums()
    bounded = flat(DirectionBound(share=share).bounded(raw, rows, factor * ONE, CLIP))
    scaled = factor * flat(raw)
    clipped = scaled * (CLIP / scaled.norm(dim=1, keepdim=True)).clamp_max(1)
    basis = directions(rows)
    along, before = bounded @ basis, clipped @ basis
    assert (along.norm(dim=1) <= share * CLIP + 1e-12).all()
    torch.testing.assert_close(bounded - along @ basis.T, clipped - before @ basis.T)
    short = before.norm(dim=1) <= share * CLIP
    torch.testing.assert_close(bounded[short], clipped[short])
    assert (bounded.norm(dim=1) <= CLIP + 1e-12).all()


def test_each_depends_on_its_own_record_alone():
    raw, rows, bound = gradients(), sums(), DirectionBound()
    whole = flat(bound.bounded(raw, rows, ONE, CLIP))
    raw["bias"][3] = math.nan
    raw["weight"][9] = math.inf
    spoiled = flat(bound.bounded(raw, rows, ONE, CLIP))
    others = [i for i in range(30) if i not in (3, 9)]
    assert torch.equal(spoiled[others], whole[others])
    assert not torch.isfinite(spoiled[[3, 9]]).all(1).any()  # and so they count as zero


@pytest.mark.parametrize("rows", [torch.zeros(3, 12), sums(1).expand(3, 12)], ids=["none", "same"])
def test_directions_that_are_none_or_the_same(rows):
    raw = gradients()
    bounded = flat(DirectionBound().bounded(raw, rows.double(), ONE, CLIP))
    assert torch.isfinite(bounded).all()
    assert (bounded.norm(dim=1) <= CLIP + 1e-12).all()


def network():
    torch.manual_seed(2)
    return nn.Linear(4, 3).double()


def batch():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(20, 4, generator=generator, dtype=torch.float64), torch.arange(20) % 3


def step_of(rule=SILENT, bound=None, corrupt=None, **policies):
    plan = Plan(
        sampling_rate=0.1,
        steps=10**4,
        aggregation=rule,
        expected_batch=20,
        bound=DirectionBound() if bound is None else bound,
        **policies,
    )
    generator = torch.Generator().manual_seed(0)
    return Step(plan, network(), cross_entropy, corrupt=corrupt, generator=generator)


def released(step, *batches):
    step([Chunk(*part) for part in batches])
    return torch.cat([p.grad.flatten() for p in step.model.parameters()])


def test_the_directions_are_sums_of_what_was_released():
    step = step_of(bound=DirectionBound(paces=(0.5, 1.0)))
    first, second = released(step, batch()).clone(), released(step, batch())
    torch.testing.assert_close(step.sums, torch.stack([0.5 * first + second, first + second]))


@pytest.mark.parametrize("scale", [None, AdaptiveScale(noise=1.0)], ids=["", "scaled"])
def test_one_record_changes_the_sum_by_no_more_than_the_clip(scale):
    inputs, targets = batch()
    for left_out in range(0, 20, 4):
        totals = []
        for kept in (torch.ones(20, dtype=torch.bool), torch.arange(20) != left_out):
            step = step_of(scale=scale)
            step.sums.copy_(torch.randn(3, 15, generator=torch.Generator().manual_seed(1)))
            step.exponent.fill_(0.0 if scale is None else 4.0)
            totals.append(20 * released(step, (100 * inputs, targets, kept)))
        assert float((totals[0] - totals[1]).norm()) <= CLIP + 1e-4


def test_chunks_are_one_batch():
    inputs, targets = batch()
    whole, parts = step_of(), step_of()
    for _ in range(3):
        expected = released(whole, (inputs, targets))
        got = released(parts, (inputs[:7], targets[:7]), (inputs[7:], targets[7:]))
        torch.testing.assert_close(got, expected)


def test_a_push_that_lasts_gets_no_further():
    direction = torch.ones(3, 4).double() / math.sqrt(12)

    def pushing(gradients, chunk, generator):
        bad = torch.arange(20) < 8
        sent = {"weight": 2 * CLIP * direction, "bias": torch.zeros(3).double()}
        return {
            name: torch.where(bad.view(-1, *[1] * (g.ndim - 1)), sent[name], g)
            for name, g in gradients.items()
        }

    pushed = []
    for share in (0.05, 1.0):
        step = step_of(bound=DirectionBound(share=share), corrupt=pushing)
        start = step.model.weight.detach().clone()
        for _ in range(30):
            released(step, batch())
            with torch.no_grad():
                for parameter in step.model.parameters():
                    parameter -= 0.1 * parameter.grad
        pushed.append(float(((start - step.model.weight.detach()) * direction).sum()))
    assert 0 < pushed[0] < 0.4 * pushed[1]


def test_it_costs_nothing():
    rule = ProposeTestRelease(clip=1.0, propose=0.5, noise_multiplier=1.0, test=GaussianTest(4.0))
    plan = Plan(sampling_rate=0.01, steps=100, aggregation=rule)
    assert attrs.evolve(plan, bound=DirectionBound()).event == plan.event


@pytest.mark.parametrize("changes", [{"share": 1.5}, {"paces": (1.2,)}, {"paces": ()}])
def test_settings_that_make_no_sense_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        DirectionBound(**changes)
