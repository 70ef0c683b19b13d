"""Trimmed statistics and their margins: the two-sided trimmed mean, the norm-trimmed sum.

| data | value | margin |
|---|---|---|
| m <= 2F records, trimmed mean | the public default | distance to data that leave it (Errata 7) |
| m <= F vectors, trimmed sum | zero | F - #{norms > τ}, as always |
| F = 0 | the mean, the sum of all | 0 wherever an end is further than τ away |
| ties | any of the equal ones: their sum is the same | counted one by one |
| τ beyond what a record can do | as usual | cap |
"""

import math

import numpy as np
import numpy.typing as npt

from prudent.release.columns_protocol import Column
from prudent.release.lattice import IntArray, Lattice
from prudent.release.margin import RobustValue, Window

_DOUBTFUL = 1e-13  # relative: many times what a dozen roundings of doubles can add up to
_LONGEST = 2**30  # steps a vector may be long: its squared norm stays exact in 64 bits


def trimmed_mean(
    column: Column, lattice: Lattice, trim: int, *, default: int, propose: int, cap: int
) -> RobustValue:
    """The mean without the `trim` least and `trim` largest records, and its exact margin.

    The mean is rounded to the nearest step last. That keeps whatever lies within τ whole steps
    within τ steps, so the margin of the unrounded mean serves.

    Args:
        column: The records.
        lattice: Where values live.
        trim: F, a public number of records on each side.
        default: The value, in steps, when no record is left.
        propose: τ, in steps.
        cap: The largest margin worth telling apart.
    """
    count = column.count()
    low = Window.of(column, lattice, trim - cap, trim + cap + 3)
    high = Window.of(column, lattice, count - trim - cap - 2, count - trim + cap + 1)
    total = _padded_sum(column, lattice, count, trim + 1, count - trim)
    up = _Upwards(low, high, total, count, trim, default)
    # Downwards is upwards in the mirror that exchanges the ends.
    down = _Upwards(_mirrored(high, count), _mirrored(low, count), -total, count, trim, -default)
    margin = min(up.margin(propose, cap), down.margin(propose, cap))
    kept = count - 2 * trim
    value = (2 * total + kept) // (2 * kept) if kept > 0 else default
    return RobustValue((value,), margin, propose)


def _mirrored(window: Window, count: int) -> Window:
    last = window.first + len(window.values) - 1
    return Window(count + 1 - last, -window.values[::-1])


def _padded_sum(column: Column, lattice: Lattice, count: int, first: int, last: int) -> int:
    """The sum over ranks first..last, the ends of the lattice standing where no record is.

    With last < first - 1 it is minus the sum over the ranks between, so sums add up.
    """
    if last < first - 1:
        return -_padded_sum(column, lattice, count, last + 1, first - 1)
    below = max(0, min(last, 0) - first + 1)
    above = max(0, last - max(first, count + 1) + 1)
    inside = column.sum_between(max(first, 1), min(last, count), lattice)
    return below * lattice.low + inside + above * lattice.high


