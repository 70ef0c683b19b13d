"""A column where it is: its questions as queries, and how a window is found in a few of them.

What an engine is asked for are counts, sums, and the few values near a rank. The window is found by
narrowing. The quantiles of a random sample, drawn and sorted by the engine, suggest a bracket of
values around the ranks; a count over all rows says which ranks the bracket holds; then the engine
groups what lies inside by value. The sample only decides how much work is left: the answer is exact
whatever it drew. It is drawn once for all windows of a column, and the last windows are remembered:

| statistic of more than `FEW` records | queries, each a pass over the column |
| --- | --- |
| quantile | count, sample, count below, window: 4 |
| interquartile range | count, sample, and twice count below, window: 6 |
| trimmed mean, a small trim | count, sample, window, count below, window, sum: 6 |
| mode of numbers, or of a public list of up to 200 categories | 1 |
| mode of any categories | 1, and 1 more after the test has passed |

Up to `FEW` records there is no sample and nothing is counted below. A mode of numbers takes in
every point of the lattice that holds nearly as many records as the fullest: few where values
repeat, all of them where hardly any does. Other answers have at most a window's rows, or
`QUANTILES`.
"""

import functools
import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir
import numpy as np

from prudent._validate import ArgumentError
from prudent.release.columns.column import Leaders
from prudent.release.columns.dialects import (
    backend_name,
    double,
    encoding,
    exact,
    fetched,
    image,
    legible,
    literal,
)
from prudent.release.failures import withheld
from prudent.release.lattice import FloatArray, IntArray, Lattice

SAMPLE = 2**18
"""Rows sampled to suggest a bracket: their quantiles err by at most 0.5 % of the ranks."""

QUANTILES = 2**9
"""Quantiles of the sample that leave the engine: a bracket is at most 0.4 % wider than it could."""

FEW = 2**18
"""Rows that the engine groups and sorts without narrowing them further."""

_SLACK = 5 * 0.5 / math.sqrt(SAMPLE)  # five standard deviations of a sample quantile's rank
_AT_ONCE = 200  # counts that one query asks for


