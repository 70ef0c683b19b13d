"""Privacy events: Propose-Test-Release and its tests, the exponential mechanism, selections.

An event is a frozen value that holds exactly what an accountant needs. All events here are
`dp_accounting` events, so they compose with every other event of that library, on their own or
inside `PoissonSampledDpEvent`, `SelfComposedDpEvent` and `ComposedDpEvent`.

Adjacency is adding or removing one record throughout.
"""

import abc
import math
from collections.abc import Iterable
from typing import Any, ClassVar

import attrs
import numpy as np
from dp_accounting import DpEvent
from typing_extensions import override

from prudent import _validate

SMALLEST, LARGEST = 1e-6, 1e12
"""Limits of noise multipliers and scales: beyond practical use, and safe in floating point."""

LARGEST_EPSILON = 500.0  # limit of the ε of a choice, safe in floating point
_FARTHEST = 1e17  # beyond any tail, since scales are at most 1e12; fits into 64 bits
_TESTS = "one of LaplaceTest, GaussianTest, DiscreteLaplaceTest, DiscreteGaussianTest"
_AN_EVENT = _validate.by(_validate.instance, DpEvent, "a DpEvent")


def check_size(**argument: Any) -> float:
    """Return the argument if it is a noise multiplier or scale that is safe from overflow."""
    _validate.positive(**argument)
    return _validate.between(SMALLEST, LARGEST, **argument)


def _check_failure(failure: float) -> float:
    return _validate.between(0, 0.5, ends="()", failure=failure)


def _check_epsilon(epsilon: float) -> float:
    _validate.positive(epsilon=epsilon)
    return _validate.between(0, LARGEST_EPSILON, ends="(]", epsilon=epsilon)


class Reveals(_validate.Choice):
    """What an observer learns about the test. Each member reveals no more than the previous one."""

    MARGIN = "margin"
    """The noisy margin itself, as in the paper."""

    BRANCH = "branch"
    """Only whether the test passed."""

    MONOTONE_BRANCH = "monotone-branch"
    """Only whether the test passed, for a margin that adding a record can only lower.

    An example is the margin of the norm-trimmed sum, max(0, F - #{norms > τ}).
    """


@attrs.frozen
class MarginTest(DpEvent, abc.ABC):
    """A private test of an integer margin of sensitivity 1.

    The test passes when margin + noise > threshold. The threshold is chosen so that a margin of 0
    passes with probability at most `failure`. Used as an event on its own, it stands for releasing
    the noisy margin.

    Attributes:
        scale: Scale of the noise, in records: b for Laplace noise, s for Gaussian noise.
    """

    scale: float = attrs.field(validator=_validate.kept(check_size))

    largest_scale: ClassVar[float] = LARGEST

    def __attrs_post_init__(self) -> None:
        _validate.between(SMALLEST, self.largest_scale, scale=self.scale)

    @abc.abstractmethod
    def tail(self, distance: float) -> float:
        """Pr[noise > distance], accurate in both tails."""

    @abc.abstractmethod
    def threshold(self, failure: float) -> float:
        """The least threshold, rounded up, with Pr[a margin of 0 passes] <= `failure`."""

    def false_pass(self, failure: float) -> float:
        """The exact probability that a margin of 0 passes at `threshold(failure)`; <= failure."""
        return min(failure, self.tail(self.threshold(failure)))


def _whole(distance: float) -> int:
    """The distance rounded down, and moved to where both tails of every test have ended."""
    return math.floor(min(max(_validate.real(distance=distance), -_FARTHEST), _FARTHEST))


@attrs.frozen
class LaplaceTest(MarginTest):
    """A test with Laplace noise, of density exp(-|x|/b)/(2b), b = scale."""

    @override
    def tail(self, distance: float) -> float:
        distance = _validate.real(distance=distance)
        if distance >= 0:
            return 0.5 * math.exp(-distance / self.scale)
        return 1 - 0.5 * math.exp(distance / self.scale)

    @override
    def threshold(self, failure: float) -> float:
        return math.nextafter(-self.scale * math.log(2 * _check_failure(failure)), math.inf)


@attrs.frozen
class GaussianTest(MarginTest):
    """A test with Gaussian noise N(0, s²), s = scale."""

    @override
    def tail(self, distance: float) -> float:
        from scipy import special

        return float(special.ndtr(-_validate.real(distance=distance) / self.scale))

    @override
    def threshold(self, failure: float) -> float:
        from scipy import special

        return math.nextafter(-self.scale * float(special.ndtri(_check_failure(failure))), math.inf)


