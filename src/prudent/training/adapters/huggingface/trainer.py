"""A Hugging Face `Trainer` whose every update is a private step."""

import functools
import inspect
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_utils import TrainOutput, get_last_checkpoint

from prudent._files import sha256
from prudent._validate import ArgumentError
from prudent.accounting.group_privacy import epsilon_of
from prudent.accounting.pld_accountant import PldAccountant
from prudent.budget.charging import LedgerLike
from prudent.records.containers import fingerprint as records_fingerprint
from prudent.records.reader import checked
from prudent.training.adapters.huggingface import settings
from prudent.training.adapters.huggingface.records import (
    LogicalBatch,
    LogicalDraws,
    LogicalRecords,
    PhysicalBatch,
    Row,
    examples_of,
    padded,
)
from prudent.training.adapters.huggingface.self_test import (
    Positions,
    check_optimizer,
    check_reach,
    reach,
)
from prudent.training.adapters.huggingface.settings import PaidSteps, identity_of
from prudent.training.aggregation import Aggregation, ProposeTestRelease
from prudent.training.chunk import Chunk, within_memory
from prudent.training.gradients import BookKeeping
from prudent.training.keystream import Key, Uncopied, given_or_random
from prudent.training.plan import Plan
from prudent.training.run.charging import RunCharge
from prudent.training.run.checkpoint import (
    CHECKPOINT,
    Identity,
    load_checkpoint,
    save_checkpoint,
    warn_of_lost_steps,
)
from prudent.training.sampling import PoissonSampler
from prudent.training.step import Step

_PRIVATE = ("loss", "train_loss", "total_flos")
"""What Trainer logs about the training records; it is neither released nor charged."""
_LESS_AT_ONCE = "Lower it, and raise gradient_accumulation_steps by the same factor."

_EXAMPLES = 16
"""Number of public records that are looked at before training."""

_UPDATES = 3
"""Number of updates by which every trained parameter must have moved."""


