"""An interval that holds nearly all records, chosen by the exponential mechanism.

**Choice.** Every candidate interval has a public mass, and is chosen with a probability
proportional to mass exp(-c O), where O is the number of records outside of it. An added record is
outside of some candidates and inside of the others, so each O changes by 0 or by +1: a range of
length 1, and c = ε is ε-DP (see `exponential.measure`). Taking the minimum with a cap keeps both.

**Mass.** It falls as candidates widen, by a factor of e^-s for each doubling. So a wider interval
is preferred if it saves more than s/ε records from being clipped, and an interval that holds all
records is exceeded by a factor of 2^m with a probability of about e^-sm. That is the trade of a
clipped mean between tail and noise: a record at distance r outside, and noise of scale r/ε.

**Two steps.** First the ends are half-octaves, from 2**-40 to 2**64 and of both signs, counted by
one grouped query. Half of the mass of each width is on [0, w], an eighth each on [-w, 0] and
[-w, w], and a quarter on all other pairs. Here s is small, since the second step corrects it; for
widths below the usual one it is smaller still, so that a few records outweigh the masses of all the
octaves that hold none. Then the chosen interval is divided into about a thousand points, counted by
a second query, and its parts are the candidates.

**Steepness.** Of the parts that hold nearly all records, the narrowest has the most mass, the more
so the larger s is. But 9 halvings with s = 4 outweigh 36/ε records: a small table would be clipped
to nothing. So the number of records is released as well, with a little of ε, and s follows from it:
the records that are there outweigh all halvings. Values with a heavy tail crowd at the other end of
the interval, so for parts that share an end with it s is at most 1: half of the mass of each width
is theirs, before it is weighed.
"""

import functools
import math
from fractions import Fraction
from functools import cached_property
from typing import Any, TypeAlias

import attrs
import dp_accounting as dp
import numpy as np

from prudent._rounding import outward
from prudent.accounting._numeric import float_share
from prudent.accounting.events import ExponentialMechanismDpEvent
from prudent.release.columns.column import Column
from prudent.release.columns.scales import Scale
from prudent.release.exponential.measure import Decay, UniformMeasure, choose, rate
from prudent.release.lattice import LAST_HALF, FloatArray, IntArray, Lattice, end_of_half_octave
from prudent.release.noise import AdditiveMechanism, Noise, shares_of

Sizes: TypeAlias = tuple[IntArray, IntArray]
"""Half-octaves that hold records, and how many each holds. Private."""

POINTS = 2**10
"""Points into which an interval is divided to find a narrower one."""

_SPREAD = Fraction(1)  # length of the range of the changes of O, in records
_FAR = 60.0  # loss of weight from which on all intervals weigh the same
_TOTAL = 2.0**60  # of the masses, up to rounding: sums fit 64 bits
_STEEP, _FLAT = 0.5, 0.1  # s of the first step, above and below the usual width
_USUAL_WIDTH = 2.0**10
_USUAL = {"timestamp": 2.0**36, "duration": 2.0**26}  # a day and a minute, in microseconds
_SIZE_SHARE = 0.12  # of the ε of the second step, for the number of records
_LEAST_STEEP, _MOST_STEEP = -1.0, 4.0  # s of the second step; with few records, wider is safer
_PER_RECORD, _FEW = 0.1, 10.0  # s for each record times ε, after the first few of them
_STEEP_AT_AN_END = 1.0  # the largest s of a part that shares an end with the interval
_STEEPNESSES = 4  # per unit of s: it is rounded, so that candidates are made once
_HALVINGS = 9  # of the interval, in the second step
_RESOLVED = 16.0  # an end is zero, or at least this fraction of the width
_SHARES = np.array([0.5, 0.125, 0.125, 0.25])  # [0, w], [-w, 0], [-w, w], others


@attrs.frozen(eq=False)
class Candidates:
    """Ranges of places, both ends included, with their masses."""

    first: IntArray  # the first place of each range
    last: IntArray  # the last place of each range
    masses: IntArray  # whole numbers of at least 1

    @classmethod
    def weighing(cls, first: IntArray, last: IntArray, logs: FloatArray) -> "Candidates":
        """Ranges whose masses have these logarithms, up to a constant."""
        shares = np.exp(logs - logs.max())
        masses = np.round(_TOTAL / shares.sum() * shares)
        return cls(first, last, np.maximum(masses, 1).astype(np.int64))

    def outside(self, places: IntArray, counts: IntArray) -> IntArray:
        """The number of records outside each range, from the counts at ascending places."""
        upto = np.concatenate([[0], np.cumsum(counts)])
        below = upto[np.searchsorted(places, self.first, side="left")]
        through = upto[np.searchsorted(places, self.last, side="right")]
        return np.asarray(upto[-1] - through + below)


