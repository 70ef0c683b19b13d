"""Sums from which the count, mean and variance of bounded values follow, with little noise.

A value x between bounds is a fraction t = (x - low)/(high - low) of the way. It contributes its
Bernstein polynomials of one degree d to d + 1 sums:

| degree | contributions of a record | what follows |
| --- | --- | --- |
| 0 | 1 | count |
| 1 | 1 - t, t | count, mean |
| 2 | (1 - t)², 2t(1 - t), t² | count, mean, variance |

They are never negative and add up to 1. So a record changes the sums by exactly 1 in the sum of
absolute differences, whatever its value, and noise for a sensitivity of 1 on each of them pays for
all moments at once. A count with half of ε and a sum with the other half, about the midpoint, would
cost the mean 1.41 times as much noise.

Everything is counted in whole steps: with t = a/D for whole numbers a and D, the contributions
times D**d are whole numbers that add up to D**d.

The bounds are public, or private: an interval that few records lie outside of is released first
(see `exponential.interval`), and how many values lay outside of it.

**Few records.** Their mean and sum follow from noisy sums in all half-octaves at once.

A few records cannot pay for an interval around them first and for their sum next. So the sums are
released in all half-octaves from 2**-40 to 2**64, of both signs: a record at a fraction t of the
way through its own adds 1 - t and t to two of them, and nothing to the others. That is a change of
exactly 1 in the sum of absolute differences, as above, so noise for a sensitivity of 1
pays for all of them, and where the records are is seen in what was released already.

**Choice.** Let s be the scale of the noise. Of all ranges of half-octaves of one sign, the one is
kept whose counts, less 2.5 s for each half-octave, add up to most; a range of large values loses
s/2 for each octave beyond the usual size, and one of small values s/10. On the other side of zero a
range that ends near the same size is kept as well if it adds up to 4 s, and zero if it holds 6 s.
Zero is then kept alone unless the best range adds up to 5 s: noise may be the best of them at any
size, and beside many zeros the answer 0 is wrong by less. All of that is computed from what was
released. Values elsewhere are left out.

There is no interval: the half-octaves that are kept are those whose noise was favourable.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import attrs
import dp_accounting as dp
import numpy as np

from prudent._rounding import outward, percent
from prudent.release.columns.column import Column
from prudent.release.columns.scales import Scale
from prudent.release.exponential.interval import PrivateInterval, least_place, usual_octave
from prudent.release.lattice import (
    LAST_HALF,
    FloatArray,
    Lattice,
    check_bounds,
    end_of_half_octave,
    half_octaves,
)
from prudent.release.noise import AdditiveMechanism, Distribution, Noise, NoiseRegion
from prudent.release.outcome import NoiseSpread

Moment = Literal["count", "mean", "variance", "deviation"]

_BITS = 31  # a width is 2**31 to 2**32 steps, and so is the sensitivity: rounding is negligible


def fine_lattice(bounds: tuple[float, float]) -> Lattice:
    """Return the lattice between bounds that are about 2**31 steps apart.

    Far from zero it is coarser, as the doubles themselves are.
    """
    low, high = check_bounds(bounds)
    far = math.ldexp(max(abs(low), abs(high)), -51)
    return Lattice.for_unit(max(math.ldexp(high - low, -_BITS), far), (low, high))


def _ends(lattice: Lattice) -> tuple[float, float]:
    return lattice.value(lattice.low), lattice.value(lattice.high)


@attrs.frozen(slots=False)
class MomentSums:
    """The sums of one degree over a column of values clipped to bounds.

    Guarantee:
        `sensitivity` bounds the sum of absolute differences of what `read` returns, when
        `records` records are added or removed. Before rounding, a record adds whole numbers
        c₀, …, c_d >= 0 of sum D**d. Rounding a sum down to a multiple of 2**s moves it by at most
        ceil(c/2**s) <= (c + 2**s - 1)/2**s multiples when c is added.
    """

    degree: int  # d, from 0 to 2
    lattice: Lattice  # the lattice that values are rounded to, between the bounds
    records: int = 1  # the largest number of records of one privacy unit

    @cached_property
    def _whole(self) -> int:
        """D**d: what the contributions of one record add up to."""
        return int(self.lattice.diameter**self.degree)

    @cached_property
    def _shift(self) -> int:
        """s: sums are rounded down to multiples of 2**s, so that noise fits 64 bits."""
        return max(0, (self._whole * self.records).bit_length() - _BITS - 1)

    @property
    def sensitivity(self) -> int:
        """How far one unit moves the sums, in multiples of 2**s."""
        spare = (self.degree + 1) * ((1 << self._shift) - 1)
        return (self.records * self._whole + spare) >> self._shift

    @property
    def step(self) -> float:
        """What one multiple of 2**s is worth, in records."""
        return math.ldexp(1.0, self._shift) / self._whole

    def read(self, column: Column, ends: tuple[float, float] | None = None) -> list[int]:
        """The sums of the column, exact but for the rounding, in multiples of 2**s."""
        ends = _ends(self.lattice) if ends is None else ends
        low, width = self.lattice.low, self.lattice.diameter
        if self.degree == 2:  # first: the sum and the count come with it
            squares = column.clipped_squares(*ends, self.lattice, origin=low)
        if self.degree >= 1:
            total = column.clipped_sum(*ends, self.lattice)
        count = column.count()
        exact = [count]
        if self.degree >= 1:
            total -= count * low
            exact = [count * width - total, total]
        if self.degree == 2:
            exact = [
                count * width**2 - 2 * width * total + squares,
                2 * (width * total - squares),
                squares,
            ]
        return [each >> self._shift for each in exact]

    def moments(self, noisy: Sequence[int], scale: float, distribution: Distribution) -> "Moments":
        """Return what noisy sums tell of the column, given the scale of their noise in steps."""
        step = self.step
        # One step for the rounding of the sums, and one for that of the noise.
        region = NoiseRegion(
            tuple(each * step for each in noisy), distribution, scale * step, 2 * step
        )
        return Moments(region, _ends(self.lattice), self.lattice.spacing)


@attrs.frozen
class Moments:
    """Count, mean and variance of clipped values, from noisy sums.

    Every method with a confidence returns an interval that holds the moment with at least this
    probability, over the noise alone. The sums are in a polytope with that probability. Where all
    of it has a positive count, a ratio of two linear functions is largest and smallest at a corner.
    Elsewhere there may be no record at all, and the interval is all that values between the bounds
    allow: were it left out, those that are left would hold less often.
    """

    region: NoiseRegion  # where the sums are, in records
    ends: tuple[float, float]  # the bounds
    spacing: float  # the spacing of the lattice that values were rounded to

    @property
    def width(self) -> float:
        """The distance between the bounds."""
        return self.ends[1] - self.ends[0]

    @property
    def count(self) -> float:
        """The number of records, at least 0."""
        return max(0.0, sum(self.region.centre))

    def count_interval(self, confidence: float) -> tuple[float, float]:
        """See `Moments`."""
        counts = [sum(vertex) for vertex in self.region.vertices(confidence)]
        return max(0.0, min(counts)), max(0.0, *counts)

    @property
    def _fraction(self) -> float:
        """The mean as a fraction of the way between the bounds."""
        centre = self.region.centre
        # About the midpoint, so that a count near zero gives the midpoint.
        off = (_first(centre) - sum(centre) / 2) / max(1.0, sum(centre))
        return min(1.0, max(0.0, 0.5 + off))

    @property
    def mean(self) -> float:
        """The mean, between the bounds."""
        return self._value(self._fraction)

    def mean_interval(self, confidence: float) -> tuple[float, float]:
        """See `Moments`; also half a step for the rounding of the values."""
        vertices = list(self.region.vertices(confidence))
        fractions = [0.0, 1.0]
        if min(map(sum, vertices)) > 0:
            fractions = [min(1.0, max(0.0, _first(vertex) / sum(vertex))) for vertex in vertices]
        half = self.spacing / 2
        return self._value(min(fractions)) - half, self._value(max(fractions)) + half

    def _value(self, fraction: float) -> float:
        low, high = self.ends
        if fraction < 0.5:
            return low + fraction * (high - low)
        return high - (1 - fraction) * (high - low)

    @property
    def variance(self) -> float:
        """The variance (a sum divided by the count, not by one less), at least 0."""
        centre = self.region.centre
        count = max(1.0, sum(centre))
        about = _about(self._fraction, centre) / count
        return min(0.25, max(0.0, about)) * self.width**2

    def variance_interval(self, confidence: float) -> tuple[float, float]:
        """See `Moments`; also what the rounding of the values can change.

        The variance is the least, over t, of the mean square distance from t. For a fixed t that is
        a ratio of linear functions: the one at the estimated mean gives the upper end, and the
        least variance of a corner the lower end.
        """
        vertices = list(self.region.vertices(confidence))
        largest = self.width**2 / 4
        if min(map(sum, vertices)) <= 0:
            return 0.0, largest
        upper = max(_about(self._fraction, vertex) / sum(vertex) for vertex in vertices)
        lower = min(
            _about(_first(vertex) / sum(vertex), vertex) / sum(vertex) for vertex in vertices
        )
        rounding = self.width * self.spacing
        return (
            max(0.0, lower * self.width**2 - rounding),
            min(largest, max(0.0, upper) * self.width**2 + rounding),
        )

    @property
    def deviation(self) -> float:
        """The standard deviation: the square root of the variance."""
        return math.sqrt(self.variance)

    def deviation_interval(self, confidence: float) -> tuple[float, float]:
        """See `Moments`."""
        low, high = self.variance_interval(confidence)
        return math.sqrt(low), math.sqrt(high)

    def noise(self, which: Moment) -> float:
        """The standard deviation of the noise of a moment, to first order in the noise."""
        if which == "count":
            return self.region.deviation * math.sqrt(len(self.region.centre))
        if which == "deviation":
            noise = self.noise("variance")
            return noise / max(2 * self.deviation, math.sqrt(noise))
        t, width = self._fraction, self.width
        if which == "mean":
            last = len(self.region.centre) - 1
            slopes = [place / last - t for place in range(last + 1)]
        else:
            share, width = self.variance / width**2, width**2
            slopes = [t**2 - share, -t * (1 - t) - share, (1 - t) ** 2 - share]
        return self.region.deviation * math.hypot(*slopes) / max(1.0, self.count) * width


@attrs.frozen
class MomentSpread:
    """A moment, with its noise, in the type of its column; see `outcome.Spread`."""

    moments: Moments  # all moments
    which: Moment  # the name of this one
    scale: Scale  # the scale of the column

    @property
    def value(self) -> Any:
        """The moment as a value."""
        number: float = getattr(self.moments, self.which)
        match self.which:
            case "mean":
                return self.scale.value(number)
            case "deviation":
                return self.scale.difference(number)
            case "count":
                return round(number)
            case "variance":
                return number

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise of the moment."""
        return self.moments.noise(self.which)

    def interval(self, value: Any, confidence: float) -> tuple[Any, Any]:
        """See `outcome.Spread`; it follows from the moments, whatever the value."""
        ends: tuple[float, float] = getattr(self.moments, f"{self.which}_interval")(confidence)
        if self.which == "variance":
            return ends
        if self.which == "mean" and self.scale.own_bounds is not None:
            low, high = self.scale.own_bounds  # half a step of rounding reaches beyond them
            ends = max(low, ends[0]), min(high, ends[1])
        if self.which == "count":  # a whole number between two ends is between those nearest
            low, high = math.ceil(ends[0]), math.floor(ends[1])
            return min(low, high), max(low, high)  # also where none is between them
        return self.scale.ends(*ends, difference=self.which == "deviation")


