"""Several quantiles at once, among the points of an interval: by halving, or from a tree of counts.

# By halving

The middle quantile is chosen first, then those of each half by themselves.
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

# From a tree

The points of an interval are the leaves of a tree in which every node has 12 or 16 children, in
three levels below the root. How many records lie in each node is released with noise; any number of
quantiles, and an interval of each, follow from these counts and cost no more.

**Privacy.** A record lies in one node of each level. So it changes the counts by one in each of
three places, and noise for a sensitivity of 3 pays for all of them.

**Shape.** With L levels of B children the noise of a count has a variance in proportion to L², and
about L B of them add up to a rank: L³B is 432 for 16 children in three levels, 324 for 12, and 256
for 32 in two, whose leaves are too coarse in an interval that is far too wide. Values within a leaf
are found by a cubic polynomial, which makes up for leaves that hold many records.

**Least squares.** The counts of a node and of its children disagree, and the estimates that agree
and are nearest to them have the least variance (Hay et al., 2010). Bottom-up, z(v) is the average
of the count of v and the sum of z of its children, with weights w and 1 - w of their precision;
top-down, what a node has more than its children is divided evenly among them.

**Intervals.** Let e(v) be the error of the estimate of C(v) - p n, where C(v) is the number of
records up to point v. Unrolling both passes, the path from the root to v, with v at a fraction f of
the leaves of a node, gives the noise of z weight f - g at a node of the path, and 1 - g and -g at
its siblings before and after. There g = p below the root, and w f + (1 - w) g at the next level,
with the w and f of the node above. So all weights are in [-1, 1], and e is a sum of Laplace noises
of scale s with weights a, for which V = Σ a² is known. By convexity the moment generating function
of e at λ/s is at most (1 - λ²)^-V, that of discrete noise being less than that of continuous noise.
Hence e > s t has a probability of at most α for t = (log(1/α) - V log(1 - λ²))/λ, whatever λ in
(0, 1), and so has e < -s t. The quantile is the first point q with C(q) - p n >= 0. So with
confidence 1 - 2α it is among the points v whose estimate is at least -s t at v, and at most s t at
the point before.
"""

import functools
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
from prudent.release.exponential.quantile import (
    CONFIDENCE,
    ExponentialQuantile,
    Selected,
    ascending,
    for_units,
)
from prudent.release.lattice import FloatArray, IntArray, Lattice
from prudent.release.noise import AdditiveMechanism, Noise

BRANCHES, LEVELS = 12, 3
MANY_BRANCHES = 16
"""Of a tree over an interval that may be far too wide, so that its leaves must be finer."""

_SLOPES = np.linspace(0.02, 0.98, 49)[:, None]  # the λ that are tried
_STEPS = np.linspace(0.0, 1.0, 65)  # through a leaf
_ROUNDING = 1e-6  # records; more than all sums of doubles are off by


def _height(level: int) -> int:
    return LEVELS - level


def _weight(level: int, branches: int) -> float:
    """w: of the count of a node in z, where its leaves are the last level."""
    height = _height(level) + 1
    return float((branches**height - branches ** (height - 1)) / (branches**height - 1))


def consistent(levels: Sequence[FloatArray]) -> FloatArray:
    """The least-squares estimates of the leaves, from the counts of each level."""
    averages, branches = [np.asarray(levels[-1], np.float64)], len(levels[0])
    for level in range(LEVELS - 1, 0, -1):
        below = averages[0].reshape(-1, branches).sum(axis=1)
        weight = _weight(level, branches)
        averages.insert(0, weight * levels[level - 1] + (1 - weight) * below)
    found = averages[0]
    for children in averages[1:]:
        groups = children.reshape(-1, branches)
        spare = (found - groups.sum(axis=1)) / branches
        found = (groups + spare[:, None]).ravel()
    return found


@functools.lru_cache(maxsize=256)
def variances(p: float, branches: int = BRANCHES) -> FloatArray:
    """V of the estimate of C(v) - p n at each leaf v."""
    place = np.arange(1, branches**LEVELS + 1)
    total, g = np.zeros(len(place)), np.full(len(place), p)
    for level in range(1, LEVELS + 1):
        leaves, weight = branches ** _height(level), _weight(level, branches)
        before = (place - 1) // leaves % branches
        f = ((place - 1) % leaves + 1) / leaves
        apart = _alone(level, branches)
        total += (before * (1 - g) ** 2 + (branches - 1 - before) * g**2) * apart
        total += ((f - g) * weight) ** 2
        g = weight * f + (1 - weight) * g
    return total


def _alone(level: int, branches: int) -> float:
    """The sum of squared weights of the noise in z of a node of a level, over its subtree."""
    if level == LEVELS:
        return 1.0
    weight = _weight(level, branches)
    return weight**2 + (1 - weight) ** 2 * branches * _alone(level + 1, branches)


