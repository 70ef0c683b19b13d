"""Show the queries of a release and the engine's plans for them, without charging a ledger.

    for question in explain(median, "hr.parquet", "salary", propose=500, epsilon=1, delta=1e-7):
        print(question.sql, question.plan)

The release is rehearsed: its real code runs on synthetic records, and each query that it makes is
recorded as it would be sent to the table, in the engine's own SQL. The engine only runs EXPLAIN, so
no record is read, no ledger is charged, and nothing private can be released.

A plan is meant for the owner of the data. Engines estimate row counts from statistics of the table,
which are as private as the table itself; do not publish a plan.
"""

from collections.abc import Callable
from typing import Any

import attrs
import ibis
import ibis.expr.types as ir

from prudent import _validate
from prudent.release.columns.column import Kind
from prudent.release.columns.dialects import plan
from prudent.release.columns.queries import FEW, TableColumn
from prudent.release.failures import SourceError
from prudent.release.request import TABLE_OPTIONS, Request, open_records
from prudent.release.statistics import mode

PRIVATE = (
    "Do not publish: the plans are not private. Row counts in them are the engine's estimates,",
    "from statistics of the table that no ε was paid for. Numbers in the SQL are made up.",
)
"""What must be said wherever a plan is shown, in lines."""

_VALUES = 100  # distinct values of the synthetic records, so that a mode has few candidates
_UNASKED = ("ledger", "noise")


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
        records: The number of synthetic records. With at most `columns.queries.FEW` records, a
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
    rehearsed = _Rehearsed(opened, records, own.get("bounds") or (0.0, 100.0))
    statistic(rehearsed, **own)
    return rehearsed.asked


class _Rehearsed(TableColumn):
    """A column of synthetic records that logs the queries it would send to the real column."""

    def __init__(self, column: TableColumn, records: int, bounds: tuple[float, float]) -> None:
        super().__init__(_made_up(column.rows, records, bounds), column.dtype)
        self._column = column
        self.asked: list[Question] = []

    def _ask(self, question: Callable[..., ir.Expr], **given: Any) -> Any:
        expression = question(self._column.rows, **given)
        found = _explained(str(question.__doc__), expression)
        self.asked.append(found)
        return super()._ask(question, **given)


def _explained(asks: str, expression: ir.Expr) -> Question:
    try:
        return Question(asks=asks, sql=str(ibis.to_sql(expression)), plan=plan(expression))
    except Exception as error:  # the engine's message may quote a record
        failure = SourceError(f"The engine could not explain the query ({type(error).__name__}).")
    raise failure  # outside the handler: it must not refer to the engine's error


def _made_up(rows: ir.Table, records: int, bounds: tuple[float, float]) -> ir.Table:
    """Synthetic records: evenly spaced numbers, repeated; for other types NULL in every row."""
    backend = ibis.duckdb.connect()
    if not rows.value.type().is_floating():
        many = backend.sql(f"SELECT 1 FROM range({records})", schema=ibis.schema({"one": "int8"}))
        return many.select(value=ibis.null(rows.value.type()))
    numbers = f"SELECT range % {_VALUES} AS place FROM range({records})"
    table = backend.sql(numbers, schema=ibis.schema({"place": "int64"}))
    low, high = bounds
    return table.select(value=low + table.place * ((high - low) / _VALUES))
