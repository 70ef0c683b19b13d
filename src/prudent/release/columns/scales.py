"""Scales: how the values of a public type become numbers, and released numbers become values again.

Mechanisms compute with numbers. The scale of a column follows from the public type of the column,
never from its records, and fixes the unit of those numbers:

| type | unit | number 0 | displayed as |
| --- | --- | --- | --- |
| floating point | 1, on a lattice of spacing 2**-20 | 0 | `float` |
| integer | 1 | 0 | `float` |
| boolean | true | false | `float` |
| decimal with s digits after the point | 10**-s | 0 | `Decimal` |
| date | a day | 1970-01-01 | `date` |
| timestamp | a microsecond | 1970-01-01 00:00 (UTC with a time zone) | `datetime` |
| duration | a microsecond; a month is 30 days | 0 | `timedelta` |

Whole units are exact up to 2**52 of them: for timestamps and durations that is 142 years from
number 0, and a lattice ends there. (For decimals of an engine, exact up to 2**51: their digits pass
through a double.) A released number that Python's type cannot hold becomes the nearest value that
it can hold.
"""

import datetime
import math
import numbers
import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any, Literal

import attrs

from prudent._validate import ArgumentError
from prudent.release.lattice import Lattice

ScaleKind = Literal["number", "integer", "decimal", "date", "timestamp", "duration"]

NUMBER_EXPONENT = -20
"""Spacing of the default lattice of floating-point numbers, as a power of two: it ends at 2**32."""

