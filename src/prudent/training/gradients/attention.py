"""Attention layers of torch, as book-keeping needs to see them."""

from collections.abc import Callable
from types import FunctionType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional

from prudent.training.gradients.leftovers import is_record


def is_left_aligned(call: Callable[..., Any], values: Tensor, mask: Tensor) -> Any:
    """Whether padding is at the end; of a record False, which only makes torch keep the mask."""
    return not is_record(mask) and call(values, mask)


def _projected(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor, bias: Tensor | None = None
) -> list[Tensor]:
    """Queries, keys and values; slices of the joint weight would be derived tensors.

    So each input is multiplied by the whole weight, and what is not needed of it is cut off.
    """
    products: dict[int, Tensor] = {}
    parts = []
    for place, values in enumerate((query, key, value)):
        if id(values) not in products:
            products[id(values)] = functional.linear(values, weight, bias)
        parts.append(products[id(values)].chunk(3, -1)[place].contiguous())
    return parts


def _opened(function: Callable[..., Any], **changed: Any) -> Callable[..., Any]:
    """The function with other global names, and without the hook by which a mode intercepts it."""
    plain = cast(FunctionType, function)
    names = {**plain.__globals__, "has_torch_function": lambda _: False, **changed}
    copy = FunctionType(plain.__code__, names, plain.__name__, plain.__defaults__)
    copy.__kwdefaults__ = plain.__kwdefaults__
    return copy


OPENED: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.multi_head_attention_forward: _opened(
        functional.multi_head_attention_forward, _in_projection_packed=_projected
    )
}
"""Maps a function that a mode sees as one to a version that shows the mode what it calls."""

MASKS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch._nested_tensor_from_mask_left_aligned: is_left_aligned
}
"""Checks of a mask that only decide about a faster way; see `DOMAINS`."""
