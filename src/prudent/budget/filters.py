"""Privacy filters: may one more event be charged to a budget (ε, δ)?

Who asks may look at earlier answers before choosing the next event. Composition theorems for
events fixed in advance say nothing about that; a filter does. `AdaptiveFilter` is
proved for events chosen in any way; `ExactFilter` is tighter, and asks for a list of events that
was fixed before the first answer. docs/budget.md has the proofs.
"""

import abc
import functools
import math
from collections import Counter
from fractions import Fraction
from itertools import starmap
from typing import Generic, TypeVar

import attrs
import dp_accounting as dp
import numpy as np
from typing_extensions import override

from prudent import _validate
from prudent._rounding import rounded_down, rounded_up
from prudent.accounting import calibration, serialisation
from prudent.accounting._numeric import float_above, float_below
from prudent.budget import prices
from prudent.budget.bounded_pair import pure_epsilon
from prudent.budget.prices import Costs, Limits, Offers, gaussian_limit, suitable_orders, sum_up

_LONGEST_DENOMINATOR = 4096  # bits, of an exact sum
_SMALLEST_EPSILON = 1e-6  # no release asks for less; rounding leaves less of a spent budget
State = TypeVar("State")


def _some(epsilon: float) -> float:
    return epsilon if epsilon >= _SMALLEST_EPSILON else 0.0


def _useful(noise_multiplier: float) -> float:
    return noise_multiplier if noise_multiplier <= 1 / _SMALLEST_EPSILON else math.inf


@attrs.frozen
class Room:
    """What would still fit."""

    # Largest ε of a release at `delta` that surely fits; 0 if none of a millionth does.
    epsilon: float = attrs.field(converter=_some)
    delta: float  # the δ beside it
    # Least noise multiplier of a Gaussian release that surely fits; infinite if none of a million
    # does.
    noise_multiplier: float = attrs.field(converter=_useful)

    def __str__(self) -> str:
        choices = []
        if self.epsilon > 0:
            epsilon, delta = rounded_down(self.epsilon, 3), rounded_down(self.delta, 3)
            choices.append(f"a release with ε <= {epsilon} at δ <= {delta}")
        if self.noise_multiplier < math.inf:
            choices.append(
                f"Gaussian noise with multiplier >= {rounded_up(self.noise_multiplier, 3)}"
            )
        return " or ".join(choices) if choices else "nothing"


@attrs.frozen
class Filter(abc.ABC, Generic[State]):
    """Decides, from what was charged so far, whether a state is within the budget (ε, δ).

    A state is what a filter remembers of the charges; it is a value, never changed in place.
    """

    epsilon: float = attrs.field()
    delta: float = attrs.field()

    def __attrs_post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon)
        _validate.small_delta(delta=self.delta)

    @abc.abstractmethod
    def opening(self) -> State:
        """The state before any charge."""

    @abc.abstractmethod
    def charged(self, state: State, event: dp.DpEvent, delta: float | None) -> State:
        """The state after one more event."""

    def alone(self, event: dp.DpEvent, delta: float | None) -> tuple[float, float]:
        """ε of an event by itself, and the δ beside it: 0 if pure, else that told or all of δ."""
        from prudent.accounting import PldAccountant

        accountant = PldAccountant()
        if not accountant.supports(event):
            return math.inf, self.delta
        pure = pure_epsilon(event)
        if pure < math.inf:
            return float_above(pure), 0.0
        at = delta or self.delta
        return float(accountant.compose(event).get_epsilon(at)), at

    @abc.abstractmethod
    def spent(self, state: State) -> float:
        """An ε for which the charged events, as a list fixed in advance, are (ε, δ)-DP."""

    def admits(self, state: State) -> bool:
        """Whether the state is within the budget."""
        return self.spent(state) <= self.epsilon

    @abc.abstractmethod
    def room(self, state: State) -> Room:
        """What would still fit."""


