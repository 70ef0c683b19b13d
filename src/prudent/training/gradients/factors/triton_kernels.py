"""The kernels behind `kernels`, which documents them; imported only where there is Triton."""

import triton
import triton.language as tl

_ROWS = tl.constexpr(32)
_COLUMNS = tl.constexpr(64)
_WIDTH = tl.constexpr(256)
_PARTS = tl.constexpr(16)
_ADDED = tl.constexpr(2048)
_SHORT = tl.constexpr(-(1 << 13))  # keeps the bits of a TF32 number
_BAND = tl.constexpr(8)
_PIECE = tl.constexpr(1024)


@triton.jit
def gram_sums(left, right, sums, positions, reach_scale, left_scale, right_scale):
    """Program (b, p) adds up rows p, p + 16, … of the matrices b."""
    batch = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    left += batch * positions * positions
    right += batch * positions * positions
    total = tl.zeros([_WIDTH], tl.float32)
    reach = 0.0
    lefts = 0.0
    rights = 0.0
    for row in range(part, positions, _PARTS):
        for start in range(0, positions, _WIDTH):
            places = start + tl.arange(0, _WIDTH)
            inside = places < positions
            one = tl.load(left + row * positions + places, mask=inside, other=0.0)
            two = tl.load(right + row * positions + places, mask=inside, other=0.0)
            total += one * two
        one_side = tl.sqrt(tl.load(left + row * positions + row))
        two_side = tl.sqrt(tl.load(right + row * positions + row))
        reach += one_side * two_side
        lefts += one_side
        rights += two_side
    place = sums + (batch * _PARTS + part) * 4
    tl.store(place, tl.sum(total))
    tl.store(place + 1, reach * reach_scale)
    tl.store(place + 2, lefts * left_scale)
    tl.store(place + 3, rights * right_scale)


@triton.jit
def _cut(values, cuts: tl.constexpr):
    """The values, truncated to TF32 if `cuts`."""
    if cuts:
        values = (values.to(tl.int32, bitcast=True) & _SHORT).to(tl.float32, bitcast=True)
    return values


@triton.jit
def _inner_products(
    factor, first, second, positions, size, cuts: tl.constexpr, block: tl.constexpr,
    depth: tl.constexpr,
):  # fmt: skip
    """A tile of the inner products of two blocks of positions of one matrix.

    Tensor cores may round every addition down, which is the worst for many of them in a row: long
    rows are added up in parts, so that the allowance for rounding (`norms.gram_terms`) covers it.
    """
    ones = first * block + tl.arange(0, block)
    twos = second * block + tl.arange(0, block)
    places = tl.arange(0, depth)
    left = factor + ones[:, None] * size + places[None, :]
    right = factor + twos[:, None] * size + places[None, :]
    tile = tl.zeros([block, block], tl.float32)
    for begin in range(0, size, _ADDED):
        part = tl.zeros([block, block], tl.float32)
        for start in range(begin, min(begin + _ADDED, size), depth):
            inside = (start + places < size)[None, :]
            one = tl.load(left + start, mask=(ones < positions)[:, None] & inside, other=0.0)
            two = tl.load(right + start, mask=(twos < positions)[:, None] & inside, other=0.0)
            part = tl.dot(_cut(one, cuts), tl.trans(_cut(two, cuts)), part, input_precision="tf32")
        tile += part
    return tile


