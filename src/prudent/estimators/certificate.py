"""How many bad records the slopes of a regression withstand.

Suppose that some records of the table are bad, or that some are missing. How far are the slopes
from those without the bad ones, or with the missing ones? The theorem is about a statistic of the
table, with all that was released before held fixed: the standardisation of columns, the whitening
root P, the weights of rows and the limit c. (Bad records have a say in these as well; but whatever
they made of them, the statistic of the good records is near the answer.) Let g̃ᵢ be the
whitened row of record i, weighted by wᵢ as its residual rᵢ(θ) = wᵢ(tᵢ - fᵢᵀPθ) is, and gᵢ = sᵢ g̃ᵢ
that row clipped to the reach R, sᵢ in (0, 1]. The statistic is the θ* that minimises the convex
function L(θ) = Σ sᵢ ℓ(rᵢ(θ)), where ℓ' = ψ is bounded by b, and ψ' = m on |r| <= c: the loss of
Huber for least squares, the smoothed check loss for quantiles. Its gradient is -F(θ), with
F(θ) = Σ gᵢ ψ(rᵢ(θ)), the sum of which each round of a fit releases one.

Theorem:
    Let θ̂ be released, ρ > 0, and A = Σ gᵢgᵢᵀ over the records with |rᵢ(θ̂)| + ρ|g̃ᵢ| <= c. If
    (λ(A) - kR²) m ρ > |F(θ̂)| + kRb, λ being the least eigenvalue, then in every table that differs
    by adding or removing at most k records, |θ* - θ̂| <= ρ.

Proof:
    For |θ - θ̂| <= ρ, a record of A has |rᵢ(θ)| <= |rᵢ(θ̂)| + |g̃ᵢᵀ(θ - θ̂)| <= c, so there its part
    of the Hessian of L is m sᵢ g̃ᵢg̃ᵢᵀ ⪰ m gᵢgᵢᵀ, and that of any other record is ⪰ 0. In the other
    table at most k records of A are missing, each of which takes at most R² from λ(A); and F(θ̂)
    differs by at most kRb. So along any ray from θ̂ the derivative of L, at the distance ρ, is at
    least (λ(A) - kR²) m ρ - |F(θ̂)| - kRb > 0. L is convex, so it has its minimum within ρ. ∎

A penalty adds a convex function whose gradient at θ̂ is known, so it is added to F(θ̂). Slope a is
a linear function of θ: it moves by at most |Pₐ|ρ. F(θ̂) and A are released with noise, at a price
that is part of the model's. What noise and rounding to the grid may hide is allowed for: with
probability 95 % over the noise, the number of records is not too large.
"""

import math
from collections.abc import Callable

import attrs
import numpy as np

from prudent._rounding import exact, percent
from prudent.estimators.engine import LONGEST, SumEngine, lengths
from prudent.estimators.features import Whitening
from prudent.release.lattice import FloatArray

CONFIDENCE = 0.95
"""Probability, over the noise, with which a certificate is right, at least."""

# With probability 1 - exp(-x²/2) a Gaussian vector of d unit coordinates is at most √d + x long,
# and a symmetric matrix with unit variances off the diagonal and 2 on it at most 2√d + √2 x.
_BEYOND = math.sqrt(2 * math.log(3 / (1 - CONFIDENCE)))


@attrs.frozen(kw_only=True)
class SlopeBasis:
    """The released numbers that a certificate follows from, with which it can be computed again."""

    gradient: FloatArray  # F(θ̂) and the gradient of a penalty, with noise
    curvature: FloatArray  # A, with noise
    count: float  # the noisy number of records
    multipliers: tuple[float, ...]  # the noise of these three, over what one record can change
    root: FloatArray  # the whitening root P
    reach: float  # R
    bound: float  # the largest |ψ|, b
    slope: float  # its slope m up to the limit
    hidden: float  # what rounding hides of one record; see `rounding`


