"""Budgets: ledgers, the filters that decide whether a charge fits, and their storage.

Here is what a release, a training run or a search asks of a ledger before it begins.
"""

from typing import Any, Protocol

import dp_accounting as dp

from prudent._validate import ArgumentError, redacted
from prudent.accounting.relations import Relation


class LedgerLike(Protocol):
    """A budget that is charged before any data are read, such as `prudent.Ledger`."""

    def charge(self, event: dp.DpEvent, label: str = "", *, delta: float | None = None) -> Any:
        """Commit the charge, or raise and commit nothing."""
        ...


def check_ledger(ledger: LedgerLike, relation: Relation, *, who: str, hint: str = "") -> None:
    """Raise an error unless a ledger can be charged for neighbours by `relation`. Charges nothing.

    Args:
        ledger: The ledger.
        relation: The neighbouring relation of what is going to be charged.
        who: What has these neighbours, such as "the plan".
        hint: What else than another ledger would help.
    """
    if not hasattr(ledger, "charge"):
        raise ArgumentError(
            "ledger",
            "an open prudent.Ledger",
            shown=redacted(repr(ledger), ledger),
            hint="Open it with prudent.Ledger(location).",
        )
    theirs = getattr(ledger, "relation", None)
    if relation.size_is_public and theirs is not None and not theirs.size_is_public:
        other = "create the ledger with relation=prudent.accounting.ZERO_OUT."
        raise ArgumentError(
            "ledger",
            "with a relation under which the number of records is public",
            shown=f"neighbours by {theirs}",
            why=f"{who} has neighbours by {relation}",
            hint=f"{hint}, or {other}" if hint else other[0].upper() + other[1:],
        )


def charge_calibrated(
    ledger: LedgerLike,
    event: dp.DpEvent,
    label: str,
    *,
    delta: float | None,
    request: str | None = None,
) -> Any:
    """Charge an event that was calibrated for a δ, of which the ledger is told if that helps.

    Noise that was solved for exactly (ε, δ) can cost a hair more than ε at that δ, and still fit
    into the budget at the budget's own δ.
    """
    fits = getattr(ledger, "fits", None)
    if delta is not None and fits is not None and not fits(event, delta=delta) and fits(event):
        delta = None
    details = {"details": {"request": request}} if hasattr(ledger, "proof") else {}
    return ledger.charge(event, label, delta=delta, **details)
