"""`prudent suggest`: what to ask for, before anything is spent."""

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("opendp", reason="needs pip install 'prudent[tables]'")

QUICK = ["--count", "3000", "--epsilon", "0.5", "--trials", "6"]
Run = Callable[..., Any]


def test_a_median(run: Run) -> None:
    answer = run("suggest", "median", "--spread", "100", *QUICK)
    assert (answer.status, answer.err) == (0, "")
    first, *rest = answer.out.splitlines()
    assert first == "median at ε = 0.5: use exponential."
    assert rest[0].startswith("exponential: error ")
    assert "propose = " in rest[1]


def test_as_json(run: Run) -> None:
    answer = run("suggest", "median", "--spread", "100", *QUICK, "--json")
    found = json.loads(answer.out)
    assert (found["statistic"], found["epsilon"], found["best"]) == ("median", 0.5, "exponential")
    assert found["expected"]["propose-test-release"]["propose"] == found["proposal"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["quantile", "--p", "0.9", "--quantiles", "0.1=3,0.5=10,0.9=40"],
        ["iqr", "--shape", "lognormal"],
        ["mean", "--spread", "2", "--centre", "9"],
    ],
)
def test_every_statistic(run: Run, arguments: list[str]) -> None:
    answer = run("suggest", *arguments, *QUICK, "--json")
    assert answer.status == 0, answer.err
    assert json.loads(answer.out)["best"] in ("exponential", "laplace")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["range", "--spread", "1"], "STATISTIC: expected one of iqr, mean, median, quantile"),
        (["median"], "--spread: expected unless quantiles or shape is given, got none of the"),
        (["median", "--shape", "round"], "--shape: expected one of"),
        (["median", "--quantiles", "3,4"], "--quantiles: expected P=VALUE"),
        (["median", "--quantiles", "0.1=3"], "--quantiles: expected two or more values"),
        (["median", "--spread", "-1"], "--spread: expected"),
        (["median", "--spread", "1", "--count", "0"], "--count: expected in [1, 1e+07]"),
        (["median", "--spread", "1", "--epsilon", "0"], "--epsilon: expected"),
        (["quantile", "--spread", "1", "--p", "2"], "--p: expected"),
    ],
)
def test_bad_input_is_one_line(run: Run, arguments: list[str], line: str) -> None:
    answer = run("suggest", arguments[0], *QUICK, *arguments[1:])
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert answer.err.startswith(line)
