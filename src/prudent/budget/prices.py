"""Prices of an event: what it takes from each account of the default filter.

An event may be priced in several ways, each of them valid: with more or less δ set aside. The
filter takes the first that it can admit.
"""

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

import attrs
import dp_accounting as dp
import numpy as np

from prudent import _validate
from prudent.accounting import serialisation
from prudent.accounting._numeric import float_above
from prudent.accounting.losses.domination import additive_parts
from prudent.accounting.losses.loss_tables import Array
from prudent.accounting.losses.moments import gaussian_delta, gaussian_epsilon
from prudent.budget.bounded_pair import BoundedPair, bounded_pair, epsilon_at, pure_epsilon

if TYPE_CHECKING:
    from prudent.accounting import PldAccountant

SET_ASIDE, GAUSSIAN, RENYI = 17 / 32, 12 / 32, 3 / 64
"""Shares of δ: of what is set aside, of the Gaussian account and of each of the two Rényi accounts.

More than half is set aside: a release of a table sets aside half of its δ, and a little more
lets the ε beside it be rounded up. So releases whose ε and δ add up to the budget fit.
"""

_ORDER_STEPS = range(-16, 41)  # quarter octaves of α - 1: orders from 1.06 to 1025
_STEPS_TO_SMALLER_ORDER = 3
_RESERVES = 3  # how many reserves a price is offered for, each a quarter of the one before
_AMPLE = 16.0  # squared largest losses: a reserve beyond this gains nothing more
_UNTOLD = 1 / 64  # of the set-aside share: the most for one event if no δ was told
_JUST_BELOW = 1 - 2**-20
_DIGITS = 15  # of a decimal number that every float near it stands for

Offers: TypeAlias = tuple[tuple[float, float], ...]
"""Prices (reserve, μ²): μ² if at least `reserve` is left after the charge."""


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


