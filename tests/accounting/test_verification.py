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
from prudent.accounting.serialisation import to_plain

flint = pytest.importorskip("flint")
from prudent_verify import pairs  # noqa: E402
from prudent_verify.events import Relation, parsed  # noqa: E402
from prudent_verify.prices import Parts  # noqa: E402

MNIST = 256 / 60_000
SMALL = dp.PoissonSampledDpEvent(0.1, ProposeTestReleaseDpEvent(2.0, 0.5, LaplaceTest(1.0), 1e-8))


def sampled(rate, sigma):
    return dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma))


def mnist(test, propose=0.5, reveals="margin"):
    release = ProposeTestReleaseDpEvent(1.1, propose, test, 1e-8, None, reveals)
    return dp.PoissonSampledDpEvent(MNIST, release)


# Gaussians hidden from the closed form by a test that says nothing.
GAUSSIANS = ProposeTestReleaseDpEvent(math.sqrt(1e5) / 3, 1.0, LaplaceTest(1e9), 1e-30)

CASES = {  # event, runs, δ, grid of the check in deviations of a loss
    "gaussians": (GAUSSIANS, 100_000, 1e-12, 0.015),
    "many steps": (sampled(0.01, 1.0), 100_000, 1e-12, 0.015),
    "strong sampling": (sampled(1e-3, 0.5), 300_000, 1e-12, 0.03),
    "a large delta": (sampled(0.02, 0.8), 500, 1e-2, 0.015),
    "training": (mnist(LaplaceTest(1.0)), 10_000, 1e-5, 0.015),
    "gaussian test": (mnist(GaussianTest(3.0)), 10_000, 1e-8, 0.015),
    "branch": (mnist(LaplaceTest(1.0), reveals="branch"), 2000, 1e-10, 0.015),
    "small proposal": (mnist(GaussianTest(4.0), 0.003), 5000, 1e-5, 0.015),
    "tiny steps": (LaplaceTest(math.sqrt(1e5)), 100_000, 1e-6, 0.015),
    "discrete": (DiscreteLaplaceTest(20.0), 400, 1e-9, 0.015),
}


def bound_of(event, count, delta, accuracy=0.015):
    """A function of ε: a proved upper bound on δ of so many runs, by code of its own."""
    plain = to_plain(dp.SelfComposedDpEvent(event, count))
    with flint.ctx.workprec(pairs.BITS):
        return Parts.of(parsed(plain), Relation("add-remove", 1)).prepared(1e-6 * delta, accuracy)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_printed_prices_are_confirmed(name):
    """To a ten-thousandth: the points of the check are not those of the accountant."""
    event, count, delta, accuracy = CASES[name]
    lower, upper = PldAccountant().compose(event, count).epsilon_bounds(delta)
    bound = bound_of(event, count, delta, accuracy)
    with flint.ctx.workprec(pairs.BITS):
        assert bound(upper * (1 + 1e-4)) <= delta
        assert bound(lower) >= delta
        assert bound(upper * 0.995) > delta


@pytest.mark.thorough
def test_the_bound_is_one_on_the_closed_form():
    sigma, count = 20.0, 100
    event = ProposeTestReleaseDpEvent(sigma, 1.0, LaplaceTest(1e9), 1e-30)
    bound = bound_of(event, count, 1e-9)
    with flint.ctx.workprec(pairs.BITS):
        for epsilon in (0.5, 3.0):
            exact = gaussian_profile(np.array([epsilon]), sigma / math.sqrt(count))[0]
            assert exact <= bound(epsilon) <= exact * 1.01


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
    with flint.ctx.workprec(pairs.BITS):
        inner, rate = parsed(to_plain(event)), flint.arb(1)
        if inner.kind == "PoissonSampledDpEvent":
            inner, rate = inner["event"], flint.arb(inner["sampling_probability"])
        own = pairs.worst_of(inner, rate)
        # Of many pairs of branches the noise is that of a law of slightly more variance.
        coarser = 1e-4 if dict(inner.fields).get("reveals") == "branch" else 0.0
        for at, value, bound in zip(epsilon.tolist(), values.tolist(), bounds, strict=True):
            exact = own(flint.arb(at), adding=adding)
            assert abs(float(exact) - value) <= bound + coarser * value + 1e-300


def test_laplace_beside_gaussian_is_the_integral_it_stands_for():
    """By Arb's own rigorous quadrature."""
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
            atoms = pairs.gaussian(epsilon - reach, flint.arb(1.5)) / 2
            atoms += (-reach).exp() / 2 * pairs.gaussian(epsilon + reach, flint.arb(1.5))
            assert (
                pairs.Laplace(reach, flint.arb(1.5))
                .profile(epsilon, adding=False)
                .overlaps(inner + atoms)
            )
            assert (inner + atoms).rel_accuracy_bits() > 60
