"""Every check names what it checked, what was given and what is allowed."""

import ast
import enum
import math
import pickle
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import prudent
from prudent import _validate
from prudent.release.columns.column import SourceArgumentError, SourceError

CHECKS = [
    _validate.positive,
    _validate.positive_or_infinite,
    _validate.non_negative,
    partial(_validate.between, 0, 10),
    _validate.count,
    partial(_validate.count, 1),
]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", ["3", b"3", None, True, [3], math.nan, -1, "three"])
def test_what_is_no_number_in_range_is_refused(check, value):
    with pytest.raises(ValueError, match=r"^Expected rate .*, got .*\.$") as caught:
        check(rate=value)
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", [3, 3.0, np.float32(3), np.int64(3), Fraction(3)])
def test_a_number_of_any_kind_becomes_a_plain_one(check, value):
    assert type(check(rate=value)) in (int, float)
    assert check(rate=value) == 3


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("value", [Decimal(3), np.array(3)])
def test_what_has_a_value_but_no_arithmetic_with_numbers_is_refused_with_a_hint(check, value):
    with pytest.raises(ValueError, match=r"^Expected rate .*Write float\(…\) around it\.$"):
        check(rate=value)


def test_whole_numbers_and_their_least():
    assert _validate.count(steps=2**70) == 2**70
    for value in (1.5, math.inf, 0):
        with pytest.raises(ValueError, match=r"Expected steps a whole number >= 1, got"):
            _validate.count(1, steps=value)


def test_fields_of_a_frozen_value_keep_what_was_checked():
    @dataclass(frozen=True)
    class Value:
        rate: float
        steps: int

    value = Value(np.float32(0.5), 3.0)
    _validate.fields(value, partial(_validate.between, 0, 1), "rate")
    _validate.fields(value, _validate.count, "steps")
    assert (type(value.rate), type(value.steps)) == (float, int)
    assert _validate.count(1, 5, steps=5) == 5
    with pytest.raises(ValueError, match=r"Expected steps a whole number >= 1 and <= 5, got 6\."):
        _validate.count(1, 5, steps=6)
    with pytest.raises(ValueError, match=r"Expected steps a whole number >= 5, got 3\."):
        _validate.fields(value, partial(_validate.count, 5), "steps")


def test_a_choice_says_what_it_allows():
    class Colour(_validate.Choice):
        RED = "red"
        BLUE = "blue"

    assert isinstance(Colour.RED, enum.Enum)
    assert Colour("red") is Colour(Colour.RED) is Colour.RED
    with pytest.raises(ValueError, match=r"Expected colour one of 'red', 'blue', got 'green'\."):
        Colour("green")


def test_an_argument_error_carries_its_parts():
    error = prudent.ArgumentError(
        "rate", "in (0, 1]", got="x", why="it is a probability", hint="Give 1."
    )
    assert isinstance(error, ValueError)
    assert (error.argument, error.allowed, error.value) == ("rate", "in (0, 1]", "x")
    assert error.expectation == "in (0, 1], got 'x': it is a probability. Give 1."
    assert str(error) == "Expected rate in (0, 1], got 'x': it is a probability. Give 1."
    assert str(prudent.ArgumentError("rate", "> 0", shown="nothing")) == (
        "Expected rate > 0, got nothing."
    )
    assert prudent.ArgumentError("rate", "> 0").value is None


@pytest.mark.parametrize("kind", [prudent.ArgumentError, SourceArgumentError])
def test_an_argument_error_travels_between_processes(kind):
    error = pickle.loads(pickle.dumps(kind("rate", "> 0", got=-1, hint="Give 1.")))
    assert type(error) is kind
    assert str(error) == "Expected rate > 0, got -1. Give 1."
    assert (error.argument, error.value, error.hint) == ("rate", -1, "Give 1.")
    assert isinstance(error, SourceError) == (kind is SourceArgumentError)


def test_an_unknown_column_is_answered_with_the_most_similar_one():
    with pytest.raises(prudent.ArgumentError) as caught:
        _validate.column(["city", "age"], by="citty")
    error = pickle.loads(pickle.dumps(caught.value))
    assert str(error) == "by: unknown column 'citty'; did you mean 'city'? Columns: age, city."
    assert (error.argument, error.value) == ("by", "citty")
    with pytest.raises(prudent.ArgumentError, match=r"column 'zzz'\. Columns: age, city\.$"):
        _validate.column(["city", "age"], by="zzz")
    assert _validate.column(["city", "age"], columns="age") == "age"


def expected_arguments(tree):
    """The lines where a plain ValueError says what it expected of an argument of its function."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        arguments = function.args
        names = {each.arg for each in arguments.args + arguments.kwonlyargs}
        for node in ast.walk(function):
            if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)):
                continue
            text = ast.unparse(node.exc)
            found = re.match(r"ValueError\(f?['\"]Expected (\w+) (?!or |and )", text)
            if found and found[1] in names:
                yield node.lineno


@pytest.mark.unhurried
def test_whatever_is_wrong_with_an_argument_is_an_argument_error():
    root = Path(prudent.__file__).parent
    plain = [
        f"{path.relative_to(root)}:{line}"
        for path in sorted(root.rglob("*.py"))
        if re.search("ValueError.*Expected ", (text := path.read_text()), re.DOTALL)
        for line in expected_arguments(ast.parse(text))
    ]
    assert plain == []
    assert list(expected_arguments(ast.parse("def f(x): raise ValueError(f'Expected x > {0}.')")))
