"""Integer noise drawn by OpenDP, with exactly the distribution that the accounting assumes.

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
"""

import functools
import math
import secrets
from typing import Any, Protocol, runtime_checkable

import numpy as np

from prudent import _extras, _validate
from prudent._rounding import nearest
from prudent._validate import ArgumentError, Choice
from prudent.accounting import DiscreteGaussianTest, DiscreteLaplaceTest, MarginTest

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
        from opendp.mod import enable_features
    enable_features("contrib")
    from opendp.domains import atom_domain, vector_domain  # not its prelude, which imports all
    from opendp.measurements import make_gaussian, make_laplace
    from opendp.metrics import l1_distance, l2_distance

    domain = vector_domain(atom_domain(T="i64"))
    if kind is DiscreteLaplaceTest:
        return make_laplace(domain, l1_distance(T="i64"), scale=scale)
    return make_gaussian(domain, l2_distance(T="f64"), scale=scale)