@triton.jit
def factor_sums(
    rows, columns, sums, positions, height, width, reach_scale, left_scale, right_scale, pairs,
    cuts: tl.constexpr, block: tl.constexpr, depth: tl.constexpr,
):  # fmt: skip
    """A program takes a pair of blocks, the second not before the first, of two matrices.

    The inner products are symmetric, so those of different blocks count twice.
    """
    pair = tl.program_id(0) % pairs
    batch = (tl.program_id(0) // pairs).to(tl.int64)
    second = ((tl.sqrt(8.0 * pair + 1.0) - 1.0) * 0.5).to(tl.int32)
    second -= (second * (second + 1) // 2 > pair).to(tl.int32)  # rounding may be off by one
    second += ((second + 1) * (second + 2) // 2 <= pair).to(tl.int32)
    first = pair - second * (second + 1) // 2
    left = _inner_products(
        rows + batch * positions * height, first, second, positions, height, cuts, block, depth
    )
    right = _inner_products(
        columns + batch * positions * width, first, second, positions, width, cuts, block, depth
    )
    total = tl.sum(tl.sum(left * right, 1), 0)
    place = sums + (batch * pairs + pair) * 4
    if first == second:
        own = tl.arange(0, block)
        same = own[:, None] == own[None, :]
        ones = tl.sqrt(tl.sum(tl.where(same, left, 0.0), 1))
        twos = tl.sqrt(tl.sum(tl.where(same, right, 0.0), 1))
        tl.store(place, total)
        tl.store(place + 1, tl.sum(ones * twos, 0) * reach_scale)
        tl.store(place + 2, tl.sum(ones, 0) * left_scale)
        tl.store(place + 3, tl.sum(twos, 0) * right_scale)
    else:
        tl.store(place, 2.0 * total)
        tl.store(place + 1, 0.0)
        tl.store(place + 2, 0.0)
        tl.store(place + 3, 0.0)


@triton.jit
def _block(factor, position, positions, place, size):
    """Some numbers of a factor at some positions of a record; zero outside."""
    inside = (position < positions)[:, None] & (place < size)[None, :]
    return tl.load(factor + position[:, None] * size + place[None, :], mask=inside, other=0.0)


@triton.jit
def _added_products(left, right, step, positions, row, column, height, width, total):
    """`total` plus the products of the rows and columns at some positions of a record."""
    one = _block(left, step, positions, row, height)
    two = _block(right, step, positions, column, width)
    return tl.dot(tl.trans(one), two, total)


@triton.jit
def _weighted(part, weight):
    """A part of a record's gradient times its weight; what is not finite counts as zero."""
    return tl.where(tl.abs(part) < float("inf"), part, 0.0).to(tl.float64) * weight


@triton.jit
def record_sums(
    rows, columns, weights, sums, records, share, positions, height, width, parts: tl.constexpr,
    at_once: tl.constexpr, tall: tl.constexpr, wide: tl.constexpr, depth: tl.constexpr,
    run: tl.constexpr,
):  # fmt: skip
    """Program (b, s) adds up block b of the matrices of the records of share s, one by one.

    A record has its factors in one part, or in two that follow each other, of which the product of
    the second ones is left out. Products of `run` positions of a record are added in single
    precision, everything else in double precision. Blocks that follow each other read the same
    columns. Where all positions are read `at_once`, a single loop lets the next record be read
    while this one is multiplied.
    """
    down, across = tl.cdiv(height, tall), tl.cdiv(width, wide)
    group = (tl.program_id(0) // (down * across)).to(tl.int64)
    place = tl.program_id(0) % (down * across)
    band = place // (_BAND * across) * _BAND
    bands = tl.minimum(down - band, _BAND)
    place = place % (_BAND * across)
    row = (band + place % bands) * tall + tl.arange(0, tall)
    column = place // bands * wide + tl.arange(0, wide)
    steps = tl.arange(0, depth)
    begin = tl.program_id(1) * share
    nothing = tl.zeros([tall, wide], tl.float32)
    total = tl.zeros([tall, wide], tl.float64)
    for record in range(begin, tl.minimum(begin + share, records)):
        first = (group * records + record) * positions * parts
        left, right = rows + first * height, columns + first * width
        weight = tl.load(weights + record)
        if at_once:
            part = nothing
            for pair in tl.static_range(2 * parts - 1):
                part = _added_products(
                    left + pair // 2 * positions * height, right + pair % 2 * positions * width,
                    steps, positions, row, column, height, width, part,
                )  # fmt: skip
            total += _weighted(part, weight)
        else:
            for start in range(0, positions, run):
                part = nothing
                count = tl.cdiv(tl.minimum(run, positions - start), depth)
                for index in range((2 * parts - 1) * count):
                    pair = index // count
                    step = start + index % count * depth
                    part = _added_products(
                        left + pair // 2 * positions * height, right + pair % 2 * positions * width,
                        step + steps, positions, row, column, height, width, part,
                    )  # fmt: skip
                total += _weighted(part, weight)
    groups = tl.num_programs(0) // (down * across)
    matrix = sums + (tl.program_id(1).to(tl.int64) * groups + group) * height * width
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    tl.store(matrix + place, total, mask=(row < height)[:, None] & (column < width)[None, :])


@triton.jit
def _routed_part(
    rows, columns, ends, record, expert, experts, positions, row, column, height, width,
    tall: tl.constexpr, wide: tl.constexpr, depth: tl.constexpr,
):  # fmt: skip
    """A block of the gradient of a record for an expert, added up over its positions."""
    last = tl.load(ends + record * experts + expert).to(tl.int32)
    first = tl.load(ends + record * experts + expert - 1, mask=expert > 0, other=0).to(tl.int32)
    left, right = rows + record * positions * height, columns + record * positions * width
    part = tl.zeros([tall, wide], tl.float32)
    for start in range(first, last, depth):
        step = start + tl.arange(0, depth)
        one = _block(left, step, last, row, height)
        two = _block(right, step, last, column, width)
        part = tl.dot(tl.trans(one), two, part, input_precision="ieee")
    return part


@triton.jit
def routed_squares(
    rows, columns, ends, squares, positions, experts, height, width,
    tall: tl.constexpr, wide: tl.constexpr, depth: tl.constexpr,
):  # fmt: skip
    """Program (r, b) adds up the squares of block b for the record and the expert of r."""
    record = (tl.program_id(0) // experts).to(tl.int64)
    expert = tl.program_id(0) % experts
    across = tl.cdiv(width, wide)
    row = tl.program_id(1) // across * tall + tl.arange(0, tall)
    column = tl.program_id(1) % across * wide + tl.arange(0, wide)
    part = _routed_part(
        rows, columns, ends, record, expert, experts, positions, row, column, height, width,
        tall, wide, depth,
    ).to(tl.float64)  # fmt: skip
    place = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(squares + place, tl.sum(tl.sum(part * part, 1), 0))


@triton.jit
def routed_sums(
    rows, columns, ends, weights, sums, records, positions, experts, height, width,
    tall: tl.constexpr, wide: tl.constexpr, depth: tl.constexpr,
):  # fmt: skip
    """Program (b, e) adds up block b of the matrices of expert e, record by record."""
    expert = tl.program_id(1)
    across = tl.cdiv(width, wide)
    row = tl.program_id(0) // across * tall + tl.arange(0, tall)
    column = tl.program_id(0) % across * wide + tl.arange(0, wide)
    total = tl.zeros([tall, wide], tl.float64)
    for number in range(records):
        record = number.to(tl.int64)  # type: ignore[attr-defined]
        part = _routed_part(
            rows, columns, ends, record, expert, experts, positions, row, column,
            height, width, tall, wide, depth,
        )  # fmt: skip
        total += _weighted(part, tl.load(weights + number))
    place = row.to(tl.int64)[:, None] * width + column[None, :]
    inside = (row < height)[:, None] & (column < width)[None, :]
    tl.store(sums + expert.to(tl.int64) * height * width + place, total, mask=inside)


@triton.jit
def short_parts(factor, parts, size):
    """Program (r, b) writes block b of record r: a TF32 number is the sum of two bfloat16 ones."""
    record = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * _PIECE + tl.arange(0, _PIECE)
    inside = places < size
    values = _cut(tl.load(factor + record * size + places, mask=inside, other=0.0), True)
    high = values.to(tl.bfloat16)
    low = (values - high.to(tl.float32)).to(tl.bfloat16)
    tl.store(parts + 2 * record * size + places, high, mask=inside)
    tl.store(parts + (2 * record + 1) * size + places, low, mask=inside)


@triton.jit
def norm_gradients(gradient, values, mean, scale, slopes, shifts, positions, size):
    """Program (r, c) adds up block c of the columns of record r."""
    record = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * _COLUMNS + tl.arange(0, _COLUMNS)
    own = places < size
    slope = tl.zeros([_ROWS, _COLUMNS], tl.float32)
    shift = tl.zeros([_ROWS, _COLUMNS], tl.float32)
    for start in range(0, positions, _ROWS):
        rows = start + tl.arange(0, _ROWS)
        there = rows < positions
        row = record * positions + rows
        inside = there[:, None] & own[None, :]
        offsets = row[:, None] * size + places[None, :]
        slopes_in = tl.load(gradient + offsets, mask=inside, other=0.0).to(tl.float32)
        value = tl.load(values + offsets, mask=inside, other=0.0).to(tl.float32)
        middle = tl.load(mean + row, mask=there, other=0.0)
        factor = tl.load(scale + row, mask=there, other=0.0)
        slope += slopes_in * ((value - middle[:, None]) * factor[:, None])
        shift += slopes_in
    tl.store(slopes + record * size + places, tl.sum(slope, 0), mask=own)
    tl.store(shifts + record * size + places, tl.sum(shift, 0), mask=own)


@triton.jit
def _tile(first, count, channel, own, channels, start, rows: tl.constexpr):
    """Offsets of some positions and channels of an image, and which of them exist."""
    positions = start + tl.arange(0, rows)
    offsets = first + positions.to(tl.int64)[:, None] * channels + channel[None, :]
    return offsets, (positions < count)[:, None] & own[None, :]


@triton.jit
def _own_channels(channels, width: tl.constexpr, group: tl.constexpr, wide: tl.constexpr):
    """The channels of a program, which has `wide` places for each group, and which of them exist.

    A place without a channel has that of another group, so it must neither be added up nor written.
    """
    place = tl.program_id(1) * width + tl.arange(0, width)
    channel = place // wide * group + place % wide
    return channel, (place % wide < group) & (channel < channels)


@triton.jit
def _by_group(values, width: tl.constexpr, wide: tl.constexpr):
    """For each channel, the sum over the channels of its group."""
    sums = tl.sum(tl.reshape(values, [width // wide, wide]), 1)
    return tl.reshape(tl.broadcast_to(sums[:, None], [width // wide, wide]), [width])


@triton.jit
def normalise(
    values, weight, bias, result, means, scales, count, channels, eps,
    rows: tl.constexpr, width: tl.constexpr, group: tl.constexpr, wide: tl.constexpr,
    affine: tl.constexpr,
):  # fmt: skip
    """Program (n, b) normalises block b of the channels of image n."""
    image = tl.program_id(0).to(tl.int64)
    channel, own = _own_channels(channels, width, group, wide)
    first = image * count * channels
    # Sums of differences to some value of the group: squares of large means would not cancel well.
    base = tl.load(values + first + channel // group * group, mask=own, other=0.0).to(tl.float32)
    total = tl.zeros([width], tl.float32)
    squares = tl.zeros([width], tl.float32)
    for start in range(0, count, rows):
        offsets, inside = _tile(first, count, channel, own, channels, start, rows)
        value = tl.load(values + offsets, mask=inside, other=0.0).to(tl.float32)
        apart = tl.where(inside, value - base[None, :], 0.0)
        total += tl.sum(apart, 0)
        squares += tl.sum(apart * apart, 0)
    size = count * group
    shift = _by_group(total, width, wide) / size
    variance = _by_group(squares, width, wide) / size - shift * shift
    scale = 1.0 / tl.sqrt(tl.maximum(variance, 0.0) + eps)
    mean = base + shift
    factor = scale
    added = tl.zeros([width], tl.float32)
    if affine:
        factor *= tl.load(weight + channel, mask=own, other=0.0).to(tl.float32)
        added = tl.load(bias + channel, mask=own, other=0.0).to(tl.float32)
    for start in range(0, count, rows):
        offsets, inside = _tile(first, count, channel, own, channels, start, rows)
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
    rows: tl.constexpr, width: tl.constexpr, group: tl.constexpr, wide: tl.constexpr,
    affine: tl.constexpr,
):  # fmt: skip
    """Program (n, b) differentiates block b of the channels of image n."""
    image = tl.program_id(0).to(tl.int64)
    channel, own = _own_channels(channels, width, group, wide)
    first = image * count * channels
    place = image * (channels // group) + channel // group
    mean = tl.load(means + place, mask=own, other=0.0)
    scale = tl.load(scales + place, mask=own, other=0.0)
    slope = tl.zeros([width], tl.float32)
    shift = tl.zeros([width], tl.float32)
    for start in range(0, count, rows):
        offsets, inside = _tile(first, count, channel, own, channels, start, rows)
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
    along = _by_group(slope, width, wide) / size * scale
    level = _by_group(shift, width, wide) / size * scale
    for start in range(0, count, rows):
        offsets, inside = _tile(first, count, channel, own, channels, start, rows)
        value = tl.load(values + offsets, mask=inside, other=0.0).to(tl.float32)
        change = tl.load(gradient + offsets, mask=inside, other=0.0).to(tl.float32)
        normal = (value - mean[None, :]) * scale[None, :]
        passing = change * factor[None, :] - level[None, :] - normal * along[None, :]
        tl.store(passed + offsets, passing, mask=inside)


@triton.jit
def row_squares(values, sums, size, parts, block: tl.constexpr):
    """Program (r, p) adds up blocks p, p + parts, … of row r."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([block], tl.float64)
    for start in range(tl.program_id(1) * block, size, parts * block):
        places = start + tl.arange(0, block)
        value = tl.load(values + row * size + places, mask=places < size, other=0.0)
        total += value.to(tl.float64) * value.to(tl.float64)
    tl.store(sums + row * parts + tl.program_id(1), tl.sum(total, 0))


@triton.jit
def strips(
    values, result, height, breadth, channels, out_rows, out_breadth,
    top, left, stride, across, spread, kernel,
    block: tl.constexpr,
):  # fmt: skip
    """Program (i, b) writes block b of row i of all strips of all images; see `kernels`."""
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
    """Program (i, b) writes part b of the patches of row i of all images; see `kernels`."""
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


@triton.jit
def depthwise(
    values, gradient, result, channels, height, breadth, out_height, out_breadth,
    top, left, stride, across, fall, spread, kernel, wide: tl.constexpr, long: tl.constexpr,
):  # fmt: skip
    """Program (i, c, k) adds up block c of the channels of image i for offset k of the kernel."""
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * wide + tl.arange(0, wide)
    offset = tl.program_id(2)
    total = tl.zeros([long, wide], tl.float32)
    for start in range(0, out_height * out_breadth, long):
        place = start + tl.arange(0, long)
        down, right = place // out_breadth, place % out_breadth
        row = down * stride + offset // kernel * fall - top
        column = right * across + offset % kernel * spread - left
        there = (row >= 0) & (row < height) & (column >= 0) & (column < breadth)
        there = (there & (down < out_height))[:, None] & (channel < channels)[None, :]
        source = ((image * height + row) * breadth + column)[:, None] * channels + channel[None, :]
        one = tl.load(values + source, there, 0.0)
        source = (image * out_height * out_breadth + place)[:, None] * channels + channel[None, :]
        two = tl.load(gradient + source, there, 0.0)
        total += one.to(tl.float32) * two.to(tl.float32)
    target = result + (image * channels + channel) * tl.num_programs(2) + offset
    tl.store(target, tl.sum(total, 0), mask=channel < channels)