@attrs.frozen
class DiscreteLaplaceTest(MarginTest):
    """A test with discrete Laplace noise: integers of mass ∝ exp(-|x|/b), b = scale."""

    @override
    def tail(self, distance: float) -> float:
        steps = _whole(distance)
        decay = 1 / self.scale
        if steps >= 0:
            return math.exp(-decay * (steps + 1)) / (1 + math.exp(-decay))
        return 1 - math.exp(decay * steps) / (1 + math.exp(-decay))

    @override
    def threshold(self, failure: float) -> float:
        failure = _check_failure(failure)
        decay = 1 / self.scale
        guess = (-math.log(failure) - math.log1p(math.exp(-decay))) / decay - 1
        return _least_integer_threshold(self, failure, max(0, math.ceil(guess) - 1))


@attrs.frozen
class DiscreteGaussianTest(MarginTest):
    """A test with discrete Gaussian noise: integers of mass ∝ exp(-x²/(2 s²)), s = scale."""

    largest_scale: ClassVar[float] = 1e4  # bounds the number of terms, which are summed one by one

    @property
    def reach(self) -> int:
        """A distance from zero beyond which less than 1e-21 of the mass lies."""
        return math.ceil(9.6 * self.scale) + 2

    @override
    def tail(self, distance: float) -> float:
        steps = _whole(distance)
        if steps < -1:
            return 1 - self.tail(-steps - 1)  # Pr[X > k] = 1 - Pr[X > -k-1], by symmetry
        beyond = np.arange(steps + 1, max(steps + 2, self.reach) + math.ceil(9.6 * self.scale))
        return float(np.sum(np.exp(-0.5 * (beyond / self.scale) ** 2)) / self.normaliser)

    @property
    def normaliser(self) -> float:
        """The sum of exp(-x²/(2 s²)) over all integers x."""
        right = np.arange(1, self.reach + 1)
        return float(1 + 2 * np.sum(np.exp(-0.5 * (right / self.scale) ** 2)))

    @override
    def threshold(self, failure: float) -> float:
        from scipy import special

        failure = _check_failure(failure)
        guess = -self.scale * float(special.ndtri(failure))
        return _least_integer_threshold(self, failure, max(0, math.floor(guess) - 2))


def _least_integer_threshold(test: MarginTest, failure: float, start: int) -> float:
    """Return the least integer threshold with a tail of at most `failure`; search from `start`."""
    threshold = start
    while test.tail(threshold) > failure:
        threshold += 1
    while threshold > 0 and test.tail(threshold - 1) <= failure:
        threshold -= 1
    return float(threshold)


@attrs.frozen
class ProposeTestReleaseDpEvent(DpEvent):
    """One run of Propose-Test-Release (Algorithm 1 of the paper, and its variants).

    On a data set S with safety margin Δ(S), an integer that changes by at most 1 when a record is
    added or removed and is 0 wherever the local sensitivity of f₂ exceeds τ:

    1. draw the test's noise; the test passes when Δ(S) + noise > threshold(failure);
    2. if it passes, release f₂(S) + N(0, σ₂² I);
    3. else release f₁(S) + N(0, σ₁² I), or nothing when σ₁ is infinite (the textbook form).

    Attributes:
        noise_multiplier: σ₁/GS(f₁), the noise of the fallback branch. Infinite: the mechanism
            refuses instead of falling back.
        propose: τ/GS(f₂). 0 when GS(f₂) is infinite, that is, when no bounds on the data are known.
        test: The private test of the margin.
        failure: δ₀ in (0, 1/2), the largest probability with which a margin of 0 passes.
        robust_noise_multiplier: σ₂/τ, the noise of the robust branch. None: the usual coupling,
            equal to `noise_multiplier`, i.e. σ₂ = τσ₁ for sensitivities of 1.
        reveals: What an observer learns about the test.
    """

    noise_multiplier: float = attrs.field(validator=_validate.kept(_validate.positive_or_infinite))
    propose: float = attrs.field(validator=_validate.kept(_validate.non_negative))
    test: MarginTest = attrs.field(validator=_validate.by(_validate.instance, MarginTest, _TESTS))
    failure: float = attrs.field(validator=_validate.kept(_check_failure))
    robust_noise_multiplier: float | None = attrs.field(
        default=None, validator=attrs.validators.optional(_validate.kept(check_size))
    )
    reveals: Reveals = attrs.field(default=Reveals.MARGIN, converter=Reveals)

    def __attrs_post_init__(self) -> None:
        if not self.refuses:
            check_size(noise_multiplier=self.noise_multiplier)
        elif self.robust_noise_multiplier is None:
            allowed = "> 0 when noise_multiplier is infinite: there is no fallback with a noise"
            raise _validate.ArgumentError("robust_noise_multiplier", allowed, got=None)
        if self.propose > 0:
            check_size(propose=self.propose)

    @property
    def refuses(self) -> bool:
        """Whether the mechanism releases nothing when the test fails."""
        return math.isinf(self.noise_multiplier)

    @property
    def sigma_over_proposal(self) -> float:
        """σ₂/τ: the noise of the robust branch relative to the proposed sensitivity."""
        if self.robust_noise_multiplier is None:
            return self.noise_multiplier
        return self.robust_noise_multiplier

    @property
    def sigma_over_global(self) -> float:
        """σ₂/GS(f₂): the noise of the robust branch relative to the global sensitivity of f₂."""
        return self.sigma_over_proposal * self.propose

    @property
    def false_pass(self) -> float:
        """The probability that the robust branch is taken at a margin of 0."""
        return self.test.false_pass(self.failure)


