"""Total versions of functions that reject some values: one odd record must not stop a run.

Examples are a class index out of range, a token outside the table, or a probability outside [0, 1].
The kernels behind these functions raise an error that quotes the value, or on a GPU terminate the
process. Here the value is replaced by an allowed one and the result of this record becomes NaN,
which is possible because under vmap each record is a separate call. The gradient of the record is
then not finite, so it counts as zero, whatever else is in the batch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from prudent.training.gradients.attention import MASKS
from prudent.training.gradients.leftovers import is_record

Call = Callable[..., Any]


def _classes(
    call: Call,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    *rest: Any,
    **options: Any,
) -> Any:
    rest = weight, size_average, ignore_index, *rest
    if target.is_floating_point() or not is_record(target):
        return call(input, target, *rest, **options)
    outside = _outside(target, 0, input.shape[min(1, input.ndim - 1)]) & (target != ignore_index)
    return _spoiled(call(input, _replaced(target, outside, 0), *rest, **options), outside)


def _probabilities(call: Call, input: Tensor, *rest: Any, **options: Any) -> Any:
    if not is_record(input):
        return call(input, *rest, **options)
    outside = ~((input >= 0) & (input <= 1))
    return _spoiled(call(_replaced(input, outside, 0.5), *rest, **options), outside)


def _rows(
    call: Call,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    # The gradient of one record is never a sparse tensor: vmap has none.
    rest = padding_idx, max_norm, norm_type, scale_grad_by_freq, False
    if not is_record(input):
        return call(input, weight, *rest)
    outside = _outside(input, 0, weight.shape[0])
    return _spoiled(call(_replaced(input, outside, 0), weight, *rest), outside)


def _along(call: Call, input: Tensor, dim: int, index: Tensor, *rest: Any, **options: Any) -> Any:
    if not is_record(index):
        return call(input, dim, index, *rest, **options)
    outside = _outside(index, 0, input.shape[dim] if input.ndim else 1)
    index = _replaced(index, outside, 0)
    return _spoiled(call(input, dim, index, *rest, **options), outside)


def _item(call: Call, input: Tensor, index: Any) -> Any:
    """Indexing, where negative indices count from the end."""
    items = list(index) if isinstance(index, tuple) else [index]
    taken = [_axes(item) for item in items]
    wrong, axis = [], 0
    for place, item in enumerate(items):
        if item is Ellipsis:
            axis = input.ndim - sum(taken[place + 1 :])
            continue
        if isinstance(item, Tensor) and is_record(item) and item.dtype != torch.bool:
            outside = _outside(item, -input.shape[axis], input.shape[axis])
            items[place] = _replaced(item, outside, 0)
            wrong.append(outside.any())
        axis += taken[place]
    if not wrong:
        return call(input, index)
    result = call(input, tuple(items) if isinstance(index, tuple) else items[0])
    return _spoiled(result, torch.stack(wrong))


def _axes(item: Any) -> int:
    """The number of tensor axes that one part of an index consumes."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    return item.ndim if isinstance(item, Tensor) and item.dtype == torch.bool else 1


def _outside(values: Tensor, least: int, end: int) -> Tensor:
    return (values < least) | (values >= end)


def _replaced(values: Tensor, outside: Tensor, allowed: float) -> Tensor:
    return torch.where(outside, torch.full_like(values, allowed), values)


def _spoiled(result: Tensor, outside: Tensor) -> Tensor:
    """The result, NaN if any value was outside; integers, which have no gradient, are unchanged."""
    if not result.is_floating_point():
        return result
    any_ = outside.any()
    return result * torch.ones_like(any_, dtype=result.dtype).masked_fill(any_, torch.nan)


DOMAINS: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.cross_entropy: _classes,
    functional.nll_loss: _classes,
    functional.binary_cross_entropy: _probabilities,
    functional.embedding: _rows,
    **MASKS,
    Tensor.__getitem__: _item,
    **dict.fromkeys(
        (
            torch.gather,
            Tensor.gather,
            torch.index_select,
            Tensor.index_select,
            torch.scatter,
            Tensor.scatter,
            torch.scatter_add,
            Tensor.scatter_add,
        ),
        _along,
    ),
}
"""Maps each function to its total version, whose first argument calls the original function."""
