"""Show the queries of a release and the engine's plans for them, without charging a ledger.

    for question in explain(median, "hr.parquet", "salary", propose=500, epsilon=1, delta=1e-7):
        print(question.sql, question.plan)

The release is rehearsed: its real code runs on synthetic records, and each query that it makes is
recorded as it would be sent to the table, in the engine's own SQL. The engine only runs EXPLAIN, so
no record is read, no ledger is charged, and nothing private can be released.

A plan is meant for the owner of the data. Engines estimate row counts from statistics of the table,
which are as private as the table itself; do not publish a plan.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import ibis
import ibis.expr.types as ir

from prudent import _validate
from prudent.release.charging import Preview
from prudent.release.columns.column import Kind
from prudent.release.columns.dialects import double, plan
from prudent.release.columns.kinds.pairs import PairColumn
from prudent.release.columns.kinds.table_columns import FEW, TableColumn
from prudent.release.columns.queries import sizes_of_groups
from prudent.release.columns.together.asking import Asked, alike, answer, query
from prudent.release.columns.together.turns import ask, together
from prudent.release.failures import SourceError, withheld
from prudent.release.noise import ReproducibleNoise
from prudent.release.request import TABLE_OPTIONS, Part, Request, of_one_table, open_records, price
from prudent.release.statistics import mode

PRIVATE = (
    "Do not publish: the plans are not private. Row counts in them are the engine's estimates,",
    "from statistics of the table that no ε was paid for. Numbers in the SQL are made up.",
)
"""What must be said wherever a plan is shown, in lines."""

_VALUES = 100  # distinct values of the synthetic records, so that a mode has few candidates
_UNASKED = ("ledger", "noise")
_GROUPS = 2  # that are rehearsed


@attrs.frozen
class Question:
    """One query of a release.

    Attributes:
        asks: What the query computes, in words.
        sql: The query in the dialect of the engine. Its values and ranks come from synthetic
            records. In a release they come from earlier answers, so the SQL it sends is private.
        plan: The engine's EXPLAIN output. Private: its estimates come from statistics of the table.
    """

    asks: str
    sql: str
    plan: str


def explain(
    statistic: Callable[..., Any],
    data: Any = None,
    column: str | None = None,
    *,
    records: int = 2 * FEW,
    **options: Any,
) -> list[Question]:
    """Return the queries of a release, in order, each with the engine's plan for it.

    With `by`, the queries of the first group are returned; those of the others are the same.

    Args:
        statistic: A statistic of `prudent.release`: `median`, `quantile`, `iqr`, `trimmed_mean`,
            `mode`.
        data: See `median`; not an array.
        column: See `median`.
        records: The number of synthetic records. With at most `FEW` of them, a
            release does not draw a sample to narrow the search.
        **options: The options of the release itself; the ledger is not charged. Synthetic records
            lie within `bounds`, or from 0 to 100. An engine whose statistics say that the table has
            no values there may plan to read nothing.

    Raises:
        SourceError: if there is no such table, or its engine cannot explain queries.
        ValueError: if another argument is invalid, or the data are not in a query engine.
    """
    _validate.function(statistic=statistic)
    _validate.count(1, records=records)
    where = {name: options.pop(name) for name in TABLE_OPTIONS if name in options}
    own = {name: value for name, value in options.items() if name not in _UNASKED}
    kind: Kind = "categories" if statistic is mode and own.get("propose") is None else "numbers"
    asked = Request(data=data, column=column, epsilon=own.get("epsilon", 1.0), **where)
    if asked.private_groups:
        raise _validate.ArgumentError("groups", "a public list, to be explained", got="private")
    opened = next(iter(open_records(asked, kind).values()))
    if not isinstance(opened, TableColumn):
        raise ValueError("Expected a table to explain, got values in memory: no engine is asked.")
    asked_for: list[Question] = []

    def note(asks: str, query: ir.Expr) -> None:
        asked_for.append(_explained(asks, query))

    statistic(_rehearsed(opened, records, own.get("bounds"), note), **own)
    return asked_for


def with_queries(preview: Preview, parts: Sequence[Part], request: Request) -> Preview:
    """A preview that also says what the engine will be asked, in its own SQL.

    With `by`, it is what is asked for the first two groups; a query for more has a row for each.
    The queries are those of a rehearsal on synthetic records, so they depend on no record.
    """
    shown = list(preview.parts or [preview])
    for place, part in enumerate(of_one_table(parts, request)):
        queries: list[str] = []

        def note(asks: str, query: ir.Expr, queries: list[str] = queries) -> None:
            queries.append(f"-- {asks}\n{ibis.to_sql(query, pretty=False)}")

        records = open_records(part.request, part.statistic.kind(part.request))
        private = part.request.private_groups
        columns = [records.whole()] if private else list(records.values())[:_GROUPS]
        column = columns[0]
        if part.request.by is not None and isinstance(column, TableColumn):
            sizes = sizes_of_groups(column.share.whole, at_least=1)
            note(str(sizes_of_groups.__doc__), sizes)
        if isinstance(column, TableColumn):
            known = (lambda: 2 * FEW) if part.request.by is not None else None  # by that query
            bounds, noise = part.request.bounds, ReproducibleNoise(0)
            made_up = [_rehearsed(each, 2 * FEW, bounds, note, known) for each in columns]
            asked = attrs.evolve(part.request, delta=part.request.delta or 1e-6)
            priced = withheld(price, part.statistic, asked, made_up[0])
            together(
                [
                    functools.partial(withheld, part.statistic.answer, priced, each, noise)
                    for each in made_up
                ]
            )
        shown[place] = attrs.evolve(shown[place], queries=tuple(queries))
    if not preview.parts:
        return shown[0]
    return attrs.evolve(preview, parts=tuple(shown))


Note: TypeAlias = Callable[[str, ir.Expr], None]


def _rehearsed(
    column: TableColumn,
    records: int,
    bounds: tuple[Any, Any] | None,
    note: Note,
    size: Callable[[], int] | None = None,
) -> TableColumn:
    """A column of synthetic records, which notes the queries that it would send to the real one."""
    rows = _made_up(column.rows, records, column.scale.given_bounds(bounds) or (0.0, 100.0))
    options: dict[str, Any] = {
        "scale": column.scale,
        "contribution": column.contribution,
        "size": size,
    }
    if isinstance(column, PairColumn):
        pairs = PairColumn(rows, dtype=column.dtype, other=column.second.scale, **options)
        _watch(pairs.second, column.second, note)
        found: TableColumn = pairs
    else:
        found = type(column)(rows, column.dtype, **options)
    _watch(found, column, note)
    return found


def _watch(found: TableColumn, column: TableColumn, note: Note) -> None:
    found.rehearses = column  # type: ignore[attr-defined]

    def noted(asked: Sequence[Asked]) -> list[Any]:
        real = [attrs.evolve(each, column=each.column.rehearses) for each in asked]  # type: ignore[attr-defined]
        for some in alike(real):
            some_real = [real[place] for place in some]
            whole = some_real[0].column.share.whole  # what the engine keeps would be computed
            asks = dict.fromkeys(str(each.question.__doc__) for each in some_real)
            note(" ".join(asks), query(some_real, whole))
        return answer(asked)

    found._ask = lambda question, reader=None, **given: ask(  # type: ignore[method-assign]
        [Asked(found, question, given, reader)], noted
    )[0]


def _explained(asks: str, expression: ir.Expr) -> Question:
    try:
        return Question(asks=asks, sql=str(ibis.to_sql(expression)), plan=plan(expression))
    except Exception as error:  # the engine's message may quote a record
        failure = SourceError(f"The engine could not explain the query ({type(error).__name__}).")
    raise failure  # outside the handler: it must not refer to the engine's error


def _made_up(rows: ir.Table, records: int, bounds: tuple[float, float]) -> ir.Table:
    """Synthetic records: evenly spaced numbers, repeated; for other types NULL in every row."""
    backend = ibis.duckdb.connect()
    numbers = f"SELECT range % {_VALUES} AS place FROM range({records})"
    table = backend.sql(numbers, schema=ibis.schema({"place": "int64"}))
    low, high = bounds
    number = double(low) + table.place * double((high - low) / _VALUES)
    return table.select(
        **{
            name: number if dtype.is_floating() else ibis.null(dtype)
            for name, dtype in rows.schema().items()
        }
    )
