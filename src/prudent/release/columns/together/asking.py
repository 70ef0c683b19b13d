"""Questions that several columns of one table ask at the same time: one query answers all.

The columns may be the groups of a table, or the two columns of a statistic of pairs. Each is
answered by code that knows of no other: it asks a question, draws noise, and asks the next one,
which depends on what was released. `turns.together` runs such tasks in turns, each until it asks,
and then the engine is asked once for all that ask the same with other numbers. The numbers of each
column are a row of a small table that the query holds itself, and that the rows are joined with.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import attrs
import ibis
import ibis.expr.types as ir

from prudent.release.columns.dialects import double, fetched
from prudent.release.columns.together.turns import AT_ONCE
from prudent.release.failures import withheld

PLACE = "place"
"""The column that says, in a query for several columns, which of them a row belongs to."""

Question = Callable[..., ir.Expr]


Given: TypeAlias = float | ir.Value
"""A number of a question; a column of numbers, if it is asked for several columns at once."""


def number(given: Given) -> ir.Value:
    """A given number in a query."""
    return double(given) if isinstance(given, float) else given


def whole(given: Given) -> ir.Value:
    """A given whole number in a query."""
    is_one = isinstance(given, float)
    return ibis.literal(int(given), "int64") if is_one else given.cast("int64")


def keys_of(rows: ir.Table) -> list[str]:
    """What to group by, so that each column has an answer of its own."""
    return [PLACE] if PLACE in rows.columns else []


@attrs.frozen(eq=False)
class Share:
    """The rows of a table that are those of one column.

    Attributes:
        whole: The table, with the column `value` and perhaps `other` and those of groups; the same
            object for all columns that share it.
        kept: Returns it as the engine keeps it (`units.StagedTable.kept`); None if it is not kept.
        member: The group of the rows, as it is stored; empty if all rows are meant.
        second: Whether the values are those of `other`.
    """

    whole: ir.Table
    kept: Callable[[], ir.Table] | None = None
    member: tuple[ir.Value, ...] = ()
    second: bool = False

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
class Asked:
    """A question of one column.

    Attributes:
        column: The column.
        question: Makes a query of a table and of what is given by name.
        given: Floating numbers may be others for each column; of integers the largest counts.
    """

    column: Shared
    question: Question
    given: dict[str, Any]

    def like(self, other: "Asked") -> bool:
        """Whether one query can answer both."""
        return (
            self.question is other.question
            and self.column.share.whole is other.column.share.whole
            and self.given.keys() == other.given.keys()
            and getattr(self.question, "joint", False)
        )


def joint(question: Question) -> Question:
    """Declare that a question groups by `keys_of` its rows, and takes columns for numbers."""
    question.joint = True  # type: ignore[attr-defined]
    return question


def values_table(columns: Mapping[str, Sequence[ir.Value]]) -> ir.Table:
    """A table that a query holds itself: literals, and the place of each row, from 0 on."""
    size = len(next(iter(columns.values())))
    rows = ibis.range(0, size).unnest().name(PLACE).as_table()
    return rows.mutate(**{name: ibis.array(each)[rows[PLACE]] for name, each in columns.items()})


def query(asked: Sequence[Asked], whole: ir.Table) -> ir.Expr:
    """The query for questions that are alike, about the table that their columns share."""
    first = asked[0]
    if len(asked) == 1:
        return first.question(first.column.share.of(whole), **first.given)
    numbers: dict[str, list[ir.Value]] = {}
    for name, value in first.given.items():
        if isinstance(value, float):
            numbers[name] = [double(each.given[name]) for each in asked]
    parts = [each.column.share for each in asked]
    for place, _ in enumerate(parts[0].member):
        numbers[f"its_{place}"] = [part.member[place] for part in parts]
    numbers["second"] = [ibis.literal(part.second) for part in parts]
    found = values_table(numbers)
    same = [whole[f"member_{i}"] == found[f"its_{i}"] for i, _ in enumerate(parts[0].member)]
    rows = whole.join(found, same) if same else whole.cross_join(found)
    if any(part.second for part in parts):
        rows = rows.mutate(value=ibis.ifelse(rows.second, rows.other, rows.value))
    given = {
        name: rows[name] if name in numbers else max(each.given[name] for each in asked)
        for name in first.given
    }
    return first.question(rows, **given)


def _answers(asked: Sequence[Asked]) -> list[Any]:
    """Ask the engine, and give each its part of the answer; errors may quote records."""
    share = asked[0].column.share
    expression = query(asked, share.whole if share.kept is None else withheld(share.kept))
    found = withheld(fetched, expression)
    if isinstance(expression, ir.Scalar):
        return [next(iter(found.values()))[0]]
    if len(asked) == 1:
        return [found]
    places = found.pop(PLACE)
    rows: list[list[int]] = [[] for _ in asked]
    for row, place in enumerate(places):
        rows[int(place)].append(row)
    return [{name: [found[name][row] for row in own] for name in found} for own in rows]


def alike(asked: Sequence[Asked]) -> Iterator[list[int]]:
    """The places of questions that one query answers."""
    left = list(range(len(asked)))
    while left:
        first = asked[left[0]]
        some = [place for place in left if place == left[0] or first.like(asked[place])]
        left = [place for place in left if place not in some]
        for start in range(0, len(some), AT_ONCE):
            yield some[start : start + AT_ONCE]


def answer(asked: Sequence[Asked]) -> list[Any]:
    """Answer questions in their order, with one query for those that are alike."""
    answers: dict[int, Any] = {}
    for some in alike(asked):
        answers |= dict(zip(some, _answers([asked[place] for place in some]), strict=True))
    return [answers[place] for place in range(len(asked))]
