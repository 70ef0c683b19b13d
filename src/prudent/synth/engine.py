"""What a synthetic table asks of the records: counts with noise, private keys, exact choices.

A privacy unit has at most r rows (r = 1 without `unit`), and each row is one record. Adding or
removing a unit therefore changes

* a **table of counts**, to which a record adds one in one cell, by at most r in length (L2): the
  noise is a Gaussian of r times the multiplier, rounded to whole numbers;
* the **counts of keys** likewise, where only keys with at least `least` records are looked at, and
  those whose noisy count exceeds a threshold are named. Keys that reach `least` because of the
  unit have at most least - 1 + r records, and there are at most r of them. Each is named with a
  probability of at most η, so naming them is (0, rη)-DP, beside the Gaussian of all other keys;
* a **score** by at most r times what a record changes it by. The scores of all candidates then
  change within a range of r times `spread`, which is what an exact exponential choice costs;
* a **quantile** as in `prudent.release.exponential.quantile`, with ε/r for each record.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from scipy.special import ndtri

from prudent.estimators.engine import Prices, SumEngine
from prudent.estimators.rows import ArrayRows
from prudent.release.exponential.measure import Decay, choose, rate
from prudent.release.lattice import (
    LAST_HALF,
    FloatArray,
    IntArray,
    end_of_half_octave,
    half_octaves,
)
from prudent.release.noise import Noise

_FAR = 21.0  # loss of log weight from which on all candidates weigh the same: 1e-9
_FULL = 4.2  # deviations of the noise that neighbouring half-octaves with numbers must exceed
_WIDEST = 8  # so many of them together at most: tails are thin


class TableEngine(SumEngine):
    """Answers what a synthetic table asks of its records, within what was paid for.

    Guarantee:
        All answers together have the privacy of `prices.event`, for adding or removing one unit
        of at most `prices.records` rows; see the module, and `SumEngine`.
    """

    def __init__(self, prices: Prices, noise: Noise, key_failure: float) -> None:
        """Answer at these prices; a key that one unit brought in is named with `key_failure`, η."""
        super().__init__(ArrayRows((), lambda: np.empty((0, 0))), prices, noise)
        self._key_failure = key_failure

    def counts(self, name: str, counts: IntArray) -> IntArray:
        """Release a table of counts, to which a record adds one in one cell."""
        noisy = self._noisy(counts.ravel().tolist(), self._spend(name, choice=False), 1.0)
        return np.asarray(noisy, np.int64).reshape(counts.shape)

    def threshold(self, name: str) -> tuple[int, int]:
        """The records that a key needs to be looked at, and the noisy count that it must exceed."""
        deviation = self.deviation(name)
        least = 1 + math.ceil(deviation / 2)  # far below the threshold; spares draws of noise
        beyond = -float(ndtri(self._key_failure)) * (1 + 1e-9)
        return least, least - 1 + self.prices.records + math.ceil(deviation * beyond)

    def keys(self, name: str, keys: Sequence[Any], counts: IntArray) -> dict[Any, int]:
        """Release which keys have many records, with their noisy counts, most frequent first."""
        least, threshold = self.threshold(name)
        places = np.flatnonzero(counts >= least).tolist()
        noisy = self._noisy(counts[places].tolist(), self._spend(name, choice=False), 1.0).tolist()
        named = [(-int(many), keys[at]) for many, at in zip(noisy, places, strict=True)]
        return {key: -less for less, key in sorted(named) if -less > threshold}

    def best(self, name: str, scores: Sequence[int], spread: int) -> int:
        """Choose the place of a large score by the exponential mechanism.

        One record adds between -a and b to each score, and `spread` is a + b. Distances from the
        largest score shift together when it changes, so their range is that of the scores. It
        contains zero, since the largest is one of them: the cap of `Decay` does not lengthen it.
        """
        speed = rate(self._spend(name, choice=True), Fraction(spread))
        cap = math.ceil((math.log(len(scores)) + _FAR) / float(speed))
        largest = max(scores)
        weights = Decay(speed, cap, 1).weights([largest - each for each in scores])
        return choose(weights, self._noise)

    def edges(
        self, span: str, cuts: str, values: FloatArray, counts: IntArray, levels: int, outer: int
    ) -> FloatArray | None:
        """Release where numbers lie: 2**levels + 2 outer + 1 ascending edges, or None if too few.

        A record is in one half-octave, so their counts are a table, paid by `span`; those that hold
        more than noise are the span. The ends are quantiles on it. Each of `levels` halves all
        parts of the one before: parts are disjoint, so a level costs as much as one choice. With
        few records the ends are far beyond them, so `outer` more levels halve the outermost two
        parts alone: `cuts` pays for levels + outer + 2 choices.
        """
        halves = np.zeros(2 * LAST_HALF + 1, np.int64)
        np.add.at(halves, half_octaves(values) + LAST_HALF, counts)
        noisy = self.counts(span, halves)
        least = _FULL * self.deviation(span)
        full = np.flatnonzero(noisy > least)
        if not len(full):
            return None
        last = int(full[-1]) + _tail(noisy[full[-1] + 1 :], least) - LAST_HALF
        first = int(full[0]) - _tail(noisy[: full[0]][::-1], least) - LAST_HALF
        low = end_of_half_octave(first if first <= 0 else first - 1) - (first == 0)
        high = end_of_half_octave(last if last >= 0 else last + 1) + (last == 0)
        for p in (Fraction(1, 1000), Fraction(999, 1000)):
            epsilon, inside = (
                self._spend(cuts, choice=True),
                CountedColumn(values, counts, low, high),
            )
            value = self._between(inside, p, epsilon, (low, high))
            low, high = (value, high) if p < 1 / 2 else (low, value)
            if not low < high:
                return None
        inside = CountedColumn(values, counts, low, high)
        return np.array([low, *self.cuts(cuts, inside, levels, (low, high), outer), high])


def _tail(noisy: IntArray, least: float) -> int:
    """How many half-octaves the tail outside a full one has: steps whose sums exceed noise."""
    found = 0
    while True:
        near = np.cumsum(noisy[found : found + _WIDEST])
        sums = near > least * np.sqrt(np.arange(1, len(near) + 1))
        if not sums.any():
            return found
        found += 1 + int(np.argmax(sums))


class CountedColumn:
    """A column of numbers by its counts, clipped to an interval."""

    def __init__(self, values: FloatArray, counts: IntArray, low: float, high: float) -> None:
        """Take ascending values, and how many records have each."""
        self._values, self._upto = np.clip(values, low, high), np.cumsum(np.append(0, counts))

    def count(self) -> int:
        """See `Column`."""
        return int(self._upto[-1])

    def order_statistics(self, first: int, last: int) -> FloatArray:
        """See `Column`."""
        ranks = np.arange(max(first, 1), min(last, self.count()) + 1)
        return self._values[np.searchsorted(self._upto, ranks) - 1]

    def counts_below(self, edges: FloatArray) -> IntArray:
        """See `Column`."""
        return self._upto[np.searchsorted(self._values, edges)]
