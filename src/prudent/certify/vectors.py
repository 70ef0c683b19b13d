"""Records as vectors of whole numbers: non-negative, of length at most `LENGTH`.

Sums, scores and radii are then exact integers, and both facts that a certificate rests on, the sign
of the entries and the length of the vector, hold for the numbers that are really added, not for
reals that they approximate.
"""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

LENGTH = 1 << 16
"""Length of a unit vector, in steps of the lattice."""

_ROOM = 1.0 - 2.0**-30  # more than the rounding errors of a norm of up to 2**22 entries
_CHUNK = 256

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]


def whole_vectors(values: npt.ArrayLike) -> tuple[Whole, npt.NDArray[np.bool_]]:
    """Round each row towards zero to a non-negative lattice vector of length at most `LENGTH`.

    Negative entries become 0 and rows longer than 1 are scaled to length 1. The result for a row
    depends on this row only. Vectors of the lattice, divided by `LENGTH`, stay as they are.

    Returns:
        The vectors, and which rows were finite. A row that is not finite becomes zero.

    Guarantee:
        The sum of squares of each row, an exact integer, is at most LENGTH². It is checked; a row
        that failed the check would become zero.
    """
    rows = np.asarray(values, dtype=np.float64)
    finite: npt.NDArray[np.bool_] = np.asarray(np.isfinite(rows).all(axis=1))
    rows = np.where(finite[:, None], rows, 0.0).clip(min=0.0)
    # Entries beyond 2 make a row too long in any case, and cast to no integer when they are huge.
    whole = np.floor(LENGTH * rows.clip(max=2.0)).astype(np.int64)
    long = _too_long(whole)
    whole[long] = np.floor(rows[long] * (LENGTH * _ROOM / _norms(rows[long]))[:, None])
    whole[_too_long(whole)] = 0
    return whole, finite


def _too_long(whole: Whole) -> npt.NDArray[np.bool_]:
    long: npt.NDArray[np.bool_] = np.square(whole).sum(axis=1) > LENGTH * LENGTH
    return long


def _norms(rows: Real) -> Real:
    largest = rows.max(axis=1, initial=1.0)  # squares of what is divided by it cannot overflow
    with np.errstate(over="ignore"):  # an infinite norm makes a zero vector
        norms: Real = largest * np.sqrt(np.square(rows / largest[:, None]).sum(axis=1))
    return norms


def in_chunks(
    features: Callable[[npt.NDArray[np.generic]], npt.ArrayLike], records: npt.NDArray[np.generic]
) -> Iterator[tuple[slice, Whole, npt.NDArray[np.bool_]]]:
    """The vectors of the records, a chunk at a time, and which of their features were finite.

    Every chunk has the same number of rows, the last one filled up with zeros: libraries choose how
    to round by the shape of an array, and the number of records must not change any vector.
    """
    for start in range(0, len(records), _CHUNK):
        part = records[start : start + _CHUNK]
        filled = part
        if len(part) < _CHUNK:
            filled = np.zeros((_CHUNK, *records.shape[1:]), dtype=records.dtype)
            filled[: len(part)] = part
        whole, finite = whole_vectors(features(filled))
        yield slice(start, start + len(part)), whole[: len(part)], finite[: len(part)]
