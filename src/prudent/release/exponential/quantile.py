"""A quantile, with a confidence interval, by the exponential mechanism on a public measure.

No proposal and no bounds are needed, and the answer is purely ε-DP. Only the records next to the
quantile are read, whatever the size of the table: one count and one range of ranks.

**Value.** A value v covers the ranks from L(v) = #{records < v} to U(v) = #{records <= v}, and
d(v) = max(0, L(v) - pn, pn - U(v)) is the distance of the target pn from them, in records. The
mechanism chooses v with probability proportional to mass(v) exp(-c min(d(v), K)).

**Sensitivity.** Let Δ = max(p, 1-p). When one record x is added, pn grows by p, and L and U grow by
1 for values beyond x. So the target approaches or leaves every value by at most Δ: d changes by
between -Δ and +Δ, a range of length 2Δ. The range is what the exponential mechanism costs, so
c = ε/(2Δ): for the median, c = ε. No weighting α of d above the target and β below it does better:
with a record added beyond the target, values on its three sides change by βp, -αp and α(1-p), so
the range is the largest of α, β and Δ(α + β), and the slower of the two decays is fastest for
α = β. Taking the minimum with K keeps the sign of a change and does not lengthen it.

**Few records.** Beyond the 99 % quantile lie n/100 records. If c n/100 is small, all values beyond
the data are as likely as it, and they have far more mass. So for p beyond 0.95, or below 0.05, the
value aims at T(n), which is pn moved to at least 3/c records from both ends of the data, or to the
middle of fewer. A record more moves T by between 0 and 1, and L and U by 0 or 1: d changes by at
most 1 either way, so c = ε/2, where 2Δ would be hardly less. The interval is still that of pn.

**Accuracy.** Some value has distance 0. So d(v) >= t has a probability of at most
(total mass / mass of that value) exp(-ct), whatever the data. K is the t at which this is 1e-9.

**Interval.** Given the released v, public intervals I₀ ⊂ I₁ ⊂ ... around it widen by factors of at
most 2 from {v} to all values. Let D_j be the number of records by which I_j covers the target,
D_j = min(#{records <= high} - pn, pn - #{records < low}), and D = ∞ for the last. Interval j is
chosen with probability proportional to (16/15)^j exp(-c' max(0, T - D_j, D_(j-1) - T)). One record
changes each D_j by at most Δ, so again c' = ε'/(2Δ). If I_j misses the quantile, D_j <= 0, so its
distance is at least T, and the first interval whose D_j is at least T has distance 0. All narrower
ones together have at most 15 times its mass. Hence the chosen one misses the quantile with a
probability of at most 15 exp(-c'T), which T makes 5 %.

**Shown or not.** The last interval says nothing, so it is not shown unless it is the public bounds.
An interval must hold given that it is shown. If a narrower one covers by T records, the bound above
is about those that are shown. Otherwise it need not hold: of a table that is empty, all are wrong.
So where a released number of records leaves it open whether n min(p, 1-p) is at least T, none is
shown. Where no such number is released, the mass of the last is 1,000 times as large. If the others
cover by d < T records at most, one of them is chosen with a probability below
15 exp(-c'(T - d))/1000, and it misses with one of at most 15 exp(-c'd). The second is above 7 %
only if the first is below 1.1 %.
"""

import math
import operator
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, Protocol

import attrs
import dp_accounting as dp
import numpy as np

from prudent import _validate
from prudent.accounting._numeric import float_above, float_below
from prudent.accounting.events import ExponentialMechanismDpEvent
from prudent.release.columns.column import redact_errors
from prudent.release.exponential.measure import Decay, DoubleMeasure, Measure, choose, draw, rate
from prudent.release.lattice import FloatArray, IntArray
from prudent.release.margins import rational
from prudent.release.noise import Noise, source_of


class Ranked(Protocol):
    """Records of which the number and those of a few ranks are known, such as a `Column`."""

    def count(self) -> int:
        """See `Column`."""
        ...

    def order_statistics(self, first: int, last: int) -> FloatArray:
        """See `Column`."""
        ...


