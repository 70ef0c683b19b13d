"""The frontier: every method under every attack at one ε, and its lowest accuracy.

An attacker who chooses records and one who chooses gradients are different threats, so there is one
frontier for each, and no worst case is taken over both.
"""

import enum
import functools
from collections import defaultdict
from collections.abc import Sequence
from statistics import mode
from typing import Any

import attrs

from prudent_lab.corruption import AIMED, GradientCorruption, parse
from prudent_lab.paper.jobs import is_met, published, settings
from prudent_lab.paper.results import Estimate, Reading, Results
from prudent_lab.settings import Experiment


class Attacker(enum.StrEnum):
    """What the attacker chooses: records before training, or gradients at every step."""

    RECORDS = "records"
    GRADIENTS = "gradients"


@attrs.frozen
class Row:
    """One method at one ratio of bad records."""

    column: str  # the method
    ratio: float  # fraction of bad records
    clean: Estimate | None  # accuracy without bad records
    # Accuracies by kind of attack, for the attacks that were run with any method at this ratio and
    # that this method can meet; None: not run.
    cells: dict[str, Estimate | None]
    # Success rates of the attacks that set a backdoor; None: not run.
    success: dict[str, Estimate | None]

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
    """Methods by attacks of one attacker on one data set, all at the same ε."""

    dataset: str  # name of the data set in the settings
    epsilon: float  # ε of every run, by exact accounting
    attacker: Attacker  # what the attacker chooses
    kinds: tuple[str, ...]  # the attacks
    rows: tuple[Row, ...]  # rows by ascending ratio, then by method

    @property
    def columns(self) -> list[str]:
        """The methods."""
        return list(dict.fromkeys(row.column for row in self.rows))

    @property
    def ratios(self) -> list[float]:
        """The fractions of bad records."""
        return list(dict.fromkeys(row.ratio for row in self.rows))

    @property
    def usual_seeds(self) -> int:
        """The most common number of seeds per cell."""
        cells = (cell for row in self.rows for cell in (row.clean, *row.cells.values()))
        return mode(cell.seeds for cell in cells if cell is not None)

    def at(self, ratio: float) -> list[Row]:
        """The rows at a ratio, one per method."""
        return [row for row in self.rows if row.ratio == ratio]

    def best(self, ratio: float) -> float | None:
        """The highest worst-case accuracy at a ratio, among methods run under every attack."""
        complete = (row.least for row in self.at(ratio) if row.complete)
        return max((least for least in complete if least is not None), default=None)

    def plain(self) -> list[dict[str, Any]]:
        """The frontier as plain objects, one per method, ratio and attack that was run."""
        return [
            {
                "dataset": self.dataset,
                "epsilon": self.epsilon,
                "attacker": str(self.attacker),
                "method": row.column,
                "ratio": row.ratio,
                "attack": kind,
                **attrs.asdict(cell),
            }
            | ({"success": found.mean} if (found := row.success.get(kind)) else {})
            for row in self.rows
            for kind, cell in row.cells.items()
            if cell is not None
        ]


def frontiers(results: Results) -> list[Frontier]:
    """The frontiers, by data set and ε: bad records first, then bad gradients.

    There is one for each attacker with an attack beyond the paper's tables.
    """
    places: dict[tuple[str, float], list[Reading]] = defaultdict(list)
    for reading in results.readings:
        solved = reading.target == reading.epsilon
        passing = reading.target is None and reading.epsilon in _printed(reading.dataset)
        if reading.accountant == "pld" and reading.corrupt != "none" and (solved or passing):
            places[reading.dataset, reading.epsilon].append(reading)
    found = (
        _frontier(results, *place, attacker, here)
        for place, here in sorted(places.items())
        for attacker in Attacker
    )
    return [frontier for frontier in found if frontier.rows]


@functools.cache
def attacker_of(kind: str) -> Attacker:
    """Who attacks by a kind of corruption: one that touches no gradient is made of records."""
    chosen = kind != AIMED and isinstance(parse(f"{kind}:0.1"), GradientCorruption)
    return Attacker.GRADIENTS if chosen else Attacker.RECORDS


def is_covered(corrupt: str) -> bool:
    """Whether the ε of a run holds under a corruption; it does not if bad records read others."""
    if _kind(corrupt) == AIMED:
        return False
    return Experiment.of(epsilon=None, steps=1, noise_multiplier=1.0, corrupt=corrupt).is_covered


@functools.cache
def _printed(dataset: str) -> set[float]:
    """The ε of the paper's tables.

    At other ε, runs with fixed noise only provide points of a curve.
    """
    return {cell.epsilon for cell in published() if cell.dataset == dataset}


def _frontier(
    results: Results, dataset: str, epsilon: float, attacker: Attacker, readings: Sequence[Reading]
) -> Frontier:
    here = [r for r in readings if attacker_of(_kind(r.corrupt)) == attacker]
    tabled = {_kind(cell.corrupt) for cell in published()}
    beyond = [reading for reading in here if _kind(reading.corrupt) not in tabled]
    ratios = sorted({_ratio(reading.corrupt) for reading in beyond})
    listed = settings()["frontier"]
    columns = [name for name in listed["columns"] if name in {r.column for r in beyond}]
    attacks = {(_kind(r.corrupt), _ratio(r.corrupt)): r.corrupt for r in here}
    kinds = [kind for kind in listed["kinds"] if any((kind, ratio) in attacks for ratio in ratios)]
    triggered = {_kind(reading.corrupt) for reading in here if reading.success is not None}

    def row(column: str, ratio: float) -> Row:
        certified = column in settings()["certified"]
        run = {kind: attacks[kind, ratio] for kind in kinds if (kind, ratio) in attacks}
        met = {kind: name for kind, name in run.items() if is_met(name, certified=certified)}
        place = column, epsilon
        cells = {kind: results.cell(dataset, name, *place) for kind, name in met.items()}
        success = {
            kind: results.success(dataset, name, *place)
            for kind, name in met.items()
            if kind in triggered
        }
        return Row(column, ratio, results.cell(dataset, "none", *place), cells, success)

    rows = tuple(row(column, ratio) for ratio in ratios for column in columns)
    return Frontier(dataset, epsilon, attacker, tuple(kinds), rows)


def _kind(corrupt: str) -> str:
    return corrupt.partition(":")[0]


def _ratio(corrupt: str) -> float:
    return float(corrupt.partition(":")[2])
