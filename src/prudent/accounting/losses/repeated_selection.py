"""The price of private selection: many candidates are run, and only the best one is released.

A *candidate* draws a setting (independently of the data), runs a mechanism with it, and scores what
came out. K candidates are run, K drawn from a public distribution and never revealed; the output of
the best one is released, with its setting and its score. Write Q and Q' for the distributions of
one candidate on two neighbouring data sets, A and A' for those of the selection, f(u) = E u^K, and
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

import math
from collections.abc import Callable

import attrs
import numpy as np

from prudent.accounting.losses.composed import tabulated_pair
from prudent.accounting.losses.group_pairs import BoundPair
from prudent.accounting.losses.loss_tables import Array, TradeOff
from prudent.accounting.losses.moments import best_delta
from prudent.accounting.losses.pairs import Dominating, TabulatedPair
from prudent.accounting.losses.trial_counts import (
    Binomial,
    NegativeBinomial,
    Poisson,
    TrialCount,
)

_RANKS = 5000  # ranks at equal steps of log f'(u), and of log f'(T(u)): a step adds as much to ε
_SHIFTS = 150  # terms of the mixture
_NODES = 600  # points of the profile of the selection
_SPARSE = 8  # every how many nodes another bound is evaluated
_TAIL = 1e-22  # how far above its limit the profile of a candidate may be at the last node
_MARGIN = 1e-12  # relative, above the rounding errors of f' and T
_FARTHEST = 700.0  # exponents, without overflow
_DEEPEST = 600.0  # f'(T(u)) below e^-600 counts as zero, so that no quotient overflows
_LOSSES = 256  # points of a profile that is computed from Rényi divergences


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
        seen = np.where(second < -_DEEPEST, 0.0, np.exp(second))  # less is safe
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
