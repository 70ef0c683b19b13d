"""A column inside a query engine: the queries it runs, and how it finds a window of ranks.

The engine is asked for counts, sums and the few values near a rank. A window of ranks is found by
narrowing. The engine draws and sorts a random sample, whose quantiles suggest a bracket of values
around the ranks. A count over all rows gives the ranks that the bracket holds, and then the engine
groups the rows inside by value. The sample affects only the amount of work: the answer is exact
whatever sample is drawn. The sample is drawn once per column, and the last windows are cached:

| statistic of more than `FEW` records | queries, each a pass over the column |
| --- | --- |
| quantile | count, sample, count below, window: 4 |
| interquartile range | count, sample, and twice count below, window: 6 |
| trimmed mean, a small trim | count, sample, window, count below, window, sum: 6 |
| mode of numbers, or of a public list of up to 200 categories | 1 |
| mode of any categories | 1, and 1 more after the test has passed |
| sum, mean, variance, description, histogram | half-octaves, points, sums or counts: 3 |
| covariance and its kin | half-octaves and points of both columns, sums: 5 |
| all of them with bounds, proportion | 1 |

With up to `FEW` records there is no sample and no count below. A mode of numbers fetches every
point of the lattice that holds nearly as many records as the fullest: few points if values repeat,
all points if hardly any value does. All other answers have at most the rows of a window, or
`QUANTILES` rows.
"""

import functools
import itertools
import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir
import numpy as np
import numpy.typing as npt

from prudent._validate import ArgumentError
from prudent.release.columns.column import Contribution, Leaders
from prudent.release.columns.dialects import (
    PublicValue,
    backend_name,
    double,
    encoding,
    fetched,
    image,
    legible,
    limb_bits,
    stored_literal,
    typed,
)
from prudent.release.columns.scales import NUMBER, Scale
from prudent.release.columns.units import members_of
from prudent.release.failures import withheld
from prudent.release.lattice import (
    HALVES_PER_LOG,
    RAISED_SHIFT,
    TINY,
    FloatArray,
    IntArray,
    Lattice,
    about,
    ends_in_steps,
    limbs,
    lowered,
)


def how_many(rows: ir.Table) -> ir.Expr:
    """How many records there are."""
    return rows.count()


def how_many_different(rows: ir.Table) -> ir.Expr:
    """How many different values there are."""
    return rows.value.nunique()


def how_many_below(rows: ir.Table, *, edges: FloatArray) -> ir.Expr:
    """How many records lie below the first of a few values, and between each and the next."""
    rows = rows.filter(rows.value < double(max(edges)))  # an index on the column can serve this

    def place(first: int, last: int) -> ir.Value:  # a binary search: few comparisons for each row
        if first == last:
            return ibis.literal(first, "int64")
        middle = (first + last) // 2
        below = rows.value < double(edges[middle])
        return ibis.ifelse(below, place(first, middle), place(middle + 1, last))

    places = rows.select(place=place(0, len(edges) - 1)).group_by("place")
    return places.aggregate(records=lambda t: t.count())


def near_ranks(rows: ir.Table, *, low: float, high: float, first: int, last: int) -> ir.Expr:
    """The values of a few ranks, each once, with its number of records, out of a bracket."""
    inside = rows.filter(rows.value >= double(low), rows.value <= double(high))
    groups = inside.group_by("value").aggregate(records=lambda t: t.count())
    upto = groups.records.sum().over(ibis.window(order_by=groups.value, rows=(None, 0)))
    ranked = groups.mutate(upto=upto.cast("int64"))
    return ranked.filter(ranked.upto >= first, ranked.upto - ranked.records < last)


def sums_between(rows: ir.Table, *, low: float, high: float, lattice: Lattice) -> ir.Expr:
    """The sum of all values between two, moved to the lattice, and how many there are."""
    rows = rows.filter(rows.value < double(high))
    rows = rows.select("value", step=steps_of(rows.value, lattice))
    between = rows.value > double(low)
    parts = limbs_of(rows.step, max(-lattice.low, lattice.high), limb_bits(rows))
    return rows.aggregate(
        at_most_low=rows.count(where=rows.value <= double(low)),
        inside=rows.count(where=between),
        **{f"part_{place}": part.sum(where=between) for place, part in enumerate(parts)},
    )


