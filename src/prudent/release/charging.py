"""Charging a ledger before the data are read, and noting afterwards what came of it."""

import contextlib
import os
import types
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prudent import _validate
from prudent._redaction import redacted
from prudent.budget.charging import LedgerLike
from prudent.release.outcome import Outcome, Refused
from prudent.release.preview import Preview


def charge(
    ledger: LedgerLike | None,
    preview: Preview,
    data: Any = None,
    column: str | None = None,
    options: Mapping[str, Any] = types.MappingProxyType({}),
) -> Callable[[Iterable[Outcome]], None]:
    """Charge the ledger, if one is given; an exception it raises must stop the release.

    Args:
        ledger: The ledger; None: nobody keeps count.
        preview: What will be released.
        data: The data, whose name the ledger compares with that of its own.
        column: The name of the column.
        options: The options of the table: groups, unit and so on, for the ledger's history.

    Returns:
        A function that notes the outcomes in the ledger's history.
    """
    if ledger is None:
        return lambda outcomes: None
    if not hasattr(ledger, "charge"):
        raise _validate.ArgumentError(
            "ledger",
            "an open prudent.Ledger",
            shown=redacted(repr(ledger), ledger),
            hint="Open it with prudent.Ledger(location).",
        )
    label = preview.statistic if column is None else f"{preview.statistic} of {column}"
    if not hasattr(ledger, "record_outcome"):
        ledger.charge(preview.event, label, delta=preview.delta)
        return lambda outcomes: None
    asked = _asked(preview, data, column, options)
    keeper: Any = ledger  # one that keeps a history takes what is asked as well
    charged = keeper.charge(preview.event, label, delta=preview.delta, details=asked)

    def note(outcomes: Iterable[Outcome]) -> None:
        from prudent.budget.ledger import LedgerError

        counts = Counter(
            "refused" if isinstance(each, Refused) else "released" for each in outcomes
        )
        with contextlib.suppress(LedgerError):  # the answer is paid for, whatever the history says
            keeper.record_outcome(charged, next(iter(counts)) if len(counts) == 1 else counts)

    return note


def _asked(
    preview: Preview, data: Any, column: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """What is asked, for the history of a ledger; all of it is public."""
    source = options.get("table") if options.get("connect") else data
    groups = options.get("groups")
    return {
        "statistic": preview.statistic,
        "column": column,
        "mechanism": preview.mechanism,
        "proposal": preview.proposal,
        "groups": groups if groups is None or isinstance(groups, str) else tuple(map(str, groups)),
        "unit": options.get("unit"),
        "epsilon": preview.epsilon,
        "data": str(source) if isinstance(source, str | os.PathLike) else None,
    }
