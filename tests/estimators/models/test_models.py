"""What the estimators answer: near those that are not private, on odd tables, in pipelines."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import prudent
from prudent import ArgumentError, PldAccountant, estimators
from prudent.accounting.events import ApproximateDpEvent
from prudent.estimators import TooFewRecordsError
from prudent.estimators.engine import SumEngine
from prudent.release.noise import ReproducibleNoise
from prudent.tune.fitting import event_of
from tests.estimators.models.fitting import ALL, SUPERVISED, data, taped

# The records of these tests are public.
pytestmark = pytest.mark.filterwarnings("ignore::prudent.PrivacyWarning")


def seeded(seed: int = 1) -> ReproducibleNoise:
    return ReproducibleNoise(seed)


def fit(name: str, count: int = 6000, epsilon: float = 2.0, **given: Any) -> tuple[Any, Any, Any]:
    x, y = data(name, count)
    return ALL[name](epsilon=epsilon, noise=seeded(), **given).fit(x, y), x, y


@pytest.mark.parametrize("name", ["LogisticRegression", "GaussianNB"])
def test_labels_are_predicted(name: str) -> None:
    model, x, y = fit(name)
    assert model.score(x, y) > 0.9
    assert model.predict_proba(x).sum(axis=1) == pytest.approx(1.0)
    assert np.exp(model.predict_log_proba(x[:5])) == pytest.approx(model.predict_proba(x[:5]))


@pytest.mark.unhurried
@pytest.mark.parametrize("source", ["list", "frame", "formula"])
@pytest.mark.parametrize(
    "labels", [(False, True), (0.5, 1.5), (-3, 7), ("01", "02"), ("a", "b"), (1, "a")], ids=str
)
def test_labels_are_named_as_they_were_given(labels: Any, source: str) -> None:
    import pandas as pd

    x = np.random.default_rng(0).normal(size=(900, 1))
    y = [labels[each] for each in (x[:, 0] > 0).astype(int)]
    frame = pd.DataFrame({"x": x[:, 0], "y": y})
    asked = {"list": (x, y), "frame": (frame, "y"), "formula": (frame, "y ~ x")}[source]
    model = estimators.GaussianNB(epsilon=50.0, noise=seeded()).fit(*asked)
    if labels == (1, "a") and source != "list":  # of texts and numbers, a frame has texts
        y = list(map(str, y))
    found = model.predict(x if source == "list" else frame).tolist()
    assert np.mean([one == other for one, other in zip(found, y, strict=True)]) > 0.95


def test_several_labels_of_any_kind() -> None:
    x, _ = data("LogisticRegression", 6000)
    y = np.array(["low", "middle", "high"])[np.digitize(x[:, 0], [-0.4, 0.4])]
    model = estimators.LogisticRegression(
        epsilon=2.0, classes=["low", "middle", "high"], noise=seeded()
    ).fit(x, y)
    assert model.score(x, y) > 0.7
    assert model.coef_.shape == (3, 3)
    assert set(model.predict(x)) == {"low", "middle", "high"}


def test_labels_are_found_by_a_private_choice(tmp_path: Path) -> None:
    import pandas as pd

    x, y = data("GaussianNB", 3000)
    label = np.where(y == 1, "yes", "no").astype(object)
    label[7] = "rare"
    model = estimators.GaussianNB(epsilon=2.0, noise=seeded()).fit(x, label)
    assert list(model.classes_) == ["no", "yes"]
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(label=label)
    frame.to_parquet(tmp_path / "x.parquet")
    other = estimators.GaussianNB(epsilon=2.0, noise=seeded()).fit(tmp_path / "x.parquet", "label")
    assert (other.predict(frame) == model.predict(x)).mean() > 0.99
    assert model.event_ == event_of(model, x, label)
    assert any(isinstance(each, ApproximateDpEvent) for each in model.event_.events)
    with pytest.raises(TooFewRecordsError, match="Fewer than two labels") as caught:
        estimators.GaussianNB(epsilon=2.0, noise=seeded()).fit(x[:20], label[:20])
    assert caught.value.needed > 20


def test_one_record_does_not_decide_of_which_type_a_label_is() -> None:
    x, y = data("GaussianNB", 3000)
    plain = estimators.GaussianNB(epsilon=2.0, noise=seeded()).fit(x, y.tolist())
    first = [float(y[0]), *y[1:].tolist()]  # equal to the other labels, and of another type
    found = estimators.GaussianNB(epsilon=2.0, noise=seeded()).fit(x, first)
    assert found.classes_.dtype == plain.classes_.dtype
    assert list(map(type, found._labels)) == [int, int]


def test_a_column_that_has_no_labels_is_refused_before_a_charge() -> None:
    import pyarrow

    x, y = data("GaussianNB", 300)
    columns = {name: x[:, at] for at, name in enumerate("abc")}
    table = pyarrow.table(columns | {"label": y.astype("datetime64[us]")})
    with pytest.raises(ArgumentError, match="timestamp"):
        estimators.GaussianNB(ledger=object()).fit(table, "label")


def test_a_gap_makes_integers_of_pandas_no_other_labels() -> None:
    import pandas as pd

    x, y = data("GaussianNB", 2000)
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(label=[None, *y[1:]])
    assert frame.label.dtype == float
    model = estimators.GaussianNB(epsilon=3.0, noise=seeded()).fit(frame, "label")
    assert model.classes_.tolist() == [0, 1]


def test_slopes_of_two_labels_are_those_of_the_second_against_the_first() -> None:
    model, x, _ = fit("LogisticRegression")
    assert model.coef_.shape == (1, 3)
    inside = np.abs(x[:, 0]) < 1
    scores = x[inside] @ model.coef_[0] + model.intercept_[0]
    assert model.decision_function(x[inside]) == pytest.approx(scores, abs=0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["GradientBoostingClassifier", "GradientBoostingRegressor"])
def test_trees_follow_what_a_line_cannot(name: str) -> None:
    x, _ = data(name, 6000)
    bent = np.abs(x[:, 0]) + (x[:, 1] > 500)
    y = bent if name.endswith("Regressor") else (bent > 1.2).astype(int)
    model = getattr(estimators, name)(epsilon=2.0, n_estimators=12, noise=seeded()).fit(x, y)
    assert model.score(x, y) > (0.6 if name.endswith("Regressor") else 0.85)


def test_components_are_those_of_the_largest_variance() -> None:
    draw = np.random.default_rng(0)
    x = (
        draw.normal(size=(6000, 4))
        * [3.0, 1.0, 0.3, 0.1]
        @ np.linalg.qr(draw.normal(size=(4, 4)))[0]
    )
    model = estimators.PCA(2, epsilon=1.0, noise=seeded()).fit(x + 100)
    captured = model.transform(x + 100).var(axis=0)
    assert captured.sum() > 0.95 * x.var(axis=0).sum()
    assert model.explained_variance_ratio_[0] > 0.7
    assert model.inverse_transform(model.transform(x[:9])).shape == (9, 4)


def test_clusters_are_found() -> None:
    draw = np.random.default_rng(0)
    centres = np.array([[0, 0], [50, 0], [0, 9], [50, 9]])
    x = centres[draw.integers(4, size=6000)] + draw.normal(size=(6000, 2)) * [3, 0.5]
    model = estimators.KMeans(4, epsilon=1.0, noise=seeded()).fit(x)
    nearest = np.abs(model.cluster_centers_[:, None] - centres).max(axis=2).argmin(axis=0)
    assert sorted(nearest) == [0, 1, 2, 3]
    assert np.abs(model.cluster_centers_[nearest] - centres).max() < 3
    assert model.cluster_sizes_.sum() == pytest.approx(6000, abs=600)
    assert (model.predict(centres) == nearest).all()


@pytest.mark.parametrize("far", [6.0, 50.0])
def test_a_rare_label_far_from_the_others_has_its_share(far: float) -> None:
    draw = np.random.default_rng(0)
    y = (draw.random(6000) < 0.05).astype(int)
    x = draw.normal(size=(6000, 1)) + far * y[:, None]
    model = estimators.GaussianNB(classes=[0, 1], epsilon=50.0, noise=seeded()).fit(x, y)
    assert model.class_prior_[1] == pytest.approx(y.mean(), abs=0.002)
    assert (model.predict(x) == y).mean() > 0.99


@pytest.mark.parametrize("tail", [0.0, 8.0])
def test_the_sizes_of_clusters_are_those_of_predictions(tail: float) -> None:
    draw = np.random.default_rng(0)
    x = draw.exponential(size=(6000, 1)) + tail * (draw.random((6000, 1)) < 0.1)
    model = estimators.KMeans(3, epsilon=50.0, noise=seeded()).fit(x)
    counts = np.bincount(model.predict(x), minlength=3)
    assert model.cluster_sizes_ == pytest.approx(counts, abs=10)


@pytest.mark.unhurried
@pytest.mark.parametrize("name", ["LogisticRegression", "GaussianNB", "PCA", "KMeans"])
def test_columns_with_bounds_need_no_quantiles(name: str) -> None:
    x, y = data(name, 2000)
    bounds = {0: (-3.0, 3.0), 1: (200.0, 800.0), 2: (2.9, 3.1)}
    with taped() as tape:
        ALL[name](noise=seeded(), bounds=bounds).fit(x, y)
    assert "columns" not in tape.names
    with taped() as tape:
        ALL[name](noise=seeded(), bounds={1: (200.0, 800.0)}).fit(x, y)
    assert tape.names.count("columns") == 4


# ---- the price ------------------------------------------------------------------------------


@pytest.mark.unhurried
@pytest.mark.parametrize("name", ALL)
def test_all_that_is_paid_for_is_used_and_nothing_else(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[SumEngine] = []
    opened = SumEngine.__init__

    def watched(self: SumEngine, *given: Any) -> None:
        asked.append(self)
        opened(self, *given)

    monkeypatch.setattr(SumEngine, "__init__", watched)
    fit(name, 600, 10.0)
    (engine,) = asked
    assert dict(engine._used) == {part: each.times for part, each in engine.prices.parts.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ALL)
@pytest.mark.usefixtures("exact_prices")
def test_the_event_costs_what_was_asked_for(name: str) -> None:
    model, _, _ = fit(name, 2000, 1.0)
    accountant = PldAccountant()
    accountant.compose(model.event_)
    assert 0.99 < accountant.get_epsilon(1e-6) <= 1.0
    assert (model.epsilon_, model.delta_) == (1.0, 1e-6)


def test_privacy_itself_certifies_a_model() -> None:
    model, x, y = fit("GaussianNB", 3000)
    share = float(model.score(x, y))
    certificate = model.certifier_.certificate(accuracy=share, records=1)
    assert 0.1 < certificate.at_least < share
    with pytest.raises(NotFittedError):
        _ = estimators.GaussianNB().certifier_


# ---- odd tables -----------------------------------------------------------------------------


def odd_tables() -> dict[str, Any]:
    import pandas as pd

    draw = np.random.default_rng(0)
    normal = draw.normal(size=(400, 2))
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(999, size=400), "D")
    return {
        "constant": np.full((400, 2), 7.0),
        "collinear": normal[:, [0, 0]],
        "all null": np.full((400, 2), np.nan),
        "one column null": np.where([True, False], np.nan, normal),
        "huge": normal * 1e300,
        "tiny": normal * 1e-300,
        "integers": draw.integers(-(2**60), 2**60, size=(400, 2)),
        "truths": normal > 0,
        "infinite": np.where(normal > 0, np.inf, -np.inf),
        "some infinite": np.where(normal > 1, np.inf, normal),
        "dates": pd.DataFrame({"a": days, "b": normal[:, 0]}),
        "objects": np.where(normal > 1, "odd", normal.astype(object)),
        "none": np.empty((0, 2)),
        "one": normal[:1],
        "ten": normal[:10],
    }


def outcome(name: str, x: Any, epsilon: float = 30.0) -> str:
    """Fit an odd table, ask the model about it, and return the kind of outcome."""
    given = {"n_components": 1} if name == "PCA" else {}
    model = clone(ALL[name](epsilon=epsilon, noise=seeded())).set_params(**given)
    y = None if name not in SUPERVISED else np.arange(len(x)) % 2
    try:
        model.fit(x, y)
    except TooFewRecordsError as error:
        return "refused" if "too few" in str(error) else "odd"
    odd = np.array([[0.0, 1.0], [np.nan, -1e300], [np.inf, 5.0]])
    asked = odd if isinstance(x, np.ndarray) else x.head(3)
    found = model.predict(asked) if hasattr(model, "predict") else model.transform(asked)
    assert len(found) == 3
    if hasattr(model, "predict"):
        assert np.isfinite(found).all()
    return "fitted"


FEW = {"all null", "one column null", "none", "one"}


@pytest.mark.parametrize("name", ["LogisticRegression", "GradientBoostingClassifier"])
@pytest.mark.parametrize("table", ["constant", "huge", "infinite", "none", "one", "ten"])
def test_an_odd_table_is_answered_or_refused_in_one_line(name: str, table: str) -> None:
    found = outcome(name, odd_tables()[table])
    assert found == ("refused" if table in FEW else "fitted") or table == "ten"


@pytest.mark.thorough
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("table", odd_tables())
def test_any_odd_table_is_answered_or_refused_in_one_line(name: str, table: str) -> None:
    x = odd_tables()[table]
    found = outcome(name, x)
    assert found == ("refused" if table in FEW else "fitted") or table == "ten"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("LogisticRegression", {"classes": [1]}),
        ("LogisticRegression", {"classes": [1, 1]}),
        ("GaussianNB", {"classes": "ab"}),
        ("GaussianNB", {"classes": [[1], [2]]}),
        ("GaussianNB", {"classes": [None, 1]}),
        ("LogisticRegression", {"classes": [float("nan"), 1]}),
        # Beyond these, slopes in units of the column are no doubles.
        ("LinearRegression", {"bounds": {0: (0.0, 5e-324)}}),
        ("Ridge", {"bounds": {0: (1e308, 1.7e308)}}),
        ("GaussianNB", {"bounds": {0: (-1.7e308, 1.7e308)}}),
        ("PCA", {"n_components": 4}),
        ("KMeans", {"n_clusters": 0}),
        ("GradientBoostingClassifier", {"n_estimators": 0}),
        ("GradientBoostingRegressor", {"learning_rate": 2.0}),
    ],
)
def test_arguments_are_checked_before_anything_is_charged(name: str, given: Any) -> None:
    x, y = data(name, 50)
    model = getattr(estimators, name)(ledger=object(), **given)
    with pytest.raises(ArgumentError) as caught:
        model.fit(x, y)
    assert caught.value.argument in given


@pytest.mark.parametrize("name", ["LinearRegression", "LogisticRegression", "PCA"])
def test_products_of_columns_that_fit_no_memory_are_refused_before_a_charge(name: str) -> None:
    x, model = np.zeros((3, 20_000)), getattr(estimators, name)(ledger=object())
    with pytest.raises(ArgumentError, match=r"at most 4,096 columns, got 20,00., .* take 43 GiB"):
        model.fit(x, np.zeros(3))


@pytest.mark.parametrize("label", ["\ud800", "a\0"])
def test_a_text_that_no_record_can_have_is_no_label(label: str) -> None:
    """Engines stop at it, so that a fit was charged and then failed."""
    pyarrow = pytest.importorskip("pyarrow")
    table, charged = pyarrow.table({"x": [1.0, 2.0], "city": ["a", "b"]}), object()
    model = estimators.LogisticRegression(classes=[label, "b"], ledger=charged)
    for target in ("city", "city ~ x"):
        with pytest.raises(ArgumentError, match="of type string"):
            model.fit(table, target)
    with pytest.raises(ArgumentError, match="of type string"):
        estimators.LinearRegression(ledger=charged).fit(table, f"x ~ C(city, {label}, b)")
    with pytest.raises(ArgumentError, match="Expected groups of type string"):
        prudent.count(table, by="city", groups=[label], epsilon=1.0, ledger=charged)
