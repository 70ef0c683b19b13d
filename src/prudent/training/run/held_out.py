"""Private held-out records, and the noisy accuracy or loss that a plan releases of them."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import attrs
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from prudent._torch_private import pytree
from prudent._validate import ArgumentError
from prudent.records import PUBLIC, generators_kept
from prudent.records.containers import count_of, digest, fingerprint, tensors_of
from prudent.records.people import TensorReader, Units
from prudent.records.reader import Collate, RecordReader, inputs_and_targets
from prudent.training.gradients import BookKeeping
from prudent.training.gradients.engine import Loss
from prudent.training.gradients.unsupported import made_up
from prudent.training.keystream import Key, Purpose
from prudent.training.noise import noise_on
from prudent.training.parallel.sharding import has_shards, reshard, without_gathering
from prudent.training.plan import HeldOut, HeldOutMetric, Plan
from prudent.training.step import SUM_ROUNDING, Step

BATCH = 128
"""Number of held-out records that run forward at once, unless said otherwise."""

_IGNORED = -100  # the label that torch's losses and Hugging Face leave out


@attrs.frozen(eq=False, kw_only=True)
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

    settings: HeldOut  # what is released
    reader: RecordReader | TensorReader  # reads the records
    # The records of each person; without a unit every record is alone.
    members: Sequence[Sequence[int]]
    score: Loss  # maps outputs and targets of a batch to one value per record
    split: Callable[[Any], tuple[Any, Any]]  # makes inputs and targets of a batch of the reader
    batch: int  # number of records that run forward at once
    autocast: torch.dtype | None  # the type in which the model runs, as in training
    data: Callable[[], str]  # The fingerprint of all this, computed when it is needed. Secret.

    @classmethod
    def of(
        cls,
        plan: Plan,
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
    ) -> Self | None:
        """The held-out records of a plan; None if it releases nothing of any.

        The arguments are those of `fit`. People among the `trained` records are left out here,
        `ids` say whom held-out records belong to, and `form` is for the `RecordReader`.
        """
        settings = check_held_out(plan, data)
        if settings is None:
            return None
        score = right_labels if settings.metric is HeldOutMetric.ACCURACY else loss
        if score is None:
            raise ArgumentError("held_out_loss", "a loss for each record", got=None)
        own = form is not None or (isinstance(data, Dataset) and collate_fn is not None)
        tensors = None if own else tensors_of(data)
        unit, others = (None, None) if trained is None else (trained.unit, trained.people)
        unit = unit and unit.of_held_out(data, ids)
        units = Units.of(data, unit, count_of(data, tensors))
        form = {"example": example, "check": inputs_and_targets} if form is None else form
        found: RecordReader | TensorReader = (
            units.record_reader(collate_fn, **form) if tensors is None else TensorReader(tensors)
        )
        members: list[Sequence[int]] = [[record] for record in range(units.records)]
        if units.people is not None:
            members = units.people.apart_from(others)
        return cls(
            settings=settings,
            reader=found,
            members=members,
            score=score,
            split=split,
            batch=BATCH if batch is None else batch,
            autocast=autocast,
            data=lambda: fingerprint(data) + ("" if unit is None else digest(members).hex()),
        )

    @property
    def size(self) -> float:
        """The public number by which the sum is divided."""
        expected = self.settings.expected_records
        return max(1, len(self.members)) if expected is None else expected

    def rehearse(self, step: Step) -> None:
        """Raise the errors of the model or the score on a made-up record; nothing is released."""
        with self._scores(step) as scores:
            scores(made_up(self._placed([None], step), 1, varied=True))

    def release(self, step: Step, key: Key) -> dict[str, float]:
        """The noisy value for the model as it is, and the standard deviation of its noise, by name.

        Call it at most once after a step: the noise is that of the step's number.
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
            for start in range(0, len(asked), self.batch):
                part = asked[start : start + self.batch]
                with generators_kept():
                    rows: list[Any] = [self.reader.row(record, PUBLIC.of(0)) for _, record in part]
                # As many rows in every batch: another shape could round differently.
                given = scores(self._placed(rows + [None] * (self.batch - len(rows)), step))
                given = given.nan_to_num(nan=worst, posinf=largest, neginf=0.0).clamp(0.0, largest)
                for (person, _), row, score in zip(part, rows, given.tolist(), strict=False):
                    if row is not None:
                        found[person].append(score)
        return math.fsum(math.fsum(each) / len(each) - largest / 2 for each in found if each)

    def _placed(self, rows: list[Any], step: Step) -> tuple[Any, Any]:
        """Inputs and targets of rows on the device of the model."""
        device = next(step.model.parameters()).device
        batch: tuple[Any, Any] = pytree.tree_map_only(
            Tensor, lambda leaf: leaf.to(device), self.split(self.reader.batch(rows))
        )
        return batch

    @contextmanager
    def _scores(self, step: Step) -> Iterator[Callable[[tuple[Any, Any]], Tensor]]:
        """A context with a function from a batch to its scores by the model in evaluation mode."""
        model = step.model
        engine = BookKeeping(model, self.score, autocast=self.autocast)
        reshard(model)
        gathered = without_gathering(model) if has_shards(model) else nullcontext()
        device = next(model.parameters()).device
        drawn = torch.random.fork_rng([device] if device.type == "cuda" else [])  # training goes on
        with modes_kept(model), gathered, drawn, torch.no_grad():
            model.eval()
            values = step.values()
            yield lambda batch: engine.losses(values, *batch).double()
        reshard(model)


def check_held_out(plan: Plan, data: Any) -> HeldOut | None:
    """What the plan releases of held-out records, which there must be if and only if it does."""
    if (plan.held_out is None) != (data is None):
        raise ArgumentError(
            "held_out_set",
            "records for a plan that releases something of them, and None for any other",
            shown="none" if data is None else "records",
            hint="Such as Plan(..., held_out=prudent.HeldOut(every=100)), which prices it.",
        )
    return plan.held_out


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Restore the training or evaluation mode of every module on exit.

    `model.train()` would also switch layers that are meant to stay in evaluation mode.
    """
    before = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


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
