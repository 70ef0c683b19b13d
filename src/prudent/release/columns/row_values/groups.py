"""Groups of rows: how a column of groups is stored in an engine, and how a group is named.

Dates and times may be put in periods: the day, week or month that each lies in, by its first
moment. A period is named after a column, `joined:month`; SQL has date_trunc('month', joined) for
it. Every engine computes it in the same way, from the number of days or microseconds since 1970, in
doubles that are exact: engines differ in what they do with far dates, time zones and infinity, and
some fail. Days begin at midnight, of UTC for times with a zone; weeks begin on Monday.
"""

import datetime
import itertools
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import attrs
import ibis
import ibis.expr.datatypes as dt
import ibis.expr.types as ir

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.release.columns.dialects import INTEGERS, PublicValue, double, floored, typed
from prudent.release.columns.scales import DATE, Scale

UNITS = ("minute", "hour", "day", "week", "month", "quarter", "year")
"""The periods that there are."""

UNREAD = math.inf
"""What stands for a text that is no date: no period begins there, and it is the last in order."""

_WITHIN_A_DAY = {"minute": 60e6, "hour": 3600e6}  # in microseconds
_DAY = 86_400e6
_FARTHEST = 2.0**52  # whole numbers of doubles
_BEFORE_1970 = 719468.0  # days from the first of March of year 0
_MOST = 100_000  # groups of a public list, and periods of a range
_UNIT = "|".join(UNITS)
_SHORT = re.compile(rf"(?P<name>.+):(?P<unit>{_UNIT})", re.IGNORECASE)

NO_DATE = "no date"
"""The group of texts that are no date, beside the periods of those that are: none is left out
without a word, and a record in it is in no other group, so that it costs nothing."""


@attrs.frozen
class GroupKey:
    """One column of groups."""

    value: ir.Value  # the group of a row, as it is stored
    dtype: dt.DataType  # the type in which groups are named
    scale: Scale | None = None  # of dates and times, which are stored as numbers; None for others
    # The period that dates and times are put in; None for dates as they are.
    period: str | None = None
    unread: bool = False  # whether texts that are no date are a group of their own

    def shown(self, stored: PublicValue) -> Hashable:
        """The name of a group, by how it is stored."""
        if self.scale is None:
            return stored
        return NO_DATE if stored == UNREAD else self.scale.value(float(stored))

    def stored(self, group: Hashable) -> PublicValue:
        """A public group as it is stored."""
        if self.scale is None:
            return typed(group, self.dtype, "groups")
        if self.unread and group == NO_DATE:
            return UNREAD
        try:
            if self.period is None:
                return self.scale.number(group)
            return start_of(group, self.period, self.scale)
        except ArgumentError:
            what = "as the column has" if self.period is None else f"each in one {self.period}"
            raise ArgumentError("groups", f"dates such as 2024-05-31, {what}", got=group) from None

    def name(self, member: Any, codec: str) -> Hashable | None:
        """The name of a stored group; None if it cannot be given back as a public value.

        Bytes that no text encodes to have no name either, so that names differ.
        """
        if self.unread and member == UNREAD:
            return NO_DATE
        if self.scale is not None:
            moment: datetime.date = self.scale.value(member)
            return moment if self.scale.record(moment) == member else None
        if not isinstance(member, bytes):
            return member if not isinstance(member, int) or member in INTEGERS else None
        try:
            name = member.decode(codec)
        except (UnicodeDecodeError, LookupError):
            return None
        return None if "\0" in name else name


def public_groups(groups: Any, by: str | Sequence[str], keys: Sequence[GroupKey]) -> list[Hashable]:
    """The groups of a public list, or of one list for each column: all their combinations."""
    names = [by] if isinstance(by, str) else list(by)
    if groups is None:
        raise ArgumentError(
            "groups",
            "a list that is public knowledge",
            got=None,
            hint=f"Which values of {', '.join(map(repr, names))} occur depends on single records, "
            "so a list read from the data is private: name the groups yourself, also those that "
            "may be empty; or give groups='private' and delta.",
        )
    if isinstance(groups, Mapping):
        if set(groups) != set(names):
            raise ArgumentError(
                "groups", f"a list for each of {', '.join(names)}", got=list(groups)
            )
        lists = [
            _listed(_validate.values(groups=groups[name]), key)
            for name, key in zip(names, keys, strict=True)
        ]
        found = [each[0] if isinstance(by, str) else each for each in itertools.product(*lists)]
    else:
        found = list(_validate.values(groups=groups))
        if isinstance(by, str):
            found = _listed(found, keys[0])
        else:
            found = [tuple(each) if isinstance(each, list) else each for each in found]
    distinct = all(isinstance(each, Hashable) for each in found) and len(set(found))
    if not found or distinct < len(found):
        raise ArgumentError("groups", "one or more distinct values", got=groups)
    if len(found) > _MOST:
        raise ArgumentError("groups", f"at most {_MOST:,}", shown=f"{len(found):,}")
    return found


def _listed(groups: Sequence[Any], key: GroupKey) -> list[Any]:
    if key.period is None or key.scale is None:
        return list(groups)
    listed = [each for each in groups if each != NO_DATE]
    return expanded(listed, key.period, key.scale) + [NO_DATE] * key.unread


def split_period(text: str) -> tuple[str, str] | None:
    """The column and the period that a text names; None if it names none."""
    found = _SHORT.fullmatch(text.strip())
    return None if found is None else (found["name"], found["unit"].lower())


def scale_of_periods(unit: str, *, zoned: bool = False) -> Scale:
    """The scale of the first moments of periods: days, or microseconds within a day."""
    return Scale("timestamp", zoned=zoned) if unit in _WITHIN_A_DAY else DATE


def starts(numbers: ir.Value, scale: Scale, unit: str) -> ir.Value:
    """The first moments of the periods of dates or times; NULL for those that are infinite."""
    near = numbers.abs() < double(_FARTHEST)
    finite = ibis.ifelse(near, numbers, ibis.null("float64"))
    return _start(finite, scale, unit, double, floored)


def start_of(value: Any, unit: str, scale: Scale) -> float:
    """The first moment of the period that a public date or time lies in, as a number.

    A month may be given as "2024-05", and a year as "2024".
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
