"""The default filter: valid when each event is chosen after seeing all earlier answers."""

import functools
import math
from fractions import Fraction

import attrs
import dp_accounting as dp
import numpy as np
from typing_extensions import override

from prudent import _validate
from prudent.accounting import PldAccountant, RdpAccountant, serialisation
from prudent.accounting.domination import additive_parts
from prudent.accounting.loss_tables import Array
from prudent.accounting.mechanisms import gaussian_delta, gaussian_epsilon
from prudent.release.budget.bounded_pair import BoundedPair, bounded_pair, epsilon_at, pure_epsilon
from prudent.release.budget.filters import Filter, Room, divergence_limits, sum_up

ACCIDENTS, GAUSSIAN, RENYI = 17 / 32, 12 / 32, 3 / 64
"""Shares of δ: of the accidents, of the Gaussian book and of each of the two Rényi books.

More than half for accidents: a release of a table sets aside half of its δ, and a little more
lets the ε beside it be rounded up. So releases whose ε and δ add up to the budget fit.
"""

_RESERVES = 3  # how many reserves a price is offered for, each a quarter of the one before
_AMPLE = 16.0  # squared largest losses: a reserve beyond this gains nothing more
_UNTOLD = 1 / 64  # of the accidents: the most that is set aside if no δ was told
_ORDER_STEPS = range(-16, 41)  # quarter octaves of α - 1: orders from 1.06 to 1025
_STEPS_TO_SMALLER_ORDER = 3
_LONGEST_DENOMINATOR = 4096  # bits, of a sum of ε
_JUST_BELOW = 1 - 2**-20


@attrs.frozen
class Costs:
    """What an event takes from each book, after one accident was set aside for all of them.

    Attributes:
        epsilon: For simple addition: ε at δ = `accident`.
        accident: Probability of what is set aside.
        gaussian: Offers (reserve, μ²), the cheapest first: μ² if `reserve` is left after it.
        divergences: Rényi divergence at each order of the filter.
        whole_epsilon: ε at δ = `whole_delta`, nothing set aside.
        whole_delta: The δ that was told, or all of the budget's.
        alone: ε at all of the budget's δ.
    """

    epsilon: Fraction | float
    accident: float
    gaussian: tuple[tuple[float, float], ...]
    divergences: tuple[float, ...]
    whole_epsilon: float
    whole_delta: float
    alone: float


@attrs.frozen
class Sums:
    """What all charges took from each book so far; see `Costs`. A sum beyond its limit stays so.

    The whole budget is a book only as long as no other one has admitted the first charge. `alone`
    is for show: what a single charge costs, and infinite after the second.
    """

    epsilon: Fraction | float
    accident: float
    gaussian: float
    divergences: tuple[float, ...]
    whole_epsilon: float = 0.0
    whole_delta: float = 0.0
    alone: float = 0.0


