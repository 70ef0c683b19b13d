"""Intervals hold the statistic as often as they say, and answers are of the type of the column."""

import datetime
import functools
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

import prudent
from prudent.cli.answering import _plain_value
from prudent.release import statistics
from prudent.release.noise import Distribution, ReproducibleNoise
from prudent.release.outcome import (
    Branch,
    Groups,
    NoiseSpread,
    Refused,
    Released,
    UnknownSpread,
)

SAMPLE = np.random.default_rng(3).normal(50.0, 10.0, 400)
SORTED = np.sort(SAMPLE)
TESTED: Any = {"propose": 4.0, "delta": 1e-4}

COVERED: dict[str, tuple[Any, float]] = {
    "median": (statistics.median, SORTED[199]),
    "quantile": (functools.partial(statistics.quantile, p=0.6), SORTED[239]),
    "median, tested": (functools.partial(statistics.median, **TESTED), SORTED[199]),
    "count": (statistics.count, 400.0),
    "sum": (functools.partial(statistics.sum, bounds=(0, 100)), SAMPLE.sum()),
    "mean": (functools.partial(statistics.mean, bounds=(0, 100)), SAMPLE.mean()),
}


@pytest.mark.unhurried
@pytest.mark.parametrize("name", COVERED)
def test_an_interval_holds_the_statistic_as_often_as_it_says(name: str) -> None:
    ask, truth = COVERED[name]
    noise = ReproducibleNoise(11)
    released = [ask(SAMPLE, epsilon=1.5, noise=noise) for _ in range(60)]
    known = [each for each in released if isinstance(each, Released) and each.spread is not None]
    assert len(known) >= 50
    ends = [each.usual_interval for each in known]
    held = [interval is None or interval[0] <= truth <= interval[1] for interval in ends]
    assert sum(interval is not None for interval in ends) >= 25
    assert np.mean(held) >= 0.86  # 0.95, less three standard deviations


@pytest.mark.parametrize("distribution", list(Distribution))
def test_half_of_the_noise_is_within_half_the_probability(distribution: Distribution) -> None:
    """The same check rejects an interval of the wrong width."""
    spread = NoiseSpread(distribution, 1000.0, 1.0)
    drawn = np.abs(ReproducibleNoise(5).of_value(distribution, 1000.0, 2000))
    for confidence in (0.5, 0.95):
        held = np.mean(drawn <= spread.half_width(confidence))
        assert abs(held - confidence) < 0.05
        assert abs(np.mean(drawn <= spread.half_width(confidence) / 2) - confidence) > 0.05


def test_a_higher_confidence_than_was_released_is_refused() -> None:
    released = statistics.median(SAMPLE, epsilon=2.0, confidence=0.9)
    assert isinstance(released, Released)
    assert released.interval(0.5) == released.interval(0.9)
    with pytest.raises(ValueError, match=r"at most 0\.9, for which the interval was released"):
        released.interval(0.95)
    assert "90% interval" in released.lines()[0]
    assert "99% interval" in str(statistics.median(SAMPLE, epsilon=2.0, confidence=0.99))


def test_a_released_number_is_a_number() -> None:
    released = statistics.median(SAMPLE, epsilon=2.0)
    assert float(released) == released.value  # type: ignore[arg-type]
    assert "branch" not in released.lines()[0]  # there is one mechanism, so there are no branches
    tested = statistics.median(SAMPLE, epsilon=2.0, noise=ReproducibleNoise(0), **TESTED)
    assert "robust branch" in tested.lines()[0]


def test_an_answer_prints_as_words_and_its_price() -> None:
    released = statistics.median(SAMPLE, epsilon=2.0)
    assert isinstance(released, Released)
    price = "(2, 0)-DP for adding or removing one record"
    assert str(released).splitlines() == [*released.lines(), price]
    assert price in released._repr_html_()
    refused = Refused("Too close.", event=None, epsilon=0.5, delta=1e-6, protected="unit")
    assert str(refused) == "Refused. Too close.\n(0.5, 1e-06)-DP for adding or removing one unit"
    assert str(Refused("Too close.", event=None)) == "Refused. Too close."


def test_several_quantiles_have_a_line_and_an_interval_each() -> None:
    released = statistics.quantiles(SAMPLE, ps=[0.25, 0.5, 0.75], epsilon=3.0)
    assert isinstance(released, Released)
    first, second, *_ = released.lines()
    assert first.startswith("0.25-quantile: ")
    assert second.startswith("median: ")
    assert "95% interval" in second
    plain = released.plain()
    assert plain["values"] == sorted(plain["values"])
    assert len(plain["intervals"]) == 3
    with pytest.raises(ValueError, match="with an interval, got one without"):
        released.interval()


def test_a_refusal_is_plain() -> None:
    refused = statistics.median(SAMPLE[:9], propose=1e-3, epsilon=1.0, delta=1e-6)
    assert isinstance(refused, Refused)
    plain = refused.plain()
    assert (plain["status"], plain["value"], plain["interval"]) == ("refused", None, None)
    assert plain["notes"] == [refused.reason]
    assert refused._repr_html_().startswith("<pre>Refused.")


