"""Where engines differ: how each reads a number, compares a text and orders it.

Every engine is to give the same answer, and none is to raise an error because of a single record.
"""

import math
from typing import Any

import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir
import pyarrow as pa


def double_of_numeric(column: ir.Column) -> ir.Value:
    """A number of PostgreSQL as a double: where none is near enough it would raise an error."""

    def numeric(text: str) -> ir.Value:
        return ibis.literal(text).cast(dt.Decimal())

    size = column.abs()
    return ibis.cases(
        (column == numeric("NaN"), double(math.nan)),
        (column >= numeric("1e308"), double(math.inf)),
        (column <= numeric("-1e308"), double(-math.inf)),
        (size < numeric("1e-300"), double(0.0)),
        else_=column.cast("float64"),
    )


def in_order_of_characters(value: ir.Value) -> ir.Value:
    """A key that orders text as Python does; PostgreSQL would follow the language it speaks."""
    if value.type().is_string() and backend_name(value) == "postgres":
        return _convert_to(value, "UTF8")
    return value


def plain_text(value: ir.Column) -> ir.Column:
    """A text whose equals are spelled the same, and whose order is that of its characters.

    A collation may take Oslo and oslo for equal: a row would be in two groups, and which of the
    two is shown would depend on which comes first. An ENUM has an order of its own.
    """
    if not value.type().is_string():
        return value
    name = backend_name(value)
    if name == "duckdb":
        return _decode(_encode(value))
    if name == "postgres":  # an ENUM first becomes a text by being joined to one
        return _convert_from(_convert_to(value.concat(""), "UTF8"), "UTF8")
    if name == "pyspark":  # bytes have no collation, and a text made of them has the binary one
        return value.cast("binary").cast("string")
    return value


@ibis.udf.scalar.builtin(name="encode")  # type: ignore[untyped-decorator]
def _encode(text: str) -> bytes:  # type: ignore[empty-body]
    """DuckDB's own: the bytes of a text."""


@ibis.udf.scalar.builtin(name="decode")  # type: ignore[untyped-decorator]
def _decode(content: bytes) -> str:  # type: ignore[empty-body]
    """DuckDB's own: the text of bytes, without a collation."""


@ibis.udf.scalar.builtin(name="convert_from")  # type: ignore[untyped-decorator]
def _convert_from(content: bytes, encoding: str) -> str:  # type: ignore[empty-body]
    """PostgreSQL's own: the text of bytes, in the collation of the database."""


@ibis.udf.scalar.builtin(name="convert_to")  # type: ignore[untyped-decorator]
def _convert_to(text: str, encoding: str) -> bytes:  # type: ignore[empty-body]
    """PostgreSQL's own: the bytes of a text, whose order is that of its characters."""


def literal(value: str | bool | int | float) -> ir.Value:
    """A public value, as every engine reads it."""
    return double(value) if isinstance(value, float) else ibis.literal(value)


def double(number: float) -> ir.Value:
    """A literal that every engine reads as this very double: parsed from text by the engine.

    A bare 0.1234… would pass through a decimal type first in some, and round twice.
    """
    return ibis.literal(repr(float(number))).cast("float64")


def backend_name(expression: ir.Expr) -> str:
    """Which engine answers: duckdb, postgres, pyspark."""
    return str(expression.get_backend().name)


def fetched(expression: ir.Expr) -> pa.Table:
    """What an engine answers, as a table.

    PostgreSQL plans no work for several processes when it is read through a cursor of the server,
    as ibis does; what is asked here has few rows, so they are taken at once.
    """
    table = expression.as_table()
    if backend_name(expression) != "postgres":
        return table.to_pyarrow()
    rows = _rows(expression, ibis.to_sql(table))
    return pa.Table.from_struct_array(pa.array(rows, type=table.schema().as_struct().to_pyarrow()))


def plan(expression: ir.Expr) -> str:
    """How the engine would answer, in its own words; nothing is read for it but its statistics."""
    formatted = "FORMATTED " if backend_name(expression) == "pyspark" else ""
    rows = _rows(expression, f"EXPLAIN {formatted}{ibis.to_sql(expression.as_table())}")
    return "\n".join(str(row[-1]).rstrip() for row in rows)


def _rows(expression: ir.Expr, sql: str) -> list[Any]:
    """The rows that an engine answers to its own SQL."""
    backend = expression.get_backend()
    if backend.name == "pyspark":
        return list(backend.raw_sql(sql).collect())
    if backend.name == "postgres":
        with backend.begin() as cursor:
            return list(cursor.execute(sql).fetchall())
    return list(backend.raw_sql(sql).fetchall())
