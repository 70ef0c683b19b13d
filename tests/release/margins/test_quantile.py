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


@pytest.mark.thorough
def test_a_capped_margin_is_the_margin_up_to_the_cap() -> None:
    for p in PROBABILITIES[::3]:
        for counts in data_sets(6):
            column = ArrayColumn(records(counts))
            full = quantile(column, GRID, p, propose=1, cap=CAP).margin
            for cap in (1, 2, 3, 5):
                assert quantile(column, GRID, p, propose=1, cap=cap).margin == min(full, cap)


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


class TestEveryRowOfTheTable:
    def test_empty(self) -> None:
        found = quantile(ArrayColumn([]), FREE, Fraction(1, 3), propose=5, cap=9)
        assert (found.value, found.margin) == ((-FARTHEST,), 0)

    def test_ties(self) -> None:
        found = quantile(ArrayColumn([7] * 20), FREE, Fraction(1, 2), propose=1, cap=99)
        assert (found.value, found.margin) == ((7,), 19)

    def test_the_maximum(self) -> None:
        found = quantile(ArrayColumn([1, 2, 3]), GRID, Fraction(1), propose=1, cap=9)
        assert (found.value, found.margin) == ((3,), 1)  # remove 3, then 4 may be added to {1, 2}

    @pytest.mark.parametrize("p", [0, 0.0, -0.1, 1.5, "half", math.nan, 1 / 3, None])
    def test_p_that_is_no_probability(self, p: object) -> None:
        with pytest.raises(ValueError, match="Expected p in"):
            rational(p)  # type: ignore[arg-type]

    def test_p_means_its_decimals(self) -> None:
        assert rational(0.9) == Fraction(9, 10)
        assert rational("1/3") == Fraction(1, 3)

    def test_a_percentage_is_told_as_a_fraction(self) -> None:
        for percent, fraction in ((90, "0.9"), ("99.5", "0.995"), (2.5, "0.025")):
            with pytest.raises(ValueError, match=f"For {percent} % give {fraction}[.]$"):
                rational(percent)
        with pytest.raises(ValueError, match=r"got 'x'[.]$"):
            rational("x")

    def test_a_proposal_beyond_the_range(self) -> None:
        assert quantile(ArrayColumn([0, 4]), GRID, Fraction(1, 2), propose=4, cap=9).margin == 9

    def test_no_bounds(self) -> None:
        found = quantile(ArrayColumn([5] * 9), FREE, Fraction(1, 2), propose=10, cap=99)
        assert (found.value, found.margin) == ((5,), 8)

    def test_values_beyond_the_ends(self) -> None:
        far = quantile(ArrayColumn([-1e300, 2, math.inf]), GRID, Fraction(1, 2), propose=1, cap=9)
        near = quantile(ArrayColumn([0, 2, 4]), GRID, Fraction(1, 2), propose=1, cap=9)
        assert far == near

    def test_missing_values_are_no_records(self) -> None:
        with_gaps = quantile(ArrayColumn([1, math.nan, 3]), GRID, Fraction(1), propose=1, cap=9)
        assert with_gaps == quantile(ArrayColumn([1, 3]), GRID, Fraction(1), propose=1, cap=9)


def test_a_column_that_changes_while_it_is_read_is_noticed() -> None:
    class Shrinking(ArrayColumn):
        def order_statistics(self, first: int, last: int) -> np.ndarray:
            return super().order_statistics(first, last)[1:]

    with pytest.raises(SourceError, match="snapshot"):
        quantile(Shrinking([1.0] * 10), FREE, Fraction(1, 2), propose=1, cap=9)
