"""Released quantiles: accuracy, coverage of the intervals, and what is read."""

import math
from fractions import Fraction

import dp_accounting as dp
import numpy as np
import pytest

from prudent._validate import ArgumentError
from prudent.accounting import ExponentialMechanismDpEvent, PldAccountant
from prudent.release.exponential.measure import DoubleMeasure, LatticeMeasure, Measure, draw
from prudent.release.exponential.quantile import (
    ExponentialQuantile,
    ExponentialQuantiles,
    ExponentialRange,
    NearTarget,
)
from prudent.release.lattice import FloatArray, Lattice
from prudent.release.noise import ReproducibleNoise
from tests.oracles.array_column import ArrayColumn

GENERATOR = np.random.default_rng(5)
NORMAL = GENERATOR.normal(500, 100, 20_000)
SHAPES: dict[str, tuple[FloatArray, Measure]] = {
    "normal": (NORMAL, DoubleMeasure()),
    "cauchy": (GENERATOR.standard_cauchy(5_000), DoubleMeasure()),
    "rounded": (np.round(NORMAL), LatticeMeasure(Lattice(0))),
    "one value": (np.full(5_000, 7.0), DoubleMeasure()),
    "tiny": (NORMAL * 1e-11, DoubleMeasure()),
    "few": (NORMAL[:100], DoubleMeasure()),
}


def true_quantile(values: FloatArray, p: float) -> float:
    return float(np.sort(values)[math.ceil(p * len(values)) - 1])


@pytest.mark.parametrize("epsilon", [0.3, 3.0])
@pytest.mark.parametrize("records", [1, 10, 150, 1_000])
@pytest.mark.parametrize(
    "measure",
    [DoubleMeasure(), DoubleMeasure((0.0, 1_000.0)), LatticeMeasure(Lattice(0, 0, 1_000))],
)
def test_an_interval_misses_as_rarely_as_it_says(
    measure: Measure, records: int, epsilon: float
) -> None:
    """By the exact law of the interval, around any value that may have been drawn.

    The rare wrong one may be as narrow as a single value, more rarely still.
    """
    values = np.round(NORMAL[:records])
    mechanism, noise = ExponentialQuantile(0.5, epsilon, measure), ReproducibleNoise(1)
    window = NearTarget.read(ArrayColumn(values), measure, mechanism.p, mechanism.reach)
    (true,) = measure.indices(np.array([true_quantile(values, 0.5)])).tolist()
    for _ in range(4):
        index = draw(measure, *mechanism.value_weights(window), noise)
        intervals = measure.around(index)
        weights = mechanism.interval_weights(window, intervals)
        pairs = list(zip(intervals, weights, strict=True))
        wrong = [(ends, weight) for ends, weight in pairs if not ends[0] <= true <= ends[1]]
        assert 20 * sum(weight for _, weight in wrong) <= sum(weights)
        assert 300 * sum(weight for (low, high), weight in wrong if low == high) <= sum(weights)


class Recorder(ArrayColumn):
    """A column that notes every query."""

    def __init__(self, values: FloatArray) -> None:
        super().__init__(values)
        self.queries: list[str] = []

    def count(self) -> int:
        self.queries.append("count")
        return super().count()

    def order_statistics(self, first: int, last: int) -> FloatArray:
        self.queries.append("order_statistics")
        return super().order_statistics(first, last)


@pytest.mark.unhurried
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("p", [0.5, 0.9])
def test_intervals_contain_the_quantile(shape: str, p: float) -> None:
    values, measure = SHAPES[shape]
    mechanism, noise = ExponentialQuantile(p, 1.0, measure), ReproducibleNoise(1)
    released = [mechanism.release(ArrayColumn(values), noise) for _ in range(30)]
    true = true_quantile(values, p)
    covered = 0
    for one in released:
        assert one.interval is not None
        assert one.interval[0] <= one.value <= one.interval[1]
        covered += one.interval[0] <= true <= one.interval[1]
    assert covered >= 25  # 0.04 % if it is 95 % each time
    if shape == "few":
        assert any(one.whole for one in released)
        assert len(values) < mechanism.enough_records
    else:
        assert not any(one.whole for one in released)


