"""The lab's commands, which `prudent.cli` finds as plug-ins."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from prudent.budget.ledger import Ledger


@contextlib.contextmanager
def charged(location: str | None) -> "Iterator[Ledger | None]":
    """The ledger of a command, if it has one; a charge that overdraws it ends the command."""
    if location is None:
        yield None
        return
    from prudent.budget.ledger import Ledger, OverBudgetError
    from prudent.cli.answering import OVER_BUDGET
    from prudent.cli.errors import Fault, print_error

    try:
        with Ledger.open(location) as ledger:
            yield ledger
    except OverBudgetError as error:
        print_error(Fault(str(error), status=OVER_BUDGET))
        raise typer.Exit(OVER_BUDGET) from None
