"""The printed interval of a mean, sum or variance without bounds is about what it says it is."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.release.noise import ReproducibleNoise
from prudent.release.outcome import Released
from prudent.release.statistics import describe, mean, median
from tests.release.interval_coverage import TABLES, outcomes


def most_wrong(runs: int) -> float:
    """What 5 % of so many runs are, and three standard deviations more."""
    return 0.05 * runs + 3 * (0.05 * 0.95 * runs) ** 0.5


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("table", "size", "epsilon"),
    [
        ("lognormal, σ = 1", 1_000, 0.3),
        ("lognormal, σ = 1", 50, 1.0),
        ("Pareto, α = 1.1", 2_000, 1.0),
        ("all null", 200, 1.0),
        ("one value", 1, 1.0),
    ],
)
def test_an_interval_is_rarely_wrong(table: str, size: int, epsilon: float) -> None:
    seen = outcomes("mean", TABLES[table](size), epsilon, 40)
    assert max(seen["wrong"], seen["wrong share"]) <= most_wrong(40)
    if size >= 1_000:
        assert seen["right"] >= 30
    if size == 1 or table == "all null":
        assert seen["none"] >= 34


@pytest.mark.thorough
def test_a_group_without_enough_records_says_so() -> None:
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    frame = pandas.DataFrame({"x": rng.lognormal(10, 1, 3_003), "g": ["a"] * 3_000 + ["b"] * 3})
    given: Any = {"by": "g", "groups": ["a", "b", "none"], "epsilon": 1.0}
    found = mean(frame, "x", noise=ReproducibleNoise(3), **given)
    lines = {group: " ".join(each.lines()) for group, each in found.items()}
    assert "for the mean of the values clipped to [" in lines["a"]
    few = "Too few records for a mean at this ε: its interval is most of the bounds."
    assert [few in lines[group] for group in ("a", "b", "none")] == [False, True, True]
    frame = found.to_frame().set_index(found.names[0])
    low, high = min(frame["low"]), max(frame["high"])  # bounds that groups share, which are private
    assert (frame["high"] - frame["low"] > 0.9 * (high - low)).tolist() == [False, True, True]


def test_a_description_leaves_blank_what_it_cannot_tell() -> None:
    salaries = np.round(np.random.default_rng(2).lognormal(10.8, 0.5, 4_000))
    found = describe(salaries, epsilon=1.0, noise=ReproducibleNoise(1))
    rows = {name: (value, interval) for name, value, interval in found.rows()}
    assert rows["0.01-quantile"] == ("", "(too few records for this ε)")
    assert "0.01" not in found.plain()["intervals"]
    low, high = map(float, rows["0.5-quantile"][1].split(" to "))
    assert low <= float(rows["0.5-quantile"][0]) <= high
    assert "of the values clipped to [" in found.notes[0]
    assert "of the values lay outside" in found.notes[1]
    few = describe(salaries[:3], epsilon=1.0, noise=ReproducibleNoise(1))
    assert {value for name, value, _ in few.rows() if name != "count"} == {""}


def enough_records(statistic: Any) -> int:
    """The number of records that a dry run says an interval needs."""
    preview = statistic(np.zeros(1), epsilon=1.0, dry_run=True)
    (sentence,) = [note for note in preview.notes if "no interval" in note]
    return int(sentence.removeprefix("With fewer than about ").split()[0].replace(",", ""))


@pytest.mark.unhurried
def test_a_dry_run_says_how_many_records_an_interval_needs() -> None:
    """With so many the interval is nearly always narrower than the table; with half, hardly."""
    enough = enough_records(median)
    for size, least, most in ((enough, 19, 20), (enough // 2, 0, 12)):
        table = np.random.default_rng(size).lognormal(10.8, 0.4, size)
        good = 0
        for seed in range(20):
            released = median(table, epsilon=1.0, noise=ReproducibleNoise(seed))
            assert isinstance(released, Released)
            low, high = released.usual_interval or (-np.inf, np.inf)
            good += high - low < np.ptp(table)
        assert least <= good <= most, size


@pytest.mark.thorough
def test_a_dry_run_of_a_mean_says_so_as_well() -> None:
    enough = enough_records(mean)
    table = TABLES["normal"](enough)
    assert outcomes("mean", table, 1.0, 20)["none"] <= 2
    assert outcomes("mean", table[: enough // 5], 1.0, 20)["none"] >= 15
