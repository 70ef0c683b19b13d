"""Questions in SQL, answered privately.

    sql("SELECT department, MEDIAN(salary), COUNT(*) FROM 'salaries.parquet' "
        "WHERE year = 2024 GROUP BY department", epsilon=1, delta=1e-7)

A query is parsed, and becomes the same request that `prudent.table` makes: nothing of it is
executed as it is given. What has no private answer is refused before anything is read or charged,
and the message says what may be asked instead.

| SQL | question |
| --- | --- |
| count(*), count(x), count(DISTINCT x), approx_count_distinct(x) | `count`, `count_distinct` |
| sum, avg (of a condition: its share) | `sum`, `mean` |
| variance, stddev, var_pop, stddev_pop, all divided by the records | `variance`, `deviation` |
| median, quantile_cont(x, p), percentile_cont(p) WITHIN GROUP (ORDER BY x) | `median`, `quantile` |
| quantile_cont(x, [0.25, 0.75]) | `quantiles` |
| min, max, mode, iqr, proportion, histogram | the statistic of that name |
| sum(x) / sum(y), sum(x * w) / sum(w) | `ratio`, `weighted_mean` |
| corr(x, y), covar_pop(x, y) | `correlation`, `covariance` |
| clip(x, low, high), CASE between constants, inside any of them | public bounds |
| agg(x) FILTER (WHERE …), WHERE … | `where` |
| GROUP BY a value of one row: a column, floor(x / 10), year(d), CASE | `by`; see `groups` |
| FROM a JOIN b ON a.k = b.k, JOIN b USING (k), LEFT JOIN | `join` |
| WITH t AS (SELECT …), FROM (SELECT …), of one row at a time | written out |
| arithmetic on aggregates, HAVING, ORDER BY, LIMIT, OFFSET | of the answers |

`prudent.release.columns.row_values.expressions` lists what a value of one row may be. What is
computed from answers is post-processing, by the same grammar: it costs nothing, and an aggregate
that is written twice is released once.
"""

import itertools
import math
import operator
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import attrs
import ibis
import ibis.expr.datatypes as dt
import pyarrow as pa
from sqlglot import expressions as ast

from prudent._validate import ArgumentError
from prudent.accounting._numeric import float_above, float_below
from prudent.receipts.making import ReceiptTarget
from prudent.release.charging import AnyLedger, Preview
from prudent.release.columns.column import PerUnit
from prudent.release.columns.dialects import fetched, typed
from prudent.release.columns.joining import open_source
from prudent.release.columns.row_values.conditions import total_value
from prudent.release.columns.row_values.expressions import Expression, parse_value
from prudent.release.columns.row_values.groups import scale_of_periods, start_of
from prudent.release.columns.scales import DATE, Scale
from prudent.release.columns.sources import OpenTable
from prudent.release.noise import Noise
from prudent.release.outcome import (
    Branch,
    Groups,
    Released,
    ReleasedInterval,
    UnknownSpread,
    notes_of,
)
from prudent.release.questions.tables import Ask, answered, by_group, conjunction
from prudent.release.questions.tables import ReleasedTable as Table
from prudent.release.questions.text import (
    NEAREST,
    OF_SAMPLES,
    From,
    Node,
    ask_of,
    conjuncts,
    constant_of,
    is_question,
    qualify,
    refused,
    select_of,
    text_of,
)
from prudent.release.request import Condition, GroupNames, Request

_CONFIDENCE = 0.95  # of the interval of a number that is computed from others
_MOST_DIGITS = 400  # to which a double is rounded; else it has no interval


def _rounded(number: Fraction, digits: Fraction = Fraction(0)) -> Fraction:
    """The number rounded as DuckDB does, a half away from zero."""
    if digits.denominator > 1 or abs(digits) > _MOST_DIGITS:
        raise ValueError("not so many digits")
    place = Fraction(10) ** int(digits)
    return math.floor(abs(number) * place + Fraction(1, 2)) / (place if number > 0 else -place)


