"""The order statistics of a column in any engine: DuckDB embedded, PostgreSQL, Spark.

`open_column` makes a `Column` of nearly anything. Its questions are answered where the data are:
what comes back are counts, sums, and the few values near a rank. The window is found by narrowing.
A random sample, drawn and sorted by the engine, suggests a bracket of values around the ranks; a
count over all rows says which ranks the bracket holds; then the engine groups what lies inside by
value. The sample only decides how much work is left: the answer is exact whatever it drew.

One record is one value or none:

| a record | counts as |
| --- | --- |
| a number | itself, as a double |
| NULL, NaN | no value: it is not in the column |
| +inf, -inf | a value at the end; releases clip it to the public ends of their lattice |
| text that is no number, in a CSV file | no value |
| with `unit`: a unit's rows | the least of the unit's values; none if it has none |
| with `unit`: a row whose unit is NULL | no value: nobody owns it |
| with groups: a row of a group that is not listed | no value |

Each row is a function of one record (of one unit's rows), so adding or removing one record adds or
removes at most one value: adjacency of tables is adjacency of columns.
"""

import functools
import math
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import ibis
import ibis.expr.datatypes as dt
import ibis.expr.operations as ops
import ibis.expr.types as ir
import numpy as np

from prudent import _validate
from prudent.release.columns_protocol import ArrayColumn, Column, Kind
from prudent.release.dialects import (
    backend_name,
    double,
    double_of_numeric,
    in_order_of_characters,
    literal,
    plain_text,
)
from prudent.release.lattice import FARTHEST, FloatArray, IntArray, Lattice
from prudent.release.sources import Source, SourceError, open_source

Predicate = Callable[[ir.Table], ir.BooleanValue]

SAMPLE = 2**18
"""Rows sampled to suggest a bracket: their quantiles err by at most 0.5 % of the ranks."""

FEW = 2**20
"""Rows that the engine groups and sorts without narrowing them further."""

_SLACK = 5 * 0.5 / math.sqrt(SAMPLE)  # five standard deviations of a sample quantile's rank
_EDGES_AT_ONCE = 200
_HALF = 26  # bits of the lower half of a sum; both halves then hold 2**36 rows in 64 bits
_NOT_OF_ONE_ROW = (
    ops.Reduction,
    ops.Analytic,
    ops.WindowFunction,
    ops.Subquery,
    ops.Impure,
    ops.ScalarUDF,  # Python's see many rows at once, and those of an engine may do anything
)
_PLAIN = (  # of a category: equal values look the same, and are ordered as Python orders them
    dt.String,
    dt.Boolean,
    dt.Integer,
    dt.Floating,
    dt.Decimal,
    dt.Date,
    dt.Timestamp,
    dt.Binary,
)


