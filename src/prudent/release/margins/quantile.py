"""Safety margins of quantiles: the distance, in records, to data of high local sensitivity.

A margin D is *safe* for a proposal τ when |D(S) - D(S')| <= 1 for data sets that differ by one
added or removed record, and D(S) = 0 wherever one record can move the statistic by more than τ
(Errata 2.1). The margin of a quantile here is the exact distance to such data (Errata 7), and
therefore the largest safe margin.

Values are whole steps of a public lattice, so every comparison is exact. A margin matters only up
to a public cap slightly above the threshold of the test: min(D, cap) is as safe as D, and can be
computed from the ranks within `cap` of the quantile's rank.

| data | value | margin |
|---|---|---|
| empty | the lower end | 0 |
| ties and duplicates | counted one by one | counted one by one |
| p = 1 | the maximum | distance to the upper end's gap |
| p = 0 | error: no record has rank 0 | |
| τ >= high - low | as usual | cap: no data set is sensitive |
| no bounds | as usual; the ends lie 2**52 steps from zero | 0 where the quantile is at an end |
| values beyond the ends, infinite ones | moved to the ends | as usual |
| NaN, no value | not a record | |
"""

import math
from fractions import Fraction
from typing import Any

import attrs
import numpy as np

from prudent._validate import ArgumentError
from prudent.release.columns.column import Column
from prudent.release.failures import SourceError
from prudent.release.lattice import IntArray, Lattice

HALF = Fraction(1, 2)

_LARGEST_DENOMINATOR = 10**6  # ranks times this number must fit into 64 bits


@attrs.frozen
class RobustValue:
    """A statistic of the data and its safety margin. Private: it must not be published.

    Attributes:
        value: The statistic in steps of the lattice, one entry per coordinate; or a single
            category.
        margin: A safe margin for `sensitivity`, at most the requested cap.
        sensitivity: The largest change by one record while the margin is positive, in steps.
    """

    value: tuple[Any, ...]
    margin: int
    sensitivity: int


@attrs.frozen(eq=False)
class Window:
    """Order statistics of consecutive ranks, in steps, padded with the ends of the lattice.

    Attributes:
        first: The rank of the first value; ranks below 1 hold the lower end.
        values: The values in ascending order; ranks beyond the last record hold the upper end.
    """

    first: int
    values: IntArray

    @classmethod
    def of(cls, column: Column, lattice: Lattice, first: int, last: int) -> "Window":
        """Read the ranks that exist from the column, and pad the others."""
        count = column.count()
        inside = lattice.steps(column.order_statistics(first, last))
        if len(inside) != max(0, min(last, count) - max(first, 1) + 1):
            raise SourceError("The column changed while it was read. Read from a snapshot of it.")
        below = max(0, min(last, 0) - first + 1)
        above = max(0, last - max(first, count + 1) + 1)
        return cls(
            first, np.pad(inside, (below, above), constant_values=(lattice.low, lattice.high))
        )

    def at(self, rank: int | IntArray) -> IntArray:
        """The values of these ranks."""
        return np.asarray(self.values[np.asarray(rank) - self.first])

    @property
    def ranks(self) -> IntArray:
        """The ranks of the values."""
        return np.arange(self.first, self.first + len(self.values))


def rational(p: float | Fraction | str) -> Fraction:
    """Convert the probability of a quantile to the fraction that its decimals denote: 0.1 is 1/10.

    Raises:
        ValueError: if it is not in (0, 1], or its denominator is above 10**6.
    """
    try:
        exact = Fraction(str(p)) if isinstance(p, float) else Fraction(p)
    except Exception:  # whatever an object raises that is no number
        exact = Fraction(0)
    if not 0 < exact <= 1 or exact.denominator > _LARGEST_DENOMINATOR:
        raise ArgumentError(
            "p",
            "in (0, 1], a fraction with at most six decimals",
            got=p,
            hint="The minimum is minus the maximum of the negated column.",
        )
    return exact


