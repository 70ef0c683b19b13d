"""Models of mixed columns: what a formula makes of each, and what that costs."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from prudent import ArgumentError
from prudent.accounting import ApproximateDpEvent
from prudent.estimators import (
    GaussianNB,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    LinearRegression,
    LogisticRegression,
    QuantileRegressor,
)
from prudent.estimators.formula import Factor, Formula, FormulaRows
from prudent.release.noise import ReproducibleNoise
from tests.estimators.models.fitting import taped
from tests.release.recording import Book

# The records of these tests are public.
pytestmark = pytest.mark.filterwarnings("ignore::prudent.PrivacyWarning")


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    size = 2000
    found = pd.DataFrame(
        {
            "age": generator.integers(20, 65, size),
            "region": generator.choice(["n", "s", "w", "rare"], size, p=[0.5, 0.3, 0.199, 0.001]),
            "sex": generator.choice(["f", "m", "x"], size, p=[0.5, 0.4, 0.1]),
            "odd name": generator.random(size) < 0.5,
            "hours": np.where(generator.random(size) < 0.2, np.nan, generator.normal(40, 5, size)),
        }
    )
    pay = found.age + 5.0 * (found.region == "s") - 3.0 * (found.sex == "m") + 4 * found["odd name"]
    pay = pay + found.hours.fillna(50.0)
    return found.assign(pay=pay + generator.normal(size=size))


def quiet() -> LinearRegression:
    return LinearRegression(epsilon=50.0, noise=ReproducibleNoise(1))


FORMULA = "pay ~ age + C(region) + C(sex, f, m) + missing(hours) + `odd name`"


def test_every_kind_of_term_becomes_its_features(frame: pd.DataFrame) -> None:
    fitted = quiet().fit(frame, FORMULA)
    found = dict(zip(fitted.terms_, fitted.coef_, strict=True))
    assert list(found) == [
        *("age", "region[s]", "region[w]", "region[other]", "sex[m]"),
        *("hours", "missing(hours)", "odd name"),
    ]
    expected = {"age": 1, "region[s]": 5, "region[w]": 0, "sex[m]": -3, "odd name": 4, "hours": 1}
    assert found == pytest.approx({**found, **expected}, abs=0.5)
    assert found["missing(hours)"] == pytest.approx(10, abs=1.5)
    assert fitted.n_records_ == pytest.approx((frame.sex != "x").sum(), abs=40)
    assert fitted.feature_names_in_.tolist() == ["age", "region", "sex", "hours", "odd name"]
    known = frame[frame.sex != "x"]
    assert fitted.score(known, known.pay) > 0.9


@pytest.mark.thorough
def test_a_file_is_read_as_a_frame_is(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame.to_parquet(tmp_path / "t.parquet")
    expected = quiet().fit(frame, FORMULA).coef_.tolist()
    assert quiet().fit(tmp_path / "t.parquet", FORMULA).coef_.tolist() == expected


def test_private_levels_are_part_of_the_price(frame: pd.DataFrame) -> None:
    events = quiet().fit(frame, "pay ~ age + C(region) + C(sex)").event_.events
    chosen = [each for each in events if isinstance(each, ApproximateDpEvent)]
    assert [each.epsilon for each in chosen] == [2.5, 2.5]  # a tenth of ε, for both
    public = quiet().fit(frame, "pay ~ age + C(region, n, s)").event_.events
    assert not any(isinstance(each, ApproximateDpEvent) for each in public)


def test_a_level_of_few_records_is_not_named(frame: pd.DataFrame) -> None:
    model = LinearRegression(epsilon=3.0, noise=ReproducibleNoise(1))
    fitted = model.fit(frame, "pay ~ age + C(region)")
    assert "region[rare]" not in fitted.terms_


def test_a_level_may_have_the_name_of_anything_else(frame: pd.DataFrame) -> None:
    named = frame.replace({"region": {"w": "other"}}).assign(**{"region[s]": frame.age})
    fitted = quiet().fit(named, "pay ~ `region[s]` + C(region)")
    assert list(fitted.terms_) == [
        *("region[s]", "region[other]", "region[s]", "region[any other]"),
    ]
    assert fitted.coef_[[0, 2]] == pytest.approx([1, 5], abs=1.5)


def test_categories_alone_spend_nothing_on_scales(frame: pd.DataFrame) -> None:
    fitted = quiet().fit(frame, "pay ~ C(sex, f, m)")
    assert fitted.coef_ == pytest.approx([-3], abs=2)


def test_bounds_replace_quantiles(frame: pd.DataFrame) -> None:
    model = QuantileRegressor(epsilon=20.0, bounds={"age": (18, 70)}, noise=ReproducibleNoise(1))
    fitted = model.fit(frame, "pay ~ age + missing(hours)")
    assert fitted.coef_[0] == pytest.approx(1, abs=0.3)
    bounded = LinearRegression(epsilon=20.0, bounds={0: (18, 70)}, noise=ReproducibleNoise(1))
    assert bounded.fit(frame[["age"]], frame.pay).coef_[0] == pytest.approx(1, abs=0.3)


def test_bounds_are_checked_before_a_charge(frame: pd.DataFrame) -> None:
    book = Book()
    for bounds in ({"agee": (18, 70)}, {"sex[m]": (0, 1)}, {2: (0, 1)}, {"age": (70, 18)}):
        with pytest.raises(ValueError, match="bounds"):
            LinearRegression(ledger=book, bounds=bounds).fit(frame, "pay ~ age + C(sex)")
    assert not book.charges
    fitted = LinearRegression(epsilon=20.0, bounds={"age": (18, 70)}, noise=ReproducibleNoise(1))
    with taped() as tape:
        fitted.fit(frame, "pay ~ C(sex) + age")
    assert "columns" not in tape.names
    assert dict(zip(fitted.terms_, fitted.coef_, strict=True))["age"] == pytest.approx(1, abs=0.3)


def test_a_formula_is_read() -> None:
    found = Formula.parse(" `a b` ~ x.1+C( y )+C(z, 1 ,b c)+missing(w) + I( u ** 2 ) ")
    assert found.target == Factor("a b")
    assert found.terms == (
        (Factor("x.1"),),
        (Factor("y", "category"),),
        (Factor("z", "category", ("1", "b c")),),
        (Factor("w", "missing"),),
        (Factor("( u ** 2 )", text="I( u ** 2 )"),),
    )


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("y ~ a * b", ["a", "b", "a:b"]),
        ("y ~ a:b + a", ["a:b", "a"]),
        ("y ~ (a + b) * c", ["a", "b", "c", "a:c", "b:c"]),
        ("y ~ a * b * c - a:b:c", ["a", "b", "a:b", "c", "a:c", "b:c"]),
        ("y ~ a * b - b:a", ["a", "b"]),
        ("y ~ (a + b) * (b + a)", ["a", "b", "a:b"]),
        ("y ~ . - c", ["a", "b", "d e"]),
        ("y ~ . + C(c, u, v)", ["a", "b", "d e", "c[v]"]),
        ('y ~ C(c, \'u\', "v", "w, x")', ["c[v]", "c[w, x]"]),
        ("y ~ . * a - `d e`:a", ["a", "b", "c", "d e", "b:a", "c:a"]),
        ("log(y) ~ . - who", ["a", "b", "c", "d e"]),
        ("y ~ log(a) + I(b + `d e`)", ["log(a)", "I(b + `d e`)"]),
    ],
)
def test_operators_are_expanded(text: str, terms: list[str]) -> None:
    found = Formula.parse(text, ["a", "b", "c", "d e", "who", "y"], unit="who")
    assert found.features == terms


@pytest.mark.parametrize(
    "text",
    [
        *(
            "~ x",
            "y ~",
            "y ~ x +",
            "y ~ C()",
            "y ~ C(x, a, a)",
            "y ~ C(x, 'a', a)",
            "y ~ missing(x, a)",
            "y ~ x z",
        ),
        *("y ~ x + log(y)", "y z ~ x", "y ~ C(x, )", "y ~ C(x, a)", "y ~ .", "y ~ 1", "y ~ 2", "y"),
        *("y ~ missing(x):z", "y ~ x:C(z)", "y ~ x - 1", "y ~ 0 + x"),
        *(
            "y ~ log(x",
            "C(y) ~ x",
            "y + z ~ x",
            "y ~ x - x",
            "y ~ x:1",
            "y ~ (x",
            "y ~ `x",
            "y ~ x ** 2",
        ),
    ],
)
def test_what_is_no_formula_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="formula"):
        Formula.parse(text)


ODD = [1.0, -2.0, 0.0, np.nan, np.inf, -np.inf, 1e308, 5e-324, 3.0, 4.5, 2.0]


def test_every_feature_is_a_total_function_of_its_row(tmp_path: Path) -> None:
    """The same numbers from every container; a row without one is absent, and nothing fails."""
    a = np.array(ODD)
    data = pd.DataFrame({"a": a, "b": a[::-1], "k": list("uvwuvwuvwuv"), "y": 1.0})
    text = "y ~ a:b + log(a) + sqrt(b) + I(a ** 2 / b) + C(k, u, v):a + I(a > b)"

    def rows(source: Any) -> list[list[float]]:
        opened = FormulaRows(text, source)
        opened.choose(None, ReproducibleNoise(0))
        return sorted(row for batch in opened.batches() for row in batch.tolist())

    found = rows(data)
    with np.errstate(all="ignore"):
        product, square = a * a[::-1], a**2 / a[::-1]
        columns = [product, np.log(a), np.sqrt(a[::-1]), square]
        columns += [(data.k == "v") * a, a > a[::-1], np.ones(len(a))]
    expected = np.stack(columns, axis=1).astype(float)
    kept = np.isfinite(expected).all(axis=1) & (data.k != "w") & (np.abs(product) < 2.0**500)
    assert 2 <= len(found) == kept.sum()
    assert found == pytest.approx(np.array(sorted(expected[kept].tolist())), rel=1e-15)
    data.to_parquet(tmp_path / "t.parquet")
    data.to_csv(tmp_path / "t.csv", index=False)
    import polars

    for other in (polars.from_pandas(data), tmp_path / "t.parquet", tmp_path / "t.csv"):
        assert rows(other) == found


@pytest.mark.unhurried
@pytest.mark.parametrize("classes", [None, ["no", "yes"]])
def test_a_classifier_takes_a_formula(frame: pd.DataFrame, classes: Any) -> None:
    old = frame.assign(old=np.where(frame.age > 40, "yes", "no"))
    for model in (LogisticRegression, GaussianNB):
        fitted = model(epsilon=30.0, classes=classes, noise=ReproducibleNoise(1))
        fitted.fit(old, "old ~ age + C(sex)")
        assert list(fitted.classes_) == ["no", "yes"]
        assert fitted.terms_[0] == "age"
        assert fitted.score(old, old.old) > 0.8
        if model is LogisticRegression:
            lines = fitted.summary().splitlines()
            assert [line.split()[0] for line in lines[1:3]] == ["(intercept)", "age"]
            assert (
                f"no interval (–): {fitted.no_interval_}" in fitted.summary()
            )  # of separable labels
            assert lines[-1] == "(30, 1e-06)-DP for adding or removing one record"


def test_a_weighted_fit_is_refused_before_a_charge(frame: pd.DataFrame) -> None:
    book = Book()
    with pytest.raises(TypeError, match="sample_weight"):
        LinearRegression(ledger=book).fit(frame, "pay ~ age", sample_weight=frame.age)
    assert not book.charges


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("pay ~ nope", "nope"),
        ("nope ~ age", "nope"),
        ("pay ~ pay", "pay"),
        ("pay ~ sex", r"C\(sex"),
    ],
)
def test_columns_that_do_not_fit_are_named(frame: Any, formula: str, message: str) -> None:
    import polars

    with pytest.raises(ValueError, match=message):
        quiet().fit(polars.from_pandas(frame), formula)


@pytest.mark.parametrize(
    "formula", ["pay ~ C(hired)", "pay ~ C(age, young, old)", "pay ~ C(`odd name`, yes, no)"]
)
def test_categories_of_another_type_are_refused_before_a_charge(frame: Any, formula: str) -> None:
    class Untouched:
        """A ledger that nothing may be charged to."""

    import polars

    given = polars.from_pandas(frame.assign(hired=np.datetime64("2024-01-01T12")))
    with pytest.raises(ArgumentError, match=r"of type|texts"):
        LinearRegression(ledger=Untouched()).fit(given, formula)


def test_a_category_of_which_no_level_is_found_leaves_the_intercept(frame: Any) -> None:
    model = LinearRegression(epsilon=5.0, certify=0.5, noise=ReproducibleNoise(1))
    fitted = model.fit(frame.assign(number=range(len(frame))), "pay ~ C(number)")
    assert fitted.coef_.shape == (0,)
    found = fitted.predict(frame.assign(number=1)[:3])
    assert found == pytest.approx(np.full(3, frame.pay.mean()), rel=0.1)
    pytest.importorskip("matplotlib")
    assert not fitted.plot().axes[0].get_yticklabels()


def test_without_a_level_every_model_predicts_what_is_frequent(frame: Any) -> None:
    given = frame.assign(number=range(len(frame)))
    for kind in (GradientBoostingRegressor, QuantileRegressor):
        fitted = kind(epsilon=5.0, noise=ReproducibleNoise(1)).fit(given, "pay ~ C(number)")
        assert fitted.predict(given[:3]) == pytest.approx(np.full(3, frame.pay.mean()), rel=0.2)
    for kind in (GradientBoostingClassifier, GaussianNB, LogisticRegression):
        fitted = kind(epsilon=5.0, noise=ReproducibleNoise(1)).fit(given, "sex ~ C(number)")
        assert set(fitted.predict(given[:3])) <= set(frame.sex)


def test_trees_ask_categories_as_well(frame: Any) -> None:
    """Features that are 0 or 1 need no private cuts, and none is paid for."""
    given, asked = frame.assign(man=frame.sex == "m"), frame[:50]
    model = GradientBoostingClassifier(epsilon=50.0, noise=ReproducibleNoise(1))
    for formula in ("man ~ C(sex)", "man ~ age + C(sex, f, m, x)"):
        assert (model.fit(given, formula).predict(asked) == (asked.sex == "m")).all()
    numbers = GradientBoostingRegressor(epsilon=50.0, noise=ReproducibleNoise(1))
    fitted = numbers.fit(frame, "pay ~ missing(hours) + C(sex)")
    gaps = fitted.predict(asked.assign(hours=np.nan)) - fitted.predict(asked.assign(hours=40.0))
    assert (gaps > 3).all()  # who has no number of hours is paid as for 50
