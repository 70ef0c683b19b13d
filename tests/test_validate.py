"""Every check names what it checked, what was given and what is allowed."""

import enum
import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from prudent import _validate

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
@pytest.mark.parametrize("value", [3, 3.0, np.float32(3), np.int64(3), np.array(3)])
def test_a_number_of_any_kind_becomes_a_plain_one(check, value):
    assert type(check(rate=value)) in (int, float)
    assert check(rate=value) == 3


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
