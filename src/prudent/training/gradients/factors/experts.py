"""Layers of experts: matrices of which each position of a record is multiplied by one.

Positions are sorted by their expert, record by record, as `torch.nn.functional.grouped_mm` wants
them: `ends` holds, for every record, the number of positions up to and including each expert. Those
beyond the last are multiplied by no matrix, and their result is zero.

The gradient of a record is, for every expert, the sum of the products of both factors over the
positions of that expert. On a GPU a kernel forms it in pieces, once for the norm and once for the
sum, in the same order: both see the same numbers.
"""

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from prudent.training.gradients.factors import kernels
from prudent.training.gradients.factors.products import (
    ALIGNED,
    at_least_single,
    finite,
    precise_product,
)


def experts_at(ends: Tensor, positions: int) -> Tensor:
    """The expert of every position, shape (..., positions); their number beyond the last end."""
    places = torch.arange(positions, device=ends.device)
    return (places[:, None] >= ends[..., None, :]).sum(-1)


@attrs.frozen
class Routed:
    """Gradients of matrices: position t of a record adds rowsₜ ⊗ columnsₜ to that of its expert."""

    rows: Tensor  # the factor along the first axis of each matrix, (records, positions, size)
    columns: Tensor  # the same along its second axis
    ends: Tensor  # where the positions of each expert end, (records, experts)

    @property
    def experts(self) -> Tensor:
        """The expert of every position of every record."""
        return experts_at(self.ends, self.rows.shape[1])

    def per_example(self) -> Tensor:
        """The gradients, one per record, of shape (records, experts, size, size)."""
        count = self.ends.shape[1]
        chosen = self.experts[..., None] == torch.arange(count, device=self.ends.device)
        rows = at_least_single(self.rows)[:, :, None] * chosen[..., None]
        product = precise_product(rows.flatten(2).mT, at_least_single(self.columns))
        return product.view(len(product), count, -1, product.shape[2])

    def of_people(self, slots: int) -> "Routed":
        """The same for every `slots` consecutive records as one."""
        experts = self.experts.view(-1, slots * self.rows.shape[1])
        order = experts.argsort(dim=1, stable=True)[..., None]
        rows, columns = (
            factor.reshape(*experts.shape, -1).take_along_dim(order, 1)
            for factor in (self.rows, self.columns)
        )
        return Routed(rows, columns, self.ends.view(len(rows), slots, -1).sum(1))

    @property
    def _is_taken(self) -> bool:
        """Whether the kernels take the factors."""
        same = self.rows.dtype == self.columns.dtype
        short = self.rows.dtype in (torch.float32, torch.bfloat16)
        return same and short and kernels.fuses(self.rows, self.columns)

    def squared_norms(self) -> Tensor:
        """‖g‖² of each record; elsewhere than on a GPU of gradients in double precision."""
        if self._is_taken:
            squares = kernels.routed_squares(self.rows, self.columns, self.ends.contiguous())
        else:
            records = zip(self.rows.double(), self.columns.double(), self.ends, strict=True)
            each = (Routed(*(x[None] for x in record)).per_example() for record in records)
            squares = torch.stack([gradient.square().sum() for gradient in each])
        return squares.to(at_least_single(self.rows).dtype)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σᵢ wᵢ gᵢ, added up in double precision; what is not finite counts as zero."""
        weights = weights.double()
        if self._is_taken:
            return kernels.routed_sums(self.rows, self.columns, self.ends.contiguous(), weights)
        weighted = finite(self.rows.double() * weights[:, None, None]).flatten(0, 1)
        columns = finite(self.columns.double()).flatten(0, 1)
        order, sizes = _by_expert(self.ends, self.rows.shape[1])
        parts = zip(*(torch.split(x[order], sizes) for x in (weighted, columns)), strict=True)
        return torch.stack([left.mT @ right for left, right in list(parts)[:-1]])


def _by_expert(ends: Tensor, positions: int) -> tuple[Tensor, list[int]]:
    """The positions of all records by expert, and the number of each; last those of none."""
    experts = experts_at(ends, positions).flatten()
    counted = torch.bincount(experts, minlength=ends.shape[1] + 1)
    return experts.argsort(stable=True), counted.tolist()


def grouped_product(values: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Each position of `values`, (records, positions, size), times the matrix of its expert."""
    # No view of another tensor: models add a bias to it in place.
    result = values.new_empty(*values.shape[:2], matrices.shape[2])
    flat, by_position = values.reshape(-1, values.shape[2]), result.view(-1, matrices.shape[2])
    aligned = values.shape[2] % ALIGNED == matrices.shape[2] % ALIGNED == 0
    short = values.is_cuda and values.dtype == torch.bfloat16 and aligned
    if short and hasattr(functional, "grouped_mm"):
        experts = experts_at(ends, values.shape[1]).flatten()
        order = experts.argsort(stable=True)
        grouped = functional.grouped_mm(flat[order], matrices, offs=ends.sum(0, dtype=torch.int32))
        by_position.index_copy_(0, order, grouped)
        by_position.masked_fill_((experts == ends.shape[1])[:, None], 0)
    else:
        order, sizes = _by_expert(ends, values.shape[1])
        *own, beyond = torch.split(flat[order], sizes)
        products = [part @ matrix for part, matrix in zip(own, matrices, strict=True)]
        products.append(values.new_zeros(len(beyond), matrices.shape[2]))
        by_position.index_copy_(0, order, torch.cat(products))
    return result


class Experts(Function):
    """`grouped_product` with the factors of its per-example gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor | None,
        values: Tensor,
        matrices: Tensor,
        ends: Tensor,
        transposed: bool,
        use: Callable[[Routed], None] | None,
    ) -> Tensor:
        """Multiply; `transposed` means that the parameter is stored as transposed matrices."""
        ctx.save_for_backward(values if use else None, matrices, ends)
        ctx.transposed, ctx.use = transposed, use
        return grouped_product(values, matrices, ends)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Pass the gradient to the input and both factors to the parameter."""
        values, matrices, ends = ctx.saved_tensors
        gradient = gradients[0].to(matrices.dtype)
        if ctx.use:
            rows, columns = (gradient, values) if ctx.transposed else (values, gradient)
            ctx.use(Routed(rows.contiguous(), columns.contiguous(), ends))
        passed = grouped_product(gradient, matrices.mT, ends) if ctx.needs_input_grad[1] else None
        return None, passed, *[None] * 4


def one_by_one(mat_a: Tensor, mat_b: Tensor, *, offs: Tensor, **options: Any) -> Tensor:
    """`grouped_mm` of a record by products with all matrices, for which vmap has a rule."""
    experts = torch.arange(len(mat_b), device=mat_b.device)
    chosen = experts_at(offs, len(mat_a))[:, None] == experts
    return torch.einsum("te,ti,eio->to", chosen.to(mat_a.dtype), mat_a, mat_b)


def histogram(
    call: Callable[..., Any], input: Tensor, bins: int = 100, min: float = 0, max: float = 0
) -> Tensor:
    """`torch.histc` between public bounds, for which vmap has no rule."""
    if min == max:
        counts: Tensor = call(torch.histc, input, bins, min, max)
        return counts
    place = ((input - min) * (bins / (max - min))).floor().clamp(0, bins - 1).long().flatten()
    inside = ((input >= min) & (input <= max)).flatten()
    return torch.zeros_like(input.flatten()[:1].expand(bins)).scatter_add(
        0, place, inside.to(input.dtype)
    )
