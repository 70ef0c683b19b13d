"""Convolutions as products over patches; see `layers` for what their backward hands over."""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from prudent.training.gradients.contributions import Dense, Use, at_least_single, outer


class Geometry:
    """Where the patches of a convolution lie.

    Patches are (groups, images · positions, kernel · channels of a group): the channels last, so
    that unfolding copies runs of memory and the product over all images is a single one.
    """

    def __init__(
        self,
        kernel: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> None:
        self.kernel, self.stride, self.padding = list(kernel), list(stride), list(padding)
        self.dilation, self.groups, self.dimensions = list(dilation), groups, len(kernel)

    def unfolds(self, values: Tensor) -> bool:
        """Whether the forward is a product over patches rather than the native convolution."""
        return values.device.type == "cpu"

    def output_size(self, size: Sequence[int]) -> list[int]:
        """Positions along each axis."""
        axes = zip(size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [(s + 2 * p - d * (k - 1) - 1) // t + 1 for s, k, t, p, d in axes]

    def patches(self, values: Tensor) -> Tensor:
        """Unfold (images, channels, *size) into patches."""
        images, channels = values.shape[:2]
        if any(self.padding):
            values = functional.pad(values, [p for p in reversed(self.padding) for _ in (0, 1)])
        for axis, (k, t, d) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            values = values.unfold(2 + axis, d * (k - 1) + 1, t)[..., ::d]
        windows = values.reshape(images, self.groups, channels // self.groups, *values.shape[2:])
        axes = range(3, 3 + 2 * self.dimensions)
        positions = math.prod(windows.shape[3 : 3 + self.dimensions])
        return windows.permute(1, 0, *axes, 2).reshape(self.groups, images * positions, -1)

    def fold(self, patches: Tensor, shape: Sequence[int]) -> Tensor:
        """Add patches up to (images, channels, *size): the adjoint of `patches`."""
        images, channels, *size = shape
        per_group = channels // self.groups
        output = self.output_size(size)
        windows = patches.view(self.groups, images, *output, *self.kernel, per_group)
        windows = windows.movedim(0, -2)
        padded = [s + 2 * p for s, p in zip(size, self.padding, strict=True)]
        total = patches.new_zeros(images, *padded, self.groups, per_group)
        for offset in product(*map(range, self.kernel)):
            starts = [o * d for o, d in zip(offset, self.dilation, strict=True)]
            spans = zip(starts, output, self.stride, strict=True)
            inside = [slice(s, s + t * (n - 1) + 1, t) for s, n, t in spans]
            window: tuple[Any, ...] = (..., *offset, slice(None), slice(None))
            total[(slice(None), *inside)] += windows[window]
        inside = [slice(p, p + s) for s, p in zip(size, self.padding, strict=True)]
        return total[(slice(None), *inside)].flatten(-2).movedim(-1, 1)

    def matrix(self, weight: Tensor) -> Tensor:
        """The weight as (groups, outputs of a group, kernel · channels of a group)."""
        grouped = weight.reshape(self.groups, -1, *weight.shape[1:])
        return grouped.movedim(2, -1).flatten(2)

    def form(self, weight_shape: Sequence[int]) -> Callable[[Tensor], Tensor]:
        """Undo `matrix` on the last three axes."""
        channels = weight_shape[1]
        kernel = tuple(self.kernel)

        def shaped(matrix: Tensor) -> Tensor:
            split = matrix.reshape(*matrix.shape[:-1], *kernel, channels)
            back = split.movedim(-1, -1 - len(kernel))
            return back.flatten(-3 - len(kernel), -2 - len(kernel))

        return shaped

    def by_position(self, gradient: Tensor) -> Tensor:
        """(images, channels, *size) as (groups, images · positions, channels of a group)."""
        images, channels = gradient.shape[:2]
        grouped = gradient.reshape(images, self.groups, channels // self.groups, -1)
        return grouped.permute(1, 0, 3, 2).flatten(1, 2)

    def by_image(self, result: Tensor, shape: Sequence[int]) -> Tensor:
        """Undo `by_position` for an input of the given shape; channels stay last in memory."""
        output = self.output_size(shape[2:])
        images = result.view(self.groups, shape[0], *output, result.shape[-1])
        return images.movedim(0, -2).flatten(-2).movedim(-1, 1)

    def native(self, values: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The library's convolution."""
        return torch.convolution(
            values,
            weight,
            bias,
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0] * self.dimensions,
            self.groups,
        )

    def native_input_gradient(self, gradient: Tensor, values: Tensor, weight: Tensor) -> Tensor:
        """The library's gradient of the input, and that alone."""
        passed, _, _ = torch.ops.aten.convolution_backward(
            gradient,
            values.to(gradient.dtype),
            weight.to(gradient.dtype),
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0] * self.dimensions,
            self.groups,
            [True, False, False],
        )
        return passed  # type: ignore[no-any-return]


class Convolution(Function):
    """A convolution of any number of dimensions, zero padded, on (images, channels, *size).

    On the CPU it is one matrix product over the unfolded patches, channels last: faster than the
    library convolutions there, and the form in which the gradients are needed. On other devices
    the native convolution runs and only the backward unfolds.
    """

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        values: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        records: int,
        weight_use: Use | None,
        bias_use: Use | None,
    ) -> Tensor:
        """Convolve to (images, channels, *size), or the unfolded form that `by_image` undoes."""
        ctx.save_for_backward(values, weight)
        ctx.geometry, ctx.records, ctx.uses = geometry, records, (weight_use, bias_use)
        if not geometry.unfolds(values):
            return geometry.native(values, weight, bias)
        patches, matrix = geometry.patches(values), geometry.matrix(weight)
        if bias is None:
            return patches @ matrix.mT
        return torch.baddbmm(bias.view(len(matrix), 1, -1), patches, matrix.mT)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Pass the gradient to the input; unfold again for the parameters, to store no patches."""
        (gradient,) = gradients
        values, weight = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        weight_use, bias_use = ctx.uses
        unfolds = geometry.unfolds(values)
        rows = gradient if unfolds else geometry.by_position(gradient)
        by_record = at_least_single(rows).view(geometry.groups, ctx.records, -1, rows.shape[-1])
        if weight_use:
            columns = geometry.patches(values)
            columns = columns.view(geometry.groups, ctx.records, -1, columns.shape[-1])
            weight_use(outer(by_record, columns, geometry.form(weight.shape)))
        if bias_use:
            bias_use(Dense(by_record.sum(2).movedim(0, 1).flatten(1)))
        passed = None
        if ctx.needs_input_grad[1]:
            if unfolds:
                matrix = geometry.matrix(weight).to(gradient.dtype)
                # Without groups a plain product is quicker than a batch of one.
                alone = geometry.groups == 1
                patches = (gradient[0] @ matrix[0])[None] if alone else gradient @ matrix
                passed = geometry.fold(patches, values.shape)
            else:
                passed = geometry.native_input_gradient(gradient, values, weight)
        return None, passed, *[None] * 6
