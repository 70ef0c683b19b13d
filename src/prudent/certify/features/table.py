"""A map for records of a table: votes for the cells of public partitions.

Each partition is by a few columns: numbers fall between public edges, categories are what they are.
A record votes, in each partition, for its cell, and a query gives weight 1 to its own cells. So the
similarity of two records is the fraction of partitions in which they share a cell, and a class sum
is a set of histograms: several sums per class, by a public partition of the records.
"""

import hashlib
import math

import attrs
import numpy as np
import numpy.typing as npt

from prudent.certify.vectors import Votes

Real = npt.NDArray[np.float64]


@attrs.frozen
class Column:
    """A column of a record.

    Attributes:
        index: Its place in the record.
        edges: Numbers that separate its intervals, in rising order; none for a category, which is
            a whole number.
        cells: How many cells it has. Categories are counted modulo this: two may share a cell,
            whatever categories there are, and none is known from the records.
    """

    index: int
    edges: tuple[float, ...] = ()
    cells: int = attrs.field(default=attrs.Factory(lambda own: len(own.edges) + 1, True))

    def cell(self, values: Real) -> npt.NDArray[np.int64]:
        """The number of the interval, from 0 on, or of the category, of each value."""
        found: npt.NDArray[np.int64] = (
            np.searchsorted(self.edges, values, side="right")
            if self.edges
            else np.rint(values.clip(0, 1 << 53)).astype(np.int64) % self.cells
        )
        return found


@attrs.frozen
class Partitions:
    """A feature map by partitions of the records.

    Attributes:
        name: As for `FeatureMap`.
        partitions: The columns of each partition; their number is a power of 2.
    """

    name: str
    partitions: tuple[tuple[Column, ...], ...]

    @property
    def width(self) -> int:
        """All cells of all partitions."""
        return sum(math.prod(column.cells for column in columns) for columns in self.partitions)

    @property
    def digest(self) -> str:
        """Of the edges and everything else."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    @property
    def pairing(self) -> Votes:
        """One vote per partition."""
        return Votes(len(self.partitions))

    def records(self, records: npt.NDArray[np.generic]) -> Real:
        """The votes of records; NaN for a record with a value that is not finite."""
        votes, finite = self._shared(records)
        votes /= len(self.partitions)
        votes[~finite] = np.nan
        return votes

    def queries(self, queries: npt.NDArray[np.generic]) -> Real:
        """The weight 1 for the cells of a query, unless it is not finite."""
        weights, finite = self._shared(queries)
        weights[~finite] = 0.0
        return weights

    def _shared(self, records: npt.NDArray[np.generic]) -> tuple[Real, npt.NDArray[np.bool_]]:
        values = records.reshape(len(records), -1).astype(np.float64)
        finite: npt.NDArray[np.bool_] = np.asarray(np.isfinite(values).all(axis=1))
        values[~finite] = 0.0
        marks, start = np.zeros((len(values), self.width)), 0
        for columns in self.partitions:
            cell = np.zeros(len(values), dtype=np.int64)
            for column in columns:
                cell = column.cells * cell + column.cell(values[:, column.index])
            marks[np.arange(len(values)), start + cell] = 1.0
            start += math.prod(column.cells for column in columns)
        return marks, finite


_AGE = Column(0, (18, 28, 35, 50, 65))
_GAINS = Column(16, (1, 3000, 7000))
_LOSSES = Column(17, (1, 1500))
_DIVIDENDS = Column(18, (1, 300, 2000))
_WEEKS = Column(38, (1, 26, 50))

CENSUS = Partitions(
    "census",
    (
        (_AGE,),
        (Column(3, cells=47),),  # occupation
        (Column(4, cells=61),),  # education
        (Column(12, cells=7),),  # sex
        (_GAINS,),
        (_DIVIDENDS,),
        (_WEEKS,),
        (_GAINS, _LOSSES),
    ),
)
"""For Census-Income (KDD): what is commonly said to decide an income, one partition each."""
