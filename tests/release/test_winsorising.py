"""Private bounds: the exact privacy of the radius, and where it lands."""

import math
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.release.columns.column import ArrayColumn
from prudent.release.noise import ReproducibleNoise
from prudent.release.sums import clipping as winsorising
from prudent.release.sums.clipping import Clipping, PrivateRadius
from tests.oracles.multisets import Counts, data_sets, neighbours, records

SIZE = 3


def chances(radius: PrivateRadius, counts: Counts, centre: float) -> list[Fraction]:
    """The exact probability of each radius."""
    values = np.array(records(counts), float)
    outside = [int(np.sum(np.abs(values - centre) > each)) for each in radius.radii]
    weights = radius.weights(outside, len(values), centre)
    return [Fraction(each, sum(weights)) for each in weights]


def range_of_losses(radius: PrivateRadius, centre: float) -> float:
    """The longest range of log-ratios, over all neighbours and all radii."""
    law = {each: chances(radius, each, centre) for each in data_sets(SIZE + 1)}
    longest = Fraction(0)
    for each in data_sets(SIZE):  # a pair has the same range in both directions
        for near in (near for near in neighbours(each) if sum(near) > sum(each)):
            ratios = [one / other for one, other in zip(law[each], law[near], strict=True)]
            assert min(ratios) <= 1 <= max(ratios)
            longest = max(longest, max(ratios) / min(ratios))
    return math.log(longest)


@pytest.mark.unhurried
@pytest.mark.parametrize("part", [1, 4])
@pytest.mark.parametrize(("epsilon", "centre"), [(0.5, 0.0), (4.0, 2.0), (20.0, 1.0)])
def test_the_radius_is_private_on_every_neighbour(epsilon: float, centre: float, part: int) -> None:
    radius = PrivateRadius(epsilon=epsilon, whole=True, part=part)
    assert range_of_losses(radius, centre) <= epsilon * (1 + 1e-12)


@pytest.mark.unhurried
def test_a_smaller_sensitivity_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(winsorising, "_SPREAD", Fraction(1, 2))
    radius = PrivateRadius(epsilon=20.0, whole=True)
    assert range_of_losses(radius, 1.0) > 20.0


def test_the_weights_are_those_of_the_column() -> None:
    values = np.array([1.0, 2.0, 2.5, 40.0, -300.0, math.inf, 7.0])
    radius = PrivateRadius(epsilon=1.0)
    outside = [int(np.sum(~(np.abs(values - 2.0) <= each))) for each in radius.radii]
    assert radius._outside_of(ArrayColumn(values), 2.0) == outside


@pytest.mark.parametrize("records", [1, 3])
def test_the_interval_leaves_few_records_out(records: int) -> None:
    values = np.random.default_rng(4).normal(500.0, 100.0, 20_000)
    radius = PrivateRadius(epsilon=0.5, records=records)
    found = [
        radius.release(ArrayColumn(values), 500.0, ReproducibleNoise(seed)) for seed in range(20)
    ]
    outside = [int(np.sum(np.abs(values - 500.0) > each)) for each in found]
    assert max(outside) < 4 * radius.outside
    assert sorted(found)[10] <= 768


def test_ties_make_an_interval_that_holds_them() -> None:
    column = ArrayColumn(np.full(5_000, 7.0))
    clipping = Clipping.privately(column, 0.5, 0.5)
    low, high = clipping.ends(column, ReproducibleNoise(0))
    assert low < 7.0 < high <= 9.0
