"""The public lattice on which records are read and values are released.

Every record is moved to the nearest multiple of a public power of two before anything is computed,
so values, margins and sensitivities are whole numbers of steps: no rounding is left to reason
about, and a released value says nothing through its last bits.
"""

import math

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _validate

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

FARTHEST = 2**52
"""Steps a value may lie from zero: whole numbers up to here are exact in a double."""

_FINENESS = 10  # a proposal is at least 2**10 steps, so rounding it up costs less than 0.1 %
_SMALLEST_EXPONENT, _LARGEST_EXPONENT = -960, 960  # so that every end of a lattice is a double


@attrs.frozen
class Lattice:
    """Multiples of 2**exponent between two ends.

    A record is clipped to the ends first and then moved to the nearest multiple, so rounding is a
    monotone map of each record alone: it keeps the order of records, and one record added or
    removed is still one record added or removed. Infinite values go to the ends.

    Attributes:
        exponent: The spacing is 2**exponent.
        low: The least value, in steps. The default stands for "no bound known".
        high: The largest value, in steps.
    """

    exponent: int
    low: int = -FARTHEST
    high: int = FARTHEST

    def __attrs_post_init__(self) -> None:
        _validate.between(_SMALLEST_EXPONENT, _LARGEST_EXPONENT, exponent=self.exponent)
        if not -FARTHEST <= self.low < self.high <= FARTHEST:
            raise ValueError(
                f"Expected -2**52 <= low < high <= 2**52, got low={self.low}, high={self.high}."
            )

    @classmethod
    def for_proposal(cls, propose: float, bounds: tuple[float, float] | None = None) -> "Lattice":
        """The lattice on which a proposal spans 1024 to 2048 steps.

        Args:
            propose: The proposed sensitivity τ, in the unit of the data.
            bounds: Public bounds on the data; None if there are none, and then the ends are
                2**52 steps from zero, far beyond a trillion proposals.
        """
        propose = _validate.positive(propose=propose)
        exponent = math.frexp(propose)[1] - 1 - _FINENESS
        if not _SMALLEST_EXPONENT <= exponent <= _LARGEST_EXPONENT:
            raise ValueError(
                f"Expected propose between 1e-285 and 1e291, got {propose!r}. "
                "Change the unit of the data."
            )
        free = cls(exponent)
        if bounds is None:
            return free
        low, high = check_bounds(bounds)
        ends = free.steps(np.array([low, high]))
        if ends[0] == ends[1]:
            raise ValueError(
                f"Expected bounds further apart than propose/1024 = {free.spacing:g} and within "
                f"{free.value(FARTHEST):g} of zero, got {bounds!r}. Propose less, or change the "
                "unit of the data."
            )
        return cls(exponent, int(ends[0]), int(ends[1]))

    @property
    def spacing(self) -> float:
        """The distance between neighbouring points."""
        return math.ldexp(1.0, self.exponent)

    @property
    def bounded(self) -> bool:
        """Whether an end is nearer than any value could be."""
        return (self.low, self.high) != (-FARTHEST, FARTHEST)

    @property
    def diameter(self) -> int:
        """From end to end, in steps: the global sensitivity of a quantile."""
        return self.high - self.low

    def steps(self, values: npt.ArrayLike) -> IntArray:
        """Moves values to the lattice: floor(x/spacing + 1/2) of x clipped to the ends."""
        inside = np.clip(
            np.asarray(values, np.float64), self.value(self.low), self.value(self.high)
        )
        return np.floor(np.ldexp(inside, -self.exponent) + 0.5).astype(np.int64)

    def steps_of_proposal(self, propose: float) -> int:
        """A sensitivity in whole steps, rounded up.

        Rounding to the nearest point commutes with moving by whole steps, so two values within
        `propose` of each other stay within this many steps when both are rounded.
        """
        return math.ceil(math.ldexp(_validate.positive(propose=propose), -self.exponent))

    def value(self, steps: int) -> float:
        """A point of the lattice, in the unit of the data."""
        return math.ldexp(float(steps), self.exponent)


def check_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    """Public bounds: two finite numbers in order."""
    try:
        low, high = (float(end) for end in bounds)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(
            f"Expected bounds a pair of finite numbers (low, high) with low < high, got {bounds!r}."
        )
    return low, high
