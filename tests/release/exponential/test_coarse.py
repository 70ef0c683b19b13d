"""The measure on doubles of 20 bits: masses against counting, order, and answers at ties."""

from fractions import Fraction

import numpy as np
import pytest

from prudent.release.exponential.measure import CoarseMeasure, DoubleMeasure
from prudent.release.exponential.quantile import ExponentialQuantile
from prudent.release.noise import ReproducibleNoise
from tests.oracles.array_column import ArrayColumn


def test_masses_are_positive_and_add_up() -> None:
    measure = CoarseMeasure()
    for start in (
        measure.low,
        -1500,
        int(measure.indices(np.array([1.0]))[0]) - 1500,
        measure.high - 2999,
    ):
        places = np.arange(start, start + 3001)
        assert (np.diff(measure.below(places)) >= measure.lightest).all()
    ends = measure.below(np.array([measure.low, 0, 1, measure.high + 1]))
    assert ends[1] - ends[0] == ends[3] - ends[2]
    assert measure.total == ends[3] - ends[0] < 2**62


def test_a_record_is_rounded_toward_zero_and_keeps_its_order() -> None:
    measure = CoarseMeasure()
    values = np.array([-1e300, -3.7, -0.1, -1e-20, 0.0, 1e-9, 0.1, 1 / 3, 12345.0, 5e15, np.inf])
    places = measure.indices(values)
    assert (np.diff(places) >= 0).all()
    found = np.array([measure.value(int(place)) for place in places])
    assert (measure.indices(found) == places).all()
    inside = slice(1, 10)
    assert (np.abs(found[inside]) <= np.abs(values[inside])).all()
    assert np.allclose(found[inside], values[inside], rtol=2e-6, atol=1e-12)
    assert found[8] == 12345.0


def test_bounds_limit_the_answers() -> None:
    measure = CoarseMeasure((-2.0, 3.0))
    assert [measure.value(end) for end in (measure.low, measure.high)] == [-2.0, 3.0]
    assert measure.indices(np.array([-9.0, 9.0])).tolist() == [measure.low, measure.high]


@pytest.mark.parametrize(
    ("measure", "least", "most"), [(CoarseMeasure, 35, 40), (DoubleMeasure, 0, 34)]
)
def test_a_value_that_many_share_is_found_with_fewer_records(
    measure: type[DoubleMeasure], least: int, most: int
) -> None:
    column = ArrayColumn(np.where(np.arange(1200) < 600, -1.17131234567, 0.85371234567))
    chosen = ExponentialQuantile(Fraction(1, 4), 0.14, measure(), interval_share=0.0)
    found = [chosen.release(column, ReproducibleNoise(seed)).value for seed in range(40)]
    assert least <= sum(abs(each + 1.17131234567) < 1e-4 for each in found) <= most
