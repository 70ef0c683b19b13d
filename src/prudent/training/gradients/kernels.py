"""Triton kernels for what a step does to every layer, each in one pass over memory.

Without them the same is done by torch's operations, each a launch and a pass of its own; a compiled
step fuses those by itself. See `fuses`.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode

TILE = 64
"""Positions of a block of `factor_sums`."""
ADDED = 1 << 10
"""Products that `record_sums` adds in a row in single precision; `norms` allows for rounding."""
PARTIAL_SUMS = 16
"""Number of partial sums that `gram_sums` leaves to be added, so that many programs can work."""
_LARGE_MATRIX = 1 << 24
_AT_ONCE = 64  # positions of a record that `record_sums` reads in one step


def fuses(*values: Tensor, even_traced: bool = False) -> bool:
    """Whether the kernels take these tensors: on a GPU, contiguous, and not being traced.

    Args:
        values: The tensors.
        even_traced: Whether the kernel is an operation of its own, which a traced program keeps.
    """
    return (
        all(each.is_cuda and each.is_contiguous() for each in values)
        and (_get_current_dispatch_mode() is None or (even_traced and get_proxy_mode() is not None))
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


def record_sums(rows: Tensor, columns: Tensor, weights: Tensor) -> Tensor:
    """Σᵢ wᵢ rowsᵢᵀ columnsᵢ over the records, which are added up in double precision.

    Single-precision factors are truncated to TF32 as they are read. What is not finite is zero.

    Args:
        rows: Shape (groups, records, positions, size), contiguous, in single precision or bfloat16.
        columns: The same type, with a size of its own.
        weights: One per record, in double precision.

    Returns:
        Shape (groups, size of rows, size of columns).
    """
    from prudent.training.gradients import triton_kernels as triton

    groups, records, positions, height = rows.shape
    width = columns.shape[3]
    parts = 2 if rows.dtype == torch.float32 else 1
    if parts == 2:
        rows, columns = _short_parts(rows), _short_parts(columns)
    at_once = positions <= _AT_ONCE
    if at_once:
        tall, wide, depth, programs = 64, 64, max(16, 1 << (positions - 1).bit_length()), 1056
    elif height * width < _LARGE_MATRIX:
        tall, wide, depth, programs = 64, 64, 64, 528
    else:
        tall, wide, depth, programs = 64, 128, 64, 264
    tiles = groups * -(-height // tall) * -(-width // wide)
    share = -(-records // max(1, min(records, programs // tiles)))
    shares = -(-records // share)
    sums = weights.new_empty(shares, groups, height, width)
    with torch.cuda.device(rows.device):
        triton.record_sums[tiles, shares](
            rows, columns, weights, sums, records, share, positions, height, width,
            parts, at_once, tall, wide, depth, ADDED // (2 * parts - 1) // depth * depth,
            num_warps=4, num_stages=4 if at_once else 3,
        )  # fmt: skip
    return sums[0] if shares == 1 else sums.sum(0)


def _short_parts(factor: Tensor) -> Tensor:
    """The two bfloat16 parts of every record of a factor truncated to TF32, one after the other."""
    from prudent.training.gradients import triton_kernels as triton

    groups, records, positions, width = factor.shape
    parts = factor.new_empty(groups, records, 2 * positions, width, dtype=torch.bfloat16)
    size = positions * width
    with torch.cuda.device(factor.device):
        triton.short_parts[groups * records, triton.pieces(size)](factor, parts, size)
    return parts


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
