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
from collections.abc import Sequence
from typing import Generic, TypeVar

import attrs
import dp_accounting as dp
import numpy as np
from typing_extensions import override

from prudent import _validate
from prudent._rounding import rounded_down, rounded_up
from prudent.accounting import calibration, serialisation
from prudent.accounting._numeric import float_above
from prudent.accounting.loss_tables import Array
from prudent.budget.bounded_pair import pure_epsilon

State = TypeVar("State")


@attrs.frozen
class Room:
    """What would still fit.

    Attributes:
        epsilon: Largest ε of a release at `delta` that surely fits; 0 if none.
        delta: The δ beside it.
        noise_multiplier: Least noise multiplier of a Gaussian release that surely fits; infinite
            if none.
    """

    epsilon: float
    delta: float
    noise_multiplier: float

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
        _validate.between(0, 1, ends="()", delta=self.delta)

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


def sum_up(first: float, second: float) -> float:
    """A sum rounded up, so that thousands of them stay upper bounds."""
    if first == 0 or second == 0:
        return first + second
    return math.nextafter(first + second, math.inf)


def divergence_limits(epsilon: float, orders: Sequence[float], shares: Array | float) -> Array:
    """The most divergence at each order that still is (ε, share)-DP (Balle et al. 2020)."""
    alpha = np.array(orders)
    limits: Array = epsilon - np.log1p(-1 / alpha) + (np.log(shares) + np.log(alpha)) / (alpha - 1)
    return limits
