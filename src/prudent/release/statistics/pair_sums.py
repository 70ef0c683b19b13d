"""Sums over pairs of values, from which covariances, correlations and weighted means follow.

Let x and y lie between bounds, and let t and u in [0, 1] be how far each is on its way. A record
contributes to

| statistic | contributions of a record | their sum, at most |
| --- | --- | --- |
| weighted mean (u: the weight) | u(1 - t), ut | 1 |
| covariance | (1 - t)(1 - u), (1 - t)u, t(1 - u), tu | 1 |
| correlation | the four above, 2t(1 - t), 2u(1 - u) | 2 |

None is negative. So one record changes the sums by at most 1, or 2, in the sum of absolute
differences, and noise for that on each of them pays for all that follows. (t(1 - t) is at most 1/4;
twice of it, for the same noise, has half the error.)

Everything is counted in whole steps, as in `sums.moments`: with t = a/D and u = b/E for whole
numbers, the contributions times D E, or times D² E², are whole numbers.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import attrs

from prudent.release.columns.sql.pair_columns import PairColumn, ProductSums
from prudent.release.lattice import Lattice, check_bounds
from prudent.release.noise import Noise
from prudent.release.sums.additive import AdditiveMechanism, NoiseRegion

Kind = Literal["weighted", "covariance", "correlation"]

_BITS = 25  # a width is 2**25 to 2**26 steps, so that products of steps are exact
_BITS_OF_NOISE = 32  # of the sensitivity, so that noise fits 64 bits


def lattice_between(ends: tuple[float, float]) -> Lattice:
    """Return the lattice between bounds that are about 2**25 steps apart."""
    low, high = check_bounds(ends)
    far = math.ldexp(max(abs(low), abs(high)), -51)
    return Lattice.for_unit(max(math.ldexp(high - low, -_BITS), far), (low, high))


@attrs.frozen
class PairSums:
    """The sums of one kind over pairs of values clipped to bounds.

    Guarantee:
        `sensitivity` bounds the sum of absolute differences of what `read` returns, when a pair is
        added or removed. Rounding a sum down to a multiple of 2**s moves it by at most
        (c + 2**s - 1)/2**s multiples when c >= 0 is added to it.
    """

    kind: Kind  # which sums
    first: Lattice  # the lattice of the first values, between their bounds
    second: Lattice  # that of the second ones

    @property
    def _unit(self) -> int:
        """What a contribution of 1 is, in whole steps."""
        unit = self.first.diameter * self.second.diameter
        return int(unit * unit if self.kind == "correlation" else unit)

    @property
    def _most(self) -> int:
        """What the contributions of one record add up to, at most."""
        return self._unit * (2 if self.kind == "correlation" else 1)

    @property
    def _shift(self) -> int:
        """s: sums are rounded down to multiples of 2**s."""
        return max(0, self._most.bit_length() - _BITS_OF_NOISE)

    @property
    def _size(self) -> int:
        return {"weighted": 2, "covariance": 4, "correlation": 6}[self.kind]

    @property
    def sensitivity(self) -> int:
        """How far one pair moves the sums, in multiples of 2**s."""
        return (self._most + self._size * ((1 << self._shift) - 1)) >> self._shift

    def read(self, pairs: PairColumn) -> list[int]:
        """The sums of the pairs, exact but for the rounding, in multiples of 2**s."""
        return [each >> self._shift for each in self._exact(pairs.sums(self.first, self.second))]

    def _exact(self, sums: ProductSums) -> list[int]:
        wide, high = self.first.diameter, self.second.diameter
        if self.kind == "weighted":
            return [wide * sums.second - sums.product, sums.product]
        corners = [
            sums.count * wide * high - high * sums.first - wide * sums.second + sums.product,
            wide * sums.second - sums.product,
            high * sums.first - sums.product,
            sums.product,
        ]
        if self.kind == "covariance":
            return corners
        return [
            *(each * wide * high for each in corners),
            2 * high**2 * (wide * sums.first - sums.first_squares),
            2 * wide**2 * (high * sums.second - sums.second_squares),
        ]

    def release(self, pairs: PairColumn, mechanism: AdditiveMechanism, noise: Noise) -> NoiseRegion:
        """Release the sums; returns where they are, in records."""
        noisy = mechanism.noisy(self.read(pairs), self.sensitivity, noise)
        step = math.ldexp(1.0, self._shift) / self._unit
        # One step for the rounding of the sums, and one for that of the noise.
        return NoiseRegion(
            tuple(each * step for each in noisy),
            mechanism.distribution,
            mechanism.scale(self.sensitivity) * step,
            2 * step,
        )


@attrs.frozen
class PairMoments:
    """Covariance and correlation of clipped values, from noisy sums; see `outcome.Spread`.

    An interval holds the statistic with at least the given probability, over the noise alone. The
    sums are in a polytope with that probability. About fixed t₀ and u₀, mean products are ratios of
    linear functions, which are largest and smallest at corners of the polytope; and the covariance
    differs from the mean of (t - t₀)(u - u₀) by (E t - t₀)(E u - u₀).
    """

    sums: PairSums  # what was summed
    region: NoiseRegion  # where the sums are, in records

    @property
    def value(self) -> float:
        """The covariance, or the correlation."""
        return self._of(self.region.centre)

    @property
    def deviation(self) -> float:
        """The standard deviation of its noise, to first order in the noise."""
        centre, size = self.region.centre, len(self.region.centre)
        slopes = []
        for place in range(size):
            moved = [each + (place == here) for here, each in enumerate(centre)]
            slopes.append(self._of(moved) - self.value)
        return self.region.deviation * math.hypot(*slopes)

    @property
    def _widths(self) -> tuple[float, float]:
        first, second = self.sums.first, self.sums.second
        return first.diameter * first.spacing, second.diameter * second.spacing

    def _of(self, sums: Sequence[float]) -> float:
        covariance, first, second = _moments(sums, *_means(sums))
        wide, high = self._widths
        if self.sums.kind == "covariance":
            return min(0.25, max(-0.25, covariance)) * wide * high
        if min(first, second) <= 0:
            return 0.0
        return min(1.0, max(-1.0, covariance / math.sqrt(first * second)))

    def interval(self, value: Any, confidence: float) -> tuple[float, float]:
        """See `PairMoments`; where there may be no record, all that the bounds allow."""
        vertices = list(self.region.vertices(confidence))
        area = self._widths[0] * self._widths[1]
        if min(sum(vertex[:4]) for vertex in vertices) <= 0:
            return (-area / 4, area / 4) if self.sums.kind == "covariance" else (-1.0, 1.0)
        middle = _means(self.region.centre)
        means = [_means(vertex) for vertex in vertices]
        off = [max(abs(mean[place] - middle[place]) for mean in means) for place in (0, 1)]
        about = [_about(vertex, *middle) for vertex in vertices]
        # What the rounding of values to their lattices can change, as shares of the widths.
        rounding = 1 / self.sums.first.diameter + 1 / self.sums.second.diameter
        low = min(each[0] for each in about) - off[0] * off[1] - rounding
        high = max(each[0] for each in about) + off[0] * off[1] + rounding
        if self.sums.kind == "covariance":
            return max(-0.25, low) * area, min(0.25, high) * area
        least = [min(each[place + 1] for each in about) - off[place] ** 2 for place in (0, 1)]
        most = [max(each[place + 1] for each in about) + rounding for place in (0, 1)]
        smaller = _root((least[0] - rounding, least[1] - rounding))
        larger = _root(most)
        return (
            max(-1.0, _ratio(low, larger if low > 0 else smaller)),
            min(1.0, _ratio(high, smaller if high > 0 else larger)),
        )


def _means(sums: Sequence[float]) -> tuple[float, float]:
    """The means of t and u; of noisy sums, between 0 and 1."""
    count = max(1.0, sum(sums[:4]))
    return (
        min(1.0, max(0.0, (sums[2] + sums[3]) / count)),
        min(1.0, max(0.0, (sums[1] + sums[3]) / count)),
    )


def _about(sums: Sequence[float], t: float, u: float) -> tuple[float, float, float]:
    """The means of (t - t₀)(u - u₀), (t - t₀)² and (u - u₀)²; without squares, zeros."""
    count = max(1e-300, sum(sums[:4]))
    first, second = sums[2] + sums[3], sums[1] + sums[3]
    product = sums[3] - u * first - t * second + t * u * count
    if len(sums) == 4:
        return product / count, 0.0, 0.0
    ones = first - sums[4] / 2 - 2 * t * first + t * t * count
    twos = second - sums[5] / 2 - 2 * u * second + u * u * count
    return product / count, ones / count, twos / count


def _moments(sums: Sequence[float], t: float, u: float) -> tuple[float, float, float]:
    """Covariance and variances, about the means."""
    found = _about(sums, t, u)
    return found if sum(sums[:4]) >= 1 else (0.0, 0.0, 0.0)


def _root(variances: Sequence[float]) -> float:
    return math.sqrt(max(0.0, variances[0]) * max(0.0, variances[1]))


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else math.copysign(math.inf, one)