_MONOTONE: dict[Any, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Neg: operator.neg,
    ast.Mul: operator.mul,
    ast.Div: operator.truediv,
    ast.Paren: operator.pos,
    ast.Floor: math.floor,
    ast.Ceil: math.ceil,
    ast.Round: _rounded,
}
_SAMPLE = (None, 1, True, "2024-01-01")  # for which it is tried whether a value can be computed
_WHOLE = ("count", "count_distinct")
_NOT_NUMBERS = ("mode", "quantiles", "histogram", "describe")
_DIVISOR = "The divisor of variances and deviations is the number of records, not one less."
_PAIRS = "A quotient of two sums is over the rows that have both values."


def sql(
    query: str,
    *,
    epsilon: float,
    delta: float | None = None,
    data: Any = None,
    unit: str | None = None,
    per_unit: PerUnit | None = None,
    groups_per_unit: int | None = None,
    groups: GroupNames | None = None,
    where: Condition | None = None,
    connect: str | None = None,
    public: Sequence[str] = (),
    ledger: AnyLedger | None = None,
    receipt: ReceiptTarget | None = None,
    noise: Noise | None = None,
    dry_run: bool = False,
    **tables: Any,
) -> Table | Preview:
    """Answer a query in SQL privately; it is parsed, and never executed as it is given.

    Args:
        query: The query, in the dialect of DuckDB: SELECT … FROM … WHERE … GROUP BY …. The table
            is a file in quotes, FROM 'salaries.parquet', a name among `tables`, or with `connect` a
            table of the database.
        epsilon: ε of the whole query.
        delta: δ; needed for groups that are found privately, and for a mode.
        data: The table, whatever its name in the query.
        unit: The privacy unit (user ID column); see `median`.
        per_unit: The value of a unit with several rows.
        groups_per_unit: In how many groups a unit may count; see `Table`.
        groups: The groups, from public knowledge, as of `median`. Without, those that the query
            names in a condition, such as department IN ('HR', 'IT'); otherwise they are found
            privately, which needs `delta`.
        where: A condition on rows, beside that of the query.
        connect: The address of a database.
        public: Of joined tables, those that are public knowledge, by the name that the query has
            for them; see `join`. All others are private, and joined on `unit`.
        ledger: The ledger to charge, or its location.
        receipt: Where to write the receipt; see `median`.
        noise: Source of randomness; None uses the operating system's.
        dry_run: Release and charge nothing: return the price and the noise of each part, and what
            the engine will be asked.
        **tables: Tables by the name that the query has for them: `people=frame`.

    Returns:
        `ReleasedTable`, with one answer for each aggregate of the query, by its alias or its text.

    Raises:
        ArgumentError: if the query asks what cannot be answered; nothing is charged then.
    """
    tree = select_of(query)
    source = From.of(tree, query).source(data, connect, tables, unit=unit, public=public)
    if isinstance(source.get("data"), OpenTable) and source["data"].join is not None:
        qualify(tree, source["data"].origins, query)
    parsed = _Query.of(tree, query)
    by: Any = parsed.keys[0] if len(parsed.keys) == 1 else (parsed.keys or None)
    if isinstance(groups, Mapping):
        known = dict(zip(parsed.labels, parsed.keys, strict=True))
        groups = {known.get(name, name): each for name, each in groups.items()}
    if groups is not None and by is None:
        raise ArgumentError("groups", "only with GROUP BY in the query", got=groups)
    if groups is None and by is not None:
        groups = parsed.listed() or "private"
        if groups == "private" and delta is None:
            raise ArgumentError(
                "groups",
                "from public knowledge",
                shown="a query with GROUP BY",
                hint="Name them in the query, WHERE key IN ('a', 'b'), or give groups; or give "
                "delta, and those with enough records are found privately.",
            )
    request = Request(
        **source,
        epsilon=epsilon,
        delta=delta,
        unit=unit,
        per_unit=per_unit,
        groups_per_unit=groups_per_unit,
        by=by,
        groups=groups,
        where=conjunction(where, parsed.where),
        ledger=ledger,
        receipt=receipt,
        noise=noise,
        dry_run=dry_run,
    )
    needed = parsed.computes or parsed.order or parsed.renamed
    types = parsed.checked(request) if needed else {}
    found = answered(parsed.asks, request)
    return found if isinstance(found, Preview) else parsed.arranged(found, types)


def keys_of(query: str) -> list[str]:
    """The names of the columns of groups that a query has."""
    return list(_Query.of(select_of(query), query).labels)


