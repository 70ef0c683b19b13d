"""What scikit-learn does around a private model is refused, or told of once."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="estimators need scikit-learn")

import joblib
from sklearn import ensemble, metrics, model_selection, preprocessing
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.impute import SimpleImputer
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LinearRegression as Exact
from sklearn.linear_model import RANSACRegressor
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import FeatureUnion, make_pipeline

import prudent
from prudent import ArgumentError, _warning
from prudent.estimators import PCA, KMeans, LinearRegression, LogisticRegression
from prudent.release.noise import ReproducibleNoise
from tests.release.recording import Book

X = np.random.default_rng(0).normal(size=(3000, 2))
Y = X[:, 0] + 0.1 * X[:, 1]


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_warning, "_SHOWN", set())


def model(**given: Any) -> LinearRegression:
    return LinearRegression(**{"epsilon": 9.0, "noise": ReproducibleNoise(0)} | given)


def told(work: Callable[[], Any]) -> list[str]:
    """What is told, with filters that show every warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return [str(each.message) for each in caught if each.category is prudent.PrivacyWarning]


FITS: dict[str, Callable[..., Any]] = {
    "cross_val_score": lambda m: model_selection.cross_val_score(m, X, Y, cv=2, scoring="r2"),
    "cross_val_predict": lambda m: model_selection.cross_val_predict(m, X, Y, cv=2),
    "learning_curve": lambda m: model_selection.learning_curve(m, X, Y, cv=2, train_sizes=[0.9]),
    "GridSearchCV": lambda m: model_selection.GridSearchCV(m, {"r2": [True]}, cv=2).fit(X, Y),
    "BaggingRegressor": lambda m: ensemble.BaggingRegressor(m, 2, bootstrap=False).fit(X, Y),
    "VotingRegressor": lambda m: ensemble.VotingRegressor([("a", m)]).fit(X, Y),
    "StackingRegressor": lambda m: ensemble.StackingRegressor([("a", m)], cv=2).fit(X, Y),
    "TransformedTargetRegressor": lambda m: TransformedTargetRegressor(m).fit(X, Y),
    "MultiOutputRegressor": lambda m: MultiOutputRegressor(m).fit(X, Y[:, None]),
    "RANSACRegressor": lambda m: RANSACRegressor(m, min_samples=2000).fit(X, Y),
}


@pytest.mark.unhurried
@pytest.mark.parametrize("name", FITS)
def test_whoever_fits_a_model_is_named_once(name: str) -> None:
    found = told(lambda: [FITS[name](model()) for _ in range(2)])
    (fits,) = (each for each in found if "fits" in each)
    assert fits.startswith(f"{name} of scikit-learn fits LinearRegression")
    assert "(ε = 9, δ = 1e-06)" in fits
    assert "charged to no budget" in fits


def test_a_ledger_is_mentioned() -> None:
    book = Book()
    found = told(lambda: FITS["GridSearchCV"](model(ledger=book)))
    assert len(book.charges) == 3
    assert "is charged to the ledger" in found[0]


def test_another_thread_tells_as_well() -> None:
    """There the stack begins inside of scikit-learn, as it does in another process."""
    with joblib.parallel_config("threading", n_jobs=2):
        found = told(lambda: FITS["cross_val_score"](model(noise=None)))
    assert any("sklearn.model_selection of scikit-learn fits" in each for each in found)


RESAMPLED: dict[str, Callable[..., Any]] = {
    "bagging": lambda m: ensemble.BaggingRegressor(m, 2),
    "part": lambda m: ensemble.BaggingRegressor(m, 2, bootstrap=False, max_samples=0.5),
    "one": lambda m: ensemble.BaggingRegressor(m, 2, bootstrap=False, max_samples=1),
    "count": lambda m: ensemble.BaggingRegressor(m, 2, bootstrap=False, max_samples=3000),
    "boosting": lambda m: ensemble.AdaBoostRegressor(m, n_estimators=2),
    "in a pipeline": lambda m: ensemble.BaggingRegressor(make_pipeline(m), 2),
}


@pytest.mark.parametrize("name", RESAMPLED)
def test_resampled_records_are_refused_and_cost_nothing(name: str) -> None:
    book = Book()
    with pytest.raises(ArgumentError, match="records as they are"):
        RESAMPLED[name](model(ledger=book)).fit(X, Y)
    assert not book.charges


