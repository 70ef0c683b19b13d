"""Differences between engines: how each converts numbers, and compares and orders strings.

With these functions every engine gives the same answer, and none raises an error because of a
single record.

No stored value makes a conversion to a number fail:

| a record | its number |
| --- | --- |
| an infinite date, time or interval | infinite, like its sign |
| before year 1, beyond year 9999 | like any other |
| a decimal beyond the range of doubles | infinite |
| a time that the engine itself cannot convert | no value |
| text of a file that is not of the declared type | no value |
"""

import contextlib
import datetime
import functools
import math
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeAlias

import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir
import numpy as np

from prudent import _lazy
from prudent._validate import ArgumentError
from prudent.release.columns import scales
from prudent.release.columns.scales import DATE, INTEGER, NUMBER, OF_TEXT, TRUTH, Scale

_lazy.defer("ibis.backends.sql.compilers")  # it imports the compilers of twenty engines

ENGINES = ("duckdb", "postgres", "pyspark")
"""The engines of which it is known, for every type, how to read and compare without fail."""

PLAIN = (
    *(dt.String, dt.Boolean, dt.Integer, dt.Floating, dt.Decimal),
    *(dt.Date, dt.Timestamp, dt.Binary),
)
"""Types of categories: equal values of these are displayed the same."""

IDENTIFYING = (*PLAIN, dt.UUID, dt.INET, dt.MACADDR)
"""Types of which every engine tells values apart, and orders them."""