@attrs.frozen(slots=False)
class CountedQuantiles:
    """Quantiles at several probabilities, ascending, among the points of an interval.

    Guarantee:
        A release is ε-DP with δ = 0 for adding or removing one unit of at most `records` records,
        and has the privacy of `event`. Answers ascend.
    """

    ps: tuple[Fraction, ...] = attrs.field(converter=ascending)  # the probabilities, ascending
    epsilon: float  # ε of all of them together
    records: int = 1  # the largest number of records of one privacy unit
    confidence: float = CONFIDENCE  # of each interval; 0 returns none
    branches: int = BRANCHES  # the number of children of a node

    @property
    def points(self) -> int:
        """Into which an interval is divided: a power of two as spacing may double their number."""
        return int(self.branches**LEVELS) // 2 - 2

    def __attrs_post_init__(self) -> None:
        ExponentialQuantile(self.ps[-1], 1.0, confidence=self.confidence or CONFIDENCE)  # checks

    @cached_property
    def _mechanism(self) -> AdditiveMechanism:
        return AdditiveMechanism.calibrate(self.epsilon)

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of one release."""
        return self._mechanism.event

    def rank_error(self) -> int:
        """What the rank error of a quantile exceeds with a probability of 5 % at most."""
        worst = max(float(self._allowance(float(p), CONFIDENCE).max()) for p in self.ps)
        return int(np.ceil(worst))

    def _allowance(self, p: float, confidence: float) -> FloatArray:
        """The allowance s t of each leaf."""
        tail = np.log(2 / (1 - confidence))
        bounds = (tail - variances(p, self.branches) * np.log1p(-(_SLOPES**2))) / _SLOPES
        return np.asarray(
            self._mechanism.scale(LEVELS * self.records) * bounds.min(axis=0) + _ROUNDING
        )

    def counts(self, points: Points, noise: Noise) -> list[FloatArray]:
        """Release the counts of all nodes, level by level."""
        levels = _counts(points, self.branches)
        vector = np.concatenate(levels).tolist()
        noisy = np.array(self._mechanism.noisy(vector, LEVELS * self.records, noise), np.float64)
        return np.split(noisy, np.cumsum([len(each) for each in levels])[:-1])

    def release(self, points: Points, noise: Noise, between: bool) -> tuple[Selected, ...]:
        """Release the quantiles of the records at points."""
        upto = np.cumsum(consistent(self.counts(points, noise)))
        rising = np.maximum.accumulate(upto)
        falling = np.minimum.accumulate(upto[::-1])[::-1]
        return tuple(
            self._selected(points, float(p), upto, (rising + falling) / 2, between) for p in self.ps
        )

    def _selected(
        self, points: Points, p: float, upto: FloatArray, even: FloatArray, between: bool
    ) -> Selected:
        """The quantile at which the monotone estimate `even` reaches p n, and its interval."""
        lattice, target = points.lattice, p * max(0.0, float(upto[-1]))
        leaf = int(np.searchsorted(even, target))
        index = min(max(lattice.low + leaf, lattice.low + 1), lattice.high - 1)
        place = float(index)
        if between and index == lattice.low + leaf:
            place += _through(even, leaf, target) - 0.5
        if not self.confidence:
            return Selected(value_at(lattice, place), index)
        off, allowed = upto - p * float(upto[-1]), self._allowance(p, self.confidence)
        possible = off >= -allowed
        possible[1:] &= off[:-1] <= allowed[:-1]
        (places,) = np.nonzero(possible[: lattice.diameter + 1])
        first, last = (places[0], places[-1]) if len(places) else (leaf, leaf)
        low, high = min(lattice.low + int(first), index), max(lattice.low + int(last), index)
        ends = lattice.value(low), lattice.value(high)
        return Selected(value_at(lattice, place), index, ends, (low, high), whole=not len(places))


def _through(upto: FloatArray, leaf: int, target: float) -> float:
    """How far through a leaf, as a fraction, a monotone count up to each leaf reaches a target.

    Between its ends the count is a cubic polynomial. Its slopes there are harmonic means of the
    counts of the leaves on either side, so it is monotone too.
    """
    ends = upto[np.clip(np.arange(leaf - 2, leaf + 2), 0, len(upto) - 1)]
    counts = np.diff(ends)
    first, last = 2 * counts[:-1] * counts[1:] / np.maximum(counts[:-1] + counts[1:], _ROUNDING)
    reached = _STEPS**2 * (3 - 2 * _STEPS) * counts[1]
    reached += _STEPS * (1 - _STEPS) * (first * (1 - _STEPS) - last * _STEPS)
    return float(np.interp(target - ends[1], reached, _STEPS))


def value_at(lattice: Lattice, place: float) -> float:
    """The value at or between points, given in steps, that is not beyond the ends of `Points`."""
    return min(max(place, lattice.low + 1), lattice.high - 1) * lattice.spacing


def placed(
    points: Points, one: Selected, ends: tuple[float, float], whole: bool, public: bool = False
) -> Selected:
    """A quantile between `ends`, with an interval for the records as they were before they moved.

    Values were moved to the nearest point, so it is half a point wider on either side. One that
    reaches an end tells nothing, unless the ends are public: values were moved there.
    """
    lattice, value = points.lattice, min(max(one.value, ends[0]), ends[1])
    if one.interval is None or one.interval_indices is None:
        return attrs.evolve(one, value=value)
    half = 0.0 if whole and lattice.spacing == 1 else lattice.spacing / 2
    interval = min(one.interval[0] - half, value), max(one.interval[1] + half, value)
    first, last = one.interval_indices
    useless = one.whole or not (public or lattice.low < first <= last < lattice.high)
    return attrs.evolve(one, value=value, interval=interval, whole=useless)


def _counts(points: Points, branches: int = BRANCHES) -> list[IntArray]:
    """The number of records in each node, level by level from the root's children down."""
    leaves = np.zeros(branches**LEVELS, np.int64)
    leaves[points.steps - points.lattice.low] = points.counts
    levels = [leaves]
    for _ in range(LEVELS - 1):
        levels.insert(0, levels[0].reshape(-1, branches).sum(axis=1))
    return levels


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
