"""Layers that provide the factors of their parameters' per-example gradients.

Each layer computes what its torch namesake computes, on plain tensors whose first axis is the
record. Its backward returns only the gradient of the input, if that is wanted; the factors of the
parameters' are passed to `Use` callbacks. `call` gives autograd an anchor as well, a scalar that
requires a gradient and receives none, so that it visits the layer in the backward pass. Normalised
values, as large as the input, are recomputed in the backward pass.

Convolutions may have any number of dimensions. On the CPU a convolution is a matrix product over
unfolded patches, channels last: faster than torch's there, and the form that the gradients need.
Patches are unfolded for a few images at a time, into memory that stays in the processor's cache.
Elsewhere, and with oneDNN on x86, torch's convolution runs, and only the backward pass unfolds; on
a GPU large images are kept with their channels last, which needs no copies.
"""

import math
import threading
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, cast

import attrs
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from prudent._torch_private import suggest_memory_format
from prudent.training.gradients.factors.contributions import (
    Dense,
    Form,
    Outer,
    Routed,
    Use,
    as_it_is,
    forms,
    grouped_product,
    outer,
    table_rows,
)
from prudent.training.gradients.factors.kernels import (
    Geometry,
    depthwise_gradients,
    fuses,
    group_norm,
    group_norm_backward,
    image_patches,
    is_depthwise,
    norm_gradients,
    normalises,
    row_strips,
)
from prudent.training.gradients.factors.products import (
    ALIGNED,
    Product,
    at_least_single,
    cut_product,
    cuts_products,
    multiplies_short,
    precise_product,
    short_product,
    short_products,
    shortened,
    summed_in_single,
    whole_products,
)


class Parameters(NamedTuple):
    """Weight and bias of a layer, and what takes their contributions if they are trained."""

    weight: Any  # a tensor; of a normalisation perhaps None
    bias: Tensor | None
    weight_use: Use | None
    bias_use: Use | None

    def contribute(self, slopes: Callable[[], Tensor], shifts: Callable[[], Tensor]) -> None:
        """Pass the gradients of weight and bias on, computed only if they are wanted."""
        if self.weight_use:
            self.weight_use(Dense(slopes()))
        if self.bias_use:
            self.bias_use(Dense(shifts()))


