"""Triton kernels for what a step does to every layer, each in one pass over memory.

Elsewhere torch's operations do it, a pass each; see `fuses`.

torch normalises images on a GPU only with channels first, while its convolutions are faster with
channels last; copies between the two took a third of a step. So images are kept with their channels
last, and `Geometry` says where the patches of a convolution lie in them.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class Geometry:
    """The geometry of a convolution: the positions of its patches and their matrix layouts."""

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

    def output_size(self, size: Sequence[int]) -> list[int]:
        """The number of output positions along each axis."""
        axes = zip(size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        return [(s + 2 * p - d * (k - 1) - 1) // t + 1 for s, k, t, p, d in axes]

    def windows(self, values: Tensor) -> Tensor:
        """Unfold (images, channels, *size) to a view (groups, images, channels, *size, *kernel)."""
        images, channels = values.shape[:2]
        if any(self.padding):
            values = functional.pad(values, [p for p in reversed(self.padding) for _ in (0, 1)])
        for axis, (k, t, d) in enumerate(zip(self.kernel, self.stride, self.dilation, strict=True)):
            values = values.unfold(2 + axis, d * (k - 1) + 1, t)[..., ::d]
        grouped = images, self.groups, channels // self.groups
        return values.reshape(*grouped, *values.shape[2:]).transpose(0, 1)

    def patches(self, values: Tensor) -> Tensor:
        """Patches of shape (groups, images · positions, kernel · channels of a group)."""
        return self.copied(self.overlapping(values))

    def overlapping(self, values: Tensor) -> Tensor:
        """A view of the patches: (groups, images, *size, *kernel, channels of a group).

        The channels come last, so that copying patches copies contiguous memory.
        """
        return self.windows(values.movedim(1, -1).contiguous().movedim(-1, 1)).movedim(2, -1)

    def copied(self, windows: Tensor) -> Tensor:
        """Copy `overlapping` patches to matrices: one product covers all of their images."""
        positions = windows.shape[1 : 2 + self.dimensions].numel()
        return windows.reshape(self.groups, positions, -1)

    def fold(self, patches: Tensor, shape: Sequence[int]) -> Tensor:
        """Sum patches into (images, channels, *size): the adjoint of `patches`."""
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

    def by_image(self, result: Tensor, shape: Sequence[int]) -> Tensor:
        """A product over patches as (images, channels, *size); channels stay last in memory."""
        output = self.output_size(shape[2:])
        images = result.view(self.groups, shape[0], *output, result.shape[-1])
        return images.movedim(0, -2).flatten(-2).movedim(-1, 1)


TILE = 64
"""Positions of a block of `factor_sums`."""
ADDED = 1 << 10
"""Products that `record_sums` adds in a row in single precision; `norms` allows for rounding."""
PARTIAL_SUMS = 16
"""Number of partial sums that `gram_sums` leaves to be added, so that many programs can work."""
_LARGE_MATRIX = 1 << 24
_AT_ONCE = 64  # positions of a record that `record_sums` reads in one step


def fuses(*values: Tensor) -> bool:
    """Whether the kernels take these tensors: on a GPU, and contiguous."""
    on_device = all(each.is_cuda and each.is_contiguous() for each in values)
    return on_device and work_on(values[0].device)


@cache
def _kernels() -> Any:
    """The module with the kernels; importing it requires Triton."""
    from prudent.training.gradients.factors import triton_kernels

    return triton_kernels


_STARTED: dict[Any, Any] = {}
_MOST_STARTED = 1 << 12


def _launch(name: str, grid: tuple[int, ...], first: Tensor, *others: Any, **options: int) -> None:
    """Start a kernel on the device of its first argument, with all arguments by position.

    Triton looks at every argument for what a program may depend on, which takes the host several
    times as long as the launch. So what it found is kept, for the types and numbers that a program
    is compiled for; of the address of a tensor that is whether it is aligned.
    """
    if torch.cuda.current_device() != first.device.index:
        with torch.cuda.device(first.device):
            _launch(name, grid, first, *others, **options)
        return
    arguments = first, *others
    of = [(x.dtype, x.data_ptr() & 15) if isinstance(x, Tensor) else x for x in arguments]
    key = name, grid, first.device.index, *of
    start = _STARTED.get(key)
    if start is not None:
        start(*arguments)
        return
    compiled = getattr(_kernels(), name)[grid](*arguments, **options)
    # From Triton 3.3 on a compiled kernel takes the arguments of its source.
    if tuple(map(int, _kernels().triton.__version__.split(".")[:2])) >= (3, 3):
        if len(_STARTED) >= _MOST_STARTED:
            _STARTED.clear()
        _STARTED[key] = compiled[(*grid, 1, 1)[:3]]


@cache
def work_on(device: torch.device) -> bool:
    """Whether Triton is there and its kernels run on a device."""
    try:
        ones = torch.ones(1, 2, 2, device=device)
        right = bool(gram_sums(ones, ones, (1.0, 1.0, 1.0)).sum() == 10)
        # Rows longer than what is added up at once: their inner products are 2304, and 2.
        sums = factor_sums(torch.ones(1, 2, 2304, device=device), ones, (1.0, 1.0, 1.0)).sum(1)
        inner = gram_sums(2304 * ones, 2 * ones, (1.0, 1.0, 1.0)).sum(1)
        return right and torch.allclose(sums, inner)
    except Exception:  # no Triton, no compiler for it, an unsupported device
        return False


def gram_sums(left: Tensor, right: Tensor, scales: Sequence[float]) -> Tensor:
    """Sums over two batches of matrices of inner products; see `norms.gram_terms`.

    Args:
        left: Single precision, of shape (batch, positions, positions).
        right: The same.
        scales: Factors of the last three sums.

    Returns:
        Shape (batch, PARTIAL_SUMS, 4), to be summed over the second axis.
    """
    batch, positions, _ = left.shape
    sums = left.new_empty(batch, PARTIAL_SUMS, 4)
    _launch("gram_sums", (batch, PARTIAL_SUMS), left, right, sums, positions, *scales)
    return sums


def factor_sums(rows: Tensor, columns: Tensor, scales: Sequence[float]) -> Tensor:
    """The same sums of the inner products of all rows and of all columns, which are not stored.

    Single-precision factors are truncated to TF32 as they are read.

    Returns:
        Shape (batch, `tile_pairs`, 4), to be summed over the second axis.
    """
    batch, positions, height = rows.shape
    pairs = tile_pairs(positions)
    sums = torch.empty(batch, pairs, 4, device=rows.device)
    cuts = rows.dtype == torch.float32
    _launch(
        "factor_sums", (pairs * batch,),
        rows, columns, sums, positions, height, columns.shape[2], *scales, pairs, cuts, TILE,
        32 if cuts else 64, num_warps=4, num_stages=4 if cuts else 3,
    )  # fmt: skip
    return sums


def tile_pairs(positions: int) -> int:
    """Partial sums that `factor_sums` leaves to be added, one per pair of blocks of positions."""
    blocks = -(-positions // TILE)
    return blocks * (blocks + 1) // 2


def record_sums(rows: Tensor, columns: Tensor, weights: Tensor) -> Tensor:
    """Σᵢ wᵢ rowsᵢᵀ columnsᵢ over the records, which are added up in double precision.

    Single-precision factors are truncated to TF32 as they are read. What is not finite is zero.

    Args:
        rows: Shape (groups, records, positions, size), contiguous, in single precision or bfloat16.
        columns: The same type, with a size of its own.
        weights: One per record, in double precision.

    Returns:
        Shape (groups, size of rows, size of columns).
    """
    groups, records, positions, height = rows.shape
    width = columns.shape[3]
    parts = 2 if rows.dtype == torch.float32 else 1
    if parts == 2:
        rows, columns = _short_parts(rows), _short_parts(columns)
    at_once = positions <= _AT_ONCE
    if at_once:
        tall, wide, depth, programs = 64, 64, max(16, 1 << (positions - 1).bit_length()), 1056
    elif height * width < _LARGE_MATRIX:
        tall, wide, depth, programs = 64, 64, 64, 528
    else:
        tall, wide, depth, programs = 64, 128, 64, 264
    tiles = groups * -(-height // tall) * -(-width // wide)
    share = -(-records // max(1, min(records, programs // tiles)))
    shares = -(-records // share)
    sums = weights.new_empty(shares, groups, height, width)
    _launch(
        "record_sums", (tiles, shares),
        rows, columns, weights, sums, records, share, positions, height, width,
        parts, at_once, tall, wide, depth, ADDED // (2 * parts - 1) // depth * depth,
        num_warps=4, num_stages=4 if at_once else 3,
    )  # fmt: skip
    return sums[0] if shares == 1 else sums.sum(0)


_ROUTED = 64, 64, 32  # rows, columns and positions that the two kernels below work on at a time


def routed_squares(rows: Tensor, columns: Tensor, ends: Tensor) -> Tensor:
    """The squared norms of `contributions.Routed`, in double precision."""
    (records, positions, height), width, experts = rows.shape, columns.shape[2], ends.shape[1]
    tiles = -(-height // _ROUTED[0]) * -(-width // _ROUTED[1])
    squares = rows.new_empty(records, experts * tiles, dtype=torch.float64)
    _launch(
        "routed_squares", (records * experts, tiles),
        rows, columns, ends, squares, positions, experts, height, width, *_ROUTED,
    )  # fmt: skip
    return squares.sum(1)


def routed_sums(rows: Tensor, columns: Tensor, ends: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of `contributions.Routed`, in double precision."""
    (records, positions, height), width, experts = rows.shape, columns.shape[2], ends.shape[1]
    tiles = -(-height // _ROUTED[0]) * -(-width // _ROUTED[1])
    sums = weights.new_empty(experts, height, width)
    _launch(
        "routed_sums", (tiles, experts),
        rows, columns, ends, weights, sums, records, positions, experts, height, width,
        *_ROUTED,
    )  # fmt: skip
    return sums


def _short_parts(factor: Tensor) -> Tensor:
    """The two bfloat16 parts of every record of a factor truncated to TF32, one after the other."""
    groups, records, positions, width = factor.shape
    parts = factor.new_empty(groups, records, 2 * positions, width, dtype=torch.bfloat16)
    size = positions * width
    programs = groups * records, -(-size // _kernels()._PIECE.value)
    _launch("short_parts", programs, factor, parts, size)
    return parts


def norm_gradients(
    gradient: Tensor, values: Tensor, mean: Tensor, scale: Tensor, shape: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Sums over the positions of a record: of gradient · normalised value, and of the gradient.

    Args:
        gradient: Of the scaled values, by record, then by position.
        values: The same; normalised by (value − mean) · scale.
        mean: One per position.
        scale: The same.
        shape: Number of records, and of values per position.

    Returns:
        Both of the given shape, in single precision.
    """
    records, size = shape
    positions = values.numel() // (records * size)
    slopes = torch.empty(shape, device=values.device)
    shifts = torch.empty_like(slopes)
    _launch(
        "norm_gradients", (records, -(-size // _kernels()._COLUMNS.value)),
        gradient, values, mean, scale, slopes, shifts, positions, size,
    )  # fmt: skip
    return slopes, shifts


_TILE = 1 << 12
_WIDTH = 32
_LARGEST_GROUP = 128
_SHARES = 8
"""Parts of the records that `weighted_rows` adds up separately, so that many programs can work."""
_COLUMNS, _RECORDS = 256, 8
_COPIED = 1 << 11
_ADDED_ROW = 1 << 10
_DEEP, _POSITIONS = 32, 32


def normalises(values: Tensor, groups: int) -> bool:
    """Whether the kernels normalise these images: channels last, in groups that are not large."""
    channels = values.shape[1]
    return (
        values.ndim == 4
        and channels % groups == 0
        and channels // groups <= _LARGEST_GROUP
        and values.dtype != torch.float64
        and not values.is_contiguous()
        and fuses(values.movedim(1, -1))
    )


def group_norm(
    values: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised images, the means and the scales, as torch's `native_group_norm` has them."""
    images, channels, *size = values.shape
    result = torch.empty_like(values, dtype=torch.float32)
    means = values.new_empty(images, groups, dtype=torch.float32)
    scales = torch.empty_like(means)
    count, group = torch.Size(size).numel(), channels // groups
    weight, bias, affine = _both(weight, bias, channels)
    rows, width, wide, blocks = _blocks(count, channels, group)
    _launch(
        "normalise", (images, blocks),
        values, weight, bias, result, means, scales, count, channels, eps,
        rows, width, group, wide, affine,
    )  # fmt: skip
    return result, means, scales


def group_norm_backward(
    gradient: Tensor, values: Tensor, weight: Tensor | None, means: Tensor, scales: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of the images, and those of weight and bias by image: (images, channels)."""
    images, channels, *size = values.shape
    passed = torch.empty_like(values)
    slopes = torch.empty(images, channels, device=values.device)
    shifts = torch.empty_like(slopes)
    count, group = torch.Size(size).numel(), channels // means.shape[1]
    rows, width, wide, blocks = _blocks(count, channels, group)
    _launch(
        "normalise_backward", (images, blocks),
        gradient, values, means if weight is None else weight, means, scales, passed, slopes,
        shifts, count, channels, rows, width, group, wide, weight is not None,
    )  # fmt: skip
    return passed, slopes, shifts


def row_squares(values: Tensor) -> Tensor:
    """Sums of squares of (records, size) in double precision, to be summed over the second axis."""
    records, size = values.shape
    parts = min(64, -(-size // (4 * _ADDED_ROW)))
    sums = torch.empty(records, parts, dtype=torch.float64, device=values.device)
    _launch("row_squares", (records, parts), values, sums, size, parts, _ADDED_ROW)
    return sums


def _both(
    weight: Tensor | None, bias: Tensor | None, channels: int
) -> tuple[Tensor | None, Tensor | None, bool]:
    """Weight and bias, or neither."""
    if weight is None and bias is None:
        return None, None, False
    given = weight if weight is not None else bias
    assert given is not None
    ones = given.new_ones(channels) if weight is None else weight
    return ones, given.new_zeros(channels) if bias is None else bias, True


def _blocks(count: int, channels: int, group: int) -> tuple[int, int, int, int]:
    """Positions and channels that a program reads at a time, of a group, and programs per image."""
    wide = _power(group)
    places = channels // group * wide
    width = max(wide, min(_WIDTH, _power(places)))
    return min(_power(count), max(1, _TILE // width)), width, wide, -(-places // width)


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << max(0, number - 1).bit_length()


def row_strips(values: Tensor, geometry: Geometry) -> tuple[Tensor, list[int]]:
    """Patches without their rows: (images, rows · positions, rest of kernel · channels).

    The patches that start `offset` rows further down are a slice, so offsets along the first axis
    of the kernel need no copies. Rows that belong to different residues modulo the stride are
    stored separately. Also returns where the slice of each offset begins. One group only.
    """
    images, channels, height, breadth = values.shape
    (kernel, across), (stride, step) = geometry.kernel, geometry.stride
    positions = geometry.output_size([height, breadth])[1]
    rows = -(-(height + 2 * geometry.padding[0]) // stride)
    result = values.new_empty(images, stride * rows * positions, across * channels)
    count = positions * across * channels
    _launch(
        "strips", (images * stride * rows, -(-count // _COPIED)),
        values, result, height, breadth, channels, rows, positions,
        *geometry.padding, stride, step, geometry.dilation[1], across, _COPIED,
    )  # fmt: skip
    offsets = (divmod(place * geometry.dilation[0], stride) for place in range(kernel))
    return result, [(residue * rows + start) * positions for start, residue in offsets]


def image_patches(values: Tensor, geometry: Geometry, *, cut: bool) -> Tensor:
    """As `Geometry.patches`, for one group and channels last; if `cut`, in TF32."""
    images, channels, height, breadth = values.shape
    out_height, out_breadth = geometry.output_size([height, breadth])
    down, across = geometry.kernel
    kind = torch.float32 if cut else values.dtype
    size = down * across * channels
    result = values.new_empty(1, images * out_height * out_breadth, size, dtype=kind)
    blocks = -(-out_breadth * across * channels // _COPIED)
    _launch(
        "patches", (images * out_height, blocks, down),
        values, result, height, breadth, channels, out_height, out_breadth,
        *geometry.padding, *geometry.stride, *geometry.dilation, across, cut, _COPIED,
    )  # fmt: skip
    return result


def is_depthwise(values: Tensor, gradient: Tensor, geometry: Geometry) -> bool:
    """Whether `depthwise_gradients` takes a convolution: of images, each channel by itself."""
    apart = geometry.groups == values.shape[1] == gradient.shape[1] > 1
    single = torch.float64 not in (values.dtype, gradient.dtype)
    return apart and single and geometry.dimensions == 2 and fuses(values.new_empty(0))


def depthwise_gradients(values: Tensor, gradient: Tensor, geometry: Geometry) -> Tensor:
    """The gradients of a weight with one input channel: (images, channels, kernel).

    A product over patches would copy as many numbers for each image as its kernel has offsets.
    Channels first are read 14 times as slowly, also where an image is a few numbers wide.
    """
    last = torch.channels_last
    values, gradient = (each.contiguous(memory_format=last) for each in (values, gradient))
    images, channels, *size = values.shape
    offsets = math.prod(geometry.kernel)
    result = torch.empty(images, channels, offsets, device=values.device)
    _launch(
        "depthwise", (images, -(-channels // _DEEP), offsets),
        values, gradient, result, channels, *size, *gradient.shape[2:],
        *geometry.padding, *geometry.stride, *geometry.dilation, geometry.kernel[1],
        _DEEP, _POSITIONS,
    )  # fmt: skip
    return result


def weighted_rows(values: Tensor, weights: Tensor) -> Tensor:
    """Σᵢ wᵢ valuesᵢ of (records, size) in double precision; what is not finite counts as zero."""
    records, size = values.shape
    sums = weights.new_empty(_SHARES, size)
    _launch(
        "weighted_rows", (-(-size // _COLUMNS), _SHARES),
        values, weights, sums, records, size, -(-records // _SHARES), _COLUMNS, _RECORDS,
    )  # fmt: skip
    return sums.sum(0)
