"""Quantile margins against brute force, against a slow reference, and row by row."""

import math
from fractions import Fraction

import numpy as np
import pytest

from prudent.release.columns.column import SourceError
from prudent.release.lattice import FARTHEST, Lattice
from prudent.release.margins import interquartile_range, quantile, rational
from tests.oracles.array_column import ArrayColumn
from tests.oracles.multisets import Graph, data_sets, records

GRID = Lattice(0, 0, 4)  # the domain {0, ..., 4}
FREE = Lattice(0)
PROBABILITIES = [Fraction(p) for p in ("1/10", "1/4", "1/3", "1/2", "3/4", "9/10", "1")]
CAP = 40


def exact_quantile(p: Fraction):
    def statistic(data: list[int]) -> int:
        return data[math.ceil(p * len(data)) - 1] if data else 0

    return statistic


def exact_range(data: list[int]) -> int:
    return exact_quantile(Fraction(3, 4))(data) - exact_quantile(Fraction(1, 4))(data)


@pytest.mark.thorough
@pytest.mark.parametrize("p", PROBABILITIES, ids=str)
def test_quantile_margins_equal_brute_force(p: Fraction) -> None:
    graph = Graph(exact_quantile(p), size=12)
    for propose in range(5):
        margins = graph.margins(propose)
        for counts in data_sets(6):
            column = ArrayColumn(records(counts))
            found = quantile(column, GRID, p, propose=propose, cap=CAP)
            assert found.margin == margins.get(counts, CAP), (counts, propose)
            assert found.value == (exact_quantile(p)(records(counts)),)


@pytest.mark.unhurried
def test_the_range_margin_is_safe_and_at_most_one_below_the_exact_one() -> None:
    graph = Graph(exact_range, size=12)
    equal = 0
    for propose in range(4):
        margins = graph.margins(propose)
        for counts in data_sets(6):
            column = ArrayColumn(records(counts))
            found = interquartile_range(column, GRID, propose=propose, cap=CAP)
            assert found.margin <= margins[counts] <= found.margin + 1
            assert found.value == (exact_range(records(counts)),)
            equal += found.margin == margins[counts]
    assert equal > 0.9 * 4 * len(data_sets(6))


def slow_margin(data: list[int], lattice: Lattice, p: Fraction, propose: int) -> int:
    """The formula of Errata 7 word by word: the minimum over all places u of a gap."""
    farthest = max(p, 1 - p)
    best = math.inf
    places = {lattice.low, *data, *(x - propose for x in data)}
    for u in places:
        if not lattice.low <= u < lattice.high - propose:
            continue
        left = sum(x <= u for x in data)
        right = sum(x > u + propose for x in data)
        t = p * right - (1 - p) * left
        if t > farthest:
            away = math.ceil(t / farthest) - 1
        elif t <= -farthest:
            away = math.floor(-t / farthest)
        else:
            away = 0
        best = min(best, len(data) - left - right + away)
    return int(best)


def random_data(generator: np.random.Generator) -> tuple[list[int], Fraction, int, int]:
    size = int(generator.integers(0, 40))
    spread = int(generator.choice([1, 3, 10, 100]))
    data = sorted(generator.integers(0, spread + 1, size).tolist())
    p = Fraction(int(generator.integers(1, 21)), 20)
    return data, p, int(generator.integers(0, spread + 1)), int(generator.choice([3, 8, 200]))


def check_random_margins(rounds: int) -> None:
    generator = np.random.default_rng(7)
    for _ in range(rounds):
        data, p, propose, cap = random_data(generator)
        expected = min(cap, slow_margin(data, FREE, p, propose))
        found = quantile(ArrayColumn(data), FREE, p, propose=propose, cap=cap)
        assert found.margin == expected, (data, p, propose, cap)


@pytest.mark.unhurried
def test_random_margins_equal_the_slow_reference() -> None:
    check_random_margins(1_000)


@pytest.mark.slow
def test_many_random_margins_equal_the_slow_reference() -> None:
    check_random_margins(10_000)


def test_a_broken_tie_rule_would_be_noticed() -> None:
    # `>=` in place of `>` is a margin for the next smaller proposal: brute force must tell.
    margins = Graph(exact_quantile(Fraction(1, 2)), size=10).margins(2)
    wrong = [
        quantile(ArrayColumn(records(c)), GRID, Fraction(1, 2), propose=1, cap=CAP).margin
        for c in data_sets(4)
    ]
    assert wrong != [margins[c] for c in data_sets(4)]


class Counting(ArrayColumn):
    """Remembers which ranks were asked for."""

    def __init__(self, values: np.ndarray) -> None:
        super().__init__(values)
        self.asked = 0

    def order_statistics(self, first: int, last: int) -> np.ndarray:
        found = super().order_statistics(first, last)
        self.asked += len(found)
        return found


@pytest.mark.parametrize("p", ["1/2", "9/10"])
def test_only_a_window_near_the_rank_is_read(p: str) -> None:
    column = Counting(np.random.default_rng(0).normal(size=100_000))
    quantile(column, Lattice.for_proposal(0.01), Fraction(p), propose=1024, cap=50)
    assert column.asked <= 2 * 50 + 2


@pytest.mark.parametrize(
    ("data", "lattice", "p", "propose", "cap", "found"),
    [
        ([], FREE, "1/3", 5, 9, (-FARTHEST, 0)),
        ([7] * 20, FREE, "1/2", 1, 99, (7, 19)),  # ties
        ([1, 2, 3], GRID, "1", 1, 9, (3, 1)),  # remove 3, then 4 may be added to {1, 2}
        ([0, 4], GRID, "1/2", 4, 9, (0, 9)),  # a proposal beyond the range
        ([5] * 9, FREE, "1/2", 10, 99, (5, 8)),  # no bounds
        ([-1e300, 2, math.inf], GRID, "1/2", 2, 9, (2, 1)),  # beyond the ends
        ([0, 2, 4], GRID, "1/2", 2, 9, (2, 1)),
        ([1, math.nan, 3], GRID, "1", 2, 9, (3, 1)),  # a missing value is no record
        ([1, 3], GRID, "1", 2, 9, (3, 1)),
    ],
)
def test_every_row_of_the_table(data, lattice, p, propose, cap, found) -> None:
    released = quantile(ArrayColumn(data), lattice, Fraction(p), propose=propose, cap=cap)
    assert (*released.value, released.margin) == found


@pytest.mark.parametrize("p", [0, 0.0, -0.1, 1.5, "half", math.nan, 1 / 3, None])
def test_p_that_is_no_probability(p: object) -> None:
    with pytest.raises(ValueError, match="Expected p in"):
        rational(p)  # type: ignore[arg-type]


def test_p_means_its_decimals_and_a_percentage_is_told_as_a_fraction() -> None:
    assert rational(0.9) == Fraction(9, 10)
    assert rational("1/3") == Fraction(1, 3)
    for percent, fraction in ((90, "0.9"), ("99.5", "0.995"), (2.5, "0.025")):
        with pytest.raises(ValueError, match=f"For {percent} % give {fraction}[.]$"):
            rational(percent)
    with pytest.raises(ValueError, match=r"got 'x'[.]$"):
        rational("x")


def test_a_column_that_changes_while_it_is_read_is_noticed() -> None:
    class Shrinking(ArrayColumn):
        def order_statistics(self, first: int, last: int) -> np.ndarray:
            return super().order_statistics(first, last)[1:]

    with pytest.raises(SourceError, match="snapshot"):
        quantile(Shrinking([1.0] * 10), FREE, Fraction(1, 2), propose=1, cap=9)
