"""Counts of the records of each class in public cells, and how many records an answer withstands.

One record adds one to a cell in each of T tables, in the row of its class, and one to the number of
records of this class. So the tables together change by T, in the sum of absolute values, and the
numbers of records by 1, when one record is added or removed.

Let N be a table of counts: N[c, l] is the number of records of class c in cell l, in each of T
tables, and n[c] the number of records of class c; both with whatever noise. A query x weighs each
cell by w(l) in [0, 1], which depends on x and public facts alone. The similarity of x and a record
is the mean weight of its T cells, and the score of class c is

    Σ over cells l of w(l) N[c, l] / T − n[c]/2,

the sum over the records of the class of their similarity − 1/2, and noise. The class with the
largest score is predicted, the first of them if there are several.

Theorem. Let m be the largest of |similarity − 1/2| over all records there can be; m <= 1/2. The
prediction a at x withstands r inserted or removed records, with the same noise, if for each other
class b the gap between the scores of a and b is more than r m, or is r m and a comes before b.

Proof. A record inserted into class c, or removed from it, moves the score of c by
±(similarity − 1/2), at most m in size, and no other score. So r records, n_c of them in class c,
change the gap between a and b by at most n_a m + n_b m <= r m. ∎

The radius is the largest such r. It is sharp: with one table some cell has |w − 1/2| = m, and r + 1
copies of a record in that cell, named as a (if w < 1/2) or as the nearest other class, change the
prediction. A changed record is one removed and one inserted, and counts twice.

Without the half a record could move a score by 1, only upwards; with it a record unlike the query
counts against its class, and radii double. No rule withstands more records than two classes have:
whoever can remove one class and insert it under the name of another can exchange their names.

All numbers here are whole: weights in steps of 1/STEPS, scores in units of 1/(2 · STEPS · T).
"""

from collections.abc import Sequence
from typing import Any

import attrs
import dp_accounting as dp
import numpy as np
import numpy.typing as npt

from prudent._validate import ArgumentError
from prudent.budget import LedgerLike
from prudent.receipts.making import ReceiptTarget
from prudent.records.arrays import NONE
from prudent.release.charging import ChargedRelease, Preview, charge
from prudent.release.noise import AdditiveMechanism, Noise, shares_of, source_of

STEPS = 1 << 12  # the weight 1, in steps
UNTOUCHABLE = int(np.iinfo(np.int64).max)  # the radius of a prediction that no record can move
Whole = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]
"""Weights of cells, one row per query: whole numbers from 0 to STEPS."""

TOTALS_SHARE = 0.1
"""Fraction of ε for the numbers of records of the classes; the rest is for the cells.

A class total is in every score of its class, and as a sum of noisy cells it would have their noise
many times over.
"""


@attrs.frozen(eq=False)
class Counts:
    """Counts of the records of each class; exact ones are NOT PRIVATE, released ones are."""

    cells: Whole  # counts, (classes, cells of all tables)
    totals: Whole  # records of each class
    sizes: tuple[int, ...]  # how many cells each table has; a record is in one cell of each
    # Digest of the public partition and classes, which tables must share to be added.
    partition: str
    epsilon: float | None = None  # ε of the release; None for exact counts

    def __attrs_post_init__(self) -> None:
        if self.cells.shape != (len(self.totals), sum(self.sizes)):
            allowed = "of each class in each cell of the partition"
            raise ArgumentError("counts", allowed, shown="other shapes")

    @property
    def tables(self) -> int:
        """How many cells a record is in."""
        return len(self.sizes)

    @classmethod
    def empty(cls, classes: int, sizes: tuple[int, ...], partition: str) -> "Counts":
        """Counts of no records."""
        zeros = np.zeros((classes, sum(sizes)), np.int64)
        return cls(zeros, np.zeros(classes, np.int64), sizes, partition)

    def insert(self, places: Whole, classes: Whole) -> None:
        """Add records to exact counts: each adds one to a cell of each table, or is absent.

        Price and theorem rest on this, so it is checked here, whatever made the numbers.
        """
        if places.shape != (len(classes), self.tables):
            raise ValueError
        ends = np.cumsum(self.sizes)
        kept = ((places >= ends - self.sizes) & (places < ends)).all(axis=1)
        kept &= (classes != NONE) & (classes < len(self.totals))
        names = classes[kept]
        for column in places[kept].T:
            np.add.at(self.cells, (names, column), 1)
        np.add.at(self.totals, names, 1)

    def __add__(self, other: "Counts") -> "Counts":
        """Counts of the records of both, which must be different records.

        Exact tables add up to an exact table, which is what secure aggregation computes of the
        tables of clients. Released ones add up to a released one: each record is in one of them, so
        the sum is as private as the less private of them.
        """
        if self.partition != other.partition:
            raise ArgumentError("other", "counts on the same partition", shown="another one")
        if (self.epsilon is None) != (other.epsilon is None):
            raise ArgumentError("other", "exact counts, or released ones, like these", shown="not")
        epsilon = None if self.epsilon is None else max(self.epsilon, other.epsilon or 0.0)
        cells, totals = self.cells + other.cells, self.totals + other.totals
        return attrs.evolve(self, cells=cells, totals=totals, epsilon=epsilon)

    def released(self, pricing: "Pricing", noise: Noise | None) -> "Counts":
        """Exact counts with noise."""
        source = source_of(noise)
        cells = pricing.cells.noisy(self.cells.ravel().tolist(), self.tables, source)
        totals = pricing.totals.noisy(self.totals.tolist(), 1, source)
        shaped = np.array(cells, np.int64).reshape(self.cells.shape)
        whole = np.array(totals, np.int64)
        return attrs.evolve(self, cells=shaped, totals=whole, epsilon=pricing.epsilon)

    def note(self, paid: ChargedRelease, labels: Sequence[Any]) -> None:
        """Note that these counts were released, and write their receipt."""
        table = {"classes": list(labels), "tables": self.tables, "partition": self.partition}
        released = table | {"cells": self.cells, "totals": self.totals}
        paid.note([self], released, features=self.partition)


