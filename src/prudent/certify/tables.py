"""Counts of a table where it is: in a file, a database or Spark.

A column of cell numbers is counted by its engine, in one query per class: a private histogram, by
label. No engine knows landmarks, so vectors are read in batches and counted here. Either way one
row is one record, in one cell of each table and one class, or it is absent altogether: what it adds
to a score is what the theorem of `counts` says.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
from typing_extensions import override

from prudent._validate import ArgumentError
from prudent.budget import LedgerLike
from prudent.certify.counts import Counts, Whole
from prudent.certify.known import Known
from prudent.receipts.making import ReceiptTarget
from prudent.release.columns.column import Column
from prudent.release.columns.opening import open_vectors
from prudent.release.columns.table_rows import ColumnSpec
from prudent.release.failures import redact_errors
from prudent.release.lattice import Lattice
from prudent.release.noise import Noise
from prudent.release.request import (
    TABLE_OPTIONS,
    Priced,
    Request,
    Statistic,
    check_single,
    release,
)

_ALL = 1 << 62  # more records than any cell has: no cell is left out for having few


@attrs.frozen(eq=False)
class ClassCounts:
    """Released counts of one class, as the other releases of a table are handed out."""

    counts: Counts
    event: Any = None
    mechanism: str = "laplace"
    epsilon: float | None = None
    delta: float | None = None
    protected: str = "record"
    notes: tuple[str, ...] = ()


def counts_of_table(
    known: Known,
    data: Any,
    column: str,
    label: str,
    ledger: LedgerLike | None,
    receipt: ReceiptTarget | None,
    noise: Noise | None,
    table: Mapping[str, Any],
) -> Counts:
    """Charge the ledger, count the rows of a table and release the counts.

    `column` holds cell numbers, or vectors.
    """
    if unknown := set(table) - set(TABLE_OPTIONS):
        names = ", ".join(TABLE_OPTIONS)
        raise TypeError(f"Expected options among {names}; got unknown {sorted(unknown)}.")
    if {"by", "groups"} & set(table):
        raise ArgumentError("table", "no by and groups: label and classes are these", shown="both")
    labels = known.classes.labels
    read = open_vectors(ColumnSpec(data, column, by=label, **table), labels)
    if read is not None:
        paid = known.pricing.charge(ledger, known.partition.name, data, receipt=receipt)

        def counted() -> Counts:
            counted = known.empty()
            for vectors, numbers in read():
                counted.insert(known.partition.cells(vectors), numbers)
            return counted

        released = redact_errors(counted).released(known.pricing, noise)
        released.note(paid, labels)
        return released
    if len(known.partition.sizes) > 1:
        raise ArgumentError(
            "column",
            "vectors, where landmarks are in several tables",
            got=column,
            why="a column holds the number of one cell",
        )
    request = Request(
        data=data,
        column=column,
        by=label,
        groups=labels,
        epsilon=known.pricing.epsilon,
        ledger=ledger,
        receipt=receipt,
        noise=noise,
        **table,
    )
    released = release(_CellCounts(known), request)
    rows: list[Counts] = [released[label].counts for label in labels]
    return attrs.evolve(
        rows[0],
        cells=np.concatenate([row.cells for row in rows]),
        totals=np.concatenate([row.totals for row in rows]),
    )


@attrs.frozen
class _CellCounts(Statistic):
    """The counts of one class: a row is one of its records or absent."""

    known: Known

    @override
    def price(self, request: Request, records: Column) -> Priced:
        check_single(records, "a certificate", "the certificate")
        preview = self.known.pricing.preview(self.known.partition.name)
        return Priced(preview=preview, mechanism=self.known.pricing)

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> ClassCounts:
        cells = _cells(records, self.known.partition.sizes[0])
        sizes = self.known.partition.sizes
        exact = Counts(cells[None], cells.sum(keepdims=True), sizes, self.known.digest)
        return ClassCounts(exact.released(priced.mechanism, noise))


def _cells(records: Column, size: int) -> Whole:
    """How many records each cell has; numbers are rounded, and those beyond the cells left out."""
    steps, counts = records.frequencies(Lattice(0, -1, size), _ALL)
    padded = np.zeros(size + 2, np.int64)
    padded[steps + 1] = counts
    return padded[1:-1]
