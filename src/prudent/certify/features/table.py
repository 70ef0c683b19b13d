"""Cells for records of a table, by public edges of columns.

Each table is by a few columns: numbers fall between public edges, categories are what they are. A
query gives weight 1 to its own cells, so the similarity of two records is the fraction of tables in
which they share a cell.
"""

import hashlib
import math
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from prudent.certify.radius import STEPS, Weights, Whole
from prudent.records.arrays import NONE, ArrayForm

Real = npt.NDArray[np.float64]


@attrs.frozen
class BinnedColumn:
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
    """A partition of records by columns, in one table for each group of columns.

    Attributes:
        name: As for `Partition`.
        partitions: The columns of each table.
        columns: How many numbers a record has.
    """

    name: str
    partitions: tuple[tuple[BinnedColumn, ...], ...]
    columns: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The cells of each table."""
        return tuple(math.prod(column.cells for column in each) for each in self.partitions)

    @property
    def digest(self) -> str:
        """Of the edges and everything else."""
        return hashlib.sha256(repr(self).encode()).hexdigest()

    def cells(self, records: Any) -> Whole:
        """The cells of records."""
        values, present = ArrayForm((self.columns,)).read(records)
        found, start = [], 0
        for columns, size in zip(self.partitions, self.sizes, strict=True):
            cell = np.zeros(len(values), dtype=np.int64)
            for column in columns:
                cell = column.cells * cell + column.cell(values[:, column.index])
            found.append(start + cell)
            start += size
        return np.where(present[:, None], np.stack(found, axis=1), NONE)

    def weights(self, queries: Any) -> Weights:
        """The weight 1 for the cells of a query itself."""
        cells = self.cells(queries)
        found = np.zeros((len(cells), sum(self.sizes)), np.float32)
        rows = np.flatnonzero((cells != NONE).all(axis=1))
        found[rows[:, None], cells[rows]] = STEPS
        return found


_AGE = BinnedColumn(0, (18, 28, 35, 50, 65))
_GAINS = BinnedColumn(16, (1, 3000, 7000))
_LOSSES = BinnedColumn(17, (1, 1500))
_DIVIDENDS = BinnedColumn(18, (1, 300, 2000))
_WEEKS = BinnedColumn(38, (1, 26, 50))

CENSUS = Partitions(
    "census",
    (
        (_AGE,),
        (BinnedColumn(3, cells=47),),  # occupation
        (BinnedColumn(4, cells=61),),  # education
        (BinnedColumn(12, cells=7),),  # sex
        (_GAINS,),
        (_DIVIDENDS,),
        (_WEEKS,),
        (_GAINS, _LOSSES),
    ),
    40,
)
"""For Census-Income (KDD): what is commonly said to decide an income, one partition each."""
