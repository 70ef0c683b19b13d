"""Private intervals: the exact privacy of each choice, where it lands, and what it reads."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.release.columns.scales import INTEGER, NUMBER
from prudent.release.exponential import interval
from prudent.release.exponential.interval import (
    Candidates,
    IntervalChoice,
    Points,
    PrivateInterval,
    octave_candidates,
    part_candidates,
)
from prudent.release.lattice import LAST_HALF, end_of_half_octave, half_octaves
from prudent.release.noise import ReproducibleNoise
from tests.oracles.array_column import ArrayColumn
from tests.oracles.multisets import Counts, data_sets, neighbours, records

SIZE = 3


def chances(choice: IntervalChoice, candidates: Candidates, places: list[int]) -> list[Fraction]:
    """The exact probability of each candidate, by its definition."""
    found = [
        sum(not first <= place <= last for place in places)
        for first, last in zip(candidates.first, candidates.last, strict=True)
    ]
    outside = candidates.outside(*np.unique(np.array(places, np.int64), return_counts=True))
    assert outside.tolist() == found
    levels, weights = choice.weights(outside, candidates)
    masses = {
        level: sum(candidates.masses[np.minimum(outside, levels[-1]) == level].tolist())
        for level in levels.tolist()
    }
    whole = sum(weights)
    weight = {
        level: Fraction(each, masses[level] * whole)
        for level, each in zip(levels.tolist(), weights, strict=True)
    }
    return [
        mass * weight[min(out, int(levels[-1]))]
        for mass, out in zip(candidates.masses.tolist(), found, strict=True)
    ]


def range_of_losses(choice: IntervalChoice, candidates: Candidates) -> float:
    """The longest range of log-ratios, over all neighbours and all candidates."""

    def law(counts: Counts) -> list[Fraction]:
        return chances(choice, candidates, list(records(counts)))

    laws = {each: law(each) for each in data_sets(SIZE + 1)}
    longest = Fraction(0)
    for each in data_sets(SIZE):  # a pair has the same range in both directions
        for near in (near for near in neighbours(each) if sum(near) > sum(each)):
            ratios = [one / other for one, other in zip(laws[each], laws[near], strict=True)]
            assert min(ratios) <= 1 <= max(ratios)
            longest = max(longest, max(ratios) / min(ratios))
    return math.log(longest)


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 20.0])
def test_a_choice_is_private_on_every_neighbour(epsilon: float) -> None:
    found = range_of_losses(IntervalChoice(epsilon), part_candidates(4, 2.0))
    assert epsilon * (1 - 1e-12) <= found <= epsilon * (1 + 1e-12)


def test_a_smaller_sensitivity_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval, "_SPREAD", Fraction(1, 2))
    assert range_of_losses(IntervalChoice(4.0), part_candidates(4, 2.0)) > 4.0


def test_counting_what_is_inside_twice_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A distance that also falls with the records inside has a range of length 2."""

    def both(self: Candidates, places: Any, counts: Any) -> Any:
        outside = honest(self, places, counts)
        return np.maximum(0, 2 * outside - int(counts.sum()) + SIZE + 1)

    honest = Candidates.outside
    choice, candidates = IntervalChoice(4.0), part_candidates(4, 2.0)
    laws = []
    monkeypatch.setattr(Candidates, "outside", both)
    for places in ([0, 0], [0, 0, 4]):
        outside = candidates.outside(*np.unique(np.array(places), return_counts=True))
        levels, weights = choice.weights(outside, candidates)
        alike = dict(zip(levels.tolist(), weights, strict=True))
        masses = {
            level: sum(candidates.masses[outside == level].tolist()) for level in levels.tolist()
        }
        laws.append([Fraction(alike[o], masses[o] * sum(weights)) for o in outside.tolist()])
    ratios = [one / other for one, other in zip(*laws, strict=True)]
    assert math.log(max(ratios) / min(ratios)) > 7.9


