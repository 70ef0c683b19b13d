"""The kernels behind `kernels`, which documents them; imported only where there is Triton."""

import triton
import triton.language as tl

_BLOCK = tl.constexpr(1024)
_ROWS = tl.constexpr(32)
_COLUMNS = tl.constexpr(64)
_WIDTH = tl.constexpr(256)
_PARTS = tl.constexpr(16)
_SHORT = tl.constexpr(-(1 << 13))  # keeps the bits of a TF32 number


def pieces(size: int) -> int:
    """Programs of `weighted_parts` per record."""
    return int(triton.cdiv(size, _BLOCK.value))


def columns(size: int) -> int:
    """Programs of `norm_gradients` per record."""
    return int(triton.cdiv(size, _COLUMNS.value))


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
def weighted_parts(factor, weights, first, second, size, records, truncates: tl.constexpr):
    """Program (b, r) splits block b of record r."""
    record = tl.program_id(1).to(tl.int64)
    places = tl.program_id(0) * _BLOCK + tl.arange(0, _BLOCK)
    inside = places < size
    values = tl.load(factor + record * size + places, mask=inside, other=0.0).to(tl.float32)
    values = values * tl.load(weights + record % records)
    values = tl.where(tl.abs(values) < float("inf"), values, 0.0)
    if truncates:
        high = (values.to(tl.int32, bitcast=True) & _SHORT).to(tl.float32, bitcast=True)
        rest = values - high
        low = (rest.to(tl.int32, bitcast=True) & _SHORT).to(tl.float32, bitcast=True)
    else:
        high = values.to(tl.bfloat16)
        low = (values - high.to(tl.float32)).to(tl.bfloat16)
    tl.store(first + record * size + places, high, mask=inside)
    tl.store(second + record * size + places, low, mask=inside)


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
