"""Tilted convolutions: always on their side of exact ones, with a slack relative to δ."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import fft

from prudent.accounting.losses.convolution import (
    LatticeDistribution,
    WindowError,
    _integer_power,
    chords_of,
    convolved,
)
from prudent.accounting.losses.pairs import Dominating, MixturePair, gaussian_profile
from tests.tiers import examples


def law(masses, first, times, infinite=0.0, interval=0.25):
    masses = np.asarray(masses, dtype=float)
    return LatticeDistribution(interval, first, masses, infinite, np.zeros_like(masses), times)


def exact_delta(laws, epsilon):
    """By convolution of fractions, exactly; only the exponentials are rounded."""
    total, first, kept = [Fraction(1)], 0, Fraction(1)
    for one in laws:
        masses = [Fraction(m) for m in one.masses]
        for _ in range(one.times):
            wide = [Fraction(0)] * (len(total) + len(masses) - 1)
            for i, a in enumerate(total):
                for j, b in enumerate(masses):
                    wide[i + j] += a * b
            total, first = wide, first + one.first
            kept *= 1 - Fraction(one.infinite)
    inside = math.fsum(
        float(m) * -math.expm1(epsilon - loss)
        for k, m in enumerate(total)
        if (loss := (first + k) * laws[0].interval) > epsilon
    )
    return inside + float(1 - kept)


@pytest.mark.unhurried
@examples(40)
@given(
    weights=st.lists(st.floats(0, 1), min_size=2, max_size=8).filter(lambda w: sum(w) > 0.01),
    first=st.integers(-6, 6),
    times=st.integers(1, 6),
    infinite=st.sampled_from([0.0, 1e-6, 0.3]),
    tilt=st.sampled_from([0.0, 0.5, 3.0, 20.0]),
    more=st.booleans(),
)
def test_both_sides_hold_the_exact_convolution(weights, first, times, infinite, tilt, more):
    masses = np.array(weights) / sum(weights) * (1 - infinite)
    laws = [law(masses, first, times, infinite)]
    if more:
        laws.append(law([0.2, 0.5, 0.3], -1, 2))
    upper, lower = (convolved(laws, tilt, upper=side) for side in (True, False))
    for epsilon in np.linspace(upper.losses[0], upper.losses[-1], 9):
        exact = exact_delta(laws, float(epsilon))
        at = np.array([epsilon])
        assert lower.profile(at)[0] <= exact * (1 + 1e-14)
        assert exact <= upper.profile(at)[0] * (1 + 1e-14)


@pytest.mark.unhurried
@pytest.mark.parametrize("times", [10**3, 10**6])
@pytest.mark.parametrize("epsilon", [0.0, 4.0, 12.0, 20.0])
def test_the_slack_is_relative_to_delta(times, epsilon):
    """Binomial losses, exact by log-gamma in long sums, down to δ = 1e-50."""
    mpmath = pytest.importorskip("mpmath")
    small = 1 / math.sqrt(times)
    p = 1 / (1 + math.exp(-small))
    laws = [law([1 - p, 0.0, p], -1, times, interval=small)]
    with mpmath.workdps(40):
        exact, losses = mpmath.mpf(0), mpmath.mpf(small)
        start = (times + math.floor(epsilon / small)) // 2 + 1
        up, down = mpmath.mpf(p), mpmath.mpf(1 - p)
        term = mpmath.binomial(times, start) * up**start * down ** (times - start)
        for k in range(start, min(times, start + 10 * int(math.sqrt(times)) + 100) + 1):
            exact += term * -mpmath.expm1(epsilon - (2 * k - times) * losses)
            term *= (up / down) * (times - k) / (k + 1)
    saddle = max(0.0, epsilon - 0.5)
    for upper in (True, False):
        found = convolved(laws, saddle, upper=upper).profile(np.array([epsilon]))[0]
        assert (found >= exact) == upper
        assert found == pytest.approx(float(exact), rel=1e-6)


def test_without_a_tilt_the_tail_is_lost_but_never_understated():
    small = 1e-2
    p = 1 / (1 + math.exp(-small))
    laws = [law([1 - p, 0.0, p], -1, 10_000, interval=small)]
    at = np.array([12.0])
    tilted, plain = (convolved(laws, tilt, upper=True).profile(at)[0] for tilt in (11.5, 0.0))
    assert tilted < 1e-25 < plain


def test_the_transform_keeps_to_its_bound():
    """Against the same sums in twice the precision, on the laws that come up and on noise."""
    flint = pytest.importorskip("flint")
    generator = np.random.default_rng(0)
    for size in (64, 2048):
        for masses in (generator.random(size), np.exp(-np.arange(size) / 50.0), np.eye(size)[3]):
            masses = masses / masses.sum()
            found = fft.rfft(masses)
            with flint.ctx.workprec(200):
                exact = flint.acb.dft([flint.acb(m) for m in masses.tolist()])
                errors = [
                    float(abs(exact[j] - flint.acb(complex(found[j]))).upper())
                    for j in range(size // 2 + 1)
                ]
            assert max(errors) <= 10 * math.log2(size) * 2**-53


@pytest.mark.parametrize("exponent", [1, 2, 7, 1000, 10**6 + 1])
def test_powers_keep_to_their_bound(exponent):
    mpmath = pytest.importorskip("mpmath")
    generator = np.random.default_rng(1)
    angles, radii = generator.random(20) * 6, np.exp(-generator.random(20) / exponent)
    base = radii * np.exp(1j * angles)
    with mpmath.workdps(60):
        for value, found in zip(base, _integer_power(base, exponent), strict=True):
            exact = mpmath.mpc(value) ** exponent
            assert abs(exact - mpmath.mpc(found)) <= 3 * 2**-53 * exponent * abs(exact)


def test_a_law_longer_than_its_window_is_folded():
    """Most of a million points are empty; the sum is narrow."""
    masses = np.zeros(300_000)
    masses[100_000], masses[100_001], masses[-1] = 0.5, 0.5 - 1e-18, 1e-18
    one = LatticeDistribution(1e-3, -100_000, masses, 0.0, np.zeros_like(masses), 40)
    table = convolved([one], 0.0, upper=True)
    assert len(table.losses) < 300_000
    brute = convolved([law([0.5, 0.5], 0, 40, interval=1e-3)], 0.0, upper=True)
    epsilon = np.linspace(0, 0.04, 7)
    assert table.profile(epsilon) == pytest.approx(brute.profile(epsilon), abs=1e-7)


def test_a_window_too_wide_says_how_much_coarser_it_must_be():
    masses = np.full(3, 1 / 3)
    with pytest.raises(WindowError) as caught:
        convolved([law(masses, -1, 10**13)], 0.0, upper=True)
    assert caught.value.factor >= 2


@pytest.mark.parametrize("times", [2, 100, 10_000])
@pytest.mark.parametrize("sigma", [1.0, 20.0])
def test_many_gaussians_are_one_and_never_less(times, sigma):
    """T Gaussians of σ√T are one of σ, in closed form; down to δ = 1e-12 and below."""
    worst = Dominating((MixturePair.of((1.0, 1.0, sigma * math.sqrt(times))),))
    interval = 5e-3 / (sigma * math.sqrt(times))
    ends = np.arange(1, math.ceil(worst.reach(1e-25) / interval)) * interval
    chords = chords_of(worst, ends, ends, adding=False, upper=True)
    laws = [LatticeDistribution.of(chords, interval, -len(ends), times)]
    for tilt in (0.0, 2 * sigma, 7 * sigma):
        table = convolved(laws, tilt, upper=True)
        epsilon = np.linspace(max(0.0, table.losses[0]), 8 / sigma, 50)
        exact = gaussian_profile(epsilon, sigma)
        assert (table.profile(epsilon) >= exact).all()
        near = (tilt + 0.5) / sigma**2 + np.array([-0.3, 0.3]) / sigma
        if tilt:
            assert table.profile(near) == pytest.approx(gaussian_profile(near, sigma), rel=1e-2)
