"""The price of a release: known before anything is paid, charged before any record is read."""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import attrs

from prudent._rounding import nearest, rounded_up
from prudent.accounting.relations import ADD_REMOVE
from prudent.budget import LedgerLike, check_ledger
from prudent.receipts.making import ReceiptFile, ReceiptTarget, answer_digest, request_digest
from prudent.release.joins import names_of
from prudent.release.outcome import Refused

AnyLedger: TypeAlias = LedgerLike | str | os.PathLike[str]
"""A ledger to charge, or its location."""


@attrs.frozen(kw_only=True)
class Preview:
    """The public facts of a release, before it: price, mechanism, noise.

    Attributes:
        statistic: The name of the statistic, such as "median".
        mechanism: The name of the mechanism; see `Released.mechanism`.
        epsilon: ε that would be charged.
        delta: δ that would be charged; 0 for a pure mechanism.
        event: The privacy event of the release, for any accountant.
        proposal: τ, in the unit of the data; None if there is none.
        noise_scale: Standard deviation of the noise, in the unit of the data; None if no noise is
            added to the value.
        half_width: Half the width of the 95 % interval; None if it depends on the data.
        threshold: The number of records that the noisy margin must exceed; None without a test.
        rank_error: The number of records by which the rank of the answer may be off, with
            probability 95 %; None if the value is not chosen by rank.
        notes: What public facts already decide, one sentence each.
        parts: Of a table: the price of each of its statistics.
        queries: What the engine will be asked, where that was asked for: SQL that depends on no
            record, with made-up numbers in place of those that earlier answers give.
    """

    statistic: str
    mechanism: str
    epsilon: float
    delta: float = 0.0
    event: Any = attrs.field(repr=False)
    proposal: float | None = None
    noise_scale: float | None = None
    half_width: float | None = None
    threshold: int | None = None
    rank_error: int | None = None
    notes: tuple[str, ...] = ()
    parts: "tuple[Preview, ...]" = ()
    queries: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The facts in words, one per line."""
        price = "" if not self.delta else f", δ = {rounded_up(self.delta, 6)}"
        epsilon = rounded_up(self.epsilon, 6)
        lines = [f"{self.statistic} by {self.mechanism}: ε = {epsilon}{price}"]
        if self.noise_scale is not None:
            lines.append(f"noise of standard deviation {nearest(self.noise_scale)}")
        if self.half_width is not None:
            lines.append(f"95 % interval: the answer ± {rounded_up(self.half_width)}")
        if self.rank_error is not None:
            lines.append(
                f"rank: within {self.rank_error:,} records of the exact one, with probability 95 %"
            )
        if self.threshold is not None:
            lines.append(
                f"released if the noisy margin exceeds {self.threshold:,} records, else refused"
            )
        if self.queries:
            lines.append("the engine is asked, with made-up numbers:")
            lines += [f"  {line}" for query in self.queries for line in query.splitlines()]
        lines += [f"  {line}" for part in self.parts for line in part.lines()]
        return [*lines, *self.notes]


def _shown(groups: Any) -> Any:
    """Public groups, for the history: a list for each column as one line."""
    if isinstance(groups, Mapping):
        return tuple(f"{name}: {', '.join(map(str, each))}" for name, each in groups.items())
    return groups if groups is None or isinstance(groups, str) else tuple(map(str, groups))


@attrs.frozen(eq=False)
class ChargedRelease:
    """A release that is paid for: what came of it is noted in the ledger and in the receipt."""

    preview: Preview  # what was charged
    asked: Mapping[str, Any]  # the public facts of what was asked
    ledger: Any = None  # the ledger that was charged; None: no budget was
    charge: Any = None  # what it noted; None if it keeps no history
    receipt: ReceiptFile | None = None  # where the receipt goes; None: there is none
    unit: str | None = None  # the column of privacy units
    kind: str = "release"  # of the receipt

    def note(self, outcomes: Sequence[Any], released: Any, **facts: Any) -> None:
        """Note the outcomes of all groups, and write the receipt."""
        counts = Counter(
            "refused" if isinstance(each, Refused) else "released" for each in outcomes
        )
        if self.charge is not None:
            from prudent.budget.ledger import LedgerError  # not needed without a budget

            told = next(iter(counts)) if len(counts) == 1 else counts
            bound = {}
            if self.receipt is not None and hasattr(self.ledger, "proof"):
                bound = {"answer": answer_digest(released)}
            with contextlib.suppress(LedgerError):  # the answer is paid for, whatever it says
                self.ledger.record_outcome(self.charge, told, **bound)
        if self.receipt is not None:
            from prudent.receipts.making import receipt_of

            preview = self.preview
            own = {"event": preview.event, "epsilon": preview.epsilon, "delta": preview.delta}
            own |= {"ledger": self.ledger, "charge": self.charge, "unit": self.unit}
            own |= {"kind": self.kind, "asked": self.asked, "released": released}
            self.receipt.write(partial(receipt_of, **(own | facts)))


@contextlib.contextmanager
def opened_ledger(ledger: AnyLedger | None) -> Iterator[LedgerLike | None]:
    """The ledger to charge; one that is given by its location is opened for this release alone."""
    if not isinstance(ledger, str | os.PathLike):
        yield ledger
        return
    from prudent.budget.ledger import Ledger  # not needed without a budget

    with Ledger(ledger) as opened:
        yield opened


def charge(
    ledger: LedgerLike | None,
    preview: Preview,
    source: Any = None,
    column: str | None = None,
    *,
    connect: str | None = None,
    groups: Any = None,
    unit: str | None = None,
    receipt: ReceiptTarget | None = None,
    kind: str = "release",
    more: Mapping[str, Any] | None = None,
) -> ChargedRelease:
    """Charge the ledger, if one is given; an exception it raises must stop the release."""
    place = ReceiptFile.at(receipt)  # it can be written, or nothing is charged
    asked = {  # all of it is public
        "statistic": preview.statistic,
        "column": column,
        "mechanism": preview.mechanism,
        "proposal": preview.proposal,
        "groups": _shown(groups),
        "unit": unit,
        "epsilon": preview.epsilon,
        "data": " + ".join(names_of(source, connect)) or None,
    }
    whole = {**asked, **(more or {})}
    charged = None
    if ledger is not None:
        check_ledger(ledger, ADD_REMOVE, who="the release")
        label = preview.statistic if column is None else f"{preview.statistic} of {column}"
        keeps_history = hasattr(ledger, "record_outcome")
        details: dict[str, Any] = {"details": asked} if keeps_history else {}
        if hasattr(ledger, "proof"):
            request = request_digest(kind, whole, unit, ADD_REMOVE)
            details = {"details": asked | {"request": request}}
        noted = ledger.charge(preview.event, label, delta=preview.delta, **details)
        charged = noted if keeps_history else None
    return ChargedRelease(preview, whole, ledger, charged, place, unit, kind)
