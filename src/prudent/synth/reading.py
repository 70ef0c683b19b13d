"""A table of which only counts leave: of the values of one column, and of the cells of two.

Which columns there are, and how each is read, follows from declared types alone. A column without
a declared type (of a CSV file, or of a pandas frame whose type pandas infers) is read in every way
at once; a paid count later decides between them. A value that does not fit the form of its column
counts as NULL. All counts are made where the table is, by the same query in every engine.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir
import numpy as np

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.release.columns.dialects import (
    arrow_batches,
    as_double,
    backend_name,
    call,
    double,
    encoding,
    exact,
    fetched,
    floored,
    number_of,
    number_of_text,
    rounded,
    scale_of,
)
from prudent.release.columns.joining import rows_per_unit
from prudent.release.columns.number_rows import NumberTable
from prudent.release.columns.row_values.conditions import of_one_row
from prudent.release.columns.row_values.expressions import parse_condition
from prudent.release.columns.scales import NUMBER, Scale
from prudent.release.columns.units import StagedTable
from prudent.release.lattice import IntArray

if TYPE_CHECKING:
    from prudent.synth.domain import Domain

FARTHEST = 2.0**62
"""Values beyond are moved to it: the largest power of two that fits every type of output."""

MOMENTS = {"date": Scale("date"), "timestamp": Scale("timestamp")}
"""The forms of a text that are no number, by name; a timestamp is a text with a colon."""

FORMS = ("whole", *(f"decimal({digits})" for digits in range(1, 5)), "number", *MOMENTS, "text")
"""What a value may look like; a record without a value has none."""

IDENTIFIER = "identifier"
"""The type that is declared of a column whose values tell nothing but whose row it is."""

Pair = tuple[int, int]
"""The places of two columns; twice the same for one."""

Counts = tuple[Any, ...]
"""Arrays: values, or the cells of two columns that occur together, and how many records do."""


@attrs.frozen
class Field:
    """A column by what is public of it."""

    name: str
    dtype: dt.DataType | None  # its declared type; None if it has none
    scale: Scale | None  # of numbers, dates and times; None of texts
    identifier: bool = False  # whether it is declared to tell nothing but whose row it is

    @property
    def boolean(self) -> bool:
        """Whether it is declared to hold booleans, whose values are public."""
        return self.scale is not None and self.scale.truth

    @property
    def numeric(self) -> bool:
        """Whether it may hold numbers, dates or times, as far as is public."""
        return self.scale is not None and not self.boolean

    @property
    def form_is_private(self) -> bool:
        """Whether a paid count says what form its values have, such as their decimal places."""
        return self.scale is not None and self.scale.kind == "number"


class Source:
    """An open table, of which names and types are known, and no record has been read."""

    def __init__(
        self,
        source: Any,
        columns: Sequence[str] | Mapping[str, str | None] | None,
        unit: str | None,
        most_rows: int,
        **options: Any,
    ) -> None:
        """Open a table; see `prudent.synthesize` for the arguments."""
        self._opened = NumberTable(source, **options)
        table, names = self._opened.table, self._opened.names
        if unit is not None:
            _validate.column(names, unit=unit)
        wanted = [name for name in names if name != unit] if columns is None else list(columns)
        for name in wanted:
            _validate.column([name for name in names if name != unit], columns=name)
        if len(set(wanted)) < len(wanted):
            raise ArgumentError("columns", "each named once", shown="one of them twice")
        declared = columns if isinstance(columns, Mapping) else {}
        found = [self._field(name, declared.get(name)) for name in wanted]
        self.fields = [each for each in found if each is not None]
        counted = [each.name for each in self.fields if not each.identifier]
        if unit is not None:
            table = rows_per_unit(table.select(unit, *counted), unit, most_rows)
            counted = [name for name in counted if name in table.columns]  # whose types have order
            self.fields = [each for each in self.fields if each.identifier or each.name in counted]
        if not counted:
            raise ArgumentError("columns", "of text, numbers, dates or booleans", shown="none")
        self.left_out = [name for name in wanted if name not in {each.name for each in self.fields}]
        self._table, self._engine = table, backend_name(table)
        terms = {name: term for each in self.counted for name, term in self._terms(each).items()}
        self._rows = self._staged(table.select(**terms))
        self._cells: StagedTable | None = None

    @property
    def counted(self) -> list[Field]:
        """The columns whose values count: all but declared identifiers."""
        return [each for each in self.fields if not each.identifier]

    def _staged(self, rows: ir.Table) -> StagedTable:
        owner = self._opened.owner
        return StagedTable(rows, own_connection=owner.own_connection, owner=owner)

    def _field(self, name: str, declared: str | None) -> Field | None:
        """What is public of a column; None if its type has no values to count."""
        table = self._opened.table
        dtype, untyped = table[name].type(), name in self._opened.owner.text
        if declared == IDENTIFIER:
            return Field(name, dt.string, None, identifier=True)
        if declared is not None:
            if not untyped:
                raise ArgumentError("columns", "types only of columns without one", got=declared)
            if declared == "text":
                return Field(name, dt.string, None)
            scale = Scale.named(declared)
            kinds = {"number": dt.float64, "integer": dt.int64, "date": dt.date}
            kinds |= {"timestamp": dt.Timestamp(scale=6), "duration": dt.Interval("us")}
            kinds["decimal"] = dt.Decimal(38, scale.digits)
            return Field(name, dt.boolean if scale.truth else kinds[scale.kind], scale)
        if untyped:
            return Field(name, None, NUMBER)
        if dtype.is_string():
            return Field(name, dtype, None)
        try:
            return Field(name, dtype, scale_of(dtype, backend_name(table), name))
        except ArgumentError:
            return None

    def check(self, rule: str) -> None:
        """Check a condition on these columns; only its grammar where a type is not declared."""
        condition = parse_condition(rule)
        if all(each.dtype is not None for each in self.counted):
            of_one_row(condition, self._table.select(*(each.name for each in self.counted)))

    def _terms(self, field: Field) -> dict[str, ir.Value]:
        """What is made of each record first: bytes of texts, and else bounded doubles."""
        column, place = self._table[field.name], self.counted.index(field)
        if field.scale is None:
            return {f"t{place}": exact(column, self._engine)}
        if field.dtype is not None:
            is_text = field.name in self._opened.owner.text
            read = number_of_text if is_text else number_of
            return {f"n{place}": _bounded(read(column, field.scale))}
        return {
            f"n{place}": _bounded(column.try_cast("float64")),
            f"m{place}": _bounded(number_of_text(column, MOMENTS["timestamp"])),
            f"d{place}": ~column.contains(":"),  # of such a time, whether it is a date
            f"t{place}": exact(column, self._engine),
        }

    # ---- questions, asked inside `redact_errors`

    def read(self) -> int:
        """Read the records, which the engine keeps as doubles and bytes; returns their number."""
        rows = self._rows.kept()
        return int(fetched(rows.aggregate(records=rows.count()))["records"][0])

    def forms(self) -> dict[str, IntArray]:
        """Of columns whose form is private, how many records have each of `FORMS`."""
        rows = self._rows.kept()
        asked = {at: each for at, each in enumerate(self.counted) if each.form_is_private}
        parts = {at: rows.select(form=_form(rows, at)) for at in asked}
        found = _counts({at: part.filter(part.form.notnull()) for at, part in parts.items()})
        return {
            each.name: np.bincount(forms, records, len(FORMS)).astype(np.int64)
            for each, (forms, records) in zip(asked.values(), found.values(), strict=True)
        }

    def values(self, field: Field, least: int = 1) -> tuple[Any, IntArray]:
        """The values that at least so many records have, ascending, and how many have each."""
        rows = self._rows.kept()
        rows = rows.select(value=self._value(rows, field))
        return _counts({0: rows.filter(rows.value.notnull())}, least)[0]

    def _value(self, rows: ir.Table, field: Field) -> ir.Value:
        """The values of a column whose form is known."""
        place = [each.name for each in self.counted].index(field.name)
        if field.scale is None:
            return rows[f"t{place}"]
        if f"m{place}" not in rows.columns or field.scale not in MOMENTS.values():
            return rows[f"n{place}"]
        moment = rows[f"m{place}"]
        if field.scale == MOMENTS["timestamp"]:
            return moment
        days = floored(moment / double(86_400e6))
        return ibis.ifelse(rows[f"d{place}"], days, ibis.null("float64"))

    def codec(self) -> str:
        """The encoding of the bytes of texts."""
        return encoding(self._table)

    def assign(self, domains: Sequence["Domain"]) -> None:
        """Let the engine put each record into one cell of each of these columns."""
        kept = self._rows.kept()
        rows = kept.select(
            **{f"v{place}": self._value(kept, each.field) for place, each in enumerate(domains)}
        )
        for place, domain in enumerate(domains):
            if domain.keys:
                listed = self._listed(domain).rename({f"k{place}": "key", f"c{place}": "cell"})
                rows = rows.left_join(listed, rows[f"v{place}"] == listed[f"k{place}"])
        cells = {}
        for place, domain in enumerate(domains):
            value, cell = rows[f"v{place}"], ibis.literal(1 + len(domain.keys), "int32")
            for edge in () if domain.edges is None else domain.edges[1:-1].tolist():
                cell = cell + (value >= double(edge)).cast("int32")
            cell = ibis.ifelse(value.isnull(), ibis.literal(0, "int32"), cell)
            known = [rows[f"c{place}"]] if domain.keys else []
            cells[f"cell{place}"] = ibis.coalesce(*known, cell).cast("int32")
        self._cells = self._staged(rows.select(**cells))

    def _listed(self, domain: "Domain") -> ir.Table:
        """The keys of a column and their cells, from a single literal: of many, ibis is slow."""
        size, texts = len(domain.stored), domain.field.scale is None
        shown = ("-" + each.hex() if texts else repr(float(each)) for each in domain.stored)
        parts = ibis.literal(",".join(shown)).split(",")
        rows = ibis.range(0, size).unnest().name("place").as_table()
        key = parts[rows.place]
        if texts and self._engine == "postgres":
            key = call("decode", key.substr(1), ibis.literal("hex"), returns=dt.binary)
        else:
            key = call("unhex", key.substr(1), returns=dt.binary) if texts else key.cast("float64")
        # ibis takes a range for its shortest type, and would omit a cast to what it has already.
        cell = ibis.expr.operations.Cast(rows.place + 1, dt.int32).to_expr()
        # With a limit PostgreSQL makes these rows once, and not for every row of a join.
        return rows.select(key=key, cell=cell).limit(size)

    def pairs(self, asked: Sequence[Pair]) -> dict[Pair, Counts]:
        """How many records have each two cells, by one query for all these pairs."""
        assert self._cells is not None
        cells = self._cells.kept()
        parts = {
            (one, other): cells.select(one=f"cell{one}", other=cells[f"cell{other}"])
            for one, other in asked
        }
        return _counts(parts)


def _counts(parts: Mapping[Any, ir.Table], least: int = 1) -> dict[Any, Counts]:
    """The rows of each part that at least so many rows are equal to, ascending, and how many are.

    One query for all parts; none of their values is NULL.
    """
    groups = []
    for place, rows in enumerate(parts.values()):
        found = rows.group_by(rows.columns).aggregate(records=lambda t: t.count())
        found = found.filter(found.records >= least)
        groups.append(found.mutate(place=ibis.literal(place, "int64")))
    if not groups:
        return {}
    whole = ibis.union(*groups) if len(groups) > 1 else groups[0]
    batches = list(arrow_batches(whole.order_by("place", *rows.columns)))
    *columns, records, places = (
        np.concatenate(
            [np.empty(0, np.int64)]
            + [batch.column(name).to_numpy(zero_copy_only=False) for batch in batches]
        )
        for name in whole.columns
    )
    owns = [places == place for place in range(len(groups))]
    return {
        key: (*(column[own] for column in columns), records[own])
        for key, own in zip(parts, owns, strict=True)
    }


def _bounded(value: ir.Value) -> ir.Value:
    """A number as a double within `FARTHEST`, with one zero; NULL for NaN."""
    number = as_double(value)
    return ibis.cases(
        (number.between(double(-FARTHEST), double(FARTHEST)) & (number != double(0.0)), number),
        (number == double(0.0), double(0.0)),
        (number < double(0.0), double(-FARTHEST)),
        (number <= double(float("inf")), double(FARTHEST)),  # NaN is above in every engine
        else_=ibis.null("float64"),
    )


def _form(rows: ir.Table, place: int) -> ir.Value:
    """The place in `FORMS` of what a record looks like, NULL if it has no value."""
    number, other = rows[f"n{place}"], ibis.null("int64")

    def form(name: str) -> ir.Value:
        return ibis.literal(FORMS.index(name), "int64")

    if f"t{place}" in rows.columns:
        other = ibis.cases(
            (rows[f"t{place}"].isnull(), other),
            (rows[f"m{place}"].isnull(), form("text")),
            (rows[f"d{place}"], form("date")),
            else_=form("timestamp"),
        )
    shown = zip((10.0**digits for digits in range(5)), FORMS, strict=False)
    exact = [
        (rounded(number * double(size)) / double(size) == number, form(name))
        for size, name in shown
    ]
    return ibis.cases((number.isnull(), other), *exact, else_=form("number"))
