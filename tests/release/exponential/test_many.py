"""Many quantiles by halving: private on every neighbour, near the truth, priced as charged."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.accounting import PldAccountant
from prudent.release.columns.column import ArrayColumn
from prudent.release.exponential import many
from prudent.release.exponential.interval import Points
from prudent.release.exponential.many import HalvedQuantiles
from prudent.release.lattice import Lattice
from prudent.release.noise import ReproducibleNoise
from prudent.release.statistics import quantiles
from tests.oracles.multisets import data_sets, neighbours

PS = tuple(Fraction(k, 4) for k in (1, 2, 3))
VALUES = range(5)


def points(counts: tuple[int, ...]) -> Points:
    """Records at the places 0, ..., 4, each in a place of its own."""
    held = np.array([place for place, count in enumerate(counts) if count], np.int64)
    return Points(Lattice(0, 0, 4), held, np.array([n for n in counts if n], np.int64))


def law(mechanism: HalvedQuantiles, counts: tuple[int, ...]) -> dict[tuple[int, ...], Fraction]:
    """The exact probability of every three answers, by the weights of each choice."""

    def chances(records: Points, p: Fraction) -> dict[int, Fraction]:
        chosen = mechanism._value(p, records.measure)
        window = many.NearTarget.read(records, records.measure, chosen.p, chosen.reach)
        starts, weights = chosen.value_weights(window)
        low, high = records.lattice.low, records.lattice.high
        ends = [*starts[1:], high + 1]
        found = {
            value: Fraction(weight)
            for start, end, weight in zip(starts, ends, weights, strict=True)
            for value in range(max(start, low), end)
        }
        return {value: each / sum(found.values()) for value, each in found.items()}

    found: dict[tuple[int, ...], Fraction] = {}
    for middle, one in chances(points(counts), Fraction(1, 2)).items():
        lower, upper = many._cut(points(counts), middle)
        for low, two in chances(lower, Fraction(1, 2)).items():
            for high, three in chances(upper, Fraction(1, 2)).items():
                found[low, middle, high] = one * two * three
    return found


def largest_loss(mechanism: HalvedQuantiles) -> float:
    laws = {each: law(mechanism, each) for each in data_sets(3)}
    largest = Fraction(1)
    for each in data_sets(2):
        for near in (near for near in neighbours(each) if sum(near) > sum(each)):
            ratios = [laws[each][answer] / laws[near][answer] for answer in laws[each]]
            largest = max(largest, max(ratios), 1 / min(ratios))
    return math.log(largest)


@pytest.mark.unhurried
def test_two_levels_cost_what_two_choices_cost() -> None:
    mechanism = HalvedQuantiles(PS, 2.0, 0.0)
    assert mechanism.levels == 2
    assert 1.0 < largest_loss(mechanism) <= 2.0 * (1 + 1e-12)


@pytest.mark.unhurried
def test_paying_one_level_for_all_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = HalvedQuantiles(PS, 2.0, 0.0)
    monkeypatch.setitem(mechanism.__dict__, "level_epsilon", 2.0)
    assert largest_loss(mechanism) > 2.0


@pytest.mark.unhurried
@pytest.mark.parametrize("bounds", [None, (0, 200)])
@pytest.mark.parametrize("number", [9, 99])
def test_many_quantiles_are_near_the_truth(number: int, bounds: Any) -> None:
    ps = [Fraction(k, number + 1) for k in range(1, number + 1)]
    for values in (
        np.random.default_rng(1).normal(100.0, 15.0, 20_000),
        np.random.default_rng(2).integers(18, 90, 20_000),
    ):
        found = quantiles(values, ps=ps, epsilon=2.0, bounds=bounds, noise=ReproducibleNoise(4))
        answers = np.array(found.value, float)
        assert (np.diff(answers) >= 0).all()
        ordered = np.sort(values)
        ranks = [np.searchsorted(ordered, answers, side) for side in ("left", "right")]
        target = np.array([float(p) for p in ps]) * len(values)
        errors = np.maximum(0, np.maximum(ranks[0] - target, target - ranks[1]))
        assert errors.mean() < 60  # a quantile by itself would have some 200 for 99 of them


def test_the_price_is_that_of_levels_and_intervals() -> None:
    for given in ({}, {"bounds": (0, 200)}):
        preview = quantiles(
            np.zeros(3), ps=[0.1, 0.2, 0.5, 0.9], epsilon=0.9, dry_run=True, **given
        )
        spent = PldAccountant().compose(preview.event).get_epsilon(0.0)
        assert 0.9 * (1 - 1e-9) <= spent <= 0.9 * (1 + 1e-9)


def test_intervals_hold_the_quantiles() -> None:
    values = np.random.default_rng(3).normal(0.0, 1.0, 50_000)
    ps = [Fraction(k, 10) for k in range(1, 10)]
    exact = np.sort(values)[[math.ceil(p * len(values)) - 1 for p in ps]]
    held = known = 0
    for seed in range(10):
        found = quantiles(
            ArrayColumn(values), ps=ps, epsilon=2.0, bounds=(-8, 8), noise=ReproducibleNoise(seed)
        )
        assert found.intervals is not None
        for ends, truth in zip(found.intervals, exact, strict=True):
            if ends is not None:
                known += 1
                held += ends[0] <= truth <= ends[1]
    assert known > 80
    assert held >= 0.93 * known


def test_one_record_more_at_a_point_is_one_more_at_one_of_its_places() -> None:
    def places(count: int) -> dict[int, int]:
        finer = many._finer(points((3, 0, count, 0, 70)))
        return dict(zip(finer.steps.tolist(), finer.counts.tolist(), strict=True))

    for count in range(200):
        fewer, more = places(count), places(count + 1)
        assert sum(more.values()) == sum(fewer.values()) + 1
        assert sum(abs(more[each] - fewer.get(each, 0)) for each in more) == 1
