"""The kernels behind `image_kernels`, which documents them; imported only where there is Triton."""

import triton
import triton.language as tl


@triton.jit
def _tile(first, count, channel, channels, start, rows: tl.constexpr):
    """Offsets of some positions and channels of an image, and which of them exist."""
    positions = start + tl.arange(0, rows)
    offsets = first + positions.to(tl.int64)[:, None] * channels + channel[None, :]
    return offsets, (positions < count)[:, None] & (channel < channels)[None, :]


@triton.jit
def _by_group(values, width: tl.constexpr, group: tl.constexpr):
    """For each channel, the sum over the channels of its group."""
    sums = tl.sum(tl.reshape(values, [width // group, group]), 1)
    return tl.reshape(tl.broadcast_to(sums[:, None], [width // group, group]), [width])


@triton.jit
def normalise(
    values, weight, bias, result, means, scales, count, channels, eps,
    rows: tl.constexpr, width: tl.constexpr, group: tl.constexpr, affine: tl.constexpr,
):  # fmt: skip
    """Program (n, b) normalises block b of the channels of image n."""
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * width + tl.arange(0, width)
    own = channel < channels
    first = image * count * channels
    # Sums of differences to some value of the group: squares of large means would not cancel well.
    base = tl.load(values + first + channel // group * group, mask=own, other=0.0).to(tl.float32)
    total = tl.zeros([width], tl.float32)
    squares = tl.zeros([width], tl.float32)
    for start in range(0, count, rows):
        offsets, inside = _tile(first, count, channel, channels, start, rows)
        value = tl.load(values + offsets, mask=inside, other=0.0).to(tl.float32)
        apart = tl.where(inside, value - base[None, :], 0.0)
        total += tl.sum(apart, 0)
        squares += tl.sum(apart * apart, 0)
    size = count * group
    shift = _by_group(total, width, group) / size
    variance = _by_group(squares, width, group) / size - shift * shift
    scale = 1.0 / tl.sqrt(tl.maximum(variance, 0.0) + eps)
    mean = base + shift
    factor = scale
    added = tl.zeros([width], tl.float32)
    if affine:
        factor *= tl.load(weight + channel, mask=own, other=0.0).to(tl.float32)
        added = tl.load(bias + channel, mask=own, other=0.0).to(tl.float32)
    for start in range(0, count, rows):
        offsets, inside = _tile(first, count, channel, channels, start, rows)
        value = tl.load(values + offsets, mask=inside, other=0.0).to(tl.float32)
        scaled = (value - mean[None, :]) * factor[None, :] + added[None, :]
        tl.store(result + offsets, scaled, mask=inside)
    leader = own & (channel % group == 0)
    place = image * (channels // group) + channel // group
    tl.store(means + place, mean, mask=leader)
    tl.store(scales + place, scale, mask=leader)


@triton.jit
def normalise_backward(
    gradient, values, weight, means, scales, passed, slopes, shifts, count, channels,
    rows: tl.constexpr, width: tl.constexpr, group: tl.constexpr, affine: tl.constexpr,
):  # fmt: skip
    """Program (n, b) differentiates block b of the channels of image n."""
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * width + tl.arange(0, width)
    own = channel < channels
    first = image * count * channels
    place = image * (channels // group) + channel // group
    mean = tl.load(means + place, mask=own, other=0.0)
    scale = tl.load(scales + place, mask=own, other=0.0)
    slope = tl.zeros([width], tl.float32)
    shift = tl.zeros([width], tl.float32)
    for start in range(0, count, rows):
        offsets, inside = _tile(first, count, channel, channels, start, rows)
        value = tl.load(values + offsets, mask=inside, other=0.0).to(tl.float32)
        change = tl.load(gradient + offsets, mask=inside, other=0.0).to(tl.float32)
        normal = (value - mean[None, :]) * scale[None, :]
        slope += tl.sum(tl.where(inside, change * normal, 0.0), 0)
        shift += tl.sum(change, 0)
    tl.store(slopes + image * channels + channel, slope, mask=own)
    tl.store(shifts + image * channels + channel, shift, mask=own)
    factor = scale
    if affine:
        weights = tl.load(weight + channel, mask=own, other=0.0).to(tl.float32)
        factor = scale * weights
        slope *= weights
        shift *= weights
    size = count * group
    along = _by_group(slope, width, group) / size * scale
    level = _by_group(shift, width, group) / size * scale
    for start in range(0, count, rows):
        offsets, inside = _tile(first, count, channel, channels, start, rows)
        value = tl.load(values + offsets, mask=inside, other=0.0).to(tl.float32)
        change = tl.load(gradient + offsets, mask=inside, other=0.0).to(tl.float32)
        normal = (value - mean[None, :]) * scale[None, :]
        passing = change * factor[None, :] - level[None, :] - normal * along[None, :]
        tl.store(passed + offsets, passing, mask=inside)


@triton.jit
def strips(
    values, result, height, breadth, channels, out_rows, out_breadth,
    top, left, stride, across, spread, kernel,
    block: tl.constexpr,
):  # fmt: skip
    """Program (i, b) writes block b of row i of all strips of all images; see `image_kernels`."""
    index = tl.program_id(0).to(tl.int64)
    image = index // (stride * out_rows)
    residue = index // out_rows % stride
    row = index % out_rows * stride + residue - top
    size = out_breadth * kernel * channels
    places = tl.program_id(1) * block + tl.arange(0, block)
    position = places // (kernel * channels)
    rest = places % (kernel * channels)
    column = position * across + rest // channels * spread - left
    there = (row >= 0) & (row < height) & (column >= 0) & (column < breadth)
    source = ((image * height + row) * breadth + column) * channels + rest % channels
    value = tl.load(values + source, mask=there & (places < size), other=0.0).to(tl.float32)
    tl.store(result + index * size + places, value, mask=places < size)


@triton.jit
def weighted_rows(
    values, weights, sums, records, size, share, block: tl.constexpr, deep: tl.constexpr
):
    """Program (b, s) adds up block b of the columns of the records of share s."""
    places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = places < size
    begin = tl.program_id(1) * share
    total = tl.zeros([deep, block], tl.float64)
    for start in range(begin, tl.minimum(begin + share, records), deep):
        row = start + tl.arange(0, deep)
        there = (row < records) & (row < begin + share)
        weight = tl.load(weights + row, mask=there, other=0.0)
        offsets = row.to(tl.int64)[:, None] * size + places[None, :]
        value = tl.load(values + offsets, mask=there[:, None] & inside[None, :], other=0.0)
        added = value.to(tl.float64) * weight[:, None]
        total += tl.where(tl.abs(added) < float("inf"), added, 0.0)
    tl.store(sums + tl.program_id(1).to(tl.int64) * size + places, tl.sum(total, 0), mask=inside)


@triton.jit
def patches(
    values, result, height, breadth, channels, out_height, out_breadth,
    top, left, stride, across, fall, spread, kernel, cuts: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Program (i, b) writes part b of the patches of row i of all images; see `image_kernels`."""
    index = tl.program_id(0).to(tl.int64)
    image = index // out_height
    chunk = kernel * channels
    part = tl.program_id(1) * block + tl.arange(0, block)
    size = out_breadth * chunk
    column = part // chunk * across + part % chunk // channels * spread - left
    row = index % out_height * stride + tl.program_id(2) * fall - top
    there = (row >= 0) & (row < height) & (column >= 0) & (column < breadth)
    source = ((image * height + row) * breadth + column) * channels + part % channels
    value = tl.load(values + source, mask=there & (part < size), other=0.0).to(tl.float32)
    if cuts:
        value = (value.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)
    place = (index * out_breadth + part // chunk) * tl.num_programs(2) + tl.program_id(2)
    tl.store(result + place * chunk + part % chunk, value, mask=part < size)
