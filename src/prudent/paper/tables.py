"""The cells of the paper's tables: what it printed, and the runs that fill them.

A run of fixed noise passes, on its way, the steps at which each (ε, accountant) is reached, so one
run fills several cells: accuracy is read at each of those steps.
"""

import csv
import functools
import tomllib
from collections.abc import Iterator
from importlib import resources
from typing import Any

import attrs

from prudent.accounting import GaussianTest, LaplaceTest, PldAccountant, RdpAccountant
from prudent.accounting.calibration import Accountant
from prudent.paper.experiment import Experiment
from prudent.training import Plan

ACCOUNTANTS: dict[str, Accountant] = {"rdp": RdpAccountant, "pld": PldAccountant}
PAPER_COLUMNS = ("ptr", "trimmed", "dpsgd")
OUR_COLUMNS = ("ours", "ours-dpsgd")


@attrs.frozen
class Published:
    """One number the paper prints.

    Attributes:
        table: 1 to 4.
        dataset: As in the settings.
        corrupt: Kind and ratio.
        epsilon: The ε it claims.
        method: ptr, trimmed or dpsgd.
        accuracy: In percent.
    """

    table: int
    dataset: str
    corrupt: str
    epsilon: float
    method: str
    accuracy: float


@functools.cache
def published() -> tuple[Published, ...]:
    """Every accuracy of the paper's four tables."""
    text = resources.files("prudent.paper").joinpath("published.csv").read_text()
    return tuple(
        Published(
            int(row["table"]),
            row["dataset"],
            row["corrupt"],
            float(row["epsilon"]),
            row["method"],
            float(row["accuracy"]),
        )
        for row in csv.DictReader(text.splitlines())
    )


@functools.cache
def settings() -> dict[str, Any]:
    """The settings of the runs."""
    text = resources.files("prudent.paper").joinpath("grid.toml").read_text()
    return tomllib.loads(text)


@attrs.frozen
class Job:
    """One training run.

    Attributes:
        dataset: As in the settings.
        corrupt: Kind and ratio.
        column: A method with the paper's settings, or one of ours.
        epsilon: Of our columns, which solve for noise; None for the paper's, which pass several ε.
        seed: Of everything.
    """

    dataset: str
    corrupt: str
    column: str
    epsilon: float | None
    seed: int

    @property
    def experiment(self) -> Experiment:
        """What is run; the paper's columns at their largest ε."""
        every, mine = settings(), settings()["datasets"][self.dataset]
        common = {
            "dataset": mine["data"],
            "delta": every["delta"],
            "failure": every["failure"],
            "clip": mine["clip"],
            "propose": mine["propose"],
            "corrupt": self.corrupt,
            "seed": self.seed,
        }
        if self.column in PAPER_COLUMNS:
            return Experiment(
                **common,
                method=self.column,
                epsilon=max(mine["epsilons"]),
                noise_multiplier=mine["noise"][self.column],
                test=LaplaceTest(1.0),
                reveals="margin",
                batch=mine["batch"],
                lr=mine["lr"],
            )
        ours = settings()["ours"][self.dataset]
        return Experiment(
            **common,
            method="dpsgd" if self.column == "ours-dpsgd" else "ptr",
            epsilon=self.epsilon,
            steps=ours["steps"],
            test=GaussianTest(ours["test_scale"]),
            batch=ours["batch"],
            lr=ours["lr"],
        )

    def marks(self, plan: Plan) -> dict[tuple[float, str], int]:
        """At which step each (ε, accountant) is reached."""
        if self.epsilon is not None:
            return {(self.epsilon, "pld"): plan.steps}
        epsilons = settings()["datasets"][self.dataset]["epsilons"]
        return _marks(plan, tuple(epsilons), settings()["delta"])


@functools.cache
def _marks(plan: Plan, epsilons: tuple[float, ...], delta: float) -> dict[tuple[float, str], int]:
    return {
        (epsilon, name): plan.longest(epsilon=epsilon, delta=delta, accountant=accountant).steps
        for epsilon in epsilons
        for name, accountant in ACCOUNTANTS.items()
    }


def jobs(tables: set[int], seeds: int, *, ours: bool = True) -> Iterator[Job]:
    """The runs that fill some tables, first seeds first, each once."""
    wanted: dict[Job, None] = {}
    for seed in range(seeds):
        for cell in published():
            if cell.table not in tables or cell.table == 2:
                continue
            wanted[Job(cell.dataset, cell.corrupt, cell.method, None, seed)] = None
            if ours:
                for column in OUR_COLUMNS:
                    wanted[Job(cell.dataset, cell.corrupt, column, cell.epsilon, seed)] = None
    yield from wanted
