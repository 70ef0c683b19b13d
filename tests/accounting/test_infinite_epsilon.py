"""Where ε is infinite, the explanation names the reason, and its δ is the right one."""

import math

import dp_accounting as dp
import pytest

from prudent.accounting import (
    REPLACE_ONE,
    ApproximateDpEvent,
    LaplaceTest,
    ProposeTestReleaseDpEvent,
    UnreachableTargetError,
    epsilon_of,
    why_infinite,
)
from prudent.accounting.calibration import Search, solve
from prudent.training import Plan, ProposeTestRelease, Sum

REFUSES = ProposeTestReleaseDpEvent(math.inf, 0.0, LaplaceTest(1.0), 1e-8, 3.0)
TESTS = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, REFUSES), 1000)
CASES = [
    (TESTS, 1e-7, "1,000 tests at sampling rate 0.1 may each pass by accident"),
    (REFUSES, 1e-9, "One test may pass by accident with probability δ₀ = 1e-08"),
    (ApproximateDpEvent(1.0, 1e-6), 1e-7, "because of a mechanism of ε = 1 and δ = 1e-06"),
    (dp.GaussianDpEvent(1.0), 0.0, "δ = 0 needs losses that are bounded"),
]


@pytest.mark.parametrize(("event", "delta", "reason"), CASES)
def test_the_reason_and_the_least_delta(event, delta, reason):
    found = why_infinite(event, delta)
    assert math.isinf(epsilon_of(event, delta))
    assert reason in str(found)
    assert f"ε is infinite at δ = {delta:g}" in str(found)
    # Just above the least δ it is finite; just below it is not.
    assert math.isfinite(epsilon_of(event, max(found.least_delta * 1.001, 1e-300)))
    if found.least_delta > 0:
        assert math.isinf(epsilon_of(event, found.least_delta * 0.999))
        assert why_infinite(event, found.least_delta * 1.001) is None


def test_the_accidents_of_all_steps_add_up():
    test = LaplaceTest(1.0)
    exact = -math.expm1(1000 * math.log1p(-0.1 * test.false_pass(1e-8)))
    assert why_infinite(TESTS, 1e-7).least_delta == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("event", [dp.GaussianDpEvent(0.0), dp.NonPrivateDpEvent()])
def test_without_noise_no_delta_helps(event):
    found = why_infinite(dp.ComposedDpEvent([dp.GaussianDpEvent(2.0), event]), 0.01)
    assert found.least_delta == 1
    assert "One part hides nothing" in str(found)
    assert "No δ below 1 makes ε finite." in str(found)


@pytest.mark.slow
def test_several_records_need_more():
    alone, both = why_infinite(REFUSES, 1e-9), why_infinite(REFUSES, 1e-9, REPLACE_ONE)
    assert both.least_delta > 1.9 * alone.least_delta
    assert math.isfinite(epsilon_of(REFUSES, both.least_delta * 1.001, REPLACE_ONE))


def test_what_is_finite_needs_no_reason():
    assert why_infinite(TESTS, 1e-5) is None
    plan = Plan(sampling_rate=0.1, steps=2, aggregation=Sum(clip=1.0, noise_multiplier=1.0))
    assert plan.why_infinite(1e-5) is None
    assert "bounded" in str(plan.why_infinite(0.0))


def test_a_search_that_cannot_succeed_says_why():
    with pytest.raises(
        UnreachableTargetError, match=r"1,000 tests .* finite for every δ above 1e-06"
    ):
        solve(
            lambda sigma: dp.ComposedDpEvent([TESTS, dp.GaussianDpEvent(sigma)]),
            Search(safe=100, unsafe=1, guess=10),
            epsilon=1.0,
            delta=1e-7,
            name="noise_multiplier",
        )


def test_a_plan_that_skips_is_finite():
    """With a bounded sensitivity no accident is infinite."""
    rule = ProposeTestRelease(clip=1.0, propose=0.5, noise_multiplier=1.0, test=LaplaceTest(2.0))
    assert Plan(sampling_rate=0.1, steps=9, aggregation=rule).why_infinite(1e-12) is None
