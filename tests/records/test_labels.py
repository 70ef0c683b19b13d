"""A label is of one class at most, by its exact value."""

import functools
from collections.abc import Callable
from decimal import Decimal
from enum import IntEnum
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prudent._validate import ArgumentError
from prudent.records.arrays import NONE, Classes
from tests.tiers import CHARACTERS


def categories(values: list[int | None]) -> pd.Series:
    known = sorted({value for value in values if value is not None})
    codes = [-1 if value is None else known.index(value) for value in values]
    return pd.Series(pd.Categorical.from_codes(codes, known))


COLUMNS: list[Callable[..., Any]] = [
    functools.partial(pd.Series, dtype="Int64"),
    functools.partial(pd.Series, dtype="int64[pyarrow]"),
    categories,
    pl.Series,
    pa.array,
    lambda values: pa.chunked_array([pa.array(values)]),
]
"""Columns of frames, of whole numbers of which one may be missing."""


class Everything:
    """Equals all, and has the hash of all."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Liar(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __int__(self) -> int:
        return 0

    __index__ = __int__


class Colour(IntEnum):
    RED = 1


NEAR = Classes([2048, 2049, 2050, 2**24 + 1, 2**53 + 1, 0.1])


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, np.longdouble])
def test_floats_are_compared_exactly(kind: type) -> None:
    labels = np.array([2048, 2**24 + 1, 2**53 + 1, 0.1, np.nan, np.inf], dtype=np.longdouble)
    with np.errstate(over="ignore"):
        rounded = labels.astype(kind)
    found = NEAR.numbers(rounded)
    names = [name.as_integer_ratio() for name in NEAR.labels]
    for label, number in zip(rounded, found.tolist(), strict=True):
        exact = label.as_integer_ratio() if np.isfinite(label) else None
        assert number == (names.index(exact) if exact in names else NONE)
    assert (found == NEAR.numbers(list(rounded))).all()


def test_objects_that_lie_are_of_one_class_at_most() -> None:
    classes = Classes(range(10))
    assert classes.numbers([Everything(), Liar(7), Colour.RED, None, Decimal(1), 1j]).tolist() == [
        NONE,
        7,
        1,
        NONE,
        NONE,
        NONE,
    ]
    odd = np.array([Everything(), 3, "3"], dtype=object)
    assert classes.numbers(odd).tolist() == [NONE, 3, NONE]


def test_a_label_does_not_depend_on_those_beside_it() -> None:
    classes = Classes([0, 1, 2**53 + 1, "1", "cat"])
    alone = [0, 1, 2**53 + 1, "1", "cat", True, 1.0, np.int8(1), np.str_("cat"), torch.tensor(1)]
    wanted = [classes.numbers([label])[0] for label in alone]
    assert wanted == [0, 1, 2, 3, 4, 1, 1, 1, 4, 1]
    assert classes.numbers(alone).tolist() == wanted
    assert classes.numbers(tuple(alone)).tolist() == wanted
    assert classes.numbers(np.array(alone, dtype=object)).tolist() == wanted


def test_containers_agree() -> None:
    classes = Classes([3, 5])
    for labels in (
        [3, 5, 4],
        np.array([3, 5, 4], np.uint8),
        np.array([[3], [5], [4]]),
        np.array([3.0, 5.0, 4.0]),
        torch.tensor([3, 5, 4]),
        torch.tensor([3, 5, 4]).bfloat16(),
        pd.Series([3, 5, 4]),
        pd.Series([3, 5, None]),
    ):
        assert classes.numbers(labels).tolist() == [0, 1, NONE]
    assert classes.numbers([]).tolist() == classes.numbers(np.array([])).tolist() == []
    with pytest.raises(ArgumentError):
        classes.numbers(np.zeros((3, 2)))


@pytest.mark.parametrize("missing", [[], [None]], ids=["whole", "one missing"])
@pytest.mark.parametrize("column", COLUMNS)
def test_a_missing_label_rounds_no_other(column: Callable[..., Any], missing: list[None]) -> None:
    large = [2**53, 2**53 + 1, 2**53 + 2]
    found = Classes(large).numbers(column(large + missing)).tolist()
    assert found == [0, 1, 2] + [NONE] * len(missing)


@pytest.mark.parametrize("wrong", [[1], [1, 1.0], [True, 1], ["a", None], [np.nan, 1], []])
def test_classes_are_different_labels(wrong: list[object]) -> None:
    with pytest.raises(ArgumentError):
        Classes(wrong)


@given(st.lists(st.one_of(st.integers(), st.floats(), st.text(CHARACTERS, max_size=3)), max_size=8))
def test_a_class_finds_itself(labels: list[object]) -> None:
    classes = Classes([0, 0.5, "a", 7])
    found = classes.numbers(labels).tolist()
    for label, number in zip(labels, found, strict=True):
        same = [n for n, name in enumerate(classes.labels) if label == name]
        assert [number] == (same or [NONE])
