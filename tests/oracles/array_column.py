"""A column in memory, asked by numpy and by definition: the oracle of columns in SQL."""

import functools
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from prudent.release.columns import scales
from prudent.release.columns.column import Contribution, Kind, Leaders, in_order
from prudent.release.columns.scales import INTEGER, NUMBER, TRUTH, Scale
from prudent.release.lattice import FloatArray, IntArray, Lattice, added_up, half_octaves

_NOBODY: tuple[int, Any] = (0, ())


class ArrayColumn:
    """A `Column` of values whose type is that of their array; of a list see `of`."""

    def __init__(self, values: npt.ArrayLike, scale: Scale | None = None) -> None:
        stored = scales.real(np.asarray(values))
        self.scale = scales.scale_of_array(stored.dtype) if scale is None else scale
        self._numbers: FloatArray | None = None
        if stored.dtype.kind in "iufb":
            with np.errstate(over="ignore"):
                numbers = stored.astype(np.float64)
            stored = stored[~np.isnan(numbers)]
            self._numbers = numbers[~np.isnan(numbers)]
        elif stored.dtype.kind in "Mm":
            self._numbers = scales.numbers_of_times(stored)
        self._stored: npt.NDArray[Any] = stored

    @classmethod
    def of(cls, values: Any, kind: Kind, read_as: str | None = None) -> "ArrayColumn":
        typed = isinstance(values, np.ndarray) and values.dtype != object
        if kind not in ("numbers", "truth"):
            return cls(values if typed else np.fromiter(values, dtype=object))
        usual = TRUTH if kind == "truth" else NUMBER
        scale = usual if read_as is None else Scale.named(read_as)
        if typed and (values.dtype.kind not in "biufc" or scale in (NUMBER, INTEGER)):
            return cls(values, None if values.dtype.kind in "Mm" else scale)
        read = scales.number if scale in (NUMBER, INTEGER) else scale.record
        return cls(np.array([read(value) for value in values], np.float64), scale)

    @property
    def contribution(self) -> Contribution:
        return Contribution()

    @property
    def numbers(self) -> FloatArray:
        if self._numbers is None:
            raise ValueError("Expected a column of numbers, got one of another type.")
        return self._numbers

    def count(self) -> int:
        return len(self._keys if self._numbers is None else self._numbers)

    def order_statistics(self, first: int, last: int) -> FloatArray:
        return np.sort(self.numbers)[max(first, 1) - 1 : max(last, 0)]

    def counts_below(self, edges: FloatArray) -> IntArray:
        return np.searchsorted(np.sort(self.numbers), edges, side="left").astype(np.int64)

    def sum_between(self, first: int, last: int, lattice: Lattice) -> int:
        return sum(lattice.steps(self.order_statistics(first, last)).tolist())

    def _steps(self, low: float, high: float, lattice: Lattice) -> list[int]:
        steps: list[int] = lattice.steps(np.clip(self.numbers, low, high)).tolist()
        return steps

    def clipped_sum(self, low: float, high: float, lattice: Lattice) -> int:
        return sum(self._steps(low, high, lattice))

    def clipped_squares(self, low: float, high: float, lattice: Lattice, origin: int = 0) -> int:
        return sum((step - origin) ** 2 for step in self._steps(low, high, lattice))

    def frequencies(self, lattice: Lattice, within: int) -> tuple[IntArray, IntArray]:
        points, counts = np.unique(lattice.steps(self.numbers), return_counts=True)
        kept = counts > np.max(counts, initial=0) - within
        return points[kept], counts[kept].astype(np.int64)

    def half_octaves(self) -> tuple[IntArray, IntArray]:
        return added_up(half_octaves(self.numbers), np.ones(len(self.numbers)))

    def leaders(self) -> Leaders:
        (most, first), (fewer, second) = (*self._by_frequency[:2], _NOBODY, _NOBODY)[:2]
        return Leaders(most, fewer, fewer > 0 and second < first)

    def most_frequent(self) -> Any:
        return scales.category(self._by_frequency[0][1][1]) if self._by_frequency else None

    def counts_of(self, categories: Sequence[Hashable]) -> IntArray:
        counts = {key: count for count, key in self._by_frequency}
        return np.array([counts.get(self._key(each), 0) for each in categories], np.int64)

    def distinct(self) -> int:
        return len(self._by_frequency)

    def _key(self, value: Any) -> tuple[Any, ...]:
        """1 and 1.0 are one category in a typed array, two among objects."""
        return ("", value, "") if self._stored.dtype.kind in "iufb" else in_order(value)

    @functools.cached_property
    def _keys(self) -> list[tuple[Any, ...]]:
        stored: Any = self._stored.tolist() if self._stored.dtype.kind not in "Mm" else self._stored
        if self._stored.dtype.kind not in "iufb":
            stored = [each for each in map(scales.category, stored) if each is not None]
        return [self._key(each) for each in stored]

    @functools.cached_property
    def _by_frequency(self) -> list[tuple[int, Any]]:
        """Counts and keys of all categories, largest count first, ties in the order of the keys."""
        counts = Counter(self._keys)
        return sorted(((n, key) for key, n in counts.items()), key=lambda row: (-row[0], row[1]))
