"""Linear models: near least squares, honest about their error, and alike from every source."""

import math
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dp_accounting as dp
import numpy as np
import pandas as pd
import pytest
from benchmarks.interval_coverage import most_wrong
from benchmarks.regression_coverage import LINEAR, cell
from sklearn.exceptions import NotFittedError

from prudent.estimators import (
    GaussianNB,
    KMeans,
    LinearRegression,
    QuantileRegressor,
    Ridge,
    TooFewRecordsError,
)
from prudent.estimators import features as features_module
from prudent.estimators.influence import CURVED, HEAVY, UNSEEN
from prudent.estimators.linear import LinearModel
from prudent.estimators.rows import ArrayRows
from prudent.release.columns.column import SourceError
from prudent.release.noise import ReproducibleNoise

# The records of these tests are public.
pytestmark = pytest.mark.filterwarnings("ignore::prudent.PrivacyWarning")

SLOPES = np.array([1.0, 0.2, -3.0])


def table(records: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(records, 3)) * [1, 10, 0.1] + [0, 100, 3]
    return features, features @ SLOPES + 7 + generator.normal(size=records)


def quiet(model: type[LinearModel] = LinearRegression, seed: int = 1, **given: Any) -> LinearModel:
    return model(**{"epsilon": 20.0, "noise": ReproducibleNoise(seed), **given})


@pytest.mark.unhurried
@pytest.mark.parametrize("model", [LinearRegression, Ridge, QuantileRegressor])
def test_a_model_is_near_the_truth_and_says_how_near(model: type[LinearModel]) -> None:
    features, targets = table(seed=2)
    fitted = quiet(model).fit(features, targets)
    assert fitted.score(features, targets) > 0.82
    low, high = fitted.intervals_.T
    half = (high - low) / 2
    assert (np.abs(fitted.coef_ - SLOPES) < 1.5 * half).all()
    assert (half < [0.1, 0.01, 1]).all()
    assert fitted.intercept_interval_[0] < fitted.intercept_ < fitted.intercept_interval_[1]
    assert fitted.n_records_ == pytest.approx(4000, abs=40)
    assert 0 <= fitted.n_clipped_ < 400
    assert (fitted.epsilon_, fitted.delta_) == (20.0, 1e-6)
    assert fitted.coef_.shape == (3,)


def test_a_plot_has_a_bar_for_each_slope(tmp_path: Path) -> None:
    fitted = quiet().fit(*table(500))
    fitted.intervals_[1] = np.nan
    (axes,) = fitted.plot(tmp_path / "slopes.svg").axes
    assert [each.get_text() for each in axes.get_yticklabels()] == ["x0", "x1", "x2"]
    assert (tmp_path / "slopes.svg").read_text("utf-8").startswith("<?xml")


def test_a_penalty_shrinks_slopes_as_ridge_regression_does() -> None:
    from sklearn import linear_model

    features, targets = table()
    fitted = quiet(Ridge, alpha=4000.0).fit(features, targets)
    exact = linear_model.Ridge(alpha=4000.0).fit(features, targets)
    assert fitted.coef_ == pytest.approx(exact.coef_, abs=0.06)
    assert abs(fitted.coef_[0]) < 0.7


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (Ridge(alpha=-1.0), {}),
        (Ridge(alpha="strong"), {}),
        (QuantileRegressor(quantile=1.0), {}),
        (LinearRegression(certify=-1.0), {}),
        (LinearRegression(r2="yes"), {}),
        (LinearRegression(certify=1e308), {}),
        (QuantileRegressor(quantile=1e-300), {}),
        (Ridge(r2=None), {}),
        (KMeans(n_clusters=0), {}),
        (KMeans(n_clusters=10**7), {}),
        (GaussianNB(classes=[0, (1, 2)]), {}),
        (GaussianNB(classes=[(0, 1), (1, 2)]), {}),
        (LinearRegression(), {"features": ["a", "a"]}),
        (LinearRegression(), {"features": []}),
        (LinearRegression(), {"features": 1}),
    ],
)
def test_arguments_are_checked_before_the_charge(model: Any, given: dict[str, Any]) -> None:
    model.ledger = Mock()
    frame = pd.DataFrame(table(100)[0], columns=["a", "b", "y"])
    with pytest.raises(ValueError, match=r"Expected|Found"):
        model.fit(frame, "y", **given)
    model.ledger.charge.assert_not_called()


