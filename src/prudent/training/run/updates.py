"""The updates of a run: read a batch, release its gradient, take an optimizer step."""

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import attrs
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import get_ema_multi_avg_fn

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.training.parallel.sharding import has_shards
from prudent.training.step import StepOutcome


class Average:
    """A running average of the trained parameters of a model over its last steps.

    torch's AveragedModel reads from the device at every step whether it is the first; a replayed
    CUDA graph must not wait for that. `keep` is the fraction of the average that each step keeps.
    """

    def __init__(self, model: nn.Module, keep: float) -> None:
        self._keep = _validate.between(0, 1, ends="[)", average=keep)
        if has_shards(model):
            raise ArgumentError("average", "None for a model sharded by fully_shard", got=keep)
        self._trained: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.values = _copies(self._trained)

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Update the averages after step number `step`, from 0; the first steps weigh the same."""
        keep = min(self._keep, step / (step + 1))
        update = get_ema_multi_avg_fn(keep)  # type: ignore[no-untyped-call]
        update(self.values, self._trained, step)

    def apply_average(self) -> None:
        """Copy the averages into the model."""
        _put(self.values, self._trained)

    def restore(self, values: list[Tensor] | None) -> None:
        """Restore saved averages, or start from the parameters if there are none."""
        _put(values or self._trained, self.values)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """A context in which the model holds the averages."""
        own = _copies(self._trained)
        self.apply_average()
        try:
            yield
        finally:
            _put(own, self._trained)


def _copies(values: list[Tensor]) -> list[Tensor]:
    return [value.detach().clone() for value in values]


@torch.no_grad()
def _put(values: list[Tensor], places: list[Tensor]) -> None:
    """Copy values in place, because a captured step refers to parameters by address."""
    for place, value in zip(places, values, strict=True):
        place.copy_(value)


@attrs.define
class Counters:
    """Sums over steps, and the position of the last reading."""

    passes: Tensor  # passed tests since the start of the run
    watched: Tensor  # sum of released losses since the last reading
    looks: Tensor  # number of released losses since the last reading
    read_step: int = 0  # step of the last reading
    read_passes: float = 0.0  # passed tests at the last reading

    @classmethod
    def start(cls, device: torch.device) -> Self:
        """All counters at zero."""
        # Separate tensors: saving a view in a checkpoint would save its private neighbours, too.
        passes, watched, looks = (
            torch.zeros((), dtype=torch.float64, device=device) for _ in range(3)
        )
        return cls(passes, watched, looks)

    def add(self, outcome: StepOutcome) -> None:
        """Count a step, in place and without reading values from the device."""
        self.passes += outcome.passed
        self.watched += outcome.watched.nan_to_num(nan=0.0)
        self.looks += outcome.watched.isfinite()

    def read(self, step: int) -> tuple[float, float, int]:
        """The pass rate and the mean released loss since the last reading, which this one replaces.

        With the number of released losses, without which there is no mean of them.
        """
        passes, looks = float(self.passes), int(self.looks)
        rate = (passes - self.read_passes) / max(1, step - self.read_step)
        watched = float(self.watched) / max(1, looks)
        self.read_step, self.read_passes = step, passes
        self.watched.zero_(), self.looks.zero_()
        return rate, watched, looks

    def restore(self, step: int, passes: Tensor) -> None:
        """Continue after `step` steps of a saved run, `passes` of which passed."""
        self.passes.copy_(passes)
        self.read_step, self.read_passes = step, float(self.passes)


Scheduler = Callable[[torch.optim.Optimizer], LRScheduler]
"""Makes a scheduler for an optimizer, such as `lambda o: CosineAnnealingLR(o, T_max=1000)`."""


def scheduler_of(make: Scheduler | None, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
    """The scheduler of a run, which must follow from the step alone and fit into a checkpoint."""
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


def restore_schedule(scheduler: LRScheduler | None, saved: dict[str, Any] | None) -> None:
    """Restore the state of a scheduler; another kind would take repeated steps elsewhere."""
    kind = None if scheduler is None else type(scheduler).__name__
    begun = None if saved is None else saved["kind"]
    if kind != begun:
        why = "repeated steps would release other sums with the same noise"
        allowed = f"as at the start of this run: {begun}"
        raise ArgumentError("scheduler", allowed, shown=str(kind), why=why)
    if scheduler is not None and saved is not None:
        scheduler.load_state_dict(saved["state"])


def optimizer_of(
    model: nn.Module, optimizer: Callable[..., torch.optim.Optimizer], options: dict[str, Any]
) -> torch.optim.Optimizer:
    """The optimizer of the trained parameters of a model."""
    if isinstance(rate := options.get("lr"), int | float):
        # As a float: torch takes an integer apart into 64 bits.
        rate = _validate.between(0, torch.finfo(torch.float32).max, lr=rate)
        options = {**options, "lr": rate}
    trained: Iterable[nn.Parameter] = [p for p in model.parameters() if p.requires_grad]
    if not trained:
        raise ArgumentError("model", "with a parameter that requires a gradient", shown="none")
    try:
        return optimizer(trained, **options)
    except TypeError as error:
        raise TypeError(
            "Expected optimizer to be a class such as torch.optim.SGD, and its options as keyword "
            f"arguments: {error}. fit passes every keyword that is not its own to the optimizer; "
            "device, seed and precision belong in prudent.Execution; evaluate, callbacks, out, "
            "resume and progress in prudent.Reporting."
        ) from error
    except ValueError as error:
        shown = f"{sorted(options)}: {error}"
        raise ArgumentError("options", "that the optimizer takes", shown=shown) from error
