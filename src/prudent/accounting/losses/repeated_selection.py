"""The price of private selection: many candidates are run, and only the best one is released.

The price depends on the distribution of their number K only through the generating function
f(u) = E u^K: the best of K candidates has rank at most u with probability f(u), so a candidate of
rank u has f'(u) times the density it has on its own.

A *candidate* draws a setting (independently of the data), runs a mechanism with it, and scores what
came out. K candidates are run, K drawn from a public distribution and never revealed; the output of
the best one is released, with its setting and its score. Write Q and Q' for the distributions of
one candidate on two neighbouring data sets, A and A' for those of the selection, and
h(t) = sup over events of Q - e^t Q' for the profile of a candidate, at every real t.

**Theorem.** Let T(u) = sup over t of e^-t (u - h(t)), and 0 where that is negative, and let

    ψ(x) = sup over u in [0, 1] of (f'(u) - f'(T(u)) x)₊.

ψ is convex and does not increase, so ψ(x) = c₀ + Σ λₖ (xₖ - x)₊ with λₖ, xₖ > 0 (or an integral of
such terms, or any larger function of this form). Then for every ε ≥ 0

    sup over events of A - e^ε A'  ≤  c₀ + Σ λₖ xₖ h(ε - log xₖ).

*Proof.* Break ties by an independent uniform number that is part of each candidate. Let u(y) be the
probability under Q that a candidate is at most as good as y, and v(y) that under Q'. The best of k
candidates is at most as good as y with probability u(y)^k, so dA = f'(u) dQ and dA' = f'(v) dQ'
(and K = 0 has the same probability under both, so it adds nothing at ε ≥ 0). "At most as good as y"
is an event, so u ≤ e^t v + h(t) for every t: v ≥ T(u). f' does not decrease, because it is a power
series with coefficients ≥ 0. With X = dQ'/dQ (0 where only Q has mass), A - e^ε A' is on every
event at most

    E (f'(u) - e^ε f'(v) X)₊  ≤  E (f'(u) - e^ε f'(T(u)) X)₊  ≤  E ψ(e^ε X),    E under Q,

and E (x₀ - X)₊ = x₀ sup over events of Q - Q'/x₀ = x₀ h(-log x₀). ∎

A candidate's setting may be public within its own output, so h may be any common upper bound on the
profiles of the mechanisms of all settings: Q is their mixture, labelled by the setting.

The bound is a mixture of shifted profiles of one candidate. Koskela, Redberg and Wang (2024) have a
single shift, E K · h(ε - r) with r ≥ log f'(u)/f'(T(u)) for all u, which is never smaller: their
shift serves all u at once, while above each loss finds its own u. The only inequality above that is
not attained by some mechanism and event is that losses compete for the best u. At small δ they
hardly do: for geometric numbers the ε is about one percent above that of explicit mechanisms.

**Rényi divergences.** By the same densities, for orders λ > 1,

    e^((λ-1) D(A‖A')) ≤ f(0) + sup over u of f'(u)^λ f'(T(u))^(1-λ) · e^((λ-1) D(Q‖Q')).
"""

import abc
import math
from collections.abc import Callable
from functools import cached_property

import attrs
import dp_accounting as dp
import numpy as np
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from typing_extensions import override

from prudent import _validate
from prudent.accounting.events import BinomialSelectionDpEvent
from prudent.accounting.losses.composed import tabulated_pair
from prudent.accounting.losses.loss_tables import Array, TradeOff
from prudent.accounting.losses.moments import best_delta
from prudent.accounting.losses.pairs import BoundPair, Dominating, TabulatedPair

