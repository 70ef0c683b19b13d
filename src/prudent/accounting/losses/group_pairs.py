"""Dominating pairs for data sets that differ in several records, exact for Gaussian noise.

**Comparison of Gaussian mixtures.** Let P = Σ pᵢ N(cᵢ, σ²I) and Q = Σ rⱼ N(dⱼ, σ²I) with ‖cᵢ‖ ≤ aᵢ
and ‖dⱼ‖ ≤ bⱼ. For every ε the divergence H(P‖Q) = sup over A of P(A) - e^ε Q(A) is at most that of
Σ pᵢ N(aᵢ, σ²) and Σ rⱼ N(-bⱼ, σ²) on the line.

*Proof.* Against N(0, σ²I) the densities are Σ pᵢ Uᵢ and Σ rⱼ Vⱼ, where log Uᵢ + Kᵢᵢ/2 and
log Vⱼ + Kⱼⱼ/2 are centred Gaussians of covariance K, the inner products of all c and d over σ². So
H = E F with F = φ(Σ pᵢ uᵢ - e^ε Σ rⱼ vⱼ), where φ is the positive part, or a smooth convex function
arbitrarily close to it. Move K along the straight line to K', the inner products of the aᵢ and -bⱼ.
By Gaussian integration by parts (Kahane's interpolation) d/dt E F = ½ Σ (K' - K)ₘₙ E[wₘ wₙ Fₘₙ],
where w are u and v. As φ'' ≥ 0, Fₘₙ ≥ 0 between two u or two v, and there K' ≥ K since
aᵢaⱼ ≥ ⟨cᵢ, cⱼ⟩; and Fₘₙ ≤ 0 between a u and a v, where K' ≤ K since -aᵢbⱼ ≤ ⟨cᵢ, dⱼ⟩. So no term is
negative. ∎

**A person's records in a Poisson batch.** Condition on the sampling coins of all other records,
which is allowed because divergences are jointly convex. Of the person's k records the coins choose
a set J with probability pᴶ, and J moves a release of sensitivity 1 by at most |J|. This gives
`ShiftedPair` with binomial masses on the shifts 0, …, k: against a single 0 when the records are
added or removed, and against the mirrored mixture when each is replaced by another that keeps its
coin.
"""

import math
from collections.abc import Callable
from functools import cached_property

import attrs
import numpy as np
from typing_extensions import override

from prudent.accounting.losses.loss_tables import Array
from prudent.accounting.losses.pairs import Dominating, Pair

_NEGLIGIBLE = 1e-60  # binomial mass that is left out and added to a profile
_NODES = 4096  # points at which the loss is tabulated in order to invert it
_FAR = 40.0  # standard deviations beyond which a Gaussian has no mass in floating point
_ROUNDING = 1e-12
"""Relative error of binomial masses and of a difference of their sums; added. Checked by mpmath."""


