"""Distributions of the number of candidates in a private selection, and their generating functions.

A selection runs K independent candidates and releases the best. Its price depends on the
distribution of K only through the generating function f(u) = E u^K: the best of K candidates has
rank at most u with probability f(u), so a candidate of rank u has f'(u) times the density it has on
its own.
"""

import abc
import math
from functools import cached_property, partial
from typing import Any

import attrs
import dp_accounting as dp
import numpy as np
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from typing_extensions import override

from prudent import _validate
from prudent.accounting.events import BinomialSelectionDpEvent
from prudent.accounting.losses.loss_tables import Array

MOST = 1e6  # limit of the expected number of candidates
_DEEPEST = 200.0  # log f' is resolved down to this far below its maximum


class TrialCount(abc.ABC):
    """A distribution of the number of candidates."""

    @property
    @abc.abstractmethod
    def expected(self) -> float:
        """E K, which is also f'(1)."""

    @property
    @abc.abstractmethod
    def none(self) -> float:
        """Pr[K = 0] = f(0)."""

    @property
    def most(self) -> float:
        """The largest possible number; infinite if there is none."""
        return math.inf

    @abc.abstractmethod
    def largest_shift(self, forward: float, backward: float) -> float:
        """A bound on log f'(u)/f'(v) for all ranks of a pure candidate; infinite if none is known.

        Args:
            forward: ε with Q <= e^ε Q', so that u <= e^ε v and 1 - u <= e^ε (1 - v).
            backward: ε with Q' <= e^ε Q, so that v <= e^ε u and 1 - v <= e^ε (1 - u).
        """

    @abc.abstractmethod
    def log_slope(self, u: Array) -> Array:
        """The logarithm of f'(u), at ranks u in [0, 1]."""

    @abc.abstractmethod
    def ranks(self, log_slopes: Array) -> Array:
        """The ranks at which log f' has given values: the inverse of `log_slope`."""

    @abc.abstractmethod
    def event(self, candidate: dp.DpEvent) -> dp.DpEvent:
        """The event of releasing the best of K runs of `candidate`."""

    def spaced_ranks(self, count: int) -> Array:
        """Ranks from 0 to 1 between which log f' rises by equal steps, as far as it is finite."""
        low, high = self.log_slope(np.array([0.0, 1.0]))
        levels = np.linspace(max(low, high - _DEEPEST), high, count)
        return np.concatenate([[0.0], np.clip(self.ranks(levels), 0.0, 1.0), [1.0]])


def _check_mean(**argument: Any) -> float:
    return _validate.between(1, MOST, **argument)


@attrs.frozen(slots=False)
class NegativeBinomial(TrialCount):
    """A negative binomial number of candidates, truncated to be at least one.

    Pr[K = k] is proportional to (1 - γ)^k Γ(k + shape)/k!, with γ determined by the mean. The
    smaller the shape, the longer the tail of K and the lower the price; 1 is the geometric
    distribution, and 0 the logarithmic one.

    Attributes:
        mean: E K, at least 1.
        shape: The shape η >= 0.
    """

    mean: float
    shape: float = 1.0

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, _check_mean, "mean")
        _validate.fields(self, partial(_validate.between, 0, 1e3), "shape")

    @cached_property
    def halting(self) -> float:
        """γ, the parameter with which the distribution has its mean."""
        from scipy import optimize

        if self.mean == 1 or self.shape == 1:
            return 1 / self.mean

        def excess(log_gamma: float) -> float:
            return _mean_of(log_gamma, self.shape) - self.mean

        nearest = -1e-17  # so near to a mean of 1 that no double is nearer
        if excess(nearest) >= 0:
            return 1.0
        return math.exp(optimize.brentq(excess, -60.0, nearest, xtol=1e-18, rtol=1e-15))

    @property
    @override
    def expected(self) -> float:
        return self.mean

    @property
    @override
    def none(self) -> float:
        return 0.0

    @override
    def largest_shift(self, forward: float, backward: float) -> float:
        # f'(u) is proportional to (1 - u + γu)^-(η+1), and 1 - v + γv <= e^ε (1 - u + γu).
        return (self.shape + 1) * backward

    @override
    def log_slope(self, u: Array) -> Array:
        gamma = self.halting
        rest = gamma + (1 - gamma) * (1 - u)
        return np.asarray(math.log(self.mean) + (self.shape + 1) * (math.log(gamma) - np.log(rest)))

    @override
    def ranks(self, log_slopes: Array) -> Array:
        gamma = self.halting
        if gamma == 1:
            return np.ones_like(log_slopes)
        rest = gamma * np.exp((math.log(self.mean) - log_slopes) / (self.shape + 1))
        return np.asarray(1 - (rest - gamma) / (1 - gamma))

    @override
    def event(self, candidate: dp.DpEvent) -> dp.DpEvent:
        return RepeatAndSelectDpEvent(candidate, self.mean, self.shape)


