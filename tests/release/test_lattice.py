"""The public lattice: what is rounded, how, and what is refused."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prudent.release.lattice import FARTHEST, LEAST_PROPOSAL, PLAUSIBLE, Lattice, half_octaves

FINITE = st.floats(allow_nan=False, allow_infinity=False)


@given(st.floats(LEAST_PROPOSAL, 1e200))
def test_a_proposal_spans_64_to_128_steps(propose: float) -> None:
    lattice = Lattice.for_proposal(propose)
    assert 64 <= lattice.steps_of_proposal(propose) <= 128
    assert lattice.reach >= max(PLAUSIBLE, 2.0**45 * propose)
    assert lattice.value(lattice.steps_of_proposal(propose)) >= propose


@given(st.lists(FINITE, min_size=2), st.integers(-60, 60))
def test_rounding_keeps_the_order(values: list[float], exponent: int) -> None:
    steps = Lattice(exponent).steps(np.sort(values))
    assert (np.diff(steps) >= 0).all()


@given(st.floats(-1e6, 1e6), st.floats(-1500, 1500))
def test_values_within_the_proposal_stay_within_its_steps(value: float, change: float) -> None:
    lattice = Lattice.for_proposal(1500.0)
    other = value + change
    apart = abs(int(lattice.steps(value)) - int(lattice.steps(other)))
    if abs(other - value) <= 1500:
        assert apart <= lattice.steps_of_proposal(1500.0)


@given(FINITE, st.integers(-60, 60))
def test_rounding_moves_by_half_a_step_at_most(value: float, exponent: int) -> None:
    lattice = Lattice(exponent)
    inside = min(max(value, lattice.value(lattice.low)), lattice.value(lattice.high))
    assert abs(lattice.value(int(lattice.steps(value))) - inside) <= lattice.spacing / 2


def test_infinite_values_go_to_the_ends() -> None:
    lattice = Lattice.for_proposal(1.0, (-3, 5))
    assert lattice.steps([-math.inf, math.inf]).tolist() == [lattice.low, lattice.high]
    assert (lattice.value(lattice.low), lattice.value(lattice.high)) == (-3, 5)
    assert Lattice(0).steps([-math.inf, 1e300]).tolist() == [-FARTHEST, FARTHEST]


@pytest.mark.parametrize("bounds", [(1, 1), (2, 1), (0, math.inf), (0, math.nan), (0,), "ab", 3])
def test_bounds_that_are_none(bounds: object) -> None:
    with pytest.raises(ValueError, match="Expected bounds"):
        Lattice.for_proposal(1.0, bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize("propose", [1e-9, math.nextafter(LEAST_PROPOSAL, 0)])
def test_a_lattice_that_ends_before_plausible_values_is_refused_without_bounds(propose) -> None:
    with pytest.raises(ValueError, match=r"Expected propose at least 1\.5e-08 without bounds"):
        Lattice.for_proposal(propose)
    assert Lattice.for_proposal(propose, (0.0, 1.0)).value(1) < propose


def test_bounds_that_the_lattice_does_not_reach() -> None:
    with pytest.raises(ValueError, match="Expected bounds within 65536 of zero"):
        Lattice.for_proposal(1e-9, (0.0, 250_000.0))


@given(st.floats(1e-200, 1e200))
def test_a_unit_is_at_most_halved(unit: float) -> None:
    lattice = Lattice.for_unit(unit)
    assert unit / 2 < lattice.spacing <= unit
    assert lattice.reach >= 2.0**51 * unit


def test_a_lattice_of_whole_numbers_holds_time_stamps() -> None:
    lattice = Lattice.for_unit(1.0)
    microseconds = [0, 1_700_000_000_000_000, 4_102_444_800_000_000]  # 1970, 2023, 2100
    assert lattice.steps(microseconds).tolist() == microseconds
    assert Lattice.for_unit(1.0, (3, 9)) == Lattice(0, 3, 9)


@pytest.mark.parametrize("unit", [0, -1, math.inf, math.nan, "x", 1e-300, 1e300])
def test_units_that_are_none(unit: object) -> None:
    with pytest.raises(ValueError, match="Expected unit"):
        Lattice.for_unit(unit)  # type: ignore[arg-type]


def test_bounds_narrower_than_a_step() -> None:
    with pytest.raises(ValueError, match="Propose less"):
        Lattice.for_proposal(1e9, (0.0, 1.0))


@pytest.mark.parametrize("propose", [0, -1, math.inf, math.nan, "x", 1e-300, 1e300])
def test_proposals_that_are_none(propose: object) -> None:
    with pytest.raises(ValueError, match="Expected propose"):
        Lattice.for_proposal(propose)  # type: ignore[arg-type]


def test_ends_must_be_in_order() -> None:
    with pytest.raises(ValueError, match="low < high"):
        Lattice(0, 4, 4)


def test_one_value_is_rounded_as_several_are() -> None:
    assert Lattice(-1).steps(1.3) == 3
    assert half_octaves(np.float64(5.0)) == half_octaves(np.array([5.0]))[0]