def _first(sums: Sequence[float]) -> float:
    """The sum of the fractions t: Σ t = Σ_j (j/d) b_j for Bernstein sums b_j of degree d."""
    return sum(place * each for place, each in enumerate(sums)) / (len(sums) - 1)


def _about(t: float, sums: Sequence[float]) -> float:
    """The sum of squared distances of the fractions from t, from sums of degree 2."""
    none, one, both = sums
    return none * t**2 - one * t * (1 - t) + both * (1 - t) ** 2


@attrs.frozen
class ClippedTotal:
    """The sum of a column of values clipped to bounds, in steps of a lattice.

    Guarantee:
        `sensitivity` bounds the change of what `read` returns when `records` records are added or
        removed: each contributes a whole number of steps between the ends of the lattice.
    """

    lattice: Lattice  # the lattice, which ends at the bounds
    records: int = 1  # the largest number of records of one privacy unit

    @classmethod
    def between(cls, bounds: tuple[float, float], records: int = 1) -> "ClippedTotal":
        """Return the total of values clipped to these bounds, on a fine lattice."""
        low, high = check_bounds(bounds)
        farther = max(abs(low), abs(high)) * records
        return cls(Lattice.for_unit(math.ldexp(farther, -_BITS), (low, high)), records)

    @property
    def sensitivity(self) -> int:
        """How far one unit moves the sum, in steps: by the bound that is farther from zero."""
        return self.records * max(abs(self.lattice.low), abs(self.lattice.high))

    def read(self, column: Column, ends: tuple[float, float] | None = None) -> int:
        """The exact sum of the values clipped to the bounds, in steps; see `MomentSums.read`."""
        return column.clipped_sum(*(_ends(self.lattice) if ends is None else ends), self.lattice)

    def spread(self, mechanism: AdditiveMechanism) -> NoiseSpread:
        """The spread of the noisy sum."""
        spacing = self.lattice.spacing
        return NoiseSpread(
            mechanism.distribution, mechanism.scale(self.sensitivity) * spacing, spacing
        )