def clipped_sums(
    rows: ir.Table, *, lattice: Lattice, first: int, last: int, ends: tuple[float, float]
) -> ir.Expr:
    """The sum of all values, clipped and moved to the lattice, and how many are beyond the ends."""
    rows = rows.select("value", step=steps_of(rows.value, lattice, first, last))
    parts = limbs_of(rows.step, max(-first, last), limb_bits(rows))
    sums = {f"part_{place}": part.sum() for place, part in enumerate(parts)}
    return rows.aggregate(**_counts_around(rows, ends), **sums)


def clipped_squares(
    rows: ir.Table, *, lattice: Lattice, first: int, last: int, ends: tuple[float, float]
) -> ir.Expr:
    """The same with the sum of squares, both of distances from the middle step."""
    middle = (first + last) // 2
    step = steps_of(rows.value, lattice, first, last) - ibis.literal(middle, "int64")
    rows = rows.select("value", step=step)
    parts = limbs_of(rows.step, last - middle, limb_bits(rows, factors=2))
    sums = {f"part_{place}": part.sum() for place, part in enumerate(parts)}
    for place, one in enumerate(parts):
        for other in range(place, len(parts)):
            sums[f"product_{place}_{other}"] = (one * parts[other]).sum()
    return rows.aggregate(**_counts_around(rows, ends), **sums)


def _counts_around(rows: ir.Table, ends: tuple[float, float]) -> dict[str, ir.Value]:
    """How many records there are, below the lower end, and at most at the upper one."""
    low, high = map(double, ends)
    return {
        "records": rows.count(),
        # faster than counts of filtered rows
        "below": (rows.value < low).sum(),
        "upto": (rows.value <= high).sum(),
    }


def limbs_of(whole: ir.Value, farthest: int, bits: int) -> list[ir.Value]:
    """A 64-bit integer of at most this size in limbs of so many bits, least first.

    The last has the rest and the sign; its size is at most 2**bits.
    """
    found = []
    for _ in range(limbs(farthest - 1, bits) - 1):
        found.append(whole & ibis.literal(2**bits - 1, "int64"))
        whole = whole >> ibis.literal(bits, "int32")
    return [*found, whole]


def sizes_of_groups(rows: ir.Table, *, at_least: int) -> ir.Expr:
    """How many records each group has, if it has at least so many."""
    groups = rows.group_by(members_of(rows)).aggregate(records=lambda t: t.count())
    return groups.filter(groups.records >= at_least)


def fullest_points(rows: ir.Table, *, lattice: Lattice, within: int) -> ir.Expr:
    """The points of the lattice that hold nearly as many records as the fullest."""
    steps = rows.select(step=steps_of(rows.value, lattice))
    groups = steps.group_by("step").aggregate(records=lambda t: t.count())
    fullest = groups.mutate(most=groups.records.max().over(ibis.window()))
    near = fullest.filter(fullest.records > fullest.most - within)
    return near.select("step", "records")


def sizes_of_half_octaves(rows: ir.Table) -> ir.Expr:
    """How many records lie in each half-octave, raised as `lattice.lowered` expects them."""
    logs = (rows.value.abs() + double(TINY)).ln()
    whole = (logs * double(HALVES_PER_LOG) + double(RAISED_SHIFT)).floor()
    size = ibis.cases((rows.value.abs() < double(math.inf), whole))  # infinity is no integer
    found = rows.select(below=rows.value < double(0.0), size=size)
    return found.group_by(["below", "size"]).aggregate(records=lambda t: t.count())


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
    values = [stored_literal(each, rows) for each in categories]
    rows = rows.filter(rows.value.isin(values))
    return rows.aggregate(
        **{
            f"of_{index}": rows.count(where=rows.value == value)
            for index, value in enumerate(values)
        }
    )


def _by_size(rows: ir.Table) -> ir.Table:
    return rows.group_by("value").aggregate(records=lambda t: t.count())


