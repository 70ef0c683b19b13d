"""What a release would ask an engine, and how the engine would answer, before anything is charged.

    for question in explain(median, "hr.parquet", "salary", propose=500, epsilon=1, delta=1e-7):
        print(question.sql, question.plan)

The release is rehearsed: its real code runs on made-up records, and each question that it asks of
them is written down as it would be asked of the table, in the engine's own SQL. The engine is only
told to EXPLAIN it, so no record is read, no ledger is charged, and nothing private can be released.

The plan is for whoever owns the data. Engines estimate how many rows a step yields from statistics
of the table, which are as private as the table is; do not publish a plan.
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
from prudent.release.statistics import Source, mode, open_records

_VALUES = 100  # made-up records take so many values: a mode then has few candidates
_UNASKED = ("ledger", "noise")


@attrs.frozen
class Question:
    """One query of a release.

    Attributes:
        asks: What for, in words.
        sql: In the dialect of the engine. Values and ranks are those of made-up records; a release
            puts in what the answers before it say, so the SQL that it sends is private.
        plan: The engine's own EXPLAIN of it. Private: estimates come from statistics of the table.
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
    """The queries of a release, in order, each with the engine's plan for it.

    With `by`, those of the first group: the others are asked the same.

    Args:
        statistic: Of `prudent.release`: `median`, `quantile`, `iqr`, `trimmed_mean`, `mode`.
        data: See `median`; not an array.
        column: See `median`.
        records: How many records to make up. Up to `table_column.FEW` of them are not narrowed down
            by a sample.
        **options: As for the release itself; the ledger is not charged. Made-up records lie within
            `bounds`, or from 0 to 100: an engine that knows that the table has no values there may
            plan to read nothing.

    Raises:
        SourceError: if there is no such table, or its engine cannot explain.
        ValueError: if something else in the request is wrong, or the data are in no engine.
    """
    _validate.count(1, records=records)
    where = {name: options.pop(name) for name in Source.__optional_keys__ & options.keys()}
    own = {name: value for name, value in options.items() if name not in _UNASKED}
    kind: Kind = "categories" if statistic is mode and own.get("propose") is None else "numbers"
    opened = open_records(data, column, where, kind)
    if isinstance(opened, dict):
        opened = next(iter(opened.values()))
    if not isinstance(opened, TableColumn):
        raise ValueError("Expected a table to explain, got values in memory: no engine is asked.")
    rehearsed = _Rehearsed(opened, records, own.get("bounds") or (0.0, 100.0))
    statistic(rehearsed, **own)
    return rehearsed.asked


class _Rehearsed(TableColumn):
    """A column that answers from made-up records, and writes down what it would ask of another."""

    def __init__(self, column: TableColumn, records: int, bounds: tuple[float, float]) -> None:
        super().__init__(_made_up(column.rows, records, bounds), column.dtype)
        self._column = column
        self.asked: list[Question] = []

    def _ask(self, question: Callable[..., ir.Expr], **given: Any) -> Any:
        expression = question(self._column.rows, **given)
        try:
            found = Question(
                asks=str(question.__doc__), sql=str(ibis.to_sql(expression)), plan=plan(expression)
            )
        except Exception as error:  # its own words may quote a record
            raise SourceError(
                f"The engine could not explain the query ({type(error).__name__})."
            ) from None
        self.asked.append(found)
        return super()._ask(question, **given)


def _made_up(rows: ir.Table, records: int, bounds: tuple[float, float]) -> ir.Table:
    """Evenly spaced numbers over and over; of another type one and the same value, NULL."""
    backend = ibis.duckdb.connect()
    if not rows.value.type().is_floating():
        many = backend.sql(f"SELECT 1 FROM range({records})", schema=ibis.schema({"one": "int8"}))
        return many.select(value=ibis.null(rows.value.type()))
    numbers = f"SELECT range % {_VALUES} AS place FROM range({records})"
    table = backend.sql(numbers, schema=ibis.schema({"place": "int64"}))
    low, high = bounds
    return table.select(value=low + table.place * ((high - low) / _VALUES))
