"""The rows that a model reads, from arrays, frames, files, databases and Spark.

A record is one row: its features and, for some models, its target, all as doubles. A row that has
no value (NULL, NaN, or something that is not a number) in one of the columns is absent, and an
infinite value is a value at the end. Nothing is read before the model is charged, except names,
types and the number of columns, which are public: containers declare them. A list of rows declares
nothing, and the length of one of its rows would decide how many features there are; so features
come as an array or a table.
"""

import datetime
import functools
import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _extras, _validate
from prudent._validate import ArgumentError
from prudent.release.columns import scales
from prudent.release.columns.column import Column, in_order
from prudent.release.columns.scales import Scale
from prudent.release.lattice import FloatArray
from prudent.release.noise import Noise, PartitionSelection

_BATCH = 2**15
_TEXTS = ("StringDtype", "CategoricalDtype")  # types of pandas that are declared to hold no numbers
_NUMBERS = "biufmMcO"  # kinds of arrays in which each cell may hold a number


class Rows(Protocol):
    """Rows of doubles, without those that have a gap. All that is read from them is private."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the columns; the target is last."""
        ...

    def batches(self) -> Iterator[FloatArray]:
        """Read all rows, a few at a time; the order and the sizes of batches mean nothing."""
        ...

    def column(self, place: int, /) -> Column:
        """One column, for a private quantile."""
        ...


class ArrayRows:
    """Rows in memory, which are read once, when they are first asked for."""

    def __init__(self, names: Sequence[str], read: Callable[[], FloatArray]) -> None:
        """Remember what returns all rows that have no gap."""
        self.names = tuple(names)
        self._read = functools.cache(read)

    @classmethod
    def of(cls, names: Sequence[str], *parts: npt.NDArray[Any]) -> "ArrayRows":
        """Put two-dimensional arrays, or one-dimensional ones of one column, side by side."""
        return cls.beside(names, *(functools.partial(doubles, part) for part in parts))

    @classmethod
    def beside(cls, names: Sequence[str], *parts: Callable[[], FloatArray]) -> "ArrayRows":
        """Rows whose columns several functions return, all rows in one order, NaN in gaps."""

        def read() -> FloatArray:
            matrix = np.concatenate([part() for part in parts], axis=1)
            return np.ascontiguousarray(matrix[~np.isnan(matrix).any(axis=1)])

        return cls(names, read)

    def batches(self) -> Iterator[FloatArray]:
        """See `Rows`."""
        matrix = self._read()
        for start in range(0, len(matrix), _BATCH):
            yield matrix[start : start + _BATCH]

    @functools.cached_property
    def column(self) -> Callable[[int], Column]:
        """See `Rows`."""
        from prudent.release.columns.arrow_tables import open_matrix

        return open_matrix(self._read())


def doubles(array: npt.NDArray[Any]) -> FloatArray:
    """Convert an array of one or two dimensions to doubles, each value alone; NaN if it has none.

    Times are converted as in a column of their own: to days or microseconds. What a masked array
    masks is no value.
    """
    array = array[:, None] if array.ndim == 1 else array
    if isinstance(array, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(array), np.nan, doubles(array.data))
    array = scales.real(array)
    if array.dtype.kind in "biuf":
        with np.errstate(over="ignore"):  # a warning would reveal that some record is huge
            return array.astype(np.float64)
    if array.dtype.kind in "mM":
        found = np.full(array.shape, np.nan)
        known = ~np.isnat(array)
        found[known] = scales.numbers_of_times(array[known])
        return found
    return np.array(list(map(_double, array.ravel().tolist())), np.float64).reshape(array.shape)


def _double(value: Any) -> float:
    if type(value) is datetime.date:
        return Scale("date").record(value)
    number = scales.number(value)
    return Scale("timestamp").record(value) if number != number else number


def _array(data: Any) -> npt.NDArray[Any]:
    return data if isinstance(data, np.ma.MaskedArray) else np.asarray(data)


def is_table(data: Any) -> bool:
    """Whether data have named columns: a frame, a path, a table of an engine."""
    if isinstance(data, np.ndarray | list | tuple) or data is None:
        return False
    if isinstance(data, str) or hasattr(data, "__fspath__"):
        return True
    # Of its type first: the names of a lazy frame cost a warning.
    return hasattr(type(data), "columns") or hasattr(data, "columns")


