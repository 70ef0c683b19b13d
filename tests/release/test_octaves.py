"""Sums in all half-octaves: what one record changes, and the mean of a few records."""

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.release.columns.scales import Scale
from prudent.release.moment_sums import OctaveSums
from prudent.release.noise import AdditiveMechanism, Distribution, ReproducibleNoise
from prudent.release.statistics import mean, sum
from tests.oracles.array_column import ArrayColumn
from tests.release.recording import Silence

ODD = [0.0, -0.0, 5e-324, -1e-13, 1.0, -1.0, 2.0, 511.999, 512.0, -1e6, 1e300, np.inf, -np.inf]


@pytest.mark.parametrize("records", [1, 3])
@pytest.mark.parametrize("odd", ODD)
def test_a_record_changes_the_sums_by_exactly_one(odd: float, records: int) -> None:
    sums = OctaveSums(Scale("number"), records)
    data = np.random.default_rng(1).lognormal(3, 2, 40)
    without = np.array(sums.read(ArrayColumn(data)))
    added = np.array(sums.read(ArrayColumn(np.append(data, odd)))) - without
    assert added.min() >= 0
    assert added.sum() == sums.steps
    assert records * sums.steps <= sums.sensitivity


@pytest.mark.parametrize(
    "values",
    [[500.0] * 9 + [600.0] * 6, [-3.0] * 20, [-3.0] * 9 + [3.5] * 15, [0.0] * 20 + [7.0] * 9],
)
def test_without_noise_it_is_the_mean_of_all_values(values: list[float]) -> None:
    column, mechanism = ArrayColumn(np.array(values)), AdditiveMechanism.calibrate(4.0)
    found = OctaveSums(column.scale).release("mean", column, mechanism, Silence())
    assert found.value == pytest.approx(np.mean(values), rel=1e-6)
    assert all(any(low <= each <= high for low, high in found.ranges) for each in values)


def test_far_values_of_a_few_records_are_left_out() -> None:
    column = ArrayColumn(np.array([100.0] * 40 + [1e12]))
    found = OctaveSums(column.scale).release(
        "mean", column, AdditiveMechanism.calibrate(1.0), Silence()
    )
    assert found.value == pytest.approx(100.0)
    ((low, high),) = found.ranges
    assert 50 < low <= 100 <= high < 200


@pytest.mark.unhurried
def test_beside_many_zeros_noise_is_not_taken_for_values() -> None:
    values = np.arange(300) % 10 == 0  # a tenth are ones
    answers = [
        mean(values.astype(np.int64), epsilon=0.1, noise=ReproducibleNoise(seed))
        for seed in range(40)
    ]
    errors = [abs(float(each.value) - 0.1) for each in answers]
    assert np.quantile(errors, 0.85) < 0.2  # over 100 where the best range is always kept
    assert any("those equal to 0 are in the mean" in str(each) for each in answers)


@pytest.mark.unhurried
@pytest.mark.parametrize("distribution", list(Distribution))
@pytest.mark.parametrize("whole", [True, False])
def test_the_mean_of_fifty_records_needs_no_bounds(distribution: Distribution, whole: bool) -> None:
    values = np.random.default_rng(1).normal(500.0, 100.0, 50)
    typed = values.astype(np.int64) if whole else values
    given = {"epsilon": 1.0, "delta": 1e-6, "distribution": distribution}
    answers = [mean(typed, noise=ReproducibleNoise(seed), **given) for seed in range(15)]
    errors = [abs(float(each.value) - typed.mean()) for each in answers]
    assert np.median(errors) < 40  # 496, the mean itself, where bounds are looked for first
    few = [each for each in answers if "Too few records" in str(each)]
    assert len(few) >= 12
    assert all(each.usual_interval is None for each in few)
    price = mean(typed, dry_run=True, **given).event
    assert all(each.event == price for each in answers)


def test_so_does_their_sum() -> None:
    values = np.random.default_rng(1).normal(500.0, 100.0, 50)
    found = [sum(values, epsilon=1.0, noise=ReproducibleNoise(seed)).value for seed in range(15)]
    assert np.median(np.abs(np.array(found) - values.sum())) < 3_000  # 24,800 before


def test_many_records_have_private_bounds() -> None:
    values = np.random.default_rng(1).normal(500.0, 100.0, 2_000)
    assert mean(values, epsilon=1.0, noise=ReproducibleNoise(1)).usual_interval is not None


def test_no_whole_number_is_looked_for_below_one() -> None:
    """Of no record at all only noise is found, but where a record could have been."""
    nothing = np.array([], np.int64)
    for seed in range(20):
        found = mean(nothing, epsilon=1.0, read_as="integer", noise=ReproducibleNoise(seed))
        assert "Too few records" in str(found)
        assert found.value == 0 or abs(found.value) > 0.5


def test_the_means_of_units_may_be_fractions() -> None:
    table = {"x": [0, 1] * 40, "u": [place // 2 for place in range(80)]}
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("ibis")
    found = mean(pandas.DataFrame(table), "x", unit="u", epsilon=1.0, noise=Silence())
    assert found.value == pytest.approx(0.5)


def test_private_groups_are_few_by_the_part_of_epsilon_that_they_get() -> None:
    """Of ε = 2 with 100 records, the choice of groups takes some: 160 / 2 is not the threshold."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("ibis")
    table = pandas.DataFrame({"x": np.full(100, 7.0), "g": "a"})
    given = {"by": "g", "groups": "private", "epsilon": 2.0, "delta": 1e-3}
    assert "Too few records" in str(mean(table, "x", noise=Silence(), **given))
