"""The classifier among scikit-learn's: its own checks, pipelines, clones and cross-validation."""

from typing import Any

import numpy as np
import pytest

sklearn = pytest.importorskip("sklearn", reason="needs scikit-learn")

from sklearn.base import clone, is_classifier  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import FunctionTransformer  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402

from prudent.budget.ledger import Ledger  # noqa: E402
from prudent.certify import CertifiedClassifier  # noqa: E402
from prudent.certify.classifier import labels_of  # noqa: E402

EXCLUDED = {
    "check_classifiers_one_label": "one class cannot be certified against another",
    "check_classifiers_one_label_sample_weights": "as above",
    "check_classifiers_classes": "classes are in the order in which they are declared, not sorted",
    "check_classifiers_regression_target": "labels that are no class count as absent: an error "
    "about them would show that they are there",
    "check_supervised_y_2d": "a warning about the shape of labels that are read all the same",
    "check_supervised_y_no_nan": "a label that is no number is no class and counts as absent",
    "check_requires_y_none": "an error about records is withheld, and says nothing of its cause",
    "check_estimators_empty_data_messages": "how many records there are is private, even if none",
    "check_fit2d_1sample": "as above",
    "check_fit2d_1feature": "one number has two directions only, and is accepted",
    "check_estimators_dtypes": "accuracy on 20 records says nothing at any ε",
    "check_estimators_unfitted": "raises a NotFittedError of its own, a ValueError and an "
    "AttributeError like scikit-learn's: scikit-learn need not be installed",
    "check_classifiers_train": "fits a list without landmarks: only an array says how many numbers "
    "each record has, the first record of a list is private; other tests fit lists",
    "check_dtype_object": "a record that holds something else than numbers counts as absent",
    "check_positive_only_tag_during_fit": "checks nothing where negative numbers are fine",
}


class Silent:
    """No noise: fits are repeated, and compared."""

    def of_test(self, test: Any) -> int:
        raise AssertionError

    def of_value(self, law: Any, scale: float, size: int) -> list[int]:
        return [0] * size

    def integer(self, bound: int) -> int:
        raise AssertionError


class OfTheseLabels(CertifiedClassifier):
    """Declares the labels of y as the classes: the labels of scikit-learn's checks are public."""

    def fit(self, X: Any, y: Any) -> "OfTheseLabels":  # noqa: N803
        declared, self._declared = self.classes, np.unique(np.asarray(y)).tolist()
        self.classes = self._declared
        try:
            super().fit(X, y)
        finally:
            self.classes = declared
        return self


@pytest.mark.filterwarnings("ignore:Estimator OfTheseLabels does not inherit")
def test_scikit_learns_own_checks() -> None:
    model = OfTheseLabels(epsilon=50.0, landmarks=200, ramp=(0.2, 0.9), noise=Silent())
    found = check_estimator(model, expected_failed_checks=EXCLUDED, on_fail=None, on_skip=None)
    failed = {each["check_name"]: each["exception"] for each in found if each["status"] == "failed"}
    assert not failed, "\n".join(f"{name}: {error!r}" for name, error in failed.items())
    ran = {each["check_name"] for each in found}
    assert set(EXCLUDED) <= ran | {"check_classifiers_one_label_sample_weights"}
    assert len(ran) > 30


def records(size: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    labels = draw.integers(3, size=size)
    return np.eye(6)[labels] - 0.3 + 0.3 * draw.standard_normal((size, 6)), labels


@pytest.mark.usefixtures("same_draws")
def test_clones_pipelines_and_folds(tmp_path: Any) -> None:
    rows, labels = records()
    model = CertifiedClassifier(epsilon=1.0, classes=3, landmarks=rows[:100])
    assert is_classifier(model)
    again = clone(model)
    assert again is not model
    assert again.get_params() == model.get_params()
    centred = make_pipeline(FunctionTransformer(lambda x: 2.0 * x), model)
    assert centred.fit(rows, labels).score(rows, labels) > 0.9
    assert centred.set_params(certifiedclassifier__epsilon=2.0)[-1].epsilon == 2.0
    with Ledger.create(tmp_path / "x.db", epsilon=10.0, delta=1e-6) as ledger:
        charged = CertifiedClassifier(1.0, 3, rows[:100], ledger=ledger)
        assert cross_val_score(charged, rows, labels, cv=3).min() > 0.9
        assert len(ledger.history()) == 3  # every fold is a release
    search = GridSearchCV(model, {"ramp": [(0.1, 0.4), (0.8, 0.9)]}, cv=2)
    assert search.fit(rows, labels).best_params_["ramp"] == (0.1, 0.4)


def test_labels_are_declared() -> None:
    assert list(labels_of(3)) == [0, 1, 2]
    assert labels_of(("a", "b")) == ["a", "b"]
