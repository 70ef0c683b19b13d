"""`prudent suggest`: what to ask for, before anything is spent."""

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("opendp", reason="needs the extra `tables`")

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


def test_several_epsilons_are_a_table(run: Run) -> None:
    """What a larger ε is worth: the error of each mechanism falls, and so does the proposal."""
    asked = ["median", "--shape", "normal", "--count=2000", "--trials=10", "--epsilons=1,8"]
    answer = run("suggest", *asked, "--json")
    assert (answer.status, answer.err) == (0, "")
    low, high = json.loads(answer.out)
    assert (low["epsilon"], high["epsilon"]) == (1.0, 8.0)
    errors = [each["expected"]["propose-test-release"]["error"] for each in (low, high)]
    assert errors[1] < errors[0]
    assert high["proposal"] < low["proposal"]
    lines = run("suggest", *asked).out.splitlines()
    assert sum("exponential" in line for line in lines) == 2
    assert sum("propose-test-release" in line for line in lines) == 2


@pytest.mark.parametrize("shape", ["lognormal", "ties", "unbounded"])
def test_every_shape_is_answered(run: Run, shape: str) -> None:
    asked = ("median", "--shape", shape, "--count=2000", "--trials=10", "--epsilon=4", "--json")
    (tested,) = [
        each
        for name, each in json.loads(run("suggest", *asked).out)["expected"].items()
        if name == "propose-test-release"
    ]
    assert tested["refused"] <= 0.5
    assert tested["error"] < 1.0


def test_one_of_epsilon_and_epsilons(run: Run) -> None:
    asked = ("suggest", "median", "--count=20", "--spread=1")
    for wrong in ([], ["--epsilon=1", "--epsilons=1,2"]):
        answer = run(*asked, *wrong)
        assert (answer.status, answer.out) == (2, "")
        assert answer.err.startswith("--epsilon: expected unless epsilons is given")


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
