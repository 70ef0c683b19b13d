"""Charging a run to the budget of its data, kept in a ledger that other releases share."""

import hashlib
import secrets
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import dp_accounting as dp
import torch
from torch import Tensor

from prudent import _files
from prudent.budget import LedgerLike, charge_calibrated, check_ledger
from prudent.receipts.making import ReceiptFile, answer_digest, receipt_of, request_digest
from prudent.receipts.receipt import Receipt
from prudent.training.plan import Plan


@attrs.define
class RunCharge:
    """The charge of one training run, made before its first record is used.

    Every way of training pays here: `fit`, `make_private`, and the adapters of Hugging Face,
    Lightning and Flower. The whole plan is charged at once: how many steps a run takes does not
    depend on the data, and a ledger that admits the first steps but not the last would leave an
    unfinished model. The run is recognised in the ledger by its random name, so a resumed run is
    charged once, wherever it was killed.
    """

    ledger: LedgerLike | None  # the ledger; None: nothing is charged
    plan: Plan  # the plan, shortened to what its own budget covers
    delta: float | None = None  # the δ at which the run is priced; None: that of the ledger
    # A random public name of the run, which its checkpoints hold.
    name: str = attrs.field(factory=lambda: secrets.token_hex(8))
    resumed: bool = False  # whether the run may have been charged before
    taken: int = 0  # number of steps taken so far, for people to read
    protected: str = "record"  # what neighbours differ in: a record, or a person
    kind: str = "training"  # of the receipt
    # What was charged, in words, once the run is paid for, also if there is no ledger to charge.
    charged: str = attrs.field(default="", init=False)
    _made: dict[str, list[Any]] = attrs.field(factory=dict, init=False)
    _noted: list[Any] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        if self.ledger is not None:
            check_ledger(
                self.ledger,
                self.plan.relation,
                who="the plan",
                hint="Give the plan a public expected_batch and a public sampling_rate",
            )

    def priced(self) -> str:
        """What the run costs and how far it is, in words; ε is that of the whole plan."""
        return self.plan.priced(self.delta, self.taken, self.protected)

    def resume(self, name: str) -> None:
        """Go on with the run of this name, which may have been charged."""
        self.name, self.resumed = name, True

    def pay(self) -> str:
        """Charge the steps of the plan that the ledger was not yet charged for, once.

        If the ledger refuses, its error is raised and nothing is charged. A run that is resumed
        says what was charged. Returns `charged`.
        """
        if self.ledger is None:
            self.charged = "No ledger was charged"
        elif self.name not in self._made:
            label = f"training run {self.name}"
            charges = []
            if self.resumed and hasattr(self.ledger, "history"):
                charges = [charge for charge in self.ledger.history() if charge.label == label]
            due = self.plan.steps - sum(_steps(charge.event, self.plan) for charge in charges)
            what = f"for {due:,} more steps" if charges else "for the whole plan"
            charged = f"Its ledger was charged {what}" if due > 0 else "Nothing more was charged"
            if due > 0:
                event = self.plan.event_after(due)
                request = request_digest(self.kind, self._asked, self.protected, self.plan.relation)
                paying: Any = {"delta": self.delta, "request": request}
                self.charged = f"Its ledger may have been charged {what}"  # if this is interrupted
                try:
                    charges.append(charge_calibrated(self.ledger, event, label, **paying))
                except Exception:
                    self.charged = ""
                    raise
            self._made[self.name] = self._noted = charges
            self.charged = charged
            if self.resumed:
                done = f"The run goes on after {self.taken:,} of {self.plan.steps:,} steps"
                print(f"{done}. {charged}.", file=sys.stderr)
        return self.charged

    @contextmanager
    def interruptions(self, again: str) -> Iterator[None]:
        """Add to an interruption (Ctrl-C) what it leaves behind, and how to go on."""
        try:
            yield
        except KeyboardInterrupt as error:
            after = f"after {self.taken:,} steps" if self.taken else "before its first step"
            charged = self.charged or f"Nothing {'more ' * self.resumed}was charged"
            goes_on = f"; {again}" if self.charged or self.resumed else ""
            error.add_note(f"The run was interrupted {after}. {charged}{goes_on}.")
            raise

    @property
    def binds_answers(self) -> bool:
        """Whether the ledger notes the digest of what a receipt holds."""
        return hasattr(self.ledger, "proof")

    def note_release(self, answer: str | None = None) -> None:
        """Note in the ledger that the run was released, with the digest of what a receipt holds.

        A ledger that cannot be reached any more must not take the trained model with it: that is
        paid for, whatever the history says.
        """
        charges = self._made.get(self.name)
        record = getattr(self.ledger, "record_outcome", None)
        if not charges or record is None:
            return
        bound = {"answer": answer} if answer is not None and self.binds_answers else {}
        self._made[self.name] = []
        try:
            for charge in charges:
                if not charge.outcome:
                    record(charge, "released", **bound)
        except Exception as error:
            warnings.warn(
                "The run is complete and paid for, but its outcome could not be noted in the "
                f"ledger, where it stays unknown: {error}",
                stacklevel=2,
            )

    @property
    def _asked(self) -> dict[str, Any]:
        unit = None if self.protected == "record" else self.protected
        return {"plan": self.plan, "run": self.name, "unit": unit}

    def write_receipt(
        self,
        file: ReceiptFile,
        state: Callable[[], Mapping[str, Any]],
        *,
        files: Iterable[Path] = (),
        ended: bool = True,
        **facts: Any,
    ) -> None:
        """Write the receipt of a run: parameters, facts, digests of those of the files there are.

        If the run has `ended`, the ledger notes the digest of all of it. What `state` raises takes
        no model with it; see `ReceiptFile.write`.
        """
        predictable, plan = facts.pop("predictable"), self.plan
        delta = USUAL_DELTA if self.delta is None else self.delta

        def make() -> Receipt:
            ReceiptFile.at(file)  # it may have become another file meanwhile
            digests = {each.name: _files.sha256(each) for each in files if each.is_file()}
            released = {"parameters": digest_of_parameters(state()), "files": digests, **facts}
            if ended:
                self.note_release(answer_digest(released))
            only = self._noted[0] if len(self._noted) == 1 else None  # else no row has all of it
            return receipt_of(
                self.kind,
                asked=self._asked,
                event=plan.event,
                epsilon=plan.epsilon(delta),
                delta=delta,
                relation=plan.relation,
                released=released,
                ledger=self.ledger,
                charge=only if only is not None and only.event == plan.event else None,
                unit=self.protected,
                predictable=predictable,
                files=digests,
            )

        file.write(make)
        if ended:
            self.note_release()  # if no receipt could be made


def digest_of_parameters(state: Mapping[str, Any]) -> str:
    """SHA-256 of the parameters of a model: names, types, shapes and bytes, sorted by name."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        if isinstance(value, Tensor):
            plain = value.detach().cpu().contiguous()
            digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
            digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


USUAL_DELTA = 1e-6
"""The δ of the receipt of a run for which none was stated."""


def _steps(event: dp.DpEvent, plan: Plan) -> int:
    """The number of steps of a plan that an event pays for; 0 if it is of another plan."""
    return next((n for n in range(plan.steps, 0, -1) if plan.event_after(n) == event), 0)
