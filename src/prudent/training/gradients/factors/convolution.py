"""Convolutions of any number of dimensions; see `layers` for what their backward provides.

On the CPU a convolution is a matrix product over unfolded patches, channels last: faster than
torch's convolution there, and the form that the gradients need. Patches are unfolded for a few
images at a time, into memory that stays in the processor's cache. Elsewhere, and with oneDNN on
x86, torch's convolution runs, and only the backward pass unfolds; on a GPU large images are kept
with their channels last, which cuDNN and the gradients need no copies for.
"""

import math
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from prudent.training.gradients.factors.contributions import (
    Dense,
    Form,
    Outer,
    Use,
    as_it_is,
    forms,
)
from prudent.training.gradients.factors.kernels import (
    Geometry,
    depthwise_gradients,
    fuses,
    image_patches,
    is_depthwise,
    row_strips,
)
from prudent.training.gradients.factors.layers import autocasted, total
from prudent.training.gradients.factors.products import (
    ALIGNED,
    Product,
    at_least_single,
    multiplies_short,
    precise_product,
    short_product,
    short_products,
    shortened,
    summed_in_single,
    whole_products,
)

_LARGE = 1 << 26
_MANY = 1 << 20
_CACHED = 1 << 19
"""Numbers of patches that are unfolded at a time on the CPU."""


class Convolution(Function):
    """A zero-padded convolution on (images, channels, *size), as a product over patches.

    The result is an image where oneDNN convolves. Elsewhere it is a matrix that must be reshaped by
    `Geometry.by_image`, because an autograd function must not return a view.
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
        """Convolve, or unfold and multiply."""
        values = autocasted(values)
        # Whether oneDNN convolves such images with their channels last, without unfolding them.
        native = geometry.dimensions == 2 and geometry.groups == 1 and _has_fast_adjoint(values)
        if native:
            values = values.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(values, weight)
        ctx.geometry, ctx.records, ctx.uses = geometry, records, (weight_use, bias_use)
        if native:
            # With one channel the result has its channels first, in which torch pools slowly.
            result = torch.convolution(values, weight, bias, *_settings(geometry))
            return result.contiguous(memory_format=torch.channels_last)
        matrix = geometry.matrix(autocasted(weight)).mT
        bias = None if bias is None else autocasted(bias)
        return _patches_product(values, matrix, bias, geometry)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Pass the gradient to the input; unfold again for the parameters.

        No patches are stored.
        """
        (gradient,) = gradients
        values, weight = ctx.saved_tensors
        geometry: Geometry = ctx.geometry
        weight_use, bias_use = ctx.uses
        if gradient.ndim > 3:
            gradient = gradient.movedim(1, -1).flatten(0, -2)
        gradient = gradient.view(geometry.groups, -1, gradient.shape[-1])
        rows = at_least_single(gradient).view(len(gradient), ctx.records, -1, gradient.shape[2])
        if weight_use:
            shape = weight.shape
            if forms(rows.shape[2], rows.shape[3], shape[1:].numel()):
                weight_use(_formed(rows, values, geometry, shape))
            else:
                weight_use(_kept(rows, values, geometry, shape, precise_product, as_it_is))
        if bias_use:
            bias_use(Dense(rows.sum(2).movedim(0, 1).flatten(1)))
        passed = None
        if ctx.needs_input_grad[1]:
            weight = weight.to(gradient.dtype)
            if _has_fast_adjoint(gradient):
                image = geometry.by_image(gradient, values.shape)
                passed = _input_gradient(image, values, weight, geometry)
            else:
                products = _grouped_product(gradient, geometry.matrix(weight), None)
                passed = geometry.fold(products, values.shape)
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
        ctx.last = _prefers_channels_last(values, len(weight), geometry)
        if ctx.last:
            values = values.contiguous(memory_format=torch.channels_last)
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

        if ctx.last:
            gradient = gradient.contiguous(memory_format=torch.channels_last)
        images, channels = gradient.shape[:2]
        grouped = images, geometry.groups, channels // geometry.groups
        # Products of bfloat16 factors are exact, as those of factors that are cut.
        half = gradient.dtype == values.dtype and multiplies_short(gradient)
        widened = as_it_is if half else at_least_single
        rows = by_record(widened(gradient).reshape(*grouped, -1).transpose(0, 1))
        if weight_use:
            short = not half and _cuts_factors(rows, values)
            product = short_product if short else precise_product
            shape = weight.shape
            if is_depthwise(values, gradient, geometry):
                each = depthwise_gradients(values, gradient, geometry)
                if len(each) != ctx.records:
                    each = each.view(ctx.records, -1, *each.shape[1:]).sum(1)
                weight_use(Dense(each, lambda m: m.reshape(*m.shape[:-2], *shape)))
            elif not forms(rows.shape[2], rows.shape[3], shape[1:].numel()):
                # Norm and sum multiply the kept factors in different orders. Truncating the factors
                # first makes the products exact, so the norm is that of what is summed.
                cut = shortened if short else as_it_is
                weight_use(_kept(cut(rows), values, geometry, shape, product, cut, ctx.last))
            elif ctx.last and shape[1] % ALIGNED == 0:
                weight_use(_formed_last(rows, widened(values), geometry, shape, product))
            else:
                axes = range(3 + geometry.dimensions, 3 + 2 * geometry.dimensions)
                front = list(range(3, 3 + len(axes)))
                windows = geometry.windows(widened(values)).movedim(list(axes), front)
                columns = by_record(windows.flatten(3 + len(axes)).flatten(2, 2 + len(axes)))
                factors = Outer(rows, columns, lambda m: m.reshape(*m.shape[:-3], *shape), product)
                weight_use(factors.formed())
        if bias_use:
            bias_use(Dense(total(rows, [2]).movedim(0, 1).flatten(1)))
        passed = None
        if ctx.needs_input_grad[1]:
            passed = _input_gradient(gradient, values, weight.to(gradient.dtype), geometry)
        return None, passed, *[None] * 6


