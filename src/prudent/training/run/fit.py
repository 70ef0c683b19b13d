"""The training function `fit`: from a plan, a model and data to a private model."""

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import torch
from torch import nn

from prudent import _validate
from prudent.budget import LedgerLike
from prudent.receipts.making import ReceiptFile
from prudent.records.people import Unit
from prudent.records.reader import Collate
from prudent.training.chunk import Corrupt, Corruption
from prudent.training.gradients.engine import Loss
from prudent.training.parallel import whole_state
from prudent.training.plan import Plan
from prudent.training.run.checkpoint import CHECKPOINT
from prudent.training.run.execution import Execution, Reporting, Scheduler
from prudent.training.run.metrics import Metrics
from prudent.training.run.run import Run


@attrs.frozen
class Fitted:
    """A trained model with the public facts about its training.

    Attributes:
        model: The given model object, trained.
        plan: The plan that was executed.
        history: Metrics, one entry per evaluation since the run was started or resumed.
        pass_rate: Fraction of the steps in which the test passed; None without a test.
        predictable_noise: Whether the run was seeded. The guarantee is void against anyone who
            knows the seed, because they can subtract the noise.
        lost: Number of steps of the plan that are paid for but not in the model, because a resumed
            run could not prove that it would repeat them (see `prudent.training.run.checkpoint`).
        protected: What the plan counts, and its ε protects: every "record", or every "person".
        best_step: The step that the model is from, if the best one was kept; otherwise None. The
            last entry of `history` has the step at which the run ended. Its price is that of the
            plan, wherever it ended.
    """

    model: nn.Module = attrs.field(repr=False)
    plan: Plan
    history: list[Metrics] = attrs.field(repr=False)
    pass_rate: float | None
    predictable_noise: bool
    lost: int = 0
    protected: str = "record"
    best_step: int | None = None


