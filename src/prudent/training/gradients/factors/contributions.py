"""What one use of a parameter contributes to the per-example gradients, without forming them.

For a layer that multiplies by a matrix, the gradient of a record is Σₜ rowₜ ⊗ columnₜ over
positions; an embedding adds a row per token; everything else is small enough to be formed.

Factors in bfloat16 are kept as such; if the layers may use TF32, they are truncated to it as they
are read. Norm and weighted sum are both computed from these same numbers, whose products are exact
(`products`). So the contribution of a record to the sum has at most weight times the reported norm,
up to rounding, whatever the layer itself rounded. It is computed from the record's own factors
alone, in the same order whatever stands beside it; sums over records are in double precision.

Several uses of one parameter are merged to few contributions: the norm of their sum takes one
matrix product instead of the inner products of all pairs.
Experts are matrices of which each position of a record is multiplied by one. Positions are sorted
by their expert, record by record, as `torch.nn.functional.grouped_mm` wants them: `ends` holds, for
every record, the number of positions up to and including each expert. Those beyond the last are
multiplied by no matrix, and their result is zero. The gradient of a record is, for every expert,
the sum of the products of both factors over its positions. On a GPU a kernel forms it in pieces,
once for the norm and once for the sum, in the same order: both see the same numbers.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn import functional

from prudent.training.gradients.factors import kernels
from prudent.training.gradients.factors.kernels import fuses, weighted_rows
from prudent.training.gradients.factors.products import (
    ALIGNED,
    Product,
    aligned,
    at_least_single,
    cut_product,
    finite,
    multiplies_short,
    precise_product,
    short_product,
    shortened,
    summed_in_single,
    whole_products,
)


def experts_at(ends: Tensor, positions: int) -> Tensor:
    """The expert of every position, shape (..., positions); their number beyond the last end."""
    places = torch.arange(positions, device=ends.device)
    return (places[:, None] >= ends[..., None, :]).sum(-1)


def ends_within(ends: Tensor, positions: int) -> Tensor:
    """The ends that a model computed, in order and within the record: kernels read up to them."""
    return ends.clamp(0, positions).cummax(-1).values


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

    def _formed(self) -> Iterator[Tensor]:
        """The gradient of each record in double precision: norm and sum see the same numbers."""
        for record in zip(self.rows.double(), self.columns.double(), self.ends, strict=True):
            yield Routed(*(part[None] for part in record)).per_example()[0]

    def squared_norms(self) -> Tensor:
        """‖g‖² of each record."""
        if taken(self.rows, self.columns):
            squares = kernels.routed_squares(self.rows, self.columns, self.ends.contiguous())
        else:
            squares = torch.stack([gradient.square().sum() for gradient in self._formed()])
        return squares.to(at_least_single(self.rows).dtype)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σᵢ wᵢ gᵢ, added up in double precision; what is not finite counts as zero."""
        weights = weights.double()
        if taken(self.rows, self.columns):
            return kernels.routed_sums(self.rows, self.columns, self.ends.contiguous(), weights)
        weighted = map(torch.mul, self._formed(), weights)
        return functools.reduce(torch.add, map(finite, weighted))


def grouped_product(values: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
    """Each position of `values`, (records, positions, size), times the matrix of its expert."""
    # No view of another tensor: models add a bias to it in place.
    result = values.new_zeros(*values.shape[:2], matrices.shape[2])
    aligned = values.shape[2] % ALIGNED == matrices.shape[2] % ALIGNED == 0
    if (
        values.is_cuda
        and values.dtype == torch.bfloat16
        and aligned
        and hasattr(functional, "grouped_mm")
    ):
        flat, by_position = values.reshape(-1, values.shape[2]), result.view(-1, matrices.shape[2])
        experts = experts_at(ends, values.shape[1]).flatten()
        order = experts.argsort(stable=True)
        grouped = functional.grouped_mm(flat[order], matrices, offs=ends.sum(0, dtype=torch.int32))
        by_position.index_copy_(0, order, grouped)
        by_position.masked_fill_((experts == ends.shape[1])[:, None], 0)
        return result
    # How a library adds up a product may depend on the number of rows, so each record has its own.
    for record, own in enumerate(ends.tolist()):
        for first, end, matrix in zip([0, *own[:-1]], own, matrices, strict=True):
            result[record, first:end] = values[record, first:end] @ matrix
    return result


def one_by_one(mat_a: Tensor, mat_b: Tensor, *, offs: Tensor, **options: Any) -> Tensor:
    """`grouped_mm` of a record by products with all matrices, for which vmap has a rule."""
    experts = torch.arange(len(mat_b), device=mat_b.device)
    chosen = experts_at(ends_within(offs, len(mat_a)), len(mat_a))[:, None] == experts
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
        and kernels.fuses(rows, columns)
    )


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
    if max(rows.shape[3], columns.shape[3]) > _LARGE:
        sums = kernels.gram_sums(_inner_products(left), _inner_products(right), scales)
    else:
        sums = kernels.factor_sums(left, right, scales)
    return sums.view(*rows.shape[:2], *sums.shape[1:])


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