@attrs.frozen
class ExactFilter(Filter[Counter[str]]):
    """Charges by exact privacy-loss distributions: tight, for events fixed in advance.

    Guarantee:
        If the list of events that are charged, in their order, was fixed before the first answer
        was seen, whatever is released after admitted charges is, taken together, (ε, δ)-DP. What is
        asked about the data may depend on earlier answers, and so may when to stop; the events, and
        so the noise, may not. An agreed price list of a single event meets this by itself.
    """

    @override
    def opening(self) -> Counter[str]:
        return Counter()

    @override
    def charged(self, state: Counter[str], event: dp.DpEvent, delta: float | None) -> Counter[str]:
        return state + Counter([serialisation.to_json(event)])

    @override
    def spent(self, state: Counter[str]) -> float:
        return self._composed(state, self.delta)

    @override
    def room(self, state: Counter[str]) -> Room:
        half = self.delta / 2
        charged = [
            dp.SelfComposedDpEvent(serialisation.from_json(text), count)
            for text, count in state.items()
        ]
        try:
            noise = calibration.solve(
                lambda multiplier: dp.ComposedDpEvent([*charged, dp.GaussianDpEvent(multiplier)]),
                calibration.Search(safe=1e4, unsafe=1e-2, guess=10.0),
                epsilon=self.epsilon,
                delta=self.delta,
            )
        except calibration.UnreachableTargetError:
            noise = math.inf
        return Room(max(0.0, self.epsilon - self._composed(state, half)), half, noise)

    def _composed(self, state: Counter[str], delta: float) -> float:
        return _exact_epsilon(frozenset(state.items()), delta)


@functools.lru_cache(maxsize=64)
def _exact_epsilon(counts: frozenset[tuple[str, int]], delta: float) -> float:
    from prudent.accounting import PldAccountant

    accountant = PldAccountant()
    for text, count in sorted(counts):
        event = serialisation.from_json(text)
        if not accountant.supports(event):
            raise _validate.ArgumentError("event", "one that PldAccountant supports", got=event)
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


@attrs.frozen
class Sums:
    """What all charges took from each account so far; see `Costs`. A sum beyond its limit stays so.

    After the first charge either all charges are added up, and the set-aside δ is infinite or
    beyond its limit for good, or the accounts are open and the sums of the whole are infinite.
    Two are for show. `alone` is what a single charge costs, and infinite after the second. `listed`
    holds pairs (reserve, Σμ²): all charges as a list cost that much Gaussian noise beside noise of
    variance `reserve`, so that they never cost more than both together. Reserves increase, sums
    decrease.
    """

    epsilon: Fraction | float
    set_aside: float
    gaussian: float
    divergences: tuple[float, ...]
    whole_epsilon: Fraction | float = Fraction(0)
    whole_delta: Fraction | float = Fraction(0)
    alone: float = 0.0
    listed: Offers = ((0.0, 0.0),)


