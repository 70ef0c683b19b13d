"""Convolutions of any number of dimensions; see `layers` for what their backward provides.

On the CPU a convolution is one matrix product over unfolded patches, channels last. That is faster
than torch's convolution there and is the form that the gradients need. Elsewhere torch's
convolution runs, and only the backward pass unfolds.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from prudent.training.gradients.contributions import (
    Dense,
    Form,
    Outer,
    Use,
    as_it_is,
    forms,
)
from prudent.training.gradients.geometry import Geometry
from prudent.training.gradients.layers import autocasted
from prudent.training.gradients.precision import short_products, whole_products
from prudent.training.gradients.products import (
    Product,
    at_least_single,
    precise_product,
    short_product,
    shortened,
)

_LARGE = 1 << 26


class Convolution(Function):
    """A zero-padded convolution on (images, channels, *size), as a product over patches.

    The result must be reshaped by `Geometry.by_image`, because an autograd function must not return
    a view.
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
        """Unfold and multiply."""
        values = autocasted(values)
        ctx.save_for_backward(values, weight)
        ctx.geometry, ctx.records, ctx.uses = geometry, records, (weight_use, bias_use)
        patches, matrix = geometry.patches(values), geometry.matrix(weight).mT
        return _grouped_product(patches, matrix, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Pass the gradient to the input; unfold again for the parameters.

        No patches are stored.
        """
        (gradient,) = gradients
        values, weight = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        weight_use, bias_use = ctx.uses
        gradient = gradient.view(geometry.groups, -1, gradient.shape[-1])
        rows = at_least_single(gradient).view(len(gradient), ctx.records, -1, gradient.shape[2])
        if weight_use:
            factors = _kept(rows, values, geometry, weight.shape, precise_product, as_it_is)
            formed = forms(rows.shape[2], rows.shape[3], weight.shape[1:].numel())
            weight_use(factors.formed() if formed else factors)
        if bias_use:
            bias_use(Dense(rows.sum(2).movedim(0, 1).flatten(1)))
        passed = None
        if ctx.needs_input_grad[1]:
            matrix = geometry.matrix(weight).to(gradient.dtype)
            passed = geometry.fold(_grouped_product(gradient, matrix, None), values.shape)
        return None, passed, *[None] * 6


class NativeConvolution(Function):
    """The same with torch's convolution, channels first; its result is an image."""

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
        """Convolve."""
        values = autocasted(values)
        ctx.save_for_backward(values, weight)
        ctx.geometry, ctx.records, ctx.uses = geometry, records, (weight_use, bias_use)
        return torch.convolution(values, weight, bias, *_settings(geometry))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Pass the gradient to the input; unfold for the parameters."""
        (gradient,) = gradients
        values, weight = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        weight_use, bias_use = ctx.uses

        def by_record(images: Tensor) -> Tensor:
            """(groups, images, size, positions) as (groups, records, positions, size)."""
            split = images.unflatten(1, (ctx.records, -1))  # type: ignore[no-untyped-call]
            joined: Tensor = split.transpose(2, 3).flatten(3)
            return joined.mT

        images, channels = gradient.shape[:2]
        grouped = images, geometry.groups, channels // geometry.groups
        rows = by_record(at_least_single(gradient).reshape(*grouped, -1).transpose(0, 1))
        if weight_use:
            short = _cuts_factors(rows, values)
            product = short_product if short else precise_product
            shape = weight.shape
            if not forms(rows.shape[2], rows.shape[3], shape[1:].numel()):
                # Norm and sum multiply the kept factors in different orders. Truncating the factors
                # first makes the products exact, so the norm is that of what is summed.
                cut = shortened if short else as_it_is
                weight_use(_kept(cut(rows), values, geometry, shape, product, cut))
            elif _unfolds_strips(geometry, rows, shape[1:].numel(), images == ctx.records):
                strips, begins = geometry.strips(at_least_single(values))
                formed = _strip_products(rows[0].mT, strips, begins, short)
                weight_use(Dense(formed, lambda m: _from_strips(m, shape)))
            else:
                axes = range(3 + geometry.dimensions, 3 + 2 * geometry.dimensions)
                front = list(range(3, 3 + len(axes)))
                windows = geometry.windows(at_least_single(values)).movedim(list(axes), front)
                columns = by_record(windows.flatten(3 + len(axes)).flatten(2, 2 + len(axes)))
                factors = Outer(rows, columns, lambda m: _as_weight(m, shape), product)
                weight_use(factors.formed())
        if bias_use:
            bias_use(Dense(rows.sum(2).movedim(0, 1).flatten(1)))
        passed = None
        if ctx.needs_input_grad[1]:
            passed, _, _ = torch.ops.aten.convolution_backward(
                gradient,
                values.to(gradient.dtype),
                weight.to(gradient.dtype),
                None,
                *_settings(geometry),
                [True, False, False],
            )
        return None, passed, *[None] * 6


def _kept(
    rows: Tensor,
    values: Tensor,
    geometry: Geometry,
    weight_shape: Sequence[int],
    product: Product,
    cut: Form,
) -> Outer:
    """Both factors, the second as images; its patches, many times as large, are made on use."""
    records = rows.shape[1]

    def unfold(images: Tensor) -> Tensor:
        patches = geometry.patches(cut(at_least_single(images.flatten(0, 1))))
        return patches.view(len(patches), len(images), -1, patches.shape[2])

    images = values.view(records, -1, *values.shape[1:])
    return Outer(rows, images, geometry.form(weight_shape), product, unfold)


def _grouped_product(left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    """Left @ right + bias for each group; a plain product is faster than a batch of one."""
    if len(left) == 1:
        plain = left[0], right[0]
        return torch.mm(*plain) if bias is None else torch.addmm(bias, *plain)
    if bias is None:
        return torch.bmm(left, right)
    return torch.baddbmm(bias.view(len(left), 1, -1), left, right)


def _settings(geometry: Geometry) -> tuple[Any, ...]:
    """Stride, padding, dilation, not transposed, no output padding, groups."""
    nothing = [0] * geometry.dimensions
    sides = geometry.stride, geometry.padding, geometry.dilation
    return *sides, False, nothing, geometry.groups


def _as_weight(matrix: Tensor, shape: Sequence[int]) -> Tensor:
    """(..., groups, outputs of a group, channels of a group · kernel) as (..., *shape)."""
    return matrix.reshape(*matrix.shape[:-3], *shape)


def _from_strips(matrix: Tensor, shape: Sequence[int]) -> Tensor:
    """(..., outputs, first kernel axis, channels · rest of kernel) as (..., *shape)."""
    first, rest = shape[2], shape[3:]
    split = matrix.reshape(*matrix.shape[:-2], first, shape[1], *rest)
    return split.movedim(-2 - len(rest), -1 - len(rest))


def _unfolds_strips(geometry: Geometry, rows: Tensor, size: int, one_image: bool) -> bool:
    """Whether copying whole patches would cost more than one product per row of the kernel."""
    patches = rows.shape[1] * rows.shape[2] * size
    simple = geometry.groups == 1 and one_image and geometry.dimensions > 1
    return simple and geometry.kernel[0] > 1 and patches >= _LARGE


def _cuts_factors(*factors: Tensor) -> bool:
    """Whether torch's convolution would truncate its factors to TF32, so its gradient may too."""
    single = all(factor.is_cuda and factor.dtype != torch.float64 for factor in factors)
    return single and bool(torch.backends.cudnn.allow_tf32)


@torch.library.custom_op("prudent::strip_products", mutates_args=())
def _strip_products(rows: Tensor, strips: Tensor, begins: Sequence[int], short: bool) -> Tensor:
    """For each offset in `begins`, the rows times that slice of the strips, transposed."""
    result = rows.new_empty(rows.shape[0], rows.shape[1], len(begins), strips.shape[1])
    with short_products() if short else whole_products():
        for index, begin in enumerate(begins):
            columns = strips[:, :, begin : begin + rows.shape[2]]
            torch.bmm(rows, columns.mT, out=result[:, :, index])
    return result


@_strip_products.register_fake
def _(rows: Tensor, strips: Tensor, begins: Sequence[int], short: bool) -> Tensor:
    return rows.new_empty(rows.shape[0], rows.shape[1], len(begins), strips.shape[1])