@attrs.frozen(eq=False)
class NearTarget:
    """Consecutive order statistics around the target p n of n records. Private.

    A count that the window determines is exact if it is within `reach` of the target. Otherwise
    the true count is on the same side and at least as far away. So distances from the target are
    exact up to `reach`, and at least `reach` where they are not.
    """

    target: int  # p n in units of 1/unit records, a whole number
    unit: int  # the denominator of p
    first: int  # the number of records before the window
    indices: IntArray  # the index of each record in the window, ascending

    @classmethod
    def read(cls, column: Ranked, measure: Measure, p: Fraction, reach: int) -> "NearTarget":
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

    def away_from_ends(self, p: Fraction, room: int) -> "NearTarget":
        """The same records, with a target that has so many of them on either side, or half."""
        records = self.target // p.numerator
        least = min(room * self.unit, records * self.unit // 2)
        moved = min(max(self.target, least), records * self.unit - least)
        return attrs.evolve(self, target=moved)

    def _from_target(self, count: int) -> int:
        return count * self.unit - self.target


CONFIDENCE = 0.95
"""Least probability with which an interval contains the quantile of the data, by default."""

INTERVAL_SHARE = 0.1
"""Fraction of ε that is spent on the interval by default."""

_RATIO = 16, 15  # of the masses of an interval and the next narrower one
_FAR = 1e-9  # probability of an answer that is so far off that all such values weigh the same
_NOTHING = 1000  # how many times the mass of the last interval is as large if it is not shown
_MOST_RECORDS = 2**20  # on each side of the target that are read
_EXTREME = Fraction(1, 20)  # fraction of the records beyond a quantile that keeps off the ends
_ROOM = 3.0  # how far, in units of 1/c


@attrs.frozen
class Selected:
    """A released quantile, or a difference of two, which may be published."""

    value: float  # in the unit of the data
    index: int  # its index in the measure: steps of the lattice, for a lattice
    # Ends of a confidence interval for the quantile of the data; None if it was not asked for.
    interval: tuple[float, float] | None = None
    # Its ends as indices; None if it was not asked for.
    interval_indices: tuple[int, int] | None = None
    # Whether the interval is all values, since there are too few records for this ε.
    whole: bool = False
    # Released ends of the values that it was chosen from; None if they are public.
    among: tuple[float, float] | None = None


@attrs.frozen(slots=False)
class ExponentialQuantile:
    """The p-quantile, the value of rank ceil(pn) of n records, chosen by the exponential mechanism.

    Guarantee:
        A release is ε-DP with δ = 0 for adding or removing one record, whatever the data, and has
        the privacy of `event`.
    """

    # The probability, in (0, 1), taken as an exact fraction: 0.9 means 9/10.
    p: Fraction = attrs.field(converter=rational)
    epsilon: float  # ε of the release, value and interval together
    # The values an answer may take, and their masses.
    measure: Measure = attrs.field(factory=DoubleMeasure)
    # The fraction of ε spent on the interval; 0 releases none.
    interval_share: float = INTERVAL_SHARE
    # Probability with which the interval contains the quantile of the data, at least.
    confidence: float = CONFIDENCE
    # The values an end of the interval may take, of which those of an answer are a part; None: the
    # same. Records beyond an answer's values are then counted where they are.
    all_values: Measure | None = None
    # How many records there are at least, by a released number of them; None if there is none.
    least_count: float | None = None

    def __attrs_post_init__(self) -> None:
        if self.p == 1:
            raise _validate.ArgumentError(
                "p",
                "below 1",
                got=1,
                why="every value above the maximum is as good an answer as the maximum",
                hint="Ask for the maximum, take 0.99, or give a proposal.",
            )
        _validate.fields(self, _validate.positive, "epsilon")
        _validate.between(0, 1, ends="[)", interval_share=self.interval_share)
        _validate.between(0, 1, ends="()", confidence=self.confidence)
        if self.reach > _MOST_RECORDS:
            raise _validate.ArgumentError(
                "epsilon",
                "of at least 0.001",
                got=self.epsilon,
                why="the exponential mechanism would read more than 2**20 records on each side",
            )

    @cached_property
    def interval_epsilon(self) -> float:
        """ε of the interval."""
        return self.epsilon * self.interval_share

    @cached_property
    def value_epsilon(self) -> float:
        """ε of the value: the exact rest, rounded down."""
        return float_below(Fraction(self.epsilon) - Fraction(self.interval_epsilon))

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of one release."""
        value = ExponentialMechanismDpEvent(self.value_epsilon)
        if self.interval_share == 0:
            return value
        return dp.ComposedDpEvent([value, ExponentialMechanismDpEvent(self.interval_epsilon)])

    @cached_property
    def spread(self) -> Fraction:
        """2Δ: the length of the range of changes of a distance, in records."""
        return 2 * max(self.p, 1 - self.p)

    def rank_error(self, beta: float = 1 - CONFIDENCE) -> int:
        """A bound on the rank error, in records, that holds with probability 1 - beta on any data.

        On data without large gaps the error is far smaller: see `typical_rank_error`.
        """
        return self._room + self._value_error(beta)

    def _value_error(self, beta: float) -> int:
        """A bound on the distance from what the value aims at."""
        _validate.between(0, 1, ends="()", beta=beta)
        lightest = math.log(self.measure.total / self.measure.lightest)
        return math.ceil((lightest - math.log(beta)) / float(self._value_rate))

    def typical_rank_error(self, confidence: float = 0.5) -> float:
        """The rank error, in records, that is not exceeded with this probability on smooth data.

        Smooth means that records near the quantile are evenly spaced; then the error has a Laplace
        distribution.
        """
        _validate.between(0, 1, ends="()", confidence=confidence)
        return -math.log1p(-confidence) / float(self._value_rate)

    @property
    def enough_records(self) -> float:
        """A number of records with which the interval is hardly wider than the table.

        An interval that holds all n records covers the target by n min(p, 1-p) of them, so its
        distance, and that of every wider one, is that number less T. Together they have at most
        16 (16/15)^m times the mass of the first interval that covers by T, or with a last one that
        is not shown 1,015 times, m being the number of intervals around 1. So one of them is chosen
        with a probability of at most 5 % (1 - `confidence`) from this n on. Below it, a very wide
        interval or all values becomes likely, the sooner the narrower an interval the data deserve.
        """
        if not self.interval_share:
            return math.inf
        (one,) = self._ends_among.indices(np.ones(1)).tolist()
        masses = self._masses_from_one(len(self._ends_among.around(one)))
        needed = self._margin + self._records_for(masses / (1 - self.confidence))
        return needed / self._smaller_part

    @property
    def _smaller_part(self) -> float:
        return float(min(self.p, 1 - self.p))

    @property
    def _ends_among(self) -> Measure:
        return self.measure if self.all_values is None else self.all_values

    @property
    def _last(self) -> int:
        """How many times its mass the last interval has."""
        known = self._ends_among.bounded or self.least_count is not None
        return 1 if known else _NOTHING

    def _masses_from_one(self, intervals: int) -> float:
        """The mass of so many intervals beside that of the first, at most."""
        wider, narrower = _RATIO
        return float((wider + self._last - 1) * (wider / narrower) ** intervals)

    @cached_property
    def cap(self) -> int:
        """K: the distance, in records, from which on all values weigh the same."""
        return self._value_error(_FAR)

    @cached_property
    def reach(self) -> int:
        """The number of records on each side of the target that are read."""
        interval = self._margin + self._interval_cap if self.interval_share else 0
        return max(self._room + self.cap, interval) + 1

    @cached_property
    def _value_rate(self) -> Fraction:
        return rate(self.value_epsilon, Fraction(2) if self._extreme else self.spread)

    @property
    def _extreme(self) -> bool:
        return min(self.p, 1 - self.p) < _EXTREME

    @cached_property
    def _room(self) -> int:
        """The number of records by which the value keeps off the ends of the data."""
        return math.ceil(_ROOM / float(self._value_rate)) if self._extreme else 0

    @cached_property
    def _interval_rate(self) -> Fraction:
        return rate(self.interval_epsilon, self.spread)

    @cached_property
    def _margin(self) -> int:
        """T: the number of records by which the interval should cover the target."""
        return self._records_for(_RATIO[1] / (1 - self.confidence))

    @cached_property
    def _interval_cap(self) -> int:
        return self._records_for(self._masses_from_one(self._ends_among.widths) / _FAR)

    def _records_for(self, odds: float) -> int:
        return math.ceil(math.log(odds) / float(self._interval_rate))

    def release(self, column: Ranked, noise: Noise | None = None) -> Selected:
        """Release the quantile of a column."""
        return redact_errors(self._release, column, source_of(noise))

    def _release(self, column: Ranked, noise: Noise) -> Selected:
        among = self._ends_among
        window = NearTarget.read(column, among, self.p, self.reach)
        index = draw(self.measure, *self.value_weights(window), noise)
        value = self.measure.value(index)
        if self.interval_share == 0:
            return Selected(value, index)
        intervals = among.around(index)
        chosen = choose(self.interval_weights(window, intervals), noise)
        low, high = intervals[chosen]
        covered = math.inf if self.least_count is None else self.least_count * self._smaller_part
        unknown = covered < self._margin or chosen == len(intervals) - 1
        whole = unknown and not among.bounded
        return Selected(value, index, (among.value(low), among.value(high)), (low, high), whole)

    def value_weights(self, window: NearTarget) -> tuple[list[int], list[int]]:
        """Where each piece of equal distance starts, and its weight. Private."""
        inside = np.clip(window.indices, self.measure.low, self.measure.high)
        aimed = attrs.evolve(window, indices=inside).away_from_ends(self.p, self._room)
        starts, distances = aimed.pieces(self.measure.low)
        return starts, Decay(self._value_rate, self.cap, window.unit).weights(distances)

    def interval_weights(
        self, window: NearTarget, intervals: Sequence[tuple[int, int]]
    ) -> list[int]:
        """The weight of each interval around a released value. Private."""
        margin = self._margin * window.unit
        depths = [window.depth(*interval) for interval in intervals[:-1]]
        short = [*(max(0, margin - depth) for depth in depths), 0]
        wide = [0, *(max(0, depth - margin) for depth in depths)]
        decay = Decay(self._interval_rate, self._interval_cap, window.unit)
        weights = decay.weights(list(map(max, short, wide)))
        wider, narrower = _RATIO
        last = len(weights) - 1
        masses = [wider**place * narrower ** (last - place) for place in range(last + 1)]
        masses[-1] *= self._last
        return list(map(operator.mul, masses, weights))


def ascending(ps: Sequence[Any]) -> tuple[Fraction, ...]:
    """Probabilities as exact fractions; raise ArgumentError unless they ascend."""
    exact = tuple(rational(p) for p in ps)
    if not exact or sorted(set(exact)) != list(exact):
        shown = ", ".join(map(str, ps)) or "none"
        raise _validate.ArgumentError("ps", "one or more probabilities, ascending", shown=shown)
    return exact


@attrs.frozen(slots=False)
class ExponentialQuantiles:
    """Quantiles at several probabilities, in ascending order, for one ε.

    Each of them is an `ExponentialQuantile` with a part of ε in proportion to its range
    2 max(p, 1-p). So all of them have the same rank error. Answers are sorted afterwards, which
    costs nothing and moves no answer further from its quantile than the worst of them was.

    Guarantee:
        A release is ε-DP with δ = 0 for adding or removing one record, by composition.
    """

    ps: tuple[Fraction, ...] = attrs.field(converter=ascending)  # the probabilities, ascending
    epsilon: float  # ε of all quantiles together
    # These are as for `ExponentialQuantile`.
    measure: Measure = attrs.field(factory=DoubleMeasure)
    interval_share: float = INTERVAL_SHARE
    confidence: float = CONFIDENCE
    all_values: Measure | None = None
    least_count: float | None = None

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, _validate.positive, "epsilon")
        _ = self.parts  # their constructors validate the remaining fields

    @cached_property
    def parts(self) -> tuple[ExponentialQuantile, ...]:
        """The mechanism of each quantile."""
        ranges = [max(p, 1 - p) for p in self.ps]
        shares = [Fraction(self.epsilon) * one / sum(ranges) for one in ranges]
        others = self.measure, self.interval_share, self.confidence
        return tuple(
            ExponentialQuantile(p, float_below(share), *others, self.all_values, self.least_count)
            for p, share in zip(self.ps, shares, strict=True)
        )

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of one release."""
        return dp.ComposedDpEvent([part.event for part in self.parts])

    def rank_error(self) -> int:
        """See `ExponentialQuantile.rank_error`; of the worst of them."""
        return max(part.rank_error() for part in self.parts)

    def release(self, column: Ranked, noise: Noise | None = None) -> tuple[Selected, ...]:
        """Release the quantiles of a column; see `ExponentialQuantile.release`."""
        answers = [part.release(column, noise) for part in self.parts]
        ordered = sorted(answer.index for answer in answers)
        return tuple(map(self._moved, answers, ordered))

    def _moved(self, answer: Selected, index: int) -> Selected:
        """The answer with another value, in an interval that contains it."""
        value = self.measure.value(index)
        if answer.interval_indices is None:
            return Selected(value, index)
        low, high = answer.interval_indices
        low, high = min(low, index), max(high, index)
        among = self.measure if self.all_values is None else self.all_values
        ends = among.value(low), among.value(high)
        return Selected(value, index, ends, (low, high), answer.whole)


@attrs.frozen(slots=False)
class ExponentialRange:
    """The interquartile range Q(3/4) - Q(1/4), from two quantiles with half of ε each."""

    epsilon: float  # ε of the release
    measure: Measure = attrs.field(factory=DoubleMeasure)  # of a quartile
    interval_share: float = INTERVAL_SHARE
    confidence: float = CONFIDENCE  # of the interval: each quartile's is missed half as often

    @cached_property
    def quartiles(self) -> ExponentialQuantiles:
        """The mechanism of the two quartiles."""
        each = (1 + self.confidence) / 2
        ps = Fraction(1, 4), Fraction(3, 4)
        return ExponentialQuantiles(ps, self.epsilon, self.measure, self.interval_share, each)

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of one release."""
        return self.quartiles.event

    def release(self, column: Ranked, noise: Noise | None = None) -> Selected:
        """Release the range, with an interval if that is asked for."""
        lower, upper = self.quartiles.release(column, noise)
        found = Selected(upper.value - lower.value, upper.index - lower.index)
        if lower.interval is None or upper.interval is None:
            return found
        least = max(0.0, upper.interval[0] - lower.interval[1])
        ends = least, upper.interval[1] - lower.interval[0]
        return attrs.evolve(found, interval=ends, whole=lower.whole or upper.whole)


def for_units(event: dp.DpEvent, records: int) -> dp.DpEvent:
    """The event of choices whose ε is per record, for a unit of several records.

    Along a chain of added records the ranges of log-ratios add up, so a choice of range ε/k per
    record has range ε for a unit of k records.
    """
    match event:
        case ExponentialMechanismDpEvent():
            return ExponentialMechanismDpEvent(float_above(Fraction(event.epsilon) * records))
        case dp.ComposedDpEvent():
            return dp.ComposedDpEvent([for_units(each, records) for each in event.events])
    raise ValueError(f"Expected choices, got {event!r}.")
