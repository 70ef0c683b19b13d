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
import math
import numbers
from decimal import Decimal
from typing import Any

import numpy as np

_CATEGORIES = (
    str,
    bytes,
    bool,
    int,
    float,
    datetime.date,
    datetime.time,
    datetime.timedelta,
)
_MICROSECONDS = 6  # decimal places of a second in `datetime`


def number(value: object) -> float:
    """Convert a record to a double; NaN, which means no value, if it is not a number."""
    if not isinstance(value, numbers.Real | Decimal | np.bool_):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]
    except Exception:  # a signalling NaN, or a number type whose conversion fails
        return math.nan


def category(value: Any) -> Any:
    """Convert a record to a plain category; None, which means no value, if it is not one."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return None if np.isnat(value) else moment(value)
    if isinstance(value, np.generic):
        value = value.item()
    # Equal times with zones may be displayed differently, so the displayed one would depend on the
    # order of the records.
    if not isinstance(value, _CATEGORIES) or getattr(value, "tzinfo", None) is not None:
        return None
    if value != value:  # NaN, NaT
        return None
    return value + 0.0 if isinstance(value, float) else value


def text(value: Any) -> str | None:
    """Convert a record of an untyped column to a string; None if it has no value."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, float) and value != value:
        return None
    try:
        # `str` rejects integers with very many digits; a Decimal has no such limit.
        written = str(Decimal(value)) if type(value) is int else str(value)
        return written.encode(errors="replace").decode()
    except Exception:  # `__str__` of an arbitrary class may raise anything
        return None


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
