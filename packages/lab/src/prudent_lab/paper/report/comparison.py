"""The paper's numbers beside ours: tables 1 to 4, own data sets, and counts of both."""

import itertools
from collections.abc import Collection, Iterable, Iterator
from statistics import mode
from typing import Any

import attrs

from prudent_lab.paper.jobs import (
    EVERY,
    OUR_COLUMNS,
    PAPER_COLUMNS,
    CellChoice,
    published,
    published_for,
    settings,
)
from prudent_lab.paper.report import display_names
from prudent_lab.paper.report.tables import NOT_RUN, Cell, Table
from prudent_lab.paper.results import ACCOUNTANTS, Estimate, Place, Results

_METHODS = ("trimmed", "dpsgd", "ptr")
_MOST_NAMED = 4  # exceptions on a data set that are named one by one


def datasets(table: int | None = None) -> list[str]:
    """The data sets of a table or of the paper, in its order."""
    return list(dict.fromkeys(c.dataset for c in published() if table in (None, c.table)))


def variants(table: int) -> list[str]:
    """The other data sets of the settings that stand beside cells of a table."""
    others = (name for name in settings()["datasets"] if name not in datasets(table))
    return [name for name in others if any(c.table == table for c in published_for(name))]


def printed(table: int, dataset: str) -> dict[Place, dict[str, float]]:
    """What the paper prints in a table for a data set, by place and method, in our order."""
    found: dict[Place, dict[str, float]] = {}
    for cell in published_for(dataset):
        if cell.table == table:
            found.setdefault((dataset, cell.corrupt, cell.epsilon), {})[cell.method] = cell.accuracy
    return {place: {m: here[m] for m in _METHODS if m in here} for place, here in found.items()}


def run_on(results: Results, table: int) -> list[str]:
    """The data sets with a result in a table or beside it."""
    every = (*datasets(table), *variants(table))
    return [name for name in every if any(map(results.row, printed(table, name)))]


def tuned_columns(results: Results, dataset: str) -> tuple[str, str]:
    """The best tuned setting for a data set as a whole, and DP-SGD with the same tuning.

    Of the settings that fill the most cells of the paper, the one with the highest mean. It is not
    chosen per cell, which would select lucky runs. Empty if none was run.
    """
    places = dict.fromkeys((c.dataset, c.corrupt, c.epsilon) for c in published_for(dataset))
    columns, ranks = results.columns(dataset), []
    for name in columns:
        if name not in PAPER_COLUMNS and not name.endswith("dpsgd"):
            found = [cell.mean for p in places if (cell := results.row(p).get((name, "pld")))]
            ranks += [(len(found), sum(found) / len(found), name)] if found else []
    best = max(ranks, default=(0, 0.0, ""))[2]
    rival = f"{best}-dpsgd" if f"{best}-dpsgd" in columns else "ours-dpsgd"
    return best, rival if best else ""


def paper_table(results: Results, number: int, dataset: str, choice: CellChoice = EVERY) -> Table:
    """The part of a table on one data set: a row holds every method at one corruption and ε.

    Rows and columns that nothing was run for are left out, and the note says so.
    """
    paper, tuned = printed(number, dataset), tuned_columns(results, dataset)
    chosen = [place for place in paper if choice.has(corrupt=place[1], epsilon=place[2])]
    here = [place for place in chosen if results.row(place)] or chosen
    rows = [(place, results.row(place)) for place in here]
    methods = [method for method in paper[here[0]] if choice.has(method=method)]
    usual = _usual_seeds(row.get((m, of)) for _, row in rows for m in methods for of in ACCOUNTANTS)
    usual_tuned = _usual_seeds(row.get((name, "pld")) for _, row in rows for name in tuned)
    columns: dict[str, list[Cell]] = {}
    for method in methods:
        name = display_names.method(method)
        columns[f"{name}, paper"] = [Cell(f"{paper[place][method]:.2f}") for place in here]
        for of in ACCOUNTANTS:
            columns[f"{name}, {of.upper()}"] = [
                Cell.of(
                    row.get((method, of)),
                    usual,
                    paper=None if results.small else paper[place][method],
                    # A run has a row for each accountant unless even its first step exceeds ε.
                    run=any((method, each) in row for each in ACCOUNTANTS),
                )
                for place, row in rows
            ]
    for column, title, name in zip(OUR_COLUMNS, ("tuned", "DP-SGD, tuned"), tuned, strict=True):
        if choice.has(method=column):
            columns[title] = [Cell.of(row.get((name, "pld")), usual_tuned) for _, row in rows]
    run = {name: cells for name, cells in columns.items() if set(cells) != {NOT_RUN}}
    seeds = [str(usual)] if usual is not None else []
    if "tuned" in run and usual_tuned not in (None, usual):
        seeds.append(f"{usual_tuned} in the tuned setting")
    known = {place[1] for place in here}
    missing = [name for name in columns if name not in run]
    left_out = dict.fromkeys(display_names.corruption(p[1]) for p in chosen if p[1] not in known)

    def absent(names: Collection[str]) -> str:
        return f"Not run: {'; '.join(names)}." if names else ""

    notes = [
        f"Seeds: {', '.join(seeds)}, unless a cell says otherwise." if seeds else "",
        "Not run." if len(run) <= len(methods) else absent(missing),
        absent(left_out),
        display_names.substitute_note(dataset),
        display_names.SMALL_NOTE if results.small else "",
        f"Tuned setting: {tuned[0]}." if tuned[0] not in ("", "ours") else "",
    ]
    title = f"Table {number}: {display_names.dataset(dataset)}"
    corruptions = [display_names.corruption(corrupt) for _, corrupt, _ in here]
    epsilons = [f"{epsilon:g}" for *_, epsilon in here]
    shown = zip(corruptions, epsilons, *run.values(), strict=True)
    return Table(("corruption", "ε", *run), shown, title, " ".join(filter(None, notes)))