def is_frame(data: Any) -> bool:
    """Whether data are a frame in memory, of pandas, polars or pyarrow."""
    return type(data).__module__.split(".")[0] in ("pandas", "polars", "pyarrow")


def number_table(source: Any, **options: Any) -> Any:
    """Open a `NumberTable`, which needs the packages for tables.

    Raises:
        ArgumentError: if two columns of a frame have the same name.
    """
    with _extras.needed("A model of a table"):
        from prudent.release.columns.number_rows import NumberTable
    names = _column_names(source) if is_frame(source) else []
    if len(set(names)) < len(names):
        raise ArgumentError("X", "columns of different names", shown="two of the same name")
    source = source.set_axis(names, axis=1) if hasattr(source, "set_axis") else source
    # A column of objects of pandas declares nothing: one record makes it of a column of numbers.
    types = source.dtypes.items() if hasattr(source, "set_axis") else ()
    texts = [name for name, each in types if type(each).__name__ in _TEXTS]
    return NumberTable(source, texts=texts, **options)


def _column_names(frame: Any) -> list[str]:
    if hasattr(frame, "collect_schema"):  # of polars, where `columns` of a lazy frame warns
        return list(frame.collect_schema().names())
    schema = getattr(frame, "schema", None)
    return list(map(str, frame.columns if schema is None else schema.names))


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
    # The privacy unit of each row: the name of a column of the table or, beside an array of
    # targets, an array. None: every row is one.
    unit: Any = None
    most: int = 1  # the number of rows that are kept of a unit

    @property
    def named(self) -> bool:
        """Whether the data have named columns."""
        return self.connect is not None or is_table(self.data)

    def open(self) -> tuple[Rows, list[str]]:
        """Open the rows, without reading any; and return them with the names of the features."""
        if self.unit is not None and isinstance(self.target, str):
            _validate.instance(str, "the name of a column of the table", unit=self.unit)
        own = not self.named or not all(
            each is None or isinstance(each, str) for each in (self.target, self.unit)
        )
        if not self.named:
            for name in ("features", "table", "where"):
                if getattr(self, name) is not None:
                    raise ArgumentError(name, "only with a table", got=getattr(self, name))
            array = array_of(self.data)
            records, names = len(array), [f"x{place}" for place in range(array.shape[1])]
            read: Callable[[], FloatArray] = functools.partial(doubles, array)
        elif own and (
            self.where is not None
            or not is_frame(self.data)
            or not hasattr(self.data, "__len__")  # a lazy frame has no length
        ):
            name = "unit" if self.target is None else "y"
            raise ArgumentError(name, "the name of a column of the table", shown="an array")
        else:
            terms, names, opened = self._terms(None if own else self.target)
            if not own:
                rows = opened.rows(terms, unit=self.unit, most=self.most)
                return rows_of(rows, self.data), names
            rows = opened.rows(terms)
            records, read = len(self.data), functools.partial(matrix_of, rows, complete=False)
        parts, whole = [read], list(names)
        if self.target is not None:
            count, targets = self._targets()
            if count != records:
                raise ArgumentError("y", "one value for each row of X", shown="another number")
            parts, whole = [read, targets], [*names, "target"]
        if self.unit is None:
            return ArrayRows.beside(whole, *parts), names
        if len(_container(self.unit, "unit")) != records:
            raise ArgumentError("unit", "one value for each row of X", shown="another number")
        return ArrayRows(whole, functools.partial(self._of_units, *parts)), names

    def _of_units(self, *parts: Callable[[], FloatArray]) -> FloatArray:
        """Of rows beside an array of units, what is kept of each unit."""
        import pyarrow

        def units() -> FloatArray:
            codes: dict[Hashable, float] = {None: math.nan}
            cells = map(scales.category, _cells(self.unit, "unit"))
            return np.array([codes.setdefault(each, float(len(codes))) for each in cells])[:, None]

        columns = ArrayRows.beside((), *parts, units)._read().T
        *names, unit = (f"x{place}" for place in range(len(columns)))
        opened = number_table(pyarrow.table(dict(zip([*names, unit], columns, strict=True))))
        terms = {name: opened.number(name) for name in names}
        return matrix_of(opened.rows(terms, unit=unit, most=self.most))

    def _terms(self, target: str | None) -> tuple[dict[str, Any], list[str], Any]:
        """Columns of the table, the names of those that are features, and the table, opened."""
        opened = number_table(self.data, connect=self.connect, table=self.table, where=self.where)
        named = self.unit if isinstance(self.unit, str) else None
        features = [name for name in opened.names if name not in (target, named)]
        if self.features is not None:
            wanted = _validate.values(features=self.features)
            for name in wanted:
                _validate.one_of(features, features=name)
            if len(set(features := wanted)) < len(features):
                raise ArgumentError("features", "each named once", shown="one of them twice")
        terms = {name: opened.number(name) for name in features}
        if target is not None:
            if self.classes == []:
                self._groups()  # refuses a type that has no labels
            labels = self.classes is not None
            terms[target] = opened.place(target, self.classes) if labels else opened.number(target)
        if not features:
            raise _no_features()
        return terms, features, opened

    def _groups(self) -> Any:
        """The private groups of a named target, opened."""
        given = {"connect": self.connect, "table": self.table, "where": self.where}
        return private_groups(self.data, self.target, unit=self.unit, **given)

    def labels(self, selection: PartitionSelection, noise: Noise) -> list[Hashable]:
        """Choose the labels that have enough records; private until then."""
        if isinstance(self.target, str):
            return named_labels(selection.select(self._groups().counts(), noise), self.data)
        # One record without a label makes floats of whole numbers in some containers.
        whole = (
            int(each) if type(each) is float and each.is_integer() else each
            for each in self.cells()
        )
        # Among objects 1, True and 1.0 are equal: which of them is named must not depend on
        # the record that comes first, so each type is chosen by itself.
        given = [None if each is None else in_order(each) for each in whole]
        if self.unit is not None:  # each counts for the label that most of its rows have
            own: dict[Hashable, Counter[Any]] = defaultdict(Counter)
            for each, unit in zip(given, _cells(self.unit, "unit"), strict=True):
                own[scales.category(unit)].update([] if each is None else [each])
            own.pop(None, None)
            given = [min(each, key=lambda k: (-each[k], k), default=None) for each in own.values()]
        keyed: Counter[Hashable] = Counter(each for each in given if each is not None)
        kept: list[Any] = [*selection.select(keyed, noise)]
        return list(dict.fromkeys(label for _, label, _ in kept))

    def cells(self) -> list[Any]:
        """The categories of targets that are not in the table; None where there is none."""
        return list(map(scales.category, _cells(self.target, "y")))

    def numbers(self) -> list[float]:
        """Targets that are not in the table, as doubles; NaN where there is none."""
        return list(map(float, self._targets()[1]()[:, 0]))

    def _targets(self) -> tuple[int, Callable[[], FloatArray]]:
        """The number of targets that are not in the table, and what reads them as doubles."""
        given = _container(self.target, "y")
        if self.classes is not None:
            places = {label: float(at) for at, label in enumerate(self.classes)}

            def read() -> FloatArray:
                found = [places.get(each, np.nan) for each in self.cells()]
                return np.array(found, np.float64)[:, None]

            return len(given), read
        if isinstance(given, np.ndarray):
            if given.dtype.kind not in _NUMBERS:
                raise ArgumentError("y", "numbers", shown=f"an array of type {given.dtype}")
            return len(given), functools.partial(doubles, given)
        terms, _, opened = ModelData(data=given)._terms(None)
        return len(given), functools.partial(matrix_of, opened.rows(terms), complete=False)


