"""The number of a record, computed inside an engine, for every type that has numbers.

No stored value makes a conversion fail:

| a record | its number |
| --- | --- |
| an infinite date, time or interval | infinite, like its sign |
| before year 1, beyond year 9999 | like any other |
| a decimal beyond the range of doubles | infinite |
| a time that the engine itself cannot convert | no value |
| text of a file that is not of the declared type | no value |
"""

import math
from collections.abc import Callable

import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir

from prudent._validate import ArgumentError
from prudent.release.columns.dialects import (
    backend_name,
    call,
    double,
    double_of_numeric,
    tried,
)
from prudent.release.columns.scales import INTEGER, NUMBER, Scale

_DAY, _HOUR = 86_400e6, 3_600e6  # microseconds
_NANOSECONDS = 9
_DAYS_UNTIL_1970 = 719163.0  # from the last day before year 1
_MOST_DIGITS = 38


def scale_of(dtype: dt.DataType, engine: str, name: str) -> Scale:
    """Return the scale of a column, from its public type.

    Raises:
        ArgumentError: if the type has no numbers, or this engine cannot convert it without fail.
    """
    if dtype.is_integer():
        return INTEGER
    if dtype.is_floating():
        return NUMBER
    if dtype.is_decimal():
        digits = dtype.scale
        known = digits is not None and 0 <= digits <= _MOST_DIGITS
        return Scale("decimal", digits) if known else NUMBER
    if dtype.is_date() and engine in _MOMENTS["date"]:
        return Scale("date")
    if dtype.is_timestamp() and engine in _MOMENTS["timestamp"]:
        return Scale("timestamp", zoned=dtype.timezone is not None)
    if dtype.is_interval() and engine in _MOMENTS["duration"]:
        return Scale("duration")
    text = dtype.is_string() or dtype.is_boolean()
    raise ArgumentError(
        "column",
        "of numbers, dates, times or durations",
        shown=f"{name!r} of type {dtype}",
        hint="Only its mode can be released, without propose."
        if text
        else "Make one of these of it, in an ibis table.",
    )


def number_of(column: ir.Column, scale: Scale) -> ir.Value:
    """Convert a typed column to doubles, in units of its scale."""
    dtype, engine = column.type(), backend_name(column)
    if scale.kind in _MOMENTS:
        return _MOMENTS[scale.kind][engine](column)
    if not dtype.is_decimal():
        return column.cast("float64")
    if engine == "postgres":  # its numerics are exact, and too wide for a product of doubles
        factor = ibis.literal(f"1e{scale.digits}").cast(dt.Decimal())
        return double_of_numeric(column * factor if scale.digits else column)
    number = column.cast("float64")
    return _rounded(number * double(10.0**scale.digits)) if scale.digits else number


def number_of_text(column: ir.Column, scale: Scale) -> ir.Value:
    """Convert a text column to doubles, read as a declared type; NULL for a text of another."""
    if scale.kind in ("date", "timestamp"):
        return number_of(column.try_cast("date" if scale.kind == "date" else "timestamp"), scale)
    number = column.try_cast("float64")
    factor = 1e6 if scale.kind == "duration" else 10.0**scale.digits
    return number if not scale.whole or factor == 1 else _rounded(number * double(factor))


def _rounded(number: ir.Value) -> ir.Value:
    """Round to whole units; doubles beyond 2**52 are whole already, and too large for integers."""
    small = number.abs() < double(2.0**52)
    near = ibis.ifelse(small, number, double(0.0))
    return ibis.ifelse(small, (near + double(0.5)).floor().cast("float64"), number)


def _with_ends(column: ir.Column, number: ir.Value) -> ir.Value:
    """Give infinite dates and times an infinite number: DuckDB converts them to NULL."""
    high, low = (ibis.literal(end).cast(column.type()) for end in ("infinity", "-infinity"))
    return ibis.cases(
        (column == high, double(math.inf)),
        (column == low, double(-math.inf)),
        else_=tried(number).cast("float64"),
    )


def _duckdb_date(column: ir.Column) -> ir.Value:
    # A Julian day reaches further than microseconds since the epoch.
    return _with_ends(column, call("julian", column, returns=dt.float64) - double(2440588.0))


def _duckdb_timestamp(column: ir.Column) -> ir.Value:
    microseconds = call("epoch_us", column, returns=dt.int64)
    if column.type().scale == _NANOSECONDS:  # `epoch_us` rounds up before the epoch
        nanoseconds = call("epoch_ns", column, returns=dt.int64)
        microseconds = microseconds - (nanoseconds < microseconds * 1000).cast("int64")
    return _with_ends(column, microseconds)


def _duckdb_duration(column: ir.Column) -> ir.Value:
    return tried(call("epoch_us", column, returns=dt.int64)).cast("float64")


def _date_part(part: str, column: ir.Value) -> ir.Value:
    return call("date_part", ibis.literal(part), column, returns=dt.float64)


def _if_finite(column: ir.Column, number: ir.Value) -> ir.Value:
    """PostgreSQL cannot subtract from infinity, but it has the epoch of infinity."""
    finite = call("isfinite", column, returns=dt.boolean)
    return ibis.ifelse(finite, number, _date_part("epoch", column))


def _postgres_date(column: ir.Column) -> ir.Value:
    epoch = ibis.literal("1970-01-01").cast("date")
    days = call("date_mi", column, epoch, returns=dt.int32)
    return _if_finite(column, days.cast("float64"))


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


def _spark_date(column: ir.Column) -> ir.Value:
    # From the year and the day in it, as doubles: a difference of dates overflows for far ones, and
    # `unix_date` reaches Spark as such a difference.
    before = column.year().cast("float64") - double(1.0)
    leaps = [(before / double(each)).floor().cast("float64") for each in (4.0, 100.0, 400.0)]
    days = before * double(365.0) + leaps[0] - leaps[1] + leaps[2]
    return days + column.day_of_year().cast("float64") - double(_DAYS_UNTIL_1970)


def _spark_timestamp(column: ir.Column) -> ir.Value:
    # A time without a zone is cast in the zone of the session, which ibis sets to UTC.
    return call("unix_micros", column.cast(dt.Timestamp("UTC")), returns=dt.int64).cast("float64")


_Conversions = dict[str, Callable[[ir.Column], ir.Value]]
_MOMENTS: dict[str, _Conversions] = {
    "date": {"duckdb": _duckdb_date, "postgres": _postgres_date, "pyspark": _spark_date},
    "timestamp": {
        "duckdb": _duckdb_timestamp,
        "postgres": _postgres_timestamp,
        "pyspark": _spark_timestamp,
    },
    "duration": {"duckdb": _duckdb_duration, "postgres": _postgres_duration},
}
