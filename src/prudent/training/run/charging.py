"""Charging a run to the budget of its data, kept in a ledger that other releases share."""

import warnings
from collections.abc import Sequence
from typing import Any

import dp_accounting as dp

from prudent.budget.charging import LedgerLike, charge_calibrated
from prudent.training.plan import Plan


def charge_run(
    ledger: LedgerLike, plan: Plan, name: str, *, delta: float | None, resumed: bool
) -> Sequence[Any]:
    """Charge a ledger for the steps of a plan that it was not yet charged for.

    The whole plan is charged at once: how many steps a run takes does not depend on the data, and a
    ledger that admits the first steps but not the last would leave an unfinished model. The run is
    recognised in the ledger by its random name, so a resumed run is charged once, wherever it was
    killed.

    Args:
        ledger: The ledger.
        plan: The plan, shortened to what its own budget covers.
        name: The name of the run, saved in its checkpoints.
        delta: The δ at which the run is priced, if one is given.
        resumed: Whether the run may have been charged before.

    Returns:
        The charges of the run.
    """
    label = f"training run {name}"
    charges = []
    if resumed and hasattr(ledger, "history"):
        charges = [charge for charge in ledger.history() if charge.label == label]
    due = plan.steps - sum(_steps(charge.event, plan) for charge in charges)
    if due > 0:
        charges.append(charge_calibrated(ledger, plan.event_after(due), label, delta=delta))
    return charges


def note_release(ledger: LedgerLike, charges: Sequence[Any]) -> None:
    """Note in the history of a ledger that the run was released. Costs nothing.

    A ledger that cannot be reached any more must not take the trained model with it: that is paid
    for, whatever the history says.
    """
    if not hasattr(ledger, "record_outcome"):
        return
    try:
        for charge in charges:
            if not charge.outcome:
                ledger.record_outcome(charge, "released")
    except Exception as error:
        warnings.warn(
            "The run is complete and paid for, but its outcome could not be noted in the ledger, "
            f"where it stays unknown: {error}",
            stacklevel=2,
        )


def _steps(event: dp.DpEvent, plan: Plan) -> int:
    """The number of steps of a plan that an event pays for; 0 if it is of another plan."""
    steps = event.events[-1] if plan.before is not None and _is_composed(event) else event
    count = getattr(steps, "count", 0)
    return count if count and event == plan.event_after(count) else 0


def _is_composed(event: dp.DpEvent) -> bool:
    return isinstance(event, dp.ComposedDpEvent) and bool(event.events)
