"""Opening a column of a table in any engine: embedded DuckDB, PostgreSQL, Spark.

`open_column` turns nearly any source into a `Column`. Its methods run as queries in the engine that
holds the data (`prudent.release.columns.queries`). This module defines which value a record has.

One record is one value or none:

| a record | counts as |
| --- | --- |
| a number | itself, as a double |
| NULL, NaN | no value: it is not in the column |
| +inf, -inf | a value at the end; releases clip it to the public ends of their lattice |
| text that is not a number, in a CSV file | no value |
| with `unit`: all rows of a unit | the least of the unit's values; none if it has none |
| with `unit`: a row whose unit is NULL | no value: it belongs to no unit |
| with groups: a row of a group that is not listed | no value |

Each line of this table is a function of one record (of one unit's rows), so adding or removing one
record adds or removes at most one value: adjacent tables have adjacent columns.
"""

import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import attrs
import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir
import numpy as np

from prudent import _validate
from prudent.release.columns.column import ArrayColumn, Column, Kind
from prudent.release.columns.conditions import Predicate, of_one_row
from prudent.release.columns.dialects import backend_name, double_of_numeric, exact, literal
from prudent.release.columns.queries import TableColumn, typed
from prudent.release.columns.sources import Source, open_source

_PLAIN = (  # types of categories: equal values of these are displayed the same
    dt.String,
    dt.Boolean,
    dt.Integer,
    dt.Floating,
    dt.Decimal,
    dt.Date,
    dt.Timestamp,
    dt.Binary,
)


def open_column(
    source: Any = None,
    column: str | None = None,
    *,
    unit: str | None = None,
    where: Predicate | None = None,
    connect: str | None = None,
    table: str | None = None,
    kind: Kind = "numbers",
) -> Column:
    """Open a column of a table to release from.

    Args:
        source: An array of values, or a source that `open_source` accepts: a path, a frame, an ibis
            table.
        column: The name of the column; None for an array.
        unit: The column that identifies the privacy unit of a row. Each unit then counts once, with
            the least of its values. Without it every row is its own unit: that protects rows, and
            protects a person only if no person has two rows.
        where: Which rows to keep: a function of the table that looks at one row at a time, such as
            `lambda t: t.year == 2024`.
        connect: The address of a database, instead of a source.
        table: The name of the table in that database.
        kind: Whether the values are numbers or categories; only the mode takes categories.

    Raises:
        SourceError: if there is no such table, or it cannot be read.
        ValueError: if there is no such column or it has the wrong type.
    """
    if isinstance(source, np.ndarray | list | tuple) and connect is None:
        if column is not None or unit is not None or where is not None:
            raise ValueError("Expected column, unit and where only with a table, got an array.")
        return ArrayColumn.of(source, kind)
    opened = _opened(source, column, unit, where, connect, table, kind, by=None)
    rows = opened.rows if unit is None else _one_per_unit(opened.rows)
    return TableColumn(rows, opened.value_type, owner=opened.owner)


