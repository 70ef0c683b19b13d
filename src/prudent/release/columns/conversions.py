"""Conversions of one stored value to the value that is counted and displayed, defined everywhere.

A conversion that fails on one record would reveal that this record is present. So none of them
fails: a value that Python cannot represent is displayed as a string, and a record without a value
becomes None.

| stored | displayed as |
| --- | --- |
| a date or time that Python can represent | `date`, `datetime` |
| infinite, before year 1, beyond year 9999, with nanoseconds | a string |
| a decimal, also NaN and infinite | `Decimal`, without trailing zeros |
| a string | itself; undecodable bytes as escapes |
| a time with a zone, in a list | no value |
"""

import datetime
import functools
import math
import numbers
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from prudent.release.columns.scales import NUMBER, Scale
from prudent.release.lattice import FloatArray

_MOMENTS = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta)
_EXACT = 2.0**53  # below it, doubles hold every integer
_MICROSECONDS = 6  # decimal places of a second in `datetime`

T = TypeVar("T")


def _total(convert: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """Let a conversion return None where it fails: a class of a user may raise anything."""

    @functools.wraps(convert)
    def converted(value: Any) -> T | None:
        try:
            return convert(value)
        except Exception:
            return None

    return converted


def number(value: object) -> float:
    """Convert a record to a double; NaN, which means no value, if it is not a number."""
    if type(value) is float or (type(value) is int and abs(value) < _EXACT):
        return float(value)  # most records of a list; the tests of `_number` take 12 times as long
    found = _number(value)
    return math.nan if found is None else found


@_total
def _number(value: Any) -> float | None:
    if not isinstance(value, numbers.Real | Decimal | np.bool_):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]


@_total
def category(value: Any) -> Any:
    """Convert a record to a plain category; None, which means no value, if it is not one.

    What is returned is of a built-in type, or a time of numpy or pandas: it can be compared,
    ordered and hashed, whatever a class of its own would make of that.
    """
    if isinstance(value, np.datetime64 | np.timedelta64):
        return None if np.isnat(value) else moment(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes):
        return bytes(memoryview(value))
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        plain = float.__float__(value)
        if plain.is_integer() and abs(plain) < _EXACT:  # numpy stores integers beside a NaN so
            return int(plain)
        return None if math.isnan(plain) else plain
    known = type(value) in _MOMENTS or type(value).__module__.startswith("pandas.")
    if not known or not isinstance(value, _MOMENTS) or value != value:  # NaT
        return None
    # Equal times with zones may be displayed differently, so the displayed one would depend on the
    # order of the records.
    return None if getattr(value, "tzinfo", None) is not None else value


def written(values: FloatArray) -> Any:
    """Doubles as an Arrow array of texts, NaN as NULL; 5.0 as "5", so that no type shows."""
    import pyarrow
    import pyarrow.compute

    whole = (np.floor(values) == values) & (np.abs(values) < _EXACT)
    with np.errstate(invalid="ignore"):  # a warning would reveal that some record is huge
        integers = pyarrow.array(np.where(whole, values, 0).astype(np.int64), mask=~whole)
    others = pyarrow.array(values, mask=whole | np.isnan(values))
    texts = (each.cast(pyarrow.large_string()) for each in (integers, others))
    return pyarrow.compute.coalesce(*texts)


def cells(column: Any) -> Any:
    """The cells of a pandas series, each as a text that does not depend on the other cells.

    pandas infers the type of a column from all of its cells: one NaN makes floating numbers of
    integers, and one text makes objects of numbers, booleans and times. So a number is the text
    of its double here, whatever type it is stored in, a time that of its date and time of day in
    UTC, and a duration that of its seconds.
    """
    import pyarrow
    import pyarrow.compute

    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iuf":
        return written(column.to_numpy(np.float64))
    found = list(map(_cell, column))
    numbers = np.array([each if isinstance(each, float) else np.nan for each in found], np.float64)
    texts = [each if isinstance(each, str) else None for each in found]
    return pyarrow.compute.coalesce(written(numbers), pyarrow.array(texts, pyarrow.large_string()))


@_total
def _cell(value: Any) -> float | str | None:
    """A cell as a number or a text; None if it has no value."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, np.datetime64 | np.timedelta64):
        value = None if np.isnat(value) else moment(value)
        if type(value) is datetime.date:  # which pandas would store as a time, too
            value = datetime.datetime.combine(value, datetime.time())
    if isinstance(value, datetime.timedelta):  # also of pandas
        return float(value.total_seconds())
    if isinstance(value, numbers.Real):
        return _number(value)
    if isinstance(value, numbers.Complex):
        return float(value.real) if value.imag == 0 else None
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        return str(value)
    return text(value)


@_total
def text(value: Any) -> str | None:
    """Convert a record of an untyped column to a string; None if it has no value."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, float) and value != value:
        return None
    # `str` rejects integers with very many digits; a Decimal has no such limit.
    written = str(Decimal(value)) if type(value) is int else str(value)
    return str.encode(written, errors="replace").decode()


