"""Trimmed statistics and their margins: the two-sided trimmed mean, the norm-trimmed sum.

| data | value | margin |
|---|---|---|
| m <= 2F records, trimmed mean | the public default | distance to data that leave it (Errata 7) |
| m <= F vectors, trimmed sum | zero | F - #{norms > τ}, as always |
| no bounds | as usual | at most the distance to data that keep a record at an end |
| F = 0 | the mean, the sum of all | 0 wherever an end is further than τ away |
| ties | any of the equal ones: their sum is the same | counted one by one |
| τ beyond what a record can do | as usual | cap |
"""

import math

import numpy as np
import numpy.typing as npt

from prudent._validate import ArgumentError
from prudent.release.columns.column import Column
from prudent.release.lattice import IntArray, Lattice
from prudent.release.margins.quantile import RobustValue, Window
from prudent.release.margins.trimmed_margin import Rise

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
    up = Rise(low, high, total, count, trim, default)
    # Down is up in the mirror that exchanges the ends.
    down = Rise(_mirrored(high, count), _mirrored(low, count), -total, count, trim, -default)
    margin = min(up.margin(propose, cap), down.margin(propose, cap))
    if not lattice.bounded:
        margin = min(margin, _to_an_end(low, high, lattice, count, trim))
    kept = count - 2 * trim
    value = (2 * total + kept) // (2 * kept) if kept > 0 else default
    return RobustValue((value,), margin, propose)


def _to_an_end(low: Window, high: Window, lattice: Lattice, count: int, trim: int) -> int:
    """How many records at an end of the lattice it takes until one of them is kept.

    One is kept where more than F lie there, and a record changes that number by 1 at most. So this
    is a margin of its own, and the smaller of two safe margins is safe.
    """
    at_low = low.first + int(np.searchsorted(low.values, lattice.low, side="right")) - 1
    first_at_high = high.first + int(np.searchsorted(high.values, lattice.high, side="left"))
    at_high = count + 1 - first_at_high
    return max(0, trim + 1 - max(at_low, at_high))


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
        raise ArgumentError("vectors", "a table with one row per record", shown=f"{rows.ndim}-d")
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