def open_groups(
    source: Any = None,
    column: str | None = None,
    *,
    by: str,
    groups: Sequence[Hashable] | None,
    unit: str | None = None,
    where: Predicate | None = None,
    connect: str | None = None,
    table: str | None = None,
    kind: Kind = "numbers",
) -> dict[Hashable, Column]:
    """Open one column for each group of a public list.

    Guarantee: a record, or all rows of a unit together, contribute a value to at most one group. So
    releasing from every group costs as much as one release (parallel composition).

    Args:
        source: See `open_column`; not an array.
        column: See `open_column`.
        by: The column with the group of each row.
        groups: The groups, from public knowledge. Which groups occur in the data is private.
        unit: See `open_column`; a unit with rows in several of the groups counts only in the group
            that holds its least value.
        where: See `open_column`.
        connect: See `open_column`.
        table: See `open_column`.
        kind: See `open_column`.

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
    if isinstance(groups, str) or not groups or len(set(groups)) < len(groups):
        raise _validate.ArgumentError("groups", "one or more distinct values", got=groups)
    opened = _opened(source, column, unit, where, connect, table, kind, by=by)
    wanted = {group: typed(group, opened.member_type, "groups") for group in groups}
    if len(set(wanted.values())) < len(wanted):
        raise _validate.ArgumentError("groups", "one or more distinct values", got=groups)
    rows, engine = opened.rows, backend_name(opened.rows)
    members = {group: exact(literal(member), engine) for group, member in wanted.items()}
    rows = rows.filter(rows.member.isin(list(members.values())))
    if unit is not None:
        rows = _one_per_unit(rows)
    return {
        group: TableColumn(
            rows.filter(rows.member == member), opened.value_type, owner=opened.owner
        )
        for group, member in members.items()
    }


@attrs.frozen
class _Opened:
    """The records that have a value.

    Attributes:
        rows: A table with the column `value`, and `unit` and `member` if requested; strings are
            stored as bytes.
        value_type: The type in which values are displayed.
        member_type: The type in which groups are named; None without groups.
        owner: The source, which must stay open while the rows are used.
    """

    rows: ir.Table
    value_type: dt.DataType
    member_type: Any
    owner: Source


def _opened(
    source: Any,
    column: str | None,
    unit: str | None,
    where: Predicate | None,
    connect: str | None,
    table: str | None,
    kind: Kind,
    *,
    by: str | None,
) -> _Opened:
    _validate.one_of(("numbers", "categories"), kind=kind)
    if column is None:
        raise _validate.ArgumentError("column", "the name of a column", shown="nothing")
    used = [name for name in (column, unit, by) if name is not None]
    opened = open_source(
        source, connect=connect, table=table, columns=used if where is None else None
    )
    weakref.finalize(opened, opened.close)
    rows = opened.table
    for name, given in {"column": column, "unit": unit, "by": by}.items():
        if given is not None:
            _validate.one_of(rows.columns, **{name: given})
    if where is not None:
        rows = rows.filter(of_one_row(where, rows))
    engine = backend_name(rows)
    value = _value(rows[column], kind, column, text=column in opened.text)
    chosen = {"value": exact(value, engine)}
    if unit is not None:
        chosen["unit"] = exact(rows[unit], engine)
    if by is not None:
        chosen["member"] = exact(rows[by], engine)
    member_type = None if by is None else rows[by].type()
    rows = rows.select(**chosen).drop_null()
    if rows.value.type().is_floating():
        rows = rows.filter(~rows.value.isnan())
    return _Opened(rows, value.type(), member_type, opened)


def _value(column: ir.Column, kind: Kind, name: str, *, text: bool) -> ir.Column:
    """Convert the column to doubles, or return its categories."""
    dtype = column.type()
    if kind == "categories":
        if not isinstance(dtype, _PLAIN):
            raise _validate.ArgumentError(
                "column",
                "of text, numbers, dates or truth values",
                shown=f"{name!r} of type {dtype}",
                hint="Make one of these of it, in an ibis table.",
            )
        if dtype.is_floating():  # makes -0.0 and 0.0 one category, displayed as 0.0
            return ibis.ifelse(column == 0, ibis.literal(0.0).cast(dtype), column)
        return column
    if text:
        return column.try_cast("float64")
    if dtype.is_boolean():
        return column.cast("int32").cast("float64")
    if not dtype.is_numeric():
        raise _validate.ArgumentError(
            "column",
            "of numbers",
            shown=f"{name!r} of type {dtype}",
            hint="Only its mode can be released, without propose.",
        )
    if dtype.is_decimal() and backend_name(column) == "postgres":
        return double_of_numeric(column)
    return column.cast("float64")


def _one_per_unit(rows: ir.Table) -> ir.Table:
    """Keep one row per unit: that of its least value and, among ties, of its least group."""
    if rows.columns == ("value", "unit") and rows.value.type().is_floating():
        return rows.group_by("unit").aggregate(value=rows.value.min())
    order = [rows[name] for name in ("value", "member") if name in rows.columns]
    place = ibis.row_number().over(ibis.window(group_by="unit", order_by=order))
    placed = rows.mutate(place=place)
    return placed.filter(placed.place == 0).drop("place")
