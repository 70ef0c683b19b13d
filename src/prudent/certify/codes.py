"""Codes of records in whole numbers, so that the nearest landmark is exact.

A code is a direction, a row of whole numbers of Euclidean length at most SCALE. Inner products of
two codes, and all partial sums of them, are whole numbers of at most SCALE² < 2²⁴ (Cauchy and
Schwarz, for any part of the entries), which float32 holds exactly. So products computed by any
library, in chunks of any size, in any memory order and with any number of threads have the same
bits: which landmark a record is nearest to depends on this record alone.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

SCALE = 4095
"""The greatest length of a code; its square is below 2²⁴."""

_FINE = 1 << 20
_ROOM = 1.0 - 2.0**-30  # more than the rounding errors of a length

Real = npt.NDArray[np.float64]
Codes = npt.NDArray[np.float32]


def whole(rows: Real) -> Codes:
    """The direction of each row, rounded towards zero to a code.

    Every step is a function of one row alone: the largest entry, a division of each entry by it,
    and a sum of squares of whole numbers, which is exact. A row of zeros stays zero.
    """
    peaks = np.abs(rows).max(axis=1, initial=0.0)[:, None]
    # Halved first: neither a huge entry nor a tiny peak leaves the range of float64.
    fine = np.rint(rows / 2 / np.where(peaks > 0, peaks, 1.0) * (2 * _FINE)).astype(np.int64)
    lengths = np.sqrt(_squares(fine).astype(np.float64))[:, None]
    found = np.trunc(fine * (SCALE * _ROOM / np.maximum(lengths, 1.0))).astype(np.int64)
    found[_squares(found) > SCALE * SCALE] = 0  # never happens; exactness rests on it
    return np.ascontiguousarray(found, dtype=np.float32)


def _squares(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = np.square(rows).sum(axis=1)
    return found


def nearest(
    codes: Codes, landmarks: Codes, less: Codes | None = None, rows: int = 1024
) -> npt.NDArray[np.int64]:
    """The number of the landmark with the largest product with each code; the first, if several.

    `less` is taken off the products of each landmark.
    """
    parts = [
        (each if less is None else each - less).argmax(axis=1)
        for each in products(codes, landmarks, rows)
    ]
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


def products(codes: Codes, landmarks: Codes, rows: int = 1024) -> Iterator[Codes]:
    """Inner products of codes and landmarks, exact, for so many codes at a time."""
    for start in range(0, len(codes), rows):
        yield codes[start : start + rows] @ landmarks.T