CONFIDENCE = 0.95
"""Least probability, over the noise, with which a share is in its interval."""

_MOST = 0.5  # of the records, that may lie outside of bounds about which something is said


@attrs.frozen
class ClippedShare:
    """Where the fraction of records outside public or released bounds lies, from two noisy counts.

    A record is either inside the bounds or outside. So the two counts together change by 1 with a
    record, and noise for a sensitivity of 1 on each pays for both. The noise is that of no other
    number, so an interval about the clipped values that is shown by what this one says holds as
    often as one that always is.
    """

    # Ends of an interval that holds the fraction with probability `CONFIDENCE`, at least; None if
    # half of the records or more may be outside: what is clipped then says little about them.
    interval: tuple[float, float] | None

    @classmethod
    def release(
        cls, column: Column, ends: tuple[float, float], mechanism: AdditiveMechanism, noise: Noise
    ) -> "ClippedShare":
        """Release the share; the mechanism must have Laplace noise."""
        low, high = ends
        below, within = column.counts_below(np.array([low, math.nextafter(high, math.inf)]))
        inside = int(within - below)
        counts = [inside, column.count() - inside]
        records = column.contribution.records
        corners = _corners(mechanism.noisy(counts, records, noise), mechanism, records)
        if min(map(sum, corners)) <= 0:
            return cls(None)
        shares = [min(1.0, max(0.0, outside / (inside + outside))) for inside, outside in corners]
        return cls((min(shares), max(shares)) if max(shares) < _MOST else None)

    @staticmethod
    def enough_records(mechanism: AdditiveMechanism, records: int) -> int:
        """A number of records with which the share is released, as good as surely.

        The noise and what is allowed for it may each take away as much as `CONFIDENCE` says.
        """
        return math.ceil(2 * max(map(sum, _corners((0.0, 0.0), mechanism, records))))

    def __str__(self) -> str:
        if self.interval is None:
            return "The bounds are private, and half of the values or more may lie outside."
        low, high = outward(*(100 * share for share in self.interval))
        return (
            f"The bounds are private; {low}% to {high}% of the values lay outside and were moved "
            f"to the nearer one (confidence {percent(CONFIDENCE)})."
        )


