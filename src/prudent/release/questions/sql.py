"""Questions in SQL, answered privately.

    sql("SELECT department, MEDIAN(salary), COUNT(*) FROM 'salaries.parquet' "
        "WHERE year = 2024 GROUP BY department", epsilon=1, delta=1e-7)

A query is parsed, and becomes the same request that `prudent.table` makes: nothing of it is
executed as it is given. What has no private answer is refused before anything is read or charged,
and the message says what may be asked instead.

| SQL | question |
| --- | --- |
| count(*), count(x), count(DISTINCT x) | `count`, `count_distinct` |
| sum, avg (of a condition: its share) | `sum`, `mean` |
| var_pop, stddev_pop | `variance`, `deviation` |
| median, quantile(x, p), percentile_disc(p) WITHIN GROUP (ORDER BY x) | `median`, `quantile` |
| min, max, mode | `minimum`, `maximum`, `mode` |
| sum(x) / sum(y), sum(x * w) / sum(w) | `ratio`, `weighted_mean` |
| corr(x, y), covar_pop(x, y) | `correlation`, `covariance` |
| clip(x, low, high) inside any of them | public bounds |
| agg(x) FILTER (WHERE …), WHERE … | `where` |
| GROUP BY a, date_trunc('month', d) | `by`; see `groups` |
| FROM a JOIN b ON a.k = b.k, JOIN b USING (k), LEFT JOIN | `join` |
| ORDER BY, LIMIT | of the answers |
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import attrs
from sqlglot import expressions as ast

from prudent._validate import ArgumentError
from prudent.budget import LedgerLike
from prudent.receipts.making import ReceiptTarget
from prudent.release.charging import Preview
from prudent.release.columns.column import PerUnit
from prudent.release.columns.row_values.groups import NO_DATE
from prudent.release.columns.sources import OpenTable
from prudent.release.noise import Noise
from prudent.release.questions.from_clause import From, conjuncts, qualify, select_of
from prudent.release.questions.tables import Ask, answered, conjunction
from prudent.release.questions.tables import ReleasedTable as Table
from prudent.release.questions.text import Node, ask_of, constant_of, refused, text_of
from prudent.release.request import Condition, GroupNames, Request


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
    ledger: LedgerLike | None = None,
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
        unit: The column that says whose row it is; see `median`.
        per_unit: The value of a unit with several rows.
        groups_per_unit: In how many groups a unit may count; see `Table`.
        groups: The groups, from public knowledge, as of `median`. Without, those that the query
            names in a condition, such as department IN ('HR', 'IT'); otherwise they are found
            privately, which needs `delta`.
        where: A condition on rows, beside that of the query.
        connect: The address of a database.
        public: Of joined tables, those that are public knowledge, by the name that the query has
            for them; see `join`. All others are private, and joined on `unit`.
        ledger: The ledger to charge.
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
    by = parsed.keys[0] if len(parsed.keys) == 1 else (parsed.keys or None)
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
    found = answered(parsed.asks, request)
    return found if isinstance(found, Preview) else parsed.arranged(found)


def keys_of(query: str) -> list[str]:
    """The columns of groups that a query names."""
    return list(_Query.of(select_of(query), query).keys)


@attrs.frozen
class _Query:
    """A parsed query: the questions, the table, the condition and the groups."""

    tree: Node  # the query
    keys: tuple[str, ...]  # the columns of groups, as `by` takes them
    asks: tuple[Ask, ...]  # the questions
    # What the answers are sorted by, the last first: the place of a key or the name of an answer,
    # and whether the largest comes first.
    order: tuple[tuple[int | str, bool], ...]
    limit: int | None  # how many groups to keep; None for all

    @classmethod
    def of(cls, tree: Node, text: str) -> "_Query":
        group = tree.args.get("group")
        listed = [] if group is None else list(group.expressions)
        if group is not None and {key for key, value in group.args.items() if value} - {
            "expressions"
        }:
            raise refused(text, "its GROUP BY is not a list of columns")
        keys = [_key(_resolved(each, tree, text), text) for each in listed]
        asks = []
        for item in tree.expressions:
            plain = item.unalias()
            with contextlib.suppress(ArgumentError):
                if _key(plain, text) in keys:
                    continue
            asks.append(ask_of(plain, text, item.alias or None))
        if not asks:
            raise refused(text, "it asks for no aggregate")
        limit = tree.args.get("limit")
        if limit is not None and not keys:
            raise refused(text, "LIMIT without GROUP BY has no meaning")
        return cls(
            tree,
            tuple(keys),
            tuple(asks),
            _order(tree, keys, asks, text),
            None if limit is None else int(constant_of(limit.expression)),
        )

    @property
    def where(self) -> str | None:
        """The condition on rows."""
        found = self.tree.args.get("where")
        return None if found is None else text_of(found.this)

    def listed(self) -> Any:
        """The groups that the condition names, if it does for every key; else None."""
        found: dict[str, list[Any]] = {}
        where = self.tree.args.get("where")
        for each in () if where is None else conjuncts(where.this):
            values = each.expressions if isinstance(each, ast.In) else []
            if isinstance(each, ast.EQ):
                values = [each.expression]
            if values and all(isinstance(value, ast.Literal) for value in values):
                with contextlib.suppress(ArgumentError):
                    listed = list(dict.fromkeys(map(constant_of, values)))
                    found.setdefault(_key(each.this, ""), listed)
        if set(self.keys) - set(found):
            return None
        return {key: found[key] for key in self.keys}

    def arranged(self, table: Table) -> Table:
        """The answers in the order that the query asks for, and no more than it wants."""
        groups = table.groups()
        if groups == [None]:
            return table
        for by, largest_first in self.order:

            def place(group: Any, by: int | str = by) -> Any:
                if isinstance(by, str):
                    return getattr(table[by][group], "value", 0)
                own = group[by] if isinstance(group, tuple) else group
                return own == NO_DATE, own  # which is no date itself

            groups.sort(key=place, reverse=largest_first)
        answers = {
            name: answer.only(groups[: self.limit]) for name, answer in table.answers.items()
        }
        return attrs.evolve(table, answers=answers)


def _order(
    tree: Node, keys: list[str], asks: list[Ask], text: str
) -> tuple[tuple[int | str, bool], ...]:
    """What ORDER BY names: keys, or answers by their alias or their text; the last first."""
    order = tree.args.get("order")
    titles = [ask.title for ask in asks]
    found: list[tuple[int | str, bool]] = []
    for ordered in [] if order is None else order.expressions:
        node = ordered.this
        by: int | str | None = None
        if isinstance(node, ast.Column) and node.name in titles:
            by = node.name
        else:
            node = _resolved(node, tree, text)
            aliases = {text_of(item.unalias()): item.alias for item in tree.expressions}
            title = aliases.get(text_of(node)) or text_of(node)
            by = title if title in titles else None
            with contextlib.suppress(ArgumentError):
                by = keys.index(_key(node, text)) if _key(node, text) in keys else by
        if by is None:
            raise refused(text, "it is ordered by what it does not select")
        found.append((by, bool(ordered.args.get("desc"))))
    return tuple(reversed(found))


def _resolved(node: Node, tree: Node, text: str) -> Node:
    """What a place in the list, GROUP BY 1, or an alias stands for."""
    if isinstance(node, ast.Literal) and not node.is_string:
        place = int(node.name) if node.name.isdigit() else 0
        if not 1 <= place <= len(tree.expressions):
            raise refused(text, f"there is no column {node.name}")
        return tree.expressions[place - 1].unalias()
    for item in tree.expressions:
        if isinstance(node, ast.Column) and item.alias and item.alias == node.name:
            return item.unalias()
    return node


def _key(node: Node, text: str) -> str:
    """A column of groups, as `by` takes it."""
    match node:
        case ast.Column():
            return node.name
        case (
            ast.TimestampTrunc(this=ast.Column() as column)
            | ast.DateTrunc(this=ast.Column() as column)
        ):
            return f"{column.name}:{node.args['unit'].name.lower()}"
        case ast.Year() | ast.Month() | ast.Day() | ast.Lower() | ast.Upper():
            return text_of(node)
    raise refused(
        text,
        f"groups of {text_of(node)} are not known",
        "Group by columns, date_trunc('month', column), month(column) or lower(column).",
    )