def _prefers_channels_last(values: Tensor, outputs: int, geometry: Geometry) -> bool:
    """Whether cuDNN convolves faster, and the gradients need no copies, with channels last.

    For few numbers, an additional launch to reorder them takes longer.
    """
    simple = geometry.dimensions == 2 and geometry.groups == 1 and values.shape[1] > 1
    if not (simple and _cuts_factors(values) and fuses(values.new_empty(0))):
        return False
    computed = len(values) * outputs * math.prod(geometry.output_size(values.shape[2:]))
    return computed >= _MANY or values.is_contiguous(memory_format=torch.channels_last)


def _formed_last(
    rows: Tensor, values: Tensor, geometry: Geometry, shape: Sequence[int], product: Product
) -> Dense:
    """The per-example gradients of the weight, from images with their channels last."""
    records, size, form = rows.shape[1], math.prod(shape[1:]), geometry.form(shape)
    # Copying whole patches may cost more than one product per row of the kernel.
    many = len(values) == records and rows.shape[1] * rows.shape[2] * size >= _LARGE
    if many and geometry.kernel[0] > 1:
        strips, begins = row_strips(values, geometry)
        formed = _strip_products(rows[0].mT, strips.mT, begins, product is short_product)
        return Dense(formed, lambda m: form(m.flatten(-2).unsqueeze(-3)))
    if _is_pointwise(geometry):
        patches = values.movedim(1, -1)
    else:
        patches = image_patches(values, geometry, cut=False)
    return Outer(rows, patches.reshape(1, records, -1, size), form, product).formed()


def _is_pointwise(geometry: Geometry) -> bool:
    """Whether each patch is a position of the image."""
    ones = {*geometry.kernel, *geometry.stride, geometry.groups}
    return ones == {1} and not any(geometry.padding)


