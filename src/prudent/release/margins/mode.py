"""The mode and its margins, over categories and over the points of a lattice.

| data | value | margin |
|---|---|---|
| empty, categories | None | 0 |
| empty, lattice | the lower end | 0 unless τ >= high - low |
| ties | the smaller value | 0 for categories |
| one category in the data, no public list | it | its count - 1: another could come before it |
| a public list of one category | it | cap: no other value is possible |
| no bounds | as usual | at most the distance to data whose mode is at an end |
| τ >= high - low | as usual | cap |
"""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from prudent.release.columns.column import Column, in_order
from prudent.release.lattice import IntArray, Lattice
from prudent.release.margins.quantile import RobustValue
from prudent.release.outcome import Outcome, Released


@attrs.frozen
class Unread:
    """A category that has not been read yet; it is read only after the test has passed.

    Attributes:
        read: Reads the category from the data.
    """

    read: Callable[[], Any]


def category_mode(column: Column, categories: Sequence[Any] | None, *, cap: int) -> RobustValue:
    """Return the most frequent category and its margin.

    The margin is the minimum of n(mode) - n(b) - [b before the mode] over all other b (Errata 7).
    Without a public list only the runner-up matters and, among equally frequent ones, the first in
    order.

    Guarantee: without a public list no value is read, only counts and their order, so stored values
    affect the test only through the margin. The returned value is `Unread`.

    Args:
        column: The records.
        categories: The public list of possible categories; records with other values are ignored.
            None: any category is possible.
        cap: The largest margin that needs to be distinguished.
    """
    if categories is not None:
        return _listed_mode(column, categories, cap=cap)
    leaders = column.leaders()
    # A category that is not in the data could come before the mode in order.
    before = leaders.runner_up_first or leaders.runner_up == 0
    margin = max(0, leaders.most - leaders.runner_up - int(before))
    return RobustValue((Unread(column.most_frequent),), min(cap, margin), 0)


def _listed_mode(column: Column, categories: Sequence[Any], *, cap: int) -> RobustValue:
    """Return the mode among public categories, including those that no record has."""
    listed = {in_order(each): each for each in categories}
    values = [listed[key] for key in sorted(listed)]
    counts = column.counts_of(values)
    place = int(np.argmax(counts))  # the first in order among ties
    ahead = counts[place] - counts - (np.arange(len(values)) < place)
    margin = np.min(np.delete(ahead, place), initial=cap)
    return RobustValue((values[place],), int(margin), 0)


def read(outcome: Outcome) -> Outcome:
    """Return the outcome; if a category was released, read it from the data."""
    if isinstance(outcome, Released) and isinstance(outcome.value, Unread):
        return attrs.evolve(outcome, value=outcome.value.read())
    return outcome


def lattice_mode(column: Column, lattice: Lattice, *, propose: int, cap: int) -> RobustValue:
    """Return the fullest point (ties: the smaller one) and its exact margin, capped (Errata 7).

    One record can move the mode by more than τ when two points a < b more than τ apart both hold
    about h records and no other point holds more. The margin is the least number of changes that
    lead to such data, over a, b and h.

    Args:
        column: The records.
        lattice: The lattice that records are rounded to.
        propose: τ, in steps.
        cap: The largest margin that needs to be distinguished.
    """
    # Every choice of cost below the cap has h > largest - cap - 2, and a, b within the cap of h, so
    # points whose count is 2 cap + 3 below the largest may be treated as empty.
    points, counts = column.frequencies(lattice, within=2 * cap + 3)
    value = int(points[np.argmax(counts)]) if len(points) else lattice.low
    largest = int(np.max(counts, initial=0))
    margin = cap
    places, held = _with_empty_places(points, counts, lattice, propose)
    for level in range(max(0, largest - cap - 1), largest + 2):
        margin = min(margin, _cheapest(places, held, level, propose))
    if not lattice.bounded:
        # The ends of such a lattice stand for values that it cannot represent. The number of
        # changes until an end is the mode is itself a safe margin, and the smaller of two safe
        # margins is safe.
        at_end = (points == lattice.low) | (points == lattice.high)
        others = int(np.max(counts[~at_end], initial=0))
        margin = min(margin, max(0, others - int(np.max(counts[at_end], initial=0))))
    return RobustValue((value,), margin, propose)


def _with_empty_places(
    points: IntArray, counts: IntArray, lattice: Lattice, propose: int
) -> tuple[IntArray, IntArray]:
    """Add the empty points that can be the best competitors.

    The cost of a competitor changes only at points that hold records, and the two competitors must
    be more than τ apart. So it suffices to add the ends, the neighbours of non-empty points, and
    the points just beyond τ from any of these.
    """
    near = np.concatenate([[lattice.low, lattice.high], points, points - 1, points + 1])
    near = np.concatenate([near, near + propose + 1, near - propose - 1])
    places = np.unique(near[(near >= lattice.low) & (near <= lattice.high)])
    held = np.zeros(len(places), np.int64)
    held[np.searchsorted(places, points)] = counts
    return places, held


def _cheapest(places: IntArray, held: IntArray, level: int, propose: int) -> int:
    """The least cost of making two competitors hold about `level` records each.

    The sum over all other points splits into one part per competitor, so the best partner of each b
    is found by a running minimum over the points a that are far enough to its left.
    """
    above = [np.maximum(held - level + change, 0) for change in (1, 0, -1)]
    left = [np.cumsum(part) - part for part in above]  # sums over the points before
    right = [np.sum(part) - np.cumsum(part) for part in above]  # sums over the points after
    # Equal counts, n_a = n_b = h: a is the mode, and one more record at b makes b the mode.
    equal_a = np.abs(level - held) + left[0] + right[1]
    equal_b = np.abs(level - held) - above[1]
    # b is ahead by one: n_a = h, n_b = h + 1.
    ahead_a = np.abs(level - held) - above[1]
    ahead_b = np.abs(level + 1 - held) + left[1] + right[2]
    partners = np.searchsorted(places, places - propose, side="left")  # places < b - τ
    some = partners > 0
    last = partners[some] - 1
    equal = np.minimum.accumulate(equal_a)[last] + equal_b[some]
    ahead = np.minimum.accumulate(ahead_a)[last] + ahead_b[some]
    return int(np.min(np.concatenate([equal, ahead]), initial=np.iinfo(np.int64).max))