def _corners(
    noisy: Sequence[float], mechanism: AdditiveMechanism, records: int
) -> list[tuple[float, ...]]:
    """The corners of where two counts are, from noisy ones."""
    scale = mechanism.scale(records)
    region = NoiseRegion(tuple(map(float, noisy)), mechanism.distribution, scale, rounding=1.0)
    return list(region.vertices(CONFIDENCE))


@attrs.frozen(kw_only=True)
class Clipping:
    """How values are clipped before they are added up."""

    # Public bounds, as numbers in the unit of the column's scale; None if there are none.
    given: tuple[float, float] | None = None
    interval: PrivateInterval | None = None  # releases private bounds; None if the bounds are given

    @classmethod
    def to(cls, bounds: tuple[Any, Any], scale: Scale) -> "Clipping":
        """Clip to public bounds, given as values of the column's type."""
        return cls(given=check_bounds(scale.pair(bounds)))

    @property
    def events(self) -> list[dp.DpEvent]:
        """The privacy events of releasing the bounds."""
        return [] if self.interval is None else self.interval.events

    def ends(self, column: Column, noise: Noise) -> tuple[float, float]:
        """Return the bounds; if they are private, read the records and release them."""
        if self.interval is not None:
            return self.interval.release(column, noise)
        assert self.given is not None
        return self.given


