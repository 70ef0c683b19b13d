"""Similarity by votes for landmarks and by cosines, from any public code of records.

A code turns each record into a vector φ of length 1, with entries of any sign. Landmarks are codes
of public images, in tables. A record votes, in each table, for the landmark nearest to it. A query
gives each landmark the weight 0 if its cosine with the query is at most `low`, 1 from `high` on,
and linearly between. So the similarity of a record and a query, the mean weight of what the record
votes for, is near 1 for records of the same kind and near 0 for all others, where a cosine would
say 0.3 and 0.05: radii grow with that difference. Cosines tell records apart more finely, so both
are mixed. (Codes have entries of any sign; their positive and negative parts, side by side, are the
non-negative vectors that the cosines are taken of.)
"""

from collections.abc import Callable

import attrs
import numpy as np
import numpy.typing as npt

from prudent.certify.vectors import Mixed, Votes

SCALE = 2047
"""Length of rounded codes: products of two sum up to less than 2²⁴, which float32 adds exactly."""

Real = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]


LANDMARK_SCALE = 511
"""Length of rounded landmarks, whose entries are 8-bit."""


def rounded(codes: npt.ArrayLike, scale: int = SCALE) -> Floats:
    """Codes as whole numbers, rounded towards zero, of length at most `scale`."""
    rows = np.asarray(codes, dtype=np.float64)
    norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    whole = np.trunc(rows * (scale * (1 - 2.0**-30) / np.maximum(norms, 1e-12)))
    return np.asarray(whole, dtype=np.float32)


def rectified(codes: npt.ArrayLike) -> Real:
    """Codes as non-negative vectors: the positive parts, then the negative parts."""
    rows = np.asarray(codes, dtype=np.float64)
    return np.concatenate([rows.clip(min=0), (-rows).clip(min=0)], axis=1)


@attrs.frozen(eq=False)
class Voting:
    """A feature map by votes for landmarks.

    Attributes:
        name: As for `FeatureMap`.
        digest: As for `FeatureMap`.
        code: From records to codes, one per row; NaN for a record that cannot be read.
        landmarks: Rounded codes, (tables, landmarks, entries); the number of tables is a power
            of 2.
        low: Cosine up to which a landmark has no weight.
        high: Cosine from which on it has all.
        share: Weight of the cosines; that of the votes is 1 − share.
    """

    name: str
    digest: str
    code: Callable[[npt.NDArray[np.generic]], Real]
    landmarks: Floats
    low: float
    high: float
    share: float

    @property
    def width(self) -> int:
        """Positive and negative parts of a code, and all landmarks of all tables."""
        tables, each, entries = self.landmarks.shape
        return int(2 * entries + tables * each)

    @property
    def pairing(self) -> Mixed:
        """Cosines, and one vote per table."""
        tables, _, entries = self.landmarks.shape
        return Mixed(2 * entries, Votes(tables), self.share)

    def records(self, records: npt.NDArray[np.generic]) -> Real:
        """Codes of records, and their votes."""
        codes = np.asarray(self.code(records))
        finite = np.asarray(np.isfinite(codes).all(axis=1))
        products = self._products(np.where(finite[:, None], codes, 0.0))
        tables, each = self.landmarks.shape[:2]
        votes = np.zeros((len(codes), tables, each))
        chosen = products.reshape(votes.shape).argmax(axis=2)  # exact, so the same everywhere
        np.put_along_axis(votes, chosen[:, :, None], 1 / tables, axis=2)
        votes[~finite] = np.nan
        return np.concatenate([rectified(codes), votes.reshape(len(codes), -1)], axis=1)

    def queries(self, queries: npt.NDArray[np.generic]) -> Real:
        """Codes of queries, and the weights they give to landmarks."""
        codes = np.nan_to_num(np.asarray(self.code(queries)))
        cosines = self._products(codes) / np.float64(SCALE * LANDMARK_SCALE)
        weights = np.clip((cosines - self.low) / (self.high - self.low), 0, 1)
        return np.concatenate([rectified(codes), weights], axis=1)

    def _products(self, codes: Real) -> Floats:
        tables, each, entries = self.landmarks.shape
        products: Floats = rounded(codes) @ self.landmarks.reshape(tables * each, entries).T
        return products
