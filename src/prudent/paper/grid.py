"""Running many experiments: resumable run by run, several at a time on one device."""

import csv
import functools
import multiprocessing
import os
import time
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

import attrs
from rich.progress import Progress

from prudent.paper.experiment import run
from prudent.paper.tables import Job
from prudent.training import Plan

COLUMNS = (
    "dataset",
    "corrupt",
    "column",
    "epsilon",
    "accountant",
    "seed",
    "steps",
    "noise_multiplier",
    "accuracy",
    "pass_rate",
    "milliseconds_per_step",
)


def run_jobs(
    wanted: Iterable[Job],
    results: Path,
    *,
    device: str = "cpu",
    workers: int | None = None,
    seconds: float = float("inf"),
    most_steps: int | None = None,
) -> int:
    """Runs what is not in the results yet, and appends a row for every cell a run fills.

    Args:
        wanted: The runs.
        results: A CSV file; made if it is not there.
        device: Where to train.
        workers: Processes side by side; several small runs share a GPU well.
        seconds: Begin no further run after this long.
        most_steps: Cut every run short, for a smoke run: its ε is then that of fewer steps.

    Returns:
        How many runs are still to do.
    """
    done = {_key(row) for row in read_results(results)}
    todo = [job for job in wanted if _job_key(job) not in done]
    workers = (os.cpu_count() or 1) if workers is None else workers
    deadline = time.monotonic() + seconds
    left = len(todo)
    with (
        ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool,
        Progress() as progress,
    ):
        bar = progress.add_task("runs", total=left)
        queue = iter(todo)
        pending: set[Future[list[dict[str, Any]]]] = set()
        while True:
            while len(pending) < workers and time.monotonic() < deadline:
                job = next(queue, None)
                if job is None:
                    break
                pending.add(pool.submit(run_job, job, device, most_steps))
            if not pending:
                return left
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in finished:
                _append(results, future.result())
                left -= 1
                progress.advance(bar)


def run_job(job: Job, device: str, most_steps: int | None = None) -> list[dict[str, Any]]:
    """One run, and a row for each (ε, accountant) it passes."""
    import torch

    torch.set_num_threads(1)
    plan, marks = _plan(job)
    if most_steps is not None:
        plan = attrs.evolve(plan, steps=min(plan.steps, most_steps))
        marks = {key: min(step, most_steps) for key, step in marks.items()}
    began = time.perf_counter()
    result = run(
        job.experiment,
        device=device,
        progress=False,
        evaluations=1,
        evaluate_at=sorted(set(marks.values())),
        plan=plan,
    )
    milliseconds = 1000 * (time.perf_counter() - began) / max(1, plan.steps)
    accuracies = {entry.step: entry.evaluation["accuracy"] for entry in result.fitted.history}
    return [
        {
            "dataset": job.dataset,
            "corrupt": job.corrupt,
            "column": job.column,
            "epsilon": epsilon,
            "accountant": accountant,
            "seed": job.seed,
            "steps": step,
            "noise_multiplier": round(result.plain()["noise_multiplier"], 6),
            "accuracy": round(100 * accuracies[step], 3),
            "pass_rate": round(result.fitted.pass_rate, 4),
            "milliseconds_per_step": round(milliseconds, 3),
        }
        for (epsilon, accountant), step in marks.items()
    ]


def _plan(job: Job) -> tuple[Plan, dict[tuple[float, str], int]]:
    return _solved(attrs.evolve(job, corrupt="none", seed=0))


@functools.cache
def _solved(job: Job) -> tuple[Plan, dict[tuple[float, str], int]]:
    """Plans depend on neither seed nor corruption, so each is solved once in a process."""
    from prudent.paper.datasets import load

    plan = job.experiment.plan(len(load(job.experiment.dataset).train_labels))
    marks = job.marks(plan)
    return attrs.evolve(plan, steps=max(marks.values())), marks


def read_results(path: Path) -> list[dict[str, Any]]:
    """Rows of a results file, numbers as numbers; none where there is no file."""
    if not path.exists():
        return []
    words = ("dataset", "corrupt", "column", "accountant")
    whole = ("seed", "steps")
    with path.open() as file:
        return [
            {
                name: value if name in words else int(value) if name in whole else float(value)
                for name, value in row.items()
            }
            for row in csv.DictReader(file)
        ]


def _append(path: Path, rows: list[dict[str, Any]]) -> None:
    new = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    ours = row["column"].startswith("ours")
    epsilon = row["epsilon"] if ours else None
    return row["dataset"], row["corrupt"], row["column"], epsilon, row["seed"]


def _job_key(job: Job) -> tuple[Any, ...]:
    return job.dataset, job.corrupt, job.column, job.epsilon, job.seed
