"""Margins of random data sets, larger than brute force can reach, against slow references."""

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from prudent.release.lattice import Lattice
from prudent.release.margins import category_mode, interquartile_range
from prudent.release.statistics.tested import trimmed_mean
from tests.oracles.array_column import ArrayColumn
from tests.oracles.margins import (
    Statistic,
    mode_margin,
    monotone_margins,
    trimmed_mean_margin,
)

CAPS = [1, 4, 9, 9]
DIVISIBLE = math.lcm(*range(1, 60))  # by every number of records here: their means are whole


def rounds(few: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "rounds", [few, pytest.param(10_000, marks=pytest.mark.slow)], ids=["few", "many"]
    )


def random_records(generator: np.random.Generator, lattice: Lattice) -> list[int]:
    """Up to 40 records, anywhere, in a corner, or on a few points only."""
    size = int(generator.integers(0, 41))
    spread = int(generator.choice([1, 4, 15, lattice.diameter]))
    start = int(generator.integers(lattice.low, lattice.high - min(spread, lattice.diameter) + 1))
    data = start + generator.integers(0, min(spread, lattice.diameter) + 1, size)
    outliers = generator.random(size) < 0.1
    data[outliers] = generator.integers(lattice.low, lattice.high + 1, int(np.sum(outliers)))
    return sorted(data.tolist())


def random_lattice(generator: np.random.Generator) -> Lattice:
    low = int(generator.integers(-40, 20))
    return Lattice(0, low, low + 50)


def check_variety(margins: Sequence[int], cap: int) -> None:
    """Margins of every size were met: agreement on zeros alone would say little."""
    assert set(margins) == set(range(cap + 1))


def mean_of_the_kept(trim: int, default: int) -> Statistic:
    def statistic(data: list[int]) -> int:
        kept = data[trim : len(data) - trim]
        return sum(kept) * (DIVISIBLE // len(kept)) if kept else default * DIVISIBLE

    return statistic


@pytest.mark.unhurried
@rounds(90)
def test_trimmed_mean(rounds: int) -> None:
    generator = np.random.default_rng(16)
    margins = []
    for _ in range(rounds):
        lattice = random_lattice(generator)
        data = random_records(generator, lattice)
        trim = int(generator.integers(0, 6))
        default = int(generator.integers(lattice.low, lattice.high + 1))
        cap = int(generator.choice(CAPS))
        statistic = mean_of_the_kept(trim, default)
        proposals = [1, int(generator.integers(2, 5)), int(generator.integers(5, 30))]
        expected = monotone_margins(
            statistic,
            data,
            lattice.low,
            lattice.high,
            proposals=[propose * DIVISIBLE for propose in proposals],
            cap=cap,
        )
        value = math.floor(Fraction(statistic(data), DIVISIBLE) + Fraction(1, 2))
        for propose, margin in zip(proposals, expected, strict=True):
            found = trimmed_mean(
                ArrayColumn(data), lattice, trim, default=default, propose=propose, cap=cap
            )
            assert found.margin == margin, (data, lattice, trim, default, propose, cap)
            assert found.value == (value,)
        margins.extend(expected)
    check_variety(margins, max(CAPS))


@pytest.mark.thorough
@rounds(25)
def test_trimmed_mean_up_to_a_large_cap(rounds: int) -> None:
    """Hundreds of records, so that the search begins with squares of many changes each."""
    generator = np.random.default_rng(17)
    cap, margins = 50, []
    for _ in range(min(rounds, 1_000)):
        top = int(generator.choice([60, 5_000, 2**50]))
        lattice = Lattice(0, -int(generator.integers(0, top)), top)
        size, trim = int(generator.integers(0, 400)), int(generator.integers(0, 70))
        steps = generator.choice([0, 1, 8, 50], size) * max(1, top // 5_000)
        shapes = [
            np.clip(np.cumsum(steps), lattice.low, lattice.high),
            np.clip(generator.standard_cauchy(size) * top / 900, lattice.low, lattice.high),
            generator.integers(0, 3, size) * (top // 7),
        ]
        data = shapes[generator.integers(3)].astype(np.int64)
        default = int(generator.integers(lattice.low, lattice.high + 1))
        propose = 1 + int(top ** generator.random() / max(1, size - 2 * trim))
        found = trimmed_mean(
            ArrayColumn(data), lattice, trim, default=default, propose=propose, cap=cap
        )
        expected = trimmed_mean_margin(
            data.tolist(), trim, default, lattice.low, lattice.high, propose=propose, cap=cap
        )
        assert found.margin == expected, (data, lattice, trim, default, propose)
        margins.append(expected)
    assert len({margin for margin in margins if 32 < margin < cap}) > 2


def rank_of_quarters(quarters: int, low: int) -> Statistic:
    def statistic(data: list[int]) -> int:
        return data[-(-quarters * len(data) // 4) - 1] if data else low

    return statistic


@pytest.mark.unhurried
@rounds(90)
def test_interquartile_range(rounds: int) -> None:
    generator = np.random.default_rng(12)
    margins = []
    for _ in range(rounds):
        lattice = random_lattice(generator)
        data = random_records(generator, lattice)
        proposals, cap = generator.integers(0, 30, 3).tolist(), int(generator.choice(CAPS))
        quartiles = [rank_of_quarters(quarters, lattice.low) for quarters in (1, 3)]
        first, third = (quartile(data) for quartile in quartiles)
        of_each = [
            monotone_margins(
                quartile, data, lattice.low, lattice.high, proposals=proposals, cap=cap
            )
            for quartile in quartiles
        ]
        for propose, *expected in zip(proposals, *of_each, strict=True):
            found = interquartile_range(ArrayColumn(data), lattice, propose=propose, cap=cap)
            assert found.margin == min(expected), (data, lattice, propose, cap)
            assert found.value == (third - first,)
            margins.append(found.margin)
    check_variety(margins, max(CAPS))


def random_counts(generator: np.random.Generator, points: int) -> list[int]:
    """How many records each point holds: many hold about the same, or few do; one may lead."""
    fullest = int(generator.choice([1, 3, 12]))
    crowd = generator.integers(max(0, fullest - 3), fullest + 1, points)
    counts = np.where(generator.random(points) < generator.random(), crowd, 0)
    counts[generator.integers(points)] += generator.choice([0, 5, 10])
    return counts.tolist()


@pytest.mark.unhurried
@rounds(250)
def test_mode_of_categories(rounds: int) -> None:
    generator = np.random.default_rng(14)
    margins = []
    for _ in range(rounds):
        words = [chr(ord("a") + place) for place in range(int(generator.choice([1, 2, 5, 12])))]
        counts = random_counts(generator, len(words))
        cap = int(generator.choice(CAPS))
        records = generator.permutation(np.repeat(words, counts)).tolist()
        public = generator.permutation(words).tolist()
        found = category_mode(ArrayColumn([*records, *["not public"] * 9]), public, cap=cap)
        assert found.margin == mode_margin(counts, propose=0, cap=cap), (counts, public, cap)
        assert found.value == (words[counts.index(max(counts))],)
        margins.append(found.margin)

        # Without a public list there is always a word before and one after all that were seen.
        found = category_mode(ArrayColumn(records), None, cap=cap)
        assert found.margin == mode_margin([0, *counts, 0], propose=0, cap=cap), (counts, cap)
    check_variety(margins, max(CAPS))
