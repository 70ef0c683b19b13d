"""The records of all groups together: what groups share is found once, from all of them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from prudent.release.columns.column import Column, Contribution
from prudent.release.columns.scales import Scale
from prudent.release.columns.sql.query_batching import together
from prudent.release.lattice import FloatArray, IntArray, Lattice


@attrs.frozen(eq=False, repr=False)  # its text would quote records
class Pool:
    """The columns of all groups as one: each count is the sum of the counts of the groups.

    Guarantee:
        A unit is in at most `groups_per_unit` groups, with at most `contribution.records` records
        of each column: so many times more in the pool, which its own `contribution` says. A release
        from the pool, calibrated to it, and one from each group then cost together what the first
        costs, and so many times what one group costs.
    """

    columns: Sequence[Any]  # of all groups
    groups_per_unit: int = 1  # the largest number of groups that one unit is in

    @property
    def scale(self) -> Scale:
        """See `Column`; all groups have the same."""
        found: Scale = self.columns[0].scale
        return found

    @property
    def contribution(self) -> Contribution:
        """See `Column`."""
        own: Contribution = self.columns[0].contribution
        if self.groups_per_unit == 1:
            return own
        return attrs.evolve(own, per_unit=own.records * self.groups_per_unit)

    def second(self) -> "Pool":
        """The pool of the second columns of pairs."""
        return attrs.evolve(self, columns=[column.second for column in self.columns])

    def count(self) -> int:
        """See `Column`."""
        return sum(self._each(lambda column: column.count()))

    def counts_below(self, edges: FloatArray) -> IntArray:
        """See `Column`."""
        return np.asarray(sum(self._each(lambda column: column.counts_below(edges))))

    def half_octaves(self) -> tuple[IntArray, IntArray]:
        """See `Column`."""
        return _added_up(self._each(lambda column: column.half_octaves()))

    def frequencies(self, lattice: Lattice, within: int) -> tuple[IntArray, IntArray]:
        """See `Column`; every point of a group is read, since few records of each may be many."""
        every = self._each(lambda column: column.frequencies(lattice, within=2**62))
        places, counts = _added_up(every)
        fullest = counts > np.max(counts, initial=0) - within
        return places[fullest], counts[fullest]

    def _each(self, read: Callable[[Column], Any]) -> list[Any]:
        """What is read of each group, by one query for all of them."""
        return together([functools.partial(read, column) for column in self.columns])


def _added_up(found: Sequence[tuple[IntArray, IntArray]]) -> tuple[IntArray, IntArray]:
    """The places that hold records in any group, ascending, and how many each holds in all."""
    places = np.concatenate([each for each, _ in found])
    different, where = np.unique(places, return_inverse=True)
    counts = np.zeros(len(different), np.int64)
    np.add.at(counts, where, np.concatenate([each for _, each in found]))
    return different, counts
