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
| mode | 1 |

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

from prudent.release.dialects import double, fetched, in_order_of_characters, literal
from prudent.release.lattice import FloatArray, IntArray, Lattice
from prudent.release.sources import SourceError

SAMPLE = 2**18
"""Rows sampled to suggest a bracket: their quantiles err by at most 0.5 % of the ranks."""

QUANTILES = 2**9
"""Quantiles of the sample that leave the engine: a bracket is at most 0.4 % wider than it could."""

FEW = 2**18
"""Rows that the engine groups and sorts without narrowing them further."""

_SLACK = 5 * 0.5 / math.sqrt(SAMPLE)  # five standard deviations of a sample quantile's rank
_EDGES_AT_ONCE = 200


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
        # A trimmed mean comes back to the ends of both its windows.
        self._windows: deque[tuple[int, FloatArray]] = deque(maxlen=2)

    @property
    def rows(self) -> ir.Table:
        """The table, with a column `value` that has a value in every row."""
        return self._rows

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
        for start in range(0, len(edges), _EDGES_AT_ONCE):
            row = self._ask(how_many_below, edges=edges[start : start + _EDGES_AT_ONCE])
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
        if low == high:
            return (last - first + 1) * low_step
        # Each value counts from `low` up, in as many parts as keep a sum of all rows in 64 bits.
        bits = 62 - self._count.bit_length()
        parts = math.ceil((high_step - low_step).bit_length() / bits)
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

    def most_frequent(
        self, limit: int, among: Sequence[Hashable] | None = None
    ) -> list[tuple[Any, int]]:
        """See `Column`."""
        # An order of texts would not be the order of the values.
        if among is not None and self.typed(among) != list(among):
            raise ValueError(f"Expected among of type {self._rows.value.type()}, got {among!r}.")
        found = self._ask(largest_groups, limit=limit, among=among)
        return list(zip(found["value"].to_pylist(), found["records"].to_pylist(), strict=True))

    def typed(self, values: Sequence[Hashable]) -> list[str | bool | int | float]:
        """Public values, perhaps written as text, in the type of this column."""
        return [typed(value, self._rows.value.type(), "categories") for value in values]

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


def largest_groups(rows: ir.Table, *, limit: int, among: Sequence[Any] | None) -> ir.Expr:
    """The most frequent values, and how many records have each."""
    if among is not None:
        rows = rows.filter(rows.value.isin(list(map(literal, among)))) if among else rows.limit(0)
    groups = rows.group_by("value").aggregate(records=lambda t: t.count())
    order = [ibis.desc(groups.records), in_order_of_characters(groups.value)]
    return groups.order_by(order).limit(limit)


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
    try:
        found = fetched(expression)
    except Exception as error:
        raise SourceError(
            f"The engine could not read the column ({type(error).__name__}). Check that the file "
            "or table is readable as a whole; details are withheld, they may quote records."
        ) from None
    return found[0][0].as_py() if isinstance(expression, ir.Scalar) else found
