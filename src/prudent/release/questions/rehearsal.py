"""What a dry run shows of the engine: the queries of a release, rehearsed on synthetic records.

The real code of the release runs on synthetic records, and each query that it makes is noted as it
would be sent to the table, in the engine's own SQL. No record is read and no ledger is charged. Its
values and ranks are made up; in a release they come from earlier answers, so the SQL it sends is
private.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import ibis
import ibis.expr.types as ir

from prudent.release.charging import Preview
from prudent.release.columns.column import ask, redact_errors
from prudent.release.columns.dialects import double, sql_of
from prudent.release.columns.queries import ColumnQuery, alike, answer, query, sizes_of_groups
from prudent.release.columns.table_columns import FEW_READ, PairColumn, TableColumn
from prudent.release.noise import ReproducibleNoise
from prudent.release.request import (
    Part,
    PricedPart,
    Request,
    of_one_table,
    open_records,
    price,
)

_VALUES = 100  # distinct values of the synthetic records, so that a mode has few candidates
_RECORDS = 2 * FEW_READ  # synthetic ones of each group
_GROUPS = 2  # that are rehearsed


def with_queries(preview: Preview, parts: Sequence[Part], request: Request) -> Preview:
    """A preview that also says what the engine will be asked, in its own SQL.

    With `by`, it is what is asked for the first two groups; a query for more has a row for each.
    The queries are those of a rehearsal on synthetic records, so they depend on no record.
    """
    shown = list(preview.parts or [preview])
    for place, part in enumerate(of_one_table(parts, request)):
        queries: list[str] = []

        def note(asks: str, query: ir.Expr, queries: list[str] = queries) -> None:
            queries.append(f"-- {asks}\n{sql_of(query.as_table())}")

        records = open_records(part.request, part.statistic.kind(part.request))
        private = part.request.private_groups
        columns = [records.column()] if private else list(records.values())[:_GROUPS]
        column = columns[0]
        if part.request.by is not None and isinstance(column, TableColumn):
            sizes = sizes_of_groups(column.share.whole, at_least=1)
            note(str(sizes_of_groups.__doc__), sizes)
        if isinstance(column, TableColumn):
            made_up = [_rehearsed(each, part.request, note) for each in columns]
            asked = attrs.evolve(part.request, delta=part.request.delta or 1e-6)
            priced = redact_errors(price, part.statistic, asked, made_up[0])
            rehearsed = PricedPart(part.statistic, dict(enumerate(made_up)), priced.preview, priced)
            rehearsed.answer(None, ReproducibleNoise(0))
        shown[place] = attrs.evolve(shown[place], queries=tuple(queries))
    return attrs.evolve(preview, parts=tuple(shown)) if preview.parts else shown[0]


Note: TypeAlias = Callable[[str, ir.Expr], None]


def _rehearsed(column: TableColumn, request: Request, note: Note) -> TableColumn:
    """A column of synthetic records, which notes the queries that it would send to the real one."""
    rows = _made_up(column.rows, column.scale.given_bounds(request.bounds) or (0.0, 100.0))
    options: dict[str, Any] = {"scale": column.scale, "contribution": column.contribution}
    if request.by is not None:  # the query for the sizes of all groups tells it
        options["size"] = lambda: _RECORDS
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

    def noted(asked: Sequence[ColumnQuery]) -> list[Any]:
        real = [attrs.evolve(each, column=each.column.rehearses) for each in asked]
        for some in alike(real):
            some_real = [real[place] for place in some]
            whole = some_real[0].column.share.whole  # what the engine keeps would be computed
            asks = dict.fromkeys(str(each.question.__doc__) for each in some_real)
            note(" ".join(asks), query(some_real, whole))
        return answer(asked)

    found._ask = lambda question, decode, reader=None, **given: ask(  # type: ignore[method-assign]
        [ColumnQuery(found, question, given, decode, reader)], noted
    )[0]


def _made_up(rows: ir.Table, bounds: tuple[float, float]) -> ir.Table:
    """Synthetic records: evenly spaced numbers, repeated; for other types NULL in every row."""
    backend = ibis.duckdb.connect()
    numbers = f"SELECT range % {_VALUES} AS place FROM range({_RECORDS})"
    table = backend.sql(numbers, schema=ibis.schema({"place": "int64"}))
    low, high = bounds
    number = double(low) + table.place * double((high - low) / _VALUES)
    return table.select(
        **{
            name: number if dtype.is_floating() else ibis.null(dtype)
            for name, dtype in rows.schema().items()
        }
    )
