"""Bounds in a few digits, rounded so that what is shown is still a bound."""

import decimal
import math


def rounded_up(value: float, digits: int = 5) -> str:
    """A bound from above, in so many significant digits."""
    return _rounded(value, digits, decimal.ROUND_CEILING)


def rounded_down(value: float, digits: int = 5) -> str:
    """A bound from below, or what is left of something, in so many significant digits."""
    return _rounded(value, digits, decimal.ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    if math.isinf(value):
        return "∞"
    return f"{decimal.Context(prec=digits, rounding=rounding).create_decimal(value):g}"
