"""Filters against the strongest adversary there is, and the promises of each book."""

import functools
import math
import re
from fractions import Fraction

import dp_accounting as dp
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from prudent.accounting import (
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    PldAccountant,
    ProposeTestReleaseDpEvent,
    Reveals,
    calibration,
    conversion,
)
from prudent.release.budget.adaptive_filter import AdaptiveFilter, Costs
from prudent.release.budget.filters import ExactFilter, Filter, Room


def refusing(failure: float, scale: float = 10.0, noise: float = 30.0) -> dp.DpEvent:
    """Textbook Propose-Test-Release where no global sensitivity is known."""
    test = DiscreteLaplaceTest(scale)
    return ProposeTestReleaseDpEvent(math.inf, 0.0, test, failure, noise, Reveals.BRANCH)


def worst_delta(filter_: Filter, unit: float, menu: tuple[int, ...]) -> float:
    """δ(ε) reached by the best adversary that a filter lets ask for randomised responses.

    The event DiscreteLaplaceTest(1/a) has exactly the losses ±a of a randomised response. The
    adversary chooses each a among `unit` × `menu` knowing all answers, and stops when it likes.
    Maximising E[max(0, 1 - e^(ε - loss))] over its strategies is a dynamic programme.
    """
    events = [DiscreteLaplaceTest(1 / (unit * steps)) for steps in menu]
    likely = [1 / (1 + math.exp(-unit * steps)) for steps in menu]

    @functools.cache
    def state(counts: tuple[int, ...]) -> object:
        reached = filter_.opening()
        for event, count in zip(events, counts, strict=True):
            for _ in range(count):
                reached = filter_.charged(reached, event, None)
        return reached

    @functools.cache
    def admitted(counts: tuple[int, ...]) -> bool:
        return filter_.admits(state(counts))

    @functools.cache
    def value(counts: tuple[int, ...], loss: int) -> float:
        best = max(0.0, 1 - math.exp(filter_.epsilon - unit * loss))
        for index, steps in enumerate(menu):
            more = (*counts[:index], counts[index] + 1, *counts[index + 1 :])
            if admitted(more):
                up, down = value(more, loss + steps), value(more, loss - steps)
                best = max(best, likely[index] * up + (1 - likely[index]) * down)
        return best

    return value((0,) * len(menu), 0)


@pytest.mark.parametrize(
    ("epsilon", "delta", "unit", "menu"),
    [(1.0, 0.05, 0.1, (1, 3, 7)), (1.0, 0.1, 0.25, (1, 2, 3)), (2.0, 0.2, 0.2, (1, 9))],
)
def test_no_adversary_beats_the_adaptive_filter(
    epsilon: float, delta: float, unit: float, menu: tuple[int, ...]
) -> None:
    assert worst_delta(AdaptiveFilter(epsilon, delta), unit, menu) <= delta


def test_an_adversary_beats_the_exact_filter() -> None:
    """Why the exact filter asks for a list fixed in advance; and that the search above can fail."""
    filter_ = ExactFilter(1.0, 0.1)
    assert worst_delta(filter_, 0.3, (1, 3)) > 1.15 * filter_.delta


@pytest.mark.parametrize("steps", [1, 3])
def test_no_adversary_beats_the_exact_filter_with_one_price(steps: int) -> None:
    """With a single event to choose from, its list is fixed, whenever the adversary stops."""
    assert worst_delta(ExactFilter(1.0, 0.1), 0.3, (steps,)) <= 0.1


@hypothesis.given(
    epsilon=st.floats(0.01, 50.0), exponent=st.floats(-12.0, -0.5), index=st.integers(0, 4)
)
def test_the_limit_of_an_order_is_where_its_conversion_meets_the_budget(
    epsilon: float, exponent: float, index: int
) -> None:
    filter_ = AdaptiveFilter(epsilon, 10.0**exponent)
    limit, share = filter_._limits()[index], filter_._shares()[index]
    if limit > 0:
        converted = conversion.rdp_to_epsilon_balle(filter_.orders[index], limit, share)
        assert converted == pytest.approx(epsilon, rel=1e-9)


