"""What rounding costs: in the sensitivity of a clipped sum, and in the low bits of a noisy one.

A weight is the clip divided by a norm, and both the norm and the sum of weighted gradients are
computed in floating point. So a record can move the *computed* sum by a little more than the clip.
The noise of a step is therefore larger by a factor 1 + η, and the price stays that of the clip:
its noise multiplier is at least the one that is charged.

Noisy sums are rounded to a public lattice. Numbers computed as sum + noise in floating point can
reveal the sum by their low bits (Mironov 2012; for Gaussian noise Jin et al. 2022): which floats
are reachable depends on the sum. So a noisy sum is rounded to multiples of a public power of two,
the spacing, between 1/16 and 1/8 of the standard deviation of the noise. The noise makes the
rounding unbiased (to 1e-500), and rounding adds at most 0.13 % to the variance.

Guarantee:
    *Norms.* Let u be half the distance from 1 to the next number of the parameters' type (2⁻²⁴ for
    float32). Adding m squares in any order has a relative error of at most mu/(1 − mu), and the
    square root halves it. A norm is computed over runs of fewer than 2,048 numbers, then over at
    most P/1,024 runs, then over the parameters, K in number; a norm of factors is the product of
    two such norms. So it is too small by a factor of at most 1 + u (2 (2,048 + P/1,024) + K + 32),
    for P numbers in all. (Sums of products that cancel have an allowance of their own; `norms`.)

    *Sums* over records are in double precision. Added up are first the n rows of a chunk, times the
    T positions of a record, in any order, then the chunks. Let N be the records of the batch. The
    error of a sum is at most (nT + 2) 2⁻⁵³ times the sum of the
    lengths of all terms. A term is at most the clip for T = 1; for larger T the allowance in the
    norms, which is a share of at least 8ε of the square of that sum, for a machine precision ε,
    makes it at most 1/√(8ε) clips for each record: 1,024 in float32, 2.4·10⁷ in float64. Two
    neighbouring sums have two such errors, together at most `SUMS` clips as long as

        N n ≤ 4.5·10¹² for T = 1,
        N n T ≤ 4.3·10⁹ for T > 1 in float32,
        N n T ≤ 1.8·10⁵ for T > 1 in float64:

    two million records in one chunk of vectors, or 4,096 records of 256 positions in one chunk, or
    16,384 in chunks of 1,024. In float64, whose short allowance proves little about terms that
    cancel, 64 records of 40 positions.

    *Runs in single precision*: on a GPU, with factors in bfloat16 or TF32 and T > 1, a kernel first
    adds at most 1,024 products of one record by tensor cores, with the factors of TF32 in two parts
    of which the product of the smaller ones is left out. Of tensor cores it is assumed that k
    additions have an error of at most k 2⁻²³ of the sum of the absolute values, which leaves room
    for sums that are truncated and not rounded. What a run adds is then a number of this record
    alone, whatever stands beside it, and its length exceeds the norm by a factor of at most
    √(1 + 10⁻³), half of `SUMS` (`norms`). For T ≤ 1,024 it is one term, no longer than the clip, so
    the other half covers N n ≤ 2.2·10¹²; for larger T it covers N n T ≤ 2.1·10⁹.

    *The lattice.* Were the noise an exact Gaussian, rounding would be post-processing and cost
    nothing. `rounded` differs from that ideal only where rounding errors move a number across a
    boundary between two lattice points. `with_rounding` bounds what this adds to ε and δ.

    *One pair.* Let u = 2⁻⁵³ and let X be the ideal pair of normals, of radius r, that the random
    bits stand for (bits continued at random give a real number). Suppose that logarithms, cosines
    and sines are accurate to 2 units in the last place, which CUDA, SLEEF and the C libraries in
    use state for double precision; other operations are IEEE 754. If the uniform number of the pair
    is at least 2⁻⁷⁴, each computed coordinate, with the rounding of its sum, is within
    η(r) = (16 r + 6/r + 1)u of X, in standard deviations. 6/r is the error of the uniform number
    near 1, the rest relative errors. The integer part of sum/spacing is set aside before the noise
    is added, so that η does not grow with the sum.

    *One cell.* Let g = spacing/σ. The lattice points of a pair are squares of side g. An ideal pair
    in the square shrunk by η lands in it, and none outside the square enlarged by η does. The
    normal density changes by a factor of at most e^(gr) over a side, so the probability Q of a
    square differs from its ideal probability P by a factor 1 + e with |e| ≤ κ(r) = 4 (η/g) e^(gr).
    Next to the origin, where η is not small against r, the strips along the four sides have area at
    most 4 · 450u, so |e| ≤ 1858u/g² for squares that reach into r < g/2; these lie in r < 2g.

    *All pairs.* Under the ideal distribution the e of successive pairs have mean 0 given the past,
    |e| ≤ M and E e² ≤ χ². The log-likelihood ratio of real and ideal run on the same data is the
    sum of log(1 + e); by Bernstein's inequality it exceeds λ, in either direction, with a
    probability of at most δ₁, λ = √(2nχ²L) + (2/3)ML + nM², L = log(1/δ₁), n pairs. Uniform numbers
    below 2⁻⁷⁴ occur with a probability of at most n 2⁻⁷⁴. Replace the real run by the ideal one on
    both data sets: if the ideal run is (ε, δ)-DP, the real run is (ε + 2λ, e^λ δ + (1 + e^(ε+2λ))
    δ₂)-DP with δ₂ = δ₁ + n 2⁻⁷⁴.

    *Correlated noise* (`noise`). Let w be the noises as computed; they are numbers that no
    data decide. Then c₀wₜ + c₁wₜ₋₁ + … is z up to the rounding of b products and sums of this step
    alone: errors do not add up over steps. Each coordinate is within
    η(r) + (b + 3) (r + |wₜ₋₁| + … + |wₜ₋ₖ|) u of an ideal normal, and a cell has c₀ times its side.
    For b ≤ 64, c₀ is at least 1/3 and a noise has a standard deviation of at most 5, so that the
    mean square of e, and with it λ, grows by a factor below 2·10³: λ stays below 10⁻³ for 10¹⁰
    numbers drawn.
"""