@attrs.frozen
class AdaptiveFilter(Filter[Sums]):
    """Valid however the events are chosen. The default.

    From each event some δₜ is set aside, a function of the charges so far: but for an event of that
    probability, its losses are bounded. A charge is admitted if the set-aside δₜ sum to at most
    17/32 δ and, with it, any one of these accounts is within its limit, what was set aside apart:

    * *simple*: each charge is εₜ-DP, and the εₜ sum to at most ε;
    * *Gaussian*: the charges cost as much as Gaussian noise of μ²ₜ, and the μ²ₜ sum to at most the
      μ² that is (ε, 12/32 δ)-DP;
    * *Rényi*, one account for each of two orders α: the divergences of order α sum to at most
      ε + log(α/(α-1)) + log(αr)/(α-1), r = 3/64 δ.

    The first charge decides between these accounts and plain addition: if they admit fewer
    charges like it than its ε and δ, added up, fit into (ε, δ), then ε and δ of all charges are
    added up from the first to the last, and all accounts stay closed.

    Guarantee:
        Whatever is released after admitted charges is, taken together, (ε, δ)-DP, also if each
        event is chosen after seeing all earlier answers, and also if answers of several charges
        arrive in turns. The shares of δ sum to δ: every course of events ends in one of the
        accounts, which pays with its own share, and what is set aside serves all of them. The first
        event is chosen before any answer, so what follows from it alone is the same on all
        courses of events: a later choice between accounts and addition is not valid
        (docs/budget.md).

    Attributes:
        orders: Of the Rényi accounts.
    """

    orders: tuple[float, ...] = attrs.field(default=(), converter=tuple[float, ...])

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not self.orders:
            object.__setattr__(self, "orders", suitable_orders(self.epsilon, self.delta))
        for order in self.orders:
            _validate.between(1, math.inf, ends="()", orders=order)
        if len(self.orders) != 2:
            raise _validate.ArgumentError("orders", "two numbers above 1", got=self.orders)

    @property
    def limits(self) -> Limits:
        """What the sums of each account may reach."""
        return _limits(self.epsilon, self.delta, self.orders)

    @override
    def opening(self) -> Sums:
        return Sums(Fraction(0), 0.0, 0.0, (0.0,) * len(self.orders))

    @override
    def charged(self, state: Sums, event: dp.DpEvent, delta: float | None) -> Sums:
        """The first of the possible costs that the accounts admit, else the first."""
        offers = prices.price(self.limits, event, delta)
        sums = self._in_order([self._added(state, costs) for costs in offers])
        admitted = next(filter(self._accounts_admit, sums), None)
        if admitted is None:
            return sums[0]
        if state == self.opening() and self._addition_holds_more(offers):
            return attrs.evolve(sums[0], set_aside=math.inf)
        return attrs.evolve(admitted, whole_epsilon=math.inf, whole_delta=math.inf)

    def _in_order(self, sums: list[Sums]) -> list[Sums]:
        """The possible sums in the order of preference.

        Setting δ aside lowers the ε of simple addition. Once that account is full, δ is only set
        aside if the Gaussian account needs it: not from Gaussian noise, whatever was told.
        """
        if any(total.epsilon <= self.limits.epsilon for total in sums):
            return sums
        lasting = [total for total in sums if total.gaussian <= self.limits.gaussian]
        others = [total for total in sums if total not in lasting]
        return [*sorted(lasting, key=lambda total: total.set_aside), *others]

    @override
    def alone(self, event: dp.DpEvent, delta: float | None) -> tuple[float, float]:
        *_, costs = prices.price(self.limits, event, delta)
        if costs.whole_epsilon == math.inf:
            return math.inf, self.delta
        return float_above(costs.whole_epsilon), float(costs.whole_delta)

    def _added(self, state: Sums, costs: Costs) -> Sums:
        return Sums(
            _exact_sum(state.epsilon, costs.epsilon),
            sum_up(state.set_aside, costs.set_aside),
            self._least_variance(state.gaussian, costs.gaussian),
            tuple(map(sum_up, state.divergences, costs.divergences)),
            _exact_sum(state.whole_epsilon, costs.whole_epsilon),
            _exact_sum(state.whole_delta, costs.whole_delta),
            costs.alone if state == self.opening() else math.inf,
            _together(state.listed, costs.gaussian),
        )

    def _least_variance(self, spent: float, offers: Offers, count: int = 1) -> float:
        """The sum of μ² after `count` charges at the first offer that the limit allows.

        An offer (reserve, μ²) holds only if its reserve is left after the charges. The first is the
        cheapest; infinite if there is none.
        """
        limit = self.limits.gaussian
        sums = ((sum_up(spent, count * price), reserve) for reserve, price in offers)
        return next((sum_ for sum_, reserve in sums if sum_up(sum_, reserve) <= limit), math.inf)

    def _addition_holds_more(self, offers: tuple[Costs, ...]) -> bool:
        """Whether the accounts cannot hold as many charges like the first as addition does."""
        first = offers[0]
        if first.whole_delta == 0 or first.whole_epsilon == math.inf:
            return False
        count = int(self.limits.delta // first.whole_delta)
        if first.whole_epsilon > 0:
            count = min(count, int(self.limits.epsilon // first.whole_epsilon))
        return count > 0 and not any(
            self._accounts_admit(
                Sums(
                    count * costs.epsilon,
                    count * costs.set_aside,
                    self._least_variance(0.0, costs.gaussian, count),
                    tuple(count * divergence for divergence in costs.divergences),
                )
            )
            for costs in offers
        )

    def _accounts_admit(self, state: Sums) -> bool:
        limits = self.limits
        return state.set_aside <= limits.set_aside and (
            state.epsilon <= limits.epsilon
            or state.gaussian <= limits.gaussian
            or bool(np.any(np.array(state.divergences) <= limits.divergences))
        )

    def _adds_up(self, state: Sums) -> bool:
        limits = self.limits
        return state.whole_epsilon <= limits.epsilon and state.whole_delta <= limits.delta

    @override
    def admits(self, state: Sums) -> bool:
        return self._adds_up(state) or self._accounts_admit(state)

    @override
    def spent(self, state: Sums) -> float:
        if state == self.opening():
            return 0.0
        limits, answers = self.limits, [state.alone]
        if state.whole_delta <= limits.delta:
            answers.append(float_above(state.whole_epsilon))
        if state.set_aside <= limits.set_aside:
            over = np.array(state.divergences) - limits.divergences
            answers += [float_above(state.epsilon), max(0.0, self.epsilon + float(np.min(over)))]
            if state.listed:
                # What is left of the limit may be less than a price's reserve, or be spent later.
                answers.append(limits.gaussian_spent(min(starmap(sum_up, state.listed))))
        spent = min(answers)
        # Inverting a limit rounds up: what is within it is not shown as beyond the budget.
        return min(spent, self.epsilon) if self.admits(state) else spent

    @override
    def room(self, state: Sums) -> Room:
        limits = self.limits
        if state == self.opening():
            return Room(self.epsilon, self.delta, gaussian_limit(self.epsilon, self.delta) ** -0.5)
        if self._adds_up(state):
            epsilon = float_below(limits.epsilon - state.whole_epsilon)
            return Room(epsilon, float_below(limits.delta - state.whole_delta), math.inf)
        if state.set_aside > limits.set_aside:
            return Room(0.0, 0.0, math.inf)
        delta = limits.set_aside - state.set_aside
        epsilon = float(max(0, limits.epsilon - state.epsilon)) if delta > 0 else 0.0
        left = (limits.divergences - np.array(state.divergences)) / np.array(self.orders) * 2
        most = max(limits.gaussian - state.gaussian, float(np.max(left)))
        return Room(epsilon, delta, math.nextafter(most, 0) ** -0.5 if most > 0 else math.inf)


@functools.lru_cache(maxsize=64)
def _limits(epsilon: float, delta: float, orders: tuple[float, ...]) -> Limits:
    return Limits(epsilon, delta, orders)


def _together(first: Offers, second: Offers) -> Offers:
    """The offers of two lists of charges as one list: at each reserve the sum of what it affords.

    A price for one reserve holds for every larger one.
    """
    sums: list[tuple[float, float]] = []
    for reserve in sorted({reserve for reserve, _ in (*first, *second)}):
        prices = [[price for least, price in each if least <= reserve] for each in (first, second)]
        if all(prices):
            total = sum_up(*map(min, prices))
            if not sums or total < sums[-1][1]:
                sums.append((reserve, total))
    return tuple(sums)


def _exact_sum(first: Fraction | float, second: Fraction | float) -> Fraction | float:
    """A sum without rounding, until its denominator gets out of hand; then rounded up."""
    total = first + second
    if isinstance(total, Fraction) and total.denominator.bit_length() > _LONGEST_DENOMINATOR:
        unit = 2 ** (_LONGEST_DENOMINATOR // 2)
        return Fraction(math.ceil(total * unit), unit)
    return total