class _Adjoint(Function):
    """A layer as an autograd function of its first value."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor | None, layer: Any, *values: Tensor | None) -> Tensor:
        ctx.layer = layer
        return cast(Tensor, layer.forward(ctx, *values))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        _, _, wanted, *others = ctx.needs_input_grad
        return None, None, ctx.layer.backward(ctx, *gradients, wanted), *[None for _ in others]


def call(layer: Any, anchor: Tensor | None, *values: Tensor | None) -> Tensor:
    """Apply a layer to plain tensors, without what `Function.apply` does first for vmap."""
    apply: Callable[..., Tensor] = super(Function, _Adjoint).apply
    return apply(anchor, layer, *values)


@attrs.frozen
class Linear:
    """input @ weight.T + bias of shape (records · positions, width), on any with that many rows."""

    parameters: Parameters
    records: int
    transposed: bool  # whether the parameter is stored as weight.T
    width: int  # the number of outputs; those beyond it are padding

    def forward(self, ctx: Any, values: Tensor, converted: Tensor | None) -> Tensor:
        """Multiply the values, converted as `autocasted` does if that makes a difference."""
        weight, bias, weight_use, _ = self.parameters
        # A tape that keeps a view of its own graph would never be freed.
        flat = (values if converted is None else converted).detach().reshape(-1, values.shape[-1])
        # If the layer truncates its factors, so do norm and sum, each as it reads them: a truncated
        # copy would have to be kept beside the input, which other layers keep as well.
        ctx.cuts = cuts_products(flat)
        ctx.save_for_backward(flat if weight_use else None, weight)
        weight = autocasted(weight)  # not transposed, as the backward pass has it
        ctx.shape = values.shape
        return flat @ weight.T if bias is None else torch.addmm(bias, flat, weight.T)

    def backward(self, ctx: Any, gradient: Tensor, wanted: bool) -> Tensor | None:
        """Pass the gradient to the input and both factors to the parameters."""
        values, weight = ctx.saved_tensors
        by_record = gradient.view(self.records, -1, gradient.shape[1])
        if self.parameters.weight_use:
            pair = by_record.unsqueeze(0), values.view(1, self.records, -1, values.shape[1])
            rows, columns = reversed(pair) if self.transposed else pair
            product = cut_product if ctx.cuts else precise_product
            form = _narrow_matrix if self.transposed else _low_matrix
            self.parameters.weight_use(outer(rows, columns, partial(form, self.width), product))
        if self.parameters.bias_use:
            self.parameters.bias_use(Dense(total(by_record[..., : self.width], [1])))
        return (gradient @ weight.to(gradient.dtype)).view(ctx.shape) if wanted else None


@attrs.frozen
class Affine:
    """values * weight + bias, the parameters broadcast over every axis but their own."""

    parameters: Parameters
    own_axes: Sequence[int]  # the axes of the values that the parameters have

    def forward(self, ctx: Any, values: Tensor) -> Tensor:
        """Scale and shift."""
        weight, bias, weight_use, _ = self.parameters
        shape = [size if axis in self.own_axes else 1 for axis, size in enumerate(values.shape)]
        weight = None if weight is None else weight.view(shape)
        ctx.save_for_backward(values if weight_use else None, weight)
        if weight is None:
            return values.clone() if bias is None else values + bias.view(shape)
        return values * weight if bias is None else torch.addcmul(bias.view(shape), values, weight)

    def backward(self, ctx: Any, gradient: Tensor, wanted: bool) -> Tensor | None:
        """Pass the gradient to the input and its sums over positions to the parameters."""
        values, weight = ctx.saved_tensors
        summed = [axis for axis in range(1, gradient.ndim) if axis not in self.own_axes]
        precise = at_least_single(gradient)
        self.parameters.contribute(
            lambda: total(precise * values, summed), lambda: total(precise, summed)
        )
        return gradient if weight is None or not wanted else gradient * weight


@attrs.frozen
class Embedding:
    """weight[indices], for indices of shape (records, positions)."""

    weight: Tensor
    padding_index: int | None  # rows equal to it receive no gradient
    use: Use

    def forward(self, ctx: Any, indices: Tensor) -> Tensor:
        """Look up."""
        ctx.save_for_backward(indices)
        return functional.embedding(indices, self.weight).clone()

    def backward(self, ctx: Any, gradient: Tensor, wanted: bool) -> None:
        """Pass the gradient of every position to its row."""
        (indices,) = ctx.saved_tensors
        if self.padding_index is not None:
            gradient = torch.where((indices == self.padding_index)[..., None], 0, gradient)
        self.use(table_rows(indices, gradient, self.weight.shape[0]))


@attrs.frozen
class Experts:
    """`grouped_product` with the factors of its per-example gradients."""

    transposed: bool  # whether the parameter is stored as transposed matrices
    use: Use | None

    def forward(self, ctx: Any, values: Tensor, matrices: Tensor, ends: Tensor) -> Tensor:
        """Multiply; the matrices may be converted copies, which are freed in the backward pass."""
        ctx.save_for_backward(values if self.use else None, matrices, ends)
        return grouped_product(values, matrices, ends)

    def backward(self, ctx: Any, gradient: Tensor, wanted: bool) -> Tensor | None:
        """Pass the gradient to the input and both factors to the parameter."""
        values, matrices, ends = ctx.saved_tensors
        gradient = gradient.to(matrices.dtype)
        if self.use:
            rows, columns = (gradient, values) if self.transposed else (values, gradient)
            self.use(Routed(rows.contiguous(), columns.contiguous(), ends))
        return grouped_product(gradient, matrices.mT, ends) if wanted else None


@attrs.frozen
class Expand:
    """One copy of a parameter per record; the gradient of a copy is its record's gradient."""

    records: int
    use: Use

    def forward(self, ctx: Any, weight: Tensor) -> Tensor:
        """An expanded view, which needs no memory."""
        return weight.expand(self.records, *weight.shape)

    def backward(self, ctx: Any, gradient: Tensor, wanted: bool) -> None:
        """Pass the gradients on unchanged."""
        self.use(Dense(at_least_single(gradient)))


# A linear layer has one group, so its gradient has a group axis of size one; and padded outputs.
def _low_matrix(width: int, gradient: Tensor) -> Tensor:
    return gradient.squeeze(-3).narrow(-2, 0, width)


def _narrow_matrix(width: int, gradient: Tensor) -> Tensor:
    return gradient.squeeze(-3).narrow(-1, 0, width)


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


