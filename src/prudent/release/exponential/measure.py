"""Public base measures: the values an answer may take, and how likely each is before any data.

A measure assigns a positive whole number, its mass, to every value that a column of some type can
hold. Values are numbered by an index that increases with the value, and a measure is given by its
cumulative mass, an exact function of the index. That makes it cheap to use on 2**60 values: the
mass of any interval is one difference, and a value is drawn by one bisection.

All values in an octave of |v|, that is, between one power of two and the next, have equal mass in
total, up to a factor of 16. A quantile of unknown scale then costs the logarithm of the number of
octaves, not of values. Octaves near |v| = 64 have the most mass and those far from it less: with
equal masses, zero and the many octaves next to it would attract a median near zero, and the many
octaves beyond the data the tail of a small table.

* `LatticeMeasure`: the points of a public lattice, for integers, dates and amounts with a unit.
* `DoubleMeasure`: all doubles from 2**-40 to 2**64, of both signs, and zero. Half of the mass is
  reserved for numbers of three to six decimal digits: measurements are usually rounded, and a
  record's own value is then far more likely than one in the gap beside it.

**Exact draws, in integers.** The exponential mechanism chooses value v with probability
proportional to mass(v) * exp(-c d(v)), where d is the distance of v from what was asked for, in
records. Here exp(-c d) is replaced by a whole number that is proportional to it up to a factor
within 1 ± 10**-39, and then every probability is a fraction of integers: one uniform integer below
the total decides, and nothing is ever rounded.

Guarantee:
    Let d(v) change by between -a and +b when a record is added or removed, for all v at once. With
    whole-number weights w(v), |log w(v) + c d(v) - const| <= ξ = 2 * 10**-39, the log-ratio of the
    probabilities of v on two neighbouring data sets is log w(v) - log w'(v) plus a constant in v,
    so it lies in a range of length at most c (a + b) + 4ξ. A ratio of probabilities averages to 1,
    so the range contains zero, and the draw is η-bounded-range and η-DP for this length η. `rate`
    returns the c for which η is at most ε.
"""

import abc
import decimal
import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

import attrs
import numpy as np
from typing_extensions import override

from prudent.release.lattice import FloatArray, IntArray, Lattice, check_bounds
from prudent.release.noise import Noise

_OCTAVE = 2**52  # least mass of a full octave; also the number of doubles in one
_BRANCHES = 256  # of the search for a value by its mass


def _octaves(first: int, count: int) -> IntArray:
    """The relative masses of the octaves from 2**first on: from 16 in the middle down to 1."""
    distance = (np.arange(first, first + count) - 6) / 8
    return np.asarray(np.maximum(1, np.round(16 / (1 + distance**2))), np.int64)


_WIDEST = 1e9  # half-width of an interval, beside the value, from which on it says nothing


