"""The training function `fit`: from a plan, a model and data to a private model."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn

from prudent import _validate
from prudent.budget.charging import LedgerLike
from prudent.records.reader import Collate
from prudent.training.chunk import Corrupt, Corruption
from prudent.training.gradients.engine import Loss
from prudent.training.parallel.sharding import rest
from prudent.training.plan import Plan
from prudent.training.run.charging import RunCharge
from prudent.training.run.execution import Execution
from prudent.training.run.metrics import Evaluate, Metrics, Recorder, modes_kept
from prudent.training.run.opened_run import OpenedRun
from prudent.training.run.pass_watch import EARLY_LOOKS, PassWatch
from prudent.training.run.training_run import TrainingRun
from prudent.training.run.updates import Scheduler

Callback = Callable[[nn.Module, Metrics], object]
"""Called with the model and the public metrics at every evaluation."""


@attrs.frozen
class Fitted:
    """A trained model with the public facts about its training.

    Attributes:
        model: The given model object, trained.
        plan: The plan that was executed, with the number of steps actually taken.
        history: Metrics, one entry per evaluation since the run was started or resumed.
        pass_rate: Fraction of the steps in which the test passed; None without a test.
        predictable_noise: Whether the run was seeded. The guarantee is void against anyone who
            knows the seed, because they can subtract the noise.
        lost: Number of steps of the plan that are paid for but not in the model, because a resumed
            run could not prove that it would repeat them (see `prudent.training.run.checkpoint`).
    """

    model: nn.Module
    plan: Plan
    history: list[Metrics]
    pass_rate: float | None
    predictable_noise: bool
    lost: int = 0


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
    execution: Execution | None = None,
    corrupt: Corrupt | Corruption | None = None,
    average: float | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    evaluate_at: Collection[int] = (),
    callbacks: Iterable[Callback] = (),
    delta: float | None = None,
    budget: float | None = None,
    ledger: LedgerLike | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    tensorboard: bool = False,
    private_diagnostics: bool = False,
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
            `prudent.records.containers`. Each item is converted by itself to the form of most of
            them; one that cannot be read, or does not fit, counts as absent.
        optimizer: Any torch optimizer; it only post-processes released gradients.
        scheduler: Makes a torch learning rate scheduler for the optimizer, which is stepped after
            every step: `lambda optimizer: CosineAnnealingLR(optimizer, T_max=plan.steps)`.
        collate_fn: Makes a batch of a list of items: a pair (inputs, targets) or a dictionary with
            the entry `labels`, of tensors with one row per item. It is called for one item at a
            time, and all rows must have one shape. None: items are stacked as they are.
        example: A public item, in the form of the records. Its types and shapes are used instead of
            those that most of the first items have. The `collate_fn` then gets it together with
            each item, so that one that pads to the longest item pads to the example's length.
        execution: Device, engine and other settings that do not change the plan's event. A seed
            makes the noise predictable.
        corrupt: Replaces per-example gradients, to simulate faults and attacks: a gradient
            corruption of `prudent.lab.corruption`, or a function. `delta` must be None with a
            corruption in which bad records read the gradients of others: no accounting covers it.
        average: Evaluate and return a running average of the weights, of which every step keeps
            this fraction: 0.97 averages about the last 30 steps. This is post-processing at no
            privacy cost; it reduces the noise and the oscillations caused by an attack.
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
        delta: δ at which ε is shown and recorded, for the plan's relation. None: the history has no
            ε; `Fitted.plan.epsilon(delta)` gives that of the whole run.
        budget: Stop before ε at `delta` would exceed this.
        ledger: A `prudent.Ledger` that is charged for the whole run before its first step; a
            resumed run is not charged again.
        out: Folder for metrics.jsonl, paid.json and checkpoint.pt, used by one run at a time. The
            checkpoint holds the key of the noise, so it is as secret as the data.
        resume: Continue from the checkpoint in `out`, if there is one. Steps since then are
            repeated with the same noise if everything is proved to be as it was, and otherwise
            counted but not repeated: see `prudent.training.run.checkpoint`.
        progress: Show a progress bar.
        tensorboard: Also write TensorBoard files to `out`.
        private_diagnostics: Also record values that are neither released nor charged (drawn batch
            size, training loss). They must not leave the data's owner.
        **optimizer_options: Passed to the optimizer, such as `lr`.

    Guarantee:
        The models after all steps and all metrics except private diagnostics have, together, the
        event `Fitted.plan.event`: they are (ε, δ)-DP for ε = `Fitted.plan.epsilon(δ)` and the
        neighbours of `Fitted.plan.relation`, as long as the key of the noise stays secret. The key
        comes from the operating system unless `execution` has a seed. Without a public
        `plan.expected_batch` the sum is divided by the sampling rate times the number of records,
        and the relation declares this number public.
    """
    if evaluate is not None:
        _validate.function(evaluate=evaluate)
    callbacks = [
        _validate.function(callbacks=each) for each in _validate.values(callbacks=callbacks)
    ]
    evaluate_at = _validate.values(evaluate_at=evaluate_at)
    resume, progress = _validate.flag(resume=resume), _validate.flag(progress=progress)
    tensorboard = _validate.flag(tensorboard=tensorboard)
    private_diagnostics = _validate.flag(private_diagnostics=private_diagnostics)
    _check_covered(corrupt, delta, ledger)
    run = TrainingRun.prepare(
        plan,
        model,
        loss,
        train_set,
        optimizer=optimizer,
        options=optimizer_options,
        execution=execution,
        corrupt=corrupt,
        average=average,
        collate_fn=collate_fn,
        example=example,
        scheduler=scheduler,
    )
    plan, processes = _within(plan, budget, delta), run.processes
    processes.check_same(steps=plan.steps)
    every = max(1, plan.steps // 10) if evaluate_every is None else evaluate_every
    every = _validate.count(1, evaluate_every=every)
    marks = [_validate.count(evaluate_at=mark) for mark in evaluate_at]
    folder = None if out is None else _validate.path(out=out)
    charge = RunCharge(ledger, plan, delta, resumed=resume)
    speaks = processes.rank == 0
    watch = PassWatch(plan, run.step.expected_batch, said=not speaks)
    with OpenedRun.of(run, plan, folder, resume=resume) as opened:
        if opened.step < plan.steps:
            _rehearse(run, evaluate)
            watch.before()
        charge.name = run.name
        processes.first(charge.pay)
        with Recorder(
            folder if speaks else None,
            opened.step,
            plan.steps,
            progress=progress and speaks,
            tensorboard=tensorboard and speaks,
        ) as recorder:
            for stop in opened.stops(every, marks):
                for step in opened.take(stop):
                    recorder.advance()
                    if step in EARLY_LOOKS or step == stop:
                        watch.after(step, run.passes)
                shown, ends = _evaluated(run, evaluate), stop == plan.steps
                metrics = run.metrics(stop, shown, delta, private=private_diagnostics, ends=ends)
                recorder.record(metrics)
                opened.save()
                if speaks:
                    _call(run, callbacks, metrics)
        processes.first(charge.note_release)
    if run.average is not None:
        run.average.leave()
    rate = run.pass_rate(plan.steps)
    return Fitted(model, plan, recorder.history, rate, run.key.predictable, run.lost)


def _check_covered(
    corrupt: Corrupt | Corruption | None, delta: float | None, ledger: LedgerLike | None
) -> None:
    """Raise an error if ε is to be shown or charged for a corruption that no accounting covers."""
    if not isinstance(corrupt, Corruption) or corrupt.per_record:
        return
    for name, value, done in (("delta", delta, "shown"), ("ledger", ledger, "charged")):
        if value is not None:
            raise _validate.ArgumentError(
                name,
                f"None with {type(corrupt).__name__}",
                shown=str(value) if name == "delta" else "one",
                why="its bad records read the gradients of others, which no accounting covers, so "
                f"no epsilon is {done}",
            )


def _rehearse(run: TrainingRun, evaluate: Evaluate | None) -> None:
    """Try the evaluation before anything is charged; the run goes on as without it."""
    if evaluate is None:
        return
    device = run.execution.device
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        rehearse = getattr(evaluate, "rehearse", None)
        if rehearse is None:
            _evaluated(run, evaluate)
        else:
            with modes_kept(run.model):
                rehearse(run.model)
            rest(run.model)


def _call(run: TrainingRun, callbacks: Iterable[Callback], metrics: Metrics) -> None:
    """Call every callback with the model and the public part of the metrics."""
    public = attrs.evolve(metrics, private=None)
    for callback in callbacks:
        with run.shown() as model, modes_kept(run.model):
            callback(model, public)


def _evaluated(run: TrainingRun, evaluate: Evaluate | None) -> dict[str, float]:
    """The results of an evaluation; the model's modes and shards are restored after it."""
    shown = {}
    if evaluate is not None:
        with run.shown() as model, modes_kept(run.model):
            shown = _numbers(evaluate(model))
    rest(run.model)
    return shown


def _numbers(shown: Mapping[str, float]) -> dict[str, float]:
    """The results of an evaluation as plain floats, which can be written to a file."""
    if not isinstance(shown, Mapping):
        raise _validate.ArgumentError(
            "evaluate", "to return a mapping from names to numbers", got=shown
        )
    return {name: float(value) for name, value in shown.items()}


def _within(plan: Plan, budget: float | None, delta: float | None) -> Plan:
    """The plan, shortened to the steps that the budget covers. This does not depend on the data."""
    if delta is not None:
        _validate.between(0, 1, ends="()", delta=delta)
    if budget is None:
        return plan
    _validate.positive(budget=budget)
    if delta is None:
        raise _validate.ArgumentError(
            "delta", "when budget is given", why="the budget is an epsilon at that delta"
        )
    if plan.epsilon(delta) <= budget:
        return plan
    return plan.longest(epsilon=budget, delta=delta)