@pytest.mark.unhurried
@pytest.mark.parametrize("scale", [NUMBER, INTEGER])
def test_candidates_are_intervals_of_all_sizes(scale: Any) -> None:
    candidates = octave_candidates(scale)
    for each in (candidates, part_candidates(2**10, 3.0), part_candidates(2**14 + 1, 0.75)):
        assert each.masses.min() >= 1
        assert sum(each.masses.tolist()) < 2**61  # so that no sum of some of them overflows
    assert (candidates.first <= candidates.last).all()
    assert candidates.first.min() == -LAST_HALF
    assert candidates.last.max() == LAST_HALF


def test_half_octaves_hold_what_is_between_their_ends() -> None:
    values = np.array([1.0, 2.0, 2.5, 40.0, -300.0, math.inf, -math.inf, 0.0, 1e-13, -1e-30, 0.9])
    for value, place in zip(values.tolist(), half_octaves(values).tolist(), strict=True):
        assert np.sign(place) in (0, np.sign(value))
        if place and abs(value) < 2.0**64:
            inner = end_of_half_octave(abs(place) - 1) if abs(place) > 1 else 2.0**-41
            assert inner <= abs(value) <= end_of_half_octave(abs(place))
    assert half_octaves(np.array([math.inf]))[0] == LAST_HALF
    assert (np.diff(half_octaves(np.sort(values))) >= 0).all()


def test_points_count_and_rank_as_the_records_do() -> None:
    values = np.random.default_rng(1).normal(50.0, 10.0, 3_000)
    points = Points.read(ArrayColumn(values), (20.0, 90.0), 256)
    steps = np.sort(points.lattice.steps(values))
    assert points.count() == 3_000
    for first, last in ((1, 3_000), (-5, 20), (1_400, 1_600), (2_990, 3_500)):
        inside = steps[max(first, 1) - 1 : last]
        found = points.order_statistics(first, last)
        assert found.tolist() == [points.lattice.value(step) for step in inside.tolist()]


@pytest.mark.parametrize(
    ("centre", "spread", "widest"),
    [(500.0, 100.0, 1_700), (2_010.0, 7.0, 800), (0.0, 1e-6, 1e-4), (1.7e15, 3e12, 3e14)],
)
def test_the_interval_is_near_the_records(centre: float, spread: float, widest: float) -> None:
    values = np.random.default_rng(4).normal(centre, spread, 20_000)
    mechanism = PrivateInterval.of(ArrayColumn(values), 0.1, 0.05)
    widths = []
    for seed in range(11):
        low, high = mechanism.release(ArrayColumn(values), ReproducibleNoise(seed))
        assert np.mean((values < low) | (values > high)) < 0.02
        widths.append(high - low)
    assert sorted(widths)[5] < widest


def test_ties_make_an_interval_that_holds_them() -> None:
    column = ArrayColumn(np.full(5_000, 7.0))
    low, high = PrivateInterval.of(column, 0.5, 0.5).release(column, ReproducibleNoise(0))
    assert low < 7.0 < high <= 9.0
    whole = ArrayColumn(np.full(5_000, 7))
    low, high = PrivateInterval.of(whole, 0.5, 0.5).release(whole, ReproducibleNoise(0))
    assert low <= 7 <= high <= 9


@pytest.mark.parametrize(
    "ends", [(0.0, 1.0), (-1.0, 0.0), (0.0, 3.0), (-6.0, -3.0), (0.0, 2.0**40)]
)
def test_every_part_of_an_interval_of_whole_numbers_has_a_width(
    ends: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    column = ArrayColumn(np.array([1, 2, 3]))
    mechanism = PrivateInterval.of(column, 1.0, 1.0)
    points = mechanism.read(column, ends)
    parts = part_candidates(points.lattice.diameter - 2, 3.0)
    (some,) = np.nonzero((parts.first == 0) | (parts.last == parts.last.max()))
    for part in zip(parts.first[some].tolist(), parts.last[some].tolist(), strict=True):
        monkeypatch.setattr(IntervalChoice, "release", lambda *_, part=part: part)
        low, high = mechanism.within(points, ends, ReproducibleNoise(0))
        assert low < high
