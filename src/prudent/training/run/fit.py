"""The training function `fit`: from a plan, a model and data to a private model."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn

from prudent import _validate
from prudent._locking import held
from prudent.accounting.chargeable import LedgerLike
from prudent.records.reader import Collate
from prudent.training.corruption_hook import Corrupt, Corruption
from prudent.training.gradients.engine import Loss
from prudent.training.parallel.sharding import rest
from prudent.training.plan import Plan
from prudent.training.run.charging import RunCharge
from prudent.training.run.checkpoint import charged, load_checkpoint, record_paid, save_checkpoint
from prudent.training.run.evaluation import Evaluate, modes_kept
from prudent.training.run.execution import Execution
from prudent.training.run.metrics import Metrics, Recorder
from prudent.training.run.pass_watch import EARLY_LOOKS, PassWatch
from prudent.training.run.run import TrainingRun
from prudent.training.run.scheduling import Scheduler
from prudent.training.run_identity import PORTIONS

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
            run could not prove that it would repeat them (see `prudent.training.run_identity`).
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
            `prudent.records.fingerprint`. Each item is converted by itself to the form of most of
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
            counted but not repeated: see `prudent.training.run_identity`.
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
    with ExitStack() as stack:
        stack.callback(run.close)
        start, paid = _open(run, plan, folder, stack, resume=resume)
        if start < plan.steps:
            _rehearse(run, evaluate)
            watch.before()
        charge.name = run.name
        processes.first(charge.pay)
        recorder = Recorder(
            folder if speaks else None,
            start,
            plan.steps,
            progress=progress and speaks,
            tensorboard=tensorboard and speaks,
        )
        stack.enter_context(recorder)
        portion = plan.steps if folder is None else -(-plan.steps // PORTIONS)
        for step, stop in pairwise(_stops(start, plan.steps, every, marks)):
            for first, last in pairwise(_stops(step, stop, portion)):
                if folder is not None and last > paid:
                    paid = last
                    processes.first(partial(record_paid, folder, plan, paid, renewals=run.renewals))
                for number in run.steps(first, last):
                    recorder.advance()
                    if number + 1 in EARLY_LOOKS or number + 1 == stop:
                        watch.after(number + 1, run.passes)
            shown = _evaluated(run, evaluate)
            ends = stop == plan.steps
            metrics = run.metrics(stop, shown, delta, private=private_diagnostics, ends=ends)
            recorder.record(metrics)
            if folder is not None:
                _save(run, folder, stop)
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


def _stops(start: int, end: int, every: int, marks: Collection[int] = ()) -> list[int]:
    """The start, and the steps after which to evaluate: multiples, marks and the end."""
    if start >= end:
        return [start]
    multiples = range(start + every - start % every, end, every)
    return sorted({start, end, *multiples, *(mark for mark in marks if start < mark < end)})


def _evaluated(run: TrainingRun, evaluate: Evaluate | None) -> dict[str, float]:
    """The results of an evaluation; the model's modes and shards are restored after it."""
    shown = {}
    if evaluate is not None:
        with run.shown() as model, modes_kept(run.model):
            shown = _numbers(evaluate(model))
    rest(run.model)
    return shown


def _open(
    run: TrainingRun, plan: Plan, folder: Path | None, stack: ExitStack, *, resume: bool
) -> tuple[int, int]:
    """Lock the folder until the stack closes; return the step to start from and the paid steps."""
    processes = run.processes
    if folder is not None:
        processes.first(partial(folder.mkdir, parents=True, exist_ok=True))
        processes.first(lambda: stack.enter_context(held(folder)))
    start = paid = 0
    if resume:
        start, paid = _go_on(run, folder, plan)
    elif folder is not None and processes.first(partial(charged, folder)) is not None:
        raise _validate.ArgumentError(
            "out",
            "a folder without a run",
            shown=f"{str(folder)!r}, whose record of what was paid would be overwritten",
            hint="Use resume=True to continue that run, or choose another folder.",
        )
    if folder is not None and start == 0:
        # A run killed before its first evaluation must also resume with the same noise.
        _save(run, folder, 0)
    return start, paid


def _save(run: TrainingRun, folder: Path, step: int) -> None:
    state = run.state(step)  # all processes take part; only one writes
    run.processes.first(partial(save_checkpoint, folder, state))


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


def _go_on(run: TrainingRun, folder: Path | None, plan: Plan) -> tuple[int, int]:
    """Restore the run in a folder; return the step of its checkpoint and the charged steps."""
    if folder is None:
        raise _validate.ArgumentError("out", "the folder to resume from", got=None)
    state = run.processes.first(partial(load_checkpoint, folder, torch.device("cpu")))
    known = run.processes.first(partial(charged, folder))
    paid = 0 if known is None else known.steps
    if state is not None:
        run.check_own(state)
    if paid and state is None:
        raise _validate.ArgumentError(
            "out",
            "a folder with checkpoint.pt",
            shown=f"{str(folder)!r}, where steps were paid for but no checkpoint is left",
            hint="Without it, charged steps would be repeated with new noise. Restore the "
            "checkpoint, or choose another folder.",
        )
    if paid > plan.steps:
        raise _validate.ArgumentError(
            "budget",
            f"to cover the {paid} steps already charged in {str(folder)!r}",
            shown=f"one for {plan.steps}",
            hint="Use the original budget, or a larger one.",
        )
    taken = 0 if state is None else int(state["step"])
    if known is not None and (known.event != plan.event_after(paid) or paid < taken):
        raise _validate.ArgumentError(
            "out",
            "with what this run paid for",
            shown=f"{str(folder)!r}, whose paid.json does not match its checkpoint",
            hint="Restore the file from a copy, or start again in another folder.",
        )
    start = 0 if state is None else run.restore(state, known)
    if start > taken:
        _save(run, folder, start)  # with the new key, before its first step
    return start, paid
