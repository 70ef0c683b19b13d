"""An interval holds as often as it says given that it is shown, whatever the records."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("pandas")

from benchmarks.interval_coverage import ASKED, EPSILONS, POPULATIONS, SIZES, measure, most_wrong

from prudent.release.exponential.quantile import ExponentialQuantile, NearTarget
from prudent.release.noise import ReproducibleNoise
from prudent.release.statistics import mean, median
from tests.oracles.array_column import ArrayColumn


def populations(asked: str) -> list[str]:
    return ["boolean"] if asked == "proportion" else list(POPULATIONS)


def misses(asked: str, sizes: tuple[int, ...], epsilons: tuple[float, ...], runs: int) -> Any:
    """Shown intervals and misses: of all cells, and of those in which fewer than half are shown."""
    cells = [
        measure(asked, population, size, epsilon, runs)
        for population, size, epsilon in itertools.product(populations(asked), sizes, epsilons)
    ]
    seldom = [cell for cell in cells if 2 * cell[1] < cell[0]]
    return [
        (sum(shown for _, shown, _ in each), sum(shown - held for _, shown, held in each))
        for each in (cells, seldom)
    ]


@pytest.mark.parametrize("p", ["1/2", "9/10"])
def test_where_few_are_shown_the_law_says_so(p: str) -> None:
    """Exactly, over the choice of an interval around answers near and far: no draw is involved."""
    mechanism = ExponentialQuantile(p, 1.0)
    among = mechanism.measure
    for records in (0, 1, 10, 60, 120, 250, 500, 4_000):
        column = ArrayColumn(np.linspace(80.0, 120.0, records))
        window = NearTarget.read(column, among, Fraction(p), mechanism.reach)
        quantile = 80.0 + 40.0 * float(Fraction(p))
        for value in (0.0, 50.0, quantile - 1, quantile, 100.5, 3_000.0):
            intervals = among.around(int(among.indices(np.array([value]))[0]))
            weights = mechanism.interval_weights(window, intervals)
            shown = sum(weights[:-1])
            wrong = sum(
                weight
                for ends, weight in zip(intervals[:-1], weights[:-1], strict=True)
                if window.depth(*ends) <= 0
            )
            assert wrong <= 0.07 * shown or shown <= 0.012 * sum(weights), (records, value)


@pytest.mark.thorough
@pytest.mark.parametrize("asked", ["p90, bounds", "p90", "maximum", "median", "variance"])
def test_intervals_of_few_records_hold(asked: str) -> None:
    for shown, wrong in misses(asked, (10,), (1.0,), 20):
        assert wrong <= most_wrong(shown, chance=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
def test_intervals_of_every_statistic_hold(asked: str) -> None:
    for shown, wrong in misses(asked, SIZES, EPSILONS, 10):
        assert wrong <= most_wrong(shown, chance=1e-5)


@pytest.mark.unhurried
def test_a_mean_is_shown_only_if_most_values_are_known_to_be_inside() -> None:
    """Half of the values beyond private bounds, and what follows from them is arbitrary."""
    values = np.random.default_rng(3).lognormal(4.0, 1.0, 200)
    for seed in range(15):
        found = mean(values, epsilon=1.0, noise=ReproducibleNoise(seed))
        if found.clipped_share is None:
            assert found.lines()[0].startswith("too few records for this ε (laplace, no interval")
            assert found.plain()["value"] is None
        else:
            assert found.clipped_share[1] < 0.5
            assert found.usual_interval is not None


def test_an_interval_is_never_narrower_than_values_can_be_told_apart() -> None:
    found = median(np.full(5_000, 19.99), epsilon=1.0, noise=ReproducibleNoise(1))
    low, high = found.interval()
    assert found.value == 19.99
    assert 1e-5 < high - low < 1e-4
