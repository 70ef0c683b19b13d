"""Two tables joined on a key, with one privacy unit that can be followed through the join.

    visits = prudent.join("visits.parquet", "patients.parquet", on="patient", unit="patient")
    prudent.mean(visits, "cost", by="sex", groups=["f", "m"], epsilon=1)

A join is a source of rows: every statistic takes it, and the engine computes it. A row of it is
made of a row of either table, so it is somebody's only if both rows are:

| second table | joined on | rows of a person after the join |
| --- | --- | --- |
| public | any key | that person's rows of the first table, each with one public row or none |
| private | the unit, perhaps with other columns | pairs of that person's own rows |
| private | another key | pairs with rows of others: refused |

Guarantee: the rows that a unit has after the join are a function of the public rows and of the rows
that this unit has in the two tables. Data sets that differ by all rows of one unit, in both tables,
so have joins that differ by all rows of that unit, and `unit` and `per_unit` then bound what these
add to a statistic, as without a join. Without a unit, the second table is public and a row of the
first becomes one row at most: joins of tables that differ by a row differ by a row at most.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs

from prudent import _validate
from prudent._validate import ArgumentError

How: TypeAlias = Literal["inner", "left"]
MOST_ROWS = 1000
"""Rows of one unit that either private table has in a join, unless another number is given."""


@attrs.frozen(eq=False, repr=False)  # its text would quote records
class Join:
    """Two tables, and how they are joined: the arguments of `join`, `on` as pairs of columns."""

    left: Any
    right: Any
    keys: Mapping[str, str]
    unit: str | None
    public: bool
    how: How
    most_rows: int
    connect: str | None
    names: tuple[str, str]

    @property
    def private_names(self) -> list[str]:
        """The names of the private tables that have one, for the ledger."""
        read = [self.left] if self.public else [self.left, self.right]
        return [name for each in read for name in names_of(each, self.connect)]

    @property
    def sentence(self) -> str:
        """What was done with the rows of one unit before the join."""
        if self.public:
            return "A row is joined with at most one row of a table that was declared public."
        return (
            f"Of the rows of one {self.unit}, at most {self.most_rows:,} of each table are joined, "
            "evenly spaced in their order, and only with each other."
        )


def join(
    left: Any,
    right: Any,
    *,
    on: str | Sequence[str] | Mapping[str, str],
    unit: str | None = None,
    public: bool = False,
    how: How = "inner",
    most_rows: int = MOST_ROWS,
    connect: str | None = None,
    names: tuple[str, str] = ("left", "right"),
) -> Join:
    """Join two tables on a key, so that every statistic can be asked of the result.

    Args:
        left: The first table, private: any source of a statistic, or another join; with `connect`
            the name of a table.
        right: The second table, in the same engine; a public one of up to 1,000 rows may also be a
            file or a frame.
        on: The column that must be equal in both, or several; {"patient": "id"} where the second
            table has another name for it. A missing key matches nothing.
        unit: The privacy unit (user ID column). A private second table is joined on it, since
            only then each joined row is made of one person's records. With a public one it may be
            any column, or None: every row of the first table is then protected by itself.
        public: Whether the second table is public knowledge, such as a list of hospitals. It must
            have one row for each key, and nothing in it is protected.
        how: "inner", or "left" to keep the rows of the first table that match none.
        most_rows: Of the rows that a unit has in a private table, at most so many are joined,
            evenly spaced in the order of their values. It bounds the work that one person can
            cause; the price follows `per_unit`, as without a join.
        connect: The address of a database, of which both are tables.
        names: What to call the tables. A column `date` of both is left.date and right.date then; a
            key and the unit keep the name that they have in the first table.

    Raises:
        ArgumentError: if the unit cannot be followed through the join.
    """
    keys = _keys(on)
    if how not in ("inner", "left"):
        raise ArgumentError(
            "how",
            "inner or left",
            got=how,
            why="rows of the second table alone would be nobody's",
            hint="Swap the tables, or ask of the second table alone.",
        )
    _validate.flag(public=public)
    _validate.count(1, 10**6, most_rows=most_rows)
    called = _validate.values(names=names)
    if not all(isinstance(each, str) and each.isidentifier() for each in called) or (
        len(called) != 2 or called[0] == called[1]
    ):
        raise ArgumentError("names", "two different names", got=names)
    if unit is not None:
        _validate.instance(str, "the name of a column", unit=unit)
    _check_followed(left, unit, "left")
    if not public:
        if unit is None or unit not in keys:
            raise ArgumentError(
                "unit",
                "among the columns that private tables are joined on",
                got=unit,
                why="a row of the second table would be joined to rows of several persons",
                hint="Join on the column of persons, and name it as unit; or, if the second table "
                "is public knowledge, declare it so with public.",
            )
        _check_followed(right, keys[unit], "right")
    elif isinstance(right, Join) and right.unit is not None:
        raise ArgumentError("public", "False for a join of private tables", got=True)
    return Join(left, right, keys, unit, public, how, most_rows, connect, (called[0], called[1]))


def names_of(source: Any, connect: str | None = None) -> list[str]:
    """The names of the private data that a source reads, as far as they have one.

    `prudent.budget.allowance.data_name` makes one name of those that mean the same: a DuckDB file
    is named as a whole, also where one of its tables is read, by its path or by its address.

    Args:
        source: The source; with `connect` a table of that database.
        connect: The address of a database.
    """
    if isinstance(source, Join):
        return source.private_names
    if connect is not None:
        from prudent.budget.allowance import is_duckdb  # most releases have no ledger

        if is_duckdb(connect):
            return [connect]
    return [os.fspath(source)] if isinstance(source, str | os.PathLike) else []


def _keys(on: Any) -> dict[str, str]:
    if not isinstance(on, Mapping):
        listed = [on] if isinstance(on, str) else _validate.values(on=on)
        pairs = list(zip(listed, listed, strict=True))
    else:
        pairs = list(on.items())
    if not pairs or not all(isinstance(name, str) for pair in pairs for name in pair):
        raise ArgumentError("on", "one or more columns", got=on)
    if len({other for _, other in pairs}) < len(pairs):
        raise ArgumentError("on", "different columns of the second table", got=on)
    return dict(pairs)


def _check_followed(source: Any, unit: str | None, argument: str) -> None:
    """Refuse a join within a join, of another unit."""
    if isinstance(source, Join) and source.unit not in (None, unit):
        raise ArgumentError(
            argument, f"a join of the unit {unit!r}", shown=f"one of the unit {source.unit!r}"
        )