_DAY = datetime.timedelta(days=1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_EPOCH = datetime.date(1970, 1, 1)
_MIDNIGHT = datetime.datetime(1970, 1, 1)
_MOST_DIGITS = 38
_DIGITS_OF_A_DOUBLE = 700  # of the longest integer that a finite double can be, with room


OF_TEXT = "Of text, ask for a count, a mode, the most frequent values or how many there are."
"""What can be released of a column that has no numbers."""


@attrs.frozen
class Scale:
    """The unit of a column's numbers, and the type that they are displayed in."""

    kind: ScaleKind = "number"  # the type of the values
    digits: int = 0  # of a decimal: the digits after the point. The unit is 10**-digits.
    zoned: bool = False  # of a timestamp: whether it has a time zone; it is then displayed in UTC
    truth: bool = False  # of an integer: whether it is a boolean, 0 or 1

    @property
    def own_bounds(self) -> tuple[float, float] | None:
        """Bounds that follow from the type of the column, where they are narrow."""
        return (0.0, 1.0) if self.truth else None

    @classmethod
    def named(cls, name: str) -> "Scale":
        """Return the scale of a name, such as "decimal(2)"; see `open_column`.

        Raises:
            ArgumentError: if there is none; `text` has no numbers.
        """
        if name == "boolean":
            return TRUTH
        if (found := re.fullmatch(r"decimal\((\d{1,2})\)", str(name))) is not None:
            if int(found[1]) <= _MOST_DIGITS:
                return cls("decimal", int(found[1]))
        elif name in ("number", "integer", "date", "timestamp", "duration"):
            return cls(name)  # type: ignore[arg-type]
        raise ArgumentError(
            "read_as",
            "number, integer, decimal(2), boolean, date, timestamp or duration",
            got=name,
            hint=OF_TEXT,
        )

    @property
    def whole(self) -> bool:
        """Whether every value is a whole number of units."""
        return self.kind != "number"

    @property
    def plain(self) -> bool:
        """Whether values are numbers as they are."""
        return self.kind in ("number", "integer")

    def lattice(self, bounds: tuple[Any, Any] | None = None) -> Lattice:
        """Return the lattice of this scale, between public bounds given as values."""
        spacing = 1.0 if self.whole else math.ldexp(1.0, NUMBER_EXPONENT)
        return Lattice.for_unit(spacing, None if bounds is None else self.pair(bounds))

    def number(self, value: Any) -> float:
        """Convert a public value, such as a bound, to a number; a string is parsed.

        Raises:
            ArgumentError: if it is not a value of this type.
        """
        try:
            released = self.truth and isinstance(value, float)  # a boolean with noise
            found = float(value) if released else self.record(self._parsed(value))
        except (ArithmeticError, ValueError):
            found = math.nan
        if math.isnan(found):
            name = "an integer" if self.kind == "integer" else f"a {self.kind}"
            raise ArgumentError("value", "0 or 1" if self.truth else name, got=value)
        return found

    def length(self, value: Any) -> float:
        """Convert a public difference, such as a proposal, to a number of units.

        Args:
            value: A `timedelta`, or a number: of days for dates, of seconds for timestamps and
                durations, in the unit of the data otherwise.

        Raises:
            ArgumentError: if it is neither.
        """
        if self.kind in ("date", "timestamp", "duration"):
            unit = _DAY if self.kind == "date" else _MICROSECOND
            if isinstance(value, datetime.timedelta):
                return value / unit
            found = _plain(value) * (1.0 if self.kind == "date" else 1e6)
        else:
            found = _plain(value) if self.truth else self.record(value)
        if math.isnan(found):
            raise ArgumentError("value", "a number or a timedelta", got=value)
        return found

    def given(self, name: str, value: Any) -> float:
        """See `number`; an error carries the name of the argument."""
        return _converted(name, self.number, value)

    def given_length(self, name: str, value: Any) -> Any:
        """See `length`, for an argument that is checked where it is used if it is a number."""
        return value if self.plain else _converted(name, self.length, value)

    def given_bounds(self, bounds: Any) -> tuple[float, float] | None:
        """Public bounds as numbers; those of numbers are checked where they are used."""
        return bounds if bounds is None or self.plain else self.pair(bounds)

    def pair(self, bounds: Any) -> tuple[float, float]:
        """Public bounds, given as values, as numbers."""
        try:
            low, high = bounds
        except Exception:  # whatever an object raises that is no pair
            raise ArgumentError("bounds", "a pair (low, high)", got=bounds) from None
        return self.given("bounds", low), self.given("bounds", high)

    def value(self, number: float) -> Any:
        """Convert a released number to a value of the column's type; whole units if it has any."""
        if self.plain:
            return float(number)
        if self.kind == "decimal":
            return self._decimal(number)
        if self.kind == "duration":
            return _duration(number)
        if self.kind == "date":
            days = _clipped(
                number, (datetime.date.min - _EPOCH).days, (datetime.date.max - _EPOCH).days
            )
            return _EPOCH + datetime.timedelta(days=days)
        microseconds = _clipped(
            number,
            (datetime.datetime.min - _MIDNIGHT) // _MICROSECOND,
            (datetime.datetime.max - _MIDNIGHT) // _MICROSECOND,
        )
        moment = _MIDNIGHT + datetime.timedelta(microseconds=microseconds)
        return moment.replace(tzinfo=datetime.UTC) if self.zoned else moment

    def difference(self, number: float) -> Any:
        """Convert a released difference of values, such as a range or an error, to its type."""
        if self.kind == "date":
            return _duration(number * (_DAY // _MICROSECOND))
        return _duration(number) if self.kind == "timestamp" else self.value(number)

    def ends(self, low: float, high: float, *, difference: bool = False) -> tuple[Any, Any]:
        """Convert the ends of a released interval; whole units are rounded outward."""
        show = self.difference if difference else self.value
        if self.plain:
            return show(low), show(high)
        parts = _DAY // _MICROSECOND if difference and self.kind == "date" else 1
        lower, upper = math.floor(low * parts) / parts, math.ceil(high * parts) / parts
        return show(lower), show(upper)

    def record(self, value: object) -> float:
        """Convert a record of an untyped list to a number; NaN, no value, if it is of no such type.

        Guarantee: it never raises, so that no single record decides whether there is an answer.
        """
        try:
            return self._recorded(value)
        except Exception:  # a subclass of a number or a date may raise anything
            return math.nan

    def _recorded(self, value: Any) -> float:
        if self.kind == "duration":
            is_one = isinstance(value, datetime.timedelta)
            return float(value // _MICROSECOND) if is_one else math.nan
        if self.kind in ("date", "timestamp"):
            return self._moment(value)
        if self.truth:
            return float(value) if value in (0, 1) else math.nan
        if isinstance(value, bool) or not isinstance(value, numbers.Real | Decimal):
            return math.nan
        if self.kind != "decimal":
            return _plain(value)
        exact = Decimal(value) if isinstance(value, Decimal | int) else Decimal(repr(float(value)))
        with localcontext(prec=_DIGITS_OF_A_DOUBLE):
            return float(exact.scaleb(self.digits).to_integral_value("ROUND_HALF_EVEN"))

    def _moment(self, value: Any) -> float:
        if not isinstance(value, datetime.date):
            return math.nan
        if not isinstance(value, datetime.datetime):
            days = (value - _EPOCH).days
            return float(days if self.kind == "date" else days * (_DAY // _MICROSECOND))
        if value.tzinfo is not None:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        since = value - _MIDNIGHT
        return float(since.days if self.kind == "date" else since // _MICROSECOND)

    def _parsed(self, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if self.kind == "date":
            return datetime.date.fromisoformat(value)
        if self.kind == "timestamp":
            return datetime.datetime.fromisoformat(value)
        if self.kind == "duration":
            return datetime.timedelta(seconds=float(value))
        return Decimal(value) if self.kind == "decimal" else float(value)

    def _decimal(self, number: float) -> Decimal:
        if not math.isfinite(number):
            return Decimal(number)
        with localcontext(prec=_DIGITS_OF_A_DOUBLE):
            return Decimal(round(number)).scaleb(-self.digits)


NUMBER = Scale()
INTEGER = Scale("integer")
TRUTH = Scale("integer", truth=True)
DATE = Scale("date")


def _converted(name: str, convert: Callable[[Any], float], value: Any) -> float:
    try:
        return convert(value)
    except ArgumentError as error:
        raise ArgumentError(name, error.allowed, got=value) from None


def _plain(value: Any) -> float:
    plain = isinstance(value, numbers.Real | Decimal) and not isinstance(value, bool)
    return float(value) if plain else math.nan


def _duration(number: float) -> datetime.timedelta:
    least, largest = (
        end // _MICROSECOND for end in (datetime.timedelta.min, datetime.timedelta.max)
    )
    return datetime.timedelta(microseconds=_clipped(number, least, largest))


def _clipped(number: float, low: int, high: int) -> int:
    """Round to a whole number between two ends; NaN becomes the lower end."""
    if not number > low:
        return low
    return high if number >= high else min(max(math.floor(number + 0.5), low), high)
