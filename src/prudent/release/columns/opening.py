"""Opening a column of a table in any engine: embedded DuckDB, PostgreSQL, Spark.

`open_column` turns nearly any source into a `Column`. Its methods run as queries in the engine that
holds the data (`prudent.release.columns.queries`). This module defines which value a record has.

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

Columns of text and truth values have no numbers, and are refused before anything is read or
charged. In a CSV file every column is text, and whether its records are numbers is private. So
there a column is of numbers unless `read_as` declares otherwise, and a record that is not a number
has no value.
"""

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeAlias

import attrs
import ibis
import ibis.expr.types as ir
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.release.columns.column import ArrayColumn, Column, Contribution, Kind, PerUnit
from prudent.release.columns.conditions import Predicate
from prudent.release.columns.dialects import INTEGERS, backend_name, encoding, exact, fetched
from prudent.release.columns.queries import sizes_of_groups
from prudent.release.columns.scales import DATE
from prudent.release.columns.table_rows import Asked, Opened, filtered, grouping, open_rows
from prudent.release.failures import withheld


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
    read_as: str | None = None,
) -> Column:
    """Open a column of a table to release from.

    Args:
        source: An array of values, or a source that `open_source` accepts: a path, a frame, an ibis
            table.
        column: The name of the column; None for an array.
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
            "decimal(2)", "date", "timestamp", "duration" (in seconds). None means numbers. Columns
            that have a type of their own do not need it.

    Raises:
        SourceError: if there is no such table, or it cannot be read.
        ValueError: if there is no such column or it has the wrong type.
    """
    given = locals()
    if isinstance(source, np.ndarray | list | tuple) and connect is None:
        if any(each is not None for each in (column, unit, per_unit, where)):
            raise ValueError("Expected column, unit and where only with a table, got an array.")
        return ArrayColumn.of(source, kind, read_as)
    return open_rows(Asked(**(given | {"column": _named(column, kind)}))).column()


def open_groups(
    source: Any = None,
    column: str | None = None,
    *,
    by: str,
    groups: Sequence[Hashable] | None,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    where: Predicate | str | None = None,
    connect: str | None = None,
    table: str | None = None,
    kind: Kind = "numbers",
    read_as: str | None = None,
) -> dict[Hashable, Column]:
    """Open one column for each group of a public list.

    Guarantee: a record, or all rows of a unit together, contribute to at most one group. So
    releasing from every group costs as much as one release (parallel composition).

    Args:
        source: See `open_column`; not an array.
        by: The column with the group of each row.
        groups: The groups, from public knowledge. Which groups occur in the data is private.
        unit: See `open_column`; a unit counts only in that one of the listed groups which holds
            most of its rows (the first in order among ties), and only with its rows there.

    The other arguments are those of `open_column`.

    Raises:
        ValueError: also if the list of groups is missing, empty or repeats a group.
    """
    given = locals()
    if groups is None:
        raise ArgumentError(
            "groups",
            "a list that is public knowledge",
            got=None,
            hint=f"Which values of {by!r} occur depends on single records, so a list read "
            "from the data is private: name the groups yourself, also those that may "
            "be empty.",
        )
    groups = _validate.values(groups=groups)
    distinct = all(isinstance(each, Hashable) for each in groups) and len(set(groups))
    if not groups or distinct < len(groups):
        raise ArgumentError("groups", "one or more distinct values", got=groups)
    _validate.instance(str, "the name of a column", by=by)
    del given["groups"]
    opened = open_rows(Asked(**(given | {"column": _named(column, kind)})))
    members = opened.members(groups)
    rows = opened.rows
    opened = attrs.evolve(opened, rows=rows.filter(rows.member.isin(list(members.values()))))
    return opened.columns(members)


