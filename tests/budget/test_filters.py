"""Filters against the strongest adversary there is, and the promises of each book."""

import functools
import math
import re
from collections import Counter
from fractions import Fraction

import attrs
import dp_accounting as dp
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent.accounting import (
    ApproximateDpEvent,
    DiscreteLaplaceTest,
    LaplaceTest,
    PldAccountant,
    ProposeTestReleaseDpEvent,
    Reveals,
    calibration,
)
from prudent.accounting.losses import moments
from prudent.accounting.losses.moments import gaussian_delta
from prudent.budget.filters import AdaptiveFilter, Room, sum_up
from prudent.budget.prices import GAUSSIAN, RENYI, SET_ASIDE, price
from prudent.release.ptr import ProposeTestReleaseMechanism

calibrate = ProposeTestReleaseMechanism.calibrate
SPARE = 1 + 2**-19  # what is told above the δ that an event needs


def refusing(failure: float, scale: float = 10.0, noise: float = 30.0) -> dp.DpEvent:
    """Textbook Propose-Test-Release where no global sensitivity is known."""
    test = DiscreteLaplaceTest(scale)
    return ProposeTestReleaseDpEvent(math.inf, 0.0, test, failure, noise, Reveals.BRANCH)


def response(*steps: int, unit: float) -> dp.DpEvent:
    """Randomised responses of ε₀ = `unit` × each of `steps`, charged at once."""
    parts = [DiscreteLaplaceTest(1 / (unit * step)) for step in steps]
    return parts[0] if len(parts) == 1 else dp.ComposedDpEvent(parts)


def worst_delta(
    filter_: "AdaptiveFilter | ExactFilter",
    unit: float,
    menu: tuple[int | tuple[int, ...], ...],
    reveal: float | None = None,
) -> float:
    """δ(ε) reached by the best adversary that a filter lets ask for randomised responses.

    The event DiscreteLaplaceTest(1/a) has exactly the losses ±a of a randomised response. The
    adversary chooses each charge among `menu`, in units, knowing all answers, and stops when it
    likes. A charge of several responses answers them one by one, and between any two of them the
    adversary may charge something else and look at that first. It may also ask for an event that
    reveals all with probability `reveal`. Maximising E[max(0, 1 - e^(ε - loss))] over its
    strategies is a dynamic programme.
    """
    charges = [item if isinstance(item, tuple) else (item,) for item in menu]
    events = [response(*charge, unit=unit) for charge in charges]

    best_from: dict[object, float] = {}

    def value(state: object, waiting: tuple[tuple[int, ...], ...], loss: int) -> float:
        key = rounded(state), waiting, loss
        if key not in best_from:
            best = max(0.0, 1 - math.exp(filter_.epsilon - unit * loss))
            for event, charge in zip(events, charges, strict=True):
                more = filter_.charged(state, event, None)
                if filter_.admits(more):
                    best = max(best, answered(more, waiting, charge, loss))
            if reveal is not None:
                accident = dp.PoissonSampledDpEvent(reveal, dp.NonPrivateDpEvent())
                more = filter_.charged(state, accident, reveal * SPARE)
                if filter_.admits(more):
                    best = max(best, reveal + (1 - reveal) * value(more, waiting, loss))
            for index, rest in enumerate(waiting):
                others = waiting[:index] + waiting[index + 1 :]
                best = max(best, answered(state, others, rest, loss))
            best_from[key] = best
        return best_from[key]

    def answered(
        state: object,
        waiting: tuple[tuple[int, ...], ...],
        responses: tuple[int, ...],
        loss: int,
    ) -> float:
        first, *rest = responses
        after = tuple(sorted((*waiting, tuple(rest)))) if rest else waiting
        up, down = value(state, after, loss + first), value(state, after, loss - first)
        likely = 1 / (1 + math.exp(-unit * first))
        return likely * up + (1 - likely) * down

    return value(filter_.opening(), (), 0)


def rounded(state: object) -> object:
    """A state as a key: what was charged in another order may differ by rounding alone."""
    if isinstance(state, Counter):
        return frozenset(state.items())
    return tuple(np.round(np.asarray(value, float), 9).tobytes() for value in attrs.astuple(state))


