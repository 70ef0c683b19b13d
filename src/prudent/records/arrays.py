"""Records of any container as arrays of numbers: each is converted by itself.

Libraries convert records together: one float among bytes makes floats of all of them. Here a number
becomes the nearest float64, whatever stands beside it, and records are handed on in C order, so the
container and its memory order change no bit of them. What is no array of finite numbers of the
declared shape and range counts as absent.

A label is converted, alone and exactly, to a whole number, a fraction or a text, and looked up:
compared in its own type it might equal several (in float16 2048 equals 2049).
"""

import math
import numbers
from collections.abc import Hashable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from prudent._validate import ArgumentError

Real = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

ROWS = 256  # records that are converted at a time, to save memory
_NUMBERS = "biuf"  # kinds of numpy types whose values are real numbers
Whole = npt.NDArray[np.int64]

NONE = -1  # the number of a label that is no class


@attrs.frozen
class ArrayForm:
    """What one record looks like; declared, or known from public facts."""

    shape: tuple[int, ...]  # its shape. A record with as many numbers in another shape is reshaped.
    low: float = -math.inf  # the least number it may hold
    high: float = math.inf  # the largest

    @property
    def size(self) -> int:
        """How many numbers a record holds."""
        return math.prod(self.shape)

    def read(self, records: Any) -> tuple[Real, Flags]:
        """Records as one array in C order, and which of them are present; the others are zero.

        Returns:
            Numbers of shape (records, *shape), and one flag per record.
        """
        parts = list(self.chunks(records))
        empty: list[tuple[Real, Flags]] = [(np.zeros((0, *self.shape)), np.zeros(0, bool))]
        values, present = zip(*(parts or empty), strict=True)
        return np.concatenate(values), np.concatenate(present)

    def chunks(self, records: Any, rows: int = ROWS) -> Iterator[tuple[Real, Flags]]:
        """What `read` returns, of so many records at a time."""
        given = _container(records)
        for start in range(0, len(given), rows):
            yield self._read(given[start : start + rows])

    def _read(self, given: "npt.NDArray[Any] | Sequence[Any]") -> tuple[Real, Flags]:
        values, present = np.zeros((len(given), *self.shape)), np.zeros(len(given), bool)
        if isinstance(given, np.ndarray):
            if given.size == values.size:
                with np.errstate(over="ignore"):  # a warning would tell that a number is that large
                    values[...] = given.reshape(values.shape)  # to the nearest, number by number
                present[...] = True
        else:
            for index, record in enumerate(given):
                found = numbers_of(record)
                if found is not None and found.size == self.size:
                    values[index], present[index] = found.reshape(self.shape), True
        flat = values.reshape(len(values), self.size)
        with np.errstate(invalid="ignore"):
            fits = np.isfinite(flat) & (flat >= self.low) & (flat <= self.high)
        present &= fits.all(axis=1)
        values[~present] = 0.0
        return values, present


def parts(records: Any, rows: int = ROWS) -> Iterator[Any]:
    """Containers of so many records each, in order; the last may hold fewer."""
    given = records.iloc if hasattr(records, "iloc") else records
    if not hasattr(given, "__getitem__"):
        given = np.asarray(records) if hasattr(records, "__array__") else list(records)
    count = len(records) if hasattr(records, "__len__") else len(given)
    for start in range(0, count, rows):
        yield given[start : start + rows]


def declared_width(records: Any) -> int | None:
    """How many numbers the type of a container says that each record has; None if it says nothing.

    The shape of an array, a tensor or a table is a public fact about its type. What a list holds is
    not: its first record is as private as any other.
    """
    if hasattr(records, "__array__") and not hasattr(records, "shape"):
        records = np.asarray(records)
    shape = getattr(records, "shape", None)
    if isinstance(shape, tuple) and len(shape) > 1:
        return math.prod(int(size) for size in shape[1:])
    return None


def _container(records: Any) -> "npt.NDArray[Any] | Sequence[Any]":
    """Records as an array of numbers, which has one type for all, or as a sequence of records."""
    records = on_host(records)
    if hasattr(records, "iloc"):  # a table: each column has a type of its own
        columns = [records.iloc[:, place].tolist() for place in range(records.shape[1])]
        return list(zip(*columns, strict=True))
    if not isinstance(records, np.ndarray) and hasattr(records, "rows"):  # of polars
        return list(records.rows())
    if not isinstance(records, list | tuple) and hasattr(records, "__array__"):
        records = np.asarray(records)
    if isinstance(records, np.ndarray):
        if records.ndim < 1:
            raise ArgumentError("X", "one row per record", shown="a single number")
        return records if records.dtype.kind in _NUMBERS else list(records)
    if not hasattr(records, "__len__") or not hasattr(records, "__getitem__"):
        raise ArgumentError("X", "an array, a table or a sequence of records", shown="another type")
    return records if isinstance(records, list | tuple) else list(records)


