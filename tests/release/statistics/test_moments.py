"""Count, sum, mean and variance: near the truth, priced as they say, charged first."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.accounting import PldAccountant
from prudent.release.columns.column import Contribution
from prudent.release.moment_sums import MomentSums, fine_lattice
from prudent.release.noise import Distribution, ReproducibleNoise
from prudent.release.outcome import Released
from prudent.release.statistics import count, mean, sum, variance
from tests.oracles.array_column import ArrayColumn
from tests.oracles.multisets import data_sets, neighbours, records
from tests.release.recording import Book, Silence

SAMPLE = np.random.default_rng(5).normal(100.0, 10.0, 20_000)
TRUTH = {count: 20_000, sum: SAMPLE.sum(), mean: SAMPLE.mean(), variance: SAMPLE.var()}
CLOSE = {count: 20, sum: 4_000, mean: 0.1, variance: 10.0}
ALL = pytest.mark.parametrize("statistic", TRUTH, ids=lambda each: each.__name__)
CLIPPED = pytest.mark.parametrize("statistic", [sum, mean, variance], ids=lambda f: f.__name__)


def options(statistic: Callable[..., Any], **more: Any) -> dict[str, Any]:
    return more if statistic is not count else {n: v for n, v in more.items() if n != "bounds"}


@ALL
@pytest.mark.parametrize("bounds", [None, (0.0, 200.0)])
@pytest.mark.parametrize("distribution", list(Distribution))
def test_what_is_released_is_near_the_truth(
    statistic: Callable[..., Any], bounds: tuple[float, float] | None, distribution: Distribution
) -> None:
    given = options(statistic, bounds=bounds, distribution=distribution, delta=1e-6, epsilon=2.0)
    released = statistic(SAMPLE, noise=ReproducibleNoise(3), **given)
    assert isinstance(released, Released)
    assert abs(released.value - TRUTH[statistic]) < CLOSE[statistic]
    low, high = released.interval(0.999)
    assert low - 1 <= TRUTH[statistic] <= high + 1
    assert low <= released.value <= high
    assert released.mechanism == distribution.value
    assert (released.epsilon, released.delta) == (
        2.0,
        1e-6 if distribution is Distribution.GAUSSIAN else 0.0,
    )
    spent = PldAccountant().compose(released.event).get_epsilon(released.delta)
    assert spent <= 2.0 * (1 + 1e-9)


def noise_and_value(statistic: Callable[..., Any], values: list[int], **given: Any) -> Any:
    noise = Silence()
    released = statistic(np.array(values, float), noise=noise, epsilon=0.7, **given)
    ((_, scale, _),) = noise.drawn
    return released.value, Fraction(scale) * Fraction(released.spacing)


@pytest.mark.unhurried
@pytest.mark.parametrize("bounds", [(0, 4), (1, 3), (-1, 2)])
def test_counts_and_sums_have_noise_for_what_a_neighbour_changes(bounds: tuple[int, int]) -> None:
    for statistic, given in ((count, {}), (sum, {"bounds": bounds})):
        found = {each: noise_and_value(statistic, records(each), **given) for each in data_sets(3)}
        worst = max(
            abs(found[each][0] - found[near][0]) / found[each][1]
            for each in data_sets(2)
            for near in neighbours(each)
        )
        # The largest privacy loss is the change divided by the scale: ε, and hardly less.
        assert 0.7 * (1 - 1e-9) <= worst <= Fraction(0.7)


@CLIPPED
@pytest.mark.parametrize("odd", [np.inf, -np.inf, np.nan, 1e308, -1e-320])
def test_one_odd_record_changes_nothing_but_the_value(
    statistic: Callable[..., Any], odd: float
) -> None:
    values = np.append(SAMPLE, odd)
    for bounds in (None, (0.0, 200.0)):
        given = {"epsilon": 1.0, "bounds": bounds}
        one, other = (
            statistic(each, noise=ReproducibleNoise(1), **given) for each in (SAMPLE, values)
        )
        assert abs(one.value - other.value) < CLOSE[statistic]


@ALL
def test_a_column_without_records_has_an_answer(statistic: Callable[..., Any]) -> None:
    released = statistic(np.empty(0), epsilon=1.0, noise=ReproducibleNoise(2))
    if statistic is count:
        low, high = released.interval()
        assert low <= released.value <= high
        return
    assert f"no interval for the {statistic.__name__} of the values" in released.lines()[0]
    assert (released.plain()["interval"], released.clipped_share) == (None, None)
    with pytest.raises(ValueError, match="no interval: too few records"):
        released.interval()


@CLIPPED
@pytest.mark.parametrize("bounds", [(3, 1), (1, 1), 5, (1, 2, 3), ("a", "b"), (0, np.inf)])
def test_bounds_that_are_none_are_refused_before_anything_is_charged(
    statistic: Callable[..., Any], bounds: Any
) -> None:
    book = Book()
    with pytest.raises(ValueError, match="Expected"):
        statistic(SAMPLE, bounds=bounds, epsilon=1.0, ledger=book)
    assert not book.charges


@pytest.mark.parametrize("epsilon", [0, -1, 1e-4, 51, "1"])
def test_epsilon_is_checked(epsilon: Any) -> None:
    with pytest.raises(ValueError, match="Expected epsilon"):
        mean(SAMPLE, epsilon=epsilon)


def test_dates_have_a_mean_and_no_sum() -> None:
    days = np.datetime64("2024-01-01") + np.arange(2_000) % 100
    released = mean(days, bounds=("2024-01-01", "2024-12-31"), epsilon=1.0)
    assert abs((released.value - np.datetime64("2024-02-19").item()).days) <= 2
    low, high = released.interval()
    assert low <= released.value <= high
    with pytest.raises(ValueError, match="dates have no sum"):
        sum(days, epsilon=1.0)


def test_text_can_be_counted() -> None:
    released = count(["a", "b", None, "a"] * 100, epsilon=5.0, noise=ReproducibleNoise(0))
    assert abs(released.value - 300) < 5
    assert isinstance(released.value, int)


class Several(ArrayColumn):
    """A column to which one person may contribute three values."""

    @property
    def contribution(self) -> Contribution:
        return Contribution(unit="person", per_unit=3)


@pytest.mark.parametrize(("statistic", "degree"), [(mean, 1), (variance, 2)])
@pytest.mark.parametrize("column", [ArrayColumn, Several])
def test_moments_have_noise_for_the_sensitivity_of_their_sums(
    statistic: Callable[..., Any], degree: int, column: type[ArrayColumn]
) -> None:
    records = 3 if column is Several else 1
    sums = MomentSums(degree, fine_lattice((0.0, 200.0)), records)
    noise = Silence()
    statistic(column(SAMPLE), bounds=(0, 200), epsilon=0.7, noise=noise)
    ((distribution, scale, size),) = noise.drawn
    assert (distribution, size) == (Distribution.LAPLACE, degree + 1)
    assert 0.7 * (1 - 1e-9) <= sums.sensitivity / Fraction(scale) <= Fraction(0.7)
    # Three records weigh three times as much as one, in records.
    assert float(scale) * sums.step == pytest.approx(records / 0.7)


@ALL
def test_several_values_of_a_person_cost_as_much_as_one(statistic: Callable[..., Any]) -> None:
    given = {"epsilon": 0.9, "dry_run": True}
    one, several = (statistic(column(SAMPLE), **given) for column in (ArrayColumn, Several))
    for preview in (one, several):
        spent = PldAccountant().compose(preview.event).get_epsilon(0.0)
        assert 0.9 * (1 - 1e-9) <= spent <= 0.9 * (1 + 1e-9)
