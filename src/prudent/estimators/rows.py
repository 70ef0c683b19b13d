"""The rows that a model reads, from arrays, frames, files, databases and Spark.

A record is one row: its features and, for some models, its target, all as doubles. A row that has
no value (NULL, NaN, or something that is not a number) in one of the columns is absent, and an
infinite value is a value at the end. Nothing is read before the model is charged, except names,
types and the number of columns, which are public.
"""

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _extras, _validate
from prudent._validate import ArgumentError
from prudent.release.columns import conversions
from prudent.release.columns.column import ArrayColumn, Column, in_order
from prudent.release.lattice import FloatArray
from prudent.release.noise import Noise
from prudent.release.partitions import PartitionSelection

_BATCH = 2**15
_ROW = (list, tuple, np.ndarray)


class Rows(Protocol):
    """Rows of doubles, without those that have a gap. All that is read from them is private."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the columns; the target is last."""
        ...

    def batches(self) -> Iterator[FloatArray]:
        """Read all rows, a few at a time; the order and the sizes of batches mean nothing."""
        ...

    def column(self, place: int) -> Column:
        """One column, for a private quantile."""
        ...


class ArrayRows:
    """Rows in memory, which are read once, when they are first asked for."""

    def __init__(self, names: Sequence[str], read: Callable[[], FloatArray]) -> None:
        """Remember what returns all rows that have no gap."""
        self.names = tuple(names)
        self._read = functools.cache(read)

    @classmethod
    def of(cls, names: Sequence[str], *parts: Any) -> "ArrayRows":
        """Put two-dimensional arrays, or one-dimensional ones of one column, side by side."""

        def read() -> FloatArray:
            matrix = np.concatenate([doubles(part) for part in parts], axis=1)
            return np.ascontiguousarray(matrix[~np.isnan(matrix).any(axis=1)])

        return cls(names, read)

    def batches(self) -> Iterator[FloatArray]:
        """See `Rows`."""
        matrix = self._read()
        for start in range(0, len(matrix), _BATCH):
            yield matrix[start : start + _BATCH]

    def column(self, place: int) -> Column:
        """See `Rows`."""
        return ArrayColumn(self._read()[:, place])


def doubles(values: Any) -> FloatArray:
    """Convert an array of one or two dimensions to doubles, each value alone; NaN if it has none.

    Times are converted as in a column of their own: to days or microseconds.
    """
    array = values if isinstance(values, np.ndarray) else _objects(values)
    array = array[:, None] if array.ndim == 1 else array
    if array.dtype.kind in "biuf":
        with np.errstate(over="ignore"):  # a warning would reveal that some record is huge
            return array.astype(np.float64)
    if array.dtype.kind in "mM":
        found = np.full(array.shape, np.nan)
        known = ~np.isnat(array)
        found[known] = conversions.numbers_of_times(array[known])
        return found
    numbers = [conversions.number(each) for each in array.ravel().tolist()]
    return np.array(numbers, np.float64).reshape(array.shape)


def _objects(values: Any) -> npt.NDArray[Any]:
    """A list of numbers, or of rows of numbers, as an array of objects.

    Rows are as long as most of them are; one of another length has no values.
    """
    records = list(values)
    rows = list(map(_cells, records))
    lengths = Counter(map(len, rows))
    width = max(lengths, key=lambda length: (lengths[length], length), default=0)
    if not width:
        return np.fromiter(records, dtype=object)
    found = np.full((len(rows), width), None, dtype=object)
    for place, row in enumerate(rows):
        if len(row) == width:
            found[place] = row
    return found


def _cells(record: Any) -> list[Any]:
    """What a row holds; nothing if the record is no row. An error would quote a record."""
    try:
        return list(record) if isinstance(record, _ROW) else []
    except Exception:
        return []


def is_table(data: Any) -> bool:
    """Whether data have named columns: a frame, a path, a table of an engine."""
    if isinstance(data, np.ndarray | list | tuple) or data is None:
        return False
    return isinstance(data, str) or hasattr(data, "__fspath__") or hasattr(data, "columns")


