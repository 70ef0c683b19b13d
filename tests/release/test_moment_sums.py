"""Moment sums: their sensitivity on every neighbour, and what follows from them."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.accounting import PldAccountant
from prudent.release import moment_sums
from prudent.release.columns.scales import NUMBER
from prudent.release.lattice import Lattice
from prudent.release.moment_sums import (
    ClippedTotal,
    Moments,
    MomentSpread,
    MomentSums,
    fine_lattice,
)
from prudent.release.noise import (
    AdditiveMechanism,
    Distribution,
    NoiseRegion,
    ReproducibleNoise,
    shares_of,
)
from tests.oracles.array_column import ArrayColumn
from tests.oracles.multisets import data_sets, neighbours, records

LATTICES = [Lattice(0, 0, 4), Lattice(0, 1, 3), Lattice(-1, -3, 7), Lattice(0, -2, 2)]


def column(counts: tuple[int, ...]) -> ArrayColumn:
    return ArrayColumn(np.array(records(counts), float))


def largest_change(sums: MomentSums, size: int = 3) -> int:
    """The largest sum of absolute differences between a data set and its neighbours."""
    read = {each: sums.read(column(each)) for each in data_sets(size + 1)}
    return max(
        sum(abs(one - other) for one, other in zip(read[each], read[near], strict=True))
        for each in data_sets(size)
        for near in neighbours(each)
    )


@pytest.mark.parametrize("lattice", LATTICES, ids=str)
@pytest.mark.parametrize("degree", [0, 1, 2])
def test_a_record_changes_the_sums_by_exactly_the_sensitivity(
    degree: int, lattice: Lattice
) -> None:
    sums = MomentSums(degree, lattice)
    assert largest_change(sums) == sums.sensitivity  # so a smaller one would be wrong


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("degree", [1, 2])
def test_sums_that_are_rounded_change_by_no_more(
    degree: int, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moment_sums, "_BITS", bits)
    sums = MomentSums(degree, Lattice(-3, 0, 32))
    assert sums.step > 1 / 32**degree
    assert sums.sensitivity - 2 <= largest_change(sums) <= sums.sensitivity


@pytest.mark.parametrize("together", [1, 2, 3])
def test_several_records_of_a_unit_are_added_together(together: int) -> None:
    sums = MomentSums(1, Lattice(0, 0, 4), together)
    one, more = (sums.read(ArrayColumn(np.array(x, float))) for x in ([1], [1] + [4] * together))
    assert sum(abs(a - b) for a, b in zip(one, more, strict=True)) == sums.sensitivity


@pytest.mark.parametrize("epsilon", [0.001, 0.1, 1.0, 7.3])
def test_the_loss_of_laplace_noise_is_at_most_epsilon_exactly(epsilon: float) -> None:
    # The log-ratio of two outputs is at most the change divided by the scale.
    mechanism = AdditiveMechanism.calibrate(epsilon)
    for sensitivity in (1, 3, 2**32 + 1, 2**33 - 1):
        scale = Fraction(mechanism.scale(sensitivity))
        assert sensitivity / scale <= Fraction(epsilon)
        assert sensitivity / scale >= Fraction(epsilon) * (1 - Fraction(1, 10**12))
        assert mechanism.event.noise_parameter <= epsilon


def test_gaussian_noise_meets_its_target() -> None:
    mechanism = AdditiveMechanism.calibrate(0.5, 1e-6, Distribution.GAUSSIAN)
    spent = PldAccountant().compose(mechanism.event).get_epsilon(1e-6)
    assert 0.499 < spent <= 0.5
    with pytest.raises(
        ValueError, match=r"Expected delta with distribution=Distribution\.GAUSSIAN"
    ):
        AdditiveMechanism.calibrate(0.5, None, Distribution.GAUSSIAN)


@pytest.mark.parametrize("bounds", [(0.0, 4.0), (1.0, 3.0), (-2.0, 2.0), (2.0, 3.5)])
def test_a_record_changes_a_total_by_at_most_the_farther_bound(
    bounds: tuple[float, float],
) -> None:
    total = ClippedTotal.between(bounds)
    read = {each: total.read(column(each)) for each in data_sets(4)}
    changes = [abs(read[e] - read[near]) for e in data_sets(3) for near in neighbours(e)]
    assert max(changes) == total.sensitivity


def test_shares_never_exceed_the_whole() -> None:
    for epsilon, shares in itertools.product((0.1, 0.3, 1 / 3, 7.7), ((0.3,), (0.1, 0.7, 0.1))):
        parts = shares_of(epsilon, *shares)
        assert sum(map(Fraction, parts)) <= Fraction(epsilon)
        assert math.isclose(sum(parts), epsilon)


def exact(values: np.ndarray, bounds: tuple[float, float], degree: int) -> Moments:
    sums = MomentSums(degree, fine_lattice(bounds))
    return sums.moments(sums.read(ArrayColumn(values)), 1e-9 / sums.step, Distribution.LAPLACE)


@pytest.mark.parametrize("bounds", [(0.0, 10.0), (-3.0, 90.0), (1e9, 1e9 + 50), (2.0, 4.0)])
def test_without_noise_the_moments_are_those_of_the_clipped_values(
    bounds: tuple[float, float],
) -> None:
    values = bounds[0] + np.random.default_rng(3).gamma(2.0, 2.0, 500)
    clipped = np.clip(values, *bounds)
    found = exact(values, bounds, 2)
    width = bounds[1] - bounds[0]
    assert found.count == pytest.approx(500, abs=1e-5)
    assert found.mean == pytest.approx(clipped.mean(), abs=1e-6 * width)
    assert found.variance == pytest.approx(clipped.var(), abs=1e-6 * width**2)
    assert exact(values, bounds, 1).mean == pytest.approx(clipped.mean(), abs=1e-6 * width)


def covers(confidence: float, distribution: Distribution, size: int) -> dict[str, float]:
    """How often intervals hold the truth, at a noise that matters; none at all is no error."""
    values = np.random.default_rng(1).beta(2, 5, size)
    sums = MomentSums(2, fine_lattice((0.0, 1.0)))
    read, mechanism = (
        sums.read(ArrayColumn(values)),
        AdditiveMechanism(multiplier=2.0, distribution=distribution),
    )
    truths = {"count": size, "mean": values.mean(), "variance": values.var()}
    held = dict.fromkeys(truths, 0)
    for seed in range(300):
        noisy = mechanism.noisy(read, sums.sensitivity, ReproducibleNoise(seed))
        found = sums.moments(noisy, mechanism.scale(sums.sensitivity), distribution)
        for name, truth in truths.items():
            interval = getattr(found, f"{name}_interval")(confidence)
            low, high = interval or (-math.inf, math.inf)
            held[name] += low <= truth <= high
            assert low <= getattr(found, name) <= high
    return {name: times / 300 for name, times in held.items()}


@pytest.mark.parametrize("distribution", list(Distribution))
@pytest.mark.parametrize("size", [20, 400])
def test_intervals_hold_the_truth_as_often_as_they_say(
    distribution: Distribution, size: int
) -> None:
    assert min(covers(0.95, distribution, size).values()) >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 300)


def test_an_interval_of_little_confidence_misses_the_truth_at_times() -> None:
    assert max(covers(0.2, Distribution.LAPLACE, 400).values()) < 0.9


def test_an_interval_is_all_that_bounds_allow_where_there_may_be_no_record() -> None:
    sums = MomentSums(2, fine_lattice((-1.0, 3.0)))
    found = sums.moments(
        sums.read(ArrayColumn(np.empty(0))), sums.sensitivity, Distribution.LAPLACE
    )
    assert (found.mean, found.variance, found.count) == (1.0, 0.0, 0.0)
    assert found.mean_interval(0.95) == pytest.approx((-1.0, 3.0))
    assert found.variance_interval(0.95) == (0.0, 4.0)
    assert found.deviation_interval(0.95) == (0.0, 2.0)
    assert found.count_interval(0.95)[0] == 0.0


def test_a_region_has_the_corners_of_its_polytope() -> None:
    laplace = list(NoiseRegion((1.0, 2.0), Distribution.LAPLACE, 1.0).vertices(0.95))
    gaussian = list(NoiseRegion((1.0, 2.0), Distribution.GAUSSIAN, 1.0).vertices(0.95))
    assert len(laplace) == len(gaussian) == 4
    # P(|X| + |Y| > r) = (1 + r) exp(-r) for Laplace noise of scale 1.
    radius = max(x for x, _ in laplace) - 1
    assert (1 + radius) * math.exp(-radius) == pytest.approx(0.05)


def test_the_mean_has_less_noise_than_half_of_epsilon_each_for_count_and_sum() -> None:
    found = exact(np.full(1000, 0.5), (0.0, 1.0), 1)
    noisy = NoiseRegion(found.region.centre, Distribution.LAPLACE, 1.0)
    joint = Moments(noisy, (0.0, 1.0), 2**-32).noise("mean")
    apart = math.sqrt(2) * (0.5 / 0.5) / 1000  # a sum about the midpoint, with half of ε
    assert joint == pytest.approx(apart / math.sqrt(2))


def test_the_interval_of_a_count_is_never_upside_down() -> None:
    """With little noise there may be no whole number in it: it has the two around it."""
    region = NoiseRegion((1.0, 1.0, 1.5), Distribution.LAPLACE, 0.01, 0.0)
    spread = MomentSpread(Moments(region, (0.0, 1.0), 1e-9), "count", NUMBER)
    assert spread.interval(spread.value, 0.95) == (3, 4)
