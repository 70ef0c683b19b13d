"""Trimmed statistics against brute force, and row by row."""

import itertools
import tracemalloc
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from prudent.release.lattice import Lattice
from prudent.release.statistics.tested import trimmed_mean
from tests.oracles.array_column import ArrayColumn
from tests.oracles.multisets import Graph, data_sets, records

GRID = Lattice(0, 0, 4)
CAP = 14


def exact_mean(trim: int, default: int):
    def statistic(data: list[int]) -> Fraction:
        kept = data[trim : len(data) - trim]
        return Fraction(sum(kept), len(kept)) if kept else Fraction(default)

    return statistic


def check_trimmed_mean(trim: int, default: int, proposals: Sequence[int], *, most: int = 6) -> None:
    # Tripled data and thirds of τ: the mean is compared with fractions of a step, too.
    graph = Graph(exact_mean(trim, default), size=12)
    wide = Lattice(0, 0, 12)
    for thirds in proposals:
        margins = graph.margins(Fraction(thirds, 3))
        for counts in data_sets(most):
            column = ArrayColumn([3 * x for x in records(counts)])
            found = trimmed_mean(column, wide, trim, default=3 * default, propose=thirds, cap=CAP)
            assert found.margin == margins.get(counts, CAP), (counts, thirds)


@pytest.mark.thorough
@pytest.mark.parametrize(("trim", "default"), [(0, 0), (1, 2), (2, 4)])
def test_trimmed_mean_margins_equal_brute_force(trim: int, default: int) -> None:
    check_trimmed_mean(trim, default, (1, 5), most=5)


@pytest.mark.slow
@pytest.mark.parametrize(("trim", "default"), list(itertools.product([0, 1, 2], [0, 2, 4])))
def test_all_trimmed_mean_margins_equal_brute_force(trim: int, default: int) -> None:
    check_trimmed_mean(trim, default, (0, 1, 2, 3, 5, 6, 9, 12))


def test_the_mean_is_rounded_to_the_nearest_step() -> None:
    for counts in data_sets(5):
        data = records(counts)
        exact = exact_mean(1, 2)(data)
        found = trimmed_mean(ArrayColumn(data), GRID, 1, default=2, propose=1, cap=3)
        assert found.value == ((exact + Fraction(1, 2)).__floor__(),)


def test_comparisons_are_exact_where_doubles_are_not() -> None:
    # Four zeros kept and a fifth record at 5τ: the mean rises by τ to the last bit.
    propose = 2**49 + 1
    ends = Lattice(0, 0, 5 * propose)
    on_the_border, beyond = (
        trimmed_mean(ArrayColumn([0.0] * 4), ends, 0, default=0, propose=steps, cap=1).margin
        for steps in (propose, propose - 1)
    )
    assert (on_the_border, beyond) == (1, 0)


def test_few_ranks_of_a_large_column_are_read() -> None:
    generator = np.random.default_rng(1)
    lattice = Lattice.for_proposal(0.01)
    column = ArrayColumn(generator.normal(size=50_000))
    found = trimmed_mean(column, lattice, 500, default=0, propose=1310, cap=200)
    assert found.margin == 200
    assert abs(lattice.value(found.value[0])) < 0.03


def test_the_memory_of_a_margin_is_linear_in_the_cap() -> None:
    """A square of the cap would be 70 MB; how much is asked for must not tell the margin either."""
    column = ArrayColumn(np.full(20_000, 5.0))
    lattice = Lattice.for_proposal(1.0, (0.0, 1e6))
    tracemalloc.start()
    found = trimmed_mean(column, lattice, 2_000, default=0, propose=1_024, cap=3_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.margin == 2_000
    assert peak < 2**24


@pytest.mark.parametrize(
    ("data", "trim", "value"),
    [
        ([], 1, 2),  # nothing left: the default
        ([1, 3], 1, 2),  # m <= 2F: the default
        ([1, 3, 4], 1, 3),
        ([1, 2, 3], 0, 2),  # F = 0: the mean
        ([4, 4, 4, 4], 1, 4),  # ties
    ],
)
def test_every_row_of_the_table(data: list[int], trim: int, value: int) -> None:
    found = trimmed_mean(ArrayColumn(data), GRID, trim, default=2, propose=1, cap=9)
    assert found.value == (value,)
