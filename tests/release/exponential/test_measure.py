"""Base measures: cumulative masses against counting one by one, and exact indices."""

import itertools
from fractions import Fraction

import numpy as np
import pytest

from prudent.release.exponential import measure as measures
from prudent.release.exponential.measure import DoubleMeasure, LatticeMeasure, Measure
from prudent.release.lattice import Lattice

LATTICES = [Lattice(0, -5, 9), Lattice(-3, -40, 40), Lattice(0, 0, 4), Lattice(2, 5, 70)]


def masses(measure: Measure, low: int, high: int) -> list[int]:
    return np.diff(measure.below(np.arange(low, high + 2))).tolist()


@pytest.mark.parametrize("lattice", LATTICES, ids=str)
def test_the_points_of_an_octave_have_equal_masses_that_add_up(lattice: Lattice) -> None:
    measure = LatticeMeasure(lattice)
    found = dict(
        zip(
            range(lattice.low, lattice.high + 1),
            masses(measure, lattice.low, lattice.high),
            strict=True,
        )
    )
    assert sum(found.values()) == measure.total
    assert min(found.values()) >= measure.lightest >= 1
    for step, mass in found.items():
        if step:
            octave = abs(step).bit_length() - 1
            relative = int(measures._octaves(lattice.exponent + octave, 1)[0])
            assert mass == Fraction(relative * 2**52, 2**octave)
        elif 1 in found:
            assert mass == found[1]


def test_the_largest_lattice_is_exact() -> None:
    measure = LatticeMeasure(Lattice(0))
    ends = measure.below(np.array([-(2**52), 0, 1, 2**52, 2**52 + 1])).tolist()
    assert ends == sorted(ends)
    assert ends[-1] - ends[-2] == measure.lightest == 1
    assert measure.total < 2**63


@pytest.mark.parametrize("measure", [LatticeMeasure(LATTICES[0]), LatticeMeasure(LATTICES[3])])
def test_a_point_is_located_by_its_mass(measure: LatticeMeasure) -> None:
    before = 0
    for index, mass in enumerate(masses(measure, measure.low, measure.high), measure.low):
        for offset in (before, before + mass // 2, before + mass - 1):
            assert measure.locate(measure.low, offset) == index
        before += mass


def test_doubles_keep_their_order_and_return_as_they_are() -> None:
    measure = DoubleMeasure()
    values = np.array([-1e300, -3.5, -1e-9, -0.0, 0.0, 1e-300, 1e-9, 0.1, 37.2, 5e15, np.inf])
    indices = measure.indices(values)
    assert np.all(np.diff(indices) >= 0)
    for value, index in zip(values.tolist(), indices.tolist(), strict=True):
        if 1e-12 < abs(value) < 1e19:
            assert measure.value(index) == value
    assert measure.value(int(indices[3])) == measure.value(int(indices[5])) == 0
    assert measure.indices(np.array([-np.inf, np.inf])).tolist() == [measure.low, measure.high]
    assert np.all(np.diff(measure.below(indices)) >= 0)
    assert measure.total < 2**63


def test_round_decimal_numbers_are_counted_as_the_doubles_nearest_to_them() -> None:
    # All numbers of three digits in one decade, and of up to six in a short range.
    for decade in (-4, -1, 0, 2, 8):
        for digits in (3, 6):
            numbers = range(10 ** (digits - 1), 10 ** (digits - 1) + 900)
            nearest = np.array(
                [float(Fraction(k) * Fraction(10) ** (decade - digits + 1)) for k in numbers]
            )
            own = measures._decimals_below(np.nextafter(nearest, np.inf))
            own -= measures._decimals_below(nearest)
            assert np.all(own >= measures._FINER ** (6 - digits))
            if digits == 6:  # nothing is rounder than six digits between two such numbers
                free = measures._decimals_below(nearest[1:])
                free -= measures._decimals_below(np.nextafter(nearest[:-1], np.inf))
                assert not free.any()


def test_both_halves_of_the_doubles_weigh_the_same() -> None:
    decimals = measures._ROUND * int(measures._decimals_below(np.array([2.0**63]))[0])
    measure = DoubleMeasure((2.0**-40, 2.0**63))
    assert measure.total / 2 == pytest.approx(decimals, rel=0.01)
    tenth = measure.indices(np.array([0.1]))
    own = measure.below(tenth + 1) - measure.below(tenth)
    beside = measure.below(tenth + 2) - measure.below(tenth + 1)
    assert own[0] > 2**30 * beside[0]


@pytest.mark.parametrize("measure", [DoubleMeasure(), LatticeMeasure(Lattice(0))])
def test_intervals_around_a_value_grow_to_everything(measure: Measure) -> None:
    for value in (0.0, 37.0, -1e6):
        index = int(measure.indices(np.array([value]))[0])
        found = measure.around(index)
        assert len(found) <= measure.widths
        least, most = (measure.value(end) for end in found[0])
        assert least <= value <= most
        assert most - least <= 2**-18 * max(1.0, abs(value))
        # As narrow as values can be told apart: a whole number, or the sixth digit of a double.
        assert (least < most) == isinstance(measure, DoubleMeasure)
        assert found[-1] == (measure.low, measure.high)
        for (low, high), (wider_low, wider_high) in itertools.pairwise(found):
            assert wider_low <= low <= high <= wider_high
        assert all(measure.low < low and high < measure.high for low, high in found[:-1])
