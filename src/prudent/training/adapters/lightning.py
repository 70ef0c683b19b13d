"""Private training with Lightning: the Trainer stays, the module and the loader are made private.

Requires the extra `lightning`.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import attrs
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder
from torch import nn
from torch.utils.data import DataLoader
from typing_extensions import override

from prudent._validate import ArgumentError
from prudent.budget import LedgerLike
from prudent.records.people import Unit
from prudent.training.adapters.private import PrivacyTarget, opacus_migration_errors, prepare
from prudent.training.adapters.private_optimizer import Preparation, PrivateOptimizer, specialise
from prudent.training.aggregation import Aggregation
from prudent.training.gradients.engine import Loss
from prudent.training.keystream import Key
from prudent.training.plan import RELEASED, HeldOut, Plan, Watch
from prudent.training.sampling import PoissonLoader

Module = TypeVar("Module", bound=LightningModule)


@opacus_migration_errors(module=None)
def make_private(
    module: Module,
    loader: DataLoader[Any],
    *,
    model: nn.Module | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    epochs: int | None = None,
    clip: float | None = None,
    aggregation: Aggregation | None = None,
    bands: int | None = None,
    plan: Plan | None = None,
    watch: Watch | None = None,
    held_out: HeldOut | None = None,
    held_out_set: Any = None,
    held_out_loss: Loss | None = None,
    held_out_unit: Any = None,
    loss_reduction: str = "mean",
    max_physical_batch: int | None = None,
    example: Any = None,
    unit: Any = None,
    records_per_person: int | None = None,
    per_unit: str | None = None,
    fix: bool = False,
    key: Key | None = None,
    ledger: LedgerLike | None = None,
) -> tuple[Module, PoissonLoader]:
    """Make the training of a LightningModule private: returns the module and its new loader.

        module, loader = make_private(module, loader, epsilon=3.0, delta=1e-5, epochs=10)
        Trainer(max_epochs=10).fit(module, loader)

    The optimizer that `configure_optimizers` returns is made private, and schedulers act on it.
    After every epoch the ε so far is logged as "epsilon". Checkpoints hold the number of steps
    taken; to resume, make a module private with the same arguments and pass `ckpt_path`.

    Args:
        module: The same object is returned. Copies of it are ordinary modules.
        loader: The training loader.
        model: What `training_step` calls on a batch, if it is not the module itself:
            `model=module.net` for a step that calls `self.net(inputs)`.
        delta: As for `prudent.make_private`. With a plan, the δ at which ε is logged.
        watch: As for `prudent.make_private`: call `self.watch(losses)` in `training_step`. The
            noisy mean is logged as "train_loss", so log nothing else under this name.
        held_out: As for `prudent.make_private`. What is released is logged as "held_out_accuracy"
            or "held_out_loss"; callbacks and schedulers may monitor it, at no further cost.
        ledger: As for `prudent.make_private`; to resume, `ckpt_path` has the saved state.

    All other arguments are those of `prudent.make_private`.

    Guarantee:
        As for `prudent.make_private`. Values that `training_step` logs, such as the loss, are
        neither released nor charged: they must not leave the data's owner, and what would stop
        training by them, choose or name a model by them, or change the learning rate by them is
        refused. Steps taken after the
        checkpoint that a run resumes from are not in it; see `docs/opacus.md`.

    Raises:
        ArgumentError: If an argument is missing or does not fit; at the start of `fit`, if the
            trainer runs several processes, accumulates or clips gradients, scales losses, searches
            for a learning rate or a batch size, or would take more steps than the plan has; at the
            first step, if a callback or a scheduler monitors what training has logged.
    """
    model = module if model is None else model
    preparation = prepare(
        model,
        loader,
        PrivacyTarget(
            epsilon=epsilon,
            delta=delta if plan is None else None,
            epochs=epochs,
            clip=clip,
            aggregation=aggregation,
            bands=bands,
            watch=watch,
            held_out=held_out,
        ),
        plan=plan,
        held_out_set=held_out_set,
        held_out_loss=held_out_loss,
        held_out_unit=held_out_unit,
        loss_reduction=loss_reduction,
        max_physical_batch=max_physical_batch,
        example=example,
        unit=Unit.given(unit, records_per_person, per_unit),
        fix=fix,
        key=key,
        ledger=ledger,
    )
    run = _Run(preparation, delta)
    configure, callbacks = module.configure_optimizers, module.configure_callbacks
    specialise(
        module,
        configure_optimizers=lambda self: run.configured(configure()),
        configure_callbacks=lambda self: _with(callbacks(), _PrivacyCallback(run)),
        watch=lambda self, losses: run.watch(losses),
    )
    return module, preparation.loader


@attrs.define
class _Run:
    """A private run of a module."""

    preparation: Preparation  # what the run will be
    delta: float | None  # the δ at which ε is logged
    # The private optimizer, once the trainer has asked for one. Another `fit` gets the same, so
    # that no step is forgotten and no noise repeated.
    optimizer: PrivateOptimizer | None = None

    def watch(self, losses: torch.Tensor) -> None:
        """Hand over the losses of a batch; see `PrivateOptimizer.watch`."""
        if self.optimizer is not None:
            self.optimizer.watch(losses)

    def configured(self, configuration: Any) -> Any:
        """What `configure_optimizers` returns, with the optimizer made private."""
        optimizers: list[torch.optim.Optimizer] = []
        _mapped(configuration, optimizers.append)
        if len(optimizers) != 1:
            raise ArgumentError(
                "configure_optimizers", "to return one optimizer", shown=str(len(optimizers))
            )
        if self.optimizer is None:
            self.optimizer = PrivateOptimizer(optimizers[0], self.preparation)
        else:
            self.optimizer.wrap(optimizers[0])
        return _mapped(configuration, lambda _: self.optimizer, self.optimizer)


def _mapped(
    configuration: Any,
    change: Callable[[torch.optim.Optimizer], Any],
    of_schedulers: torch.optim.Optimizer | None = None,
) -> Any:
    """A configuration with every optimizer changed, and schedulers moved to another optimizer."""
    if isinstance(configuration, torch.optim.Optimizer):
        return change(configuration)
    if isinstance(configuration, dict):
        return {
            name: _mapped(value, change, of_schedulers) for name, value in configuration.items()
        }
    if isinstance(configuration, (list, tuple)):
        return type(configuration)(_mapped(value, change, of_schedulers) for value in configuration)
    if of_schedulers is not None and hasattr(configuration, "optimizer"):
        # Parameter groups are shared, but Lightning wants the optimizer that it was given.
        configuration.optimizer = of_schedulers
        _mark_steps(of_schedulers)
    return configuration


def _mark_steps(optimizer: Any) -> None:
    """Let a scheduler see that steps are taken, as it does with the optimizer it is made for."""
    step = optimizer.step
    if hasattr(step, "_wrapped_by_lr_sched"):
        return

    @functools.wraps(step)
    def marked(*args: Any, **kwargs: Any) -> Any:
        optimizer._opt_called = True
        return step(*args, **kwargs)

    marked._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = marked


class _PrivacyCallback(Callback):
    """Checks the trainer before a run, and logs ε after every epoch."""

    def __init__(self, run: _Run) -> None:
        self._run = run

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for callback in trainer.callbacks:
            if isinstance(callback, LearningRateFinder | BatchSizeFinder):
                raise ArgumentError(
                    "callbacks",
                    "without a search on the private records",
                    shown=type(callback).__name__,
                    why="what it finds follows from losses that are neither released nor charged",
                    hint="Search on public records before make_private, or with prudent.tune.",
                )

    @override
    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor
    ) -> None:
        # Before the step releases anything; training_step has logged what it logs.
        logged = _logged_in_training(trainer)
        for name, what in _monitored(trainer, logged):
            raise ArgumentError(
                "monitor",
                "a result of validation on public records",
                shown=f"{name!r} in {what}, which training has logged",
                why="it is neither released nor charged, and whatever follows it publishes it",
                hint="Log it in validation_step, on public records, or release it: see "
                "prudent.HeldOut and prudent.Watch.",
            )

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        steps = self._run.preparation.charge.plan.steps
        for name, allowed, value, is_allowed in (
            ("devices", "one process", trainer.world_size, trainer.world_size == 1),
            (
                "accumulate_grad_batches",
                "1, because two Poisson batches in one step can hold a record twice",
                trainer.accumulate_grad_batches,
                trainer.accumulate_grad_batches == 1,
            ),
            (
                "gradient_clip_val",
                "None, because the plan clips the gradient of every record",
                trainer.gradient_clip_val,
                not trainer.gradient_clip_val,
            ),
            (
                "precision",
                "without scaled losses, such as '32-true' or 'bf16-mixed'",
                trainer.precision,
                trainer.precision != "16-mixed",
            ),
            (
                "max_epochs",
                f"for at most the {steps} steps of the plan",
                f"{trainer.max_epochs}, {trainer.estimated_stepping_batches} steps",
                trainer.estimated_stepping_batches <= steps,
            ),
        ):
            if not is_allowed:
                raise ArgumentError(name, allowed, shown=str(value))

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        optimizer = self._run.optimizer
        for name, value in ({} if optimizer is None else optimizer.released).items():
            pl_module.log(name, value, on_step=True, on_epoch=False)

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizer, delta = self._run.optimizer, self._run.delta
        if optimizer is not None and delta is not None:
            pl_module.log("epsilon", optimizer.epsilon(delta), prog_bar=True)


def _logged_in_training(trainer: Trainer) -> set[str]:
    """The names under which callbacks find what training has logged, except what was released."""
    results = trainer.fit_loop.epoch_loop._results
    names = {
        result.meta.name
        for result in results.values()
        if (result.meta.fx, result.meta.name) not in _RELEASED
    }
    return {name + ending for name in names for ending in ("", "_step", "_epoch")}


_RELEASED = {
    ("on_train_epoch_end", "epsilon"),
    *(("on_train_batch_end", name + end) for name in RELEASED for end in ("", "_noise")),
}
"""What `_PrivacyCallback` logs: by which hook, and under which name."""


def _monitored(trainer: Trainer, logged: set[str]) -> Iterator[tuple[str, str]]:
    """The names among those that callbacks and schedulers follow, each with what follows it."""
    for callback in trainer.callbacks:
        if (name := getattr(callback, "monitor", None)) in logged:
            yield str(name), type(callback).__name__
        named = getattr(callback, "filename", None) or ""
        for name in logged:
            if isinstance(named, str) and (f"{{{name}}}" in named or f"{{{name}:" in named):
                yield name, f"the file names of {type(callback).__name__}"
    for configuration in trainer.lr_scheduler_configs:
        if configuration.reduce_on_plateau and configuration.monitor in logged:
            yield configuration.monitor, type(configuration.scheduler).__name__


def _with(callbacks: Sequence[Callback] | Callback, added: Callback) -> list[Callback]:
    return [*([callbacks] if isinstance(callbacks, Callback) else callbacks), added]