def test_a_number_of_clusters_may_be_a_double() -> None:
    features = table()[0]
    assert quiet(KMeans, n_clusters=3.0).fit(features).cluster_centers_.shape[0] == 3


@pytest.mark.unhurried
@pytest.mark.parametrize("target", ["y", "y ~ a + b"])
def test_decimals_are_numbers_of_ones(target: str) -> None:
    import pyarrow as pa

    features, targets = table()
    numbers = {"a": features[:, 0].round(4), "b": features[:, 1].round(1), "y": targets.round(2)}
    plain = pa.table(numbers)
    digits = {"a": 4, "b": 1, "y": 2}
    decimals = pa.table({k: plain[k].cast(pa.decimal128(20, each)) for k, each in digits.items()})
    fitted, usual = quiet().fit(decimals, target), quiet().fit(plain, target)
    assert fitted.coef_ == pytest.approx(usual.coef_)
    for asked in (plain, decimals, decimals.to_pandas()):
        assert fitted.predict(asked) == pytest.approx(usual.predict(plain))


@pytest.mark.unhurried
@pytest.mark.parametrize("quantile", [0.2, 0.9])
def test_a_quantile_has_its_share_of_records_below(quantile: float) -> None:
    features, targets = table()
    fitted = quiet(QuantileRegressor, quantile=quantile).fit(features, targets)
    assert np.mean(targets < fitted.predict(features)) == pytest.approx(quantile, abs=0.03)


def test_a_median_withstands_wild_targets() -> None:
    features, targets = table()
    targets[::20] = 1e12
    fitted = quiet(QuantileRegressor).fit(features, targets)
    assert fitted.coef_ == pytest.approx(SLOPES, rel=0.3)


def test_a_summary_says_what_was_released_and_what_is_missing() -> None:
    features, targets = table()
    fitted = quiet().fit(pd.DataFrame(features, columns=["a", "b", "c"]), targets)
    lines = fitted.summary().splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["(intercept)", "a", "b", "c"]
    low, high = map(float, lines[2].split("  ")[-1].split(" to "))
    assert low <= fitted.intervals_[0][0] < fitted.intervals_[0][1] <= high
    assert "clipped" in lines[5]
    assert lines[6:] == ["(20, 1e-06)-DP for adding or removing one record"]
    fitted.intervals_[1] = np.nan
    fitted.no_interval_ = CURVED
    lines = fitted.summary().splitlines()
    assert lines[3].endswith("–")
    assert lines[6] == f"no interval (–): {CURVED}"


def test_a_model_is_shown_with_its_epsilon() -> None:
    assert repr(LinearRegression()) == "LinearRegression(epsilon=1.0)"
    assert repr(Ridge(alpha=2.0)) == "Ridge(epsilon=1.0, alpha=2.0)"
    assert repr(LinearRegression(epsilon=0.5)) == "LinearRegression(epsilon=0.5)"


def test_r2_is_released_on_request() -> None:
    features, targets = table()
    fitted = quiet(r2=True).fit(features, targets)
    assert fitted.r2_ == pytest.approx(fitted.score(features, targets), abs=0.05)
    assert not hasattr(quiet().fit(features, targets), "r2_")


