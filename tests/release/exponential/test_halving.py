"""Several quantiles by halving: private on every neighbour, near the truth, priced as charged."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.accounting import PldAccountant
from prudent.release.exponential import many_quantiles
from prudent.release.exponential.interval import Points, PrivateInterval
from prudent.release.exponential.many_quantiles import CountedQuantiles, HalvedQuantiles
from prudent.release.exponential.quantile import NearTarget
from prudent.release.lattice import Lattice
from prudent.release.noise import ReproducibleNoise
from prudent.release.statistics import quantiles
from tests.audit.releases import CASES
from tests.oracles.multisets import data_sets, neighbours

QUARTERS = CountedQuantiles(("1/4", "1/2", "3/4"), 1.0)
DECILES = [Fraction(k, 10) for k in range(1, 10)]
MANY = [Fraction(k, 32) for k in range(1, 32)]
UNHURRIED = pytest.mark.unhurried


def points(counts: tuple[int, ...]) -> Points:
    """Records at the places 0, ..., 4, each in a place of its own."""
    held = np.array([place for place, count in enumerate(counts) if count], np.int64)
    return Points(Lattice(0, 0, 4), held, np.array([n for n in counts if n], np.int64))


def law(mechanism: HalvedQuantiles, counts: tuple[int, ...]) -> dict[tuple[int, ...], Fraction]:
    """The exact probability of every three answers, by the weights of each choice."""

    def chances(records: Points, p: Fraction) -> dict[int, Fraction]:
        chosen = mechanism._value(p, records.lattice)
        window = NearTarget.read(records, records.measure, chosen.p, chosen.reach)
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
        lower, upper = many_quantiles._cut(points(counts), middle)
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
    mechanism = HalvedQuantiles(QUARTERS, 2.0)
    assert mechanism.levels == 2
    assert 1.0 < largest_loss(mechanism) <= 2.0 * (1 + 1e-12)


@pytest.mark.unhurried
def test_paying_one_level_for_all_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = HalvedQuantiles(QUARTERS, 2.0)
    monkeypatch.setitem(mechanism.__dict__, "level_epsilon", 2.0)
    assert largest_loss(mechanism) > 2.0


@pytest.mark.parametrize("bounds", [None, (0, 200)])
@pytest.mark.parametrize("number", [9, *(pytest.param(n, marks=UNHURRIED) for n in (31, 99))])
def test_answers_are_near_the_truth_in_intervals_that_hold(number: int, bounds: Any) -> None:
    """By halving, and of more than fifteen from a tree, whose intervals a few may lack."""
    ps, halved = [Fraction(k, number + 1) for k in range(1, number + 1)], number == 9
    for values in (
        np.random.default_rng(1).normal(100.0, 15.0, 20_000),
        np.random.default_rng(2).integers(18, 90, 20_000),
    ):
        given = {"read_as": "integer"} if values.dtype.kind == "i" else {}  # numpy infers it
        found = quantiles(
            values, ps=ps, epsilon=2.0, bounds=bounds, noise=ReproducibleNoise(4), **given
        )
        answers = np.array(found.value, float)
        assert (np.diff(answers) >= 0).all()
        ordered = np.sort(values)
        target = np.array([float(p) for p in ps]) * len(values)
        below, upto = (np.searchsorted(ordered, answers, side) for side in ("left", "right"))
        off = np.maximum(0, np.maximum(below - target, target - upto)).mean()
        assert off < (9 if halved else 15)
        exact = ordered[[math.ceil(each) - 1 for each in target]]
        known = [
            (ends, answer, truth)
            for ends, answer, truth in zip(found.intervals or (), answers, exact, strict=True)
            if ends is not None
        ]
        assert len(known) == number if halved else len(known) > 0.9 * number
        assert all(low <= answer <= high for (low, high), answer, _ in known)
        held = sum(low <= truth <= high for (low, high), _, truth in known)
        assert held == number if halved else held > 0.9 * len(known)
        if values.dtype == np.float64:
            widths = np.diff(
                np.searchsorted(ordered, np.array([ends for ends, *_ in known], float))
            )
            assert np.median(widths) < (300 if halved else 200)  # records


@pytest.mark.parametrize("ps", [[0.1, 0.2, 0.5, 0.9], MANY], ids=["levels", "tree"])
@pytest.mark.parametrize("given", [{}, {"bounds": (0, 200)}, {"unit": "person", "per_unit": 3}])
def test_the_price_is_what_was_asked(ps: Any, given: dict[str, Any]) -> None:
    data = pyarrow.table({"value": [0.0], "person": [1]})
    preview = quantiles(data, "value", ps=ps, epsilon=0.9, dry_run=True, **given)
    spent = PldAccountant().compose(preview.event).get_epsilon(0.0)
    assert 0.9 * (1 - 1e-9) <= spent <= 0.9 * (1 + 1e-9)


@pytest.mark.parametrize("given", [{"bounds": (0.0, 200.0)}, {}])
@pytest.mark.parametrize("count", [2, 9, 19])
def test_without_intervals_the_price_is_the_same(count: int, given: dict[str, Any]) -> None:
    ps = [Fraction(place + 1, count + 1) for place in range(count)]
    sample = np.random.default_rng(1).normal(100.0, 15.0, 5_000)
    noise = ReproducibleNoise(3)
    found = quantiles(sample, ps=ps, epsilon=0.7, confidence=0, noise=noise, **given)
    assert found.intervals == ((),) * count
    assert found.plain()["intervals"] == [None] * count
    assert not any("interval" in line for line in found.lines())
    assert PldAccountant().compose(found.event).get_epsilon(0.0) == pytest.approx(0.7)
    ranks = np.searchsorted(np.sort(sample), found.value) / len(sample)
    assert np.abs(ranks - np.array(ps, float)).max() < 0.05


def test_few_quantiles_are_halved_and_many_counted() -> None:
    """Public facts alone decide, so the price of any column tells what was chosen."""

    def choices(number: int, **given: Any) -> int:
        ps = [Fraction(k, number + 1) for k in range(1, number + 1)]
        event: Any = quantiles(np.zeros(0), ps=ps, epsilon=1.0, dry_run=True, **given).event
        return str(event).count("ExponentialMechanismDpEvent")

    assert [choices(number, bounds=(0, 1)) for number in (4, 7, 15, 16)] == [3, 3, 4, 0]
    assert [choices(number) for number in (4, 7, 15, 16)] == [5, 5, 6, 2]


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (0.0, 3_000.0), (0.0, 30_000.0)])
@pytest.mark.parametrize("ps", [DECILES, [Fraction(k, 100) for k in range(1, 100)]])
def test_answers_ascend_within_the_bounds_and_their_intervals(ps: Any, bounds: Any) -> None:
    values = np.full(50, bounds[1])
    for data, epsilon in ((values, 20.0), (values[:0], 0.1)):
        found = quantiles(data, ps=ps, epsilon=epsilon, bounds=bounds, noise=ReproducibleNoise(1))
        answers = np.array(found.value, float)
        assert (np.diff(answers) >= 0).all()
        assert bounds[0] <= answers[0]
        assert answers[-1] <= bounds[1]
        for ends, answer in zip(found.intervals or (), answers, strict=True):
            assert ends is None or ends[0] <= answer <= ends[1]


def test_an_interval_holds_values_between_whole_points() -> None:
    """The spacing is 1 for these bounds, but values are not whole."""
    values = np.full(1_000, 1_500.4)
    for ps in (DECILES, [Fraction(k, 100) for k in range(1, 100)]):
        for high in (3_000.0, 30_000.0):
            found = quantiles(
                values, ps=ps, epsilon=20.0, bounds=(0.0, high), noise=ReproducibleNoise(1)
            )
            assert all(ends and ends[0] <= 1_500.4 <= ends[1] for ends in found.intervals or ())


def test_the_rank_error_is_a_bound() -> None:
    values = np.random.default_rng(5).permutation(4_000)
    mechanism = HalvedQuantiles(CountedQuantiles(DECILES, 1.0), 1.0)
    assert mechanism.levels == 4
    points = Points(Lattice(0, -1, 4_000), np.sort(values), np.ones(4_000, np.int64))
    for seed in range(5):
        answers = mechanism.release(points, ReproducibleNoise(seed), between=False)
        off = [abs(one.value - 4_000 * p) for one, p in zip(answers, DECILES, strict=True)]
        assert max(off) <= mechanism.rank_error()


@pytest.mark.parametrize("ps", [DECILES, MANY])
def test_an_interval_that_is_far_too_wide_is_narrowed(
    ps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step may choose an interval of a thousand times the width, if seldom."""
    values = np.sort(np.random.default_rng(1).lognormal(3, 1, 20_000))
    monkeypatch.setattr(PrivateInterval, "widest", lambda *_: (0.0, 2.0**20))
    found = quantiles(values, ps=ps, epsilon=1.0, noise=ReproducibleNoise(1))
    off = np.searchsorted(values, found.value) - 20_000 * np.array(ps, float)
    assert np.abs(off).mean() < 40