def moment(stamp: "np.datetime64 | np.timedelta64") -> Any:
    """Convert a numpy time to a Python one, or to a string if Python cannot represent it."""
    coarse = stamp
    if np.datetime_data(stamp.dtype)[0] in ("ns", "ps", "fs", "as"):
        kind = "M8[us]" if isinstance(stamp, np.datetime64) else "m8[us]"
        coarse = stamp.astype(kind)
        if coarse.astype(stamp.dtype) != stamp:
            return str(stamp).replace("T", " ")
    found = coarse.item()
    if isinstance(found, datetime.date | datetime.timedelta):
        return found
    return str(stamp).replace("T", " ")


def date_of(written: str) -> datetime.date | str:
    """Parse a date written by an engine; return the string if Python cannot represent it."""
    try:
        return datetime.date.fromisoformat(written)
    except ValueError:
        return written


def timestamp_of(written: str) -> datetime.datetime | str:
    """Parse a time written by an engine; return the string if Python cannot represent it."""
    _, _, fraction = written.partition(".")
    digits = fraction.partition("+")[0].partition("-")[0]
    if digits[_MICROSECONDS:].strip("0"):  # `fromisoformat` would drop these digits
        return written
    try:
        return datetime.datetime.fromisoformat(written)
    except ValueError:
        return written


def decimal_of(written: str) -> Decimal:
    """Parse a decimal written by an engine, without trailing zeros.

    1.0 and 1.00 are equal, so they must be displayed the same.
    """
    whole, point, fraction = written.partition(".")
    fraction = fraction.rstrip("0")
    return Decimal(f"{whole}{point if fraction else ''}{fraction}")


def text_of(stored: bytes | str, encoding: str = "utf-8") -> str:
    """Decode bytes to a string; bytes that are invalid in this encoding become escapes."""
    if isinstance(stored, str):
        return stored
    try:
        return bytes(stored).decode(encoding, errors="backslashreplace")
    except LookupError:  # an encoding that Python does not support
        return bytes(stored).decode("utf-8", errors="backslashreplace")


_COARSE = {"W": 7, "D": 1}  # in days
_FINE = {"h": 3_600 * 10**6, "m": 60 * 10**6, "s": 10**6, "ms": 10**3, "us": 1}  # in microseconds
_FINER = {"ns": 10**3, "ps": 10**6, "fs": 10**9, "as": 10**12}  # in a microsecond
_CALENDAR = ("Y", "M")
_FARTHEST = 10**9  # years or months that numpy converts to days without overflow
_DAY = 86_400 * 10**6


def real(values: Any) -> Any:
    """Complex numbers of an array or a series as doubles, NaN where there is an imaginary part.

    One complex record makes all of them complex, and must not change the others.
    """
    if values.dtype.kind != "c":
        return values
    numbers = np.asarray(values)
    return np.where(numbers.imag == 0, numbers.real, np.nan)


def scale_of_array(dtype: np.dtype[Any]) -> Scale:
    """The scale of an array: that of numbers for all types but times.

    numpy infers the type of numbers from all records: one NaN makes floating numbers of integers.
    """
    if dtype.kind == "m":
        return Scale("duration")
    if dtype.kind == "M":
        unit = np.datetime_data(dtype)[0]
        return Scale("date" if unit in _COARSE or unit in _CALENDAR else "timestamp")
    return NUMBER


def numbers_of_times(times: npt.NDArray[Any]) -> FloatArray:
    """Convert datetime64 or timedelta64, without NaT, to units of the scale of the array.

    numpy wraps around without a word when it converts a time to a finer unit. So the stored
    integers are converted here, by doubles: exact up to 2**53 units, and monotone beyond.

    A fraction of a microsecond is dropped: downwards for times, towards zero for durations, as
    DuckDB does. A duration in months or years has months of 30 days and years of 12 months.
    """
    times = times[~np.isnat(times)]
    unit, multiple = np.datetime_data(times.dtype)
    stored = times.view(np.int64) if times.dtype.isnative else times.astype("=i8")
    if unit in _FINER and multiple == 1:
        whole, rest = np.divmod(stored, _FINER[unit])
        if times.dtype.kind == "m":
            whole = whole + ((rest != 0) & (stored < 0))
        return whole.astype(np.float64)
    if unit in _FINER:
        return np.floor(stored.astype(np.float64) * (multiple / _FINER[unit]))
    if unit in _FINE:
        return stored.astype(np.float64) * float(_FINE[unit] * multiple)
    if unit in _CALENDAR:
        if times.dtype.kind == "m":
            return stored.astype(np.float64) * float(multiple * _DAY * (360 if unit == "Y" else 30))
        reach = _FARTHEST // multiple
        near = np.clip(stored, -reach, reach).view(times.dtype)
        days_since: npt.NDArray[np.int64] = near.astype("M8[D]").view(np.int64)
        return days_since.astype(np.float64)
    days = _COARSE.get(unit, 1) * multiple
    return stored.astype(np.float64) * float(days * (_DAY if times.dtype.kind == "m" else 1))
