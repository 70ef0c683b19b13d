"""A run in its folder: locked, restored, paid for before every portion of steps, and saved."""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Self

import attrs
import torch
from scipy import stats

from prudent._files import held
from prudent._rounding import exact, nearest, rounded_up
from prudent._validate import ArgumentError
from prudent._warning import warn
from prudent.training.aggregation import AdaptiveTrim, FixedTrim, ProposeTestRelease
from prudent.training.plan import Plan
from prudent.training.run.charging import RunCharge
from prudent.training.run.checkpoint import (
    Paid,
    PaidSteps,
    ReleaseDigests,
    load_checkpoint,
    save_checkpoint,
)
from prudent.training.run.execution import Reporting
from prudent.training.run.metrics import BestModel, Metrics, Recorder
from prudent.training.run.training_run import TrainingRun

_FAIR = 0.2
"""A test that passes this often would be worth its price."""

_RARE = 0.05
_SURPRISE = 1e-3
_EARLY_LOOKS = frozenset({50, 200, 1000})
"""Steps after which to look even if no evaluation is due."""

_ADVICE = (
    'The section "Choosing clip, propose and trim" of the training guide says how to choose them '
    "from public data."
)


@attrs.define
class OpenedRun:
    """A run whose folder is locked until it is closed. To iterate over its metrics is to train."""

    run: TrainingRun
    charge: RunCharge  # what is paid for it
    reporting: Reporting  # what it evaluates, shows and writes
    paid: PaidSteps  # the record of the steps that are paid for, in the folder
    watch: "PassRateMonitor"  # warns of a test that hardly ever passes, in the first process
    step: int = 0  # number of steps taken
    # Follows what decides when the run stops and which model it returns.
    best: BestModel | None = None
    is_charged: bool = False  # whether the ledger, if there is one, was charged
    resumed: Paid | None = None  # what the run had paid for when it was resumed

    @classmethod
    @contextmanager
    def of(cls, run: TrainingRun, charge: RunCharge, reporting: Reporting) -> Iterator[Self]:
        """Open a run, resume it if asked to, charge its ledger, and close it at the end."""
        first, folder = run.processes.first, reporting.out
        paid = PaidSteps(run.plan, run.processes)
        watch = PassRateMonitor(run.plan, run.step.expected_batch, said=run.processes.rank != 0)
        given = reporting.monitor, reporting.patience
        best = BestModel.of(run.plan, run.model, *given, keeps=reporting.keep_best)
        opened = cls(run, charge, reporting, paid, watch, best=best)
        with opened._interruptions(), ExitStack() as stack:
            stack.callback(run.close)
            if folder is not None:
                first(partial(folder.mkdir, parents=True, exist_ok=True))
                first(lambda: stack.enter_context(held(folder)))
                run.prove(ReleaseDigests(folder, run.processes))
            if reporting.resume:
                opened._go_on()
            elif folder is not None and paid.resume(folder) is not None:
                raise ArgumentError(
                    "out",
                    "a folder without a run",
                    shown=f"{str(folder)!r}, whose record of what was paid would be overwritten",
                    hint="Use resume=True to continue that run, or choose another folder.",
                )
            if opened.step == 0:
                opened._save()  # a run killed before its first evaluation resumes with this noise
            if opened.step < run.plan.steps:
                opened._rehearse()
                opened.watch.before()
            charge.name, charge.resumed = run.continuity.name, reporting.resume
            first(charge.pay)
            opened.is_charged = True
            yield opened
            if reporting.receipt_file is None:  # else with the digest of what the receipt holds
                first(charge.note_release)
            if run.average is not None:
                run.average.apply_average()
            if best is not None:
                best.restore_best(run.model)

    @contextmanager
    def _interruptions(self) -> Iterator[None]:
        """Add to an interruption what it leaves behind."""
        try:
            yield
        except KeyboardInterrupt as error:
            further = "without a folder (out) it cannot be resumed"
            if self.reporting.out is not None:
                further = "resume=True goes on from the last checkpoint, without another charge"
            charged = "charged for the whole plan" if self.charge.ledger else "not charged"
            error.add_note(
                f"The run was interrupted after {self.step} steps. Its ledger was {charged}; "
                f"{further}."
                if self.is_charged
                else "The run was interrupted before its first step. Nothing was charged."
            )
            raise

    def __iter__(self) -> Iterator[Metrics]:
        """Take the steps that are left; yields the metrics of each evaluation."""
        run, reporting, steps = self.run, self.reporting, self.run.plan.steps
        speaks = run.processes.rank == 0
        with Recorder(
            reporting.out if speaks else None,
            self.step,
            steps,
            progress=reporting.shows_progress and speaks,
            tensorboard=reporting.tensorboard and speaks,
        ) as recorder:
            every = max(1, steps // 10) if (n := reporting.evaluate_every) is None else n
            held_out = run.plan.held_out
            due = [] if held_out is None else held_out.steps_due(steps)
            for stop in _between(self.step, steps, every, {*reporting.evaluate_at, *due})[1:]:
                if self.best is not None and self.best.is_over:
                    return
                if self.step > stop:  # steps were passed over
                    continue
                for step in self._take(stop):
                    recorder.advance()
                    if step in _EARLY_LOOKS or step == stop:
                        self.watch.after(step, run.passes)
                if run.last is None or self.step > stop:
                    continue
                shown, private = self._evaluated(), reporting.private_diagnostics
                shown |= run.tested_on_held_out()
                metrics = run.metrics(stop, shown, self.charge.delta, private=private)
                recorder.record(metrics)
                self._follow(metrics)
                self._save()
                if speaks:
                    self._call_back(metrics)
                yield metrics

    def _take(self, stop: int) -> Iterator[int]:
        """Take the steps up to `stop`, each paid for before; yields their number after each."""
        while self.step < stop:
            self.paid.pay(self.step, self.run.continuity.renewals, stop)
            if self.run.take(self.step):
                self.step += 1
                yield self.step
            else:
                self.step = self.run.pass_over(self.step, self.resumed)
                self._save()  # with the new key, before its first step

    def _rehearse(self) -> None:
        """Try step and evaluation before anything is charged; the run goes on as without it."""
        form = self.run.records.read(torch.empty(0, dtype=torch.int64))
        self.run.step.rehearse(form)
        device = self.run.execution.device
        rehearse = getattr(self.reporting.evaluate, "rehearse", None)
        if self.run.held_out is not None:
            self.run.held_out.rehearse(self.run.step)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            if rehearse is None:
                shown = self._evaluated()
                if self.best is not None:
                    self.best.check(shown)
                return
            with self.run.shown() as model:
                rehearse(model)

    def _evaluated(self) -> dict[str, float]:
        """The results of an evaluation as plain floats, which can be written to a file."""
        if self.reporting.evaluate is None:
            return {}
        with self.run.shown() as model:
            results = self.reporting.evaluate(model)
        if not isinstance(results, Mapping):
            raise ArgumentError(
                "evaluate", "to return a mapping from names to numbers", got=results
            )
        return {name: float(value) for name, value in results.items()}

    def _call_back(self, metrics: Metrics) -> None:
        """Call every callback with the model and the public part of the metrics."""
        public = attrs.evolve(metrics, private=None)
        for callback in self.reporting.callbacks:
            with self.run.shown() as model:
                callback(model, public)

    def _follow(self, metrics: Metrics) -> None:
        """Compare the model with the best one, by the value that the first process has."""
        best = self.best
        if best is not None:
            value = self.run.processes.first(lambda: metrics.evaluation.get(best.monitor))
            with self.run.shown() as model:
                best.follow(metrics.step, value, model)

    def _save(self) -> None:
        """Write a checkpoint, if there is a folder."""
        if self.reporting.out is not None:
            state = self.run.state(self.step)  # all processes take part; only one writes
            state["best"] = None if self.best is None else self.best.state()
            self.run.processes.first(partial(save_checkpoint, self.reporting.out, state))
            if self.run.digests is not None:
                self.run.digests.clear()

    def _go_on(self) -> None:
        """Restore the run in the folder, past the steps that must not be repeated."""
        folder, first, plan = self.reporting.out, self.run.processes.first, self.run.plan
        if folder is None:
            raise ArgumentError("out", "the folder to resume from", got=None)
        state = first(partial(load_checkpoint, folder, torch.device("cpu")))
        known, paid = self.paid.resume(folder), self.paid.steps
        if state is not None:
            self.run.check_own(state, may_be_longer=self.charge.ledger is not None)
        if paid and state is None:
            raise ArgumentError(
                "out",
                "a folder with checkpoint.pt",
                shown=f"{str(folder)!r}, where steps were paid for but no checkpoint is left",
                hint="Without it, charged steps would be repeated with new noise. Restore the "
                "checkpoint, or choose another folder.",
            )
        taken = 0 if state is None else int(state["step"])
        if known is not None and (
            known.event != plan.event_after(paid) or not taken <= paid <= plan.steps
        ):
            raise ArgumentError(
                "out",
                "with what this run paid for",
                shown=f"{str(folder)!r}, whose paid.json does not match its checkpoint",
                hint="Restore the file from a copy, or start again in another folder.",
            )
        if state is not None:
            if self.run.digests is not None:
                self.run.digests.resume()
            self.resumed = known
            self.step = self.run.restore(state, known)
            if self.best is not None:
                self.best.restore(state["best"])
        if self.step > taken:
            self._save()  # with the new key, before its first step


def _between(start: int, end: int, every: int, marks: Collection[int] = ()) -> list[int]:
    """The start, and the multiples and marks after it up to the end."""
    if start >= end:
        return [start]
    multiples = range(start + every - start % every, end, every)
    return sorted({start, end, *multiples, *(mark for mark in marks if start < mark < end)})


@attrs.define
class PassRateMonitor:
    """Says once, early, that the test of a plan hardly ever passes, and what to change.

    A run whose test fails pays for the test and gets what DP-SGD gives for less. Branches are
    released, so the messages reveal nothing else.
    """

    plan: Plan
    expected_batch: float  # the public batch size
    said: bool = False  # whether it was said already

    def before(self) -> None:
        """Warn if no data could pass the test often. Nothing is charged yet."""
        rule = self.plan.aggregation
        if self.said or not isinstance(rule, ProposeTestRelease):
            return
        most = self._most(rule)
        chance = rule.test.tail(rule.threshold - most)
        if chance < _RARE:
            self._say(
                f"The test hardly ever passes, whatever the data: the noisy margin must exceed "
                f"{nearest(rule.threshold, 3)} records, and the margin is at most {most}, the "
                f"largest number of trimmed gradients in batches of {exact(self.expected_batch)}. "
                f"It passes with probability at most {rounded_up(chance, 1)}. Use a test of a "
                "smaller scale, a larger batch or a larger failure; prudent.Sum costs less than a "
                "test that fails. "
            )

    def after(self, steps: int, passes: float) -> None:
        """Warn if the test passed in too few of the steps so far."""
        rule = self.plan.aggregation
        if self.said or not isinstance(rule, ProposeTestRelease) or passes > _RARE * steps:
            return
        if stats.binom.cdf(passes, steps, _FAIR) < _SURPRISE:
            allowed = max(0, self._most(rule) - math.ceil(rule.threshold))
            self._say(
                f"The test passed in {passes:.0f} of the first {steps} steps; all others were "
                f"released with the full noise, which prudent.Sum does for less. A test passes "
                f"when fewer than about {allowed} of {self.expected_batch:g} gradients are longer "
                f"than propose * clip = {rule.proposal:g}. Raise clip or propose, allow a larger "
                "trim, or use a test of a smaller scale. "
            )

    def _most(self, rule: ProposeTestRelease) -> int:
        """The largest number of gradients that the plan ever trims."""
        trim = rule.trim
        share = 1.0
        if isinstance(trim, AdaptiveTrim):
            share = trim.most
        elif isinstance(trim, FixedTrim):
            share = trim.share
        return math.floor(share * self.expected_batch)

    def _say(self, sentence: str) -> None:
        self.said = True
        warn(sentence + _ADVICE)