@pytest.mark.unhurried
def test_the_median_is_as_accurate_as_its_rank_error_says() -> None:
    mechanism, noise = ExponentialQuantile(0.5, 0.3, interval_share=0.0), ReproducibleNoise(4)
    ordered = np.sort(NORMAL)
    released = [mechanism.release(ArrayColumn(NORMAL), noise) for _ in range(60)]
    assert all(one.interval is None for one in released)
    errors = np.abs(np.searchsorted(ordered, [one.value for one in released]) - len(NORMAL) / 2)
    assert np.median(errors) < 3 * mechanism.typical_rank_error()
    assert errors.max() < mechanism.rank_error(1e-6)
    assert np.median(np.abs([one.value - ordered[9_999] for one in released])) < 0.1


def test_rounded_integers_and_ties_are_answered_exactly() -> None:
    values, measure = SHAPES["one value"]
    mechanism = ExponentialQuantile(0.5, 0.1, measure)
    assert mechanism.release(ArrayColumn(values), ReproducibleNoise(2)).value == 7.0
    ages = np.repeat(np.arange(20, 60), 400)
    mechanism = ExponentialQuantile(0.5, 0.3, LatticeMeasure(Lattice(0)))
    found = mechanism.release(ArrayColumn(ages + 1), ReproducibleNoise(2))
    assert found.value in (40.0, 41.0)


def test_the_queries_do_not_depend_on_the_data() -> None:
    mechanism = ExponentialQuantile(0.9, 0.5)
    for values in (NORMAL, NORMAL[:1], NORMAL[:0], np.full(50, np.inf), np.zeros(10)):
        column = Recorder(np.asarray(values))
        released = mechanism.release(column, ReproducibleNoise(1))
        assert math.isfinite(released.value)
        assert column.queries.count("order_statistics") == 1
        assert column.queries[0] == "count"


def test_a_release_costs_exactly_epsilon() -> None:
    for share in (0.0, 0.1, 0.3):
        mechanism = ExponentialQuantile(0.5, 0.3, interval_share=share)
        parts = Fraction(mechanism.value_epsilon) + Fraction(mechanism.interval_epsilon)
        assert Fraction(0.3) * (1 - Fraction(1, 10**15)) < parts <= Fraction(0.3)
        assert PldAccountant().compose(mechanism.event).get_epsilon(0.0) <= 0.3 * (1 + 1e-12)
    assert ExponentialQuantile(0.5, 0.3, interval_share=0.0).event == (
        ExponentialMechanismDpEvent(0.3)
    )


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"p": 1, "epsilon": 1.0}, "p"),
        ({"p": 0.5, "epsilon": 0.0}, "epsilon"),
        ({"p": 0.5, "epsilon": 1e-6}, "epsilon"),
        ({"p": 0.5, "epsilon": 1.0, "interval_share": 1.0}, "interval_share"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, float], name: str) -> None:
    with pytest.raises(ArgumentError) as error:
        ExponentialQuantile(**arguments)  # type: ignore[arg-type]
    assert error.value.argument == name


def test_several_quantiles_are_in_order_and_share_epsilon() -> None:
    mechanism = ExponentialQuantiles((0.1, 0.5, "0.9"), 1.0)
    released = mechanism.release(ArrayColumn(NORMAL), ReproducibleNoise(3))
    values = [one.value for one in released]
    assert values == sorted(values)
    assert np.allclose(values, np.quantile(NORMAL, [0.1, 0.5, 0.9]), atol=3)
    assert isinstance(mechanism.event, dp.ComposedDpEvent)
    assert sum(Fraction(part.epsilon) for part in mechanism.parts) <= 1
    assert PldAccountant().compose(mechanism.event).get_epsilon(0.0) <= 1 + 1e-12
    with pytest.raises(ArgumentError):
        ExponentialQuantiles((0.5, 0.1), 1.0)


@pytest.mark.unhurried
def test_few_records_still_give_answers_in_order() -> None:
    mechanism, noise = ExponentialQuantiles((0.4, 0.5, 0.6), 0.2), ReproducibleNoise(3)
    for _ in range(10):
        for one, other in zip(
            *(mechanism.release(ArrayColumn(NORMAL[:20]), noise)[k:][:2] for k in (0, 1)),
            strict=True,
        ):
            assert one.interval is not None
            assert one.interval[0] <= one.value <= one.interval[1]
            assert other.interval is not None


def test_the_interquartile_range_comes_with_an_interval() -> None:
    found = ExponentialRange(1.0).release(ArrayColumn(NORMAL), ReproducibleNoise(3))
    assert not found.whole
    assert found.value == pytest.approx(134.9, abs=4)
    assert found.interval is not None
    assert 0 <= found.interval[0] <= found.value <= found.interval[1] <= 200
    assert ExponentialRange(1.0, interval_share=0.0).release(ArrayColumn(NORMAL)).interval is None