MOST = 1e6  # limit of the expected number of candidates
_DEEPEST = 200.0  # log f' is resolved down to this far below its maximum
_MEAN = _validate.kept(_validate.between, 1, MOST)
_RANKS = 5000  # ranks at equal steps of log f'(u), and of log f'(T(u)): a step adds as much to ε
_SHIFTS = 150  # terms of the mixture
_NODES = 600  # points of the profile of the selection
_SPARSE = 8  # every how many nodes another bound is evaluated
_TAIL = 1e-22  # how far above its limit the profile of a candidate may be at the last node
_MARGIN = 1e-12  # relative, above the rounding errors of f' and T
_FARTHEST = 700.0  # exponents, without overflow
_LEAST_SLOPE = 600.0  # f'(T(u)) below e^-600 counts as zero, so that no quotient overflows
_LOSSES = 256  # points of a profile that is computed from Rényi divergences


class TrialCount(abc.ABC):
    """A distribution of the number of candidates."""

    @property
    @abc.abstractmethod
    def expected(self) -> float:
        """E K, which is also f'(1)."""

    @property
    def none(self) -> float:
        """Pr[K = 0] = f(0)."""
        return 0.0

    @property
    def most(self) -> float:
        """The largest possible number; infinite if there is none."""
        return math.inf

    @abc.abstractmethod
    def largest_shift(self, forward: float, backward: float) -> float:
        """A bound on log f'(u)/f'(v) for all ranks of a pure candidate; infinite if none is known.

        Args:
            forward: ε with Q <= e^ε Q', so that u <= e^ε v and 1 - u <= e^ε (1 - v).
            backward: ε with Q' <= e^ε Q, so that v <= e^ε u and 1 - v <= e^ε (1 - u).
        """

    @abc.abstractmethod
    def log_slope(self, u: Array) -> Array:
        """The logarithm of f'(u), at ranks u in [0, 1]."""

    @abc.abstractmethod
    def ranks(self, log_slopes: Array) -> Array:
        """The ranks at which log f' has given values: the inverse of `log_slope`."""

    @abc.abstractmethod
    def event(self, candidate: dp.DpEvent) -> dp.DpEvent:
        """The event of releasing the best of K runs of `candidate`."""

    def spaced_ranks(self, count: int) -> Array:
        """Ranks from 0 to 1 between which log f' rises by equal steps, as far as it is finite."""
        low, high = self.log_slope(np.array([0.0, 1.0]))
        levels = np.linspace(max(low, high - _DEEPEST), high, count)
        return np.concatenate([[0.0], np.clip(self.ranks(levels), 0.0, 1.0), [1.0]])


@attrs.frozen(slots=False)
class NegativeBinomial(TrialCount):
    """A negative binomial number of candidates, truncated to be at least one.

    Pr[K = k] is proportional to (1 - γ)^k Γ(k + shape)/k!, with γ determined by the mean. The
    smaller the shape, the longer the tail of K and the lower the price; 1 is the geometric
    distribution, and 0 the logarithmic one.

    Attributes:
        mean: E K, at least 1.
        shape: The shape η >= 0.
    """

    mean: float = attrs.field(validator=_MEAN)
    shape: float = attrs.field(default=1.0, validator=_validate.kept(_validate.between, 0, 1e3))

    @cached_property
    def halting(self) -> float:
        """γ, the parameter with which the distribution has its mean."""
        from scipy import optimize

        if self.mean == 1 or self.shape == 1:
            return 1 / self.mean

        def excess(log_gamma: float) -> float:
            """The mean, η (1/γ - 1)/(1 - γ^η), above the wanted one."""
            fall = log_gamma if self.shape == 0 else math.expm1(self.shape * log_gamma)
            return (self.shape or 1.0) * math.expm1(-log_gamma) / -fall - self.mean

        nearest = -1e-17  # so near to a mean of 1 that no double is nearer
        if excess(nearest) >= 0:
            return 1.0
        return math.exp(optimize.brentq(excess, -60.0, nearest, xtol=1e-18, rtol=1e-15))

    @property
    @override
    def expected(self) -> float:
        return self.mean

    @override
    def largest_shift(self, forward: float, backward: float) -> float:
        # f'(u) is proportional to (1 - u + γu)^-(η+1), and 1 - v + γv <= e^ε (1 - u + γu).
        return (self.shape + 1) * backward

    @override
    def log_slope(self, u: Array) -> Array:
        gamma = self.halting
        rest = gamma + (1 - gamma) * (1 - u)
        return np.asarray(math.log(self.mean) + (self.shape + 1) * (math.log(gamma) - np.log(rest)))

    @override
    def ranks(self, log_slopes: Array) -> Array:
        gamma = self.halting
        if gamma == 1:
            return np.ones_like(log_slopes)
        rest = gamma * np.exp((math.log(self.mean) - log_slopes) / (self.shape + 1))
        return np.asarray(1 - (rest - gamma) / (1 - gamma))

    @override
    def event(self, candidate: dp.DpEvent) -> dp.DpEvent:
        return RepeatAndSelectDpEvent(candidate, self.mean, self.shape)