class _Upwards:
    """How far one record can raise a trimmed mean, after some changes (Errata 7).

    Add `a` records at the lower end and `b` at the upper one, and remove the `d` records just below
    X, the one about to enter (or leave) the kept ones. Then X has rank j = m - F + b + 1, or one
    less if X leaves, and the kept ones are the ranks F - a + 1 .. j - 1 - d of the padded data.
    """

    def __init__(
        self, low: Window, high: Window, total: int, count: int, trim: int, default: int
    ) -> None:
        self._high, self._count, self._trim, self._default = high, count, trim, default
        self._low = low
        self._total = total
        self._below = _running_sum(low, trim)
        self._above = _running_sum(high, count - trim)
        self._below_rounded = self._below.astype(np.float64)
        self._above_rounded = self._above.astype(np.float64)

    def margin(self, propose: int, cap: int) -> int:
        """The least number of changes after which the mean can rise by more than τ."""
        start, end = 0, cap  # a quick bound rules out most of them, by bisection
        while start < end:
            middle = (start + end) // 2
            start, end = (
                (start, middle) if self._conceivable(middle, propose) else (middle + 1, end)
            )
        return next((r for r in range(start, cap) if self._sensitive(r, propose)), cap)

    def _conceivable(self, changes: int, propose: int) -> bool:
        """Whether X at its largest above the mean at its least would do; monotone in changes.

        The mean of sorted values falls with both ends of the kept ranks, which reach down by at
        most `changes` from where they are.
        """
        fewest = self._count - 2 * self._trim - changes - 1
        highest = int(self._high.at(self._count - self._trim + changes + 1))
        if fewest <= 0:
            lowest = min(int(self._low.at(self._trim - changes + 1)), self._default)
            return highest - lowest > propose
        kept = self._count - 2 * self._trim - 1
        first, last = self._trim - changes + 1, self._count - self._trim - 1 - changes
        total = (
            self._total
            + self._above[last - self._high.first + 1]
            - self._below[first - self._low.first]
        )
        return bool(highest * kept - total > propose * (fewest + 1) * kept)

    def _sensitive(self, changes: int, propose: int) -> bool:
        added_low, added_high = np.indices((changes + 1, changes + 1)).reshape(2, -1)
        possible = added_low + added_high <= changes
        added_low, added_high = added_low[possible], added_high[possible]
        removed = changes - added_low - added_high
        return any(
            self._rises(added_low, added_high, removed, leaves, propose) for leaves in (0, 1)
        )

    def _rises(
        self,
        added_low: IntArray,
        added_high: IntArray,
        removed: IntArray,
        leaves: int,
        propose: int,
    ) -> bool:
        """Whether (X - mean(kept))/(kept + 1) > τ anywhere; the default is the mean of nothing."""
        rank = self._count - self._trim + added_high + 1 - leaves
        kept = rank - 1 - removed - (self._trim - added_low)
        entering = self._high.at(rank)
        if np.any(entering[kept == 0] - self._default > propose):
            return True
        some = kept > 0
        entering, kept = entering[some], kept[some]
        first = self._trim - added_low[some] + 1
        last = rank[some] - 1 - removed[some]
        below = first - self._low.first
        above = last - self._high.first + 1

        # Cleared of fractions: X k - sum > τ k (k + 1). Doubles settle nearly every case; what
        # they cannot tell from equality is settled in whole numbers.
        terms = [
            entering * kept.astype(np.float64),
            self._below_rounded[below],
            -self._above_rounded[above],
            np.full(len(kept), -float(self._total)),
            -float(propose) * kept * (kept + 1.0),
        ]
        excess = np.sum(terms, axis=0)
        doubt = _DOUBTFUL * np.sum(np.abs(terms), axis=0)
        if np.any(excess > doubt):
            return True
        return any(
            int(entering[i]) * int(kept[i])
            - (self._total + self._above[above[i]] - self._below[below[i]])
            > propose * int(kept[i]) * (int(kept[i]) + 1)
            for i in np.nonzero(np.abs(excess) <= doubt)[0]
        )


def _running_sum(window: Window, origin: int) -> npt.NDArray[np.object_]:
    """Entry i: the sum over ranks origin + 1 .. window.first + i - 1, negative left of origin."""
    sums = np.concatenate([[0], np.cumsum(window.values.astype(object))])
    return np.asarray(sums - sums[origin + 1 - window.first])


def trimmed_sum(
    vectors: npt.ArrayLike, lattice: Lattice, trim: int, *, propose: int, cap: int
) -> RobustValue:
    """The sum of all vectors but the `trim` longest, with margin max(0, F - #{norms > τ}).

    Adding a record never raises this margin. Equally long vectors are ordered by their
    coordinates, so which of them is trimmed does not depend on where they stand.

    Args:
        vectors: One row per record; rows with NaN are no records.
        lattice: Where coordinates live; `lattice.high` bounds the norm, which longer vectors are
            shortened to.
        trim: F, a public number of records.
        propose: τ, in steps.
        cap: The largest margin worth telling apart.
    """
    rows = shortened(vectors, lattice)
    norms = np.sum(rows * rows, axis=1)
    order = np.lexsort((*rows.T[::-1], norms))
    kept = rows[order[: max(0, len(rows) - trim)]]
    large = int(np.sum(norms > propose * propose))
    margin = cap if propose >= lattice.high else min(cap, max(0, trim - large))
    value = tuple(int(coordinate) for coordinate in np.sum(kept, axis=0))
    return RobustValue(value, margin, propose)


def shortened(vectors: npt.ArrayLike, lattice: Lattice) -> IntArray:
    """Rows in steps, none longer than `lattice.high` when measured in whole numbers."""
    rows = np.asarray(vectors, np.float64)
    if rows.ndim != 2:
        raise ValueError(f"Expected vectors a table with one row per record, got {rows.ndim}-d.")
    if lattice.high > _LONGEST:
        raise ValueError(
            f"Expected a bound on the norm of at most 2**30 steps, got {lattice.high}."
        )
    rows = rows[~np.isnan(rows).any(axis=1)]
    # A coordinate beyond the bound is cut first: the norm of what is left cannot overflow.
    longest = lattice.value(lattice.high)
    rows = np.ldexp(np.clip(rows, -longest, longest), -lattice.exponent)
    norms = np.sqrt(np.sum(rows * rows, axis=1))
    factor = np.minimum(1.0, lattice.high / np.maximum(norms, 1.0))
    while True:
        whole: IntArray = np.trunc(rows * factor[:, None]).astype(np.int64)
        too_long = np.sum(whole * whole, axis=1) > lattice.high**2
        if not too_long.any():
            return whole
        factor = np.where(too_long, factor * (1 - math.ldexp(1.0, -40)), factor)
