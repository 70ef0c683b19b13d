"""Exact sums of whole steps, and of their squares, in arrays; and the limbs engines add instead.

An engine adds 64-bit integers, and some fail when a sum overflows. So each step is split into limbs
of a few bits: sums of limbs, or of products of two limbs, stay below 2**62 for up to 2**36 records.
The number of limbs follows from public ends alone.
"""

import math

import numpy as np

from prudent._validate import ArgumentError
from prudent.release.lattice import IntArray, Lattice

LIMB = 26
"""Bits of a limb that is added."""

FACTOR = 13
"""Bits of a limb that is multiplied by another before it is added."""

_HALF = 32


def ends_in_steps(lattice: Lattice, low: float, high: float) -> tuple[int, int]:
    """Return two values in steps of the lattice.

    Rounding is monotone, so clipping steps to these ends is the same as rounding clipped values.

    Raises:
        ArgumentError: if they are not in order.
    """
    if not low <= high:
        raise ArgumentError("low", "at most high", got=(low, high))
    first, last = lattice.steps([low, high]).tolist()
    return int(first), int(last)


def limbs(span: int, bits: int) -> int:
    """The number of limbs of an integer in 0..span; at least one."""
    return max(1, math.ceil(span.bit_length() / bits))


def sum_of(steps: IntArray) -> int:
    """The exact sum of integers: two halves of 32 bits each, so that neither sum overflows."""
    lower = (1 << _HALF) - 1
    return (int(np.sum(steps >> _HALF)) << _HALF) + int(np.sum(steps & lower))


def sum_of_squares(distances: IntArray) -> int:
    """The exact sum of the squares of integers in 0..2**53."""
    bits = 27
    upper, lower = distances >> bits, distances & ((1 << bits) - 1)
    return (
        (sum_of(upper * upper) << (2 * bits))
        + (sum_of(upper * lower) << (bits + 1))
        + sum_of(lower * lower)
    )


def about(origin: int, *, count: int, total: int, squares: int) -> int:
    """The sum of (x - origin)² for `count` integers with this sum and sum of squares."""
    return squares - 2 * origin * total + count * origin * origin
