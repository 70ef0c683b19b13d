"""The first tier has every value of every parameter, in few cases."""

import itertools
from random import Random

import hypothesis
import hypothesis.strategies as st
import pytest

from tests.tiers import representatives

grids = st.lists(st.integers(1, 5), min_size=1, max_size=3)


def grid(sizes: list[int]) -> list[tuple[str, ...]]:
    return list(itertools.product(*(map(str, range(size)) for size in sizes)))


@hypothesis.given(grids, st.randoms(use_true_random=False))
def test_every_value_is_in_some_case(sizes: list[int], random: Random) -> None:
    cases = [case for case in grid(sizes) if random.random() < 0.7]
    chosen = [cases[position] for position in representatives(cases)]
    assert {pair for case in chosen for pair in enumerate(case)} == {
        pair for case in cases for pair in enumerate(case)
    }


@hypothesis.given(grids)
def test_a_full_grid_takes_as_many_cases_as_its_longest_side(sizes: list[int]) -> None:
    assert len(representatives(grid(sizes))) == max(sizes)


def test_a_test_without_parameters_stands_for_itself() -> None:
    assert representatives([()]) == {0}
    assert representatives([]) == set()


@pytest.fixture(params=["file", "server"])
def place(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("letter", "ab")
def test_a_grid_is_thinned_where_it_is_collected(
    place: str, letter: str, number: int, request: pytest.FixtureRequest
) -> None:
    diagonal = [("file", "a", 0), ("server", "b", 1), ("file", "a", 2)]
    if len([item for item in request.session.items if item.function is request.function]) < 3:
        pytest.skip("some of the cases were chosen by hand")
    thorough = request.node.get_closest_marker("thorough") is not None
    assert thorough == ((place, letter, number) not in diagonal)


@pytest.fixture
def browser() -> None:
    """Named as one, which is what counts."""


def test_what_asks_for_a_browser_is_in_the_second_tier(
    browser: None, request: pytest.FixtureRequest
) -> None:
    assert request.node.get_closest_marker("thorough")
