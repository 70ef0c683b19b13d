"""What a margin asks of a column: counts, and the order statistics near a rank.

Whoever can answer these few questions can be released from: an array here, a table in any engine
in `prudent.release.columns`. No question needs more than a window of the sorted column, so a
billion rows are never pulled or sorted in Python.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from prudent.release.lattice import FloatArray, IntArray, Lattice


@runtime_checkable
class Column(Protocol):
    """A column of records, one per privacy unit, seen only through counts and ranks.

    Ranks are 1-based: rank 1 is the least value. Records without a value (NULL, NaN) are not in
    the column at all: they are in no count and have no rank. Infinities are values at the ends.
    """

    def count(self) -> int:
        """How many records there are."""
        ...

    def order_statistics(self, first: int, last: int) -> FloatArray:
        """The values of ranks first..last in ascending order; ranks outside 1..count are left out.

        Duplicates count: the answer has one entry per rank.
        """
        ...

    def counts_below(self, edges: FloatArray) -> IntArray:
        """For each edge, in ascending order, the number of values < edge."""
        ...

    def sum_between(self, first: int, last: int, lattice: Lattice) -> int:
        """The exact sum of the values of ranks first..last, each moved to the lattice, in steps.

        Each value x contributes floor(clip(x)/spacing + 1/2), clipped to the ends of the lattice
        before it is rounded; the sum is a sum of integers, so no order of summation matters.
        """
        ...

    def frequencies(self, lattice: Lattice, within: int) -> tuple[IntArray, IntArray]:
        """The fullest lattice points, in steps, ascending, and how many records each holds.

        Args:
            lattice: Where each value is moved to before it is counted.
            within: Points that hold this many records fewer than the fullest, or fewer still, are
                left out.
        """
        ...

    def most_frequent(
        self, limit: int, among: Sequence[Hashable] | None = None
    ) -> list[tuple[Any, int]]:
        """Up to `limit` (value, count) rows: by count from the largest, ties by value ascending.

        Args:
            limit: How many.
            among: A public list; records with any other value are left out. None: all values.
        """
        ...


class ArrayColumn:
    """A column in memory: numbers for everything but `most_frequent`, which takes any values."""

    def __init__(self, values: npt.ArrayLike) -> None:
        column = np.asarray(values)
        if column.ndim != 1:
            raise ValueError(f"Expected values one-dimensional, got shape {column.shape}.")
        if column.dtype.kind in "iufb":
            numbers = column.astype(np.float64, copy=False)
            self._numbers: FloatArray | None = numbers[~np.isnan(numbers)]
            self._values = column[~np.isnan(numbers)]
        else:
            self._numbers = None
            self._values = column[np.array([_has_value(value) for value in column], bool)]

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers."""
        return self._numbers is not None

    def count(self) -> int:
        """See `Column`."""
        return len(self._values)

    def order_statistics(self, first: int, last: int) -> FloatArray:
        """See `Column`. Selects; never sorts more than the ranks asked for."""
        first, last = max(first, 1), min(last, self.count())
        if first > last:
            return np.empty(0)
        return np.sort(self._selected(first, last))

    def counts_below(self, edges: FloatArray) -> IntArray:
        """See `Column`."""
        return np.searchsorted(np.sort(self._checked()), edges, side="left").astype(np.int64)

    def sum_between(self, first: int, last: int, lattice: Lattice) -> int:
        """See `Column`."""
        first, last = max(first, 1), min(last, self.count())
        if first > last:
            return 0
        steps = lattice.steps(self._selected(first, last))
        # Two halves of 32 bits each: sums of either stay far inside 64 bits.
        return (int(np.sum(steps >> 32)) << 32) + int(np.sum(steps & 0xFFFFFFFF))

    def frequencies(self, lattice: Lattice, within: int) -> tuple[IntArray, IntArray]:
        """See `Column`."""
        points, counts = np.unique(lattice.steps(self._checked()), return_counts=True)
        frequent = counts > np.max(counts, initial=0) - within
        return points[frequent], counts[frequent].astype(np.int64)

    def most_frequent(
        self, limit: int, among: Sequence[Hashable] | None = None
    ) -> list[tuple[Any, int]]:
        """See `Column`."""
        counts = Counter(self._values.tolist())
        kept = counts if among is None else {v: counts[v] for v in set(among) if counts[v]}
        return sorted(kept.items(), key=lambda row: (-row[1], row[0]))[:limit]

    def _selected(self, first: int, last: int) -> FloatArray:
        numbers = self._checked()
        if (first, last) == (1, len(numbers)):
            return numbers
        return np.partition(numbers, [first - 1, last - 1])[first - 1 : last]

    def _checked(self) -> FloatArray:
        if self._numbers is None:
            raise ValueError(
                "Expected a column of numbers, got one of another type. "
                "Only the mode can be released from it."
            )
        return self._numbers


def _has_value(value: object) -> bool:
    return value is not None and value == value  # NaN is the value that differs from itself
