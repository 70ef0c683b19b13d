"""Public values, such as groups and categories, in the type of a column."""

import math
from collections.abc import Hashable
from typing import Any, TypeAlias

import ibis.expr.datatypes as dt
import numpy as np

from prudent._validate import ArgumentError

PublicValue: TypeAlias = str | bool | int | float

INTEGERS = range(-(2**63), 2**63)
"""The integers that every engine compares with a column of its own."""


def typed(value: Hashable, dtype: dt.DataType, name: str) -> PublicValue:
    """Convert a public value, perhaps given as a string, to the type of a column.

    Raises:
        ValueError: if it cannot be converted.
    """
    given: Any = value.item() if isinstance(value, np.generic) else value
    try:
        if dtype.is_string():
            return str(given)
        if dtype.is_boolean():
            return {"true": True, "false": False}[str(given).lower()]
        if dtype.is_integer() and (number := int(given)) in INTEGERS:
            if not isinstance(given, str) and number != given:
                raise ValueError
            return number
        if dtype.is_floating() and not math.isnan(float(given)):
            return float(given)
    except Exception:  # whatever an object raises that is no such value
        pass
    raise ArgumentError(name, f"of type {dtype}, as the column is", got=value)
