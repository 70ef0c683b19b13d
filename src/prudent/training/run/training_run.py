"""A training run in progress: the state that changes between steps and its checkpoints."""

import functools
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from typing import Any, Self, cast

import attrs
import torch
from torch import Tensor, nn

from prudent import _validate
from prudent._fingerprint import fingerprint
from prudent.accounting.serialisation import to_json
from prudent.records.containers import declared_form
from prudent.records.people import Unit
from prudent.records.reader import Collate
from prudent.training.aggregation import Mean, ProposeTestRelease
from prudent.training.chunk import Chunk, Corrupt, Corruption, hook_of, within_memory
from prudent.training.gradients.engine import Loss
from prudent.training.keystream import Key, Purpose
from prudent.training.parallel.processes import Processes, unwrapped
from prudent.training.parallel.sharding import (
    has_shards,
    load_model,
    load_optimizer,
    local,
    reshard,
    whole_state,
)
from prudent.training.plan import Plan
from prudent.training.run.checkpoint import (
    Paid,
    ReleaseDigests,
    ResumeState,
    RunFingerprint,
    machine,
    shared_key,
)
from prudent.training.run.execution import Execution
from prudent.training.run.held_out import HeldOutRecords, modes_kept
from prudent.training.run.metrics import Metrics
from prudent.training.run.reading import RunRecords, check_same_records
from prudent.training.run.updates import (
    Average,
    Averages,
    Counters,
    OtherReleaseError,
    Scheduler,
    Updates,
    optimizer_of,
    restore_schedule,
    schedule_state,
    scheduler_of,
)
from prudent.training.sampling import Batch, PoissonSampler
from prudent.training.step import Step, StepOutcome


