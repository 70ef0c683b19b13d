"""Prices of events in Gaussian noise, against closed forms that do without grids and chords."""

import math
from fractions import Fraction

import dp_accounting as dp
import numpy as np
import pytest
from scipy import special

from prudent.accounting import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    PldAccountant,
    ProposeTestReleaseDpEvent,
    RdpAccountant,
    Reveals,
)
from prudent.accounting.losses.pairs import LaplacePair, MixturePair, Pair, gaussian_profile
from prudent.budget.prices import BoundedPair, bounded_pair, epsilon_at, pure_epsilon

MEDIAN = dp.ComposedDpEvent(
    [
        ProposeTestReleaseDpEvent(
            math.inf, 0.0, DiscreteLaplaceTest(20.0), 5e-8, 1e9, Reveals.BRANCH
        ),
        DiscreteLaplaceTest(20.0),
    ]
)


def pair_of(event: dp.DpEvent, accident: float = 0.0) -> BoundedPair:
    accountant = PldAccountant().compose(event)
    epsilon = epsilon_at(event, accountant, accident) if accident else float(pure_epsilon(event))
    pair = bounded_pair(event, accountant, {epsilon: accident})
    assert pair is not None
    return pair


def laplace_beside(event: dp.LaplaceDpEvent, reserve: float) -> Pair:
    return LaplacePair(event.noise_multiplier, reserve**-0.5)


def response_beside(event: DiscreteLaplaceTest, reserve: float) -> Pair:
    rare = special.expit(-1 / event.scale)
    sigma = reserve**-0.5
    return MixturePair.of((rare, 1 - rare, sigma), (1 - rare, rare, sigma))


@pytest.mark.parametrize("ratio", [0.5, 2.0, 8.0])
@pytest.mark.parametrize(
    ("event", "beside"),
    [
        (dp.LaplaceDpEvent(20.0), laplace_beside),
        (dp.LaplaceDpEvent(0.7), laplace_beside),
        (DiscreteLaplaceTest(50.0), response_beside),
        (DiscreteLaplaceTest(3.0), response_beside),
    ],
)
def test_noise_of_the_price_dominates_and_a_little_less_does_not(
    event: dp.DpEvent, beside: object, ratio: float
) -> None:
    pair = pair_of(event)
    reserve = ratio * pair.largest**2
    price = pair.variance(reserve)
    epsilons = np.linspace(-20, 20, 4001) * math.sqrt(reserve)
    exact = beside(event, reserve).profile(epsilons)
    assert np.all(exact <= gaussian_profile(epsilons, (reserve + price) ** -0.5) * (1 + 1e-12))
    less = gaussian_profile(epsilons, (reserve + 0.95 * price) ** -0.5)
    assert np.any(exact > less * (1 + 1e-9))


def test_without_a_reserve_a_response_costs_what_gaussian_dp_says() -> None:
    pair = pair_of(DiscreteLaplaceTest(2.0))
    assert pair.variance() == pytest.approx((2 * special.ndtri(special.expit(0.5))) ** 2, rel=1e-5)


@pytest.mark.parametrize("multiplier", [2.0, 50.0])
def test_a_gaussian_costs_about_itself_on_either_side_of_a_cut(multiplier: float) -> None:
    pair = pair_of(dp.GaussianDpEvent(multiplier), 1e-9)
    assert pair.masses.sum() == pytest.approx(1 - 1e-9, rel=1e-12)
    assert 1 <= pair.variance() * multiplier**2 < 1.01
    divergence = RdpAccountant([5.0, 20.0]).compose(dp.GaussianDpEvent(multiplier)).rdp
    # A cut can only lower a divergence, joining by chords only raise it.
    assert pair.divergences((5.0,))[0] == pytest.approx(divergence[0], rel=1e-2)
    assert pair.divergences((5.0, 20.0))[1] <= divergence[1] * 1.01


def test_a_discrete_gaussian_is_priced_and_not_assumed() -> None:
    assert 1 <= pair_of(DiscreteGaussianTest(30.0), 1e-9).variance() * 30.0**2 < 1.02


def test_a_median_costs_about_half_the_square_of_its_epsilon() -> None:
    pair = pair_of(MEDIAN, 5.3e-8)
    assert pair.largest <= 0.1
    assert 0.5 * pair.largest**2 <= pair.variance(4 * pair.largest**2) <= 0.52 * pair.largest**2


@pytest.mark.parametrize(
    "event",
    [
        dp.LaplaceDpEvent(5.0),
        pytest.param(MEDIAN, marks=pytest.mark.thorough),
        dp.GaussianDpEvent(3.0),
    ],
)
def test_a_pair_reproduces_the_profile_it_came_from(event: dp.DpEvent) -> None:
    accident = 0.0 if event == dp.LaplaceDpEvent(5.0) else 1e-7
    pair, accountant = pair_of(event, accident), PldAccountant().compose(event)
    for epsilon in np.linspace(0.0, pair.largest * 0.99, 7):
        kept = np.maximum(0.0, -np.expm1(epsilon - pair.losses)) @ pair.masses
        least = accountant._composition(upper=False).delta(float(epsilon))
        assert least - accident <= kept * (1 + 1e-9) + 1e-12
        most = accountant.get_delta(float(epsilon))
        assert kept <= (most - accident) * 1.01 + accident / 10 + 1e-9


def test_pure_parts_are_added_exactly() -> None:
    event = dp.SelfComposedDpEvent(dp.LaplaceDpEvent(10.0), 3)
    assert pure_epsilon(event) == Fraction(3, 10)
    assert pure_epsilon(dp.ComposedDpEvent([event, dp.GaussianDpEvent(1.0)])) == math.inf
    assert pure_epsilon(dp.NoOpDpEvent()) == 0


def test_losses_off_the_grid_are_not_rounded_up_to_it() -> None:
    """Or parts of 1/3 and 2/3 would not fit a budget of 1."""
    accountant = PldAccountant().compose(MEDIAN)
    assert epsilon_at(MEDIAN, accountant, 5.3e-8) <= 0.1
    thirds = dp.ComposedDpEvent([MEDIAN.events[0], DiscreteLaplaceTest(3.0)])
    exact = epsilon_at(thirds, PldAccountant().compose(thirds), 5.3e-8)
    assert exact <= 0.05 + 1 / 3