PublicValue: TypeAlias = str | bool | int | float

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
    """
    if not value.type().is_string():
        return value
    if engine == "duckdb":
        return call("encode", value, returns=dt.binary)
    if engine == "postgres":  # concatenation with a string turns an ENUM into a string
        # The database's own encoding can represent every stored character.
        of_database = call("getdatabaseencoding", returns=dt.string)
        return call("convert_to", value.concat(""), of_database, returns=dt.binary)
    return value.cast("binary")


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


def digest(value: ir.Value) -> ir.Value:
    """The MD5 digest of a value, as a string; every engine has it, and no value makes it fail."""
    if not (value.type().is_binary() or value.type().is_string()):
        value = legible(value, backend_name(value)).cast("string")
    return call("md5", value, returns=dt.string)


def image(found: Any, dtype: dt.DataType, encoding: str) -> Any:
    """Return the displayed value of a fetched category; defined for every stored value."""
    if found is None:
        return None
    if dtype.is_string():
        return scales.text_of(found, encoding)
    if dtype.is_decimal():
        return scales.decimal_of(found)
    if dtype.is_date():
        with contextlib.suppress(ValueError):  # one that Python has not, as the engine writes it
            return datetime.date.fromisoformat(found)
    return scales.timestamp_of(found) if dtype.is_timestamp() else found


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
    shape = (lambda: None, lambda one: None, lambda one, two: None)[len(takes)]
    return ibis.udf.scalar.builtin(shape, name=name, signature=(takes, returns))


def stored_literal(value: PublicValue, rows: ir.Table) -> ir.Value:
    """Return a public value as a literal in the form that `exact` gives to the values of a column.

    PostgreSQL would convert a string anew for every row; where it stores UTF-8 the bytes are known.
    """
    engine = backend_name(rows)
    if isinstance(value, str) and engine == "postgres":
        connection = rows.get_backend().con
        if connection.info.parameter_status("server_encoding") == "UTF8":
            written = ibis.literal(value.encode(errors="surrogatepass").hex())
            return call("decode", written, ibis.literal("hex"), returns=dt.binary)
    return exact(double(value) if isinstance(value, float) else ibis.literal(value), engine)


def double(number: float) -> ir.Value:
    """Return a literal that every engine reads as exactly this double, parsed from a string.

    Some engines would convert a bare 0.1234… to a decimal type first, and so round twice.
    """
    return ibis.literal(repr(float(number))).cast("float64")


def as_double(value: ir.Value) -> ir.Value:
    """Cast a number to a double, also where ibis takes it for one already.

    ibis infers types by rules of its own: it takes a FLOAT divided by 3, or an integer times 0.5,
    for a double, and omits the cast; DuckDB returns a FLOAT and a DECIMAL.
    """
    return ibis.expr.operations.Cast(value, dt.float64).to_expr()


def doubles_of(batch: Any, name: str) -> Any:
    """The numbers of an Arrow batch as an array, NULL as NaN; checked, since bits are read.

    They are read here, because pyarrow's own way imports pandas where there is one.
    """
    column = batch.column(name)
    if str(column.type) != "double":
        raise TypeError(f"Expected doubles, got {column.type}.")
    if not len(column):
        return np.empty(0)
    rows = slice(column.offset, column.offset + len(column))
    present, values = column.buffers()
    numbers = np.frombuffer(values, count=rows.stop)[rows]  # what follows is padding
    if present is None:
        return numbers
    bits = np.unpackbits(np.frombuffer(present, np.uint8), bitorder="little")
    return np.where(bits[rows], numbers, np.nan)


def floored(number: ir.Value) -> ir.Value:
    """The largest whole double that is not above a double, which must be below 2**63 in size.

    Spark's `floor` is an integer, which fails beyond 64 bits and at infinity, and so does that of
    ibis. A guard here would name the argument again, and nested floors are written out in full:
    callers guard. Every floor and every rounding in a query is this function or `rounded`.
    """
    return as_double(call("floor", number, returns=dt.float64))


def rounded(number: ir.Value) -> ir.Value:
    """Round a double to the nearest whole one; those beyond 2**52, and infinities, are kept."""
    small = number.abs() < double(2.0**52)
    return ibis.ifelse(small, floored(number + double(0.5)), number)


def present(value: ir.Value, *, numbers: bool = True) -> ir.BooleanValue:
    """Whether there is a value: not NULL, and with `numbers` not NaN.

    All engines here order NaN above infinity, and a comparison with NULL is not true. One with a
    constant is made while a file is scanned, or not at all where its statistics tell; `isnan`, or
    another condition beside it, doubles the time of an average.
    """
    floating = numbers and value.type().is_floating()
    return value <= double(math.inf) if floating else value.notnull()


def backend_name(expression: ir.Expr) -> str:
    """The name of the engine: duckdb, postgres, pyspark."""
    waiting, seen = [expression.op()], set()  # ibis would visit all columns of a wide table
    while waiting:
        seen.add(node := waiting.pop())
        if isinstance(backend := getattr(node, "source", None), ibis.BaseBackend):
            return str(backend.name)
        waiting += (each for each in node.__children__ if each not in seen)
    return str(expression.get_backend().name)  # of rows in memory


def materialize(rows: ir.Table) -> ir.Table:
    """Columns that are about to be added up, or grouped by, computed once for each row.

    PostgreSQL computes a column wherever it is named, and takes a group by what is computed from a
    number for as many groups as rows: too many for several processes to count. Neither is so of a
    union, here with no rows.
    """
    if backend_name(rows) != "postgres":
        return rows
    table = rows.op().find(ibis.expr.operations.PhysicalTable)[0].to_expr()
    nothing = {name: ibis.null(dtype) for name, dtype in rows.schema().items()}
    return rows.union(table.filter(ibis.literal(False)).select(**nothing))


def limb_bits(expression: ir.Expr, *, factors: int = 1) -> int:
    """The bits of a limb such that sums of limbs, or of products of two, are exact.

    DuckDB and PostgreSQL add 64-bit integers to wider ones. Others fail, or wrap, beyond 64 bits:
    there a sum stays below 2**62 for up to 2**36 records.
    """
    wide = backend_name(expression) in ("duckdb", "postgres")
    return (62 if wide else 26) // factors


def sql_of(table: ir.Table) -> str:
    """A query in the engine's own SQL: in half the time of `ibis.to_sql`, which copies it twice."""
    compiler = table.get_backend().compiler
    return str(compiler.to_sqlglot(table).sql(dialect=compiler.dialect, copy=False))


def fetched(expression: ir.Expr) -> dict[str, list[Any]]:
    """Run a query and return the columns of the answer.

    ibis reads PostgreSQL through a server-side cursor, for which PostgreSQL does not plan parallel
    workers, and imports pandas to read DuckDB, which takes longer than a release. The answers here
    have few rows, so they are fetched at once instead.
    """
    table, backend = expression.as_table(), expression.get_backend()
    # Only ibis itself can hand over a table in memory.
    if backend.name == "pyspark" or table.op().find(ibis.expr.operations.InMemoryTable):
        with connection_lock(backend), warnings.catch_warnings():
            # Spark quotes the error of a query in a warning.
            warnings.filterwarnings("ignore", message="toPandas attempted Arrow optimization")
            return dict(table.to_pyarrow().to_pydict())
    columns = zip(*_rows(expression, sql_of(table)), strict=True)
    found: dict[str, list[Any]] = {name: [] for name in table.columns}
    for (name, dtype), values in zip(table.schema().items(), columns, strict=False):
        # A sum of integers is wider than they are, and PostgreSQL's is a decimal number.
        whole = dtype.is_integer()
        found[name] = [int(each) if whole and each is not None else each for each in values]
    return found


_locks: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_locking = threading.Lock()


