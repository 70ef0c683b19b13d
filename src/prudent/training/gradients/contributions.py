"""What one use of a parameter contributes to the per-example gradients, without forming them.

For a layer that multiplies by a matrix, the gradient of a record is Σₜ rowₜ ⊗ columnₜ over
positions; an embedding adds a row per token; everything else is small enough to be formed. Each
kind of contribution provides its inner product with another use of the same parameter (so that
norms of tied parameters include the cross terms), its weighted sum over the records, and, if
needed, the per-example gradients themselves.

Under autocast the factors are bfloat16 numbers and are kept as such. The norm and the weighted sum
are both computed from these same numbers: a product of two is exact in single precision, sums of
products are single-precision sums, and the weights multiply single-precision copies. So the
contribution of a record to the sum has at most weight times the reported norm, up to
single-precision rounding, whatever the layer itself rounded.
"""

from collections.abc import Callable

import attrs
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from prudent.training.gradients.precision import whole_products

Form = Callable[[Tensor], Tensor]
Product = Callable[[Tensor, Tensor], Tensor]
_HALF = torch.float16, torch.bfloat16
_SMALL_MATRIX = 1 << 16
_PIECE = 1 << 26
"""Numbers of a factor that are weighted at a time; bounds the extra memory of a sum."""


def precise_product(left: Tensor, right: Tensor) -> Tensor:
    """Left @ right, summed in single precision or better even if the factors are shorter."""
    if left.dtype == right.dtype and multiplies_short(right):
        shape = left.shape[:-2]
        flat = left.reshape(-1, *left.shape[-2:]), right.reshape(-1, *right.shape[-2:])
        return summed_in_single(*flat).view(*shape, left.shape[-2], right.shape[-1])
    return at_least_single(left) @ at_least_single(right)


def multiplies_short(factor: Tensor) -> bool:
    """Whether the device multiplies short factors and accumulates in single precision."""
    known = hasattr(torch.ops.aten.bmm, "dtype")
    return known and factor.is_cuda and factor.dtype == torch.bfloat16


def summed_in_single(left: Tensor, right: Tensor) -> Tensor:
    """Batched products of bfloat16 matrices, with results in single precision."""
    return torch.bmm(left, right, out_dtype=torch.float32)


def as_it_is(gradient: Tensor) -> Tensor:
    """The identity, for a gradient that already has the shape of its parameter."""
    return gradient