import functools
import math

import numpy as np
import torch
from torch import Tensor

from prudent import _validate

SUMS = 1e-3
"""What the rounding of sums may add to the sensitivity, in clips."""

_RUN = 2048
_LEVEL = 1024


def noise_factor(numbers: int, parameters: int, dtype: torch.dtype) -> float:
    """1 + η, by which the noise on a sum is larger than that of the plan.

    Args:
        numbers: Numbers in a gradient.
        parameters: Tensors that they are in.
        dtype: The type of norms and parameters.
    """
    unit = torch.finfo(dtype).eps / 2
    norms = unit * (2 * (_RUN + numbers / _LEVEL) + parameters + 32)
    return (1 + SUMS) * (1 + norms)


_UNIT = 2.0**-53
_COARSENESS = 3  # the spacing is the power of two at or below σ, divided by 2 to this power
_LEAST_EXPONENT = 64  # of a deviation, biased: below 1e-288 nothing is computed correctly
_TAIL = 1e-20  # δ₁
_RARE = 2.0**-74


def spacing_of(deviation: Tensor) -> Tensor:
    """The spacing of the lattice for a standard deviation, both in double precision.

    It is computed from the bits of the deviation, so that all devices get the same.
    """
    exponent = (deviation.view(torch.int64) >> 52).clamp_min(_LEAST_EXPONENT)
    return ((exponent - _COARSENESS) << 52).view(torch.float64)


def rounded(total: Tensor, normals: Tensor, deviation: Tensor, spacing: Tensor) -> Tensor:
    """Return `total` + `normals` × `deviation`, rounded to a multiple of `spacing`, a power of two.

    All but the sums are in double precision. A deviation of 0 returns the sums themselves.
    """
    place = total.to(torch.float64) / spacing
    whole = place.round()  # place - whole is exact
    moved = (normals * (deviation / spacing)).add_(place.sub_(whole)).round_()
    return torch.where(deviation > 0, moved.add_(whole).mul_(spacing), total)


def with_rounding(epsilon: float, delta: float, *, numbers: int) -> tuple[float, float]:
    """The (ε, δ) of a run with computed noise, given that of the ideal run.

    Args:
        epsilon: ε with exact Gaussian noise, as accountants compute it.
        delta: δ likewise.
        numbers: Normals drawn in the whole run: trained parameters times steps.
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.between(0, 1, delta=delta)
    pairs = -(-_validate.count(numbers=numbers) // 2)
    mean_square, largest = _relative_errors()
    doubt = -math.log(_TAIL)
    spread = math.sqrt(2 * pairs * mean_square * doubt) + 2 / 3 * largest * doubt
    ratio = spread + pairs * largest**2 if pairs else 0.0
    accidents = pairs * _RARE + (_TAIL if pairs else 0.0)
    spent = epsilon + 2 * ratio
    # An ε this large has no meaning left, and its exponential no finite value.
    factor = 1 + math.exp(spent) if spent < 700 else math.inf
    rest = math.exp(ratio) * delta + (factor * accidents if accidents else 0.0)
    return spent, min(1.0, rest)


@functools.cache
def _relative_errors() -> tuple[float, float]:
    """χ² and M of this module's proof, for the worst spacing."""
    worst, largest = 0.0, 0.0
    edge = math.sqrt(2)  # a square of side g reaches over at most √2 g
    radius = np.linspace(0, 10.2, 20_001)
    for g in (1 / 16, 1 / 12, 1 / 8):
        far = radius + edge * g
        eta = 16 * far + 6 / np.maximum(radius - edge * g, g / 2) + 1
        relative = 4 * eta * _UNIT / g * np.exp(g * far)
        near = 1858 * _UNIT / g**2
        density = radius * np.exp(-(radius**2) / 2)
        mean = float(np.trapezoid(relative**2 * density, radius)) + near**2 * 2 * g**2
        worst, largest = max(worst, mean), max(largest, near, float(relative.max()))
    # A percent for the quadrature and for terms of second order.
    return 1.01 * worst, 1.01 * largest
