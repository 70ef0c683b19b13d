"""The updates of a run: read a batch, release its gradient, take an optimizer step."""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from prudent import _validate
from prudent.training.captured import Captured
from prudent.training.chunk import Chunk
from prudent.training.run.counters import Counters
from prudent.training.run.data import Gather
from prudent.training.sampling import Batch
from prudent.training.step import Step, StepOutcome

_CAPTURABLE = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW


@attrs.define(kw_only=True)
class Updates:
    """Performs one update per batch, as a CUDA graph where that is possible.

    Attributes:
        step: Releases the gradient of a batch.
        optimizer: Updates the model from the released gradients.
        counters: Count every update.
        gather: Reads a batch of records from tensors on the device; None: chunks come read.
        scheduler: Changes the optimizer after every update; None: it stays as it is.
        captures: Whether the step is captured as a CUDA graph.
    """

    step: Step
    optimizer: torch.optim.Optimizer
    counters: Counters
    gather: Gather | None = None
    scheduler: LRScheduler | None = None
    captures: bool = False
    _captured: Captured | None = attrs.field(default=None, init=False)
    _taken: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.captures = self.captures and self.gather is not None and self.step.noise.capturable
        if self._captures_optimizer:
            for group in self.optimizer.param_groups:
                if "capturable" in group:
                    group["capturable"] = True

    @property
    def _captures_optimizer(self) -> bool:
        """Whether the graph includes the optimizer.

        A graph would repeat the settings with which it was captured, so an optimizer whose settings
        a scheduler changes runs outside it.
        """
        return self.captures and self.scheduler is None and type(self.optimizer) in _CAPTURABLE

    def __call__(self, batch: Batch | Sequence[Chunk]) -> StepOutcome:
        """Perform the update of one batch, given by its ids or as chunks already read."""
        if not isinstance(batch, Batch):
            outcome = self._update(batch)
        elif self.captures and len(batch.ids) == 1:
            outcome = self._replay(batch)
        else:
            outcome = self._update(self._chunks(batch.ids, batch.valid))
        if self.scheduler is not None:
            self.scheduler.step()
        return outcome

    def _replay(self, batch: Batch) -> StepOutcome:
        """Perform one update as a graph; the next one overwrites the tensors of the outcome.

        A replay counts its steps on the device and reads the keystream at its own position, as an
        uncaptured step would; the host counts here.
        """
        step = self.step
        step.refuse_beyond_plan()
        self._taken = step.taken
        if self._captured is None:
            self._captured = Captured(self._on_device, step.modes, [step.generator])
        with step.randomness.at(self._taken + 1).seeded():
            outcome, gradients = self._captured((), batch.ids, batch.valid)
        step.state.taken = self._taken + 1
        if not self._captures_optimizer:
            for parameter, gradient in zip(step.model.parameters(), gradients, strict=True):
                parameter.grad = gradient  # a batch of several chunks may have set another
            self.optimizer.step()
        return outcome

    def _on_device(
        self, _: tuple[()], ids: Tensor, valid: Tensor
    ) -> tuple[StepOutcome, list[Tensor | None]]:
        self.step.state.taken = self._taken  # a capture that failed has counted the step
        act = self._update if self._captures_optimizer else self._release
        outcome = act(self._chunks(ids, valid))
        return outcome, [parameter.grad for parameter in self.step.model.parameters()]

    def _update(self, chunks: Sequence[Chunk]) -> StepOutcome:
        outcome = self._release(chunks)
        self.optimizer.step()
        return outcome

    def _release(self, chunks: Sequence[Chunk]) -> StepOutcome:
        outcome = self.step(chunks)
        self.counters.add(outcome)
        return outcome

    def _chunks(self, ids: Tensor, valid: Tensor) -> list[Chunk]:
        return [
            Chunk(*self._records(rows), valid=real, ids=rows)
            for rows, real in zip(ids, valid, strict=True)
        ]

    def _records(self, rows: Tensor) -> tuple[Any, Any]:
        """Inputs and targets, or a function that reads them if the engine recomputes."""
        assert self.gather is not None
        if self.step.engine.recompute:
            return functools.partial(self.gather, rows), None
        return self.gather(rows)


def optimizer_of(
    model: nn.Module,
    optimizer: Callable[..., torch.optim.Optimizer],
    options: dict[str, Any],
) -> torch.optim.Optimizer:
    """The optimizer of the trained parameters of a model."""
    if isinstance(rate := options.get("lr"), int | float):
        # As a float: torch takes an integer apart into 64 bits.
        rate = _validate.between(0, torch.finfo(torch.float32).max, lr=rate)
        options = {**options, "lr": rate}
    trained: Iterable[nn.Parameter] = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise _validate.ArgumentError(
            "model", "with a parameter that requires a gradient", shown="none"
        )
    try:
        return optimizer(trained, **options)
    except TypeError as error:
        raise TypeError(
            "Expected optimizer to be a class such as torch.optim.SGD, and its options as keyword "
            f"arguments: {error}. fit passes every keyword that is not its own to the optimizer; "
            "device, seed and precision belong in prudent.Execution."
        ) from error
    except ValueError as error:
        raise _validate.ArgumentError(
            "options", "that the optimizer takes", shown=f"{sorted(options)}: {error}"
        ) from error
