"""A training run in progress: the state that changes between steps and its checkpoints."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import attrs
import torch
from torch import Tensor, nn

from prudent._validate import ArgumentError
from prudent.accounting.group_privacy import epsilon_of
from prudent.accounting.pld_accountant import PldAccountant
from prudent.training.aggregation import Mean
from prudent.training.gradients.engine import Loss
from prudent.training.keystream import Key, Purpose
from prudent.training.loop.averaging import Average
from prudent.training.loop.cuda_graph import CapturedStep, is_capturable
from prudent.training.loop.data import fingerprint, is_on_device, reader
from prudent.training.loop.execution import Execution
from prudent.training.loop.metrics import Metrics
from prudent.training.parallel.processes import Processes, unwrapped
from prudent.training.parallel.sharding import has_shards, load_model, load_optimizer, whole_state
from prudent.training.plan import Plan
from prudent.training.sampling import PoissonSampler, device_kind
from prudent.training.step import Chunk, Corrupt, Corruption, Outcome, Step


@attrs.define
class TrainingRun:
    """The state of a training run.

    Attributes:
        plan: The plan as it was given, before a budget shortens it.
        processes: The processes that execute it together.
        model: Trained in place.
        optimizer: Updates the model from the released gradients.
        execution: Device, engine and similar settings.
        key: The key of noise, tests and sampling. Secret.
        step: Releases a batch.
        sampler: Draws the batches.
        gather: Maps record ids to inputs and targets.
        data: Computes a fingerprint of the records.
        passes: Number of passed tests so far.
        drawn: Records drawn since the last metrics. Private.
        losses: Sum of mean losses since the last metrics. Private.
        captures: Whether steps are captured as a CUDA graph.
        captured: The captured step, once there is one.
        last: The outcome of the last step.
        recorded: Step of the last metrics.
        recorded_passes: Number of passed tests at the last metrics.
        average: Running average of the trained parameters, if requested.
    """

    plan: Plan
    processes: Processes
    model: nn.Module
    optimizer: torch.optim.Optimizer
    execution: Execution
    key: Key
    step: Step
    sampler: PoissonSampler
    gather: Callable[[Tensor], tuple[Any, Any]]
    data: Callable[[], str]
    passes: Tensor
    drawn: Tensor
    losses: Tensor
    captures: bool = False
    captured: CapturedStep | None = None
    last: Outcome | None = None
    recorded: int = 0
    recorded_passes: float = 0.0
    average: Average | None = None

    @classmethod
    def prepare(
        cls,
        plan: Plan,
        model: nn.Module,
        loss: Loss,
        train_set: Any,
        optimizer: Callable[..., torch.optim.Optimizer],
        options: dict[str, Any],
        execution: Execution | None,
        corrupt: Corrupt | Corruption | None,
        average: float | None = None,
    ) -> "TrainingRun":
        """A new run; see `fit` for the arguments."""
        execution, processes = (Execution() if execution is None else execution).joined()
        device = execution.device
        model = unwrapped(model, processes)
        if not has_shards(model):
            model.to(device)
        records, gather = reader(train_set, device, processes)
        processes.check_same(plan=repr(plan), records=records)
        data = functools.cache(functools.partial(fingerprint, train_set))
        if processes.count > 1 and len(set(processes.gathered(data()))) > 1:
            raise ArgumentError(
                "train_set",
                "of the same records in the same order in every process",
                shown="others",
                why="a record that two of them hold would count twice",
                hint="Shuffle and split with the same seed in every process.",
            )
        key = processes.first(execution.key)
        step = Step(
            plan,
            model,
            loss,
            expected_batch=plan.sampling_rate * records,
            engine=execution.engine_of(model, loss),
            corrupt=corrupt.hook(records, device) if isinstance(corrupt, Corruption) else corrupt,
            key=key,
            compile=execution.compile,
            processes=processes,
        )
        trained = [p for p in model.parameters() if p.requires_grad]
        try:
            chosen = optimizer(trained, **options)
        except TypeError as error:
            raise TypeError(
                "Expected optimizer a class such as torch.optim.SGD, and by name its options: "
                f"{error}. Whatever fit itself does not know is taken for one of these; device, "
                "seed and precision belong into prudent.Execution."
            ) from error
        captures = (
            execution.captures
            and step.noise.capturable
            and is_capturable(chosen)
            and is_on_device(train_set)
        )
        if captures:
            for group in chosen.param_groups:
                if "capturable" in group:
                    group["capturable"] = True
        sampler = PoissonSampler(
            records,
            plan.sampling_rate,
            physical_batch=execution.physical_batch,
            key=key,
            device=device,
            processes=processes,
        )
        if processes.rank > 0:
            # Identically seeded processes would use the same dropout masks for different records.
            own = key.generator(device, Purpose.DROPOUT, rank=processes.rank)
            _default_generator(device).set_state(own.get_state())

        def zero() -> Tensor:
            return torch.zeros((), dtype=torch.float64, device=device)

        return cls(
            plan=plan,
            processes=processes,
            model=model,
            optimizer=chosen,
            execution=execution,
            key=key,
            step=step,
            sampler=sampler,
            gather=gather,
            data=data,
            passes=zero(),
            drawn=zero(),
            losses=zero(),
            captures=captures,
            average=None if average is None else Average(model, average),
        )

    def steps(self, first: int, stop: int) -> Iterator[int]:
        """Take the steps from `first` up to `stop`, yielding after each one."""
        for number in range(first, stop):
            batch = self.sampler.batch(number)
            if self.captures and len(batch.ids) == 1:
                if self.captured is None:
                    counters = (self.passes, self.drawn, self.losses)
                    self.captured = CapturedStep(
                        self._update, self.step, self.model, self.optimizer, batch, counters
                    )
                self.last = self.captured(batch)
            else:
                self.last = self._update(batch.ids, batch.valid)
            if self.average is not None:
                self.average.follow(number)
            yield number

    @contextmanager
    def shown(self) -> Iterator[nn.Module]:
        """A context with the model to evaluate: with averaged parameters if they are kept."""
        with nullcontext() if self.average is None else self.average.shown():
            yield self.model

    def _update(self, ids: Tensor, valid: Tensor) -> Outcome:
        chunks = [
            Chunk(*self._records(rows), valid=real, ids=rows)
            for rows, real in zip(ids, valid, strict=True)
        ]
        outcome = self.step(chunks)
        self.optimizer.step()
        self.passes += outcome.passed
        self.drawn += outcome.drawn
        self.losses += outcome.loss
        return outcome

    def _records(self, rows: Tensor) -> tuple[Any, Any]:
        """Inputs and targets, or a function that reads them if the engine recomputes."""
        if self.step.engine.recompute:
            return functools.partial(self.gather, rows), None
        return self.gather(rows)

    def pass_rate(self, steps: int) -> float:
        """Fraction of passed tests so far."""
        return float(self.passes) / steps if steps else 0.0

    def metrics(
        self,
        step: int,
        shown: dict[str, float],
        delta: float | None,
        *,
        private: bool,
        ends: bool = False,
    ) -> Metrics:
        """The metrics since the last call. Only this call reads values from the device."""
        since = max(1, step - self.recorded)
        passes = float(self.passes)
        assert self.last is not None
        epsilon = self._epsilon(step, delta, exact=ends)
        entry = Metrics(
            step=step,
            epsilon=epsilon,
            delta=delta,
            relation=None if epsilon is None else str(self.plan.relation),
            pass_rate=(passes - self.recorded_passes) / since,
            trim=int(self.last.trim),
            noise=float(self.last.noise),
            evaluation=shown,
            private={
                "mean_drawn": float(self.drawn) / since,
                "mean_loss": float(self.losses) / since,
            }
            if private
            else None,
        )
        self.recorded, self.recorded_passes = step, passes
        self.drawn.zero_()
        self.losses.zero_()
        return entry

    def _epsilon(self, step: int, delta: float | None, *, exact: bool) -> float | None:
        if delta is None or isinstance(self.plan.aggregation, Mean):
            return None
        # Before the last step, use a coarser grid: it is faster and also gives an upper bound.
        interval = 1e-4 if exact else 1e-3
        accountant = functools.partial(PldAccountant, value_discretization_interval=interval)
        return epsilon_of(self.plan.event_after(step), delta, self.plan.relation, accountant)

    def state(self, step: int) -> dict[str, Any]:
        """Everything needed to resume, as tensors and plain values.

        Complete only in the first process.
        """
        keep = self.processes.rank == 0
        with self.processes.watched():
            model = whole_state(self.model.state_dict(), keep=keep)
            optimizer = whole_state(self.optimizer.state_dict(), keep=keep)
        return {
            "step": step,
            "plan": repr(self.plan),
            "key": self.key.secret.hex(),
            "predictable": self.key.predictable,
            "records": self.sampler.records,
            "data": self.data(),
            "device": device_kind(self.execution.device),
            "model": model,
            "optimizer": optimizer,
            "release": self.step.state.state_dict(),
            "corruption": self.processes.gathered(self.step.generator.get_state()),
            "dropout": self.processes.gathered(
                _default_generator(self.execution.device).get_state()
            ),
            "reading": self.processes.gathered(torch.get_rng_state()),  # data sets may draw
            "passes": self.passes,
            "averages": None if self.average is None else self.average.values,
        }

    def restore(self, state: dict[str, Any] | None) -> int:
        """Restore a saved state and return its step; 0 without a state."""
        if state is None:
            return 0
        if state["plan"] != repr(self.plan):
            raise ValueError(
                "Expected the plan this run was begun with, got another one. Begin anew in an "
                f"empty folder, or give the old plan: {state['plan']}"
            )
        if (state["records"], state["data"]) != (self.sampler.records, self.data()):
            raise ValueError(
                "Expected the train_set this run was begun with, got other records. The same noise "
                "on other data could be subtracted. Begin anew in an empty folder."
            )
        kind = device_kind(self.execution.device)
        if state.get("device") != kind:
            raise ValueError(
                f"Expected the kind of device this run was begun on, {state.get('device')}, got "
                f"{kind}: it would round sums otherwise, and release steps that are paid for once "
                "a second time under the same noise. Resume on the old kind, or begin anew in an "
                "empty folder."
            )
        load_model(self.model, state["model"])
        load_optimizer(self.optimizer, state["optimizer"])
        self.key = Key(bytes.fromhex(state["key"]), bool(state["predictable"]))
        self.step.use(self.key)
        self.step.state.load_state_dict(state["release"])
        device, host = self.execution.device, torch.device("cpu")
        self.step.generator.set_state(self._random_state(state, Purpose.CORRUPTION, device))
        torch.set_rng_state(self._random_state(state, Purpose.READING, host))
        _default_generator(device).set_state(self._random_state(state, Purpose.DROPOUT, device))
        self.passes.copy_(state["passes"])
        if self.average is not None:
            self.average.restore(state["averages"])
        self.sampler = PoissonSampler(
            self.sampler.records,
            self.sampler.rate,
            physical_batch=self.sampler.physical_batch,
            key=self.key,
            device=self.execution.device,
            processes=self.processes,
        )
        self.recorded, self.recorded_passes = int(state["step"]), float(self.passes)
        return self.recorded

    def _random_state(
        self, state: dict[str, Any], purpose: Purpose, device: torch.device
    ) -> Tensor:
        """The state of this process's generator.

        If the number of processes changed, all but the first get a new one from the key.
        """
        rank, kept = self.processes.rank, state[purpose.value]
        if rank == 0 or len(kept) == self.processes.count:
            return cast(Tensor, kept[rank]).cpu()
        return self.key.generator(device, purpose, step=int(state["step"]), rank=rank).get_state()


def _default_generator(device: torch.device) -> torch.Generator:
    """The default generator of a device, which dropout uses."""
    if device.type != "cuda":
        return torch.default_generator
    torch.cuda.init()  # type: ignore[no-untyped-call]
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]
