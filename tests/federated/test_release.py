"""What one client can change, and rules a search over neighbouring rounds must find wrong.

A rule gives what is released of a round, times the expected number of clients and without noise,
for the updates of the clients that were drawn and a public centre. The library's must move by no
more than R, or τ where the test may pass; every wrong one must be caught moving by more.
"""

import math
import random

import attrs
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prudent.accounting import GaussianTest
from prudent.federated import RoundRelease
from prudent.training import (
    AdaptiveTrim,
    Fallback,
    FixedTrim,
    Mean,
    Plan,
    ProposeTestRelease,
    Sum,
    TrimmedSum,
)
from prudent.training.keystream import Key

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


def release_of(aggregation, centring=1.0, steps=100, dimension=2, seed=0):
    plan = Plan(sampling_rate=0.5, steps=steps, aggregation=aggregation)
    return RoundRelease(
        plan,
        dimension,
        expected_clients=EXPECTED,
        centring=centring,
        key=Key.from_seed(seed),
    )


def library(aggregation, updates, centre):
    """What is released, and whether the test passed."""
    release = release_of(aggregation)
    release.centre = torch.tensor(centre, dtype=torch.float64)
    released, outcome = release([torch.tensor(u, dtype=torch.float64) for u in updates])
    return released * EXPECTED, outcome.passed


def violation(rule, updates, position, update, centre):
    """Which promise is broken by one more client, or None."""
    more = [*updates[:position], update, *updates[position:]]
    slack = 2e-5

    def moved(aggregation):
        released, passed = rule(aggregation, updates, centre)
        with_more, passed_with_more = rule(aggregation, more, centre)
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
centres = st.tuples(st.floats(-3, 3, width=32), st.floats(-3, 3, width=32))


@settings(max_examples=250)
@given(
    updates=st.lists(vectors, max_size=10),
    position=st.integers(0, 10),
    update=vectors,
    centre=centres,
)
@example(updates=[], position=0, update=(5.0, 0.0), centre=(0.0, 2.0))
@example(updates=[(2.0, 0.0)] * 6, position=0, update=(-2.0, 0.0), centre=(1.5, 0.0))
def test_one_client_changes_no_more_than_the_plan_says(updates, position, update, centre):
    assert violation(library, updates, min(position, len(updates)), update, centre) is None


def without_noise(aggregation, vectors):
    """The weighted sum of vectors by an aggregation."""
    return library(aggregation, vectors.tolist(), (0.0, 0.0))


def matrix(updates):
    """Usable updates as rows."""
    rows = torch.tensor(updates, dtype=torch.float64).reshape(-1, 2)
    return rows[rows.norm(dim=1).isfinite()]


def division_by_the_number_drawn(aggregation, updates, centre):
    rows, c = matrix(updates), torch.tensor(centre).double()
    total, passed = without_noise(aggregation, rows - c)
    return EXPECTED * c + EXPECTED * total / max(1, len(rows)), passed


def a_centre_from_this_round(aggregation, updates, centre):
    rows = matrix(updates)
    c = rows.mean(0) if len(rows) else torch.zeros(2).double()
    total, passed = without_noise(aggregation, rows - c)
    return EXPECTED * c + total, passed


def a_median_of_this_round_as_centre(aggregation, updates, centre):
    rows = matrix(updates)
    c = rows.median(0).values if len(rows) else torch.zeros(2).double()
    total, passed = without_noise(aggregation, rows - c)
    return EXPECTED * c + total, passed


def the_centre_added_once_for_every_client(aggregation, updates, centre):
    rows, c = matrix(updates), torch.tensor(centre).double()
    total, passed = without_noise(aggregation, rows - c)
    return len(rows) * c + total, passed


def clipping_before_centring(aggregation, updates, centre):
    rows, c = matrix(updates), torch.tensor(centre).double()
    short = rows * (CLIP / rows.norm(dim=1, keepdim=True).clamp_min(CLIP))
    release = release_of(attrs.evolve(aggregation, clip=100.0))
    total, outcome = release(list(short - c))
    return EXPECTED * c + EXPECTED * total, outcome.passed


def clients_weighed_by_what_they_say(aggregation, updates, centre):
    """The weight a client reports, here from its update, multiplies what was clipped."""
    rows, c = matrix(updates), torch.tensor(centre).double()
    total, passed = without_noise(aggregation, rows - c)
    examples = 1 + rows.abs().sum(1).clamp_max(10)
    return EXPECTED * c + total * examples.sum() / EXPECTED, passed


def an_unusable_update_stops_the_round(aggregation, updates, centre):
    if len(matrix(updates)) < len(updates):
        return torch.zeros(2).double(), False
    return library(aggregation, updates, centre)


