"""What a ledger shows as spent, against the exact composition of the charges as a list."""

import itertools
import math
from pathlib import Path

import dp_accounting as dp
import hypothesis
import hypothesis.strategies as st
import mpmath
import pytest

from prudent.accounting import ApproximateDpEvent, PldAccountant
from prudent.accounting.relations import Relation
from prudent.budget.allowance import Allowance
from prudent.budget.filters import AdaptiveFilter
from prudent.budget.ledger import Ledger
from prudent.budget.prices import SET_ASIDE

SPARE = 1 + 1e-6  # what is told above the δ of an event, so that its ε at that δ is finite
Charges = list[tuple[float, float]]


def composed_delta(charges: Charges, epsilon: float) -> mpmath.mpf:
    """δ(ε) of the worst (εᵢ, δᵢ)-DP mechanisms together, all 2ⁿ answers of them in 40 digits.

    Each says all with probability δᵢ, and otherwise is a randomised response of εᵢ (Kairouz, Oh and
    Viswanath 2015).
    """
    with mpmath.workdps(40):
        hidden, excess = mpmath.mpf(1), mpmath.mpf(0)
        for _, delta in charges:
            hidden *= 1 - mpmath.mpf(delta)
        for signs in itertools.product((1, -1), repeat=len(charges)):
            loss, mass = mpmath.mpf(0), mpmath.mpf(1)
            for sign, (one, _) in zip(signs, charges, strict=True):
                loss += sign * mpmath.mpf(one)
                mass /= 1 + mpmath.exp(-sign * mpmath.mpf(one))
            excess += mass * max(mpmath.mpf(0), 1 - mpmath.exp(epsilon - loss))
        return 1 - hidden * (1 - excess)


def check_each_step(filter_: AdaptiveFilter, charges: Charges) -> None:
    state = filter_.opening()
    for count, (epsilon, delta) in enumerate(charges, start=1):
        told = SPARE * delta if delta else None
        state = filter_.charged(state, ApproximateDpEvent(epsilon, delta), told)
        spent = filter_.spent(state)
        if spent < math.inf:
            assert composed_delta(charges[:count], spent) <= filter_.delta


@pytest.mark.parametrize(
    ("budget", "charges"),
    [
        ((0.146, 5.232e-4), [(5.512e-4, 0.0), (1e-6, 0.53124 * 5.232e-4)]),
        ((0.0104464, 1.41555e-4), [(1.84206e-4, 7.30245e-5)]),
        ((0.5, 1e-3), [(1e-3, 0.0), (1e-3, 0.0), (1e-5, 0.5312 * 1e-3)]),
    ],
)
def test_small_charges_that_leave_less_of_delta_than_their_prices_assume(
    budget: tuple[float, float], charges: Charges
) -> None:
    check_each_step(AdaptiveFilter(*budget), charges)


@st.composite
def lists(draw: st.DrawFn) -> tuple[float, float, Charges]:
    """A budget, and charges that are small parts of it or as much as there is."""
    epsilon, delta = 10.0 ** draw(st.floats(-2, 0.5)), 10.0 ** draw(st.floats(-6, -1))
    charges = []
    for _ in range(draw(st.integers(1, 4))):
        share = draw(st.one_of(st.just(0.0), st.floats(0.01, SET_ASIDE)))
        charges.append((epsilon * 10.0 ** draw(st.floats(-4, 0)), delta * share / SPARE))
    return epsilon, delta, charges


@pytest.mark.unhurried
@hypothesis.settings(max_examples=8, deadline=None)
@hypothesis.given(lists())
def test_the_charges_are_private_at_what_is_shown_as_spent(
    drawn: tuple[float, float, Charges],
) -> None:
    epsilon, delta, charges = drawn
    check_each_step(AdaptiveFilter(epsilon, delta), charges)


@pytest.mark.parametrize("multiplier", [3.0, 300.0])
def test_many_charges_still_cost_less_than_their_sum(multiplier: float) -> None:
    """A reserve counts once for the whole list, so that the Gaussian book is shown."""
    filter_ = AdaptiveFilter(20.0 / multiplier, 1e-6)
    state = filter_.opening()
    for _ in range(40):
        state = filter_.charged(state, dp.LaplaceDpEvent(multiplier), None)
    least = PldAccountant().compose(dp.LaplaceDpEvent(multiplier), 40).get_epsilon(1e-6)
    assert least < filter_.spent(state) < 1.2 * least


@pytest.mark.parametrize("told", [None, 1e-9, 1e-6, 0.3])
def test_the_price_of_a_charge_is_that_at_the_delta_beside_it(
    tmp_path: Path, told: float | None
) -> None:
    """Also if more was told than the budget has."""
    event = dp.GaussianDpEvent(40.0)
    with Ledger(tmp_path / "budget.db", epsilon=1.0, delta=1e-6) as ledger:
        charge = ledger.charge(event, delta=told)
    assert charge.at_delta == (told or 1e-6)
    exact = PldAccountant().compose(event).get_epsilon(charge.at_delta)
    assert charge.epsilon >= exact * (1 - 1e-9)


def test_nothing_is_known_of_a_group_beyond_the_share_of_a_record() -> None:
    """k times ε is shown only where a chain of k records keeps within the budget's δ."""
    budget = Allowance(1.0, 1e-6, relation=Relation(records=4))
    assert budget.for_relation(0.2) == pytest.approx(0.8)
    assert budget.for_relation(0.3) == math.inf


@pytest.mark.unhurried
@pytest.mark.parametrize(
    "event",
    [
        dp.GaussianDpEvent(1000.0),
        ApproximateDpEvent(0.01, 0.01),
        dp.PoissonSampledDpEvent(1e-3, dp.GaussianDpEvent(10.0)),
        dp.ComposedDpEvent([dp.GaussianDpEvent(1000.0), dp.LaplaceDpEvent(1000.0)]),
    ],
    ids=str,
)
def test_a_delta_beyond_all_that_an_event_reveals_may_be_told(
    tmp_path: Path, event: dp.DpEvent
) -> None:
    """At that δ its ε is 0."""
    with Ledger(tmp_path / "budget.db", epsilon=1.0, delta=0.1) as ledger:
        for told in (0.0, 1e-9, 0.04, 0.5, 0.9):
            ledger.fits(event, delta=told)
        assert ledger.charge(event, delta=0.04).spent <= 1.0
