"""Logistic regression: near the likelihood's maximum, with intervals that hold or with none."""

import numpy as np
import pytest
from benchmarks.regression_coverage import LOGISTIC, drawn
from sklearn import linear_model

from prudent.estimators import LogisticRegression
from prudent.estimators.classifiers import FAR, SEVERAL
from prudent.estimators.influence import CURVED, DEPENDENT, HELD, UNSEEN
from prudent.release.noise import ReproducibleNoise
from tests.estimators.test_linear import assert_covered

# The records of these tests are public.
pytestmark = pytest.mark.filterwarnings("ignore::prudent.PrivacyWarning")


def quiet(epsilon: float = 20.0, seed: int = 1) -> LogisticRegression:
    return LogisticRegression(epsilon=epsilon, classes=[0, 1], noise=ReproducibleNoise(seed))


def test_it_is_the_maximum_of_the_likelihood_whatever_the_tails() -> None:
    x, y, truth = drawn("logistic, log-normal", 0, 20_000)
    fitted = quiet().fit(x, y)
    exact = linear_model.LogisticRegression(C=1e9).fit(x, y)
    assert fitted.coef_[0] == pytest.approx(exact.coef_[0], abs=0.1)
    assert fitted.intercept_[0] == pytest.approx(exact.intercept_[0], abs=0.2)
    assert fitted.intervals_.shape == (1, 3, 2)
    low, high = np.vstack([fitted.intercept_interval_, fitted.intervals_[0]]).T
    assert ((low < truth) & (truth < high)).all()
    assert (high - low < 0.5).all()


def test_rare_labels_start_from_their_share() -> None:
    x, y, _ = drawn("logistic, 5 % of one label", 0, 20_000)
    fitted = quiet(5.0).fit(x, y)
    assert fitted.predict_proba(x)[:, 1].mean() == pytest.approx(y.mean(), abs=0.01)
    assert fitted.intercept_[0] == pytest.approx(-3.5, abs=0.4)


@pytest.mark.unhurried
@pytest.mark.parametrize("population", ["separable", "logistic, strong", "far labels at random"])
def test_no_interval_is_printed_where_it_would_be_false(population: str) -> None:
    x, y, _ = drawn(population, 0)
    fitted = quiet(1.0).fit(x, y)
    assert np.isnan(fitted.intervals_).all()
    assert np.isnan(fitted.intercept_interval_).all()
    assert fitted.no_interval_ in (FAR, HELD, CURVED)
    assert f"no interval (–): {fitted.no_interval_}" in fitted.summary()


def test_columns_that_are_not_seen_units_of_several_rows_and_labels_have_no_interval() -> None:
    x, y, _ = drawn("logistic, normal", 0)
    rare = np.concatenate([x, (np.arange(len(x)) < 3).astype(float)[:, None]], axis=1)
    assert quiet(1.0).fit(rare, y).no_interval_ in (UNSEEN, HELD)
    units = quiet().fit(x, y, unit=np.arange(len(x)) // 2, per_unit=2)
    assert units.no_interval_ == DEPENDENT
    three = LogisticRegression(epsilon=20.0, classes=[0, 1, 2], noise=ReproducibleNoise(1))
    three.fit(x, y + (x[:, 0] > 1))
    assert three.no_interval_ == SEVERAL
    assert three.intervals_.shape == (3, 3, 2)
    assert three.summary().splitlines()[1].startswith("0: (intercept)")
    assert np.isnan(three.intervals_).all()


@pytest.mark.thorough
@pytest.mark.parametrize("population", sorted({*LOGISTIC} - {"separable"}))
def test_printed_intervals_cover(population: str) -> None:
    assert_covered(population, 3.0, range(8), least=0.0)