def test_every_source_gives_the_same_bits(tmp_path: Path) -> None:
    import polars

    features, targets = table(500)
    features[3, 1] = np.nan  # its row is absent everywhere
    frame = pd.DataFrame(features, columns=["a", "b", "c"])
    whole = frame.assign(y=targets)
    whole.to_parquet(tmp_path / "t.parquet")
    whole.to_csv(tmp_path / "t.csv", index=False)
    expected = quiet(epsilon=50.0).fit(features, targets).coef_.tolist()
    order = np.random.default_rng(0).permutation(500)
    assert quiet(epsilon=50.0).fit(features[order], targets[order]).coef_.tolist() == expected
    assert quiet(epsilon=50.0).fit(frame, targets).coef_.tolist() == expected
    sources = whole, polars.from_pandas(whole), str(tmp_path / "t.parquet"), tmp_path / "t.csv"
    for source in sources:
        fitted = quiet(epsilon=50.0).fit(source, "y")
        assert fitted.coef_.tolist() == expected
        assert fitted.feature_names_in_.tolist() == ["a", "b", "c"]
    assert fitted.predict(whole) == pytest.approx(fitted.predict(frame))


def test_nothing_is_read_if_a_charge_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Empty:
        def charge(self, event: dp.DpEvent, label: str = "", *, delta: float | None = None) -> None:
            assert (label, delta) == ("linear regression", 1e-6)
            raise RuntimeError("over budget")

    for read in ("batches", "column"):  # reading would fail otherwise
        monkeypatch.setattr(ArrayRows, read, None)
    with pytest.raises(RuntimeError, match="over budget"):
        quiet(ledger=Empty()).fit(*table(500))


@pytest.mark.parametrize("records", [0, 1, 10])
def test_too_few_records_are_refused_after_the_noisy_count(records: int) -> None:
    features, targets = table(records)
    with pytest.raises(TooFewRecordsError, match="too few") as caught:
        LinearRegression(noise=ReproducibleNoise(1)).fit(features, targets)
    assert caught.value.needed == pytest.approx(370, rel=0.2)
    assert abs(caught.value.records - records) < 400


@pytest.mark.parametrize("model", [LinearRegression, QuantileRegressor])
def test_a_forecast_is_about_right(model: type[LinearModel]) -> None:
    generator = np.random.default_rng(1)
    features = generator.normal(size=(3000, 2))
    targets = features[:, 0] + generator.normal(size=3000)  # R² is about 0.5
    preview = model(epsilon=2.0).dry_run(3000, 2)
    found = re.search(r"± ([\d.]+) deviations", str(preview))
    assert found
    fitted = model(epsilon=2.0, noise=ReproducibleNoise(1)).fit(features, targets)
    low, high = fitted.intervals_[0] / math.sqrt(2)
    assert 0.5 < (high - low) / 2 / float(found[1]) < 2
    assert "would refuse" in str(model().dry_run(100, 3))
    assert "needs about 7 records" in str(KMeans(epsilon=50.0).dry_run(100, 3))
    with pytest.raises(ValueError, match="records"):
        model().dry_run(0, 3)


def test_a_refusal_leaves_nothing_that_predicts() -> None:
    model = quiet().fit(*table(500))
    with pytest.raises(TooFewRecordsError):
        model.fit(*table(3))
    with pytest.raises(NotFittedError):
        model.predict(np.zeros((1, 3)))


def test_errors_do_not_tell_how_many_records_there_are() -> None:
    features, targets = table(4711)
    for x, y in (
        (features, targets[1:]),
        (features, np.stack([targets, targets], axis=1)),
        (features[:, :0], targets),
        (features[:, 0], targets),
        (features[None], targets),
        (features, "y"),
        (pd.DataFrame(features), targets[1:]),
    ):
        with pytest.raises(ValueError, match=r".") as caught:
            quiet().fit(x, y)
        assert "471" not in str(caught.value)


def test_too_small_a_share_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ValueError, match="epsilon"):
        LinearRegression(epsilon=0.01).fit(np.zeros((5, 900)), np.zeros(5))


@pytest.mark.unhurried
@pytest.mark.parametrize("model", [LinearRegression, QuantileRegressor])
def test_a_prediction_extrapolates_where_far_records_say_that_the_line_continues(
    model: type[LinearModel],
) -> None:
    generator = np.random.default_rng(6)
    features = generator.standard_t(2, size=(6000, 3))
    targets = features @ SLOPES + generator.normal(size=6000) * 0.3
    fitted = quiet(model, epsilon=2.0).fit(features, targets)
    assert fitted.score(features, targets) > 0.97  # 0.6 where all columns are clipped
    far = np.diag([1e4] * 3)
    assert fitted.predict(far) == pytest.approx(1e4 * SLOPES, rel=0.1)


