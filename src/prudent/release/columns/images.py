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

_MOMENTS = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta)
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
        return None if math.isnan(plain) else plain + 0.0  # -0.0 and 0.0 are one category
    known = type(value) in _MOMENTS or type(value).__module__.startswith("pandas.")
    if not known or not isinstance(value, _MOMENTS) or value != value:  # NaT
        return None
    # Equal times with zones may be displayed differently, so the displayed one would depend on the
    # order of the records.
    return None if getattr(value, "tzinfo", None) is not None else value


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
