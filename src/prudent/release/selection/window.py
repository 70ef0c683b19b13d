"""The records around a rank, as indices of a base measure, and the counts they determine."""

from fractions import Fraction

import attrs
import numpy as np

from prudent.release.columns.column import Column
from prudent.release.lattice import IntArray
from prudent.release.selection.measure import Measure


@attrs.frozen(eq=False)
class Window:
    """Consecutive order statistics around the target p n of n records. Private.

    A count that the window determines is exact if it is within `reach` of the target. Otherwise
    the true count is on the same side and at least as far away. So distances from the target are
    exact up to `reach`, and at least `reach` where they are not.

    Attributes:
        target: p n in units of 1/unit records, a whole number.
        unit: The denominator of p.
        first: The number of records before the window.
        indices: The index of each record in the window, ascending.
    """

    target: int
    unit: int
    first: int
    indices: IntArray

    @classmethod
    def read(cls, column: Column, measure: Measure, p: Fraction, reach: int) -> "Window":
        """Read the ranks within `reach` of the target, by one count and one range of ranks."""
        target = p.numerator * column.count()
        centre = target // p.denominator
        first = max(0, centre - reach)
        values = column.order_statistics(first + 1, centre + reach + 1)
        return cls(target, p.denominator, first, measure.indices(values))

    def pieces(self, low: int) -> tuple[list[int], list[int]]:
        """Divide all indices into points that hold records and the gaps between them.

        A point whose records have the ranks i, ..., j covers the rank interval [i - 1, j]; a value
        in the gap after it covers [j, j] alone.

        Args:
            low: The least index.

        Returns:
            Where each piece starts, and its distance from the target in units of 1/unit records.
        """
        points, places = np.unique(self.indices, return_index=True)
        ranks = [*places.tolist(), len(self.indices)]
        starts, distances = [low], [abs(self._from_target(self.first))]
        for point, before, upto in zip(points.tolist(), ranks[:-1], ranks[1:], strict=True):
            above = self._from_target(self.first + before)
            below = -self._from_target(self.first + upto)
            starts += [point, point + 1]
            distances += [max(0, above, below), abs(below)]
        return starts, distances

    def depth(self, low: int, high: int) -> int:
        """The number of records by which an interval of indices covers the target, times `unit`.

        It is the lesser of #{records <= high} - p n and p n - #{records < low}. If it is positive,
        the quantile lies in the interval.
        """
        upto = self.first + int(np.searchsorted(self.indices, high, side="right"))
        below = self.first + int(np.searchsorted(self.indices, low, side="left"))
        return min(self._from_target(upto), -self._from_target(below))

    def _from_target(self, count: int) -> int:
        return count * self.unit - self.target
