"""Predicts the noise of any generator that is linear over GF(2), from noise that was seen.

Every bit of the output of such a generator, watched from draw to draw, satisfies a linear
recurrence no longer than the state: 19,937 bits for the Mersenne twister. Berlekamp and Massey's
algorithm (1969) finds the shortest recurrence of twice as many bits, and the recurrence then tells
all bits that follow. All bit positions share it, so that one of them is enough to find it.

Noise shows the bits of its uniforms: a pair of Box and Muller's normals gives its radius and its
angle, and so both uniforms, back.
"""

import math

import numpy as np


def shortest_recurrence(bits):
    """The connection polynomial, bit i for the term i draws before, and its length."""
    polynomial, previous, length, since, window = 1, 1, 0, 1, 0
    for number, bit in enumerate(bits):
        window = window << 1 | bit
        if (window & polynomial).bit_count() % 2 == 0:
            since += 1
        elif 2 * length <= number:
            polynomial, previous = polynomial ^ previous << since, polynomial
            length, since = number + 1 - length, 1
        else:
            polynomial ^= previous << since
            since += 1
    return polynomial, length


def continued(bits, polynomial, count):
    """The next bits that a recurrence gives."""
    window = int("".join(map(str, bits)), 2)
    predicted = []
    for _ in range(count):
        bit = ((window << 1) & polynomial).bit_count() % 2
        window = window << 1 | bit
        predicted.append(bit)
    return np.array(predicted)


def planes(uniforms, depth):
    """The leading bits of uniforms in [0, 1), one row for each bit position."""
    whole = np.floor(uniforms * 2.0**depth).astype(np.int64)
    return [(whole >> (depth - 1 - place)) & 1 for place in range(depth)]


def continued_uniforms(uniforms, count, depth=20):
    """What follows, to `depth` bits, if the generator of these uniforms is linear."""
    seen = planes(uniforms, depth)
    polynomial, _ = shortest_recurrence(seen[0].tolist())
    rows = [continued(plane.tolist(), polynomial, count) for plane in seen]
    weights = 0.5 ** np.arange(1, depth + 1)
    return weights @ np.array(rows) + 0.5**depth / 2


def _pair(cosine, sine):
    """The uniforms of a pair of normals: of its radius and of its angle, in turns."""
    return np.exp(-(cosine**2 + sine**2) / 2), np.arctan2(sine, cosine) / (2 * math.pi) % 1.0


def torch_uniforms(noise):
    """What `torch.randn` in double precision drew on a CPU, from a multiple of 16 normals."""
    blocks = noise.reshape(-1, 2, 8)
    radius, angle = _pair(blocks[:, 0], blocks[:, 1])
    return np.stack([1 - radius, angle], 1).reshape(-1)


def torch_normals(uniforms):
    blocks = uniforms.reshape(-1, 2, 8)
    radius, angle = np.sqrt(-2 * np.log1p(-blocks[:, 0])), 2 * math.pi * blocks[:, 1]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)


def keystream_uniforms(noise):
    """What the library's normals are made of, from an even number of them."""
    pairs = noise.reshape(-1, 2)
    return np.stack(_pair(pairs[:, 0], pairs[:, 1]), 1).reshape(-1)


def keystream_normals(uniforms):
    pairs = uniforms.reshape(-1, 2)
    radius, angle = np.sqrt(-2 * np.log(pairs[:, 0])), 2 * math.pi * pairs[:, 1]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).reshape(-1)