def is_frame(data: Any) -> bool:
    """Whether data are a frame in memory, of pandas, polars or pyarrow."""
    return type(data).__module__.split(".")[0] in ("pandas", "polars", "pyarrow")


def number_table(source: Any, **options: Any) -> Any:
    """Open a `NumberTable`, which needs the packages for tables."""
    with _extras.needed("A model of a table"):
        from prudent.release.columns.number_rows import NumberTable
    return NumberTable(source, **options)


def rows_of(rows: Any, source: Any) -> Rows:
    """Rows of a table; those of a frame in memory are converted once, and kept as an array."""
    return ArrayRows(rows.names, lambda: matrix_of(rows)) if is_frame(source) else rows


def matrix_of(rows: Any, *, complete: bool = True) -> FloatArray:
    """All rows of a `NumberRows` in one array, with `complete` False also those with gaps."""
    return np.concatenate([np.empty((0, len(rows.names))), *rows.batches(complete=complete)])


@attrs.frozen(kw_only=True, eq=False, repr=False)  # its text would quote records
class ModelData:
    """What a model is fitted to."""

    # Features as an array or a frame; or a table with all columns, in memory, in a file (by its
    # path) or in an engine.
    data: Any
    # The targets as an array, or the name of a column of the table; None if the model needs none.
    target: Any = None
    # The public list of labels, if targets are labels: they become their places in it.
    classes: Sequence[Hashable] | None = None
    # The names of the columns that are features; None means all but the target.
    features: Sequence[str] | None = None
    connect: str | None = None  # the address of a database, instead of `data`
    table: str | None = None  # the name of the table in that database
    where: Any = None  # which rows to keep, as in `prudent.median`

    @property
    def named(self) -> bool:
        """Whether the data have named columns."""
        return self.connect is not None or is_table(self.data)

    def open(self) -> tuple[Rows, list[str]]:
        """Open the rows, without reading any; and return them with the names of the features."""
        if not self.named:
            return self._of_arrays()
        data, target = self.data, self.target
        if is_frame(data):
            names = list(map(str, getattr(data, "column_names", data.columns)))
            data = data.set_axis(names, axis=1) if hasattr(data, "set_axis") else data
            if target is not None and not isinstance(target, str):
                data, target = _with_target(data, self._targets()[:, 0], names)
        elif target is not None and not isinstance(target, str):
            raise ArgumentError(
                "y", "the name of a column of the table", shown=type(target).__name__
            )
        opened = number_table(data, connect=self.connect, table=self.table, where=self.where)
        features = [name for name in opened.names if name != target]
        if self.features is not None:
            for name in self.features:
                _validate.one_of(features, features=name)
            features = list(self.features)
        terms = {name: opened.number(name) for name in features}
        if target is not None:
            labels = self.classes is not None and isinstance(self.target, str)
            if labels and not self.classes:
                self._groups()  # refuses a type that has no labels
            terms[target] = opened.place(target, self.classes) if labels else opened.number(target)
        return rows_of(opened.rows(terms), data), features

    def _groups(self) -> Any:
        """The private groups of a named target, opened."""
        from prudent.release.columns.opening import open_private_groups

        given = {"connect": self.connect, "table": self.table, "where": self.where}
        return open_private_groups(self.data, by=self.target, **given)

    def labels(self, selection: PartitionSelection, noise: Noise) -> list[Hashable]:
        """Choose the labels that have enough records; private until then."""
        if isinstance(self.target, str):
            return selection.select(self._groups().counts(), noise)
        found = map(conversions.category, self._target_values().tolist())
        # Among objects 1, True and 1.0 are equal: which of them is named must not depend on
        # the record that comes first, so each type is chosen by itself.
        keyed: Counter[Hashable] = Counter(in_order(each) for each in found if each is not None)
        kept: list[Any] = [*selection.select(keyed, noise)]
        return list(dict.fromkeys(label for _, label, _ in kept))

    def _of_arrays(self) -> tuple[Rows, list[str]]:
        for name in ("features", "table", "where"):
            if getattr(self, name) is not None:
                raise ArgumentError(name, "only with a table", got=getattr(self, name))
        features = array_of(self.data)
        names = [f"x{place}" for place in range(features.shape[1])]
        if self.target is None:
            return ArrayRows.of(names, features), names
        targets = self._targets()
        if len(targets) != len(features):
            raise ArgumentError("y", "one value for each row of X", shown="another number")
        return ArrayRows.of([*names, "target"], features, targets), names

    def _target_values(self) -> npt.NDArray[Any]:
        """The targets of an array as they are."""
        from sklearn.utils.validation import column_or_1d

        given = self.target
        if isinstance(given, str):
            raise ArgumentError("y", "one value for each row of X", got=given)
        if not (hasattr(given, "__array__") or isinstance(given, Iterable)):
            raise ArgumentError("y", "one value for each row of X", shown=type(given).__name__)
        values = np.asarray(given) if hasattr(given, "__array__") else _objects(given)
        values = conversions.real(values)
        # The messages of scikit-learn hold the number of records, or the records themselves.
        if values.ndim > 2 or values.shape[1:] not in ((), (1,)):
            raise ArgumentError("y", "one real number for each row of X", shown="another array")
        return np.asarray(column_or_1d(values, warn=True))

    def _targets(self) -> FloatArray:
        """The targets of an array as doubles, labels as their places."""
        values = self._target_values()
        if self.classes is None:
            return doubles(values)
        places = {label: float(at) for at, label in enumerate(self.classes)}
        found = [places.get(conversions.category(each), np.nan) for each in values.tolist()]
        return np.array(found, np.float64)[:, None]


