"""How a run executes its plan and updates its model, and what it evaluates, shows and writes.

None of this can change its guarantee.
"""

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import get_ema_multi_avg_fn

from prudent import _validate
from prudent._torch_private import pytree
from prudent._validate import ArgumentError
from prudent.receipts.making import ReceiptFile, ReceiptTarget
from prudent.training.gradients import BookKeeping, Engine, Materialised
from prudent.training.gradients.engine import Loss, modes_kept, run_on
from prudent.training.keystream import Key
from prudent.training.parallel import Processes, has_shards, join, local_device
from prudent.training.run.metrics import Metrics

Scheduler = Callable[[torch.optim.Optimizer], LRScheduler]
"""Makes a scheduler for an optimizer, such as `lambda o: CosineAnnealingLR(o, T_max=1000)`."""

Evaluate = Callable[[nn.Module], Mapping[str, float]]
"""Maps the model to named numbers, computed from public data."""

Callback = Callable[[nn.Module, Metrics], object]
"""Called with the model and the public metrics at every evaluation."""


class EngineChoice(_validate.Choice):
    """The engine that computes per-example norms and weighted sums."""

    BOOKKEEPING = "bookkeeping"
    MATERIALISED = "materialised"


class Precision(_validate.Choice):
    """The number type of the model's layers.

    Parameters, norms, clipping and noise are unaffected.
    """

    FULL = "full"  # the type of the parameters
    BF16 = "bf16"  # bfloat16 wherever torch.autocast uses it


def _device(given: torch.device | str) -> torch.device:
    return _validate.device(device=given)


@attrs.frozen(kw_only=True)
class Execution:
    """Where and how a plan is executed, without influence on its guarantee.

    Attributes:
        device: Device of the model and the data. With several processes, "cuda" means the GPU
            numbered LOCAL_RANK in each.
        engine: The engine that computes per-example norms.
        physical_batch: Records, or people, that each process computes at a time. None: enough for
            most draws.
        recompute: Run each chunk twice instead of keeping what its weighted sum needs, so that
            memory of the device does not grow with the logical batch. No CUDA graph is captured.
            Random numbers of the model must come from torch's default generators, which are reset
            for the second run; a second run with different losses raises an error.
        precision: The number type of the model's layers.
        cuda_graph: Capture the step as a CUDA graph, with several processes as one for each part
            between exchanges. None: on every CUDA device.
        workers: Processes that read the items of a data set ahead of time. 0: this process reads
            them when they are needed. Tensors need none.
        prefetch: Steps whose records each worker reads ahead.
        seed: Derive the key of sampling and noise from this number. The run is then reproducible,
            and its noise is predictable to whoever knows or guesses the number. None, the default:
            a 256-bit key from the operating system.
        distributed: Whether to divide the work among processes. None: if torchrun started this
            process with others, or a process group exists. False: each process trains on its own.
    """

    device: torch.device = attrs.field(default=torch.device("cpu"), converter=_device)
    engine: EngineChoice = attrs.field(default=EngineChoice.BOOKKEEPING, converter=EngineChoice)
    physical_batch: int | None = None
    recompute: bool = False
    precision: Precision = attrs.field(default=Precision.FULL, converter=Precision)
    cuda_graph: bool | None = None
    workers: int = 0
    prefetch: int = 2
    seed: int | None = None
    distributed: bool | None = None

    def __attrs_post_init__(self) -> None:
        _validate.given_fields(self, partial(_validate.count, 1), "physical_batch")
        _validate.fields(self, partial(_validate.count, 1), "prefetch")
        _validate.fields(self, _validate.count, "workers")
        _validate.given_fields(self, _validate.count, "seed")

    @property
    def captures(self) -> bool:
        """Whether the step is to be captured as a CUDA graph."""
        if self.recompute:
            return False
        return self.device.type == "cuda" if self.cuda_graph is None else self.cuda_graph

    @property
    def computation(self) -> tuple[str, ...]:
        """The settings that can change how a sum is rounded."""
        chosen = (self.engine, self.precision, self.recompute)
        return tuple(str(setting) for setting in (*chosen, self.captures))

    def joined(self) -> tuple["Execution", Processes]:
        """The execution settings of this process, and the processes of the run."""
        if self.device.type == "cuda" and not torch.cuda.is_available():
            allowed = "'cpu', because no CUDA device is available"
            raise ArgumentError("device", allowed, got=str(self.device))
        if self.distributed is False:
            return self, Processes()
        processes = join(local_device(self.device))
        if processes.count == 1:
            if self.distributed:
                allowed = "False or None in one process"
                hint = "Start several: torchrun --nproc-per-node 2 ..."
                raise ArgumentError("distributed", allowed, got=True, hint=hint)
            return self, processes
        return attrs.evolve(self, device=local_device(self.device)), processes

    def key(self) -> Key:
        """The key of sampling and noise: derived from the seed if given, else new at every call."""
        return Key.random() if self.seed is None else Key.from_seed(self.seed)

    def engine_of(self, model: nn.Module, loss: Loss, slots: int | None = None) -> Engine:
        """The chosen engine for a model and its loss; `slots` as for every engine."""
        autocast = torch.bfloat16 if self.precision is Precision.BF16 else None
        kind = BookKeeping if self.engine is EngineChoice.BOOKKEEPING else Materialised
        return kind(model, loss, recompute=self.recompute, autocast=autocast, slots=slots)


