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

import contextlib
import functools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir
import numpy as np

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.release.columns.column import (
    KINDS,
    Column,
    Contribution,
    KeptGroups,
    Kind,
    PerUnit,
    checked,
    redact_errors,
)
from prudent.release.columns.dialects import (
    IDENTIFYING,
    PLAIN,
    PublicValue,
    backend_name,
    double,
    encoding,
    exact,
    fetched,
    number_of,
    number_of_text,
    present,
    scale_of,
    stored_literal,
    wrong_type,
)
from prudent.release.columns.joining import open_source
from prudent.release.columns.queries import Share, sizes_of_groups
from prudent.release.columns.row_values import expressions
from prudent.release.columns.row_values import groups as row_groups
from prudent.release.columns.row_values.conditions import Predicate, of_one_row, total_value
from prudent.release.columns.scales import DATE, INTEGER, NUMBER, TRUTH, Scale
from prudent.release.columns.sources import OpenTable
from prudent.release.columns.table_columns import PairColumn, SetColumn, TableColumn
from prudent.release.columns.units import StagedTable, at_most, different, members_of
from prudent.release.columns.units import per_unit as reduced

_NUMBER = re.compile(r"(?P<before>\D*)1(?P<comma>\D?)234((?P<mark>\D)\d+)?(?P<after>\D*)")
_PARTS = {"2024": r"(\d{4})", "12": r"(\d{1,2})", "31": r"(\d{1,2})"}
_TIMES = {"23": r"(\d{1,2})", "59": r"(\d{2})", "58": r"(\d{2}(?:\.\d+)?)"}


@attrs.frozen
class TextFormat:
    """How a text becomes one that every engine reads."""

    scale: Scale  # of what it holds
    pattern: str  # of texts in this form; others have no value
    removed: tuple[str, ...] = ()  # of a number: what is left out of it
    mark: str = "."  # of a number: between its whole part and the digits after it
    places: tuple[int, ...] = ()  # of a date: its year, month, day, hour, minute, second, if any

    @classmethod
    def of(cls, declared: str) -> "TextFormat | None":
        """The form that a declaration shows by an example; None if it names a type alone."""
        found = re.fullmatch(r"(number|date|timestamp)\((.*)\)", str(declared))
        if found is None:
            return None
        kind, example = found.groups()
        form = _number(example) if kind == "number" else _time(kind, example)
        if form is None:
            raise ArgumentError(
                "read_as",
                "an example that writes 1234.56 or the date 2024-12-31 as the file does",
                got=declared,
                hint="For example number($1,234.56), number(1.234,56), date(31.12.2024) or "
                "timestamp(12/31/2024 23:59:58).",
            )
        return form

    def numbers(self, text: ir.Value) -> ir.Value:
        """The numbers of a column of texts, each of its own text; NULL for another form."""
        fits = text.re_search(self.pattern)
        if self.places:
            year, month, day, *times = (text.re_extract(self.pattern, at) for at in self.places)
            plain = year + "-" + month.lpad(2, "0") + "-" + day.lpad(2, "0")
            if times:
                clock = [times[0].lpad(2, "0"), *times[1:], *["00"] * (3 - len(times))]
                plain = plain + " " + clock[0] + ":" + clock[1] + ":" + clock[2]
        else:
            plain = text
            for each in self.removed:
                plain = plain.replace(each, "")
            plain = plain.replace(self.mark, ".")
        return number_of_text(ibis.ifelse(fits, plain, ibis.null("string")), self.scale)


def _number(example: str) -> TextFormat | None:
    found = _NUMBER.fullmatch(example)
    if found is None or (found["comma"] and found["comma"] == found["mark"]):
        return None
    before, after = found["before"].strip(), found["after"].strip()
    comma, mark = found["comma"], found["mark"] or "."
    if comma == mark:  # 1.234 without digits after it
        mark = "," if comma == "." else "."
    spaced = re.escape(comma)
    whole = rf"(\d{{1,3}}({spaced}\d{{3}})+|\d+)" if comma else r"\d+"
    signs = (f"({re.escape(each)})?" for each in (before, after))
    first, last = signs
    pattern = rf"^\s*[-+]?\s*{first}\s*[-+]?{whole}({re.escape(mark)}\d*)?\s*{last}\s*$"
    removed = tuple(each for each in (comma, before, after, " ") if each)
    return TextFormat(Scale.named("number"), pattern, removed, mark)


