"""One run of a plan: prepared, opened in its folder, stepped, saved and resumed."""

import functools
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Self, cast

import attrs
import torch
from torch import Tensor, nn

from prudent import _validate
from prudent._files import held
from prudent._fingerprint import fingerprint
from prudent._validate import ArgumentError
from prudent._warning import warn_of_delta
from prudent.accounting.serialisation import to_json
from prudent.budget import LedgerLike
from prudent.records.containers import declared_form
from prudent.records.people import Unit
from prudent.records.reader import Collate
from prudent.training.aggregation import Mean, ProposeTestRelease
from prudent.training.captured import Captured, place
from prudent.training.chunk import Chunk, Corrupt, Corruption, hook_of, within_memory
from prudent.training.gradients.engine import Loss, modes_kept
from prudent.training.keystream import Purpose
from prudent.training.parallel import (
    has_shards,
    load_model,
    load_optimizer,
    local,
    reshard,
    unwrapped,
    whole_state,
)
from prudent.training.plan import Plan
from prudent.training.run.charging import RunCharge
from prudent.training.run.checkpoint import (
    RESTORE,
    ReleaseDigests,
    ResumeState,
    load_checkpoint,
    machine,
    save_checkpoint,
    shared_key,
    unproved,
)
from prudent.training.run.execution import (
    Average,
    Execution,
    Reporting,
    Scheduler,
    optimizer_of,
    restore_schedule,
    scheduler_of,
)
from prudent.training.run.metrics import (
    BestModel,
    Counters,
    Metrics,
    Recorder,
    warn_if_no_test_passes,
)
from prudent.training.run.reading import HeldOutRecords, RunRecords, check_same_records
from prudent.training.sampling import Batch, PoissonSampler
from prudent.training.step import Step, StepOutcome

_CAPTURABLE = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


class OtherReleaseError(Exception):
    """A repeated step would release something else than before. Nothing was released."""


