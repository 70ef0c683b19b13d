"""What rounding can add to the sensitivity of a clipped sum, and the noise that pays for it.

A weight is the clip divided by a norm, and both the norm and the sum of weighted gradients are
computed in floating point. So a record can move the *computed* sum by a little more than the clip.
The noise of a step is therefore larger by a factor 1 + η, and the price stays that of the clip:
its noise multiplier is at least the one that is charged.

Guarantee:
    *Norms.* Let u be half the distance from 1 to the next number of the parameters' type (2⁻²⁴ for
    float32). Adding m squares in any order has a relative error of at most mu/(1 − mu), and the
    square root halves it. A norm is computed over runs of fewer than 2,048 numbers, then over at
    most P/1,024 runs, then over the parameters, K in number; a norm of factors is the product of
    two such norms. So it is too small by a factor of at most 1 + u (2 (2,048 + P/1,024) + K + 32),
    for P numbers in all. (Sums of products that cancel have an allowance of their own; `norms`.)

    *Sums* over records are in double precision. Added up are first the
    n rows of a chunk, times the T positions of a record, in any order, then the chunks. Let N be
    the records of the batch. The error of a sum is at most (nT + 2) 2⁻⁵³ times the sum of the
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
    adds at most 1,024 products of one record by tensor cores. Of these it is assumed that k
    additions have an error of at most k 2⁻²³ of the sum of the absolute values, which leaves room
    for sums that are truncated and not rounded. What a run adds is then a number of this record
    alone, whatever stands beside it, and its length exceeds the norm by a factor of at most
    √(1 + 10⁻³), half of `SUMS` (`norms`). For T ≤ 1,024 it is one term, no longer than the clip, so
    the other half covers N n ≤ 2.2·10¹²; for larger T it covers N n T ≤ 2.1·10⁹.
"""

import torch

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
