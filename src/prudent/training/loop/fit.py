"""Training: a plan, a model and data in, a private model out."""

from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn

from prudent import _validate
from prudent.training.gradients.engine import Loss
from prudent.training.loop.checkpoint import charge, charged, held, load_checkpoint, save_checkpoint
from prudent.training.loop.evaluation import Evaluate, modes_kept
from prudent.training.loop.execution import Execution
from prudent.training.loop.metrics import Metrics, Recorder
from prudent.training.loop.run import TrainingRun
from prudent.training.parallel.sharding import rest
from prudent.training.plan import Plan
from prudent.training.step import Corrupt, Corruption


@attrs.frozen
class Fitted:
    """A trained model and what may be said about its training.

    Attributes:
        model: The same object that was given, trained.
        plan: The plan that was carried out, its steps those really taken.
        history: Metrics, one entry for each evaluation since the run was begun or resumed.
        pass_rate: Share of the steps in which the test passed.
        predictable_noise: Whether the run was seeded: whoever knows the seed can subtract the
            noise, and for them the guarantee is void.
    """

    model: nn.Module
    plan: Plan
    history: list[Metrics]
    pass_rate: float
    predictable_noise: bool


def fit(
    plan: Plan,
    model: nn.Module,
    loss: Loss,
    train_set: Any,
    *,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    execution: Execution | None = None,
    corrupt: Corrupt | Corruption | None = None,
    average: float | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    evaluate_at: Collection[int] = (),
    delta: float | None = None,
    budget: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    tensorboard: bool = False,
    private_diagnostics: bool = False,
    **optimizer_options: Any,
) -> Fitted:
    """Carries out a plan.

    Under torchrun every process calls this with the same arguments; each works on its own records,
    and the first alone prints and writes.

    Args:
        plan: Sampling, steps and aggregation; the guarantee.
        model: Trained in place. Its layers must keep records apart. Of several processes, the
            parameters of the first count; DistributedDataParallel is looked through, and a model
            divided by `fully_shard` stays divided.
        loss: Takes outputs and targets to one loss per record (reduction="none").
        train_set: A pair (inputs, targets) of tensors, a `TensorDataset`, or any map-style data set
            of (input, target) items. A record is one item. Every process, and every run that is
            resumed, needs the same records in the same order; tensors are compared, and which part
            a `Subset` is; a data set that must be read for it is taken at its word.
        optimizer: Any torch optimizer; what it does with released gradients is free.
        execution: Device, engine, seed: what cannot change the guarantee.
        corrupt: Replaces per-example gradients, to simulate faults and attacks: a gradient
            corruption of `prudent.corruption`, or a function. No δ may be given with one in which
            bad records read the gradients of others: no accounting covers it.
        average: Evaluate, and end with, a running average of the weights, of which every step keeps
            this share: 0.97 is about the last 30 steps. Post-processing, and free; it takes out
            noise and the swings of an attack.
        evaluate: Called with the model now and then, in every process; use public data in it, its
            results are shown. Training and evaluation modes are put back after it. If it has a
            `rehearse`, as `accuracy` has, that is called with the model before anything is charged.
        evaluate_every: Steps between evaluations, metrics and checkpoints; a tenth of the run.
        evaluate_at: Further steps after which to do the same.
        delta: δ at which ε is shown, for the plan's relation.
        budget: Stop before ε at `delta` would exceed this.
        out: Folder for metrics.jsonl, ledger.json and checkpoint.pt, of one run at a time. The
            checkpoint holds the key of the noise: it is as secret as the data.
        resume: Go on from the checkpoint in `out`, if there is one.
        progress: Show a progress bar.
        tensorboard: Also write TensorBoard files to `out`.
        private_diagnostics: Record what is neither released nor charged (drawn batch size, training
            loss). Such a record must not leave the data's owner.
        **optimizer_options: Given to the optimizer: lr and so on.

    Guarantee:
        The model after every step and all metrics but private diagnostics are, together,
        `Fitted.plan.event`: (ε, δ)-DP for `Fitted.plan.epsilon(δ)` and the neighbours of
        `Fitted.plan.relation`, as long as the key of the noise stays secret: that of the operating
        system unless `execution` has a seed. Without a public `plan.expected_batch` the sum is
        divided by the sampling rate times the number of records, and the relation says that this
        number is public.
    """
    if isinstance(corrupt, Corruption) and not corrupt.per_record and delta is not None:
        raise _validate.ArgumentError(
            "delta",
            f"None with {type(corrupt).__name__}, in which bad records read the "
            "gradients of others",
            got=delta,
            why="no accounting covers that, and no epsilon is shown",
        )
    run = TrainingRun.prepare(
        plan, model, loss, train_set, optimizer, optimizer_options, execution, corrupt, average
    )
    plan, processes = _within(plan, budget, delta), run.processes
    processes.check_same(steps=plan.steps)
    every = max(1, plan.steps // 10) if evaluate_every is None else evaluate_every
    every = _validate.count(1, evaluate_every=every)
    evaluate_at = [_validate.count(evaluate_at=mark) for mark in evaluate_at]
    folder = None if out is None else Path(out)
    rehearse = getattr(evaluate, "rehearse", None)
    if rehearse is not None:
        rehearse(run.model)
        rest(run.model)
    with ExitStack() as stack:
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
                shown=f"{str(folder)!r}, whose ledger would be forgotten",
                hint="Give resume=True to go on with that run, or name another folder.",
            )
        if folder is not None and start == 0:
            # A run killed before its first evaluation must come back with the same noise as well.
            _save(run, folder, 0)
        speaks = processes.rank == 0
        recorder = Recorder(
            folder if speaks else None,
            start,
            plan.steps,
            progress=progress and speaks,
            tensorboard=tensorboard and speaks,
        )
        if progress and speaks and run.key.predictable:
            recorder.say("The noise is predictable: the run is seeded.")
        with recorder:
            step = start
            while step < plan.steps:
                marks = [mark for mark in evaluate_at if mark > step]
                stop = min(plan.steps, step + every - step % every, *marks)
                if folder is not None:
                    processes.first(partial(charge, folder, plan, max(paid, stop)))
                for _ in run.steps(step, stop):
                    recorder.advance()
                step = stop
                shown = {}
                if evaluate is not None:
                    with run.shown() as shown_model, modes_kept(run.model):
                        shown = _numbers(evaluate(shown_model))
                rest(run.model)
                ends = step == plan.steps
                recorder.record(
                    run.metrics(step, shown, delta, private=private_diagnostics, ends=ends)
                )
                if folder is not None:
                    _save(run, folder, step)
        if run.average is not None:
            run.average.leave()
        rate = run.pass_rate(plan.steps)
        return Fitted(model, plan, recorder.history, rate, run.key.predictable)