def _input_gradient(gradient: Tensor, values: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """The gradient of the input, by torch's own adjoint of its convolution."""
    values, settings = values.to(gradient.dtype), _settings(geometry)
    wanted = [True, False, False]
    passed: Tensor
    passed, _, _ = torch.ops.aten.convolution_backward(
        gradient, values, weight, None, *settings, wanted
    )
    return passed


def _has_fast_adjoint(gradient: Tensor) -> bool:
    """Whether oneDNN, which `native_products` leaves on where it is fast, has this adjoint."""
    mkldnn = torch.backends.mkldnn
    available = bool(mkldnn.is_available())  # type: ignore[no-untyped-call]
    return available and bool(mkldnn.enabled) and gradient.dtype == torch.float32


def _pieces(count: int, size: int) -> list[slice]:
    """Slices of `count` images or records of `size` numbers each that fit into the cache."""
    step = max(1, _CACHED // max(1, size))
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


class _Scratch(threading.local):
    """Memory for the patches of one piece, kept from one use to the next, for each thread.

    Whoever uses it must be done with it before it returns.
    """

    def __init__(self) -> None:
        self._held: dict[torch.dtype, Tensor] = {}

    def holding(self, windows: Tensor) -> Tensor:
        """A contiguous copy; of an image that is too large, in memory that is not kept."""
        if windows.numel() > _CACHED:
            return windows.contiguous()
        if windows.dtype not in self._held:
            with torch.inference_mode(False):  # else it could be written in that mode alone
                self._held[windows.dtype] = windows.new_empty(_CACHED)
        return self._held[windows.dtype][: windows.numel()].view(windows.shape).copy_(windows)


_scratch = _Scratch()


def _patches_product(
    values: Tensor, matrix: Tensor, bias: Tensor | None, geometry: Geometry
) -> Tensor:
    """The patches of all images times a matrix, a few images at a time."""
    windows = geometry.overlapping(values)
    positions = windows.shape[2 : 2 + geometry.dimensions].numel()
    pieces = _pieces(len(values), windows[:, :1].numel())
    if len(pieces) == 1:
        return _grouped_product(geometry.copied(windows), matrix, bias)
    groups = matrix.shape[:1] if len(matrix) > 1 else ()
    result = values.new_empty(*groups, len(values) * positions, matrix.shape[2])
    for piece in pieces:
        part = result[..., piece.start * positions : piece.stop * positions, :]
        patches = geometry.copied(_scratch.holding(windows[:, piece]))
        _grouped_product(patches, matrix, bias, part)
    return result


def _formed(rows: Tensor, values: Tensor, geometry: Geometry, shape: Sequence[int]) -> Dense:
    """The per-example gradients of the weight, formed for a few records at a time."""
    groups, records, positions, outputs = rows.shape
    windows = geometry.overlapping(at_least_single(values)).unflatten(1, (records, -1))  # type: ignore[no-untyped-call]
    size = math.prod(shape[1:])
    result = rows.new_empty(records, groups, outputs, size)
    pieces = _pieces(records, windows[:, :1].numel())
    for piece in pieces:
        held = windows if len(pieces) == 1 else _scratch.holding(windows[:, piece])
        patches = held.reshape(groups, -1, positions, size)
        for group in range(groups):
            left = rows[group, piece].mT
            torch.bmm(left, patches[group], out=result[piece, group])
    return Dense(result, geometry.form(shape))


def _kept(
    rows: Tensor,
    values: Tensor,
    geometry: Geometry,
    weight_shape: Sequence[int],
    product: Product,
    cut: Form,
    last: bool = False,
) -> Outer:
    """Both factors, the second as images; its patches, many times as large, are made on use."""
    records, form = rows.shape[1], geometry.form(weight_shape)
    if last and _is_pointwise(geometry) and rows.dtype == values.dtype:
        positions = values.movedim(1, -1).reshape(1, records, -1, values.shape[1])
        return Outer(rows, cut(positions), form, product)

    def unfold(images: Tensor) -> Tensor:
        flat = images.flatten(0, 1)
        if last:
            flat = flat.contiguous(memory_format=torch.channels_last)
            cuts = cut is shortened
            patches = image_patches(flat if cuts else flat.to(rows.dtype), geometry, cut=cuts)
        else:
            patches = geometry.patches(
                cut(flat if flat.dtype == rows.dtype else at_least_single(flat))
            )
        return patches.view(len(patches), len(images), -1, patches.shape[2])

    images = values.view(records, -1, *values.shape[1:])
    return Outer(rows, images, form, product, unfold)


def _grouped_product(
    left: Tensor, right: Tensor, bias: Tensor | None, out: Tensor | None = None
) -> Tensor:
    """Left @ right + bias for each group; a plain product is faster than a batch of one."""
    if len(left) == 1:
        plain = left[0], right[0]
        return torch.mm(*plain, out=out) if bias is None else torch.addmm(bias, *plain, out=out)
    if bias is None:
        return torch.bmm(left, right, out=out)
    return torch.baddbmm(bias.view(len(left), 1, -1), left, right, out=out)


def _settings(geometry: Geometry) -> tuple[Any, ...]:
    """Stride, padding, dilation, not transposed, no output padding, groups."""
    nothing = [0] * geometry.dimensions
    sides = geometry.stride, geometry.padding, geometry.dilation
    return *sides, False, nothing, geometry.groups


def _cuts_factors(*factors: Tensor) -> bool:
    """Whether torch's convolution would truncate its factors to TF32, so its gradient may too."""
    single = all(factor.is_cuda and factor.dtype != torch.float64 for factor in factors)
    return single and bool(torch.backends.cudnn.allow_tf32)


def _strip_products(rows: Tensor, strips: Tensor, begins: Sequence[int], short: bool) -> Tensor:
    """For each offset in `begins`, the rows times that slice of the strips, transposed."""
    if rows.dtype == torch.bfloat16:
        ends = [begin + rows.shape[2] for begin in begins]
        parts = [strips[:, :, slice(*place)].mT for place in zip(begins, ends, strict=True)]
        return torch.stack([summed_in_single(rows, columns) for columns in parts], 2)
    result = rows.new_empty(rows.shape[0], rows.shape[1], len(begins), strips.shape[1])
    with short_products() if short else whole_products():
        for index, begin in enumerate(begins):
            columns = strips[:, :, begin : begin + rows.shape[2]]
            torch.bmm(rows, columns.mT, out=result[:, :, index])
    return result