WRONG = [
    division_by_the_number_drawn,
    a_centre_from_this_round,
    a_median_of_this_round_as_centre,
    the_centre_added_once_for_every_client,
    clipping_before_centring,
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
        centre = (chance.uniform(-3, 3), chance.uniform(-3, 3))
        if violation(rule, updates, chance.randint(0, len(updates)), vector(), centre):
            return
    pytest.fail("the search finds nothing wrong with a wrong rule")


def test_without_centring_it_is_the_clipped_mean_over_the_expected_number():
    release = release_of(SUM, centring=0.0)
    released, _ = release([torch.tensor([3.0, 4.0]), torch.tensor([0.5, 0.0])])
    assert released.tolist() == pytest.approx([(0.6 + 0.5) / EXPECTED, 0.8 / EXPECTED], abs=1e-5)
    assert release.centre.tolist() == [0.0, 0.0]


def test_the_centre_follows_what_was_released_and_nothing_else():
    release = release_of(SUM, centring=0.25)
    expected = torch.zeros(2, dtype=torch.float64)
    for _ in range(5):
        released, _ = release([torch.tensor([0.9, -0.3])] * 4)
        expected += 0.25 * (released - expected)
    assert torch.equal(release.centre, expected)
    assert float(expected.norm()) > 0.1


def test_with_centring_equal_updates_come_out_unclipped_in_the_end():
    """The fixed point is the common update, also if it is longer than the clip."""
    release = release_of(SUM, centring=1.0)
    update = torch.tensor([6.0, 8.0], dtype=torch.float64)
    for _ in range(40):
        released, _ = release([update] * int(EXPECTED))
    assert released.tolist() == pytest.approx([6.0, 8.0], abs=1e-5)


def test_what_is_unlike_the_centre_is_trimmed_though_it_is_no_longer_than_the_rest():
    release = release_of(PTR)
    release.centre = torch.tensor([2.0, 0.0], dtype=torch.float64)
    honest = [torch.tensor([2.0, 0.1])] * 6
    released, outcome = release([*honest, torch.tensor([-2.0, 0.1])])
    assert outcome.passed
    assert released.tolist() == pytest.approx([2.0, 4 * 0.1 / EXPECTED], abs=1e-5)  # 7 - F are kept


@pytest.mark.parametrize("updates", [[], [torch.tensor([math.nan, 1.0])]])
@pytest.mark.parametrize("aggregation", [SUM, TRIMMED, PTR])
def test_a_round_without_a_usable_update_releases_the_centre_and_noise(aggregation, updates):
    noisy = aggregation.with_noise(2.0)
    release = release_of(noisy, dimension=2)
    release.centre = torch.tensor([1.0, 2.0], dtype=torch.float64)
    released, outcome = release(updates)
    assert torch.isfinite(released).all()
    assert outcome.noise in (2.0, 1.0)
    assert released.tolist() != [1.0, 2.0]


@pytest.mark.parametrize(("aggregation", "noise"), [(SUM, 1.5), (TRIMMED, 1.5), (PTR, 0.75)])
def test_the_noise_has_the_scale_the_plan_says(aggregation, noise):
    release = release_of(aggregation.with_noise(1.5), centring=0.0, dimension=40_000)
    released, outcome = release([])
    measured = float(released.std()) * EXPECTED
    assert outcome.noise == pytest.approx(noise)
    assert measured == pytest.approx(noise, rel=0.015)
    assert measured != pytest.approx(noise * 1.05, rel=0.015)


def test_every_round_draws_noise_of_its_own():
    release = release_of(SUM.with_noise(1.0), centring=0.0, dimension=500)
    first, second = release([])[0], release([])[0]
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.2
    assert not torch.equal(first, second)


def test_a_skipped_round_moves_nothing():
    skipping = attrs.evolve(PTR, fallback=Fallback.SKIP, trim=FixedTrim(0.0))
    release = release_of(skipping)
    release.centre = torch.tensor([1.0, 2.0], dtype=torch.float64)
    released, outcome = release([torch.tensor([5.0, 5.0])] * 8)
    assert not outcome.passed
    assert released.tolist() == [0.0, 0.0]
    assert release.centre.tolist() == [1.0, 2.0]


def test_the_trim_adapts_to_branches():
    adaptive = attrs.evolve(PTR, trim=AdaptiveTrim(first=0.25, up=0.25, down=0.125, most=1.0))
    release = release_of(adaptive, centring=0.0)
    trims = [release([torch.tensor([5.0, 0.0])] * 4)[1].trim for _ in range(4)]
    assert trims == [2, 4, 6, 5]


def test_the_fallback_has_a_rate_of_its_own():
    slow = attrs.evolve(PTR, fallback_scale=0.5, trim=FixedTrim(0.0))
    released, _ = release_of(slow, centring=0.0)([torch.tensor([0.8, 0.0])] * 4)
    assert released.tolist() == pytest.approx([0.5 * 0.8 * 4 / EXPECTED, 0.0], abs=1e-5)


def test_a_mean_is_neither_clipped_nor_noisy():
    released, outcome = release_of(Mean(), centring=0.0)([torch.tensor([8.0, 0.0])] * 4)
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
        return float(release_of(SUM, centring=0.0)([update])[0][0])  # the same noise every time

    assert released(CLIP * (1 + 1e-9)) == pytest.approx(released(CLIP), abs=1e-15)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Expected expected_clients"),
        ({"expected_clients": 0}, "Expected expected_clients finite and > 0"),
        ({"expected_clients": 8, "centring": 1.5}, r"Expected centring in \[0, 1\], got 1\.5"),
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
