"""What one client can change, and rules a search over neighbouring rounds must find wrong.

A rule gives what is released of a round, times the expected number of clients and without noise,
for the updates of the clients that were drawn. The library's must move by no more than R, or τ
where the test may pass; every wrong one must be caught moving by more.
"""

import math
import random

import attrs
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from prudent import ArgumentError
from prudent.accounting import GaussianTest
from prudent.training import (
    AdaptiveTrim,
    Fallback,
    FixedTrim,
    HeldOut,
    LossRelease,
    Mean,
    Plan,
    ProposeTestRelease,
    Sum,
    TrimmedSum,
)
from prudent.training.adapters.federated import RoundRelease
from prudent.training.keystream import Key
from tests.tiers import examples

CLIP, PROPOSE, EXPECTED, TRIM = 1.0, 0.5, 8.0, 3
TINY = 1e-6  # the least an event allows
SUM = Sum(clip=CLIP, noise_multiplier=TINY)
TRIMMED = TrimmedSum(clip=CLIP, noise_multiplier=TINY, trim=FixedTrim(TRIM / EXPECTED))
PTR = ProposeTestRelease(
    clip=CLIP,
    propose=PROPOSE,
    noise_multiplier=TINY,
    test=GaussianTest(1e-6),
    trim=FixedTrim(TRIM / EXPECTED),
)


def release_of(aggregation, steps=100, dimension=2, seed=0):
    plan = Plan(sampling_rate=0.5, steps=steps, aggregation=aggregation)
    return RoundRelease(plan, dimension, expected_clients=EXPECTED, key=Key.from_seed(seed))


def library(aggregation, updates):
    """What is released, and whether the test passed."""
    released, outcome = release_of(aggregation)(
        [torch.tensor(u, dtype=torch.float64) for u in updates]
    )
    return released * EXPECTED, outcome.passed


def violation(rule, updates, position, update):
    """Which promise is broken by one more client, or None."""
    more = [*updates[:position], update, *updates[position:]]
    slack = 2e-5

    def moved(aggregation):
        released, passed = rule(aggregation, updates)
        with_more, passed_with_more = rule(aggregation, more)
        distance = float((released - with_more).norm())
        return distance, passed, passed_with_more

    if not moved(SUM)[0] <= CLIP + slack:
        return "the sum moves by more than R"
    trimmed = moved(TRIMMED)[0]
    if not trimmed <= CLIP + slack:
        return "the trimmed sum moves by more than R"
    distance, passed, passed_with_more = moved(PTR)
    if (passed or passed_with_more) and not trimmed <= PROPOSE * CLIP + slack:
        return "the trimmed sum moves by more than τ though its margin is positive"
    if passed and passed_with_more and not distance <= PROPOSE * CLIP + slack:
        return "the robust branch moves by more than τ"
    if not passed and not passed_with_more and not distance <= CLIP + slack:
        return "the fallback moves by more than R"
    if passed_with_more and not passed:
        return "a client raises the margin"
    return None


numbers = st.one_of(
    st.sampled_from([0.0, 0.5, -0.5, 1.0, -1.0, 3.0, math.nan, math.inf, 1e200]),
    st.floats(-3, 3, width=32),
)
vectors = st.tuples(numbers, numbers)


@pytest.mark.unhurried
@examples(150)
@given(
    updates=st.lists(vectors, max_size=10),
    position=st.integers(0, 10),
    update=vectors,
)
@example(updates=[], position=0, update=(5.0, 0.0))
@example(updates=[(2.0, 0.0)] * 6, position=0, update=(-2.0, 0.0))
def test_one_client_changes_no_more_than_the_plan_says(updates, position, update):
    assert violation(library, updates, min(position, len(updates)), update) is None


def without_noise(aggregation, vectors):
    """The weighted sum of vectors by an aggregation."""
    return library(aggregation, vectors.tolist())


def matrix(updates):
    """Usable updates as rows."""
    rows = torch.tensor(updates, dtype=torch.float64).reshape(-1, 2)
    return rows[rows.norm(dim=1).isfinite()]


def division_by_the_number_drawn(aggregation, updates):
    rows = matrix(updates)
    total, passed = without_noise(aggregation, rows)
    return EXPECTED * total / max(1, len(rows)), passed


def a_centre_from_this_round(aggregation, updates):
    rows = matrix(updates)
    c = rows.mean(0) if len(rows) else torch.zeros(2).double()
    total, passed = without_noise(aggregation, rows - c)
    return EXPECTED * c + total, passed


def clients_weighed_by_what_they_say(aggregation, updates):
    """The weight a client reports, here from its update, multiplies what was clipped."""
    rows = matrix(updates)
    total, passed = without_noise(aggregation, rows)
    examples = 1 + rows.abs().sum(1).clamp_max(10)
    return total * examples.sum() / EXPECTED, passed


def an_unusable_update_stops_the_round(aggregation, updates):
    if len(matrix(updates)) < len(updates):
        return torch.zeros(2).double(), False
    return library(aggregation, updates)


WRONG = [
    division_by_the_number_drawn,
    a_centre_from_this_round,
    clients_weighed_by_what_they_say,
    an_unusable_update_stops_the_round,
]


