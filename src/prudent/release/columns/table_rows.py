"""The records of a table that have a value: which rows, with which value, unit and group."""

import weakref
from collections.abc import Hashable, Sequence
from typing import Any

import attrs
import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir

from prudent import _validate
from prudent.release.columns.column import Column, Contribution, Kind, PerUnit, checked
from prudent.release.columns.conditions import Predicate, of_one_row, parse_condition
from prudent.release.columns.dialects import (
    PublicValue,
    backend_name,
    exact,
    literal,
    number_of,
    number_of_text,
    scale_of,
    typed,
)
from prudent.release.columns.queries import TableColumn
from prudent.release.columns.scales import DATE, NUMBER, Scale
from prudent.release.columns.sources import OpenTable, open_source
from prudent.release.columns.units import StagedTable
from prudent.release.columns.units import per_unit as reduced

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
_GROUPING = (dt.String, dt.Boolean, dt.Integer, dt.Floating, dt.Date)
_IDENTIFYING = (*_PLAIN, dt.UUID, dt.INET, dt.MACADDR)


@attrs.frozen
class Asked:
    """The arguments of `open_column`, and of `open_groups` with `by`."""

    source: Any
    column: str | None
    by: str | None = None
    unit: str | None = None
    per_unit: PerUnit | None = None
    where: Predicate | str | None = None
    connect: str | None = None
    table: str | None = None
    kind: Kind = "numbers"
    read_as: str | None = None

    def __attrs_post_init__(self) -> None:
        for argument in ("column", "by", "unit"):
            if (name := getattr(self, argument)) is not None:
                _validate.instance(str, "the name of a column", **{argument: name})


@attrs.frozen
class Opened:
    """The records that have a value, before those of a unit are put together.

    Attributes:
        rows: A table with the column `value`, and `unit` and `member` if requested; strings are
            stored as bytes.
        value_type: The type in which categories are displayed.
        scale: The scale of the rows; None for categories.
        contribution: What one unit contributes.
        member_type: The type in which groups are named; None without groups.
        owner: The source, which must stay open while the rows are used.
    """

    rows: ir.Table
    value_type: dt.DataType
    scale: Scale | None
    contribution: Contribution
    member_type: Any
    owner: OpenTable

    def members(self, groups: Sequence[Hashable]) -> dict[Hashable, ir.Value]:
        """Return each group as the engine stores it.

        Raises:
            ArgumentError: if a group is not of the type of the column, or two are the same.
        """
        wanted = {group: self._stored(group) for group in groups}
        if len(set(wanted.values())) < len(wanted):
            raise _validate.ArgumentError("groups", "one or more distinct values", got=groups)
        engine = backend_name(self.rows)
        return {group: exact(literal(member), engine) for group, member in wanted.items()}

    def _stored(self, group: Hashable) -> PublicValue:
        if not self.member_type.is_date():
            return typed(group, self.member_type, "groups")
        try:
            return DATE.number(group)
        except _validate.ArgumentError:
            raise _validate.ArgumentError(
                "groups", "dates such as 2024-05-31, as the column has", got=group
            ) from None

    def staged(self) -> StagedTable | None:
        """The contributed values, computed once; None if every row is a value of its own."""
        if self.contribution.unit is None:
            return None
        rows = reduced(self.rows, self.contribution, self.scale)
        return StagedTable(rows, own_connection=self.owner.own_connection, owner=self.owner)

    def column(self) -> TableColumn:
        """The column of all contributed values."""
        staged = self.staged()
        return self._over(staged, self.rows if staged is None else staged.rows, None)

    def columns(self, members: dict[Hashable, ir.Value]) -> dict[Hashable, Column]:
        """One column for each group; all of them share what was computed once."""
        return self.columns_of(self.staged(), members)

    def columns_of(
        self, staged: StagedTable | None, members: dict[Hashable, ir.Value]
    ) -> dict[Hashable, Column]:
        """See `columns`; `staged` is the table that `staged` returned."""
        rows = self.rows if staged is None else staged.rows
        return {
            group: self._over(staged, rows.filter(rows.member == member), member)
            for group, member in members.items()
        }

    def _over(
        self, staged: StagedTable | None, rows: ir.Table, member: ir.Value | None
    ) -> TableColumn:
        def kept() -> ir.Table:
            assert staged is not None
            whole = staged.kept()
            return whole if member is None else whole.filter(whole.member == member)

        return TableColumn(
            rows,
            self.value_type,
            scale=self.contribution.scale(self.scale or NUMBER),
            contribution=self.contribution,
            kept=None if staged is None else kept,
            owner=self.owner,
        )


