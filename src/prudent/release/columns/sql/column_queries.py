"""Questions that several columns of one table ask at the same time: one query answers all.

The columns may be the groups of a table, or the two columns of a statistic of pairs. Each is
answered by code that knows of no other: it asks a question, draws noise, and asks the next one,
which depends on what was released. `pool.together` runs such tasks in turns, each until
it asks, and then the engine is asked once for all that ask alike.

Two ways lead to an answer:

- Of a server or a cluster nothing but the answer leaves. What groups ask with other numbers is one
  query: the numbers of each are a row of a small table that the query holds itself, and that the
  rows are joined with. The two columns of a pair ask one query each: to join every row with two
  numbers takes longer than to read it twice.
- DuckDB is part of this process, and hands its rows over without a copy, few at a time. Where a
  question has a `Reader`, one query hands over the rows of all that ask, and what each adds up is
  computed here, as it is of an array. An average of DuckDB's takes 5 ns for a row and each further
  operation of an expression 3 to 12; here an operation takes about 0.5. To hand a row over takes 8,
  so up to `MOST_KEPT` numbers are kept for what is asked next.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import attrs
import ibis
import ibis.expr.types as ir
import numpy as np

from prudent.release.columns.dialects import (
    arrow_batches,
    backend_name,
    double,
    doubles_of,
    fetched,
)
from prudent.release.columns.pool import AT_ONCE
from prudent.release.failures import redact_errors
from prudent.release.lattice import BLOCK, FloatArray

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


class Shared(Protocol):
    """A column that may share its table with others."""

    @property
    def share(self) -> Share:
        """Its share of the table."""
        ...


@attrs.frozen(eq=False)
class ColumnQuery:
    """A question of one column.

    Attributes:
        column: The column.
        question: Makes a query of a table and of what is given by name.
        given: Floating numbers may be others for each column; of integers the largest counts, and
            all else is the same for all.
        decode: Makes the answer of what the engine returned: columns by name.
        reader: Answers it from the rows themselves; a test run asserts that its answer is the same.
        again: Whether the same rows are read again for what is asked next.
    """

    column: Shared
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
