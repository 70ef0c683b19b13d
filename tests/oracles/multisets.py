"""Brute force for margins: every small data set, every neighbour, breadth-first search.

A data set over {0, ..., top} is the tuple of how often each value occurs. Neighbours differ by one
record. The margin of a statistic for τ is the distance to the nearest data set that has a neighbour
at which the statistic differs by more than τ.
"""

import functools
from collections.abc import Callable
from fractions import Fraction

Counts = tuple[int, ...]
Statistic = Callable[[list[int]], Fraction | int]


@functools.cache
def data_sets(size: int, top: int = 4) -> list[Counts]:
    """All multisets of at most `size` records over {0, ..., top}."""
    if top < 0:
        return [()]
    return [
        (count, *rest) for count in range(size + 1) for rest in data_sets(size - count, top - 1)
    ]


def records(counts: Counts) -> list[int]:
    """The sorted records of a data set."""
    return [value for value, count in enumerate(counts) for _ in range(count)]


def neighbours(counts: Counts) -> list[Counts]:
    """All data sets with one record more or one less."""
    found = []
    for place, count in enumerate(counts):
        for change in (-1, 1):
            if count + change >= 0:
                found.append((*counts[:place], count + change, *counts[place + 1 :]))
    return found


class Graph:
    """All data sets up to a size, with the local sensitivity of one statistic at each."""

    def __init__(self, statistic: Statistic, size: int, top: int = 4) -> None:
        values = {counts: statistic(records(counts)) for counts in data_sets(size + 1, top)}
        self.sensitivity = {
            counts: max(abs(values[counts] - values[other]) for other in neighbours(counts))
            for counts in data_sets(size, top)
        }

    def margins(self, propose: Fraction | int) -> dict[Counts, int]:
        """Distance of every data set to the nearest too sensitive one; none if there is none."""
        distance = {c: 0 for c, sensitivity in self.sensitivity.items() if sensitivity > propose}
        frontier = list(distance)
        while frontier:
            following = []
            for counts in frontier:
                for other in neighbours(counts):
                    if other in self.sensitivity and other not in distance:
                        distance[other] = distance[counts] + 1
                        following.append(other)
            frontier = following
        return distance