def quantile(
    column: Column, lattice: Lattice, p: Fraction, *, propose: int, cap: int, more: int = 0
) -> RobustValue:
    """Return the value of rank ceil(p m) and its exact margin, capped.

    Args:
        column: The records.
        lattice: The lattice that records are rounded to.
        p: The probability, in (0, 1], exact.
        propose: τ, in steps.
        cap: The largest margin that needs to be distinguished.
        more: Ranks to read on either side beyond those that are needed.
    """
    count = column.count()
    rank = math.ceil(p * count)
    # Every gap with a cost below the cap lies within these ranks. A gap right of rank L with I
    # records in it has t = p(m - I) - L, and d(t) >= |t|/P - 1, P = max(p, 1 - p). So a cost
    # I + d(t) <= cap - 1 implies |t| <= P (cap - I). As p <= P and 1 - p <= P, it follows that
    # L >= pm - P cap > rank - 1 - cap and R = L + I + 1 <= pm + P cap + 1 <= rank + cap + 1.
    window = Window.of(column, lattice, max(0, rank - cap - more), rank + cap + more + 1)
    if p == HALF:
        margin = _median_margin(window, count, propose, cap)
    else:
        margin = _quantile_margin(window, count, p, propose, cap)
    if not lattice.bounded:
        margin = min(margin, _to_an_end(window, lattice, count, p))
    return RobustValue((int(window.at(rank)),), margin, propose)


def _median_margin(window: Window, count: int, propose: int, cap: int) -> int:
    """The least r with x_(floor((m+r)/2)+1) - x_(ceil((m-1-r)/2)) > τ, or cap (Errata 7)."""

    def sensitive(changes: int) -> bool:
        upper = min((count + changes) // 2 + 1, count + 1)
        lower = max(-((changes + 1 - count) // 2), 0)
        return bool(window.at(upper) - window.at(lower) > propose)

    low, high = 0, cap
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if sensitive(middle) else (middle + 1, high)
    return low


def _quantile_margin(window: Window, count: int, p: Fraction, propose: int, cap: int) -> int:
    """The cost of the cheapest gap wider than τ, over all left ends (Errata 7).

    A gap between ranks L < R is emptied by removing the I = R - L - 1 records in it; d(t) more
    changes, t = p(m - I) - L, move the quantile to this gap. One more record in the gap lowers t by
    p, and d by at most 1, so for each L the least R that is wide enough is best. t is stored as an
    integer, multiplied by the denominator of p.
    """
    left = window.ranks
    place = np.searchsorted(window.values, window.values + propose, side="right")
    found = place < len(left)
    left, right = left[found], window.first + place[found]
    inside = right - left - 1
    unit = max(p.numerator, p.denominator - p.numerator)
    t = p.numerator * (count - inside) - p.denominator * left
    too_far_right = np.maximum(0, -(-t // unit) - 1)
    too_far_left = np.maximum(0, -t // unit)
    return int(np.min(inside + too_far_right + too_far_left, initial=cap))


def _to_an_end(window: Window, lattice: Lattice, count: int, p: Fraction) -> int:
    """The least number of changes that move the quantile to an end of the lattice.

    The quantile lies at the upper end if t = pm - L > 0 for the L records below that end, and at
    the lower end if t <= 0 for the L records there. One record changes t by at most P. So this
    number is itself a safe margin, and the smaller of two safe margins is safe. Where the window
    holds no such record, L is only bounded; that suffices, since the result then exceeds the cap.
    """
    unit = max(p.numerator, p.denominator - p.numerator)
    below = window.first + int(np.searchsorted(window.values, lattice.high, side="left")) - 1
    above_zero = p.numerator * count - p.denominator * below
    upper = 0 if above_zero > 0 else -above_zero // unit + 1
    at_low = window.first + int(np.searchsorted(window.values, lattice.low, side="right")) - 1
    lower = max(0, -((p.denominator * at_low - p.numerator * count) // unit))
    return min(upper, lower)


def interquartile_range(column: Column, lattice: Lattice, *, propose: int, cap: int) -> RobustValue:
    """Return Q(3/4) - Q(1/4) and the smaller of the margins of the two quartiles.

    If both quartiles move, they move in the same direction, so their difference moves by no more
    than one of them: the smaller margin is safe, and at most one below the exact one (Errata 7).

    The two windows of ranks are never the same, not even those of one record: a column that
    remembers a window would otherwise ask its engine once or twice, depending on the records.
    """
    lower = quantile(column, lattice, Fraction(1, 4), propose=propose, cap=cap)
    upper = quantile(column, lattice, Fraction(3, 4), propose=propose, cap=cap, more=1)
    value = upper.value[0] - lower.value[0]
    return RobustValue((value,), min(lower.margin, upper.margin), propose)
