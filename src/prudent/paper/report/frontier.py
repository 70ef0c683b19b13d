"""The worst attack: every method under every attack at one price, and the least it keeps."""

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
        ratio: Share of bad records.
        clean: With none.
        cells: By kind of attack, of those that any method met at this ratio; None: not run.
    """

    column: str
    ratio: float
    clean: Estimate | None
    cells: dict[str, Estimate | None]

    @property
    def worst(self) -> str | None:
        """The attack that leaves the least; None if none was run."""
        known = {kind: cell.mean for kind, cell in self.cells.items() if cell is not None}
        return min(known, key=known.__getitem__) if known else None

    @property
    def least(self) -> float | None:
        """What the worst attack leaves."""
        cell = None if self.worst is None else self.cells[self.worst]
        return None if cell is None else cell.mean

    @property
    def complete(self) -> bool:
        """Whether every attack was run; if not, the worst of them may be missing."""
        return None not in self.cells.values()


@attrs.frozen
class Frontier:
    """Methods by attacks on one data set, all at the same ε.

    Attributes:
        dataset: As in the settings.
        epsilon: Of every run, by the exact accounting.
        kinds: The attacks.
        rows: From the smallest ratio up, then by method.
    """

    dataset: str
    epsilon: float
    kinds: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def usual_seeds(self) -> int:
        """How many seeds most cells have."""
        cells = (cell for row in self.rows for cell in (row.clean, *row.cells.values()))
        return mode(cell.seeds for cell in cells if cell is not None)

    def best(self, ratio: float) -> float | None:
        """The highest minimum at a ratio, among methods that met every attack."""
        return max(
            (r.least for r in self.rows if r.ratio == ratio and r.complete and r.least is not None),
            default=None,
        )

    def plain(self) -> list[dict[str, Any]]:
        """For a program: one entry for each method, ratio and attack that was run."""
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
    """One for each data set and ε at which an attack beyond the paper's tables was run."""
    places: dict[tuple[str, float], list[Reading]] = defaultdict(list)
    for reading in results.readings:
        solved = reading.target == reading.epsilon
        passing = reading.target is None and reading.epsilon in _printed(reading.dataset)
        if reading.accountant == "pld" and reading.corrupt != "none" and (solved or passing):
            places[reading.dataset, reading.epsilon].append(reading)
    found = (_frontier(results, *place, here) for place, here in sorted(places.items()))
    return [frontier for frontier in found if frontier.rows]


def is_covered(corrupt: str) -> bool:
    """Whether the price of a run holds under a corruption; reading other records breaks it."""
    return Experiment(epsilon=None, steps=1, noise_multiplier=1.0, corrupt=corrupt).is_covered


@functools.cache
def _printed(dataset: str) -> set[float]:
    """The ε of the paper's tables; at the others a run of fixed noise only draws its curve."""
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
        key=lambda kind: (not is_covered(f"{kind}:0.1"), kind),  # those a price covers come first
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
