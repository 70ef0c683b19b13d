"""The frontier: every method under every attack at one ε, and its lowest accuracy."""

import functools
from collections import defaultdict
from statistics import mode
from typing import Any

import attrs

from prudent.experiments.experiment import Experiment
from prudent.paper.results import Estimate, Reading, Results
from prudent.paper.runs.jobs import published, settings


@attrs.frozen
class Row:
    """One method at one ratio of bad records.

    Attributes:
        column: The method.
        ratio: Fraction of bad records.
        clean: Accuracy without bad records.
        cells: Accuracies by kind of attack, for the attacks that were run with any method at this
            ratio; None: not run.
    """

    column: str
    ratio: float
    clean: Estimate | None
    cells: dict[str, Estimate | None]

    @property
    def worst(self) -> str | None:
        """The attack with the lowest accuracy; None if no attack was run."""
        known = {kind: cell.mean for kind, cell in self.cells.items() if cell is not None}
        return min(known, key=known.__getitem__) if known else None

    @property
    def least(self) -> float | None:
        """The accuracy under the worst attack."""
        cell = None if self.worst is None else self.cells[self.worst]
        return None if cell is None else cell.mean

    @property
    def complete(self) -> bool:
        """Whether every attack was run; if not, the worst one may be missing."""
        return None not in self.cells.values()


@attrs.frozen
class Frontier:
    """Methods by attacks on one data set, all at the same ε.

    Attributes:
        dataset: Name of the data set in the settings.
        epsilon: ε of every run, by exact accounting.
        kinds: The attacks.
        rows: Rows by ascending ratio, then by method.
    """

    dataset: str
    epsilon: float
    kinds: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def usual_seeds(self) -> int:
        """The most common number of seeds per cell."""
        cells = (cell for row in self.rows for cell in (row.clean, *row.cells.values()))
        return mode(cell.seeds for cell in cells if cell is not None)

    def best(self, ratio: float) -> float | None:
        """The highest worst-case accuracy at a ratio, among methods run under every attack."""
        return max(
            (r.least for r in self.rows if r.ratio == ratio and r.complete and r.least is not None),
            default=None,
        )

    def plain(self) -> list[dict[str, Any]]:
        """The frontier as plain objects, one per method, ratio and attack that was run."""
        return [
            {
                "dataset": self.dataset,
                "epsilon": self.epsilon,
                "method": row.column,
                "ratio": row.ratio,
                "attack": kind,
                "mean": cell.mean,
                "deviation": cell.deviation,
                "seeds": cell.seeds,
            }
            for row in self.rows
            for kind, cell in row.cells.items()
            if cell is not None
        ]


def frontiers(results: Results) -> list[Frontier]:
    """One frontier per data set and ε at which an attack beyond the paper's tables was run."""
    places: dict[tuple[str, float], list[Reading]] = defaultdict(list)
    for reading in results.readings:
        solved = reading.target == reading.epsilon
        passing = reading.target is None and reading.epsilon in _printed(reading.dataset)
        if reading.accountant == "pld" and reading.corrupt != "none" and (solved or passing):
            places[reading.dataset, reading.epsilon].append(reading)
    found = (_frontier(results, *place, here) for place, here in sorted(places.items()))
    return [frontier for frontier in found if frontier.rows]


def is_covered(corrupt: str) -> bool:
    """Whether the ε of a run holds under a corruption; it does not if bad records read others."""
    return Experiment(epsilon=None, steps=1, noise_multiplier=1.0, corrupt=corrupt).is_covered


@functools.cache
def _printed(dataset: str) -> set[float]:
    """The ε of the paper's tables.

    At other ε, runs with fixed noise only provide points of a curve.
    """
    return {cell.epsilon for cell in published() if cell.dataset == dataset}


def _frontier(results: Results, dataset: str, epsilon: float, here: list[Reading]) -> Frontier:
    tabled = {_kind(cell.corrupt) for cell in published()}
    beyond = [reading for reading in here if _kind(reading.corrupt) not in tabled]
    ratios = sorted({_ratio(reading.corrupt) for reading in beyond})
    listed: list[str] = settings()["frontier"]["columns"]
    columns = [column for column in listed if column in {reading.column for reading in beyond}]
    attacks = {
        (_kind(reading.corrupt), _ratio(reading.corrupt)): reading.corrupt for reading in here
    }
    kinds = sorted(
        {kind for kind, ratio in attacks if ratio in ratios},
        key=lambda kind: (not is_covered(f"{kind}:0.1"), kind),  # accounted ones first
    )
    rows = (
        Row(
            column,
            ratio,
            results.cell(dataset, "none", column, epsilon),
            {
                kind: results.cell(dataset, attacks[kind, ratio], column, epsilon)
                for kind in kinds
                if (kind, ratio) in attacks
            },
        )
        for ratio in ratios
        for column in columns
    )
    return Frontier(dataset, epsilon, tuple(kinds), tuple(rows))


def _kind(corrupt: str) -> str:
    return corrupt.partition(":")[0]


def _ratio(corrupt: str) -> float:
    return float(corrupt.partition(":")[2])
