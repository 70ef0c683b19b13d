"""Laws of losses on a grid: against a peer, against brute force, and always on their side."""

import math

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf
from hypothesis import given, settings
from hypothesis import strategies as st

from prudent.accounting.loss import discretise
from prudent.accounting.pairs import Dominating, LaplacePair, MixturePair, gaussian_profile
from prudent.accounting.tables import LossTable, joined, lowered

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
    return worst.profile(epsilon) + np.expm1(np.minimum(epsilon, 0.0)), zero


@pytest.mark.parametrize("name", PAIRS)
def test_joining_the_dots_is_what_the_peer_does(name):
    interval, reach = 0.02, 12.0
    excess, zero = grid_values(Dominating((PAIRS[name],)), interval, reach)
    table = joined(excess, zero, interval)
    epsilon = np.arange(-zero, zero + 1) * interval
    peer = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        discretization=interval,
        rounded_epsilon_lower=-zero,
        rounded_epsilon_upper=zero,
        deltas=excess - np.expm1(np.minimum(epsilon, 0.0)),
    ).to_dense_pmf()
    assert peer._lower_loss == table.first
    assert table.masses == pytest.approx(peer._probs, abs=1e-12)
    assert table.infinite == pytest.approx(peer._infinity_mass, abs=1e-12)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("rate", [1.0, 0.05])
@pytest.mark.parametrize("interval", [0.5, 0.01])
def test_the_profile_lies_between_its_two_tables(name, rate, interval):
    worst = Dominating((PAIRS[name],), rate)
    above = discretise(worst, interval, pessimistic=True)
    below = discretise(worst, interval, pessimistic=False)
    epsilon = np.sort(np.concatenate([np.linspace(-3, 8, 1103), np.arange(-5, 9) * interval]))
    for adding in (False, True):
        exact = worst.profile(epsilon, adding=adding)
        upper, lower = above[adding].profile(epsilon), below[adding].profile(epsilon)
        assert (upper - exact).min() >= -2e-15
        assert (exact - lower).min() >= -2e-13
        if interval == 0.01:
            assert (upper - lower).max() <= 5e-3


def test_lowering_is_needed():
    """Without it the joined chords overshoot between the grid points."""
    worst = Dominating((PAIRS["gaussian"],))
    excess, zero = grid_values(worst, 0.25, 10.0)
    epsilon = np.linspace(-2, 4, 601)
    exact = worst.profile(epsilon)
    assert (joined(excess, zero, 0.25).profile(epsilon) - exact).max() > 1e-4
    low = joined(lowered(excess, zero, 0.25, 0.0), zero, 0.25).profile(epsilon)
    assert (low - exact).max() <= 1e-15


def test_tables_stand_on_grids_coarser_than_any_exponential():
    worst = Dominating((MixturePair.of((1.0, 1.0, 1e-4)),))
    for pessimistic in (True, False):
        for table in discretise(worst, 5000.0, pessimistic=pessimistic):
            total = float(table.masses.sum()) + table.infinite
            assert total == pytest.approx(1, abs=1e-9) if pessimistic else total <= 1 + 1e-9


@settings(max_examples=40)
@given(
    masses=st.lists(st.floats(0, 1), min_size=1, max_size=12),
    first=st.integers(-6, 6),
    times=st.integers(1, 9),
    infinite=st.sampled_from([0.0, 1e-6, 0.3, 0.7, 1.0]),
)
def test_composing_is_convolving(masses, first, times, infinite):
    total = sum(masses)
    weights = np.array(masses) * ((1 - infinite) / total if total > 1e-3 else 0.0)
    if total <= 1e-3:
        weights[0] = 1 - infinite
    table = LossTable(0.25, first, weights, infinite)
    brute = np.ones(1)
    for _ in range(times):
        brute = np.convolve(brute, weights)
    exact = LossTable(0.25, first * times, brute, 1 - (1 - infinite) ** times)
    found = table.self_composed(times)
    by_pairs = table
    for _ in range(times - 1):
        by_pairs = by_pairs.composed(table)
    epsilon = np.linspace(-15, 15, 121)
    positive = epsilon >= 0
    for law in (found, by_pairs):
        assert law.infinite == pytest.approx(exact.infinite, abs=1e-13)
        assert law.profile(epsilon)[positive] == pytest.approx(
            exact.profile(epsilon)[positive], abs=1e-12
        )


