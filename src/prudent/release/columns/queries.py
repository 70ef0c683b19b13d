"""Questions to a query engine about a column: each makes a query of a table and a few numbers.

What several columns of a table ask alike at the same time (`column.together`) is one query. Of a
server nothing but the answer leaves: the numbers of each column are a row of a small table that the
query holds itself. The two columns of a pair ask one query each: such a join takes longer than to
read the rows twice. DuckDB, in this process, hands its rows over without a copy instead, where a
question has a `Reader`: an operation of DuckDB's takes 3 to 12 ns for a row, here about 0.5. To
hand a row over takes 8, so up to `MOST_KEPT` numbers are kept for what is asked next.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import ibis
import ibis.expr.types as ir
import numpy as np

from prudent.release.columns.column import AT_ONCE, redact_errors
from prudent.release.columns.dialects import (
    arrow_batches,
    backend_name,
    double,
    doubles_of,
    fetched,
    floored,
    legible,
    limb_bits,
    materialize,
    stored_literal,
)
from prudent.release.columns.units import members_of
from prudent.release.lattice import (
    BLOCK,
    HALVES_PER_LOG,
    RAISED_SHIFT,
    TINY,
    FloatArray,
    Lattice,
    limbs,
)

NUMBERS = "value", "other"
"""The columns of a table that hold numbers; `other` is the second of a pair."""

PLACE = "place"
"""The column that says, in a query for several columns, which of them a row belongs to."""

Question = Callable[..., ir.Table]
"""Makes a query of rows, grouped by their `keys_of`, and of numbers, which may be columns."""


@attrs.frozen
class Reader:
    """Answers a question from rows: by the functions that answer it of an array.

    Attributes:
        block: Takes the values of a few rows, and those of `other` if there is such a column; what
            it returns of all blocks is added up by +.
        result: The answer, of what was added up.
    """

    block: Callable[..., Any]
    result: Callable[[Any], Any] = lambda total: total


MOST_KEPT = 2**25
"""Numbers that were handed over and are kept for the next question: 256 MB."""

_BLOCKS = 32  # of rows that are sorted by groups at a time

Batch: TypeAlias = tuple[list[FloatArray], list[int]]
"""Columns of numbers, ordered by groups, and where the rows of each group end."""

Given: TypeAlias = float | ir.Value
"""A number of a question; a column of numbers, if it is asked for several columns at once."""


def number(given: Given) -> ir.Value:
    """A given number in a query."""
    return double(given) if isinstance(given, float) else given


def whole(given: Given) -> ir.Value:
    """A given whole number in a query."""
    if isinstance(given, float):
        return ibis.literal(int(given), "int64")
    return given.cast("int64")


def keys_of(rows: ir.Table) -> list[str]:
    """What to group by, so that each column has an answer of its own."""
    return [PLACE] if PLACE in rows.columns else []


@attrs.define(eq=False)
class Memory:
    """Rows that were handed over and may be read again: those of one query, if they are few."""

    asked: Any = None  # the table and the groups that they are of
    batches: list["Batch"] = attrs.field(factory=list)
    too_many: bool = False  # whether there were more than `MOST_KEPT` numbers

    def holds(self, share: "Share") -> bool:
        """Whether the rows of a share are kept."""
        if self.asked is None:
            return False
        known, members = self.asked
        return known == share.table().op() and [each.op() for each in share.member] in members

    def read(self, whole: ir.Table, members: "Members", again: bool) -> Iterator["Batch"]:
        """The numbers of all rows of some groups, a block at a time; kept if read again."""
        asked = whole.op(), [[each.op() for each in member] for member in members]
        if self.asked == asked:
            yield from self.batches
            return
        kept: list[Batch] = []
        numbers = 0
        for batch in _batches(_rows(members, whole), len(members)):
            yield batch
            numbers += sum(map(len, batch[0]))
            self.too_many |= numbers > MOST_KEPT
            if again and not self.too_many:
                kept.append(batch)
            else:
                kept.clear()
        self.asked, self.batches = (asked, kept) if kept else (None, [])


@attrs.frozen(eq=False)
class Share:
    """The rows of a table that are those of one column."""

    # The table, with the column `value` and perhaps `other` and those of groups; the same object
    # for all columns that share it.
    whole: ir.Table
    # Returns it as the engine keeps it (`units.StagedTable.kept`); None if it is not kept.
    kept: Callable[[], ir.Table] | None = None
    # The group of the rows, as it is stored; empty if all rows are meant.
    member: tuple[ir.Value, ...] = ()
    second: bool = False  # whether the values are those of `other`
    memory: Memory = attrs.field(factory=Memory)  # the same for all columns that share the table

    def table(self) -> ir.Table:
        """The table, as the engine keeps it if it does; errors may quote records."""
        return self.whole if self.kept is None else redact_errors(self.kept)

    def of(self, whole: ir.Table) -> ir.Table:
        """The rows."""
        same = [whole[f"member_{i}"] == one for i, one in enumerate(self.member)]
        rows = whole.filter(*same) if same else whole
        return rows.select(value=rows.other) if self.second else rows


@attrs.frozen(eq=False)
class ColumnQuery:
    """A question of one column.

    Attributes:
        column: The column, which may share its table with others; see `Share`.
        question: Makes a query of a table and of what is given by name.
        given: Floating numbers may be others for each column; of integers the largest counts, and
            all else is the same for all.
        decode: Makes the answer of what the engine returned: columns by name.
        reader: Answers it from the rows themselves; a test run asserts that its answer is the same.
        again: Whether the same rows are read again for what is asked next.
    """

    column: Any
    question: Question
    given: dict[str, Any]
    decode: Callable[[dict[str, list[Any]]], Any]
    reader: Reader | None = None
    again: bool = False

    @property
    def reads(self) -> bool:
        """Whether the rows are handed over, and the question is not put to the engine."""
        return self.reader is not None and backend_name(self.column.share.whole) == "duckdb"

    @property
    def _same(self) -> dict[str, Any]:
        """What is given, but for numbers that may be others."""
        return {n: None if isinstance(g, int | float) else g for n, g in self.given.items()}

    def like(self, other: "ColumnQuery") -> bool:
        """Whether one query can answer both."""
        own, others = self.column.share, other.column.share
        if own.whole is not others.whole or self.reads or other.reads:
            return own.whole is others.whole and self.reads and other.reads
        return (
            self.question is other.question
            and own.second == others.second
            and self._same == other._same
        )


def values_table(columns: Mapping[str, Sequence[ir.Value]]) -> ir.Table:
    """A table that a query holds itself: literals, and the place of each row, from 0 on."""
    size = len(next(iter(columns.values())))
    rows = ibis.range(0, size).unnest().name(PLACE).as_table()
    rows = rows.mutate(**{name: ibis.array(each)[rows[PLACE]] for name, each in columns.items()})
    return rows.limit(size)  # else PostgreSQL looks the values up anew for every row of a join


def query(asked: Sequence[ColumnQuery], whole: ir.Table) -> ir.Expr:
    """The query for questions that are alike, about the table that their columns share."""
    first = asked[0]
    if first.reads:
        return _rows(_members(asked), whole)
    if len(asked) == 1:
        return first.question(first.column.share.of(whole), **first.given)
    numbers = {
        name: [double(each.given[name]) for each in asked]
        for name, value in first.given.items()
        if isinstance(value, float)
    }
    rows = _placed(whole, [each.column.share.member for each in asked], numbers)
    if first.column.share.second:
        rows = rows.mutate(value=rows.other)
    given = {
        name: rows[name] if name in numbers else max(each.given[name] for each in asked)
        for name in first.given
    }
    return first.question(rows, **given)


Members: TypeAlias = Sequence[tuple[ir.Value, ...]]


def _placed(whole: ir.Table, members: Members, numbers: dict[str, list[ir.Value]]) -> ir.Table:
    """The rows of some groups, each with the place and the numbers of its group."""
    keys = {f"its_{place}": list(each) for place, each in enumerate(zip(*members, strict=True))}
    found = values_table(numbers | keys)
    return whole.join(found, [whole[f"member_{i}"] == found[f"its_{i}"] for i in range(len(keys))])


def _members(asked: Sequence[ColumnQuery]) -> Members:
    """The groups that ask, each once, though two columns of it may."""
    return list({id(each.column.share.member): each.column.share.member for each in asked}.values())


def _rows(members: Members, whole: ir.Table) -> ir.Table:
    """The numbers of all rows of some groups, with the place of each group if there are several."""
    several = len(members) > 1
    rows = _placed(whole, members, {}) if several else Share(whole, member=members[0]).of(whole)
    return rows.select(*keys_of(rows), *(name for name in NUMBERS if name in rows.columns))


def _batches(rows: ir.Table, groups: int) -> Iterator[Batch]:
    """The numbers of rows that the engine hands over, and first of none: a sum has a value."""
    names = [name for name in rows.columns if name != PLACE]
    yield [np.empty(0)] * len(names), [0] * groups
    # Of several groups many rows at once, so that each has about a block of them.
    for batch in arrow_batches(rows, BLOCK * min(groups, _BLOCKS)):
        columns = [doubles_of(batch, name) for name in names]
        if groups == 1:
            yield columns, [batch.num_rows]
            continue
        own = batch.column(PLACE).to_numpy(zero_copy_only=False)
        order = np.argsort(own.astype(np.uint8), kind="stable")  # few bits are sorted at once
        ends = np.cumsum(np.bincount(own, minlength=groups))
        yield [column[order] for column in columns], ends.tolist()


def _read(asked: Sequence[ColumnQuery], whole: ir.Table) -> list[Any]:
    """What each adds up of the rows that the engine hands over."""
    members = _members(asked)
    places = [[id(each) for each in members].index(id(each.column.share.member)) for each in asked]
    totals: list[Any] = [None for _ in asked]
    again = any(each.again for each in asked)
    for columns, ends in asked[0].column.share.memory.read(whole, members, again):
        for number, (each, place) in enumerate(zip(asked, places, strict=True)):
            assert each.reader is not None
            own, first = columns[each.column.share.second :], ends[place - 1] if place else 0
            if totals[number] is None:  # the batch without rows
                totals[number] = each.reader.block(*own)
            for start in range(first, ends[place], BLOCK):
                part = slice(start, min(start + BLOCK, ends[place]))
                totals[number] = totals[number] + each.reader.block(*(c[part] for c in own))
    return [each.reader.result(total) for each, total in zip(asked, totals, strict=True)]  # type: ignore[union-attr]


def _answers(asked: Sequence[ColumnQuery]) -> list[Any]:
    """Ask the engine, and give each its part of the answer; errors may quote records."""
    whole = asked[0].column.share.table()
    if asked[0].reads:
        return redact_errors(_read, asked, whole)
    found = redact_errors(fetched, query(asked, whole))
    if len(asked) == 1:
        return [asked[0].decode(found)]
    places = found.pop(PLACE)
    rows: list[list[int]] = [[] for _ in asked]
    for row, place in enumerate(places):
        rows[int(place)].append(row)
    parts = ({name: [found[name][row] for row in own] for name in found} for own in rows)
    return [each.decode(part) for each, part in zip(asked, parts, strict=True)]


def alike(asked: Sequence[ColumnQuery]) -> Iterator[list[int]]:
    """The places of questions that one query answers."""
    left = list(range(len(asked)))
    while left:
        first = asked[left[0]]
        some = [place for place in left if place == left[0] or first.like(asked[place])]
        left = [place for place in left if place not in some]
        for start in range(0, len(some), AT_ONCE):
            yield some[start : start + AT_ONCE]


def answer(asked: Sequence[ColumnQuery]) -> list[Any]:
    """Answer questions in their order, with one query for those that are alike."""
    answers: dict[int, Any] = {}
    for some in alike(asked):
        answers |= dict(zip(some, _answers([asked[place] for place in some]), strict=True))
    return [answers[place] for place in range(len(asked))]


QUANTILES = 2**9
"""Quantiles of the sample that are fetched; they widen a bracket by at most 0.4 %."""


def how_many(rows: ir.Table) -> ir.Table:
    """How many records there are."""
    return aggregated(rows, records=rows.count())


def how_many_different(rows: ir.Table) -> ir.Table:
    """How many different values there are."""
    return aggregated(rows, records=rows.value.nunique())


def how_many_below(rows: ir.Table, **edges: Given) -> ir.Table:
    """How many records lie below the first of a few values, and between each and the next."""
    *_, last = ascending = list(edges.values())
    rows = rows.filter(rows.value < number(last))  # an index on the column can serve this

    def place(first: int, last: int) -> ir.Value:  # a binary search: few comparisons for each row
        if first == last:
            return ibis.literal(first, "int64")
        middle = (first + last) // 2
        below = rows.value < number(ascending[middle])
        return ibis.ifelse(below, place(first, middle), place(middle + 1, last))

    keys = keys_of(rows)
    places = rows.select(*keys, edge=place(0, len(edges) - 1)).group_by([*keys, "edge"])
    return places.aggregate(records=lambda t: t.count())


def near_ranks(rows: ir.Table, *, low: Given, high: Given, first: Given, last: Given) -> ir.Table:
    """The values of a few ranks, each once, with its number of records, out of a bracket."""
    keys = keys_of(rows)
    inside = rows.filter(rows.value >= number(low), rows.value <= number(high))
    own = ["first", "last"] if keys else []  # the same in all rows of a column
    groups = inside.group_by([*keys, *own, "value"]).aggregate(records=lambda t: t.count())
    order = ibis.window(group_by=keys, order_by=groups.value, rows=(None, 0))
    ranked = groups.mutate(upto=groups.records.sum().over(order).cast("int64"))
    if keys:
        first, last = ranked["first"], ranked["last"]
    before = ranked.upto - ranked.records
    found = ranked.filter(ranked.upto >= number(first), before < number(last))
    return found.select(*keys, "value", "records", "upto")


def clipped_sums(
    rows: ir.Table,
    *,
    low: Given,
    high: Given,
    factor: Given,
    tiny: Given,
    farthest: int,
    middle: Given = 0.0,
    squared: bool = False,
) -> ir.Table:
    """The sum of the values between two ends, on a lattice, and how many are below and inside."""
    step = _rounded(rows.value, factor, tiny)
    if not (isinstance(middle, float) and middle == 0):
        step = step - whole(middle)
    # Those beyond an end are at its step: one condition for each row is faster than three.
    steps = rows.select(
        *keys_of(rows),
        step=ibis.cases((rows.value.between(number(low), number(high)), step)),
        below=rows.value < number(low),
    )
    rows = materialize(steps)
    parts = limbs_of(rows.step, farthest, limb_bits(rows, factors=2 if squared else 1))
    below = rows.count(where=rows.below)
    sums = {"records": rows.count(), "inside": rows.step.count(), "below": below}
    sums |= _sums_of("part", parts)
    return aggregated(rows, **sums | (_squares_of("product", parts) if squared else {}))


def _sums_of(kind: str, parts: Sequence[ir.Value]) -> dict[str, ir.Value]:
    return {f"{kind}_{place}": part.sum() for place, part in enumerate(parts)}


def _squares_of(kind: str, parts: Sequence[ir.Value]) -> dict[str, ir.Value]:
    """The products of limbs of one number, each pair of different ones once."""
    pairs = itertools.combinations_with_replacement(enumerate(parts), 2)
    return {f"{kind}_{i}_{j}": (one * other).sum() for (i, one), (j, other) in pairs}


def aggregated(rows: ir.Table, **sums: ir.Value) -> ir.Table:
    """Sums over all rows, of each column that asks."""
    keys = keys_of(rows)
    return rows.group_by(keys).aggregate(**sums) if keys else rows.aggregate(**sums)


def limbs_of(whole: ir.Value, farthest: int, bits: int) -> list[ir.Value]:
    """A 64-bit integer of at most this size in limbs of so many bits, least first.

    The last has the rest and the sign; its size is at most 2**bits.
    """
    found = []
    for _ in range(limbs(farthest - 1, bits) - 1):
        found.append(whole & ibis.literal(2**bits - 1, "int64"))
        whole = whole >> ibis.literal(bits, "int32")
    return [*found, whole]


def sizes_of_groups(rows: ir.Table, *, at_least: int) -> ir.Table:
    """How many records each group has, if it has at least so many."""
    groups = rows.group_by(members_of(rows)).aggregate(records=lambda t: t.count())
    return groups.filter(groups.records >= at_least)


def fullest_points(rows: ir.Table, *, within: int, **lattice: Given) -> ir.Table:
    """The points of the lattice that hold nearly as many records as the fullest."""
    keys = keys_of(rows)
    steps = materialize(rows.select(*keys, step=steps_of(rows.value, **lattice)))
    groups = steps.group_by([*keys, "step"]).aggregate(records=lambda t: t.count())
    most = groups.records.max().over(ibis.window(group_by=keys))
    fullest = groups.mutate(most=most)
    near = fullest.filter(fullest.records > fullest.most - within)
    return near.select(*keys, "step", "records")


def sizes_of_half_octaves(rows: ir.Table) -> ir.Table:
    """How many records lie in each half-octave, raised as `lattice.lowered` expects them."""
    logs = (rows.value.abs() + double(TINY)).ln()
    size = logs * double(HALVES_PER_LOG) + double(RAISED_SHIFT)
    finite = rows.value.abs() < double(math.inf)
    raised = rows.value.sign() * ibis.ifelse(finite, floored(size), size)
    keys = keys_of(rows)
    found = materialize(rows.select(*keys, raised=raised))
    return found.group_by([*keys, "raised"]).aggregate(records=lambda t: t.count())


def two_largest_groups(rows: ir.Table) -> ir.Table:
    """How many records the two most frequent values have, and their order, but not the values."""
    keys, top = keys_of(rows), _largest_groups(rows, 2)
    sizes = ibis.window(group_by=keys, order_by=[ibis.desc(top.records), top.value])
    values = ibis.window(group_by=keys, order_by=top.value)
    return top.select(
        *keys,
        "records",
        size=ibis.row_number().over(sizes),
        position=ibis.row_number().over(values),
    )


def largest_group(rows: ir.Table) -> ir.Table:
    """The most frequent value."""
    top = _largest_groups(rows, 1)
    return top.select(*keys_of(rows), value=legible(top.value, backend_name(rows)))


def _largest_groups(rows: ir.Table, most: int) -> ir.Table:
    keys = keys_of(rows)
    groups = rows.group_by([*keys, "value"]).aggregate(records=lambda t: t.count())
    order = [ibis.desc(groups.records), groups.value]
    if not keys:
        return groups.order_by(order).limit(most)
    size = ibis.row_number().over(ibis.window(group_by=keys, order_by=order))
    placed = groups.mutate(size=size)
    return placed.filter(placed["size"] < most)


def how_many_of_each(rows: ir.Table, *, categories: Sequence[Any]) -> ir.Table:
    """How many records have each of a few public values."""
    values = [stored_literal(each, rows) for each in categories]
    rows = rows.filter(rows.value.isin(values))
    counts = {f"of_{i}": rows.count(where=rows.value == value) for i, value in enumerate(values)}
    return aggregated(rows, **counts)


def steps_of(
    value: ir.Value,
    *,
    least: Given,
    largest: Given,
    first: Given,
    last: Given,
    factor: Given,
    tiny: Given,
) -> ir.Value:
    """Round a value to a lattice, given by `numbers_of`: bit for bit as `Lattice.steps` does."""
    inside = value.between(number(least), number(largest))  # most, so that it is first
    return ibis.cases(
        (inside, _rounded(value, factor, tiny)),
        (value > number(largest), whole(last)),
        else_=whole(first),
    )


def _rounded(value: ir.Value, factor: Given, tiny: Given) -> ir.Value:
    """The nearest step of a value inside of the lattice."""
    # As `rounded`, of a value that its caller found to be inside, so that an integer can hold it.
    step = floored(value * number(factor) + double(0.5)).cast("int64")
    if backend_name(value) != "postgres" or (isinstance(tiny, float) and tiny == 0):
        return step
    # It raises an error when a product underflows.
    return ibis.ifelse(value.abs() < number(tiny), ibis.literal(0, "int64"), step)


def numbers_of(lattice: Lattice) -> dict[str, float]:
    """The numbers of a lattice that a question takes."""
    ends = {"first": float(lattice.low), "last": float(lattice.high)}
    values = {"least": lattice.value(lattice.low), "largest": lattice.value(lattice.high)}
    return ends | values | scaling(lattice)


def scaling(lattice: Lattice) -> dict[str, float]:
    """What a value is multiplied with, and the size below which that might underflow."""
    tiny = math.ldexp(1.0, max(lattice.exponent - 60, -1070)) if lattice.exponent > 0 else 0.0
    return {"factor": math.ldexp(1.0, -lattice.exponent), "tiny": tiny}


def sample_quantiles(rows: ir.Table, *, share: Given) -> ir.Table:
    """Evenly spaced quantiles of a random sample, which suggest where ranks are."""
    keys = keys_of(rows)
    # Drawn in a column, for each row: DuckDB would compare one number with the share of a group
    # before it joins the rows with their group, and take all of the group or none.
    drawn = rows.select(*keys, "value", share=number(share), draw=ibis.random())
    sample = drawn.filter(drawn.draw < drawn.share)
    part = ibis.ntile(QUANTILES).over(ibis.window(group_by=keys, order_by=sample.value))
    parts = sample.mutate(part=part).group_by([*keys, "part"])
    return parts.aggregate(value=lambda t: t.value.max()).select(*keys, "value")


def product_sums(rows: ir.Table, *, wide: int, high: int, **given: Given) -> ir.Table:
    """The sums of two columns, clipped and moved to lattices, of their squares and products."""

    def lattice(which: str) -> dict[str, Given]:
        return {name.removesuffix(which): given[name] for name in given if name.endswith(which)}

    one, two = lattice("_one"), lattice("_two")
    steps = rows.select(
        *keys_of(rows),
        one=steps_of(rows.value, **one) - whole(one["first"]),
        two=steps_of(rows.other, **two) - whole(two["first"]),
    )
    rows = materialize(steps)
    bits = limb_bits(rows, factors=2)
    first = limbs_of(rows.one, wide, bits)
    second = limbs_of(rows.two, high, bits)
    sums = {"records": rows.count()} | _sums_of("first", first) | _sums_of("second", second)
    for i, left in enumerate(first):
        sums |= {f"product_{i}_{j}": (left * right).sum() for j, right in enumerate(second)}
    return aggregated(rows, **sums, **_squares_of("ones", first), **_squares_of("twos", second))
