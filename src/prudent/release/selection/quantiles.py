"""Several quantiles of a column in one release, and the interquartile range."""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent.release.columns.column import Column
from prudent.release.margins.quantile import rational
from prudent.release.noise import Noise
from prudent.release.selection.measure import DoubleMeasure, Measure
from prudent.release.selection.quantile import (
    CONFIDENCE,
    INTERVAL_SHARE,
    ExponentialQuantile,
    Selected,
)


def _ascending(ps: Sequence[Any]) -> tuple[Fraction, ...]:
    exact = tuple(rational(p) for p in ps)
    if not exact or sorted(set(exact)) != list(exact):
        raise _validate.ArgumentError("ps", "one or more probabilities, ascending", got=ps)
    return exact


@attrs.frozen(slots=False)
class ExponentialQuantiles:
    """Quantiles at several probabilities, in ascending order, for one ε.

    Each of them is an `ExponentialQuantile` with a part of ε in proportion to its range
    2 max(p, 1-p). So all of them have the same rank error. Answers are sorted afterwards, which
    costs nothing and moves no answer further from its quantile than the worst of them was.

    Guarantee:
        A release is ε-DP with δ = 0 for adding or removing one record, by composition.

    Attributes:
        ps: The probabilities, ascending.
        epsilon: ε of all quantiles together.
        measure: The values an answer may take, and their masses.
        interval_share: The fraction of ε spent on the intervals; 0 releases none.
        confidence: Of each interval.
    """

    ps: tuple[Fraction, ...] = attrs.field(converter=_ascending)
    epsilon: float
    measure: Measure = attrs.field(factory=DoubleMeasure)
    interval_share: float = INTERVAL_SHARE
    confidence: float = CONFIDENCE

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, _validate.positive, "epsilon")
        _ = self.parts  # their constructors validate the remaining fields

    @cached_property
    def parts(self) -> tuple[ExponentialQuantile, ...]:
        """The mechanism of each quantile."""
        ranges = [max(p, 1 - p) for p in self.ps]
        shares = [Fraction(self.epsilon) * one / sum(ranges) for one in ranges]
        return tuple(
            ExponentialQuantile(
                p, _rounded_down(share), self.measure, self.interval_share, self.confidence
            )
            for p, share in zip(self.ps, shares, strict=True)
        )

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of one release."""
        return dp.ComposedDpEvent([part.event for part in self.parts])

    def release(self, column: Column, noise: Noise | None = None) -> tuple[Selected, ...]:
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
        ends = self.measure.value(low), self.measure.value(high)
        return Selected(value, index, ends, (low, high), answer.whole)


@attrs.frozen(slots=False)
class ExponentialRange:
    """The interquartile range Q(3/4) - Q(1/4), from two quantiles with half of ε each.

    Attributes:
        epsilon: ε of the release.
        measure: The values a quartile may take, and their masses.
        interval_share: The fraction of ε spent on the interval; 0 releases none.
        confidence: Of the interval: each quartile's is missed half as often.
    """

    epsilon: float
    measure: Measure = attrs.field(factory=DoubleMeasure)
    interval_share: float = INTERVAL_SHARE
    confidence: float = CONFIDENCE

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

    def release(
        self, column: Column, noise: Noise | None = None
    ) -> tuple[float, tuple[float, float] | None, bool]:
        """Release the range, its interval if asked for, and whether that is useless."""
        lower, upper = self.quartiles.release(column, noise)
        if lower.interval is None or upper.interval is None:
            return upper.value - lower.value, None, False
        least = max(0.0, upper.interval[0] - lower.interval[1])
        ends = least, upper.interval[1] - lower.interval[0]
        return upper.value - lower.value, ends, lower.useless or upper.useless


def _rounded_down(exact: Fraction) -> float:
    number = float(exact)
    return number if Fraction(number) <= exact else math.nextafter(number, 0.0)
