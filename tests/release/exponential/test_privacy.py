"""Privacy of the exponential mechanism, exactly, on every pair of small neighbouring data sets."""

import functools
import itertools
import math
from collections.abc import Callable
from decimal import ROUND_DOWN, Context, Decimal
from fractions import Fraction

import attrs
import numpy as np
import pytest

from prudent.release.exponential.measure import Decay, LatticeMeasure, UniformMeasure, rate
from prudent.release.exponential.quantile import ExponentialQuantile, NearTarget
from prudent.release.lattice import Lattice
from tests.oracles.array_column import ArrayColumn
from tests.oracles.multisets import Counts, data_sets, records
from tests.release.exponential.laws import interval_law, law_of_pieces, normalised, value_law

SIZE = 5
MEASURE = LatticeMeasure(Lattice(0, 0, 4))
PROBABILITIES = ["1/2", "1/3", "9/10", "99/100", "1/1000"]

Law = Callable[[Counts], list[Fraction]]


def column_of(counts: Counts) -> ArrayColumn:
    return ArrayColumn(np.array(records(counts), float))


def exponential(x: float) -> Fraction:
    """e^x, rounded down."""
    with_doubt = Context(prec=40, rounding=ROUND_DOWN).exp(Decimal(x))
    return Fraction(with_doubt) * (1 - Fraction(1, 10**38))


def largest_ratios(law: Law) -> tuple[Fraction, Fraction]:
    """Over all neighbours: the largest ratio of probabilities, and of two such ratios."""
    ratio, spread = Fraction(1), Fraction(1)
    for counts in data_sets(SIZE - 1):
        fewer = law(counts)
        for place in range(len(counts)):
            more = law((*counts[:place], counts[place] + 1, *counts[place + 1 :]))
            ratios = [b / a for a, b in zip(fewer, more, strict=True) if a or b]
            ratio = max(ratio, max(ratios), 1 / min(ratios))
            spread = max(spread, max(ratios) / min(ratios))
    return ratio, spread


def distances_of(counts: Counts, p: Fraction) -> list[int]:
    """The definition, point by point, in units of the denominator of p."""
    unit, target = p.denominator, p.numerator * sum(counts)
    upto = list(itertools.accumulate(counts))
    pairs = zip([0, *upto[:-1]], upto, strict=True)
    return [max(0, below * unit - target, target - above * unit) for below, above in pairs]


@pytest.mark.parametrize("p", PROBABILITIES)
def test_pieces_have_the_distances_of_the_definition(p: str) -> None:
    for counts in data_sets(SIZE):
        window = NearTarget.read(column_of(counts), MEASURE, Fraction(p), 10)
        starts, distances = window.pieces(MEASURE.low)
        for (begin, end), found in zip(
            itertools.pairwise([*starts, MEASURE.high + 1]), distances, strict=True
        ):
            assert distances_of(counts, Fraction(p))[begin:end] == [found] * (end - begin)


@pytest.mark.parametrize("p", PROBABILITIES)
@pytest.mark.parametrize("cap", [1, 2, 100])
def test_distances_change_within_their_range(p: str, cap: int) -> None:
    exact = Fraction(p)
    most, worst = cap * exact.denominator, 0
    for counts in data_sets(SIZE):
        fewer = distances_of(counts, exact)
        for place in range(5):
            added = (*counts[:place], counts[place] + 1, *counts[place + 1 :])
            more = distances_of(added, exact)
            changes = [min(most, b) - min(most, a) for a, b in zip(fewer, more, strict=True)]
            worst = max(worst, max(changes) - min(changes))
    spread = ExponentialQuantile(exact, 1.0, MEASURE).spread * exact.denominator
    assert worst <= spread
    if cap == 100 and p in ("1/2", "1/3"):
        assert worst == spread  # no smaller one is enough


@pytest.mark.parametrize("p", PROBABILITIES)
@pytest.mark.parametrize("epsilon", [0.5, 3.0, 8.0])
def test_values_are_private_in_both_directions(p: str, epsilon: float) -> None:
    mechanism = ExponentialQuantile(p, epsilon, MEASURE, interval_share=0.0)
    law = functools.cache(lambda counts: value_law(mechanism, column_of(counts)))
    ratio, spread = largest_ratios(law)
    assert ratio <= exponential(epsilon)
    assert spread <= exponential(epsilon)
    # And none of it is wasted; in a tail, so few records are answered by their median at a small ε.
    assert math.log(spread) > 0.49 * epsilon


