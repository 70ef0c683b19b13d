"""The choice of private groups: exactly (ε, δ)-DP, and the best there is."""

import itertools
from fractions import Fraction

import mpmath
import pytest

from prudent.accounting import PldAccountant
from prudent.release.noise import ONE, PartitionSelection, ReproducibleNoise

CASES = [(0.1, 1e-6), (1.0, 1e-6), (3.0, 0.01), (0.5, 1e-12), (8.0, 1e-9), (0.3, 0.4)]


def at_most_e_to_the(epsilon: float) -> Fraction:
    """A rational number below e^ε by a part in 10**55, apart from the code under test."""
    with mpmath.workdps(70):
        scaled = mpmath.floor(mpmath.exp(mpmath.mpf(epsilon)) * mpmath.mpf(10) ** 55)
        return Fraction(int(scaled), 10**55)


def violations(selection: PartitionSelection, chances: list[int]) -> int:
    """The number of sizes n at which one unit more reveals more than (ε, δ)."""
    ratio, delta = at_most_e_to_the(selection.epsilon), Fraction(selection.delta)
    found = 0
    kept = [Fraction(each, ONE) for each in (*chances, ONE, ONE)]
    for one, other in itertools.pairwise(kept):
        for p, q in ((one, other), (other, one), (1 - one, 1 - other), (1 - other, 1 - one)):
            found += p > ratio * q + delta
    return found


@pytest.mark.parametrize(("epsilon", "delta"), CASES)
def test_every_chance_is_private_in_both_directions(epsilon: float, delta: float) -> None:
    selection = PartitionSelection(epsilon=epsilon, delta=delta)
    chances = list(selection.chances)
    assert chances[0] == 0
    assert chances[-1] == ONE
    assert chances == sorted(chances)
    assert violations(selection, chances) == 0


def test_a_chance_that_is_too_large_is_noticed() -> None:
    selection = PartitionSelection(epsilon=1.0, delta=1e-6)
    chances = list(selection.chances)
    for place in (1, 5, len(chances) // 2, len(chances) - 2):
        more = [*chances[:place], chances[place] + ONE // 10**20, *chances[place + 1 :]]
        assert violations(selection, more) > 0


@pytest.mark.parametrize(("epsilon", "delta"), CASES)
def test_chances_are_those_of_the_optimal_mechanism(epsilon: float, delta: float) -> None:
    """The closed form of Desfontaines, Voss, Gipson and Mandayam (2020), Theorem 1."""
    with mpmath.workdps(60):
        e, d = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(delta)
        first = 1 + int(mpmath.floor(mpmath.log((e + 2 * d - 1) / ((e + 1) * d)) / epsilon))

        def rising(n: int) -> mpmath.mpf:
            return (e**n - 1) / (e - 1) * d

        for n, chance in enumerate(PartitionSelection(epsilon=epsilon, delta=delta).chances):
            if n <= first:
                expected = rising(n)
            else:
                m = n - first
                expected = (1 - e**-m) * (1 + d / (e - 1)) + e**-m * rising(first)
            assert abs(min(expected, 1) - mpmath.mpf(chance) / ONE) < mpmath.mpf(10) ** -25


def test_a_group_of_many_rows_of_one_person_counts_once() -> None:
    alone = PartitionSelection(epsilon=1.0, delta=1e-6)
    several = PartitionSelection(epsilon=1.0, delta=1e-6, records=5)
    assert [several.chance(n) for n in (0, 1, 5, 6, 10, 11)] == [
        alone.chance(n) for n in (0, 1, 1, 2, 2, 3)
    ]
    for n in range(120):  # five records more or less are one unit
        places = [alone.chances.index(several.chance(n + more)) for more in range(6)]
        assert max(places) - min(places) <= 1


def test_groups_are_kept_as_often_as_their_chance() -> None:
    selection = PartitionSelection(epsilon=1.0, delta=1e-3)
    counts = {"many": 50, "some": 6, "none": 0}
    kept = [selection.select(counts, ReproducibleNoise(seed)) for seed in range(600)]
    assert all("many" in each and "none" not in each for each in kept)
    chance = selection.chance(6) / ONE
    assert 0.1 < chance < 0.9
    often = sum("some" in each for each in kept) / 600
    assert abs(often - chance) < 4 * (chance * (1 - chance) / 600) ** 0.5


def test_what_is_needed_is_known_before() -> None:
    selection = PartitionSelection(epsilon=1 / 3, delta=1e-6)
    half = selection.needed(0.5)
    assert selection.chance(half - 1) < ONE / 2 <= selection.chance(half)


def test_the_event_costs_epsilon_at_delta() -> None:
    event = PartitionSelection(epsilon=0.3, delta=1e-6 * (1 - 1e-6)).event
    assert PldAccountant().compose(event).get_epsilon(1e-6) == pytest.approx(0.3)