@attrs.frozen
class AdaptiveFilter(Filter[Sums]):
    """Valid however the events are chosen. The default.

    From each event an accident of probability aₜ is set aside, a function of the charges so far.
    A charge is admitted if the accidents sum to at most 17/32 δ and, with it, any one of these
    books is within its limit; aside from accidents,

    * *simple*: each charge is εₜ-DP, and the εₜ sum to at most ε;
    * *Gaussian*: the charges cost as much as Gaussian noise of μ²ₜ, and the μ²ₜ sum to at most the
      μ² that is (ε, 12/32 δ)-DP;
    * *Rényi*, one book for each of two orders α: the divergences of order α sum to at most
      ε + log(α/(α-1)) + log(αr)/(α-1), r = 3/64 δ.

    If none of them admits the very first charge, that charge opens the book *whole* instead: ε
    and δ of all charges simply add up to at most the budget, and all other books stay closed.

    Guarantee:
        Whatever is released after admitted charges is, taken together, (ε, δ)-DP, also if each
        event is chosen after seeing all earlier answers, and also if answers of several charges
        arrive in turns. The shares of δ sum to δ: every course of events ends in one of the books,
        which pays with its own share, and the accidents are the same for all of them
        (docs/budget.md).

    Attributes:
        orders: Of the Rényi books.
    """

    orders: tuple[float, ...] = attrs.field(default=(), converter=tuple[float, ...])

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not self.orders:
            orders = _suitable_orders(self.epsilon, RENYI * self.delta)
            object.__setattr__(self, "orders", orders)
        for order in self.orders:
            _validate.between(1, math.inf, ends="()", orders=order)
        if len(self.orders) != 2:
            raise _validate.ArgumentError("orders", "two numbers above 1", got=self.orders)

    @override
    def opening(self) -> Sums:
        return Sums(Fraction(0), 0.0, 0.0, (0.0,) * len(self.orders))

    def charged(self, state: Sums, event: dp.DpEvent, delta: float | None) -> Sums:
        """See base class. The first of the possible costs that is admitted, else the first."""
        sums = [
            self._added(state, costs) for costs in _price(self, serialisation.to_json(event), delta)
        ]
        return next(filter(self._shares_admit, sums), sums[0])

    def _added(self, state: Sums, costs: Costs) -> Sums:
        offers = [(sum_up(state.gaussian, price), reserve) for reserve, price in costs.gaussian]
        limit = self.gaussian_limit
        sums = Sums(
            _exact_sum(state.epsilon, costs.epsilon),
            sum_up(state.accident, costs.accident),
            next((sum_ for sum_, reserve in offers if sum_up(sum_, reserve) <= limit), math.inf),
            tuple(map(sum_up, state.divergences, costs.divergences)),
            sum_up(state.whole_epsilon, costs.whole_epsilon),
            sum_up(state.whole_delta, costs.whole_delta),
            costs.alone if state == self.opening() else math.inf,
        )
        if self._shares_admit(sums):
            return attrs.evolve(sums, whole_epsilon=math.inf, whole_delta=math.inf)
        return sums

    def price(self, event: dp.DpEvent, delta: float | None = None) -> tuple[Costs, ...]:
        """What an event may take from the books: a function of nothing else.

        Args:
            event: Any event that one of the two accountants supports.
            delta: The δ it was calibrated for. By default nothing is set aside from a pure event,
                and from any other a little.
        """
        told = None if delta is None else _validate.between(0, 1, ends="[)", delta=delta)
        renyi, exact = RdpAccountant(self.orders), PldAccountant()
        divergences, false_passes = (math.inf,) * len(self.orders), 0.0
        if renyi.supports(event):
            divergences = tuple(map(float, renyi.compose(event).rdp))
            false_passes = renyi.accidents_apart[1]
        if not exact.supports(event):
            if not renyi.supports(event):
                raise _validate.ArgumentError("event", "one that an accountant supports", got=event)
            return (Costs(math.inf, 0.0, (), divergences, *(math.inf,) * 3),)
        exact.compose(event)
        # A little less than was told, so that parts that add up to δ do so in spite of rounding.
        whole = self.delta if told in (None, self.delta) else _JUST_BELOW * told
        noise, pure = _gaussian_variance(event), pure_epsilon(event)
        bare = Costs(
            epsilon=pure,
            accident=0.0,
            gaussian=() if noise is None else ((0.0, noise),),
            divergences=divergences,
            whole_epsilon=epsilon_at(event, exact, whole) if whole else float(pure),
            whole_delta=whole,
            alone=epsilon_at(event, exact, self.delta),
        )
        if pure < math.inf:
            pair = bounded_pair(event, exact, {_rounded_up(pure): 0.0})
            return (bare if pair is None else self._with_prices(bare, pair),)
        if told:
            accidents = [ACCIDENTS * _JUST_BELOW * told, told]
        else:
            accidents = [self._untold(bare, false_passes)]
        return (*self._with_accidents(bare, event, exact, accidents), bare)

    def _with_accidents(
        self, bare: Costs, event: dp.DpEvent, exact: PldAccountant, accidents: list[float]
    ) -> list[Costs]:
        """The costs with each accident set aside, the least first.

        One pair prices them all: what holds for P̃ holds for any part of it.
        """
        known = {epsilon_at(event, exact, accident): accident for accident in reversed(accidents)}
        finite = {epsilon: accident for epsilon, accident in known.items() if epsilon < math.inf}
        pair = bounded_pair(event, exact, finite) if finite else None
        costs = bare if pair is None else self._with_prices(bare, pair)
        return [
            attrs.evolve(costs, epsilon=Fraction(epsilon), accident=accident)
            for epsilon, accident in sorted(finite.items(), reverse=True)
        ]

    def _untold(self, bare: Costs, false_passes: float) -> float:
        """What is set aside if no δ was told: as much of the accidents as of the other books.

        So that many small charges do not run out of accidents first. The false passes of a test
        must be set aside in any case.
        """
        limits = self.divergence_limits()
        sizes = [
            one / limit for one, limit in zip(bare.divergences, limits, strict=True) if limit > 0
        ]
        sizes += [price / self.gaussian_limit for _, price in bare.gaussian]
        return float(self.accident_limit * min([_UNTOLD, *sizes]) + 17 / 16 * false_passes)

    def _with_prices(self, bare: Costs, pair: BoundedPair) -> Costs:
        divergences = np.minimum(bare.divergences, pair.divergences(self.orders))
        return attrs.evolve(
            bare,
            divergences=tuple(map(float, divergences)),
            gaussian=bare.gaussian or self._offers(pair),
        )

    def _offers(self, pair: BoundedPair) -> tuple[tuple[float, float], ...]:
        """Prices (reserve, μ²), the cheapest first; the last needs no reserve."""
        if pair.largest == 0:
            return ((0.0, 0.0),)
        largest = min(1 / 4, _AMPLE * pair.largest**2 / self.gaussian_limit)
        first = math.ceil(-math.log(largest, 4))
        reserves = [self.gaussian_limit / 4**step for step in range(first, first + _RESERVES)]
        offers: list[tuple[float, float]] = []
        for price, reserve in sorted(
            (pair.variance(reserve), reserve) for reserve in (0.0, *reserves)
        ):
            if not offers or reserve < offers[-1][0]:
                offers.append((reserve, price))
        return tuple(offers)

    @property
    def _epsilon(self) -> Fraction:
        """The budget as it is printed: 0.3 is three tenths."""
        return Fraction(repr(float(self.epsilon)))

    @property
    def accident_limit(self) -> float:
        """What the accidents may sum to."""
        return ACCIDENTS * self.delta

    @property
    def gaussian_limit(self) -> float:
        """What the μ² of the Gaussian book may sum to."""
        return _gaussian_limit(self.epsilon, GAUSSIAN * self.delta)

    def divergence_limits(self) -> Array:
        """What the divergences at each order may sum to (Balle et al. 2020)."""
        return divergence_limits(self.epsilon, self.orders, RENYI * self.delta)

    def _shares_admit(self, state: Sums) -> bool:
        return state.accident <= self.accident_limit and (
            state.epsilon <= self._epsilon
            or state.gaussian <= self.gaussian_limit
            or bool(np.any(np.array(state.divergences) <= self.divergence_limits()))
        )

    @override
    def admits(self, state: Sums) -> bool:
        whole = state.whole_epsilon <= self.epsilon and state.whole_delta <= self.delta
        return whole or self._shares_admit(state)

    @override
    def spent(self, state: Sums) -> float:
        if state == self.opening():
            return 0.0
        answers = [state.alone]
        if state.whole_delta <= self.delta:
            answers.append(state.whole_epsilon)
        if state.accident <= self.accident_limit:
            over = np.array(state.divergences) - self.divergence_limits()
            answers += [_rounded_up(state.epsilon), max(0.0, self.epsilon + float(np.min(over)))]
            if state.gaussian < math.inf:
                answers.append(_gaussian_spent(state.gaussian, GAUSSIAN * self.delta))
        spent = min(answers)
        # Inverting a limit rounds up: what is within it is not shown as beyond the budget.
        return min(spent, self.epsilon) if self.admits(state) else spent

    @override
    def room(self, state: Sums) -> Room:
        if state == self.opening():
            return Room(self.epsilon, self.delta, _gaussian_limit(self.epsilon, self.delta) ** -0.5)
        if state.whole_epsilon <= self.epsilon and state.whole_delta < self.delta:
            return Room(
                self.epsilon - state.whole_epsilon, self.delta - state.whole_delta, math.inf
            )
        if state.accident > self.accident_limit:
            return Room(0.0, 0.0, math.inf)
        delta = self.accident_limit - state.accident
        epsilon = float(max(0, self._epsilon - state.epsilon)) if delta > 0 else 0.0
        left = (self.divergence_limits() - np.array(state.divergences)) / np.array(self.orders) * 2
        most = max(self.gaussian_limit - state.gaussian, float(np.max(left)))
        return Room(epsilon, delta, math.nextafter(most, 0) ** -0.5 if most > 0 else math.inf)


