"""Records and queries as vectors of whole numbers whose inner products lie in a proved range.

Sums, scores and radii are then exact integers, and what a certificate rests on holds for the
numbers that are really added, not for reals that they approximate.
"""

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import attrs
import numpy as np
import numpy.typing as npt

from prudent._validate import ArgumentError

LENGTH = 1 << 16
"""The number 1, in steps of the lattice."""

_ROOM = 1.0 - 2.0**-30  # more than the rounding errors of a norm of up to 2**22 entries
_CHUNK = 256

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


class Pairing(Protocol):
    """How records and queries are rounded to the lattice, so that 0 <= ⟨query, record⟩ <= 1.

    Attributes:
        constant: The last entry of a record's vector, a power of 1/2; that of a query is −1 over
            twice it, so that each record counts −1/2 there.
        length: Upper bound on the Euclidean length of a record's vector with its last entry.
    """

    @property
    def constant(self) -> float: ...  # noqa: D102

    @property
    def length(self) -> float: ...  # noqa: D102

    def records(self, values: npt.ArrayLike) -> tuple[Whole, Flags]:
        """Vectors of records, one per row, and which rows were finite; others become zero."""
        ...

    def queries(self, values: npt.ArrayLike) -> Whole:
        """Vectors of queries, one per row."""
        ...

    def nearest(self, direction: Real) -> Whole:
        """The vector a record can have whose inner product with a direction is largest."""
        ...


@attrs.frozen
class Euclidean:
    """Records and queries have non-negative entries and Euclidean length at most 1.

    Guarantee:
        Inner products are >= 0 as entries are, and <= 1 by the inequality of Cauchy and Schwarz.
    """

    constant: float = 0.5
    length: float = math.sqrt(1.25)

    def records(self, values: npt.ArrayLike) -> tuple[Whole, Flags]:
        """Round each row towards zero; negative entries become 0, rows are shortened to length 1.

        The result for a row depends on this row only. Vectors of the lattice stay as they are. The
        sum of squares, an exact integer, is checked: a row that failed would become zero.
        """
        rows, finite = _cleaned(values)
        # Entries beyond 2 make a row too long in any case, and cast to no integer when huge.
        whole = np.floor(LENGTH * rows.clip(max=2.0)).astype(np.int64)
        long = _too_long(whole)
        whole[long] = np.floor(rows[long] * (LENGTH * _ROOM / _norms(rows[long]))[:, None])
        whole[_too_long(whole)] = 0
        return whole, finite

    def queries(self, values: npt.ArrayLike) -> Whole:
        """As records."""
        return self.records(values)[0]

    def nearest(self, direction: Real) -> Whole:
        """The positive part of the direction, at length 1."""
        positive = direction.clip(min=0.0)
        largest = max(float(positive.max(initial=0.0)), 1e-300)
        nearest: Whole = self.records(2.0 * positive[None] / largest)[0][0]
        return nearest


@attrs.frozen
class Votes:
    """A record casts one vote in each of some tables; a query weighs what can be voted for.

    A record has an entry 1/tables for each of its votes and 0 elsewhere; the entries of a query
    are in [0, 1].

    Guarantee:
        Inner products are means of entries of the query, over the votes of the record.
    """

    tables: int
    constant: float = 0.125

    def __attrs_post_init__(self) -> None:
        if self.tables < 1 or self.tables & (self.tables - 1) or self.tables > LENGTH:
            raise ArgumentError("tables", "a power of 2", got=self.tables)

    @property
    def length(self) -> float:
        """A record has at most `tables` entries 1/tables, and the constant."""
        return math.sqrt(1 / self.tables + self.constant**2)

    def records(self, values: npt.ArrayLike) -> tuple[Whole, Flags]:
        """Round each row to votes; one with an entry above 1/tables, or a sum above 1, is zero."""
        rows, finite = _cleaned(values)
        vote = LENGTH // self.tables
        whole = vote * (rows.clip(max=1.0) * self.tables >= 0.5).astype(np.int64)
        whole[whole.sum(axis=1) > LENGTH] = 0
        return whole, finite

    def queries(self, values: npt.ArrayLike) -> Whole:
        """Round the entries of each row to [0, 1]."""
        rows, _ = _cleaned(values)
        whole: Whole = np.floor(LENGTH * rows.clip(max=1.0)).astype(np.int64)
        return whole

    def nearest(self, direction: Real) -> Whole:
        """Votes for the largest entries, as many as there are tables, whichever tables they are in.

        No record of a map with tables can do more; many can do less.
        """
        whole = np.zeros(len(direction), dtype=np.int64)
        whole[np.argsort(-direction, kind="stable")[: self.tables]] = LENGTH // self.tables
        return whole