def array_of(data: Any) -> npt.NDArray[Any]:
    """An array of two dimensions, of any type.

    Raises:
        TypeError: for a sparse matrix.
        ValueError: for another number of dimensions, or complex numbers.
    """
    if hasattr(data, "tocsr"):
        raise TypeError("Sparse data were passed for X, but dense data are required: X.toarray().")
    if not (hasattr(data, "__array__") or isinstance(data, Iterable)):
        raise ArgumentError("X", "an array, a frame or a table", shown=type(data).__name__)
    array = np.asarray(data) if hasattr(data, "__array__") else _objects(data)
    if array.ndim != 2:
        raise ValueError(
            f"Expected a 2D array for X, got one of {array.ndim} dimensions. Reshape your data "
            "with X.reshape(-1, 1) if it has a single feature."
        )
    if array.dtype.kind == "c":
        raise ValueError("Complex data not supported: give the parts as columns of their own.")
    if array.dtype.kind in "US":
        hint = "Give a frame, in which one text leaves the other columns numbers."
        raise ArgumentError("X", "an array of numbers", shown="one of texts", hint=hint)
    if not array.shape[1]:
        # In scikit-learn's words, without the number of records, which is private.
        raise ValueError(
            "Found array with 0 feature(s) (shape=(, 0)) while a minimum of 1 is required."
        )
    return array


def queries_of(data: Any, features: Sequence[str]) -> FloatArray:
    """The features of all rows that a fitted model is asked about, in their order; NaN in gaps."""
    if not is_table(data):
        return doubles(array_of(data))
    if hasattr(data, "set_axis"):
        data = data.set_axis(list(map(str, data.columns)), axis=1)
    opened = number_table(data, columns=list(features))
    rows = opened.rows({name: opened.number(name) for name in features})
    return matrix_of(rows, complete=False)


def _with_target(frame: Any, values: FloatArray, names: list[str]) -> tuple[Any, str]:
    """Add a column of targets to a frame, and return the frame and the column's name."""
    name = "target"
    while name in names:
        name += "_"
    if len(values) != len(frame):
        raise ArgumentError("y", "one value for each row of X", shown="another number")
    kind = type(frame).__module__.split(".")[0]
    if kind == "pandas":
        return frame.assign(**{name: values}), name
    if kind == "polars":
        import polars

        return frame.with_columns(polars.Series(name, values)), name
    import pyarrow

    return frame.append_column(name, pyarrow.array(values)), name