@attrs.frozen
class _Item:
    """A value that a query selects, or sorts or chooses groups by.

    In its tree `part_0`, … stand for the questions and `key_0`, … for the columns of groups.
    """

    title: str
    tree: Node
    largest_first: bool = False  # of one that groups are sorted by

    @property
    def plain(self) -> str | None:
        """What stands for it, if it is one question or one column of groups; else None."""
        tree = self.tree.unnest()
        return tree.name if isinstance(tree, ast.Column) else None

    @property
    def used(self) -> list[str]:
        """What stands in it, as often as it does."""
        return [column.name for column in self.tree.find_all(ast.Column)]


@attrs.frozen
class _Query:
    """A parsed query: the questions, the condition, the groups, and what is made of the answers."""

    text: str  # as it is given
    where: Expression | None  # the condition on rows
    keys: tuple[Expression, ...]  # the columns of groups, as `by` takes them
    renamed: tuple[str, ...]  # the names of computed values by which it groups
    labels: tuple[str, ...]  # the names that the query has for them
    asks: tuple[Ask, ...]  # the questions, each once
    items: tuple[_Item, ...]  # what it selects, apart from the columns of groups
    having: _Item | None
    order: tuple[_Item, ...]
    kept: slice  # which of the groups to keep, by LIMIT and OFFSET
    notes: tuple[str, ...]

    @classmethod
    def of(cls, tree: Node, text: str) -> "_Query":
        group = tree.args.get("group")
        listed = [] if group is None else list(group.expressions)
        given = set() if group is None else {key for key, value in group.args.items() if value}
        if given == {"all"}:  # by every selected value of one row
            listed = [each.unalias() for each in tree.expressions if not each.find(ast.AggFunc)]
        elif given - {"expressions"}:
            raise refused(text, "its GROUP BY is not a list of values of one row")
        nodes = [_resolved(each, tree, text).unnest() for each in listed]
        renamed = [
            each.name
            for each, node in zip(listed, nodes, strict=True)
            if isinstance(each, ast.Column) and not isinstance(node, ast.Column)
        ]
        for node in nodes:
            if isinstance(node, ast.Rollup | ast.Cube | ast.GroupingSets):
                raise refused(text, "its GROUP BY is not a list of values of one row")
            if node.find(ast.AggFunc):
                raise refused(text, f"it groups by {text_of(node)}, which is an aggregate")
        keys = tuple(map(Expression, nodes))
        named = {Expression(item.unalias().unnest()): item.alias for item in tree.expressions}
        places = _Places(tree, text, keys)
        items = [_Item(item.alias, places.of(item.unalias())) for item in tree.expressions]
        items = [item for item in items if not (item.plain or "").startswith("key_")]
        if not places.asks:
            raise refused(text, "it asks for no aggregate", NEAREST[ast.Distinct])
        titles = [item.title for item in items]
        if len(set(titles)) < len(titles):
            raise refused(text, "two answers have the same name", "Name them: avg(x) AS mean.")
        having, order = tree.args.get("having"), tree.args.get("order")
        limit, offset = tree.args.get("limit"), tree.args.get("offset")
        if not keys and having is not None:
            raise refused(text, "HAVING without GROUP BY has no meaning", "Leave it out.")
        most = math.inf if limit is None else constant_of(limit.expression)
        first = 0 if offset is None else constant_of(offset.expression)
        counts = isinstance(first, int) and (limit is None or isinstance(most, int))
        if not counts or most < 1 or first < 0 or (first and not keys):
            raise refused(text, "its LIMIT or OFFSET leaves no answer", "Leave it out.")
        sorted_by = [
            _Item(
                "", places.of(_resolved(each.this, tree, text), True), bool(each.args.get("desc"))
            )
            for each in ([] if order is None else order.expressions)
        ]
        where = tree.args.get("where")
        chosen = None if having is None else places.of(having.this, True)
        kinds = {each.statistic for each in places.asks.values()}
        notes = {_DIVISOR: tree.find(*OF_SAMPLES), _PAIRS: kinds & {"ratio", "weighted_mean"}}
        return cls(
            text,
            None if where is None else Expression(where.this),
            keys,
            tuple(renamed),
            tuple(named.get(key) or str(key) for key in keys),
            tuple(places.asks.values()),
            tuple(items),
            # Of a number, this is no condition.
            None if chosen is None else _Item("", ast.and_(chosen, "true")),
            tuple(sorted_by),
            slice(first, None if limit is None else first + most),
            tuple(note for note, applies in notes.items() if applies),
        )

    def listed(self) -> Any:
        """The groups that the condition names, if it does for every key; else None."""
        found: dict[str, list[Any]] = {}
        for each in () if self.where is None else conjuncts(self.where.tree):
            values = each.expressions if isinstance(each, ast.In) else []
            if isinstance(each, ast.EQ):
                values = [each.expression]
            signless = [each.this if isinstance(each, ast.Neg) else each for each in values]
            if values and all(isinstance(each, ast.Literal | ast.Boolean) for each in signless):
                listed = list(dict.fromkeys(map(constant_of, values)))
                found.setdefault(Expression(each.this.unnest()), listed)
        if set(self.keys) - set(found):
            return None
        return {key: found[key] for key in self.keys}

    @property
    def computes(self) -> list[_Item]:
        """What is computed from the answers, and is not one of them."""
        every = (*self.items, *([] if self.having is None else [self.having]), *self.order)
        return [item for item in every if item.plain is None]

    def checked(self, request: Request) -> dict[str, dt.DataType]:
        """The types of what stands in a computed item; that it can be computed is checked here."""
        given: dict[str, Any] = {"connect": request.connect, "table": request.table}
        given["unit"] = request.unit
        opened = open_source(request.data, **given)
        for name in self.renamed:
            if name in opened.table.columns:
                hint = "Give the value another name, or name its place, as in GROUP BY 1."
                raise refused(self.text, f"{name} is a column, and a value of that name", hint)
        used = {name for item in self.computes for name in item.used}
        types = {}
        for place, ask in enumerate(self.asks):
            if (name := f"part_{place}") not in used:
                continue
            number, count = ask.statistic not in _NOT_NUMBERS, ask.statistic in _WHOLE
            if number and not count and isinstance(ask.column, Expression):
                dtype = parse_value(ask.column, "query")(opened.table).type()
                number = not (dtype.is_temporal() or dtype.is_interval())
            if not number:
                why = "it computes with an answer that is no number"
                raise refused(ask.title, why, "Ask for it by itself.")
            types[name] = dt.int64 if count else dt.float64
        for place, key in enumerate(self.keys):
            if key.period is None:
                dtype = parse_value(key, "query")(opened.table).type()  # a double for a decimal
                types[f"key_{place}"] = dt.float64 if dtype.is_decimal() else dtype
            else:
                scale = scale_of_periods(key.period[1])
                types[f"key_{place}"] = dt.date if scale == DATE else dt.timestamp
        tried = {name: [_stored(each, types[name]) for each in _SAMPLE] for name in types}
        constants = [_Item("", each) for item in self.computes for each in _constants(item.tree)]
        try:
            values = _computed(constants, {"one": [1]}, {"one": dt.int64})
            _computed(self.computes, tried, types)
        except ArgumentError:
            raise
        except Exception:  # of ibis or the engine, for operations that a type does not have
            raise refused(self.text, "its answers have not the types to compute that") from None
        for each, (value,) in zip(constants, values, strict=True):
            if value is None:
                why = f"{text_of(each.tree)} has no value, and so nothing that is made of it has"
                raise refused(self.text, why, "Write another number there.")
        return types

    def arranged(self, table: Table, types: Mapping[str, dt.DataType]) -> Table:
        """What the query makes of the answers: computed ones, groups that it wants, their order."""
        groups = table.groups()
        values = dict(self._values(table, groups))
        values |= {name: [_stored(each, types[name]) for each in values[name]] for name in types}
        computed = _computed(self.computes, values, types)
        columns = {id(item): each for item, each in zip(self.computes, computed, strict=True)}

        def of(item: _Item) -> Sequence[Any]:
            return columns[id(item)] if item.plain is None else values[item.plain]

        rows: list[int] = list(range(len(groups)))
        if self.having is not None:
            rows = [row for row in rows if of(self.having)[row]]
        for item in reversed(self.order):
            known = [row for row in rows if of(item)[row] is not None]
            known.sort(key=of(item).__getitem__, reverse=item.largest_first)
            rows = known + [row for row in rows if of(item)[row] is None]
        rows = rows[self.kept]
        answers: dict[str, Any] = {}
        of_what: dict[str, tuple[str | None, str]] = {}
        price: dict[str, Any] = {"epsilon": table.epsilon, "delta": table.delta}
        price["protected"] = table.protected
        kept = [groups[row] for row in rows]
        for item in self.items:
            if item.plain is None:
                outcomes = {
                    group: self._outcome(item, of(item)[row], table, group)
                    for row, group in zip(rows, kept, strict=True)
                }
                of_what[item.title] = (None, item.title)
            else:
                title = self._title(item.plain)
                outcomes = {group: by_group(table.answers[title])[group] for group in kept}
                of_what[item.title] = table.columns[title]
            answers[item.title] = (
                Groups(outcomes, self.labels, **price) if self.keys else outcomes[None]
            )
        notes = (*table.notes, *self.notes)
        return attrs.evolve(table, answers=answers, columns=of_what, notes=notes)

    def _title(self, name: str) -> str:
        """The title of the question that `part_0`, … stands for."""
        return self.asks[int(name.removeprefix("part_"))].title

    def _outcome(self, item: _Item, value: Any, table: Table, group: Hashable) -> Released:
        """A computed value, which may be published; it costs nothing beyond the whole query."""
        spread: Any = UnknownSpread() if value is None else None
        if value is not None and (ends := self._ends(item, table, group)) is not None:
            # Doubles may have rounded the value out of it.
            spread = ReleasedInterval(min(ends[0], value), max(ends[1], value), _CONFIDENCE)
        titles = [self._title(name) for name in item.used if name.startswith("part_")]
        return Released(
            value,
            Branch.SELECTED,
            event=table.event,
            mechanism="post-processing",
            spread=spread,
            epsilon=table.epsilon,
            delta=table.delta,
            notes=tuple(  # what is to be known of the numbers in it, such as their bounds
                f"{title}: {note}"
                for title in dict.fromkeys(titles)
                for note in notes_of({None: by_group(table.answers[title])[group]})
            ),
            protected=table.protected,
        )

    def _values(self, table: Table, groups: Sequence[Hashable]) -> Iterator[tuple[str, list[Any]]]:
        for place, ask in enumerate(self.asks):
            outcomes = by_group(table.answers[ask.title])
            yield f"part_{place}", [outcomes[group].plain().get("value") for group in groups]
        for place, key in enumerate(self.keys):
            own = [group[place] if isinstance(group, tuple) else group for group in groups]
            if key.period is not None:
                own = [_start(each, key.period[1]) for each in own]
            yield f"key_{place}", own

    def _ends(self, item: _Item, table: Table, group: Hashable) -> tuple[float, float] | None:
        """The interval of a computed number, from those of the numbers in it; None if it has none.

        All of these hold with the confidence asked for, by a union bound.
        """
        names = item.used

        def known(name: str) -> tuple[Fraction, Fraction]:
            outcome = by_group(table.answers[self._title(name)])[group]
            low, high = outcome.spread.interval(outcome.value, 1 - (1 - _CONFIDENCE) / len(names))
            return Fraction(float(low)), Fraction(float(high))

        try:
            low, high = _range(item.tree, known)
            once = 0 < len(names) == len(set(names))
            return (float_below(low), float_above(high)) if once else None
        except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError):
            return None  # it is no such number, or one in it has no interval


