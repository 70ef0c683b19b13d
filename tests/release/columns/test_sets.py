"""How many values can be given to units: exact, of the stated sensitivity, in little memory."""

import itertools

import numpy as np
import pytest

pytest.importorskip("ibis", reason="needs the extra `tables`")

from prudent.release.columns.opening import open_private_groups
from prudent.release.columns.table_columns import matched


def given(pairs: list[tuple[int, int]], most: int) -> int:
    return matched([unit for unit, _ in pairs], [value for _, value in pairs], most)


def by_theorem(pairs: list[tuple[int, int]], most: int) -> int:
    """Hall's theorem: the least, over sets of values, of those outside and what units can take."""
    values = sorted({value for _, value in pairs})
    chosen = itertools.chain.from_iterable(
        itertools.combinations(values, size) for size in range(len(values) + 1)
    )
    return min(
        len(values) - len(some) + most * len({unit for unit, value in pairs if value in some})
        for some in map(set, chosen)
    )


def test_as_many_values_as_possible_and_a_unit_moves_them_by_its_share() -> None:
    drawn = np.random.default_rng(0)
    for turn in range(60):
        pairs = sorted(set(map(tuple, drawn.integers(0, 6, (turn % 20, 2)).tolist())))
        most = 1 + turn % 3
        found = given(pairs, most)
        assert found == by_theorem(pairs, most)
        for unit in range(6):
            assert 0 <= found - given([each for each in pairs if each[0] != unit], most) <= most


def test_one_unit_of_very_many_values_takes_no_more_than_its_pairs() -> None:
    pairs = [(0, value) for value in range(200_000)]
    assert given([*pairs, (1, 0), (1, 200_001)], 100_000) == 100_002


@pytest.mark.parametrize("most", [1, 3])
def test_a_unit_adds_to_the_size_of_its_group_what_is_counted_of_it(most: int) -> None:
    pd = pytest.importorskip("pandas", reason="frames of pandas are read")
    rows = [("usual", person, value) for person in range(20) for value in range(2)]
    alone = [("secret", 99, value) for value in range(1000)]
    frame = pd.DataFrame([*rows, *alone], columns=["group", "person", "value"])
    opened = open_private_groups(
        frame, "value", by="group", unit="person", per_unit=most, kind="sets"
    )
    assert opened.contribution.records == most
    assert opened.counts() == {"usual": 20 * min(most, 2), "secret": most}
