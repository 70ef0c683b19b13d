"""Numerical helpers for the closed forms, without cancellation or overflow, rounded safely."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prudent import _validate

Array: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = np.float64 | Array
"""A result type: a number for a number, an array for an array."""


def orders(order: ArrayLike) -> Array:
    """Return Rényi orders as an array; raise ValueError unless all are finite and above one."""
    array = np.asarray(order, dtype=np.float64)
    if array.size:
        _validate.between(1, math.inf, ends="()", order=array.min())
        _validate.between(1, math.inf, ends="()", order=array.max())
    return array


def each(
    function: Callable[[Array], Array], low: float, high: float, **argument: ArrayLike
) -> float | Array:
    """Apply a function of a vector to a number, giving a float, or to an array of any shape.

    Every number is checked to be in [low, high]. The function gets each distinct one once.
    """
    ((name, value),) = argument.items()
    try:
        numbers = np.asarray(value, dtype=object)
    except Exception:  # whatever an object raises that is no array
        raise _validate.ArgumentError(name, "a number or an array of numbers", got=value) from None
    checked = [_validate.between(low, high, **{name: number}) for number in numbers.flat]
    distinct, places = np.unique(np.array(checked, dtype=np.float64), return_inverse=True)
    if not len(distinct):
        return np.zeros(numbers.shape)
    found = function(distinct)[places]
    return float(found[0]) if numbers.ndim == 0 else found.reshape(numbers.shape)


def log_sum(exponents: Array) -> Array:
    """The logarithm of Σ e^exponent along the last axis; scipy's has ten times the overhead."""
    peak = exponents.max(axis=-1)
    safe = np.where(np.isfinite(peak), peak, 0.0)
    with np.errstate(divide="ignore", over="ignore"):
        return np.asarray(safe + np.log(np.exp(exponents - safe[..., None]).sum(axis=-1)))


def float_above(value: Fraction | float) -> float:
    """The least float that is not below a number."""
    number = float(value)
    return number if number >= value else math.nextafter(number, math.inf)


def float_below(value: Fraction | float) -> float:
    """The largest float that is not above a number."""
    number = float(value)
    return number if number <= value else math.nextafter(number, -math.inf)


def float_share(value: float, parts: int) -> float:
    """A share of a number, of which `parts` are not above it, however they are rounded and added.

    The share falls short of an equal one by a few units of rounding, unless it is the whole.
    """
    return value if parts == 1 else float_below(Fraction(value) * (1 - Fraction(1, 2**50)) / parts)


def expm1_minus(x: Array) -> Array:
    """Compute exp(x) - 1 - x to full relative precision, also near zero."""
    small = np.abs(x) < 0.5
    near = np.where(small, x, 0.0)
    series = np.zeros_like(near)
    for k in range(15, 1, -1):
        series = (series + 1.0) * near / k
    with np.errstate(over="ignore"):
        return np.where(small, series * near, np.expm1(x) - x)


def smallest(
    holds: Callable[[Array], NDArray[np.bool_]],
    low: ArrayLike,
    high: ArrayLike,
    *,
    steps: int = 64,
) -> Array:
    """Find, by bisection, the least argument at which a monotone condition holds, rounded up.

    Args:
        holds: The condition, elementwise; false below some point and true from there on.
        low: Lower ends, returned unchanged where the condition already holds.
        high: Upper ends, at which the condition is known to hold.
        steps: The number of bisection steps.

    Returns:
        Arguments at which the condition was verified (or is known) to hold: never below the root.
    """
    lower, upper = np.broadcast_arrays(
        np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    )
    upper = np.where(holds(lower), lower, upper)
    for _ in range(steps):
        middle = lower + (upper - lower) / 2
        reached = holds(middle)
        upper = np.where(reached, middle, upper)
        lower = np.where(reached, lower, middle)
    return upper
