"""The records of a run, read by id, and private held-out ones with what a plan releases of them.

Of several processes each reads only its own records, i modulo their number; items are read ahead.
"""

import functools
import math
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import attrs
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from prudent._torch_private import pytree
from prudent._validate import ArgumentError
from prudent.records import PUBLIC, Seeds, generators_kept
from prudent.records.containers import count_of, digest, fingerprint, tensors_of
from prudent.records.people import PeopleReader, TensorReader, Unit, Units
from prudent.records.reader import Collate, RecordReader, inputs_and_targets
from prudent.training.chunk import Chunk
from prudent.training.gradients import BookKeeping
from prudent.training.gradients.engine import Loss, modes_kept
from prudent.training.gradients.unsupported import made_up
from prudent.training.keystream import Key, Purpose
from prudent.training.noise import noise_on
from prudent.training.parallel import Processes, reshard, without_gathering
from prudent.training.plan import HeldOut, HeldOutMetric, Plan
from prudent.training.run.checkpoint import ReleaseDigests
from prudent.training.run.execution import Execution
from prudent.training.sampling import Draw, PoissonSampler, unchanged
from prudent.training.step import SUM_ROUNDING, Step


class ReadBatch(NamedTuple):
    """A physical batch as it was read, on the host."""

    # Inputs and targets, trees of tensors; of people targets and the shares of all slots.
    batch: tuple[Any, Any]
    readable: Tensor  # False for padding and for records, or people, that count as absent
    ids: Tensor  # ids of records, one per row; or of people


def chunk_on(
    device: torch.device, batch: tuple[Any, Any], valid: Tensor, ids: Tensor, *, recompute: bool
) -> Chunk:
    """A physical batch on the device, or with `recompute` a function that places it there."""

    def placed() -> Any:
        return pytree.tree_map_only(Tensor, lambda leaf: leaf.to(device, non_blocking=True), batch)

    masks = {"valid": valid.to(device), "ids": ids.to(device)}
    return Chunk(placed, **masks) if recompute else Chunk(*placed(), **masks)


@attrs.frozen
class ReadDraws:
    """The physical batches of draws, in the form of a data set."""

    reader: RecordReader | PeopleReader  # reads the records
    split: Callable[[Any], tuple[Any, Any]] = inputs_and_targets  # a batch of the reader

    def __getitem__(self, draw: Draw) -> list[ReadBatch]:
        """The batches of a draw."""
        parts = zip(draw.ids, draw.valid, strict=True)
        return [self.read(ids, valid, draw.seeds) for ids, valid in parts]

    def read(self, ids: Tensor, valid: Tensor, seeds: Seeds) -> ReadBatch:
        """A batch of records; padding, which is not valid, is not read."""
        rows: Any = self.reader.rows(ids.tolist(), valid.tolist(), seeds)
        readable = torch.tensor([row is not None for row in rows])
        inputs, targets = self.split(self.reader.batch(rows))
        shares = self.reader.shares(rows)
        return ReadBatch((inputs, targets if shares is None else (targets, shares)), readable, ids)


Gather = Callable[[Tensor], tuple[Any, Any]]
"""Maps record ids of this process to inputs and targets."""


class RunRecords:
    """The records of a run, or its people, of which this process reads only its own."""

    def __init__(
        self,
        train_set: Any,
        execution: Execution,
        processes: Processes,
        collate_fn: Collate | None = None,
        example: Any = None,
        unit: Unit | None = None,
    ) -> None:
        tensors = None if isinstance(train_set, Dataset) and collate_fn else tensors_of(train_set)
        self.units = units = Units.of(train_set, unit, count_of(train_set, tensors))
        self.count = len(units)  # of all processes
        if self.count < processes.count:
            each = f"one {units.protected} for each of the {processes.count} processes"
            shown, hint = "fewer", "Start fewer processes."
            raise ArgumentError("train_set", f"with at least {each}", shown=shown, hint=hint)
        self._execution, self.device = execution, execution.device
        self.fingerprint = functools.cache(lambda: units.fingerprint(fingerprint(train_set)))
        self.gather: Gather | None = None  # reads tensors on the device; None for items
        self.reader: RecordReader | PeopleReader | None = None  # items, or people, on the host
        if tensors is None:
            own = processes.rank, processes.count
            form = {"example": example, "check": inputs_and_targets}
            self.reader = units.reader(collate_fn, own, **form)
            return
        for name, value in (("collate_fn", collate_fn), ("example", example)):
            if value is not None:
                allowed = "None with a pair of tensors, which are already a batch"
                hint = "A TensorDataset of them is a data set of items."
                raise ArgumentError(name, allowed, hint=hint)
        if units.people is None:
            self.gather = _gather(tensors, self.device, processes)
        else:
            self.reader = PeopleReader(TensorReader(tensors), units.people)

    def read(self, ids: Tensor) -> tuple[Any, Any]:
        """Inputs and targets of public records; of none, they have the form of any batch."""
        if self.gather is not None:
            return self.gather(ids.to(self.device))
        assert self.reader is not None
        some = ids if len(ids) else torch.zeros(1, dtype=torch.int64)
        read = ReadDraws(self.reader).read(some, torch.full_like(some, len(ids)).bool(), PUBLIC)
        return chunk_on(self.device, *read, recompute=False).read()

    def batches(
        self, sampler: PoissonSampler, steps: range, *, recompute: bool
    ) -> Generator[list[Chunk], None, None]:
        """The chunks of each step, of items that are read ahead of time.

        With `recompute` they stay on the host until they are read.
        """
        assert self.reader is not None
        workers = self._execution.workers
        loader: DataLoader[Any] = DataLoader(
            ReadDraws(self.reader),  # type: ignore[arg-type]
            batch_size=None,  # an element is all of a step
            sampler=map(sampler.draw, steps),
            collate_fn=unchanged,
            num_workers=workers,
            prefetch_factor=self._execution.prefetch if workers else None,
            pin_memory=self.device.type == "cuda",
            generator=torch.Generator(),  # or it would draw from the generator that dropout uses
        )
        with warnings.catch_warnings():
            # Python warns of any fork beside other threads. Workers use one thread of torch, and
            # none of what the others may have locked.
            warnings.filterwarnings("ignore", ".* is multi-threaded", DeprecationWarning)
            read = iter(loader)
        for parts in read:
            yield [chunk_on(self.device, *part, recompute=recompute) for part in parts]


