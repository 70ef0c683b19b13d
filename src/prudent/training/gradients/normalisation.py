"""Layer and group normalisation; see `layers` for what their backward provides.

Like torch's own, they keep their input and two statistics of it, but not the normalised values:
those are as large as the input and are recomputed in the backward pass.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.autograd import Function

from prudent.training.gradients.contributions import Dense, Use
from prudent.training.gradients.image_kernels import (
    group_norm,
    group_norm_backward,
    normalises,
)
from prudent.training.gradients.kernels import fuses, norm_gradients
from prudent.training.gradients.layers import total
from prudent.training.gradients.products import at_least_single


class LayerNorm(Function):
    """Normalises the last axes of (records, ..., *shape), then scales and shifts."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        values: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        shape: Sequence[int],
        eps: float,
        weight_use: Use | None,
        bias_use: Use | None,
    ) -> Any:
        """Normalise in single precision or better."""
        result, mean, scale = torch.native_layer_norm(
            at_least_single(values), shape, weight, bias, eps
        )
        ctx.save_for_backward(values, weight, mean, scale)
        ctx.shape, ctx.uses = shape, (weight_use, bias_use)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Pass the gradient to the input and its sums over positions to the parameters."""
        (gradient,) = gradients
        values, weight, mean, scale = ctx.saved_tensors
        values = at_least_single(values)
        weight_use, bias_use = ctx.uses
        slopes, shifts = _slopes_and_shifts(gradient, values, mean, scale, ctx.shape)
        if weight_use:
            weight_use(Dense(slopes()))
        if bias_use:
            bias_use(Dense(shifts()))
        passed = None
        if ctx.needs_input_grad[1]:
            passed, _, _ = torch.ops.aten.native_layer_norm_backward(
                gradient, values, ctx.shape, mean, scale, weight, None, [True, False, False]
            )
        return None, passed, *[None] * 6


def _slopes_and_shifts(
    gradient: Tensor, values: Tensor, mean: Tensor, scale: Tensor, shape: Sequence[int]
) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """The gradients of weight and bias of a layer normalisation, computed on demand."""
    if values.dtype == torch.float32 and fuses(gradient, values, mean, scale):
        records, size = len(values), torch.Size(shape).numel()
        found = norm_gradients(gradient, values, mean, scale, (records, size))
        slopes, shifts = (each.view(records, *shape) for each in found)
        return lambda: slopes, lambda: shifts
    positions = range(1, values.ndim - len(shape))
    return (
        lambda: total((values - mean).mul_(scale).mul_(gradient), positions),
        lambda: total(gradient, positions),
    )


class GroupNorm(Function):
    """Normalises groups of channels of (images, channels, *size), then scales and shifts."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        values: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        groups: int,
        eps: float,
        records: int,
        weight_use: Use | None,
        bias_use: Use | None,
    ) -> Any:
        """Normalise in single precision or better."""
        ctx.fused = normalises(values, groups)
        if not ctx.fused:
            values = _ordered(values, values)
        images, channels, *size = values.shape
        ctx.sizes = images, channels, torch.Size(size).numel(), groups
        if ctx.fused:
            result, mean, scale = group_norm(values, weight, bias, groups, eps)
        else:
            result, mean, scale = torch.ops.aten.native_group_norm(
                at_least_single(values), weight, bias, *ctx.sizes, eps
            )
        ctx.save_for_backward(values, weight, mean, scale)
        ctx.records, ctx.uses = records, (weight_use, bias_use)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Pass the gradient to the input and its sums over positions to the parameters."""
        (gradient,) = gradients
        values, weight, mean, scale = ctx.saved_tensors
        weight_use, bias_use = ctx.uses
        images, channels, _, groups = ctx.sizes
        if ctx.fused:
            gradient = gradient.contiguous(memory_format=torch.channels_last)
            change, *found = group_norm_backward(gradient, values, weight, mean, scale)
            for use, each in zip(ctx.uses, found, strict=True):
                if use:
                    use(Dense(each.view(ctx.records, -1, channels).sum(1)))
            return None, change if ctx.needs_input_grad[1] else None, *[None] * 8
        values = at_least_single(values)
        positions = range(2, values.ndim)
        if weight_use or bias_use:
            # The normalised values are affine in the input, so two sums per channel are enough.
            shifts = total(gradient, positions)
        if weight_use:
            products = total(gradient * values, positions).view(images, groups, -1)
            centred = products - mean[..., None] * shifts.view(images, groups, -1)
            slopes = (centred * scale[..., None]).view(ctx.records, -1, channels)
            weight_use(Dense(slopes.sum(1)))
        if bias_use:
            bias_use(Dense(shifts.view(ctx.records, -1, channels).sum(1)))
        passed = None
        if ctx.needs_input_grad[1]:
            passed, _, _ = torch.ops.aten.native_group_norm_backward(
                _ordered(gradient, values), values, mean, scale, weight, *ctx.sizes, _INPUT_ONLY
            )
        return None, passed, *[None] * 8


_INPUT_ONLY = [True, False, False]


def _ordered(values: Tensor, like: Tensor) -> Tensor:
    """The values in the memory format in which torch's kernels read `like`."""
    # Except on the CPU, the kernels only read channels first.
    order = suggest_memory_format(like) if like.device.type == "cpu" else torch.contiguous_format
    return values.contiguous(memory_format=order)