class TableColumn:
    """A column of an ibis table, one row per value; see `Column`."""

    def __init__(
        self, rows: ir.Table, dtype: dt.DataType | None = None, *, owner: object = None
    ) -> None:
        """Takes a table whose column `value` has a value in every row.

        Args:
            rows: The table. Texts are there as bytes, see `prudent.release.columns.dialects.exact`.
            dtype: The type of the values as they are shown; None: as they are in `rows`.
            owner: Kept alive as long as this column is: what must stay open for it.
        """
        self._rows = rows
        self._type = rows.value.type() if dtype is None else dtype
        self._owner = owner
        # A trimmed mean comes back to the ends of both its windows.
        self._windows: deque[tuple[int, FloatArray]] = deque(maxlen=2)

    @property
    def rows(self) -> ir.Table:
        """The table, with a column `value` that has a value in every row."""
        return self._rows

    @property
    def dtype(self) -> dt.DataType:
        """The type of the values as they are shown."""
        return self._type

    def count(self) -> int:
        """See `Column`."""
        return self._count

    @functools.cached_property
    def _count(self) -> int:
        return int(self._ask(how_many))

    def order_statistics(self, first: int, last: int) -> FloatArray:
        """See `Column`."""
        first, last = max(first, 1), min(last, self._count)
        if first > last:
            return np.empty(0)
        for start, values in self._windows:
            if start <= first and last < start + len(values):
                return values[first - start : last - start + 1].copy()
        low, high = self._suggested(first, last)
        below = int(self.counts_below(np.array([low]))[0]) if low > -math.inf else 0
        if below >= first:  # the sample misled
            low, below = -math.inf, 0
        window = self._window(low, high, first - below, last - below)
        if len(window) < last - first + 1:  # misled on the other side
            window = self._window(low, math.inf, first - below, last - below)
        self._windows.append((first, window))
        return window.copy()

    def counts_below(self, edges: FloatArray) -> IntArray:
        """See `Column`."""
        found: list[int] = []
        for start in range(0, len(edges), _AT_ONCE):
            row = self._ask(how_many_below, edges=edges[start : start + _AT_ONCE])
            found.extend(column[0].as_py() for column in row.columns)
        return np.array(found, np.int64)

    def sum_between(self, first: int, last: int, lattice: Lattice) -> int:
        """See `Column`."""
        first, last = max(first, 1), min(last, self._count)
        if first > last:
            return 0
        low = self.order_statistics(first, first)[0]
        high = self.order_statistics(last, last)[0]
        low_step, high_step = (int(step) for step in lattice.steps([low, high]))
        # Each value counts from `low` up, in as many parts as keep a sum of all rows in 64 bits.
        bits = 62 - self._count.bit_length()
        parts = max(1, math.ceil((high_step - low_step).bit_length() / bits))
        row = self._ask(
            sums_between,
            low=low,
            high=high,
            lattice=lattice,
            origin=low_step,
            bits=bits,
            parts=parts,
        )
        at_most_low, inside, *sums = (column[0].as_py() or 0 for column in row.columns)
        at_low = at_most_low - first + 1
        at_high = last - first + 1 - at_low - inside
        total = sum(part << (place * bits) for place, part in enumerate(sums))
        return int(total + (at_low + inside) * low_step + at_high * high_step)

    def frequencies(self, lattice: Lattice, within: int) -> tuple[IntArray, IntArray]:
        """See `Column`."""
        found = self._ask(fullest_points, lattice=lattice, within=within).sort_by("step")
        return (
            found["step"].to_numpy().astype(np.int64),
            found["records"].to_numpy().astype(np.int64),
        )

    def leaders(self) -> Leaders:
        """See `Column`."""
        found = self._ask(two_largest_groups).sort_by("place").to_pydict()
        (most, fewer), (first, second) = (
            [*found[name], 0, 0][:2] for name in ("records", "position")
        )
        return Leaders(most, fewer, fewer > 0 and second < first)

    def most_frequent(self) -> Any:
        """See `Column`."""
        found = self._ask(largest_group)["value"].to_pylist()
        return withheld(self._image, found[0]) if found else None

    def counts_of(self, categories: Sequence[Hashable]) -> IntArray:
        """See `Column`."""
        if self.typed(categories) != list(categories):
            # An order of texts would not be the order of the values.
            raise ArgumentError("categories", f"of type {self._type}", got=categories)
        found: list[int] = []
        for start in range(0, len(categories), _AT_ONCE):
            row = self._ask(how_many_of_each, categories=categories[start : start + _AT_ONCE])
            found.extend(column[0].as_py() for column in row.columns)
        return np.array(found, np.int64)

    def typed(self, values: Sequence[Hashable]) -> list[str | bool | int | float]:
        """Public values, perhaps written as text, in the type of this column."""
        return [typed(value, self._type, "categories") for value in values]

    def _image(self, found: Any) -> Any:
        return image(found, self._type, encoding(self._rows))

    def _ask(self, question: Callable[..., ir.Expr], **given: Any) -> Any:
        """The engine's answer to one of the questions below."""
        return _answer(question(self._rows, **given))

    def _suggested(self, first: int, last: int) -> tuple[float, float]:
        """Values that probably enclose ranks first..last, from a sample; infinite if few rows."""
        if self._count <= FEW:
            return -math.inf, math.inf
        quantiles = self._quantiles
        # The k-th of them, from 1 on, has a share k / len(quantiles) of the sample up to it.
        low = math.floor((first / self._count - _SLACK) * len(quantiles))
        high = math.ceil((last / self._count + _SLACK) * len(quantiles))
        return (
            float(quantiles[low - 1]) if low > 0 else -math.inf,
            float(quantiles[high - 1]) if high < len(quantiles) else math.inf,
        )

    @functools.cached_property
    def _quantiles(self) -> FloatArray:
        found = self._ask(sample_quantiles, share=SAMPLE / self._count)
        return np.sort(found["value"].to_numpy().astype(np.float64))

    def _window(self, low: float, high: float, first: int, last: int) -> FloatArray:
        """The values of ranks first..last among those in [low, high], as far as there are any."""
        found = self._ask(near_ranks, low=low, high=high, first=first, last=last)
        found = found.sort_by("upto")  # a few rows; Spark would go over its part of them twice
        ends, records = found["upto"].to_numpy(), found["records"].to_numpy()
        repeats = np.minimum(ends, last) - np.maximum(ends - records + 1, first) + 1
        return np.repeat(found["value"].to_numpy().astype(np.float64), repeats)


def how_many(rows: ir.Table) -> ir.Expr:
    """How many records there are."""
    return rows.count()


def how_many_below(rows: ir.Table, *, edges: FloatArray) -> ir.Expr:
    """How many records lie below each of a few values."""
    rows = rows.filter(rows.value < double(max(edges)))  # an index on the column can serve this
    return rows.aggregate(
        **{
            f"below_{index}": rows.count(where=rows.value < double(edge))
            for index, edge in enumerate(edges)
        }
    )


def sample_quantiles(rows: ir.Table, *, share: float) -> ir.Expr:
    """Evenly spaced quantiles of a random sample, which suggest where ranks are."""
    sample = rows.filter(ibis.random() < share).select("value")
    part = ibis.ntile(QUANTILES).over(ibis.window(order_by=sample.value))
    parts = sample.mutate(part=part).group_by("part")
    return parts.aggregate(value=lambda t: t.value.max()).select("value")