@attrs.frozen
class Pricing:
    """How ε is divided between cells and class totals.

    Guarantee:
        Discrete Laplace noise on the cells, calibrated to a change of T, is ε_cells-DP, and on the
        totals, calibrated to a change of 1, ε_totals-DP; together they are ε-DP, with δ = 0.
    """

    epsilon: float  # ε of the release
    share: float = TOTALS_SHARE  # fraction of it for the class totals

    @property
    def parts(self) -> tuple[float, ...]:
        """ε of the class totals, and of the cells."""
        return tuple(shares_of(self.epsilon, self.share))

    @property
    def cells(self) -> AdditiveMechanism:
        """The noise of the cells."""
        return AdditiveMechanism.calibrate(self.parts[1])

    @property
    def totals(self) -> AdditiveMechanism:
        """The noise of the class totals."""
        return AdditiveMechanism.calibrate(self.parts[0])

    @property
    def event(self) -> dp.DpEvent:
        """What a release costs, for any accountant of this package."""
        return dp.ComposedDpEvent([self.cells.event, self.totals.event])

    def preview(self, name: str) -> Preview:
        """What is known of a release before any record is read."""
        return Preview(
            statistic=f"counts at {name}",
            mechanism="laplace",
            epsilon=self.epsilon,
            delta=0.0,
            event=self.event,
        )

    def charge(
        self,
        ledger: LedgerLike | None,
        name: str,
        data: Any = None,
        *,
        receipt: ReceiptTarget | None = None,
    ) -> ChargedRelease:
        """Charge a ledger, before any record is read; see `charging.charge`."""
        return charge(ledger, self.preview(name), data, receipt=receipt, kind="classifier")


def scores_of(weights: Weights, cells: Whole, totals: Whole, tables: int) -> Whole:
    """The score of each class at each query, exactly.

    Weights have one row per query, counts one per class.
    """
    half = STEPS * tables * totals
    largest = 2 * STEPS * int(np.abs(cells).sum(axis=1).max(initial=0))
    if largest < 1 << 53:  # then float64 is exact, and many times faster
        found = (weights.astype(np.float64) @ cells.T.astype(np.float64)).astype(np.int64)
    else:
        found = weights.astype(np.int64) @ cells.T
    return 2 * found - half


def moves_of(weights: Weights, sizes: Sequence[int]) -> Whole:
    """The most that one record can move a score at each query: m of the theorem."""
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    most = np.maximum.reduceat(weights, starts, axis=1).astype(np.int64).sum(axis=1)
    least = np.minimum.reduceat(weights, starts, axis=1).astype(np.int64).sum(axis=1)
    middle = STEPS * len(sizes)
    found: Whole = np.maximum(2 * most - middle, middle - 2 * least)
    return found


def decided(scores: Whole, moves: Whole) -> tuple[Whole, Whole]:
    """The number of the winning class at each query, and its radius."""
    rows, winners = np.arange(len(scores)), scores.argmax(axis=1)
    gaps = scores[rows, winners][:, None] - scores
    # A class that comes later must get ahead, one that comes earlier need only draw level.
    earlier = np.arange(scores.shape[1]) < winners[:, None]
    reach = (gaps - earlier) // np.maximum(moves, 1)[:, None]
    reach[rows, winners] = UNTOUCHABLE
    reach[moves == 0] = UNTOUCHABLE
    return winners, reach.min(axis=1)
