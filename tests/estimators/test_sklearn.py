"""scikit-learn's own checks of estimators, pipelines and cross-validation."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

sklearn = pytest.importorskip("sklearn", reason="needs the extra `estimators`")

from sklearn.model_selection import cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import PolynomialFeatures  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402

import prudent  # noqa: E402
from prudent.estimators import (  # noqa: E402
    PCA,
    GaussianNB,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    KMeans,
    LinearRegression,
    LogisticRegression,
    QuantileRegressor,
    Ridge,
)
from prudent.release.noise import Distribution, ReproducibleNoise  # noqa: E402

# The records of these tests are public.
pytestmark = pytest.mark.filterwarnings("ignore::prudent.PrivacyWarning")


class Same(ReproducibleNoise):
    """The same noise in every fit: some checks fit twice and compare."""

    def of_value(self, distribution: Distribution, scale: float, size: int) -> list[int]:
        return ReproducibleNoise(size).of_value(distribution, scale, size)

    def integer(self, bound: int) -> int:
        return bound // 2


MODELS = [
    *(LinearRegression, Ridge, QuantileRegressor, LogisticRegression, GaussianNB),
    *(GradientBoostingRegressor, GradientBoostingClassifier, KMeans, PCA),
]

# What privacy forces, each with its reason.
EXCLUDED = {
    "check_classifiers_regression_target": "whether labels are numbers is in the records",
    "check_classifiers_train": "it fits a list of rows, which declares no number of features",
    "check_clustering": "it fits a list of rows, which declares no number of features",
    "check_dtype_object": "a record that is not a number is absent, and raises nothing",
    "check_estimators_empty_data_messages": "how many records there are is private, even if none",
    "check_fit2d_1feature": "of ten records no label has enough to be found",
    "check_fit2d_1sample": "how many records there are is private, even if one",
    "check_regressors_train": "it fits a list of rows, which declares no number of features",
    "check_supervised_y_no_nan": "a record without a target is absent, and raises nothing",
}


@pytest.mark.thorough
@pytest.mark.parametrize("model", MODELS)
def test_scikit_learns_checks_pass_but_for_named_ones(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The checks fit ten records, which are refused at any ε; all else is as in use.
    monkeypatch.setattr(model, "_needed", lambda *given: 0.0)
    found = check_estimator(
        model(epsilon=50.0, noise=Same(0)),
        expected_failed_checks=EXCLUDED,
        on_fail=None,
        on_skip=None,
    )
    failed = {each["check_name"]: each["exception"] for each in found if each["status"] == "failed"}
    assert not failed, failed
    assert len(found) > 40


def table(records: int = 600) -> tuple[pd.DataFrame, np.ndarray]:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(records, 2)), columns=["a", "b"])
    return frame, frame.a.to_numpy() + generator.normal(size=records) * 0.1


def test_a_pipeline_and_its_names() -> None:
    frame, targets = table()
    public = PolynomialFeatures(include_bias=False).set_output(transform="pandas")
    pipe = make_pipeline(public, LinearRegression(epsilon=20.0, noise=ReproducibleNoise(1)))
    assert pipe.fit(frame, targets).score(frame, targets) > 0.9
    assert pipe[-1].feature_names_in_.tolist() == ["a", "b", "a^2", "a b", "b^2"]


@pytest.mark.thorough
def test_two_processes_charge_one_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame, targets = table()
    with prudent.Ledger.create("b.db", epsilon=100.0, delta=1e-4) as ledger:
        model = LinearRegression(epsilon=10.0, ledger=ledger)
        assert cross_val_score(model, frame, targets, cv=2, n_jobs=2).min() > 0.5
        assert len(ledger.history()) == 2
