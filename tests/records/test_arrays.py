"""Each record is converted alone: what stands beside it changes no bit."""

from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prudent._validate import ArgumentError
from prudent.records.arrays import ArrayForm, declared_width

DRAW = np.random.default_rng(3)
BYTES = DRAW.integers(0, 256, (6, 4, 4)).astype(np.uint8)
PIXELS = ArrayForm((4, 4), 0, 255)


class Raises:
    def __array__(self, *_: object) -> None:
        raise KeyError("secret")


ODD = {
    "float": np.full((4, 4), 0.5),
    "nan": np.full((4, 4), np.nan),
    "infinite": np.full((4, 4), np.inf),
    "negative": np.full((4, 4), -1),
    "large": np.full((4, 4), 2**64),
    "text": "abc",
    "texts": np.full((4, 4), "1"),
    "nothing": None,
    "complex": np.full((4, 4), 1j),
    "short": np.zeros(3),
    "ragged": [[1, 2], [3]],
    "decimal": [[Decimal(1)] * 4] * 4,
    "object": Raises(),
    "bfloat16": torch.full((4, 4), 3.0, dtype=torch.bfloat16),
    "dates": np.full((4, 4), np.datetime64("2020-01-01")),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_record_changes_no_other(name: str) -> None:
    alone, present = PIXELS.read(list(BYTES))
    assert present.all()
    beside, flags = PIXELS.read([*BYTES[:3], ODD[name], *BYTES[3:]])
    assert np.array_equal(np.delete(beside, 3, axis=0), alone)
    assert np.delete(flags, 3).all()
    fits = name in ("float", "bfloat16")
    assert flags[3] == fits
    assert fits or not beside[3].any()


@pytest.mark.parametrize("rows", [1, 2, 3, 1000])
def test_memory_order_and_chunks_change_nothing(rows: int) -> None:
    values = DRAW.standard_normal((300, 7))
    form = ArrayForm((7,))
    wanted, _ = form.read(values)
    for given_values in (np.asfortranarray(values), values[::-1][::-1], list(values)):
        parts = list(form.chunks(given_values, rows))
        found = np.concatenate([part for part, _ in parts])
        assert found.tobytes() == wanted.tobytes()
        assert all(part.flags.c_contiguous for part, _ in parts)


def test_containers_agree() -> None:
    values = DRAW.integers(-9, 9, (5, 3))
    wanted, _ = ArrayForm((3,)).read(values)
    frame = pd.DataFrame(values)
    mixed = frame.astype(object)
    for each in (
        values.tolist(),
        torch.from_numpy(values),
        torch.from_numpy(values).bfloat16(),
        frame,
        frame.astype({0: float}),
        mixed,
        pl.DataFrame(values),
        values.astype(object),
        list(torch.from_numpy(values)),
    ):
        found, present = ArrayForm((3,)).read(each)
        assert np.array_equal(found, wanted)
        assert present.all()


def test_a_missing_value_in_a_table_changes_no_other_row() -> None:
    frame = pd.DataFrame({"a": [2**53 + 1, 2, 3], "b": [1, 2, 3]})
    wanted, _ = ArrayForm((2,)).read(frame)
    gone = pd.concat([frame, pd.DataFrame({"a": [None], "b": ["x"]})], ignore_index=True)
    found, present = ArrayForm((2,)).read(gone)
    assert np.array_equal(found[:3], wanted)
    assert present.tolist() == [True, True, True, False]


def test_a_number_beyond_all_doubles_warns_nobody() -> None:
    """A warning would tell that a record holds one."""
    rows = np.array([[1, 2], [np.longdouble("1e4000"), 1]], dtype=np.longdouble)
    for given_rows in (rows, list(rows), rows.tolist()):
        assert ArrayForm((2,)).read(given_rows)[1].tolist() == [True, False]


@given(st.lists(st.floats(width=32), min_size=2, max_size=6))
def test_numbers_survive(values: list[float]) -> None:
    found, present = ArrayForm((1,)).read([[value] for value in values])
    finite = np.isfinite(values)
    assert np.array_equal(present, finite)
    assert np.array_equal(found[finite, 0], np.array(values)[finite])


def test_what_is_no_container_is_refused() -> None:
    for wrong in (3, np.float64(3), (each for each in [1])):
        with pytest.raises(ArgumentError):
            ArrayForm((1,)).read(wrong)
    assert ArrayForm((2,)).read([])[0].shape == (0, 2)


def test_only_the_type_of_a_container_says_how_wide_records_are() -> None:
    frame = pd.DataFrame({"a": [1], "b": ["x"]})
    for wide in (BYTES, torch.from_numpy(BYTES), BYTES.astype(object)):
        assert declared_width(wide) == 16
    assert declared_width(frame) == declared_width(pl.DataFrame({"a": [1], "b": [2]})) == 2
    for silent in ([], list(BYTES), ["a"], BYTES[:, 0, 0], 3):
        assert declared_width(silent) is None
