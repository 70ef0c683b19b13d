"""The two operations on kept factors, norm and weighted sum, as single operations on a GPU.

An operation of its own is what a traced program keeps as it is: a compiler would compute what the
sum needs of a factor together with the factor itself, in the forward pass, and keep both.

Single-precision factors are truncated to TF32 as they are read, which makes their products exact;
see `products`. Their weighted sum is computed by products of bfloat16 numbers, several times as
fast: a truncated number is the sum of two of them, b₁ + b₂, and a weighted one is a₁ + a₂ up to
`LEFT_OUT` of it, so that the sum of all four products leaves out no more than that.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode

from prudent.training.gradients import kernels
from prudent.training.gradients.products import (
    aligned,
    finite,
    short_product,
    shortened,
    summed_in_single,
)

PIECE = 1 << 26
"""Numbers of a factor that are copied at a time; bounds the extra memory of a product."""
_LARGE = 1 << 13
"""Sizes from which inner products are faster by a library's product, after a copy."""


def taken(rows: Tensor, columns: Tensor) -> bool:
    """Whether the operations here take these factors: on a GPU, in single precision or bfloat16."""
    pair = rows, columns
    return (
        rows.dtype == columns.dtype
        and rows.dtype in (torch.float32, torch.bfloat16)
        and rows.shape[2] > 1
        and all(each.is_cuda and each.is_contiguous() for each in pair)
        and (_get_current_dispatch_mode() is None or get_proxy_mode() is not None)
        and kernels.work_on(rows.device)
    )


@torch.library.custom_op("prudent::factor_sums", mutates_args=())
def factor_sums(rows: Tensor, columns: Tensor, scales: Sequence[float]) -> Tensor:
    """The sums of `norms.gram_terms`.

    Args:
        rows: Shape (groups, records, positions, size).
        columns: The same, with a size of its own.
        scales: Factors of the last three sums.

    Returns:
        Shape (groups, records, partial sums, 4), to be summed over the third axis.
    """
    left, right = (factor.contiguous().flatten(0, 1) for factor in (rows, columns))
    if _is_large(rows, columns):
        sums = kernels.gram_sums(_inner_products(left), _inner_products(right), scales)
    else:
        sums = kernels.factor_sums(left, right, scales)
    return sums.view(*rows.shape[:2], *sums.shape[1:])


@torch.library.custom_op("prudent::weighted_product", mutates_args=())
def weighted_product(rows: Tensor, columns: Tensor, weights: Tensor) -> Tensor:
    """Σᵢ wᵢ rowsᵢᵀ columnsᵢ over the records, in single precision.

    Args:
        rows: Shape (groups, records, positions, size).
        columns: The same, with a size of its own.
        weights: One per record, in single precision. A record of weight zero adds nothing even if
            it is not finite.

    Returns:
        Shape (groups, size of rows, size of columns).
    """
    records = rows.shape[1]
    step = max(1, records * PIECE // max(1, rows.numel(), columns.numel()))
    total: Tensor | None = None
    for start in range(0, records, step):
        piece = slice(start, start + step)
        factors = rows[:, piece].contiguous(), columns[:, piece].contiguous()
        for left, right in _short_pairs(*factors, weights[piece].contiguous()):
            added = summed_in_single(left.mT, right)
            total = added if total is None else total.add_(added)
    assert total is not None, "an engine is never run on no records"
    return total


@factor_sums.register_fake
def _(rows: Tensor, columns: Tensor, scales: Sequence[float]) -> Tensor:
    large = _is_large(rows, columns)
    count = kernels.PARTIAL_SUMS if large else kernels.tile_pairs(rows.shape[2])
    return rows.new_empty(*rows.shape[:2], count, 4, dtype=torch.float32)


@weighted_product.register_fake
def _(rows: Tensor, columns: Tensor, weights: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], rows.shape[3], columns.shape[3], dtype=torch.float32)


def _is_large(rows: Tensor, columns: Tensor) -> bool:
    return max(rows.shape[3], columns.shape[3]) > _LARGE


def _inner_products(factor: Tensor) -> Tensor:
    """Inner products of all pairs of positions; added positions are zero and change no sum."""
    if factor.dtype == torch.bfloat16:
        factor = aligned(factor, -2)
        return summed_in_single(factor, factor.mT)
    products = []
    for piece in torch.split(factor, max(1, len(factor) * PIECE // factor.numel())):
        short = aligned(shortened(piece), -2)
        products.append(short_product(short, short.mT))
    return torch.cat(products)


def _short_pairs(rows: Tensor, columns: Tensor, weights: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of bfloat16 factors, with records and positions on one axis, whose products add up."""
    swaps = columns.numel() < rows.numel()  # the smaller factor is weighted
    scaled, other = (columns, rows) if swaps else (rows, columns)
    if rows.dtype == torch.float32:
        # a₁, a₂ and a₁ again: next to b₁, b₂ are both the first two and the last two.
        three, two = kernels.stacked_parts(scaled, weights), kernels.stacked_parts(other, None)
        count = two.shape[1]
        pairs = [(three[:, :count], two), (three[:, -count:], two)]
    else:
        whole = finite(other).flatten(1, 2)
        found = kernels.weighted_parts(scaled, weights)
        pairs = [(part.flatten(1, 2), whole) for part in found]
    for pair in pairs:
        yield pair[::-1] if swaps else pair
