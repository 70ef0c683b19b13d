"""The adaptive filter of ledgers made before Gaussian books: what they promised is still kept.

A ledger stays with the filter it was made with. Which book a course of events ends in may depend on
the answers, so books cannot be exchanged along the way.
"""

import functools
import math
from typing import TYPE_CHECKING

import attrs
import dp_accounting as dp
import numpy as np
from typing_extensions import override

from prudent import _validate
from prudent.accounting import serialisation
from prudent.accounting.loss_tables import Array
from prudent.budget.filters import Filter, Room, divergence_limits, sum_up

if TYPE_CHECKING:
    from prudent.accounting import RdpAccountant

_UNTOLD_DELTA = 1 / 64  # of the budget's δ: charged to simple composition if no δ was told


@attrs.frozen
class Costs:
    """What an event, or a sequence of them, takes from each book. All but `alone` add up.

    Attributes:
        epsilon: For simple composition: ε at the δ beside it.
        delta: That δ.
        divergences: Rényi divergence at each order of the filter, accidents aside.
        accident: Probability of the accidents set aside: a margin of 0 that passes its test.
        alone: ε at the whole δ of the budget, if this is a single charge; infinite otherwise.
    """

    epsilon: float
    delta: float
    divergences: tuple[float, ...]
    accident: float
    alone: float

    def plus(self, other: "Costs") -> "Costs":
        """The costs of both. Sums are rounded up, so that thousands of them stay upper bounds."""
        return Costs(
            sum_up(self.epsilon, other.epsilon),
            sum_up(self.delta, other.delta),
            tuple(map(sum_up, self.divergences, other.divergences)),
            sum_up(self.accident, other.accident),
            math.inf,
        )


@attrs.frozen
class RenyiFilter(Filter[Costs | None]):
    """Valid however the events are chosen. Of ledgers without a format number.

    A charge is admitted if, with it, any one of these books is within its limit:

    * *alone*: it is the first charge, and exactly (ε, δ)-DP by itself;
    * *simple*: the ε of the charges sum to at most ε, their δ to at most δ/4;
    * *Rényi*, one book for each of five orders α fixed at the start: the divergences of order α sum
      to at most ε + log(α/(α-1)) + log(αr)/(α-1), and the accidents set aside to at most δ/4, where
      r is δ/4 for the first order and δ/16 for each of the others.

    Guarantee:
        Whatever is released after admitted charges is, taken together, (ε, δ)-DP, also if each
        event is chosen after seeing all earlier answers. The shares of δ sum to δ: each book that a
        course of events may end in pays for its own (docs/budget.md).

    Attributes:
        orders: Of the Rényi books, the one that suits Gaussian noise best first.
    """

    orders: tuple[float, ...] = attrs.field(converter=tuple[float, ...])

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        for order in self.orders:
            _validate.between(1, math.inf, ends="()", orders=order)

    @override
    def opening(self) -> None:
        return

    @override
    def charged(self, state: Costs | None, event: dp.DpEvent, delta: float | None) -> Costs:
        costs = _price(self, serialisation.to_json(event), delta)
        return costs if state is None else state.plus(costs)

    def price(self, event: dp.DpEvent, delta: float | None = None) -> Costs:
        """What an event takes from each book: a function of nothing else.

        Args:
            event: Any event that one of the two accountants supports.
            delta: At which δ simple composition counts it. By default 0 where that is possible,
                else a 64th of the budget's δ and twice the accidents.
        """
        from prudent.accounting import PldAccountant, RdpAccountant

        renyi, exact = RdpAccountant(self.orders), PldAccountant()
        divergences, accident = (math.inf,) * len(self.orders), 0.0
        if renyi.supports(event):
            divergences, accident = self._set_aside(renyi.compose(event))
        elif not exact.supports(event):
            raise _validate.ArgumentError("event", "one that an accountant supports", got=event)
        if not exact.supports(event):
            return Costs(math.inf, 0.0, divergences, accident, math.inf)
        exact.compose(event)
        told = 0.0 if delta is None else _validate.between(0, 1, ends="[)", delta=delta)
        epsilon = exact.get_epsilon(told)
        if delta is None and epsilon == math.inf:
            told = self.delta * _UNTOLD_DELTA + 2 * accident
            epsilon = exact.get_epsilon(told)
        alone = exact.get_epsilon(self.delta)
        return Costs(epsilon, told, divergences, accident, alone)

    def _set_aside(self, accountant: "RdpAccountant") -> tuple[tuple[float, ...], float]:
        """Divergences with the accidents among them or apart: whichever takes the smaller share.

        The choice depends on the event alone, so it is made before the event's answer is known.
        """
        limits = self._limits()

        def share(divergences: Array) -> float:
            usable = limits > 0
            return float(np.min(divergences[usable] / limits[usable], initial=math.inf))

        plain = accountant.rdp
        apart, accident = accountant.accidents_apart
        if accident > 0 and max(share(apart), accident / self._accident_limit) < share(plain):
            return tuple(map(float, apart)), accident
        return tuple(map(float, plain)), 0.0

    @property
    def _simple_limit(self) -> float:
        return self.delta / 4

    @property
    def _accident_limit(self) -> float:
        return self.delta / 4

    def _limits(self) -> Array:
        """The most divergence at each order that still is (ε, r)-DP (Balle et al. 2020)."""
        return divergence_limits(self.epsilon, self.orders, self._shares())

    def _shares(self) -> Array:
        shares = np.full(len(self.orders), self.delta / 4 / max(1, len(self.orders) - 1))
        shares[0] = self.delta / 4
        return shares

    @override
    def spent(self, state: Costs | None) -> float:
        if state is None:
            return 0.0
        answers = [state.alone]
        if state.delta <= self._simple_limit:
            answers.append(state.epsilon)
        if state.accident <= self._accident_limit:
            divergences = np.array(state.divergences)
            if not divergences.any():
                answers.append(0.0)
            over = float(np.min(divergences - self._limits()))
            answers.append(max(0.0, self.epsilon + over))
        return min(answers)

    @override
    def room(self, state: Costs | None) -> Room:
        if state is None:
            state = Costs(0.0, 0.0, (0.0,) * len(self.orders), 0.0, math.inf)
        epsilon = max(0.0, self.epsilon - state.epsilon)
        delta = max(0.0, self._simple_limit - state.delta)
        left = (self._limits() - np.array(state.divergences)) / np.array(self.orders)
        most = float(np.max(left)) if state.accident <= self._accident_limit else 0.0
        noise = (2 * most) ** -0.5 if most > 0 else math.inf
        return Room(epsilon if delta > 0 else 0.0, delta, noise)


@functools.lru_cache(maxsize=2**14)
def _price(filter_: RenyiFilter, text: str, delta: float | None) -> Costs:
    return filter_.price(serialisation.from_json(text), delta)
