"""A model, a loss and public records: what is found about them, and what a private step costs."""

import copy
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from prudent._torch_private import pytree
from prudent._validate import Choice
from prudent.training.aggregation import Sum
from prudent.training.chunk import Chunk
from prudent.training.gradients.engine import run_on
from prudent.training.plan import Plan
from prudent.training.step import Step

BatchLoss = Callable[[Any, Any], Tensor]
NEAR = 1e-3
"""Relative difference that rounding does not explain."""


class Severity(Choice):
    """What a finding means for private training."""

    ERROR = "error"
    """It would be refused, or its guarantee would not hold."""

    WARNING = "warning"
    """It is possible, but probably not what was meant."""

    NOTE = "note"
    """Nothing is wrong."""


class LossKind(Choice):
    """What a loss returns for a batch."""

    MEAN = "mean"
    SUM = "sum"
    PER_RECORD = "per record"

    def __str__(self) -> str:
        if self is LossKind.PER_RECORD:
            return "one value per record: use prudent.fit or prudent.Step"
        return f"a {self.value} over the records: loss_reduction={self.value!r} of make_private"


@attrs.frozen
class Finding:
    """One finding of a check."""

    where: str  # the layer, parameter or function concerned
    problem: str  # what was found
    fix: str  # what to do about it
    severity: Severity = Severity.ERROR  # what it means for private training

    def __str__(self) -> str:
        return f"[{self.severity.value}] {self.where}: {self.problem}\n    Fix: {self.fix}"


@attrs.define
class Subject:
    """A model, a loss and public records."""

    model: nn.Module  # the model, which is never run: only copies of it are
    loss: BatchLoss
    inputs: Any  # inputs of the records
    targets: Any  # targets of the records
    records: int  # number of records
    kind: LossKind | None = None  # what the loss returns, as far as it is known

    def outputs(self) -> Any:
        """The outputs of the model for all records at once."""
        return run_on(self.copied(), cloned(self.inputs))

    def copied(self) -> nn.Module:
        """A new copy of the model, to which nothing has been done."""
        return copy.deepcopy(self.model)

    def batch(self, rows: slice = slice(None)) -> Any:
        """A copy of the inputs and targets of some records."""
        return pytree.tree_map_only(
            Tensor, lambda leaf: leaf[rows].clone(), (self.inputs, self.targets)
        )

    def first(self, tree: Any) -> Any:
        """A batch of the first record alone; tensors without a record axis stay."""
        return self._by_record(tree, lambda leaf: leaf[:1].clone())

    def first_everywhere(self, tree: Any) -> Any:
        """The batch with copies of the first record in place of the others."""
        return self._by_record(tree, lambda leaf: leaf[:1].expand_as(leaf).clone())

    def has_rows(self, leaf: Any) -> bool:
        """Whether a tensor has the records on its first axis."""
        return isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == self.records

    def _by_record(self, tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
        return pytree.tree_map_only(
            Tensor, lambda leaf: change(leaf.detach()) if self.has_rows(leaf) else leaf, tree
        )

    def record_loss(self, outputs: Any, targets: Any) -> Tensor:
        """The loss of a batch of one record, as engines call it."""
        return self.loss(outputs, targets).reshape(1)


def cloned(tree: Any) -> Any:
    """A copy of a tree of tensors, without their graph."""
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.detach().clone(), tree)


def same(one: Any, other: Any) -> bool:
    """Whether two trees of tensors agree up to rounding."""
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    return all(
        torch.allclose(a.double(), b.double(), rtol=NEAR, atol=NEAR * scale(a), equal_nan=True)
        for a, b in pairs
        if isinstance(a, Tensor)
    )


def scale(values: Tensor) -> float:
    """The largest finite magnitude; 0 if there is none."""
    finite = values[torch.isfinite(values)] if values.is_floating_point() else values
    return float(finite.abs().max()) if finite.numel() else 0.0


_LOG_LEVEL = "KINETO_LOG_LEVEL"
_REPEATS = 3
_LONG = 5.0  # seconds after which a measurement is not repeated


@attrs.frozen
class Cost:
    """What a step costs on one batch, without the optimizer's own work."""

    records: int  # number of records in the batch
    plain_seconds: float  # Forward and backward without privacy
    private_seconds: float  # the same with a gradient norm per record, clipping and noise
    plain_bytes: int  # most memory held at a time by the step without privacy, besides the model
    private_bytes: int  # the same for the private step

    @property
    def time_ratio(self) -> float:
        """Time of a private step relative to one without privacy."""
        return self.private_seconds / self.plain_seconds

    @property
    def memory_ratio(self) -> float:
        """Memory of a private step relative to one without privacy."""
        return self.private_bytes / max(1, self.plain_bytes)

    def __str__(self) -> str:
        return (
            f"A private step on these {self.records} records takes {self.time_ratio:.2g} × the "
            f"time of an ordinary one ({self.private_seconds * 1e3:.3g} ms, "
            f"{self.plain_seconds * 1e3:.3g} ms) and {self.memory_ratio:.2g} × its memory "
            f"({self.private_bytes / 2**20:.3g} MiB, {self.plain_bytes / 2**20:.3g} MiB)."
        )


def measured(subject: Subject) -> Cost:
    """The cost of a step of `subject`, whose loss must be of a known kind."""
    plain, private = _plain(subject), _private(subject)
    return Cost(
        subject.records,
        _seconds(*plain),
        _seconds(*private),
        _peak_bytes(*plain),
        _peak_bytes(*private),
    )


def _plain(subject: Subject) -> tuple[nn.Module, Callable[[], object]]:
    """A copy of the model, and a step without privacy on it."""
    model, (inputs, targets) = subject.copied(), subject.batch()

    def step() -> None:
        losses = subject.loss(run_on(model, inputs), targets)
        loss = losses.mean() if subject.kind is LossKind.PER_RECORD else losses
        loss.backward()  # type: ignore[no-untyped-call]

    return model, step


def _private(subject: Subject) -> tuple[nn.Module, Callable[[], object]]:
    """A copy of the model, and a private step on it."""
    model, (inputs, targets) = subject.copied(), subject.batch()
    plan = Plan(
        sampling_rate=0.5,
        steps=1_000,
        aggregation=Sum(clip=1.0, noise_multiplier=1.0),
        expected_batch=subject.records,
    )
    release = Step(plan, model, subject.record_loss)
    return model, lambda: release([Chunk(inputs, targets)])


def _seconds(model: nn.Module, step: Callable[[], object]) -> float:
    """The least time of several runs, after one that is not counted."""
    times = [_timed(model, step)]
    while times[-1] < _LONG and len(times) <= _REPEATS:
        times.append(_timed(model, step))
    return min(times[1:] or times)


def _timed(model: nn.Module, step: Callable[[], object]) -> float:
    model.zero_grad()
    _wait(model)
    start = time.perf_counter()
    step()
    _wait(model)
    return time.perf_counter() - start


def _peak_bytes(model: nn.Module, step: Callable[[], object]) -> int:
    """Most memory held at a time of what a step allocates."""
    model.zero_grad()
    device = next(model.parameters()).device
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    events: Any = recorded.profiler
    held = peak = 0
    for event in sorted(events.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch's profiler from writing to the terminal."""
    before = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = "9"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_LOG_LEVEL]
        else:
            os.environ[_LOG_LEVEL] = before


def _wait(model: nn.Module) -> None:
    device = next(model.parameters()).device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
