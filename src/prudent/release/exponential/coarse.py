"""A measure on fewer values, for quantiles that need not be exact and data that have many ties.

A value that many records share is one double of 2**63. The measure of all doubles gives it so
little mass that, with few records or a small ε, the answer is likely to be anywhere else. Models
need locations and scales of columns to a few digits, so theirs are doubles of 20 significant bits.
"""

import math
from functools import cached_property

import attrs
import numpy as np
from typing_extensions import override

from prudent.release.exponential.measure import (
    BEFORE,
    MASSES,
    DoubleMeasure,
    doubles,
    ordinals,
)
from prudent.release.lattice import FloatArray, IntArray

_SHIFT = 32  # bits that are dropped: an octave of doubles has 2**52
_OCTAVE = 2 ** (52 - _SHIFT)
_SHORT = _OCTAVE // 64  # every so many values one is short: it has 6 bits
_ZERO = 16 * _OCTAVE


def _kept(places: IntArray) -> IntArray:
    """The index of a double from its number among all doubles: it is rounded toward zero."""
    sizes = np.right_shift(np.maximum(np.abs(places) - 1, 0), _SHIFT) + 1
    return np.asarray(np.sign(places) * sizes)


@attrs.frozen(slots=False)
class CoarseMeasure(DoubleMeasure):
    """Octaves on the doubles of 20 bits; half of an octave is shared by its 64 shortest values.

    Records are rounded toward zero, which keeps their order.
    """

    @cached_property
    @override
    def _ends(self) -> tuple[int, int]:
        ends = (-math.inf, math.inf) if self.bounds is None else self.bounds
        low, high = _kept(ordinals(np.array(ends))).tolist()
        return low, high

    @override
    def indices(self, values: FloatArray) -> IntArray:
        places = _kept(ordinals(np.asarray(values, np.float64)))
        return np.clip(places, self.low, self.high)

    @override
    def value(self, index: int) -> float:
        place = np.sign(index) * (((abs(index) - 1) << _SHIFT) + 1) if index else 0
        return float(doubles(np.array([place]))[0])

    @override
    def below(self, indices: IntArray) -> IntArray:
        places = np.asarray(indices, np.int64)
        positive = places > 0
        octave, within = np.divmod(np.where(positive, places, 1 - places) - 1, _OCTAVE)
        short = _SHORT * (-(-within // _SHORT))
        mass = 2 * BEFORE[octave] * _OCTAVE + MASSES[octave] * (within + short)
        return np.asarray(np.where(positive, _ZERO + mass, -mass))
