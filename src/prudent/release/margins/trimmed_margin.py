"""The exact margin of a two-sided trimmed mean, in time and memory near linear in the cap.

What one record can do to a trimmed mean is at its worst after three kinds of change (Errata 7):
`a` records added at the lower end, `b` added at the upper end, and `d` removed just below X, the
record about to enter the kept ones. Then X has rank j = m - F + b + 1 (one less if it is about to
leave), the k kept ones have the ranks F - a + 1 .. j - 1 - d of the padded data, and the mean rises
by more than τ where

    excess = sum of (X - x) over the kept - τ k (k + 1) > 0.

The margin is the least a + b + d for which it does. Two facts keep the search for it small.

* Removing one more of the kept never makes a positive excess negative, as long as one is left: it
  is the one nearest to X, so the mean of X - x does not fall, and k does. So with at most r changes
  only d = r - a - b needs a look (less, where that would leave none), and whether r changes are
  enough is settled by bisection.
* Over a square of (a, b) the sum is at most that of its largest X over its longest run of kept
  records, since no term is negative, and k is at least its least. A square whose bound is not
  positive is done with; any other is cut in four.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from prudent.release.lattice import FloatArray, IntArray
from prudent.release.margins.quantile import Window

_DOUBTFUL = 1e-13  # relative: many times what a dozen roundings of doubles can add up to
_EXACT = 2.0**52  # doubles add whole numbers without rounding up to here, and a little beyond
_FIRST_BITS = 5  # the search starts from at most 2**5 times 2**5 squares
_AT_ONCE = 2**14  # squares looked at together: the memory of the search beside the windows


class _Bound(NamedTuple):
    """The terms of upper bounds on the excess, one for each square of (a, b).

    For a square of one point it is the excess itself.
    """

    entering: IntArray  # X, from the origin, at its largest
    length: IntArray  # of the longest run of kept records; below 1: none can be kept
    below: IntArray  # where that run begins in the running sums of the lower window
    above: IntArray  # and where it ends in those of the upper one
    kept: IntArray  # k at its least


class Rise:
    """How few changes let one record raise a trimmed mean by more than τ.

    How few let one lower it is the same question in the mirror.
    """

    def __init__(
        self, low: Window, high: Window, total: int, count: int, trim: int, default: int
    ) -> None:
        """Takes the order statistics around both ends of the kept records.

        Args:
            low: The ranks within the cap of `trim`.
            high: The ranks within the cap of `count - trim`.
            total: The sum of the kept records, in steps.
            count: m, how many records there are.
            trim: F, how many are left out at either end.
            default: The mean of no records, in steps.
        """
        # Differences matter only, and near the origin doubles hold them exactly.
        origin = int(high.at(count - trim))
        low, high = (Window(each.first, each.values - origin) for each in (low, high))
        self._low, self._high, self._count, self._trim = low, high, count, trim
        self._default = default - origin
        self._total = total - origin * (count - 2 * trim)
        self._below = _running_sum(low, trim)
        self._above = _running_sum(high, count - trim)
        self._below_rounded: FloatArray = self._below.astype(np.float64)
        self._above_rounded: FloatArray = self._above.astype(np.float64)

    def margin(self, propose: int, cap: int) -> int:
        """The least number of changes after which the mean can rise by more than τ, or the cap."""
        start, end = 0, self._to_none(propose, cap)
        while start < end:
            changes = (start + end) // 2
            if any(self._rises(changes, leaves, propose) for leaves in (0, 1)):
                end = changes
            else:
                start = changes + 1
        return start

    def _to_none(self, propose: int, cap: int) -> int:
        """The least number of changes that leave none, and X more than τ above the default.

        It takes d = m - 2F + a + b removals, one less if X is about to leave. X is the larger the
        more of a + b are b.
        """
        added = np.arange(cap)
        least = cap
        for leaves in (0, 1):
            changes = self._count - 2 * self._trim - leaves + 2 * added
            entering = self._high.at(self._count - self._trim + 1 - leaves + added)
            found = (changes >= added) & (entering - self._default > propose)
            least = min(least, int(np.min(changes[found], initial=cap)))
        return least

    def _rises(self, changes: int, leaves: int, propose: int) -> bool:
        """Whether some a and b, with what is left of the changes removed, give an excess."""
        side = 1 << max(0, changes.bit_length() - _FIRST_BITS)
        least_a, least_b = np.indices((changes // side + 1,) * 2).reshape(2, -1) * side
        squares = [(least_a, least_b, side)]
        while squares:
            least_a, least_b, side = squares.pop()
            possible = least_a + least_b <= changes
            least_a, least_b = least_a[possible], least_b[possible]
            if self._any_positive(self._terms(least_a, least_b, 1, changes, leaves), propose):
                return True
            if side == 1:
                continue
            bound = self._terms(least_a, least_b, side, changes, leaves)
            open_still = self._signs(bound, propose) >= 0
            least_a, least_b, side = least_a[open_still], least_b[open_still], side // 2
            least_a = np.concatenate([least_a, least_a, least_a + side, least_a + side])
            least_b = np.concatenate([least_b, least_b + side, least_b, least_b + side])
            for start in range(0, len(least_a), _AT_ONCE):
                piece = slice(start, start + _AT_ONCE)
                squares.append((least_a[piece], least_b[piece], side))
        return False

    def _terms(
        self, least_a: IntArray, least_b: IntArray, side: int, changes: int, leaves: int
    ) -> _Bound:
        """The terms of the bound for squares of this side."""
        most_a = np.minimum(least_a + side - 1, changes - least_b)
        most_b = np.minimum(least_b + side - 1, changes - least_a)
        rank = self._count - self._trim + 1 - leaves + most_b
        unused = self._count - 2 * self._trim - leaves - changes
        kept = np.maximum(1, unused + 2 * (least_a + least_b))
        first = self._trim - most_a + 1
        last = np.maximum(self._trim + unused + most_a + 2 * most_b, self._trim - least_a + 1)
        last = np.minimum(last, rank - 1)
        return _Bound(
            entering=self._high.at(rank),
            length=last - first + 1,
            below=first - self._low.first,
            above=last - self._high.first + 1,
            kept=kept,
        )

    def _signs(self, terms: _Bound, propose: int) -> IntArray:
        """1 where the bound is positive, -1 where it is not, 0 where doubles cannot tell.

        They can wherever all terms are so small that none of the sums is rounded.
        """
        parts = [
            terms.entering * terms.length.astype(np.float64),
            self._below_rounded[terms.below],
            -self._above_rounded[terms.above],
            np.full(len(terms.kept), -float(self._total)),
            -float(propose) * terms.kept * (terms.kept + 1.0),
        ]
        bound = np.sum(parts, axis=0)
        size = np.sum(np.abs(parts), axis=0)
        doubt = np.where(size < _EXACT, 0.0, _DOUBTFUL * size)
        not_positive = (bound < -doubt) | ((bound <= 0) & (size < _EXACT)) | (terms.length < 1)
        return np.where(not_positive, -1, np.where(bound > doubt, 1, 0))

    def _any_positive(self, terms: _Bound, propose: int) -> bool:
        """Whether an excess is positive: in doubles, or if they cannot tell, in whole numbers."""
        signs = self._signs(terms, propose)
        return bool(np.any(signs > 0)) or any(
            int(terms.entering[i]) * int(terms.length[i])
            - (self._total + self._above[terms.above[i]] - self._below[terms.below[i]])
            > propose * int(terms.kept[i]) * (int(terms.kept[i]) + 1)
            for i in np.nonzero(signs == 0)[0]
        )


def _running_sum(window: Window, origin: int) -> npt.NDArray[np.object_]:
    """Entry i: the sum over ranks origin + 1 .. window.first + i - 1, negative left of origin."""
    sums = np.concatenate([[0], np.cumsum(window.values.astype(object))])
    return np.asarray(sums - sums[origin + 1 - window.first])