class PrivateTrainer(Uncopied, Trainer):
    """A `Trainer` that trains as a plan prescribes; everything else stays as it is.

    Every update is a `prudent.Step` on a Poisson batch: per-record gradients of the model's own
    loss, clipped, aggregated and noised. Its expected size is `per_device_train_batch_size` times
    `gradient_accumulation_steps`, computed `per_device_train_batch_size` records at a time.
    Evaluation, prediction, optimizers, schedulers, callbacks and saving are those of `Trainer`.

    | case | what happens |
    |---|---|
    | model with adapters (PEFT) or frozen layers | only what requires a gradient is trained |
    | tied weights | one parameter, with the gradient of all its uses |
    | `label_smoothing_factor`, `compute_loss_func` | applied to one record at a time |
    | empty draw | a step of noise alone |
    | record that cannot be read or has another shape | counts as absent |
    | settings that break the guarantee | refused, see `settings` |
    | second call of `train` that does not resume | refused: the plan pays for one run |
    | lost steps of a resumed run | repeated or counted, see `prudent.training.run.checkpoint` |

    Args:
        *positional: As for `Trainer`.
        plan: The plan to carry out; its number of steps replaces those of the settings. Or give
            `epsilon`.
        epsilon: The ε of the whole run. The plan then follows from the settings: sampling rate,
            steps, and `max_grad_norm` as the bound on each record's gradient.
        delta: δ of `epsilon`, and of the ε in the logs.
        aggregation: With `epsilon`: what is released of a batch, `Sum` unless given. Its noise is
            replaced.
        max_length: The public number of tokens to which every record is padded or cut. Needed if
            the collator pads to the longest record.
        example: A public record, in the form of the training records, from which all shapes are
            taken. None: the first record of `eval_dataset`, which must be public in any case.
        key: The key of sampling and noise; a new one from the operating system unless given.
        recompute: Run each physical batch twice instead of keeping what its part of the sum needs.
            None: if there are several, or with `gradient_checkpointing`.
        compile: Compile the private step.
        ledger: A `prudent.Ledger` that is charged for the whole run, after the test on public
            records and before the first step; a resumed run is not charged again.
        **options: As for `Trainer`.

    Guarantee:
        The models after all steps and everything in `state.log_history` but results of evaluations
        are, together, (ε, δ)-DP for ε = `plan.epsilon(δ)` and the neighbours of `plan.relation`, as
        long as checkpoints stay secret: they hold the key. Evaluate on public records alone.

    Attributes:
        plan: The plan that is carried out.
        lost: Number of its steps that are paid for but not in the model, because a resumed run
            could not prove that it would repeat them.
    """

    def __init__(
        self,
        *positional: Any,
        plan: Plan | None = None,
        epsilon: float | None = None,
        delta: float,
        aggregation: Aggregation | None = None,
        max_length: int | None = None,
        example: Mapping[str, Any] | None = None,
        key: Key | None = None,
        recompute: bool | None = None,
        compile: bool = False,
        ledger: LedgerLike | None = None,
        **options: Any,
    ) -> None:
        given = inspect.signature(Trainer.__init__).bind(self, *positional, **options).arguments
        given.pop("self")
        args: Any = given.get("args")
        data: Any = given.get("train_dataset")
        _check_given(type(self), args, data, given.get("eval_dataset"))
        settings.check(args)
        self.plan = settings.planned(
            args, len(data), plan=plan, epsilon=epsilon, delta=delta, aggregation=aggregation
        )
        self.delta = delta
        self._accumulates = self.plan.sampling_rate * len(data) > args.per_device_train_batch_size
        self._recompute = recompute
        if recompute is None:
            self._recompute = self._accumulates or args.gradient_checkpointing
        self._compile = compile
        self._max_length, self._given_example = max_length, example
        self._key = given_or_random(key)
        self._charge = RunCharge(ledger, self.plan, delta)
        self._begun = False
        self.lost = 0
        self._paid_steps = PaidSteps(self.plan, self._charge.name)
        self._identity: Identity | None = None
        self._saved: dict[str, Any] | None = None
        self._step: Step | None = None
        self._positions: Positions | None = None
        self._passes = torch.zeros(())
        given["args"] = settings.adapted(args, self.plan)
        super().__init__(**given)
        self.add_callback(_Follow(self))

    @property
    def epsilon(self) -> float:
        """The ε of the whole run at `delta`, for `plan.relation`."""
        return self.plan.epsilon(self.delta)

    # ---- reading -----------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader[Any]:
        """A loader of Poisson batches."""
        collate, examples = self._reading()
        steps = settings.steps_per_epoch(self.plan)
        # A batch that is meant to be computed at once has room for most draws.
        sampler = PoissonSampler(
            len(self.train_dataset),
            self.plan.sampling_rate,
            physical_batch=self.args.per_device_train_batch_size if self._accumulates else None,
            key=self._key,
        )
        # A compiled or captured step is one for each shape.
        whole = self._compile or self.args.device.type == "cuda"
        workers = self.args.dataloader_num_workers
        return DataLoader(
            LogicalRecords(self.train_dataset, collate, examples, whole=whole),
            batch_sampler=LogicalDraws(sampler, steps, lambda: int(self.state.global_step)),
            collate_fn=_as_it_is,
            num_workers=workers,
            persistent_workers=self.args.dataloader_persistent_workers and workers > 0,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )

    def _reading(self) -> tuple[Any, Row]:
        """The collator of one record, and the tensors of public ones."""
        collator = padded(self.data_collator, self._max_length)
        collate = self._get_collator_with_removed_columns(collator, description="training")
        records = _public_records(self._given_example, self.eval_dataset)
        return collate, examples_of(records, collate, self._max_length)

    def get_batch_samples(
        self, epoch_iterator: Iterator[LogicalBatch | None], *_: Any, **__: Any
    ) -> tuple[list[LogicalBatch], None]:
        """The next logical batch; its tokens are not counted."""
        return [checked(next(epoch_iterator))], None

    def num_examples(self, dataloader: Any) -> int:
        """The number of records; for the training set, what the plan makes public of it."""
        if not isinstance(getattr(dataloader, "dataset", None), LogicalRecords):
            return int(super().num_examples(dataloader))
        batch = self.plan.expected_batch
        return len(dataloader.dataset) if batch is None else round(batch / self.plan.sampling_rate)

    def get_total_train_batch_size(self, args: Any) -> int:
        """The expected number of records of a step."""
        batch = self.plan.expected_batch
        expected = self.plan.sampling_rate * len(self.train_dataset) if batch is None else batch
        return round(expected)

    def floating_point_ops(self, inputs: Any) -> int:
        """Zero: what a drawn batch costs is private."""
        return 0

    # ---- training ----------------------------------------------------------------------------

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *rest: Any, **options: Any
    ) -> Any:
        """Train, or continue from a checkpoint with the same batches and noise."""
        folder: Any = resume_from_checkpoint
        if folder:
            if folder is True:
                folder = get_last_checkpoint(self.args.output_dir)
            self._saved = self._restorable(folder)
        elif self._begun:
            raise RuntimeError(
                "This trainer has already trained: the plan pays for one run. Resume from a "
                "checkpoint, or make a new trainer and add up both costs."
            )
        self._identity = self._own_identity()
        if self._saved is not None:
            self._go_on(self._saved, Path(folder).parent)
        output = super().train(resume_from_checkpoint, *rest, **options)
        self._charge.note_release()
        return TrainOutput(output.global_step, math.nan, output.metrics)

    def training_step(
        self, model: Any, inputs: LogicalBatch, num_items_in_batch: Any = None
    ) -> Tensor:
        """Release the gradient of a logical batch to `.grad`; returns zero instead of the loss."""
        step = self._step
        assert step is not None, "training begins with on_train_begin"
        if inputs.number != step.taken - self.lost:
            raise RuntimeError(
                f"Expected the batch of update {step.taken - self.lost}, got that of update "
                f"{inputs.number}: each batch is used once. Train with the loader of "
                "get_train_dataloader."
            )
        self._paid_steps.pay(step.taken)
        self.model.train()
        if callable(ready := getattr(self.optimizer, "train", None)):  # schedule-free optimizers
            ready()
        outcome = within_memory(
            lambda: step([self._chunk(part) for part in inputs.parts]),
            "per_device_train_batch_size",
            self.args.per_device_train_batch_size,
            _LESS_AT_ONCE,
        )
        self._passes += outcome.passed
        return torch.zeros((), device=self.args.device)

    def _chunk(self, part: PhysicalBatch) -> Chunk:
        device = self.args.device

        def read() -> tuple[Any, Any]:
            return self._split({name: value.to(device) for name, value in part.inputs.items()})

        valid, ids = part.valid.to(device), part.ids.to(device)
        if self._recompute:
            return Chunk(read, None, valid, ids)
        return Chunk(*read(), valid, ids)

    def _split(self, row: Row) -> tuple[Row, Any]:
        """Inputs and targets: labels are inputs, unless the loss is not computed by the model."""
        if self.compute_loss_func is None and self.label_smoother is None:
            return row, ()
        return {name: row[name] for name in row if name != "labels"}, row.get("labels", ())

    def _loss(self, outputs: Any, labels: Any) -> Tensor:
        """The loss of one record, with which the model was called as a batch of one."""
        loss: Tensor
        if self.compute_loss_func is not None:
            loss = self.compute_loss_func(outputs, labels, num_items_in_batch=None)
        elif self.label_smoother is not None:
            model = self.accelerator.unwrap_model(self.model)
            base = model.get_base_model() if hasattr(model, "get_base_model") else model
            shifts = type(base).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
            loss = self.label_smoother(outputs, labels, shift_labels=shifts)
        else:
            loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs[0]
        return loss.reshape(1)

    def _begin(self) -> None:
        """Test the model on public records, and make the private step."""
        check_optimizer(self.model, self.optimizer)
        autocast = torch.bfloat16 if self.args.bf16 else None
        engine = BookKeeping(
            self.model, self._loss, recompute=bool(self._recompute), autocast=autocast
        )
        row = {name: value.to(self.args.device) for name, value in self._reading()[1].items()}
        check_reach(reach(engine, *self._split(row)))
        self._charge.pay()
        self._begun = True
        self._positions = Positions.of(self.model)
        self._step = Step(
            self.plan,
            self.model,
            self._loss,
            expected_batch=self.plan.sampling_rate * len(self.train_dataset),
            engine=engine,
            key=self._key,
            compile=self._compile,
        )
        self._passes = torch.zeros((), device=self.args.device)
        if self._saved is not None:
            self._step.state.load_state_dict(self._saved["release"])
            self._passes += self._saved["passes"].to(self.args.device)
            self._saved = None

    # ---- what is shown -----------------------------------------------------------------------

    def log(self, logs: dict[str, float], *rest: Any, **options: Any) -> None:
        """Log without what is private; add ε so far to what is logged about training."""
        if self.is_in_train and not any(name.startswith("eval_") for name in logs):
            for name in _PRIVATE:
                logs.pop(name, None)
            logs["epsilon"], logs["delta"] = self._epsilon_so_far(), self.delta
            if isinstance(self.plan.aggregation, ProposeTestRelease) and self.state.global_step:
                logs["pass_rate"] = float(self._passes) / self.state.global_step
        super().log(logs, *rest, **options)

    def _epsilon_so_far(self) -> float:
        """ε of the steps taken; before the end on a coarser grid, which also gives a bound."""
        taken = int(self.state.global_step) + self.lost
        interval = 1e-4 if taken == self.plan.steps else 1e-3
        accountant = functools.partial(PldAccountant, value_discretization_interval=interval)
        event = self.plan.event_after(taken)
        return float(epsilon_of(event, self.delta, self.plan.relation, accountant))

    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        """Refused: every trial is another release."""
        raise NotImplementedError(
            "Every trial of a search trains on the private records and must be paid for. Search "
            "on public records with Trainer, or make one PrivateTrainer per trial and compose "
            "their plan.event."
        )

    # ---- checkpoints -------------------------------------------------------------------------

    def _save_secrets(self, folder: Path) -> None:
        """Write what only a private run needs beside the files of a checkpoint."""
        assert self._step is not None
        assert self._identity is not None
        self._paid_steps.begin(folder.parent, self._step.taken)
        state = {
            **self._run(),
            "identity": self._identity.plain(),
            "lost": self.lost,
            "name": self._paid_steps.name,
            "renewals": self._paid_steps.renewals,
            "key": self._key.secret.hex(),
            "predictable": self._key.predictable,
            "release": self._step.state.state_dict(),
            "passes": self._passes,
            "files": _digests(folder),
        }
        save_checkpoint(folder, state)

    def _run(self) -> dict[str, Any]:
        """What decides whether a checkpoint is of this run."""
        return {
            "plan": repr(self.plan),
            "records": len(self.train_dataset),
            "data": self._records_fingerprint,
        }

    @functools.cached_property
    def _records_fingerprint(self) -> str:
        return records_fingerprint(self.train_dataset)  # may read every record

    def _own_identity(self) -> Identity:
        """What a resumed run must prove to be the same."""
        optimizer = None if self.optimizer is None else (type(self.optimizer), self.lr_scheduler)
        return identity_of(
            self.model,
            self.args,
            records=self._records_fingerprint,
            loss=(self.compute_loss_func, self.label_smoother),
            reading=(self.data_collator, self._max_length, self._given_example),
            optimizer=(self.optimizer_cls_and_kwargs, optimizer),
            execution=(self._recompute, self._compile, self._accumulates),
        )

    def _go_on(self, state: dict[str, Any], folder: Path) -> None:
        """Take up the run of a checkpoint, past the steps that must not be repeated."""
        assert self._identity is not None
        self._key = Key(bytes.fromhex(state["key"]), bool(state["predictable"]))
        self.lost, taken = state["lost"], int(state["release"]["taken"])
        self._charge.resume(state["name"])
        paid = self._paid_steps.resume(state["name"], state["renewals"], folder)
        same = paid is not None and paid.renewals == state["renewals"]
        unproved = self._identity.unproved(state["identity"], same_key=same)
        if unproved and paid is None:
            raise ArgumentError(
                "resume_from_checkpoint",
                f"a checkpoint beside paid-{state['name']}.json",
                shown="one without it",
                why="it tells how many steps were taken since the checkpoint, which cannot be "
                f"proved to be the same again: {', '.join(unproved)}",
            )
        if unproved and paid is not None and paid.steps > taken:
            warn_of_lost_steps(taken + 1, paid.steps, unproved)
            self._key = self._key.renewed()
            self._paid_steps.renewals += 1
            self.lost += paid.steps - taken
            state["release"]["taken"] = paid.steps
            if paid.steps >= self.plan.steps:
                raise ArgumentError(
                    "resume_from_checkpoint",
                    "a checkpoint after which steps of the plan are left",
                    shown="one after which all may have been taken",
                    hint="The model in the checkpoint is the result, at the price of the plan.",
                )
        self.args.max_steps = self.plan.steps - self.lost

    def _restorable(self, folder: Any) -> dict[str, Any]:
        """The secret state in a checkpoint of this run."""
        state = None
        if folder is not None:
            state = load_checkpoint(Path(folder), torch.device("cpu"))
        if state is None:
            raise ArgumentError(
                "resume_from_checkpoint",
                "a complete checkpoint of a PrivateTrainer",
                got=folder,
                why="without its key the steps since then would be repeated with other noise",
            )
        if damaged := state.get("files", {}).items() - _digests(Path(folder)).items():
            raise ArgumentError(
                "resume_from_checkpoint",
                "an intact checkpoint",
                shown=f"{str(folder)!r}, whose {min(damaged)[0]} is damaged or missing",
                why="the same noise on other sums could be subtracted",
                hint="Restore the file from a copy, or resume from an earlier checkpoint.",
            )
        for name, value in self._run().items():
            if state[name] != value:
                raise ArgumentError(
                    "resume_from_checkpoint",
                    f"a checkpoint with the same {name}",
                    shown="another",
                    why="the same noise on other sums could be subtracted",
                    hint="Resume with the plan and the data with which the run was started, or "
                    "start again in another output_dir.",
                )
        return state


