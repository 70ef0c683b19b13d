"""Several quantiles at once, by halving: the middle one first, then each half by itself.

The quantiles that are known divide the records into disjoint parts, and the middle one of the
quantiles that remain in a part is a quantile of that part alone (Kaplan et al., 2022).
m quantiles take ceil(log2(m + 1)) levels, and rank errors grow with the square of that logarithm.

**Privacy.** A record is in one part of a level, and which one follows from the record and from what
was released. So of all the choices of a level only one depends on it, each an `ExponentialQuantile`
of range at most ε of the level: the level costs that ε, and levels compose.

**Ties.** Many records may share a point, and a part could not be halved there. So the records
of a point are dealt out to 64 places of it, in turn: one record more at the point is one record
more at one of its places, and nothing else moves.

**Accuracy.** The target of a choice lies between two quantiles that are known, or ends, so its rank
is off by at most as much as the worse of them. A choice adds its own rank error, and what it cuts
off at a place that it shares with other records. So errors add up along one choice of each level.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

import attrs
import dp_accounting as dp
import numpy as np

from prudent.accounting._numeric import float_share
from prudent.release.exponential.interval import Points
from prudent.release.exponential.measure import UniformMeasure
from prudent.release.exponential.quantile import CONFIDENCE, ExponentialQuantile, Selected
from prudent.release.lattice import Lattice
from prudent.release.noise import Noise
from prudent.release.sums.clipping import for_units
from prudent.release.sums.tree import CountedQuantiles, value_at

Choose: TypeAlias = Callable[[ExponentialQuantile, Points], int]
"""Chooses a place among those of a mechanism, by the records of a part."""

_FINER = 64  # places of a point
_COARSER = 8  # points of a leaf of the tree


@attrs.frozen(slots=False)
class HalvedQuantiles:
    """Quantiles at several probabilities, ascending, among the points of an interval.

    Guarantee:
        A release is ε-DP with δ = 0 for adding or removing one unit, where ε is `epsilon` and that
        of `counted` together, and has the privacy of `event`. Answers ascend.
    """

    # The probabilities, the records of a unit, and a tree that gives the intervals; it is not
    # released if its confidence is 0.
    counted: CountedQuantiles
    epsilon: float  # ε of the values

    @property
    def points(self) -> int:
        """Into which an interval is divided, so many of them for each leaf of the tree."""
        return _COARSER * self.counted.points

    def __attrs_post_init__(self) -> None:
        _ = self.rank_error()  # checks ε

    @property
    def confidence(self) -> float:
        """Confidence of each interval; 0 returns none."""
        return self.counted.confidence

    @cached_property
    def levels(self) -> int:
        """How often the quantiles are halved."""
        return len(self.counted.ps).bit_length()

    @cached_property
    def level_epsilon(self) -> float:
        """ε of one record in one level, rounded down."""
        return float_share(self.epsilon, self.levels * self.counted.records)

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of one release."""
        level = for_units(self._value(Fraction(1, 2)).event, self.counted.records)
        known = [self.counted.event] if self.confidence else []
        return dp.ComposedDpEvent([*itertools.repeat(level, self.levels), *known])

    def rank_error(self) -> int:
        """What the rank error of a quantile exceeds with a probability of 5 % at most.

        It is for records at places of their own; see the module for others.
        """
        worst = max(max(p, 1 - p) for p in self.counted.ps)
        return self.levels * self._value(worst).rank_error((1 - CONFIDENCE) / self.levels)

    def _value(self, p: Fraction, lattice: Lattice | None = None) -> ExponentialQuantile:
        places = lattice or Lattice(0, 0, 2 * self.points * _FINER)
        return ExponentialQuantile(p, self.level_epsilon, UniformMeasure(places), interval_share=0)

    def release(self, points: Points, noise: Noise, between: bool) -> tuple[Selected, ...]:
        """Release the quantiles of the records at points; see `CountedQuantiles.release`."""

        def choose(chosen: ExponentialQuantile, records: Points) -> int:
            return chosen.release(records, noise).index

        places = self.places(points, choose)
        known: Sequence[Selected | None] = [None] * len(places)
        if self.confidence:
            known = self.counted.release(_coarser(points), noise, between)
        return tuple(
            _selected(points.lattice, *each, between) for each in zip(places, known, strict=True)
        )

    def places(self, points: Points, choose: Choose) -> list[int]:
        """The places of the quantiles, ascending; `choose` is called for the middle ones first."""
        finer = _finer(points)
        found = self._halved(finer, 0, len(self.counted.ps), choose)
        return sorted(min(place, finer.lattice.high) for place in found)

    def _halved(self, records: Points, first: int, last: int, choose: Choose) -> Iterator[int]:
        """The quantiles first..last-1; only records between their neighbours remain."""
        if first == last:
            return
        ps, middle = (Fraction(0), *self.counted.ps, Fraction(1)), (first + last) // 2
        p = (ps[middle + 1] - ps[first]) / (ps[last + 1] - ps[first])
        yield (chosen := choose(self._value(p, records.lattice), records))
        lower, upper = _cut(records, chosen)
        yield from self._halved(lower, first, middle, choose)
        yield from self._halved(upper, middle + 1, last, choose)


def _selected(lattice: Lattice, chosen: int, known: Selected | None, between: bool) -> Selected:
    """The point of a chosen place, with the interval that a tree of coarser points gives.

    Records are dealt out evenly, so a place is about as far through its point as its records are.
    """
    index, place = divmod(chosen, _FINER)
    through = (place + 0.5) / _FINER - 0.5 if between else 0.0
    if known is None or known.interval_indices is None:
        return Selected(value_at(lattice, index + through), index)
    first, last = known.interval_indices
    low = min(max(first * _COARSER, lattice.low), index)
    high = max(min(last * _COARSER + _COARSER - 1, lattice.high), index)
    ends = lattice.value(low), lattice.value(high)
    return Selected(value_at(lattice, index + through), index, ends, (low, high), known.whole)


def _cut(records: Points, place: int) -> tuple[Points, Points]:
    """The records before a place, and those from it on, each between its own ends."""
    cut = int(np.searchsorted(records.steps, place))
    low, high = records.lattice.low, records.lattice.high
    return (
        Points(_between(low, place), records.steps[:cut], records.counts[:cut]),
        Points(_between(place, high), records.steps[cut:], records.counts[cut:]),
    )


def _between(low: int, high: int) -> Lattice:
    """The places between two; a lattice has two of them at least."""
    return Lattice(0, low, high) if low < high else Lattice(0, low, low + 1)


def _finer(points: Points) -> Points:
    """The records at places of points, dealt out in turn."""
    counts = ((points.counts[:, None] + np.arange(_FINER)[::-1]) // _FINER).ravel()
    places = (points.steps[:, None] * _FINER + np.arange(_FINER)).ravel()
    ends = points.lattice.low * _FINER, (points.lattice.high + 1) * _FINER - 1
    return Points(Lattice(0, *ends), places[counts > 0], counts[counts > 0])


def _coarser(points: Points) -> Points:
    """The records at groups of neighbouring points."""
    low, high = points.lattice.low // _COARSER, points.lattice.high // _COARSER
    steps, groups = np.unique(points.steps // _COARSER, return_inverse=True)
    counts = np.zeros(len(steps), np.int64)
    np.add.at(counts, groups, points.counts)
    return Points(_between(low, high), steps, counts)
