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

PLAUSIBLE = 2.0**20
"""How far from zero a lattice must reach if no bounds say that the data are nearer."""

_FINENESS = 6  # a proposal is at least 2**6 steps, so rounding it up costs at most 1.6 %
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
    def for_unit(cls, unit: float, bounds: tuple[float, float] | None = None) -> "Lattice":
        """The lattice on which values no more than a unit apart can still be told apart.

        Args:
            unit: The spacing at most, in the unit of the data: 1 for whole numbers or time stamps
                in microseconds, 0.01 for money.
            bounds: Public bounds on the data; None if there are none, and then the ends are
                2**52 steps from zero. At a unit of 1 that holds every time stamp in microseconds
                until the year 2112.
        """
        unit = _validate.positive(unit=unit)
        exponent = math.frexp(unit)[1] - 1
        if not _SMALLEST_EXPONENT <= exponent <= _LARGEST_EXPONENT:
            raise _validate.ArgumentError(
                "unit", "between 1e-288 and 1e289", got=unit, hint="Change the unit of the data."
            )
        free = cls(exponent)
        return free if bounds is None else free._within(*check_bounds(bounds))

    @classmethod
    def for_proposal(cls, propose: float, bounds: tuple[float, float] | None = None) -> "Lattice":
        """The lattice on which a proposal spans 64 to 128 steps.

        Without bounds it reaches 2**45 proposals from zero at the least: as far as time stamps in
        microseconds at a proposal of 50. What lies beyond is moved to the ends, so a lattice that
        ends before `PLAUSIBLE` is refused.

        Args:
            propose: The proposed sensitivity τ, in the unit of the data.
            bounds: Public bounds on the data; None if there are none.
        """
        propose = _validate.positive(propose=propose)
        if not 1e-285 < propose < 1e290:
            raise _validate.ArgumentError(
                "propose",
                "between 1e-285 and 1e290",
                got=propose,
                hint="Change the unit of the data.",
            )
        lattice = cls.for_unit(math.ldexp(propose, -_FINENESS), bounds)
        if bounds is None and lattice.reach < PLAUSIBLE:
            raise _validate.ArgumentError(
                "propose",
                f"at least {least_proposal():.2g} without bounds",
                got=propose,
                why="values are released on a lattice of 2**53 points, which would end at "
                f"±{lattice.reach:g}",
                hint="Propose more, or give public bounds.",
            )
        return lattice

    def _within(self, low: float, high: float) -> "Lattice":
        """This lattice between bounds."""
        if max(abs(low), abs(high)) > self.reach:
            raise _validate.ArgumentError(
                "bounds",
                f"within {self.reach:g} of zero, where a lattice of spacing {self.spacing:g} ends",
                got=(low, high),
                hint="Propose more, or give bounds nearer to zero.",
            )
        first, last = (int(end) for end in self.steps([low, high]))
        if first == last:
            raise _validate.ArgumentError(
                "bounds",
                f"further apart than the lattice's spacing of {self.spacing:g}",
                got=(low, high),
                hint="Propose less, or change the unit of the data.",
            )
        return attrs.evolve(self, low=first, high=last)

    @property
    def spacing(self) -> float:
        """The distance between neighbouring points."""
        return math.ldexp(1.0, self.exponent)

    @property
    def reach(self) -> float:
        """How far from zero values of this spacing can lie, in the unit of the data."""
        return self.value(FARTHEST)

    @property
    def bounded(self) -> bool:
        """Whether the ends are bounds on the data, not just where the lattice has no more points.

        A value at an end that is no bound stands for values that the lattice cannot hold. A margin
        counts the records that keep the answer from there, so that it is refused, not wrong.
        """
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


def least_proposal(bounds: tuple[float, float] | None = None) -> float:
    """The least proposal whose lattice holds the bounds, or without bounds what is plausible."""
    far = PLAUSIBLE if bounds is None else max(map(abs, check_bounds(bounds)))
    mantissa, exponent = math.frexp(far)
    power = exponent - 1 if mantissa == 0.5 else exponent  # the least 2**power from `far` on
    return math.ldexp(1.0, power + _FINENESS) / FARTHEST


def check_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    """Public bounds: two finite numbers in order."""
    try:
        low, high = (float(end) for end in bounds)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise _validate.ArgumentError(
            "bounds", "a pair of finite numbers (low, high) with low < high", got=bounds
        )
    return low, high