class TableColumn:
    """A column of an ibis table, one row per value; see `Column`."""

    def __init__(self, rows: ir.Table, *, owner: object = None) -> None:
        """Takes a table whose column `value` has a value in every row.

        Args:
            rows: The table.
            owner: Kept alive as long as this column is: what must stay open for it.
        """
        self._rows = rows
        self._owner = owner

    def count(self) -> int:
        """See `Column`."""
        return self._count

    @functools.cached_property
    def _count(self) -> int:
        return int(_answer(self._rows.count()))

    def order_statistics(self, first: int, last: int) -> FloatArray:
        """See `Column`."""
        first, last = max(first, 1), min(last, self._count)
        if first > last:
            return np.empty(0)
        low, high = self._suggested(first, last)
        below = self._below(low) if low > -math.inf else 0
        if below >= first:  # the sample misled
            low, below = -math.inf, 0
        window = self._window(low, high, first - below, last - below)
        if len(window) < last - first + 1:  # misled on the other side
            window = self._window(low, math.inf, first - below, last - below)
        return window

    def counts_below(self, edges: FloatArray) -> IntArray:
        """See `Column`."""
        found: list[int] = []
        for start in range(0, len(edges), _EDGES_AT_ONCE):
            part = edges[start : start + _EDGES_AT_ONCE]
            counts = {
                f"below_{index}": self._rows.count(where=self._rows.value < double(edge))
                for index, edge in enumerate(part)
            }
            row = _answer(self._rows.aggregate(**counts))
            found.extend(row[name][0].as_py() for name in counts)
        return np.array(found, np.int64)

    def sum_between(self, first: int, last: int, lattice: Lattice) -> int:
        """See `Column`."""
        first, last = max(first, 1), min(last, self._count)
        if first > last:
            return 0
        low = self.order_statistics(first, first)[0]
        high = self.order_statistics(last, last)[0]
        low_step, high_step = (int(step) for step in lattice.steps([low, high]))
        if low == high:
            return (last - first + 1) * low_step
        value = self._rows.value
        between = (value > double(low)) & (value < double(high))
        # Counted from the low end up and in two halves, so that sums stay inside 64 bits.
        steps = _steps(value, lattice) + float(FARTHEST)
        upper = (steps / float(2**_HALF)).floor().cast("int64")
        lower = (steps - upper.cast("float64") * float(2**_HALF)).cast("int64")
        found = _answer(
            self._rows.aggregate(
                at_most_low=self._rows.count(where=value <= double(low)),
                inside=self._rows.count(where=between),
                upper=upper.sum(where=between).cast("int64"),
                lower=lower.sum(where=between).cast("int64"),
            )
        ).to_pylist()[0]
        inside, at_low = found["inside"], found["at_most_low"] - first + 1
        at_high = last - first + 1 - at_low - inside
        total = ((found["upper"] or 0) << _HALF) + (found["lower"] or 0) - inside * FARTHEST
        return int(total + at_low * low_step + at_high * high_step)

    def frequencies(self, lattice: Lattice, within: int) -> tuple[IntArray, IntArray]:
        """See `Column`."""
        steps = self._rows.select(step=_steps(self._rows.value, lattice).cast("int64"))
        groups = steps.group_by("step").aggregate(records=lambda t: t.count())
        fullest = groups.mutate(most=groups.records.max().over(ibis.window()))
        near = fullest.filter(fullest.records > fullest.most - within)
        found = _answer(near.select("step", "records").order_by("step"))
        return (
            found["step"].to_numpy().astype(np.int64),
            found["records"].to_numpy().astype(np.int64),
        )

    def most_frequent(
        self, limit: int, among: Sequence[Hashable] | None = None
    ) -> list[tuple[Any, int]]:
        """See `Column`."""
        rows = self._rows
        if among is not None:
            kept = self.typed(among)
            if kept != list(among):  # an order of texts would not be the order of the values
                raise ValueError(f"Expected among of type {rows.value.type()}, got {among!r}.")
            rows = rows.filter(rows.value.isin(list(map(literal, kept)))) if kept else rows.limit(0)
        groups = rows.group_by("value").aggregate(records=lambda t: t.count())
        order = [ibis.desc(groups.records), in_order_of_characters(groups.value)]
        found = _answer(groups.order_by(order).limit(limit))
        return list(zip(found["value"].to_pylist(), found["records"].to_pylist(), strict=True))

    def typed(self, values: Sequence[Hashable]) -> list[str | bool | int | float]:
        """Public values, perhaps written as text, in the type of this column."""
        return [typed(value, self._rows.value.type(), "categories") for value in values]

    def _below(self, edge: float) -> int:
        return int(_answer(self._rows.filter(self._rows.value < double(edge)).count()))

    def _suggested(self, first: int, last: int) -> tuple[float, float]:
        """Values that probably enclose ranks first..last, from a sample; infinite if few rows."""
        if self._count <= FEW:
            return -math.inf, math.inf
        sample = self._rows.filter(ibis.random() < SAMPLE / self._count)
        low, high = first / self._count - _SLACK, last / self._count + _SLACK
        found = _answer(
            sample.aggregate(
                low=sample.value.quantile(max(low, 0.0)),
                high=sample.value.quantile(min(high, 1.0)),
            )
        )
        ends = found["low"][0].as_py(), found["high"][0].as_py()
        if None in ends or any(map(math.isnan, ends)):  # no rows drawn, or between infinities
            return -math.inf, math.inf
        return (ends[0] if low > 0 else -math.inf), (ends[1] if high < 1 else math.inf)

    def _window(self, low: float, high: float, first: int, last: int) -> FloatArray:
        """The values of ranks first..last among those in [low, high], as far as there are any."""
        value = self._rows.value
        inside = self._rows.filter(value >= double(low), value <= double(high))
        groups = inside.group_by("value").aggregate(records=lambda t: t.count())
        upto = groups.records.sum().over(ibis.window(order_by=groups.value, rows=(None, 0)))
        ranked = groups.mutate(upto=upto.cast("int64"))
        near = ranked.filter(ranked.upto >= first, ranked.upto - ranked.records < last)
        found = _answer(near.order_by("value"))
        ends, records = found["upto"].to_numpy(), found["records"].to_numpy()
        repeats = np.minimum(ends, last) - np.maximum(ends - records + 1, first) + 1
        return np.repeat(found["value"].to_numpy().astype(np.float64), repeats)


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
    """The column of a table, to release from.

    Args:
        source: An array of values, or what `open_source` takes: a path, a frame, an ibis table.
        column: Its name; none for an array.
        unit: The column that says whose row it is. Each unit then counts once, with the least of
            its values. Without it every row is a unit of its own: that protects rows, and a
            person only if no person has two.
        where: Which rows to keep: a function of the table, such as `lambda t: t.year == 2024`,
            that looks at one row at a time.
        connect: The address of a database, instead of a source.
        table: The table in it.
        kind: Whether the values are numbers or categories; only the mode takes categories.

    Raises:
        SourceError: if there is no such table, or it cannot be read.
        ValueError: if there is no such column or it has the wrong type.
    """
    if isinstance(source, np.ndarray | list | tuple) and connect is None:
        if column is not None or unit is not None or where is not None:
            raise ValueError("Expected column, unit and where only with a table, got an array.")
        return ArrayColumn.of(source, kind)
    rows, owner = _opened(source, column, unit, where, connect, table, kind, by=None)
    return TableColumn(_one_per_unit(rows) if unit is not None else rows, owner=owner)


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
    """One column for each group of a public list.

    Guarantee: a record, or all rows of a unit, give a value to one group at most. So releasing
    from every group costs what one release costs (parallel composition).

    Args:
        source: See `open_column`; not an array.
        column: See `open_column`.
        by: The column that says which group a row is in.
        groups: The groups, from public knowledge. Which groups occur in the data is private.
        unit: See `open_column`; a unit with rows in several of the groups counts in one of them,
            where its least value is.
        where: See `open_column`.
        connect: See `open_column`.
        table: See `open_column`.
        kind: See `open_column`.

    Raises:
        ValueError: also if the list of groups is missing, empty or repeats a group.
    """
    if groups is None:
        raise ValueError(
            f"Expected groups a list that is public knowledge, got None. Which values of {by!r} "
            "occur depends on single records, so a list read from the data is private: name the "
            "groups yourself, also those that may be empty."
        )
    if isinstance(groups, str) or not groups or len(set(groups)) < len(groups):
        raise ValueError(f"Expected groups one or more distinct values, got {groups!r}.")
    rows, owner = _opened(source, column, unit, where, connect, table, kind, by=by)
    wanted = {group: typed(group, rows.member.type(), "groups") for group in groups}
    if len(set(wanted.values())) < len(wanted):
        raise ValueError(f"Expected groups one or more distinct values, got {groups!r}.")
    rows = rows.filter(rows.member.isin(list(map(literal, wanted.values()))))
    if unit is not None:
        rows = _one_per_unit(rows)
    return {
        group: TableColumn(rows.filter(rows.member == literal(member)), owner=owner)
        for group, member in wanted.items()
    }


