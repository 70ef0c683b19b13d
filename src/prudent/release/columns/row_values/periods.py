"""Dates and times in periods: the day, week or month that each lies in, by its first moment.

A period is named after a column, `joined:month`; SQL has date_trunc('month', joined) for it. Every
engine computes it in the same way, from the number of days or microseconds since 1970, in doubles
that are exact: engines differ in what they do with far dates, time zones and infinity, and some
fail. Days begin at midnight, of UTC for times with a zone; weeks begin on Monday.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import ibis
import ibis.expr.types as ir

from prudent._validate import ArgumentError
from prudent.release.columns.dialects import double, floored
from prudent.release.columns.scales import DATE, Scale

UNITS = ("minute", "hour", "day", "week", "month", "quarter", "year")
"""The periods that there are."""

UNREAD = math.inf
"""What stands for a text that is no date: no period begins there, and it is the last in order."""

_WITHIN_A_DAY = {"minute": 60e6, "hour": 3600e6}  # in microseconds
_DAY = 86_400e6
_FARTHEST = 2.0**52  # whole numbers of doubles
_BEFORE_1970 = 719468.0  # days from the first of March of year 0
_MOST = 100_000  # periods of a range
_UNIT = "|".join(UNITS)
_SHORT = re.compile(rf"(?P<name>.+):(?P<unit>{_UNIT})", re.IGNORECASE)


def split(text: str) -> tuple[str, str] | None:
    """The column and the period that a text names; None if it names none."""
    found = _SHORT.fullmatch(text.strip())
    return None if found is None else (found["name"], found["unit"].lower())


def scale_of_periods(unit: str, *, zoned: bool = False) -> Scale:
    """The scale of the first moments of periods: days, or microseconds within a day."""
    return Scale("timestamp", zoned=zoned) if unit in _WITHIN_A_DAY else DATE


def starts(numbers: ir.Value, scale: Scale, unit: str) -> ir.Value:
    """The first moments of the periods of dates or times; NULL for those that are infinite.

    Args:
        numbers: Dates or times, in units of their scale.
        scale: Their scale.
        unit: The period.
    """
    near = numbers.abs() < double(_FARTHEST)
    finite = ibis.ifelse(near, numbers, ibis.null("float64"))
    return _start(finite, scale, unit, double, floored)


def start_of(value: Any, unit: str, scale: Scale) -> float:
    """The first moment of the period that a public date or time lies in, as a number.

    A month may be given as "2024-05", and a year as "2024".

    Raises:
        ArgumentError: if it is no date or time.
    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if isinstance(text, str):
        text = re.sub(r"^(\d{4})$", r"\1-01-01", text.strip())
        text = re.sub(r"^(\d{4}-\d\d)$", r"\1-01", text)
    return float(_start(scale.number(text), scale, unit, float, math.floor))


def expanded(groups: list[Any], unit: str, scale: Scale) -> list[Any]:
    """A list of periods in which "2024-01..2024-12" stands for all from one to the other."""
    found: list[Any] = []
    for each in groups:
        first, dots, last = str(each).partition("..") if isinstance(each, str) else (each, "", "")
        if not dots:
            found.append(each)
            continue
        number, end = start_of(first, unit, scale), start_of(last, unit, scale)
        step = _WITHIN_A_DAY.get(unit, 1.0)
        length = {"week": 7, "month": 31, "quarter": 92, "year": 366}.get(unit, 1) * step
        if not 0 <= end - number <= _MOST * length:
            raise ArgumentError("groups", f"from an earlier {unit} to a later one", got=each)
        while number <= end:
            found.append(scale.value(number))
            number = float(_start(number + length, scale, unit, float, math.floor))
    return found


def _start(
    number: Any, scale: Scale, unit: str, lift: Callable[[float], Any], floor: Callable[[Any], Any]
) -> Any:
    """The first moment of a period; for numbers of Python and for those of an engine alike.

    From the first of March on, months have a fixed pattern of lengths, and a leap day is the last
    day of its year: so years and months are counted from there. An engine has no names for what is
    computed on the way, so every number that is used twice doubles the length of a query: the year
    of a century, and the day of a year, follow from quarters of days, without counting leap days
    (Neri and Schneider 2023, Euclidean affine functions).
    """
    if unit in _WITHIN_A_DAY:
        length = lift(_WITHIN_A_DAY[unit])
        return floor(number / length) * length
    days = number if scale.kind == "date" else floor(number / lift(_DAY))
    if unit == "day":
        return days
    if unit == "week":  # the first day of 1970 was a Thursday
        return floor((days + lift(3.0)) / lift(7.0)) * lift(7.0) - lift(3.0)

    def quotient(value: Any, divisor: float) -> Any:
        return floor(value / lift(divisor))

    def rest(value: Any, divisor: float) -> Any:
        return value - quotient(value, divisor) * lift(divisor)

    quarters = days * lift(4.0) + lift(4 * _BEFORE_1970 + 3.0)  # of days
    century = quotient(quarters, 146097.0)
    quarters = quotient(rest(quarters, 146097.0), 4.0) * lift(4.0) + lift(3.0)  # of the century
    year, day = quotient(quarters, 1461.0), quotient(rest(quarters, 1461.0), 4.0)
    month = quotient(day * lift(5.0) + lift(2.0), 153.0)  # 0 is March

    def before(month: Any) -> Any:
        return quotient(month * lift(153.0) + lift(2.0), 5.0)  # days of the year

    if unit == "month":
        return days - day + before(month)
    # In months from January of year 0 to the first of the period, then from March again.
    months = (century * lift(100.0) + year) * lift(12.0) + month + lift(2.0)
    length = 3.0 if unit == "quarter" else 12.0
    first = quotient(months, length) * lift(length) - lift(2.0)
    year = quotient(first, 12.0)
    leaps = quotient(year, 4.0) - quotient(year, 100.0) + quotient(year, 400.0)
    days_of_years = year * lift(365.0) + leaps - lift(_BEFORE_1970)
    return days_of_years + before(rest(first, 12.0))