def _usual_seeds(cells: Iterable[Estimate | None]) -> int | None:
    """The most common number of seeds; None if nothing was run."""
    return mode(seeds) if (seeds := [cell.seeds for cell in cells if cell is not None]) else None


def plain_table(
    results: Results, table: int, names: Collection[str] | None = None, choice: CellChoice = EVERY
) -> list[dict[str, Any]]:
    """A table as plain objects, one per number of the paper; None means not run."""
    found = []
    for name in names or datasets(table):
        best, rival = tuned_columns(results, name)
        for place, methods in printed(table, name).items():
            for method, accuracy in methods.items():
                if choice.has(corrupt=place[1], epsilon=place[2], method=method):
                    row = results.row(place)
                    found.append(
                        {"table": table, "paper": accuracy}
                        | dict(zip(("dataset", "corrupt", "epsilon"), place, strict=True))
                        | {"data": display_names.data_behind(name), "method": method}
                        | {of: _plain(row.get((method, of))) for of in ACCOUNTANTS}
                        | {
                            "best_setting": best or None,
                            "best": _plain(row.get((best, "pld"))),
                            "dpsgd_same_tuning": _plain(row.get((rival, "pld"))),
                        }
                    )
    return found


def _plain(cell: Estimate | None) -> dict[str, Any] | None:
    return None if cell is None else attrs.asdict(cell)


@attrs.frozen
class Tally:
    """The outcomes of one comparison in a set of cells."""

    differences: dict[Place, float | None]  # our accuracy minus the other; None if one is missing
    ties: bool  # whether equal accuracies count as won

    @property
    def made(self) -> int:
        """The number of comparisons with both results."""
        return sum(difference is not None for difference in self.differences.values())

    @property
    def lost(self) -> dict[Place, float]:
        """The exceptions, with their differences."""
        known = {place: d for place, d in self.differences.items() if d is not None}
        return {place: d for place, d in known.items() if d < 0 or (d == 0 and not self.ties)}

    def on(self, *names: str) -> "Tally":
        """The count restricted to some data sets."""
        return Tally({p: d for p, d in self.differences.items() if p[0] in names}, self.ties)

    def tile(self, label: str = "") -> Cell:
        """How many are won, as a cell."""
        if not self.made:
            return attrs.evolve(NOT_RUN, detail=label)
        missing = len(self.differences) - self.made
        detail = "; ".join(filter(None, (label, f"{missing} not run" if missing else "")))
        won = f"{self.made - len(self.lost)} of {self.made}"
        return Cell(won, "bad" if self.lost else "good", detail)

    def exceptions(self) -> Iterator[str]:
        """The cells in which our result is lower, by data set, with their differences."""
        for dataset in dict.fromkeys(place[0] for place in self.lost):
            here = self.on(dataset)
            if len(here.lost) <= _MOST_NAMED:
                named = []
                for corrupt, same in itertools.groupby(here.lost, lambda place: place[1]):
                    at = (f"{display_names.difference(here.lost[p])} at {p[2]:g}" for p in same)
                    named.append(f"{display_names.corruption(corrupt)} ({', '.join(at)})")
                shown = ", ".join(named)
            else:
                some = len(here.lost) < here.made
                share = f"{len(here.lost)} of {here.made} cells" if some else "every cell"
                ends = map(display_names.difference, (f(here.lost.values()) for f in (max, min)))
                shown = f"{share}, {' to '.join(ends)}"
            yield f"{display_names.short(dataset)}: {shown}"


def summarise(results: Results) -> dict[str, Tally]:
    """The main counts of the report by a short name: over every cell of the paper, each once."""
    paper = {
        (c.dataset, c.corrupt, c.epsilon): c.accuracy for c in published() if c.method == "ptr"
    }
    tuned = {
        name: dict(zip(OUR_COLUMNS, tuned_columns(results, name), strict=True))
        for name in datasets()
    }

    def ran(column: str, accountant: str = "pld") -> dict[Place, float]:
        keys = {place: (tuned[place[0]].get(column, column), accountant) for place in paper}
        return {p: results.row(p)[k].mean for p, k in keys.items() if k in results.row(p)}

    pairs = {
        "PTR ≥ paper, PLD": (ran("ptr"), paper),
        "PTR ≥ paper, RDP": (ran("ptr", "rdp"), paper),
        "PTR > Gaussian, PLD": (ran("ptr"), ran("trimmed")),
        "PTR > Gaussian, RDP": (ran("ptr", "rdp"), ran("trimmed", "rdp")),
        "best ≥ paper": (ran("ours"), paper),
        "best > DP-SGD": (ran("ours"), ran("ours-dpsgd")),
    }
    return {
        name: Tally({p: a[p] - b[p] if p in a and p in b else None for p in paper}, "≥" in name)
        for name, (a, b) in pairs.items()
    }