def typed(value: Hashable, dtype: dt.DataType, name: str) -> str | bool | int | float:
    """A public value, perhaps written as text, in the type of a column.

    Raises:
        ValueError: if it cannot be one.
    """
    given: Any = value.item() if isinstance(value, np.generic) else value
    try:
        if dtype.is_string():
            return str(given)
        if dtype.is_boolean():
            return {"true": True, "false": False}[str(given).lower()]
        if dtype.is_integer() and abs(number := int(given)) < 2**63 and number == float(given):
            return number
        if dtype.is_floating() and not math.isnan(float(given)):
            return float(given)
    except (TypeError, ValueError, KeyError, OverflowError):
        pass
    raise ValueError(f"Expected {name} of type {dtype}, as the column is, got {value!r}.")


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
) -> tuple[ir.Table, Source]:
    """Rows `value`, and `unit` and `member` where asked for, of the records that have a value."""
    _validate.one_of(("numbers", "categories"), kind=kind)
    if column is None:
        raise ValueError("Expected column the name of a column, got nothing.")
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
        rows = rows.filter(_of_one_row(where, rows))
    chosen = {"value": _value(rows[column], kind, column, text=column in opened.text)}
    if unit is not None:
        chosen["unit"] = rows[unit]
    if by is not None:
        chosen["member"] = plain_text(rows[by])
    rows = rows.select(**chosen).drop_null()
    if rows.value.type().is_floating():
        rows = rows.filter(~rows.value.isnan())
    return rows, opened