@attrs.frozen(slots=False, eq=False)
class ShiftedPair(Pair):
    """The pair Σ pᵢ N(aᵢ, 1) against Σ rⱼ N(-bⱼ, 1), with all shifts at least 0.

    The loss increases with the output, so the worst event for any ε is a half-line.
    """

    present: Array  # the masses pᵢ
    up: Array  # the shifts aᵢ
    absent: Array  # the masses rⱼ
    down: Array  # the shifts bⱼ

    @classmethod
    def of_sample(cls, records: int, rate: float, sigma: float, *, replaced: bool) -> Dominating:
        """The pair for a person with `records` records, Poisson-sampled, with Gaussian noise."""
        masses, counts, rest = sampled_counts(records, rate)
        shifts = counts / sigma
        others = (masses, shifts) if replaced else (np.ones(1), np.zeros(1))
        return Dominating((cls(masses, shifts, *others),), slack=rest)

    @override
    def profile(self, epsilon: Array) -> Array:
        from scipy import special

        epsilon = np.asarray(epsilon, dtype=np.float64)
        start = self._where_loss_is(epsilon)
        seen = special.ndtr(self.up - start[..., None]) @ self.present
        exponents = epsilon[..., None] + special.log_ndtr(-self.down - start[..., None])
        unseen = np.exp(np.minimum(exponents, 700.0)) @ self.absent
        inside = np.maximum(0.0, seen - unseen) + _ROUNDING * seen
        return np.minimum(1.0, np.maximum(inside, -np.expm1(np.minimum(epsilon, 0.0))))

    def swapped(self) -> "ShiftedPair":
        """The pair with the two distributions exchanged, reflected so that shifts are positive."""
        return self._swapped

    @cached_property
    def _swapped(self) -> "ShiftedPair":  # once, because it tabulates its loss
        return ShiftedPair(self.absent, self.down, self.present, self.up)

    @property
    @override
    def infinite_mass(self) -> float:
        return 0.0

    def _loss(self, x: Array) -> tuple[Array, Array]:
        """The loss at x and its slope."""
        logs = []
        for masses, shifts in ((self.present, self.up), (self.absent, -self.down)):
            exponents = np.log(masses) + shifts * (x[..., None] - shifts / 2)
            peak = exponents.max(axis=-1)
            densities = np.exp(exponents - peak[..., None])
            total = densities.sum(axis=-1)
            logs.append((peak + np.log(total), densities @ shifts / total))
        (above, mean), (below, other_mean) = logs
        return above - below, mean - other_mean

    @cached_property
    def _tabulated_loss(self) -> tuple[Array, Array]:
        reach = _FAR + float(max(self.up.max(), self.down.max()))
        nodes = np.linspace(-reach, reach, _NODES)
        return nodes, np.maximum.accumulate(self._loss(nodes)[0])

    def _where_loss_is(self, epsilon: Array) -> Array:
        """The x at which the loss is ε, or the end of the range that holds all mass.

        Takes Newton steps between two nodes, and bisects where one would leave the bracket. An
        error in x lowers the profile only to second order, because x maximises the difference that
        defines it.
        """
        nodes, losses = self._tabulated_loss
        right = np.clip(np.searchsorted(losses, epsilon), 1, len(nodes) - 1)
        low, high = nodes[right - 1], nodes[right]
        x = np.clip(np.interp(epsilon, losses, nodes), low, high)
        for _ in range(4):
            loss, slope = self._loss(x)
            low, high = np.where(loss < epsilon, x, low), np.where(loss < epsilon, high, x)
            with np.errstate(divide="ignore", invalid="ignore"):
                newton = x + (epsilon - loss) / slope
            x = np.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        inside = np.where(epsilon >= losses[-1], nodes[-1], x)
        return np.where(epsilon <= losses[0], nodes[0], inside)


def sampled_counts(records: int, rate: float) -> tuple[Array, Array, float]:
    """The distribution of the number of a person's records in a Poisson batch.

    Returns:
        Masses, counts, and a bound on the mass of the larger counts, which are left out.
        Divergences are jointly convex, so that mass raises a profile by itself at most. (A
        huge shift of negligible mass would leave the loss too coarsely tabulated to be inverted.)
    """
    counts = np.arange(records + 1.0)
    with np.errstate(divide="ignore"):
        ratios = (records - counts[:-1]) / (counts[:-1] + 1) * (rate / np.float64(1 - rate))
        mode = min(records, math.floor((records + 1) * rate))
        fewer = np.cumprod(1 / ratios[:mode][::-1])[::-1]
    masses = np.concatenate([fewer, [1.0], np.cumprod(ratios[mode:])])
    masses /= masses.sum()
    more = np.append(np.cumsum(masses[::-1])[-2::-1], 0.0)
    last = int(np.argmax(more < _NEGLIGIBLE / 2))
    kept = np.flatnonzero(masses[: last + 1])
    return masses[kept], counts[kept], _NEGLIGIBLE * (last < records)