def named_labels(found: list[Hashable], source: Any) -> list[Hashable]:
    """Labels that were found, as a user names them.

    Without a declared type labels are texts; those of numbers are named as numbers.
    """
    if not hasattr(source, "iloc"):
        return found
    named = [_named(each) if isinstance(each, str) else each for each in found]
    return found if any(isinstance(each, str) for each in named) else named


def _named(text: str) -> Hashable:
    """What a frame of pandas has written as this text: a boolean or a number, else the text."""
    if text in ("True", "False"):
        return text == "True"
    try:
        number = float(text)
    except ValueError:
        return text
    written = scales.written(np.array([number])).to_pylist() == [text]  # "01" is none
    return scales.category(number) if written else text


def private_groups(source: Any, name: str, **given: Any) -> Any:
    """The groups of a column of a table, opened, for a private choice among them."""
    from prudent.release.columns.opening import open_private_groups

    return open_private_groups(source, by=name, **given)


def _cells(column: Any, name: str) -> list[Any]:
    """A column that is not in the table, as objects; None for a cell that cannot be read."""
    given = _container(column, name)
    if isinstance(given, np.ndarray):
        return given.reshape(-1).tolist()  # None where masked
    column = given.iloc[:, 0] if hasattr(given, "iloc") else given[_column_names(given)[0]]
    column = column.to_arrow() if hasattr(column, "to_arrow") else column  # of polars
    try:
        return list(column.to_list() if hasattr(column, "to_list") else column.to_pylist())
    except Exception:  # of one cell, which would then speak for all
        return [_cell(column, place) for place in range(len(column))]


