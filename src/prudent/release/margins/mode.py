"""The most frequent value and its margins: over categories, and over the points of a lattice.

| data | value | margin |
|---|---|---|
| empty, categories | None | 0 |
| empty, lattice | the lower end | 0 unless τ >= high - low |
| ties | the smaller value | 0 for categories |
| one category in the data, none public | it | its count - 1: another could come before it |
| one public category only | it | cap: there is nothing else |
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
from prudent.release.mechanism import Outcome, Released


@attrs.frozen
class Unread:
    """A category that is still in the data: it is read after the test has passed.

    Attributes:
        read: Reads it.
    """

    read: Callable[[], Any]


def category_mode(column: Column, categories: Sequence[Any] | None, *, cap: int) -> RobustValue:
    """The most frequent category, and how many records it takes to make it another.

    The margin is n(mode) - n(b) - [b before the mode], at its least over all b (Errata 7). Without
    a public list only the runner-up counts, and among equally frequent ones the first.

    Guarantee: without a public list no value is read, only counts and their order, so nothing that
    is stored decides how the test goes but through its margin. The value is `Unread`.

    Args:
        column: The records.
        categories: The public list of what can occur; others are left out. None: anything can.
        cap: The largest margin worth telling apart.
    """
    if categories is not None:
        return _listed_mode(column, categories, cap=cap)
    leaders = column.leaders()
    # A category that no record has yet could come before the mode.
    before = leaders.runner_up_first or leaders.runner_up == 0
    margin = max(0, leaders.most - leaders.runner_up - int(before))
    return RobustValue((Unread(column.most_frequent),), min(cap, margin), 0)


def _listed_mode(column: Column, categories: Sequence[Any], *, cap: int) -> RobustValue:
    """The mode among public categories, each of which competes, also where no record has it."""
    listed = {in_order(each): each for each in categories}
    values = [listed[key] for key in sorted(listed)]
    counts = column.counts_of(values)
    place = int(np.argmax(counts))  # of the first, among equals
    ahead = counts[place] - counts - (np.arange(len(values)) < place)
    margin = np.min(np.delete(ahead, place), initial=cap)
    return RobustValue((values[place],), int(margin), 0)


def read(outcome: Outcome) -> Outcome:
    """The outcome with its category read from the data, if it was released."""
    if isinstance(outcome, Released) and isinstance(outcome.value, Unread):
        return attrs.evolve(outcome, value=outcome.value.read())
    return outcome


def lattice_mode(column: Column, lattice: Lattice, *, propose: int, cap: int) -> RobustValue:
    """The fullest point, ties to the smaller one, and the exact margin, capped (Errata 7).

    Two points a < b more than τ apart compete when both hold about h records and nothing else holds
    more; the margin is the cheapest way there, over a, b and h.

    Args:
        column: The records.
        lattice: Where values live.
        propose: τ, in steps.
        cap: The largest margin worth telling apart.
    """
    # Every way of cost below the cap has h > largest - cap - 2, and a, b within the cap of h, so
    # that points 2 cap + 3 below the largest count are as good as empty.
    points, counts = column.frequencies(lattice, within=2 * cap + 3)
    value = int(points[np.argmax(counts)]) if len(points) else lattice.low
    largest = int(np.max(counts, initial=0))
    margin = cap
    places, held = _with_empty_places(points, counts, lattice, propose)
    for level in range(max(0, largest - cap - 1), largest + 2):
        margin = min(margin, _cheapest(places, held, level, propose))
    if not lattice.bounded:
        # The end of such a lattice stands for values that it cannot hold. How far its records are
        # from being the most is a margin of its own, and the smaller of two safe margins is safe.
        at_end = (points == lattice.low) | (points == lattice.high)
        others = int(np.max(counts[~at_end], initial=0))
        margin = min(margin, max(0, others - int(np.max(counts[at_end], initial=0))))
    return RobustValue((value,), margin, propose)


def _with_empty_places(
    points: IntArray, counts: IntArray, lattice: Lattice, propose: int
) -> tuple[IntArray, IntArray]:
    """Adds the empty points worth competing for.

    What a competitor costs changes only at points that hold records, and it must be more than τ
    from the other. So the ends, the neighbours of full points, and whatever is just beyond τ from
    any of these are enough.
    """
    near = np.concatenate([[lattice.low, lattice.high], points, points - 1, points + 1])
    near = np.concatenate([near, near + propose + 1, near - propose - 1])
    places = np.unique(near[(near >= lattice.low) & (near <= lattice.high)])
    held = np.zeros(len(places), np.int64)
    held[np.searchsorted(places, points)] = counts
    return places, held


def _cheapest(places: IntArray, held: IntArray, level: int, propose: int) -> int:
    """The least cost of two competitors that hold about `level` records each.

    The sum over all other points splits into a part for each competitor, so the best partner of
    each b is found by a running minimum over the a that are far enough to its left.
    """
    above = [np.maximum(held - level + change, 0) for change in (1, 0, -1)]
    left = [np.cumsum(part) - part for part in above]  # over points before
    right = [np.sum(part) - np.cumsum(part) for part in above]  # over points after
    # Equal counts, a the mode; one more b and it still is not: n_a = n_b = h.
    equal_a = np.abs(level - held) + left[0] + right[1]
    equal_b = np.abs(level - held) - above[1]
    # b one ahead: n_a = h, n_b = h + 1.
    ahead_a = np.abs(level - held) - above[1]
    ahead_b = np.abs(level + 1 - held) + left[1] + right[2]
    partners = np.searchsorted(places, places - propose, side="left")  # places < b - τ
    some = partners > 0
    last = partners[some] - 1
    equal = np.minimum.accumulate(equal_a)[last] + equal_b[some]
    ahead = np.minimum.accumulate(ahead_a)[last] + ahead_b[some]
    return int(np.min(np.concatenate([equal, ahead]), initial=np.iinfo(np.int64).max))
