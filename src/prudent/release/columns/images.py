"""What one stored value counts as, and is shown as: functions that are defined for every value.

A conversion that fails on one record would tell that the record is there. So none does: a value
that Python has no type for is shown as its text, and what is no value at all is None.

| stored | shown as |
| --- | --- |
| a date or time that Python can hold | `date`, `datetime` |
| infinite, before year 1, beyond year 9999, with nanoseconds | its text |
| a decimal, also NaN and infinite | `Decimal`, without trailing zeros |
| a text | itself; bytes that are no text as escapes |
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
_MICROSECONDS = 6  # digits of a second that `datetime` holds


def number(value: object) -> float:
    """A record as a double; NaN, and so no value, if it is no number."""
    if not isinstance(value, numbers.Real | Decimal | np.bool_):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf  # type: ignore[operator]
    except Exception:  # a signalling NaN, or a number of a foreign type
        return math.nan


def category(value: Any) -> Any:
    """A record as a plain category; None, and so no value, if it is none."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return None if np.isnat(value) else moment(value)
    if isinstance(value, np.generic):
        value = value.item()
    # Aware times that are equal need not look the same, so one of them would tell on the others.
    if not isinstance(value, _CATEGORIES) or getattr(value, "tzinfo", None) is not None:
        return None
    if value != value:  # NaN, NaT
        return None
    return value + 0.0 if isinstance(value, float) else value


def text(value: Any) -> str | None:
    """A record of a column without a type as a text; None if it has none."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, float) and value != value:
        return None
    try:
        # `str` refuses integers of many digits; a Decimal has no such limit.
        written = str(Decimal(value)) if type(value) is int else str(value)
        return written.encode(errors="replace").decode()
    except Exception:  # whatever an object of any class may raise when it is asked for its text
        return None


def moment(stamp: "np.datetime64 | np.timedelta64") -> Any:
    """A time of numpy as one of Python's, or as its text where Python has none."""
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
    """A date as an engine writes it; the text itself where Python has no such date."""
    try:
        return datetime.date.fromisoformat(written)
    except ValueError:
        return written


def timestamp_of(written: str) -> datetime.datetime | str:
    """A time as an engine writes it; the text itself where Python has no such time."""
    _, _, fraction = written.partition(".")
    digits = fraction.partition("+")[0].partition("-")[0]
    if digits[_MICROSECONDS:].strip("0"):  # `fromisoformat` would cut them off
        return written
    try:
        return datetime.datetime.fromisoformat(written)
    except ValueError:
        return written


def decimal_of(written: str) -> Decimal:
    """A decimal as an engine writes it: 1.0 and 1.00 are equal, so they must look the same."""
    whole, point, fraction = written.partition(".")
    fraction = fraction.rstrip("0")
    return Decimal(f"{whole}{point if fraction else ''}{fraction}")


def text_of(stored: bytes | str, encoding: str = "utf-8") -> str:
    """A text of bytes; those that are none in this encoding are written as escapes."""
    if isinstance(stored, str):
        return stored
    try:
        return bytes(stored).decode(encoding, errors="backslashreplace")
    except LookupError:  # an encoding that Python has no name for
        return bytes(stored).decode("utf-8", errors="backslashreplace")