def _container(column: Any, name: str) -> Any:
    """An array of one column, or a frame; nothing is converted, or read."""
    given = column
    if isinstance(given, list | tuple):
        given = np.fromiter(given, dtype=object, count=len(given))  # whatever each of them is
    elif is_frame(given):
        given = _frame_of(given)
        if set(map(str, getattr(given, "dtypes", ()))) == {"object"}:
            given = given.to_numpy()  # without a type to convert by, each cell has its own
    elif not isinstance(given, str) and hasattr(given, "__array__"):
        given = _array(given)
    else:
        raise ArgumentError(name, "one value for each row of X", shown=type(given).__name__)
    shape = getattr(given, "shape", ())
    if not 1 <= len(shape) <= 2 or shape[1:] not in ((), (1,)):
        # A message of scikit-learn would hold the number of records.
        raise ArgumentError(name, "one value for each row of X", shown="another array")
    if name == "y" and len(getattr(column, "shape", ())) == 2:
        from sklearn.exceptions import DataConversionWarning

        told = "A column-vector y was passed when a 1d array was expected: y.ravel()."
        warnings.warn(told, DataConversionWarning, stacklevel=2)
    return given


def array_of(data: Any) -> npt.NDArray[Any]:
    """An array of two dimensions, of any type.

    Raises:
        TypeError: for a sparse matrix.
        ValueError: for another number of dimensions, or complex numbers.
    """
    if hasattr(data, "tocsr"):
        raise TypeError("Sparse data were passed for X, but dense data are required: X.toarray().")
    if not hasattr(data, "__array__"):
        raise ArgumentError(
            "X",
            "an array, a frame or a table",
            shown=type(data).__name__,
            why="in a list of rows, one record could decide how many features there are",
            hint="Write numpy.array(X, dtype=float).",
        )
    array = _array(data)
    if array.ndim != 2:
        raise ValueError(
            f"Expected a 2D array for X, got one of {array.ndim} dimensions. Reshape your data "
            "with X.reshape(-1, 1) if it has a single feature."
        )
    if array.dtype.kind == "c":
        raise ValueError("Complex data not supported: give the parts as columns of their own.")
    if array.dtype.kind not in _NUMBERS:
        hint = "Give a frame, in which one text leaves the other columns numbers."
        raise ArgumentError("X", "an array of numbers", shown="one of texts", hint=hint)
    if not array.shape[1]:
        raise _no_features()
    return array


def _no_features() -> ValueError:
    # In scikit-learn's words, without the number of records, which is private.
    return ValueError(
        "Found array with 0 feature(s) (shape=(, 0)) while a minimum of 1 is required."
    )


def queries_of(data: Any, features: Sequence[str]) -> FloatArray:
    """The features of all rows that a fitted model is asked about, in their order; NaN in gaps."""
    if not is_table(data):
        return doubles(array_of(data))
    opened = number_table(data, columns=list(features))
    rows = opened.rows({name: opened.number(name) for name in features})
    return matrix_of(rows, complete=False)


def _frame_of(column: Any) -> Any:
    """A column of pandas, polars or Arrow as a frame; a frame as it is."""
    if type(column).__module__.split(".")[0] == "pyarrow":
        import pyarrow

        return column if hasattr(column, "schema") else pyarrow.table({"target": column})
    if hasattr(column, "columns"):
        return column
    if not hasattr(column, "to_frame"):  # an array of pandas
        import pandas

        column = pandas.Series(column)
    return column.to_frame("target")


def _cell(column: Any, place: int) -> Any:
    try:
        found = column.iloc[place] if hasattr(column, "iloc") else column[place]
        return found.as_py() if hasattr(found, "as_py") else found
    except Exception:
        return None
