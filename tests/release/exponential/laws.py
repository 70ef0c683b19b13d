"""The exact laws of the mechanisms, in fractions."""

import itertools
from fractions import Fraction

import numpy as np

from prudent.release.columns.column import Column
from prudent.release.exponential.measure import Measure
from prudent.release.exponential.quantile import ExponentialQuantile, NearTarget


def law_of_pieces(measure: Measure, starts: list[int], weights: list[int]) -> list[Fraction]:
    """The probability of each index."""
    masses = np.diff(measure.below(np.arange(measure.low, measure.high + 2))).tolist()
    raw = []
    for (begin, end), weight in zip(
        itertools.pairwise([*starts, measure.high + 1]), weights, strict=True
    ):
        raw += [weight * masses[index - measure.low] for index in range(begin, end)]
    return normalised(raw)


def normalised(raw: list[int]) -> list[Fraction]:
    """Whole numbers as probabilities."""
    total = sum(raw)
    return [Fraction(one, total) for one in raw]


def value_law(mechanism: ExponentialQuantile, column: Column) -> list[Fraction]:
    """The probability of each value."""
    window = NearTarget.read(column, mechanism.measure, mechanism.p, mechanism.reach)
    return law_of_pieces(mechanism.measure, *mechanism.value_weights(window))


def interval_law(mechanism: ExponentialQuantile, column: Column, index: int) -> list[Fraction]:
    """The probability of each interval around a value."""
    window = NearTarget.read(column, mechanism.measure, mechanism.p, mechanism.reach)
    return normalised(mechanism.interval_weights(window, mechanism.measure.around(index)))
