"""A table of counts: how many records of each class are in each cell of public partitions.

One record adds one to a cell in each of T tables, in the row of its class, and one to the number of
records of this class. So the tables together change by T, in the sum of absolute values, and the
numbers of records by 1, when one record is added or removed.
"""

from collections.abc import Sequence
from typing import Any

import attrs
import dp_accounting as dp
import numpy as np

from prudent._validate import ArgumentError
from prudent.budget import LedgerLike
from prudent.certify.radius import Whole
from prudent.receipts.making import ReceiptTarget
from prudent.records.arrays import NONE
from prudent.release.charging import Paid, Preview, charge
from prudent.release.noise import Noise, source_of
from prudent.release.sums.additive import AdditiveMechanism, shares_of

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
    tables: int  # how many cells a record is in
    # Digest of the public partition and classes, which tables must share to be added.
    partition: str
    epsilon: float | None = None  # ε of the release; None for exact counts

    @classmethod
    def empty(cls, classes: int, width: int, tables: int, partition: str) -> "Counts":
        """Counts of no records."""
        zeros = np.zeros((classes, width), np.int64)
        return cls(zeros, np.zeros(classes, np.int64), tables, partition)

    def insert(self, places: Whole, classes: Whole) -> None:
        """Add records to exact counts.

        Args:
            places: The cells of each record, (records, tables); a record with `NONE` is absent.
            classes: The number of the class of each record, or `NONE`.
        """
        kept = (places >= 0).all(axis=1) & (classes != NONE)
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

    def note(self, paid: Paid, labels: Sequence[Any]) -> None:
        """Note that these counts were released, and write their receipt."""
        table = {"classes": list(labels), "tables": self.tables, "partition": self.partition}
        released = table | {"cells": self.cells, "totals": self.totals}
        paid.note([self], released, kind="classifier", features=self.partition)


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
    def parts(self) -> tuple[float, float]:
        """ε of the class totals, and of the cells."""
        totals, cells = shares_of(self.epsilon, self.share)
        return totals, cells

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
    ) -> Paid:
        """Charge a ledger, before any record is read; see `charging.charge`."""
        return charge(ledger, self.preview(name), data, receipt=receipt)
