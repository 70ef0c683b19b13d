"""Dominating pairs: two distributions whose privacy loss is at least that of the mechanism.

Every pair here is a *labelled mixture of Gaussian pairs*: component j has mass aⱼ when the record
is absent and pⱼ when it is present, and given j the output is N(0, 1) or N(1/σⱼ, 1). Labelled
mixtures suffice for Propose-Test-Release (Errata 2.1): the label is the noisy margin, the branch,
or the branch that a margin of 0 took by accident.

The profile of a pair is h(ε) = sup over events A of present(A) - e^ε absent(A).
"""

import abc
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

import attrs
import numpy as np
from typing_extensions import override

from prudent.accounting._numeric import float_above
from prudent.accounting.losses.loss_tables import UNIT, Array, LossTable

_SQRT_HALF = math.sqrt(0.5)
_CERTAIN = 1e200  # a loss that stands for an infinite one
_TOGETHER = 2**16  # values of a profile that are computed at a time
MOST_COMPONENTS = 256  # with more components, neighbouring ones are spread onto a grid of losses


def least_profile(epsilon: Array) -> Array:
    """The profile of two equal distributions, the least possible one."""
    return np.asarray(-np.expm1(np.minimum(epsilon, 0.0)))


class Pair(abc.ABC):
    """The two output distributions, with the record and without it."""

    @abc.abstractmethod
    def profile(self, epsilon: Array) -> Array:
        """h(ε) at any real ε, including negative ones."""

    @abc.abstractmethod
    def swapped(self) -> "Pair":
        """The pair with the two distributions exchanged."""

    @property
    def infinite_mass(self) -> float:
        """Mass of the outputs that occur only when the record is present: the limit of h."""
        return 0.0

    @property
    def largest_loss(self) -> float:
        """An upper bound on the loss, from which on h is zero; infinite if there is none."""
        return math.inf


def _tail_term(a: Array, shift: float) -> Array:
    """Return exp(shift (a + shift/2)) Φ(-a - shift) without overflow, accurate in the far tail."""
    from scipy import special

    b = a + shift
    above = b > 0
    if above.all():
        return np.asarray(np.exp(-0.5 * a * a) * special.erfcx(b * _SQRT_HALF) * 0.5)
    if not above.any():
        return np.asarray(np.exp(shift * (b - 0.5 * shift)) * special.ndtr(-b))
    terms = np.empty_like(b)
    terms[above] = np.exp(-0.5 * a[above] * a[above]) * special.erfcx(b[above] * _SQRT_HALF) * 0.5
    terms[~above] = np.exp(shift * (b[~above] - 0.5 * shift)) * special.ndtr(-b[~above])
    return terms


def gaussian_profile(epsilon: Array, sigma: float) -> Array:
    """The profile of N(1/σ, 1) against N(0, 1); σ may be 0 (everything revealed) or infinite."""
    if sigma == 0:
        return np.ones_like(epsilon)
    if math.isinf(sigma):
        return np.maximum(0.0, -np.expm1(np.minimum(epsilon, 0.0)))
    mu = 1 / sigma
    a = epsilon / mu - mu / 2
    return np.maximum(0.0, _tail_term(a, 0.0) - _tail_term(a, mu))


