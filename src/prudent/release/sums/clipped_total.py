"""The exact sum of values clipped to bounds, and its sensitivity."""

import math

import attrs

from prudent.release.columns.column import Column
from prudent.release.lattice import Lattice, check_bounds
from prudent.release.outcome import NoiseSpread
from prudent.release.sums.additive import AdditiveMechanism

_BITS = 31  # the sensitivity is 2**31 to 2**32 steps, so rounding a record is negligible


@attrs.frozen
class ClippedTotal:
    """The sum of a column of values clipped to bounds, in steps of a lattice.

    Guarantee:
        `sensitivity` bounds the change of what `read` returns when `records` records are added or
        removed: each contributes a whole number of steps between the ends of the lattice.

    Attributes:
        lattice: The lattice, which ends at the bounds.
        records: The largest number of records of one privacy unit.
    """

    lattice: Lattice
    records: int = 1

    @classmethod
    def between(cls, bounds: tuple[float, float], records: int = 1) -> "ClippedTotal":
        """Return the total of values clipped to these bounds, on a fine lattice."""
        low, high = check_bounds(bounds)
        farther = max(abs(low), abs(high)) * records
        return cls(Lattice.for_unit(math.ldexp(farther, -_BITS), (low, high)), records)

    @property
    def sensitivity(self) -> int:
        """How far one unit moves the sum, in steps: by the bound that is farther from zero."""
        return self.records * max(abs(self.lattice.low), abs(self.lattice.high))

    def read(self, column: Column) -> int:
        """The exact sum, in steps."""
        lattice = self.lattice
        return column.clipped_sum(lattice.value(lattice.low), lattice.value(lattice.high), lattice)

    def spread(self, mechanism: AdditiveMechanism) -> NoiseSpread:
        """The spread of the noisy sum."""
        spacing = self.lattice.spacing
        return NoiseSpread(
            mechanism.distribution, mechanism.scale(self.sensitivity) * spacing, spacing
        )