def check_same_records(
    processes: Processes, name: str, count: int, fingerprint: Callable[[], str]
) -> None:
    """Raise an error unless every process has the same records in the same order."""
    if processes.count > 1 and len(set(processes.gathered((count, fingerprint())))) > 1:
        allowed = "with the same records in the same order in every process"
        why = "a record held by two processes would count twice"
        hint = "Shuffle and split with the same seed in every process."
        raise ArgumentError(name, allowed, shown="different ones", why=why, hint=hint)


def _gather(tensors: tuple[Any, Any], device: torch.device, processes: Processes) -> Gather:
    """A function that reads rows of this process from tensors placed on the device."""
    own = slice(processes.rank, None, processes.count)
    placed = pytree.tree_map(lambda leaf: leaf[own].to(device), tensors)

    def gather(ids: Tensor) -> tuple[Any, Any]:
        rows = ids // processes.count
        inputs, targets = pytree.tree_map(lambda leaf: leaf.index_select(0, rows), placed)
        return inputs, targets

    return gather


_IGNORED = -100  # the label that torch's losses and Hugging Face leave out


class HeldOutRecords:
    """The held-out records of a run, each read and evaluated alone.

    | case | what happens |
    |---|---|
    | record that cannot be read or has another form | absent: it adds nothing |
    | record that the model or the loss rejects | wrong, or of the largest loss |
    | sequence of labels | the fraction that is right among those that count |
    | person who is among the training records as well | absent here: she is in one of the two |
    | person with several records | the mean of all of hers |

    A value is a function of its record up to the rounding of matrix products, as in training.
    """

    def __init__(
        self,
        settings: HeldOut,
        data: Any,
        loss: Loss | None,
        *,
        trained: Units | None = None,
        ids: Any = None,
        collate_fn: Collate | None = None,
        example: Any = None,
        batch: int | None = None,
        autocast: torch.dtype | None = None,
        form: Mapping[str, Any] | None = None,
        split: Callable[[Any], tuple[Any, Any]] = inputs_and_targets,
    ) -> None:
        """The arguments are those of `fit`.

        People among the `trained` records are left out here, `ids` say whom held-out records belong
        to, `form` is for the `RecordReader`, and `split` makes inputs and targets of its batch.
        """
        score = right_labels if settings.metric is HeldOutMetric.ACCURACY else loss
        if score is None:
            raise ArgumentError("held_out_loss", "a loss for each record", got=None)
        self.settings, self._score, self._split = settings, score, split
        own = form is not None or (isinstance(data, Dataset) and collate_fn is not None)
        tensors = None if own else tensors_of(data)
        unit, others = (None, None) if trained is None else (trained.unit, trained.people)
        unit = unit and unit.of_held_out(data, ids)
        units = Units.of(data, unit, count_of(data, tensors))
        form = {"example": example, "check": inputs_and_targets} if form is None else form
        self._reader: RecordReader | TensorReader = (
            units.record_reader(collate_fn, **form) if tensors is None else TensorReader(tensors)
        )
        # The records of each person; without a unit every record is alone.
        members: list[Sequence[int]] = [[record] for record in range(units.records)]
        if units.people is not None:
            members = units.people.apart_from(others)
        self.members, self._autocast = members, autocast
        self._batch = 128 if batch is None else batch  # number of records that run forward at once

        def known() -> str:
            return fingerprint(data) + ("" if unit is None else digest(members).hex())

        self.data = known  # returns the fingerprint of all this. Secret.

    @classmethod
    def of(cls, plan: Plan, data: Any, *given: Any, **options: Any) -> Self | None:
        """The held-out records of a plan; None if it releases nothing of any."""
        settings = check_held_out(plan, data)
        return None if settings is None else cls(settings, data, *given, **options)

    @property
    def size(self) -> float:
        """The public number by which the sum is divided."""
        expected = self.settings.expected_records
        return max(1, len(self.members)) if expected is None else expected

    def rehearse(self, step: Step) -> None:
        """Raise the errors of the model or the score on a made-up record; nothing is released."""
        with self._scores(step) as scores:
            scores(made_up(self._placed([None], step), 1, varied=True))

    def release(
        self, step: Step, key: Key, digests: ReleaseDigests | None = None
    ) -> dict[str, float]:
        """The noisy value for the model as it is, and the standard deviation of its noise, by name.

        Call it at most once after a step: the noise is that of the step's number. Nothing if the
        digests have another value: it stays paid for, and the same noise must not be used again.
        """
        settings, processes = self.settings, step.processes
        half = settings.largest / 2
        device = next(step.model.parameters()).device
        total = torch.tensor([self._sum(step)], dtype=torch.float64, device=device)
        total = processes.summed(total)
        if processes.rank == 0:
            # The sum is rounded by less than the last factor pays for.
            deviation = settings.noise_multiplier * half * (1 + SUM_ROUNDING)
            noise = noise_on(device, key, Purpose.HELD_OUT)
            noise.add_(total, torch.full_like(total, deviation)[0], step.state)
        value = float(processes.sent(total)[0]) / self.size + half
        shown = [torch.tensor([value], dtype=torch.float64)]
        if digests is not None and not digests.admits(key, f"held-out-{step.taken}", shown):
            return {}
        return {settings.name: value, f"{settings.name}_noise": settings.deviation(self.size)}

    def _sum(self, step: Step) -> float:
        """What the people of this process add up to, each less half of the largest value. Secret.

        Sums are rounded once, so that the order of records has no effect.
        """
        largest = self.settings.largest
        worst = largest if self.settings.metric is HeldOutMetric.LOSS else 0.0
        own = self.members[step.processes.rank :: step.processes.count]
        asked = [(person, record) for person, records in enumerate(own) for record in records]
        found: list[list[float]] = [[] for _ in own]
        with self._scores(step) as scores:
            for start in range(0, len(asked), self._batch):
                part = asked[start : start + self._batch]
                with generators_kept():
                    rows: list[Any] = [self._reader.row(record, PUBLIC.of(0)) for _, record in part]
                # As many rows in every batch: another shape could round differently.
                given = scores(self._placed(rows + [None] * (self._batch - len(rows)), step))
                given = given.nan_to_num(nan=worst, posinf=largest, neginf=0.0).clamp(0.0, largest)
                for (person, _), row, score in zip(part, rows, given.tolist(), strict=False):
                    if row is not None:
                        found[person].append(score)
        return math.fsum(math.fsum(each) / len(each) - largest / 2 for each in found if each)

    def _placed(self, rows: list[Any], step: Step) -> tuple[Any, Any]:
        """Inputs and targets of rows on the device of the model."""
        device = next(step.model.parameters()).device
        batch: tuple[Any, Any] = pytree.tree_map_only(
            Tensor, lambda leaf: leaf.to(device), self._split(self._reader.batch(rows))
        )
        return batch

    @contextmanager
    def _scores(self, step: Step) -> Iterator[Callable[[tuple[Any, Any]], Tensor]]:
        """A context with a function from a batch to its scores by the model in evaluation mode."""
        model = step.model
        engine = BookKeeping(model, self._score, autocast=self._autocast)
        reshard(model)
        device = next(model.parameters()).device
        drawn = torch.random.fork_rng([device] if device.type == "cuda" else [])  # training goes on
        with modes_kept(model), without_gathering(model), drawn, torch.no_grad():
            model.eval()
            values = step.values()
            yield lambda batch: engine.losses(values, *batch).double()
        reshard(model)