@attrs.frozen(eq=False)
class MixturePair(Pair):
    """A mixture of finitely many labelled Gaussian pairs."""

    absent: Array  # mass of each component when the record is absent
    present: Array  # mass of each component when it is present
    sigma: Array  # noise multiplier of each component; infinite where only the label is released

    @classmethod
    def of(cls, *components: tuple[float, float, float]) -> "MixturePair":
        """Build a pair from (absent, present, sigma) triples."""
        absent, present, sigma = np.array(components, dtype=np.float64).T
        return cls(absent, present, sigma)

    @property
    def losses(self) -> Array:
        """log(present/absent) of each label."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.log(self.present) - np.log(self.absent))

    @override
    def profile(self, epsilon: Array) -> Array:
        return _worst_mixture([self], epsilon)

    @override
    def swapped(self) -> "MixturePair":
        return MixturePair(self.present, self.absent, self.sigma)

    @property
    @override
    def infinite_mass(self) -> float:
        return float(np.sum(self.present[(self.absent == 0) | (self.sigma == 0)]))

    @property
    @override
    def largest_loss(self) -> float:
        seen = self.present > 0
        if np.any(seen & ((self.absent == 0) | np.isfinite(self.sigma))):
            return math.inf
        # Masses have relative errors of a few u, and their logarithms of one.
        size = 8 - np.log(self.present[seen]) - np.log(self.absent[seen])
        return float(np.max(self.losses[seen] + 2 * UNIT * size))


@attrs.frozen
class LaplacePair(Pair):
    """Laplace noise of scale b on a shift of 1, together with Gaussian noise σ on a shift of 1.

    The Laplace loss has atoms at ±1/b and a density between them. Integrating the Gaussian profile
    over it gives the closed form below (derived in the terms of Errata 2.1, checked by quadrature).
    """

    scale: float
    sigma: float

    @property
    def reach(self) -> float:
        """The largest Laplace loss."""
        return 1 / self.scale

    @override
    def profile(self, epsilon: Array) -> Array:
        reach = self.reach
        if self.sigma == 0:
            return np.ones_like(epsilon)
        if math.isinf(self.sigma):
            inside = -np.expm1((np.clip(epsilon, -reach, reach) - reach) / 2)
            return np.where(epsilon < -reach, least_profile(epsilon), inside)
        mu = 1 / self.sigma
        upper = (epsilon - reach) / mu - mu / 2
        lower = (epsilon + reach) / mu - mu / 2
        above = _tail_term(upper, 0.0) - _tail_term(upper, mu / 2)
        below = _tail_term(lower, mu / 2) - _tail_term(lower, mu)
        return np.maximum(0.0, above + math.exp(-reach) * below)

    def swapped(self) -> "LaplacePair":
        """Return the pair itself: a reflection exchanges its two distributions."""
        return self

    @property
    @override
    def infinite_mass(self) -> float:
        return float(self.sigma == 0)

    @property
    @override
    def largest_loss(self) -> float:
        return float_above(1 / Fraction(self.scale)) if math.isinf(self.sigma) else math.inf

    def components(self, nodes: int) -> MixturePair:
        """The mixture given by a Gauss-Legendre rule: exact for moments, but not for profiles."""
        reach = self.reach
        points, weights = _gauss_legendre(nodes)
        loss = points * reach
        density = 0.25 * np.exp((loss - reach) / 2) * weights * reach
        present = np.concatenate([[0.5 * math.exp(-reach)], density, [0.5]])
        losses = np.concatenate([[-reach], loss, [reach]])
        return MixturePair(present * np.exp(-losses), present, np.full(nodes + 2, self.sigma))


@attrs.frozen
class BoundedRangePair(Pair):
    """The worst pair of all mechanisms whose loss lies in a range of length ε.

    Such a mechanism is dominated by a choice between the losses t and t - ε for some t in [0, ε],
    the first of which has mass (1 - e^(t-ε))/(1 - e^-ε) if the record is present. At ε = x this
    choice has the profile (1 - e^(t-ε)) (1 - e^(x-t))/(1 - e^-ε), which is greatest for
    t = (x + ε)/2. The greatest value, the profile below, is again that of a pair: the loss x has
    the density e^(x/2)/(4 sinh(ε/2)) on [-ε, ε]. So it dominates every adaptive sequence of such
    mechanisms (Dong, Durfee and Rogers 2020; Zhu, Dong and Wang 2022).
    """

    reach: float

    @override
    def profile(self, epsilon: Array) -> Array:
        inside = np.expm1((np.clip(epsilon, -self.reach, self.reach) - self.reach) / 2) ** 2
        inside = inside / -math.expm1(-self.reach)
        return np.where(epsilon < -self.reach, least_profile(epsilon), inside)

    def swapped(self) -> "BoundedRangePair":
        """Return the pair itself: a reflection exchanges its two distributions."""
        return self

    @property
    @override
    def largest_loss(self) -> float:
        return self.reach

    def components(self, nodes: int) -> MixturePair:
        """The mixture given by a Gauss-Legendre rule: exact for moments, but not for profiles."""
        points, weights = _gauss_legendre(max(nodes, 1))
        loss = points * self.reach
        scale = self.reach * weights / (2 * -math.expm1(-self.reach))
        present, absent = (scale * np.exp((s * loss - self.reach) / 2) for s in (1, -1))
        return MixturePair(absent, present, np.full(len(loss), math.inf))


@lru_cache(maxsize=64)
def _gauss_legendre(nodes: int) -> tuple[Array, Array]:
    points, weights = np.polynomial.legendre.leggauss(nodes)
    return np.asarray(points), np.asarray(weights)


@attrs.frozen(eq=False)
class TabulatedPair(Pair):
    """A pair given by tables of its loss distributions in both directions."""

    # Bounds on the distribution of losses, either all upper or all lower bounds; the tightest one
    # is used at each ε.
    forward: tuple[LossTable, ...]
    backward: tuple[LossTable, ...]  # the same for the pair with its two distributions exchanged
    # The largest loss in each direction; infinite where it is not known.
    largest: tuple[float, float] = (math.inf, math.inf)

    def profile(self, epsilon: Array) -> Array:
        """h(ε) at any real ε; at negative ε it is computed from the exchanged pair."""
        right = _best(self.forward, np.maximum(epsilon, 0.0))
        if np.all(epsilon >= 0):
            return right
        negative = np.minimum(epsilon, 0.0)
        left = -np.expm1(negative) + np.exp(negative) * _best(self.backward, -negative)
        return np.where(epsilon < 0, left, right)

    @override
    def swapped(self) -> "TabulatedPair":
        return TabulatedPair(self.backward, self.forward, self.largest[::-1])

    @property
    @override
    def infinite_mass(self) -> float:
        masses = [table.infinite for table in self.forward]
        return min(masses) if self.forward[0].upper else max(masses)

    @property
    @override
    def largest_loss(self) -> float:
        return self.largest[0]


def _best(tables: tuple[LossTable, ...], epsilon: Array) -> Array:
    """The least of several upper bounds on a profile, or the greatest of several lower bounds."""
    profiles = [table.profile(epsilon) for table in tables]
    reduce = np.minimum if tables[0].upper else np.maximum
    return np.asarray(reduce.reduce(profiles))


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
        kept = _lower_hull(both, excess)
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
        least = least_profile(epsilon)
        # Between nodes on opposite sides of zero the chord is that of the whole profile.
        inside = value + np.where((low < 0) & (high > 0), (1 - share) * least_profile(low), least)
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


def _lower_hull(nodes: Array, excess: Array) -> list[int]:
    """The indices of the points on the lower convex hull of a profile in e^ε."""
    kept: list[int] = []
    xs, ys = nodes.tolist(), excess.tolist()
    wholes = (excess + least_profile(nodes)).tolist()
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


def spread(pair: MixturePair, most: int = MOST_COMPONENTS) -> MixturePair:
    """Move components with one common σ onto a grid of `most` losses; the result dominates `pair`.

    A component between two grid losses is split between them so that both of its masses are
    preserved. It dominates because the original label can be redrawn from the grid label.
    """
    if len(pair.present) <= most:
        return pair
    losses = pair.losses
    finite = np.isfinite(losses)
    grid = np.linspace(losses[finite].min(), losses[finite].max(), most)
    step = grid[1] - grid[0]
    left = np.minimum((losses[finite] - grid[0]) // step, most - 2).astype(int)
    present, absent = pair.present[finite], pair.absent[finite]
    high = (present - absent * np.exp(grid[left])) / -np.expm1(-step)
    high = np.clip(high, 0.0, present)
    on_grid = np.zeros(most)
    np.add.at(on_grid, left, present - high)
    np.add.at(on_grid, left + 1, high)
    return MixturePair(
        np.append(on_grid * np.exp(-grid), pair.absent[~finite]),
        np.append(on_grid, pair.present[~finite]),
        np.full(most + int(np.sum(~finite)), pair.sigma[0]),
    )


@attrs.frozen
class Dominating:
    """The worst of several pairs, with and without Poisson sampling.

    The pointwise maximum of profiles is again the profile of a pair, and products of that pair
    dominate every adaptive sequence of the cases (Errata 2.1).
    """

    pairs: tuple[Pair, ...]  # the pairs, one for each case
    sampling_rate: float = 1.0  # probability with which each record is sampled, independently
    # Added to every profile to cover the pairs that a finite list omits from an infinite family.
    slack: float = 0.0

    def profile(self, epsilon: Array, *, adding: bool = False) -> Array:
        """δ(ε) of removing a record (present against absent), or of adding one."""
        sample = _profile_of_adding if adding else _profile_of_removing
        pairs = [pair.swapped() for pair in self.pairs] if adding else self.pairs
        worst = sample(epsilon, self.sampling_rate, pairs)
        return np.minimum(1.0, worst + self.sampling_rate * self.slack)

    def infinite_mass(self, *, adding: bool = False) -> float:
        """The limit of the profile at infinity, without the slack."""
        if adding and self.sampling_rate < 1:
            return 0.0
        pairs = [pair.swapped() for pair in self.pairs] if adding else self.pairs
        return self.sampling_rate * max(pair.infinite_mass for pair in pairs)

    def largest_loss(self, *, adding: bool = False) -> float:
        """An upper bound on the loss, rounded up; infinite if there is none.

        Sampling turns a largest loss ℓ into log(1 + q (e^ℓ - 1)) when a record is removed, and
        into -log(1 - q + q e^-ℓ) when one is added.
        """
        if self.slack > 0:
            return math.inf
        pairs = [pair.swapped() for pair in self.pairs] if adding else self.pairs
        largest, rate = max(pair.largest_loss for pair in pairs), self.sampling_rate
        if rate == 1 or (largest == math.inf and not adding):
            return largest
        loss = -largest if adding else largest
        if loss > 700:  # e^ℓ is more than doubles hold
            return (loss + math.log(rate)) * (1 + 1e-15)
        moved = rate * math.expm1(loss)
        # Near 0 and far from it, each keeps the digits that the other loses.
        whole = math.log1p(moved) if moved > -0.5 else math.log(1 - rate + rate * math.exp(loss))
        return abs(whole) * (1 + 1e-15)

    def limit(self, *, adding: bool = False) -> float:
        """The limit of the profile at infinity, including the slack."""
        return self.infinite_mass(adding=adding) + self.sampling_rate * self.slack

    def reach(self, tail: float, *, adding: bool = False, damped: bool = False) -> float:
        """Return an ε (rounded up) beyond which the profile is within `tail` of its limit.

        With `damped`, e^-ε times the profile is within `tail` of zero: the excess of the opposite
        direction's profile at -ε over its least value.
        """
        return _reach(self, tail, adding, damped)


@lru_cache(maxsize=32)
def _reach(worst: Dominating, tail: float, adding: bool, damped: bool) -> float:
    limit = tail if damped else worst.limit(adding=adding) + tail
    low, high = 0.0, 2.0**40
    grid = np.append(0.0, np.geomspace(2.0**-30, high, 71))
    for _ in range(3):
        values = worst.profile(grid, adding=adding)
        inside = (values * np.exp(-grid) if damped else values) > limit
        last = int(np.max(np.nonzero(inside)[0], initial=0))
        low, high = float(grid[last]), float(grid[min(last + 1, len(grid) - 1)])
        grid = np.linspace(low, high, 16)
    return high


def _worst(pairs: Sequence[Pair], epsilon: Array) -> Array:
    mixtures = [pair for pair in pairs if isinstance(pair, MixturePair)]
    profiles = [pair.profile(epsilon) for pair in pairs if not isinstance(pair, MixturePair)]
    if mixtures:
        profiles.append(_worst_mixture(mixtures, epsilon))
    return np.asarray(np.maximum.reduce(profiles))


def _worst_mixture(pairs: Sequence[MixturePair], epsilon: Array) -> Array:
    """The largest profile of several mixtures, with many components of the same σ at a time."""
    masses, sigmas = (
        np.concatenate([getattr(pair, name) for pair in pairs]) for name in ("present", "sigma")
    )
    # a label that cannot occur without the record has infinite loss.
    losses = np.minimum(np.concatenate([pair.losses for pair in pairs]), _CERTAIN)
    owners = np.repeat(np.arange(len(pairs)), [len(pair.present) for pair in pairs])
    at = np.ravel(epsilon)
    totals = np.zeros((len(pairs), len(at)))
    together = max(1, _TOGETHER // max(1, len(at)))
    for sigma in np.unique(sigmas[masses > 0]):
        of_sigma = np.flatnonzero((sigmas == sigma) & (masses > 0))
        for start in range(0, len(of_sigma), together):
            some = of_sigma[start : start + together]
            weights = np.zeros((len(pairs), len(some)))
            weights[owners[some], np.arange(len(some))] = masses[some]
            totals += weights @ gaussian_profile(at - losses[some, None], float(sigma))
    return np.asarray(totals.max(axis=0)).reshape(np.shape(epsilon))


def _profile_of_removing(epsilon: Array, rate: float, pairs: Sequence[Pair]) -> Array:
    """H(sampled present || absent): q h(log(1 + (e^ε-1)/q)) where defined, else 1 - e^ε."""
    small = np.minimum(epsilon, 1.0)
    growth = np.expm1(small) / rate
    defined = growth > -1
    near = np.log1p(np.where(defined, growth, 0.0))
    large = np.maximum(epsilon, 1.0)
    far = large + np.log1p((rate - 1) * np.exp(-large)) - math.log(rate)
    base = np.where(epsilon < 1, near, far)
    return np.where(defined, rate * _worst(pairs, base), -np.expm1(small))


def _profile_of_adding(epsilon: Array, rate: float, swapped: Sequence[Pair]) -> Array:
    """H(absent || sampled present): c h(log(q e^ε/c)), c = 1 - (1-q) e^ε, zero where c <= 0."""
    growth = -np.expm1(np.minimum(epsilon, 500.0)) * ((1 - rate) / rate)
    defined = growth > -1
    base = epsilon - np.log1p(np.where(defined, growth, 0.0))
    weight = np.where(defined, rate * (1 + growth), 0.0)
    return np.where(defined, weight * _worst(swapped, base), 0.0)
