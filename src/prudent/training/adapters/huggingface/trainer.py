"""A Hugging Face `Trainer` whose every update is a private step.

A collator that sees several records pads them to the longest. Then one long record changes the rows
of all others, and with them, through positions or rounding, their gradients; no clipping bounds
that. So the collator is called with one record at a time, and every row has the public shapes of an
example.
"""

import copy
import functools
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import Trainer, TrainerCallback, TrainerControl
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_utils import TrainOutput, get_last_checkpoint

from prudent import _validate
from prudent._files import held
from prudent._fingerprint import fingerprint
from prudent._validate import ArgumentError
from prudent.budget import LedgerLike
from prudent.receipts.making import ReceiptFile
from prudent.records.containers import fingerprint as records_fingerprint
from prudent.records.people import Unit, Units, without
from prudent.records.reader import Collate
from prudent.training.adapters.huggingface import settings
from prudent.training.adapters.private import PrivacyTarget, opacus_migration_errors
from prudent.training.aggregation import Aggregation, ProposeTestRelease
from prudent.training.chunk import Chunk, within_memory
from prudent.training.gradients import BookKeeping
from prudent.training.keystream import Key, NoCopyMixin, given_or_random
from prudent.training.parallel import Processes
from prudent.training.plan import HeldOut, HeldOutMetric, LossRelease, Plan
from prudent.training.run.charging import RunCharge
from prudent.training.run.checkpoint import (
    ReleaseDigests,
    ResumeState,
    machine,
    save_checkpoint,
    unproved,
)
from prudent.training.run.metrics import Counters
from prudent.training.run.reading import (
    HeldOutRecords,
    ReadBatch,
    ReadDraws,
    check_held_out,
    chunk_on,
)
from prudent.training.sampling import Draw, Draws, PoissonSampler, unchanged
from prudent.training.step import Step

_ROWS = 8  # parts have a multiple of so many rows, which suits the kernels of a GPU

_EXAMPLES = 16  # public records that are looked at before training

Row = dict[str, Tensor]
"""The tensors of records by name, with the records on the first axis."""


@attrs.frozen(eq=False)
class LogicalBatch:
    """The records of one step. Secret."""

    number: int
    parts: list[ReadBatch]


