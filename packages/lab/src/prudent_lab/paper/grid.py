"""Execution of many experiments, several at a time; finished runs are not repeated.

On the CPU each runs in a separate process. On a GPU they take turns on streams of one process: a
step of a small network leaves most of a GPU idle, so every run is captured as a graph and replayed
on its own stream, one step of each in turn, and the kernels of different runs overlap. Compiling
the steps is not worthwhile: it gains a few percent and takes longer than most runs.

A plan has marks, the steps at which its run reaches each (ε, accountant).
"""

import contextlib
import functools
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import torch
from torch import nn

from prudent import _progress, _validate
from prudent._rounding import rounded_up
from prudent.accounting import PldAccountant, RdpAccountant
from prudent.accounting.calibration import Accountant, UnreachableTargetError
from prudent.training import Execution, Plan, accuracy
from prudent.training.run.metrics import Metrics
from prudent.training.run.run import Run
from prudent.training.sampling import roomy_batch
from prudent_lab.corruption import Backdoor, DataCorruption, GradientCorruption, parse
from prudent_lab.datasets import Dataset, load
from prudent_lab.experiment import build_model
from prudent_lab.features.resnet import find_weights, resnet18
from prudent_lab.models import logistic_regression, vgg16, with_features
from prudent_lab.paper.certified import run_certified
from prudent_lab.paper.jobs import Job
from prudent_lab.paper.results import Reading, append, read
from prudent_lab.settings import Experiment

ACCOUNTANTS: dict[str, Accountant] = {"rdp": RdpAccountant, "pld": PldAccountant}
_PARTS = 4
BACKBONES: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: resnet18(find_weights("resnet18-to-layer3-bnfolded.safetensors")),
    "vgg16": lambda: vgg16(find_weights("vgg16-features.safetensors")),
}
"""The frozen networks whose features the last layer of a data set is trained on, by name."""


class Mark(NamedTuple):
    """A step of a run and the ε spent by then."""

    step: int
    epsilon: float
    accountant: str


Work = Iterator[None]
"""Takes one step per item requested."""

Planned = tuple[Job, Plan, list[Mark]]
Finished = Callable[[list[Reading]], None]


def run_jobs(
    wanted: Iterable[Job],
    results: Path,
    *,
    device: str = "cpu",
    at_once: int | None = None,
    most_steps: int | None = None,
) -> None:
    """Run the jobs that are not in the results yet, and append a row for every mark of a run.

    Args:
        wanted: The runs.
        results: A CSV file, created if needed.
        device: Where to train.
        at_once: Number of concurrent runs: processes on the CPU, streams on a GPU.
        most_steps: Shorten every run, for a smoke test. The rows then have the number of steps
            actually taken but the ε of the whole run: never mix them with those of full runs.
    """
    done = {reading.run for reading in read(results).readings} if results.exists() else set()
    missing = [job for job in wanted if job.run not in done]
    todo = [job for job in missing if not job.features]
    # One feature map after the other, so that each is applied to the records once.
    by_features = sorted(missing, key=lambda job: (job.features, job.dataset))
    certified = [job for job in by_features if job.features]
    with _progress.part("runs", len(missing)):

        def plans() -> Iterator[Planned]:
            for job in todo:
                plan, marks = planned(job, len(_loaded(job.setting["data"]).train_labels))
                if most_steps is not None:
                    plan = attrs.evolve(plan, steps=min(plan.steps, most_steps))
                    marks = [mark._replace(step=min(mark.step, most_steps)) for mark in marks]
                yield job, plan, marks

        def finished(readings: list[Reading]) -> None:
            append(results, readings)
            _progress.advance()

        for job in certified:
            finished(run_certified(job))
        if torch.device(device).type == "cuda":
            place, most = torch.device(device), at_once or 16
            featured = functools.lru_cache(maxsize=most)(_featured)
            works = (
                _work(job, plan, marks, featured(_records(job), place), finished, place)
                for job, plan, marks in plans()
            )
            in_turns(works, most, place)
        else:
            _run_in_processes(plans(), finished, at_once or os.cpu_count() or 1)