def _time(kind: str, example: str) -> TextFormat | None:
    parts = _PARTS if kind == "date" else _PARTS | _TIMES
    tokens = re.findall(r"\d+", example)
    if not {*_PARTS} <= {*tokens} <= {*parts} or len({*tokens}) < len(tokens):
        return None
    pattern = re.sub(r"\d+", lambda token: parts[token[0]], re.escape(example))
    places = tuple(tokens.index(each) + 1 for each in parts if each in tokens)
    if kind == "timestamp" and [each for each in _TIMES if each in tokens][:2] != ["23", "59"]:
        return None
    return TextFormat(Scale.named(kind), rf"^\s*{pattern}\s*$", places=places)


_GROUPING = (dt.String, dt.Boolean, dt.Integer, dt.Floating, dt.Date)


Sizes: TypeAlias = Mapping[tuple[PublicValue, ...], int]


@attrs.frozen
class ColumnSpec:
    """The arguments of `open_column`, and of `open_groups` with `by`.

    `other` is a second column of numbers: the records are then pairs, of rows that have both.
    """

    source: Any
    column: str | None
    by: str | tuple[str, ...] | None = None
    unit: str | None = None
    per_unit: PerUnit | None = None
    where: Predicate | str | None = None
    connect: str | None = None
    table: str | None = None
    kind: Kind = "numbers"
    read_as: str | Mapping[str, str] | None = None
    other: str | None = None
    kept: KeptGroups | None = None

    def __attrs_post_init__(self) -> None:
        for argument, name in self.names:
            _validate.instance(str, "the name of a column", **{argument: name})

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of groups."""
        return (self.by,) if isinstance(self.by, str) else self.by or ()

    @property
    def names(self) -> list[tuple[str, str]]:
        """The columns that are used, each with the argument that names it."""
        single = {"column": self.column, "other": self.other, "unit": self.unit}
        given = [(argument, name) for argument, name in single.items() if name is not None]
        return [*given, *(("by", name) for name in self.keys)]


@attrs.define(eq=False, slots=False)
class Opened:
    """The records that have a value, with their groups; read only when a column or a count is.

    Nothing that is read may be published without a mechanism. Which groups occur in the data
    depends on single records: where they are private, a mechanism reads all counts, releases the
    names of the groups that pass its test, and only then opens the columns of these.

    Guarantee: a record, or all rows of a unit together, are in one group (or in so many as `kept`
    says), with at most `contribution.records` values: adding or removing a unit changes one count,
    by at most that.
    """

    # A table with the column `value`, and `other`, `unit`, `member_0`, … if requested; strings are
    # stored as bytes.
    rows: ir.Table
    counted: ir.Table  # the same, and with rows of which the group has no name
    value_type: dt.DataType  # the type in which categories are displayed
    # The scale of the rows, None for categories; for pairs, also that of `other`.
    scales: tuple[Scale | None, ...]
    contribution: Contribution  # what one unit contributes
    keys: tuple[row_groups.GroupKey, ...]  # how the columns of groups are stored and named
    single: bool  # whether groups are named by one value, not by several
    owner: OpenTable  # the source, which must stay open while the rows are used
    _sizes: Sizes | None = attrs.field(default=None, init=False)  # as far as they were counted

    def within(self, groups: Sequence[Hashable]) -> "Opened":
        """The rows of these groups alone."""
        members = self._members(groups).values()
        if len(self.keys) == 1:
            listed = self.rows.member_0.isin([one for (one,) in members])
        else:
            listed = ibis.or_(*map(self._of, members))
        rows = self.rows.filter(listed)
        return attrs.evolve(self, rows=rows, counted=rows)

    def column(self) -> Column:
        """The column of all contributed values."""
        column: Column = self._over(())
        return column

    def columns(self, groups: Sequence[Hashable]) -> dict[Hashable, Column]:
        """One column for each group; all of them share what was computed once."""

        def size(group: Hashable) -> int:
            if self._sizes is None:
                self._sizes = self._counted()
            return self._sizes.get(self._stored(group), 0)

        members = self._members(groups).items()
        return {group: self._over(one, functools.partial(size, group)) for group, one in members}

    def counts(self, *, at_least: int = 1) -> dict[Hashable, int]:
        """The number of records of every group that has a name, in one query."""
        self._sizes = self._counted(at_least)
        return {self._named(stored): count for stored, count in self._sizes.items()}

    def _members(self, groups: Sequence[Hashable]) -> dict[Hashable, tuple[ir.Value, ...]]:
        """Return each group as the engine stores it."""
        wanted = {group: self._stored(group) for group in groups}
        if len(set(wanted.values())) < len(wanted):
            raise ArgumentError("groups", "one or more distinct values", got=groups)
        return {
            group: tuple(stored_literal(member, self.rows) for member in members)
            for group, members in wanted.items()
        }

    def _stored(self, group: Any) -> tuple[PublicValue, ...]:
        values = (group,) if self.single else group
        if not isinstance(values, tuple) or len(values) != len(self.keys):
            raise ArgumentError(
                "groups", f"with {len(self.keys)} values each, one for each column", got=group
            )
        return tuple(key.stored(each) for key, each in zip(self.keys, values, strict=True))

    def _named(self, stored: tuple[PublicValue, ...]) -> Hashable:
        named = tuple(key.shown(each) for key, each in zip(self.keys, stored, strict=True))
        return named[0] if self.single else named

    def _of(self, member: tuple[ir.Value, ...]) -> ir.BooleanValue:
        names = members_of(self.rows)
        return ibis.and_(*(self.rows[name] == one for name, one in zip(names, member, strict=True)))

    @functools.cached_property
    def _staged(self) -> StagedTable | None:
        """The contributed values, computed once; None if every row is a value of its own."""
        if self.contribution.unit is None:
            return None
        if self.contribution.sets:
            rows = different(self.rows, self.contribution.kept)
        else:
            rows = reduced(self.rows, self.contribution, *self.scales)
        return StagedTable(rows, self.owner)

    def _counted(self, at_least: int = 1) -> Sizes:
        """The number of records of every group that has a name, by how it is stored."""
        rows = self.counted if self._staged is None else redact_errors(self._staged.kept)
        if self.contribution.sets:  # a set may be of any size
            rows = at_most(rows, self.contribution.records)
        found = redact_errors(fetched, sizes_of_groups(rows, at_least=at_least))
        codec = redact_errors(encoding, rows)
        stored = zip(*(found[name] for name in members_of(rows)), strict=True)
        sizes: dict[tuple[PublicValue, ...], int] = {}
        for values, count in zip(stored, found["records"], strict=True):
            named = tuple(
                key.name(each, codec) for key, each in zip(self.keys, values, strict=True)
            )
            if None not in named:
                sizes[self._stored(named[0] if self.single else named)] = int(count)
        return sizes

    def _over(self, member: tuple[ir.Value, ...], size: Callable[[], int] | None = None) -> Any:
        staged = self._staged
        rows, kept = (self.rows, None) if staged is None else (staged.rows, staged.kept)
        share = Share(rows, kept, member, memory=self.owner.memory)
        scale, *others = (self.contribution.scale(each or NUMBER) for each in self.scales)
        options: dict[str, Any] = {
            "dtype": self.value_type,
            "scale": scale,
            "contribution": self.contribution,
            "share": share,
            "size": size,
            "owner": self.owner,
        }
        if others:
            return PairColumn(share.of(rows), other=others[0], **options)
        return (SetColumn if self.contribution.sets else TableColumn)(share.of(rows), **options)


def open_rows(asked: ColumnSpec) -> Opened:
    """Open the rows with their value, unit and group, without reading any.

    Without a column every row has the value 1, and a unit counts once.
    """
    _validate.one_of(KINDS, kind=asked.kind)
    opened, rows = filtered(asked)
    engine = backend_name(rows)
    value: ir.Value = ibis.literal(1.0, "float64")
    scales: tuple[Scale | None, ...] = (NUMBER,)
    if asked.column is None and asked.kind != "rows":
        raise ArgumentError("column", f"one of {', '.join(sorted(rows.columns))}", shown="nothing")
    if asked.column is not None:
        value, scale = _value(rows, asked, asked.column, opened)
        scales = (scale,)
    rule = asked.per_unit
    if asked.column is None and asked.unit is not None and rule is None:
        rule = "min"  # of ones
    contribution = checked(asked.unit, rule, by=asked.by, scale=scales[0])
    if asked.kind == "truth" and contribution.scale(scales[0] or NUMBER) == INTEGER:
        raise ArgumentError(
            "per_unit",
            "a rule such as mean, or a number of rows, for a share",
            got=rule,
            why="it makes numbers above 1 of what is true or false",
            hint="Ask for the mean, or with a condition such as any row: per_unit='max'.",
        )
    once = asked.column is None and rule == "min"
    sets = asked.kind == "sets" and asked.unit is not None
    contribution = attrs.evolve(contribution, once=once, sets=sets, kept=asked.kept)
    chosen = {"value": exact(value, engine)}
    if asked.other is not None:
        other, scale = _value(rows, asked, asked.other, opened, "other")
        chosen["other"], scales = other, (*scales, scale)
        if contribution.records > 1:
            raise ArgumentError(
                "per_unit", "a rule such as mean, for two columns", got=asked.per_unit
            )
    if asked.unit is not None:
        chosen["unit"] = exact(identifying(rows[asked.unit], asked.unit), engine)
    keys = tuple(group_key(rows, name, opened) for name in asked.keys)
    chosen |= {f"member_{place}": exact(key.value, engine) for place, key in enumerate(keys)}
    rows = rows.select(**chosen)
    # A filter by the name of a group would compute it once more for each row: groups without one
    # are dropped when they are counted.
    here = {name: present(rows[name], numbers=name != "unit") for name in chosen}
    late = [name for name in here if name.startswith("member_") and rows[name].type().is_binary()]
    counted = rows.filter(*(here[name] for name in here if name not in late))
    rows = rows.filter(*here.values())
    single = isinstance(asked.by, str)
    return Opened(rows, counted, value.type(), scales, contribution, keys, single, opened)


def filtered(asked: ColumnSpec) -> tuple[OpenTable, ir.Table]:
    """Open the source, and return it with the rows that are asked for; reads none."""
    with contextlib.suppress(ArgumentError):
        return _filtered(asked, columns_used([name for _, name in asked.names], asked.where))
    return _filtered(asked, None)  # so that the error can name every column, and has no context


def _filtered(asked: ColumnSpec, used: list[str] | None) -> tuple[OpenTable, ir.Table]:
    opened = open_source(
        asked.source, connect=asked.connect, table=asked.table, columns=used, unit=asked.unit
    )
    rows = opened.table
    for argument, given in asked.names:
        if given not in rows.columns and (argument == "unit" or expressions.is_name(given)):
            _validate.column(rows.columns, **{argument: given})
    if asked.where is not None:
        where = (
            expressions.parse_condition(asked.where)
            if isinstance(asked.where, str)
            else asked.where
        )
        rows = rows.filter(of_one_row(where, rows))
    return opened, rows


def columns_used(names: Iterable[str], where: Predicate | str | None = None) -> list[str] | None:
    """The columns that names, values, periods and a condition may use; None if that is not known.

    Columns that are not used need not be read with care.
    """
    if where is not None and not isinstance(where, str):
        return None
    found = (
        [] if where is None else expressions.names_in(where)
    )  # also of words alone: name is not null
    for text in names:
        period = None if isinstance(text, expressions.Expression) else row_groups.split_period(text)
        found += [text] if expressions.is_name(text) else expressions.names_in(text)
        name, colon, _ = text.rpartition(":")  # of a period that does not exist, an error says so
        found += [period[0]] if period else [name] if colon else []
    return list(dict.fromkeys(found))


def named_value(rows: ir.Table, text: str, argument: str) -> Any:
    """The column of this name, or the value of the expression that the text is."""
    if text in rows.columns and (
        not isinstance(text, expressions.Expression) or expressions.is_name(text)
    ):
        return rows[text]
    return total_value(expressions.parse_value(text, argument)(rows), rows, argument)


def _one_zero(column: Any) -> Any:
    """A column of categories in which -0.0 and 0.0 are one, displayed as 0.0."""
    if not column.type().is_floating():
        return column
    return ibis.ifelse(column == 0, ibis.literal(0.0).cast(column.type()), column)


def _period(rows: ir.Table, text: str) -> tuple[str, str] | None:
    """The value and the period that a text names, as joined:month or as in SQL; None if none."""
    if not isinstance(text, expressions.Expression):
        if text in rows.columns:
            return None
        if (found := row_groups.split_period(text)) is not None:
            _validate.column(rows.columns, by=found[0])
            return found
        if "(" not in text:
            return None
    return expressions.parsed(text, "by").period


def group_key(rows: ir.Table, text: str, opened: OpenTable) -> row_groups.GroupKey:
    """Return how a column of groups is stored; dates as numbers, the infinite ones in no group."""
    period = _period(rows, text)
    if period is None:
        name, colon, unit = text.rpartition(":")
        if colon and text not in rows.columns and name in rows.columns:
            _validate.one_of(row_groups.UNITS, by=unit)
        column = named_value(rows, text, "by")
        dtype = column.type()
        if not isinstance(dtype, _GROUPING):
            groupable = "a column of texts, numbers, dates or booleans"
            if dtype.is_timestamp():
                hint = f"Name a period of it: {text}:day, {text}:month or {text}:hour."
                raise wrong_type("by", groupable, text, dtype, hint)
            raise wrong_type("by", groupable, text, dtype)
        if dtype.is_date():
            return row_groups.GroupKey(number_of(column, DATE), dtype, DATE)
        return row_groups.GroupKey(_one_zero(column), dtype)
    name, unit = period
    _validate.one_of(row_groups.UNITS, by=unit)
    column = named_value(rows, name, "by")
    dtype = column.type()
    wanted = row_groups.scale_of_periods(unit, zoned=dtype.is_timestamp() and bool(dtype.timezone))
    if name in opened.text:
        numbers = number_of_text(column, wanted)
        unread = numbers.isnull() & column.notnull()
        start = ibis.ifelse(
            unread, double(row_groups.UNREAD), row_groups.starts(numbers, wanted, unit)
        )
        return row_groups.GroupKey(start, dt.date, wanted, unit, unread=True)
    if not (dtype.is_timestamp() or (dtype.is_date() and wanted == DATE)):
        raise wrong_type("by", f"the {unit} of a column of times or dates", name, dtype, "")
    scale = scale_of(dtype, backend_name(rows), name)
    numbers = number_of(column, scale)
    return row_groups.GroupKey(row_groups.starts(numbers, scale, unit), dt.date, wanted, unit)


def identifying(column: ir.Column, name: str) -> ir.Column:
    """Return the column of units, or raise if its type is one that can make a query fail.

    Lists, structures and documents may hold a text that is not valid, or a time that overflows,
    deep inside, where the engine converts it as it reads: one record would stop the whole query.
    """
    if not isinstance(column.type(), IDENTIFYING):
        wanted = "a column of texts, numbers, dates or other plain values"
        raise wrong_type("unit", wanted, name, column.type())
    return column


def _value(
    rows: ir.Table, asked: ColumnSpec, name: str, opened: OpenTable, argument: str = "column"
) -> tuple[ir.Value, Scale | None]:
    """Return the numbers of a column and their scale, or its categories and None."""
    column = named_value(rows, name, argument)
    dtype, declared = column.type(), asked.read_as
    if isinstance(declared, Mapping):
        declared = declared.get(name)
    if asked.kind in ("categories", "sets"):
        if not isinstance(dtype, PLAIN):
            raise wrong_type("column", "of text, numbers, dates or booleans", name, dtype)
        return _one_zero(column), None
    if name in opened.text or (dtype.is_string() and opened.text and name not in rows.columns):
        form = None if declared is None else TextFormat.of(declared)
        if form is not None:
            return form.numbers(column), form.scale
        usual = TRUTH if asked.kind == "truth" else NUMBER
        scale = usual if declared is None else Scale.named(declared)
        found = number_of_text(column, scale)
    else:
        try:
            scale = scale_of(dtype, backend_name(rows), name)
        except ArgumentError as error:
            error.argument = argument
            raise
        if declared is not None:
            raise ArgumentError(
                "read_as",
                "only with a list or a text column",
                got=declared,
                why=f"{name!r} has the type {dtype}",
            )
        found = number_of(column, scale)
    if asked.kind == "truth" and not scale.truth:
        hint = f"Give a condition, such as '{name} > 0'."
        raise wrong_type(argument, "a condition, or a column of booleans", name, dtype, hint)
    return found, scale


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
    names = row_groups.public_groups(groups, by, opened.keys)
    return opened.within(names).columns(names)


def _keys(by: Any) -> str | tuple[str, ...]:
    """One column of groups, or several."""
    if isinstance(by, str):
        return by
    found = tuple(_validate.values(by=by))
    if not found or len(set(map(str, found))) < len(found):
        raise ArgumentError("by", "one or more distinct columns", got=by)
    return found


def open_private_groups(
    source: Any = None, column: str | None = None, *, by: str | Sequence[str], **options: Any
) -> Opened:
    """Open all groups of a table, without reading a record; see `open_groups`."""
    if column is None:
        options["kind"] = "rows"
    return open_rows(ColumnSpec(source, column, by=_keys(by), **options))