@functools.lru_cache(maxsize=2**14)
def _price(filter_: AdaptiveFilter, text: str, delta: float | None) -> tuple[Costs, ...]:
    """Remembers prices, so that an event is priced once and not again while a ledger is locked."""
    return filter_.price(serialisation.from_json(text), delta)


def _exact_sum(first: Fraction | float, second: Fraction | float) -> Fraction | float:
    """A sum without rounding, until its denominator gets out of hand; then rounded up."""
    total = first + second
    if isinstance(total, Fraction) and total.denominator.bit_length() > _LONGEST_DENOMINATOR:
        unit = 2 ** (_LONGEST_DENOMINATOR // 2)
        return Fraction(math.ceil(total * unit), unit)
    return total


def _rounded_up(value: Fraction | float) -> float:
    number = float(value)
    return number if number >= value else math.nextafter(number, math.inf)


def _gaussian_variance(event: dp.DpEvent) -> float | None:
    """μ² of an event that is Gaussian noise and nothing else; None for any other."""
    parts = additive_parts(event)
    if parts is None or parts.others or parts.sigma == 0:
        return None
    return (
        math.nextafter(parts.sigma**-2 * (1 + 1e-15), math.inf) if parts.sigma < math.inf else 0.0
    )


@functools.lru_cache(maxsize=256)
def _gaussian_limit(epsilon: float, delta: float) -> float:
    """The largest μ², rounded down, of a Gaussian that is (epsilon, delta)-DP."""

    def fits(variance: float) -> bool:  # by more than the profile is rounded
        return bool(gaussian_delta(epsilon, variance**-0.5) <= delta * (1 - 1e-9))

    low, high = 0.0, 1.0
    while fits(high):
        low, high = high, 4 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _gaussian_spent(variance: float, delta: float) -> float:
    return gaussian_epsilon(variance**-0.5, delta) if variance > 0 else 0.0


def _suitable_orders(epsilon: float, share: float) -> tuple[float, float]:
    """Two orders for a budget, each with a limit above zero.

    The order at which the share of δ buys the most Gaussian noise, and a smaller one for events
    of heavier tails, such as a step on a small sample, if it is of use at this budget.
    """

    def order(step: int) -> float:
        value = 1 + 2.0 ** (step / 4)
        return value if value < 9 else float(round(value))  # whole orders are priced fastest

    candidates = [order(step) for step in _ORDER_STEPS]
    limits = divergence_limits(epsilon, candidates, share)
    best = int(np.argmax(limits / np.array(candidates)))
    live = int(np.argmax(limits > 0))
    other = max(live, best - _STEPS_TO_SMALLER_ORDER)
    if other == best:
        other = best + 1 if best + 1 < len(candidates) else best - 1
    return candidates[best], candidates[other]