_OCTAVE_BITS = 31  # of the steps of a half-octave; fewer for several records of a unit
_EACH, _SECOND, _BESIDE_ZERO, _ZERO = 2.5, 4.0, 5.0, 6.0  # see above, in units of s
_BEYOND, _BELOW = 0.5, 0.1  # per octave from the usual size, in units of s
_NEAR = 6  # half-octaves between the ends of a range and of one of the other sign

_ENDS = np.array([end_of_half_octave(place) for place in range(LAST_HALF + 1)])
_HIGH = np.concatenate([-_ENDS[:0:-1], _ENDS])  # outer ends, by place from -LAST_HALF on
_INNER = np.concatenate([-_ENDS[-2::-1], [0.0], _ENDS[:-1]])
_EDGES = np.stack([np.minimum(_HIGH, _INNER), np.maximum(_HIGH, _INNER)])


@attrs.frozen
class OfFew:
    """The mean or sum of values in some half-octaves, which may be published; see `outcome.Spread`.

    Attributes:
        value: The mean or the sum.
        deviation: The standard deviation of its noise, to first order in the noise.
        ranges: The ends between which the values are that were not left out.
        sums: The noisy sums of 1 - t and of t of each half-octave, in records.
    """

    value: float
    deviation: float
    ranges: tuple[tuple[float, float], ...]
    sums: FloatArray = attrs.field(eq=False, repr=False)

    def interval(self, value: Any, confidence: float) -> None:
        """There is none."""


