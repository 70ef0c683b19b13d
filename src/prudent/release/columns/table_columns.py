"""A column inside a query engine: the queries it runs, and how it finds a window of ranks.

The engine is asked for counts, sums and the few values near a rank. A window of ranks is found by
narrowing. The quantiles of a random sample suggest a bracket of values around the ranks. A count
over all rows gives the ranks that the bracket holds, and then the engine groups the rows inside by
value: the answer is exact whatever sample is drawn. The sample is drawn once per column, and the
last windows are cached:

| statistic of many records (`FEW`, `FEW_READ`) | queries, each a pass over the column |
| --- | --- |
| quantile | count, sample, count below, window: 4 |
| interquartile range | count, sample, and twice count below, window: 6 |
| trimmed mean, a small trim | count, sample, window, count below, window, sum: 6 |
| mode of numbers, or of a public list of up to 200 categories | 1 |
| mode of any categories | 1, and 1 more after the test has passed |
| sum, mean, variance, description, histogram | half-octaves, points, sums or counts: 3 |
| covariance and its kin | the same: 3 in DuckDB, 5 or 6 elsewhere (`queries`) |
| sum or mean, where a released number of records is too small for bounds | sizes, values: 2 |
| all of them with bounds, proportion | 1 |
| any of these, of up to 200 groups | as many, of all groups at once (`queries`) |

DuckDB hands the rows of sums, points and windows of few records over once if they are kept
(`queries.MOST_KEPT`). With few records, and of rows that are kept, there is no sample and no
count below. A mode of numbers fetches every point of the lattice that holds nearly as
many records as the fullest: few points if values repeat, all points if hardly any value does. All
other answers have at most the rows of a window, or `QUANTILES` rows.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import attrs
import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir
import numpy as np
import numpy.typing as npt

from prudent._validate import ArgumentError
from prudent.release.columns import queries
from prudent.release.columns.column import (
    Contribution,
    Leaders,
    ask,
    fullest,
    ranked,
    redact_errors,
)
from prudent.release.columns.dialects import (
    PublicValue,
    backend_name,
    encoding,
    image,
    limb_bits,
    typed,
)
from prudent.release.columns.queries import ColumnQuery, Question, Reader, Share, answer, keys_of
from prudent.release.columns.scales import NUMBER, Scale
from prudent.release.lattice import (
    PLACES,
    FloatArray,
    IntArray,
    Lattice,
    about,
    added_up,
    clipped_sums,
    ends_in_steps,
    exponent_counts,
    lowered,
    sum_of,
    sum_of_products,
)

SAMPLE = 2**18
"""Rows sampled to suggest a bracket: their quantiles err by at most 0.5 % of the ranks."""

FEW = 2**18
"""The number of rows up to which an engine groups and sorts without narrowing."""

FEW_READ = 2**20
"""The same of rows that DuckDB hands over: to select ranks takes less time than a sample."""

_SLACK = 5 * 0.5 / math.sqrt(SAMPLE)  # five standard deviations of a sample quantile's rank
_AT_ONCE = 200  # counts per query
_MOST_POINTS = 2**16  # of a lattice whose points are counted here, each in a place of its own


_Windows: TypeAlias = deque[tuple[tuple[int, int], int, FloatArray]]


@attrs.define(eq=False, slots=False, repr=False)
class TableColumn:
    """A column of an ibis table, one row per value; see `Column`."""

    rows: ir.Table  # its column `value` has a value in every row
    dtype: dt.DataType = attrs.Factory(lambda self: self.rows.value.type(), takes_self=True)
    scale: Scale = attrs.field(default=NUMBER, kw_only=True)
    contribution: Contribution = attrs.field(factory=Contribution, kw_only=True)
    share: Share = attrs.field(
        default=attrs.Factory(lambda self: Share(self.rows), takes_self=True), kw_only=True
    )
    _size: Callable[[], int] | None = attrs.field(default=None, kw_only=True)
    _owner: object = attrs.field(default=None, kw_only=True)  # stays open
    _count: int | None = attrs.field(default=None, init=False)
    _quantiles: FloatArray | None = attrs.field(default=None, init=False)  # of the sample
    # Two, because a trimmed mean reads the ends of both its windows again.
    _windows: _Windows = attrs.field(factory=lambda: deque(maxlen=2), init=False)
    _below: dict[float, int] = attrs.field(factory=dict, init=False)
    _last_clipped: tuple[Any, bool, tuple[int, int, int]] | None = attrs.field(
        default=None, init=False
    )

    def count(self) -> int:
        """See `Column`."""
        # No `cached_property` around a question: before Python 3.12 it holds a lock of all columns.
        if self._count is None:
            held = self.share.memory.holds(self.share)
            if self._size is not None and not held:
                self._count = self._size()
            else:
                rows = Reader(lambda values, *_: len(values)) if held else None
                self._count = self._ask(queries.how_many, lambda row: only(row)["records"], rows)
        return self._count

    def order_statistics(self, first: int, last: int) -> FloatArray:
        """See `Column`. Ranks that no record has are asked for as well, in as many queries."""
        asked, first, last = (first, last), max(first, 1), min(last, self.count())
        for known, start, values in self._windows:
            # Not a whole window again: of few records, those of two quantiles are the same.
            if asked[0] == asked[1] and known[0] <= asked[0] <= known[1]:
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
            some = edges[start : start + _AT_ONCE].tolist()
            given = {f"edge_{place}": edge for place, edge in enumerate(some)}
            counts = self._ask(queries.how_many_below, dict, **given)
            records = dict(zip(counts["edge"], counts["records"], strict=True))
            found.extend(itertools.accumulate(records.get(place, 0) for place in range(len(some))))
        return np.array(found, np.int64)

    def sum_between(self, first: int, last: int, lattice: Lattice) -> int:
        """See `Column`. Clipped to the values of these ranks, all others are at one of the two."""
        first, last = max(first, 1), min(last, self.count())
        low, high = 0.0, 0.0  # without a rank between them the same query is asked all the same
        if first <= last:
            low = self.order_statistics(first, first)[0]
            high = self.order_statistics(last, last)[0]
        count, total, _ = self._clipped(float(low), float(high), lattice)
        low_step, high_step = ends_in_steps(lattice, low, high)
        beyond = (first - 1) * low_step + (count - last) * high_step
        return total - beyond if first <= last else 0

    def clipped_sum(self, low: float, high: float, lattice: Lattice) -> int:
        """See `Column`."""
        return self._clipped(low, high, lattice)[1]

    def clipped_squares(self, low: float, high: float, lattice: Lattice, origin: int = 0) -> int:
        """See `Column`."""
        count, total, squares = self._clipped(low, high, lattice, squared=True)
        return about(origin, count=count, total=total, squares=squares)

    def _clipped(
        self, low: float, high: float, lattice: Lattice, *, squared: bool = False
    ) -> tuple[int, int, int]:
        """Count, sum and perhaps sum of squares of clipped steps.

        The last answer is kept, with the counts that came along.
        """
        known, asked = self._last_clipped, (low, high, lattice)
        if known is not None and known[0] == asked and known[1] >= squared:
            return known[2]
        first, last = ends_in_steps(lattice, low, high)
        # Values beyond the lattice are at its ends; in steps they may be too large for an integer.
        least, largest = lattice.value(lattice.low), lattice.value(lattice.high)
        half = math.ldexp(0.5, lattice.exponent)  # within it they are rounded to an end
        low = least if low < least - half else low
        high = largest if high >= largest + half else high
        middle = (first + last) // 2 if squared else 0
        # The ends of a sum may be records of private ranks; those of its lattice never are.
        ends = (first, last) if squared else (lattice.low, lattice.high)
        farthest = max(middle - ends[0], ends[1] - middle, 1)
        given: dict[str, Any] = {"low": float(low), "high": float(high)} | queries.scaling(lattice)
        bits = limb_bits(self.rows, factors=2 if squared else 1)

        def block(values: FloatArray, *_: FloatArray) -> npt.NDArray[np.object_]:
            inside = np.count_nonzero((values >= low) & (values <= high))
            counts = len(values), int(np.count_nonzero(values < low)), int(inside)
            sums = clipped_sums(values, *asked, squared=squared)
            return np.array([*counts, *sums], object)

        def decode(found: dict[str, list[Any]]) -> npt.NDArray[np.object_]:
            row = only(found)
            count, below, inside = (row[name] for name in ("records", "below", "inside"))
            beyond = (first, below), (last, count - below - inside)  # at the ends
            total, squares = joined(row, "part", bits), joined(row, "product", bits, squares=True)
            total += sum(records * (step - middle) for step, records in beyond)
            squares += sum(records * (step - middle) ** 2 for step, records in beyond)
            # of distances from the middle, moved to steps
            squares = about(-middle, count=count, total=total, squares=squares) if squared else 0
            return np.array([count, below, inside, total + count * middle, squares], object)

        given |= {"middle": float(middle), "squared": True} if squared else {}
        found = self._ask(queries.clipped_sums, decode, Reader(block), farthest=farthest, **given)
        count, below, inside, total, squares = found.tolist()
        self._count = count
        self._below = {low: below}
        if low <= high:  # else both are beyond the lattice, and none is inside
            self._below[math.nextafter(high, math.inf)] = below + inside
        self._last_clipped = asked, squared, (count, total, squares)
        return count, total, squares

    def frequencies(self, lattice: Lattice, within: int) -> tuple[IntArray, IntArray]:
        """See `Column`."""

        def block(values: FloatArray, *_: FloatArray) -> IntArray:
            steps = lattice.whole(values)
            steps -= lattice.low
            return np.bincount(steps.astype(np.int64), minlength=lattice.diameter + 1)

        def result(counts: IntArray) -> tuple[IntArray, IntArray]:
            return fullest(np.arange(lattice.low, lattice.high + 1), counts, within)

        found: tuple[IntArray, IntArray] = self._ask(
            queries.fullest_points,
            lambda found: fullest(*added_up(found["step"], found["records"]), within),
            Reader(block, result) if lattice.diameter <= _MOST_POINTS else None,
            within=within,
            **queries.numbers_of(lattice),
        )
        return found

    def half_octaves(self) -> tuple[IntArray, IntArray]:
        """See `Column`."""

        def decode(found: dict[str, list[Any]]) -> tuple[IntArray, IntArray]:
            return added_up(lowered(np.array(found["raised"], np.float64)), found["records"])

        reader = Reader(
            lambda values, *_: exponent_counts(values), lambda counts: added_up(PLACES, counts)
        )
        found: tuple[IntArray, IntArray] = self._ask(queries.sizes_of_half_octaves, decode, reader)
        self._count = int(found[1].sum())
        return found

    def leaders(self) -> Leaders:
        """See `Column`."""
        found = _arrays(self._ask(queries.two_largest_groups, dict), by="size")
        (most, fewer), (first, second) = (
            [*found[name].tolist(), 0, 0][:2] for name in ("records", "position")
        )
        return Leaders(most, fewer, fewer > 0 and second < first)

    def most_frequent(self) -> Any:
        """See `Column`."""
        found = self._ask(queries.largest_group, dict)["value"]
        if not found:
            return None
        return redact_errors(lambda: image(found[0], self.dtype, encoding(self.rows)))

    def counts_of(self, categories: Sequence[Hashable]) -> IntArray:
        """See `Column`."""
        found: list[int] = []
        stored = self.listed(categories)
        for start in range(0, len(stored), _AT_ONCE):
            some = stored[start : start + _AT_ONCE]
            found.extend(self._ask(queries.how_many_of_each, only, categories=some).values())
        return np.array(found, np.int64)

    def distinct(self) -> int:
        """See `Column`."""
        return int(self._ask(queries.how_many_different, only)["records"])

    def typed(self, values: Sequence[Hashable]) -> list[PublicValue]:
        """Convert public values, perhaps given as strings, to the type of this column."""
        return [typed(value, self.dtype, "categories") for value in values]

    def listed(self, categories: Sequence[Hashable]) -> list[PublicValue]:
        """The values of a public list as they are stored, in the order of the list.

        A column of texts takes numbers by their text: one text among the integers of a pandas frame
        makes all of them texts.
        """
        found = self.typed(categories)
        if len(set(found)) < len(found) or not (
            self.dtype.is_string() or found == list(categories)
        ):
            raise ArgumentError("categories", f"of type {self.dtype}, each once", got=categories)
        return found

    def _ask(
        self,
        question: Question,
        decode: Callable[[dict[str, list[Any]]], Any],
        reader: Reader | None = None,
        **given: Any,
    ) -> Any:
        """Run a query, perhaps together with other columns; see `ColumnQuery`."""
        again = question in (queries.sizes_of_half_octaves, queries.fullest_points)
        return ask([ColumnQuery(self, question, given, decode, reader, again)], answer)[0]

    @property
    def _few(self) -> bool:
        """Whether ranks are found without narrowing: rows that are kept are read soon."""
        alone = backend_name(self.rows) == "duckdb" and not self.share.member  # not of 200 groups
        few = FEW_READ if alone else FEW
        return self.count() <= few or self.share.memory.holds(self.share)

    def _suggested(self, first: int, last: int) -> tuple[float, float]:
        """Values that probably enclose ranks first..last, from a sample; ±inf with few rows."""
        count = self.count()
        if self._few:
            return -math.inf, math.inf
        if self._quantiles is None:
            found = self._ask(queries.sample_quantiles, dict, share=SAMPLE / count)
            self._quantiles = _arrays(found, by="value")["value"].astype(np.float64)
        quantiles = self._quantiles
        # A fraction k / len(quantiles) of the sample is at or below the k-th quantile, k >= 1.
        low = math.floor((first / count - _SLACK) * len(quantiles))
        high = math.ceil((last / count + _SLACK) * len(quantiles))
        return (
            float(quantiles[low - 1]) if low > 0 else -math.inf,
            float(quantiles[high - 1]) if high < len(quantiles) else math.inf,
        )

    def _window(self, low: float, high: float, first: int, last: int) -> FloatArray:
        """The values of ranks first..last among those in [low, high], as far as they exist."""
        given = {"first": float(first), "last": float(last), "low": low, "high": high}

        def decode(values: dict[str, list[Any]]) -> FloatArray:
            found = _arrays(values, by="upto")  # in the query Spark would compute it twice
            ends, records = found["upto"].astype(np.int64), found["records"].astype(np.int64)
            repeats = np.minimum(ends, last) - np.maximum(ends - records + 1, first) + 1
            return np.repeat(found["value"].astype(np.float64), repeats)

        # Of few records all are read: an engine groups and sorts numbers much longer.
        reader = Reader(
            lambda values, *_: [values[(values >= low) & (values <= high)]],
            lambda blocks: np.sort(ranked(np.concatenate(blocks), first, last)),
        )
        found: FloatArray = self._ask(
            queries.near_ranks, decode, reader if self._few else None, **given
        )
        return found


def only(found: dict[str, list[Any]]) -> dict[str, int]:
    """The one row of an answer, with 0 for NULL; a column without records may have no row."""
    return {name: (values or [0])[0] or 0 for name, values in found.items()}


def _arrays(found: dict[str, list[Any]], *, by: str) -> dict[str, npt.NDArray[Any]]:
    """The columns of an answer, its rows in the order of one of them."""
    columns = {name: np.array(values) for name, values in found.items()}
    order = np.argsort(columns[by], kind="stable")
    return {name: column[order] for name, column in columns.items()}


def joined(found: dict[str, int], kind: str, bits: int, *, squares: bool = False) -> int:
    """The number of which an answer has the limbs, or the products of limbs, of one kind."""
    total = 0
    for name, value in found.items():
        own, *places = name.split("_")
        if own == kind:
            twice = squares and len(set(places)) > 1
            total += int(value) << (sum(map(int, places)) * bits + twice)
    return total


@attrs.frozen
class ProductSums:
    """Exact sums over pairs (a, b) of whole numbers, each counted from the end of its lattice."""

    count: int  # the number of pairs
    first: int  # the sum of a
    second: int  # the sum of b
    product: int  # the sum of a b
    first_squares: int  # the sum of a²
    second_squares: int  # the sum of b²


class PairColumn(TableColumn):
    """Pairs of numbers, one per row that has both; as a column, the first of each.

    Attributes:
        second: The column of the second numbers, of the same records.
    """

    def __init__(self, rows: ir.Table, *, other: Scale, **options: Any) -> None:
        """Wrap a table with the columns `value` and `other`; `other` is the scale of the latter."""
        super().__init__(rows, **options)
        own: dict[str, Any] = {"contribution": self.contribution, "owner": self._owner}
        share = attrs.evolve(self.share, second=True)
        self.second = TableColumn(rows.select(value=rows.other), scale=other, share=share, **own)

    def sums(self, first: Lattice, second: Lattice) -> ProductSums:
        """The exact sums of the pairs, clipped to the ends of two lattices and rounded to them."""
        wide, high = first.diameter, second.diameter
        given: dict[str, Any] = {"wide": wide, "high": high}
        for which, lattice in (("one", first), ("two", second)):
            numbers = queries.numbers_of(lattice)
            given |= {f"{name}_{which}": value for name, value in numbers.items()}
        bits = limb_bits(self.rows, factors=2)

        def block(values: FloatArray, others: FloatArray) -> npt.NDArray[np.object_]:
            one, two = first.whole(values) - first.low, second.whole(others) - second.low
            products = (one, two, wide, high), (one, one, wide, wide), (two, two, high, high)
            sums = [len(one), sum_of(one, wide), sum_of(two, high)]
            return np.array([*sums, *(sum_of_products(*each) for each in products)], object)

        def decode(found: dict[str, list[Any]]) -> ProductSums:
            row = only(found)
            sums = [joined(row, name, bits) for name in ("first", "second", "product")]
            squares = [joined(row, name, bits, squares=True) for name in ("ones", "twos")]
            return ProductSums(row["records"], *sums, *squares)

        reader = Reader(block, lambda sums: ProductSums(*sums.tolist()))
        found: ProductSums = self._ask(queries.product_sums, decode, reader, **given)
        return found


class SetColumn(TableColumn):
    """The different values of each unit: a table with the columns `unit` and `value`."""

    def distinct(self) -> int:
        """See `Column`: the size of a maximum matching of values to units, k values to each.

        Adding a unit adds k vertices to one side of a bipartite graph, and each adds 0 or 1 to the
        size of a maximum matching.
        """
        found = self._ask(numbered, dict)
        return matched(found["holder"], found["kind"], self.contribution.records)


def numbered(rows: ir.Table) -> ir.Table:
    """The units and values of all pairs, as numbers."""
    keys = keys_of(rows)
    return rows.select(
        *keys,
        holder=ibis.dense_rank().over(ibis.window(group_by=keys, order_by=rows.unit)),
        kind=ibis.dense_rank().over(ibis.window(group_by=keys, order_by=rows.value)),
    )


def matched(units: list[int], values: list[int], most: int) -> int:
    """The largest number of values that can be given to units which have them, `most` to each.

    It is the largest flow from a source, through units of capacity `most` and values of capacity 1.
    Its size is that of the pairs: a unit of very many values takes no more memory than many units.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    if not units:
        return 0
    holders, owners = np.unique(np.array(units, np.int64), return_inverse=True)
    distinct, kinds = np.unique(np.array(values, np.int64), return_inverse=True)
    first, last = 1 + len(holders), 1 + len(holders) + len(distinct)  # the first value, the sink
    begins = np.concatenate([np.zeros(len(holders), int), 1 + owners, np.arange(first, last)])
    ends = np.concatenate([np.arange(1, first), first + kinds, np.full(len(distinct), last)])
    room = np.where(begins == 0, most, 1).astype(np.int32)
    graph = csr_array((room, (begins, ends)), shape=(last + 1, last + 1))
    return int(maximum_flow(graph, 0, last).flow_value)
