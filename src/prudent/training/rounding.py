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

    *Sums in double precision*: on a CPU always, on a GPU with `double_sums`. Added up are first the
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

    *Sums in single precision*: on a GPU the rows of one chunk are otherwise added in single
    precision, in an order that the library chooses, and only the chunks in double precision. In any
    order the error is at most (n + 2) u times the sum of the lengths of all terms, so for T = 1 two
    neighbours are within `SUMS` clips as long as N (n + 2) ≤ 8,388: 90 records at once, or 512 in
    chunks of 14. For T > 1, for larger batches, and for bfloat16 and TF32 factors, since tensor
    cores do not round every sum to the nearest, no useful bound is proved. What was found, with
    equal gradients chosen to round badly, is 2·10⁻⁴ clips for a chunk of 4,096 records, a fifth of
    what the noise allows, and 3·10⁻³ for one of 65,536: keep physical batches to 8,192, or ask for
    `double_sums`.
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
