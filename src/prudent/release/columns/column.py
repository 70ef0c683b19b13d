"""What a margin asks of a column: counts, and the order statistics near a rank.

Whoever can answer these few questions can be released from: an array here, a table in any engine
in `columns.opening`. No question needs more than a window of the sorted column, so a
billion rows are never pulled or sorted in Python.
"""

import functools
import numbers
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from prudent._validate import ArgumentError
from prudent.release.columns import images
from prudent.release.lattice import FloatArray, IntArray, Lattice

Kind = Literal["numbers", "categories"]


class Leaders(NamedTuple):
    """The two most frequent categories, by their counts alone.

    Attributes:
        most: How many records the most frequent one has; among equals it is the least in order.
        runner_up: How many the next one has; 0 if there is none.
        runner_up_first: Whether the runner-up comes before the most frequent one in order.
    """

    most: int
    runner_up: int
    runner_up_first: bool


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

    def leaders(self) -> Leaders:
        """How many records the two most frequent values have, and which comes first in order."""
        ...

    def most_frequent(self) -> Any:
        """The most frequent value, among equals the least in order; None if there is no record.

        It is asked for after the test has passed, never before.
        """
        ...

    def counts_of(self, categories: Sequence[Hashable]) -> IntArray:
        """How many records have each value of a public list."""
        ...


class ArrayColumn:
    """A column in memory: numbers for everything but categories, which may be any values.

    What an array holds is told by its type. What has no type, a list or an array of objects, is
    read record by record by `ArrayColumn.of`, so that one odd record changes no other.
    """

    def __init__(self, values: npt.ArrayLike) -> None:
        if isinstance(values, np.ma.MaskedArray):
            values = values.compressed()
        column = np.asarray(values)
        if column.ndim != 1:  # the lengths are not said: how many records there are is private
            raise ArgumentError("values", "one-dimensional", shown=f"{column.ndim} dimensions")
        if column.dtype.kind in "iufb":
            with np.errstate(over="ignore"):  # a warning would tell that some record is huge
                numbers = column.astype(np.float64, copy=False)
            self._numbers: FloatArray | None = numbers[~np.isnan(numbers)]
            self._values = column[~np.isnan(numbers)]
            if column.dtype.kind == "f":
                self._values = self._values + 0.0  # -0.0 is 0.0, whichever comes first
        else:
            self._numbers = None
            self._values = _categories(column)

    @classmethod
    def of(cls, values: Any, kind: Kind) -> "ArrayColumn":
        """A column of an array, a list or a tuple, read as numbers or as categories.

        In a list, or an array of objects, a record that is no number (or no text, date or other
        plain category) has no value.

        Raises:
            ValueError: if an array with a type is not of numbers, where these are asked for.
        """
        if isinstance(values, list | tuple) or values.dtype == object:
            records = np.asarray(values) if isinstance(values, np.ndarray) else _objects(values)
            if kind == "categories" or records.ndim != 1:
                return cls(records)
            return cls(np.array([images.number(value) for value in records], np.float64))
        return cls(values).checked(kind)

    def checked(self, kind: Kind) -> "ArrayColumn":
        """This column, if it can be read so.

        Raises:
            ValueError: if numbers are asked for and its type is another.
        """
        if kind == "numbers" and not self.numeric:
            raise ArgumentError(
                "values",
                "that are numbers",
                shown="others",
                hint="Only their mode can be released.",
            )
        return self

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

    def leaders(self) -> Leaders:
        """See `Column`."""
        (most, first), (fewer, second) = (*self._by_frequency[:2], _NOBODY, _NOBODY)[:2]
        return Leaders(most, fewer, fewer > 0 and second < first)

    def most_frequent(self) -> Any:
        """See `Column`."""
        return self._by_frequency[0][1][1] if self._by_frequency else None

    def counts_of(self, categories: Sequence[Hashable]) -> IntArray:
        """See `Column`."""
        counts = {key: count for count, key in self._by_frequency}
        return np.array([counts.get(self._key(each), 0) for each in categories], np.int64)

    @functools.cached_property
    def _by_frequency(self) -> list[tuple[int, tuple[str, Any, str]]]:
        """Counts and keys of all categories, by count from the largest, ties in order."""
        counts = Counter(map(self._key, self._values.tolist()))
        return sorted(((n, key) for key, n in counts.items()), key=lambda row: (-row[0], row[1]))

    @property
    def _key(self) -> Callable[[Any], tuple[str, Any, str]]:
        """In an array with a type 1 and 1.0 are one category; among objects they are two."""
        return (lambda number: ("", number, "")) if self.numeric else in_order

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


_NOBODY: tuple[int, tuple[str, Any, str]] = (0, ("", None, ""))


def in_order(category: Any) -> tuple[str, Any, str]:
    """A key that orders categories of any types, as their values are ordered within a type.

    Numbers are compared with each other; True, 1 and 1.0 are three categories all the same.
    """
    name = type(category).__name__
    return ("", category, name) if isinstance(category, numbers.Real) else (name, category, "")


def _categories(column: npt.NDArray[Any]) -> npt.NDArray[np.object_]:
    """The plain categories of an array that is not of numbers, without records that have none."""
    if column.dtype.kind in "Mm":  # a list would hold integers in place of nanoseconds
        moments, places = np.unique(column, return_inverse=True)
        values = _objects(map(images.category, moments))[places]
    else:
        values = _objects(map(images.category, column.tolist()))
    return values[[value is not None for value in values]] if len(values) else values


def _objects(values: Iterable[Any]) -> npt.NDArray[np.object_]:
    return np.fromiter(values, dtype=object)
