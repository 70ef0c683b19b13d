"""Opening a column of a table in any engine: embedded DuckDB, PostgreSQL, Spark.

`open_column` turns nearly any source into a `Column`. Its methods run as queries in the engine that
holds the data (`columns.queries`). This module defines which value a record has.

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

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.release.columns.column import (
    Column,
    Contribution,
    Kind,
    PerUnit,
)
from prudent.release.columns.row_values.conditions import Predicate
from prudent.release.columns.row_values.groups import public_groups
from prudent.release.columns.table_rows import (
    ColumnSpec,
    Opened,
    Sizes,
    open_rows,
)


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
        source: An array or a list of values, or a path, a frame, an ibis table, a join.
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
        from prudent.release.columns.arrow_tables import open_values

        return open_values(source, kind, read_as)  # type: ignore[arg-type]
    return open_rows(ColumnSpec(**given)).column()


def open_groups(
    source: Any = None,
    column: str | None = None,
    *,
    by: str | Sequence[str],
    groups: Sequence[Hashable] | Mapping[str, Sequence[Hashable]] | None,
    **options: Any,
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
        **options: Those of `open_column`. A unit counts only in that one of the listed groups
            which holds most of its rows (the first in order among ties), and only with its rows
            there. With `kept` it counts in so many of its groups instead, chosen at random;
            releasing from every group then costs as much as so many releases.

    Raises:
        ValueError: also if the list of groups is missing, empty or repeats a group.
    """
    opened = open_rows(ColumnSpec(source, column, by=_keys(by), **options))
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
    **options: Any,
) -> PrivateGroups:
    """Open all groups of a table, without reading a record; see `open_groups`."""
    if column is None:
        options["kind"] = "rows"
    return PrivateGroups(open_rows(ColumnSpec(source, column, by=_keys(by), **options)))
