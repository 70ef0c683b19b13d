"""Where engines differ: how each reads a number, compares a text and orders it.

Every engine is to give the same answer, and none is to raise an error because of a single record.
"""

import functools
import math
from typing import Any

import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir
import pyarrow as pa

from prudent.release.columns import images

_ENCODINGS = {"SQL_ASCII": "utf-8", "KOI8R": "koi8_r", "KOI8U": "koi8_u"}  # PostgreSQL's, Python's


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


def exact(value: ir.Value, engine: str) -> ir.Value:
    """A text as its bytes; anything else as it is.

    Bytes are equal if they are the same, and their order is that of the characters. A collation may
    take Oslo and oslo for equal: a row would be in two groups, two persons would be one, and which
    spelling is shown would depend on which comes first. An ENUM has an order of its own.

    Args:
        value: A column, or a literal.
        engine: Which one answers; see `backend_name`.
    """
    if not value.type().is_string():
        return value
    if engine == "duckdb":
        return call("encode", value, dt.binary)
    if engine == "postgres":  # an ENUM first becomes a text by being joined to one
        # Into the encoding that it has: no character is without an equivalent there.
        return _convert_to(value.concat(""), _getdatabaseencoding())
    if engine == "pyspark":
        return value.cast("binary")
    return value


def total(column: ir.Value, engine: str) -> ir.Value:
    """A column of a table as a condition may use it: nothing stored there makes the engine fail."""
    if engine == "postgres" and column.type().is_decimal():
        return double_of_numeric(column)
    return column


def legible(value: ir.Value, engine: str) -> ir.Value:
    """A category as an engine hands it out: what Python might not be able to hold, as a text."""
    dtype = value.type()
    if not (dtype.is_decimal() or dtype.is_temporal()):
        return value
    # DuckDB holds seconds and milliseconds that it cannot write.
    written = value.cast("string")
    return ibis.coalesce(tried(written), "out of range") if engine == "duckdb" else written


def image(found: Any, dtype: dt.DataType, encoding: str) -> Any:
    """What is shown for a category that was handed out: defined for everything stored."""
    if found is None:
        return None
    if dtype.is_string():
        return images.text_of(found, encoding)
    if dtype.is_decimal():
        return images.decimal_of(found)
    if dtype.is_date():
        return images.date_of(found)
    return images.timestamp_of(found) if dtype.is_timestamp() else found


def encoding(expression: ir.Expr) -> str:
    """The encoding of the bytes that `exact` makes of texts, by the name that Python has for it."""
    if backend_name(expression) != "postgres":
        return "utf-8"
    ((name,),) = _rows(expression, "SELECT getdatabaseencoding()")
    return _ENCODINGS.get(name, str(name).replace("WIN", "cp"))


def call(name: str, value: ir.Value, returns: dt.DataType) -> ir.Value:
    """A function of the engine's own, of one value."""
    return _builtin(name, value.type(), returns)(value)


def tried(value: ir.Value) -> ir.Value:
    """A value of DuckDB, NULL in the rows where computing it fails."""
    return call("try", value, value.type())


@functools.cache
def _builtin(name: str, takes: dt.DataType, returns: dt.DataType) -> Any:
    return ibis.udf.scalar.builtin(lambda value: None, name=name, signature=((takes,), returns))


@ibis.udf.scalar.builtin(name="convert_to")  # type: ignore[untyped-decorator]
def _convert_to(text: str, encoding: str) -> bytes:  # type: ignore[empty-body]
    """PostgreSQL's own: the bytes of a text in an encoding."""


@ibis.udf.scalar.builtin(name="getdatabaseencoding")  # type: ignore[untyped-decorator]
def _getdatabaseencoding() -> str:  # type: ignore[empty-body]
    """PostgreSQL's own: the encoding of all texts of a database."""


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