@attrs.frozen(slots=False)
class IntervalChoice:
    """One choice among candidate intervals.

    Guarantee:
        It is ε-DP with δ = 0, and has the privacy of `event`, for adding or removing one unit of
        at most `records` records.
    """

    epsilon: float  # ε of the choice
    records: int = 1  # the largest number of records of one privacy unit

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of one choice."""
        return ExponentialMechanismDpEvent(self.epsilon)

    @cached_property
    def _decay(self) -> Decay:
        speed = rate(float_share(self.epsilon, self.records), _SPREAD)
        return Decay(speed, math.ceil(_FAR / speed), 1)

    def weights(self, outside: IntArray, candidates: Candidates) -> tuple[IntArray, list[int]]:
        """The different numbers of records outside, and the weight of all ranges with each."""
        capped = np.minimum(outside, self._decay.cap)
        levels, places = np.unique(capped, return_inverse=True)
        masses = np.zeros(len(levels), np.int64)
        np.add.at(masses, places, candidates.masses)
        decay = self._decay.weights(levels.tolist())
        return levels, [int(mass) * each for mass, each in zip(masses, decay, strict=True)]

    def release(
        self, candidates: Candidates, places: IntArray, counts: IntArray, noise: Noise
    ) -> tuple[int, int]:
        """Choose a range of places, given how many records are at each that holds any."""
        outside = candidates.outside(places, counts)
        levels, weights = self.weights(outside, candidates)
        level = levels[choose(weights, noise)]
        # Given the number outside, a range is chosen by its mass alone.
        (among,) = np.nonzero(np.minimum(outside, self._decay.cap) == level)
        chosen = among[choose(candidates.masses[among].tolist(), noise)]
        return int(candidates.first[chosen]), int(candidates.last[chosen])


@attrs.frozen(eq=False)
class Points:
    """How many records lie at each point of a lattice between two ends. Private.

    One more point on either side holds the records beyond.
    """

    lattice: Lattice  # the lattice with these two points
    steps: IntArray  # the points that hold records, ascending, in steps
    counts: IntArray  # how many each holds

    @classmethod
    def read(cls, column: Column, ends: tuple[float, float], points: int) -> "Points":
        """Divide an interval, public or released, and count the records, by one query."""
        low, high = ends
        unit = max((high - low) / points, math.ldexp(max(map(abs, ends)), -41))
        free = Lattice.for_unit(max(unit, 1.0) if column.scale.whole else unit)
        first, last = free.steps([low, high]).tolist()
        lattice = attrs.evolve(free, low=first - 1, high=last + 1)
        return cls(lattice, *column.frequencies(lattice, within=2**62))

    @property
    def measure(self) -> UniformMeasure:
        """The points as values that an answer may take."""
        return UniformMeasure(self.lattice)

    def count(self) -> int:
        """See `Column`."""
        return int(self.counts.sum())

    def order_statistics(self, first: int, last: int) -> FloatArray:
        """See `Column`; each record is moved to its point."""
        upto = np.cumsum(self.counts)
        repeats = np.minimum(upto, last) - np.maximum(upto - self.counts + 1, first) + 1
        return np.ldexp(
            np.repeat(self.steps, np.maximum(repeats, 0)).astype(np.float64), self.lattice.exponent
        )


@attrs.frozen(kw_only=True, slots=False)
class PrivateInterval:
    """An interval that few records lie outside of, without public bounds.

    Guarantee:
        A release has the privacy of `events`: one choice, and if it is asked for a noisy count
        and a second choice.
    """

    scale: Scale  # the scale of the column, which is public
    wide: IntervalChoice  # the choice among half-octaves
    size: AdditiveMechanism  # the noise of the number of records
    narrow: IntervalChoice  # the choice among parts of the interval found
    points: int = POINTS  # the number of points that the interval is divided into
    # The largest s of the second step: the less, the fewer records lie outside.
    steepest: float = _MOST_STEEP
    halvings: int = _HALVINGS  # how often the interval may be halved in the second step
    # How many times as far an interval that begins at zero reaches in the second step: the first
    # one misses a few records of a heavy tail.
    farther: float = 1.0

    @classmethod
    def of(
        cls,
        column: Column,
        wide: float,
        narrow: float,
        points: int = POINTS,
        size_share: float = _SIZE_SHARE,
        **others: Any,
    ) -> "PrivateInterval":
        """Return the mechanism for these ε of its two steps; `others` are attributes."""
        size, rest = shares_of(narrow, size_share)
        first, second = (IntervalChoice(part, column.contribution.records) for part in (wide, rest))
        return cls(
            scale=column.scale,
            wide=first,
            size=AdditiveMechanism(multiplier=math.nextafter(1 / size, math.inf)),
            narrow=second,
            points=points,
            **others,
        )

    @property
    def events(self) -> list[dp.DpEvent]:
        """The privacy events of one release."""
        return [self.wide.event, self.size.event, self.narrow.event]

    def release(
        self, column: Column, noise: Noise, sizes: Sizes | None = None, records: int | None = None
    ) -> tuple[float, float]:
        """Release the interval."""
        ends = self.widest(column, noise, sizes)
        if 0.0 in ends:
            ends = ends[0] * self.farther, ends[1] * self.farther
        return self.within(self.read(column, ends), ends, noise, records)

    def released_count(self, counts: IntArray, noise: Noise) -> int:
        """Release the number of records, given how many are at each place."""
        return self.size.noisy([int(counts.sum())], self.narrow.records, noise)[0]

    def widest(
        self, column: Column, noise: Noise, sizes: Sizes | None = None
    ) -> tuple[float, float]:
        """Release the interval of half-octaves; see `release`."""
        candidates = octave_candidates(self.scale)
        found = column.half_octaves() if sizes is None else sizes
        first, last = self.wide.release(candidates, *found, noise)
        return _rounded(*_ends(first, last), self.scale)

    def read(self, column: Column, ends: tuple[float, float]) -> Points:
        """Read the points of a released interval."""
        return Points.read(column, ends, self.points)

    def within(
        self, points: Points, ends: tuple[float, float], noise: Noise, records: int | None = None
    ) -> tuple[float, float]:
        """Release a part of a released interval; see `release`."""
        lattice, spacing = points.lattice, points.lattice.spacing
        known = self.released_count(points.counts, noise) if records is None else records
        each = self.narrow.epsilon / self.narrow.records
        fitting = min(max(_PER_RECORD * (each * known - _FEW), _LEAST_STEEP), self.steepest)
        steepness = round(fitting * _STEEPNESSES) / _STEEPNESSES  # s
        candidates = part_candidates(lattice.diameter - 2, steepness, self.halvings)
        first, last = self.narrow.release(
            candidates, points.steps - lattice.low - 1, points.counts, noise
        )
        low = lattice.value(lattice.low + 1 + first) - spacing / 2
        high = lattice.value(lattice.low + 1 + last) + spacing / 2
        if self.scale.whole:
            # Also at an end of the interval, where only one unit is left, it is one unit wide.
            low = min(float(math.ceil(low)), ends[1] - 1)
            high = max(float(math.floor(high)), low + 1)
        return _rounded(max(low, ends[0]), min(high, ends[1]), self.scale)


def _rounded(low: float, high: float, scale: Scale) -> tuple[float, float]:
    """Round ends outward to few digits, and to whole units if the column has any.

    What is printed as the bounds are then the bounds themselves.
    """
    low, high = map(float, outward(low, high))
    return (float(math.floor(low)), float(math.ceil(high))) if scale.whole else (low, high)


def _ends(first: int, last: int) -> tuple[float, float]:
    """The values between which a range of half-octaves lies."""
    low = end_of_half_octave(first - 1) if first > 0 else end_of_half_octave(first)
    return low, end_of_half_octave(last + 1 if last < 0 else last)


def usual_octave(scale: Scale) -> float:
    """The binary logarithm of the size that values of this scale usually have."""
    return math.log2(_USUAL.get(scale.kind, _USUAL_WIDTH))


@functools.cache
def least_place(scale: Scale) -> int:
    """The half-octave of the smallest values beside zero; no whole number is below 1."""
    least = 1.0 if scale.whole else 0.0
    return next(place for place in range(1, LAST_HALF) if end_of_half_octave(place) > least)


@functools.cache
def octave_candidates(scale: Scale) -> Candidates:
    """Ranges of half-octaves; those of values below 1 are left out for whole numbers."""
    positive = np.arange(least_place(scale), LAST_HALF + 1)
    places = np.concatenate([-positive[::-1], [0], positive])
    first, last = (places[index] for index in np.triu_indices(len(places)))
    low, high = np.array([_ends(*pair) for pair in zip(first, last, strict=True)]).T
    width = high - low
    resolved = [
        (end == 0) | (np.abs(end) >= width / _RESOLVED) & (place != 0)
        for end, place in ((low, first), (high, last))
    ]
    kept = resolved[0] & resolved[1] & (width > 0)
    first, last, low, high, width = (each[kept] for each in (first, last, low, high, width))
    octave, usual = np.log2(width), usual_octave(scale)
    family = np.select([low == 0, high == 0, low == -high], [0, 1, 2], 3)
    logs = -np.where(octave > usual, _STEEP, _FLAT) * (octave - usual)
    return Candidates.weighing(
        first, last, logs + np.log(_SHARES[family] / _alike(np.floor(octave) * 4 + family))
    )


@functools.lru_cache(maxsize=64)
def part_candidates(last: int, steepness: float, halvings: int = _HALVINGS) -> Candidates:
    """Parts of the places 0, ..., last, four of whose widths are in each octave."""
    size, starts = last + 1, []
    widths = {size * part >> (halved + 3) for halved in range(halvings) for part in range(5, 9)}
    for width in sorted(widths - {0}):
        evenly = np.append(np.arange(0, size - width, max(1, width // 8)), size - width)
        starts.append(np.stack([evenly, np.full_like(evenly, width)]))
    first, width = np.concatenate(starts, axis=1)
    at_an_end = (first == 0) | (first + width == size)
    logs = np.where(at_an_end, min(steepness, _STEEP_AT_AN_END), steepness) * np.log2(size / width)
    alike = _alike(2 * width + at_an_end)
    return Candidates.weighing(first, first + width - 1, logs - np.log(alike))


def _alike(keys: FloatArray | IntArray) -> IntArray:
    """How many entries have the same key as each."""
    _, places, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return np.asarray(counts[places])
