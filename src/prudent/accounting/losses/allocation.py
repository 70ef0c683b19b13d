"""The dominating pair of random allocation: a record takes part in one of t steps.

The step is chosen uniformly, for each record independently.

Each step releases Gaussian noise of multiplier σ on a sum to which the record adds at most 1. If
the record is absent, all steps are pure noise; if it is present, one step, which nobody sees, is
shifted. Every adaptive sequence of such steps is post-processing of t normal variables, so the two
densities of those dominate it (Chua et al. 2024, arXiv:2412.16802; Feldman and Shenfeld 2025,
arXiv:2502.08202). Their ratio is the mean of t independent factors of log-normal distribution,

    S/t,  S = L₁ + … + Lₜ,  log Lᵢ ~ N(-1/(2σ²), 1/σ²),

and with the expectation over an absent record

    δ(ε) = E[(S/t - e^ε)₊] of removing a record,  δ(ε) = E[(1 - e^ε S/t)₊] of adding one.

Both are convex in S. So a factor, or a partial sum, may be moved from where it lies between two
points of a grid onto these two so that its mean stays: δ can only grow. Grids are geometric, and
sums are added up by halves, all of it additions and products of numbers that are not negative;
rounding is covered by `_ROUNDING`. The masses of a present record are S/t times those of an absent
one.
"""

import math
from functools import lru_cache

import attrs
import numpy as np

from prudent.accounting.losses.loss_tables import Array, LossTable
from prudent.accounting.losses.pairs import TabulatedPair

_SPREAD = 1e-4  # of the variance of S, which the grids may add to it up to 1,000 steps
_TAIL = 1e-22  # mass at either end that is not looked at: it counts as an infinite loss
_REACH = 9.8  # in standard deviations: less than _TAIL of a normal distribution lies beyond
_MOST_POINTS = 12_000  # of the grid of one factor
_ROUNDING = 1e-9  # of masses and losses, which are overstated by it


@attrs.frozen(eq=False)
class _PartialSum:
    """A sum of some factors: masses at e^(interval (start + i)), at zero and beyond the grid."""

    interval: float
    start: int
    masses: Array
    zero: float = 0.0
    beyond: float = 0.0  # a bound on the mass that a *present* record puts beyond the grid

    @property
    def logs(self) -> Array:
        points = self.start + np.arange(len(self.masses))
        return np.asarray(points * self.interval, np.float64)

    def refined(self, interval: float) -> "_PartialSum":
        """The same masses on a grid of which every so many points are those of this one."""
        ratio = round(self.interval / interval)
        masses = np.zeros((len(self.masses) - 1) * ratio + 1)
        masses[::ratio] = self.masses
        return attrs.evolve(self, interval=interval, start=self.start * ratio, masses=masses)

    def trimmed(self, count: int) -> "_PartialSum":
        """Without ends of hardly any mass: the lower goes to zero and to what then is the lowest.

        `count` is the number of factors: a present record weighs the upper end by the sum over it.
        """
        present = self.masses * np.exp(self.logs - math.log(count))
        last = int(np.searchsorted(-np.cumsum(present[::-1])[::-1], -_TAIL))
        first = min(int(np.searchsorted(np.cumsum(self.masses), _TAIL)), last - 1)
        below, kept = self.masses[:first], self.masses[first:last].copy()
        onto = below * np.exp(-self.interval * np.arange(first, 0, -1))
        kept[0] += onto.sum()
        return attrs.evolve(
            self,
            start=self.start + first,
            masses=kept,
            zero=self.zero + float((below - onto).sum()),
            beyond=self.beyond + float(present[last:].sum()),
        )

    def plus(self, other: "_PartialSum", interval: float) -> "_PartialSum":
        """The sum of this and of another, independent one."""
        a, b = self.refined(interval), other.refined(interval)
        start = min(a.start, b.start)
        size = max(a.start + len(a.masses), b.start + len(b.masses)) - start
        room = math.ceil(math.log(2) / interval) + 2
        p, q, total = np.zeros(size), np.zeros(size), np.zeros(size + room)
        p[a.start - start :][: len(a.masses)] = a.masses
        q[b.start - start :][: len(b.masses)] = b.masses
        total[:size] += p * b.zero + q * a.zero
        step = math.expm1(interval)
        # From this difference on the larger one moves by less than a point of the grid.
        far = min(math.ceil(-math.log(step) / interval), size)
        rises = np.log1p(np.exp(-interval * np.arange(far))) / interval
        whole = rises.astype(int)
        shares = np.expm1((rises - whole) * interval) / step
        for apart in range(far):
            both = p[apart:] * q[: size - apart]
            if apart:
                both += q[apart:] * p[: size - apart]
            at, upper = apart + int(whole[apart]), shares[apart] * both
            total[at + 1 :][: len(both)] += upper
            total[at:][: len(both)] += both - upper
        if far < size:
            growth = np.exp(interval * np.arange(size - far))
            for one, smaller in ((p, q), (q, p)):
                every = one[far:] * np.cumsum(smaller[: size - far])
                upper = one[far:] * np.cumsum(smaller[: size - far] * growth)
                upper *= np.exp(-interval * np.arange(far, size)) / step
                total[far + 1 :][: size - far] += upper
                total[far:size] += np.maximum(every - upper, 0.0)
        return _PartialSum(interval, start, total, a.zero * b.zero, a.beyond + b.beyond)