def test_a_prediction_stays_where_far_records_say_that_the_line_ends() -> None:
    generator = np.random.default_rng(6)
    features = generator.standard_t(2, size=(6000, 2))
    bent = np.clip(features[:, 0], -3.0, 3.0) + features[:, 1]
    fitted = quiet(epsilon=2.0).fit(features, bent + generator.normal(size=6000) * 0.3)
    ends, goes_on = fitted.predict(np.diag([1e4, 1e4]))
    assert ends < 50
    assert goes_on > 5e3


def test_without_far_records_a_prediction_does_not_extrapolate() -> None:
    fitted = quiet(seed=2).fit(*table())
    edge = fitted.predict(np.array([[1e9, 100.0, 3.0]]))
    assert abs(edge) < 50


HUGE = 1e300
ODD: dict[str, Any] = {
    "constant": lambda x: np.full(len(x), 3.0),
    "zero": lambda x: np.zeros(len(x)),
    "collinear": lambda x: 2 * x,
    "huge": lambda x: x * HUGE,
    "tiny": lambda x: x / HUGE,
    "infinite": lambda x: np.where(x > 0, np.inf, -np.inf),
    "all null": lambda x: np.full(len(x), np.nan),
    "some null": lambda x: np.where(x > 1, np.nan, x),
    "integer": lambda x: np.round(x),
    "truth": lambda x: (x > 0).astype(float),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.parametrize("where", ["column", "target"])
def test_odd_columns_and_targets_are_answered_or_refused_in_one_line(odd: Any, where: str) -> None:
    generator = np.random.default_rng(3)
    features = generator.normal(size=(400, 2))
    targets = features[:, 1] + generator.normal(size=400) * 0.1
    if where == "column":
        features[:, 0] = odd(features[:, 1])
    else:
        targets = odd(targets)
    if np.isnan(features).all(axis=0).any() or np.isnan(targets).all():
        with pytest.raises(TooFewRecordsError, match=r"^[^\n]+$"):
            quiet(seed=5).fit(features, targets)
        return
    fitted = quiet(seed=5).fit(features, targets)
    assert np.isfinite(fitted.predict(features)).all()
    assert not np.isnan(fitted.coef_).any()


def test_typed_columns_of_a_frame() -> None:
    generator = np.random.default_rng(4)
    days = generator.integers(0, 5000, 600)
    frame = pd.DataFrame(
        {
            "day": pd.to_datetime("2010-01-01") + pd.to_timedelta(days, unit="D"),
            "flag": generator.random(600) < 0.5,
            "whole": generator.integers(0, 9, 600),
            "object": [str(each) for each in generator.normal(size=600)],
        }
    )
    targets = days / 1000 + 2 * frame.flag + generator.normal(size=600) * 0.1
    fitted = quiet().fit(frame, targets)
    assert fitted.score(frame, targets) > 0.9
    assert fitted.coef_[1] == pytest.approx(2, abs=0.3)


def test_a_failure_after_the_charge_quotes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> None:
        raise ValueError("secret 4711")

    monkeypatch.setattr(LinearRegression, "_learn", fail)
    with pytest.raises(SourceError) as caught:
        quiet().fit(*table(50))
    assert "4711" not in str(caught.value)
    assert caught.value.__context__ is None


POPULATIONS = (*LINEAR, "salaries")


@pytest.mark.thorough
@pytest.mark.parametrize("population", POPULATIONS)
def test_printed_intervals_cover_on_populations_that_are_not_normal(population: str) -> None:
    assert_covered(population, 1.0, range(12))


def assert_covered(population: str, epsilon: float, seeds: range, least: float = 0.75) -> None:
    held, _, error = np.array(cell(population, epsilon, seeds)).transpose(1, 0, 2)
    shown = ~np.isnan(held)
    for each, printed in zip(held.T, shown.T, strict=True):
        assert np.sum(each[printed] == 0) <= most_wrong(int(printed.sum()), chance=1e-4)
    assert not (error >= 10).any()
    if epsilon >= 1:
        assert shown.any(axis=1).mean() >= least


def test_correlated_columns_without_far_records_have_narrow_intervals() -> None:
    """Their rows are short: a second moment of longer ones would have more noise for nothing."""
    generator = np.random.default_rng(0)
    features = generator.normal([2.0, 0.0], 1.0, size=(20_000, 2))
    features = np.column_stack([features, features.prod(axis=1)])
    targets = 1 + features @ (truth := np.array([1.0, -0.5, 0.3])) + generator.normal(size=20_000)
    fitted = LinearRegression(epsilon=1.0, noise=ReproducibleNoise(1)).fit(features, targets)
    low, high = fitted.intervals_.T
    assert (high - low < 0.4).all()
    assert (np.abs((low + high) / 2 - truth) < high - low).all()


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_far_records_that_do_not_follow_the_line_widen_an_interval_or_forbid_it(
    epsilon: float,
) -> None:
    generator = np.random.default_rng(5)
    features = generator.normal(size=(8000, 1))
    far = generator.random(8000) < 0.03
    features[far] += 60
    targets = np.where(far, 0.0, features[:, 0]) + generator.normal(size=8000) * 0.3
    fitted = quiet(epsilon=epsilon).fit(features, targets)
    ((low, high),) = fitted.intervals_
    if np.isnan(low):
        assert fitted.no_interval_ in (CURVED, HEAVY)
        assert np.isnan([high, *fitted.intercept_interval_]).all()
    else:  # the line has a slope of 1, least squares one of almost 0
        assert low <= np.polyfit(features[:, 0], targets, 1)[0] <= high


@pytest.mark.unhurried
@pytest.mark.parametrize("wrong", [(0.0, 1e4), (-1e5, 1e5)], ids=["scale", "location"])
def test_no_interval_is_printed_where_a_column_is_left_out(
    wrong: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other column would answer for it: an interval around 1.9 for a coefficient of 1."""
    right = features_module.standardise

    def far_off(*given: Any) -> Any:
        locations, scales = right(*given)
        if given[1] == "columns":
            locations[0], scales[0] = wrong
        return locations, scales

    monkeypatch.setattr(features_module, "standardise", far_off)
    draw = np.random.default_rng(0)
    second = draw.normal(size=5000)
    features = np.stack([0.9 * second + 0.44 * draw.normal(size=5000), second], axis=1)
    target = features.sum(axis=1) + draw.normal(size=5000)
    fitted = quiet(epsilon=1.0).fit(features, target)
    assert fitted.no_interval_ == UNSEEN
    assert np.isnan(fitted.intervals_).all()


def test_no_interval_is_printed_where_the_tail_has_no_mean() -> None:
    generator = np.random.default_rng(5)
    features = generator.normal(size=(20_000, 2))
    targets = features.sum(axis=1) + generator.pareto(0.6, size=20_000)
    fitted = quiet(epsilon=3.0).fit(features, targets)
    assert fitted.no_interval_ == HEAVY
    assert np.isnan(fitted.intervals_).all()


def test_a_scale_that_says_nothing_is_replaced() -> None:
    generator = np.random.default_rng(5)
    features = generator.normal(size=(4000, 2))
    rare = generator.random(4000) < 0.08  # both quantiles of this column are zero, or tiny
    features[:, 0] = np.where(rare, 1e6 + 1e5 * features[:, 0], 1e-3 * features[:, 0])
    targets = 1e-6 * features[:, 0] + features[:, 1] + generator.normal(size=4000) * 0.1
    fitted = quiet(epsilon=3.0).fit(features, targets)
    assert fitted.coef_ == pytest.approx([1e-6, 1.0], rel=0.1)
    assert fitted.score(features, targets) > 0.95
