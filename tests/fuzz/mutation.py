"""Mutated files: small damages to valid ones, by a seeded generator."""

import random
import struct
from collections.abc import Sequence

_NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
_WORDS = (
    *(b"NaN", b"Infinity", b"-inf", b"1e999", b"-1", b"0", b"null", b"true", b"[]", b"{}", b'""'),
    *(
        b"'",
        b'"',
        b";--",
        b"\\",
        b"\x00",
        b"\x1b[2J",
        b"%s%n",
        b"../../",
        b"/etc/passwd",
        b"(" * 99,
    ),
    *(b"[" * 2000, b"9" * 5000, "\u202e\ud7ff🙂".encode(), b"\xff\xfe", b":", b",", b"=", b"\n"),
)
LARGEST = 1 << 16


def mutated(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """One of the seeds after one to six damages."""
    found = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        chance.choice(_DAMAGES)(found, seeds, chance)
    return bytes(found[:LARGEST])


def _place(found: bytearray, chance: random.Random) -> int:
    return chance.randrange(len(found) + 1)


def _flip(found: bytearray, seeds: Sequence[bytes], chance: random.Random) -> None:
    if found:
        found[chance.randrange(len(found))] ^= 1 << chance.randrange(8)


def _overwrite(found: bytearray, seeds: Sequence[bytes], chance: random.Random) -> None:
    if found:
        found[chance.randrange(len(found))] = chance.randrange(256)


def _cut(found: bytearray, seeds: Sequence[bytes], chance: random.Random) -> None:
    start = _place(found, chance)
    del found[start : start + chance.choice((1, 2, 8, 64, len(found)))]


def _repeat(found: bytearray, seeds: Sequence[bytes], chance: random.Random) -> None:
    start = _place(found, chance)
    part = bytes(found[start : start + chance.choice((1, 4, 32, 200))])
    found[start:start] = part * chance.choice((1, 2, 20))


def _insert(found: bytearray, seeds: Sequence[bytes], chance: random.Random) -> None:
    start = _place(found, chance)
    found[start : start + chance.choice((0, 0, 1, 4))] = chance.choice(_WORDS)


def _number(found: bytearray, seeds: Sequence[bytes], chance: random.Random) -> None:
    start, number = _place(found, chance), chance.choice(_NUMBERS)
    form = chance.choice(("<I", ">I", "<Q", ">Q", "<H", ">H"))
    packed = struct.pack(form, number % (1 << 8 * struct.calcsize(form)))
    found[start : start + len(packed)] = packed


def _digits(found: bytearray, seeds: Sequence[bytes], chance: random.Random) -> None:
    """Another number in place of one that is written out."""
    places = [index for index, byte in enumerate(found) if 48 <= byte < 58]
    if places:
        new = chance.choice((b"0", b"-1", b"1e308", b"9" * 30, b"0.5", b"nan", b"1" * 400))
        start = chance.choice(places)
        found[start : start + 1] = new


def _splice(found: bytearray, seeds: Sequence[bytes], chance: random.Random) -> None:
    other = chance.choice(seeds)
    start = chance.randrange(len(other) + 1)
    found[_place(found, chance) :] = other[start:]


_DAMAGES = (_flip, _overwrite, _cut, _repeat, _insert, _number, _digits, _splice)
