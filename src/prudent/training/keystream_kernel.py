"""Triton kernels that compute the keystream on a CUDA device and add noise in one launch.

Each thread computes one block of the cipher and keeps its sixteen words in registers. Key and step
are read from device memory, so that a captured step reads a new position at every replay. The bits
and their mapping to numbers are those of `keystream`; the numbers differ only in the rounding of
logarithm, cosine and sine.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from prudent.training.keystream import FINER_RANK, RARE

_BLOCKS = tl.constexpr(128)  # cipher blocks per program of four warps
_WORDS = tl.constexpr(8 * 128)
_RARE = tl.constexpr(RARE)
_FINER_RANK = tl.constexpr(FINER_RANK)


def fill_words(words: Tensor, key: Tensor, step: Tensor, rank: int = 0) -> None:
    """Fill a tensor of 64-bit integers with the first words of a position.

    The key is that of a stream, as eight 32-bit words, and the step one 64-bit integer, on the
    device.
    """
    with torch.cuda.device(words.device):
        _fill_words[_grid(words)](words, key, step, words.numel(), rank)


def add_normals(
    total: Tensor, deviation: Tensor, spacing: Tensor, key: Tensor, step: Tensor
) -> None:
    """Add standard normals times a deviation to a contiguous tensor, rounded to a lattice.

    Deviation and spacing, a power of two, are scalars in double precision on the device; a
    deviation of 0 leaves the tensor as it is. Key and step are as for `fill_words`.
    """
    with torch.cuda.device(total.device):
        _add_normals[_grid(total)](total, deviation, spacing, key, step, total.numel())


def _grid(values: Tensor) -> tuple[int]:
    return (triton.cdiv(values.numel(), _WORDS.value),)


@triton.jit(do_not_specialize=["count"])
def _fill_words(words, key, step, count, rank: tl.constexpr):
    first = tl.program_id(0).to(tl.int64)
    w0, w1, w2, w3, w4, w5, w6, w7 = _keystream(key, step, first, rank)
    places = first * _WORDS + tl.arange(0, _WORDS)
    tl.store(words + places, _in_order(w0, w1, w2, w3, w4, w5, w6, w7), mask=places < count)


@triton.jit(do_not_specialize=["count"])
def _add_normals(total, deviation, spacing, key, step, count):
    first = tl.program_id(0).to(tl.int64)
    w0, w1, w2, w3, w4, w5, w6, w7 = _keystream(key, step, first, 0)
    u0, u2, u4, u6 = _unsigned(w0), _unsigned(w2), _unsigned(w4), _unsigned(w6)
    half = tl.full((_BLOCKS,), 0.5, tl.float64)
    f0, f2, f4, f6 = half, half, half, half
    least = tl.minimum(tl.minimum(u0, u2), tl.minimum(u4, u6))
    if tl.min(least, axis=0) < _RARE:  # one program in 4000
        x0, _, x2, _, x4, _, x6, _ = _keystream(key, step, first, _FINER_RANK)
        f0, f2 = tl.where(u0 < _RARE, _uniform(x0), half), tl.where(u2 < _RARE, _uniform(x2), half)
        f4, f6 = tl.where(u4 < _RARE, _uniform(x4), half), tl.where(u6 < _RARE, _uniform(x6), half)
    n0, n1 = _normals(u0, w1, f0)
    n2, n3 = _normals(u2, w3, f2)
    n4, n5 = _normals(u4, w5, f4)
    n6, n7 = _normals(u6, w7, f6)
    places = first * _WORDS + tl.arange(0, _WORDS)
    sigma, step_size = tl.load(deviation), tl.load(spacing)
    noise = _in_order(n0, n1, n2, n3, n4, n5, n6, n7) * (sigma / step_size)
    known = places < count
    before = tl.load(total + places, mask=known)
    place = before.to(tl.float64) / step_size
    whole = libdevice.rint(place)
    after = (libdevice.rint(noise + (place - whole)) + whole) * step_size
    tl.store(total + places, tl.where(sigma > 0, after.to(before.dtype), before), mask=known)


@triton.jit
def _unsigned(word):
    """The 63 random bits of a word without its sign."""
    return word ^ (word >> 63)


@triton.jit
def _uniform(word):
    return tl.abs(word.to(tl.float64) + 0.5) * 1.0842021724855044e-19  # 2⁻⁶³


@triton.jit
def _normals(whole, second, rest):
    """Two standard normals from 63 bits, a second word, and further bits or 0.5."""
    below = ((second & 2047).to(tl.float64) + rest) * 0.00048828125  # 2⁻¹¹
    uniform = (below + whole.to(tl.float64)) * 1.0842021724855044e-19
    radius = tl.sqrt(-2.0 * tl.log(uniform))
    # In units of π, so that no large angle needs reducing.
    turn = ((second >> 11).to(tl.float64) + 0.5) * 2.220446049250313e-16  # 2⁻⁵²
    return radius * libdevice.cospi(turn), radius * libdevice.sinpi(turn)


@triton.jit
def _in_order(v0, v1, v2, v3, v4, v5, v6, v7):
    """Interleave eight values per thread into one vector, with those of a thread adjacent."""
    even = tl.join(tl.join(v0, v4), tl.join(v2, v6))
    odd = tl.join(tl.join(v1, v5), tl.join(v3, v7))
    return tl.reshape(tl.join(even, odd), (_WORDS,))


@triton.jit
def _keystream(key, step, first, rank: tl.constexpr):
    """The eight 64-bit words of each cipher block (RFC 8439, section 2.3)."""
    counter = (first * _BLOCKS + tl.arange(0, _BLOCKS)).to(tl.uint32)
    number = tl.load(step).to(tl.uint64, bitcast=True)
    low, high = number.to(tl.uint32), (number >> 32).to(tl.uint32)
    k0, k1, k2, k3 = _key_word(key, 0), _key_word(key, 1), _key_word(key, 2), _key_word(key, 3)
    k4, k5, k6, k7 = _key_word(key, 4), _key_word(key, 5), _key_word(key, 6), _key_word(key, 7)
    zero = counter ^ counter
    x0, x1 = zero + 0x61707865, zero + 0x3320646E
    x2, x3 = zero + 0x79622D32, zero + 0x6B206574
    x4, x5, x6, x7 = zero + k0, zero + k1, zero + k2, zero + k3
    x8, x9, x10, x11 = zero + k4, zero + k5, zero + k6, zero + k7
    x12, x13, x14, x15 = counter, zero + low, zero + high, zero + rank
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    return (
        _word(x0 + 0x61707865, x1 + 0x3320646E),
        _word(x2 + 0x79622D32, x3 + 0x6B206574),
        _word(x4 + k0, x5 + k1),
        _word(x6 + k2, x7 + k3),
        _word(x8 + k4, x9 + k5),
        _word(x10 + k6, x11 + k7),
        _word(x12 + counter, x13 + low),
        _word(x14 + high, x15 + rank),
    )


@triton.jit
def _key_word(key, place: tl.constexpr):
    return tl.load(key + place).to(tl.uint32, bitcast=True)


@triton.jit
def _quarter_round(a, b, c, d):
    a += b
    d = _rotated(d ^ a, 16)
    c += d
    b = _rotated(b ^ c, 12)
    a += b
    d = _rotated(d ^ a, 8)
    c += d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _rotated(x, bits: tl.constexpr):
    return (x << bits) | (x >> (32 - bits))


@triton.jit
def _word(low, high):
    return ((high.to(tl.uint64) << 32) | low.to(tl.uint64)).to(tl.int64, bitcast=True)
