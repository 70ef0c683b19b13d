"""Opening a column of a table in any engine: embedded DuckDB, PostgreSQL, Spark.

`open_column` turns nearly any source into a `Column`. Its methods run as queries in the engine that
holds the data (`columns.sql.queries`). This module defines which value a record has.

One record is one value or none:

| a record | counts as |
| --- | --- |
| a number, date, time or duration | its number, in the unit of the column's scale (`scales`) |
| NULL, NaN | no value: it is not in the column |
| +inf, -inf, an infinite date | a value at the end; releases clip it to the ends of their lattice |
| text in a CSV file or a column of objects | read as `read_as` says; no value if it is not that |
| with `unit`: all rows of a unit | what `per_unit` says (`Contribution`); none if none has one |
| with `unit`: a row whose unit is NULL | no value: it belongs to no unit |
| with groups: a row of a group that is not listed | no value |

Each line of this table is a function of one record (of one unit's rows), so adding or removing one
record adds or removes at most one value, or `contribution.records` values of one unit: adjacent
tables have adjacent columns.

Columns of text and booleans have no numbers, and are refused before anything is read or
charged. In a CSV file every column is text, and whether its records are numbers is private. So
there a column is of numbers unless `read_as` declares otherwise, and a record that is not a number
has no value.
"""

import itertools
import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import ibis
import ibis.expr.types as ir
import numpy as np
import numpy.typing as npt
import pyarrow
from typing_extensions import override

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.release.columns import scales
from prudent.release.columns.column import (
    KINDS,
    Column,
    Contribution,
    KeptGroups,
    Kind,
    PerUnit,
    in_order,
)
from prudent.release.columns.dialects import backend_name, connection_lock, exact
from prudent.release.columns.row_values.conditions import Predicate
from prudent.release.columns.row_values.groups import public_groups
from prudent.release.columns.scales import INTEGER, NUMBER, OF_TEXT, TRUTH, Scale
from prudent.release.columns.sources import embedded
from prudent.release.columns.table_columns import TableColumn
from prudent.release.columns.table_rows import (
    ColumnSpec,
    Opened,
    Sizes,
    filtered,
    group_key,
    open_rows,
)
from prudent.release.lattice import FloatArray


def open_column(
    source: Any = None,
    column: str | None = None,
    *,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    where: Predicate | str | None = None,
    connect: str | None = None,
    table: str | None = None,
    kind: Kind = "numbers",
    read_as: str | Mapping[str, str] | None = None,
    other: str | None = None,
) -> Column:
    """Open a column of a table to release from.

    Args:
        source: An array of values, or a source that `open_source` accepts: a path, a frame, an ibis
            table.
        column: The name of the column, or an expression of one row such as "price * quantity" or
            "age >= 18"; None for an array, and where only rows are counted.
        unit: The column that identifies the privacy unit of a row. Each unit then counts once, or
            `per_unit` times. Without it every row is its own unit: that protects rows, and protects
            a person only if no person has two rows.
        per_unit: What the rows of a unit become: "mean", "median", "min", "max", "sum", "count", or
            a number of rows; see `Contribution`. None means the mean of numbers, and the first in
            order of categories.
        where: Which rows to keep: a function of the table that looks at one row at a time, such as
            `lambda t: t.year == 2024`, or its text, such as "year = 2024".
        connect: The address of a database, instead of a source.
        table: The name of the table in that database.
        kind: Whether the values are numbers (also dates, times, durations) or categories; only the
            mode takes categories.
        read_as: What the texts of a CSV file, or the records of a list, are: "number", "integer",
            "decimal(2)", "boolean", "date", "timestamp", "duration" (in seconds). None means
            numbers. Columns that have a type of their own do not need it.
        other: A second column of numbers, for a statistic of two; the records are pairs then.

    Raises:
        SourceError: if there is no such table, or it cannot be read.
        ValueError: if there is no such column or it has the wrong type.
    """
    given = locals()
    if isinstance(source, np.ndarray | list | tuple) and connect is None:
        if any(each is not None for each in (column, unit, per_unit, where)):
            raise ValueError("Expected column, unit and where only with a table, got an array.")
        return open_values(source, kind, read_as)  # type: ignore[arg-type]
    return open_rows(ColumnSpec(**given)).column()