def _functions(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    given = _validate.values(callbacks=callbacks)
    return tuple(_validate.function(callbacks=callback) for callback in given)


def _folder(out: str | Path | None) -> Path | None:
    return None if out is None else _validate.path(out=out)


@attrs.frozen(kw_only=True)
class Reporting:
    """What a run evaluates, shows and writes, and when; without influence on its guarantee.

    Attributes:
        evaluate: Called with the model at every evaluation, in every process. Its results are
            shown, so it must use public data. Training and evaluation modes are restored after it.
            It is called once more before anything is charged, so that its errors cost nothing; the
            result of that call is not used. If it has a method `rehearse`, as `accuracy` does, that
            is called instead.
        evaluate_every: Steps between evaluations, metrics and checkpoints. None: a tenth of the
            run.
        callbacks: Functions called with the model and the public metrics after each of them is
            recorded and saved, in the first process. They see nothing private, and nothing that
            they do with it costs anything.
        monitor: The name of the number by which `patience` and `keep_best` go: a result of
            `evaluate`, or what the plan releases (`held_out_accuracy`, `held_out_loss`,
            `train_loss`). One whose name ends in "loss" is better if it is lower. None: what the
            plan releases.
        patience: End the run when this number of values in a row are no better than the best so
            far; None: take all steps. It costs nothing more, and no less: the price is that of the
            plan, because when the run ended depends on what was released.
        keep_best: Return the model with the best value instead of the last one. Costs nothing.
        out: Folder for metrics.jsonl, paid.json and checkpoint.pt, used by one run at a time. The
            checkpoint holds the key of the noise, so it is as secret as the data.
        receipt: Where the receipt of the run goes; None: receipt.json in `out`, if there is one.
        resume: Continue from the checkpoint in `out`, if there is one. Steps since then are
            repeated with the same noise if everything is proved to be as it was, and otherwise
            counted but not repeated: see `prudent.training.run.checkpoint`. A run may be resumed
            with more steps than it was started with if a ledger is charged for them.
        progress: Show a progress bar. None: where standard error is a terminal.
    """

    evaluate: Evaluate | None = None
    evaluate_every: int | None = None
    callbacks: Iterable[Callback] = attrs.field(default=(), converter=_functions)
    monitor: str | None = None
    patience: int | None = None
    keep_best: bool = False
    out: Path | None = attrs.field(default=None, converter=_folder)
    receipt: ReceiptTarget | None = None
    resume: bool = False
    progress: bool | None = None

    def __attrs_post_init__(self) -> None:
        _validate.given_fields(self, _validate.function, "evaluate")
        _validate.given_fields(self, partial(_validate.count, 1), "evaluate_every", "patience")
        named = partial(_validate.instance, str, "a name or None")
        _validate.given_fields(self, named, "monitor")
        _validate.fields(self, _validate.flag, "resume", "keep_best")
        _validate.given_fields(self, _validate.flag, "progress")

    @property
    def shows_progress(self) -> bool:
        """Whether to show a progress bar."""
        return sys.stderr.isatty() if self.progress is None else self.progress

    @property
    def receipt_file(self) -> ReceiptFile | None:
        """Where the receipt goes, if there is one."""
        place = self.receipt
        if place is None and self.out is not None:
            place = self.out / "receipt.json"
        return place if place is None or isinstance(place, ReceiptFile) else ReceiptFile(place)


@attrs.frozen(eq=False)
class accuracy:  # noqa: N801 - used as a function
    """An evaluation function for `fit`: the fraction of correct labels on public data.

    Attributes:
        features: A tensor or a tree of tensors, with records along the first dimension, passed to
            the model as in training. The model returns scores of classes, or an object with them as
            `logits`.
        labels: Class indices, in the shape of the scores without their last axis. Of those that
            torch's losses ignore, -100, none is counted.
        batch: Number of records per forward pass.
    """

    features: Any
    labels: Tensor
    batch: int = 1000

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """The fraction of correct labels, as `{"accuracy": ...}`."""
        self.rehearse(model)
        starts = range(0, len(self.labels), self.batch)
        right = sum(self.right(model, start, start + self.batch) for start in starts)
        return {"accuracy": right / max(1, int((self.labels != -100).sum()))}

    def rehearse(self, model: nn.Module) -> None:
        """Evaluate one record, so that errors show before anything is charged."""
        scores, labels = self._scored(model, 0, 1)
        leaves = [leaf for leaf in pytree.tree_leaves(self.features) if isinstance(leaf, Tensor)]
        if {len(leaf) for leaf in leaves} != {len(self.labels)} or not len(self.labels):
            raise ArgumentError("labels", "one or more, as many as records", got=len(self.labels))
        if scores.shape[:-1] != labels.shape or scores.shape[-1] < 2:  # else they are broadcast
            allowed = f"for scores of two or more classes, here of shape {tuple(scores.shape)}"
            raise ArgumentError("labels", allowed, shown=f"labels of shape {tuple(labels.shape)}")

    def right(self, model: nn.Module, start: int, stop: int) -> int:
        """The number of correct labels among the records from `start` to before `stop`."""
        scores, labels = self._scored(model, start, stop)
        return int((scores.argmax(-1) == labels).sum())

    @torch.no_grad()
    def _scored(self, model: nn.Module, start: int, stop: int) -> tuple[Tensor, Tensor]:
        device = next(model.parameters()).device
        inputs = pytree.tree_map_only(
            Tensor, lambda leaf: leaf[start:stop].to(device), self.features
        )
        with modes_kept(model):
            outputs = run_on(model.eval(), inputs)
        return getattr(outputs, "logits", outputs), self.labels[start:stop].to(device)


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


def scheduler_of(make: Scheduler | None, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
    """The scheduler of a run, which must follow from the step alone and fit into a checkpoint."""
    if make is None:
        return None
    scheduler = make(optimizer) if callable(make) else make
    shown = type(scheduler).__name__
    follows = isinstance(scheduler, LRScheduler) and not isinstance(scheduler, ReduceLROnPlateau)
    if not follows or scheduler.optimizer is not optimizer:  # of another it would do nothing
        allowed = "a function of the optimizer that returns a torch scheduler of the step alone"
        hint = "Such as scheduler=lambda optimizer: CosineAnnealingLR(optimizer, T_max=steps)."
        raise ArgumentError("scheduler", allowed, shown=shown, hint=hint)
    file = io.BytesIO()
    try:
        torch.save(scheduler.state_dict(), file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception as error:
        allowed = "with a state of tensors and plain values, which a checkpoint can hold"
        hint = "Keep functions out of its state, or use LambdaLR with a plain function."
        raise ArgumentError("scheduler", allowed, shown=shown, hint=hint) from error
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
        made = optimizer(trained, **options)
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
    check_step(made)
    return made


def check_step(optimizer: torch.optim.Optimizer) -> None:
    """Raise an error for an optimizer whose step needs other than one released gradient."""
    if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
        allowed, shown = "that needs no closure and takes dense gradients", type(optimizer).__name__
        why = "a step releases one, with noise everywhere, and another would be another release"
        raise ArgumentError("optimizer", allowed, shown=shown, why=why)