@attrs.frozen
class ExponentialMechanismDpEvent(DpEvent):
    """A choice whose log-likelihood ratio lies in a range of length ε (bounded range).

    The exponential mechanism is one: it chooses v with probability proportional to
    mass(v) exp(c u(v)), and if one record changes the utility u by between a and b, for all v at
    once, then ε = c (b - a). It is ε-DP, and several of them cost less than other ε-DP mechanisms
    (Dong, Durfee and Rogers 2020): see `pairs.BoundedRangePair`.

    Attributes:
        epsilon: ε, the length of the range.
    """

    epsilon: float = attrs.field(validator=_validate.kept(_check_epsilon))


LARGEST_ALLOCATION = 1_000_000  # steps of one epoch for which the bound was computed and checked


@attrs.frozen
class RandomAllocationDpEvent(DpEvent):
    """One epoch in which each record takes part in exactly one of several steps.

    The step is chosen uniformly and independently for each record ("balls and bins"), and nobody
    learns which. Batches of a shuffled data set are close to that, but their sizes are fixed, for
    which no such bound is known: see docs/training.md.

    Attributes:
        event: One step, Gaussian noise: only for a mechanism that one pair dominates is there a
            bound.
        steps: The number of steps of the epoch.
    """

    event: DpEvent = attrs.field(validator=_AN_EVENT)
    steps: int = attrs.field(validator=_validate.kept(_validate.count, 1, LARGEST_ALLOCATION))


@attrs.frozen
class ApproximateDpEvent(DpEvent):
    """Any mechanism of which no more is known than that it is (ε, δ)-DP.

    It is charged like the worst of them: with probability δ everything is revealed, and otherwise
    it is randomised response with likelihood ratio e^ε (Kairouz, Oh and Viswanath 2015).

    Attributes:
        epsilon: ε.
        delta: δ, in [0, 1).
    """

    epsilon: float = attrs.field(validator=_validate.kept(_check_epsilon))
    delta: float = attrs.field(validator=_validate.by(_validate.between, 0, 1, ends="[)"))


@attrs.frozen
class BinomialSelectionDpEvent(DpEvent):
    """Releasing the best of a binomial number of runs of one mechanism.

    dp_accounting's `RepeatAndSelectDpEvent` is the same for negative binomial and Poisson numbers.
    Each run releases its output and a score; of all runs only the one with the best score is
    released. Ties are broken independently of the data, and the number of runs is not revealed.

    Attributes:
        event: One run, its score included.
        draws: The largest number of runs.
        probability: The probability with which each of them takes place.
    """

    event: DpEvent = attrs.field(validator=_AN_EVENT)
    draws: int = attrs.field(validator=_validate.kept(_validate.count, 1))
    probability: float = attrs.field(validator=_validate.by(_validate.between, 0, 1, ends="(]"))


def _tuple(events: Iterable[DpEvent]) -> tuple[DpEvent, ...]:
    return tuple(_validate.values(events=events))


@attrs.frozen
class WorstOfDpEvent(DpEvent):
    """One of several mechanisms, chosen independently of the data; or several on disjoint records.

    Which one it was may be public. It is charged like the worst of them at every ε. That is also
    the price of mechanisms that run side by side if one record enters at most one of them, as long
    as its part is a function of that record and of public facts. Several records may enter
    different parts, so no more is said of them than group privacy does of one.

    Attributes:
        events: The mechanisms, at least one.
    """

    events: tuple[DpEvent, ...] = attrs.field(converter=_tuple)

    def __attrs_post_init__(self) -> None:
        if not self.events:
            raise _validate.ArgumentError("events", "with at least one entry", shown="none")
        for event in self.events:
            _validate.instance(DpEvent, "DpEvents", events=event)
