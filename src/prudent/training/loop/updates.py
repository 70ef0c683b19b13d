"""The updates of a run: read a batch, release its gradient, take an optimizer step."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from prudent.training.chunk import Chunk
from prudent.training.loop.counters import Counters
from prudent.training.loop.cuda_graph import CapturedStep, is_capturable
from prudent.training.loop.data import Gather
from prudent.training.sampling import Batch
from prudent.training.step import Step, StepOutcome


@attrs.define(kw_only=True)
class Updates:
    """Performs one update per batch, as a CUDA graph where that is possible.

    Attributes:
        step: Releases the gradient of a batch.
        optimizer: Updates the model from the released gradients.
        gather: Reads a batch of records.
        counters: Count every update.
        captures: Whether updates are captured as a CUDA graph.
    """

    step: Step
    optimizer: torch.optim.Optimizer
    gather: Gather
    counters: Counters
    captures: bool
    _captured: CapturedStep | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.captures = (
            self.captures and self.step.noise.capturable and is_capturable(self.optimizer)
        )
        if self.captures:
            for group in self.optimizer.param_groups:
                if "capturable" in group:
                    group["capturable"] = True

    def __call__(self, batch: Batch) -> StepOutcome:
        """Perform the update of one batch."""
        if not self.captures or len(batch.ids) > 1:
            return self._update(batch.ids, batch.valid)
        if self._captured is None:
            self._captured = CapturedStep(
                self._update,
                self.step,
                self.step.model,
                self.optimizer,
                batch,
                self.counters.tensors,
            )
        return self._captured(batch)

    def _update(self, ids: Tensor, valid: Tensor) -> StepOutcome:
        chunks = [
            Chunk(*self._records(rows), valid=real, ids=rows)
            for rows, real in zip(ids, valid, strict=True)
        ]
        outcome = self.step(chunks)
        self.optimizer.step()
        self.counters.add(outcome)
        return outcome

    def _records(self, rows: Tensor) -> tuple[Any, Any]:
        """Inputs and targets, or a function that reads them if the engine recomputes."""
        if self.step.engine.recompute:
            return functools.partial(self.gather, rows), None
        return self.gather(rows)


def optimizer_of(
    model: nn.Module,
    optimizer: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> torch.optim.Optimizer:
    """The optimizer of the trained parameters of a model."""
    trained: Iterable[nn.Parameter] = [p for p in model.parameters() if p.requires_grad]
    try:
        return optimizer(trained, **options)
    except TypeError as error:
        raise TypeError(
            "Expected optimizer to be a class such as torch.optim.SGD, and its options as keyword "
            f"arguments: {error}. fit passes every keyword that is not its own to the optimizer; "
            "device, seed and precision belong in prudent.Execution."
        ) from error
