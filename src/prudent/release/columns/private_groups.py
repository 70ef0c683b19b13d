"""Groups whose names are private: how many records each has, and the columns of those released.

Which groups occur in the data depends on single records. A mechanism reads all counts, releases the
names of the groups that pass its test, and only then opens the columns of these.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from prudent._validate import ArgumentError
from prudent.release.columns.column import Column, Kind
from prudent.release.columns.conditions import Predicate
from prudent.release.columns.contributions import Contribution, PerUnit
from prudent.release.columns.dialects import encoding, fetched
from prudent.release.columns.public_values import INTEGERS
from prudent.release.columns.questions import sizes_of_groups
from prudent.release.columns.scales import DATE
from prudent.release.columns.table_rows import Asked, Opened, open_rows
from prudent.release.failures import withheld


class PrivateGroups:
    """The groups of a table. Nothing that it returns may be published without a mechanism.

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
    where: Predicate | str | None = None,
    connect: str | None = None,
    table: str | None = None,
    kind: Kind = "numbers",
    read_as: str | None = None,
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
        where: See `open_column`.
        connect: See `open_column`.
        table: See `open_column`.
        kind: See `open_column`.
        read_as: See `open_column`.

    Raises:
        SourceError: if there is no such table.
        ValueError: if an argument is invalid.
    """
    if column is None and unit is not None and per_unit is None:
        per_unit = "min"  # of ones, so a unit counts once
    opened = open_rows(
        Asked(
            source,
            column,
            by=by,
            unit=unit,
            per_unit=per_unit,
            where=where,
            connect=connect,
            table=table,
            kind=kind,
            read_as=read_as,
        )
    )
    dtype = opened.member_type
    if dtype.is_floating():
        raise ArgumentError(
            "by",
            "a column of texts, integers, dates or truth values",
            shown=f"{by!r} of type {dtype}",
        )
    return PrivateGroups(opened)


def group_counts(source: Any = None, *, by: str, **options: Any) -> dict[Hashable, int]:
    """Return the number of records, or units, of every group present; the answer is private.

    Args:
        source: See `open_private_groups`.
        by: The column with the group of each row.
        **options: Further arguments of `open_private_groups`.
    """
    return open_private_groups(source, by=by, **options).counts()


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
