"""Noise on whole numbers, drawn by OpenDP with exactly the distribution that is accounted for.

Uniform integers, from which the exponential mechanism draws, come from the operating system.

The noise of a test is discrete Laplace or discrete Gaussian, in whole records. A value lies on the
lattice, and so does its noise, so no released bit depends on floating-point rounding.

* A number gets discrete Laplace noise of scale b steps: for a change of at most t steps this is
  exactly t/b-DP.
* A vector gets Gaussian noise rounded to whole steps. As values lie on the lattice, adding it is
  the same as rounding `value + Gaussian`. That is post-processing of the Gaussian mechanism in any
  dimension, so the privacy cost of the Gaussian mechanism is an upper bound.

The rounded Gaussian is drawn as a discrete Gaussian of scale s >= 2**32 on a lattice that is 2**j
times finer, and then rounded to the coarse lattice. Its distance from the exact rounded Gaussian is
bounded as follows. A point k of the fine lattice has, up to the normaliser, mass
f(k) = exp(-k²/(2s²)); the Gaussian's cell around it has f(k) times the mean of
cosh(ku/s²) exp(-u²/(2s²)) over |u| <= 1/2, a factor between 1 - 1/(8s²) and, for |k| <= 12 s,
1 + 19/s². The normalisers differ by a factor of at most 1 + 2 exp(-2π²s²) (Poisson summation). So
outside a mass of 4e-33 every likelihood ratio is within 40/s² < 3e-18 of the Gaussian's, per
coordinate. `SLACK` is many times larger, and calibration reserves it.

A release that adds noise needs no test and never refuses. All that it needs is a sensitivity: how
far one privacy unit can move the vector, in whole steps of a public lattice.

**Which groups occur** is a private choice of those with enough records (`PartitionSelection`). A
group that occurs in the data may occur because of one person. So a group is kept with a probability
π(n) that depends on its number n of units alone, and is 0 for none. Adding a unit changes one
group's n by 1, so the choice is (ε, δ)-DP if for every n

    π(n+1) <= e^ε π(n) + δ    and    1 - π(n) <= e^ε (1 - π(n+1)) + δ,

and π never decreases (the two other directions). Taking the larger of what both allow, from
π(0) = 0 on, keeps every group with the largest probability that any (ε, δ)-DP choice can
(Desfontaines, Voss, Gipson and Mandayam 2020). All probabilities are whole multiples of 2**-128,
rounded down, with a rational number below e^ε, so both inequalities hold exactly as drawn.
"""

import decimal
import functools
import itertools
import math
import secrets
from collections.abc import Hashable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from statistics import NormalDist
from typing import Any, Protocol, runtime_checkable

import attrs
import dp_accounting as dp
import numpy as np
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent import _extras, _validate
from prudent._rounding import nearest
from prudent._validate import ArgumentError, Choice, by
from prudent.accounting import (
    ApproximateDpEvent,
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    MarginTest,
)
from prudent.accounting.calibration import Search, solve
from prudent.release.columns.column import in_order

SLACK = 1e-9
"""Fraction of ε and of δ reserved for the difference between the drawn and the exact Gaussian."""

LARGEST_SCALE = 2.0**48
"""Largest noise scale, in steps, at which every draw fits into 64 bits."""

_FINE_BITS = 33  # bits of the noise scale on the fine lattice


class Distribution(Choice):
    """The distribution of the noise added to a value."""

    LAPLACE = "laplace"
    """For one number; less noise than Gaussian for a few releases."""

    GAUSSIAN = "gaussian"
    """For a vector, and for numbers when very many releases share a budget."""

    def deviation(self, scale: float) -> float:
        """The standard deviation of noise of this scale."""
        return math.sqrt(2) * scale if self is Distribution.LAPLACE else scale


