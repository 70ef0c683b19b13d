"""The frontier: every method under every attack at one ε, and its lowest accuracy.

An attacker who chooses records and one who chooses gradients are different threats, so there is one
frontier for each, and no worst case is taken over both.
"""

import enum
import functools
from collections.abc import Sequence
from statistics import mode
from typing import Any

import attrs

from prudent_lab.corruption import AIMED, GradientCorruption, parse
from prudent_lab.paper.jobs import is_met, published, settings
from prudent_lab.paper.report import display_names
from prudent_lab.paper.report.tables import NOT_RUN, Cell, Table
from prudent_lab.paper.results import Estimate, Results
from prudent_lab.settings import Experiment

UNCOVERED = "†"


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
    def worst(self) -> tuple[float, str] | None:
        """The lowest accuracy and its attack; None if no attack was run."""
        known = ((cell.mean, kind) for kind, cell in self.cells.items() if cell is not None)
        return min(known, default=None, key=lambda found: found[0])

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
    columns: list[str]  # the methods
    ratios: list[float]  # fractions of bad records, ascending
    rows: list[Row]  # by ratio, then by method

    @property
    def place(self) -> str:
        """Data set and ε, as text."""
        return f"{display_names.dataset(self.dataset)}, every run at ε = {self.epsilon:g}"

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
        worst = (row.worst for row in self.at(ratio) if row.complete)
        return max((found[0] for found in worst if found is not None), default=None)

    def worst(self, ratio: float) -> dict[str, Cell]:
        """The cells of the worst accuracy at a ratio, by method."""
        cells = dict.fromkeys(self.columns, NOT_RUN)
        for row in self.at(ratio):
            if row.worst is not None:
                met = sum(cell is not None for cell in row.cells.values())
                detail = "" if row.complete else f"of {met} of {len(row.cells)} attacks"
                best = row.complete and row.worst[0] == self.best(ratio)
                cells[row.column] = Cell(f"{row.worst[0]:.2f}", "best" if best else "", detail)
        return cells

    def plain(self) -> list[dict[str, Any]]:
        """The frontier as plain objects, one per method, ratio and attack that was run."""
        own = {"dataset": self.dataset, "epsilon": self.epsilon, "attacker": str(self.attacker)}
        return [
            {**own, "method": row.column, "ratio": row.ratio, "attack": kind, **attrs.asdict(cell)}
            | ({"success": found.mean} if (found := row.success.get(kind)) else {})
            for row in self.rows
            for kind, cell in row.cells.items()
            if cell is not None
        ]


def frontiers(results: Results) -> list[Frontier]:
    """The frontiers, by data set and ε: bad records first, then bad gradients.

    There is one for each attacker with an attack beyond the paper's tables. At an ε that the paper
    does not print, runs with fixed noise only provide points of a curve.
    """
    printed = {(cell.dataset, cell.epsilon) for cell in published()}
    places = {
        (reading.dataset, reading.epsilon)
        for reading in results.readings
        if (reading.accountant, reading.corrupt != "none") == ("pld", True)
        and (
            reading.target == reading.epsilon
            or (reading.target is None and (reading.dataset, reading.epsilon) in printed)
        )
    }
    found = (_frontier(results, *place, each) for place in sorted(places) for each in Attacker)
    return [frontier for frontier in found if frontier.rows]


@functools.cache
def attacker_of(kind: str) -> Attacker:
    """Who attacks by a kind of corruption: one that touches no gradient is made of records."""
    chosen = kind != AIMED and isinstance(parse(f"{kind}:0.1"), GradientCorruption)
    return Attacker.GRADIENTS if chosen else Attacker.RECORDS


def is_covered(corrupt: str) -> bool:
    """Whether the ε of a run holds under a corruption; it does not if bad records read others."""
    if corrupt.startswith(f"{AIMED}:"):
        return False
    return Experiment.of(epsilon=None, steps=1, noise_multiplier=1.0, corrupt=corrupt).is_covered


