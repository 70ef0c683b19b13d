"""A check of a model and its loss before private training, and layers in place of those that fail.

The first is `prudent.check`; the second is what `make_private(..., fix=True)` does.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from prudent import _validate
from prudent._torch_private import batch_norm, norm_base, pytree
from prudent._validate import ArgumentError
from prudent.training.aggregation import Sum
from prudent.training.checking.probes import (
    BatchLoss,
    Finding,
    LossKind,
    Severity,
    Subject,
    findings,
)
from prudent.training.chunk import Chunk
from prudent.training.gradients.engine import count_records, run_on
from prudent.training.gradients.unsupported import made_up as made_up_batch
from prudent.training.gradients.unsupported import refuse_unsupported
from prudent.training.plan import Plan
from prudent.training.run.held_out import modes_kept
from prudent.training.step import Step

__all__ = ["CheckReport", "Cost", "Finding", "LossKind", "Severity", "check"]

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


@attrs.frozen
class CheckReport:
    """What `check` found.

    Attributes:
        findings: Problems and remarks, each with a fix; the most severe first.
        loss: What the loss returns, None if that is not one of the known kinds. A mean or a sum is
            what `make_private` needs as `loss_reduction`; one value per record is what `fit` needs.
        cost: Time and memory of a step on the given batch, None if no private step is possible.
    """

    findings: tuple[Finding, ...]
    loss: LossKind | None
    cost: Cost | None

    @property
    def ok(self) -> bool:
        """Whether private training is possible: there is no finding of severity "error"."""
        return all(finding.severity is not Severity.ERROR for finding in self.findings)

    def __str__(self) -> str:
        head = "Ready for private training." if self.ok else "Not ready for private training."
        kind = "The loss is of no known kind." if self.loss is None else f"The loss is {self.loss}."
        cost = [] if self.cost is None else [str(self.cost)]
        return "\n".join([head, *(str(finding) for finding in self.findings), kind, *cost])


def check(model: nn.Module, loss: BatchLoss, batch: Any, *, made_up: bool = False) -> CheckReport:
    """Check whether a model and a loss can be trained privately, and what a step costs.

        print(prudent.check(model, nn.CrossEntropyLoss(), (inputs, targets)))

    The model is copied, so the check does not change it; torch's generators are restored. It takes
    about a dozen steps of ordinary training.

    Args:
        model: The model in training mode.
        loss: Maps outputs and targets to the mean or the sum over a batch, or to one value per
            record.
        batch: Inputs and targets: a pair of tensors, or of trees of tensors with the records on
            their first axis. At least two records. The report depends on their values and is
            neither noised nor charged, so they must be public or made up.
        made_up: Use only the shapes and types of the batch, and make its records up; then any batch
            will do. Their integers are 0 or 1.

    Returns:
        The findings, each with a fix, and the cost of a step.
    """
    _validate.instance(nn.Module, "a torch module", model=model)
    _validate.function(loss=loss)
    if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
        raise ArgumentError(
            "batch",
            "a pair of inputs and targets",
            shown=type(batch).__name__,
            hint="For a model with several arguments, inputs are a tuple or a dictionary.",
        )
    inputs, targets = batch
    records = count_records(inputs, targets)
    if _validate.flag(made_up=made_up):
        records = max(records, 4)
        inputs, targets = made_up_batch((inputs, targets), records, varied=True)
        inputs, targets = pytree.tree_map_only(Tensor, _alternating, (inputs, targets))
    if records < 2:
        raise ArgumentError("batch", "of two records or more", shown=str(records))
    device = next(model.parameters()).device
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.enable_grad():
        subject = Subject(model, loss, inputs, targets, records)
        order = list(Severity)
        found = sorted(findings(subject), key=lambda finding: order.index(finding.severity))
        report = CheckReport(tuple(found), subject.kind, None)
        return attrs.evolve(report, cost=_measured(subject)) if report.ok else report


def _measured(subject: Subject) -> Cost:
    """The cost of a step of `subject`, whose loss must be of a known kind."""
    plain, private = subject.copied(), subject.copied()
    (inputs, targets), (own, labels) = subject.batch(), subject.batch()

    def plain_step() -> None:
        losses = subject.loss(run_on(plain, inputs), targets)
        losses.mean().backward()  # type: ignore[no-untyped-call]

    rule, batch = Sum(clip=1.0, noise_multiplier=1.0), subject.records
    plan = Plan(sampling_rate=0.5, steps=1_000, aggregation=rule, expected_batch=batch)
    release = Step(plan, private, subject.record_loss)
    steps = (plain, plain_step), (private, lambda: release([Chunk(own, labels)]))
    seconds, memory = [_seconds(*step) for step in steps], [_peak_bytes(*step) for step in steps]
    return Cost(batch, seconds[0], seconds[1], memory[0], memory[1])


def _seconds(model: nn.Module, step: Callable[[], object]) -> float:
    """The least time of several runs, after one that is not counted."""
    device, times = next(model.parameters()).device, list[float]()
    wait: Callable[[], object] = lambda: None  # noqa: E731
    if device.type == "cuda":
        wait = partial(torch.cuda.synchronize, device)
    while not times or (times[-1] < _LONG and len(times) <= _REPEATS):
        model.zero_grad()
        wait()
        start = time.perf_counter()
        step()
        wait()
        times.append(time.perf_counter() - start)
    return min(times[1:] or times)


def _peak_bytes(model: nn.Module, step: Callable[[], object]) -> int:
    """Most memory held at a time of what a step allocates."""
    model.zero_grad()
    device = next(model.parameters()).device
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return torch.cuda.max_memory_allocated(device) - before
    level = os.environ.get(_LOG_LEVEL)
    os.environ[_LOG_LEVEL] = "9"  # else torch's profiler writes to the terminal
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            step()
    finally:
        os.environ.pop(_LOG_LEVEL)
        os.environ.update({} if level is None else {_LOG_LEVEL: level})
    events: Any = recorded.profiler
    held = peak = 0
    for event in sorted(events.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def _alternating(leaf: Tensor) -> Tensor:
    """Integers that are 0 or 1, different between neighbouring records."""
    if leaf.is_floating_point() or leaf.dtype == torch.bool:
        return leaf
    rows = torch.arange(leaf.shape[0], device=leaf.device).view(-1, *[1] * (leaf.ndim - 1))
    places = torch.arange(leaf[0].numel(), device=leaf.device).view(leaf.shape[1:])
    return ((rows + places) % 2).to(leaf.dtype)


_MOST_GROUPS, _LEAST_CHANNELS = 32, 4


def refuse_untrainable(model: nn.Module) -> None:
    """Raise an error for a layer that training mode would let mix records, before it runs."""
    with modes_kept(model):
        if not model.training:
            model.train()
        refuse_unsupported(model)


def replace_unsupported_layers(model: nn.Module) -> list[str]:
    """Replace in place what can be replaced of layers that no engine accepts.

    Parameters stay the same objects under the same names, so an optimizer over them stays valid.
    A normalisation that was put into evaluation mode within a model in training mode uses its
    running statistics, as one may mean, and stays.

    | layer | what takes its place |
    |---|---|
    | batch normalisation of channels | `GroupNorm`, in groups of four channels or more |
    | batch normalisation of features (`BatchNorm1d`) | `GroupNorm` with one group |
    | `InstanceNorm` that tracks running statistics | the same without tracking |
    | `Embedding` with `max_norm` or `scale_grad_by_freq` | both are unset |
    | `RReLU` | `LeakyReLU` with its mean slope |
    | trained parameters in half precision | the model in single precision |

    Returns:
        What was done, a sentence per layer.
    """
    done, instead = [], {}
    for layer in model.modules():
        make = next((make for kind, make in _INSTEAD if isinstance(layer, kind)), None)
        stays = isinstance(layer, norm_base) and model.training and not layer.training
        new = None if make is None or stays or layer is model else make(layer)
        if new is not None:  # the model itself cannot be replaced
            for name, parameter in layer.named_parameters():
                setattr(new, name, parameter)
            instead[id(layer)] = new
    for path, layer in list(model.named_modules(remove_duplicate=False)):
        if id(layer) in instead:
            new = instead[id(layer)].train(layer.training)
            model.set_submodule(path, new)
            done.append(f"Replaced {layer} at {path!r} by {new}.")
        elif isinstance(layer, nn.Embedding | nn.EmbeddingBag) and (
            layer.max_norm is not None or layer.scale_grad_by_freq
        ):
            layer.max_norm, layer.scale_grad_by_freq = None, False
            done.append(f"Unset max_norm and scale_grad_by_freq of {path or 'the model'!r}.")
    half = torch.float16, torch.bfloat16
    if any(p.requires_grad and p.dtype in half for p in model.parameters()):
        model.float()
        done.append("Converted the model to float32.")
    return done


def _group_norm(layer: Any) -> nn.Module | None:
    channels = layer.num_features
    flat = isinstance(layer, nn.BatchNorm1d)  # of one value in a group nothing would be left
    if flat and channels == 1:
        return None
    most = 1 if flat else min(_MOST_GROUPS, max(1, channels // _LEAST_CHANNELS))
    groups = next(groups for groups in range(most, 0, -1) if channels % groups == 0)
    return nn.GroupNorm(groups, channels, eps=layer.eps, affine=layer.affine)


def _untracked(layer: Any) -> nn.Module | None:
    tracks = layer.track_running_stats
    return type(layer)(layer.num_features, eps=layer.eps, affine=layer.affine) if tracks else None


_INSTEAD: tuple[tuple[type[nn.Module], Callable[..., nn.Module | None]], ...] = (
    (batch_norm, _group_norm),
    (norm_base, _untracked),
    (nn.RReLU, lambda layer: nn.LeakyReLU((layer.lower + layer.upper) / 2, layer.inplace)),
)
