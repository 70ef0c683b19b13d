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

A conversion that fails on one record would reveal that this record is present. So none of them
fails: a value that Python cannot represent is displayed as a string, and a record without a value
becomes None, also a time with a zone in a list.
"""

import datetime
import functools
import math
import numbers
import re
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any, Literal, TypeVar

import attrs
import numpy as np
import numpy.typing as npt

from prudent._validate import ArgumentError
from prudent.release.lattice import FloatArray, Lattice

ScaleKind = Literal["number", "integer", "decimal", "date", "timestamp", "duration"]
_PARSERS: dict[str, Callable[[str], Any]] = {  # of public values; others are numbers
    "decimal": Decimal,
    "date": datetime.date.fromisoformat,
    "timestamp": datetime.datetime.fromisoformat,
    "duration": lambda seconds: datetime.timedelta(seconds=float(seconds)),
}

NUMBER_EXPONENT = -20
"""Spacing of the default lattice of floating-point numbers, as a power of two: it ends at 2**32."""

_DAY = datetime.timedelta(days=1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_EPOCH = datetime.date(1970, 1, 1)
_MIDNIGHT = datetime.datetime(1970, 1, 1)
# What Python's types can hold, in days or microseconds.
_DATES = (datetime.date.min - _EPOCH).days, (datetime.date.max - _EPOCH).days
_TIMES = tuple(
    (end - _MIDNIGHT) // _MICROSECOND for end in (datetime.datetime.min, datetime.datetime.max)
)
_DURATIONS = tuple(end // _MICROSECOND for end in (datetime.timedelta.min, datetime.timedelta.max))
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
        """Return the scale of a name, such as "decimal(2)"; see `open_column`."""
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

    def number(self, value: Any, argument: str = "value") -> float:
        """Convert a public value, such as a bound, to a number; a string is parsed."""
        try:
            released = self.truth and isinstance(value, float)  # a boolean with noise
            parse = _PARSERS.get(self.kind, float)
            plain = parse(value) if isinstance(value, str) else value
            found = float(value) if released else self.record(plain)
        except (ArithmeticError, ValueError):
            found = math.nan
        if math.isnan(found):
            name = "an integer" if self.kind == "integer" else f"a {self.kind}"
            raise ArgumentError(argument, "0 or 1" if self.truth else name, got=value)
        return found

    def length(self, value: Any, argument: str = "value") -> float:
        """Convert a public difference, such as a proposal, to a number of units."""
        if self.kind in ("date", "timestamp", "duration"):
            unit = _DAY if self.kind == "date" else _MICROSECOND
            if isinstance(value, datetime.timedelta):
                return value / unit
            found = _plain(value) * (1.0 if self.kind == "date" else 1e6)
        else:
            found = _plain(value) if self.truth else self.record(value)
        if math.isnan(found):
            raise ArgumentError(argument, "a number or a timedelta", got=value)
        return found

    def given_length(self, name: str, value: Any) -> Any:
        """See `length`, for an argument that is checked where it is used if it is a number."""
        return value if self.plain else self.length(value, name)

    def given_bounds(self, bounds: Any) -> tuple[float, float] | None:
        """Public bounds as numbers; those of numbers are checked where they are used."""
        return bounds if bounds is None or self.plain else self.pair(bounds)

    def pair(self, bounds: Any) -> tuple[float, float]:
        """Public bounds, given as values, as numbers."""
        try:
            low, high = bounds
        except Exception:  # whatever an object raises that is no pair
            raise ArgumentError("bounds", "a pair (low, high)", got=bounds) from None
        return self.number(low, "bounds"), self.number(high, "bounds")

    def value(self, number: float) -> Any:
        """Convert a released number to a value of the column's type; whole units if it has any."""
        if self.plain:
            return float(number)
        if self.kind == "decimal":
            return self._decimal(number)
        if self.kind == "duration":
            return _duration(number)
        if self.kind == "date":
            return _EPOCH + datetime.timedelta(days=_clipped(number, *_DATES))
        moment = _MIDNIGHT + datetime.timedelta(microseconds=_clipped(number, *_TIMES))
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
        if isinstance(value, datetime.datetime) and value.tzinfo is not None:
            value = value.astimezone(datetime.UTC).replace(tzinfo=None)
        since = value - (_MIDNIGHT if isinstance(value, datetime.datetime) else _EPOCH)
        return float(since.days if self.kind == "date" else since // _MICROSECOND)

    def _decimal(self, number: float) -> Decimal:
        if not math.isfinite(number):
            return Decimal(number)
        with localcontext(prec=_DIGITS_OF_A_DOUBLE):
            return Decimal(round(number)).scaleb(-self.digits)


NUMBER = Scale()
INTEGER = Scale("integer")
TRUTH = Scale("integer", truth=True)
DATE = Scale("date")


def _plain(value: Any) -> float:
    plain = isinstance(value, numbers.Real | Decimal) and not isinstance(value, bool)
    return float(value) if plain else math.nan


def _duration(number: float) -> datetime.timedelta:
    return datetime.timedelta(microseconds=_clipped(number, *_DURATIONS))


def _clipped(number: float, low: int, high: int) -> int:
    """Round to a whole number between two ends; NaN becomes the lower end."""
    if not number > low:
        return low
    return high if number >= high else min(max(math.floor(number + 0.5), low), high)


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


_WHOLE_DAY = 86_400 * 10**6  # microseconds
_MICROSECONDS_OF = {"h": 3_600 * 10**6, "m": 60 * 10**6, "s": 10**6, "ms": 10**3, "us": 1}
_DAYS_OF = {"Y": 360, "M": 30, "W": 7, "D": 1}
_FINER = {"ns": 10**3, "ps": 10**6, "fs": 10**9, "as": 10**12}  # in a microsecond
_FARTHEST = 10**9  # years or months that numpy converts to days without overflow


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
        return DATE if np.datetime_data(dtype)[0] in _DAYS_OF else Scale("timestamp")
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
    duration = times.dtype.kind == "m"
    if unit in _FINER and multiple == 1:
        whole, rest = np.divmod(stored, _FINER[unit])
        if duration:
            whole = whole + ((rest != 0) & (stored < 0))
        return whole.astype(np.float64)
    if unit in _FINER:
        return np.floor(stored.astype(np.float64) * (multiple / _FINER[unit]))
    if unit in ("Y", "M") and not duration:
        reach = _FARTHEST // multiple
        near = np.clip(stored, -reach, reach).view(times.dtype)
        days: npt.NDArray[np.int64] = near.astype("M8[D]").view(np.int64)
        return days.astype(np.float64)
    length = _MICROSECONDS_OF.get(unit) or _DAYS_OF.get(unit, 1) * (_WHOLE_DAY if duration else 1)
    return stored.astype(np.float64) * float(length * multiple)