@attrs.frozen
class LayerNorm:
    """Normalises the last axes of (records, ..., *shape), then scales and shifts."""

    parameters: Parameters
    shape: Sequence[int]
    eps: float

    def forward(self, ctx: Any, values: Tensor) -> Tensor:
        """Normalise in single precision or better."""
        weight, bias, *_ = self.parameters
        result, mean, scale = torch.native_layer_norm(
            at_least_single(values), self.shape, weight, bias, self.eps
        )
        ctx.save_for_backward(values, weight, mean, scale)
        return result

    def backward(self, ctx: Any, gradient: Tensor, wanted: bool) -> Tensor | None:
        """Pass the gradient to the input and its sums over positions to the parameters."""
        values, weight, mean, scale = ctx.saved_tensors
        values = at_least_single(values)
        self.parameters.contribute(*self._sums(gradient, values, mean, scale))
        if not wanted:
            return None
        passed: Tensor = torch.ops.aten.native_layer_norm_backward.default(
            gradient, values, self.shape, mean, scale, weight, None, _INPUT_ONLY
        )[0]
        return passed

    def _sums(
        self, gradient: Tensor, values: Tensor, mean: Tensor, scale: Tensor
    ) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        """The gradients of weight and bias, computed on demand."""
        shape = self.shape
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


@attrs.frozen
class GroupNorm:
    """Normalises groups of channels of (images, channels, *size), then scales and shifts."""

    parameters: Parameters
    groups: int
    eps: float
    records: int

    def forward(self, ctx: Any, values: Tensor) -> Tensor:
        """Normalise in single precision or better."""
        weight, bias, *_ = self.parameters
        ctx.fused = normalises(values, self.groups)
        if not ctx.fused:
            values = _ordered(values, values)
        images, channels, *size = values.shape
        ctx.sizes = images, channels, torch.Size(size).numel(), self.groups
        if ctx.fused:
            result, mean, scale = group_norm(values, weight, bias, self.groups, self.eps)
        else:
            result, mean, scale = torch.ops.aten.native_group_norm.default(
                at_least_single(values), weight, bias, *ctx.sizes, self.eps
            )
        ctx.save_for_backward(values, weight, mean, scale)
        return result

    def backward(self, ctx: Any, gradient: Tensor, wanted: bool) -> Tensor | None:
        """Pass the gradient to the input and its sums over positions to the parameters."""
        values, weight, mean, scale = ctx.saved_tensors
        images, channels, _, groups = ctx.sizes
        passed: Tensor
        if ctx.fused:
            gradient = gradient.contiguous(memory_format=torch.channels_last)
            passed, *parts = group_norm_backward(gradient, values, weight, mean, scale)
            self.parameters.contribute(*(partial(_by_record, each, self.records) for each in parts))
            return passed if wanted else None
        values = at_least_single(values)
        positions = range(2, values.ndim)

        @cache
        def shifts() -> Tensor:
            return total(gradient, positions)

        def slopes() -> Tensor:
            # The normalised values are affine in the input, so two sums per channel are enough.
            products = total(gradient * values, positions).view(images, groups, -1)
            centred = products - mean[..., None] * shifts().view(images, groups, -1)
            return _by_record((centred * scale[..., None]).view(images, channels), self.records)

        self.parameters.contribute(slopes, lambda: _by_record(shifts(), self.records))
        if not wanted:
            return None
        passed, _, _ = torch.ops.aten.native_group_norm_backward.default(
            _ordered(gradient, values), values, mean, scale, weight, *ctx.sizes, _INPUT_ONLY
        )
        return passed


_INPUT_ONLY = [True, False, False]


def _by_record(parts: Tensor, records: int) -> Tensor:
    """What the images of a record add up to."""
    return parts if len(parts) == records else parts.unflatten(0, (records, -1)).sum(1)  # type: ignore[no-untyped-call]


def _ordered(values: Tensor, like: Tensor) -> Tensor:
    """The values in the memory format in which torch's kernels read `like`."""
    # Except on the CPU, the kernels only read channels first.
    order = suggest_memory_format(like) if like.device.type == "cpu" else torch.contiguous_format
    return values.contiguous(memory_format=order)


_LARGE = 1 << 26
_MANY = 1 << 20
_CACHED = 1 << 19
"""Numbers of patches that are unfolded at a time on the CPU."""