def _value(column: ir.Column, kind: Kind, name: str, *, text: bool) -> ir.Column:
    """The column as doubles, or as the categories it holds."""
    dtype = column.type()
    if kind == "categories":
        if not isinstance(dtype, _PLAIN):
            raise ValueError(
                f"Expected column of text, numbers, dates or truth values, got {name!r} of type "
                f"{dtype}. Make one of these of it, in an ibis table."
            )
        if dtype.is_floating():  # -0.0 is 0.0, whichever comes first
            return ibis.ifelse(column == 0, ibis.literal(0.0).cast(dtype), column)
        return plain_text(column)
    if text:
        return column.try_cast("float64")
    if dtype.is_boolean():
        return column.cast("int32").cast("float64")
    if not dtype.is_numeric():
        raise ValueError(
            f"Expected column of numbers, got {name!r} of type {dtype}. "
            "Only the mode of categories can be released from it."
        )
    if dtype.is_decimal() and backend_name(column) == "postgres":
        return double_of_numeric(column)
    return column.cast("float64")


def _of_one_row(where: Predicate, table: ir.Table) -> ir.BooleanValue:
    """A predicate, checked to look at one row at a time.

    A comparison with, say, the largest value would let one record decide about many others.
    """
    try:
        (predicate,) = table.bind(where)
        boolean = predicate.type().is_boolean()
    except Exception:
        boolean = False
    if not boolean:
        raise ValueError("Expected where a true-or-false expression of the table's columns.")
    if predicate.op().find(_NOT_OF_ONE_ROW):
        raise ValueError(
            "Expected where to look at one row at a time, got an aggregate, a window, a subquery "
            "or a random draw: one record could then decide about the rows of others."
        )
    return predicate


def _one_per_unit(rows: ir.Table) -> ir.Table:
    """One row per unit: its least value; among equals, the least group."""
    if rows.columns == ("value", "unit") and rows.value.type().is_floating():
        return rows.group_by("unit").aggregate(value=rows.value.min())
    order = [in_order_of_characters(rows[name]) for name in ("value", "member") if name in rows]
    place = ibis.row_number().over(ibis.window(group_by="unit", order_by=order))
    placed = rows.mutate(place=place)
    return placed.filter(placed.place == 0).drop("place")


def _steps(value: ir.Value, lattice: Lattice) -> ir.Value:
    """Steps of the lattice, still as doubles: the arithmetic of `Lattice.steps`, bit for bit."""
    low, high = lattice.value(lattice.low), lattice.value(lattice.high)
    inside = ibis.ifelse(
        value < double(low), double(low), ibis.ifelse(value > double(high), double(high), value)
    )
    # PostgreSQL calls a product that vanishes an error; what is this small is in step 0 anyway.
    tiny = inside.abs() < double(math.ldexp(1.0, max(lattice.exponent - 60, -1070)))
    scaled = inside * double(math.ldexp(1.0, -lattice.exponent))
    return (ibis.ifelse(tiny, double(0.0), scaled) + double(0.5)).floor().cast("float64")


def _answer(expression: ir.Expr) -> Any:
    """What the engine answers; an error of the engine is not passed on, it may quote records."""
    try:
        found = expression.to_pyarrow()
    except Exception as error:
        raise SourceError(
            f"The engine could not read the column ({type(error).__name__}). Check that the file "
            "or table is readable as a whole; details are withheld, they may quote records."
        ) from None
    return found.as_py() if isinstance(expression, ir.Scalar) else found
