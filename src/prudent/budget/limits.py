"""Limits of the books of the default filter: the shares of δ and what each of them buys."""

import functools
from fractions import Fraction

import attrs
import numpy as np

from prudent.accounting.loss_tables import Array
from prudent.accounting.mechanisms import gaussian_delta, gaussian_epsilon
from prudent.budget.filters import divergence_limits

ACCIDENTS, GAUSSIAN, RENYI = 17 / 32, 12 / 32, 3 / 64
"""Shares of δ: of the accidents, of the Gaussian book and of each of the two Rényi books.

More than half for accidents: a release of a table sets aside half of its δ, and a little more
lets the ε beside it be rounded up. So releases whose ε and δ add up to the budget fit.
"""

_ORDER_STEPS = range(-16, 41)  # quarter octaves of α - 1: orders from 1.06 to 1025
_STEPS_TO_SMALLER_ORDER = 3


@attrs.frozen(slots=False)
class Limits:
    """What the sums of each book may reach under a budget (ε, δ).

    Attributes:
        budget_epsilon: The budget's ε.
        budget_delta: The budget's δ.
        orders: Of the two Rényi books.
    """

    budget_epsilon: float
    budget_delta: float
    orders: tuple[float, ...]

    @functools.cached_property
    def epsilon(self) -> Fraction:
        """Of plain sums of ε: the budget as it is printed, 0.3 is three tenths."""
        return Fraction(repr(float(self.budget_epsilon)))

    @functools.cached_property
    def delta(self) -> Fraction:
        """Of plain sums of δ: the budget as it is printed."""
        return Fraction(repr(float(self.budget_delta)))

    @functools.cached_property
    def accident(self) -> float:
        """Of the accidents."""
        return ACCIDENTS * self.budget_delta

    @functools.cached_property
    def gaussian(self) -> float:
        """Of the μ² in the Gaussian book."""
        return gaussian_limit(self.budget_epsilon, GAUSSIAN * self.budget_delta)

    @functools.cached_property
    def divergences(self) -> Array:
        """Of the divergences at each order (Balle et al. 2020)."""
        return divergence_limits(self.budget_epsilon, self.orders, RENYI * self.budget_delta)

    def gaussian_spent(self, variance: float) -> float:
        """ε of a sum of μ² at the share of δ of the Gaussian book."""
        if variance == 0:
            return 0.0
        return gaussian_epsilon(variance**-0.5, GAUSSIAN * self.budget_delta)


@functools.lru_cache(maxsize=256)
def gaussian_limit(epsilon: float, delta: float) -> float:
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


def suitable_orders(epsilon: float, delta: float) -> tuple[float, float]:
    """Two orders of Rényi books for a budget, each with a limit above zero.

    The order at which the share of δ buys the most Gaussian noise, and a smaller one for events
    of heavier tails, such as a step on a small sample, if it is of use at this budget.
    """

    def order(step: int) -> float:
        value = 1 + 2.0 ** (step / 4)
        return value if value < 9 else float(round(value))  # whole orders are priced fastest

    candidates = [order(step) for step in _ORDER_STEPS]
    limits = divergence_limits(epsilon, candidates, RENYI * delta)
    best = int(np.argmax(limits / np.array(candidates)))
    live = int(np.argmax(limits > 0))
    other = max(live, best - _STEPS_TO_SMALLER_ORDER)
    if other == best:
        other = best + 1 if best + 1 < len(candidates) else best - 1
    return candidates[best], candidates[other]