def _range(
    node: Node, known: Callable[[str], tuple[Fraction, Fraction]]
) -> tuple[Fraction, Fraction]:
    """The exact ends of what a tree is of numbers between known ends, each of which is in it once.

    In each part, the others fixed, a node is monotone: both are among its values at the ends.
    """
    if isinstance(node, ast.Column):
        return known(node.name)
    if isinstance(node, ast.Literal):  # 0.1 as it is written; what is no double, as one
        exact = Fraction(node.name if 0 < (number := constant_of(node)) < math.inf else number)
        return exact, exact
    parts = [_range(each, known) for each in node.iter_expressions()]
    if isinstance(node, ast.Div) and parts[1][0] <= 0 <= parts[1][1]:
        raise ZeroDivisionError
    found = [Fraction(_MONOTONE[type(node)](*each)) for each in itertools.product(*parts)]
    return min(found), max(found)


def _start(group: Any, unit: str) -> Any:
    """The first moment of a period that a group names; None if it names none."""
    scale = scale_of_periods(unit)
    try:
        return scale.value(start_of(group, unit, scale))
    except ArgumentError:  # of records whose date cannot be read
        return None


def _stored(value: Any, dtype: dt.DataType) -> Any:
    """A released number, or the name of a group, in the type it is computed with; None if none."""
    try:
        if dtype.is_temporal():
            scale = DATE if dtype.is_date() else Scale("timestamp")
            return scale.value(scale.number(value))
        return typed(value, dtype, "groups")
    except ArgumentError:  # such as a count that noise makes longer than 64 bits
        return None


