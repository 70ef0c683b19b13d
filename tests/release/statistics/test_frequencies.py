"""Categories: the most frequent ones, and how many different ones there are."""

import itertools
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("ibis", reason="needs the extra `tables`")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import prudent
from prudent._validate import ArgumentError
from prudent.release.columns.table_columns import matched
from tests.release.recording import Book, Silence

CITIES = ["oslo"] * 50 + ["bergen"] * 30 + ["tromsø"] * 20 + [None]
TABLE = pa.table({"city": CITIES, "who": [place % 10 for place in range(101)]})


def brute_force(held: dict[int, set[int]], most: int) -> int:
    """The largest number of values that can be given out, by trying every choice."""
    choices = [
        [set(some) for size in range(most + 1) for some in itertools.combinations(own, size)]
        for own in held.values()
    ]
    return max((len(set().union(*some)) for some in itertools.product(*choices)), default=0)


holdings = st.dictionaries(
    st.integers(0, 4), st.sets(st.integers(0, 5), min_size=1, max_size=4), max_size=4
)


@given(holdings, st.integers(1, 3))
def test_a_matching_is_as_large_as_can_be(held: dict[int, set[int]], most: int) -> None:
    pairs = [(unit, value) for unit, own in held.items() for value in own]
    found = matched([unit for unit, _ in pairs], [value for _, value in pairs], most)
    assert found == brute_force(held, most)
    for gone in held:
        left = [(unit, value) for unit, value in pairs if unit != gone]
        less = matched([unit for unit, _ in left], [value for _, value in left], most)
        assert found - most <= less <= found


def test_different_values_are_counted_once() -> None:
    given: Any = {"epsilon": 1.0, "noise": Silence()}
    assert prudent.count_distinct(TABLE, "city", **given).value == 3
    assert prudent.count_distinct(CITIES, **given).value == 3
    assert prudent.count_distinct(TABLE, "who", **given).value == 10
    found = prudent.count_distinct(TABLE, "city", by="who", groups=[0, 1], **given)
    assert [each.value for each in found.values()] == [3, 3]


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow", "list"])
def test_a_column_given_by_itself_is_read_as_in_a_table(kind: str) -> None:
    """Also where it holds texts: its values are counted, however the column is given."""
    import pandas as pd
    import polars as pl

    made = {"pandas": pd.Series, "polars": pl.Series, "arrow": pa.array, "list": list}
    column = made[kind](CITIES)
    given: Any = {"epsilon": 1.0, "noise": Silence()}
    assert prudent.count(column, **given).value == 100
    if kind == "list":
        with pytest.raises(ArgumentError, match=r"Expected column .* Give a series"):
            prudent.top_k(column, delta=1e-6, **given)
    else:
        assert list(prudent.top_k(column, categories=["oslo", "bergen"], **given)) == CITIES[49:51]


def test_a_delta_that_is_none_is_refused_also_where_nothing_needs_it() -> None:
    for wrong in (2.0, -1e-9, "x"):
        with pytest.raises(ArgumentError, match=r"Expected delta in \[0, 0.5\)"):
            prudent.count(CITIES, epsilon=1.0, delta=wrong)  # type: ignore[arg-type]


def test_one_person_changes_the_number_by_so_many_values() -> None:
    """A person with a thousand values of their own adds two, where two of each count."""
    held = {"who": ["a"] * 1000 + ["b"] * 3, "what": [*range(1000), 1000, 1001, 1002]}
    noise = Silence()
    found = prudent.count_distinct(
        pa.table(held), "what", unit="who", per_unit=2, epsilon=1.0, noise=noise
    )
    assert found.value == 4
    assert noise.drawn[0][1] == pytest.approx(2.0)  # the scale of the noise is for two values
    assert "at most 2 of its different values" in found.notes[0]
    with pytest.raises(ArgumentError, match="how many values of one unit"):
        prudent.count_distinct(pa.table(held), "what", unit="who", epsilon=1.0)


def test_a_person_counts_in_one_group() -> None:
    held = pa.table({"who": [1, 1, 1], "g": ["a", "a", "b"], "what": [1, 2, 3]})
    found = prudent.count_distinct(
        held, "what", unit="who", per_unit=5, by="g", groups=["a", "b"], epsilon=1, noise=Silence()
    )
    assert [each.value for each in found.values()] == [2, 0]


def test_the_most_frequent_come_first() -> None:
    listed = ["bergen", "oslo", "nowhere", "tromsø"]
    found = prudent.top_k(TABLE, "city", 2, categories=listed, epsilon=1.0, noise=Silence())
    assert {name: each.value for name, each in found.items()} == {"oslo": 50, "bergen": 30}
    assert list(found) == ["oslo", "bergen"]
    book = Book()
    found = prudent.top_k(TABLE, "city", 9, epsilon=5.0, delta=1e-6, ledger=book, noise=Silence())
    assert list(found) == ["oslo", "bergen", "tromsø"]
    assert len(book.charges) == 1
    with pytest.raises(ArgumentError, match="delta"):
        prudent.top_k(TABLE, "city", epsilon=1.0)


def test_rows_are_counted_without_a_column() -> None:
    given: Any = {"epsilon": 1.0, "noise": Silence()}
    assert prudent.count(TABLE, **given).value == 101
    assert prudent.count(TABLE, "city", **given).value == 100
    assert prudent.count(TABLE, where="who = 3", **given).value == 10
    persons = prudent.count(TABLE, unit="who", **given)
    assert persons.value == 10
    assert persons.notes[0] == "Each who counts with one record."


def test_a_column_without_categories_is_named_as_such() -> None:
    """A time has as many values as records; the column itself was given, and no `by`."""
    table = pa.table({"x": pa.array([1, 2], pa.timestamp("us")), "n": [1, 2]})
    with pytest.raises(ValueError, match=r"column .*'x' of type timestamp.* histogram"):
        prudent.top_k(table, "x", epsilon=1.0, delta=1e-6)
    with pytest.raises(ValueError, match=r"Expected categories of type"):
        prudent.top_k(table, "n", categories=["a"], epsilon=1.0)
    with pytest.raises(ValueError, match="Expected by"):
        prudent.count(table, by="x", groups="private", epsilon=1.0, delta=1e-6)