@pytest.mark.parametrize("rule", WRONG)
def test_a_wrong_rule_is_caught(rule):
    chance = random.Random(5)

    def vector():
        if chance.random() < 0.05:
            return (math.nan, 0.0)
        return (chance.uniform(-3, 3), chance.uniform(-3, 3))

    for _ in range(1500):
        updates = [vector() for _ in range(chance.randint(0, 8))]
        if violation(rule, updates, chance.randint(0, len(updates)), vector()):
            return
    pytest.fail("the search finds nothing wrong with a wrong rule")


def test_it_is_the_clipped_mean_over_the_expected_number():
    release = release_of(SUM)
    released, _ = release([torch.tensor([3.0, 4.0]), torch.tensor([0.5, 0.0])])
    assert released.tolist() == pytest.approx([(0.6 + 0.5) / EXPECTED, 0.8 / EXPECTED], abs=1e-5)


@pytest.mark.parametrize("updates", [[], [torch.tensor([math.nan, 1.0])]])
@pytest.mark.parametrize("aggregation", [SUM, TRIMMED, PTR])
def test_a_round_without_a_usable_update_releases_noise(aggregation, updates):
    released, outcome = release_of(aggregation.with_noise(2.0))(updates)
    assert torch.isfinite(released).all()
    assert outcome.noise in (2.0, 1.0)
    assert released.tolist() != [0.0, 0.0]


@pytest.mark.parametrize(("aggregation", "noise"), [(SUM, 1.5), (TRIMMED, 1.5), (PTR, 0.75)])
def test_the_noise_has_the_scale_the_plan_says(aggregation, noise):
    release = release_of(aggregation.with_noise(1.5), dimension=40_000)
    released, outcome = release([])
    measured = float(released.std()) * EXPECTED
    assert outcome.noise == pytest.approx(noise)
    assert measured == pytest.approx(noise, rel=0.015)
    assert measured != pytest.approx(noise * 1.05, rel=0.015)


def test_every_round_draws_noise_of_its_own():
    release = release_of(SUM.with_noise(1.0), dimension=500)
    first, second = release([])[0], release([])[0]
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.2
    assert not torch.equal(first, second)


def test_a_skipped_round_moves_nothing():
    skipping = attrs.evolve(PTR, fallback=Fallback.SKIP, trim=FixedTrim(0.0))
    released, outcome = release_of(skipping)([torch.tensor([5.0, 5.0])] * 8)
    assert not outcome.passed
    assert released.tolist() == [0.0, 0.0]


def test_the_trim_adapts_to_branches():
    adaptive = attrs.evolve(PTR, trim=AdaptiveTrim(first=0.25, up=0.25, down=0.125, most=1.0))
    release = release_of(adaptive)
    trims = [release([torch.tensor([5.0, 0.0])] * 4)[1].trim for _ in range(4)]
    assert trims == [2, 4, 6, 5]


def test_the_fallback_has_a_rate_of_its_own():
    slow = attrs.evolve(PTR, fallback_scale=0.5, trim=FixedTrim(0.0))
    released, _ = release_of(slow)([torch.tensor([0.8, 0.0])] * 4)
    assert released.tolist() == pytest.approx([0.5 * 0.8 * 4 / EXPECTED, 0.0], abs=1e-5)


def test_a_mean_is_neither_clipped_nor_noisy():
    released, outcome = release_of(Mean())([torch.tensor([8.0, 0.0])] * 4)
    assert released.tolist() == [4.0, 0.0]
    assert outcome.noise == 0.0


def test_a_round_beyond_the_plan_is_refused():
    release = release_of(SUM, steps=2)
    release([])
    release([])
    with pytest.raises(ValueError, match=r"at most plan\.steps = 2 rounds"):
        release([])


def test_a_norm_in_double_precision_is_not_rounded_down():
    """A norm just above R must not count as R: single precision would round it."""

    def released(length):
        update = torch.tensor([length, 0.0], dtype=torch.float64)
        return float(release_of(SUM)([update])[0][0])  # the same noise every time

    assert released(CLIP * (1 + 1e-9)) == pytest.approx(released(CLIP), abs=1e-15)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Expected expected_clients"),
        ({"expected_clients": 0}, "Expected expected_clients finite and > 0"),
    ],
)
def test_arguments_are_checked(arguments, message):
    plan = Plan(sampling_rate=0.5, steps=1, aggregation=SUM)
    with pytest.raises(ValueError, match=message):
        RoundRelease(plan, 2, **arguments)


def test_an_update_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"Expected updates of shape \(2,\), got \(3,\)"):
        release_of(SUM)([torch.zeros(3)])


def test_the_expected_number_of_the_plan_wins():
    plan = Plan(sampling_rate=0.5, steps=1, aggregation=SUM, expected_batch=2.0)
    released, _ = RoundRelease(plan, 1, expected_clients=8)([torch.tensor([1.0])])
    assert float(released) == pytest.approx(0.5, abs=1e-5)


def test_what_no_client_sends_is_not_paid_for():
    for more in ({"watch": LossRelease(loss_every=1, bound=1.0)}, {"held_out": HeldOut(every=1)}):
        plan = Plan(sampling_rate=0.5, steps=2, aggregation=SUM, **more)
        with pytest.raises(ArgumentError, match="without watch and held_out"):
            RoundRelease(plan, 2, expected_clients=EXPECTED)