def steps() -> dict[str, tuple[Any, str]]:
    scaler = preprocessing.StandardScaler
    nested = ColumnTransformer([("a", make_pipeline(scaler()), [0])], remainder="passthrough")
    return {
        "scaler": (make_pipeline(scaler(), model()), "StandardScaler"),
        "encoder": (make_pipeline(preprocessing.OrdinalEncoder(), model()), "OrdinalEncoder"),
        "imputer": (make_pipeline(SimpleImputer(), model()), "SimpleImputer"),
        "nested": (make_pipeline(nested, model()), "StandardScaler"),
        "union": (make_pipeline(FeatureUnion([("a", scaler())]), model()), "StandardScaler"),
        "afterwards": (make_pipeline(PCA(2, epsilon=9.0), Exact()), "LinearRegression"),
        "searched": (
            model_selection.GridSearchCV(make_pipeline(scaler(), model()), {}, cv=2),
            "StandardScaler",
        ),
    }


@pytest.mark.unhurried
@pytest.mark.parametrize("name", list(steps()))
def test_steps_that_are_fitted_without_noise_are_named(name: str) -> None:
    pipeline, step = steps()[name]
    found = [each for each in told(lambda: pipeline.fit(X, Y)) if "Steps" in each]
    assert len(found) == 1
    assert f"without noise: {step}." in found[0]


def public_steps() -> dict[str, Any]:
    def doubled(x: Any) -> Any:
        return 2 * x

    return {
        "function": preprocessing.FunctionTransformer(doubled),
        "normal": preprocessing.Normalizer(),
        "powers": preprocessing.PolynomialFeatures(),
        "constants": SimpleImputer(strategy="constant", fill_value=0.0),
        "private": PCA(2, epsilon=9.0, noise=ReproducibleNoise(0)),
        "columns": ColumnTransformer([("a", preprocessing.Binarizer(), [0])]),
    }


@pytest.mark.unhurried
@pytest.mark.parametrize("name", list(public_steps()))
def test_nothing_is_told_of_steps_that_keep_nothing(name: str) -> None:
    pipeline = make_pipeline(public_steps()[name], model())
    assert told(lambda: pipeline.fit(X, Y).predict(X)) == []


def test_public_categories_are_no_leak() -> None:
    codes = (X > 0).astype(float)
    encoder = preprocessing.OneHotEncoder(categories=[[0.0, 1.0]] * 2, sparse_output=False)
    pipeline = make_pipeline(encoder, model())
    assert told(lambda: pipeline.fit(codes, Y)) == []


SCORES: dict[str, Callable[[Any], Any]] = {
    "score": lambda m: m.score(X, Y),
    "pipeline": lambda m: make_pipeline(m).score(X, Y),
    "scorer": lambda m: metrics.get_scorer("r2")(m, X, Y),
    "importance": lambda m: permutation_importance(m, X, Y, n_repeats=1),
}


@pytest.mark.unhurried
@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_told_of_once(name: str) -> None:
    fitted = model().fit(X, Y)
    (found,) = told(lambda: [SCORES[name](fitted) for _ in range(2)])
    assert found.startswith("The score of LinearRegression is an exact function")


def test_so_it_is_of_labels_and_clusters() -> None:
    labels = LogisticRegression(epsilon=9.0, classes=[False, True]).fit(X, Y > 0)
    assert len(told(lambda: labels.score(X, Y > 0))) == 1
    clusters = KMeans(2, epsilon=9.0).fit(X)
    assert len(told(lambda: clusters.score(X))) == 1


def test_nothing_is_told_of_a_fit_and_its_predictions() -> None:
    assert told(lambda: model().fit(X, Y).predict(X)) == []
    assert told(lambda: PCA(1, epsilon=9.0).fit_transform(X)) == []


def test_a_warning_that_is_an_error_costs_nothing() -> None:
    book = Book()
    for _ in range(2):  # it was not shown
        with warnings.catch_warnings():
            warnings.simplefilter("error", prudent.PrivacyWarning)
            with pytest.raises(prudent.PrivacyWarning):
                steps()["scaler"][0].set_params(linearregression__ledger=book).fit(X, Y)
    assert not book.charges
