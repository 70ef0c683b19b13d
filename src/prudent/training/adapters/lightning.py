"""Private training with Lightning, by its own Trainer. Requires the extra `lightning`."""

from collections.abc import Callable
from itertools import chain
from typing import Any, TypeVar

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, LearningRateFinder, Timer
from torch import nn
from torch.utils.data import DataLoader

from prudent._torch_private import pytree
from prudent._validate import ArgumentError
from prudent.training.adapters import private
from prudent.training.sampling import PoissonLoader

Module = TypeVar("Module", bound=LightningModule)


@private.opacus_migration_errors(module=None, noise_multiplier=None)
def make_private(
    module: Module,
    loader: DataLoader[Any],
    *,
    model: nn.Module | None = None,
    delta: float | None = None,
    **options: Any,
) -> tuple[Module, PoissonLoader]:
    """Make the training of a LightningModule private: returns the module and its new loader.

        module, loader = make_private(module, loader, epsilon=3.0, delta=1e-5, epochs=10)
        Trainer(max_epochs=10).fit(module, loader)

    The ε so far is logged after every epoch as "epsilon"; what the plan releases under its name:
    "train_loss" of the losses passed to `self.watch`, "held_out_accuracy" or "held_out_loss".
    Callbacks and schedulers may monitor these. The arguments are those of `prudent.make_private`;
    with a plan, `delta` is that of the ε. `model` is what `training_step` calls, if not the module.

    Guarantee:
        As for `prudent.make_private`. Values that the module or a callback logs in training are
        neither released nor charged: they must not leave the data's owner, and to log what would be
        followed is refused. Steps taken after the checkpoint that a run resumes from are not in it.
    """
    options["delta"] = delta if options.get("plan") is None else None
    prepared = private.Preparation(module if model is None else model, loader, **options)
    privacy = _Privacy(prepared, delta, module.log)
    configure, callbacks = module.configure_optimizers, module.configure_callbacks
    private.specialise(
        module,
        configure_optimizers=lambda self: privacy.configured(configure()),
        configure_callbacks=lambda self: [*pytree.tree_leaves(callbacks()), privacy],
        log=lambda self, name, *args, **options: privacy.logged(name, *args, **options),
        watch=lambda self, losses: privacy.optimizer and privacy.optimizer.watch(losses),
    )
    return module, prepared.loader


class _Privacy(Callback):
    """Makes the optimizer of a module private, checks its trainer, and logs what is released."""

    def __init__(
        self, preparation: private.Preparation, delta: float | None, log: Callable[..., None]
    ) -> None:
        self.preparation, self.delta, self._log = preparation, delta, log
        self.trainer: Trainer | None = None  # once it fits the module
        # Another `fit` gets the same one, so that no step is forgotten and no noise repeated.
        self.optimizer: Any = None

    def configured(self, configuration: Any) -> Any:
        """What `configure_optimizers` returns, with the optimizer made private."""
        leaves, form = pytree.tree_flatten(configuration)
        given = [leaf for leaf in leaves if isinstance(leaf, torch.optim.Optimizer)]
        if len(given) != 1:
            raise ArgumentError("configure_optimizers", "to return one optimizer", got=len(given))
        self.optimizer = self.optimizer or private.PrivateOptimizer(given[0], self.preparation)
        self.optimizer.wrap(given[0])
        for scheduler in (leaf for leaf in leaves if hasattr(leaf, "optimizer")):
            scheduler.optimizer = self.optimizer  # else Lightning refuses it
            torch.optim.lr_scheduler.ConstantLR(self.optimizer, factor=1.0)  # marks its steps
        leaves = [self.optimizer if leaf is given[0] else leaf for leaf in leaves]
        return pytree.tree_unflatten(leaves, form)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        self.trainer = trainer
        steps, taken = self.preparation.charge.plan.steps, trainer.estimated_stepping_batches
        banned = LearningRateFinder | BatchSizeFinder | Timer
        found = [each for each in trainer.callbacks if isinstance(each, banned)]
        # An epoch may have another number, by a GradientAccumulationScheduler.
        later = [n for each in trainer.callbacks for n in getattr(each, "scheduling", {}).values()]
        parts, clip = max([trainer.accumulate_grad_batches, *later]), trainer.gradient_clip_val
        which = "without finders (search on public records) or timers, such as max_time, which end "
        which += "a run by how long secret batches take"
        for name, allowed, value, is_allowed in (
            ("callbacks", which, found, not found),
            ("detect_anomaly", "False: it stops at one record", True, not trainer._detect_anomaly),
            ("devices", "one process", trainer.world_size, trainer.world_size == 1),
            ("accumulate_grad_batches", "1: a step is one Poisson batch", parts, parts == 1),
            ("gradient_clip_val", "None: the plan clips every record", clip, not clip),
            ("precision", "without scaled losses", "16-mixed", trainer.precision != "16-mixed"),
            ("max_epochs", f"for at most the {steps} steps of the plan", taken, taken <= steps),
        ):
            if not is_allowed:
                raise ArgumentError(name, allowed, shown=str(value))

    def logged(self, name: str, *args: Any, **options: Any) -> None:
        """Log a value as the module does, unless in training a callback or scheduler follows it."""
        run = self.trainer
        given = () if run is None or not run.training else (run.callbacks, run.lr_scheduler_configs)
        for follower in chain(*given):
            file, monitor = str(getattr(follower, "filename", "")), getattr(follower, "monitor", "")
            for shown in (name, f"{name}_step", f"{name}_epoch"):
                if shown == monitor or f"{{{shown}}}" in file or f"{{{shown}:" in file:
                    shown = f"{shown!r} in {type(follower).__name__}, which training has logged"
                    why = "it is neither released nor charged, and whatever follows it shows it"
                    hint = "Log it in validation_step, or release it: see prudent.HeldOut."
                    allowed = "a result of validation on public records"
                    raise ArgumentError("monitor", allowed, shown=shown, why=why, hint=hint)
        self._log(name, *args, **options)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        for name, value in self.optimizer.released.items():
            self._log(name, value, on_step=True, on_epoch=False)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.delta is not None:
            self._log("epsilon", self.optimizer.epsilon(self.delta), prog_bar=True)