@runtime_checkable
class Noise(Protocol):
    """A source of noise."""

    def of_test(self, test: MarginTest) -> int:
        """Draw the noise of a test once."""
        ...

    def of_value(self, distribution: Distribution, scale: float, size: int) -> list[int]:
        """Draw `size` integers: discrete Laplace of this scale, or rounded Gaussian of this σ."""
        ...

    def integer(self, bound: int) -> int:
        """Draw one of 0, ..., bound - 1, each with the same probability."""
        ...


class SecureNoise:
    """OpenDP's exact samplers with the operating system's randomness. Use it for all releases."""

    def __init__(self) -> None:
        _extras.require("The noise of a release", "opendp")

    def of_test(self, test: MarginTest) -> int:
        """See `Noise`."""
        return int(_sampler(checked_test(test), test.scale)([0])[0])

    def of_value(self, distribution: Distribution, scale: float, size: int) -> list[int]:
        """See `Noise`."""
        if not 0 < scale <= LARGEST_SCALE:
            raise ValueError(
                f"Expected noise of at most 2**48 steps of the lattice, got {nearest(scale)}. "
                "Propose more, or give narrower bounds."
            )
        if distribution is Distribution.LAPLACE:
            return _sampler(DiscreteLaplaceTest, scale)([0] * size)  # type: ignore[no-any-return]
        finer = max(0, _FINE_BITS - math.frexp(scale)[1] + 1)
        drawn = _sampler(DiscreteGaussianTest, math.ldexp(scale, finer))([0] * size)
        half = (1 << finer) >> 1
        return [(each + half) >> finer for each in drawn]

    def integer(self, bound: int) -> int:
        """See `Noise`."""
        return secrets.randbelow(bound)


def source_of(noise: Noise | None) -> Noise:
    """The source that is asked for, the operating system's for None; call it before a charge."""
    if noise is None:
        return SecureNoise()
    allowed = "a source of noise, such as prudent.release.SecureNoise(), or None"
    if isinstance(noise, type):  # a class has the methods of its instances
        raise ArgumentError("noise", allowed, shown=f"the class {noise.__name__}")
    return _validate.instance(Noise, allowed, noise=noise)


