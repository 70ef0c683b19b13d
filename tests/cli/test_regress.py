"""`prudent regress`: an answer, a refusal or one line, and never more than was charged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from prudent.budget.ledger import Ledger
from prudent.estimators import engine
from prudent.release.noise import ReproducibleNoise


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices in a moment, and noise that is the same in every run."""
    monkeypatch.setattr(engine, "_total_mu", lambda e, d, *_: engine.gaussian_mu(e, d) / 1.05)
    monkeypatch.setattr("prudent.release.noise.SecureNoise", lambda: ReproducibleNoise(7))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    generator = np.random.default_rng(0)
    ages = generator.integers(20, 65, 2000)
    region = generator.choice(["north", "south"], 2000)
    pay = 100.0 * ages + 500 * (region == "south") + generator.normal(size=2000) * 50
    path = tmp_path_factory.mktemp("regress") / "pay.parquet"
    pd.DataFrame({"age": ages, "region": region, "pay": pay}).to_parquet(path)
    return str(path)


ASK = ("pay ~ age + C(region, north, south)", "--epsilon", "20")


@pytest.mark.unhurried
def test_a_model_is_printed_with_its_price(run: Callable[..., Any], file: str) -> None:
    answer = run("regress", ASK[0], file, *ASK[1:], "--r2", "--certify", "0.3", "--model", "linear")
    assert answer.status == 0, answer
    lines = answer.out.splitlines()
    assert lines[0].split() == ["coefficient", "95", "%", "interval"]
    assert [line.split()[0] for line in lines[1:4]] == ["(intercept)", "age", "region[south]"]
    assert " to " in lines[2]
    assert "clipped" in lines[4]
    assert lines[5].startswith(("R² about 0.9", "R² about 1"))
    assert "may be bad" in lines[6]
    assert lines[-1] == "(20, 1e-06)-DP for adding or removing one record"
    assert "--ledger" in answer.err


@pytest.mark.thorough
def test_json_holds_the_model(run: Callable[..., Any], file: str) -> None:
    answer = json.loads(run("regress", ASK[0], file, *ASK[1:], "--certify", "0.3", "--json").out)
    assert answer["status"] == "released"
    assert answer["model"] == "linear"
    age, south = answer["coefficients"]
    assert age["interval"][0] < age["value"] < age["interval"][1]
    assert age["value"] == pytest.approx(100, rel=0.1)
    assert south["term"] == "region[south]"
    assert answer["certificate"]["records"] > 10
    assert answer["relation"]["adjacency"] == "add-remove"


def test_a_logistic_regression_has_intervals(run: Callable[..., Any], tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    age = draw.normal(40, 10, 4000)
    works = np.where(draw.random(4000) < 1 / (1 + np.exp(-(age - 40) / 10)), "yes", "no")
    pd.DataFrame({"age": age, "works": works}).to_parquet(tmp_path / "t.parquet")
    ask = ("works ~ age", str(tmp_path / "t.parquet"), "--epsilon", "20", "--model", "logistic")
    answer = json.loads(run("regress", *ask, "--json").out)
    assert answer["classes"] == ["no", "yes"]
    intercept, slope = answer["coefficients"]
    assert (intercept["term"], slope["term"]) == ("(intercept)", "age")
    assert slope["interval"][0] < 0.1 < slope["interval"][1] < 0.2
    lines = run("regress", *ask).out.splitlines()
    assert " to " in lines[2]
    assert lines[-1] == "(20, 1e-06)-DP for adding or removing one record"
    forecast = run("regress", "a ~ b", "--epsilon", "1", "--model", "logistic", "--dry-run")
    assert "It needs about" in forecast.out


@pytest.mark.thorough
def test_a_ledger_is_charged_once_and_never_overdrawn(
    run: Callable[..., Any], file: str, tmp_path: Path
) -> None:
    place = str(tmp_path / "b.db")
    with Ledger.create(place, epsilon=30.0, delta=1e-5) as ledger:
        assert run("regress", *ASK, "--ledger", place, file).status == 0
        assert len(ledger.history()) == 1
        assert ledger.history()[0].outcome_text == "released"
        answer = run("regress", *ASK, "--ledger", place, file, "--json")
    assert answer.status == 4
    assert json.loads(answer.out)["status"] == "over budget"


def test_too_few_records_are_refused(run: Callable[..., Any], file: str, tmp_path: Path) -> None:
    small = tmp_path / "small.csv"
    small.write_text("x,y\n1,2\n", encoding="utf-8")
    answer = run("regress", "y ~ x", str(small), "--epsilon", "1", "--json")
    assert answer.status == 3
    assert json.loads(answer.out)["status"] == "refused"
    assert "it needs about" in answer.err


def test_a_forecast_reads_nothing(run: Callable[..., Any]) -> None:
    answer = run("regress", "y ~ x", "--epsilon", "1", "--dry-run")
    assert answer.status == 0
    assert answer.out.count("records and R²") == 4
    one = run("regress", "y ~ x", "--epsilon", "1", "--dry-run", "--records", "50", "--json")
    assert "would refuse" in json.loads(one.out)["notes"][1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("pay", "FILE"), "~"),
        (("pay ~ age", "FILE", "--records", "5"), "--records"),
        (("pay ~ nope", "FILE"), "FORMULA: unknown column 'nope'. Columns: "),
        (("pay ~ C(nope)", "FILE"), "FORMULA: unknown column 'nope'. Columns: "),
        (("nope ~ age", "FILE"), "FORMULA: unknown column 'nope'. Columns: "),
        (("pay ~ region", "FILE"), r"C(region)"),
        (("pay ~ age",), "FILE"),
        (("pay ~ age", "FILE", "--model", "median", "--r2"), "--r2"),
        (("region ~ age", "FILE", "--model", "logistic", "--certify", "1"), "--certify"),
        (("pay ~ age", "FILE", "--where", "age >"), "where"),
        (("pay ~ age", "missing.parquet"), "existing file"),
        (("pay ~ age", "FILE", "--certify", "0"), "certify"),
        (("pay ~ age", "FILE", "--unit", "nobody"), "unit"),
    ],
)
def test_bad_input_is_told_in_one_line(
    run: Callable[..., Any], file: str, words: tuple[str, ...], message: str
) -> None:
    given = [file if word == "FILE" else word for word in words]
    answer = run("regress", *given, "--epsilon", "5")
    assert answer.status == 2, answer
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert not answer.out


def test_all_rows_of_a_unit_are_protected(run: Callable[..., Any], file: str) -> None:
    words = ("pay ~ I(age ** 2)", file, "--epsilon", "20", "--unit", "region")
    answer = run("regress", *words)
    assert answer.status == 3  # a row of each region is not enough
    assert "records (a noisy count) are too few" in answer.err
