"""What a run evaluates, shows and writes."""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from prudent import _validate
from prudent._torch_private import pytree
from prudent.receipts.making import ReceiptFile, ReceiptTarget
from prudent.training.gradients.engine import run_on
from prudent.training.run.held_out import modes_kept
from prudent.training.run.metrics import Metrics

Evaluate = Callable[[nn.Module], Mapping[str, float]]
"""Maps the model to named numbers, computed from public data."""

Callback = Callable[[nn.Module, Metrics], object]
"""Called with the model and the public metrics at every evaluation."""


def _functions(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    given = _validate.values(callbacks=callbacks)
    return tuple(_validate.function(callbacks=callback) for callback in given)


def _steps(marks: Collection[int]) -> tuple[int, ...]:
    given = _validate.values(evaluate_at=marks)
    return tuple(_validate.count(evaluate_at=mark) for mark in given)


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
        evaluate_at: Additional steps after which to do the same.
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
            counted but not repeated: see `prudent.training.run.resuming`. A run may be resumed
            with more steps than it was started with if a ledger is charged for them.
        progress: Show a progress bar. None: where standard error is a terminal.
        tensorboard: Also write TensorBoard files to `out`.
        private_diagnostics: Also record values that are neither released nor charged (drawn batch
            size, training loss). They must not leave the data's owner.
    """

    evaluate: Evaluate | None = None
    evaluate_every: int | None = None
    evaluate_at: Collection[int] = attrs.field(default=(), converter=_steps)
    callbacks: Iterable[Callback] = attrs.field(default=(), converter=_functions)
    monitor: str | None = None
    patience: int | None = None
    keep_best: bool = False
    out: Path | None = attrs.field(default=None, converter=_folder)
    receipt: ReceiptTarget | None = None
    resume: bool = False
    progress: bool | None = None
    tensorboard: bool = False
    private_diagnostics: bool = False

    def __attrs_post_init__(self) -> None:
        if self.evaluate is not None:
            _validate.function(evaluate=self.evaluate)
        if self.evaluate_every is not None:
            _validate.fields(self, partial(_validate.count, 1), "evaluate_every")
        if self.patience is not None:
            _validate.fields(self, partial(_validate.count, 1), "patience")
        if self.monitor is not None:
            _validate.instance(str, "a name or None", monitor=self.monitor)
        flags = ("resume", "tensorboard", "private_diagnostics", "keep_best")
        _validate.fields(self, _validate.flag, *flags)
        if self.progress is not None:
            _validate.fields(self, _validate.flag, "progress")

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
        labels: Class indices.
        batch: Number of records per forward pass.
    """

    features: Any
    labels: Tensor
    batch: int = 1000

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """The fraction of correct labels, as `{"accuracy": ...}`."""
        starts = range(0, len(self.labels), self.batch)
        right = sum(self.right(model, start, start + self.batch) for start in starts)
        return {"accuracy": right / len(self.labels)}

    def rehearse(self, model: nn.Module) -> None:
        """Evaluate one record, so that errors show before anything is charged."""
        self.right(model, 0, 1)

    @torch.no_grad()
    def right(self, model: nn.Module, start: int, stop: int) -> int:
        """The number of correct labels among the records from `start` to before `stop`."""
        device = next(model.parameters()).device
        inputs = pytree.tree_map_only(
            Tensor, lambda leaf: leaf[start:stop].to(device), self.features
        )
        with modes_kept(model):
            outputs = run_on(model.eval(), inputs)
        guesses = getattr(outputs, "logits", outputs).argmax(-1)
        return int((guesses == self.labels[start:stop].to(device)).sum())