class _Follow(TrainerCallback):
    """Ties a private run to the events of Trainer's loop."""

    def __init__(self, trainer: PrivateTrainer) -> None:
        self._trainer = trainer
        self._left = 0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Make the private step, when model and optimizer are complete."""
        self._trainer._begin()
        self._left = _UPDATES

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        """Check what has moved after the first updates with a learning rate above zero."""
        trainer = self._trainer
        rates = [float(group["lr"]) for group in trainer.optimizer.param_groups]
        if self._left and all(rate > 0 for rate in rates):
            assert trainer._positions is not None
            self._left -= 1
            if trainer._positions.check(trainer.model, last=not self._left):
                self._left, trainer._positions = 0, None

    def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Complete a checkpoint by the key and the state of the private step."""
        if not args.save_only_model:
            self._trainer._save_secrets(Path(args.output_dir) / f"checkpoint-{state.global_step}")


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that Trainer wrote to a checkpoint, by name; ours has its own."""
    return {
        path.relative_to(folder).as_posix(): sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path != folder / CHECKPOINT
    }


def _check_given(kind: type[Trainer], args: Any, data: Any, evaluated: Any) -> None:
    """Raise an error for arguments that cannot be used, before Trainer looks at them."""
    if args is None:
        raise ArgumentError("args", "TrainingArguments", got=None)
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise ArgumentError(
            "train_dataset",
            "a map-style data set with a length",
            shown=type(data).__name__,
            why="a Poisson sample needs every record by its number",
        )
    if evaluated is data:
        raise ArgumentError(
            "eval_dataset",
            "of public records",
            shown="the training set",
            why="the results of an evaluation are shown",
        )
    if kind.compute_loss is not Trainer.compute_loss:
        raise ArgumentError(
            "compute_loss",
            "as Trainer has it",
            shown=f"that of {kind.__name__}",
            why="gradients are computed for one record at a time, and not by this method",
            hint="Pass compute_loss_func(outputs, labels, num_items_in_batch), or let the model "
            "return its loss.",
        )


def _public_records(example: Any, evaluated: Any) -> list[Any]:
    """The given public record, or the first ones of the data set of evaluations."""
    if example is not None:
        return [example]
    if isinstance(evaluated, Mapping):
        evaluated = next(iter(evaluated.values()), None)
    if evaluated is None or not hasattr(evaluated, "__len__") or not len(evaluated):
        raise ArgumentError(
            "example",
            "a public record in the form of the training records",
            got=None,
            why="the shapes of records must be public",
            hint="Or pass an eval_dataset of public records.",
        )
    return [evaluated[index] for index in range(min(_EXAMPLES, len(evaluated)))]


def _as_it_is(batch: Any) -> Any:
    return batch