@attrs.frozen
class Dense:
    """Per-example gradients that are held in memory.

    Attributes:
        values: The gradients, with records along the first axis.
        form: Maps (..., *shape of one value) to (..., *parameter shape).
    """

    values: Tensor
    form: Form = as_it_is

    def per_example(self) -> Tensor:
        """The gradients, one per record."""
        return self.form(self.values)

    @whole_products()
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σᵢ wᵢ gᵢ; a record of weight zero contributes zero even where it is not finite."""
        flat = by_record(self.values)
        total = _finite_product(weights.to(flat.dtype)[None], flat)
        return self.form(total.view(self.values.shape[1:]))


@attrs.frozen
class Outer:
    """Gradients Σₜ rowsₜ ⊗ columnsₜ, kept as factors of shape (groups, records, positions, size).

    Attributes:
        rows: The factor along the first axis of the gradient matrix.
        columns: The factor along its second axis.
        form: Maps (..., groups, rows, columns) to (..., *parameter shape).
        product: The matrix product, in the precision of the layer.
        unfold: Computes the second factor from `columns` if that holds something smaller, with
            records along the first axis.
    """

    rows: Tensor
    columns: Tensor
    form: Form
    product: Product = precise_product
    unfold: Form | None = None

    def unfolded(self, records: slice = slice(None), before: Form = as_it_is) -> Tensor:
        """The second factor of some records; `before` is applied first, while the data is small."""
        if self.unfold is None:
            return before(self.columns[:, records])
        return self.unfold(before(self.columns[records]))

    def per_example(self) -> Tensor:
        """The gradients, one per record; needs records × rows × columns of memory."""
        return self.formed().per_example()

    def formed(self) -> Dense:
        """The same gradients with the factors multiplied."""
        return Dense(self.product(self.rows.mT, self.unfolded()).movedim(0, 1), self.form)

    @whole_products()
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σᵢ wᵢ gᵢ as one matrix product over all records and positions, in pieces if large."""
        records = self.rows.shape[1]
        step = max(1, records * _PIECE // max(1, self.rows.numel(), self.columns.numel()))
        total: Tensor | None = None
        for start in range(0, records, step):
            piece = slice(start, start + step)
            rows = at_least_single(self.rows[:, piece])
            rows = (rows * weights[piece].to(rows.dtype)[:, None, None]).flatten(1, 2).mT
            added = self._summed(rows, piece)
            total = added if total is None else total.add_(added)
        assert total is not None, "an engine is never run on no records"
        return self.form(total)

    def _summed(self, rows: Tensor, piece: slice) -> Tensor:
        """Weighted rows times columns; products are exact if the factors were short enough."""
        short = self.unfold is None and multiplies_short(self.columns)
        if self.product is precise_product and not short:
            columns = at_least_single(self.unfolded(piece)).flatten(1, 2)
            return _finite_product(rows, columns)
        rows, columns = _finite(rows), self.unfolded(piece, _finite).flatten(1, 2)
        if short:
            # A weighted row has three times as many bits as a short one, so use three exact
            # products.
            total = self.product(high := rows.to(columns.dtype), columns)
            for _ in range(2):
                rows = rows - high
                total = total.add_(self.product(high := rows.to(columns.dtype), columns))
            return total
        # The factors are short enough for exact products, but weighted factors are not, so split
        # them into two parts.
        high = shortened(rows)
        return self.product(high, columns) + self.product(rows - high, columns)


@attrs.frozen
class Rows:
    """Gradients of a table: position t of a record adds `values[t]` to row `indices[t]`.

    Attributes:
        indices: Row indices, shape (records, positions).
        values: The added values, shape (records, positions, size).
        count: The number of rows of the table.
    """

    indices: Tensor
    values: Tensor
    count: int

    def per_example(self) -> Tensor:
        """The gradients, one table per record."""
        records, _, size = self.values.shape
        table = self.values.new_zeros(records, self.count, size)
        return table.scatter_add(1, self.indices[..., None].expand_as(self.values), self.values)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σᵢ wᵢ gᵢ, added into one table."""
        values = _finite(self.values * weights.to(self.values.dtype)[:, None, None])
        table = values.new_zeros(self.count, values.shape[-1])
        return table.index_add(0, self.indices.flatten(), values.flatten(0, 1))


Contribution = Dense | Outer | Rows
Use = Callable[[Contribution], None]


def outer(rows: Tensor, columns: Tensor, form: Form) -> Dense | Outer:
    """The gradients as factors, or formed if `forms` says so."""
    kept = Outer(rows, columns, form)
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


def table_rows(indices: Tensor, values: Tensor, count: int) -> Dense | Rows:
    """The gradients as added rows, or formed if the table is no longer than the record."""
    kept = Rows(indices, at_least_single(values), count)
    return Dense(kept.per_example()) if count <= indices.shape[1] else kept


def by_record(gradients: Tensor) -> Tensor:
    """Gradients of any parameter, including a scalar, as one vector per record."""
    return gradients.flatten(1) if gradients.ndim > 1 else gradients[:, None]


def _finite_product(left: Tensor, right: Tensor) -> Tensor:
    """Left @ right with non-finite values replaced by zero, since 0 · ∞ must be 0.

    In eager mode on the CPU, where reading a result is free, the operands are copied only if the
    product is not finite; elsewhere they are always copied, so that nothing waits for the device.
    """
    if left.device.type == "cpu" and _get_current_dispatch_mode() is None:
        product = left @ right
        if torch.isfinite(product).all():
            return product
    return _finite(left) @ _finite(right)


def _finite(values: Tensor) -> Tensor:
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def shortened(values: Tensor) -> Tensor:
    """Single-precision values truncated to 11 significant bits, so that their products are exact.

    TF32 arithmetic represents these numbers exactly.
    """
    return (values.view(torch.int32) & -(1 << 13)).view(torch.float32)


def at_least_single(values: Tensor) -> Tensor:
    """The values in at least single precision, which a norm that bounds a sensitivity needs."""
    return values.float() if values.dtype in _HALF else values
