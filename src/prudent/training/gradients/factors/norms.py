"""Upper bounds on the norms of per-example gradients, computed from their factors."""

import math
from collections.abc import Sequence
from functools import cache
from typing import cast

import torch
from torch import Tensor

from prudent.training.gradients.factors.contributions import (
    Contribution,
    Dense,
    Outer,
    Routed,
    TableRows,
    by_record,
    factor_sums,
    joined,
    taken,
)
from prudent.training.gradients.factors.kernels import ADDED, fuses, gram_sums, row_squares
from prudent.training.gradients.factors.products import (
    Product,
    aligned,
    at_least_single,
    precise_product,
    whole_products,
)

_RUN = 1 << 10
_limits = cache(torch.finfo)  # made anew, it takes as long as an operation
STRETCH = 1e-3
"""θ²: what a kernel adds up in single precision is at most √(1 + θ²) times the norm."""


class SquaredNorms:
    """Adds up the squared norms of parameters, with few operations for all of them together.

    Small gradients, rows of tables and the terms of factors are kept and reduced together at the
    end.
    """

    def __init__(self) -> None:
        self._squares: list[Tensor] = []
        self._rows: list[Tensor] = []
        self._small: dict[torch.dtype, list[Dense]] = {}
        self._terms: dict[torch.Size, list[Tensor]] = {}
        self._tables: dict[tuple[object, ...], list[TableRows]] = {}

    def add(self, contributions: Sequence[Contribution]) -> None:
        """Add the squared norm of the sum of all contributions to one parameter."""
        match contributions:
            case [Dense() as gradient] if is_small(gradient):
                self._small.setdefault(gradient.values.dtype, []).append(gradient)
            case [Dense() as gradient] if _is_added(gradient.values):
                self._rows.append(row_squares(by_record(gradient.values)))
            case [Dense() as gradient]:
                self._squares.append(inner(gradient, gradient))
            case [Outer() as factors] if _cancels(factors):
                terms = gram_terms(factors)
                self._terms.setdefault(terms.shape[1:], []).append(terms)
            case [TableRows() as table] if table.is_joined:
                self._tables.setdefault(table.kind, []).append(table)
            case _:
                self._squares.append(squared_norms(contributions))

    def total(self, losses: Tensor) -> Tensor:
        """The sum of all that were added, one number per loss."""
        squares = [at_least_single(torch.zeros_like(losses)), *self._squares]
        for small in map(joined, self._small.values()):
            if _is_added(small):
                self._rows.append(row_squares(small))
            else:
                squares.append(lengths(small).square())
        if self._rows:  # in double precision, of which the last digits of the norms have room
            squares.append(torch.cat(self._rows, 1).sum(1).to(squares[0].dtype))
        squares += [torch.add(*_of_terms(torch.cat(terms))) for terms in self._terms.values()]
        squares += [_of_tables(tables) for tables in self._tables.values()]
        return added(squares)


def _of_tables(tables: Sequence[TableRows]) -> Tensor:
    """The squared norms of tables of one shape, as of one table with that many times the records.

    Only rows of one record are compared, so it does not matter that tables share their indices.
    """
    indices, values = (
        torch.cat([getattr(table, side) for table in tables]) for side in ("indices", "values")
    )
    squares = squared_norms([TableRows(indices, values, tables[0].count)])
    return squares.view(len(tables), -1).sum(0)


def _is_added(values: Tensor) -> bool:
    """Whether a kernel adds up the squares of these gradients."""
    return values.dtype == torch.float32 and bool(values.numel()) and fuses(values)


def is_small(gradient: Dense) -> bool:
    """Whether to copy a gradient next to others to save operations: on a GPU those cost more."""
    return gradient.values.shape[1:].numel() <= (1 << 14 if gradient.values.is_cuda else 1 << 8)