def near_ranks(rows: ir.Table, *, low: float, high: float, first: int, last: int) -> ir.Expr:
    """The values of a few ranks, each once, with its number of records, out of a bracket."""
    inside = rows.filter(rows.value >= double(low), rows.value <= double(high))
    groups = inside.group_by("value").aggregate(records=lambda t: t.count())
    upto = groups.records.sum().over(ibis.window(order_by=groups.value, rows=(None, 0)))
    ranked = groups.mutate(upto=upto.cast("int64"))
    return ranked.filter(ranked.upto >= first, ranked.upto - ranked.records < last)


def sums_between(
    rows: ir.Table,
    *,
    low: float,
    high: float,
    lattice: Lattice,
    origin: int,
    bits: int,
    parts: int,
) -> ir.Expr:
    """The sum of all values between two, moved to the lattice, and how many there are."""
    rows = rows.filter(rows.value < double(high))
    between = rows.value > double(low)
    rest = _steps(rows.value, lattice, below=high) - double(origin)
    sums = {}
    for place in range(parts):
        upper = (rest / double(2.0**bits)).floor().cast("float64")
        part = rest if place == parts - 1 else rest - upper * double(2.0**bits)
        sums[f"part_{place}"] = part.cast("int64").sum(where=between).cast("int64")
        rest = upper
    return rows.aggregate(
        at_most_low=rows.count(where=rows.value <= double(low)),
        inside=rows.count(where=between),
        **sums,
    )


def fullest_points(rows: ir.Table, *, lattice: Lattice, within: int) -> ir.Expr:
    """The points of the lattice that hold nearly as many records as the fullest."""
    steps = rows.select(step=_steps(rows.value, lattice).cast("int64"))
    groups = steps.group_by("step").aggregate(records=lambda t: t.count())
    fullest = groups.mutate(most=groups.records.max().over(ibis.window()))
    near = fullest.filter(fullest.records > fullest.most - within)
    return near.select("step", "records")


def two_largest_groups(rows: ir.Table) -> ir.Expr:
    """How many records the two most frequent values have, and their order, but not the values."""
    groups = _by_size(rows)
    top = groups.order_by([ibis.desc(groups.records), groups.value]).limit(2)
    sizes = ibis.window(order_by=[ibis.desc(top.records), top.value])
    return top.select(
        records=top.records,
        place=ibis.row_number().over(sizes),
        position=ibis.row_number().over(ibis.window(order_by=top.value)),
    )


def largest_group(rows: ir.Table) -> ir.Expr:
    """The most frequent value."""
    groups = _by_size(rows)
    top = groups.order_by([ibis.desc(groups.records), groups.value]).limit(1)
    return top.select(value=legible(top.value, backend_name(rows)))


def how_many_of_each(rows: ir.Table, *, categories: Sequence[Any]) -> ir.Expr:
    """How many records have each of a few public values."""
    engine = backend_name(rows)
    values = [exact(literal(each), engine) for each in categories]
    rows = rows.filter(rows.value.isin(values))
    return rows.aggregate(
        **{
            f"of_{index}": rows.count(where=rows.value == value)
            for index, value in enumerate(values)
        }
    )


def _by_size(rows: ir.Table) -> ir.Table:
    return rows.group_by("value").aggregate(records=lambda t: t.count())


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
    raise ArgumentError(name, f"of type {dtype}, as the column is", got=value)


def _steps(value: ir.Value, lattice: Lattice, *, below: float = math.inf) -> ir.Value:
    """Steps of the lattice, still as doubles: the arithmetic of `Lattice.steps`, bit for bit.

    Where all values are known to be below another, none is compared with the upper end in vain.
    """
    least, largest = lattice.value(lattice.low), lattice.value(lattice.high)
    if below > largest:
        value = ibis.ifelse(value > double(largest), double(largest), value)
    value = ibis.ifelse(value < double(least), double(least), value)
    scaled = value * double(math.ldexp(1.0, -lattice.exponent))
    if lattice.exponent > 0:
        # PostgreSQL calls a product that vanishes an error; what is this small is in step 0 anyway.
        tiny = value.abs() < double(math.ldexp(1.0, max(lattice.exponent - 60, -1070)))
        scaled = ibis.ifelse(tiny, double(0.0), scaled)
    return (scaled + double(0.5)).floor().cast("float64")


def _answer(expression: ir.Expr) -> Any:
    """What the engine answers; an error of the engine is not passed on, it may quote records."""
    found = withheld(fetched, expression)
    return found[0][0].as_py() if isinstance(expression, ir.Scalar) else found