@contextlib.contextmanager
def connection_lock(backend: Any) -> Iterator[None]:
    """Keep other threads off a connection to DuckDB until its answer is read.

    It has one answer at a time: a statement of another thread would replace one that is not read
    yet, or silently end the rows that are handed over.
    """
    if backend.name != "duckdb":
        yield
        return
    with _locking:
        lock = _locks.setdefault(backend.con, threading.RLock())
    with lock:
        yield


def arrow_batches(rows: ir.Table, size: int = 2**15) -> Iterator[Any]:
    """The rows of a query in Arrow batches, as the engine hands them over: few are in memory."""
    backend = rows.get_backend()
    with connection_lock(backend):
        if rows.op().find(ibis.expr.operations.InMemoryTable):  # only ibis can hand them over
            yield from rows.to_pyarrow().to_batches(max_chunksize=size)
        elif backend.name != "duckdb":
            yield from rows.to_pyarrow_batches(chunk_size=size)
        else:  # ibis calls it by a name that DuckDB deprecates
            answer = backend.raw_sql(sql_of(rows))
            yield from (getattr(answer, "to_arrow_reader", None) or answer.fetch_record_batch)(size)


def _rows(expression: ir.Expr, sql: str) -> list[Any]:
    """Run SQL of PostgreSQL or DuckDB and return the rows."""
    backend = expression.get_backend()
    if backend.name == "postgres":
        with backend.begin() as cursor:
            return list(cursor.execute(sql).fetchall())
    with connection_lock(backend):
        return list(backend.raw_sql(sql).fetchall())


def check_bound(rows: ir.Table, argument: str) -> None:
    """Let the engine check the types of a query, without reading a record.

    ibis accepts calls that an engine has no function for, such as a rounding to as many digits as
    a column says: these would fail whatever the records are, when the release is paid for.
    """
    in_memory = rows.op().find(ibis.expr.operations.InMemoryTable)
    try:
        if backend_name(rows) == "duckdb" and not in_memory:
            _rows(rows, f"DESCRIBE {sql_of(rows)}")
        else:
            rows.limit(0).to_pyarrow()
        return
    except Exception:  # its message may quote a record
        pass
    raise ArgumentError(
        argument,
        "an expression that the engine can compute",
        shown="one with an operation that it lacks for these types",
        hint="Cast the columns that it uses.",
    )


INTEGERS = range(-(2**63), 2**63)
"""The integers that every engine compares with a column of its own."""


def typed(value: Hashable, dtype: dt.DataType, name: str) -> PublicValue:
    """Convert a public value, perhaps given as a string, to the type of a column."""
    given: Any = value.item() if isinstance(value, np.generic) else value
    try:
        if dtype.is_string():
            plain = isinstance(given, int | float) and not isinstance(given, bool)
            text = scales.written(np.array([float(given)]))[0].as_py() if plain else str(given)
            if "\0" not in text.encode().decode():  # no engine has others, or halves of pairs
                return str(text)
        if dtype.is_boolean():
            return {"true": True, "false": False}[str(given).lower()]
        if dtype.is_integer() and (number := int(given)) in INTEGERS:
            if not isinstance(given, str) and number != given:
                raise ValueError
            return number
        if dtype.is_floating() and not math.isnan(float(given)):
            return float(given)
    except Exception:  # whatever an object raises that is no such value
        pass
    raise ArgumentError(name, f"of type {dtype}, as the column is", got=value)


_DAY, _HOUR = 86_400e6, 3_600e6  # microseconds


def scale_of(dtype: dt.DataType, engine: str, name: str) -> Scale:
    """Return the scale of a column, from its public type."""
    if dtype.is_boolean():
        return TRUTH
    if dtype.is_integer():
        return INTEGER
    if dtype.is_floating():
        return NUMBER
    if dtype.is_decimal():
        return Scale("decimal", dtype.scale) if dtype.scale in range(39) else NUMBER
    if dtype.is_date():
        return DATE
    if dtype.is_timestamp():
        return Scale("timestamp", zoned=dtype.timezone is not None)
    if dtype.is_interval() and engine in _MOMENTS["duration"]:
        return Scale("duration")
    wanted = "a column of numbers, dates, times or durations"
    if dtype.is_string():
        raise ArgumentError("column", wanted, shown=f"{name!r}, which holds text", hint=OF_TEXT)
    raise wrong_type("column", wanted, name, dtype)


def wrong_type(
    argument: str,
    wanted: str,
    name: str,
    dtype: dt.DataType,
    hint: str = "Make one of these of it, in an ibis table.",
) -> ArgumentError:
    """The error for a column that has not the type it needs."""
    return ArgumentError(argument, wanted, shown=f"{name!r} of type {dtype}", hint=hint)