def fit(
    plan: Plan,
    model: nn.Module,
    loss: Loss,
    train_set: Any,
    *,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    scheduler: Scheduler | None = None,
    collate_fn: Collate | None = None,
    example: Any = None,
    unit: Any = None,
    records_per_person: int | None = None,
    per_unit: str | None = None,
    held_out_set: Any = None,
    held_out_unit: Any = None,
    execution: Execution | None = None,
    corrupt: Corrupt | Corruption | None = None,
    average: float | None = None,
    reporting: Reporting | None = None,
    delta: float | None = None,
    ledger: LedgerLike | None = None,
    **optimizer_options: Any,
) -> Fitted:
    """Train a model as a plan prescribes.

    Under torchrun every process calls this with the same arguments; each works on its own records,
    and only the first prints and writes files.

    Args:
        plan: Sampling, steps and aggregation; it determines the guarantee.
        model: Trained in place. Its layers must not mix records. With several processes, the
            parameters of the first are used; a DistributedDataParallel is unwrapped, and a model
            sharded by `fully_shard` stays sharded.
        loss: Maps outputs and targets to one loss per record (reduction="none").
        train_set: A pair (inputs, targets) of tensors, or anything with a length and items: a torch
            or Hugging Face data set, or a list. An item is one record: a pair (input, target), or a
            dictionary whose entry `labels` is the target and whose others are the inputs. Every
            process and every resumed run needs the same records in the same order, by their
            `prudent.records.containers`. Each item is converted by itself to the form of
            the example; one that cannot be read, or does not fit, counts as absent.
        optimizer: Any torch optimizer; it only post-processes released gradients.
        scheduler: Makes a torch learning rate scheduler for the optimizer, which is stepped after
            every step: `lambda optimizer: CosineAnnealingLR(optimizer, T_max=plan.steps)`.
        collate_fn: Makes a batch of a list of items: a pair (inputs, targets) or a dictionary with
            the entry `labels`, of tensors with one row per item. It is called for one item at a
            time, and all rows must have one shape. None: items are stacked as they are.
        example: A public or made-up item in the form of the records, which it declares: its types
            and shapes are those of all. Required for items, except those of a `TensorDataset` that
            are stacked as they are. The `collate_fn` gets it together with
            each item, so that one that pads to the longest item pads to the example's length.
        unit: Who each record belongs to: one id per record, or the name of an entry of items that
            are dictionaries, which then is no input. People take the place of records: the plan's
            sampling rate, expected batch, trims and ε are those of people. A person's gradient in a
            step is that of her records' losses together, clipped once. None: every record is
            protected alone. See `prudent.records.people` for odd ids.
        records_per_person: With a unit, the public number of a person's records that count in a
            step, at most; 8 unless given. A new random choice of them in every step if she has
            more.
        per_unit: With a unit, whether the loss of a person is the "mean" (unless given) or the
            "sum" of the losses of these records.
        held_out_set: Private records that are not trained on, in the form of `train_set`, of which
            a plan with a `HeldOut` releases the accuracy or the loss. They are protected like those
            of `train_set`; see `HeldOut` for how to divide records into the two. None: none.
        held_out_unit: Whose they are, if the unit is not the name of an entry: one id for each. A
            person of whom there are records in `train_set` is left out.
        execution: Device, engine and other settings that do not change the plan's event. A seed
            makes the noise predictable.
        corrupt: Replaces per-example gradients, to simulate faults and attacks: a gradient
            corruption of `prudent_lab.corruption`, or a function. `delta` must be None with a
            corruption in which bad records read the gradients of others: no accounting covers it.
        average: Evaluate and return a running average of the weights, of which every step keeps
            this fraction: 0.97 averages about the last 30 steps. This is post-processing at no
            privacy cost; it reduces the noise and the oscillations caused by an attack.
        reporting: What the run evaluates, shows and writes: the evaluation, callbacks, the folder
            from which it can be resumed, progress.
        delta: δ at which ε is shown and recorded, for the plan's relation. None: the history has no
            ε; `Fitted.plan.epsilon(delta)` gives that of the whole run.
        ledger: A `prudent.Ledger` that is charged for the whole run before its first step; a
            resumed run is charged for steps that its plan has gained, if any.
        **optimizer_options: Passed to the optimizer, such as `lr`.

    Guarantee:
        The models after all steps and all metrics except private diagnostics have, together, the
        event `Fitted.plan.event`: they are (ε, δ)-DP for ε = `Fitted.plan.epsilon(δ)` and the
        neighbours of `Fitted.plan.relation`, as long as the key of the noise stays secret. The key
        comes from the operating system unless `execution` has a seed. Without a public
        `plan.expected_batch` the sum is divided by the sampling rate times the number of records,
        and the relation declares this number public. With a `unit`, all this holds for
        neighbours that differ in one person, with any number of records.
    """
    given = dict(locals())  # the others are arguments of `Run`
    for name in ("unit", "records_per_person", "per_unit", "optimizer_options"):
        del given[name]
    people = Unit.given(unit, records_per_person, per_unit)
    if delta is not None:
        _validate.small_delta(delta=delta)
    is_covered = not isinstance(corrupt, Corruption) or corrupt.per_record
    for name, value, done in (("delta", delta, "shown"), ("ledger", ledger, "charged")):
        if value is not None and not is_covered:
            allowed = f"None with {type(corrupt).__name__}"
            why = "its bad records read the gradients of others, which no accounting covers, so "
            why += f"no epsilon is {done}"
            shown = str(value) if name == "delta" else "one"
            raise _validate.ArgumentError(name, allowed, shown=shown, why=why)
    run = Run(**given, unit=people, options=optimizer_options)
    out, file, first = run.reporting.out, run.reporting.receipt_file, run.processes.first
    ReceiptFile.at(run.reporting.receipt)  # found to be writable before anything is charged
    with run.opened():
        history = list(run)
    lost, predictable = run.continuity.lost, run.continuity.key.predictable
    ended_before = not history and first(lambda: file is None or file.path.exists())
    if is_covered and not ended_before and file is not None:
        state = whole_state(model.state_dict(), keep=run.processes.rank == 0)  # all take part
        facts: dict[str, Any] = {"pass_rate": run.pass_rate, "lost": lost}
        facts |= {"predictable": predictable, "files": [] if out is None else [out / CHECKPOINT]}
        first(partial(run.charge.write_receipt, file, lambda: state, **facts))
    first(run.charge.note_release)
    best = run.best.step if run.best.keeps else None
    protected = run.charge.protected
    return Fitted(model, plan, history, run.pass_rate, predictable, lost, protected, best)
