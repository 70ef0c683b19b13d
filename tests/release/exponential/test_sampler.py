"""The sampler: weights against mpmath, and its law against the exact one."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from prudent.release.exponential.measure import Decay, LatticeMeasure, choose, draw, rate
from prudent.release.exponential.quantile import ExponentialQuantile, NearTarget
from prudent.release.lattice import Lattice
from prudent.release.noise import ReproducibleNoise, SecureNoise
from tests.oracles.array_column import ArrayColumn
from tests.release.exponential.laws import value_law

DRAWS = 4_000


@pytest.mark.parametrize(
    ("epsilon", "cap", "unit"), [(0.1, 700, 2), (1e-3, 40_000, 10**6), (30.0, 3, 7)]
)
def test_weights_are_exponentials_to_39_digits(epsilon: float, cap: int, unit: int) -> None:
    speed = rate(epsilon, Fraction(9, 5))
    decay = Decay(speed, cap, unit)
    distances = [0, 1, unit, unit + 1, cap * unit // 2 + 1, cap * unit - 1, cap * unit + 5]
    found = decay.weights(distances)
    with mpmath.workdps(90):
        c = mpmath.mpf(speed.numerator) / speed.denominator
        for distance, weight in zip(distances, found, strict=True):
            exact = mpmath.exp(-c * min(mpmath.mpf(distance) / unit, cap))
            assert abs(mpmath.mpf(weight) / found[0] / exact - 1) < mpmath.mpf(10) ** -39


def test_a_rate_is_on_the_safe_side() -> None:
    exact = Fraction(0.3) / Fraction(9, 5)
    assert exact * (1 - Fraction(1, 10**29)) < rate(0.3, Fraction(9, 5)) < exact


@pytest.mark.parametrize("noise", [SecureNoise(), ReproducibleNoise(5)], ids=lambda n: str(type(n)))
def test_uniform_integers_are_uniform(noise: SecureNoise | ReproducibleNoise) -> None:
    drawn = [noise.integer(10) for _ in range(DRAWS)]
    assert stats.chisquare(np.bincount(drawn, minlength=10)).pvalue > 1e-6
    assert all(0 <= noise.integer(3**200) < 3**200 for _ in range(20))
    assert noise.integer(1) == 0


def test_choices_have_their_weights() -> None:
    noise = ReproducibleNoise(2)
    drawn = np.bincount([choose([3, 0, 5, 2], noise) for _ in range(DRAWS)], minlength=4)
    assert drawn[1] == 0
    assert stats.chisquare(drawn[[0, 2, 3]], DRAWS * np.array([0.3, 0.5, 0.2])).pvalue > 1e-6


@pytest.mark.unhurried
@pytest.mark.parametrize("p", ["1/2", "0.9"])
def test_draws_have_the_exact_law_and_a_wrong_base_is_noticed(p: str) -> None:
    measure = LatticeMeasure(Lattice(0, -3, 6))
    mechanism = ExponentialQuantile(p, 0.8, measure, interval_share=0.0)
    column, noise = ArrayColumn([0.0, 2.0, 2.0, 5.0]), ReproducibleNoise(11)
    window = NearTarget.read(column, measure, mechanism.p, mechanism.reach)
    pieces = mechanism.value_weights(window)
    drawn = [draw(measure, *pieces, noise) for _ in range(DRAWS)]
    counts = np.bincount(np.array(drawn) + 3, minlength=10)
    law = np.array([float(mass) for mass in value_law(mechanism, column)])
    assert stats.chisquare(counts, DRAWS * law).pvalue > 1e-6
    base = np.diff(measure.below(np.arange(-3, 8))) / measure.total
    flat = law / base / np.sum(law / base)  # as if all points had the same mass
    assert stats.chisquare(counts, DRAWS * flat).pvalue < 1e-9