class Run:
    """A training run. To iterate over its metrics, once it is opened, is to train.

    The arguments are those of `fit`; `options` are those of the optimizer.
    """

    def __init__(
        self,
        plan: Plan,
        model: nn.Module,
        loss: Loss,
        train_set: Any,
        *,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
        options: dict[str, Any],
        execution: Execution | None = None,
        corrupt: Corrupt | Corruption | None = None,
        average: float | None = None,
        collate_fn: Collate | None = None,
        example: Any = None,
        scheduler: Scheduler | None = None,
        unit: Unit | None = None,
        held_out_set: Any = None,
        held_out_unit: Any = None,
        reporting: Reporting | None = None,
        delta: float | None = None,
        ledger: LedgerLike | None = None,
    ) -> None:
        _validate.instance(Plan, "a Plan", plan=plan)
        _validate.instance(nn.Module, "a torch module", model=model)
        _validate.function(loss=loss)
        if corrupt is not None and not isinstance(corrupt, Corruption):
            _validate.function(corrupt=corrupt)
        execution = Execution() if execution is None else execution
        _validate.instance(Execution, "an Execution", execution=execution)
        reporting = Reporting() if reporting is None else reporting
        _validate.instance(Reporting, "a Reporting", reporting=reporting)
        execution, processes = execution.joined()
        device = execution.device
        model = unwrapped(model, processes)
        if not has_shards(model):
            model.to(device)
        records = RunRecords(train_set, execution, processes, collate_fn, example, unit)
        processes.check_same(plan=repr(plan))
        check_same_records(processes, "train_set", records.count, records.fingerprint)
        key = shared_key(execution.key, processes)
        # Records on the device let the whole update of one process be captured.
        whole = records.reader is None and processes.count == 1
        step = Step(
            plan,
            model,
            loss,
            expected_batch=plan.sampling_rate * records.count,
            engine=execution.engine_of(model, loss, records.units.slots),
            corrupt=hook_of(corrupt, records.count, device),
            key=key,
            cuda_graph=False if whole or execution.recompute else execution.cuda_graph,
            processes=processes,
        )
        warn_of_delta(delta, round(step.expected_batch / plan.sampling_rate))  # both are public
        if example is None and (form := declared_form(train_set)) is not None:
            example = tuple(form)  # of held-out items as well
        held_out = HeldOutRecords.of(
            plan,
            held_out_set,
            loss,
            trained=records.units,
            ids=held_out_unit,
            collate_fn=collate_fn,
            example=example,
            batch=execution.physical_batch,
            autocast=step.engine.autocast,
        )
        if held_out is not None:
            check_same_records(processes, "held_out_set", len(held_out.members), held_out.data)
        trainer = optimizer_of(model, optimizer, options)
        sampler = PoissonSampler(
            records.count,
            plan.turn_rate,
            physical_batch=execution.physical_batch,
            key=key,
            device=device if records.reader is None else "cpu",  # items are read on the host
            processes=processes,
            num_bands=plan.parts,
            allocates=plan.allocates,
        )

        @functools.cache
        def identity() -> dict[str, str]:
            known = partial(fingerprint, restored=model)
            return {
                "records": records.fingerprint() + ("" if held_out is None else held_out.data()),
                "loss": known(loss, collate_fn, example, records.units.column, corrupt),
                "model": known(model),
                "optimizer": known(optimizer, options, scheduler),
                # The averages are what is evaluated on held-out records.
                "execution": repr((execution.computation, sampler.physical_batch, average)),
                "processes": str(processes.count),
                "machine": machine(device),
            }

        self.plan, self.model, self.processes = plan, model, processes
        self.execution, self.reporting = execution, reporting
        self.records, self.held_out = records, held_out
        self.sampler, self.step = sampler, step
        self.optimizer, self.scheduler = trainer, scheduler_of(scheduler, trainer)
        self.average = None if average is None else Average(model, average)
        self.best = BestModel(
            plan, model, reporting.monitor, reporting.patience, keeps=reporting.keep_best
        )
        protected = records.units.protected
        self.charge = RunCharge(ledger, plan, delta, resumed=reporting.resume, protected=protected)
        self.continuity = ResumeState(plan, processes, key, self.charge.name)
        self.identity = identity  # fingerprints of what a resumed run must prove to be the same
        self.digests = ReleaseDigests(None, processes)  # of releases since the last checkpoint
        self.counters = Counters(device)  # count every update
        self.last: StepOutcome | None = None  # the outcome of the last step
        self.captures = execution.captures and whole and step.noise.capturable  # as a CUDA graph
        # Batches that are being read ahead.
        self._coming: Generator[list[Chunk], None, None] | None = None
        self._captured: Captured | None = None
        self._made_for: Any = ()  # see `_updating`
        self._begun = 0  # steps before the one that is replayed
        for group in trainer.param_groups if self._captures_optimizer else ():
            group.update({"capturable": True} if "capturable" in group else {})

    @property
    def taken(self) -> int:
        """Number of steps of the plan that were taken, or lost."""
        return self.step.taken

    @contextmanager
    def opened(self) -> Iterator[Self]:
        """Lock the folder, resume the run if asked to, charge its ledger; close it at the end."""
        first, folder = self.processes.first, self.reporting.out
        again = "resume=True goes on from the last checkpoint, without another charge"
        again = again if folder else "without a folder (out) it cannot be resumed"
        with self.charge.interruptions(again), ExitStack() as stack:
            stack.callback(self.close)
            if folder is not None:
                first(partial(folder.mkdir, parents=True, exist_ok=True))
                first(lambda: stack.enter_context(held(folder)))
                if self.execution.device.type == "cpu":  # where sums are the same twice
                    self.digests = ReleaseDigests(folder, self.processes)
            if self.reporting.resume:
                self._resume()
                self.charge.name, self.charge.taken = self.continuity.name, self.taken
            elif folder is not None and self.continuity.resume(folder) is not None:
                shown = f"{str(folder)!r}, whose record of what was paid would be overwritten"
                hint = "Use resume=True to continue that run, or choose another folder."
                raise ArgumentError("out", "a folder without a run", shown=shown, hint=hint)
            if self.taken == 0 and not self.continuity.paid:  # saving forgets the digests
                self._save()  # a run killed before its first evaluation resumes with this noise
            if self.taken < self.plan.steps:
                self._rehearse()
                if self.processes.rank == 0:
                    warn_if_no_test_passes(self.plan, self.step.expected_batch)
            self.charge.charged = first(self.charge.pay)
            yield self
            if self.average is not None:
                self.average.apply_average()
            self.best.restore_best(self.model)

    def _rehearse(self) -> None:
        """Try step and evaluation before anything is charged; the run goes on as without it."""
        self.step.rehearse(self.records.read(torch.empty(0, dtype=torch.int64)))
        if self.held_out is not None:
            self.held_out.rehearse(self.step)
        device, rehearse = self.execution.device, getattr(self.reporting.evaluate, "rehearse", None)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            if rehearse is None:
                self.best.check(self._evaluated())
            else:
                with self.shown() as model:
                    rehearse(model)

    def __iter__(self) -> Iterator[Metrics]:
        """Take the steps that are left; yields the metrics of each evaluation."""
        reporting, steps, is_first = self.reporting, self.plan.steps, self.processes.rank == 0
        with Recorder(
            reporting.out if is_first else None,
            self.taken,
            steps,
            progress=reporting.shows_progress and is_first,
        ) as recorder:
            every = max(1, steps // 10) if (n := reporting.evaluate_every) is None else n
            due = [] if self.plan.held_out is None else self.plan.held_out.steps_due(steps)
            for stop in _stops(self.taken, steps, every, due):
                if self.best.is_over:
                    return
                while self.taken < stop:
                    self.continuity.pay(self.taken, stop)
                    if self.take():
                        recorder.advance()
                if self.taken > stop or self.last is None:  # steps were passed over
                    continue
                shown, held_out = self._evaluated(), self.held_out
                if held_out is not None and held_out.settings.is_due(self.taken, steps):
                    with self.shown():
                        key = self.continuity.key
                        shown |= held_out.release(self.step, key, self.digests)
                metrics = self.metrics(shown)
                recorder.record(metrics)
                if (monitor := self.best.monitor) is not None:
                    value = self.processes.first(partial(metrics.evaluation.get, monitor))
                    with self.shown() as model:
                        self.best.follow(metrics.step, value, model)
                self._save()
                for callback in reporting.callbacks if is_first else ():
                    with self.shown() as model:
                        callback(model, metrics)
                yield metrics

    def take(self) -> bool:
        """Take a step; False: it was to repeat one, of which it differs, and is passed over."""
        before = self.step.state.state_dict()
        try:
            # Unless given, it follows from the number of records.
            is_public = self.plan.relation.size_is_public
            rows = (self.sampler if is_public else self.execution).physical_batch
            self.last = within_memory(self._update, "physical_batch", rows)
        except OtherReleaseError:
            self.model.zero_grad(set_to_none=True)
            self.step.state.load_state_dict(before)
            self.last = None  # what is due after the lost steps may have been released
            self._pass_lost_steps(before["taken"], lambda: ["what a step releases"])
            return False
        if self.average is not None:
            self.average.follow(self.taken - 1 - self.continuity.lost)
        self.charge.taken = self.taken
        return True

    def _update(self) -> StepOutcome:
        """Perform the update of the next batch, as a CUDA graph where that is possible."""
        batch = self.sampler.batch(self.taken) if self.records.reader is None else None
        if batch is not None and self.captures and len(batch.ids) == 1:
            outcome = self._replay(batch)
        else:
            chunks = self._read() if batch is None else self._chunks(batch.ids, batch.valid)
            outcome = self._release(chunks)
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        return outcome

    @property
    def _captures_optimizer(self) -> bool:
        """Whether the graph includes the optimizer; it would not repeat a scheduler or a hook."""
        own: Any = self.optimizer
        acts = self.scheduler, own._optimizer_step_pre_hooks, own._optimizer_step_post_hooks
        plain = type(own) in _CAPTURABLE and "step" not in vars(own)
        return self.captures and plain and not any(acts)

    def _updating(self) -> Any:
        """The places and settings of the optimizer that a graph repeats, if it is in the graph."""

        def placed(read: Any) -> Any:
            if isinstance(read, Mapping):
                return [(name, placed(each)) for name, each in read.items()]
            if isinstance(read, list | tuple):
                return [placed(each) for each in read]
            read = local(read) if isinstance(read, Tensor) else read
            # A graph has the number of a tensor on the host.
            host = isinstance(read, Tensor) and read.is_cpu and not read.ndim
            return place(read.item() if host else read)

        own = self.optimizer
        return placed([own.param_groups, *own.state.values()]) if self._captures_optimizer else []

    def _replay(self, batch: Batch) -> StepOutcome:
        """Perform one update as a graph; the next one overwrites the tensors of the outcome.

        A replay counts its steps on the device and reads the keystream at its own position, as an
        uncaptured step would; the host counts here.
        """
        step = self.step
        self.plan.refuse_beyond(step.taken)
        self._begun = step.taken
        if self._captured is None:
            self._captured = Captured(self._on_device, [step.generator])
            step.programs.append(self._captured)
        step.refresh()
        if (updating := self._updating()) != self._made_for:
            self._captured.clear()
            self._made_for = updating
        with step.randomness.at(self._begun + 1).seeded():
            outcome, gradients = self._captured((), batch.ids, batch.valid)
        step.state.taken = self._begun + 1
        if not self._captures_optimizer:
            for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
                parameter.grad = gradient  # a batch of several chunks may have set another
            self.optimizer.step()
        return cast(StepOutcome, outcome)

    def _on_device(
        self, _: Any, ids: Tensor, valid: Tensor
    ) -> tuple[StepOutcome, list[Tensor | None]]:
        """The outcome of an update and the gradients that it released."""
        self.step.state.taken = self._begun  # a capture that failed has counted the step
        outcome = self._release(self._chunks(ids, valid))
        if self._captures_optimizer:
            self.optimizer.step()
        return outcome, [parameter.grad for parameter in self.model.parameters()]

    def _release(self, chunks: Sequence[Chunk]) -> StepOutcome:
        outcome = self.step(chunks)
        if not self.digests.admits_step(self.continuity.key, self.step, outcome):
            raise OtherReleaseError
        self.counters.add(outcome)
        return outcome

    def _read(self) -> Sequence[Chunk]:
        """The next batch of items, which are read ahead."""
        if self._coming is None:
            ahead, again = range(self.taken, self.plan.steps), self.step.engine.recompute
            self._coming = self.records.batches(self.sampler, ahead, recompute=again)
        return next(self._coming)

    def _chunks(self, ids: Tensor, valid: Tensor) -> list[Chunk]:
        """Chunks of records, or of functions that read them if the engine recomputes."""
        gather = self.records.gather
        assert gather is not None
        return [
            Chunk(partial(gather, rows), valid=real, ids=rows)
            if self.step.engine.recompute
            else Chunk(*gather(rows), valid=real, ids=rows)
            for rows, real in zip(ids, valid, strict=True)
        ]

    def close(self) -> None:
        """Stop the processes that read items ahead."""
        if self._coming is not None:
            self._coming.close()
            self._coming = None

    @contextmanager
    def shown(self) -> Iterator[nn.Module]:
        """A context with the model to evaluate, averaged if it is; restores modes and shards."""
        averaged = nullcontext() if self.average is None else self.average.shown()
        with averaged, modes_kept(self.model):
            yield self.model
        reshard(self.model)

    def _evaluated(self) -> dict[str, float]:
        """The results of an evaluation as plain floats, which can be written to a file."""
        if self.reporting.evaluate is None:
            return {}
        with self.shown() as model:
            results = self.reporting.evaluate(model)
        if not isinstance(results, Mapping):
            raise ArgumentError(
                "evaluate", "to return a mapping from names to numbers", got=results
            )
        return {name: float(value) for name, value in results.items()}

    @property
    def pass_rate(self) -> float | None:
        """Fraction of passed tests among all steps taken; None without a test, 0 without a step."""
        if not isinstance(self.plan.aggregation, ProposeTestRelease):
            return None
        return float(self.counters.passes) / max(1, self.step.taken - self.continuity.lost)

    def metrics(self, shown: dict[str, float]) -> Metrics:
        """The metrics since the last call. Only this call reads values from the device."""
        assert self.last is not None
        plan, delta, step = self.plan, self.charge.delta, self.taken
        rate, epsilon = self.counters.pass_rate(step), None
        if delta is not None and not isinstance(plan.aggregation, Mean):
            epsilon = plan.epsilon_shown(step, delta)
        if (released := self.counters.loss(plan, self.step.expected_batch)) is not None:
            shown = shown | dict(zip(("train_loss", "train_loss_noise"), released, strict=True))
        return Metrics(
            step=step,
            epsilon=epsilon,
            delta=delta,
            relation=None if epsilon is None else plan.relation.sentence(self.charge.protected),
            pass_rate=rate if isinstance(plan.aggregation, ProposeTestRelease) else None,
            trim=int(self.last.trim),
            noise=float(self.last.noise),
            evaluation=shown,
        )

    def _save(self) -> None:
        """Write a checkpoint, if there is a folder."""
        if self.reporting.out is not None:
            state = self.state()  # all processes take part; only one writes
            self.processes.first(partial(save_checkpoint, self.reporting.out, state))
            if self.taken >= self.continuity.paid:  # no step that may have been taken is ahead
                self.digests.clear()

    def state(self) -> dict[str, Any]:
        """Everything needed to resume, as plain values; complete only in the first process."""
        processes, keep, schedule = self.processes, self.processes.rank == 0, self.scheduler
        with processes.watched():
            model = whole_state(self.model.state_dict(), keep=keep)
            optimizer = whole_state(self.optimizer.state_dict(), keep=keep)
        return {
            "step": self.taken,
            "plan": repr(self.plan),
            "steps": self.plan.steps,
            "event": to_json(self.plan.event_after(self.taken)),
            **self.continuity.plain(),
            "records": self.records.count,
            "data": self.records.fingerprint(),
            "identity": self.identity(),
            "model": model,
            "optimizer": optimizer,
            "release": self.step.state.state_dict(),
            "corruption": processes.gathered(self.step.generator.get_state()),
            "reading": processes.gathered(torch.get_rng_state()),  # data sets may draw
            "passes": self.counters.passes,
            "averages": None if self.average is None else self.average.values,
            "schedule": schedule
            and {"kind": type(schedule).__name__, "state": schedule.state_dict()},
            "best": self.best.state(),
        }

    def _resume(self) -> None:
        """Restore the run in the folder, past the steps that must not be repeated."""
        folder, plan = self.reporting.out, self.plan
        if folder is None:
            raise ArgumentError("out", "the folder to resume from", got=None)
        state = self.processes.first(partial(load_checkpoint, folder, torch.device("cpu")))
        known, paid = self.continuity.resume(folder), self.continuity.paid
        if state is not None:
            self._check_own(state)
        taken = 0 if state is None else int(state["step"])
        if paid and state is None:
            shown = f"{str(folder)!r}, where steps were paid for but no checkpoint is left"
            hint = "Without it, charged steps would be repeated with new noise. Restore the "
            hint += "checkpoint, or choose another folder."
            raise ArgumentError("out", "a folder with checkpoint.pt", shown=shown, hint=hint)
        if (known is None and (taken or self.digests.known)) or (
            known is not None
            and (known.event != plan.event_after(paid) or not taken <= paid <= plan.steps)
        ):
            wrong = "is missing" if known is None else "does not match its checkpoint"
            shown = f"{str(folder)!r}, whose paid.json {wrong}"
            raise ArgumentError("out", "with what this run paid for", shown=shown, hint=RESTORE)
        if state is not None:
            self.restore(state)

    def _check_own(self, state: dict[str, Any]) -> None:
        """Raise an error unless the state is of this plan and these records.

        The plan may have more steps than at the start if a ledger is charged for them. Who decides
        this has seen the model; the filter of a ledger allows for that.
        """
        started, plan, held_out = state["steps"], self.plan, self.plan.held_out
        # Else more would be released than both parts pay for.
        pays = (held_out is None or started % held_out.every == 0) and not (
            plan.allocates and started % plan.parts
        )
        if self.charge.ledger is not None and pays and plan.steps > started:
            plan = attrs.evolve(plan, steps=started)
        same = "with which this run was started"
        if state["plan"] != repr(plan):
            hint = "With a ledger that is charged for them, a run of the same noise may gain steps."
            if plan.steps != started:
                raise ArgumentError("steps", f"{started}, {same}", got=plan.steps, hint=hint)
            hint = f"Start again in an empty folder, or use {state['plan']}. {hint}"
            raise ArgumentError("plan", same, shown="a different one", hint=hint)
        if (state["records"], state["data"]) != (self.records.count, self.records.fingerprint()):
            hint = "Start again in an empty folder."
            raise ArgumentError("train_set", same, shown="different records", hint=hint)

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state, and go on after the steps that must not be repeated."""
        restore_schedule(self.scheduler, state["schedule"])
        load_model(self.model, state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.continuity.load(state)
        self._use_key()
        self.step.state.load_state_dict(state["release"])
        device, host = self.execution.device, torch.device("cpu")
        self.step.generator.set_state(self._random_state(state, Purpose.CORRUPTION, device))
        torch.set_rng_state(self._random_state(state, Purpose.READING, host))
        if self.average is not None:
            self.average.restore(state["averages"])
        self.best.restore(state["best"])
        self.counters.restore(self.taken, state["passes"])
        saved = state["identity"]
        self._pass_lost_steps(self.taken, lambda: unproved(self.identity(), saved))

    def _pass_lost_steps(self, taken: int, differing: Callable[[], list[str]]) -> None:
        """Go on with a new key after the steps that were paid for, unless they may be repeated."""
        goes_on = self.continuity.past_lost_steps(taken, differing)
        if goes_on > taken:
            self._use_key()
            self.step.state.move_to(goes_on)
            self.counters.read_step += goes_on - taken
            self.continuity.pay(goes_on - 1, goes_on)  # the rest of a cycle
            self._save()  # with the new key, before its first step

    def _use_key(self) -> None:
        self.close()  # what was read ahead was drawn with another key
        self.step.use(self.continuity.key)
        self.sampler = self.sampler.with_key(self.continuity.key)

    def _random_state(
        self, state: dict[str, Any], purpose: Purpose, device: torch.device
    ) -> Tensor:
        """The state of this process's generator; a new one if the number of processes changed."""
        rank, kept = self.processes.rank, state[purpose.value]
        if rank == 0 or len(kept) == self.processes.count:
            return cast(Tensor, kept[rank]).cpu()
        key = self.continuity.key
        return key.generator(device, purpose, step=int(state["step"]), rank=rank).get_state()


def _stops(start: int, end: int, every: int, marks: Collection[int]) -> list[int]:
    """The multiples and marks after the start, and the end; none if the start is the end."""
    multiples = range(start + every - start % every, end, every)
    marked = {*multiples, *(mark for mark in marks if start < mark < end)}
    return sorted(marked | {end}) if start < end else []
