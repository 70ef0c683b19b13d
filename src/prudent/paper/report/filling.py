"""Runs that fill missing table cells, at full size or at a size for a laptop."""

import contextlib
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from prudent import _validate
from prudent.paper.results import SMALL, shipped
from prudent.paper.runs import jobs
from prudent.paper.runs.grid import run_jobs
from prudent.paper.runs.jobs import Job, published

FOLDER = Path("runs/paper")
SIZES = ("small", "full")
_SEEDS = {"small": 1, "full": 5}
_STEPS = {"small": 40, "full": None}
_CORRUPTIONS = 2  # in a small table: none, and the first one
_SMALL_FRONTIER = ("none", "gradient-match:0.2", "colluding:0.2", "inner-product:0.2")


def results_path(size: str, given: Path | None, *, running: bool) -> Path:
    """The path from which results are read and, with `running`, to which they are appended.

    Full results start as a copy of those shipped with the package. Small ones have a separate file
    name, so that the two are never mixed.

    Raises:
        ValueError: If a file of the other size is given.
    """
    _validate.one_of(SIZES, size=size)
    if given is not None:
        if given.name.endswith(SMALL) != (size == "small"):
            allowed = f"ending in {SMALL}" if size == "small" else f"not ending in {SMALL}"
            raise _validate.ArgumentError("results", f"{allowed} at size {size}", got=str(given))
        return given
    if size == "small":
        return FOLDER / f"results{SMALL}"
    if not running:
        return shipped()
    own = FOLDER / "results.csv"
    if not own.exists() and shipped().is_file():
        own.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(shipped(), own)
    return own


def fill(todo: Iterable[Job], results: Path, *, size: str, device: str) -> None:
    """Run the missing jobs and append their results; existing results are not recomputed."""
    with contextlib.redirect_stdout(sys.stderr):  # standard output is for the table
        run_jobs(list(todo), results, device=device, most_steps=_STEPS[size])


def table_jobs(
    table: int, datasets: Collection[str], size: str, seeds: int | None = None
) -> Iterator[Job]:
    """The runs of a table on some data sets; at small size only for its first corruptions."""
    corruptions = list(dict.fromkeys(c.corrupt for c in published() if c.table == table))
    chosen = corruptions if size == "full" else corruptions[:_CORRUPTIONS]
    count = _SEEDS[size] if seeds is None else seeds
    for job in jobs.table_jobs([table], count, datasets=datasets):
        if job.corrupt in chosen:
            yield job


def frontier_jobs(size: str, seeds: int | None = None) -> Iterator[Job]:
    """The runs of the frontier; at small size only clean training and three attacks."""
    for job in jobs.frontier_jobs(_SEEDS[size] if seeds is None else seeds):
        if size == "full" or (job.corrupt in _SMALL_FRONTIER and not job.features):
            yield job
