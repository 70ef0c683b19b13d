"""Differences between engines: how each converts numbers, and compares and orders strings.

With these functions every engine gives the same answer, and none raises an error because of a
single record.
"""

import functools
import math
import warnings
from typing import Any

import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir

from prudent import _lazy
from prudent.release.columns import images

_lazy.defer("ibis.backends.sql.compilers")  # it imports the compilers of twenty engines

ENGINES = ("duckdb", "postgres", "pyspark")
"""The engines of which it is known, for every type, how to read and compare without fail."""

_ENCODINGS = {"SQL_ASCII": "utf-8", "KOI8R": "koi8_r", "KOI8U": "koi8_u"}  # PostgreSQL's, Python's


def double_of_numeric(column: ir.Column) -> ir.Value:
    """Convert a PostgreSQL NUMERIC to a double, without its error on overflow and underflow."""

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
    """Convert a string to its bytes; return any other value unchanged.

    Bytes are compared exactly and ordered like the characters. A collation may treat Oslo and oslo
    as equal: then a row would be in two groups, two persons would be one unit, and the displayed
    spelling would depend on which row comes first. An ENUM has an order of its own.

    Args:
        value: A column, or a literal.
        engine: The name of the engine; see `backend_name`.
    """
    if not value.type().is_string():
        return value
    if engine == "duckdb":
        return call("encode", value, returns=dt.binary)
    if engine == "postgres":  # concatenation with a string turns an ENUM into a string
        # The database's own encoding can represent every stored character.
        return _convert_to(value.concat(""), _getdatabaseencoding())
    if engine == "pyspark":
        return value.cast("binary")
    return value


def total(column: ir.Value, engine: str) -> ir.Value:
    """Convert a column so that no stored value makes the engine fail when a condition uses it."""
    if engine == "postgres" and column.type().is_decimal():
        return double_of_numeric(column)
    return column


def legible(value: ir.Value, engine: str) -> ir.Value:
    """Convert a category for fetching: types that may exceed Python's range become strings."""
    dtype = value.type()
    if not (dtype.is_decimal() or dtype.is_temporal()):
        return value
    # DuckDB can store times in seconds and milliseconds that it cannot convert to a string.
    written = value.cast("string")
    return ibis.coalesce(tried(written), "out of range") if engine == "duckdb" else written


def image(found: Any, dtype: dt.DataType, encoding: str) -> Any:
    """Return the displayed value of a fetched category; defined for every stored value."""
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
    """The encoding of the bytes that `exact` returns for strings, by its Python name."""
    if backend_name(expression) != "postgres":
        return "utf-8"
    ((name,),) = _rows(expression, "SELECT getdatabaseencoding()")
    return _ENCODINGS.get(name, str(name).replace("WIN", "cp"))


def call(name: str, *arguments: ir.Value, returns: dt.DataType) -> ir.Value:
    """Call a built-in function of the engine."""
    return _builtin(name, tuple(each.type() for each in arguments), returns)(*arguments)


def tried(value: ir.Value) -> ir.Value:
    """Return the value, but NULL in rows where computing it fails (DuckDB only)."""
    return call("try", value, returns=value.type())


@functools.cache
def _builtin(name: str, takes: tuple[dt.DataType, ...], returns: dt.DataType) -> Any:
    def shape(value: Any, other: Any) -> None: ...

    one = len(takes) == 1
    return ibis.udf.scalar.builtin(
        (lambda value: None) if one else shape, name=name, signature=(takes, returns)
    )


@ibis.udf.scalar.builtin(name="convert_to")  # type: ignore[untyped-decorator]
def _convert_to(text: str, encoding: str) -> bytes:  # type: ignore[empty-body]
    """PostgreSQL's `convert_to`: the bytes of a string in an encoding."""


@ibis.udf.scalar.builtin(name="getdatabaseencoding")  # type: ignore[untyped-decorator]
def _getdatabaseencoding() -> str:  # type: ignore[empty-body]
    """PostgreSQL's `getdatabaseencoding`: the encoding of all strings of the database."""


def literal(value: str | bool | int | float) -> ir.Value:
    """Return a public value as a literal that every engine reads in the same way."""
    return double(value) if isinstance(value, float) else ibis.literal(value)


def double(number: float) -> ir.Value:
    """Return a literal that every engine reads as exactly this double, parsed from a string.

    Some engines would convert a bare 0.1234… to a decimal type first, and so round twice.
    """
    return ibis.literal(repr(float(number))).cast("float64")


def backend_name(expression: ir.Expr) -> str:
    """The name of the engine: duckdb, postgres, pyspark."""
    return str(expression.get_backend().name)


def fetched(expression: ir.Expr) -> dict[str, list[Any]]:
    """Run a query and return the columns of the answer.

    ibis reads PostgreSQL through a server-side cursor, for which PostgreSQL does not plan parallel
    workers, and imports pandas to read DuckDB, which takes longer than a release. The answers here
    have few rows, so they are fetched at once instead.
    """
    table = expression.as_table()
    if table.op().find(ibis.expr.operations.InMemoryTable):  # only ibis itself can hand them over
        return dict(table.to_pyarrow().to_pydict())
    if backend_name(expression) == "pyspark":
        with warnings.catch_warnings():
            # Spark quotes the error of a query in a warning.
            warnings.filterwarnings("ignore", message="toPandas attempted Arrow optimization")
            return dict(table.to_pyarrow().to_pydict())
    rows = _rows(expression, ibis.to_sql(table))
    found = {}
    for place, (name, dtype) in enumerate(table.schema().items()):
        values = [row[place] for row in rows]
        # A sum of integers is wider than they are, and PostgreSQL's is a decimal number.
        whole = dtype.is_integer()
        found[name] = [value if value is None or not whole else int(value) for value in values]
    return found


def plan(expression: ir.Expr) -> str:
    """Return the engine's query plan; only the engine's statistics are read for it."""
    formatted = "FORMATTED " if backend_name(expression) == "pyspark" else ""
    rows = _rows(expression, f"EXPLAIN {formatted}{ibis.to_sql(expression.as_table())}")
    return "\n".join(str(row[-1]).rstrip() for row in rows)


def _rows(expression: ir.Expr, sql: str) -> list[Any]:
    """Run SQL in the engine's own dialect and return the rows."""
    backend = expression.get_backend()
    if backend.name == "pyspark":
        return list(backend.raw_sql(sql).collect())
    if backend.name == "postgres":
        with backend.begin() as cursor:
            return list(cursor.execute(sql).fetchall())
    return list(backend.raw_sql(sql).fetchall())