def steps_of(
    value: ir.Value, lattice: Lattice, first: int | None = None, last: int | None = None
) -> ir.Value:
    """Round a value to the lattice, in steps between two: bit for bit as `Lattice.steps` does."""
    first = lattice.low if first is None else first
    last = lattice.high if last is None else last
    least, largest = double(lattice.value(first)), double(lattice.value(last))
    scaled = value * double(math.ldexp(1.0, -lattice.exponent))
    cases = [
        (
            value.between(least, largest),
            (scaled + double(0.5)).floor(),
        ),  # most, so that it is first
        (value > largest, ibis.literal(last, "int64")),
    ]
    if lattice.exponent > 0 and first <= 0 <= last and backend_name(value) == "postgres":
        # It raises an error when a product underflows; values this small are in step 0.
        tiny = value.abs() < double(math.ldexp(1.0, max(lattice.exponent - 60, -1070)))
        cases.insert(0, (tiny, ibis.literal(0, "int64")))
    return ibis.cases(*cases, else_=ibis.literal(first, "int64"))


SAMPLE = 2**18
"""Rows sampled to suggest a bracket: their quantiles err by at most 0.5 % of the ranks."""

QUANTILES = 2**9
"""Quantiles of the sample that are fetched; they widen a bracket by at most 0.4 %."""

FEW = 2**18
"""The number of rows up to which the engine groups and sorts without narrowing."""

_SLACK = 5 * 0.5 / math.sqrt(SAMPLE)  # five standard deviations of a sample quantile's rank
_AT_ONCE = 200  # counts per query


