"""Votes for landmarks: a similarity that saturates, from any public code of records.

A code turns each record into a vector φ of length 1, with entries of any sign. Landmarks are codes
of public images, in tables. A record votes, in each table, for the landmark nearest to it. A query
gives each landmark the weight 0 if its cosine with the query is at most `low`, 1 from `high` on,
and linearly between. So the similarity of a record and a query, the mean weight of what the record
votes for, is near 1 for records of the same kind and near 0 for all others, where a cosine would
say 0.3 and 0.05: radii grow with that difference.
"""

from collections.abc import Callable

import attrs
import numpy as np
import numpy.typing as npt

from prudent.certify.vectors import Votes

SCALE = 2047
"""Length of rounded codes: products of two sum up to less than 2²⁴, which float32 adds exactly."""

Real = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]


def rounded(codes: npt.ArrayLike) -> Floats:
    """Codes as whole numbers, rounded towards zero, of length at most `SCALE`."""
    rows = np.asarray(codes, dtype=np.float64)
    norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    return np.trunc(rows * (SCALE * (1 - 2.0**-30) / np.maximum(norms, 1e-12))).astype(np.float32)


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
    """

    name: str
    digest: str
    code: Callable[[npt.NDArray[np.generic]], Real]
    landmarks: Floats
    low: float
    high: float

    @property
    def width(self) -> int:
        """All landmarks of all tables."""
        return int(self.landmarks.shape[0] * self.landmarks.shape[1])

    @property
    def pairing(self) -> Votes:
        """One vote per table."""
        return Votes(len(self.landmarks))

    def records(self, records: npt.NDArray[np.generic]) -> Real:
        """The votes of records."""
        codes = np.asarray(self.code(records))
        finite = np.isfinite(codes).all(axis=1)
        products = self._products(np.where(finite[:, None], codes, 0.0))
        tables, each = self.landmarks.shape[:2]
        votes = np.zeros((len(codes), tables, each))
        chosen = products.reshape(votes.shape).argmax(axis=2)  # exact, so the same everywhere
        np.put_along_axis(votes, chosen[:, :, None], 1 / tables, axis=2)
        votes[~finite] = np.nan
        return votes.reshape(len(codes), -1)

    def queries(self, queries: npt.NDArray[np.generic]) -> Real:
        """The weights that queries give to landmarks."""
        codes = np.nan_to_num(np.asarray(self.code(queries)))
        cosines = self._products(codes).astype(np.float64) / SCALE**2
        return np.clip((cosines - self.low) / (self.high - self.low), 0, 1)

    def _products(self, codes: Real) -> Floats:
        products: Floats = rounded(codes) @ self.landmarks.reshape(self.width, -1).T
        return products