@pytest.mark.unhurried
@pytest.mark.parametrize(
    ("epsilon", "delta", "unit", "menu"),
    [
        (1.0, 0.1, 0.25, (1, 2, 3)),
        pytest.param(1.0, 0.05, 0.1, (1, 3, 7), marks=pytest.mark.thorough),
        pytest.param(2.0, 0.2, 0.2, (1, 9), marks=pytest.mark.thorough),
        (1.0, 0.1, 0.2, (1, (1, 3))),  # answers of several charges in turns
        (1.0, 0.3, 0.25, ((1, 2), (2, 1))),
    ],
)
def test_no_adversary_beats_the_adaptive_filter(
    epsilon: float, delta: float, unit: float, menu: tuple[int | tuple[int, ...], ...]
) -> None:
    assert worst_delta(AdaptiveFilter(epsilon, delta), unit, menu) <= delta


@attrs.frozen
class ExactFilter:
    """Admits what the exact composition of the charges as a list affords. Not valid."""

    epsilon: float
    delta: float

    def opening(self) -> Counter[dp.DpEvent]:
        return Counter()

    def charged(self, state: Counter[dp.DpEvent], event: dp.DpEvent, _: object) -> Counter:
        return state + Counter([event])

    def spent(self, state: Counter[dp.DpEvent]) -> float:
        return exact_epsilon(frozenset(state.items()), self.delta)

    def admits(self, state: Counter[dp.DpEvent]) -> bool:
        return self.spent(state) <= self.epsilon


@functools.cache
def exact_epsilon(counts: frozenset[tuple[dp.DpEvent, int]], delta: float) -> float:
    accountant = PldAccountant()
    for event, count in counts:
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)


@pytest.mark.unhurried
def test_an_adversary_beats_exact_accounting() -> None:
    """Why a filter is needed at all; and that the search above can fail."""
    filter_ = ExactFilter(1.0, 0.1)
    assert worst_delta(filter_, 0.3, (1, 3)) > 1.15 * filter_.delta


@hypothesis.given(
    epsilon=st.floats(0.05, 50.0), exponent=st.floats(-12.0, -0.5), index=st.integers(0, 1)
)
def test_the_limits_are_where_conversions_meet_the_budget(
    epsilon: float, exponent: float, index: int
) -> None:
    delta = 10.0**exponent
    filter_ = AdaptiveFilter(epsilon, delta)
    limit = filter_.limits.divergences[index]
    converted = moments.rdp_to_epsilon_balle(filter_.orders[index], limit, RENYI * delta)
    assert limit > 0, "an order that no event can use"
    assert converted == pytest.approx(epsilon, rel=1e-9)
    noise = filter_.limits.gaussian**-0.5
    assert gaussian_delta(epsilon, noise) <= GAUSSIAN * delta
    assert gaussian_delta(epsilon, noise * 0.999) > GAUSSIAN * delta


def test_the_shares_of_the_books_sum_to_the_budget() -> None:
    assert SET_ASIDE + GAUSSIAN + 2 * RENYI == 1


def test_the_first_charge_may_take_the_whole_budget() -> None:
    filter_ = AdaptiveFilter(1.0, 1e-6)
    noise = calibration.solve(
        dp.GaussianDpEvent, calibration.Search(1e3, 0.1, 5.0), epsilon=1.0, delta=1e-6
    )
    first = filter_.charged(filter_.opening(), dp.GaussianDpEvent(noise), None)
    assert filter_.admits(first)
    assert filter_.room(first).epsilon < 1e-5
    assert filter_.room(first).delta == 0
    after = filter_.charged(first, dp.GaussianDpEvent(1e4), None)
    assert not filter_.admits(after)
    little_then_whole = filter_.charged(
        filter_.charged(filter_.opening(), dp.GaussianDpEvent(1e4), None),
        dp.GaussianDpEvent(noise),
        None,
    )
    assert not filter_.admits(little_then_whole)


@pytest.mark.unhurried
def test_a_first_charge_that_takes_nearly_all_leaves_the_rest_to_addition() -> None:
    filter_ = AdaptiveFilter(1.0, 1e-6)
    parts = [(0.985, 9.8e-7), (0.01, 1e-8), (0.005, 1e-8)]
    state = filter_.opening()
    for epsilon, delta in parts:
        noise = calibration.solve(
            dp.GaussianDpEvent, calibration.Search(1e4, 0.1, 5.0), epsilon=epsilon, delta=delta
        )
        state = filter_.charged(state, dp.GaussianDpEvent(noise * 1.0001), delta)
        assert filter_.admits(state)
    assert not filter_.admits(filter_.charged(state, dp.GaussianDpEvent(1e3), 1e-9))
    assert filter_.room(state).delta < 1e-12