class ReproducibleNoise:
    """The same distributions from a seeded generator. NOT PRIVATE: the seed reveals the noise.

    Use it for tests, and for rehearsals on public data.
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(_validate.count(seed=seed))

    def of_test(self, test: MarginTest) -> int:
        """See `Noise`."""
        if checked_test(test) is DiscreteLaplaceTest:
            return self.of_value(Distribution.LAPLACE, test.scale, 1)[0]
        reach = DiscreteGaussianTest(test.scale).reach
        values = np.arange(-reach, reach + 1)
        weights = np.exp(-0.5 * (values / test.scale) ** 2)
        return int(self._generator.choice(values, p=weights / weights.sum()))

    def of_value(self, distribution: Distribution, scale: float, size: int) -> list[int]:
        """See `Noise`."""
        if distribution is Distribution.LAPLACE:
            one, other = self._generator.geometric(-math.expm1(-1 / scale), (2, size)).tolist()
            return [left - right for left, right in zip(one, other, strict=True)]
        return [round(draw) for draw in self._generator.normal(0.0, scale, size).tolist()]

    def integer(self, bound: int) -> int:
        """See `Noise`."""
        size = bound.bit_length()
        while True:  # the leading bits of whole bytes, drawn again until they are below the bound
            drawn = int.from_bytes(self._generator.bytes((size + 7) // 8), "big") >> (-size % 8)
            if drawn < bound:
                return drawn


def checked_test(test: MarginTest) -> type[MarginTest]:
    """Return the class of a test whose noise can be drawn exactly; raise ValueError otherwise."""
    for kind in (DiscreteLaplaceTest, DiscreteGaussianTest):
        if isinstance(test, kind):
            return kind
    raise ArgumentError(
        "test",
        "a DiscreteLaplaceTest or a DiscreteGaussianTest, whose noise is drawn exactly",
        got=test,
    )


@functools.lru_cache(maxsize=64)
def _sampler(kind: type[MarginTest], scale: float) -> Any:
    """OpenDP's measurement on vectors of 64-bit integers: independent draws in one call.

    It takes the scale as an exact fraction.
    """
    with _extras.needed("The noise of a release"):
        from opendp.domains import atom_domain, vector_domain  # not its prelude, which imports all
        from opendp.measurements import make_gaussian, make_laplace
        from opendp.metrics import l1_distance, l2_distance
        from opendp.mod import enable_features
    enable_features("contrib")
    domain = vector_domain(atom_domain(T="i64"))
    if kind is DiscreteLaplaceTest:
        return make_laplace(domain, l1_distance(T="i64"), scale=scale)
    return make_gaussian(domain, l2_distance(T="f64"), scale=scale)


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

    # Noise scale (Laplace) or standard deviation (Gaussian), divided by s.
    multiplier: float = attrs.field(validator=by(_validate.positive))
    distribution: Distribution = attrs.field(
        default=Distribution.LAPLACE, validator=by(_validate.one_of, list(Distribution))
    )

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


ONE = 2**128
"""The denominator of all probabilities."""

_DIGITS = 50


@attrs.frozen(kw_only=True, slots=False)
class PartitionSelection:
    """An (ε, δ)-DP choice of the groups that occur, optimal for adding or removing one unit.

    Guarantee:
        `select` has the privacy of `event`, if a unit has records in one group only, at most
        `records` of them. Their number divided by `records`, rounded up, changes by at most 1.

    Attributes:
        epsilon: ε of the choice.
        delta: δ of the choice: also the probability with which a group of one unit is kept.
        records: The largest number of records of one privacy unit.
    """

    epsilon: float = attrs.field(validator=by(_validate.between, 1e-4, 50))
    delta: float = attrs.field(validator=by(_validate.small_delta, 1e-18, ends="[)"))
    records: int = attrs.field(default=1, validator=by(_validate.count, 1))

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of the choice."""
        return ApproximateDpEvent(self.epsilon, self.delta)

    @cached_property
    def chances(self) -> tuple[int, ...]:
        """π(0), π(1), …, each times 2**128; the last is 2**128, and so are all after it."""
        ratio, delta = self._ratio, int(Fraction(self.delta) * ONE)
        chances = [0]
        while chances[-1] < ONE:
            last = chances[-1]
            often = last * ratio.numerator // ratio.denominator + delta
            rest = max(0, ONE - last - delta)
            rare = ONE - -(-rest * ratio.denominator // ratio.numerator)
            chances.append(min(often, rare, ONE))
        return tuple(chances)

    @property
    def _ratio(self) -> Fraction:
        """A rational number below e^ε by at most a few parts in 10**49."""
        context = decimal.Context(prec=_DIGITS, rounding=decimal.ROUND_HALF_EVEN)
        rounded = context.exp(decimal.Decimal(self.epsilon))
        return Fraction(rounded) * (1 - Fraction(1, 10 ** (_DIGITS - 2)))

    def chance(self, records: int) -> int:
        """The probability, times 2**128, that a group with so many records is kept."""
        units = -(-records // self.records)
        return self.chances[min(units, len(self.chances) - 1)]

    def needed(self, probability: float = 0.5) -> int:
        """The number of records from which on a group is kept with this probability at least."""
        wanted = Fraction(_validate.between(0, 1, ends="(]", probability=probability)) * ONE
        units = next(place for place, chance in enumerate(self.chances) if chance >= wanted)
        return (units - 1) * self.records + 1

    def select(self, counts: Mapping[Hashable, int], noise: Noise) -> list[Hashable]:
        """Return the groups that are kept, in their own order.

        Args:
            counts: The number of records of each group that occurs.
            noise: Source of randomness.
        """
        return [
            group
            for group in sorted(counts, key=in_order)
            if noise.integer(ONE) < self.chance(counts[group])
        ]