Form = Callable[[Tensor], Tensor]
_SMALL_MATRIX = 1 << 16
_FEW_ROWS = 1 << 20  # numbers in them
_CONVERTED = {"cpu": 1 << 20}  # numbers converted to a wider type, or unfolded, at a time
_CONVERTED_ELSEWHERE = 1 << 24


def as_it_is(gradient: Tensor) -> Tensor:
    """The identity, for a gradient that already has the shape of its parameter."""
    return gradient


@attrs.frozen
class Dense:
    """Per-example gradients that are held in memory."""

    values: Tensor  # the gradients, with records along the first axis
    form: Form = as_it_is  # maps (..., *shape of one value) to (..., *parameter shape)

    def per_example(self) -> Tensor:
        """The gradients, one per record."""
        return self.form(self.values)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σᵢ wᵢ gᵢ; a record of weight zero contributes zero even where it is not finite."""
        return weighted_sums([self], weights)[0]


@whole_products()
def weighted_sums(gradients: Sequence[Dense], weights: Tensor) -> list[Tensor]:
    """The weighted sum of each, in double precision, computed as one product over all of them."""
    flat, weights = joined(gradients), weights.double()
    if flat.dtype == torch.float32 and flat.numel() and fuses(flat, weights):
        total = weighted_rows(flat, weights)
    else:
        size = (
            flat.shape[1] if flat.dtype == weights.dtype else _converted(flat) // max(1, len(flat))
        )
        parts = torch.split(flat, max(1, size), 1)
        sums = [_finite_product(weights[None], part.to(weights.dtype))[0] for part in parts]
        total = sums[0] if len(sums) == 1 else torch.cat(sums)
    own = torch.split(total, [each.values.shape[1:].numel() for each in gradients])
    return [
        each.form(part.view(each.values.shape[1:]))
        for each, part in zip(gradients, own, strict=True)
    ]


def joined(gradients: Sequence[Dense]) -> Tensor:
    """All gradients of a record as one vector, of shape (records, size)."""
    flat = [by_record(each.values) for each in gradients]
    return flat[0] if len(flat) == 1 else torch.cat(flat, 1)


@attrs.frozen
class Outer:
    """Gradients Σₜ rowsₜ ⊗ columnsₜ, kept as factors of shape (groups, records, positions, size).

    Attributes:
        rows: The factor along the first axis of the gradient matrix.
        columns: The factor along its second axis.
        form: Maps (..., groups, rows, columns) to (..., *parameter shape).
        product: The matrix product, in the precision of the layer. `cut_product` truncates the
            factors, which are then kept as the layer has them; see `cut`.
        unfold: Computes the second factor from `columns` if that holds something smaller, with
            records along the first axis and what has positions, such as images, along the second.
    """

    rows: Tensor
    columns: Tensor
    form: Form
    product: Product = precise_product
    unfold: Form | None = None

    def unfolded(self, records: slice | None = None) -> Tensor:
        """The second factor, of all or some records."""
        if self.unfold is None:
            return self.columns if records is None else self.columns[:, records]
        return self.unfold(self.columns if records is None else self.columns[records])

    def cut(self, factor: Tensor) -> Tensor:
        """A factor, or a part of it, as it is multiplied."""
        return shortened(factor) if self.product is cut_product else factor

    @property
    def multiplied(self) -> Product:
        """The product of factors that `cut` returned."""
        return short_product if self.product is cut_product else self.product

    def per_example(self) -> Tensor:
        """The gradients, one per record; needs records × rows × columns of memory."""
        return self.formed().per_example()

    def formed(self) -> Dense:
        """The same gradients with the factors multiplied."""
        return Dense(self.product(self.rows.mT, self.unfolded()).transpose(0, 1), self.form)

    @property
    def short(self) -> torch.dtype | None:
        """The type in which products of the factors are exact and fast; None if there is none."""
        if self.product is not precise_product:
            return torch.float32
        same = self.rows.dtype == self.columns.dtype
        return self.rows.dtype if same and multiplies_short(self.rows) else None

    @property
    def is_taken(self) -> bool:
        """Whether norm and sum are operations of `factors`."""
        return self.short is not None and self.unfold is None and taken(self.rows, self.columns)

    @whole_products()
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σᵢ wᵢ gᵢ, added up in double precision, in pieces if the factors must be converted."""
        weights = weights.double()
        if self.is_taken:
            return self.form(kernels.record_sums(self.rows, self.columns, weights))
        records, size = self.rows.shape[1], max(1, self.rows.numel(), self.columns.numel())
        step = max(1, records * _converted(self.rows) // size)
        total: Tensor | None = None
        for start in range(0, records, step):
            some = slice(start, start + step)
            added = self._sum(some, weights[some])
            total = added if total is None else total.add_(added)
        assert total is not None, "an engine is never run on no records"
        return self.form(total)

    def _sum(self, piece: slice, weights: Tensor) -> Tensor:
        """The weighted sum of some records."""
        rows, columns = self.rows[:, piece], self.unfolded(piece)
        if self.short is not None:
            short = rows.contiguous(), columns.to(rows.dtype).contiguous()
            if taken(*short):
                return kernels.record_sums(*short, weights)
        left, right = self.cut(rows).double(), self.cut(columns).double()
        by_columns = right.numel() < left.numel()  # the smaller factor is scaled
        left, right = (
            (left, _weighted(right, weights)) if by_columns else (_weighted(left, weights), right)
        )
        return _finite_product(left.flatten(1, 2).mT, right.flatten(1, 2))


@attrs.frozen
class TableRows:
    """Gradients of a table: position t of a record adds `values[t]` to row `indices[t]`."""

    indices: Tensor  # row indices, shape (records, positions)
    values: Tensor  # the added values, shape (records, positions, size)
    count: int  # the number of rows of the table

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for tables that can be put below each other."""
        return self.indices.shape, self.values.shape, self.values.dtype, self.count

    @property
    def is_joined(self) -> bool:
        """Whether to copy the rows next to those of other tables: models of clicks have many."""
        return self.values.numel() <= _FEW_ROWS

    def per_example(self) -> Tensor:
        """The gradients, one table per record."""
        records, _, size = self.values.shape
        table = self.values.new_zeros(records, self.count, size)
        return table.scatter_add(1, self.indices[..., None].expand_as(self.values), self.values)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σᵢ wᵢ gᵢ, added into one table."""
        return sums_of_tables([self], weights)[0]


def sums_of_tables(tables: Sequence[TableRows], weights: Tensor) -> Sequence[Tensor]:
    """The weighted sum of each of some tables of one kind, all added into one."""
    first, places = tables[0], torch.stack([table.indices for table in tables])
    if len(tables) > 1:
        begins = torch.arange(len(tables), device=places.device) * first.count
        places = places + begins[:, None, None]
    values = finite(_weighted(torch.stack([table.values for table in tables]), weights.double()))
    total = values.new_zeros(len(tables) * first.count, values.shape[-1])
    total = total.index_add(0, places.flatten(), values.flatten(0, 2))
    return total.view(len(tables), first.count, -1).unbind()


Contribution = Dense | Outer | TableRows | Routed
Use = Callable[[Contribution], None]


def outer(
    rows: Tensor, columns: Tensor, form: Form, product: Product = precise_product
) -> Dense | Outer:
    """The gradients as factors, or formed if `forms` says so."""
    kept = Outer(rows, columns, form, product)
    return kept.formed() if forms(rows.shape[2], rows.shape[3], columns.shape[3]) else kept


def forms(positions: int, row_size: int, column_size: int) -> bool:
    """Whether to form the gradients, because they are not much larger than their factors.

    With T positions and an r × c matrix the factors hold T(r + c) numbers per record, their norm
    costs T²(r + c) products and their weighted sum T·r·c more; the formed gradient holds r·c, costs
    T·r·c, and its norm and sum are almost free. So both time and memory depend on the ratio of r·c
    to T(r + c). Measured on linear and convolutional layers, forming is faster up to a ratio of
    three or four. Small matrices are formed up to a ratio of two, large ones only if they take no
    more memory than their factors. With a single position the factors are always kept, because the
    norm is the product of their norms.
    """
    formed, kept = row_size * column_size, positions * (row_size + column_size)
    return positions > 1 and formed <= (2 if formed <= _SMALL_MATRIX else 1) * kept


def table_rows(indices: Tensor, values: Tensor, count: int) -> Dense | TableRows:
    """The gradients as added rows, or formed if the table is no longer than the record."""
    kept = TableRows(indices, at_least_single(values), count)
    return Dense(kept.per_example()) if count <= indices.shape[1] else kept


def of_people(contribution: Contribution, slots: int) -> Contribution:
    """The contribution to the summed gradient of every `slots` consecutive records.

    What all records of a person contribute is what one record with all their positions would, so
    no record's gradient has to be formed for it.
    """

    def together(factor: Tensor, axis: int) -> Tensor:
        joined: Tensor = factor.unflatten(axis, (-1, slots)).flatten(axis + 1, axis + 2)  # type: ignore[no-untyped-call]
        return joined

    match contribution:
        case Routed():
            return contribution.of_people(slots)
        case Dense():
            return attrs.evolve(
                contribution,
                values=contribution.values.view(-1, slots, *contribution.values.shape[1:]).sum(1),
            )
        case TableRows():
            indices, values = together(contribution.indices, 0), together(contribution.values, 0)
            return table_rows(indices, values, contribution.count)
        case Outer():
            rows, form, product = (
                together(contribution.rows, 1),
                contribution.form,
                contribution.product,
            )
            if contribution.unfold is None:
                return outer(rows, together(contribution.columns, 1), form, product)
            columns = together(contribution.columns, 0)
            return attrs.evolve(contribution, rows=rows, columns=columns)


def _converted(values: Tensor) -> int:
    """Numbers to convert at a time."""
    return _CONVERTED.get(values.device.type, _CONVERTED_ELSEWHERE)


def by_record(gradients: Tensor) -> Tensor:
    """Gradients of any parameter, including a scalar, as one vector per record."""
    return gradients.flatten(1) if gradients.ndim > 1 else gradients[:, None]


def _weighted(factor: Tensor, weights: Tensor) -> Tensor:
    """A factor of shape (groups, records, ...) times the weight of each record."""
    return factor * weights[:, None, None]


def _finite_product(left: Tensor, right: Tensor) -> Tensor:
    """Left @ right with non-finite values replaced by zero, since 0 · ∞ must be 0.

    On the CPU, where reading a result is free, the operands are copied only if the product is not
    finite; elsewhere they are always copied, so that nothing waits for the device.
    """
    if left.device.type == "cpu":
        product = left @ right
        if math.isfinite(product.sum()):  # not if any of it is not
            return product
    return finite(left) @ finite(right)


def merged(contributions: Iterable[Contribution]) -> list[Contribution]:
    """The same sum in no more contributions than given."""
    groups: dict[tuple[object, ...], list[Contribution]] = {}  # in order, so that rounding repeats
    for contribution in contributions:
        groups.setdefault(_kind(contribution), []).append(contribution)
    return list(map(_joined, groups.values()))


def _kind(contribution: Contribution) -> tuple[object, ...]:
    """Equal for contributions that can be joined."""
    match contribution:
        case Dense():
            return Dense, _name(contribution.form), contribution.values.dtype
        case Outer() if contribution.unfold is None:
            rows, columns = contribution.rows, contribution.columns
            sizes = rows.shape[0], rows.shape[3], columns.shape[3]
            types = rows.dtype, columns.dtype
            return Outer, _name(contribution.form), contribution.product, *sizes, *types
        case _:
            return (id(contribution),)


def _name(form: Form) -> tuple[object, ...]:
    """Equal for forms that do the same."""
    return (form.func, *form.args) if isinstance(form, partial) else (form,)


def _joined(group: list[Any]) -> Contribution:
    """Gradients added up; factors one after another, and formed where that is less than all.

    So inner products of positions, whose number is quadratic, never outgrow the factors.
    """
    first: Contribution = group[0]
    if len(group) == 1:
        return first
    if isinstance(first, Dense):
        return Dense(functools.reduce(torch.add, (each.values for each in group)), first.form)
    assert isinstance(first, Outer)
    rows, columns = (
        torch.cat([getattr(each, side) for each in group], 2) for side in ("rows", "columns")
    )
    return outer(rows, columns, first.form, first.product)
