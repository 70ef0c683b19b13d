"""Slow references for margins of data sets too large to enumerate (Errata 7).

Where brute force walks through all data sets, these walk through the few that can be nearest: real
data sets, made record by record, at which the statistic itself is evaluated.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

Vector = tuple[int, ...]
Statistic = Callable[[list[int]], int]
"""Of sorted records; it falls for no record that rises."""


def changed(data: list[int], low: int, high: int, changes: int) -> Iterator[list[int]]:
    """Data sets `changes` records away: neighbouring ones removed, and more or fewer at the ends.

    Args:
        data: Sorted records.
        low: The least value a record can have.
        high: The largest one.
        changes: How many records are added or removed in all.
    """
    for removed in range(min(changes, len(data)) + 1):
        for gap in range(len(data) - removed + 1):
            if gap + removed < len(data) and data[gap] == data[gap + removed]:
                continue  # the next gap leaves the same records
            rest = data[:gap] + data[gap + removed :]
            for bottom in range(removed - changes, changes - removed + 1):
                top = changes - removed - abs(bottom)
                for added in {top, -top}:
                    kept = rest[max(0, -bottom) : len(rest) - max(0, -added)]
                    yield [low] * bottom + kept + [high] * added


def sensitivity(statistic: Statistic, data: list[int], low: int, high: int) -> int:
    """The farthest one record moves a monotone statistic: one more or one less, at either end."""
    value = statistic(data)
    farthest = max(abs(statistic([low, *data]) - value), abs(statistic([*data, high]) - value))
    if not data:
        return farthest
    return max(farthest, abs(statistic(data[1:]) - value), abs(statistic(data[:-1]) - value))


def monotone_margins(
    statistic: Statistic,
    data: list[int],
    low: int,
    high: int,
    *,
    proposals: Sequence[int],
    cap: int,
) -> list[int]:
    """For each τ, after how many changes at the least a record moves the statistic by more."""
    margins = [cap] * len(proposals)
    farthest = 0
    for changes in range(cap):
        for other in changed(data, low, high, changes):
            farthest = max(farthest, sensitivity(statistic, other, low, high))
            if farthest > max(proposals):
                break
        margins = [
            min(margin, changes) if farthest > propose else cap
            for margin, propose in zip(margins, proposals, strict=True)
        ]
    return margins


def trimmed_mean_margin(
    data: Sequence[int], trim: int, default: int, low: int, high: int, *, propose: int, cap: int
) -> int:
    """The triple loop of Errata 7, in whole numbers: records added at both ends, and removed."""
    mirrored = sorted(low + high - value for value in data)
    sides = ((sorted(data), default), (mirrored, low + high - default))
    return min(_rise(side, trim, mean, low, high, propose, cap) for side, mean in sides)


def _rise(
    data: Sequence[int], trim: int, default: int, low: int, high: int, propose: int, cap: int
) -> int:
    padded = [low] * cap + list(data) + [high] * (cap + trim + 1)  # ranks from 1 - cap on
    sums = list(itertools.accumulate(padded, initial=0))
    least = cap
    for a, b, leaves in itertools.product(range(cap), range(cap), (0, 1)):
        rank = len(data) - trim + b + 1 - leaves
        entering = padded[rank - 1 + cap] if rank > -cap else low
        for d in range(least - a - b):
            first, last = trim - a + 1, rank - 1 - d
            kept = last - first + 1
            if kept < 0:
                break
            total = sums[last + cap] - sums[first - 1 + cap] if kept else 0
            rise = entering * kept - total if kept else entering - default
            if rise > propose * max(kept * (kept + 1), 1):
                least = a + b + d
                break
    return least


def mode_margin(counts: Sequence[int], *, propose: int, cap: int) -> int:
    """The double loop of Errata 7: all a < b more than τ apart that compete at about h records."""
    least = cap
    for h in range(max(counts) + 2):
        one_above, above, one_below = (
            [max(count - h + change, 0) for count in counts] for change in (1, 0, -1)
        )
        for a, b in itertools.combinations(range(len(counts)), 2):
            if b - a > propose:
                apart = abs(h - counts[a])
                between = sum(above[a + 1 : b])
                equal = sum(one_above[:a]) + between + sum(above[b + 1 :])
                ahead = sum(above[:a]) + between + sum(one_below[b + 1 :])
                least = min(least, apart + abs(h - counts[b]) + equal)
                least = min(least, apart + abs(h + 1 - counts[b]) + ahead)
    return least
