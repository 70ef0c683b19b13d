"""The exponential mechanism's event: its pair by brute force, both accountants, group privacy."""

import math

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent.accounting import (
    REPLACE_ONE,
    ExponentialMechanismDpEvent,
    PldAccountant,
    RdpAccountant,
    Relation,
    describe,
    epsilon_of,
)
from prudent.accounting.losses.pairs import BoundedRangePair


def choice_profile(x: np.ndarray, t: np.ndarray, reach: float) -> np.ndarray:
    """The profile of a choice between the losses t and t - reach."""
    high = np.expm1(t - reach) / np.expm1(-reach)
    return np.maximum(0, high * (1 - np.exp(x - t))) + np.maximum(
        0, (1 - high) * (1 - np.exp(x - t + reach))
    )


@pytest.mark.parametrize("reach", [1e-3, 0.7, 8.0])
def test_the_profile_is_the_worst_of_all_choices_between_two_losses(reach: float) -> None:
    x = np.linspace(-1.5 * reach, 1.5 * reach, 41)
    t = np.linspace(0, reach, 2001)[:, None]
    worst = choice_profile(x, t, reach).max(axis=0)
    pair = BoundedRangePair(reach)
    found = pair.profile(x)
    assert np.all(found >= worst - 1e-15)
    assert np.allclose(found, worst, atol=1e-6)
    reflected = -np.expm1(x) + np.exp(x) * pair.profile(-x)
    assert np.allclose(found, reflected, atol=1e-14)  # the pair is symmetric


@pytest.mark.parametrize("reach", [0.01, 1.0, 20.0])
def test_renyi_divergences_are_exact(reach: float) -> None:
    orders = [1.0, 1.1, 1.5, 2.0, 3.5, 32.0, math.inf]
    found = RdpAccountant(orders).compose(ExponentialMechanismDpEvent(reach)).rdp
    with mpmath.workdps(40):
        scale = 1 / (4 * mpmath.sinh(mpmath.mpf(reach) / 2))
        ends = mpmath.linspace(-reach, reach, 9)
        mean = mpmath.quad(lambda x: x * mpmath.exp(x / 2) * scale, ends)
        assert found[0] == pytest.approx(float(mean), rel=1e-12)
        for order, divergence in zip(orders[1:-1], found[1:-1], strict=True):
            moment = mpmath.quad(lambda x, a=order: mpmath.exp((a - 0.5) * x) * scale, ends)
            exact = float(mpmath.log(moment) / (order - 1))
            assert divergence == pytest.approx(exact, rel=1e-8)
    assert found[-1] == reach


def test_many_choices_cost_less_than_pure_dp_says() -> None:
    """At ε = 0.1 each and δ = 1e-6: 0.09938, 0.6861, 2.612; pure DP: 0.1, 0.9994, 4.775."""
    for count, expected in ((1, 0.09938), (10, 0.6861), (100, 2.612)):
        choices = PldAccountant().compose(ExponentialMechanismDpEvent(0.1), count)
        lower, upper = choices.epsilon_bounds(1e-6)
        assert upper == pytest.approx(expected, rel=1e-3)
        assert upper - lower < 1e-4
        pure = PldAccountant().compose(DiscreteLaplaceDpEvent(0.1, 1), count)
        renyi = RdpAccountant().compose(ExponentialMechanismDpEvent(0.1), count)
        assert upper < pure.get_epsilon(1e-6)
        assert upper <= renyi.get_epsilon(1e-6) < 1.1 * upper
        assert choices.get_epsilon(0.0) == pytest.approx(0.1 * count, rel=1e-12)


def test_sampling_amplifies_in_both_accountants() -> None:
    event = dp.PoissonSampledDpEvent(0.1, ExponentialMechanismDpEvent(1.0))
    exact = math.log1p(0.1 * math.expm1(1.0))
    assert PldAccountant().compose(event).get_epsilon(0.0) == pytest.approx(exact, rel=1e-9)
    tight = PldAccountant().compose(event, 50).get_epsilon(1e-6)
    assert tight < RdpAccountant().compose(event, 50).get_epsilon(1e-6) < 1.2 * tight


@pytest.mark.unhurried
def test_ranges_add_up_over_several_records() -> None:
    event = ExponentialMechanismDpEvent(0.1)
    assert epsilon_of(event, 0.0, REPLACE_ONE) == pytest.approx(0.2, rel=1e-12)
    several = epsilon_of(dp.SelfComposedDpEvent(event, 10), 1e-6, Relation(records=3))
    triple = PldAccountant().compose(ExponentialMechanismDpEvent(3 * 0.1), 10)
    assert several == pytest.approx(triple.get_epsilon(1e-6), rel=1e-9)
    sampled = dp.PoissonSampledDpEvent(0.1, event)
    assert 0.01 < epsilon_of(sampled, 1e-6, Relation("replace-one", records=3)) < 0.6
    replaced = PldAccountant(dp.NeighboringRelation.REPLACE_ONE)
    assert not replaced.supports(event)


def test_the_event_is_described_and_checked() -> None:
    event = ExponentialMechanismDpEvent(0.25)
    assert "0.25" in describe(event)
    for wrong in (0.0, -1.0, math.inf, 1e4):
        with pytest.raises(ValueError, match="epsilon"):
            ExponentialMechanismDpEvent(wrong)
