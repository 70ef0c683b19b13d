"""Exact noise on vectors of whole numbers: the Laplace and the Gaussian mechanism.

A release that adds noise needs no test and never refuses. All that it needs is a sensitivity: how
far one privacy unit can move the vector, in whole steps of a public lattice.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from statistics import NormalDist

import attrs
import dp_accounting as dp
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent import _validate
from prudent.accounting.calibration import Search, solve
from prudent.release.noise import SLACK, Distribution, Noise

SMALLEST_EPSILON, LARGEST_EPSILON = 1e-3, 50.0
"""Limits of the ε of a release."""

_SMALLEST_PART = 2e-5  # of a release's ε; its noise still fits 64 bits
_SEARCH = Search(safe=1e6, unsafe=1e-2, guess=10.0)


@attrs.frozen(kw_only=True)
class AdditiveMechanism:
    """Noise for vectors of whole numbers, with all its public parameters.

    Guarantee:
        If adding or removing a unit moves the vector by at most s steps in the sum of absolute
        differences, discrete Laplace noise of scale `multiplier` s in each coordinate is exactly
        1/`multiplier`-DP: the log-ratio of two outputs is at most the sum of the differences
        divided by the scale. Gaussian noise needs s only as a bound on the Euclidean length, which
        is never larger.
    """

    multiplier: float  # noise scale (Laplace) or standard deviation (Gaussian), divided by s
    distribution: Distribution = Distribution.LAPLACE  # the distribution of the noise

    def __attrs_post_init__(self) -> None:
        _validate.positive(multiplier=self.multiplier)
        _validate.one_of(list(Distribution), distribution=self.distribution)

    @classmethod
    def calibrate(
        cls,
        epsilon: float,
        delta: float | None = None,
        distribution: Distribution = Distribution.LAPLACE,
    ) -> "AdditiveMechanism":
        """Return the mechanism with the least noise of which one run is (epsilon, delta)-DP."""
        _validate.between(_SMALLEST_PART, LARGEST_EPSILON, epsilon=epsilon)
        _validate.one_of(list(Distribution), distribution=distribution)
        if distribution is Distribution.LAPLACE:
            return cls(multiplier=math.nextafter(1 / epsilon, math.inf))
        if delta is None:
            raise _validate.ArgumentError(
                "delta",
                "with distribution=Distribution.GAUSSIAN",
                got=None,
                hint="Give delta=1e-7, for example, or leave the distribution out: Laplace noise "
                "needs no delta.",
            )
        _validate.small_delta(1e-18, ends="[)", delta=delta)
        return cls(multiplier=least_gaussian(epsilon, delta), distribution=distribution)

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of one run, whatever its vector."""
        if self.distribution is Distribution.GAUSSIAN:
            return dp.GaussianDpEvent(self.multiplier)
        # It has the privacy loss of randomised response, which dominates every ε-DP mechanism.
        return DiscreteLaplaceDpEvent(1 / self.multiplier, 1)

    def scale(self, sensitivity: int) -> float:
        """The scale of the noise, in steps, for a sensitivity in steps; rounded up."""
        return math.nextafter(self.multiplier * sensitivity, math.inf)

    def noisy(self, vector: Sequence[int], sensitivity: int, noise: Noise) -> list[int]:
        """Return the vector with noise for this sensitivity, both in steps."""
        drawn = noise.of_value(self.distribution, self.scale(sensitivity), len(vector))
        return [one + other for one, other in zip(vector, drawn, strict=True)]


def composed(events: Sequence[dp.DpEvent]) -> dp.DpEvent:
    """The event of several mechanisms; of one, its own."""
    return events[0] if len(events) == 1 else dp.ComposedDpEvent(events)


def shares_of(epsilon: float, *shares: float) -> tuple[float, ...]:
    """Divide ε into these fractions of it and the rest; the sum of all parts is at most ε."""
    parts = [epsilon * share for share in shares]
    spent = sum(map(Fraction, parts), Fraction(0))
    rest = float(Fraction(epsilon) - spent)
    while spent + Fraction(rest) > Fraction(epsilon):
        rest = math.nextafter(rest, 0.0)
    return (*parts, rest)


@functools.lru_cache(maxsize=256)
def least_gaussian(epsilon: float, delta: float) -> float:
    """The least noise multiplier of one Gaussian release that is (epsilon, delta)-DP."""
    return solve(
        dp.GaussianDpEvent,
        _SEARCH,
        epsilon=epsilon * (1 - SLACK),
        delta=delta * (1 - SLACK),
        name="noise_multiplier",
    )


@attrs.frozen
class NoiseRegion:
    """Where a vector lies, given that vector with noise in each coordinate."""

    centre: tuple[float, ...]  # the noisy vector
    distribution: Distribution  # the distribution of the noise
    scale: float  # scale or standard deviation of the noise of one coordinate
    rounding: float = 0.0  # A bound on what rounding adds to the error of one coordinate

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise of one coordinate."""
        return self.distribution.deviation(self.scale)

    def vertices(self, confidence: float) -> Iterator[tuple[float, ...]]:
        """The corners of a polytope that holds the vector with at least this probability.

        The chance is over the noise alone. A sum of d absolute values of Laplace noise has a Gamma
        distribution of shape d, so for Laplace noise the polytope is a ball in the sum of absolute
        differences; for Gaussian noise, whose coordinates are independent, it is a cube.
        """
        from scipy import special

        _validate.between(0, 1, ends="()", confidence=confidence)
        size = len(self.centre)
        if self.distribution is Distribution.LAPLACE:
            radius = self.scale * float(special.gammaincinv(size, confidence))
            radius += size * self.rounding
            for place, sign in itertools.product(range(size), (-1, 1)):
                moved = list(self.centre)
                moved[place] += sign * radius
                yield tuple(moved)
        else:
            each = NormalDist().inv_cdf((1 + confidence ** (1 / size)) / 2)
            radius = self.scale * each + self.rounding
            for signs in itertools.product((-1, 1), repeat=size):
                yield tuple(c + sign * radius for c, sign in zip(self.centre, signs, strict=True))
