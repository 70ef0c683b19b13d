"""The cells of a table: the paper's number, ours over seeds, and what is better still."""

import functools
from collections.abc import Sequence
from typing import Any

import attrs

from prudent.paper.report import display_names
from prudent.paper.results import Estimate, Results
from prudent.paper.runs.jobs import PAPER_COLUMNS, Published, published

METHOD_ORDER = ("trimmed", "dpsgd", "ptr")
DPSGD = "dpsgd"


@attrs.frozen
class Line:
    """One number of the paper beside ours.

    Attributes:
        paper: What it printed.
        rdp: Ours at the step where Rényi accounting reaches ε.
        pld: Ours at the later step where the exact accounting does.
    """

    paper: Published
    rdp: Estimate | None
    pld: Estimate | None

    def by(self, accountant: str) -> Estimate | None:
        """Ours, by one of the two."""
        return self.rdp if accountant == "rdp" else self.pld


@attrs.frozen
class Group:
    """The methods of a table on one data set, corruption and ε.

    Attributes:
        table: 1 to 4.
        dataset: As in the settings.
        corrupt: Kind and ratio.
        epsilon: The paper's.
        lines: One for each method.
        setting: The name of the tuned setting on this data set; None where none was run.
        best: What it reaches.
        rival: DP-SGD with the same tuning.
    """

    table: int
    dataset: str
    corrupt: str
    epsilon: float
    lines: tuple[Line, ...]
    setting: str | None
    best: Estimate | None
    rival: Estimate | None

    def line(self, method: str) -> Line:
        """The line of a method, which the table must have."""
        (found,) = (line for line in self.lines if line.paper.method == method)
        return found

    @property
    def paper_gain(self) -> float:
        """What the paper's PTR gains over TSGD+Gaussian."""
        return self.line("ptr").paper.accuracy - self.line("trimmed").paper.accuracy

    def gain(self, accountant: str) -> float | None:
        """What PTR gains over TSGD+Gaussian here; None unless both were run."""
        ptr, trimmed = (self.line(method).by(accountant) for method in ("ptr", "trimmed"))
        return None if ptr is None or trimmed is None else ptr.mean - trimmed.mean


def datasets(table: int) -> list[str]:
    """The data sets of a table, in its order."""
    return list(dict.fromkeys(cell.dataset for cell in published() if cell.table == table))


def groups(results: Results, table: int) -> list[Group]:
    """A table of the paper, in its order."""
    keys = dict.fromkeys(
        (cell.dataset, cell.corrupt, cell.epsilon) for cell in published() if cell.table == table
    )
    return [_group(results, table, *key) for key in keys]


def every_group(results: Results) -> list[Group]:
    """Each cell of the paper once, though it prints some in two tables."""
    found = {(g.dataset, g.corrupt, g.epsilon): g for t in (4, 3, 2, 1) for g in groups(results, t)}
    return [found[key] for key in sorted(found, key=_paper_order().index)]


@functools.cache
def _paper_order() -> list[tuple[str, str, float]]:
    return list(dict.fromkeys((c.dataset, c.corrupt, c.epsilon) for c in published()))


def _group(results: Results, table: int, dataset: str, corrupt: str, epsilon: float) -> Group:
    printed = {
        cell.method: cell
        for cell in published()
        if (cell.table, cell.dataset, cell.corrupt, cell.epsilon)
        == (table, dataset, corrupt, epsilon)
    }
    lines = tuple(
        Line(
            printed[method],
            *(results.cell(dataset, corrupt, method, epsilon, name) for name in ("rdp", "pld")),
        )
        for method in METHOD_ORDER
        if method in printed
    )
    setting = best_setting(results, dataset)
    best = rival = None
    if setting is not None:
        best = results.cell(dataset, corrupt, setting, epsilon)
        rival = results.cell(dataset, corrupt, tuned_dpsgd(results, dataset, setting), epsilon)
    return Group(table, dataset, corrupt, epsilon, lines, setting, best, rival)


def our_settings(columns: Sequence[str]) -> list[str]:
    """Those columns that are neither the paper's nor DP-SGD."""
    return [c for c in columns if c not in PAPER_COLUMNS and not c.endswith(DPSGD)]


def best_setting(results: Results, dataset: str) -> str | None:
    """One setting of ours for a data set, not one for each cell, which would be picking luck.

    Of those that fill the most cells of the paper, the one with the highest mean.
    """
    ranks: list[tuple[int, float, str]] = []
    for name in our_settings(results.columns(dataset)):
        cells = [
            results.cell(dataset, corrupt, name, epsilon)
            for where, corrupt, epsilon in _paper_order()
            if where == dataset
        ]
        means = [cell.mean for cell in cells if cell is not None]
        if means:
            ranks.append((len(means), sum(means) / len(means), name))
    return max(ranks)[2] if ranks else None


def tuned_dpsgd(results: Results, dataset: str, setting: str) -> str:
    """The column of DP-SGD that was tuned as a setting was."""
    own = f"{setting}-{DPSGD}"
    return own if own in results.columns(dataset) else f"ours-{DPSGD}"


def plain_table(results: Results, table: int) -> list[dict[str, Any]]:
    """A table for programs: one object for each number of the paper; None: not run."""
    return [
        {
            "table": table,
            "dataset": group.dataset,
            "data": display_names.data_behind(group.dataset),
            "corrupt": group.corrupt,
            "epsilon": group.epsilon,
            "method": line.paper.method,
            "paper": line.paper.accuracy,
            "rdp": _plain(line.rdp),
            "pld": _plain(line.pld),
            "best_setting": group.setting,
            "best": _plain(group.best),
            "dpsgd_same_tuning": _plain(group.rival),
        }
        for group in groups(results, table)
        for line in group.lines
    ]


def _plain(cell: Estimate | None) -> dict[str, Any] | None:
    return None if cell is None else attrs.asdict(cell)
