"""Trimmed statistics and their margins: the two-sided trimmed mean and the norm-trimmed sum.

| data | value | margin |
|---|---|---|
| m <= 2F records, trimmed mean | the public default | distance to data that leave it (Errata 7) |
| m <= F vectors, trimmed sum | zero | F - #{norms > τ}, as always |
| no bounds | as usual | at most the distance to data that keep a record at an end |
| F = 0 | the mean, the sum of all | 0 wherever an end is further than τ away |
| ties | any of the tied records: the sum is the same | counted one by one |
| τ at least the largest change by one record | as usual | cap |
"""

import math

import numpy as np
import numpy.typing as npt

from prudent._validate import ArgumentError
from prudent.release.columns.column import Column
from prudent.release.lattice import IntArray, Lattice
from prudent.release.margins.quantile import RobustValue, Window
from prudent.release.margins.trimmed_margin import Rise

_LONGEST = 2**30  # largest norm in steps: its square is exact in 64 bits


def trimmed_mean(
    column: Column, lattice: Lattice, trim: int, *, default: int, propose: int, cap: int
) -> RobustValue:
    """Return the mean without the `trim` least and `trim` largest records, and its exact margin.

    The mean is rounded to the nearest step at the end. Two means within τ whole steps of each other
    stay within τ steps when rounded, so the margin of the unrounded mean is valid.

    Args:
        column: The records.
        lattice: The lattice that records are rounded to.
        trim: F, a public number of records on each side.
        default: The value, in steps, when no record is left.
        propose: τ, in steps.
        cap: The largest margin that needs to be distinguished.
    """
    count = column.count()
    low = Window.of(column, lattice, trim - cap, trim + cap + 3)
    # One rank more than needed, so that the windows are never the same: a column that remembers a
    # window would otherwise ask its engine once or twice, depending on the number of records.
    high = Window.of(column, lattice, count - trim - cap - 3, count - trim + cap + 1)
    total = _padded_sum(column, lattice, count, trim + 1, count - trim)
    up = Rise(low, high, total, count, trim, default)
    # Lowering the mean is the same as raising the mean of the negated data.
    down = Rise(_mirrored(high, count), _mirrored(low, count), -total, count, trim, -default)
    margin = min(up.margin(propose, cap), down.margin(propose, cap))
    if not lattice.bounded:
        margin = min(margin, _to_an_end(low, high, lattice, count, trim))
    kept = count - 2 * trim
    value = (2 * total + kept) // (2 * kept) if kept > 0 else default
    return RobustValue((value,), margin, propose)


def _to_an_end(low: Window, high: Window, lattice: Lattice, count: int, trim: int) -> int:
    """The number of added records at an end of the lattice until one of them is not trimmed.

    A record at an end is kept if more than F records lie there, and one record changes their number
    by at most 1. So this number is itself a safe margin, and the smaller of two safe margins is
    safe.
    """
    at_low = low.first + int(np.searchsorted(low.values, lattice.low, side="right")) - 1
    first_at_high = high.first + int(np.searchsorted(high.values, lattice.high, side="left"))
    at_high = count + 1 - first_at_high
    return max(0, trim + 1 - max(at_low, at_high))


def _mirrored(window: Window, count: int) -> Window:
    last = window.first + len(window.values) - 1
    return Window(count + 1 - last, -window.values[::-1])


def _padded_sum(column: Column, lattice: Lattice, count: int, first: int, last: int) -> int:
    """The sum over ranks first..last, with an end of the lattice at ranks that no record has.

    With last < first - 1 it is minus the sum over the ranks between, so that sums over adjacent
    ranges add up.
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
    """Return the sum of all vectors but the `trim` longest, with margin max(0, F - #{norms > τ}).

    Adding a record never raises this margin. Vectors of equal norm are ordered by their
    coordinates, so which of them is trimmed does not depend on the order of the rows.

    Args:
        vectors: One row per record; rows with NaN are ignored.
        lattice: The lattice that coordinates are rounded to; `lattice.high` bounds the norm, and
            longer vectors are scaled down to it.
        trim: F, a public number of records.
        propose: τ, in steps.
        cap: The largest margin that needs to be distinguished.
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
    """Round the rows to steps so that no norm, computed exactly in integers, exceeds `high`."""
    rows = np.asarray(vectors, np.float64)
    if rows.ndim != 2:
        raise ArgumentError("vectors", "a table with one row per record", shown=f"{rows.ndim}-d")
    if lattice.high > _LONGEST:
        raise ValueError(
            f"Expected a bound on the norm of at most 2**30 steps, got {lattice.high}."
        )
    rows = rows[~np.isnan(rows).any(axis=1)]
    # Coordinates are clipped to the bound first, so that the norm cannot overflow.
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