@attrs.frozen(slots=False)
class Geometric(NegativeBinomial):
    """A geometric number of candidates: after each of them, stop with probability 1/mean.

    Attributes:
        mean: E K, at least 1.
    """

    shape: float = attrs.field(default=1.0, init=False)


@attrs.frozen
class Poisson(TrialCount):
    """A Poisson number of candidates; with probability e^-mean there is none.

    It is concentrated around its mean, and costs more than the geometric distribution.

    Attributes:
        mean: E K, at least 1.
    """

    mean: float = attrs.field(validator=_MEAN)

    @property
    @override
    def expected(self) -> float:
        return self.mean

    @property
    @override
    def none(self) -> float:
        return math.exp(-self.mean)

    @override
    def largest_shift(self, forward: float, backward: float) -> float:
        # log f'(u)/f'(v) = mean (u - v), and u - v is at most both a u and b (1 - u).
        a, b = -math.expm1(-forward), math.expm1(min(backward, 700.0))
        return self.mean * a * b / (a + b) if a + b > 0 else 0.0

    @override
    def log_slope(self, u: Array) -> Array:
        return np.asarray(math.log(self.mean) - self.mean * (1 - u))

    @override
    def ranks(self, log_slopes: Array) -> Array:
        return np.asarray(1 + (log_slopes - math.log(self.mean)) / self.mean)

    @override
    def event(self, candidate: dp.DpEvent) -> dp.DpEvent:
        return RepeatAndSelectDpEvent(candidate, self.mean, math.inf)


@attrs.frozen
class Binomial(TrialCount):
    """A binomial number of candidates: each of `draws` is run with a probability.

    The number never exceeds `draws`. With probability 1, exactly `draws` candidates are run.

    Attributes:
        draws: The largest number of candidates.
        probability: The probability with which each of them is run.
    """

    draws: int = attrs.field(validator=_validate.kept(_validate.count, 1, MOST))
    probability: float = attrs.field(validator=_validate.kept(_validate.between, 0, 1, ends="(]"))

    @property
    @override
    def expected(self) -> float:
        return self.draws * self.probability

    @property
    @override
    def none(self) -> float:
        return float((1 - self.probability) ** self.draws)

    @property
    @override
    def most(self) -> float:
        return float(self.draws)

    def _log_base(self, u: Array) -> Array:
        """The logarithm of 1 - p + p u, by whichever form is accurate: near 1, or near 0."""
        missing = self.probability * (1 - u)
        with np.errstate(divide="ignore"):
            small = np.log((1 - self.probability) + self.probability * u)
            return np.where(missing < 0.5, np.log1p(-np.minimum(missing, 0.5)), small)

    @override
    def largest_shift(self, forward: float, backward: float) -> float:
        # f'(u) is proportional to (1 - p + pu)^(n-1), and u <= e^ε v.
        return (self.draws - 1) * forward

    @override
    def log_slope(self, u: Array) -> Array:
        if self.draws == 1:
            return np.full_like(u, math.log(self.expected))
        return np.asarray(math.log(self.expected) + (self.draws - 1) * self._log_base(u))

    @override
    def ranks(self, log_slopes: Array) -> Array:
        if self.draws == 1:
            return np.ones_like(log_slopes)
        fall = (log_slopes - math.log(self.expected)) / (self.draws - 1)
        return np.asarray(1 + np.expm1(fall) / self.probability)

    @override
    def event(self, candidate: dp.DpEvent) -> dp.DpEvent:
        return BinomialSelectionDpEvent(candidate, self.draws, self.probability)


