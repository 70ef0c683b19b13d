"""Upper bounds on the norms of per-example gradients, computed from their factors."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from prudent.training.gradients.contributions import (
    Contribution,
    Dense,
    Outer,
    Product,
    Rows,
    at_least_single,
    by_record,
    precise_product,
)
from prudent.training.gradients.precision import whole_products

_RUN = 1 << 10


@whole_products()
def squared_norms(contributions: Sequence[Contribution]) -> Tensor:
    """An upper bound on ‖Σ contributions‖² per record, including cross terms of tied parameters.

    A gradient may be short because large products cancel. The computed sum is then dominated by
    rounding and may be far below the true value, or negative; and a record with a norm that is too
    small would get a weight that is too large. So an allowance for the rounding error is added: a
    small fraction of the value that the sum would have without cancellation.
    """
    squares, doubts = zip(*map(_square, contributions), strict=True)
    total = torch.stack(squares).sum(0)
    for index, first in enumerate(contributions):
        for second in contributions[:index]:
            total = total + 2 * inner(first, second)
    if len(contributions) == 1 and not _cancels(contributions[0]):
        return total
    return total.clamp_min(0) + torch.stack([doubt.sqrt() for doubt in doubts]).sum(0).square()


def inner(first: Contribution, second: Contribution) -> Tensor:
    """Inner products ⟨first, second⟩ of the gradients of each record, shape (records,)."""
    match first, second:
        case Dense(), _ if first is second:
            return lengths(by_record(first.values)).square()
        case Outer(), Outer() if first.rows.shape[0] == second.rows.shape[0]:
            rows = _products(first.rows, second.rows, first.product)
            columns = first.unfolded()
            others = columns if first is second else second.unfolded()
            return (rows * _products(columns, others, first.product)).sum((0, 2, 3))
        case Rows(), Rows():
            same = first.indices[:, :, None] == second.indices[:, None, :]
            return torch.where(same, _products(first.values, second.values), 0).sum((1, 2))
        case Rows(), Outer() if second.rows.shape[0] == 1:
            columns = _products(first.values, second.unfolded()[0])
            indices = first.indices[:, :, None].expand(columns.shape)
            rows = at_least_single(second.rows[0].transpose(1, 2).gather(1, indices))
            return (rows * columns).sum((1, 2))
        case Outer(), Rows():
            return inner(second, first)
        case _:
            return by_record(first.per_example() * second.per_example()).sum(1)


def _cancels(contribution: Contribution) -> bool:
    """Whether the norm is computed as a sum of products that may cancel."""
    match contribution:
        case Outer():
            return contribution.rows.shape[2] > 1
        case Rows():
            return contribution.indices.shape[1] > 1
        case Dense():
            return False


def _square(contribution: Contribution) -> tuple[Tensor, Tensor]:
    """‖g‖² per record, and an allowance for the rounding error in it."""
    match contribution:
        case Outer() if _cancels(contribution):
            rows, columns = contribution.rows, contribution.unfolded()
            sizes = rows.shape[-1], columns.shape[-1]
            left, right = (_products(x, x, contribution.product) for x in (rows, columns))
            sides = [x.diagonal(dim1=-2, dim2=-1).sqrt() for x in (left, right)]
            reach = (sides[0] * sides[1]).sum(-1).square().sum(0)
            return (left * right).sum((0, 2, 3)), _doubt(reach, sum(sizes)) + _lost(sides, sizes)
        case Outer():
            factors = contribution.rows, contribution.unfolded()
            sides = [lengths(at_least_single(factor)) for factor in factors]
            square = (sides[0] * sides[1]).square().sum((0, 2))
            return square, _doubt(square, 1) + _lost(sides, [x.shape[-1] for x in factors])
        case Rows() if _cancels(contribution):
            each = lengths(contribution.values)
            same = contribution.indices[:, :, None] == contribution.indices[:, None, :]
            reach = torch.where(same, each[:, :, None] * each[:, None, :], 0).sum((1, 2))
            terms = contribution.values.shape[-1]
            return inner(contribution, contribution), _doubt(reach, terms)
        case _:
            square = inner(contribution, contribution)
            return square, _doubt(square, 1)


def _doubt(reach: Tensor, terms: int) -> Tensor:
    """An allowance for the rounding error of sums of `terms` products of total size `reach`.

    Rounding errors of n additions grow like √n. The factor leaves room for errors that are biased
    to one side, as with equal numbers, and for the sums of sums, which are added pairwise.
    """
    return 8 * torch.finfo(reach.dtype).eps * math.sqrt(terms) * reach


def _lost(sides: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """An allowance for products that are too small for their type and underflow to zero.

    Such products arise in one factor of a gradient, while the other factor may be large.

    Args:
        sides: Lengths of both factors at each position, (groups, records, positions).
        sizes: Number of entries that each factor has per position.
    """
    tiny = torch.finfo(sides[0].dtype).tiny
    sums = [
        (x * math.sqrt(tiny * n)).sum(-1).square() for x, n in zip(sides, sizes[::-1], strict=True)
    ]
    return (sums[0] + sums[1]).sum(0)


def lengths(vectors: Tensor) -> Tensor:
    """An upper bound on the L2 norms over the last axis, computed piecewise.

    The norm is that of the norms of short pieces. On the CPU, torch's norm adds squares
    sequentially, which loses a thousandth for ten million values, and far more for equal ones; a
    bound must not. Squares that underflow are zero; as much as they may have been is added.
    """
    lost = math.sqrt(vectors.shape[-1] * torch.finfo(vectors.dtype).tiny)
    return _lengths(vectors) + lost


def _lengths(vectors: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm
    count = vectors.shape[-1] // _RUN
    if count < 2:
        return cast(Tensor, norm(vectors, dim=-1))
    pieces, rest = vectors[..., : count * _RUN], vectors[..., count * _RUN :]
    pieces = pieces.reshape(*pieces.shape[:-1], count, _RUN)
    norms = torch.cat([norm(pieces, dim=-1), norm(rest, dim=-1, keepdim=True)], -1)
    return cast(Tensor, norm(norms, dim=-1))


def _products(first: Tensor, second: Tensor, product: Product = precise_product) -> Tensor:
    """Inner products of all pairs of positions: (..., T, size), (..., S, size) to (..., T, S)."""
    if first.shape[-2] == second.shape[-2] == 1:
        return (at_least_single(first) * second).sum(-1, keepdim=True)
    other = second.transpose(-1, -2)
    # On the CPU a batched product with a transposed right side can cost several copies.
    return product(first, other.contiguous() if other.device.type == "cpu" else other)
