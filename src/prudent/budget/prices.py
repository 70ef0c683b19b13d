"""Prices of an event: what it takes from each account of the filter.

An event may be priced in several ways, each of them valid: with more or less δ set aside. The
filter takes the first that it can admit.

An event enters as a symmetric pair of distributions (P, Q): its exact privacy profile at finitely
many losses, joined by chords. Some δ is set aside first: of P remains P̃ = min(P, e^L Q), where L
is the ε at that δ. Every price below is a price of (P̃, Q), so one set-aside δ serves all accounts.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

import attrs
import dp_accounting as dp
import numpy as np

from prudent import _validate
from prudent.accounting import serialisation
from prudent.accounting._numeric import float_above
from prudent.accounting.events import ApproximateDpEvent
from prudent.accounting.losses.domination import additive_parts, dominating, leaves
from prudent.accounting.losses.domination import pure_epsilon as exact_epsilon
from prudent.accounting.losses.loss_tables import Array
from prudent.accounting.losses.moments import gaussian_delta, gaussian_epsilon
from prudent.accounting.losses.pairs import Dominating, gaussian_profile

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

_EVEN_LOSSES = 64  # grid points at equal distances: for losses spread over all of their range
_SMALL_LOSSES = 32  # and at equal ratios: for losses that are mostly small
_SMALLEST_LOSS = 1e-4  # of these, relative to the largest
_POINTS = 400  # at which a smoothed profile is compared with that of a Gaussian
_SLACK = 1e-9  # relative; several orders above the rounding of a profile
_FARTHEST = 30.0  # standard deviations that are compared point by point
_LARGEST_LOSS = 30.0  # beyond which no budget is met
_ROUNDING = 1e-13  # of sums of up to 10⁵ masses that add up to 1


@attrs.frozen(eq=False)
class BoundedPair:
    """A symmetric pair of distributions on finitely many losses, after some δ was set aside."""

    losses: Array  # log(dP̃/dQ), increasing
    masses: Array  # of P̃ at each loss. They sum to 1 - set_aside.
    set_aside: float  # the mass that P̃ lacks
    profile: Array  # sup over events A of P̃(A) - e^ε Q(A), at each loss that is not negative

    @property
    def largest(self) -> float:
        """L: what simple composition counts."""
        return float(self.losses[-1])

    def divergences(self, orders: tuple[float, ...]) -> Array:
        """Rényi divergences of P̃ from Q: log ∫ (dP̃/dQ)^α dQ / (α - 1)."""
        powers = np.array(orders)[:, None] - 1
        peak = powers[:, 0] * self.largest
        moments = np.exp(powers * self.losses - peak[:, None]) @ self.masses
        logs = np.maximum(0.0, peak + np.log(moments)) * (1 + _SLACK)
        return np.asarray(logs / powers[:, 0])

    def variance(self, reserve: float = 0.0) -> float:
        """The least μ², rounded up, such that Gaussian noise of that μ² costs as much.

        Without a reserve, (P̃, Q) is then μ-GDP. With one, it is so beside Gaussian noise of
        variance `reserve` on both sides: H(P̃ × N(√s, 1), Q × N(0, 1)) is at most
        H(N(√(s+μ²), 1), N(0, 1)) for s = reserve, in every hockey-stick divergence H, and so
        for every larger s too, since one may add more noise to both sides.

        The profile on the left is below its chords and that on the right above its tangents, both
        as functions of e^ε. Beyond the last point the second derivatives are compared: the largest
        loss L shifts the Gaussian of variance s by L, and a wider Gaussian overtakes that for good
        where a quadratic has its larger root.
        """
        from scipy import special

        if self.largest == 0:
            return 0.0
        # A randomised response, the worst ε-DP mechanism, is μ-GDP for this μ and no smaller one.
        enough = float((2 * special.ndtri(special.expit(self.largest))) ** 2) * (1 + 1e-6)
        if reserve == 0:
            points = self.losses[self.losses >= 0]
            return _least(lambda more: _below(points, self.profile, more), 0.0, enough)
        start = self._least_comparable(reserve, enough)
        if start >= enough:
            return enough
        # Denser at small ε, where the two profiles come closest.
        last = _overtaken(self.largest, reserve, reserve + start)
        points = last * np.linspace(0.0, 1.0, _POINTS) ** 2
        shifted = gaussian_profile(points[:, None] - self.losses, reserve**-0.5)
        smoothed = np.asarray(shifted @ self.masses)  # the profile beside noise of the reserve

        def holds(more: float) -> bool:
            wide = reserve + more
            within = _overtaken(self.largest, reserve, wide) <= last
            return within and _below(points, smoothed, wide)

        return _least(holds, start, enough)

    def _least_comparable(self, reserve: float, enough: float) -> float:
        """The least μ² for which all comparisons stay within `_FARTHEST` standard deviations."""
        farthest = _FARTHEST * math.sqrt(reserve)
        spread = float(self.masses @ self.losses**2) / 4
        low, high = 0.0, enough
        if _overtaken(self.largest, reserve, reserve + high) > farthest:
            return enough
        for _ in range(20):
            middle = (low + high) / 2
            inside = _overtaken(self.largest, reserve, reserve + middle) <= farthest
            low, high = (low, middle) if inside else (middle, high)
        return max(spread, high)


def _overtaken(shift: float, narrow: float, wide: float) -> float:
    """From where on a Gaussian of loss variance `wide` lies above a shifted one of `narrow`.

    The loss of N(√v, 1) against N(0, 1) has the density φ((x + v/2)/√v)/√v under the latter. The
    larger root x of (x - shift + narrow/2)²/narrow - (x + wide/2)²/wide = log(wide/narrow).
    """
    if wide <= narrow:
        return math.inf
    square = 1 / narrow - 1 / wide
    linear = -2 * shift / narrow
    rest = (shift - narrow / 2) ** 2 / narrow - wide / 4 - math.log(wide / narrow)
    root = math.sqrt(max(0.0, linear**2 - 4 * square * rest))
    return max(shift, (-linear + root) / (2 * square)) * (1 + _SLACK)


def _below(points: Array, values: Array, variance: float) -> bool:
    """Whether chords through the values stay below the profile of a Gaussian, on all of the range.

    A chord can rise above a convex function the most where the tangents at both ends meet.
    """
    from scipy import special

    if variance <= 0:
        return not values.any()
    root = math.sqrt(variance)
    heights = gaussian_profile(points, 1 / root) * (1 - _SLACK)
    if not np.all(values * (1 + _SLACK) <= heights):
        return False
    slopes = -special.ndtr(-points / root - root / 2)
    # In e^ε, measured from each left end and divided by e^ε there, to stay finite.
    width = np.expm1(np.diff(points))
    left, right = slopes[:-1] * np.exp(points[:-1]), slopes[1:] * np.exp(points[:-1])
    with np.errstate(invalid="ignore", divide="ignore"):
        meet = (heights[1:] - heights[:-1] - right * width) / (left - right)
    meet = np.clip(np.nan_to_num(meet, nan=0.0), 0.0, width)
    lowest = np.maximum(heights[:-1] + left * meet, heights[1:] - right * (width - meet))
    chords = values[:-1] + np.diff(values) * (meet / width)
    return bool(np.all(chords * (1 + _SLACK) <= lowest))


def _least(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The least value in (low, high] for which a monotone condition holds; `high` if unsure."""
    if low > 0 and holds(low):
        return low
    for _ in range(32):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def bounded_pair(
    event: dp.DpEvent, accountant: "PldAccountant", known: Mapping[float, float]
) -> BoundedPair | None:
    """The pair of an event after some δ was set aside; None if its losses are too large.

    Args:
        event: What is priced.
        accountant: Of this event alone.
        known: Pairs ε: δ for which the event is (ε, δ)-DP. The largest ε becomes the largest loss,
            and its δ is set aside. Cutting further, at another ε of these, sets its δ aside.
    """
    largest = max(known)
    set_aside = known[largest]
    if not largest < _LARGEST_LOSS:
        return None
    if largest == 0:
        return BoundedPair(np.zeros(1), np.array([1 - set_aside]), set_aside, np.zeros(1))
    parts = _few_parts(event, set_aside)
    profile = accountant.profile if parts is None else functools.partial(_product_profile, parts)
    return _on_grid(profile, known)


