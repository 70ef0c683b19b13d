"""ChaCha20 word by word, as RFC 8439 describes it: slow, and easy to read beside it."""

import struct

MASK = 2**32 - 1


def rotated(word, bits):
    return (word << bits | word >> (32 - bits)) & MASK


def quarter_round(a, b, c, d, rotations=(16, 12, 8, 7)):
    """Section 2.1."""
    first, second, third, fourth = rotations
    a = (a + b) & MASK
    d = rotated(d ^ a, first)
    c = (c + d) & MASK
    b = rotated(b ^ c, second)
    a = (a + b) & MASK
    d = rotated(d ^ a, third)
    c = (c + d) & MASK
    b = rotated(b ^ c, fourth)
    return a, b, c, d


COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def block(key, counter, nonce, rounds=20, rotations=(16, 12, 8, 7)):
    """Section 2.3: the 64 bytes of one block."""
    start = [
        *struct.unpack("<4I", b"expand 32-byte k"),
        *struct.unpack("<8I", key),
        counter,
        *struct.unpack("<3I", nonce),
    ]
    state = list(start)
    for _ in range(rounds // 2):
        for places in (*COLUMNS, *DIAGONALS):
            mixed = quarter_round(*(state[place] for place in places), rotations)
            for place, word in zip(places, mixed, strict=True):
                state[place] = word
    return struct.pack("<16I", *((s + w) & MASK for s, w in zip(start, state, strict=True)))
