"""A run in its folder: locked, restored, paid for before every portion of steps, and saved."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Self

import attrs
import torch

from prudent._files import held
from prudent._validate import ArgumentError
from prudent.training.plan import Plan
from prudent.training.run.checkpoint import (
    PORTIONS,
    charged,
    load_checkpoint,
    record_paid,
    save_checkpoint,
)
from prudent.training.run.training_run import TrainingRun


@attrs.define
class OpenedRun:
    """A run whose folder is locked until it is closed.

    Attributes:
        run: The run.
        plan: Its plan, shortened to what its budget covers.
        folder: Where it is saved; None: nowhere.
        step: Number of steps taken.
        paid: Number of steps paid for.
    """

    run: TrainingRun
    plan: Plan
    folder: Path | None
    step: int = 0
    paid: int = 0

    @classmethod
    @contextmanager
    def of(
        cls, run: TrainingRun, plan: Plan, folder: Path | None, *, resume: bool
    ) -> Iterator[Self]:
        """Open a run, with `resume` at its checkpoint in the folder, and close it at the end."""
        with ExitStack() as stack:
            stack.callback(run.close)
            first = run.processes.first
            if folder is not None:
                first(partial(folder.mkdir, parents=True, exist_ok=True))
                first(lambda: stack.enter_context(held(folder)))
            opened = cls(run, plan, folder)
            if resume:
                opened._go_on()
            elif folder is not None and first(partial(charged, folder)) is not None:
                raise ArgumentError(
                    "out",
                    "a folder without a run",
                    shown=f"{str(folder)!r}, whose record of what was paid would be overwritten",
                    hint="Use resume=True to continue that run, or choose another folder.",
                )
            if opened.step == 0:
                opened.save()  # a run killed before its first evaluation resumes with this noise
            yield opened

    def stops(self, every: int, marks: Collection[int]) -> list[int]:
        """The steps after which to evaluate: multiples, marks and the end."""
        return _between(self.step, self.plan.steps, every, marks)[1:]

    def take(self, stop: int) -> Iterator[int]:
        """Take the steps up to `stop`, each paid for before; yields their number after each."""
        portion = self.plan.steps if self.folder is None else -(-self.plan.steps // PORTIONS)
        for first, last in pairwise(_between(self.step, stop, portion)):
            if self.folder is not None and last > self.paid:
                self.paid = last
                pay = partial(record_paid, self.folder, self.plan, last)
                self.run.processes.first(partial(pay, renewals=self.run.renewals))
            for number in self.run.steps(first, last):
                self.step = number + 1
                yield self.step

    def save(self) -> None:
        """Write a checkpoint, if there is a folder."""
        if self.folder is not None:
            state = self.run.state(self.step)  # all processes take part; only one writes
            self.run.processes.first(partial(save_checkpoint, self.folder, state))

    def _go_on(self) -> None:
        """Restore the run in the folder, past the steps that must not be repeated."""
        folder, first = self.folder, self.run.processes.first
        if folder is None:
            raise ArgumentError("out", "the folder to resume from", got=None)
        state = first(partial(load_checkpoint, folder, torch.device("cpu")))
        known = first(partial(charged, folder))
        self.paid = 0 if known is None else known.steps
        if state is not None:
            self.run.check_own(state)
        if self.paid and state is None:
            raise ArgumentError(
                "out",
                "a folder with checkpoint.pt",
                shown=f"{str(folder)!r}, where steps were paid for but no checkpoint is left",
                hint="Without it, charged steps would be repeated with new noise. Restore the "
                "checkpoint, or choose another folder.",
            )
        if self.paid > self.plan.steps:
            raise ArgumentError(
                "budget",
                f"to cover the {self.paid} steps already charged in {str(folder)!r}",
                shown=f"one for {self.plan.steps}",
                hint="Use the original budget, or a larger one.",
            )
        taken = 0 if state is None else int(state["step"])
        if known is not None and (
            known.event != self.plan.event_after(self.paid) or self.paid < taken
        ):
            raise ArgumentError(
                "out",
                "with what this run paid for",
                shown=f"{str(folder)!r}, whose paid.json does not match its checkpoint",
                hint="Restore the file from a copy, or start again in another folder.",
            )
        if state is not None:
            self.step = self.run.restore(state, known)
        if self.step > taken:
            self.save()  # with the new key, before its first step


def _between(start: int, end: int, every: int, marks: Collection[int] = ()) -> list[int]:
    """The start, and the multiples and marks after it up to the end."""
    if start >= end:
        return [start]
    multiples = range(start + every - start % every, end, every)
    return sorted({start, end, *multiples, *(mark for mark in marks if start < mark < end)})
