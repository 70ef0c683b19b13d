"""A training run in progress: what changes from step to step, and what a checkpoint keeps of it."""

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from prudent.accounting.loss import PldAccountant
from prudent.training.aggregation import Mean
from prudent.training.capture import CapturedStep, is_capturable
from prudent.training.execution import Execution
from prudent.training.gradients.engine import Loss
from prudent.training.metrics import Metrics
from prudent.training.plan import Plan
from prudent.training.reading import reader
from prudent.training.sampling import PoissonSampler, seeded_generator
from prudent.training.step import Chunk, Corrupt, Outcome, Step


@attrs.define
class TrainingRun:
    """Everything that changes while a plan is carried out.

    Attributes:
        plan: The plan as it was given, before a budget shortens it.
        model: Trained in place.
        optimizer: Uses what each step releases.
        execution: Device, engine and the like.
        step: Releases a batch.
        sampler: Draws the batches; holds the seed.
        gather: From record ids to inputs and targets.
        passes: How many tests have passed.
        drawn: Records drawn since the last metrics. Private.
        losses: Mean losses added up since the last metrics. Private.
        captures: Whether steps become a CUDA graph.
        captured: That graph, once there is one.
        last: The outcome of the last step.
        recorded: Step of the last metrics.
        recorded_passes: Tests passed by then.
    """

    plan: Plan
    model: nn.Module
    optimizer: torch.optim.Optimizer
    execution: Execution
    step: Step
    sampler: PoissonSampler
    gather: Callable[[Tensor], tuple[Any, Any]]
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
    ) -> "TrainingRun":
        """A run at its beginning; see `fit` for the arguments."""
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
            engine=execution.engine_of(model, loss),
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
        return {
            "step": step,
            "plan": repr(self.plan),
            "seed": self.sampler.seed,
            "records": self.sampler.records,
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
        if state["records"] != self.sampler.records:
            raise ValueError(
                "Expected the train_set this run was begun with, got one of another length. The "
                "same noise on other data could be subtracted. Begin anew in an empty folder."
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step.trim.copy_(state["trim"])
        self.step.taken = int(state["step"])
        self.step.generator.set_state(state["noise"].cpu())
        _default_generator(self.execution.device).set_state(state["dropout"].cpu())
        self.passes.copy_(state["passes"])
        self.sampler = PoissonSampler(
            self.sampler.records,
            self.sampler.rate,
            physical_batch=self.sampler.physical_batch,
            seed=int(state["seed"]),
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