class TableColumn:
    """A column of an ibis table, one row per value; see `Column`."""

    def __init__(
        self,
        rows: ir.Table,
        dtype: dt.DataType | None = None,
        *,
        scale: Scale = NUMBER,
        contribution: Contribution | None = None,
        kept: Callable[[], ir.Table] | None = None,
        size: Callable[[], int] | None = None,
        owner: object = None,
    ) -> None:
        """Wrap a table whose column `value` has a value in every row.

        Args:
            rows: The table. Strings are stored as bytes; see
                `prudent.release.columns.dialects.exact`.
            dtype: The type in which values are displayed; None means their type in `rows`.
            scale: The unit of the numbers, if they are numbers.
            contribution: What one unit contributes; None means that every row is a unit.
            kept: Returns the same table as the engine keeps it (`units.StagedTable.kept`); None
                if it is not kept.
            size: Returns the number of values, where one query counts those of all groups; None
                if it is asked for.
            owner: An object to keep alive as long as this column, such as the open source.
        """
        self._rows = rows
        self._type = rows.value.type() if dtype is None else dtype
        self._scale = scale
        self._contribution = Contribution() if contribution is None else contribution
        self._kept = kept
        self._size = size
        self._owner = owner
        # Two, because a trimmed mean reads the ends of both its windows again.
        self._windows: deque[tuple[tuple[int, int], int, FloatArray]] = deque(maxlen=2)
        self._below: dict[float, int] = {}
        self._last_clipped: tuple[Any, Callable[..., ir.Expr], tuple[int, int, int]] | None = None

    @property
    def rows(self) -> ir.Table:
        """The table, with a column `value` that has a value in every row."""
        return self._rows

    @property
    def dtype(self) -> dt.DataType:
        """The type in which values are displayed."""
        return self._type

    @property
    def scale(self) -> Scale:
        """See `Column`."""
        return self._scale

    @property
    def contribution(self) -> Contribution:
        """See `Column`."""
        return self._contribution

    def count(self) -> int:
        """See `Column`."""
        return self._count

    @functools.cached_property
    def _count(self) -> int:
        return int(self._ask(how_many)) if self._size is None else self._size()

    def order_statistics(self, first: int, last: int) -> FloatArray:
        """See `Column`. Ranks that no record has are asked for as well, in as many queries."""
        asked, first, last = (first, last), max(first, 1), min(last, self._count)
        for known, start, values in self._windows:
            if known == asked or (asked[0] == asked[1] and known[0] <= asked[0] <= known[1]):
                return values[first - start : last - start + 1].copy()
        low, high = self._suggested(first, last)
        below = int(self.counts_below(np.array([low]))[0]) if low > -math.inf else 0
        if below >= first:  # the bracket from the sample starts too high
            low, below = -math.inf, 0
        window = self._window(low, high, first - below, last - below)
        if len(window) < last - first + 1:  # the bracket ends too low
            window = self._window(low, math.inf, first - below, last - below)
        self._windows.append((asked, first, window))
        return window.copy()

    def counts_below(self, edges: FloatArray) -> IntArray:
        """See `Column`. Edges at which values were clipped just before are not asked for again."""
        if all(edge in self._below for edge in edges.tolist()):
            return np.array([self._below[edge] for edge in edges.tolist()], np.int64)
        found: list[int] = []
        for start in range(0, len(edges), _AT_ONCE):
            some = edges[start : start + _AT_ONCE]
            answer = self._ask(how_many_below, edges=some)
            records = dict(zip(answer["place"], answer["records"], strict=True))
            found.extend(itertools.accumulate(records.get(place, 0) for place in range(len(some))))
        return np.array(found, np.int64)

    def sum_between(self, first: int, last: int, lattice: Lattice) -> int:
        """See `Column`."""
        first, last = max(first, 1), min(last, self._count)
        low, high = 0.0, 0.0  # without a rank between them the same query is asked all the same
        if first <= last:
            low = self.order_statistics(first, first)[0]
            high = self.order_statistics(last, last)[0]
        low_step, high_step = (int(step) for step in lattice.steps([low, high]))
        row = self._ask(sums_between, low=low, high=high, lattice=lattice)
        found = {name: value or 0 for name, (value,) in row.items()}
        if first > last:
            return 0
        at_low = found["at_most_low"] - first + 1
        at_high = last - first + 1 - at_low - found["inside"]
        total = joined(found, "part", limb_bits(self._rows))
        return int(total + at_low * low_step + at_high * high_step)

    def clipped_sum(self, low: float, high: float, lattice: Lattice) -> int:
        """See `Column`."""
        return self._clipped(clipped_sums, low, high, lattice)[1]

    def clipped_squares(self, low: float, high: float, lattice: Lattice, origin: int = 0) -> int:
        """See `Column`."""
        count, total, squares = self._clipped(clipped_squares, low, high, lattice)
        return about(origin, count=count, total=total, squares=squares)

    def _clipped(
        self, question: Callable[..., ir.Expr], low: float, high: float, lattice: Lattice
    ) -> tuple[int, int, int]:
        """Count, sum and perhaps sum of squares of clipped steps.

        The last answer is kept, with the counts that came along.
        """
        known, asked = self._last_clipped, (low, high, lattice)
        if known is not None and known[0] == asked and question in (clipped_sums, known[1]):
            return known[2]
        first, last = ends_in_steps(lattice, low, high)
        row = self._ask(question, lattice=lattice, first=first, last=last, ends=(low, high))
        found = {name: value or 0 for name, (value,) in row.items()}
        self._count = count = found["records"]
        self._below = {low: found["below"], math.nextafter(high, math.inf): found["upto"]}
        if question is clipped_sums:
            sums = count, joined(found, "part", limb_bits(self._rows)), 0
        else:
            bits, middle = limb_bits(self._rows, factors=2), (first + last) // 2
            total = joined(found, "part", bits)
            squares = joined(found, "product", bits, squares=True)
            # of distances from the middle, moved to steps
            squares = about(-middle, count=count, total=total, squares=squares)
            sums = count, total + count * middle, squares
        self._last_clipped = asked, question, sums
        return sums

    def frequencies(self, lattice: Lattice, within: int) -> tuple[IntArray, IntArray]:
        """See `Column`."""
        found = _arrays(self._ask(fullest_points, lattice=lattice, within=within), by="step")
        return found["step"].astype(np.int64), found["records"].astype(np.int64)

    def half_octaves(self) -> tuple[IntArray, IntArray]:
        """See `Column`."""
        found = self._ask(sizes_of_half_octaves)
        sizes = np.array([math.inf if size is None else size for size in found["size"]], float)
        raised = np.where(np.array(found["below"], bool), -sizes, sizes)
        records = np.array(found["records"], np.int64)
        self._count = int(records.sum())
        places, where = np.unique(lowered(raised), return_inverse=True)
        counts = np.zeros(len(places), np.int64)
        np.add.at(counts, where, records)
        return places, counts

    def leaders(self) -> Leaders:
        """See `Column`."""
        found = _arrays(self._ask(two_largest_groups), by="place")
        (most, fewer), (first, second) = (
            [*found[name].tolist(), 0, 0][:2] for name in ("records", "position")
        )
        return Leaders(most, fewer, fewer > 0 and second < first)

    def most_frequent(self) -> Any:
        """See `Column`."""
        found = self._ask(largest_group)["value"]
        return withheld(self._image, found[0]) if found else None

    def counts_of(self, categories: Sequence[Hashable]) -> IntArray:
        """See `Column`."""
        if self.typed(categories) != list(categories):
            # Ties are broken by order, and the order of strings is not that of other types.
            raise ArgumentError("categories", f"of type {self._type}", got=categories)
        found: list[int] = []
        for start in range(0, len(categories), _AT_ONCE):
            row = self._ask(how_many_of_each, categories=categories[start : start + _AT_ONCE])
            found.extend(value for (value,) in row.values())
        return np.array(found, np.int64)

    def distinct(self) -> int:
        """See `Column`."""
        return int(self._ask(how_many_different))

    def typed(self, values: Sequence[Hashable]) -> list[PublicValue]:
        """Convert public values, perhaps given as strings, to the type of this column."""
        return [typed(value, self._type, "categories") for value in values]

    def _image(self, found: Any) -> Any:
        return image(found, self._type, encoding(self._rows))

    def _ask(self, question: Callable[..., ir.Expr], **given: Any) -> Any:
        """Run a query and return the engine's answer."""
        return _answer(question(self._source(), **given))

    def _source(self) -> ir.Table:
        return self._rows if self._kept is None else withheld(self._kept)

    def _suggested(self, first: int, last: int) -> tuple[float, float]:
        """Values that probably enclose ranks first..last, from a sample; ±inf with few rows."""
        if self._count <= FEW:
            return -math.inf, math.inf
        quantiles = self._quantiles
        # A fraction k / len(quantiles) of the sample is at or below the k-th quantile, k >= 1.
        low = math.floor((first / self._count - _SLACK) * len(quantiles))
        high = math.ceil((last / self._count + _SLACK) * len(quantiles))
        return (
            float(quantiles[low - 1]) if low > 0 else -math.inf,
            float(quantiles[high - 1]) if high < len(quantiles) else math.inf,
        )

    @functools.cached_property
    def _quantiles(self) -> FloatArray:
        found = self._ask(sample_quantiles, share=SAMPLE / self._count)
        return _arrays(found, by="value")["value"].astype(np.float64)

    def _window(self, low: float, high: float, first: int, last: int) -> FloatArray:
        """The values of ranks first..last among those in [low, high], as far as they exist."""
        answer = self._ask(near_ranks, low=low, high=high, first=first, last=last)
        found = _arrays(answer, by="upto")  # in the query Spark would compute it twice
        ends, records = found["upto"].astype(np.int64), found["records"].astype(np.int64)
        repeats = np.minimum(ends, last) - np.maximum(ends - records + 1, first) + 1
        return np.repeat(found["value"].astype(np.float64), repeats)


