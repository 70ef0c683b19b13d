"""Numbers as people read them: few digits, and what is written is still true.

A bound is rounded to its safe side, an interval outward, and a value to the digits that its
interval supports. Read back as a double, a printed bound is never on the wrong side of the number
it stands for; a number that has few digits, such as 0.1, is printed as it is. `repr` and JSON keep
all digits: this module is for sentences.
"""

import decimal
import numbers
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from typing import Any

_WIDTH_DIGITS = 3  # of the width of an interval: rounding outward adds at most 2 % to it
_PLAIN = range(-4, 16)  # exponents of numbers that are written without one, as `repr` does
_EXACT = decimal.Context(prec=1500)  # for every digit of a double, and of a sum of two


def rounded_up(value: float, digits: int = 5) -> str:
    """A bound from above, in so many significant digits."""
    return _significant(value, digits, ROUND_CEILING)


def rounded_down(value: float, digits: int = 5) -> str:
    """A bound from below, or what is left of something, in so many significant digits."""
    return _significant(value, digits, ROUND_FLOOR)


def nearest(value: float, digits: int = 4) -> str:
    """A measured or expected number, which bounds nothing, in so many significant digits."""
    return _significant(value, digits, ROUND_HALF_EVEN)


def exact(value: Any) -> str:
    """A value with all its digits, and no more than it needs to be read back."""
    return _text(_decimal(value)) if _is_number(value) else str(value)


def percent(share: float) -> str:
    """A share that is known exactly, such as a confidence: 0.95 is 95%, 0.999 is 99.9%."""
    return f"{_text(_decimal(share).scaleb(2, _EXACT))}%"


def outward(low: Any, high: Any) -> tuple[str, str]:
    """The ends of an interval, each moved outward to the digits that its width needs.

    An interval of no width is printed in full, and so are ends of another kind, such as dates.
    """
    if not (_is_number(low) and _is_number(high)):
        return exact(low), exact(high)
    width = _width(low, high)
    if not (width.is_finite() and width):
        return exact(low), exact(high)
    place = _place(width)
    ends = (low, ROUND_FLOOR), (high, ROUND_CEILING)
    lower, upper = (_text(_rounded(_decimal(end), place, how)) for end, how in ends)
    return lower, upper


def supported(value: Any, low: Any, high: Any) -> str:
    """A value to the digits that its interval supports: the place that its ends are printed to.

    At least one significant digit is left. A value that is no number is printed as it is.
    """
    if not all(map(_is_number, (value, low, high))):
        return exact(value)
    number, width = _decimal(value), _width(low, high)
    if not (number.is_finite() and width.is_finite() and number and width):
        return exact(value)
    return _text(_rounded(number, min(_place(width), number.adjusted()), ROUND_HALF_EVEN))


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real | Decimal) and not isinstance(value, bool)


def _decimal(value: Any) -> Decimal:
    """The shortest decimal number that is read back as this value."""
    if isinstance(value, Decimal):
        return value
    if isinstance(value, numbers.Integral):
        return Decimal(int(value))
    return Decimal(repr(float(value)))


def _width(low: Any, high: Any) -> Decimal:
    ends = _decimal(low), _decimal(high)
    if not all(end.is_finite() for end in ends):
        return Decimal("inf")
    return _EXACT.subtract(ends[1], ends[0])


def _place(width: Decimal) -> int:
    """The exponent of the last digit of numbers in an interval of this width."""
    return width.adjusted() - _WIDTH_DIGITS + 1


def _rounded(number: Decimal, place: int, rounding: str) -> Decimal:
    if not number.is_finite() or number.as_tuple().exponent >= place:  # type: ignore[operator]
        return number
    return number.quantize(Decimal(1).scaleb(place), rounding, _EXACT)


def _significant(value: float, digits: int, rounding: str) -> str:
    context = decimal.Context(prec=digits, rounding=rounding)
    return _text(context.plus(_decimal(value)))


def _text(number: Decimal) -> str:
    if number.is_nan():
        return "nan"
    if number.is_infinite():
        return "∞" if number > 0 else "-∞"
    if not number:
        return "0"
    number = number.normalize(_EXACT)
    if number.adjusted() in _PLAIN:
        return f"{number:f}"
    digits, exponent = f"{number:e}".split("e")
    return f"{digits}e{int(exponent):+03d}"
