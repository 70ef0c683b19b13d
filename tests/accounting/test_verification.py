"""The printed ε, checked again in ball arithmetic; and the checker, checked."""

import math

import dp_accounting as dp
import numpy as np
import pytest

from prudent.accounting import (
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    PldAccountant,
    ProposeTestReleaseDpEvent,
)
from prudent.accounting.losses.domination import dominating
from prudent.accounting.losses.pairs import gaussian_profile

flint = pytest.importorskip("flint")
from tests.oracles.ball_arithmetic import Law, _profile, certified_delta  # noqa: E402

MNIST = 256 / 60_000
SMALL = dp.PoissonSampledDpEvent(0.1, ProposeTestReleaseDpEvent(2.0, 0.5, LaplaceTest(1.0), 1e-8))


def sampled(rate, sigma):
    return dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma))


def mnist(test, propose=0.5, reveals="margin"):
    release = ProposeTestReleaseDpEvent(1.1, propose, test, 1e-8, None, reveals)
    return dp.PoissonSampledDpEvent(MNIST, release)


# Gaussians hidden from the closed form by a test that says nothing.
GAUSSIANS = ProposeTestReleaseDpEvent(math.sqrt(1e5) / 3, 1.0, LaplaceTest(1e9), 1e-30)

CASES = {  # event, runs, δ, grid of the check
    "gaussians": (GAUSSIANS, 100_000, 1e-12, 1.2e-4),
    "many steps": (sampled(0.01, 1.0), 100_000, 1e-12, 1.5e-4),
    "strong sampling": (sampled(1e-3, 0.5), 300_000, 1e-12, 1.2e-4),
    "a large delta": (sampled(0.02, 0.8), 500, 1e-2, 1e-3),
    "training": (mnist(LaplaceTest(1.0)), 10_000, 1e-5, 9e-5),
    "gaussian test": (mnist(GaussianTest(3.0)), 10_000, 1e-8, 9e-5),
    "branch": (mnist(LaplaceTest(1.0), reveals="branch"), 2000, 1e-10, 2e-4),
    "small proposal": (mnist(GaussianTest(4.0), 0.003), 5000, 1e-5, 1e-4),
    "tiny steps": (LaplaceTest(math.sqrt(1e5)), 100_000, 1e-6, 4e-5),
    "discrete": (DiscreteLaplaceTest(20.0), 400, 1e-9, 1.5e-3),
}


@pytest.mark.slow
def test_a_small_case_is_confirmed_and_a_planted_error_is_not():
    event, count, delta = SMALL, 20, 1e-7
    lower, upper = PldAccountant().compose(event, count).epsilon_bounds(delta)
    assert certified_delta(event, count, upper, interval=5e-4, tail=1e-6 * delta) <= delta
    planted = upper * (1 - 1e-3)
    assert planted < lower
    assert certified_delta(event, count, planted, interval=5e-4, tail=1e-6 * delta) > delta


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_printed_prices_are_confirmed(name):
    """The grid of the check is finer than the accountant's, so it may not find more."""
    event, count, delta, interval = CASES[name]
    accountant = PldAccountant().compose(event, count)
    lower, upper = accountant.epsilon_bounds(delta)
    worst = dominating(event)
    with flint.ctx.workprec(128):
        laws = [
            Law.of(worst, flint.arb(interval), 1e-6 * delta / count, upper + 25, adding=adding)
            for adding in (False, True)
        ]
        sums = [law.composed(count) for law in laws]
    assert max(law.delta(upper) for law in sums) <= delta
    assert max(law.delta(lower) for law in sums) >= delta
    assert max(law.delta(upper * 0.995) for law in sums) > delta
    assert accountant.get_delta(upper) >= max(law.delta(upper) for law in sums) * (1 - 1e-4)


@pytest.mark.thorough
def test_the_bound_is_one_on_the_closed_form():
    sigma, count = 20.0, 100
    event = ProposeTestReleaseDpEvent(sigma, 1.0, LaplaceTest(1e9), 1e-30)
    for epsilon in (0.5, 3.0):
        exact = gaussian_profile(np.array([epsilon]), sigma / math.sqrt(count))[0]
        found = certified_delta(event, count, epsilon, interval=1e-3, tail=1e-18)
        assert exact <= found <= exact * 1.01


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize(
    "event",
    [
        SMALL,
        sampled(0.01, 0.7),
        dp.LaplaceDpEvent(2.0),
        DiscreteLaplaceTest(3.0),
        mnist(LaplaceTest(1.0), reveals="branch"),
        ProposeTestReleaseDpEvent(math.inf, 0.0, LaplaceTest(1.0), 1e-3, 1.0),
    ],
    ids=lambda event: str(event)[:40],
)
def test_profiles_in_balls_are_those_in_floating_point(event, adding):
    """And the latter are as accurate as the accountant's laws take them to be."""
    from prudent.accounting.losses.loss_tables import evaluation_bound

    worst = dominating(event)
    epsilon = np.linspace(-4, 12, 97)
    values = worst.profile(epsilon, adding=adding)
    slopes = (worst.profile(epsilon - 0.01, adding=adding) - values) / -math.expm1(-0.01)
    bounds = evaluation_bound(epsilon, values, np.maximum(slopes, 0.0))
    with flint.ctx.workprec(128):
        for at, value, bound in zip(epsilon.tolist(), values.tolist(), bounds, strict=True):
            exact = _profile(worst, flint.arb(at), adding=adding)
            assert abs(float(exact) - value) <= bound + 1e-300


def test_laplace_beside_gaussian_is_the_integral_it_stands_for():
    """By Arb's own rigorous quadrature."""
    from tests.oracles.ball_arithmetic import _gaussian, _laplace

    with flint.ctx.workprec(128):
        for at in (-2.0, 0.3, 4.0):
            epsilon, reach = flint.arb(at), flint.arb(2)

            def density(loss, _, epsilon=epsilon, reach=reach):
                mu = flint.acb(1) / flint.acb(1.5)
                a = (flint.acb(epsilon) - loss) / mu - mu / 2
                root = flint.acb(2).sqrt()
                first = (a / root).erfc() / 2
                second = (flint.acb(epsilon) - loss).exp() * ((a + mu) / root).erfc() / 2
                return ((loss - flint.acb(reach)) / 2).exp() / 4 * (first - second)

            inner = flint.acb.integral(density, -reach, reach).real
            atoms = _gaussian(epsilon - reach, 1.5) / 2
            atoms += (-reach).exp() / 2 * _gaussian(epsilon + reach, 1.5)
            assert _laplace(epsilon, reach, 1.5).overlaps(inner + atoms)
            assert (inner + atoms).rel_accuracy_bits() > 60


def test_what_cannot_be_checked_is_refused():
    parts = dp.ComposedDpEvent([LaplaceTest(1.0), LaplaceTest(2.0)])
    with pytest.raises(ValueError, match="Expected event one with dominating pairs"):
        certified_delta(parts, 1, 1.0, interval=0.1, tail=1e-9)
    with pytest.raises(ValueError, match="Expected interval so that at most"):
        certified_delta(dp.GaussianDpEvent(1.0), 1, 1.0, interval=1e-9, tail=1e-9)
    with pytest.raises(ValueError, match="Expected interval finite and > 0"):
        certified_delta(dp.GaussianDpEvent(1.0), 1, 1.0, interval=0.0, tail=1e-9)