def test_composing_different_laws_is_convolving():
    one = LossTable(0.5, -2, np.array([0.1, 0.3, 0.4]), 0.2)
    two = LossTable(0.5, 1, np.array([0.25, 0.7]), 0.05)
    both = one.composed(two)
    brute = LossTable(0.5, -1, np.convolve(one.masses, two.masses), 1 - 0.8 * 0.95)
    epsilon = np.linspace(0, 4, 17)
    assert both.profile(epsilon) == pytest.approx(brute.profile(epsilon), abs=1e-14)


@pytest.mark.parametrize("times", [2, 100, 10_000])
@pytest.mark.parametrize("sigma", [1.0, 20.0])
def test_many_gaussians_are_one_and_never_less(times, sigma):
    """T Gaussians of σ are one of σ/√T, in closed form; down to δ = 1e-12."""
    single = Dominating(
        (
            MixturePair.of(
                (1.0, 1.0, sigma * math.sqrt(times / 100)),
            ),
        )
    )
    table = discretise(single, 1e-3, pessimistic=True)[0].self_composed(times)
    epsilon = np.linspace(0, 60 / sigma, 400)
    exact = gaussian_profile(epsilon, sigma / 10)
    found = table.profile(epsilon)
    allowance = 2e-13 * max(1.0, times / 1e5)
    assert (found + allowance - exact).min() >= 0
    seen = exact > (1e-12 if times <= 100 else 1.0)  # a grid much finer would be needed
    assert np.all(found[seen] <= exact[seen] * 1.05 + 1e-12)


@settings(max_examples=40)
@given(
    masses=st.lists(st.floats(0.001, 1), min_size=2, max_size=30),
    first=st.integers(-20, 10),
    delta=st.floats(1e-9, 0.999),
    infinite=st.sampled_from([0.0, 1e-4, 0.2]),
)
def test_epsilon_inverts_the_profile_on_the_safe_side(masses, first, delta, infinite):
    weights = np.array(masses) * (1 - infinite) / sum(masses)
    table = LossTable(0.3, first, weights, infinite)
    epsilon = table.epsilon(delta)
    if infinite > delta:
        assert math.isinf(epsilon)
        return
    assert table.profile(np.array([epsilon]))[0] <= delta * (1 + 1e-9) + 1e-15
    if epsilon > 1e-6:
        assert table.profile(np.array([epsilon * (1 - 1e-6)]))[0] > delta - 1e-9


@pytest.mark.parametrize("times", [2, 30, 1000])
def test_the_span_leaves_out_next_to_nothing(times):
    generator = np.random.default_rng(3)
    weights = generator.random(5000) * np.exp(-(np.linspace(-6, 6, 5000) ** 2))
    table = LossTable(0.01, -2500, weights / weights.sum(), 0.0)
    least, greatest = table.span_of(times)
    mean = float(table.masses @ table.losses) / table.interval
    spread = math.sqrt(float(table.masses @ table.losses**2) / table.interval**2 - mean**2)
    assert least <= mean * times - 7 * spread * math.sqrt(times)
    assert greatest >= mean * times + 7 * spread * math.sqrt(times)
    assert greatest - least <= 40 * spread * math.sqrt(times) + 10_000


def test_the_span_of_a_long_table_does_not_grow_with_its_lumps():
    """Mass moved to the worse end of each lump, a million times over, would span billions."""
    weights = np.zeros(700_000)
    weights[350_001], weights[-1] = 1 - 1e-8, 1e-8
    low, high = LossTable(1.0, -350_000, weights, 0.0).span_of(10**6)
    assert high - low <= 1e7