@attrs.frozen(slots=False)
class OctaveSums:
    """Sums in all half-octaves.

    Guarantee:
        `sensitivity` bounds the sum of absolute differences of what `read` returns, when `records`
        records are added or removed: each adds whole numbers of sum `steps`, of which the place and
        the division depend on that record alone.
    """

    scale: Scale  # the scale of the column, which is public
    records: int = 1  # the largest number of records of one privacy unit

    @cached_property
    def steps(self) -> int:
        """What the contributions of one record add up to."""
        return 1 << (_OCTAVE_BITS - (self.records - 1).bit_length())

    @property
    def sensitivity(self) -> int:
        """How far one unit moves the sums."""
        return self.records * self.steps

    def read(self, column: Column) -> list[int]:
        """The sums of 1 - t, then those of t, of each half-octave, in steps."""
        values = column.order_statistics(1, column.count())
        places = half_octaves(values) + LAST_HALF
        low, high = _EDGES[:, places]
        through = np.clip((values - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
        upper = np.zeros(_EDGES.shape[1], np.int64)
        np.add.at(upper, places, np.rint(through * self.steps).astype(np.int64))
        counts = np.bincount(places, minlength=len(upper))
        return [*(counts * self.steps - upper).tolist(), *upper.tolist()]

    def release(
        self,
        which: Literal["mean", "sum"],
        column: Column,
        mechanism: AdditiveMechanism,
        noise: Noise,
    ) -> OfFew:
        """Release the sums; what follows from them is the "mean" or the "sum"."""
        noisy = mechanism.noisy(self.read(column), self.sensitivity, noise)
        sums = np.array(noisy, np.float64).reshape(2, -1) / self.steps
        scale = mechanism.scale(self.sensitivity) / self.steps
        kept = self._kept(sums.sum(axis=0) / scale)
        places = np.concatenate([np.arange(first, last + 1) for first, last in kept])
        edges, held = _EDGES[:, places + LAST_HALF], sums[:, places + LAST_HALF]
        value, slopes = float((edges * held).sum()), edges
        if which == "mean":
            count = max(1.0, float(held.sum()))
            value = min(max(value / count, edges.min()), edges.max())
            slopes = (edges - value) / count
        deviation = mechanism.distribution.deviation(scale) * math.hypot(*slopes.flat)
        ends = ((_EDGES[0, first + LAST_HALF], _EDGES[1, last + LAST_HALF]) for first, last in kept)
        ranges = tuple((float(low), float(high)) for low, high in ends)
        return OfFew(value, deviation, ranges, sums)

    def _kept(self, counts: FloatArray) -> list[tuple[int, int]]:
        """The ranges of places that are kept, ascending, from counts in units of s."""
        sides = {1: counts[LAST_HALF + 1 :], -1: counts[LAST_HALF - 1 :: -1]}
        best = {sign: self._best(side) for sign, side in sides.items()}
        sign = max(best, key=lambda each: best[each][0])
        score, first, last = best[sign]
        other = self._best(sides[-sign], last)
        kept = [(0, 0)] if counts[LAST_HALF] > _ZERO else []
        if not kept or score > _BESIDE_ZERO:
            kept.append(_ordered(sign, first, last))
            if other[0] > _SECOND:
                kept.append(_ordered(-sign, *other[1:]))
        return sorted(kept)

    def _best(self, counts: FloatArray, near: int | None = None) -> tuple[float, int, int]:
        """What the best range of one sign adds up to, and its first and last place, outwards."""
        least = least_place(self.scale)
        upto = np.concatenate([[0.0], np.cumsum(counts[least - 1 :] - _EACH)])
        octaves = np.log2(_ENDS[least:]) - usual_octave(self.scale)
        scores = upto[1:] - np.minimum.accumulate(upto)[:-1]
        if near is None:
            scores -= np.where(octaves > 0, _BEYOND, _BELOW) * np.abs(octaves)
        else:
            scores[np.abs(np.arange(least, LAST_HALF + 1) - near) > _NEAR] = -np.inf
        last = int(np.argmax(scores))
        return float(scores[last]), int(np.argmin(upto[: last + 1])) + least, last + least


def _ordered(sign: int, first: int, last: int) -> tuple[int, int]:
    """Places of one sign, given outwards, in ascending order."""
    return (first, last) if sign > 0 else (-last, -first)