def _save(run: TrainingRun, folder: Path, step: int) -> None:
    state = run.state(step)  # all processes have a part in it, one writes
    run.processes.first(partial(save_checkpoint, folder, state))


def _numbers(shown: Mapping[str, float]) -> dict[str, float]:
    """What an evaluation says, as plain numbers: they are written to a file."""
    if not isinstance(shown, Mapping):
        raise _validate.ArgumentError("evaluate", "to return numbers by name", got=shown)
    return {name: float(value) for name, value in shown.items()}


def _within(plan: Plan, budget: float | None, delta: float | None) -> Plan:
    """The plan, shortened to what the budget pays for. Known beforehand: nothing is looked at."""
    if delta is not None:
        _validate.between(0, 1, ends="()", delta=delta)
    if budget is None:
        return plan
    _validate.positive(budget=budget)
    if delta is None:
        raise _validate.ArgumentError(
            "delta", "with a budget", why="the budget is an epsilon at that delta"
        )
    if plan.epsilon(delta) <= budget:
        return plan
    return plan.longest(epsilon=budget, delta=delta)


def _go_on(run: TrainingRun, folder: Path | None, plan: Plan) -> tuple[int, int]:
    """Takes over the run of a folder: the step of its checkpoint, and the steps it has paid for."""
    if folder is None:
        raise _validate.ArgumentError("out", "the folder to resume from", got=None)
    state = run.processes.first(partial(load_checkpoint, folder, torch.device("cpu")))
    paid, event = run.processes.first(partial(charged, folder)) or (0, None)
    if paid and state is None:
        raise _validate.ArgumentError(
            "out",
            "a folder with checkpoint.pt",
            shown=f"{str(folder)!r}, where a ledger is all that is left of a run",
            hint="Its steps would be taken again with other noise and paid for once. Put "
            "the checkpoint back, or name another folder.",
        )
    start = run.restore(state)
    if paid > plan.steps:
        raise _validate.ArgumentError(
            "budget",
            f"to pay for the {paid} steps that {str(folder)!r} has paid for already",
            shown=f"one for {plan.steps}",
            hint="Give the old budget, or a larger one.",
        )
    if event is not None and (event != plan.event_after(paid) or paid < start):
        raise _validate.ArgumentError(
            "out",
            "with the ledger of this run",
            shown=f"{str(folder)!r}, where ledger.json does not say what the steps of its "
            "checkpoint cost",
            hint="Put a copy of that same file back, or begin anew in another folder.",
        )
    return start, paid