def on_host(values: Any) -> Any:
    """A tensor, of a type that numpy may not have, as an array; all else as it is."""
    if not hasattr(values, "is_floating_point"):
        return values
    values = values.detach().cpu()
    return (values.double() if values.is_floating_point() else values).numpy()


def numbers_of(record: Any) -> Real | None:
    """One record as float64, or None if it is no array of numbers."""
    try:
        if hasattr(record, "is_floating_point"):
            return numbers_of(_container(record[None])[0])
        found = np.asarray(record)
        if found.dtype.kind == "c" and not found.imag.any():  # another record made a column complex
            found = found.real
        if found.dtype.kind in _NUMBERS:
            with np.errstate(over="ignore"):
                return np.asarray(found, dtype=np.float64, order="C")
        if found.dtype != object:
            return None
        each = [_number(value) for value in found.ravel().tolist()]
        return np.array(each, dtype=np.float64).reshape(found.shape)
    except Exception:  # whatever an object raises that is no array of numbers
        return None


def _number(value: Any) -> float:
    if not isinstance(value, numbers.Real | np.bool_):
        raise TypeError
    return float(value)


class Classes:
    """A public list of different labels, in the order of their numbers.

    Raises:
        ArgumentError: If there are fewer than two, or two of them are the same.
    """

    def __init__(self, labels: Sequence[Any]) -> None:
        keys = [exact_key(label) for label in labels]
        if len(keys) < 2 or None in keys or len(set(keys)) < len(keys):
            raise ArgumentError("classes", "two or more different numbers or texts", got=labels)
        self.labels = tuple(labels)
        self._numbers = {key: number for number, key in enumerate(keys)}

    def __len__(self) -> int:
        return len(self.labels)

    def numbers(self, labels: Any) -> Whole:
        """The number of the class of each label, or `NONE`."""
        labels = on_host(labels)
        listed = isinstance(labels, list | tuple) or not hasattr(labels, "__array__")
        given = list(labels) if listed else column_values(labels)
        if isinstance(given, list):
            return np.array([self._number(label) for label in given], dtype=np.int64)
        if given.ndim == 2 and given.shape[1] == 1:
            given = given[:, 0]
        if given.ndim != 1:
            raise ArgumentError("y", "one label per record", shown="an array of another shape")
        if given.dtype.kind not in "biufU":
            return np.array([self._number(label) for label in given.tolist()], dtype=np.int64)
        different, places = np.unique(given, return_inverse=True)
        found = np.array([self._number(label) for label in different], dtype=np.int64)
        return found[places] if len(found) else np.zeros(0, dtype=np.int64)

    def _number(self, label: Any) -> int:
        key = exact_key(label)
        return NONE if key is None else self._numbers.get(key, NONE)


def column_values(column: Any) -> "npt.NDArray[Any] | list[Any]":
    """The values of an array or of a column of a frame, each exactly.

    Whole numbers beside a missing one would become an array of floats: 2**53 + 1 would be 2**53.
    """
    array = np.asarray(column)
    if array.dtype.kind == "f" and hasattr(column, "to_pylist"):  # of pyarrow
        return list(column.to_pylist())
    if array.dtype.kind == "f" and hasattr(column, "to_list"):  # of pandas or polars
        return list((column.astype(object) if hasattr(column, "astype") else column).to_list())
    return array


def exact_key(label: Any) -> Hashable | None:
    """What a label or an id is, exactly, as a value of a built-in type; None if it is none.

    Methods of the built-in types are called, not those that a class of the label's own may define.
    """
    try:
        if hasattr(label, "is_floating_point") or type(label) is np.ndarray:  # of one number
            label = label.item()
        if isinstance(label, np.generic) and not isinstance(label, np.longdouble):
            label = label.item()
        if isinstance(label, np.longdouble):
            return Fraction(*label.as_integer_ratio())
        if isinstance(label, int):
            return Fraction(int.__index__(label))
        if isinstance(label, float):
            return Fraction(*float.as_integer_ratio(label))
        if isinstance(label, str):
            return str.__str__(label)
    except Exception:  # a NaN, an infinite number, or an object that raises
        return None
    return None
