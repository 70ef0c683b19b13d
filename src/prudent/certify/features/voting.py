"""Similarity by votes for random directions, from any public code of records.

A code turns each record into a vector φ, whose entries may have any sign; only its direction
counts. A table holds random vectors of signs. A record votes, in each table, for the one nearest to
its code. A query gives each of them the weight 0 if its inner product with the unit code of the
query is at most `low`, 1 from `high` on, and linearly between. The similarity of a record and a
query is the mean weight of what the record votes for.

Inner products of a unit code and random signs are close to standard normal, and the largest of n is
close to m = √(2 ln n). What a record votes for has therefore an inner product of about m·cos with
the query, give or take 1, where cos is that of the angle between the two codes. So the similarity
is a steep function of the cosine: with 128 directions 0.23, 0.41, 0.61 and 0.96 at a cosine of 0,
0.2, 0.4 and 0.8. It tells records of the same kind from others by more than their cosines, and
radii grow with the difference. The noise grows with the number of directions in a table, but not
with the number of tables. Directions are drawn from a seed: neither data nor storage is needed. A
share of the similarity may be the cosine of parts of codes, which has less noise.
"""

import functools
from collections.abc import Callable

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent.certify.vectors import Mixed, Pairing, Votes

SCALE = 2047
"""Length of rounded codes: inner products with signs are exact in float32."""

Real = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]


def rounded(codes: npt.ArrayLike) -> Floats:
    """Codes as whole numbers, rounded towards zero, of length at most `SCALE`."""
    rows = np.asarray(codes, dtype=np.float64)
    norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    whole = np.trunc(rows * (SCALE * (1 - 2.0**-30) / np.maximum(norms, 1e-12)))
    return np.asarray(whole, dtype=np.float32)


def rectified(codes: npt.ArrayLike) -> Real:
    """Codes as non-negative vectors: the positive parts, then the negative parts."""
    rows = np.asarray(codes, dtype=np.float64)
    return np.concatenate([rows.clip(min=0), (-rows).clip(min=0)], axis=1)


@attrs.frozen
class Ballot:
    """What there is to vote for.

    Attributes:
        tables: Number of tables, a power of 2.
        directions: Directions in a table.
        low: Inner product up to which a direction has no weight.
        high: Inner product from which on it has all.
        share: Weight of the cosine of the positive parts of codes, beside the votes.
        seed: Of the directions.
        both: Whether this is the cosine of the positive and the negative parts; see `rectified`.
    """

    tables: int = 32
    directions: int = 128
    low: float = 0.6
    high: float = 1.0
    share: float = 0.0
    seed: int = 7
    both: bool = False

    def __attrs_post_init__(self) -> None:
        _validate.count(2, directions=self.directions)
        Votes(self.tables)

    @property
    def width(self) -> int:
        """Directions of all tables."""
        return self.tables * self.directions

    def signs(self, entries: int) -> Floats:
        """The directions, one per column, as signs; the same in every version of numpy."""
        shape = self.width, entries
        drawn = np.random.RandomState(self.seed).randint(0, 2, shape, dtype=np.uint8)
        return 2 * drawn.T.astype(np.float32) - 1


@attrs.frozen(eq=False)
class Voting:
    """A feature map by votes for random directions.

    Guarantee:
        Codes are rounded to whole numbers, so inner products with signs are exact in float32 and a
        record's votes depend on its own code alone.

    Attributes:
        name: As for `FeatureMap`.
        digest: As for `FeatureMap`.
        code: From records to codes, one per row; NaN for a record that cannot be read.
        entries: Entries of a code.
        ballot: What there is to vote for.
    """

    name: str
    digest: str
    code: Callable[[npt.NDArray[np.generic]], Real]
    entries: int
    ballot: Ballot = attrs.field(factory=Ballot)

    @property
    def width(self) -> int:
        """Entries of the parts of a code if it has a share, and the directions of all tables."""
        return self.ballot.width + (self._parts if self.ballot.share else 0)

    @property
    def _parts(self) -> int:
        return (1 + self.ballot.both) * self.entries

    @property
    def pairing(self) -> Pairing:
        """One vote per table, beside a vector if the code has a share."""
        votes = Votes(self.ballot.tables, constant=0.0625)
        return Mixed(self._parts, votes, self.ballot.share) if self.ballot.share else votes

    def records(self, records: npt.NDArray[np.generic]) -> Real:
        """The votes of records."""
        codes, finite = self._codes(records)
        votes = np.zeros((len(codes), self.ballot.tables, self.ballot.directions))
        chosen = self._products(codes).reshape(votes.shape).argmax(axis=2)  # of exact products
        np.put_along_axis(votes, chosen[:, :, None], 1 / self.ballot.tables, axis=2)
        found = self._beside(codes, votes.reshape(len(codes), -1), 8)
        found[~finite] = np.nan
        return found

    def queries(self, queries: npt.NDArray[np.generic]) -> Real:
        """The weights that queries give to directions; none, if a query cannot be read."""
        codes, finite = self._codes(queries)
        low, high = self.ballot.low, self.ballot.high
        products = self._products(codes) / np.float64(SCALE)
        weights = np.clip((products - low) / (high - low), 0, 1) * finite[:, None]
        return self._beside(codes, weights, 1)

    def _codes(self, records: npt.NDArray[np.generic]) -> tuple[Real, npt.NDArray[np.bool_]]:
        codes = np.asarray(self.code(records))
        finite = np.asarray(np.isfinite(codes).all(axis=1))
        return np.where(finite[:, None], codes, 0.0), finite

    def _beside(self, codes: Real, votes: Real, shorter: int) -> Real:
        """Votes, behind the parts of codes at length 1/shorter if these have a share."""
        if not self.ballot.share:
            return votes
        positive = rectified(codes) if self.ballot.both else codes.clip(min=0)
        norms = np.sqrt(np.square(positive).sum(axis=1, keepdims=True))
        return np.concatenate([positive / np.maximum(shorter * norms, 1e-12), votes], axis=1)

    def _products(self, codes: Real) -> Floats:
        products: Floats = rounded(codes) @ _signs(self.ballot, self.entries)
        return products


@functools.lru_cache(maxsize=8)
def _signs(ballot: Ballot, entries: int) -> Floats:
    return ballot.signs(entries)