def trial_count(event: dp.DpEvent) -> TrialCount | None:
    """The distribution of the number of candidates of a selection; None for any other event.

    None also for more than `MOST` expected candidates, where ranks next to 1 cannot be told apart:
    those have dp_accounting's bound alone.
    """
    match event:
        case RepeatAndSelectDpEvent() if event.mean > MOST:
            return None
        case RepeatAndSelectDpEvent(shape=math.inf):
            return Poisson(event.mean)
        case RepeatAndSelectDpEvent():
            return NegativeBinomial(event.mean, event.shape)
        case BinomialSelectionDpEvent():
            return Binomial(event.draws, event.probability)
        case _:
            return None


@attrs.frozen(eq=False)
class Shifts:
    """The mixture of shifted profiles that bounds a selection: c₀ + Σ masses h(ε - shifts)."""

    masses: Array  # λₖ xₖ
    shifts: Array  # log xₖ
    constant: float  # c₀
    largest: float  # sup over u of log f'(u)/f'(T(u)): no shift is larger

    @classmethod
    def of(cls, count: TrialCount, curve: TradeOff) -> "Shifts":
        """The mixture of a number of candidates whose trade-off curve is given."""
        first, second = _log_lines(count, curve, _ranks(count, curve))
        seen = np.where(second < -_LEAST_SLOPE, 0.0, np.exp(second))  # less is safe
        highs, lows = _envelope(np.exp(first), seen)
        largest = float(np.max(first - second)) * (1 + 1e-15)
        bends = (highs[:-1] - highs[1:]) / (lows[:-1] - lows[1:])
        masses, bends = _thinned(highs, lows, bends) if len(bends) else (bends, bends)
        return cls(masses, np.log(bends), float(highs[-1]), max(largest, 0.0))

    def profile(self, base: Callable[[Array], Array], epsilon: Array) -> Array:
        """The bound at each ε >= 0, from the profile of a candidate at any real t."""
        shape = len(epsilon), len(self.shifts)
        values = base((epsilon[:, None] - self.shifts).ravel()).reshape(shape)
        return np.minimum(1.0, (self.constant + values @ self.masses) * (1 + 1e-11))


def _ranks(count: TrialCount, curve: TradeOff) -> Array:
    """Ranks between which neither f'(u) nor f'(T(u)) changes much."""
    spaced = count.spaced_ranks(_RANKS)
    even = np.linspace(0.0, 1.0, _RANKS)
    known = np.unique(np.concatenate([spaced, even, 1 - np.geomspace(1e-15, 1, _RANKS)]))
    lifted = np.interp(spaced, np.maximum.accumulate(_ranks_after(curve, known)), known)
    return np.unique(np.concatenate([known, lifted]))


def _ranks_after(curve: TradeOff, ranks: Array) -> Array:
    """T(u), rounded down."""
    return np.clip(curve.searched(ranks) - 4e-16, 0.0, 1.0)


def _log_lines(count: TrialCount, curve: TradeOff, ranks: Array) -> tuple[Array, Array]:
    """For each interval of ranks, the logarithms of the largest f'(u) and the least f'(T(u)).

    They are rounded away from each other. No interval has a largest f'(u) of zero.
    """
    high = count.log_slope(ranks[1:])
    low = count.log_slope(_ranks_after(curve, ranks[:-1]))
    return high + _MARGIN, low - _MARGIN


