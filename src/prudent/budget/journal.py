"""What the rows of a data set come to: the chain followed, and every charge priced."""

from collections.abc import Iterable
from typing import Any

import dp_accounting as dp

from prudent.accounting import serialisation
from prudent.budget.charges import is_outcome, read_outcome
from prudent.budget.filters import Filter
from prudent.budget.hash_chain import (
    BEFORE_THE_FIRST,
    fields_of,
    reading,
    row_after,
    tampered,
)
from prudent.budget.storage import Row, Store


class Journal:
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

    def follow(self, rows: Iterable[Row]) -> None:
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

    def next_row(self, **fields: Any) -> Row:
        """The row that may come next."""
        return row_after(self.last, dataset=self.dataset, **fields)
