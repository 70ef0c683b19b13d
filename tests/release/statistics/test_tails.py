"""Quantiles in a tail, without bounds: near the scale of the data, at the price that is charged."""

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.accounting import PldAccountant
from prudent.release.exponential.interval import PrivateInterval
from prudent.release.noise import ReproducibleNoise
from prudent.release.statistics import quantile, quantiles
from tests.oracles.array_column import ArrayColumn
from tests.release.statistics.test_moments import Several

INCOMES = np.round(np.random.default_rng(3).lognormal(9.3, 0.6, 300))


def typical_error(values: Any, p: float, epsilon: float) -> float:
    truth = np.sort(values)[int(np.ceil(p * len(values))) - 1]
    found = [
        quantile(values, p=p, epsilon=epsilon, noise=ReproducibleNoise(seed)).value
        for seed in range(11)
    ]
    return float(np.median(np.abs(np.array(found, float) - truth)))


@pytest.mark.unhurried
@pytest.mark.parametrize(
    ("values", "p", "epsilon", "most"),
    [
        (INCOMES, 0.9, 0.3, 10_000),  # 1.3 million without a scale
        (INCOMES.astype(np.int64), 0.9, 0.3, 10_000),
        (-INCOMES, 0.1, 0.3, 10_000),
        (np.random.default_rng(5).normal(170.0, 10.0, 1_000), 0.99, 1.0, 60),
    ],
)
def test_octaves_without_records_do_not_attract_the_tail_of_a_small_table(
    values: Any, p: float, epsilon: float, most: float
) -> None:
    assert typical_error(values, p, epsilon) < most


@pytest.mark.parametrize("column", [ArrayColumn, Several])
def test_the_scale_is_paid_for(column: Any) -> None:
    for preview in (
        quantile(column(INCOMES), p="0.9", epsilon=0.9, dry_run=True),
        quantiles(column(INCOMES), ps=["0.1", "0.5"], epsilon=0.9, dry_run=True),
    ):
        spent = PldAccountant().compose(preview.event).get_epsilon(0.0)
        assert preview.epsilon == 0.9
        assert 0.9 * (1 - 1e-9) <= spent <= 0.9 * (1 + 1e-9)


def test_only_a_tail_without_bounds_needs_a_scale() -> None:
    def first(**given: Any) -> float:
        event: Any = quantile(INCOMES, epsilon=1.0, dry_run=True, **given).event
        return float(event.events[0].epsilon)

    assert first(p="0.9") == 0.16
    assert first(p="0.75") == pytest.approx(0.9)
    assert first(p="0.9", bounds=(0, 1e5)) == pytest.approx(0.9)


def test_an_interval_that_reaches_an_end_is_none() -> None:
    values = np.full(3_000, 100.0)
    values[:100] = np.inf  # beyond every scale: the upper end of the interval cannot hold
    for seed in range(5):
        found = quantile(values, p="0.99", epsilon=1.0, noise=ReproducibleNoise(seed))
        assert found.usual_interval is None


def test_advice_follows_from_what_is_public(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no interval, what is said of it does not depend on the records."""
    monkeypatch.setattr(PrivateInterval, "release", lambda *_: (0.0, 256.0))
    notes = {
        quantile(np.full(records, 7.0), p="0.99", epsilon=0.1, noise=ReproducibleNoise(1)).notes
        for records in (3, 40, 100)
    }
    ((note,),) = notes
    assert "with the bounds 0 and 256 about" in note


def test_advice_is_for_the_epsilon_of_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """With two groups for each unit, each of them has half: bounds do not give it all of ε."""
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("ibis")
    monkeypatch.setattr(PrivateInterval, "release", lambda *_: (0.0, 256.0))
    table = arrow.table({"x": np.full(40, 7.0), "who": np.arange(40), "g": ["a"] * 40})
    given: Any = {"p": "0.99", "unit": "who", "noise": ReproducibleNoise(1)}
    alone = quantile(table, "x", epsilon=0.1, **given)
    groups = quantile(table, "x", epsilon=0.2, by="g", groups=["a"], groups_per_unit=2, **given)
    assert groups["a"].notes[-1] == alone.notes[-1]


def test_bounds_that_are_advised_need_fewer_records() -> None:
    heights = np.random.default_rng(5).normal(170.0, 10.0, 1_000)
    (note,) = quantile(heights, p="0.99", epsilon=0.3, noise=ReproducibleNoise(1)).notes
    without, given = re.findall(r"about ([\d,]+) are enough.* about ([\d,]+), and", note)[0]
    assert int(without.replace(",", "")) > int(given.replace(",", "")) > 1_000


def test_without_an_interval_all_of_epsilon_goes_to_the_value() -> None:
    def price(confidence: float) -> float:
        given: Any = {"epsilon": 1.0, "bounds": (0, 1e5), "confidence": confidence}
        event: Any = quantile(INCOMES, p="0.9", dry_run=True, **given).event
        return float(getattr(event, "events", [event])[0].epsilon)

    assert price(0.95) == pytest.approx(0.9)
    assert price(0) == 1.0
    found = quantile(INCOMES, p="0.9", epsilon=1.0, confidence=0, noise=ReproducibleNoise(1))
    assert found.usual_interval is None
    assert "interval" not in str(found)
    with pytest.raises(ValueError, match="Expected a number released with an interval"):
        found.interval()
