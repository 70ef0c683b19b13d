"""The cells of the paper's tables: the printed numbers and the runs that fill them.

A run with fixed noise reaches each (ε, accountant) at some step, so one run fills several cells:
accuracy is evaluated at each of those steps.
"""

import csv
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator
from importlib import resources
from typing import Any

import attrs

from prudent import _validate
from prudent.accounting import GaussianTest, LaplaceTest
from prudent_lab import declared
from prudent_lab.corruption import AIMED, GradientCorruption, parse
from prudent_lab.paper.results import RunKey
from prudent_lab.settings import Experiment

PAPER_COLUMNS = ("ptr", "trimmed", "dpsgd")
"""The methods that are run with the paper's settings."""
OUR_COLUMNS = ("ours", "ours-dpsgd")
SEEDS = {"small": 1, "full": 5}
"""Seeds of the runs of either size, unless their number is given."""
_SMALL_CORRUPTIONS = 2  # in a small table: none, and the first one
_SMALL_FRONTIER = ("none", "gradient-match:0.2", "colluding:0.2", "inner-product:0.2")


@attrs.frozen
class Published:
    """One number printed in the paper."""

    table: int = attrs.field(converter=int)
    dataset: str
    corrupt: str
    epsilon: float = attrs.field(converter=float)
    method: str
    accuracy: float = attrs.field(converter=float)


@functools.cache
def published() -> tuple[Published, ...]:
    """Every accuracy of the paper's four tables, each under the data set that is run for it."""
    text = resources.files("prudent_lab.paper").joinpath("published.csv").read_text()
    known = settings()["datasets"]
    instead = {mine["paper"]: name for name, mine in known.items() if mine["paper"] not in known}
    return tuple(
        Published(**row | {"dataset": instead.get(row["dataset"], row["dataset"])})
        for row in csv.DictReader(text.splitlines())
    )


def published_for(dataset: str) -> tuple[Published, ...]:
    """The paper's accuracies beside which the runs of a data set stand; empty if there are none."""
    if own := tuple(cell for cell in published() if cell.dataset == dataset):
        return own
    like = settings()["datasets"][dataset]["paper"]
    return tuple(attrs.evolve(c, dataset=dataset) for c in published() if c.dataset == like)


Settings = dict[str, Any]
"""The settings of runs, as a file of them holds them."""


@functools.cache
def settings() -> Settings:
    """The settings of the paper's runs.

    A data set takes what it does not say itself from the one it is `like`, and stands beside the
    cells of the one that `paper` names, by default of that one or its own.
    """
    grid = declared("prudent_lab.paper", "grid.toml")
    whole: Settings = {}
    for name, own in grid["datasets"].items():
        base = whole[own["like"]] if "like" in own else {"paper": name}
        whole[name] = base | {key: value for key, value in own.items() if key != "like"}
    return grid | {"datasets": whole}


@attrs.frozen
class Job:
    """One training run."""

    dataset: str  # name of the data set in the settings
    corrupt: str  # kind and ratio of the corruption
    column: str  # A method with the paper's settings, or a tuned setting
    # The ε at which the accuracy is evaluated. Tuned settings have one and solve the noise for it;
    # the paper's methods fix the noise and reach several.
    epsilons: tuple[float, ...]
    seed: int  # seed of everything random in the run

    @property
    def setting(self) -> Settings:
        """The settings of the data set."""
        own: Settings = settings()["datasets"][self.dataset]
        return own

    @property
    def target(self) -> float | None:
        """The ε for which the noise is solved; None if the noise is fixed."""
        return None if self.column in PAPER_COLUMNS else self.epsilons[0]

    @property
    def features(self) -> str:
        """The feature map of a certified classifier; empty for a training run."""
        return str(settings()["certified"].get(self.column, ""))

    @property
    def run(self) -> RunKey:
        """The key of the run in the rows of its results."""
        return self.dataset, self.corrupt, self.column, self.target, self.seed

    @property
    def experiment(self) -> Experiment:
        """The experiment to run; with the paper's settings, up to the largest ε."""
        every, mine = settings(), self.setting
        common = {
            "dataset": mine["data"],
            "delta": every["delta"],
            "failure": every["failure"],
            "clip": mine["clip"],
            "propose": mine["propose"],
            "corrupt": self.corrupt,
            "seed": self.seed,
            "epsilon": max(self.epsilons),
        }
        if self.column in PAPER_COLUMNS:
            return Experiment.of(
                **common,
                method=self.column,
                noise_multiplier=mine["noise"][self.column],
                test=LaplaceTest(1.0),
                reveals="margin",
                trim_most=mine["trim_most"],
                batch=mine["batch"],
                lr=mine["lr"],
                momentum=mine.get("momentum", 0.0),
            )
        ours = dict(every["ours"][self.column][self.dataset])
        test = GaussianTest(ours.pop("test_scale", 4.0))
        return Experiment.of(**(common | {"test": test} | ours))


