"""A public partition of the records: each is in the cell of the landmark nearest to it.

A query gives a landmark the weight 0 if the cosine of their codes is at most `low`, 1 from `high`
on, and linearly between. So records in cells near the query count for their class, and records far
from it count against theirs.
"""

import hashlib
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from prudent._validate import ArgumentError
from prudent.certify.codes import SCALE, Codes, nearest
from prudent.certify.radius import STEPS, Weights, Whole
from prudent.records.labels import NONE

Flags = npt.NDArray[np.bool_]

_SAMPLE = 1000


class Features(Protocol):
    """A public map from records to codes. Nothing in it comes from the records of a release.

    Attributes:
        name: A name for messages and saved files.
        digest: Changes whenever the map does; saved files are checked against it.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def digest(self) -> str: ...  # noqa: D102

    def codes(self, records: Any, /) -> tuple[Codes, Flags]:
        """Codes of records, one per row, and which of the records could be read.

        Row i, bit for bit, is a function of record i alone.
        """
        ...


class Partition(Protocol):
    """Public cells for records, in one or more tables, and the weights that a query gives them.

    Attributes:
        name: A name for messages and saved files.
        digest: Changes whenever cells or weights do.
        sizes: How many cells each table has.
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def digest(self) -> str: ...  # noqa: D102

    @property
    def sizes(self) -> tuple[int, ...]: ...  # noqa: D102

    def cells(self, records: Any, /) -> Whole:
        """The cell of each record in each table, (records, tables), numbered through all tables.

        A row is a function of its record alone; it is `NONE` for a record that cannot be read.
        """
        ...

    def weights(self, queries: Any, /) -> Weights:
        """The weight of each cell at each query, from 0 to `STEPS`; 0 if it cannot be read."""
        ...


@attrs.frozen(eq=False)
class Landmarks:
    """A partition by landmarks.

    Attributes:
        features: From records to codes.
        codes: Of the landmarks, those of one table after those of another.
        ramp: Cosines up to which a landmark has no weight, and from which on it has all.
        tables: Tables of equally many landmarks: a record is in one cell of each.
    """

    features: Features
    codes: Codes
    ramp: tuple[float, float] = (0.1, 0.35)
    tables: int = 1

    def __attrs_post_init__(self) -> None:
        if self.codes.ndim != 2 or not len(self.codes) or len(self.codes) % self.tables:
            raise ArgumentError("landmarks", "rows of numbers, equally many a table", shown="not")
        low, high = self.ramp
        if not -1 <= low < high <= 1:
            raise ArgumentError("ramp", "two cosines in rising order", got=self.ramp)

    @property
    def name(self) -> str:
        """That of the features."""
        return self.features.name

    @property
    def digest(self) -> str:
        """Of the features, the landmarks and the ramp."""
        rest = repr((self.features.digest, self.ramp, self.tables, self.codes.shape))
        return hashlib.sha256(rest.encode() + self.codes.tobytes()).hexdigest()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Equally many landmarks in each table."""
        return (len(self.codes) // self.tables,) * self.tables

    def cells(self, records: Any) -> Whole:
        """The nearest landmark of each table; products are exact, the first wins a tie."""
        codes, present = self.features.codes(records)
        size = self.sizes[0]
        parts = [
            start + nearest(codes, self.codes[start : start + size])
            for start in range(0, len(self.codes), size)
        ]
        return np.where(present[:, None], np.stack(parts, axis=1), NONE)

    def weights(self, queries: Any) -> Weights:
        """The ramp of the cosines."""
        codes, present = self.features.codes(queries)
        low, high = (np.float32(SCALE * SCALE * cosine) for cosine in self.ramp)
        found = codes @ self.codes.T
        found -= low
        found *= STEPS / (high - low)
        np.floor(np.clip(found, 0, STEPS, out=found), out=found)
        found[~present] = 0
        return found


def public_ramp(codes: Codes, classes: int) -> tuple[float, float]:
    """A ramp by the landmarks alone: as many of them have weight as are of one class of several.

    Of the cosines between landmarks, which are public, a fraction 1/classes is between alike ones
    if classes are of one size. The ramp rises around that quantile.
    """
    rows = codes[:: max(1, len(codes) // _SAMPLE)]
    others = ~np.eye(len(rows), dtype=bool)
    cosines = np.sort((rows @ rows.T)[others]) / np.float32(SCALE * SCALE)
    if not len(cosines):
        return 0.0, 0.5
    low, high = (
        float(cosines[min(len(cosines) - 1, int(share * len(cosines)))])
        for share in (1 - 1.5 / max(classes, 2), 1 - 0.5 / max(classes, 2))
    )
    low = max(-1.0, min(low, 0.9))
    return low, min(1.0, max(high, low + 0.05))


def random_directions(count: int, width: int) -> npt.NDArray[np.float64]:
    """Landmarks where nothing public is known: random signs, the same in every version of numpy."""
    drawn = np.random.RandomState(7).randint(0, 2, (count, width), dtype=np.uint8)
    return 2 * drawn.astype(np.float64) - 1