class Measure(abc.ABC):
    """A mass for each of the values with indices low, ..., high.

    Guarantee:
        `indices` is a monotone map of each record alone. So adding or removing a record still does
        that and no more, and the record of a given rank is the image of the record of that rank.
    """

    @property
    @abc.abstractmethod
    def _ends(self) -> tuple[int, int]:
        """The indices of the least and of the largest value."""

    @property
    def low(self) -> int:
        """The index of the least value."""
        return self._ends[0]

    @property
    def high(self) -> int:
        """The index of the largest value."""
        return self._ends[1]

    @property
    def lightest(self) -> int:
        """A lower bound on the mass of a single value, at least 1."""
        return 1

    @abc.abstractmethod
    def indices(self, values: FloatArray) -> IntArray:
        """The index of each record, after it was moved to the nearest end if it is beyond one."""

    @abc.abstractmethod
    def value(self, index: int) -> float:
        """The value with an index."""

    @abc.abstractmethod
    def below(self, indices: IntArray) -> IntArray:
        """The mass of all values before each index, up to a constant; up to `high` + 1."""

    @property
    @abc.abstractmethod
    def bounded(self) -> bool:
        """Whether the ends are public bounds; else they stand for all values beyond as well."""

    @property
    @abc.abstractmethod
    def _half_widths(self) -> IntArray | FloatArray:
        """0 and the numbers 2**k and 3 * 2**k, in ascending order, that are less than the range."""

    @abc.abstractmethod
    def _near(self, index: int, widest: float) -> IntArray:
        """The ends of intervals of these half-widths up to one around an index, in two rows."""

    @property
    def widths(self) -> int:
        """The largest number of intervals that `around` returns."""
        return len(self._half_widths) + 1

    def around(self, index: int) -> list[tuple[int, int]]:
        """Increasing intervals of indices, both ends included, the last of them all values.

        The first is as narrow as values can be told apart. Without bounds, all others are away from
        the ends, and none is so wide beside the value that it may as well be the last.
        """
        widest = math.inf if self.bounded else _WIDEST * max(1.0, abs(self.value(index)))
        near = list(zip(*self._near(index, widest).tolist(), strict=True))
        if not self.bounded:
            near = [(low, high) for low, high in near if self.low < low and high < self.high]
        return [*near, self._ends]

    @cached_property
    def total(self) -> int:
        """The mass of all values."""
        first, last = self.below(np.array([self.low, self.high + 1])).tolist()
        return int(last - first)

    def locate(self, start: int, offset: int) -> int:
        """The index at which the mass from `start` on first exceeds `offset`."""
        target = int(self.below(np.array([start]))[0]) + offset
        low, high = start, self.high + 1  # below(low) <= target < below(high)
        while high - low > 1:
            step = -(-(high - low) // _BRANCHES)
            grid = np.arange(low, high, step)
            low = int(grid[np.searchsorted(self.below(grid), target, side="right") - 1])
            high = min(high, low + step)
        return low


@attrs.frozen(slots=False)
class LatticeMeasure(Measure):
    """Octaves on a lattice; an index is a number of steps.

    Within an octave all points have equal mass. Zero has as much as one step.
    """

    lattice: Lattice  # the lattice. Its bounds limit the measure; octaves outside have no mass.

    @property
    @override
    def _ends(self) -> tuple[int, int]:
        return self.lattice.low, self.lattice.high

    @property
    @override
    def bounded(self) -> bool:
        return self.lattice.bounded

    @property
    @override
    def lightest(self) -> int:
        return int(self._masses.min()) * (_OCTAVE >> (self._farthest.bit_length() - 1))

    @property
    def _farthest(self) -> int:
        return max(abs(self.low), abs(self.high))

    @cached_property
    def _masses(self) -> IntArray:
        return _octaves(self.lattice.exponent, (self._farthest + 1).bit_length())

    @override
    def indices(self, values: FloatArray) -> IntArray:
        return self.lattice.steps(values)

    @override
    def value(self, index: int) -> float:
        return self.lattice.value(index)

    @override
    def below(self, indices: IntArray) -> IntArray:
        steps = np.asarray(indices, np.int64)
        # A negative number -k has as much mass before it as the positive ones after k.
        outward = np.where(steps > 0, steps, 1 - steps)
        # frexp is exact, as steps are at most 2**52 + 1.
        octave = np.frexp(outward.astype(np.float64))[1].astype(np.int64) - 1
        within = np.left_shift(outward - np.left_shift(1, octave), 52 - octave)
        before = np.concatenate([[0], np.cumsum(self._masses)])[octave] * _OCTAVE
        mass = before + self._masses[octave] * within
        return np.asarray(np.where(steps > 0, self._masses[0] * _OCTAVE + mass, -mass))

    @override
    def _near(self, index: int, widest: float) -> IntArray:
        halves = self._half_widths[self._half_widths * self.lattice.spacing <= widest]
        return np.asarray(np.clip([index - halves, index + halves], self.low, self.high))

    @cached_property
    @override
    def _half_widths(self) -> IntArray:
        octaves = self.lattice.diameter.bit_length()
        widths = {0, 1, *(w << k for k in range(octaves) for w in (2, 3))}
        return np.array(sorted(w for w in widths if w < self.lattice.diameter))


_LEAST, _MOST = -40, 64  # exponents of the range of doubles
_FINEST = 2.0**-20  # half-width of the narrowest interval, relative to the value: six digits


def _bits(value: float) -> int:
    return int(np.float64(value).view(np.int64))


_FIRST = _bits(2.0**_LEAST)
_COUNT = (_MOST - _LEAST) * _OCTAVE  # the number of positive doubles in the range

_DIGITS = (3, 4, 5, 6)
_FIRST_DECADE = -4
_DECADES = np.array([float(f"1e{k}") for k in range(_FIRST_DECADE, 9)])
_POWERS = 10.0 ** np.arange(23)  # all exact
_FINER = 20  # how much rarer a decimal number with one digit more is; 10 would be as many in total
_DECADE = sum(9 * 10 ** (digits - 1) * _FINER ** (_DIGITS[-1] - digits) for digits in _DIGITS)
_MASSES = np.append(_octaves(_LEAST, _MOST - _LEAST), 0)  # the last entry is beyond the range
_BEFORE = np.cumsum(_MASSES) - _MASSES
_ROUND = int(_BEFORE[-1]) * _OCTAVE // (len(_DECADES) * _DECADE)  # both halves weigh the same
_ZERO = _OCTAVE + _ROUND * (_DECADE // 4)


@attrs.frozen(slots=False)
class DoubleMeasure(Measure):
    """Octaves on the doubles, mixed with round decimal numbers.

    Indices count doubles outwards from zero, 2**52 in each octave; zero has the mass of the octave
    next to it. In the other half of the mass, each decade from 1e-4 to 1e9 has as much as any
    other, and so have its numbers with at most 3, 4, 5 and 6 digits. The mass of a decimal number
    is that of the double nearest to it, which is how it is read from a file.
    """

    # Public bounds on the data; None if there are none.
    bounds: tuple[float, float] | None = attrs.field(
        default=None, converter=attrs.converters.optional(check_bounds)
    )

    @cached_property
    @override
    def _ends(self) -> tuple[int, int]:
        ends = (-math.inf, math.inf) if self.bounds is None else self.bounds
        low, high = self._places(np.array(ends)).tolist()
        return low, high

    @property
    @override
    def bounded(self) -> bool:
        return self.bounds is not None

    def _places(self, values: FloatArray) -> IntArray:
        """The index of each value, without bounds."""
        return ordinals(values)

    @override
    def indices(self, values: FloatArray) -> IntArray:
        return np.clip(self._places(np.asarray(values, np.float64)), self.low, self.high)

    @override
    def value(self, index: int) -> float:
        return float(doubles(np.array([index]))[0])

    @override
    def below(self, indices: IntArray) -> IntArray:
        places = np.asarray(indices, np.int64)
        positive = places > 0
        outward = np.where(positive, places, 1 - places)
        octave, within = np.divmod(outward - 1, _OCTAVE)
        mass = _BEFORE[octave] * _OCTAVE + _MASSES[octave] * within
        mass += _ROUND * _decimals_below(doubles(outward))
        return np.asarray(np.where(positive, _ZERO + mass, -mass))

    @override
    def _near(self, index: int, widest: float) -> IntArray:
        centre = self.value(index)
        # Finer than its round numbers, and near zero than 2**-40, it tells no values apart.
        finest = max(abs(centre) * _FINEST, 2.0**_LEAST)
        halves = np.unique(np.maximum(self._half_widths, finest))
        halves = halves[halves <= widest]
        return self.indices(np.array([centre - halves, centre + halves]))

    @cached_property
    @override
    def _half_widths(self) -> FloatArray:
        octaves = 2.0 ** np.arange(_LEAST, _MOST)
        widths = np.sort(np.concatenate([[0.0], octaves, 1.5 * octaves]))
        return np.asarray(widths[widths < self.value(self.high) - self.value(self.low)])


def ordinals(values: FloatArray) -> IntArray:
    """Number the doubles outwards from zero; those below 2**-40 are moved to it or to zero."""
    sizes = np.abs(values)
    places = np.clip(sizes.view(np.int64) - _FIRST + 1, 1, _COUNT)
    return np.where(sizes < 2.0 ** (_LEAST - 1), 0, np.where(values < 0, -places, places))


def doubles(places: IntArray) -> FloatArray:
    """The doubles that have these numbers."""
    sizes = (np.abs(places) + (_FIRST - 1)).view(np.float64)
    return np.where(places == 0, 0.0, np.copysign(sizes, places))


def _decimals_below(values: FloatArray) -> IntArray:
    """The mass of the round decimal numbers between 0 and each positive value, itself excluded.

    All operations are exact, or rounded to the nearest double as the numbers themselves are:
    powers of ten up to 10**22 are doubles, so one division or multiplication gives the double
    nearest to k * 10**e.
    """
    decade = np.searchsorted(_DECADES, values, side="right") - 1
    inside = decade >= 0
    decade = np.maximum(decade, 0)
    mass = decade * _DECADE
    for digits in _DIGITS:
        exponent = decade + _FIRST_DECADE - (digits - 1)
        guess = np.floor(_nearest(values, -exponent))
        least = guess - 1 + sum((_nearest(guess + k, exponent) < values) for k in (-1, 0, 1))
        first, last = 10 ** (digits - 1), 10**digits
        count = np.clip(least, first, last).astype(np.int64) - first
        mass += count * _FINER ** (_DIGITS[-1] - digits)
    return np.where(inside, mass, 0)


def _nearest(numbers: FloatArray, exponents: IntArray) -> FloatArray:
    """The double nearest to number * 10**exponent, for exponents of at most 22 in size."""
    power = _POWERS[np.abs(exponents)]
    return np.where(exponents < 0, numbers / power, numbers * power)


_DROPPED = 32  # bits of a double that a coarse one has not: an octave of doubles has 2**52
_COARSE_OCTAVE = _OCTAVE >> _DROPPED
_SHORT = _COARSE_OCTAVE // 64  # every so many values one is short: it has 6 bits


@attrs.frozen(slots=False)
class CoarseMeasure(DoubleMeasure):
    """Octaves on the doubles of 20 bits; half of an octave is shared by its 64 shortest values.

    It is for quantiles that need not be exact, and data that have many ties. A value that many
    records share is one double of 2**63. The measure of all doubles gives it so little mass that,
    with few records or a small ε, the answer is likely to be anywhere else. Models need locations
    and scales of columns to a few digits.

    Records are rounded toward zero, which keeps their order.
    """

    @override
    def _places(self, values: FloatArray) -> IntArray:
        places = ordinals(values)
        sizes = np.right_shift(np.maximum(np.abs(places) - 1, 0), _DROPPED) + 1
        return np.asarray(np.sign(places) * sizes)

    @override
    def value(self, index: int) -> float:
        place = np.sign(index) * (((abs(index) - 1) << _DROPPED) + 1) if index else 0
        return float(doubles(np.array([place]))[0])

    @override
    def below(self, indices: IntArray) -> IntArray:
        places = np.asarray(indices, np.int64)
        positive = places > 0
        octave, within = np.divmod(np.where(positive, places, 1 - places) - 1, _COARSE_OCTAVE)
        short = _SHORT * (-(-within // _SHORT))
        mass = 2 * _BEFORE[octave] * _COARSE_OCTAVE + _MASSES[octave] * (within + short)
        return np.asarray(np.where(positive, 16 * _COARSE_OCTAVE + mass, -mass))


@attrs.frozen(slots=False)
class UniformMeasure(LatticeMeasure):
    """Equal mass for every point of a lattice between bounds.

    It suits an interval of which no more is known than its ends. Where the scale of the values is
    unknown too, octaves are far better.
    """

    @property
    @override
    def lightest(self) -> int:
        return 1

    @override
    def below(self, indices: IntArray) -> IntArray:
        return np.asarray(indices, np.int64)


_PRECISION = 60  # digits; each operation is correctly rounded, and there are at most 10**8 of them
_WEIGHT_DIGITS = 40  # of the smallest weight
_SLACK = Fraction(1, 10**30)  # of ε: more than 4ξ for every ε above 1e-8

_EXACT = decimal.Context(
    prec=_PRECISION, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, rounding=decimal.ROUND_HALF_EVEN
)


def rate(epsilon: float, spread: Fraction) -> Fraction:
    """Return the c at which a draw is ε-bounded-range, slightly rounded down."""
    return Fraction(epsilon) * (1 - _SLACK) / spread


@attrs.frozen(slots=False)
class Decay:
    """Whole numbers proportional to exp(-c d), for distances d in fractions of a record.

    Weights are exponentials of prec 60, products of at most two of which are rounded down to a
    whole number of at least 40 digits; so each is off by a factor within 1 ± 10**-39.
    """

    rate: Fraction  # c, per record
    cap: int  # the distance from which on all weights are equal, in whole records
    unit: int  # distances are given as whole numbers of 1/unit records

    def weights(self, distances: Sequence[int]) -> list[int]:
        """The weight of each distance."""
        wholes, cap, unit = self._wholes, self.cap, self.unit
        parts: dict[int, Decimal] = {}
        found = []
        for distance in distances:
            whole, rest = divmod(distance, unit)
            if whole >= cap:
                found.append(int(wholes[cap]))
                continue
            if rest not in parts:
                parts[rest] = self._exponential(Fraction(rest, unit))
            found.append(int(_EXACT.multiply(wholes[whole], parts[rest])))
        return found

    def _exponential(self, distance: Fraction) -> Decimal:
        exponent = -self.rate * distance
        return _EXACT.exp(_EXACT.divide(Decimal(exponent.numerator), Decimal(exponent.denominator)))

    @cached_property
    def _wholes(self) -> list[Decimal]:
        """Weights of whole distances, from 0 to the cap, scaled so that the last has 40 digits."""
        step = self._exponential(Fraction(1))
        digits = _WEIGHT_DIGITS + math.ceil(float(self.rate) * (self.cap + 1) / math.log(10)) + 1
        start = Decimal(1).scaleb(digits, _EXACT)
        return list(
            itertools.accumulate(itertools.repeat(step, self.cap), _EXACT.multiply, initial=start)
        )


def draw(measure: Measure, starts: Sequence[int], weights: Sequence[int], noise: Noise) -> int:
    """Draw an index with probability proportional to its mass times the weight of its piece.

    Pieces begin at ascending `starts`, the first at `measure.low`; they may be empty.
    """
    edges = measure.below(np.array([*starts, measure.high + 1], np.int64)).tolist()
    masses = [(end - begin) for begin, end in itertools.pairwise(edges)]
    ends = list(itertools.accumulate(mass * w for mass, w in zip(masses, weights, strict=True)))
    drawn = noise.integer(ends[-1])
    piece = bisect_right(ends, drawn)
    before = ends[piece - 1] if piece else 0
    # Given the piece, the quotient is uniform below the mass of the piece.
    return measure.locate(starts[piece], (drawn - before) // weights[piece])


def choose(weights: Sequence[int], noise: Noise) -> int:
    """Draw a place with probability proportional to its weight."""
    ends = list(itertools.accumulate(weights))
    return bisect_right(ends, noise.integer(ends[-1]))