def table_jobs(
    tables: Iterable[int], seeds: int, *, datasets: Iterable[str] | None = None
) -> Iterator[Job]:
    """The runs that fill some tables, each once, ordered by seed; by default on their data sets."""
    named = None if datasets is None else [c for name in datasets for c in published_for(name)]
    cells = [cell for cell in named or published() if cell.table in set(tables)]
    wanted: dict[Job, None] = {}
    for seed in range(seeds):
        for cell in cells:
            place = cell.dataset, cell.corrupt
            epsilons = tuple(settings()["datasets"][cell.dataset]["epsilons"])
            wanted[Job(*place, cell.method, epsilons, seed)] = None
            if cell.dataset in settings()["ours"]["ours"]:
                wanted |= {Job(*place, own, (cell.epsilon,), seed): None for own in OUR_COLUMNS}
    yield from wanted


@attrs.frozen
class CellChoice:
    """Some cells of a table: those of the named corruptions, methods and ε; None means all."""

    corrupt: Collection[str] | None = None  # kinds with ratios, as the table has them
    method: Collection[str] | None = None  # columns: the paper's methods, ours, ours-dpsgd
    epsilon: Collection[float] | None = None

    @classmethod
    def of(cls, table: int, names: Collection[str], **given: Any) -> "CellChoice":
        """The choice, checked against the cells of a table on some data sets."""
        cells = [cell for name in names for cell in published_for(name) if cell.table == table]
        for name, values in given.items():
            allowed = {getattr(cell, name) for cell in cells}
            for value in values or ():
                ours = OUR_COLUMNS if name == "method" else ()
                _validate.one_of(allowed.union(ours), **{name: value})
        return cls(**given)

    def has(self, **cell: object) -> bool:
        """Whether a cell is chosen, by what is named of it; None stands for several ε."""
        chosen = {name: getattr(self, name) for name in cell}
        return all(
            chosen[name] is None or value is None or value in chosen[name]
            for name, value in cell.items()
        )


EVERY = CellChoice()


def chosen_jobs(
    table: int, datasets: Collection[str], seeds: int, choice: CellChoice, size: str = "full"
) -> Iterator[Job]:
    """The runs of some cells; at small size of the first corruptions, unless some are chosen."""
    if size == "small" and choice.corrupt is None:
        every = dict.fromkeys(cell.corrupt for cell in published() if cell.table == table)
        choice = attrs.evolve(choice, corrupt=list(every)[:_SMALL_CORRUPTIONS])
    for job in table_jobs([table], seeds, datasets=datasets):
        # A run of fixed noise has no target, and fills the cells of several ε.
        if choice.has(corrupt=job.corrupt, method=job.column, epsilon=job.target):
            yield job


def frontier_jobs(seeds: int, size: str = "full") -> Iterator[Job]:
    """The runs of every method under every corruption and attack that it can meet, at one ε.

    At small size only clean training and three attacks.
    """
    frontier, certified = settings()["frontier"], settings()["certified"]
    every = itertools.product(frontier["ratios"], frontier["kinds"])
    attacks = ["none", *(f"{kind}:{ratio}" for ratio, kind in every)]
    methods = [(column, column in certified) for column in frontier["columns"]]
    if size == "small":
        attacks = [attack for attack in attacks if attack in _SMALL_FRONTIER]
        methods = [method for method in methods if not method[1]]
    for seed in range(seeds):
        for attack in attacks:
            for column, is_certified in methods:
                if is_met(attack, certified=is_certified):
                    yield Job(frontier["dataset"], attack, column, (frontier["epsilon"],), seed)


def is_met(attack: str, *, certified: bool) -> bool:
    """Whether a method can meet an attack: a certified classifier has no gradients."""
    if attack.startswith(f"{AIMED}:"):
        return certified
    return not (certified and isinstance(parse(attack), GradientCorruption))
