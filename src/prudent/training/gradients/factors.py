"""The two operations on kept factors, norm and weighted sum, as single operations on a GPU.

An operation of its own is what a traced program keeps as it is: a compiler would compute what the
sum needs of a factor together with the factor itself, in the forward pass, and keep both.

Single-precision factors are truncated to TF32 as they are read, which makes their products exact;
see `products`. What a record adds to the weighted sum is computed from its own factors alone, in
the same order whatever stands beside it, and records are added up in double precision.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from prudent.training.gradients import kernels
from prudent.training.gradients.products import (
    aligned,
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
    return (
        rows.dtype == columns.dtype
        and rows.dtype in (torch.float32, torch.bfloat16)
        and rows.shape[2] > 1
        and kernels.fuses(rows, columns, even_traced=True)
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
    """Σᵢ wᵢ rowsᵢᵀ columnsᵢ over the records; see `kernels.record_sums`."""
    return kernels.record_sums(rows, columns, weights)


@factor_sums.register_fake
def _(rows: Tensor, columns: Tensor, scales: Sequence[float]) -> Tensor:
    large = _is_large(rows, columns)
    count = kernels.PARTIAL_SUMS if large else kernels.tile_pairs(rows.shape[2])
    return rows.new_empty(*rows.shape[:2], count, 4, dtype=torch.float32)


@weighted_product.register_fake
def _(rows: Tensor, columns: Tensor, weights: Tensor) -> Tensor:
    return weights.new_empty(rows.shape[0], rows.shape[3], columns.shape[3])


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