def test_the_shares_of_the_books_sum_to_the_budget() -> None:
    filter_ = AdaptiveFilter(1.0, 1e-6)
    total = filter_._simple_limit + filter_._accident_limit + filter_._shares().sum()
    assert total == pytest.approx(1e-6, rel=1e-12)


def test_the_first_charge_may_take_the_whole_budget() -> None:
    filter_ = AdaptiveFilter(1.0, 1e-6)
    noise = calibration.solve(
        dp.GaussianDpEvent, calibration.Search(1e3, 0.1, 5.0), epsilon=1.0, delta=1e-6
    )
    first = filter_.charged(filter_.opening(), dp.GaussianDpEvent(noise), None)
    assert filter_.admits(first)
    assert str(filter_.room(first)) == "nothing"
    after = filter_.charged(first, dp.GaussianDpEvent(1e4), None)
    assert not filter_.admits(after)
    little_then_whole = filter_.charged(
        filter_.charged(filter_.opening(), dp.GaussianDpEvent(1e4), None),
        dp.GaussianDpEvent(noise),
        None,
    )
    assert not filter_.admits(little_then_whole)


@pytest.mark.parametrize("parts", [2, 4])
def test_what_sums_to_the_budget_fits(parts: int) -> None:
    """Simple composition: any parts of ε, beside a quarter of δ in all."""
    filter_ = AdaptiveFilter(1.0, 1e-6)
    epsilon, delta = 1 / parts, 2.5e-7 / parts
    scale = calibration.solve(
        lambda scale: refusing(delta / 2, scale, 10 * scale),
        calibration.Search(1e3, 0.5, 10.0),
        epsilon=epsilon * (1 - 1e-6),
        delta=delta,
    )
    event = refusing(delta / 2, scale, 10 * scale)
    state = filter_.opening()
    for _ in range(parts):
        state = filter_.charged(state, event, delta * (1 - 1e-9))
        assert filter_.admits(state)
    assert not filter_.admits(filter_.charged(state, event, delta))


def test_pure_events_take_no_delta() -> None:
    costs = AdaptiveFilter(1.0, 1e-6).price(dp.LaplaceDpEvent(10.0))
    assert costs.epsilon == pytest.approx(0.1, rel=1e-2)
    assert (costs.delta, costs.accident) == (0.0, 0.0)


def test_accidents_are_set_aside_and_run_out() -> None:
    """Without a global sensitivity the plain divergence is infinite: only δ can pay for it."""
    filter_ = AdaptiveFilter(1.0, 1e-6)
    event = refusing(1e-7, scale=100.0, noise=300.0)
    costs = filter_.price(event)
    assert all(map(math.isfinite, costs.divergences))
    assert 0 < costs.accident <= 1e-7
    state, count = filter_.opening(), 0
    while filter_.admits(more := filter_.charged(state, event, None)):
        state, count = more, count + 1
    assert count == math.floor(2.5e-7 / costs.accident)
    assert min(np.array(more.divergences) / filter_._limits()) < 0.5  # ε was not what ran out


def test_accidents_stay_where_they_are_when_that_is_cheaper() -> None:
    """With τ equal to the global sensitivity a false pass does no harm."""
    event = ProposeTestReleaseDpEvent(5.0, 1.0, LaplaceTest(10.0), 1e-3)
    assert AdaptiveFilter(1.0, 1e-6).price(event).accident == 0.0


EVENTS = st.one_of(
    st.floats(2.0, 50.0).map(dp.GaussianDpEvent),
    st.floats(2.0, 50.0).map(DiscreteLaplaceTest),
    st.floats(0.001, 0.1).map(lambda q: dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(1.5))),
    st.floats(5.0, 50.0).map(lambda b: refusing(1e-8, b, 10 * b)),
    st.floats(3.0, 9.0).map(lambda s: ProposeTestReleaseDpEvent(4.0, 0.5, GaussianTest(s), 1e-9)),
)