@attrs.frozen
class Convolution:
    """A zero-padded convolution on (images, channels, *size), as a product over patches.

    The result is an image where oneDNN convolves. Elsewhere it is a matrix that must be reshaped by
    `Geometry.by_image`, because an autograd function must not return a view.
    """

    parameters: Parameters
    geometry: Geometry
    records: int

    def forward(self, ctx: Any, values: Tensor) -> Tensor:
        """Convolve, or unfold and multiply."""
        weight, bias, *_ = self.parameters
        geometry, values = self.geometry, autocasted(values)
        # Whether oneDNN convolves such images with their channels last, without unfolding them.
        native = geometry.dimensions == 2 and geometry.groups == 1 and _has_fast_adjoint(values)
        if native:
            values = values.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(values, weight)
        if native:
            # With one channel the result has its channels first, in which torch pools slowly.
            result = torch.convolution(values, weight, bias, *_settings(geometry))
            return result.contiguous(memory_format=torch.channels_last)
        matrix = geometry.matrix(autocasted(weight)).mT
        bias = None if bias is None else autocasted(bias)
        return _patches_product(values, matrix, bias, geometry)

    def backward(self, ctx: Any, gradient: Tensor, wanted: bool) -> Tensor | None:
        """Pass the gradient to the input; unfold again for the parameters.

        No patches are stored.
        """
        values, weight = ctx.saved_tensors
        geometry, (_, _, weight_use, bias_use) = self.geometry, self.parameters
        if gradient.ndim > 3:
            gradient = gradient.movedim(1, -1).flatten(0, -2)
        gradient = gradient.view(geometry.groups, -1, gradient.shape[-1])
        rows = at_least_single(gradient).view(len(gradient), self.records, -1, gradient.shape[2])
        if weight_use:
            shape = weight.shape
            if forms(rows.shape[2], rows.shape[3], shape[1:].numel()):
                weight_use(_formed(rows, values, geometry, shape))
            else:
                weight_use(_kept(rows, values, geometry, shape, precise_product, as_it_is))
        if bias_use:
            bias_use(Dense(rows.sum(2).movedim(0, 1).flatten(1)))
        if not wanted:
            return None
        weight = weight.to(gradient.dtype)
        if _has_fast_adjoint(gradient):
            image = geometry.by_image(gradient, values.shape)
            return _input_gradient(image, values, weight, geometry)
        products = _grouped_product(gradient, geometry.matrix(weight), None)
        return geometry.fold(products, values.shape)


class NativeConvolution(Convolution):
    """The same with torch's convolution, channels first; its result is an image."""

    def forward(self, ctx: Any, values: Tensor) -> Tensor:
        """Convolve."""
        weight, bias, *_ = self.parameters
        values = autocasted(values)
        ctx.last = _prefers_channels_last(values, len(weight), self.geometry)
        if ctx.last:
            values = values.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(values, weight)
        if _unfolds(weight, self.geometry):
            bias = None if bias is None else autocasted(bias)
            return _unfolded(values, autocasted(weight), bias, self.geometry)
        return torch.convolution(values, weight, bias, *_settings(self.geometry))

    def backward(self, ctx: Any, gradient: Tensor, wanted: bool) -> Tensor | None:
        """Pass the gradient to the input; unfold for the parameters."""
        values, weight = ctx.saved_tensors
        geometry, (_, _, weight_use, bias_use) = self.geometry, self.parameters

        def by_record(images: Tensor) -> Tensor:
            """(groups, images, size, positions) as (groups, records, positions, size)."""
            split = images.unflatten(1, (self.records, -1))  # type: ignore[no-untyped-call]
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
                if len(each) != self.records:
                    each = each.view(self.records, -1, *each.shape[1:]).sum(1)
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
        if not wanted:
            return None
        weight = weight.to(gradient.dtype)
        if not _unfolds(weight, geometry):
            return _input_gradient(gradient, values, weight, geometry)
        # Of a convolution with stride 1: that of the gradient with the kernel turned around.
        (kernel,), (padding,), (spread,) = geometry.kernel, geometry.padding, geometry.dilation
        rest = [spread * (kernel - 1) - padding]
        turned = weight.unflatten(0, (geometry.groups, -1)).transpose(1, 2).flatten(0, 1).flip(2)
        back = Geometry([kernel], [1], rest, [spread], geometry.groups)
        return _unfolded(gradient, turned, None, back)


def _unfolds(weight: Tensor, geometry: Geometry) -> bool:
    """Whether a product over patches is faster than cuDNN: for groups of a sequence.

    cuDNN convolves them one after another, without tensor cores if the kernel is long.
    """
    if geometry.dimensions > 1 or geometry.groups == 1 or weight.shape[1] == 1:
        return False
    (kernel,), (padding,), (spread,) = geometry.kernel, geometry.padding, geometry.dilation
    return geometry.stride == [1] and padding <= spread * (kernel - 1)


def _unfolded(values: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """The convolution as a product over patches, which are copied."""
    product = _grouped_product(geometry.patches(values), geometry.matrix(weight).mT, bias)
    return geometry.by_image(product, values.shape).contiguous()


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
    passed = torch.ops.aten.convolution_backward.default(
        gradient, values.to(gradient.dtype), weight, None, *_settings(geometry), _INPUT_ONLY
    )
    return cast(Tensor, passed[0])


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