@attrs.frozen(slots=False)
class Limits:
    """What the sums of each account may reach under a budget (ε, δ)."""

    budget_epsilon: float  # the budget's ε
    budget_delta: float  # the budget's δ
    orders: tuple[float, ...]  # of the two Rényi accounts

    @functools.cached_property
    def epsilon(self) -> Fraction:
        """Of plain sums of ε: the budget as it is printed, 0.3 is three tenths."""
        return Fraction(repr(float(self.budget_epsilon)))

    @functools.cached_property
    def delta(self) -> Fraction:
        """Of plain sums of δ: the budget as it is printed."""
        return Fraction(repr(float(self.budget_delta)))

    @functools.cached_property
    def set_aside(self) -> float:
        """Of the set-aside δ."""
        return SET_ASIDE * self.budget_delta

    @functools.cached_property
    def gaussian(self) -> float:
        """Of the μ² in the Gaussian account."""
        return gaussian_limit(self.budget_epsilon, GAUSSIAN * self.budget_delta)

    @functools.cached_property
    def divergences(self) -> Array:
        """Of the divergences at each order (Balle et al. 2020)."""
        return divergence_limits(self.budget_epsilon, self.orders, RENYI * self.budget_delta)

    def gaussian_spent(self, variance: float) -> float:
        """ε of a sum of μ² at the share of δ of the Gaussian account."""
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
    """Two orders of Rényi accounts for a budget, each with a limit above zero.

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


@attrs.frozen
class Costs:
    """What an event takes from each account, after some δ was set aside for all of them."""

    epsilon: Fraction | float  # for simple addition: ε at δ = `set_aside`
    set_aside: float  # the set-aside δ
    gaussian: Offers  # offers (reserve, μ²), the cheapest first: μ² if `reserve` is left after it
    divergences: tuple[float, ...]  # Rényi divergence at each order of the filter
    whole_epsilon: Fraction | float  # for plain addition: ε at δ = `whole_delta`
    # 0 for a pure event; the δ that was told; else all of the budget's.
    whole_delta: Fraction | float
    alone: float  # ε at all of the budget's δ


def price(limits: Limits, event: dp.DpEvent, delta: float | None = None) -> tuple[Costs, ...]:
    """What an event may take from the accounts: a function of nothing else.

    Args:
        limits: Of the accounts.
        event: Any event that one of the two accountants supports.
        delta: The δ it was calibrated for. By default nothing is set aside from a pure event,
            and from any other a little.
    """
    told = None if delta is None else _validate.between(0, 1, ends="[)", delta=delta)
    return _price(limits, serialisation.to_json(event), told)


@functools.lru_cache(maxsize=2**14)
def _price(limits: Limits, text: str, told: float | None) -> tuple[Costs, ...]:
    """Remembers prices, so that an event is priced once and not again while a ledger is locked."""
    from prudent.accounting import PldAccountant, RdpAccountant

    event = serialisation.from_json(text)
    renyi, exact = RdpAccountant(limits.orders), PldAccountant()
    divergences, false_passes = (math.inf,) * len(limits.orders), 0.0
    if renyi.supports(event):
        divergences = tuple(map(float, renyi.compose(event).rdp))
        false_passes = renyi.with_set_aside[1]
    if not exact.supports(event):
        if not renyi.supports(event):
            raise _validate.ArgumentError("event", "one that an accountant supports", got=event)
        return (Costs(math.inf, 0.0, (), divergences, *(math.inf,) * 3),)
    exact.compose(event)
    noise, pure, parts = None, pure_epsilon(event), additive_parts(event)
    if parts is not None and not parts.others and parts.sigma > 0:  # Gaussian noise alone
        noise = math.nextafter(parts.sigma**-2 * (1 + 1e-15), math.inf)
        noise = noise if parts.sigma < math.inf else 0.0
    whole_epsilon, whole_delta = _whole(limits, event, exact, pure, told)
    bare = Costs(
        epsilon=pure,
        set_aside=0.0,
        gaussian=() if noise is None else ((0.0, noise),),
        divergences=divergences,
        whole_epsilon=whole_epsilon,
        whole_delta=whole_delta,
        alone=epsilon_at(event, exact, limits.budget_delta),
    )
    if pure < math.inf:
        pair = bounded_pair(event, exact, {float_above(pure): 0.0})
        costs = bare if pair is None else _with_prices(limits, bare, pair)
        below = _decimal_below(Fraction(pure))
        if below is None:
            return (costs,)
        # A float is not the decimal number that it is printed as: ten releases of ε = 0.1 cost
        # 6e-17 more than 1. What is (ε + η)-DP is (ε, η)-DP too, so η is set aside instead.
        lacking = Fraction(pure) - below
        decimal = attrs.evolve(
            costs,
            epsilon=below,
            set_aside=float_above(lacking),
            whole_epsilon=below,
            whole_delta=costs.whole_delta + lacking,
        )
        return (decimal, costs)
    if told:
        deltas = [SET_ASIDE * _JUST_BELOW * told, told]
    else:
        # The share of its limit that the event takes elsewhere: so many small charges do not use up
        # the set-aside δ first. The false passes of a test must be set aside in any case.
        taken = zip(divergences, limits.divergences, strict=True)
        sizes = [one / limit for one, limit in taken if limit > 0]
        sizes += [] if noise is None else [noise / limits.gaussian]
        deltas = [float(limits.set_aside * min([_UNTOLD, *sizes]) + 17 / 16 * false_passes)]
    return (*_with_set_aside(limits, bare, event, exact, deltas), bare)


def _whole(
    limits: Limits,
    event: dp.DpEvent,
    exact: "PldAccountant",
    pure: Fraction | float,
    told: float | None,
) -> tuple[Fraction | float, Fraction | float]:
    """(ε, δ) of an event for plain addition: pure, at the δ told, or at all of the budget's δ.

    The ε is that at a little less than the δ told. What is left pays for calling it by a decimal
    number just below, so that ten times 0.1 is 1.
    """
    if pure <= limits.epsilon:
        return pure, Fraction(0)
    if not told or told == limits.budget_delta:
        return _fraction(epsilon_at(event, exact, limits.budget_delta)), limits.delta
    below, printed = _JUST_BELOW * told, Fraction(repr(told))
    epsilon = _fraction(epsilon_at(event, exact, below))
    if epsilon == math.inf:
        return _fraction(epsilon_at(event, exact, math.nextafter(told, 0))), printed
    shorter = _decimal_below(Fraction(epsilon))
    if shorter is not None and epsilon - shorter <= printed - Fraction(below):
        epsilon = shorter
    return epsilon, printed


def _decimal_below(value: Fraction) -> Fraction | None:
    """The decimal number of 15 digits that is nearest, if it is below."""
    nearest = Fraction(f"{float(value):.{_DIGITS}g}")
    return nearest if nearest < value else None


def _fraction(value: float) -> Fraction | float:
    return Fraction(value) if value < math.inf else value


def _with_set_aside(
    limits: Limits, bare: Costs, event: dp.DpEvent, exact: "PldAccountant", deltas: list[float]
) -> list[Costs]:
    """The costs with each of several δ set aside, the least first.

    One pair prices them all: what holds for P̃ holds for any part of it.
    """
    known = {epsilon_at(event, exact, delta): delta for delta in reversed(deltas)}
    finite = {epsilon: delta for epsilon, delta in known.items() if epsilon < math.inf}
    pair = bounded_pair(event, exact, finite) if finite else None
    costs = bare if pair is None else _with_prices(limits, bare, pair)
    return [
        attrs.evolve(costs, epsilon=Fraction(epsilon), set_aside=delta)
        for epsilon, delta in sorted(finite.items(), reverse=True)
    ]


def _with_prices(limits: Limits, bare: Costs, pair: BoundedPair) -> Costs:
    divergences = np.minimum(bare.divergences, pair.divergences(limits.orders))
    return attrs.evolve(
        bare,
        divergences=tuple(map(float, divergences)),
        gaussian=bare.gaussian or _offers(limits, pair),
    )


def _offers(limits: Limits, pair: BoundedPair) -> Offers:
    """Prices (reserve, μ²), the cheapest first; the last needs no reserve."""
    if pair.largest == 0:
        return ((0.0, 0.0),)
    largest = min(1 / 4, _AMPLE * pair.largest**2 / limits.gaussian)
    first = math.ceil(-math.log(largest, 4))
    reserves = [limits.gaussian / 4**step for step in range(first, first + _RESERVES)]
    offers: list[tuple[float, float]] = []
    for variance, reserve in sorted(
        (pair.variance(reserve), reserve) for reserve in (0.0, *reserves)
    ):
        if not offers or reserve < offers[-1][0]:
            offers.append((reserve, variance))
    return tuple(offers)
