"""Laws of losses on a grid: against a peer, against brute force, and always on their side."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prudent.accounting.losses.convolution import chords_of
from prudent.accounting.losses.loss_tables import LossTable, joined, lowered
from prudent.accounting.losses.pairs import Dominating, LaplacePair, MixturePair
from tests.tiers import examples

PAIRS = {
    "gaussian": MixturePair.of((1.0, 1.0, 1.1)),
    "noisy margin": LaplacePair(1.0, 1.1),
    "laplace": LaplacePair(0.7, math.inf),
    "with certainty": MixturePair.of((1.0, 0.99, 2.0), (0.0, 0.01, 1.0)),
    "accident": MixturePair.of((0.99, 0.99, 1.1), (0.01, 0.01, 0.3)),
}


def grid_values(worst, interval, reach):
    """Excess of the profile of removing a record over (1 - e^ε)₊, on a grid, and where zero is."""
    zero = round(reach / interval)
    epsilon = np.arange(-zero, zero + 1) * interval
    return worst.profile(epsilon) + np.expm1(np.minimum(epsilon, 0.0)), zero, epsilon


def grids(interval, uneven):
    """Losses above zero and below it."""
    ends = np.arange(1, math.ceil(12 / interval)) * interval
    if uneven:
        ends = np.geomspace(interval / 50, 12, len(ends))
    return ends, ends


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("rate", [1.0, 0.05])
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.parametrize("interval", [0.5, 0.01])
def test_the_profile_lies_between_its_two_tables(name, rate, interval, uneven):
    worst = Dominating((PAIRS[name],), rate)
    epsilon = np.sort(np.concatenate([np.linspace(-3, 8, 1103), np.arange(-5, 9) * interval]))
    for adding in (False, True):
        exact = worst.profile(epsilon, adding=adding)
        chords = [
            chords_of(worst, *grids(interval, uneven), adding=adding, upper=upper)
            for upper in (True, False)
        ]
        upper, lower = (one.table.profile(epsilon) for one in chords)
        assert (upper - exact).min() >= -1e-16
        assert (exact - lower).min() >= -1e-15
        if interval == 0.01 and not uneven:
            assert (upper - lower).max() <= 5e-3


def test_lowering_is_needed():
    """Without it the joined chords overshoot between the grid points."""
    worst = Dominating((PAIRS["gaussian"],))
    excess, zero, losses = grid_values(worst, 0.25, 10.0)
    epsilon = np.linspace(-2, 4, 601)
    exact = worst.profile(epsilon)
    assert (joined(excess, zero, losses).table.profile(epsilon) - exact).max() > 1e-4
    low = joined(lowered(excess, zero, losses, 0.0), zero, losses, upper=False)
    assert (low.table.profile(epsilon) - exact).max() <= 1e-15


@pytest.mark.parametrize("upper", [True, False])
def test_tables_stand_on_grids_coarser_than_any_exponential(upper):
    worst = Dominating((MixturePair.of((1.0, 1.0, 1e-4)),))
    losses = np.arange(1, 3_000) * 5000.0
    table = chords_of(worst, losses, losses, adding=False, upper=upper)
    total = float(table.masses.sum()) + table.infinite
    assert total == pytest.approx(1, abs=1e-6) if upper else total <= 1 + 1e-9


@examples(40)
@given(
    masses=st.lists(st.floats(0.001, 1), min_size=2, max_size=30),
    first=st.integers(-20, 10),
    delta=st.floats(1e-9, 0.999),
    infinite=st.sampled_from([0.0, 1e-4, 0.2]),
    upper=st.booleans(),
)
def test_epsilon_inverts_the_profile_on_its_side(masses, first, delta, infinite, upper):
    weights = np.array(masses) * (1 - infinite) / sum(masses)
    losses = (first + np.arange(len(weights))) * 0.3
    table = LossTable(losses, weights, infinite, upper=upper)
    epsilon = table.epsilon(delta)
    if infinite > delta:
        assert math.isinf(epsilon)
        return
    at = table.profile(np.array([epsilon, epsilon * (1 - 1e-6)]))
    if upper:
        assert at[0] <= delta * (1 + 1e-9) + 1e-15
    if epsilon > 1e-6:
        assert at[1] > delta - 1e-9


@pytest.mark.parametrize("span", [5.0, 2000.0])
@pytest.mark.parametrize("tilt", [0.0, 0.7, 4.0])
def test_a_tilted_table_reads_the_same(tilt, span):
    """Over a long span too, where sums are taken of logarithms."""
    losses = np.linspace(-1, span, 301)
    masses = np.exp(-0.5 * (losses - 1) ** 2)
    masses /= masses.sum()
    plain = LossTable(losses, masses, 1e-9)
    log_scale = 3.0
    tilted_masses = masses * np.exp(np.minimum(tilt * losses - log_scale, 700.0))
    epsilon = np.linspace(-0.9, 6, 50)
    exact = [
        1e-9
        + math.fsum(m * -math.expm1(e - x) for m, x in zip(masses, losses, strict=True) if x > e)
        for e in epsilon
    ]
    for upper in (True, False):
        tilted = LossTable(losses, tilted_masses, 1e-9, tilt, log_scale, upper)
        assert tilted.profile(epsilon) == pytest.approx(np.array(exact), rel=1e-5)
        assert (tilted.profile(epsilon) >= exact).all() == upper
        assert tilted.epsilon(1e-3) == pytest.approx(plain.epsilon(1e-3), rel=1e-6)
    assert LossTable(losses, tilted_masses, 0.0, 1.0).profile(np.array([-2.0]))[0] >= 1