def _envelope(highs: Array, lows: Array) -> tuple[Array, Array]:
    """The lines of x ↦ high - low x, and of zero, that are the greatest somewhere at x >= 0.

    Returned in the order of increasing x, in which both numbers fall.
    """
    highs, lows = np.append(highs, 0.0), np.append(lows, 0.0)
    order = np.lexsort((highs, lows))[::-1]  # steepest first, of equally steep the highest
    kept: list[int] = []
    a, b = highs.tolist(), lows.tolist()
    for i in order.tolist():
        if kept and b[kept[-1]] == b[i]:
            continue
        while kept:
            j = kept[-1]
            if a[i] < a[j]:
                if len(kept) == 1:
                    break
                k = kept[-2]
                if (a[k] - a[j]) * (b[j] - b[i]) < (a[j] - a[i]) * (b[k] - b[j]):
                    break
            kept.pop()
        kept.append(i)
    return highs[kept], lows[kept]


def _thinned(highs: Array, lows: Array, bends: Array) -> tuple[Array, Array]:
    """Fewer terms λₖ xₖ and xₖ, by chords of the convex function, which are above it."""
    logs = np.log(bends)
    cells = np.floor((logs - logs[0]) / max((logs[-1] - logs[0]) / _SHIFTS, 1e-4))
    chosen = np.unique(np.append(np.unique(cells, return_index=True)[1], len(bends) - 1))
    points = bends[chosen]
    values = highs[chosen] - lows[chosen] * points  # at a bend both of its lines agree
    slopes = np.append(lows[0], -np.diff(values) / np.diff(points))
    slopes = np.maximum.accumulate(np.append(slopes, 0.0)[::-1])[::-1]
    masses = -np.diff(slopes) * points
    return masses * (1 + _MARGIN), points


