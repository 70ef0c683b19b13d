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

The mode, over categories:

| data | value | margin |
|---|---|---|
| empty | None | 0 |
| ties | the smaller value | 0 |
| one category in the data, no public list | it | its count - 1: another could come before it |
| a public list of one category | it | cap: no other value is possible |
"""

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import attrs
import numpy as np

from prudent import _validate
from prudent._rounding import nearest
from prudent._validate import ArgumentError
from prudent.release.columns.column import Column, SourceError, in_order
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
    """Order statistics of consecutive ranks, in steps, padded with the ends of the lattice."""

    first: int  # the rank of the first value; ranks below 1 hold the lower end
    # The values in ascending order; ranks beyond the last record hold the upper end.
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


def title(p: Fraction) -> str:
    """A quantile in words."""
    return "median" if p == HALF else f"{nearest(float(p), 6)}-quantile"


def rational(p: float | Fraction | str, name: str = "p") -> Fraction:
    """The exact fraction that the decimals of a probability denote: 0.1 is 1/10."""
    try:
        # Twelve decimals: the 0.30000000000000004 of a sum is the 0.3 that was meant.
        exact = Fraction(str(round(p, 12))) if isinstance(p, float) else Fraction(p)
    except Exception:  # whatever an object raises that is no number
        exact = Fraction(-1)
    if not 0 < exact <= 1 or exact.denominator > _LARGEST_DENOMINATOR:
        hint = "Ask for the minimum, or a small quantile." if exact == 0 else ""
        if 1 < exact <= 100:
            hint = f"For {nearest(float(exact), 6)} % give {nearest(float(exact) / 100, 6)}."
        raise ArgumentError(
            name, "in (0, 1], a fraction with at most six decimals", got=p, hint=hint
        )
    return exact


def quantile(
    column: Column, lattice: Lattice, p: Fraction, *, propose: int, cap: int, more: int = 0
) -> RobustValue:
    """Return the value of rank ceil(p m) and its exact margin, capped."""
    count = column.count()
    rank = math.ceil(p * count)
    # Every gap with a cost below the cap lies within these ranks. A gap right of rank L with I
    # records in it has t = p(m - I) - L, and d(t) >= |t|/P - 1, P = max(p, 1 - p). So a cost
    # I + d(t) <= cap - 1 implies |t| <= P (cap - I). As p <= P and 1 - p <= P, it follows that
    # L >= pm - P cap > rank - 1 - cap and R = L + I + 1 <= pm + P cap + 1 <= rank + cap + 1.
    window = Window.of(column, lattice, max(0, rank - cap - more), rank + cap + more + 1)
    margin = _quantile_margin(window, count, p, propose, cap)
    if not lattice.bounded:
        margin = min(margin, _to_an_end(window, lattice, count, p))
    return RobustValue((int(window.at(rank)),), margin, propose)


def _quantile_margin(window: Window, count: int, p: Fraction, propose: int, cap: int) -> int:
    """The cost of the cheapest gap wider than τ, over all left ends (Errata 7).

    A gap between ranks L < R is emptied by removing the I = R - L - 1 records in it; d(t) more
    changes, t = p(m - I) - L, move the quantile to this gap. One more record in the gap lowers t by
    p, and d by at most 1, so for each L the least R that is wide enough is best. t is stored as an
    integer, multiplied by the denominator of p.
    """
    left = np.arange(window.first, window.first + len(window.values))
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


@attrs.frozen
class Unread:
    """A category that has not been read yet; it is read only after the test has passed."""

    read: Callable[[], Any]  # reads the category from the data


def read(value: Any) -> Any:
    """A value that was released; a category is read from the data only now."""
    return value.read() if isinstance(value, Unread) else value


def category_mode(column: Column, categories: Sequence[Any] | None, *, cap: int) -> RobustValue:
    """Return the most frequent category and its margin.

    The margin is the minimum of n(mode) - n(b) - [b before the mode] over all other b (Errata 7).
    Without a public list only the runner-up matters and, among equally frequent ones, the first in
    order.

    Guarantee: without a public list no value is read, only counts and their order, so stored values
    affect the test only through the margin. The returned value is `Unread`.
    """
    if categories is not None:
        listed = {in_order(each): each for each in categories}
        values = [listed[key] for key in sorted(listed)]
        counts = column.counts_of(values)
        place = int(np.argmax(counts))  # the first in order among ties
        ahead = counts[place] - counts - (np.arange(len(values)) < place)
        margin = np.min(np.delete(ahead, place), initial=cap)
        return RobustValue((values[place],), int(margin), 0)
    leaders = column.leaders()
    # A category that is not in the data could come before the mode in order.
    before = leaders.runner_up_first or leaders.runner_up == 0
    margin = max(0, leaders.most - leaders.runner_up - int(before))
    return RobustValue((Unread(column.most_frequent),), min(cap, margin), 0)


_MOST_CHECKED = 10**7  # of all data sets together; the check then takes seconds


class UnsafeMarginError(ValueError):
    """A margin is not safe; the message shows a counterexample."""


def check_margin(
    statistic: Callable[[list[Any]], float | Sequence[float]],
    margin: Callable[[list[Any]], int],
    *,
    propose: float,
    domain: Sequence[Any],
    size: int,
) -> int:
    """Check a margin on every data set of at most `size` records from a small domain.

    Args:
        statistic: f₂, as a function of a list of records in any order.
        margin: Its margin for `propose`.
        propose: The proposal τ.
        domain: Values a record may take; extreme values make the check stronger.
        size: The number of records of the largest data set.

    Returns:
        The number of checked pairs of data sets that differ in one record.

    Raises:
        UnsafeMarginError: If the margin jumps by more than 1, or is positive where one record
            moves the statistic by more than τ.
    """
    _validate.function(statistic=statistic)
    _validate.function(margin=margin)
    propose = _validate.non_negative(propose=propose)
    domain, size = _validate.values(domain=domain), _validate.count(size=size)
    if size * math.comb(size + len(domain), size) > _MOST_CHECKED:
        raise ArgumentError(
            "size", f"small: {_MOST_CHECKED:,} records in all data sets together", got=size
        )
    checked = 0
    for count in range(size):
        for data in itertools.combinations_with_replacement(domain, count):
            for added in domain:
                _check_pair(statistic, margin, propose, list(data), [*data, added])
                checked += 1
    return checked


def _check_pair(
    statistic: Callable[[list[Any]], float | Sequence[float]],
    margin: Callable[[list[Any]], int],
    propose: float,
    fewer: list[Any],
    more: list[Any],
) -> None:
    both = margin(fewer), margin(more)
    if abs(both[0] - both[1]) > 1:
        raise UnsafeMarginError(
            f"The margin changes by more than 1, from {both[0]} at {fewer!r} to {both[1]} at "
            f"{more!r}. A safe margin counts records, so one record changes it by 1 at most."
        )
    change = _distance(statistic(fewer), statistic(more))
    if not change <= propose and max(both) > 0:  # written so that a change of NaN is unsafe
        raise UnsafeMarginError(
            f"The statistic changes by {change:g} > {propose:g} from {fewer!r} to {more!r}, where "
            f"the margins are {both[0]} and {both[1]}. Both must be 0 there."
        )


def _distance(one: float | Sequence[float], other: float | Sequence[float]) -> float:
    if one == other:  # also for infinities, whose difference is NaN
        return 0.0
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other)
    return math.dist(one, other)  # type: ignore[arg-type]