@hypothesis.settings(max_examples=15)
@hypothesis.given(st.lists(EVENTS, min_size=1, max_size=4))
def test_what_is_called_spent_is_an_upper_bound(events: list[dp.DpEvent]) -> None:
    filter_, accountant = AdaptiveFilter(3.0, 1e-5), PldAccountant()
    state = filter_.opening()
    for event in events:
        state = filter_.charged(state, event, None)
        accountant.compose(event)
    assert filter_.spent(state) >= accountant.epsilon_bounds(1e-5)[0] * (1 - 1e-9)


@hypothesis.given(st.lists(st.floats(1e-12, 1e3), min_size=1, max_size=50))
def test_sums_are_rounded_up(values: list[float]) -> None:
    total = functools.reduce(Costs.plus, (Costs(v, v, (v,), v, v) for v in values))
    exact = sum(map(Fraction, values))
    for number in (total.epsilon, total.delta, total.accident, *total.divergences):
        assert exact <= Fraction(number) <= exact * (1 + Fraction(1, 10**12))


def test_a_state_survives_being_noted() -> None:
    filter_ = AdaptiveFilter(1.0, 1e-6)
    state = filter_.charged(filter_.opening(), dp.NonPrivateDpEvent(), None)
    state = filter_.charged(state, refusing(1e-8), None)
    assert filter_.resumed(None, refusing(1e-8), filter_.total(state)) == state


def test_a_charge_adds_the_same_whatever_it_is_composed_of() -> None:
    """Identical runs may come one by one or as one event, which costs at most rounding more."""
    filter_, event = AdaptiveFilter(1.0, 1e-6), dp.GaussianDpEvent(50.0)
    one_by_one = filter_.opening()
    for _ in range(10):
        one_by_one = filter_.charged(one_by_one, event, None)
    at_once = filter_.charged(filter_.opening(), dp.SelfComposedDpEvent(event, 10), None)
    assert at_once.divergences == pytest.approx(one_by_one.divergences, rel=1e-12)


def test_the_exact_filter_spends_what_the_accountant_says() -> None:
    filter_ = ExactFilter(1.0, 1e-6)
    state = filter_.opening()
    for event in (dp.GaussianDpEvent(20.0), dp.GaussianDpEvent(20.0), refusing(1e-8)):
        state = filter_.charged(state, event, None)
    accountant = PldAccountant().compose(dp.GaussianDpEvent(20.0), 2).compose(refusing(1e-8))
    assert filter_.spent(state) == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-9)
    room = filter_.room(state)
    assert filter_.admits(filter_.charged(state, dp.GaussianDpEvent(room.noise_multiplier), None))


def test_the_exact_filter_buys_more() -> None:
    """About a third more of a small Gaussian release, which is what the proof costs."""

    def count(filter_: Filter) -> int:
        state, admitted = filter_.opening(), 0
        while filter_.admits(state := filter_.charged(state, dp.GaussianDpEvent(40.0), None)):
            admitted += 1
        return admitted

    assert 1.2 < count(ExactFilter(1.0, 1e-6)) / count(AdaptiveFilter(1.0, 1e-6)) < 1.4


@pytest.mark.parametrize("value", [0.29999, 0.1, 1 / 3, 4.8048, 62.00582887, 9.996])
def test_what_would_fit_is_printed_on_the_safe_side(value: float) -> None:
    epsilon, delta, noise = re.findall(r"= ([0-9.]+)", str(Room(value, value, value)))
    assert 0.99 * value <= float(epsilon) <= value
    assert 0.99 * value <= float(delta) <= value
    assert value <= float(noise) <= 1.01 * value
    assert str(Room(0.0, 1e-7, math.inf)) == "nothing"
