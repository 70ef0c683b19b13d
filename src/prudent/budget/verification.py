"""Rows of a ledger read again from the first: hashes followed, every charge priced."""

from typing import Any

from prudent import _validate
from prudent._progress import track
from prudent._rounding import exact
from prudent.budget.allowance import Budget
from prudent.budget.filters import Filter
from prudent.budget.hash_chain import (
    ADVICE,
    TamperedLedgerError,
    decoded,
    reading,
    tampered,
)
from prudent.budget.journal import Journal
from prudent.budget.storage import Row

_VERSIONS_DIFFER = 0.01  # how much more an event may cost now than when it was noted


def verify(rows: list[Row], dataset: str, budget: Budget, digest: str | None) -> int:
    """The number of charges, if all rows are as they were written; see `Ledger.verify`.

    Raises:
        TamperedLedgerError: At the first row that is not.
    """
    if digest is not None:
        _validate.instance(str, "a text", digest=digest)
    filter_ = budget.filter()
    journal, charges, latest = Journal(dataset, filter_), 0, None
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


def _check_price(row: Row, budget: Budget, filter_: Filter[Any], state: Any) -> None:
    with reading(row):
        noted = float(decoded(row)["spent"])
    spent = budget.for_relation(filter_.spent(state))
    if not noted >= spent * (1 - _VERSIONS_DIFFER):
        raise tampered(
            row, f"it notes ε = {exact(noted)} as spent, but its events cost {exact(spent)}"
        )
    if not filter_.admits(state):
        raise tampered(row, "it overdraws the budget")