_SHORTER = 8  # vectors beside votes are divided by this, as noise is for the longer of the two


@attrs.frozen
class Mixed:
    """Vectors and votes side by side, their similarities mixed.

    Guarantee:
        Inner products are `share` times one that is in [0, 1], plus 1 − `share` times another: what
        a record's vector is shorter by, a query's is longer by, and all is rounded towards zero.

    Attributes:
        width: How many entries, the first ones, are those of vectors. Those of a record have length
            at most 1/8, those of a query 1.
        votes: The pairing of the others.
        share: Weight of the vectors, a multiple of 1/64.
        constant: As for `Pairing`.
    """

    width: int
    votes: Votes
    share: float
    constant: float = 0.0625

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.share * 64 % 1:
            raise ArgumentError("share", "a multiple of 1/64 in [0, 1]", got=self.share)

    @property
    def length(self) -> float:
        """The vector has length 1/8 at most, and there is at most one vote per table."""
        return math.sqrt(1 / _SHORTER**2 + 1 / self.votes.tables + self.constant**2)

    def records(self, values: npt.ArrayLike) -> tuple[Whole, Flags]:
        """Round both parts."""
        rows, finite = _cleaned(values)
        vectors, _ = Euclidean().records(_SHORTER * rows[:, : self.width].clip(max=1.0))
        votes, _ = self.votes.records(rows[:, self.width :])
        return np.concatenate([vectors // _SHORTER, votes], axis=1), finite

    def queries(self, values: npt.ArrayLike) -> Whole:
        """Round both parts, then weigh them and round towards zero again."""
        rows, _ = _cleaned(values)
        weight = round(64 * self.share)
        vectors = weight * _SHORTER * Euclidean().queries(rows[:, : self.width]) // 64
        votes = (64 - weight) * self.votes.queries(rows[:, self.width :]) // 64
        return np.concatenate([vectors, votes], axis=1)

    def nearest(self, direction: Real) -> Whole:
        """The nearest of either part."""
        vector = Euclidean().nearest(direction[: self.width]) // _SHORTER
        return np.concatenate([vector, self.votes.nearest(direction[self.width :])])


def _cleaned(values: npt.ArrayLike) -> tuple[Real, Flags]:
    """Rows without negative entries, and which were finite; those that were not become zero."""
    rows = np.asarray(values, dtype=np.float64)
    finite: Flags = np.asarray(np.isfinite(rows).all(axis=1))
    return np.where(finite[:, None], rows, 0.0).clip(min=0.0), finite


def _too_long(whole: Whole) -> Flags:
    long: Flags = np.square(whole).sum(axis=1) > LENGTH * LENGTH
    return long


def _norms(rows: Real) -> Real:
    largest = rows.max(axis=1, initial=1.0)  # squares of what is divided by it cannot overflow
    with np.errstate(over="ignore"):  # an infinite norm makes a zero vector
        norms: Real = largest * np.sqrt(np.square(rows / largest[:, None]).sum(axis=1))
    return norms


def in_chunks(
    act: Callable[[npt.NDArray[np.generic]], npt.ArrayLike], records: npt.NDArray[np.generic]
) -> Iterator[tuple[slice, npt.NDArray[np.float64]]]:
    """The features of the records, a chunk at a time.

    Every chunk has the same number of rows, the last one filled up with zeros: libraries choose how
    to round by the shape of an array, and the number of records must not change any vector.
    """
    for start in range(0, len(records), _CHUNK):
        part = records[start : start + _CHUNK]
        filled = part
        if len(part) < _CHUNK:
            filled = np.zeros((_CHUNK, *records.shape[1:]), dtype=records.dtype)
            filled[: len(part)] = part
        values = np.asarray(act(filled), dtype=np.float64)
        yield slice(start, start + len(part)), values[: len(part)]
