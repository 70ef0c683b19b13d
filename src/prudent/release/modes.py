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

from collections.abc import Sequence
from typing import Any

import numpy as np

from prudent.release.columns_protocol import Column, in_order
from prudent.release.lattice import IntArray, Lattice
from prudent.release.margin import RobustValue


def category_mode(column: Column, categories: Sequence[Any] | None, *, cap: int) -> RobustValue:
    """The most frequent category, and how many records it takes to make it another.

    The margin is n(mode) - n(b) - [b before the mode], at its least over all b (Errata 7): only the
    runner-up counts, and among equally frequent ones the first, which is the second row asked for.

    Args:
        column: The records.
        categories: The public list of what can occur; others are left out. None: anything can.
        cap: The largest margin worth telling apart.
    """
    if categories is not None and len(set(categories)) == 1:
        return RobustValue((categories[0],), cap, 0)
    rows = column.most_frequent(2, categories)
    if not rows:
        return RobustValue((None if categories is None else min(categories, key=in_order),), 0, 0)
    (mode, most), *others = rows
    if others:
        (second, fewer) = others[0]
        before = in_order(second) < in_order(mode)
    else:
        fewer = 0
        before = categories is None or min(map(in_order, categories)) < in_order(mode)
    return RobustValue((mode,), min(cap, most - fewer - int(before)), 0)


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