def _frontier(results: Results, dataset: str, epsilon: float, attacker: Attacker) -> Frontier:
    listed, tabled = settings()["frontier"], {c.corrupt.partition(":")[0] for c in published()}
    attacks: dict[tuple[str, float], str] = {}
    triggered, met_beyond, ratios = set(), set(), set()
    for reading in results.readings:
        kind, _, ratio = reading.corrupt.partition(":")
        here = (reading.dataset, reading.epsilon, reading.accountant) == (dataset, epsilon, "pld")
        if here and ratio and reading.target in (None, epsilon) and attacker_of(kind) == attacker:
            attacks[kind, float(ratio)] = reading.corrupt
            if reading.success is not None:
                triggered.add(kind)
            if kind not in tabled:
                met_beyond.add(reading.column)
                ratios.add(float(ratio))

    def measured(column: str, corrupt: str, quantity: str = "accuracy") -> Estimate | None:
        return results.row((dataset, corrupt, epsilon), quantity).get((column, "pld"))

    def row(column: str, ratio: float) -> Row:
        certified = column in settings()["certified"]
        run = {kind: attacks[kind, ratio] for kind in listed["kinds"] if (kind, ratio) in attacks}
        met = {kind: name for kind, name in run.items() if is_met(name, certified=certified)}
        cells = {kind: measured(column, name) for kind, name in met.items()}
        success = {
            k: measured(column, name, "success") for k, name in met.items() if k in triggered
        }
        return Row(column, ratio, measured(column, "none"), cells, success)

    columns = [name for name in listed["columns"] if name in met_beyond]
    rows = [row(column, ratio) for ratio in sorted(ratios) for column in columns]
    return Frontier(dataset, epsilon, attacker, columns, sorted(ratios), rows)


def frontier_table(frontier: Frontier) -> Table:
    """Attacks by methods at each ratio: the worst of each method, and the best of these."""
    usual = frontier.usual_seeds
    clean = (Cell.of(row.clean, usual) for row in frontier.at(frontier.ratios[0]))
    rows: list[Sequence[Cell | str]] = [("0%", "none", *clean)]

    def attacked(row: Row, kind: str) -> Cell:
        if kind not in row.cells:
            return Cell(display_names.NOT_MET)
        worst = row.worst is not None and kind == row.worst[1]
        return Cell.of(row.cells[kind], usual, tone="worst" if worst else "")

    for ratio in frontier.ratios:
        bad, methods = f"{ratio:.0%}", frontier.at(ratio)
        rows.append((bad, "worst accuracy", *frontier.worst(ratio).values()))
        for kind in dict.fromkeys(kind for row in methods for kind in row.cells):
            name = display_names.kind(kind)
            mark = "" if is_covered(f"{kind}:0.1") else UNCOVERED
            rows.append((bad, name + mark, *(attacked(row, kind) for row in methods)))
            if kind in methods[0].success:
                found = (Cell.of(row.success[kind], usual) for row in methods)
                rows.append((bad, f"{name}: success", *found))
    note = f"Seeds: {usual}, unless a cell says otherwise."
    return Table(
        ("bad", "attack", *map(display_names.method, frontier.columns)),
        rows,
        f"Bad {frontier.attacker}: {frontier.place}",
        f"{note} {display_names.substitute_note(frontier.dataset)}".strip(),
        words=2,
    )


def worst_cases_table(frontiers: Sequence[Frontier]) -> Table:
    """The worst accuracy of each method by attacker and ratio, and the success of a backdoor."""
    columns = list(dict.fromkeys(column for frontier in frontiers for column in frontier.columns))
    cells: list[tuple[str, float, dict[str, Cell]]] = []
    for frontier in frontiers:
        bad = f"Bad {frontier.attacker}"
        cells += [(bad, ratio, frontier.worst(ratio)) for ratio in frontier.ratios]
        for kind in frontier.rows[0].success:
            for ratio in frontier.ratios:
                found = {row.column: row.success.get(kind) for row in frontier.at(ratio)}
                rates = {name: Cell.of(c, frontier.usual_seeds) for name, c in found.items()}
                cells.append((f"{display_names.kind(kind)}: success", ratio, rates))
    return Table(
        ("worst accuracy", "bad", *map(display_names.method, columns)),
        (
            (name, f"{ratio:.0%}", *(here.get(c, display_names.NOT_MET) for c in columns))
            for name, ratio, here in cells
        ),
        frontiers[0].place,
        "Lowest mean accuracy over the attacks that were run, in percent; for the backdoor, "
        "test records with the trigger that are taken for its class. The certified classifiers "
        "also meet an attack aimed at their counts, and compute no gradients.",
    )
