"""What a ledger has spent: its rows, read in their order, with every charge priced again."""

from collections.abc import Iterable
from typing import Any

import dp_accounting as dp

from prudent import _validate
from prudent._progress import track
from prudent._rounding import exact
from prudent.accounting import serialisation
from prudent.budget.allowance import Allowance
from prudent.budget.charges import (
    ADVICE,
    BEFORE_THE_FIRST,
    TamperedLedgerError,
    decoded,
    fields_of,
    is_outcome,
    read_outcome,
    reading,
    row_after,
    tampered,
)
from prudent.budget.filters import Filter
from prudent.budget.storage import LedgerRow, Store

_VERSIONS_DIFFER = 0.01  # how much more an event may cost now than when it was noted


class LedgerJournal:
    """The rows of one data set, read so far.

    Sums that rows note decide nothing: events are priced again.

    Attributes:
        dataset: Whose rows.
        filter: Prices the charges.
        state: Of the filter, after the charges read so far.
        last: The last row read.
        answered: For the number of each charge, whether its outcome is noted.
    """

    def __init__(self, dataset: str, filter_: Filter[Any]) -> None:
        self.dataset, self.filter = dataset, filter_
        self.state = filter_.opening()
        self.last = BEFORE_THE_FIRST
        self.answered: dict[int, bool] = {}

    def follow(self, rows: Iterable[LedgerRow]) -> None:
        """Takes in the rows that come after the last one.

        Raises:
            TamperedLedgerError: At the first row that does not.
        """
        for row in rows:
            fields = fields_of(self.last, row, self.dataset)
            if is_outcome(fields):
                self.answered[read_outcome(row, fields, self.answered)] = True
            elif row.sequence > 0:
                with reading(row):
                    event = serialisation.from_plain(fields["event"])
                    self.state = self.charged(event, fields["delta"])
                self.answered[row.sequence] = False
            self.last = row

    def catch_up(self, store: Store) -> None:
        """Takes in what others have appended since; the last row must still be there."""
        rows = store.rows(self.dataset, self.last.sequence)
        if not rows or rows[0] != self.last:
            raise tampered(self.last, "it was taken away or changed")
        self.follow(rows[1:])

    def charged(self, event: dp.DpEvent, delta: float | None) -> Any:
        """The state of the filter after one more charge."""
        return self.filter.charged(self.state, event, delta)

    def next_row(self, **fields: Any) -> LedgerRow:
        """The row that may come next."""
        return row_after(self.last, dataset=self.dataset, **fields)


def verify(rows: list[LedgerRow], dataset: str, budget: Allowance, digest: str | None) -> int:
    """The number of charges, if all rows are as they were written; see `Ledger.verify`.

    Raises:
        TamperedLedgerError: At the first row that is not.
    """
    if digest is not None:
        _validate.instance(str, "a text", digest=digest)
    filter_ = budget.filter()
    journal, charges, latest = LedgerJournal(dataset, filter_), 0, None
    for row in track(rows, "charges"):
        journal.follow([row])
        if len(journal.answered) > charges:
            charges, latest = charges + 1, row
            if budget.adaptive:
                _check_price(row, budget, filter_, journal.state)
    if latest is not None and not budget.adaptive:
        # Exact prices take a composition each: those on the way decide nothing.
        _check_price(latest, budget, filter_, journal.state)
    if digest is not None and digest not in {row.digest for row in rows}:
        raise TamperedLedgerError(
            f"No row of {dataset!r} has the digest {digest}: rows were taken away or rewritten. "
            f"{ADVICE}"
        )
    return charges


def _check_price(row: LedgerRow, budget: Allowance, filter_: Filter[Any], state: Any) -> None:
    with reading(row):
        noted = float(decoded(row)["spent"])
    spent = budget.for_relation(filter_.spent(state))
    if not noted >= spent * (1 - _VERSIONS_DIFFER):
        raise tampered(
            row, f"it notes ε = {exact(noted)} as spent, but its events cost {exact(spent)}"
        )
    if not filter_.admits(state):
        raise tampered(row, "it overdraws the budget")