@attrs.define(kw_only=True)
class TrainingRun:
    """The state of a training run."""

    execution: Execution  # device, engine and similar settings of this process
    records: RunRecords  # the records, read by id; or the people
    step: Step  # releases a batch; it holds the plan, the model and the processes
    sampler: PoissonSampler  # draws the batches
    updates: Updates  # performs an update per batch; it holds the optimizer and the counters
    average: Average | None = None  # running average of the trained parameters, if requested
    last: StepOutcome | None = None  # the outcome of the last step
    continuity: ResumeState  # the key and the name of the run, and the steps that were lost
    # returns what a resumed run must prove to be the same; computed once.
    identity: Callable[[], RunFingerprint]
    # The held-out records, if the plan releases something of them.
    held_out: HeldOutRecords | None = None
    digests: ReleaseDigests | None = None  # of what was released since the last checkpoint
    # Batches that are being read ahead, and the step of the next one.
    _coming: Generator[list[Chunk], None, None] | None = attrs.field(default=None, init=False)
    _next: int = attrs.field(default=0, init=False)

    @classmethod
    def prepare(
        cls,
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
    ) -> Self:
        """A new run; see `fit` for the arguments. `options` are those of the optimizer."""
        _check_parts(plan, model, loss, corrupt, execution)
        execution, processes = (Execution() if execution is None else execution).joined()
        device = execution.device
        model = unwrapped(model, processes)
        if not has_shards(model):
            model.to(device)
        records = RunRecords.of(train_set, execution, processes, collate_fn, example, unit)
        processes.check_same(plan=repr(plan))
        check_same_records(processes, "train_set", records.count, records.fingerprint)
        key = shared_key(execution.key, processes)
        whole = records.loader is None and processes.count == 1
        step = Step(
            plan,
            model,
            loss,
            expected_batch=plan.sampling_rate * records.count,
            engine=execution.engine_of(model, loss, records.units.slots),
            corrupt=hook_of(corrupt, records.count, device),
            key=key,
            # Records on the device let the whole update of one process be captured; see Updates.
            cuda_graph=False if whole or execution.recompute else execution.cuda_graph,
            compile=execution.compile,
            processes=processes,
        )
        if example is None and (form := declared_form(train_set)) is not None:
            example = tuple(form)  # of held-out items as well
        tested = HeldOutRecords.of(
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
        if tested is not None:
            check_same_records(processes, "held_out_set", len(tested.members), tested.data)
        trainer = optimizer_of(model, optimizer, options)
        updates = Updates(
            step=step,
            optimizer=trainer,
            counters=Counters.start(device),
            gather=records.gather,
            scheduler=scheduler_of(scheduler, trainer),
            captures=execution.captures and whole,
        )
        sampler = PoissonSampler(
            records.count,
            plan.turn_rate,
            physical_batch=execution.physical_batch,
            key=key,
            device=device if records.loader is None else "cpu",  # items are read on the host
            processes=processes,
            bands=plan.parts,
            allocates=plan.allocates,
        )

        @functools.cache
        def identity() -> RunFingerprint:
            known = functools.partial(fingerprint, restored=model)
            return RunFingerprint(
                records=records.fingerprint() + (tested.data() if tested is not None else ""),
                loss=known(loss, collate_fn, example, records.units.column, corrupt),
                model=known(model),
                optimizer=known(optimizer, options, scheduler),
                # The averages are what is evaluated on held-out records.
                execution=repr((execution.computation, sampler.physical_batch, average)),
                processes=str(processes.count),
                machine=machine(device),
            )

        return cls(
            execution=execution,
            records=records,
            step=step,
            sampler=sampler,
            updates=updates,
            average=None if average is None else Average(model, average),
            continuity=ResumeState(key),
            identity=identity,
            held_out=tested,
        )

    @property
    def plan(self) -> Plan:
        """The plan that the run executes."""
        return self.step.plan

    @property
    def model(self) -> nn.Module:
        """The model, trained in place."""
        return self.step.model

    @property
    def processes(self) -> Processes:
        """The processes that execute the plan together."""
        return self.step.processes

    def take(self, number: int) -> bool:
        """Take a step, by its number from 0; False: it is repeated, and no longer what it was."""
        before = self.step.state.state_dict()
        rows = self.sampler.physical_batch
        try:
            self.last = within_memory(
                lambda: self.updates(self._batch(number)), "physical_batch", rows
            )
        except OtherReleaseError:
            self.model.zero_grad(set_to_none=True)
            self.step.state.load_state_dict(before)
            return False
        if self.average is not None:
            self.average.follow(number - self.continuity.lost)
        return True

    def prove(self, digests: ReleaseDigests) -> None:
        """Compare repeated steps with what was released, where sums are the same twice."""
        if self.execution.device.type != "cpu":
            return
        self.digests = digests

        def admits(outcome: StepOutcome) -> bool:
            gradients = (p.grad for p in self.model.parameters() if p.grad is not None)
            released = chain((outcome.passed, outcome.watched), map(local, gradients))
            return digests.admits(self.continuity.key, str(self.step.taken), released)

        self.updates.admits = admits

    def pass_over(self, taken: int, paid: Paid | None) -> int:
        """Go on with a new key after the steps that were paid for, from which one differs."""
        step = self.continuity.past_lost_steps(
            taken, paid, lambda _: ["what a step releases"], self.processes, self.plan
        )
        self._use(self.continuity.key)
        self.step.state.move_to(step)
        self.updates.counters.read_step += step - taken
        return step

    def _batch(self, number: int) -> Batch | Sequence[Chunk]:
        """The batch of a step; items that were read ahead are used."""
        if self.records.loader is None:
            return self.sampler.batch(number)
        if self._coming is None or self._next != number:
            self.close()
            ahead, again = range(number, self.plan.steps), self.step.engine.recompute
            self._coming = self.records.loader.batches(self.sampler, ahead, recompute=again)
        self._next = number + 1
        return next(self._coming)

    def close(self) -> None:
        """Stop the processes that read items ahead."""
        if self._coming is not None:
            self._coming.close()
            self._coming = None

    @contextmanager
    def shown(self) -> Iterator[nn.Module]:
        """A context with the model to evaluate: with averaged parameters if they are kept.

        The modes of its modules and its shards are restored after it.
        """
        averaged = nullcontext() if self.average is None else self.average.shown()
        with averaged, modes_kept(self.model):
            yield self.model
        reshard(self.model)

    def tested_on_held_out(self) -> dict[str, float]:
        """What the plan releases of the held-out records after the last step, with its noise."""
        due = self.held_out is not None and self.held_out.settings.is_due
        if not due or not due(self.step.taken, self.plan.steps):
            return {}
        assert self.held_out is not None
        with self.shown():
            shown = self.held_out.release(self.step, self.continuity.key)
        value, name = torch.tensor(list(shown.values())), f"held-out-{self.step.taken}"
        if self.digests is None or self.digests.admits(self.continuity.key, name, [value]):
            return shown
        return {}  # it was released before, and stays paid for; the same noise must not be again

    @property
    def passes(self) -> float:
        """Number of passed tests so far."""
        return float(self.updates.counters.passes)

    @property
    def tested(self) -> bool:
        """Whether a step has a test that can pass."""
        return isinstance(self.plan.aggregation, ProposeTestRelease)

    @property
    def pass_rate(self) -> float | None:
        """Fraction of passed tests among all steps taken; None without a test.

        0 if none was taken.
        """
        taken = max(1, self.step.taken - self.continuity.lost)
        return self.passes / taken if self.tested else None

    def metrics(
        self, step: int, shown: dict[str, float], delta: float | None, *, private: bool
    ) -> Metrics:
        """The metrics since the last call. Only this call reads values from the device."""
        assert self.last is not None
        averages, protected = self.updates.counters.read(step), self.records.units.protected
        epsilon = None
        if delta is not None and not isinstance(self.plan.aggregation, Mean):
            epsilon = self.plan.epsilon_shown(step, delta)
        return Metrics(
            step=step,
            epsilon=epsilon,
            delta=delta,
            relation=None if epsilon is None else self.plan.relation.sentence(protected),
            pass_rate=averages.pass_rate if self.tested else None,
            trim=int(self.last.trim),
            noise=float(self.last.noise),
            evaluation=shown | self._watched(averages),
            private={"mean_drawn": averages.drawn, "mean_loss": averages.loss} if private else None,
        )

    def _watched(self, averages: Averages) -> dict[str, float]:
        """The mean of the losses released since the last entry and its noise, if there are any."""
        if self.plan.watch is None or averages.watched is None:
            return {}
        noise = self.plan.watch.deviation(self.step.expected_batch) / math.sqrt(averages.looks)
        return {"train_loss": averages.watched, "train_loss_noise": noise}

    def state(self, step: int) -> dict[str, Any]:
        """Everything needed to resume, as tensors and plain values.

        Complete only in the first process.
        """
        processes = self.processes
        keep = processes.rank == 0
        with processes.watched():
            model = whole_state(self.model.state_dict(), keep=keep)
            optimizer = whole_state(self.updates.optimizer.state_dict(), keep=keep)
        return {
            "step": step,
            "plan": repr(self.plan),
            "steps": self.plan.steps,
            "event": to_json(self.plan.event_after(step)),
            **self.continuity.plain(),
            "records": self.records.count,
            "data": self.records.fingerprint(),
            "identity": attrs.asdict(self.identity()),
            "model": model,
            "optimizer": optimizer,
            "release": self.step.state.state_dict(),
            "corruption": processes.gathered(self.step.generator.get_state()),
            "reading": processes.gathered(torch.get_rng_state()),  # data sets may draw
            "passes": self.updates.counters.passes,
            "averages": None if self.average is None else self.average.values,
            "schedule": schedule_state(self.updates.scheduler),
        }

    def restore(self, state: dict[str, Any], paid: Paid | None) -> int:
        """Restore a state after what was paid for; returns the number of steps to go on from."""
        restore_schedule(self.updates.scheduler, state["schedule"])
        load_model(self.model, state["model"])
        load_optimizer(self.updates.optimizer, state["optimizer"])
        self.continuity = ResumeState.of(state)
        self._use(self.continuity.key)
        self.step.state.load_state_dict(state["release"])
        device, host = self.execution.device, torch.device("cpu")
        self.step.generator.set_state(self._random_state(state, Purpose.CORRUPTION, device))
        torch.set_rng_state(self._random_state(state, Purpose.READING, host))
        if self.average is not None:
            self.average.restore(state["averages"])
        saved = int(state["step"])
        step = self.continuity.past_lost_steps(
            saved,
            paid,
            lambda is_last: self.identity().unproved(state["identity"], same_key=is_last),
            self.processes,
            self.plan,
        )
        if step > saved:
            self._use(self.continuity.key)
            self.step.state.move_to(step)
        self.updates.counters.restore(step, state["passes"])
        return step

    def _use(self, key: Key) -> None:
        self.step.use(key)
        self.sampler = self.sampler.with_key(key)

    def check_own(self, state: dict[str, Any], *, may_be_longer: bool) -> None:
        """Raise an error unless the state is of this plan and these records.

        The plan may have more steps than at the start if `may_be_longer`. Who decides this has seen
        the model; the filter of a ledger allows for that.
        """
        started, plan = state["steps"], self.plan
        if (plan.held_out is not None and started % plan.held_out.every) or (
            plan.allocates and started % plan.parts
        ):
            may_be_longer = False  # more would be released than both parts pay for
        if may_be_longer and plan.steps > started:
            plan = attrs.evolve(plan, steps=started)
        if state["plan"] != repr(plan) and plan.steps != started:
            raise _validate.ArgumentError(
                "steps",
                f"{started}, with which this run was started",
                got=plan.steps,
                why="its noise was chosen for them",
                hint=f"Resume with {started} steps, or start again in an empty folder. With a "
                "ledger that is charged for them, a run of the same noise may gain steps.",
            )
        if state["plan"] != repr(plan):
            raise ValueError(
                "Expected the plan with which this run was started, got a different one. Start "
                f"again in an empty folder, or use the original plan: {state['plan']}. With a "
                "ledger that is charged for them, it may have more steps."
            )
        if (state["records"], state["data"]) != (self.records.count, self.records.fingerprint()):
            raise ValueError(
                "Expected the train_set with which this run was started, got different records. "
                "Start again in an empty folder."
            )

    def _random_state(
        self, state: dict[str, Any], purpose: Purpose, device: torch.device
    ) -> Tensor:
        """The state of this process's generator.

        If the number of processes changed, all but the first get a new one from the key.
        """
        rank, kept = self.processes.rank, state[purpose.value]
        if rank == 0 or len(kept) == self.processes.count:
            return cast(Tensor, kept[rank]).cpu()
        key = self.continuity.key
        return key.generator(device, purpose, step=int(state["step"]), rank=rank).get_state()


def _check_parts(plan: Any, model: Any, loss: Any, corrupt: Any, execution: Any) -> None:
    """Raise an error for arguments of another kind, before any of them is used."""
    _validate.instance(Plan, "a Plan", plan=plan)
    _validate.instance(nn.Module, "a torch module", model=model)
    _validate.function(loss=loss)
    if corrupt is not None and not isinstance(corrupt, Corruption):
        _validate.function(corrupt=corrupt)
    if execution is not None:
        _validate.instance(Execution, "an Execution", execution=execution)
