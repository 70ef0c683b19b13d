"""Profiles of pairs against hockey sticks in 34 digits, sampled and not, both directions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prudent.accounting.losses.loss_tables import LossTable
from prudent.accounting.losses.pairs import (
    Dominating,
    LaplacePair,
    MixturePair,
    TabulatedPair,
    gaussian_profile,
    spread,
)
from tests.oracles import quadrature

EPSILONS = [-3.0, -0.7, 0.0, 0.3, 1.0, 2.5, 6.0, 12.0]
RATES = [1.0, 0.3, 256 / 60_000, 1e-5]


def exactly(value):
    return pytest.approx(float(value), rel=1e-9, abs=1e-17)


@pytest.mark.parametrize("sigma", [0.05, 0.4, 1.1, 30.0])
@pytest.mark.parametrize("epsilon", [*EPSILONS, 150.0])
def test_gaussian_profile_is_the_hockey_stick(sigma, epsilon):
    exact = quadrature.hockey_stick([(1, 0, sigma)], epsilon)
    found = gaussian_profile(np.array([epsilon]), sigma)[0]
    assert found == exactly(exact)
    if 1e-300 < exact < 1e-9:  # the far tail keeps its own digits
        assert found == pytest.approx(float(exact), rel=1e-6)


def test_gaussian_profile_at_the_ends_of_noise():
    epsilon = np.array([-1.0, 0.0, 3.0])
    assert gaussian_profile(epsilon, 0.0).tolist() == [1, 1, 1]
    assert gaussian_profile(epsilon, math.inf) == pytest.approx([1 - math.exp(-1), 0, 0])


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize(("scale", "sigma"), [(0.2, 1.1), (1.0, 0.4), (1.0, 1.1), (50.0, 4.0)])
def test_noisy_margin_has_the_profile_of_its_integral(scale, sigma, rate, adding):
    components = quadrature.laplace_components(scale, sigma, 48)
    worst = Dominating((LaplacePair(scale, sigma),), rate)
    found = worst.profile(np.array(EPSILONS), adding=adding)
    for epsilon, value in zip(EPSILONS, found, strict=True):
        exact = quadrature.hockey_stick(components, epsilon, rate, adding=adding)
        assert value == exactly(exact), epsilon


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("adding", [False, True])
def test_mixture_has_the_profile_of_its_hockey_stick(rate, adding):
    parts = [(0.6, 0.5, 1.1), (0.3, 0.45, 0.55), (0.1, 0.05, 3.0)]
    with quadrature.mpmath.workdps(quadrature.DIGITS):
        components = [
            (quadrature.mpmath.mpf(a), quadrature.mpmath.log(quadrature.mpmath.mpf(p) / a), s)
            for a, p, s in parts
        ]
    worst = Dominating((MixturePair.of(*parts),), rate)
    found = worst.profile(np.array(EPSILONS), adding=adding)
    for epsilon, value in zip(EPSILONS, found, strict=True):
        exact = quadrature.hockey_stick(components, epsilon, rate, adding=adding)
        assert value == exactly(exact), epsilon


def test_laplace_alone_has_the_known_profile():
    pair = LaplacePair(2.0, math.inf)
    epsilon = np.array([-1.0, -0.5, 0.0, 0.2, 0.5, 1.0])
    reach = 0.5
    inside = 1 - np.exp((np.clip(epsilon, -reach, reach) - reach) / 2)
    expected = np.where(epsilon < -reach, 1 - np.exp(epsilon), inside)
    assert pair.profile(epsilon) == pytest.approx(expected, abs=1e-16)
    nearly = LaplacePair(2.0, 1e7).profile(epsilon)
    assert nearly == pytest.approx(expected, abs=1e-7)


@given(
    epsilon=st.floats(-20, 20),
    scale=st.floats(0.1, 50),
    sigma=st.floats(0.1, 50),
    rate=st.floats(1e-6, 1),
    adding=st.booleans(),
)
def test_a_profile_is_a_profile(epsilon, scale, sigma, rate, adding):
    """Between (1 - e^ε)₊ and 1, decreasing, and convex in e^ε."""
    gains = math.exp(epsilon) * np.array([1.0, 1.5, 2.0])
    worst = Dominating((LaplacePair(scale, sigma), MixturePair.of((1, 1, sigma / 2))), rate)
    low, middle, high = worst.profile(np.log(gains), adding=adding)
    assert max(0.0, 1 - gains[0]) - 1e-12 <= low <= 1
    assert high <= middle + 1e-15 <= low + 2e-15
    assert middle <= (low + high) / 2 + 1e-12


@given(
    epsilon=st.floats(0, 10), sigma=st.floats(0.2, 20), scale=st.floats(0.2, 20),
    rate=st.floats(1e-6, 1),
)  # fmt: skip
def test_the_two_directions_are_one_law_read_both_ways(epsilon, sigma, scale, rate):
    """H(M||P) at -ε is 1 - e^-ε + e^-ε H(P||M) at ε: the two sampling maps must fit together."""
    worst = Dominating((LaplacePair(scale, sigma),), rate)
    left = worst.profile(np.array([-epsilon]))[0]
    right = worst.profile(np.array([epsilon]), adding=True)[0]
    assert left == pytest.approx(1 - math.exp(-epsilon) + math.exp(-epsilon) * right, abs=1e-12)


def test_the_worst_of_pairs_is_their_maximum_and_slack_is_added():
    epsilon = np.array([0.0, 1.0, 4.0])
    one, two = MixturePair.of((1, 1, 1.0)), MixturePair.of((1.0, 0.9, 5.0), (0.0, 0.1, 1.0))
    both = Dominating((one, two), slack=1e-3).profile(epsilon)
    assert both == pytest.approx(np.maximum(one.profile(epsilon), two.profile(epsilon)) + 1e-3)


def test_infinite_mass_is_the_limit_of_the_profile():
    pair = MixturePair.of((1.0, 0.9, 1.0), (0.0, 0.1, 1.0))
    far = np.array([200.0])
    for rate in (1.0, 0.2):
        worst = Dominating((pair,), rate)
        for adding in (False, True):
            limit = worst.infinite_mass(adding=adding)
            assert worst.profile(far, adding=adding)[0] == pytest.approx(limit, abs=1e-15)
    assert Dominating((pair,)).infinite_mass() == pytest.approx(0.1)


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("rate", [1.0, 0.01])
def test_beyond_the_reach_nothing_is_left(rate, adding):
    worst = Dominating((LaplacePair(1.0, 0.7),), rate)
    reach = worst.reach(1e-12, adding=adding)
    assert worst.profile(np.array([reach]), adding=adding)[0] <= 1e-12
    if reach > 1e-6:
        assert worst.profile(np.array([reach * 0.9]), adding=adding)[0] > 1e-12


def test_spreading_dominates_and_keeps_both_masses():
    losses = np.linspace(-3, 3, 1001)
    present = np.exp(-(losses**2))
    present /= present.sum()
    absent = present * np.exp(-losses)
    pair = MixturePair(absent / absent.sum(), present, np.full(1001, 2.0))
    fewer = spread(pair, 64)
    assert len(fewer.present) == 64
    assert fewer.present.sum() == pytest.approx(1, abs=1e-12)
    assert fewer.absent.sum() == pytest.approx(1, abs=1e-12)
    epsilon = np.linspace(-4, 6, 401)
    gap = fewer.profile(epsilon) - pair.profile(epsilon)
    assert gap.min() >= -1e-13
    assert gap.max() <= 1e-3
    assert spread(pair, 2000) is pair


def test_a_tabulated_pair_swaps_its_directions():
    one = LossTable(np.array([0.0, 0.1]), np.array([0.5, 0.5]), 0.0)
    two = LossTable(np.array([0.0]), np.array([0.9]), 0.1)
    pair = TabulatedPair((one,), (two,), (0.1, math.inf))
    assert (pair.largest_loss, pair.swapped().largest_loss) == (0.1, math.inf)
    assert pair.infinite_mass == 0
    assert pair.swapped().infinite_mass == pytest.approx(0.1)
    assert pair.swapped().profile(np.array([0.0]))[0] == pytest.approx(0.1)
