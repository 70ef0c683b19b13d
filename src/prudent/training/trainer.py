"""Training: a plan, a model and data in, a private model out."""

import secrets
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from prudent import _validate
from prudent.accounting.loss import PldAccountant
from prudent.training.aggregation import Mean
from prudent.training.capture import CapturedStep, is_capturable
from prudent.training.checkpoint import charge, charged, load_checkpoint, save_checkpoint
from prudent.training.evaluation import Evaluate
from prudent.training.execution import EngineChoice, Execution
from prudent.training.gradients import BookKeeping, Engine, Materialised, choose_engine
from prudent.training.gradients.engine import Loss
from prudent.training.metrics import Metrics, Recorder
from prudent.training.plan import Plan
from prudent.training.reading import reader
from prudent.training.sampling import PoissonSampler, seeded_generator
from prudent.training.step import Chunk, Corrupt, Outcome, Step


@attrs.frozen
class Fitted:
    """A trained model and what may be said about its training.

    Attributes:
        model: The same object that was given, trained.
        plan: The plan that was carried out, its steps those really taken.
        history: Metrics, one entry for each evaluation since the run was begun or resumed.
        pass_rate: Share of the steps in which the test passed.
    """

    model: nn.Module
    plan: Plan
    history: list[Metrics]
    pass_rate: float


