"""One record is in one part, and moves no other record."""

import hashlib
import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest

from prudent import ArgumentError
from prudent.estimators import aggregation
from prudent.estimators.aggregation import Records, open_records

KEY = b"a key of a test"


def divided(data: Any, count: int = 7) -> list[Any]:
    return Records.of(data).divided(count, KEY)


def changed(values: list[Any], place: int) -> list[int]:
    """The parts that are not the same, in order, without the record at a place."""
    whole, rest = divided(values), divided(values[:place] + values[place + 1 :])
    return [j for j, (one, other) in enumerate(zip(whole, rest, strict=True)) if one != other]


VALUES = [1, 1, 2.5, "a", "a", "a", None, (1, "b"), (1, "b"), b"a", True, {"a": [1]}] * 3


@pytest.mark.parametrize("place", range(0, len(VALUES), 5))
def test_removing_a_record_changes_one_part_by_that_record(place: int) -> None:
    (part,) = changed(VALUES, place)
    whole, rest = divided(VALUES)[part], divided(VALUES[:place] + VALUES[place + 1 :])[part]
    assert Counter(map(repr, whole)) - Counter(map(repr, rest)) == Counter([repr(VALUES[place])])
    assert len(whole) == len(rest) + 1


def test_a_division_by_position_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_position(self: Records, count: int, key: bytes) -> list[Any]:
        return [self.take(list(range(part, self.count, count))) for part in range(count)]

    monkeypatch.setattr(Records, "divided", by_position)
    assert len(changed(VALUES, 0)) > 1


def test_equal_records_are_in_many_parts() -> None:
    sizes = [len(each) for each in divided([1] * 700)]
    assert min(sizes) > 60


def test_order_does_not_matter_and_nothing_is_lost() -> None:
    values = list(range(50))
    assert divided(values) == divided(values[::-1])
    assert sorted(each for part in divided(values) for each in part) == values


class Text(str):
    """A subclass, which may show anything."""


@pytest.mark.parametrize("odd", [object(), Text("a"), {1, 2}, [object()], np.array([None])])
def test_a_record_that_is_nothing_plain_is_in_no_part(odd: Any) -> None:
    assert changed([*VALUES, odd], len(VALUES)) == []


X = np.arange(40.0).reshape(20, 2)


def frames() -> dict[str, Any]:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    frame = pd.DataFrame(X, columns=["a", "b"], index=range(5, 25))
    mixed = frame.assign(c=["u", None] * 10, d=pd.array([1, None] * 10, dtype="Int64"))
    return {
        "array": X,
        "objects": X.astype(object),
        "pandas": frame,
        "mixed": mixed,
        "series": frame.a,
        "polars": pl.DataFrame({"a": X[:, 0], "b": X[:, 1]}),
        "arrow": pa.table({"a": X[:, 0], "b": X[:, 1]}),
        "tuple": (X, frame.b),
    }


@pytest.mark.parametrize("name", list(frames()))
def test_every_container_is_divided_into_its_own_kind(name: str) -> None:
    data = frames()[name]
    found = divided(data, 3)
    assert {type(each) for each in found} == {type(data)}
    length = (lambda part: len(part[0])) if name == "tuple" else len
    assert sum(map(length, found)) == 20
    if name in ("pandas", "mixed", "series"):  # an index would tell places in the table
        assert all(list(part.index) == list(range(len(part))) for part in found)


def test_what_has_no_rows_is_refused_before_anything_is_read() -> None:
    for data in (3, {"a": 1}, np.array(1.0), ()):
        with pytest.raises(ArgumentError, match="data"):
            open_records(data, None, None)
    with pytest.raises(ArgumentError, match="equal length"):
        open_records((X, X[:3]), None, None)


def test_a_digest_tells_cells_apart_by_their_lengths() -> None:
    assert aggregation._plain(["ab", "c"]) != aggregation._plain(["a", "bc"])
    assert aggregation._plain(1) != aggregation._plain(1.0) != aggregation._plain(True)
    assert (
        hashlib.blake2b(aggregation._plain("1")).digest()
        != hashlib.blake2b(aggregation._plain(1)).digest()
    )


@pytest.mark.parametrize("kind", ["pandas", "pandas series", "polars", "pyarrow"])
def test_a_part_does_not_know_the_categories_of_other_parts(kind: str) -> None:
    pandas, polars, pyarrow = (
        pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow")
    )
    texts = ["a", "b"] * 4 + ["secret"]
    table = {
        "pandas": lambda: pandas.DataFrame({"g": pandas.Categorical(texts), "x": range(9)}),
        "pandas series": lambda: pandas.Series(pandas.Categorical(texts)),
        "polars": lambda: polars.DataFrame({"g": polars.Series(texts, dtype=polars.Categorical)}),
        "pyarrow": lambda: pyarrow.table({"g": pyarrow.array(texts).dictionary_encode()}),
    }[kind]()
    parts = Records.of(table).divided(4, b"key")
    assert sum(map(len, parts)) == len(texts)
    for part in parts:
        column = part if kind == "pandas series" else part["g"]
        assert "secret" in list(map(str, column)) or b"secret" not in pickle.dumps(part)
