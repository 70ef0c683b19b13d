"""Many quantiles at once, by halving: the middle one first, then each half by itself.

The quantiles that are known divide the records into disjoint parts, and the middle one of the
quantiles that remain in a part is a quantile of that part alone (Kaplan et al., 2022).
m quantiles take ceil(log2(m + 1)) levels, and rank errors grow with the square of that logarithm,
where one after the other they would grow with m.

**Privacy.** A record is in one part of a level, and which one follows from the record and from what
was released. So of all the choices of a level only one depends on it, each an `ExponentialQuantile`
of range at most ε of the level: the level costs that ε, and levels compose.

**Ties.** Many records may share a point, and a part could not be halved there. So the records
of a point are dealt out to 64 places of it, in turn: one record more at the point is one record
more at one of its places, and nothing else moves.
"""

import itertools
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property

import attrs
import dp_accounting as dp
import numpy as np

from prudent.release.exponential.interval import Points
from prudent.release.exponential.measure import UniformMeasure
from prudent.release.exponential.quantile import (
    CONFIDENCE,
    ExponentialQuantile,
    ExponentialQuantiles,
    NearTarget,
    Selected,
)
from prudent.release.lattice import Lattice
from prudent.release.noise import Noise

_FINER = 64  # places of a point


@attrs.frozen(slots=False)
class HalvedQuantiles:
    """Quantiles at several probabilities, ascending, among the points of an interval.

    Guarantee:
        A release is ε-DP with δ = 0 for adding or removing one record, and has the privacy of
        `event`.

    Attributes:
        ps: The probabilities, ascending.
        epsilon: ε of all of them together, for one record.
        interval_share: The fraction of ε spent on the intervals.
        confidence: Of each interval.
    """

    ps: tuple[Fraction, ...]
    epsilon: float
    interval_share: float
    confidence: float = CONFIDENCE

    @cached_property
    def levels(self) -> int:
        """How often the quantiles are halved."""
        return len(self.ps).bit_length()

    @cached_property
    def _one_by_one(self) -> ExponentialQuantiles:
        """The mechanisms of the intervals, whose values are not used."""
        return ExponentialQuantiles(
            self.ps, self.epsilon, interval_share=self.interval_share, confidence=self.confidence
        )

    @cached_property
    def level_epsilon(self) -> float:
        """ε of the values of one level, rounded down."""
        values = sum(Fraction(part.value_epsilon) for part in self._one_by_one.parts)
        found = float(values / self.levels)
        while Fraction(found) * self.levels > values:
            found = float(np.nextafter(found, 0.0))
        return found

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of one release."""
        level = self._value("1/2", UniformMeasure(Lattice(0, 0, 1))).event
        intervals = [part.event.events[1] for part in self._one_by_one.parts]
        return dp.ComposedDpEvent([*itertools.repeat(level, self.levels), *intervals])

    @property
    def parts(self) -> tuple[ExponentialQuantile, ...]:
        """A mechanism for each quantile whose rank error is about that of the halving."""
        return tuple(self._value(p, UniformMeasure(Lattice(0, 0, 2**20))) for p in self.ps)

    def _value(self, p: Fraction | str, measure: UniformMeasure) -> ExponentialQuantile:
        return ExponentialQuantile(p, self.level_epsilon, measure, interval_share=0.0)

    def release(self, points: Points, noise: Noise) -> tuple[Selected, ...]:
        """Release the quantiles of the records at points."""
        finer = _finer(points)
        found = dict(self._halved(finer, 0, len(self.ps), noise))
        indices = [found[each] // _FINER for each in range(len(self.ps))]
        answers = []
        for part, index in zip(self._one_by_one.parts, indices, strict=True):
            near = attrs.evolve(part, measure=points.measure)
            window = NearTarget.read(points, points.measure, part.p, near.reach)
            answers.append(near.with_interval(window, index, noise))
        return tuple(answers)

    def _halved(
        self, records: Points, first: int, last: int, noise: Noise
    ) -> Iterator[tuple[int, int]]:
        """The quantiles first..last-1, each with its number; only records between them are left."""
        if first == last:
            return
        middle = (first + last) // 2
        below = self.ps[first - 1] if first else Fraction(0)
        above = self.ps[last] if last < len(self.ps) else Fraction(1)
        p = (self.ps[middle] - below) / (above - below)
        chosen = self._value(p, records.measure).release(records, noise).index
        yield middle, chosen
        lower, upper = _cut(records, chosen)
        yield from self._halved(lower, first, middle, noise)
        yield from self._halved(upper, middle + 1, last, noise)


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
