"""Values without a table, in an array, a list or a tuple, as columns that DuckDB is asked about.

The type of an array decides how it is read. Of untyped data, a list or an array of objects, each
record is converted alone, so that one odd record does not affect the others. DuckDB is given plain
numbers: of categories their places in the order of all, which no answer depends on otherwise.
"""

import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import ibis
import ibis.expr.types as ir
import numpy as np
import numpy.typing as npt
import pyarrow
from typing_extensions import override

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.release.columns import conversions
from prudent.release.columns.column import KINDS, Column, Kind, in_order
from prudent.release.columns.scales import INTEGER, NUMBER, OF_TEXT, TRUTH, Scale
from prudent.release.columns.sources import embedded
from prudent.release.columns.sql.table_columns import TableColumn
from prudent.release.lattice import FloatArray


def open_values(values: Any, kind: Kind, read_as: str | None = None) -> Column:
    """Open an array, a list or a tuple as a column of numbers or of categories.

    In a list or an array of objects, a record that is not a number (or, for categories, not a
    string, date or other plain category) has no value.

    Args:
        values: The records.
        kind: Whether they are numbers or categories.
        read_as: The type of the records of a list or an array of numbers or objects, whose own
            types are not public: see `Scale.named`. None means numbers.

    Raises:
        ArgumentError: if it has several dimensions, or numbers are requested and a typed array
            holds something else.
    """
    _validate.instance(
        (list, tuple, np.ndarray), "an array, a list or a tuple of records", values=values
    )
    _validate.one_of(KINDS, kind=kind)
    if isinstance(values, np.ndarray):
        if values.ndim != 1:  # the message omits the shape: the number of records is private
            raise ArgumentError("data", "one-dimensional", shown=f"{values.ndim} dimensions")
        if isinstance(values, np.ma.MaskedArray):
            values = values.compressed()
        values = conversions.real(values)
    if kind in ("numbers", "truth"):
        numbers, scale = _numbers(values, kind, read_as)
        return TableColumn(_registered({"value": numbers[~np.isnan(numbers)]}), scale=scale)
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        values = values[~np.isnan(values)] if values.dtype.kind == "f" else values
        found, places = np.unique(values, return_inverse=True)
        return _Categories({each + 0: conversions.category(each) for each in found}, places)
    return _Categories.of(values)


def _numbers(values: Any, kind: Kind, read_as: str | None) -> tuple[FloatArray, Scale]:
    """The numbers of values, NaN where there is none, and their scale."""
    typed = isinstance(values, np.ndarray) and values.dtype != object
    if typed and values.dtype.kind not in "biuf":
        if read_as is not None:
            raise ArgumentError(
                "read_as", "only with a list or a text column", got=read_as, why="an array is typed"
            )
        if values.dtype.kind not in "mM":
            what = "that are numbers, dates, times or durations"
            raise ArgumentError("values", what, shown="others", hint=OF_TEXT)
        numbers, scale = (
            conversions.numbers_of_times(values),
            conversions.scale_of_array(values.dtype),
        )
    else:
        usual = TRUTH if kind == "truth" else NUMBER
        scale = usual if read_as is None else Scale.named(read_as)
        plain = scale in (NUMBER, INTEGER)
        if typed and plain:
            with np.errstate(over="ignore"):  # a warning would reveal that some record is huge
                numbers = values.astype(np.float64)
        else:
            read = conversions.number if plain else scale.record
            numbers = np.fromiter(map(read, values), np.float64)
    if kind == "truth" and not scale.truth:
        raise ArgumentError("values", "that are true or false", shown="others")
    return numbers, scale


class _Categories(TableColumn):
    """Categories of any types, each stored as its place in their order."""

    def __init__(self, shown: Mapping[Hashable, Any], places: npt.NDArray[Any]) -> None:
        """Take the displayed categories, by their keys, in order, and the place of each record."""
        super().__init__(_registered({"value": places.astype(np.int64)}))
        self._shown = list(shown.values())
        self._places = {key: place for place, key in enumerate(shown)}
        self._key: Callable[[Any], Hashable] = lambda category: category

    @classmethod
    def of(cls, values: Any) -> "_Categories":
        """Read untyped values, or texts or times: 1 and 1.0 are two categories here."""
        if isinstance(values, np.ndarray) and values.dtype.kind not in "mM":
            values = values.tolist()  # nanoseconds would become integers
        named = [each for each in map(conversions.category, values) if each is not None]
        found = {(type(each), each): in_order(each) for each in named}
        keys = dict(sorted(found.items(), key=lambda pair: pair[1]))
        place = {pair: place for place, pair in enumerate(keys)}
        places = np.fromiter((place[type(each), each] for each in named), np.int64, len(named))
        column = cls({key: each for (_, each), key in keys.items()}, places)
        column._key = in_order
        return column

    @override
    def most_frequent(self) -> Any:
        found = super().most_frequent()
        return None if found is None else self._shown[found]

    @override
    def listed(self, categories: Sequence[Hashable]) -> list[Any]:
        return [self._places.get(self._key(each), -1) for each in categories]


def open_matrix(matrix: FloatArray) -> Callable[[int], Column]:
    """Open the columns of a matrix without gaps, registered once; returns that of each place."""
    names = [f"x{place}" for place in range(matrix.shape[1])]
    table = _registered({name: matrix[:, place] for place, name in enumerate(names)})
    return lambda place: TableColumn(table.select(value=names[place]), scale=NUMBER)


def _registered(columns: Mapping[str, npt.NDArray[Any]]) -> ir.Table:
    """A table in memory, in a connection of its own, which closes when nothing refers to it."""
    backend, name = embedded(), f"prudent_{uuid.uuid4().hex}"
    backend.con.register(name, pyarrow.table(dict(columns)))
    schema = ibis.schema({each: str(of.dtype) for each, of in columns.items()})
    # Its schema is known: `backend.table` would ask for it.
    return ibis.expr.operations.DatabaseTable(name=name, schema=schema, source=backend).to_expr()
