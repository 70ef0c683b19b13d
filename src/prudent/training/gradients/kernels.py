"""Triton kernels for what a step does to every layer, each in one pass over memory.

Without them the same is done by torch's operations, each a launch and a pass of its own; a compiled
step fuses those by itself. See `fuses`.
"""

from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

PARTIAL_SUMS = 16
"""Number of partial sums that `gram_sums` leaves to be added, so that many programs can work."""


def fuses(*values: Tensor) -> bool:
    """Whether the kernels take these tensors: on a GPU, contiguous, and not being traced."""
    return (
        all(each.is_cuda and each.is_contiguous() for each in values)
        and _get_current_dispatch_mode() is None
        and _work(values[0].device)
    )


@cache
def _work(device: torch.device) -> bool:
    """Whether Triton is there and its kernels run on a device."""
    try:
        ones = torch.ones(1, 2, 2, device=device)
        return bool(gram_sums(ones, ones, (1.0, 1.0, 1.0)).sum() == 10)
    except Exception:  # no Triton, no compiler for it, an unsupported device
        return False


def gram_sums(left: Tensor, right: Tensor, scales: tuple[float, float, float]) -> Tensor:
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


def weighted_parts(factor: Tensor, weights: Tensor, short: torch.dtype) -> tuple[Tensor, Tensor]:
    """The two short parts of a factor times the weight of its record; zero where not finite.

    Args:
        factor: Shape (groups, records, ...), in bfloat16 or single precision.
        weights: One per record, in single precision.
        short: The type of the parts: bfloat16, or float32 for numbers truncated to TF32.
    """
    from prudent.training.gradients import triton_kernels as triton

    groups, records = factor.shape[:2]
    first = torch.empty_like(factor, dtype=short)
    second = torch.empty_like(first)
    size = factor[0, 0].numel()
    with torch.cuda.device(factor.device):
        triton.weighted_parts[triton.pieces(size), groups * records](
            factor, weights, first, second, size, records, short == torch.float32
        )
    return first, second


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