def run_job(job: Job, plan: Plan, marks: list[Mark]) -> list[Reading]:
    """Execute one run on one CPU thread and return its rows."""
    torch.set_num_threads(1)
    readings: list[Reading] = []
    device = torch.device("cpu")
    data = _featured(_records(job), device)
    for _ in _work(job, plan, marks, data, readings.extend, device):
        pass
    return readings


class GridRecords(NamedTuple):
    """The records of a run: what it has in common with other runs on the same ones."""

    data: str  # as for `load`
    corrupt: str  # A corruption of data, or none
    seed: int  # seed of the corruption; 0 without one
    centred: bool  # whether features run from −1 to 1
    backbone: str  # name of the frozen network whose features are taken; empty for none
    size: int  # height and width of the images that the frozen network gets


def _records(job: Job) -> GridRecords:
    mine = job.setting
    is_of_data = isinstance(parse(job.corrupt), DataCorruption)
    corrupt, seed = (job.corrupt, job.seed) if is_of_data else ("none", 0)
    backbone = _validate.one_of(("", *BACKBONES), backbone=mine.get("backbone", ""))
    return GridRecords(
        mine["data"], corrupt, seed, bool(mine.get("centred")), backbone, mine.get("size", 0)
    )


_loaded = functools.cache(load)


@functools.lru_cache(maxsize=12)
def _corrupted(data: str, corrupt: str, seed: int) -> Dataset:
    """The records after data corruption, on the host."""
    clean, corruption = _loaded(data), parse(corrupt)
    return clean.corrupted(corruption, seed) if isinstance(corruption, DataCorruption) else clean


def _featured(records: GridRecords, device: torch.device) -> Dataset:
    """The records on a device: as they are, or the features of a fixed network."""
    data = _corrupted(*records[:3])
    if records.backbone:
        network = BACKBONES[records.backbone]()
        data = with_features(data, network, size=records.size, device=device)
    if records.centred:
        data = data.mapped(lambda values: 2 * values - 1)
    return data.to(device)


def in_turns(works: Iterable[Work], at_once: int, device: torch.device) -> None:
    """Take one step of each work in turn; when one ends, start the next.

    A work is prepared only when it starts.
    """
    coming, on_gpu, ended = iter(works), device.type == "cuda", object()
    waiting: deque[tuple[Work, Any]] = deque()  # of each stream its work, at first an empty one
    for _ in range(at_once):
        stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        waiting.append((iter(()), stream))
    while waiting:
        work, stream = waiting.popleft()
        with torch.cuda.stream(stream) if on_gpu else contextlib.nullcontext():
            if next(work, ended) is not ended:
                waiting.append((work, stream))
            elif (following := next(coming, None)) is not None:
                waiting.append((following, stream))


def _run_in_processes(planned: Iterable[Planned], finished: Finished, at_once: int) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(at_once, mp_context=context) as pool:
        pending: set[Future[list[Reading]]] = set()
        for item in planned:
            pending.add(pool.submit(run_job, *item))
            if len(pending) >= at_once:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    finished(future.result())
        for future in pending:
            finished(future.result())


