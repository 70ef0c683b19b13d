"""The mode against brute force, and row by row."""

from typing import Any

import pytest

from prudent.release.columns.column import Leaders
from prudent.release.margins import Unread, category_mode
from tests.oracles.array_column import ArrayColumn
from tests.oracles.multisets import Graph, data_sets, records

CAP = 30


def exact_mode(data: list[int]) -> int:
    return max(range(5), key=lambda value: (data.count(value), -value))


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Graph(exact_mode, size=12)


def test_category_margins_equal_brute_force(graph: Graph) -> None:
    margins = graph.margins(0)
    for counts in data_sets(6):
        found = category_mode(ArrayColumn(records(counts)), range(5), cap=CAP)
        assert found.margin == margins[counts], counts
        assert found.value == (exact_mode(records(counts)),)


def test_without_a_public_list_the_margin_is_safe(graph: Graph) -> None:
    margins = graph.margins(0)
    for counts in data_sets(6):
        margin = category_mode(ArrayColumn(records(counts)), None, cap=CAP).margin
        assert margin <= margins[counts] <= margin + 1


@pytest.mark.parametrize(
    ("data", "categories", "mode", "margin"),
    [
        ([], None, None, 0),
        ([], ["b", "a"], "a", 0),
        (["b", "a"], None, "a", 0),  # a tie
        (["b"] * 5, None, "b", 4),  # something unseen could come before it
        (["a"] * 5, ["a", "b"], "a", 5),
        (["b"] * 5, ["a", "b"], "b", 4),
        (["b"] * 5, ["b"], "b", 30),  # nothing else can occur
        (["z"] * 9 + ["b"], ["a", "b"], "b", 0),  # not on the list: not counted
    ],
)
def test_every_row_of_the_table(
    data: list, categories: list | None, mode: str, margin: int
) -> None:
    found = category_mode(ArrayColumn(data), categories, cap=CAP)
    (value,) = found.value
    assert (found.margin, found.sensitivity) == (margin, 0)
    assert (value.read() if isinstance(value, Unread) else value) == mode


class Sealed:
    """A column that counts, and whose values nobody may read."""

    def leaders(self) -> Leaders:
        return Leaders(9, 2, True)

    def most_frequent(self) -> str:
        raise AssertionError("read before the test")


def test_no_value_is_read_before_the_test_has_passed() -> None:
    column: Any = Sealed()
    assert category_mode(column, None, cap=CAP).margin == 6