def open_groups(
    source: Any = None,
    column: str | None = None,
    *,
    by: str | Sequence[str],
    groups: Sequence[Hashable] | Mapping[str, Sequence[Hashable]] | None,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    where: Predicate | str | None = None,
    connect: str | None = None,
    table: str | None = None,
    kind: Kind = "numbers",
    read_as: str | Mapping[str, str] | None = None,
    other: str | None = None,
    kept: KeptGroups | None = None,
) -> dict[Hashable, Column]:
    """Open one column for each group of a public list.

    Guarantee: a record, or all rows of a unit together, contribute to at most one group. So
    releasing from every group costs as much as one release (parallel composition).

    Args:
        source: See `open_column`; not an array.
        by: The column with the group of each row, or several columns. A date or time counts by
            its period with "joined:month", or as in SQL "date_trunc('month', joined)".
        groups: The groups, from public knowledge, of several columns as tuples; or a list for each
            column, by its name: all combinations are groups. "2024-01..2024-12" in a list of
            periods stands for all from one to the other. Which groups occur in the data is private.
        unit: See `open_column`; a unit counts only in that one of the listed groups which holds
            most of its rows (the first in order among ties), and only with its rows there.
        kept: Instead, in how many groups a unit counts, chosen among its own at random. Releasing
            from every group then costs as much as so many releases.

    The other arguments are those of `open_column`.

    Raises:
        ValueError: also if the list of groups is missing, empty or repeats a group.
    """
    given = locals()
    del given["groups"]
    opened = open_rows(ColumnSpec(**(given | {"by": _keys(by)})))
    members = opened.members(public_groups(groups, by, opened.keys))
    return opened.within(members).columns(members)


def _keys(by: Any) -> str | tuple[str, ...]:
    """One column of groups, or several."""
    if isinstance(by, str):
        return by
    found = tuple(_validate.values(by=by))
    if not found or len(set(map(str, found))) < len(found):
        raise ArgumentError("by", "one or more distinct columns", got=by)
    return found


class PrivateGroups:
    """The groups of a table. Nothing that it returns may be published without a mechanism.

    Which groups occur in the data depends on single records. A mechanism reads all counts, releases
    the names of the groups that pass its test, and only then opens the columns of these.

    Guarantee: a record, or all rows of a unit together, are in one group, with at most
    `contribution.records` values: adding or removing a unit changes one count, by at most that.
    """

    def __init__(self, opened: Opened) -> None:
        """Wrap records that have a group, without reading any."""
        self._opened = opened
        self._staged = opened.staged()
        self._sizes: Sizes | None = None

    @property
    def contribution(self) -> Contribution:
        """What one unit contributes to its group."""
        return self._opened.contribution

    def whole(self) -> Column:
        """The column of all groups together, for what its type makes public."""
        return self._opened.column()

    def counts(self, *, at_least: int = 1) -> dict[Hashable, int]:
        """Return the number of records of every group, in one query."""
        self._sizes = self._opened.sizes(self._staged, at_least=at_least)
        return {self._opened.named(stored): count for stored, count in self._sizes.items()}

    def columns(self, groups: Sequence[Hashable]) -> dict[Hashable, Column]:
        """Return the column of each of the groups whose names were released."""
        members = self._opened.members(groups)
        return self._opened.columns_of(self._staged, members, self._known)

    def _known(self) -> Sizes:
        if self._sizes is None:  # the groups were chosen by the counts of other records
            self._sizes = self._opened.sizes(self._staged)
        return self._sizes


def open_private_groups(
    source: Any = None,
    column: str | None = None,
    *,
    by: str | Sequence[str],
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    **options: Any,
) -> PrivateGroups:
    """Open all groups of a table, without reading a record."""
    if column is None:
        options["kind"] = "rows"
    asked = ColumnSpec(source, column, by=_keys(by), unit=unit, per_unit=per_unit, **options)
    return PrivateGroups(open_rows(asked))