@whole_products()
def squared_norms(contributions: Sequence[Contribution]) -> Tensor:
    """An upper bound on ‖Σ contributions‖² per record, including cross terms of tied parameters.

    A gradient may be short because large products cancel. The computed sum is then dominated by
    rounding and may be far below the true value, or negative; and a record with a norm that is too
    small would get a weight that is too large. So an allowance for the rounding error is added: a
    small fraction of the value that the sum would have without cancellation.
    """
    squares, allowances = zip(*map(_square, contributions), strict=True)
    total = added(squares)
    for index, first in enumerate(contributions):
        for second in contributions[:index]:
            total = total + 2 * inner(first, second)
    if len(contributions) == 1 and not _cancels(contributions[0]):
        return total
    return _not_negative(total) + added([each.sqrt() for each in allowances]).square()


def _not_negative(squares: Tensor) -> Tensor:
    """Zero for what rounding left below it; what overflowed, also to −∞, stays not finite."""
    return squares.clamp_min(0) + 0 * squares


def added(terms: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape."""
    return terms[0] if len(terms) == 1 else torch.stack(list(terms)).sum(0)


def inner(first: Contribution, second: Contribution) -> Tensor:
    """Inner products ⟨first, second⟩ of the gradients of each record, shape (records,)."""
    match first, second:
        case Dense(), _ if first is second:
            return lengths(by_record(first.values)).square()
        case Outer(), Outer() if first.rows.shape[0] == second.rows.shape[0]:
            # A short product would cut the factors of a use that keeps them whole.
            product = first.multiplied if first.product is second.product else precise_product
            rows = _products(first.cut(first.rows), second.cut(second.rows), product)
            columns = first.cut(first.unfolded())
            others = columns if first is second else second.cut(second.unfolded())
            return (rows * _products(columns, others, product)).sum((0, 2, 3))
        case TableRows(), TableRows():
            same = first.indices[:, :, None] == second.indices[:, None, :]
            return torch.where(same, _products(first.values, second.values), 0).sum((1, 2))
        case TableRows(), Outer() if second.rows.shape[0] == 1:
            columns = _products(first.values, second.cut(second.unfolded()[0]))
            indices = first.indices[:, :, None].expand(columns.shape)
            gathered = second.rows[0].transpose(1, 2).gather(1, indices)
            rows = at_least_single(second.cut(gathered))
            return (rows * columns).sum((1, 2))
        case Outer(), TableRows():
            return inner(second, first)
        case _:
            return by_record(first.per_example() * second.per_example()).sum(1)


def _cancels(contribution: Contribution) -> bool:
    """Whether the norm is computed as a sum of products that may cancel."""
    match contribution:
        case Outer():
            return contribution.rows.shape[2] > 1
        case TableRows():
            return contribution.indices.shape[1] > 1
        case _:
            return False


def _square(contribution: Contribution) -> tuple[Tensor, Tensor]:
    """‖g‖² per record, and an allowance for the rounding error in it."""
    match contribution:
        case Outer() if _cancels(contribution):
            return _of_terms(gram_terms(contribution))
        case Outer():
            factors = [contribution.cut(x) for x in (contribution.rows, contribution.unfolded())]
            sides = [lengths(at_least_single(factor)) for factor in factors]
            square = (sides[0] * sides[1]).square().sum((0, 2))
            return square, _allowance(square, 1) + _lost(sides, [x.shape[-1] for x in factors])
        case TableRows() if _cancels(contribution):
            each = lengths(contribution.values)
            same = contribution.indices[:, :, None] == contribution.indices[:, None, :]
            reach = torch.where(same, each[:, :, None] * each[:, None, :], 0).sum((1, 2))
            terms = contribution.values.shape[-1]
            return inner(contribution, contribution), _allowance(reach, terms)
        case Routed():
            square = contribution.squared_norms()
            return square, _allowance(square, 1)
        case _:
            square = inner(contribution, contribution)
            return square, _allowance(square, 1)


@whole_products()
def gram_terms(factors: Outer) -> Tensor:
    """Four sums per record that give ‖g‖² of factors and the allowance for its rounding.

    ‖Σₜ rowₜ ⊗ columnₜ‖² is the sum of the entrywise product of two matrices, of the inner products
    of all rows and of all columns. The other three are over positions: of ‖rowₜ‖·‖columnₜ‖ times
    the square root of the allowance, and of either length times the root of what may underflow.

    Returns:
        Shape (groups, records, partial sums, 4), to be summed over the third axis.
    """
    unfolded = factors.unfolded()
    if factors.short is not None and taken(factors.rows, unfolded):
        sizes = factors.rows.shape[-1], unfolded.shape[-1]
        return factor_sums(factors.rows, unfolded, _scales(factors, torch.float32, sizes))
    rows, columns = factors.cut(factors.rows), factors.cut(unfolded)
    # Added positions are zero and change no sum.
    left, right = (
        _products(x, x, factors.multiplied) for x in (aligned(rows, -2), aligned(columns, -2))
    )
    scales = _scales(factors, left.dtype, (rows.shape[-1], columns.shape[-1]))
    if left.dtype == torch.float32 and fuses(left, right):
        flat = gram_sums(left.flatten(0, 1), right.flatten(0, 1), scales)
        return flat.view(*left.shape[:2], *flat.shape[1:])
    sides = [x.diagonal(dim1=-2, dim2=-1).sqrt() for x in (left, right)]
    sums = [(left * right).sum((2, 3)), (sides[0] * sides[1]).sum(-1), *(x.sum(-1) for x in sides)]
    scaled = [sums[0], *(x * scale for x, scale in zip(sums[1:], scales, strict=True))]
    return torch.stack(scaled, -1)[:, :, None]


def _scales(factors: Outer, dtype: torch.dtype, sizes: tuple[int, int]) -> list[float]:
    """Factors of the last three sums of `gram_terms`, for numbers of each factor per position.

    A kernel that sums short factors adds `ADDED` products in a row, with an error of at most that
    many times 2⁻²³ of the sum of their lengths, L, and leaves out products of parts that are at
    most 2⁻⁹ of their numbers: together e. With a share of e²/(θ²L²) of L² in a squared norm, and
    θ² = `STRETCH`, the norm plus e is at most √(1 + θ²) times what is reported.
    """
    summed = (ADDED * 2.0**-23 + 2.0**-18) ** 2 / STRETCH if factors.short else 0.0
    allowed = _share(dtype, sum(sizes)) + summed
    tiny = torch.finfo(dtype).tiny
    return [math.sqrt(allowed), math.sqrt(tiny * sizes[1]), math.sqrt(tiny * sizes[0])]


def _of_terms(terms: Tensor) -> tuple[Tensor, Tensor]:
    """‖g‖² per record, and the allowance, from the terms of all groups."""
    terms = terms.sum(2)
    return _not_negative(terms[..., 0]).sum(0), terms[..., 1:].square().sum((0, 2))


def _allowance(reach: Tensor, terms: int) -> Tensor:
    """An allowance for the rounding error of sums of `terms` products of total size `reach`."""
    return _share(reach.dtype, terms) * reach


def _share(dtype: torch.dtype, terms: int) -> float:
    """The allowance as a share of the sum of absolute values.

    Rounding errors of n additions grow like √n. The factor leaves room for errors that are biased
    to one side, as with equal numbers, and for the sums of sums, which are added pairwise.
    """
    return 8 * torch.finfo(dtype).eps * math.sqrt(terms)


def _lost(sides: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """An allowance for products that are too small for their type and underflow to zero.

    Such products arise in one factor of a gradient, while the other factor may be large.
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
    lost = math.sqrt(vectors.shape[-1] * _limits(vectors.dtype).tiny)
    norm, count = torch.linalg.vector_norm, vectors.shape[-1] // _RUN
    if count > 1:
        pieces, rest = vectors[..., : count * _RUN], vectors[..., count * _RUN :]
        pieces = pieces.reshape(*pieces.shape[:-1], count, _RUN)
        vectors = torch.cat([norm(pieces, dim=-1), norm(rest, dim=-1, keepdim=True)], -1)
    return cast(Tensor, norm(vectors, dim=-1)) + lost


def _products(first: Tensor, second: Tensor, product: Product = precise_product) -> Tensor:
    """Inner products of all pairs of positions: (..., T, size), (..., S, size) to (..., T, S)."""
    if first.shape[-2] == second.shape[-2] == 1:
        return (at_least_single(first) * second).sum(-1, keepdim=True)
    other = second.transpose(-1, -2)
    # On the CPU a batched product with a transposed right side can cost several copies.
    return product(first, other.contiguous() if other.device.type == "cpu" else other)
