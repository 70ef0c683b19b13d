"""Triton kernels for what a step does to every layer, each in one pass over memory.

Without them the same is done by torch's operations, each a launch and a pass of its own; a compiled
step fuses those by itself. See `fuses`.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

TILE = 64
"""Positions of a block of `factor_sums`."""
PARTIAL_SUMS = 16
"""Number of partial sums that `gram_sums` leaves to be added, so that many programs can work."""


def fuses(*values: Tensor) -> bool:
    """Whether the kernels take these tensors: on a GPU, contiguous, and not being traced."""
    return (
        all(each.is_cuda and each.is_contiguous() for each in values)
        and _get_current_dispatch_mode() is None
        and work_on(values[0].device)
    )


@cache
def work_on(device: torch.device) -> bool:
    """Whether Triton is there and its kernels run on a device."""
    try:
        ones = torch.ones(1, 2, 2, device=device)
        right = bool(gram_sums(ones, ones, (1.0, 1.0, 1.0)).sum() == 10)
        # Rows longer than what is added up at once: their inner products are 2304, and 2.
        sums = factor_sums(torch.ones(1, 2, 2304, device=device), ones, (1.0, 1.0, 1.0)).sum(1)
        inner = gram_sums(2304 * ones, 2 * ones, (1.0, 1.0, 1.0)).sum(1)
        return right and torch.allclose(sums, inner)
    except Exception:  # no Triton, no compiler for it, an unsupported device
        return False


def gram_sums(left: Tensor, right: Tensor, scales: Sequence[float]) -> Tensor:
    """Sums over two batches of matrices of inner products; see `norms.gram_terms`.

    Args:
        left: Single precision, of shape (batch, positions, positions).
        right: The same.
        scales: Factors of the last three sums.

    Returns:
        Shape (batch, PARTIAL_SUMS, 4), to be summed over the second axis.
    """
    from prudent.training.gradients import triton_kernels as triton

    batch, positions, _ = left.shape
    sums = left.new_empty(batch, PARTIAL_SUMS, 4)
    with torch.cuda.device(left.device):
        triton.gram_sums[(batch, PARTIAL_SUMS)](left, right, sums, positions, *scales)
    return sums


def factor_sums(rows: Tensor, columns: Tensor, scales: Sequence[float]) -> Tensor:
    """The same sums of the inner products of all rows and of all columns, which are not stored.

    Single-precision factors are truncated to TF32 as they are read.

    Args:
        rows: Shape (batch, positions, size), contiguous, in single precision or bfloat16.
        columns: The same type, with a size of its own.
        scales: Factors of the last three sums.

    Returns:
        Shape (batch, `tile_pairs`, 4), to be summed over the second axis.
    """
    from prudent.training.gradients import triton_kernels as triton

    batch, positions, height = rows.shape
    pairs = tile_pairs(positions)
    sums = torch.empty(batch, pairs, 4, device=rows.device)
    cuts = rows.dtype == torch.float32
    with torch.cuda.device(rows.device):
        triton.factor_sums[(pairs * batch,)](
            rows,
            columns,
            sums,
            positions,
            height,
            columns.shape[2],
            *scales,
            pairs,
            cuts,
            TILE,
            **(triton.LONG_NUMBERS if cuts else triton.SHORT_NUMBERS),
        )
    return sums


def tile_pairs(positions: int) -> int:
    """Partial sums that `factor_sums` leaves to be added, one per pair of blocks of positions."""
    blocks = -(-positions // TILE)
    return blocks * (blocks + 1) // 2


def weighted_parts(factor: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The two bfloat16 parts of a factor times the weight of its record; zero where not finite.

    Args:
        factor: Shape (groups, records, ...), contiguous, in bfloat16.
        weights: One per record, in single precision.
    """
    from prudent.training.gradients import triton_kernels as triton

    groups, records = factor.shape[:2]
    first, second = torch.empty_like(factor), torch.empty_like(factor)
    size = factor[0, 0].numel()
    with torch.cuda.device(factor.device):
        triton.weighted_parts[(triton.pieces(size) * groups * records,)](
            factor, weights, first, second, size, records
        )
    return first, second


def stacked_parts(factor: Tensor, weights: Tensor | None) -> Tensor:
    """The two bfloat16 parts of a factor truncated to TF32, one after the other.

    They are zero where the factor, or a part of it, is not finite.

    Args:
        factor: Shape (groups, records, positions, size), contiguous, in single precision.
        weights: One per record, to be multiplied first. The first part then follows once more.

    Returns:
        Shape (groups, 2 or 3 times records · positions, size).
    """
    from prudent.training.gradients import triton_kernels as triton

    groups, records, positions, width = factor.shape
    count = 2 if weights is None else 3
    stack = factor.new_empty(groups, count * records * positions, width, dtype=torch.bfloat16)
    size = positions * width
    with torch.cuda.device(factor.device):
        triton.stacked_parts[(triton.pieces(size) * groups * records,)](
            factor, weights, stack, size, records, count
        )
    return stack


def norm_gradients(
    gradient: Tensor, values: Tensor, mean: Tensor, scale: Tensor, shape: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Sums over the positions of a record: of gradient · normalised value, and of the gradient.

    Args:
        gradient: Of the scaled values, by record, then by position.
        values: The same; normalised by (value − mean) · scale.
        mean: One per position.
        scale: The same.
        shape: Number of records, and of values per position.

    Returns:
        Both of the given shape, in single precision.
    """
    from prudent.training.gradients import triton_kernels as triton

    records, size = shape
    positions = values.numel() // (records * size)
    slopes = torch.empty(shape, device=values.device)
    shifts = torch.empty_like(slopes)
    with torch.cuda.device(values.device):
        triton.norm_gradients[records, triton.columns(size)](
            gradient, values, mean, scale, slopes, shifts, positions, size
        )
    return slopes, shifts