def admitted(
    filter_: "AdaptiveFilter | ExactFilter", events: list[tuple[dp.DpEvent, float | None]]
) -> int:
    """How many of some charges a filter admits, until it refuses one."""
    state = filter_.opening()
    for number, (event, delta) in enumerate(events):
        state = filter_.charged(state, event, delta)
        if not filter_.admits(state):
            return number
    return len(events)


@pytest.mark.parametrize(
    ("charge", "least", "exact"),
    [
        ((dp.GaussianDpEvent(50.0), None), 127, 140),
        ((dp.LaplaceDpEvent(50.0), None), 125, 144),
        ((dp.LaplaceDpEvent(20.0), None), 20, 26),
        ((calibrate(propose=1.0, epsilon=0.1, delta=1e-7).event, 1e-7), 10, 12),
        ((calibrate(propose=1.0, epsilon=0.02, delta=5e-9).event, 5e-9), 200, 256),
    ],
    ids=["gaussian", "laplace", "large-laplace", "median", "small-median"],
)
def test_how_many_charges_a_budget_admits(
    charge: tuple[dp.DpEvent, float | None], least: int, exact: int
) -> None:
    """At (1, 1e-6), and what exact accounting of a list fixed in advance would admit."""
    assert least <= admitted(AdaptiveFilter(1.0, 1e-6), [charge] * exact) <= exact


@pytest.mark.unhurried
@pytest.mark.parametrize(
    "budget",
    [(1.0, 1e-6), *(pytest.param(b, marks=pytest.mark.slow) for b in ((0.3, 1e-8), (3.0, 1e-5)))],
)
@pytest.mark.parametrize(
    ("epsilons", "deltas"), [((1, 2), (1, 1)), ((9, 1), (1, 19)), ((1, 3, 7, 19), (6, 1, 2, 5))]
)
def test_releases_that_add_up_to_the_budget_fit(
    budget: tuple[float, float], epsilons: tuple[int, ...], deltas: tuple[int, ...]
) -> None:
    """Never below addition: table releases of any parts of ε and of δ, in any order."""
    charges = []
    for e, d in zip(epsilons, deltas, strict=True):
        epsilon, delta = budget[0] * e / sum(epsilons), budget[1] * d / sum(deltas)
        event = calibrate(propose=1.0, epsilon=epsilon, delta=delta).event
        charges.append((event, delta))
    assert admitted(AdaptiveFilter(*budget), charges) == len(charges)
    assert admitted(AdaptiveFilter(*budget), charges[::-1]) == len(charges)


def test_pure_events_take_no_delta() -> None:
    (costs,) = price(AdaptiveFilter(1.0, 1e-6).limits, dp.LaplaceDpEvent(10.0))
    assert (costs.epsilon, costs.set_aside) == (Fraction(1, 10), 0.0)


@pytest.mark.unhurried
@pytest.mark.parametrize(
    "event",
    [
        dp.SelfComposedDpEvent(dp.LaplaceDpEvent(10.0), 5),
        dp.ComposedDpEvent([dp.LaplaceDpEvent(4.0), DiscreteLaplaceTest(5.0), LaplaceTest(20.0)]),
        dp.SelfComposedDpEvent(
            dp.ComposedDpEvent(
                [DiscreteLaplaceDpEvent(0.125, 1), DiscreteLaplaceDpEvent(0.0625, 2)]
            ),
            2,
        ),
    ],
)
def test_composed_pure_events_are_pure(event: dp.DpEvent) -> None:
    """A convolution rounds, so that the accountant of a composition sees an ε at δ > 0 only."""
    (costs,) = price(AdaptiveFilter(1.0, 1e-6).limits, event)
    assert (costs.epsilon, costs.set_aside) == (Fraction(1, 2), 0.0)
    assert admitted(AdaptiveFilter(1.0, 1e-12), [(event, None)] * 3) == 2