@attrs.frozen(slots=False, eq=False)
class BoundPair(Pair):
    """A pair given by an upper bound on its profile, at nodes joined by chords in e^ε.

    A profile is convex in e^ε and does not increase. So the lower convex hull of upper bounds at
    nodes is an upper bound, and the last value is a bound for all larger ε. Exchanging the two
    distributions turns h(ε) into 1 - e^ε + e^ε h(-ε). Stored is the excess over the least profile,
    the positive part of 1 - e^ε: for the exchanged pair it is e^ε times the excess at -ε, without
    loss by rounding.
    """

    nodes: Array  # values of ε on both sides of zero, increasing
    excess: Array  # the excess of the bound at the nodes
    largest: tuple[float, float] = (math.inf, math.inf)  # loss of this direction, and of the other

    @classmethod
    def of(cls, nodes: Array, forward: Array, backward: Array) -> "BoundPair":
        """Build a pair from bounds on both directions at the same ε ≥ 0, the first being zero."""
        both = np.concatenate([-nodes[:0:-1], nodes])
        left = backward[:0:-1] * np.exp(-nodes[:0:-1])
        excess = np.concatenate([left, [min(forward[0], backward[0])], forward[1:]])
        excess = np.minimum(excess, np.exp(np.minimum(both, 0.0)))  # a profile is at most 1
        kept = _hull(both, excess)
        return cls(both[kept], excess[kept])

    @override
    def profile(self, epsilon: Array) -> Array:
        epsilon = np.asarray(epsilon, dtype=np.float64)
        right = np.clip(np.searchsorted(self.nodes, epsilon), 1, len(self.nodes) - 1)
        low, high = self.nodes[right - 1], self.nodes[right]
        with np.errstate(over="ignore", invalid="ignore"):
            share = np.expm1(np.minimum(epsilon - high, 0.0)) * np.exp(high - low)
            share = np.clip(1 + share / np.expm1(high - low), 0.0, 1.0)
        share = np.nan_to_num(share, nan=0.0)
        value = (1 - share) * self.excess[right - 1] + share * self.excess[right]
        least = _least(epsilon)
        # Between nodes on opposite sides of zero the chord is that of the whole profile.
        inside = value + np.where((low < 0) & (high > 0), (1 - share) * _least(low), least)
        beyond = self.excess[0] * np.exp(np.minimum(epsilon - self.nodes[0], 0.0)) + least
        bound = np.minimum(1.0, np.where(epsilon < self.nodes[0], beyond, inside))
        return np.where((epsilon >= self.largest_loss) & (epsilon < np.inf), 0.0, bound)

    @override
    def swapped(self) -> "BoundPair":
        excess = (self.excess * np.exp(-self.nodes))[::-1]
        return BoundPair(-self.nodes[::-1], excess, self.largest[::-1])

    @property
    @override
    def infinite_mass(self) -> float:
        return float(self.excess[-1]) if math.isinf(self.largest_loss) else 0.0

    @property
    @override
    def largest_loss(self) -> float:
        return self.largest[0]


def _least(epsilon: Array) -> Array:
    """The profile of two equal distributions, the least possible one."""
    return np.asarray(-np.expm1(np.minimum(epsilon, 0.0)))


def _hull(nodes: Array, excess: Array) -> list[int]:
    """The indices of the points on the lower convex hull of a profile in e^ε."""
    kept: list[int] = []
    xs, ys = nodes.tolist(), excess.tolist()
    wholes = (excess + _least(nodes)).tolist()
    for i in range(len(xs)):
        while len(kept) > 1:
            j, k = kept[-2], kept[-1]
            # On one side of zero the least profile is a straight line and may be left out.
            values = ys if xs[i] <= 0 or xs[j] >= 0 else wholes
            # Slopes in e^ε, both multiplied by e^x[k].
            before = (values[k] - values[j]) / -math.expm1(xs[j] - xs[k])
            after = (values[i] - values[k]) / math.expm1(min(xs[i] - xs[k], 700.0))
            if before <= after:
                break
            kept.pop()
        kept.append(i)
    return kept


Profile = Callable[[Array], Array]


def chained(first: Profile, second: Profile, nodes: Array) -> Array:
    """Bound the profile of two steps, from S to S' to S'', by those of the steps, at ε ≥ 0.

    P(A) ≤ e^s P'(A) + h(s) and P'(A) ≤ e^t P''(A) + h'(t), so h''(s + t) ≤ h(s) + e^s h'(t). The
    result is the least of these bounds over several splits of ε.
    """
    least = np.ones_like(nodes)
    for share in np.linspace(0.0, 1.0, 33):
        part = share * nodes
        with np.errstate(over="ignore", invalid="ignore"):
            split = first(part) + np.nan_to_num(np.exp(part) * second(nodes - part), nan=np.inf)
        np.minimum(least, split, out=least)
    return least


def nodes_up_to(reach: float) -> Array:
    """Values of ε from zero to `reach`: dense, and denser near zero."""
    even = np.linspace(0.0, reach, 2048)
    return np.unique(np.concatenate([even, np.geomspace(1e-7 * reach, reach, 2048)]))
