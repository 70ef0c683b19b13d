"""Calibrate a mechanism to (ε, δ): its test, its failure probability and its noise.

The cost of a run is the larger of two cases, not their sum: an accident of the test, which costs
δ₀, and the test together with the noise. So δ₀ could be all of δ for a single release. Using half
of it leaves the other half to a ledger, and raises the threshold by less than one scale of the
test's noise.
"""

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent.accounting import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    MarginTest,
    Reveals,
)
from prudent.accounting.calibration import Search, solve
from prudent.release.noise import SLACK, Distribution

if TYPE_CHECKING:
    from prudent.release.mechanism import ProposeTestReleaseMechanism as Mechanism

_TEST_SHARES = {DiscreteLaplaceTest: 0.5, DiscreteGaussianTest: 0.7}
"""Fraction of ε spent on the test with Gaussian noise; nearly optimal for ε from 0.1 to 5."""

_CERTAIN = 2.0  # a margin this many standard deviations above the threshold passes reliably
_SMALLEST_EPSILON = 1e-3
_NOISE = Search(safe=1e6, unsafe=1e-2, guess=10.0)


def with_least_noise(
    mechanism: "Mechanism", epsilon: float, delta: float, test: MarginTest | None
) -> "Mechanism":
    """Return this mechanism with the least noise of which one run is (epsilon, delta)-DP.

    See `ProposeTestReleaseMechanism.calibrate` for the arguments and the guarantee.
    """
    if test is None and mechanism.distribution is Distribution.LAPLACE:
        return _purely(mechanism, epsilon)
    target = epsilon * (1 - SLACK), delta * (1 - SLACK)
    tests = _tests(*target) if test is None else (test,)
    return min(
        (_with_noise(attrs.evolve(mechanism, test=test), *target) for test in tests),
        key=_expected_error,
    )


def checked_target(epsilon: float, delta: float, failure: float | None) -> float:
    """Check ε and δ, and return the probability that a margin of 0 passes: given, or half of δ."""
    _validate.between(_SMALLEST_EPSILON, 50, epsilon=epsilon)
    _validate.between(1e-18, 0.5, ends="[)", delta=delta)
    return delta / 2 if failure is None else _within_delta(failure, delta)


def _within_delta(failure: float, delta: float) -> float:
    try:
        return _validate.between(0, delta, ends="(]", failure=failure)
    except ValueError:
        raise _validate.ArgumentError(
            "failure",
            f"in (0, delta = {delta:g}]",
            got=failure,
            why="a margin of 0 that passes may reveal everything, and delta pays for that",
            hint="Lower failure, or raise delta.",
        ) from None


def _purely(mechanism: "Mechanism", epsilon: float) -> "Mechanism":
    """Spend half of ε on the test and half on the value, which minimises noise × threshold.

    Nothing needs to be solved. Either the data are sensitive, and all that can happen is an
    accident of probability `failure` <= δ; or the test and the value are ε/2-DP each, so that both
    together are ε-DP.
    """
    parts = 2 if mechanism.propose else 1  # a value without noise leaves all of ε to the test
    scale = math.nextafter(parts / epsilon, math.inf)
    return attrs.evolve(
        mechanism,
        test=DiscreteLaplaceTest(scale),
        robust_noise_multiplier=scale,
        fallback_noise_multiplier=scale if mechanism.falls_back else math.inf,
    )


def _expected_error(mechanism: "Mechanism") -> float:
    """A number proportional to the noise at the least proposal that passes the test reliably.

    That proposal grows with the margin that the test requires.
    """
    spread = mechanism.test.scale * _CERTAIN
    if isinstance(mechanism.test, DiscreteLaplaceTest):
        spread *= math.sqrt(2)
    return mechanism.robust_noise_multiplier * (mechanism.threshold + spread)


@functools.lru_cache(maxsize=256)
def _tests(epsilon: float, delta: float) -> tuple[MarginTest, ...]:
    """Return one test of each kind, each within its fraction of ε on its own."""
    scale = solve(
        GaussianTest,
        Search(safe=1e4, unsafe=1e-2, guess=5 / epsilon),
        epsilon=_TEST_SHARES[DiscreteGaussianTest] * epsilon,
        delta=delta,
        name="scale",
    )
    laplace = DiscreteLaplaceTest(1 / (_TEST_SHARES[DiscreteLaplaceTest] * epsilon))
    return laplace, DiscreteGaussianTest(min(scale, DiscreteGaussianTest.largest_scale))


def _with_noise(mechanism: "Mechanism", epsilon: float, delta: float) -> "Mechanism":
    """Set the least noise; fields that do not affect the cost are fixed, so that caching works."""
    bare = attrs.evolve(
        mechanism,
        propose=1.0 if mechanism.propose else 0.0,
        robust_noise_multiplier=1.0,
        bounds=(0.0, 1.0) if mechanism.falls_back else None,
        fallback_sensitivity=None,
        fallback_noise_multiplier=1.0 if mechanism.falls_back else math.inf,
    )
    return _noisier(mechanism, _least_multiplier(bare, epsilon, delta))


def _noisier(mechanism: "Mechanism", multiplier: float) -> "Mechanism":
    fallback = multiplier if mechanism.falls_back else math.inf
    return attrs.evolve(
        mechanism, robust_noise_multiplier=multiplier, fallback_noise_multiplier=fallback
    )


@functools.lru_cache(maxsize=1024)
def _least_multiplier(mechanism: "Mechanism", epsilon: float, delta: float) -> float:
    """Return the least noise multiplier; with a Gaussian test, one within a few per cent of it.

    The branch of a Gaussian test has hundreds of dominating pairs. Releasing the noisy margin of a
    continuous Gaussian has only one, and costs slightly more. Solving for the latter gives a first
    value, which one or two corrections improve. The returned value was priced with the exact event.
    """

    def solved(event_of: Callable[[float], dp.DpEvent]) -> float:
        return solve(event_of, _NOISE, epsilon=epsilon, delta=delta, name="noise_multiplier")

    def spent(multiplier: float) -> float:
        from prudent.accounting import PldAccountant

        return PldAccountant().compose(_noisier(mechanism, multiplier).event).get_epsilon(delta)

    if mechanism.distribution is Distribution.LAPLACE or not isinstance(
        mechanism.test, DiscreteGaussianTest
    ):
        return solved(lambda multiplier: _noisier(mechanism, multiplier).event)
    test = GaussianTest(mechanism.test.scale)
    value = solved(
        lambda multiplier: attrs.evolve(
            _noisier(mechanism, multiplier).event, test=test, reveals=Reveals.MARGIN
        )
    )
    while (cost := spent(value)) > epsilon:
        value *= 1.01
    for less in (value * cost / epsilon, value * math.sqrt(cost / epsilon)):
        if less < 0.995 * value and spent(less) <= epsilon:
            return less
    return value