def _work(
    job: Job, plan: Plan, marks: list[Mark], data: Dataset, finished: Finished, device: torch.device
) -> Work:
    """A run that is evaluated at its marks, the last of which ends it; prepared when it starts."""
    corruption, optimizer = job.experiment.corruption, job.experiment.optimizer
    run = Run(
        plan,
        logistic_regression(tuple(data.train_features.shape[1:]), data.classes)
        if "backbone" in job.setting
        else build_model(data, job.seed),
        nn.CrossEntropyLoss(reduction="none"),
        (data.train_features, data.train_labels),
        options={"lr": optimizer.lr, "momentum": optimizer.momentum},
        execution=Execution(
            device=device,
            seed=job.seed,
            distributed=False,  # each run uses this process only, even under torchrun
            # When many runs fill a GPU, padding is expensive; a second chunk in one of 5,000 steps
            # is not.
            physical_batch=roomy_batch(len(data.train_labels), plan.sampling_rate, 3.5),
        ),
        corrupt=corruption if isinstance(corruption, GradientCorruption) else None,
        average=optimizer.average,
    )
    evaluate, history, step = _evaluation(corruption, data), dict[int, Metrics](), 0
    for mark in sorted({mark.step for mark in marks}):
        for _ in range(step, mark):
            run.take()
            yield
        step = mark
        with run.shown() as model:
            shown = evaluate(model)
        history[mark] = run.metrics(shown)
    finished([_reading(job, plan, mark, history[mark.step]) for mark in marks])


def _evaluation(
    corruption: DataCorruption | GradientCorruption | None, data: Dataset
) -> Callable[[nn.Module], dict[str, float]]:
    """Accuracy on the test part and, for a backdoor, how often its trigger succeeds there."""
    clean = accuracy(data.test_features, data.test_labels, batch=10_000)
    if not isinstance(corruption, Backdoor):
        return lambda model: dict(clean(model))
    others = data.test_labels != corruption.target
    stamped = corruption.triggered(data.test_features[others])
    wanted = torch.full_like(data.test_labels[others], corruption.target)
    triggered = accuracy(stamped, wanted, batch=10_000)
    return lambda model: {**clean(model), "success": triggered(model)["accuracy"]}


def _reading(job: Job, plan: Plan, mark: Mark, entry: Metrics) -> Reading:
    success = entry.evaluation.get("success")
    return Reading(
        *job.run,
        epsilon=mark.epsilon,
        accountant=mark.accountant,
        steps=mark.step,
        noise_multiplier=round(getattr(plan.aggregation, "noise_multiplier", 0.0), 5),
        accuracy=round(100 * entry.evaluation["accuracy"], 2),
        pass_rate=None if entry.pass_rate is None else round(entry.pass_rate, 3),
        trim=entry.trim,
        success=None if success is None else round(100 * success, 2),
    )


def planned(job: Job, records: int) -> tuple[Plan, list[Mark]]:
    """The plan of a job on a number of records, and its marks, ordered by step."""
    alike = job.experiment.changed(corrupt="none", seed=0, lr=1.0, momentum=0.0)
    epsilons, curve = job.epsilons, tuple(job.setting["curve"])
    noise, marks = _solved(alike, job.target, epsilons, curve, records)
    fixed = job.experiment.changed(epsilon=None, noise_multiplier=noise, steps=marks[-1].step)
    return fixed.plan(records), marks


@functools.cache
def _solved(
    experiment: Experiment,
    target: float | None,
    epsilons: tuple[float, ...],
    curve: tuple[float, ...],
    records: int,
) -> tuple[float, list[Mark]]:
    """Noise and marks, which take longer to solve than many of the runs that share them."""
    plan, delta = experiment.plan(records), experiment.privacy.delta
    if target is None:
        wanted = [(e, a) for e in epsilons for a in ACCOUNTANTS]
        wanted += [(e, "pld") for e in curve if e < max(epsilons)]
        marks = set[Mark]()
        for e, a in wanted:
            with contextlib.suppress(UnreachableTargetError):  # even one step exceeds it
                within = plan.longest(epsilon=e, delta=delta, accountant=ACCOUNTANTS[a])
                marks.add(Mark(within.steps, e, a))
    else:
        parts = [plan.steps * part // _PARTS for part in range(1, _PARTS)]
        spent = [Mark(s, float(rounded_up(plan.epsilon_after(s, delta))), "pld") for s in parts]
        marks = {*spent, Mark(plan.steps, target, "pld")}
    return plan.aggregation.noise_multiplier, sorted(marks)  # type: ignore[attr-defined]