@attrs.frozen
class _Places:
    """What stands for each question and each column of groups of a query."""

    tree: Node
    text: str
    keys: tuple[Expression, ...]
    asks: dict[str, Ask] = attrs.field(factory=dict)  # by the text of the question

    def of(self, node: Node, aliased: bool = False) -> Node:
        """A tree with these in place of aggregates and groups; nothing else may be of rows."""
        if (name := Expression(node.unnest())) in self.keys:
            return ast.column(f"key_{self.keys.index(name)}")
        if is_question(node):
            question = ask_of(node, self.text)
            self.asks.setdefault(question.title, question)
            return ast.column(f"part_{list(self.asks).index(question.title)}")
        if isinstance(node, ast.Column) and aliased:
            for item in self.tree.expressions:
                if item.alias == node.name:
                    return ast.Paren(this=self.of(item.unalias()))
            raise refused(self.text, f"it is ordered or chosen by {node.name}, which it lacks")
        if isinstance(node, ast.Anonymous) and node.find(ast.Column) and not node.find(ast.AggFunc):
            raise refused(self.text, f"there is no aggregate {node.name}")
        if isinstance(node, ast.Column | ast.Star | ast.Alias):
            raise refused(
                self.text, f"{text_of(node)} is no private question", NEAREST.get(type(node), "")
            )
        made = node.copy()
        for child in list(made.iter_expressions()):
            if isinstance(child, ast.Condition) or is_question(child):
                child.replace(self.of(child, aliased))
        return made


