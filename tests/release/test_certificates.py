"""Certificates hold on every small data set, and one record changes a distance by at most 1."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

import prudent
from prudent.release import margins
from prudent.release.certificates import (
    CAP,
    DistanceRelease,
    distance_by_margin,
    quantile_distance,
)
from prudent.release.lattice import Lattice
from prudent.release.noise import ReproducibleNoise
from prudent.release.statistics.tested import trimmed_mean
from tests.oracles.array_column import ArrayColumn

DOMAIN = range(5)
SIZE = 4
LATTICE = Lattice(0, 0, 4)
DATA = [
    each
    for size in range(SIZE + 1)
    for each in itertools.combinations_with_replacement(DOMAIN, size)
]


def changes_between(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Records to add or remove to turn one data set into the other."""
    left, right = Counter(one), Counter(other)
    return (left - right).total() + (right - left).total()


CHANGES = {(one, other): changes_between(one, other) for one in DATA for other in DATA}


def quantile_of(data: tuple[int, ...], p: Fraction) -> int:
    rank = math.ceil(p * len(data))
    return sorted(data)[rank - 1] if rank else LATTICE.low


@pytest.mark.parametrize("p", [Fraction(1, 2), Fraction(1, 4), Fraction(9, 10), Fraction(1)])
@pytest.mark.parametrize(("low", "high"), [(1, 3), (2, 2), (0.5, math.inf), (-math.inf, 2.5)])
def test_distance_of_a_quantile_is_the_distance_of_brute_force(p, low, high) -> None:
    outside = [each for each in DATA if not low <= quantile_of(each, p) <= high]
    for data in DATA:
        nearest = min(CHANGES[data, other] for other in outside)
        found = quantile_distance(ArrayColumn(np.array(data, float)), p, low, high)
        # Data sets of more than four records are not enumerated, so larger ones may be nearer.
        assert found == nearest if nearest <= SIZE - len(data) else found <= nearest
        for other in DATA:
            if CHANGES[data, other] <= found - 1:
                assert low <= quantile_of(other, p) <= high


def test_an_interval_without_ends_is_never_left() -> None:
    column = ArrayColumn(np.arange(9.0))
    assert quantile_distance(column, Fraction(1, 2), -math.inf, math.inf) == CAP


MEASURES = {
    "trimmed mean": lambda column, propose: trimmed_mean(
        column, LATTICE, 1, default=2, propose=propose, cap=9
    ),
    "iqr": lambda column, propose: margins.interquartile_range(
        column, LATTICE, propose=propose, cap=9
    ),
}


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize(("centre", "tolerance"), [(2, 1), (2, 2), (1, 3)])
def test_distance_by_margin_certifies_and_is_insensitive(name, centre, tolerance) -> None:
    measure = MEASURES[name]
    columns = {each: ArrayColumn(np.array(each, float)) for each in DATA}
    values = {each: int(measure(columns[each], 1).value[0]) for each in DATA}
    found = {
        each: distance_by_margin(
            lambda propose, each=each: measure(columns[each], propose), centre, tolerance, 9
        )
        for each in DATA
    }
    for (one, other), changes in CHANGES.items():
        if changes == 1:
            assert abs(found[one] - found[other]) <= 1
        if changes <= found[one] - 1:
            assert abs(values[other] - centre) <= tolerance
    assert max(found.values()) >= 1  # the check is not vacuous


@pytest.mark.unhurried
def test_a_bound_that_is_one_too_high_is_caught() -> None:
    """What the tests above would see if the distance were off by one."""
    p, low, high = Fraction(1, 2), 1, 3
    broken = [
        (data, other)
        for data in DATA
        for other in DATA
        if CHANGES[data, other]
        <= quantile_distance(ArrayColumn(np.array(data, float)), p, low, high)
        and not low <= quantile_of(other, p) <= high
    ]
    assert broken


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_the_released_bound_holds_as_often_as_it_says(confidence: float) -> None:
    mechanism = DistanceRelease(epsilon=0.2, confidence=confidence)
    noise = ReproducibleNoise(3)
    needed = [mechanism.release(1000, 0, 1, noise=noise).needed for _ in range(4000)]
    wrong = np.mean(np.array(needed) > 1000)
    assert wrong <= 1 - confidence
    assert wrong >= (1 - confidence) / 2  # a bound that never fails would waste records


def test_zero_certifies_nothing() -> None:
    mechanism = DistanceRelease(epsilon=1.0, confidence=0.999)
    found = mechanism.release(0, 0, 1, noise=ReproducibleNoise(0))
    assert (found.needed, found.withstands) == (0, 0)


def test_the_mode_of_categories_is_certified_without_a_tolerance() -> None:
    data = ["a"] * 900 + ["b"] * 100
    answers = [
        prudent.mode(data, epsilon=1.0, delta=1e-6, certify=certify, noise=ReproducibleNoise(1))
        for certify in (True, 0)
    ]
    assert answers[0] == answers[1]
    assert answers[0].certificate.needed > 700
    with pytest.raises(ValueError, match="Expected certify finite and >= 0, got True"):
        prudent.median([1.0, 2.0] * 500, epsilon=1.0, certify=True)
