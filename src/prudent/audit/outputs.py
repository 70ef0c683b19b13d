"""Outputs of any kind as a category and a list of numbers, from which a score can be learned.

| output | category | numbers |
| --- | --- | --- |
| a number, a date, a duration | its type | itself |
| a text, a truth value, None, a member of an enumeration | itself | |
| NaN or an infinity | itself | |
| a tuple, a list, an array | those of its entries | those of its entries |
| a mapping | its keys, and the categories of its values | those of its values |
| `Released`, `Refused`, `Histogram`, `Description` | as the mapping that its `plain()` returns | |
"""

import datetime as dt
import decimal
import enum
import fractions
import math
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from prudent._validate import ArgumentError

Described = tuple[Hashable, tuple[float, ...]]

_UNTOLD = frozenset({"notes", "epsilon", "delta", "mechanism"})
"""What an outcome says of itself besides what it releases."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def described(output: Any) -> Described:
    """Return the category of an output and its numbers.

    Raises:
        ArgumentError: if it is of a kind that is not in the table above.
    """
    match output:
        case bool() | np.bool_():
            return ("truth", bool(output)), ()
        case None | str() | bytes() | enum.Enum():
            return (type(output).__name__, output), ()
        case int() | float() | np.number() | decimal.Decimal() | fractions.Fraction():
            return _number(output)
        case dt.datetime():
            aware = output if output.tzinfo else output.replace(tzinfo=dt.UTC)
            return "time", ((aware - _EPOCH) / dt.timedelta(seconds=1),)
        case dt.date():
            return "date", (float(output.toordinal()),)
        case dt.timedelta():
            return "duration", (output / dt.timedelta(seconds=1),)
        case Mapping():
            told = {key: each for key, each in output.items() if key not in _UNTOLD}
            kind, numbers = _entries(list(told.values()))
            return (tuple(map(str, told)), kind), numbers
        case list() | tuple() | np.ndarray():
            return _array(output)
    if hasattr(output, "plain"):
        return described(output.plain())
    if hasattr(output, "__array__"):
        return _array(np.asarray(output))
    raise ArgumentError(
        "mechanism",
        "to return a number, a text, an array, an outcome, or tuples and mappings of these",
        shown=f"an object of type {type(output).__name__}",
        hint="Give score=, a function from an output to a number.",
    )


def _number(output: Any) -> Described:
    try:
        number = float(output)
    except OverflowError:
        number = math.inf if output > 0 else -math.inf
    return ("number", (number,)) if math.isfinite(number) else (("number", str(number)), ())


def _array(output: Any) -> Described:
    array = np.asarray(output) if isinstance(output, np.ndarray) else None
    if array is not None and array.dtype.kind in "iufb" and np.all(np.isfinite(array)):
        return ("array", array.shape), tuple(array.astype(np.float64).ravel().tolist())
    return _entries(list(output))


def _entries(entries: list[Any]) -> Described:
    found = [described(each) for each in entries]
    return tuple(kind for kind, _ in found), tuple(n for _, numbers in found for n in numbers)