def sample_quantiles(rows: ir.Table, *, share: float) -> ir.Expr:
    """Evenly spaced quantiles of a random sample, which suggest where ranks are."""
    sample = rows.filter(ibis.random() < share).select("value")
    part = ibis.ntile(QUANTILES).over(ibis.window(order_by=sample.value))
    parts = sample.mutate(part=part).group_by("part")
    return parts.aggregate(value=lambda t: t.value.max()).select("value")


def _arrays(found: dict[str, list[Any]], *, by: str) -> dict[str, npt.NDArray[Any]]:
    """The columns of an answer, its rows in the order of one of them."""
    columns = {name: np.array(values) for name, values in found.items()}
    order = np.argsort(columns[by], kind="stable")
    return {name: column[order] for name, column in columns.items()}


def joined(found: dict[str, int], kind: str, bits: int, *, squares: bool = False) -> int:
    """The number of which an answer has the limbs, or the products of limbs, of one kind.

    Args:
        found: Sums by names: a kind, and the places of the limbs that were multiplied.
        kind: The kind of the limbs.
        bits: The number of bits of a limb.
        squares: Whether limbs of one number were multiplied, each pair of different ones once.
    """
    total = 0
    for name, value in found.items():
        own, *places = name.split("_")
        if own == kind:
            twice = squares and len(set(places)) > 1
            total += int(value) << (sum(map(int, places)) * bits + twice)
    return total


def _answer(expression: ir.Expr) -> Any:
    """Fetch the engine's answer; its error messages are withheld, since they may quote records."""
    found = withheld(fetched, expression)
    return next(iter(found.values()))[0] if isinstance(expression, ir.Scalar) else found