@attrs.frozen
class SlopeCertificate:
    """A number of bad records that the slopes of a regression withstand.

    Attributes:
        records: So many records can be removed or added, whichever they are, and each slope of the
            regression, with its clipping as it was released, is within `tolerance` of the answer.
        tolerance: In scales of the target per scale of a column, as they were released.
        basis: The released numbers that it follows from.
        confidence: Probability with which this holds, at least, over the noise.
    """

    records: int
    tolerance: float
    basis: SlopeBasis = attrs.field(eq=False, repr=False)
    confidence: float = CONFIDENCE

    def __str__(self) -> str:
        return (
            f"Up to {self.records:,} records may be bad or missing: the slopes of this regression, "
            f"clipped alike, without the bad or with the missing ones are within "
            f"{exact(self.tolerance)} deviations of the target per deviation of a column "
            f"(confidence {percent(self.confidence)})."
        )


@attrs.frozen
class Pull:
    """How a record pulls: a function ψ of its residual."""

    limit: float  # up to here ψ is linear
    bound: float  # the largest |ψ|
    slope: float  # the slope of ψ up to the limit
    of: Callable[[FloatArray], FloatArray]  # the function


def certify(
    engine: SumEngine,
    whitening: Whitening,
    residuals: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
    pull: Pull,
    *,
    tolerance: float,
    penalty: FloatArray,
    count: float,
) -> SlopeCertificate:
    """Release the gradient and the curvature at a released model, and what they certify."""
    radius = radius_of(whitening, tolerance)
    reach, width = whitening.reach, len(whitening.root)
    hidden = rounding(whitening)

    def pairs(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
        steps, errors = residuals(rows)
        return whitening.rows(steps), pull.of(errors)[:, None]

    def inner(rows: FloatArray) -> FloatArray:
        steps, errors = residuals(rows)
        whitened = whitening.rows(steps)
        longest = lengths(whitened) * (1 + (math.sqrt(width) + 2) / LONGEST) + reach * hidden
        safe = np.abs(errors) + radius * longest <= pull.limit * (1 - 1e-6)
        return np.asarray(np.where(safe[:, None], whitened, 0.0))

    gradient = engine.cross("gradient", pairs, (reach, pull.bound))[:, 0] - penalty
    moment = engine.second_moment("curvature", inner, reach)
    most = count + _BEYOND * engine.deviation("count")
    noise = engine.deviation("gradient") * (math.sqrt(width) + _BEYOND)
    size = float(np.linalg.norm(gradient)) + reach * pull.bound * (noise + most * hidden)
    noise = engine.deviation("curvature") * (math.sqrt(2 * width) + _BEYOND)
    least = float(np.linalg.eigvalsh(moment)[0]) - reach**2 * (noise + most * hidden)
    basis = SlopeBasis(
        gradient=gradient,
        curvature=moment,
        count=count,
        multipliers=tuple(map(engine.deviation, ("gradient", "curvature", "count"))),
        root=whitening.root,
        reach=reach,
        bound=pull.bound,
        slope=pull.slope,
        hidden=hidden,
    )
    return SlopeCertificate(withstood(least, size, radius, reach, pull), tolerance, basis)


def rounding(whitening: Whitening) -> float:
    """What rounding hides of one record at most, in the reach and the bound on its pull.

    In every coordinate a row is rounded by half a step before it is whitened, which may lengthen
    that error, and by half a step after it; a pull is off by two steps at most.
    """
    stretch = whitening.radius * float(np.linalg.norm(whitening.root, 2)) / whitening.reach
    return float((math.sqrt(len(whitening.root)) * (1 + stretch) + 2) / LONGEST)


def radius_of(whitening: Whitening, tolerance: float) -> float:
    """How far a model may move, in whitened coordinates, with no slope moving farther.

    Where no level of a category was found there is no slope; then it is about the intercept.
    """
    slopes = whitening.root[1:] if len(whitening.root) > 1 else whitening.root
    return tolerance / float(lengths(slopes).max())


def withstood(least: float, size: float, radius: float, reach: float, pull: Pull) -> int:
    """The largest k of the theorem, from λ(A), |F(θ̂)| and the radius."""
    room = least * pull.slope * radius - size
    each = reach * pull.bound + reach**2 * pull.slope * radius
    return max(0, math.ceil(room / each) - 1)
