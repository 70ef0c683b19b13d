"""What one use of a parameter adds to the per-example gradients, without forming them.

A layer that multiplies by a matrix gives a record the gradient Σₜ rowₜ ⊗ columnₜ over positions;
an embedding adds a row per token; everything else is small enough to be formed. Each kind answers
three questions: its inner product with another use of the same parameter (so that norms of tied
parameters carry their cross terms), its weighted sum over the records, and, if need be, itself.

Under autocast the factors are bfloat16 numbers and are kept as such. The norm and the weighted sum
are both functions of these very numbers: a product of two is exact in single precision, sums of
products are single precision sums, and the weights multiply single precision copies. So what a
record adds to the sum has at most weight times the announced norm, to the rounding of single
precision, whatever the layer itself rounded on the way.
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
"""Numbers of a factor that are weighted at a time: what a sum needs besides the factors."""


def precise_product(left: Tensor, right: Tensor) -> Tensor:
    """Left @ right, its sums in single precision or better even where its factors are not."""
    if left.dtype == right.dtype and multiplies_short(right):
        shape = left.shape[:-2]
        flat = left.reshape(-1, *left.shape[-2:]), right.reshape(-1, *right.shape[-2:])
        return summed_in_single(*flat).view(*shape, left.shape[-2], right.shape[-1])
    return at_least_single(left) @ at_least_single(right)


def multiplies_short(factor: Tensor) -> bool:
    """Whether the device multiplies short factors and adds the products up in single precision."""
    known = hasattr(torch.ops.aten.bmm, "dtype")
    return known and factor.is_cuda and factor.dtype == torch.bfloat16


def summed_in_single(left: Tensor, right: Tensor) -> Tensor:
    """A batch of products of bfloat16 matrices, in single precision."""
    return torch.bmm(left, right, out_dtype=torch.float32)


def as_it_is(gradient: Tensor) -> Tensor:
    """The form of a gradient that already has the shape of its parameter."""
    return gradient


@attrs.frozen
class Dense:
    """Per-example gradients, formed.

    Attributes:
        values: The gradients, records first.
        form: Takes (..., *shape of one value) to (..., *parameter shape).
    """

    values: Tensor
    form: Form = as_it_is

    def per_example(self) -> Tensor:
        """The gradients, one per record."""
        return self.form(self.values)

    @whole_products()
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σᵢ wᵢ gᵢ; a record of weight zero adds nothing even where it is not finite."""
        flat = by_record(self.values)
        total = _finite_product(weights.to(flat.dtype)[None], flat)
        return self.form(total.view(self.values.shape[1:]))


@attrs.frozen
class Outer:
    """Gradients Σₜ rowsₜ ⊗ columnsₜ, kept as factors of shape (groups, records, positions, size).

    Attributes:
        rows: Factor along the first axis of the gradient matrix.
        columns: Factor along its second axis.
        form: Takes (..., groups, rows, columns) to (..., *parameter shape).
        product: The matrix product, in the precision of the layer.
        unfold: Makes the second factor of `columns` where that is something smaller, records first.
    """

    rows: Tensor
    columns: Tensor
    form: Form
    product: Product = precise_product
    unfold: Form | None = None

    def unfolded(self, records: slice = slice(None), before: Form = as_it_is) -> Tensor:
        """The second factor of some records; what is done `before` is done to little."""
        if self.unfold is None:
            return before(self.columns[:, records])
        return self.unfold(before(self.columns[records]))

    def per_example(self) -> Tensor:
        """The gradients, one per record: records × rows × columns of memory."""
        return self.formed().per_example()

    def formed(self) -> Dense:
        """The same, its factors multiplied."""
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
        """Weighted rows times columns; exact products where the factors were short enough."""
        short = self.unfold is None and multiplies_short(self.columns)
        if self.product is precise_product and not short:
            columns = at_least_single(self.unfolded(piece)).flatten(1, 2)
            return _finite_product(rows, columns)
        rows, columns = _finite(rows), self.unfolded(piece, _finite).flatten(1, 2)
        if short:
            # A weighted row has three times the digits of a short one: three exact products.
            total = self.product(high := rows.to(columns.dtype), columns)
            for _ in range(2):
                rows = rows - high
                total = total.add_(self.product(high := rows.to(columns.dtype), columns))
            return total
        # The factors are short enough for exact products, weighted ones are not: in two parts.
        high = shortened(rows)
        return self.product(high, columns) + self.product(rows - high, columns)


@attrs.frozen
class Rows:
    """Gradients of a table: position t of a record adds `values[t]` to row `indices[t]`.

    Attributes:
        indices: Row numbers, shape (records, positions).
        values: What is added, shape (records, positions, size).
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
    """Factors kept, or multiplied where `forms` says so."""
    kept = Outer(rows, columns, form)
    return kept.formed() if forms(rows.shape[2], rows.shape[3], columns.shape[3]) else kept


def forms(positions: int, row_size: int, column_size: int) -> bool:
    """Whether to multiply the factors: to form the gradients where those are not much larger.

    With T positions and an r × c matrix the factors hold T(r + c) numbers per record, their norm
    costs T²(r + c) products and their weighted sum T·r·c more; the formed gradient holds r·c, costs
    T·r·c, and its norm and sum come almost free. So both time and memory turn on r·c against
    T(r + c). Measured on linear and convolutional layers, forming is the faster up to a ratio of
    three or four. Small matrices are formed up to two; those that fill the memory only where they
    take no more of it than their factors. A single position always keeps its factors: its norm is
    a product of two.
    """
    formed, kept = row_size * column_size, positions * (row_size + column_size)
    return positions > 1 and formed <= (2 if formed <= _SMALL_MATRIX else 1) * kept


def table_rows(indices: Tensor, values: Tensor, count: int) -> Dense | Rows:
    """Keep the added rows, or form the table where it is no longer than the record."""
    kept = Rows(indices, at_least_single(values), count)
    return Dense(kept.per_example()) if count <= indices.shape[1] else kept


def by_record(gradients: Tensor) -> Tensor:
    """Gradients of any parameter, a scalar included, as one vector per record."""
    return gradients.flatten(1) if gradients.ndim > 1 else gradients[:, None]


def _finite_product(left: Tensor, right: Tensor) -> Tensor:
    """Left @ right with zero in place of what is not finite: 0 · ∞ must stay 0.

    Run eagerly on the CPU, where a result can be looked at for free, the operands are copied only
    if the product shows that they must be; elsewhere always, so that nothing waits for the device.
    """
    if left.device.type == "cpu" and _get_current_dispatch_mode() is None:
        product = left @ right
        if torch.isfinite(product).all():
            return product
    return _finite(left) @ _finite(right)


def _finite(values: Tensor) -> Tensor:
    return torch.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def shortened(values: Tensor) -> Tensor:
    """Single precision cut to 11 significant bits, so that products of two are exact in it.

    These are the numbers that TF32 arithmetic takes as they are.
    """
    return (values.view(torch.int32) & -(1 << 13)).view(torch.float32)


def at_least_single(values: Tensor) -> Tensor:
    """Half precision is enough for a layer, not for a norm that bounds a sensitivity."""
    return values.float() if values.dtype in _HALF else values