def _constants(node: Node) -> Iterator[Node]:
    """What is computed of no answer: the largest such parts, and 1 divided by each divisor."""
    if node.find(ast.Column) or isinstance(node, ast.If):
        for each in node.iter_expressions():
            yield from _constants(each)
        if isinstance(node, ast.Div | ast.IntDiv) and not node.expression.find(ast.Column):
            yield ast.Div(this=ast.Literal.number(1), expression=node.expression.copy())
    elif isinstance(node, ast.Condition) and not isinstance(node, ast.Null):
        yield node


def _computed(
    items: Sequence[_Item], columns: Mapping[str, Sequence[Any]], types: Mapping[str, dt.DataType]
) -> list[list[Any]]:
    """What items are, of released values alone; computed as values of rows are."""
    arrays = {
        name: pa.array(list(columns[name]), dtype.to_pyarrow(), from_pandas=False)
        for name, dtype in types.items()
    }
    rows = ibis.memtable(pa.table(arrays))
    values = {
        f"value_{place}": total_value(
            parse_value(Expression(item.tree), "query")(rows), rows, "query"
        )
        for place, item in enumerate(items)
    }
    return list(fetched(rows.select(**values)).values()) if values else []


def _resolved(node: Node, tree: Node, text: str) -> Node:
    """What a place in the list, GROUP BY 1, or an alias stands for."""
    if isinstance(node, ast.Literal) and not node.is_string:
        place = int(node.name) if node.name.isdigit() else 0
        if not 1 <= place <= len(tree.expressions):
            raise refused(text, f"there is no column {node.name}")
        return tree.expressions[place - 1].unalias()
    for item in tree.expressions:
        if isinstance(node, ast.Column) and item.alias == node.name:
            return item.unalias()
    return node
