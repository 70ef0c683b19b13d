"""The mean and the sum of few records, from noisy sums in all half-octaves at once.

A few records cannot pay for an interval around them first and for their sum next. So the sums are
released in all half-octaves from 2**-40 to 2**64, of both signs: a record at a fraction t of the
way through its own adds 1 - t and t to two of them, and nothing to the others. That is a change of
exactly 1 in the sum of absolute differences, as in `sums.moments`, so noise for a sensitivity of 1
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
from functools import cached_property
from typing import Any, Literal

import attrs
import numpy as np

from prudent.release.columns.column import Column
from prudent.release.columns.scales import Scale
from prudent.release.exponential.interval import least_place, usual_octave
from prudent.release.lattice import LAST_HALF, FloatArray, end_of_half_octave, half_octaves
from prudent.release.noise import Noise
from prudent.release.sums.additive import AdditiveMechanism

_BITS = 31  # of the steps into which a half-octave is divided; fewer for several records of a unit
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
        return 1 << (_BITS - (self.records - 1).bit_length())

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
