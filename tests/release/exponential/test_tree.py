"""Many quantiles from the counts of a tree: private, near the truth, in intervals that hold."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.accounting import PldAccountant
from prudent.release.exponential import many_quantiles
from prudent.release.exponential.interval import Points
from prudent.release.exponential.many_quantiles import BRANCHES, LEVELS, consistent, variances
from prudent.release.lattice import FloatArray, Lattice
from prudent.release.noise import ReproducibleNoise
from prudent.release.statistics import quantiles
from tests.oracles.array_column import ArrayColumn

SIZES = [BRANCHES**level for level in range(1, LEVELS + 1)]
LEAVES = SIZES[-1]
MANY = [Fraction(k, 32) for k in range(1, 32)]


def test_a_record_changes_one_count_of_each_level() -> None:
    lattice = Lattice(0, 5, 5 + 1_000)
    fewer = Points(lattice, np.array([5, 70, 1_000]), np.array([1, 2, 3]))
    for step in (5, 71, 1_000, 1_005):
        steps, places = np.unique([5, 70, 1_000, step], return_inverse=True)
        counts = np.bincount(places, weights=[1, 2, 3, 1]).astype(np.int64)
        more = Points(lattice, steps, counts)
        for one, other in zip(
            many_quantiles._counts(fewer), many_quantiles._counts(more), strict=True
        ):
            assert np.abs(other - one).sum() == 1


def test_the_noise_pays_for_all_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def of_value(distribution: Any, scale: float, size: int) -> list[int]:
        asked.append(scale)
        return [0] * size

    noise = ReproducibleNoise(0)
    monkeypatch.setattr(noise, "of_value", of_value)
    mechanism = many_quantiles.CountedQuantiles(("1/2",), 0.5, 2)
    points = Points(Lattice(0, 0, 9), np.array([3]), np.array([4]))
    (found,) = mechanism.release(points, noise, between=False)
    assert found.value == 3.0
    assert asked == [pytest.approx(2 * LEVELS / 0.5)]
    assert asked[0] >= 2 * LEVELS / 0.5
    assert PldAccountant().compose(mechanism.event).get_epsilon(0.0) <= 0.5 * (1 + 1e-9)


@pytest.mark.parametrize("p", [0.5, 0.03])
def test_weights_of_the_noise_are_as_proved(p: float) -> None:
    """V is the sum of the squared weights, none of which exceeds 1 in size."""
    leaves = [0, 15, 31, 32, 500, 511, 1_000, LEAVES - 1]

    def weights(place: int) -> FloatArray:
        noise = np.zeros(sum(SIZES))
        noise[place] = 1.0
        upto = np.cumsum(consistent(np.split(noise, np.cumsum(SIZES)[:-1])))
        return np.asarray(upto[leaves] - p * upto[-1])

    found = np.array([weights(place) for place in range(sum(SIZES))])
    assert np.abs(found).max() <= 1 + 1e-12
    assert (found**2).sum(axis=0) == pytest.approx(variances(p)[leaves], rel=1e-9)


def share_held(epsilon: float) -> float:
    """The fraction of intervals that hold the quantile of the data."""
    values = np.random.default_rng(3).normal(0.0, 1.0, 3_000)
    exact = np.sort(values)[[math.ceil(p * len(values)) - 1 for p in MANY]]
    held = []
    for seed in range(6):
        noise = ReproducibleNoise(seed)
        found = quantiles(
            ArrayColumn(values), ps=MANY, epsilon=epsilon, bounds=(-8, 8), noise=noise
        )
        assert found.intervals is not None
        for ends, truth in zip(found.intervals, exact, strict=True):
            assert ends is not None
            held.append(ends[0] <= truth <= ends[1])
    return float(np.mean(held))


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_intervals_hold_the_quantiles(epsilon: float) -> None:
    assert share_held(epsilon) >= 0.95


def test_an_interval_without_an_allowance_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(many_quantiles.CountedQuantiles, "_allowance", lambda *_: np.zeros(LEAVES))
    assert share_held(0.5) < 0.95