def _on_grid(profile: Callable[[Array], Array], known: Mapping[float, float]) -> BoundedPair:
    """The pair of a profile up to the largest ε that is known, on a grid of losses."""
    largest = max(known)
    set_aside = known[largest]
    even = np.linspace(0.0, largest, _EVEN_LOSSES + 1)
    small = np.geomspace(_SMALLEST_LOSS * largest, largest, _SMALL_LOSSES)
    points = np.unique(np.concatenate([even, small, list(known)]))
    apart = np.diff(points, prepend=-math.inf) > _SMALLEST_LOSS * largest / 2
    points = points[apart | np.isin(points, list(known))]
    values = np.minimum(profile(points), [known.get(float(x), 1.0) for x in points])
    return _symmetric(points, np.maximum(0.0, values - set_aside), set_aside)


def _few_parts(event: dp.DpEvent, set_aside: float) -> list[BoundedPair] | None:
    """The pairs of an event's parts if they are two and pure but for one; else None.

    Such is a release of a table, a test and a noisy value. The product of two pairs on a hundred
    losses each takes milliseconds, where composing the parts on a fine grid takes seconds.
    """
    parts = [leaf for leaf, count in leaves(event) for _ in range(min(count, 3))]
    if len(parts) != 2:
        return None
    pairs = []
    for leaf in parts:
        worst, pure = dominating(leaf), _pure_epsilon_of(leaf)
        if worst is None:
            return None
        apart = 0.0 if pure < math.inf else set_aside
        largest = float_above(pure) if pure < math.inf else _closed_epsilon(worst, set_aside)
        if not 0 < largest < _LARGEST_LOSS:
            return None
        pairs.append(_on_grid(functools.partial(_both_ways, worst), {largest: apart}))
    return pairs if min(pair.set_aside for pair in pairs) == 0 else None


