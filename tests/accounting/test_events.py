"""Tests of a margin and the event they are part of: tails, thresholds, and what is refused."""

import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prudent.accounting.events import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    ProposeTestReleaseDpEvent,
    Reveals,
)
from tests.raising import refused

KINDS = [LaplaceTest, GaussianTest, DiscreteLaplaceTest, DiscreteGaussianTest]
DISCRETE = (DiscreteLaplaceTest, DiscreteGaussianTest)
tests = st.builds(lambda kind, scale: kind(scale), st.sampled_from(KINDS), st.floats(0.05, 30))
failures = st.floats(-30, -0.4).map(lambda x: 10**x)


def exact_tail(test, distance):
    """Pr[noise > distance] from the density or the masses, in 40 digits."""
    with mpmath.workdps(40):
        s, x = mpmath.mpf(test.scale), mpmath.mpf(distance)
        if isinstance(test, LaplaceTest):
            return mpmath.exp(-x / s) / 2 if x >= 0 else 1 - mpmath.exp(x / s) / 2
        if isinstance(test, GaussianTest):
            return mpmath.ncdf(-x / s)
        laplace = isinstance(test, DiscreteLaplaceTest)

        def weight(k):
            return mpmath.exp(-abs(k) / s if laplace else -(k * k) / (2 * s * s))

        reach = int(abs(distance) + (100 if laplace else 15) * test.scale) + 10
        total = mpmath.fsum(weight(k) for k in range(-reach, reach + 1))
        return mpmath.fsum(weight(k) for k in range(math.floor(distance) + 1, reach + 1)) / total


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [0.3, 1.0, 7.0])
def test_tails_are_exact_on_both_sides(kind, scale):
    test = kind(scale)
    for distance in (-30.0, -7.2, -1.0, -0.5, 0.0, 0.5, 1.0, 3.7, 4.0, 12.0):
        exact = float(exact_tail(test, distance))
        assert test.tail(distance) == pytest.approx(exact, rel=1e-12, abs=1e-200), distance


@given(test=tests, failure=failures)
def test_the_threshold_is_the_least_that_keeps_the_promise(test, failure):
    threshold = test.threshold(failure)
    # One unit in the last place of a threshold of many scales moves the tail by that many.
    rounding = 1e-15 * (5 + threshold / test.scale) ** 2
    assert test.tail(threshold) <= failure * (1 + rounding)
    assert test.false_pass(failure) <= failure
    if isinstance(test, DISCRETE):
        assert threshold == math.floor(threshold)
        assert test.tail(threshold) <= failure
        assert threshold == 0 or test.tail(threshold - 1) > failure
    else:
        assert test.tail(threshold - 1e-6 * test.scale) > failure


@given(test=tests, distance=st.floats(-50, 50))
def test_the_noise_is_symmetric_and_its_tail_falls(test, distance):
    assert test.tail(distance) >= test.tail(distance + 0.5) >= 0
    if isinstance(test, DISCRETE):
        whole = math.floor(distance)
        assert test.tail(whole) + test.tail(-whole - 1) == pytest.approx(1, abs=1e-12)
    else:
        assert test.tail(distance) + test.tail(-distance) == pytest.approx(1, abs=1e-12)


def test_the_laplace_threshold_is_the_papers():
    assert LaplaceTest(1.0).threshold(1e-8) == pytest.approx(math.log(1 / 2e-8), rel=1e-14)
    assert LaplaceTest(1.0).threshold(1e-8) == pytest.approx(17.7, abs=0.05)
    for scale, printed in ((2, 11.2), (3, 16.8), (4, 22.4), (6, 33.7), (8, 44.9)):  # Errata 2.5
        assert GaussianTest(scale).threshold(1e-8) == pytest.approx(printed, abs=0.06)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, "wide", True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_scale_out_of_range_is_named(kind, value):
    with refused("scale"):
        kind(value)


def test_a_discrete_gaussian_too_wide_to_sum_is_refused():
    with refused("scale"):
        DiscreteGaussianTest(2e4)


def propose(**changes):
    fields = {"noise_multiplier": 1.1, "propose": 0.5, "test": LaplaceTest(1.0), "failure": 1e-8}
    return ProposeTestReleaseDpEvent(**{**fields, **changes})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("noise_multiplier", value) for value in (0.0, -1.0, math.nan)),
        *(("propose", value) for value in (-0.1, math.inf, math.nan)),
        *(("failure", value) for value in (0.0, 0.5, 0.9, math.nan)),
        *(("robust_noise_multiplier", value) for value in (0.0, math.inf)),
        ("test", "laplace"),
    ],
)
def test_a_field_out_of_range_is_named(field, value):
    with refused(field):
        propose(**{field: value})


def test_a_refusing_mechanism_must_say_its_robust_noise():
    with refused("robust_noise_multiplier"):
        propose(noise_multiplier=math.inf)
    event = propose(noise_multiplier=math.inf, robust_noise_multiplier=2.0)
    assert event.refuses
    assert event.sigma_over_proposal == 2.0
    assert event.sigma_over_global == 1.0


def test_events_are_values():
    assert propose() == propose()
    assert hash(propose()) == hash(propose())
    assert propose(reveals="branch").reveals is Reveals.BRANCH
    assert not propose().refuses
    assert propose().sigma_over_global == pytest.approx(0.55)
    with refused("reveals"):
        propose(reveals="everything")
    with pytest.raises(AttributeError):
        propose().failure = 0.1
