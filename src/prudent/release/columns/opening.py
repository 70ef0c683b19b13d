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
| with `unit`: all rows of a unit | what `per_unit` says (`contributions`); none if none has one |
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

from collections.abc import Hashable, Sequence
from typing import Any

import attrs
import numpy as np

from prudent import _validate
from prudent.release.columns.column import ArrayColumn, Column, Kind
from prudent.release.columns.conditions import Predicate
from prudent.release.columns.contributions import PerUnit
from prudent.release.columns.table_rows import Asked, open_rows


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
            a number of rows; see `contributions`. None means the mean of numbers, and the first in
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
    if isinstance(source, np.ndarray | list | tuple) and connect is None:
        if any(each is not None for each in (column, unit, per_unit, where)):
            raise ValueError("Expected column, unit and where only with a table, got an array.")
        return ArrayColumn.of(source, kind, read_as)
    asked = Asked(
        source,
        _named(column, kind),
        unit=unit,
        per_unit=per_unit,
        where=where,
        connect=connect,
        table=table,
        kind=kind,
        read_as=read_as,
    )
    return open_rows(asked).column()


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
        column: See `open_column`.
        by: The column with the group of each row.
        groups: The groups, from public knowledge. Which groups occur in the data is private.
        unit: See `open_column`; a unit counts only in that one of the listed groups which holds
            most of its rows (the first in order among ties), and only with its rows there.
        per_unit: See `open_column`.
        where: See `open_column`.
        connect: See `open_column`.
        table: See `open_column`.
        kind: See `open_column`.
        read_as: See `open_column`.

    Raises:
        ValueError: also if the list of groups is missing, empty or repeats a group.
    """
    if groups is None:
        raise _validate.ArgumentError(
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
        raise _validate.ArgumentError("groups", "one or more distinct values", got=groups)
    _validate.instance(str, "the name of a column", by=by)
    asked = Asked(
        source,
        _named(column, kind),
        by=by,
        unit=unit,
        per_unit=per_unit,
        where=where,
        connect=connect,
        table=table,
        kind=kind,
        read_as=read_as,
    )
    opened = open_rows(asked)
    members = opened.members(groups)
    rows = opened.rows
    opened = attrs.evolve(opened, rows=rows.filter(rows.member.isin(list(members.values()))))
    return opened.columns(members)


def _named(column: str | None, kind: Kind) -> str:
    """Return the name of the column, or raise if there is none."""
    _validate.one_of(("numbers", "categories"), kind=kind)
    if column is None:
        raise _validate.ArgumentError("column", "the name of a column", shown="nothing")
    return column
