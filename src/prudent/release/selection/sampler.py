"""Exact draws from the exponential mechanism, in integers.

The mechanism chooses value v with probability proportional to mass(v) * exp(-c d(v)), where d is
the distance of v from what was asked for, in records. Here exp(-c d) is replaced by a whole number
that is proportional to it up to a factor within 1 ± 10**-39, and then every probability is a
fraction of integers: one uniform integer below the total decides, and nothing is ever rounded.

Guarantee:
    Let d(v) change by between -a and +b when a record is added or removed, for all v at once. With
    whole-number weights w(v), |log w(v) + c d(v) - const| <= ξ = 2 * 10**-39, the log-ratio of the
    probabilities of v on two neighbouring data sets is log w(v) - log w'(v) plus a constant in v,
    so it lies in a range of length at most c (a + b) + 4ξ. A ratio of probabilities averages to 1,
    so the range contains zero, and the draw is η-bounded-range and η-DP for this length η. `rate`
    returns the c for which η is at most ε.
"""

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

from prudent.release.noise import Noise
from prudent.release.selection.measure import Measure

_PRECISION = 60  # digits; each operation is correctly rounded, and there are at most 10**8 of them
_DIGITS = 40  # of the smallest weight
_SLACK = Fraction(1, 10**30)  # of ε: more than 4ξ for every ε above 1e-8

_EXACT = decimal.Context(
    prec=_PRECISION, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX, rounding=decimal.ROUND_HALF_EVEN
)


def rate(epsilon: float, spread: Fraction) -> Fraction:
    """Return the c at which a draw is ε-bounded-range, slightly rounded down.

    Args:
        epsilon: ε.
        spread: The length a + b of the range of the change of distances, in records.
    """
    return Fraction(epsilon) * (1 - _SLACK) / spread


@attrs.frozen(slots=False)
class Decay:
    """Whole numbers proportional to exp(-c d), for distances d in fractions of a record.

    Weights are exponentials of prec 60, products of at most two of which are rounded down to a
    whole number of at least 40 digits; so each is off by a factor within 1 ± 10**-39.

    Attributes:
        rate: c, per record.
        cap: The distance from which on all weights are equal, in whole records.
        unit: Distances are given as whole numbers of 1/unit records.
    """

    rate: Fraction
    cap: int
    unit: int

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
        digits = _DIGITS + math.ceil(float(self.rate) * (self.cap + 1) / math.log(10)) + 1
        start = Decimal(1).scaleb(digits, _EXACT)
        return list(
            itertools.accumulate(itertools.repeat(step, self.cap), _EXACT.multiply, initial=start)
        )


def draw(measure: Measure, starts: Sequence[int], weights: Sequence[int], noise: Noise) -> int:
    """Draw an index with probability proportional to its mass times the weight of its piece.

    Args:
        measure: The base measure.
        starts: Where each piece starts, in ascending order, the first one at `measure.low`. A piece
            ends before the start of the next; pieces may be empty.
        weights: The weight of each piece.
        noise: Source of randomness.
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