def _both_ways(worst: Dominating, epsilons: Array) -> Array:
    return np.maximum(worst.profile(epsilons), worst.profile(epsilons, adding=True))


def _product_profile(parts: list[BoundedPair], epsilons: Array) -> Array:
    """δ at each ε of two pairs that are released together, what was set aside included."""
    first, second = parts
    losses = np.add.outer(first.losses, second.losses).ravel()
    masses = np.multiply.outer(first.masses, second.masses).ravel()
    order = np.argsort(losses)[::-1]
    losses, masses = losses[order], masses[order]
    # Sums over all losses above ε: of P̃, and of Q = e^(-loss) P̃.
    above = np.searchsorted(-losses, -epsilons)
    of_p = np.append(0.0, np.cumsum(masses))[above]
    of_q = np.append(0.0, np.cumsum(masses * np.exp(-losses)))[above]
    excess = np.maximum(0.0, of_p - np.exp(epsilons) * of_q) + _ROUNDING
    return np.asarray(excess + first.set_aside + second.set_aside)


def _symmetric(points: Array, excess: Array, set_aside: float) -> BoundedPair:
    """The pair whose profile joins the given values, for losses above zero, by chords in e^ε.

    Q has the second derivative of the profile as its distribution of dP/dQ; P has the loss x as
    often as Q has -x. Masses may be negative by rounding. That does no harm: every price is an
    integral of the profile itself against a positive weight.
    """
    slopes = np.diff(excess) / np.exp(points[:-1]) / np.expm1(np.diff(points))
    bends = np.diff(slopes, prepend=0.0, append=0.0)
    bends[0] = 2 * slopes[0] + 1 - (excess[0] + set_aside)
    masses = bends * np.exp(points)
    return BoundedPair(
        np.append(-points[:0:-1], points), np.append(bends[:0:-1], masses), set_aside, excess
    )


def pure_epsilon(event: dp.DpEvent) -> Fraction | float:
    """Σ of the pure ε of all that is composed; infinite unless all of it is pure.

    Exact where there is a formula: 20 times Laplace noise of multiplier 20 is 1, and not a little
    more by rounding.
    """
    return sum((_pure_epsilon_of(leaf) * count for leaf, count in leaves(event)), Fraction(0))


def epsilon_at(event: dp.DpEvent, accountant: "PldAccountant", delta: float) -> float:
    """An ε, rounded up, for which an event is (ε, δ)-DP.

    For a single part beside at most two pure ones there is no need to compose: the ε of that part
    has a formula, and those of the others are added. That is quick, and exact for parts that add
    up. Of more of them, as in a model of a table, the sum may be half as much again as the price.
    The accountant is of this event alone, and δ above 0.
    """
    parts = [(leaf, count, _pure_epsilon_of(leaf)) for leaf, count in leaves(event)]
    pure = [epsilon * count for _, count, epsilon in parts if epsilon < math.inf]
    match [(leaf, count) for leaf, count, epsilon in parts if epsilon == math.inf]:
        case [(leaf, 1)] if sum(n for _, n, _ in parts) <= 3 and (worst := dominating(leaf)):
            closed = _closed_epsilon(worst, delta)
            if isinstance(leaf, ApproximateDpEvent) and leaf.delta <= delta:
                closed = min(closed, leaf.epsilon)  # as it says, also where rounding leaves no δ
            added = float_above(sum(pure, Fraction(0)))
            return math.nextafter(closed + added, math.inf) if pure else closed
    return accountant.get_epsilon(delta)


def _closed_epsilon(worst: Dominating, delta: float) -> float:
    """The least ε at which an exact profile, of both directions, is at most delta; rounded up."""
    low, high = 0.0, _LARGEST_LOSS
    for _ in range(7):
        grid = np.linspace(low, high, 129)
        enough = _both_ways(worst, grid) * (1 + _SLACK) <= delta
        if not enough[-1]:
            return math.inf
        first = int(np.argmax(enough))
        low, high = float(grid[max(0, first - 1)]), float(grid[first])
    return high


def _pure_epsilon_of(leaf: dp.DpEvent) -> Fraction | float:
    if (known := exact_epsilon(leaf)) is not None:
        return known
    from prudent.accounting import PldAccountant

    epsilon = PldAccountant().compose(leaf).get_epsilon(0.0)
    return Fraction(epsilon) if epsilon < math.inf else math.inf


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
        return _fraction(epsilon_at(event, exact, told)), max(printed, Fraction(told))
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