def check_held_out(plan: Plan, data: Any) -> HeldOut | None:
    """What the plan releases of held-out records, which there must be if and only if it does."""
    if (plan.held_out is None) != (data is None):
        allowed = "records for a plan that releases something of them, and None for any other"
        shown = "none" if data is None else "records"
        hint = "Such as Plan(..., held_out=prudent.HeldOut(every=100)), which prices it."
        raise ArgumentError("held_out_set", allowed, shown=shown, hint=hint)
    return plan.held_out


def right_labels(outputs: Any, targets: Tensor) -> Tensor:
    """The fraction of right labels of each record, without those that losses ignore."""
    given = outputs.get("logits") if isinstance(outputs, Mapping) else outputs
    scores = getattr(given, "logits", given)
    shown, wrong = "metric='accuracy'", None
    if not isinstance(scores, Tensor) or scores.ndim < 2 or scores.shape[-1] < 2:
        wrong = "metric='loss' for a model without scores of two or more classes"
    elif (guesses := scores.argmax(-1)).shape != targets.shape:
        wrong = "metric='loss' for targets that are no class labels"
    if wrong is not None:
        raise ArgumentError("held_out", wrong, shown=shown)
    counted = (targets != _IGNORED).reshape(len(targets), -1)
    right = (guesses == targets).reshape(len(targets), -1) & counted
    return right.double().sum(1) / counted.double().sum(1).clamp_min(1)