def _mean_of(log_gamma: float, shape: float) -> float:
    """The mean of the truncated negative binomial distribution, η (1/γ - 1)/(1 - γ^η)."""
    if shape == 0:
        return math.expm1(-log_gamma) / -log_gamma
    return shape * math.expm1(-log_gamma) / -math.expm1(shape * log_gamma)


@attrs.frozen(slots=False)
class Geometric(NegativeBinomial):
    """A geometric number of candidates: after each of them, stop with probability 1/mean.

    Attributes:
        mean: E K, at least 1.
    """

    shape: float = attrs.field(default=1.0, init=False)


@attrs.frozen
class Poisson(TrialCount):
    """A Poisson number of candidates; with probability e^-mean there is none.

    It is concentrated around its mean, and costs more than the geometric distribution.

    Attributes:
        mean: E K, at least 1.
    """

    mean: float

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, _check_mean, "mean")

    @property
    @override
    def expected(self) -> float:
        return self.mean

    @property
    @override
    def none(self) -> float:
        return math.exp(-self.mean)

    @override
    def largest_shift(self, forward: float, backward: float) -> float:
        # log f'(u)/f'(v) = mean (u - v), and u - v is at most both a u and b (1 - u).
        a, b = -math.expm1(-forward), math.expm1(min(backward, 700.0))
        return self.mean * a * b / (a + b) if a + b > 0 else 0.0

    @override
    def log_slope(self, u: Array) -> Array:
        return np.asarray(math.log(self.mean) - self.mean * (1 - u))

    @override
    def ranks(self, log_slopes: Array) -> Array:
        return np.asarray(1 + (log_slopes - math.log(self.mean)) / self.mean)

    @override
    def event(self, candidate: dp.DpEvent) -> dp.DpEvent:
        return RepeatAndSelectDpEvent(candidate, self.mean, math.inf)


@attrs.frozen
class Binomial(TrialCount):
    """A binomial number of candidates: each of `draws` is run with a probability.

    The number never exceeds `draws`. With probability 1, exactly `draws` candidates are run.

    Attributes:
        draws: The largest number of candidates.
        probability: The probability with which each of them is run.
    """

    draws: int
    probability: float

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, partial(_validate.count, 1), "draws")
        _validate.between(1, MOST, draws=self.draws)
        _validate.fields(self, partial(_validate.between, 0, 1, ends="(]"), "probability")

    @property
    @override
    def expected(self) -> float:
        return self.draws * self.probability

    @property
    @override
    def none(self) -> float:
        return float((1 - self.probability) ** self.draws)

    @property
    @override
    def most(self) -> float:
        return float(self.draws)

    def _log_base(self, u: Array) -> Array:
        """The logarithm of 1 - p + p u, by whichever form is accurate: near 1, or near 0."""
        missing = self.probability * (1 - u)
        with np.errstate(divide="ignore"):
            small = np.log((1 - self.probability) + self.probability * u)
            return np.where(missing < 0.5, np.log1p(-np.minimum(missing, 0.5)), small)

    @override
    def largest_shift(self, forward: float, backward: float) -> float:
        # f'(u) is proportional to (1 - p + pu)^(n-1), and u <= e^ε v.
        return (self.draws - 1) * forward

    @override
    def log_slope(self, u: Array) -> Array:
        if self.draws == 1:
            return np.full_like(u, math.log(self.expected))
        return np.asarray(math.log(self.expected) + (self.draws - 1) * self._log_base(u))

    @override
    def ranks(self, log_slopes: Array) -> Array:
        if self.draws == 1:
            return np.ones_like(log_slopes)
        fall = (log_slopes - math.log(self.expected)) / (self.draws - 1)
        return np.asarray(1 + np.expm1(fall) / self.probability)

    @override
    def event(self, candidate: dp.DpEvent) -> dp.DpEvent:
        return BinomialSelectionDpEvent(candidate, self.draws, self.probability)


def trial_count(event: dp.DpEvent) -> TrialCount | None:
    """The distribution of the number of candidates of a selection; None for any other event.

    None also for more than `MOST` expected candidates, where ranks next to 1 cannot be told apart:
    those have dp_accounting's bound alone.
    """
    match event:
        case RepeatAndSelectDpEvent() if event.mean > MOST:
            return None
        case RepeatAndSelectDpEvent(shape=math.inf):
            return Poisson(event.mean)
        case RepeatAndSelectDpEvent():
            return NegativeBinomial(event.mean, event.shape)
        case BinomialSelectionDpEvent():
            return Binomial(event.draws, event.probability)
        case _:
            return None