@pytest.mark.parametrize("p", ["1/2", "9/10"])
@pytest.mark.parametrize("index", [0, 2, 3])
def test_intervals_are_private_in_both_directions(p: str, index: int) -> None:
    # With a large ε the margin is a few records, so that intervals depend on these small data.
    mechanism = ExponentialQuantile(p, 20.0, MEASURE, interval_share=0.2)
    law = functools.cache(lambda counts: interval_law(mechanism, column_of(counts), index))
    assert max(largest_ratios(law)) <= exponential(mechanism.interval_epsilon)
    assert max(largest_ratios(law)) > exponential(0.1 * mechanism.interval_epsilon)


def windowed(p: str, speed: Fraction, cap: int, reach: int) -> Law:
    """The law of a mechanism with another rate, cap or window than it should have."""

    def law(counts: Counts) -> list[Fraction]:
        window = NearTarget.read(column_of(counts), MEASURE, Fraction(p), reach)
        starts, distances = window.pieces(MEASURE.low)
        decay = Decay(speed, cap, window.unit)
        return law_of_pieces(MEASURE, starts, decay.weights(distances))

    return functools.cache(law)


def _without_a_cap(speed: Fraction) -> Law:
    """The law if values beyond a small window are taken for infinitely far, and others are not."""

    def law(counts: Counts) -> list[Fraction]:
        window = NearTarget.read(column_of(counts), MEASURE, Fraction(1, 2), 1)
        starts, distances = window.pieces(MEASURE.low)
        distances[0] = distances[-1] = 50
        return law_of_pieces(MEASURE, starts, Decay(speed, 100, 2).weights(distances))

    return functools.cache(law)


@pytest.mark.unhurried
def test_small_windows_are_enough_for_small_caps() -> None:
    speed = rate(1.0, Fraction(1))
    for cap in (1, 2):
        narrow, wide = windowed("1/2", speed, cap, cap + 1), windowed("1/2", speed, cap, 20)
        assert all(narrow(counts) == wide(counts) for counts in data_sets(SIZE))
        assert max(largest_ratios(narrow)) <= exponential(1.0)


@pytest.mark.unhurried
def test_planted_faults_are_noticed() -> None:
    speed = rate(1.0, Fraction(1))
    too_fast = windowed("1/2", speed * Fraction(101, 100), 100, 20)
    assert max(largest_ratios(too_fast)) > exponential(1.0)
    assert max(largest_ratios(_without_a_cap(speed))) > exponential(1.0)
    sensitivity_of_the_median = windowed("9/10", speed, 100, 20)
    assert max(largest_ratios(sensitivity_of_the_median)) > exponential(1.0)

    def from_counts(counts: Counts) -> list[Fraction]:
        """The narrowest interval that is deep enough, without any noise."""
        window = NearTarget.read(column_of(counts), MEASURE, Fraction(1, 2), 20)
        around = MEASURE.around(2)[:-1]
        place = next((k for k, one in enumerate(around) if window.depth(*one) > 1), len(around))
        return normalised([int(k == place) for k in range(len(around) + 1)])

    with pytest.raises(ZeroDivisionError):
        largest_ratios(from_counts)


@pytest.mark.parametrize("p", [Fraction(99, 100), Fraction(1, 1000), Fraction(2, 3)])
@pytest.mark.parametrize("room", [0, 1, 7])
def test_a_record_moves_the_target_of_a_value_by_at_most_one(p: Fraction, room: int) -> None:
    unit, targets = p.denominator, []
    for number in range(40):
        window = NearTarget(p.numerator * number, unit, 0, np.zeros(0, np.int64))
        targets.append(window.away_from_ends(p, room).target)
        least = min(room * unit, number * unit // 2)
        assert least <= targets[-1] <= number * unit - least
        assert room or targets[-1] == window.target
    assert all(0 <= after - before <= unit for before, after in itertools.pairwise(targets))


def test_an_extreme_quantile_of_few_records_stays_among_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two thirds of the values are beyond the data, and only one record is beyond the quantile."""
    column = ArrayColumn(np.arange(100.0))
    mechanism = ExponentialQuantile("99/100", 1.0, UniformMeasure(Lattice(0, 0, 299)))
    assert sum(value_law(mechanism, column)[100:]) < Fraction(3, 4)
    monkeypatch.setattr("prudent.release.exponential.quantile._ROOM", 0.0)
    assert sum(value_law(attrs.evolve(mechanism), column)[100:]) > Fraction(9, 10)
