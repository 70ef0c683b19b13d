"""Learning rate schedules, stepped after every update and saved in checkpoints."""

import io
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from prudent._validate import ArgumentError

Scheduler = Callable[[torch.optim.Optimizer], LRScheduler]
"""Makes a scheduler for an optimizer, such as `lambda o: CosineAnnealingLR(o, T_max=1000)`."""


def scheduler_of(make: Scheduler | None, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
    """The scheduler of a run; None if there is none.

    Raises:
        ArgumentError: If it cannot be stepped without a measurement or cannot be saved.
    """
    if make is None:
        return None
    scheduler = make(optimizer) if callable(make) else make
    if not isinstance(scheduler, LRScheduler) or isinstance(scheduler, ReduceLROnPlateau):
        raise ArgumentError(
            "scheduler",
            "a function of the optimizer that returns a torch scheduler of the step alone",
            shown=type(scheduler).__name__,
            hint="Such as scheduler=lambda optimizer: CosineAnnealingLR(optimizer, T_max=steps).",
        )
    file = io.BytesIO()
    try:
        torch.save(scheduler.state_dict(), file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        raise ArgumentError(
            "scheduler",
            "with a state of tensors and plain values, which a checkpoint can hold",
            shown=type(scheduler).__name__,
            hint="Keep functions out of its state, or use LambdaLR with a plain function.",
        ) from error
    return scheduler


def schedule_state(scheduler: LRScheduler | None) -> dict[str, Any] | None:
    """The state of a scheduler for a checkpoint."""
    if scheduler is None:
        return None
    return {"kind": type(scheduler).__name__, "state": scheduler.state_dict()}


def restore_schedule(scheduler: LRScheduler | None, saved: dict[str, Any] | None) -> None:
    """Restore what `schedule_state` returned.

    Raises:
        ValueError: If the run was started with another kind of scheduler. Its repeated steps would
            be taken from other parameters with the same noise.
    """
    kinds = [None if saved is None else saved["kind"]]
    kinds.append(None if scheduler is None else type(scheduler).__name__)
    if kinds[0] != kinds[1]:
        raise ArgumentError(
            "scheduler",
            f"as at the start of this run: {kinds[0]}",
            shown=str(kinds[1]),
            why="repeated steps would release other sums with the same noise",
        )
    if scheduler is not None and saved is not None:
        scheduler.load_state_dict(saved["state"])
