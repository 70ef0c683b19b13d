"""Layers that provide the factors of their parameters' per-example gradients.

Each function computes what its torch namesake computes, on plain tensors whose first axis is the
record. Its backward returns only the gradient of the input; the factors of the parameters' are
passed to `use` callbacks. The first argument is an anchor, a scalar that requires a gradient and
receives none: it makes autograd visit the layer in the backward pass. Normalised values, as large
as the input, are recomputed in the backward pass.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from prudent._torch_private import suggest_memory_format
from prudent.training.gradients.factors.contributions import Dense, Use, outer, table_rows
from prudent.training.gradients.factors.kernels import (
    fuses,
    group_norm,
    group_norm_backward,
    norm_gradients,
    normalises,
)
from prudent.training.gradients.factors.products import (
    at_least_single,
    cut_product,
    cuts_products,
    precise_product,
)


class Linear(Function):
    """input @ weight.T + bias, on an input of shape (records · positions, size)."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        values: Tensor,
        converted: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        records: int,
        weight_use: Use | None,
        bias_use: Use | None,
        transposed: bool,
        width: int,
    ) -> Tensor:
        """Multiply the converted values, those that `autocasted` returned.

        `transposed` means that the parameter is stored as weight.T, and `width` is the number of
        its outputs; those beyond it are padding.
        """
        values = converted
        # If the layer truncates its factors, so do norm and sum, each as it reads them: a truncated
        # copy would have to be kept beside the input, which other layers keep as well.
        ctx.cuts = cuts_products(values)
        ctx.save_for_backward(values if weight_use else None, weight)
        ctx.records, ctx.uses, ctx.transposed = records, (weight_use, bias_use), transposed
        ctx.width = width
        weight = autocasted(weight)  # not transposed, as the backward pass has it
        if bias is None:
            return values @ weight.T
        return torch.addmm(bias, values, weight.T)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Pass the gradient to the input and both factors to the parameters."""
        (gradient,) = gradients
        values, weight = ctx.saved_tensors
        weight_use, bias_use = ctx.uses
        by_record = gradient.view(ctx.records, -1, gradient.shape[1])
        if weight_use:
            inputs = values.view(ctx.records, -1, values.shape[1])
            rows, columns = (inputs, by_record) if ctx.transposed else (by_record, inputs)
            product = cut_product if ctx.cuts else precise_product
            form = _narrow_matrix if ctx.transposed else _low_matrix
            weight_use(outer(rows[None], columns[None], partial(form, ctx.width), product))
        if bias_use:
            bias_use(Dense(total(by_record[..., : ctx.width], [1])))
        passed = gradient @ weight.to(gradient.dtype) if ctx.needs_input_grad[1] else None
        return None, passed, *[None] * 8


class Affine(Function):
    """values * weight + bias, the parameters broadcast over every axis but their own."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        values: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        own_axes: Sequence[int],
        weight_use: Use | None,
        bias_use: Use | None,
    ) -> Tensor:
        """Scale and shift; `own_axes` are the axes of `values` that the parameters have."""
        shape = [size if axis in own_axes else 1 for axis, size in enumerate(values.shape)]
        weight = None if weight is None else weight.view(shape)
        ctx.save_for_backward(values if weight_use else None, weight)
        ctx.uses = weight_use, bias_use
        ctx.summed = [axis for axis in range(1, values.ndim) if axis not in own_axes]
        if weight is None:
            return values.clone() if bias is None else values + bias.view(shape)
        return values * weight if bias is None else torch.addcmul(bias.view(shape), values, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Pass the gradient to the input and its sums over positions to the parameters."""
        (gradient,) = gradients
        values, weight = ctx.saved_tensors
        weight_use, bias_use = ctx.uses
        precise = at_least_single(gradient)
        if weight_use:
            weight_use(Dense(total(precise * values, ctx.summed)))
        if bias_use:
            bias_use(Dense(total(precise, ctx.summed)))
        passed = None
        if ctx.needs_input_grad[1]:
            passed = gradient if weight is None else gradient * weight
        return None, passed, *[None] * 5


class Embedding(Function):
    """weight[indices], for indices of shape (records, positions)."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        indices: Tensor,
        weight: Tensor,
        padding_index: int | None,
        weight_use: Use,
    ) -> Tensor:
        """Look up; rows equal to `padding_index` receive no gradient."""
        ctx.save_for_backward(indices)
        ctx.count, ctx.padding_index, ctx.use = weight.shape[0], padding_index, weight_use
        return functional.embedding(indices, weight).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Pass the gradient of every position to its row."""
        (gradient,) = gradients
        (indices,) = ctx.saved_tensors
        if ctx.padding_index is not None:
            gradient = torch.where((indices == ctx.padding_index)[..., None], 0, gradient)
        ctx.use(table_rows(indices, gradient, ctx.count))
        return (None,) * 5


class Expand(Function):
    """One copy of a parameter per record; the gradient of a copy is its record's gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, weight: Tensor, records: int, use: Use) -> Tensor:
        """An expanded view, which needs no memory."""
        ctx.use = use
        return weight.expand(records, *weight.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Pass the gradients on unchanged."""
        (gradient,) = gradients
        ctx.use(Dense(at_least_single(gradient)))
        return (None,) * 4


# A linear layer has one group, so its gradient has a group axis of size one; and padded outputs.
def _low_matrix(width: int, gradient: Tensor) -> Tensor:
    return gradient.squeeze(-3)[..., :width, :]


def _narrow_matrix(width: int, gradient: Tensor) -> Tensor:
    return gradient.squeeze(-3)[..., :width]


def total(values: Tensor, axes: Sequence[int]) -> Tensor:
    """The sum over the given axes, possibly none, in single precision or better."""
    precise = torch.promote_types(values.dtype, torch.float32)
    return values.sum(list(axes), dtype=precise) if axes else values.to(precise)


def autocasted(values: Tensor) -> Tensor:
    """The input as autocast would convert it, so that the layer keeps no wider copy of it."""
    return values.to(autocast_type(values))


def autocast_type(values: Tensor) -> torch.dtype:
    """The type to which autocast converts the input of a layer."""
    device = values.device.type
    if torch.is_autocast_enabled(device) and values.dtype == torch.float32:
        return torch.get_autocast_dtype(device)
    return values.dtype


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
        sums = norm_gradients(gradient, values, mean, scale, (records, size))
        slopes, shifts = (part.view(records, *shape) for part in sums)
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
            change, *parts = group_norm_backward(gradient, values, weight, mean, scale)
            for use, part in zip(ctx.uses, parts, strict=True):
                if use:
                    use(Dense(_by_record(part, ctx.records)))
            return None, change if ctx.needs_input_grad[1] else None, *[None] * 8
        values = at_least_single(values)
        ordered = _ordered(gradient, values)
        if weight_use or bias_use:
            # The normalised values are affine in the input, so two sums per channel are enough.
            positions = range(2, values.ndim)
            shifts = total(gradient, positions)
            if weight_use:
                products = total(gradient * values, positions).view(images, groups, -1)
                centred = products - mean[..., None] * shifts.view(images, groups, -1)
                slopes = (centred * scale[..., None]).view(images, channels)
                weight_use(Dense(_by_record(slopes, ctx.records)))
            if bias_use:
                bias_use(Dense(_by_record(shifts, ctx.records)))
        passed = None
        if ctx.needs_input_grad[1]:
            passed, _, _ = torch.ops.aten.native_group_norm_backward(
                ordered, values, mean, scale, weight, *ctx.sizes, _INPUT_ONLY
            )
        return None, passed, *[None] * 8


_INPUT_ONLY = [True, False, False]


def _by_record(parts: Tensor, records: int) -> Tensor:
    """What the images of a record add up to."""
    return parts if len(parts) == records else parts.unflatten(0, (records, -1)).sum(1)  # type: ignore[no-untyped-call]


def _ordered(values: Tensor, like: Tensor) -> Tensor:
    """The values in the memory format in which torch's kernels read `like`."""
    # Except on the CPU, the kernels only read channels first.
    order = suggest_memory_format(like) if like.device.type == "cpu" else torch.contiguous_format
    return values.contiguous(memory_format=order)