def _named(column: str | None, kind: Kind) -> str:
    """Return the name of the column, or raise if there is none."""
    _validate.one_of(("numbers", "categories"), kind=kind)
    if column is None:
        raise ArgumentError("column", "the name of a column", shown="nothing")
    return column


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

    @property
    def contribution(self) -> Contribution:
        """What one unit contributes to its group."""
        return self._opened.contribution

    def whole(self) -> Column:
        """The column of all groups together, for what its type makes public."""
        return self._opened.column()

    def counts(self, *, at_least: int = 1) -> dict[Hashable, int]:
        """Return the number of records of every group, in one query.

        Args:
            at_least: Groups with fewer records are omitted inside the engine. A mechanism that
                never releases a smaller group need not fetch it.
        """
        rows = self._opened.rows if self._staged is None else withheld(self._staged.kept)
        found = withheld(fetched, sizes_of_groups(rows, at_least=at_least))
        codec = withheld(encoding, rows)
        dates = self._opened.member_type.is_date()
        names = (_day(each) if dates else _name(each, codec) for each in found["member"])
        return {
            name: int(count)
            for name, count in zip(names, found["records"], strict=True)
            if name is not None
        }

    def columns(self, groups: Sequence[Hashable]) -> dict[Hashable, Column]:
        """Return the column of each of the groups whose names were released."""
        return self._opened.columns_of(self._staged, self._opened.members(groups))


def open_private_groups(
    source: Any = None,
    column: str | None = None,
    *,
    by: str,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    **options: Any,
) -> PrivateGroups:
    """Open all groups of a table, without reading a record.

    Args:
        source: See `open_column`; not an array.
        column: See `open_column`; None if only records are counted: each row then has the value 1.
        by: The column with the group of each row: texts, integers, dates or truth values. A text
            that is not valid in the encoding of its engine, or holds a zero byte, is in no group,
            nor is an integer beyond 64 bits with a sign, nor a date that Python cannot hold.
        unit: See `open_column`; a unit is in the group that holds most of its rows (the first in
            order among ties), and counts only with its rows there.
        per_unit: See `open_column`.
        **options: Further arguments of `open_column`.

    Raises:
        SourceError: if there is no such table.
        ValueError: if an argument is invalid.
    """
    if column is None and unit is not None and per_unit is None:
        per_unit = "min"  # of ones, so a unit counts once
    opened = open_rows(Asked(source, column, by=by, unit=unit, per_unit=per_unit, **options))
    dtype = opened.member_type
    if dtype.is_floating():
        raise ArgumentError(
            "by",
            "a column of texts, integers, dates or truth values",
            shown=f"{by!r} of type {dtype}",
        )
    return PrivateGroups(opened)


def _day(number: float) -> Hashable | None:
    """The date of a number of days; None for one that is infinite or too far away."""
    date = DATE.value(number)
    return date if DATE.record(date) == number else None


def _name(member: Any, codec: str) -> Hashable | None:
    """The name of a stored group; None if it cannot be given back to the engine as a public value.

    Bytes that no text encodes to have no name either, so that names differ.
    """
    if not isinstance(member, bytes):
        return member if not isinstance(member, int) or member in INTEGERS else None
    try:
        name = member.decode(codec)
    except (UnicodeDecodeError, LookupError):
        return None
    return None if "\0" in name else name


Batches: TypeAlias = Iterator[tuple[list[Any], npt.NDArray[np.int64]]]

_ROWS = 4096


def open_vectors(asked: Asked, groups: Sequence[Hashable]) -> Callable[[], Batches] | None:
    """Open a column of vectors and the groups of its rows, without reading any.

    No engine can tell which of many landmarks a vector is nearest to, so vectors leave it. They do
    so in batches, and a record that is no vector of numbers counts as absent where it is read.

    Args:
        asked: Which table, column and group; a unit of several rows is refused.
        groups: The public list of groups; rows of others are left out.

    Returns:
        A function that reads the vectors, and the place of the group of each in the list; None if
        the column does not hold arrays.
    """
    opened, rows = filtered(asked)
    dtype = rows[asked.column].type()
    if not dtype.is_array():
        return None
    if not (dtype.value_type.is_integer() or dtype.value_type.is_floating()):
        raise ArgumentError("column", "an array of numbers", shown=f"{asked.column!r} of {dtype}")
    if asked.unit is not None or asked.per_unit is not None:
        raise ArgumentError("unit", "none with a column of vectors", got=asked.unit)
    member = rows[asked.by]
    chosen = rows.select(
        value=rows[asked.column], member=exact(grouping(member, str(asked.by)), backend_name(rows))
    )
    known = Opened(chosen, dtype, None, Contribution(), member.type(), opened)
    places = [
        (chosen.member == stored, number)
        for number, stored in enumerate(known.members(groups).values())
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
        answer = backend.raw_sql(sql)
        while rows := answer.fetchmany(_ROWS):
            yield from rows