def test_accidents_are_set_aside_and_run_out() -> None:
    """Without a global sensitivity the plain divergence is infinite: only δ can pay for it."""
    filter_ = AdaptiveFilter(1.0, 1e-6)
    event = refusing(1e-7, scale=100.0, noise=300.0)
    costs, bare = price(filter_.limits, event)
    assert all(map(math.isfinite, costs.divergences))
    assert costs.set_aside > event.false_pass
    assert bare.set_aside == 0
    assert not any(map(math.isfinite, bare.divergences))
    state, count = filter_.opening(), 0
    while filter_.admits(more := filter_.charged(state, event, None)):
        state, count = more, count + 1
    assert count == math.floor(filter_.limits.set_aside / costs.set_aside)
    assert more.gaussian < 0.5 * filter_.limits.gaussian  # ε was not what ran out


def test_small_steps_on_samples_are_paid_by_the_renyi_books() -> None:
    """Their losses have heavier tails than any Gaussian that fits."""
    step = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0))
    assert admitted(AdaptiveFilter(3.0, 1e-5), [(step, None)] * 1000) == 1000


@hypothesis.given(st.lists(st.floats(1e-12, 1e3), min_size=1, max_size=50))
def test_sums_are_rounded_up(values: list[float]) -> None:
    exact = sum(map(Fraction, values))
    assert exact <= Fraction(functools.reduce(sum_up, values)) <= exact * (1 + Fraction(1, 10**12))


def test_a_charge_adds_the_same_whatever_it_is_composed_of() -> None:
    """Identical runs may come one by one or as one event, which costs at most rounding more."""
    filter_, event = AdaptiveFilter(1.0, 1e-6), dp.GaussianDpEvent(50.0)
    one_by_one = filter_.opening()
    for _ in range(10):
        one_by_one = filter_.charged(one_by_one, event, None)
    at_once = filter_.charged(filter_.opening(), dp.SelfComposedDpEvent(event, 10), None)
    assert at_once.divergences == pytest.approx(one_by_one.divergences, rel=1e-12)
    assert at_once.gaussian == pytest.approx(one_by_one.gaussian, rel=1e-12)


@pytest.mark.parametrize("value", [0.29999, 0.1, 1 / 3, 4.8048, 62.00582887, 9.996])
def test_what_would_fit_is_printed_on_the_safe_side(value: float) -> None:
    epsilon, delta, noise = re.findall(r"= ([0-9.]+)", str(Room(value, value, value)))
    assert 0.99 * value <= float(epsilon) <= value
    assert 0.99 * value <= float(delta) <= value
    assert value <= float(noise) <= 1.01 * value
    assert str(Room(0.0, 1e-7, math.inf)) == "nothing"


@pytest.mark.parametrize("budget", [(1.0, 1e-5), (0.125, 1.6427589803640582e-10)])
@pytest.mark.parametrize("charged", [(), (18.17,), (37.63, 23.15)])
def test_what_is_said_to_fit_fits_to_the_last_digit(
    budget: tuple[float, float], charged: tuple[float, ...]
) -> None:
    filter_ = AdaptiveFilter(*budget)
    state = filter_.opening()
    for scale in charged:
        noise = dp.LaplaceDpEvent if scale == 23.15 else dp.GaussianDpEvent
        state = filter_.charged(state, noise(scale / budget[0]), None)
    room = filter_.room(state)
    for event, told in [
        (dp.GaussianDpEvent(room.noise_multiplier), None),
        (DiscreteLaplaceDpEvent(room.epsilon, 1), None),
        (ApproximateDpEvent(room.epsilon, room.delta), room.delta),
    ]:
        assert filter_.admits(filter_.charged(state, event, told)), event


def test_a_mechanism_that_is_told_by_its_epsilon_and_delta_costs_these() -> None:
    filter_, event = AdaptiveFilter(1.0, 1e-5), ApproximateDpEvent(0.5, 1e-6)
    assert filter_.alone(event, 1e-6) == (0.5, 1e-6)
    state = filter_.charged(filter_.charged(filter_.opening(), event, 1e-6), event, 1e-6)
    assert filter_.admits(state)
    assert not filter_.admits(filter_.charged(state, event, 1e-6))


@pytest.mark.parametrize("sensitivity", [1, 2])
def test_discrete_noise_of_no_distribution_is_no_noise(sensitivity: int) -> None:
    """The accountants price the parameter 0 as no noise, and so must the filter."""
    event, filter_ = DiscreteLaplaceDpEvent(0.0, sensitivity), AdaptiveFilter(1.0, 1e-5)
    assert PldAccountant().compose(event).get_epsilon(1e-5) == math.inf
    state = filter_.charged(filter_.opening(), event, None)
    assert not filter_.admits(state)
    assert filter_.spent(state) == math.inf