def _factor(mu: float, interval: float) -> _PartialSum:
    """One factor: each part between two grid points is moved onto these, its mean kept."""
    from scipy import special

    reach = _REACH * mu + mu * mu / 2
    first, last = math.floor(-reach / interval), math.ceil(reach / interval)
    edges = np.arange(first, last + 1) * interval
    mass, mean = (_between(np.append(-np.inf, edges) / mu + shift) for shift in (mu / 2, -mu / 2))
    height = np.exp(edges)
    masses = np.zeros(len(edges))
    upper = np.clip((mean[1:] - mass[1:] * height[:-1]) / np.diff(height), 0.0, mass[1:])
    masses[1:] += upper
    masses[:-1] += mass[1:] - upper
    onto = min(mean[0] / height[0], mass[0])  # of the lower end, of which the rest goes to zero
    masses[0] += onto
    beyond = float(special.ndtr(-(edges[-1] / mu - mu / 2)))
    return _PartialSum(interval, first, masses, mass[0] - onto, beyond)


def _between(points: Array) -> Array:
    """The mass of a standard normal variable between neighbours, accurate in both tails."""
    from scipy import special

    low, high = points[:-1], points[1:]
    mirrored = low > 0
    return np.asarray(
        special.ndtr(np.where(mirrored, -low, high)) - special.ndtr(np.where(mirrored, -high, low))
    )


@lru_cache(maxsize=32)
def allocated_gaussian(sigma: float, steps: int) -> TabulatedPair:
    """The pair of `steps` Gaussian mechanisms of which one, chosen uniformly, has the record."""
    mu = 1 / sigma
    doublings = max(1, steps.bit_length() - 1)
    # Moving the sum of m factors to a grid adds at most m interval²/6 to the variance of S/√m.
    spread = _SPREAD * max(1.0, steps / 1000) ** 0.5
    finest = math.sqrt(6 * spread * math.expm1(mu * mu) / (doublings * steps))
    finest = max(finest, 2 * (_REACH * mu + mu * mu / 2) / _MOST_POINTS / math.sqrt(steps))

    def interval(count: int) -> float:
        return finest * 2.0 ** max(0, math.floor(math.log2(steps / count) / 2))

    @lru_cache
    def summed(count: int) -> _PartialSum:
        """By halves of nearly equal size, of which there are at most two on each level."""
        if count == 1:
            return _factor(mu, interval(1))
        half = summed(count // 2)
        return half.plus(summed(count - count // 2), interval(count)).trimmed(count)

    total = summed(steps)
    losses = total.logs - math.log(steps)
    absent = total.masses * (1 + _ROUNDING)
    present = absent * np.exp(losses)
    # What lies beyond the grid has less mass without the record than with it.
    beyond = (total.beyond + steps * _TAIL) * (1 + _ROUNDING)
    forward = LossTable(losses + _ROUNDING, present, beyond)
    backward = LossTable(-losses[::-1] + _ROUNDING, absent[::-1], beyond + total.zero)
    return TabulatedPair((forward,), (backward,))