class LogicalRecords(Dataset[Any]):
    """Reads the records of a draw, of the form of the first of some public examples.

    | case | what happens |
    |---|---|
    | padding of the draw | the example, not valid; left out unless `whole` |
    | record longer than the example on its second axis | cut |
    | record that cannot be read, collated or converted to the form | not valid, as if absent |
    """

    def __init__(
        self, units: Units, collate: Collate, examples: Row, *, whole: bool = False
    ) -> None:
        self._count, self._whole = len(units), whole
        like = {name: value[0] for name, value in examples.items()}
        self._draws = ReadDraws(units.reader(collate, like=like, cut=True), split=_undivided)

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, draw: Draw) -> LogicalBatch:
        """All parts of a draw; torch's loader calls this with what the batch sampler yields."""
        parts = []
        for ids, valid in zip(draw.ids, draw.valid, strict=True):
            # Padding comes last.
            kept = len(ids) if self._whole else max(1, -(-int(valid.sum()) // _ROWS)) * _ROWS
            parts.append(self._draws.read(ids[:kept], valid[:kept], draw.seeds))
        return LogicalBatch(draw.number, parts)


def _undivided(row: Mapping[str, Tensor]) -> tuple[Row, Any]:
    """All tensors of records as inputs; the trainer takes the targets out (`_split`)."""
    return dict(row), ()


def public_records(example: Any, evaluated: Any, column: str | None) -> list[Any]:
    """The given public record, or the first ones of the data set of evaluations.

    Without the column that says whose they are.
    """
    if example is not None:
        return [without(example, column)]
    if isinstance(evaluated, Mapping):
        evaluated = next(iter(evaluated.values()), None)
    if evaluated is None or not hasattr(evaluated, "__len__") or not len(evaluated):
        allowed = "a public record in the form of the training records"
        why = "the shapes of records must be public"
        hint = "Or pass an eval_dataset of public records."
        raise ArgumentError("example", allowed, got=None, why=why, hint=hint)
    count = min(_EXAMPLES, len(evaluated))
    return [without(evaluated[index], column) for index in range(count)]


def examples_of(records: Sequence[Any], collate: Collate, length: int | None = None) -> Row:
    """The tensors of some public records, cut to a public length, after checking their shapes."""
    rows: list[Row] = []
    for record in records:
        row = collate([record])
        if not isinstance(row, Mapping) or not all(
            isinstance(value, Tensor) and value.ndim and len(value) == 1 for value in row.values()
        ):
            allowed = "to return a dictionary of tensors with the records on the first axis"
            shown = f"one that makes {_shapes(row)} of one record"
            raise ArgumentError("data_collator", allowed, shown=shown)
        rows.append({n: v if v.ndim < 2 else v[:, :length] for n, v in row.items()})
    for row in rows:
        if _shapes(row) != _shapes(rows[0]):
            allowed = "to make records of one shape"
            shown = f"{_shapes(rows[0])} and {_shapes(row)} of two public records"
            why = "records that are padded to the longest of a batch depend on each other"
            hint = "Give PrivateTrainer max_length, the public number of tokens to which every "
            hint += "record is padded or cut; or pad while tokenising, with padding='max_length'."
            raise ArgumentError("data_collator", allowed, shown=shown, why=why, hint=hint)
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def padded(collator: Collate, length: int | None) -> Collate:
    """The collator, set to pad every record to a public number of tokens."""
    if length is None:
        return collator
    if not hasattr(collator, "pad_to_multiple_of"):
        allowed = "None with a collator that has no setting pad_to_multiple_of"
        hint = "Let the collator itself pad to a fixed length."
        raise ArgumentError("max_length", allowed, got=length, hint=hint)
    fixed: Any = copy.copy(collator)
    fixed.pad_to_multiple_of = length
    if hasattr(fixed, "padding"):
        fixed.padding = True
    return fixed  # type: ignore[no-any-return]


def _shapes(row: Any) -> str:
    if not isinstance(row, Mapping):
        return type(row).__name__
    return ", ".join(
        f"{name} {tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__}"
        for name, value in row.items()
    )


_TIMED = ("train_runtime", "train_samples_per_second", "train_steps_per_second")
_PRIVATE = ("loss", "train_loss", "total_flos", *_TIMED)
"""What Trainer logs about the training records; it is neither released nor charged."""
_WEIGHTS = ("model", "pytorch_model", "adapter_model")  # how the names of their files begin
_LESS_AT_ONCE = "Lower it, and raise gradient_accumulation_steps by the same factor."


class PrivateTrainer(NoCopyMixin, Trainer):
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
        delta: δ of `epsilon`, and of the ε in the logs; always needed.
        aggregation, num_bands: With `epsilon`: as for `prudent.make_private`.
        watch: With `epsilon`: the training loss as a release. It is logged as `loss` and
            `loss_noise`; without one the loss is not logged.
        held_out: With `epsilon`: the accuracy or loss on held-out records as a release. Evaluations
            take place in the steps that it names. It is logged as `eval_held_out_accuracy` or
            `eval_held_out_loss`, each with `_noise`; choosing the best model and stopping early by
            it cost nothing.
        held_out_set, held_out_unit: The private records of which it is released, as for
            `prudent.fit`.
        unit: Who each record belongs to, as for `prudent.fit`; the name of a column, such as
            "user_id", is taken out of the inputs of the model. Batches are then drawn of people, of
            whom the batch size of the settings are expected, and `max_grad_norm` bounds the
            gradient of each person.
        records_per_person, per_unit: As for `prudent.fit`.
        max_length: The public number of tokens to which every record is padded or cut. Needed if
            the collator pads to the longest record.
        example: A public record, in the form of the training records, from which all shapes are
            taken. None: the first record of `eval_dataset`, which must be public in any case.
        key: The key of sampling and noise; a new one from the operating system unless given.
        ledger: A `prudent.Ledger` that is charged for the whole run, after the test on public
            records and before the first step; a resumed run is not charged again.
        **options: As for `Trainer`.

    Guarantee:
        The models after all steps and everything in `state.log_history` but results of evaluations
        are, together, (ε, δ)-DP for ε = `plan.epsilon(δ)` and the neighbours of `plan.relation`, as
        long as checkpoints stay secret: they hold the key. Evaluate on public records alone. With a
        `unit`, neighbours differ in one person, with any number of records.
    """

    control: TrainerControl

    @opacus_migration_errors(
        data_loader="train_dataset",
        epochs="num_train_epochs of TrainingArguments",
        max_grad_norm="max_grad_norm of TrainingArguments",
        max_physical_batch_size="per_device_train_batch_size of TrainingArguments",
    )
    def __init__(
        self,
        *positional: Any,
        plan: Plan | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        aggregation: Aggregation | None = None,
        num_bands: int | None = None,
        watch: LossRelease | None = None,
        held_out: HeldOut | None = None,
        held_out_set: Any = None,
        held_out_unit: Any = None,
        unit: Any = None,
        records_per_person: int | None = None,
        per_unit: str | None = None,
        max_length: int | None = None,
        example: Mapping[str, Any] | None = None,
        key: Key | None = None,
        ledger: LedgerLike | None = None,
        **options: Any,
    ) -> None:
        given = inspect.signature(Trainer.__init__).bind(self, *positional, **options).arguments
        given.pop("self")
        args: Any = given.get("args")
        data, evaluated = given.get("train_dataset"), given.get("eval_dataset")
        settings.check(type(self), args, data, evaluated, held_out_set)
        self._data = data
        self._units = Units.of(data, Unit.given(unit, records_per_person, per_unit))
        self._count = len(self._units)
        wanted: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "num_bands": num_bands}
        wanted |= {"aggregation": aggregation, "watch": watch, "held_out": held_out}
        self.plan = settings.planned(args, self._count, plan, PrivacyTarget(**wanted))
        assert delta is not None  # it was checked
        self.delta = delta
        self.plan.refuse_allocation()
        check_held_out(self.plan, held_out_set)
        self._held_out: HeldOutRecords | None = None
        self._held_out_set, self._held_out_unit = held_out_set, held_out_unit
        self._tested_at = 0  # the step after which the held-out records were used last
        self._found: dict[str, float] = {}  # released of them, for the evaluation that follows
        self._accumulates = self.plan.sampling_rate * self._count > args.per_device_train_batch_size
        # Chunks run twice where there are several, so that memory does not grow with their number.
        self._recompute = bool(self._accumulates or args.gradient_checkpointing)
        self._autocast = torch.bfloat16 if args.bf16 else None
        if max_length is not None:
            _validate.count(1, max_length=max_length)
        self._length, self._example = max_length, example
        self._charge = RunCharge(ledger, self.plan, self.delta, protected=self._units.protected)
        identified = given_or_random(key), self._charge.name
        self._continuity = ResumeState(self.plan, Processes(), *identified, shares_folder=True)
        self._identity: dict[str, str] = {}  # fingerprints of the run that goes on
        self._saved: dict[str, Any] | None = None
        self._digests = ReleaseDigests(None, Processes())
        self._step: Step | None = None
        self._counters = Counters(torch.device("cpu"))
        given["args"] = settings.adapted(args, self.plan)
        if self.plan.held_out is not None and evaluated is None:
            given["eval_dataset"] = ()  # Trainer evaluates nothing without one
        super().__init__(**given)
        self.eval_dataset = evaluated
        self.add_callback(_Follow(self))

    def __repr__(self) -> str:
        return f"PrivateTrainer({type(self.model).__name__}, {self._charge.priced()})"

    @property
    def epsilon(self) -> float:
        """The ε of the whole run at `delta`, for `plan.relation`."""
        return self.plan.epsilon(self.delta)

    @property
    def lost(self) -> int:
        """Number of steps of the plan that are paid for but not in the model.

        A resumed run could not prove that it would repeat them.
        """
        return self._continuity.lost

    def get_train_dataloader(self) -> DataLoader[Any]:
        """A loader of Poisson batches."""
        collate, examples = self._reading()
        steps = max(1, math.ceil(round(1 / self.plan.sampling_rate, 9)))
        # An epoch that is resumed starts from its beginning; the loader skips what was taken.
        # A batch that is meant to be computed at once has room for most draws.
        sampler = PoissonSampler(
            self._count,
            self.plan.turn_rate,
            physical_batch=self.args.per_device_train_batch_size if self._accumulates else None,
            key=self._continuity.key,
            num_bands=self.plan.num_bands,
        )
        whole = self.args.device.type == "cuda"  # a captured step is one for each shape
        workers = self.args.dataloader_num_workers
        return DataLoader(
            LogicalRecords(self._units, collate, examples, whole=whole),
            batch_sampler=Draws(sampler, steps, lambda _: self.state.global_step // steps * steps),
            collate_fn=unchanged,
            num_workers=workers,
            persistent_workers=self.args.dataloader_persistent_workers and workers > 0,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )

    def _reading(self) -> tuple[Any, Row]:
        """The collator of one record, and the tensors of public ones."""
        collator = padded(self.data_collator, self._length)
        collate = self._get_collator_with_removed_columns(collator, description="training")
        records = public_records(self._example, self.eval_dataset, self._units.column)
        return collate, examples_of(records, collate, self._length)

    def get_batch_samples(
        self, epoch_iterator: Iterator[LogicalBatch], *_: Any, **__: Any
    ) -> tuple[list[LogicalBatch], None]:
        """The next logical batch; its tokens are not counted."""
        return [next(epoch_iterator)], None

    def num_examples(self, dataloader: Any) -> int:
        """The number of records; for the training set, what the plan makes public of it."""
        if not isinstance(getattr(dataloader, "dataset", None), LogicalRecords):
            return int(super().num_examples(dataloader))
        batch = self.plan.expected_batch
        return len(dataloader.dataset) if batch is None else round(batch / self.plan.sampling_rate)

    def get_total_train_batch_size(self, args: Any) -> int:
        """The expected number of records of a step."""
        return round(self.plan.divisor(expected_batch=self.plan.sampling_rate * self._count))

    def floating_point_ops(self, inputs: Any) -> int:
        """Zero: what a drawn batch costs is private."""
        return 0

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *rest: Any, **options: Any
    ) -> Any:
        """Train, or continue from a checkpoint with the same batches and noise."""
        if self.train_dataset is not self._data:
            raise RuntimeError(
                "`train_dataset` was replaced after the trainer was made, and the price is that of "
                "the records it was made with: make a new trainer with these."
            )
        resumes, runs = bool(resume_from_checkpoint), Path(self.args.output_dir)
        folder: Any = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)
        if not resumes and self._charge.charged:
            raise RuntimeError(
                "This trainer has already trained: the plan pays for one run. Resume from a "
                "checkpoint, or make a new trainer and add up both costs."
            )
        saves = resumes or self.args.save_strategy != "no"
        again = "resume_from_checkpoint goes on from a checkpoint, without another charge"
        if not (resumes or (saves and not self.args.save_only_model)):
            again = "without checkpoints (save_strategy, save_only_model) it cannot be resumed"
        with ExitStack() as stack:
            if resumes:
                self._saved = settings.restorable(folder, self._run())
                runs = Path(folder).parent
            if saves:  # two would take steps at one price
                runs.mkdir(parents=True, exist_ok=True)
                stack.enter_context(held(runs))
            stack.enter_context(self._charge.interruptions(again))
            self._held_out = self._held_out_records()
            self._identity = self._own_identity()
            if self._saved is not None:
                self._go_on(self._saved, runs)
            if self.args.device.type == "cpu" and runs.exists():  # where sums are the same twice
                self._digests = ReleaseDigests(runs, Processes(), self._charge.name)
            output = super().train(resume_from_checkpoint, *rest, **options)
        if not self._charge.binds_answers:  # else the first model that is saved now is noted
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
                f"{inputs.number}: train with the loader of get_train_dataloader, once."
            )
        self._continuity.pay(step.taken)
        self.model.train()
        getattr(self.optimizer, "train", lambda: None)()  # schedule-free optimizers
        setting = "per_device_train_batch_size"
        given = setting, getattr(self.args, setting), _LESS_AT_ONCE
        outcome = within_memory(lambda: step([*map(self._chunk, inputs.parts)]), *given)
        if not self._digests.admits_step(self._continuity.key, step, outcome):
            self.model.zero_grad()
            self._continuity.begin_anew()
            raise RuntimeError(
                "A repeated step would have released something else than before with the same "
                "noise. Nothing was released. Resume again: the run goes on with a new key."
            )
        self._charge.taken = step.taken
        self._counters.add(outcome)
        return torch.zeros((), device=self.args.device)

    def _chunk(self, part: ReadBatch) -> Chunk:
        (row, given), *masks = part
        inputs, targets = self._split(row)
        batch = inputs, (targets, given[1]) if self._units.slots else targets
        return chunk_on(self.args.device, batch, *masks, recompute=self._recompute)

    def _prepare_inputs(self, inputs: Any) -> Any:
        return super()._prepare_inputs(without(inputs, self._units.column))

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
        elif isinstance(outputs, Mapping) and outputs.get("loss") is None:
            raise ValueError(
                "Expected a loss among the outputs of the model, got none. Give every record its "
                "`labels` under the name that the model expects, or pass compute_loss_func."
            )
        else:
            loss = outputs["loss"] if isinstance(outputs, Mapping) else outputs[0]
        return loss.reshape(1)

    def _begin(self) -> None:
        """Test the model on public records, and make the private step."""
        settings.check_optimizer(self.model, self.optimizer)
        self.model.train()  # as in every step
        engine = BookKeeping(
            self.model, self._loss, recompute=self._recompute, autocast=self._autocast
        )
        _, examples = self._reading()
        row = {name: value.to(self.args.device) for name, value in examples.items()}
        inputs, targets = self._split(row)
        settings.check_reach(engine, inputs, targets)
        engine.slots = self._units.slots
        step = Step(
            self.plan,
            self.model,
            self._loss,
            expected_batch=self.plan.sampling_rate * self._count,
            engine=engine,
            key=self._continuity.key,
        )
        shares = torch.ones(len(next(iter(row.values()))), device=self.args.device)
        step.rehearse((inputs, (targets, shares) if engine.slots else targets))
        if self._held_out is not None:
            self._held_out.rehearse(step)
        self._charge.pay()
        self._step = step
        self._counters = Counters(self.args.device)
        if self._saved is not None:
            self._step.state.load_state_dict(self._saved["release"])
            self._tested_at = self._step.taken  # before the checkpoint, or by a run that was lost
            self._counters.restore(step.taken, self._saved["passes"])
            self._saved = None

    def _held_out_records(self) -> HeldOutRecords | None:
        if self.plan.held_out is None:
            return None
        collate, examples = self._reading()
        like = {name: value[0] for name, value in examples.items()}

        def split(row: Any) -> tuple[Row, Any]:
            inputs, targets = self._split(dict(row))
            settings = self.plan.held_out
            right = settings is not None and settings.metric is HeldOutMetric.ACCURACY
            return inputs, row["labels"] if right else targets

        return HeldOutRecords.of(
            self.plan,
            self._held_out_set,
            self._loss,
            trained=self._units,
            ids=self._held_out_unit,
            collate_fn=collate,
            batch=self.args.per_device_eval_batch_size,
            autocast=self._autocast,
            form={"like": like, "cut": True},
            split=split,
        )

    def is_test_due(self) -> bool:
        """Whether the plan releases something of the held-out records after the last step."""
        settings, step = self.plan.held_out, self._step
        if settings is None or step is None or not self.is_in_train:
            return False
        return self._tested_at < step.taken and settings.is_due(step.taken, self.plan.steps)

    def _tested(self) -> dict[str, float]:
        """What is released of the held-out records now, by the names of an evaluation."""
        if not self.is_test_due():
            return {}
        assert self._held_out is not None
        assert self._step is not None
        self._tested_at = self._step.taken
        found = self._held_out.release(self._step, self._continuity.key, self._digests)
        return {f"eval_{name}": value for name, value in found.items()}

    def evaluate(self, eval_dataset: Any = None, *rest: Any, **options: Any) -> dict[str, float]:
        """Evaluate as Trainer does; without public records, on the held-out ones if that is due."""
        getattr(self.optimizer, "eval", lambda: None)()  # schedule-free optimizers
        tested = self._tested()  # first: an evaluation shows how long it took
        public = eval_dataset is not None or self.eval_dataset is not None
        if public or self.plan.held_out is None or not self.is_in_train:
            self._found |= tested
            found: dict[str, float] = super().evaluate(eval_dataset, *rest, **options)
            return found
        if found := tested:
            self.log(found)
            given: Any = self.args, self.state, self.control, found
            self.control = self.callback_handler.on_evaluate(*given)
        return found

    def evaluation_loop(self, *positional: Any, **options: Any) -> Any:
        """As Trainer's, with what was released of the held-out records, if that was due."""
        output = super().evaluation_loop(*positional, **options)
        output.metrics.update(self._found)
        self._found = {}
        return output

    def log(self, logs: dict[str, float], *rest: Any, **options: Any) -> None:
        """Log without what is private; add ε so far to what is logged about training."""
        if self.is_in_train and not any(name.startswith("eval_") for name in logs):
            for name in _PRIVATE:
                logs.pop(name, None)
            taken = int(self.state.global_step) + self.lost
            logs["epsilon"], logs["delta"] = self.plan.epsilon_shown(taken, self.delta), self.delta
            if isinstance(self.plan.aggregation, ProposeTestRelease) and self.state.global_step:
                logs["pass_rate"] = float(self._counters.passes) / self.state.global_step
            expected = self.plan.divisor(expected_batch=self.plan.sampling_rate * self._count)
            if (released := self._counters.loss(self.plan, expected)) is not None:
                logs["loss"], logs["loss_noise"] = released
        super().log(logs, *rest, **options)

    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        """Refused: every trial is another release."""
        raise NotImplementedError(
            "Every trial of a search trains on the private records and must be paid for: see "
            "prudent.tune, or search on public records with Trainer."
        )

    def create_model_card(self, *_: Any, **__: Any) -> None:
        """Write the receipt to `output_dir`: Trainer's own card would quote what was not priced."""
        self._write_receipt(Path(self.args.output_dir))

    def save_model(self, output_dir: str | None = None, *rest: Any, **options: Any) -> None:
        """Save the model as Trainer does, with a receipt that states its guarantee."""
        super().save_model(output_dir, *rest, **options)
        self._write_receipt(Path(self.args.output_dir if output_dir is None else output_dir))

    def _write_receipt(self, folder: Path) -> None:
        if self._charge.charged:
            folder.mkdir(parents=True, exist_ok=True)
            self._charge.write_receipt(
                ReceiptFile(folder / "receipt.json"),
                self.model.state_dict,
                files=[each for each in folder.iterdir() if each.name.startswith(_WEIGHTS)],
                ended=self._step is not None and self._step.taken >= self.plan.steps,
                predictable=self._continuity.key.predictable,
            )

    def _save_secrets(self, folder: Path) -> None:
        """Write what only a private run needs beside the files of a checkpoint."""
        assert self._step is not None
        self._continuity.begin(folder.parent, self._step.taken)
        state = {
            "identity": self._identity,
            "release": self._step.state.state_dict(),
            "passes": self._counters.passes,
            "files": settings.digests(folder),
        }
        save_checkpoint(folder, self._run() | self._continuity.plain() | state)

    def _run(self) -> dict[str, Any]:
        """What decides whether a checkpoint is of this run."""
        data = self._records_fingerprint
        return {"plan": repr(self.plan), "records": self._count, "data": data}

    @functools.cached_property
    def _records_fingerprint(self) -> str:
        return self._units.fingerprint(records_fingerprint(self.train_dataset))  # may read all

    def _own_identity(self) -> dict[str, str]:
        """Fingerprints of what a resumed run must prove to be the same."""
        args, held_out = self.args, "" if self._held_out is None else self._held_out.data()
        optimizer = None if self.optimizer is None else (type(self.optimizer), self.lr_scheduler)
        loss = self.compute_loss_func, self.label_smoother
        reading = self.data_collator, self._length, self._example
        execution = self._recompute, self._accumulates
        decisive = (self.optimizer_cls_and_kwargs, optimizer), settings.decisive(args)
        return {
            "records": self._records_fingerprint + held_out,
            "loss": fingerprint(loss, reading, restored=self.model),
            "model": fingerprint(self.model, restored=self.model),
            "optimizer": fingerprint(*decisive),
            "execution": repr((execution, args.bf16, args.per_device_train_batch_size)),
            "processes": "1",
            "machine": machine(args.device),
        }

    def _go_on(self, state: dict[str, Any], folder: Path) -> None:
        """Take up the run of a checkpoint, past the steps that must not be repeated."""
        self._continuity.load(state)
        self._charge.resume(state["name"])
        if self._continuity.resume(folder) is None:
            allowed = f"a checkpoint beside paid-{state['name']}.json"
            why = "it tells how many steps were taken since the checkpoint"
            raise ArgumentError("resume_from_checkpoint", allowed, shown="one without it", why=why)
        taken, saved = int(state["release"]["taken"]), state["identity"]
        step = self._continuity.past_lost_steps(taken, lambda: unproved(self._identity, saved))
        state["release"]["taken"] = self._charge.taken = step
        if taken < step == self.plan.steps:
            allowed = "a checkpoint after which steps of the plan are left"
            shown = "one after which all may have been taken"
            hint = "The model in the checkpoint is the result, at the price of the plan."
            raise ArgumentError("resume_from_checkpoint", allowed, shown=shown, hint=hint)
        self.args.max_steps = self.plan.steps - self.lost


class _Follow(TrainerCallback):
    """Ties a private run to the events of Trainer's loop."""

    def __init__(self, trainer: PrivateTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Make the private step, when model and optimizer are complete."""
        self._trainer._begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluate when the plan releases something of held-out records, and only then."""
        trainer = self._trainer
        if trainer.plan.held_out is not None:
            control.should_evaluate = trainer.is_test_due()
            if control.should_evaluate and args.load_best_model_at_end:
                control.should_save = args.save_strategy != "best"

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Evaluate nothing that the last step has not."""
        if self._trainer.plan.held_out is not None:
            control.should_evaluate = False

    def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Complete a checkpoint by the key and the state of the private step."""
        if not args.save_only_model:
            self._trainer._save_secrets(Path(args.output_dir) / f"checkpoint-{state.global_step}")