Batches: TypeAlias = Iterator[tuple[list[Any], npt.NDArray[np.int64]]]

_ROWS = 4096


def open_vectors(asked: ColumnSpec, groups: Sequence[Hashable]) -> Callable[[], Batches] | None:
    """Open a column of vectors and the groups of its rows, without reading any.

    No engine can tell which of many landmarks a vector is nearest to, so vectors leave it. They do
    so in batches, and a record that is no vector of numbers counts as absent where it is read.
    """
    opened, rows = filtered(asked)
    dtype = rows[asked.column].type()
    if not dtype.is_array():
        return None
    if not (dtype.value_type.is_integer() or dtype.value_type.is_floating()):
        raise ArgumentError("column", "an array of numbers", shown=f"{asked.column!r} of {dtype}")
    if asked.unit is not None or asked.per_unit is not None:
        raise ArgumentError("unit", "none with a column of vectors", got=asked.unit)
    (name,) = asked.keys
    key = group_key(rows, name, opened)
    chosen = rows.select(value=rows[asked.column], member_0=exact(key.value, backend_name(rows)))
    known = Opened(chosen, dtype, (None,), Contribution(), (key,), True, opened)
    places = [
        (chosen.member_0 == stored, number)
        for number, (stored,) in enumerate(known.members(groups).values())
    ]
    chosen = chosen.filter(ibis.or_(*(same for same, _ in places)) & chosen.value.notnull())
    numbered = chosen.select(value=chosen.value, number=ibis.cases(*places, else_=-1))

    def read() -> Batches:
        assert known.owner  # the source stays open until the last row is read
        rows = _rows(numbered)
        while batch := list(itertools.islice(rows, _ROWS)):
            vectors, numbers = zip(*batch, strict=True)
            yield list(vectors), np.array(numbers, np.int64)

    return read


def _rows(table: ir.Table) -> Iterator[tuple[Any, int]]:
    """The rows of a query, as the engine hands them over: few are in memory at a time."""
    if table.op().find(ibis.expr.operations.InMemoryTable):  # only ibis itself can hand them over
        yield from zip(*table.to_pyarrow().to_pydict().values(), strict=True)
        return
    backend, sql = table.get_backend(), ibis.to_sql(table)
    if backend.name == "pyspark":
        yield from backend.raw_sql(sql).toLocalIterator()
    elif backend.name == "postgres":
        with backend.con.cursor(name="prudent_vectors") as cursor:  # on the server: not all at once
            cursor.itersize = _ROWS
            yield from cursor.execute(sql)
    else:
        with connection_lock(backend):
            answer = backend.raw_sql(sql)
            while rows := answer.fetchmany(_ROWS):
                yield from rows


def open_values(values: Any, kind: Kind, read_as: str | None = None) -> Column:
    """Open an array, a list or a tuple as a column of numbers or of categories.

    In a list or an array of objects, a record that is not a number (or, for categories, not a
    string, date or other plain category) has no value.
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
        values = scales.real(values)
    if kind in ("numbers", "truth"):
        numbers, scale = _numbers(values, kind, read_as)
        return TableColumn(_registered({"value": numbers[~np.isnan(numbers)]}), scale=scale)
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        values = values[~np.isnan(values)] if values.dtype.kind == "f" else values
        found, places = np.unique(values, return_inverse=True)
        return _Categories({each + 0: scales.category(each) for each in found}, places)
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
            scales.numbers_of_times(values),
            scales.scale_of_array(values.dtype),
        )
    else:
        usual = TRUTH if kind == "truth" else NUMBER
        scale = usual if read_as is None else Scale.named(read_as)
        plain = scale in (NUMBER, INTEGER)
        if typed and plain:
            with np.errstate(over="ignore"):  # a warning would reveal that some record is huge
                numbers = values.astype(np.float64)
        else:
            read = scales.number if plain else scale.record
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
        named = [each for each in map(scales.category, values) if each is not None]
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
