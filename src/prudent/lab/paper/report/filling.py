"""Runs that fill missing table cells, at full size or at a size for a laptop."""

import contextlib
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import attrs

from prudent import _validate
from prudent.lab.paper import jobs
from prudent.lab.paper.grid import run_jobs
from prudent.lab.paper.jobs import Job, Settings, published
from prudent.lab.paper.report.cells import EVERY, CellChoice
from prudent.lab.paper.results import SMALL, shipped

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


def own_results_path(grid: Path, size: str, given: Path | None) -> Path:
    """The path of the results of a user's own settings: by default named as their file."""
    if given is not None:
        return results_path(size, given, running=True)
    return FOLDER / f"{grid.stem}{SMALL if size == 'small' else '.csv'}"


def fill(todo: Iterable[Job], results: Path, *, size: str, device: str) -> None:
    """Run the missing jobs and append their results; existing results are not recomputed."""
    with contextlib.redirect_stdout(sys.stderr):  # standard output is for the table
        run_jobs(list(todo), results, device=device, most_steps=_STEPS[size])


def table_jobs(
    table: int,
    datasets: Collection[str],
    size: str,
    seeds: int | None = None,
    choice: CellChoice = EVERY,
) -> Iterator[Job]:
    """The runs of some cells of a table.

    At small size those of its first corruptions, unless corruptions are chosen.
    """
    corruptions = list(dict.fromkeys(c.corrupt for c in published() if c.table == table))
    if size == "small" and choice.corruptions is None:
        choice = attrs.evolve(choice, corruptions=corruptions[:_CORRUPTIONS])
    every = jobs.table_jobs([table], seeds or _SEEDS[size], datasets=datasets)
    return filter(choice.needs, every)


def own_jobs(mine: Settings, size: str, seeds: int | None = None) -> Iterator[Job]:
    """The runs of a user's own settings."""
    return jobs.own_jobs(mine, seeds or _SEEDS[size])


def frontier_jobs(size: str, seeds: int | None = None) -> Iterator[Job]:
    """The runs of the frontier; at small size only clean training and three attacks."""
    for job in jobs.frontier_jobs(seeds or _SEEDS[size]):
        if size == "full" or (job.corrupt in _SMALL_FRONTIER and not job.features):
            yield job