@pytest.mark.unhurried
@pytest.mark.parametrize("name", ["median", "describe", "histogram", "table", "groups"])
def test_every_answer_says_what_is_protected(name: str) -> None:
    pandas = pytest.importorskip("pandas", reason="needs the extra `tables`")
    frame = pandas.DataFrame({"x": SAMPLE, "who": np.arange(400) // 2, "g": ["a"] * 400})
    asks: dict[str, Any] = {
        "median": statistics.median,
        "describe": statistics.describe,
        "histogram": statistics.histogram,
        "table": lambda data, _, **given: prudent.table(data, ["median(x)"], **given),
        "groups": functools.partial(statistics.median, by="g", groups=["a"]),
    }
    for unit, protected in (("who", "unit"), (None, "record")):
        answer = asks[name](frame, "x", unit=unit, epsilon=2.0)
        assert str(answer).endswith(f"(2, 0)-DP for adding or removing one {protected}")
        assert f"one {protected}" in answer._repr_html_()


def test_a_description_and_a_histogram_are_frames() -> None:
    pytest.importorskip("pandas", reason="needs the extra `tables`")
    described = statistics.describe(SAMPLE, epsilon=5.0).to_frame()
    assert list(described) == ["statistic", "value", "low", "high", "status"]
    assert described.statistic[0] == "count"
    counted = statistics.histogram(SAMPLE, edges=[0, 50, 100], epsilon=5.0).to_frame()
    assert list(counted.low) == [0, 50]
    assert counted["count"].sum() > 300


def test_a_probability_is_the_decimals_that_were_meant() -> None:
    assert statistics.quantiles(SAMPLE, ps=np.arange(1, 4) / 10, epsilon=3.0).titles == (
        "0.1-quantile",
        "0.2-quantile",
        "0.3-quantile",
    )
    with pytest.raises(ValueError, match=r"ascending, got 9/10, 1/10\."):
        statistics.quantiles(SAMPLE, ps=[0.9, 0.1], epsilon=3.0)
    with pytest.raises(ValueError, match="Ask for the minimum"):
        statistics.quantile(SAMPLE, p=0, epsilon=3.0)


# --- dates, decimals and durations ----------------------------------------------------------------

START = datetime.date(2020, 1, 1)
DATES = [START + datetime.timedelta(days=int(each)) for each in SAMPLE]
TIMES = [datetime.datetime(2020, 1, 1) + datetime.timedelta(hours=float(each)) for each in SAMPLE]
PRICES = [Decimal(int(100 * each)).scaleb(-2) for each in SAMPLE]
WAITS = [datetime.timedelta(minutes=float(each)) for each in SAMPLE]

TYPED: dict[str, tuple[str, list[Any], Any, type, type]] = {
    "date": ("date", DATES, datetime.timedelta(days=9), datetime.date, datetime.timedelta),
    "timestamp": (
        *("timestamp", TIMES, datetime.timedelta(hours=9)),
        *(datetime.datetime, datetime.timedelta),
    ),
    "decimal": ("decimal(2)", PRICES, Decimal(9), Decimal, Decimal),
    "duration": (
        *("duration", WAITS, datetime.timedelta(minutes=9)),
        *(datetime.timedelta, datetime.timedelta),
    ),
}


@pytest.mark.unhurried
@pytest.mark.parametrize("name", TYPED)
def test_answers_are_of_the_type_of_the_column(name: str) -> None:
    read_as, data, length, value, difference = TYPED[name]
    cost: Any = {"epsilon": 3.0, "read_as": read_as, "noise": ReproducibleNoise(4)}
    tested: Any = cost | {"delta": 1e-3, "propose": length}
    middle = sorted(data)[199]
    for released in (
        statistics.median(data, **cost),
        statistics.median(data, bounds=(min(data), max(data)), **cost),
        statistics.median(data, **tested),
        statistics.quantile(data, p=0.4, certify=length, **cost),
        statistics.trimmed_mean(data, trim=60, **tested),
        statistics.mean(data, **cost),
    ):
        assert isinstance(released, Released), released
        assert type(released.value) is value
        assert abs(released.value - middle) < 9 * length
        assert all(type(end) is value for end in released.interval())
        json.dumps(_plain_value(released.plain()), allow_nan=False, default=str)
    certified = statistics.median(data, certify=length, **cost).certificate
    assert type(certified.low) is value
    assert certified.high - certified.low == 2 * length
    for ranged in (statistics.iqr(data, **cost), statistics.iqr(data, **tested)):
        assert type(ranged.value) is difference
    several = statistics.quantiles(data, ps=[0.4, 0.6], **cost)
    assert {type(each) for each in several.value} == {value}
    assert type(statistics.describe(data, **cost).median.value) is value
    counted = statistics.histogram(data, edges=[min(data), middle, max(data)], **cost)
    assert {type(edge) for edge in counted.edges} == {value}
    below = statistics.certify_quantile(data, high=max(data), **cost)
    assert below.certificate.high == max(data)


def test_durations_are_seconds_and_dates_are_iso_in_json() -> None:
    plain = _plain_value({"a": [WAITS[0], START], "b": (TIMES[0], float("inf"), Decimal("1.50"))})
    assert plain["a"] == [WAITS[0].total_seconds(), "2020-01-01"]
    assert plain["b"][:2] == [TIMES[0].isoformat(), "inf"]


def test_a_number_that_says_nothing_is_not_shown() -> None:
    noise = NoiseSpread(Distribution.LAPLACE, 1.0, 0.0)
    hidden = Released(
        2.5, Branch.ROBUST, 1.4, 0.0, None, "laplace", UnknownSpread(noise), about="the mean of x"
    )
    assert hidden.lines() == ["too few records for this ε (laplace, no interval for the mean of x)"]
    assert (hidden.plain()["status"], hidden.plain()["value"]) == ("too few records", None)
    groups = Groups({"a": hidden}, ["g"], epsilon=1.0, delta=0.0)
    assert groups.to_frame()["value"].isna().all()
    assert "2.5" not in str(groups) + groups._repr_html_()
    assert float(hidden) == 2.5
