"""Trimmed statistics against brute force, and row by row."""

import itertools
import tracemalloc
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from prudent.release.lattice import Lattice
from prudent.release.ptr.trimmed import shortened, trimmed_mean, trimmed_sum
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


@pytest.mark.thorough
def test_a_capped_margin_is_the_margin_up_to_the_cap() -> None:
    for counts in data_sets(5):
        column = ArrayColumn(records(counts))
        full = trimmed_mean(column, GRID, 1, default=2, propose=1, cap=CAP).margin
        for cap in (1, 3):
            found = trimmed_mean(column, GRID, 1, default=2, propose=1, cap=cap)
            assert found.margin == min(full, cap)


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


def signed_data_sets(size: int) -> list[tuple[int, ...]]:
    return [
        data
        for count in range(size + 1)
        for data in itertools.combinations_with_replacement(range(-2, 3), count)
    ]


def exact_sum(data: list[int], trim: int) -> int:
    return sum(sorted(data, key=lambda x: (abs(x), x))[: max(0, len(data) - trim)])


@pytest.mark.parametrize("trim", [0, 1, 2])
def test_trimmed_sum_margins_equal_brute_force(trim: int) -> None:
    graph = Graph(lambda data: exact_sum([x - 2 for x in data], trim), size=8)
    lattice = Lattice(0, -2, 2)
    for propose in range(3):
        margins = graph.margins(propose)
        for counts in data_sets(5):
            data = [x - 2 for x in records(counts)]
            table = np.array(data, float).reshape(-1, 1)
            found = trimmed_sum(table, lattice, trim, propose=propose, cap=CAP)
            assert found.margin == margins.get(counts, CAP), (data, propose)
            assert found.value == (exact_sum(data, trim),)


def test_the_sum_of_vectors_does_not_depend_on_their_order() -> None:
    generator = np.random.default_rng(2)
    rows = generator.integers(-3, 4, (30, 2)).astype(float)
    lattice = Lattice(0, -100, 100)
    first = trimmed_sum(rows, lattice, 7, propose=3, cap=50)
    for _ in range(20):
        shuffled = generator.permutation(rows)
        assert trimmed_sum(shuffled, lattice, 7, propose=3, cap=50) == first


def test_no_vector_is_longer_than_the_bound() -> None:
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(200, 5)) * np.geomspace(1e-3, 1e300, 200)[:, None]
    lattice = Lattice(-10, -(2**20), 2**20)
    whole = shortened(rows, lattice)
    assert (np.sum(whole * whole, axis=1) <= 2**40).all()
    assert np.isclose(np.sqrt(np.sum(whole[-1].astype(float) ** 2)), 2**20, rtol=1e-4)


def test_rows_without_a_value_are_no_records() -> None:
    rows = np.array([[1.0, 2.0], [np.nan, 1.0]])
    assert len(shortened(rows, Lattice(0, -100, 100))) == 1