def fit(
    plan: Plan,
    model: nn.Module,
    loss: Loss,
    train_set: Any,
    *,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    execution: Execution | None = None,
    corrupt: Corrupt | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    evaluate_at: Collection[int] = (),
    delta: float | None = None,
    budget: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    tensorboard: bool = False,
    private_diagnostics: bool = False,
    **optimizer_options: Any,
) -> Fitted:
    """Carries out a plan.

    Args:
        plan: Sampling, steps and aggregation; the guarantee.
        model: Trained in place. Its layers must keep records apart.
        loss: Takes outputs and targets to one loss per record (reduction="none").
        train_set: A pair (inputs, targets) of tensors, a `TensorDataset`, or any map-style data set
            of (input, target) items. A record is one item.
        optimizer: Any torch optimizer; what it does with released gradients is free.
        execution: Device, engine, seed: what cannot change the guarantee.
        corrupt: Replaces per-example gradients, to simulate faults and attacks.
        evaluate: Called with the model now and then; use public data in it, its results are shown.
        evaluate_every: Steps between evaluations, metrics and checkpoints; a tenth of the run.
        evaluate_at: Further steps after which to do the same.
        delta: δ at which ε is shown.
        budget: Stop before ε at `delta` would exceed this.
        out: Folder for metrics.jsonl, ledger.json and checkpoint.pt. The checkpoint holds the seed
            of the noise: it is as secret as the data.
        resume: Go on from the checkpoint in `out`, if there is one.
        progress: Show a progress bar.
        tensorboard: Also write TensorBoard files to `out`.
        private_diagnostics: Record what is neither released nor charged (drawn batch size, training
            loss). Such a record must not leave the data's owner.
        **optimizer_options: Given to the optimizer: lr and so on.

    Guarantee:
        The model after every step and all metrics but private diagnostics are, together,
        `Fitted.plan.event`: (ε, δ)-DP for `Fitted.plan.epsilon(δ)`, as long as the seed stays
        secret.
    """
    run = _Run.prepare(
        plan, model, loss, train_set, optimizer, optimizer_options, execution, corrupt
    )
    plan = _within(plan, budget, delta)
    every = max(1, plan.steps // 10) if evaluate_every is None else evaluate_every
    _validate.count(1, evaluate_every=every)
    folder = None if out is None else Path(out)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    start = paid = 0
    if resume:
        if folder is None:
            raise ValueError("Expected out, the folder to resume from, got None.")
        start = run.restore(load_checkpoint(folder, run.execution.device))
        paid, _ = charged(folder) or (0, None)
    elif folder is not None and charged(folder) is not None:
        raise ValueError(
            f"Expected out a folder without a run, got {str(folder)!r}, whose ledger would be "
            "forgotten. Give resume=True to go on with that run, or name another folder."
        )
    if folder is not None and start == 0:
        # A run killed before its first evaluation must come back with the same noise as well.
        save_checkpoint(folder, run.state(0))
    recorder = Recorder(folder, start, plan.steps, progress=progress, tensorboard=tensorboard)
    with recorder:
        step = start
        while step < plan.steps:
            marks = [mark for mark in evaluate_at if mark > step]
            stop = min(plan.steps, step + every - step % every, *marks)
            if folder is not None:
                charge(folder, plan, max(paid, stop))
            for _ in run.steps(step, stop):
                recorder.advance()
            step = stop
            shown = {} if evaluate is None else dict(evaluate(model))
            recorder.record(run.metrics(step, shown, delta, private=private_diagnostics))
            if folder is not None:
                save_checkpoint(folder, run.state(step))
    return Fitted(model, plan, recorder.history, run.pass_rate(plan.steps))


def _within(plan: Plan, budget: float | None, delta: float | None) -> Plan:
    """The plan, shortened to what the budget pays for. Known beforehand: nothing is looked at."""
    if budget is None:
        return plan
    if delta is None:
        raise ValueError("Expected delta with a budget: the budget is an epsilon at that delta.")
    if plan.epsilon(delta) <= budget:
        return plan
    return plan.longest(epsilon=budget, delta=delta)


@attrs.define
class _Run:
    """A run in progress: everything that changes while it goes on."""

    plan: Plan
    model: nn.Module
    optimizer: torch.optim.Optimizer
    execution: Execution
    step: Step
    sampler: PoissonSampler
    gather: Callable[[Tensor], tuple[Any, Any]]
    seed: int
    passes: Tensor
    drawn: Tensor
    losses: Tensor
    captures: bool = False
    captured: CapturedStep | None = None
    last: Outcome | None = None
    recorded: int = 0
    recorded_passes: float = 0.0

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
        corrupt: Corrupt | None,
    ) -> "_Run":
        execution = Execution() if execution is None else execution
        device = execution.device
        model.to(device)
        records, gather = reader(train_set, device)
        seed = secrets.randbits(63) if execution.seed is None else execution.seed
        step = Step(
            plan,
            model,
            loss,
            expected_batch=plan.sampling_rate * records,
            engine=None if corrupt is not None else _engine(model, loss, execution),
            corrupt=corrupt,
            generator=seeded_generator(device, seed, 1),
            compile=execution.compile,
        )
        trained = [p for p in model.parameters() if p.requires_grad]
        chosen = optimizer(trained, **options)
        captures = execution.captures and is_capturable(chosen)
        if captures:
            for group in chosen.param_groups:
                if "capturable" in group:
                    group["capturable"] = True
        sampler = PoissonSampler(
            records,
            plan.sampling_rate,
            physical_batch=execution.physical_batch,
            seed=seed,
            device=device,
        )

        def zero() -> Tensor:
            return torch.zeros((), dtype=torch.float64, device=device)

        return cls(
            plan=plan,
            model=model,
            optimizer=chosen,
            execution=execution,
            step=step,
            sampler=sampler,
            gather=gather,
            seed=seed,
            passes=zero(),
            drawn=zero(),
            losses=zero(),
            captures=captures,
        )

    def steps(self, first: int, stop: int) -> Iterator[int]:
        """Takes steps, one at a time."""
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
            yield number

    def _update(self, ids: Tensor, valid: Tensor) -> Outcome:
        chunks = [
            Chunk(*self.gather(rows), valid=real, ids=rows)
            for rows, real in zip(ids, valid, strict=True)
        ]
        outcome = self.step(chunks)
        self.optimizer.step()
        self.passes += outcome.passed
        self.drawn += outcome.drawn
        self.losses += outcome.loss
        return outcome

    def pass_rate(self, steps: int) -> float:
        """Share of passed tests so far."""
        return float(self.passes) / steps if steps else 0.0

    def metrics(
        self, step: int, shown: dict[str, float], delta: float | None, *, private: bool
    ) -> Metrics:
        """What is known at a step; asks the device for the first time since the last such call."""
        since = max(1, step - self.recorded)
        passes = float(self.passes)
        assert self.last is not None
        entry = Metrics(
            step=step,
            epsilon=self._epsilon(step, delta),
            delta=delta,
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

    def _epsilon(self, step: int, delta: float | None) -> float | None:
        if delta is None or isinstance(self.plan.aggregation, Mean):
            return None
        # A coarser grid of losses is quicker and, like the fine one, an upper bound.
        coarse = PldAccountant(1e-3)
        return coarse.compose(self.plan.event_after(step)).get_epsilon(delta)

    def state(self, step: int) -> dict[str, Any]:
        """Everything needed to go on, as tensors and plain values."""
        assert self.step.generator is not None
        return {
            "step": step,
            "plan": repr(self.plan),
            "seed": self.seed,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "trim": self.step.trim,
            "noise": self.step.generator.get_state(),
            "dropout": _default_generator(self.execution.device).get_state(),
            "passes": self.passes,
        }

    def restore(self, state: dict[str, Any] | None) -> int:
        """Takes over a saved state; the step it was saved at."""
        if state is None:
            return 0
        if state["plan"] != repr(self.plan):
            raise ValueError(
                "Expected the plan this run was begun with, got another one. Begin anew in an "
                f"empty folder, or give the old plan: {state['plan']}"
            )
        assert self.step.generator is not None
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step.trim.copy_(state["trim"])
        self.step.generator.set_state(state["noise"].cpu())
        _default_generator(self.execution.device).set_state(state["dropout"].cpu())
        self.passes.copy_(state["passes"])
        self.seed = int(state["seed"])
        self.sampler = PoissonSampler(
            self.sampler.records,
            self.sampler.rate,
            physical_batch=self.sampler.physical_batch,
            seed=self.seed,
            device=self.execution.device,
        )
        self.recorded, self.recorded_passes = int(state["step"]), float(self.passes)
        return self.recorded


def _default_generator(device: torch.device) -> torch.Generator:
    """The generator that dropout and the like draw from."""
    if device.type != "cuda":
        return torch.default_generator
    torch.cuda.init()  # type: ignore[no-untyped-call]
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def _engine(model: nn.Module, loss: Loss, execution: Execution) -> Engine:
    match execution.engine:
        case EngineChoice.MATERIALISED:
            return Materialised(model, loss)
        case EngineChoice.BOOKKEEPING:
            return BookKeeping(model, loss, recompute=execution.recompute)
        case EngineChoice.AUTO:
            return choose_engine(model, loss)