def selected(
    candidate: Dominating,
    count: TrialCount,
    known: Callable[[Array], Array] | None = None,
    all_released: Callable[[Array], Array] | None = None,
) -> Dominating:
    """The dominating pair of the best of several candidates.

    Args:
        candidate: The dominating pairs of one candidate; of candidates that differ, those of all.
        count: The distribution of their number.
        known: Another upper bound on the profile of the selection, in both directions. At each
            node the smallest one is used.
        all_released: The profile of releasing as many candidates as there may be, of which a
            selection is post-processing.
    """
    pair = tabulated_pair(candidate, True, _TAIL)
    ways = []
    for adding, base in ((False, pair), (True, pair.swapped())):
        shifts = Shifts.of(count, _trade_off(base))
        reach = candidate.reach(_TAIL, adding=adding)
        loss, back = (candidate.largest_loss(adding=way) for way in (adding, not adding))
        shift = shifts.largest
        if max(loss, back) < math.inf:
            shift = min(shift, count.largest_shift(loss, back))
        largest = loss + shift
        ways.append((base, shifts, reach + shifts.largest, largest * (1 + 1e-14)))
    reach = min(max(way[2] for way in ways), _FARTHEST)
    even = np.linspace(0.0, reach, _NODES)
    nodes = np.unique(np.append(even, np.geomspace(1e-6 * reach, reach, _NODES // 4)))
    profiles = [shifts.profile(base.profile, nodes) for base, shifts, _, _ in ways]
    for other, step in ((known, _SPARSE), (all_released, 1)):
        if other is not None:
            some = slice(None, None, step)  # chords join the others
            least = other(nodes[some])
            for profile in profiles:
                profile[some] = np.minimum(profile[some], least)
    profiles = [np.minimum.accumulate(profile) for profile in profiles]
    bound = BoundPair.of(nodes, profiles[0], profiles[1])
    return Dominating((attrs.evolve(bound, largest=(ways[0][3], ways[1][3])),))


def _trade_off(base: TabulatedPair) -> TradeOff:
    losses = np.concatenate([table.losses for table in (*base.forward, *base.backward)])
    losses = np.unique(np.append(0.0, np.abs(losses)))
    losses = losses[losses < _FARTHEST / 2]
    return TradeOff((losses, base.profile(losses)), (losses, base.swapped().profile(losses)))


def selected_divergences(count: TrialCount, orders: Array, base: Array) -> Array:
    """Rényi divergences of the best of several candidates, by the better of two bounds.

    Args:
        count: The distribution of their number.
        orders: Rényi orders, at least 1; 1 gets the divergence of the next larger order.
        base: The divergences of a candidate at these orders, the same in both directions.
    """
    ours = _divergences(count, orders, base)
    if isinstance(count, Binomial):
        return ours
    return np.minimum(ours, _papernot_steinke(count, orders, base))


def _divergences(count: TrialCount, orders: Array, base: Array) -> Array:
    """The bound of this module's theorem."""
    found = np.full(len(orders), math.inf)
    known = np.isfinite(base) & (orders > 1)
    if not known.any():
        return found
    largest = np.max(base[known])
    losses = np.append(0.0, np.geomspace(1e-4, max(4 * largest, 1e-3), _LOSSES))
    losses = np.minimum(losses, _FARTHEST / 2)
    delta = np.array([best_delta(orders, base, float(loss))[0] for loss in np.unique(losses)])
    profile = np.unique(losses), delta
    curve = TradeOff(profile, profile)
    ranks = _ranks(count, curve)
    high, low = _log_lines(count, curve, ranks)
    with np.errstate(divide="ignore"):
        none = float(np.log(count.none))
    for index in np.flatnonzero(known):
        order = orders[index]
        if math.isinf(order):
            found[index] = base[index] + np.max(high - low)
            continue
        log_moment = np.max(order * high - (order - 1) * low) + (order - 1) * base[index]
        found[index] = np.logaddexp(log_moment, none) / (order - 1)
    _take_larger_orders(orders, found)
    if math.isfinite(count.most):  # no more than if all candidates were released
        found = np.minimum(found, count.most * base)
    return found * (1 + 1e-12)


def _papernot_steinke(count: TrialCount, orders: Array, rdp: Array) -> Array:
    """The bounds of Papernot and Steinke 2022 for the best of many runs, Theorems 2 and 6.

    For negative binomial numbers D(A‖A') is at most
    D + log(E K)/(λ-1) + (1 + η) min over orders λ' of (1 - 1/λ') D' + log(1/γ)/λ', and for Poisson
    numbers D + log(E K)/(λ-1) + E K δ(log(λ/(λ-1))), to which the probability of no run is added.
    """
    inside = (orders > 1) & np.isfinite(rdp)
    found = np.full(len(orders), np.inf)
    if isinstance(count, NegativeBinomial) and inside.any():
        shares = (1 - 1 / orders[inside]) * rdp[inside] - math.log(count.halting) / orders[inside]
        extra = (1 + count.shape) * float(np.min(shares))
        found[inside] = rdp[inside] + extra + math.log(count.mean) / (orders[inside] - 1)
    log_none = math.log(count.none) if count.none > 0 else -math.inf
    poisson = inside & (orders < np.inf) & isinstance(count, Poisson)
    for index in np.flatnonzero(poisson):
        order = float(orders[index])
        delta = best_delta(orders, rdp, math.log1p(1 / (order - 1)))[0]
        log_moment = (order - 1) * (rdp[index] + count.expected * delta)
        log_moment += math.log(count.expected)
        found[index] = np.logaddexp(log_moment, log_none) / (order - 1)
    _take_larger_orders(orders, found)
    return found * (1 + 1e-12)


def _take_larger_orders(orders: Array, divergences: Array) -> None:
    """Bound each divergence by those of larger orders: it does not decrease with the order."""
    decreasing = np.argsort(-orders, kind="stable")
    divergences[decreasing] = np.minimum.accumulate(divergences[decreasing])