def open_rows(asked: Asked) -> Opened:
    """Open the rows with their value, unit and group, without reading any.

    Without a column every row has the value 1.
    """
    _validate.one_of(("numbers", "categories"), kind=asked.kind)
    column = asked.column
    opened, rows = filtered(asked)
    engine = backend_name(rows)
    value: ir.Value = ibis.literal(1.0, "float64")
    scale: Scale | None = NUMBER
    if column is not None:
        value, scale = _value(rows[column], asked, text=column in opened.text)
    contribution = checked(asked.unit, asked.per_unit, by=asked.by, scale=scale)
    chosen = {"value": exact(value, engine)}
    if asked.unit is not None:
        chosen["unit"] = exact(_identifying(rows[asked.unit], asked.unit), engine)
    if asked.by is not None:
        chosen["member"] = exact(grouping(rows[asked.by], asked.by), engine)
    member_type = None if asked.by is None else rows[asked.by].type()
    rows = rows.select(**chosen).drop_null()
    if rows.value.type().is_floating():
        rows = rows.filter(~rows.value.isnan())
    return Opened(rows, value.type(), scale, contribution, member_type, opened)


def filtered(asked: Asked) -> tuple[OpenTable, ir.Table]:
    """Open the source, and return it with the rows that are asked for; reads none."""
    names = {"column": asked.column, "unit": asked.unit, "by": asked.by}
    used = [name for name in names.values() if name is not None]
    opened = open_source(
        asked.source,
        connect=asked.connect,
        table=asked.table,
        columns=used if asked.where is None else None,
    )
    weakref.finalize(opened, opened.close)
    rows = opened.table
    for argument, given in names.items():
        if given is not None:
            _validate.one_of(rows.columns, **{argument: given})
    if asked.where is not None:
        where = parse_condition(asked.where) if isinstance(asked.where, str) else asked.where
        rows = rows.filter(of_one_row(where, rows))
    return opened, rows


def grouping(column: ir.Column, name: str) -> ir.Value:
    """Return the column of groups; that of dates as days, of which the infinite ones are in none.

    Raises:
        ArgumentError: if it has a type whose values cannot be told apart in every engine.
    """
    if not isinstance(column.type(), _GROUPING):
        raise _validate.ArgumentError(
            "by",
            "a column of texts, numbers, dates or truth values",
            shown=f"{name!r} of type {column.type()}",
            hint="Make one of these of it, in an ibis table: the date of a time, for example.",
        )
    return number_of(column, DATE) if column.type().is_date() else column


def _identifying(column: ir.Column, name: str) -> ir.Column:
    """Return the column of units, or raise if its type is one that can make a query fail.

    Lists, structures and documents may hold a text that is not valid, or a time that overflows,
    deep inside, where the engine converts it as it reads: one record would stop the whole query.
    """
    if not isinstance(column.type(), _IDENTIFYING):
        raise _validate.ArgumentError(
            "unit",
            "a column of texts, numbers, dates or other plain values",
            shown=f"{name!r} of type {column.type()}",
            hint="Make one of these of it, in an ibis table.",
        )
    return column


def _value(column: ir.Column, asked: Asked, *, text: bool) -> tuple[ir.Value, Scale | None]:
    """Return the numbers of a column and their scale, or its categories and None."""
    dtype, name = column.type(), str(asked.column)
    if asked.kind == "categories":
        if not isinstance(dtype, _PLAIN):
            raise _validate.ArgumentError(
                "column",
                "of text, numbers, dates or truth values",
                shown=f"{name!r} of type {dtype}",
                hint="Make one of these of it, in an ibis table.",
            )
        if dtype.is_floating():  # makes -0.0 and 0.0 one category, displayed as 0.0
            return ibis.ifelse(column == 0, ibis.literal(0.0).cast(dtype), column), None
        return column, None
    if text:
        scale = NUMBER if asked.read_as is None else Scale.named(asked.read_as)
        return number_of_text(column, scale), scale
    scale = scale_of(dtype, backend_name(column), name)
    if asked.read_as is not None:
        raise _validate.ArgumentError(
            "read_as",
            "only with a list or a text column",
            got=asked.read_as,
            why=f"{name!r} has the type {dtype}",
        )
    return number_of(column, scale), scale
