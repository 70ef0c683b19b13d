"""Triton kernels for convolutional models: images with channels last, and sums of formed gradients.

torch normalises images on a GPU only with channels first, while its convolutions are faster with
channels last; copies between the two took a third of a step. See `kernels.fuses` for where these
kernels are used.
"""

import torch
from torch import Tensor

from prudent.training.gradients.geometry import Geometry
from prudent.training.gradients.kernels import fuses

_TILE = 1 << 12
_WIDTH = 32
_LARGEST_GROUP = 64
_SHARES = 8
"""Parts of the records that `weighted_rows` adds up separately, so that many programs can work."""
_COLUMNS, _RECORDS = 256, 8
_COPIED = 1 << 11


def normalises(values: Tensor, groups: int) -> bool:
    """Whether the kernels normalise these images: channels last, in groups of a power of two."""
    channels = values.shape[1]
    group = channels // groups
    return (
        values.ndim == 4
        and group * groups == channels
        and group & (group - 1) == 0
        and group <= _LARGEST_GROUP
        and values.dtype != torch.float64
        and not values.is_contiguous()
        and fuses(values.movedim(1, -1))
    )


def group_norm(
    values: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised images, the means and the scales, as torch's `native_group_norm` has them."""
    from prudent.training.gradients import triton_image_kernels as triton

    images, channels, *size = values.shape
    result = torch.empty_like(values, dtype=torch.float32)
    means = values.new_empty(images, groups, dtype=torch.float32)
    scales = torch.empty_like(means)
    count, group = torch.Size(size).numel(), channels // groups
    weight, bias, affine = _both(weight, bias, channels)
    rows, width, blocks = _blocks(count, channels, group)
    with torch.cuda.device(values.device):
        triton.normalise[images, blocks](
            values, weight, bias, result, means, scales, count, channels, eps,
            rows, width, group, affine,
        )  # fmt: skip
    return result, means, scales


def group_norm_backward(
    gradient: Tensor, values: Tensor, weight: Tensor | None, means: Tensor, scales: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradient of the images, and those of weight and bias by image: (images, channels)."""
    from prudent.training.gradients import triton_image_kernels as triton

    images, channels, *size = values.shape
    passed = torch.empty_like(values)
    slopes = torch.empty(images, channels, device=values.device)
    shifts = torch.empty_like(slopes)
    count, group = torch.Size(size).numel(), channels // means.shape[1]
    rows, width, blocks = _blocks(count, channels, group)
    with torch.cuda.device(values.device):
        triton.normalise_backward[images, blocks](
            gradient, values, means if weight is None else weight, means, scales, passed, slopes,
            shifts, count, channels, rows, width, group, weight is not None,
        )  # fmt: skip
    return passed, slopes, shifts


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


def _blocks(count: int, channels: int, group: int) -> tuple[int, int, int]:
    """Positions and channels that a program reads at a time, and programs per image."""
    width = max(group, min(_WIDTH, _power(channels)))
    return min(_power(count), max(1, _TILE // width)), width, -(-channels // width)


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << max(0, number - 1).bit_length()


def row_strips(values: Tensor, geometry: Geometry) -> tuple[Tensor, list[int]]:
    """As `Geometry.strips`, with channels last: (images, rows · positions, kernel · channels)."""
    from prudent.training.gradients import triton_image_kernels as triton

    images, channels, height, breadth = values.shape
    (kernel, across), (stride, step) = geometry.kernel, geometry.stride
    positions = geometry.output_size([height, breadth])[1]
    rows = -(-(height + 2 * geometry.padding[0]) // stride)
    result = values.new_empty(images, stride * rows * positions, across * channels)
    count = positions * across * channels
    with torch.cuda.device(values.device):
        triton.strips[images * stride * rows, -(-count // _COPIED)](
            values, result, height, breadth, channels, rows, positions,
            *geometry.padding, stride, step, geometry.dilation[1], across, _COPIED,
        )  # fmt: skip
    offsets = (divmod(place * geometry.dilation[0], stride) for place in range(kernel))
    return result, [(residue * rows + start) * positions for start, residue in offsets]


def image_patches(values: Tensor, geometry: Geometry, *, cut: bool) -> Tensor:
    """As `Geometry.patches`, for one group and channels last; truncated to TF32 if `cut`."""
    from prudent.training.gradients import triton_image_kernels as triton

    images, channels, height, breadth = values.shape
    out_height, out_breadth = geometry.output_size([height, breadth])
    down, across = geometry.kernel
    result = values.new_empty(
        1, images * out_height * out_breadth, down * across * channels, dtype=torch.float32
    )
    blocks = -(-out_breadth * across * channels // _COPIED)
    with torch.cuda.device(values.device):
        triton.patches[images * out_height, blocks, down](
            values, result, height, breadth, channels, out_height, out_breadth,
            *geometry.padding, *geometry.stride, *geometry.dilation, across, cut, _COPIED,
        )  # fmt: skip
    return result


@torch.library.custom_op("prudent::weighted_rows", mutates_args=())
def weighted_rows(values: Tensor, weights: Tensor) -> Tensor:
    """Σᵢ wᵢ valuesᵢ of (records, size) in double precision; what is not finite counts as zero."""
    from prudent.training.gradients import triton_image_kernels as triton

    records, size = values.shape
    sums = weights.new_empty(_SHARES, size)
    with torch.cuda.device(values.device):
        triton.weighted_rows[-(-size // _COLUMNS), _SHARES](
            values, weights, sums, records, size, -(-records // _SHARES), _COLUMNS, _RECORDS
        )
    return sums.sum(0)


@weighted_rows.register_fake
def _(values: Tensor, weights: Tensor) -> Tensor:
    return weights.new_empty(values.shape[1])