def test_too_small_an_epsilon_is_refused_before_anything_is_charged() -> None:
    with pytest.raises(ValueError, match="epsilon"):
        HalvedQuantiles(QUARTERS, 1e-5)


def test_an_audit_runs_what_the_public_function_releases() -> None:
    case = CASES["halved-quantiles"](1.0, 0.0)
    assert case.call is not None
    for data in case.pair:
        run = case.prepare(data, ReproducibleNoise(1))()
        found = np.clip([place // 64 for place in sorted(run)], 0, 255)
        assert found.tolist() == list(case.call(data, ReproducibleNoise(1)).value)


def test_one_record_more_at_a_point_is_one_more_at_one_of_its_places() -> None:
    def places(count: int) -> dict[int, int]:
        finer = many_quantiles._finer(points((3, 0, count, 0, 70)))
        return dict(zip(finer.steps.tolist(), finer.counts.tolist(), strict=True))

    for count in range(200):
        fewer, more = places(count), places(count + 1)
        assert sum(more.values()) == sum(fewer.values()) + 1
        assert sum(abs(more[each] - fewer.get(each, 0)) for each in more) == 1


def test_a_leaf_of_the_tree_is_some_neighbouring_points() -> None:
    lattice = Lattice(0, -9, 30)
    records = Points(lattice, np.array([-9, -8, -1, 0, 30]), np.array([1, 2, 3, 4, 5]))
    coarser = many_quantiles._coarser(records)
    assert (coarser.lattice.low, coarser.lattice.high) == (-2, 3)
    assert dict(zip(coarser.steps.tolist(), coarser.counts.tolist(), strict=True)) == {
        -2: 1,
        -1: 5,
        0: 4,
        3: 5,
    }