def number_of(column: ir.Column, scale: Scale) -> ir.Value:
    """Convert a typed column to doubles, in units of its scale."""
    dtype, engine = column.type(), backend_name(column)
    if scale.truth:
        return as_double(column.cast("int32"))  # a condition is evaluated once
    if scale.kind in _MOMENTS:
        return as_double(_MOMENTS[scale.kind][engine](column))
    if dtype.is_decimal() and engine == "postgres":  # exact, and too wide for a product of doubles
        factor = ibis.literal(f"1e{scale.digits}").cast(dt.Decimal())
        return as_double(double_of_numeric(column * factor if scale.digits else column))
    number = as_double(column)
    digits = scale.digits if dtype.is_decimal() else 0
    return rounded(number * double(10.0**digits)) if digits else number


def number_of_text(column: ir.Column, scale: Scale) -> ir.Value:
    """Convert a text column to doubles, read as a declared type; NULL for a text of another."""
    if scale.kind in ("date", "timestamp"):
        return number_of(column.try_cast("date" if scale.kind == "date" else "timestamp"), scale)
    if scale.truth:
        return number_of(column.try_cast("boolean"), scale)
    number = column.try_cast("float64")
    if scale.kind in ("number", "integer"):
        word = column.lower()
        truth = ibis.cases((word == "true", double(1.0)), (word == "false", double(0.0)))
        return ibis.coalesce(number, truth)
    factor = 1e6 if scale.kind == "duration" else 10.0**scale.digits
    return rounded(number * double(factor))


def _with_ends(column: ir.Column, number: ir.Value) -> ir.Value:
    """Give infinite dates and times an infinite number: DuckDB converts them to NULL."""
    high, low = (ibis.literal(end).cast(column.type()) for end in ("infinity", "-infinity"))
    return ibis.cases(
        (column == high, double(math.inf)),
        (column == low, double(-math.inf)),
        else_=tried(number).cast("float64"),
    )


def _duckdb_timestamp(column: ir.Column) -> ir.Value:
    microseconds = call("epoch_us", column, returns=dt.int64)
    if column.type().scale == 9:  # of nanoseconds `epoch_us` rounds up before the epoch
        nanoseconds = call("epoch_ns", column, returns=dt.int64)
        microseconds = microseconds - (nanoseconds < microseconds * 1000).cast("int64")
    return _with_ends(column, microseconds)


def _date_part(part: str, column: ir.Value) -> ir.Value:
    return call("date_part", ibis.literal(part), column, returns=dt.float64)


def _if_finite(column: ir.Column, number: ir.Value) -> ir.Value:
    """PostgreSQL cannot subtract from infinity, but it has the epoch of infinity."""
    finite = call("isfinite", column, returns=dt.boolean)
    return ibis.ifelse(finite, number, _date_part("epoch", column))


def _postgres_timestamp(column: ir.Column) -> ir.Value:
    # The epoch of a time with microseconds would be rounded; that of a whole minute is exact.
    minute = call("date_trunc", ibis.literal("minute"), column, returns=column.type())
    since = _date_part("epoch", minute) * double(1e6)
    return _if_finite(column, since + _date_part("microseconds", column))


def _postgres_duration(column: ir.Column) -> ir.Value:
    return _if_finite(
        column,
        _date_part("year", column) * double(360 * _DAY)
        + _date_part("month", column) * double(30 * _DAY)
        + _date_part("day", column) * double(_DAY)
        + _date_part("hour", column) * double(_HOUR)
        + _date_part("minute", column) * double(60e6)
        + _date_part("microseconds", column),
    )


_Conversions = dict[str, Callable[[ir.Column], ir.Value]]
_MOMENTS: dict[str, _Conversions] = {
    "date": {
        # A Julian day reaches further than microseconds since the epoch.
        "duckdb": lambda day: _with_ends(
            day, call("julian", day, returns=dt.float64) - double(2440588.0)
        ),
        "postgres": lambda day: _if_finite(
            day,
            as_double(
                call("date_mi", day, ibis.literal("1970-01-01").cast("date"), returns=dt.int32)
            ),
        ),
        # In quotes: `unix_date` would reach Spark as a difference of dates, which overflows.
        "pyspark": lambda day: call("`unix_date`", day, returns=dt.int32),
    },
    "timestamp": {
        "duckdb": _duckdb_timestamp,
        "postgres": _postgres_timestamp,
        # A time without a zone is cast in the zone of the session, which ibis sets to UTC.
        "pyspark": lambda time: call(
            "unix_micros", time.cast(dt.Timestamp("UTC")), returns=dt.int64
        ),
    },
    "duration": {
        "duckdb": lambda length: tried(call("epoch_us", length, returns=dt.int64)),
        "postgres": _postgres_duration,
    },
}
