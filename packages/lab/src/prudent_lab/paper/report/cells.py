"""The cells of a table: the paper's number, ours over seeds, the tuned setting, and counts."""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import attrs

from prudent import _validate
from prudent_lab.paper.jobs import (
    OUR_COLUMNS,
    PAPER_COLUMNS,
    Job,
    Published,
    published,
    published_for,
    settings,
    table_jobs,
)
from prudent_lab.paper.report import display_names
from prudent_lab.paper.results import ACCOUNTANTS, Estimate, Results

METHOD_ORDER = ("trimmed", "dpsgd", "ptr")
DPSGD = "dpsgd"
_SMALL_CORRUPTIONS = 2  # in a small table: none, and the first one


@attrs.frozen
class CellChoice:
    """Some cells of a table: those of the named corruptions, methods and ε; None means all."""

    corruptions: Collection[str] | None = None  # kinds with ratios, as the table has them
    methods: Collection[str] | None = None  # columns: the paper's methods and the tuned settings
    epsilons: Collection[float] | None = None  # values of ε

    @classmethod
    def of(
        cls,
        table: int,
        names: Collection[str],
        *,
        corruptions: Collection[str] | None,
        methods: Collection[str] | None,
        epsilons: Collection[float] | None,
    ) -> "CellChoice":
        """The choice, checked against the cells of a table on some data sets."""
        cells = [cell for name in names for cell in published_for(name) if cell.table == table]
        allowed: dict[str, list[Any]] = {
            "corrupt": list(dict.fromkeys(cell.corrupt for cell in cells)),
            "method": [*dict.fromkeys(cell.method for cell in cells), *OUR_COLUMNS],
            "epsilon": sorted({cell.epsilon for cell in cells}),
        }
        given = {"corrupt": corruptions, "method": methods, "epsilon": epsilons}
        for name, values in given.items():
            for value in values or ():
                _validate.one_of(allowed[name], **{name: value})
        return cls(corruptions, methods, epsilons)

    def has_method(self, name: str) -> bool:
        """Whether a column is chosen."""
        return self.methods is None or name in self.methods

    def has(self, corrupt: str, epsilon: float | None) -> bool:
        """Whether a corruption and an ε are chosen; None stands for several ε."""
        wanted = self.corruptions is None or corrupt in self.corruptions
        return wanted and (None in (epsilon, self.epsilons) or epsilon in (self.epsilons or ()))

    def needs(self, job: Job) -> bool:
        """Whether a run fills a chosen cell; a run of fixed noise fills those of several ε."""
        return self.has(job.corrupt, job.target) and self.has_method(job.column)


EVERY = CellChoice()


def chosen_jobs(
    table: int, datasets: Collection[str], seeds: int, choice: CellChoice, size: str = "full"
) -> Iterator[Job]:
    """The runs of some cells; at small size of the first corruptions, unless some are chosen."""
    if size == "small" and choice.corruptions is None:
        every = dict.fromkeys(cell.corrupt for cell in published() if cell.table == table)
        choice = attrs.evolve(choice, corruptions=list(every)[:_SMALL_CORRUPTIONS])
    return filter(choice.needs, table_jobs([table], seeds, datasets=datasets))


@attrs.frozen
class PaperLine:
    """One number of the paper beside ours."""

    paper: Published  # the number that the paper prints
    # Our accuracy at the step where Rényi accounting reaches ε (rdp), and at the later one where
    # exact accounting does (pld); None if not run.
    ours: dict[str, Estimate | None]


@attrs.frozen
class Group:
    """The methods of a table for one data set, corruption and ε."""

    table: int  # number of the table, 1 to 4
    dataset: str  # name of the data set in the settings
    corrupt: str  # kind and ratio of the corruption
    epsilon: float  # ε in the paper
    lines: tuple[PaperLine, ...]  # one line per method
    setting: str | None  # name of the tuned setting for this data set; None if none was run
    best: Estimate | None  # accuracy of the tuned setting
    rival: Estimate | None  # accuracy of DP-SGD with the same tuning

    def line(self, method: str) -> PaperLine:
        """The line of a method, which must be in the table."""
        (found,) = (line for line in self.lines if line.paper.method == method)
        return found

    @property
    def is_run(self) -> bool:
        """Whether there is a result of any method."""
        ours = (cell for line in self.lines for cell in line.ours.values())
        return any((*ours, self.best, self.rival))

    @property
    def methods(self) -> list[str]:
        """The methods of the table, in our order."""
        return [line.paper.method for line in self.lines]


def datasets(table: int) -> list[str]:
    """The data sets of a table, in the order of the table."""
    return list(dict.fromkeys(cell.dataset for cell in published() if cell.table == table))


def variants(table: int) -> list[str]:
    """The other data sets of the settings that stand beside cells of a table."""
    return [
        name
        for name in settings()["datasets"]
        if name not in datasets(table) and any(c.table == table for c in published_for(name))
    ]


def groups(results: Results, table: int, names: Collection[str] | None = None) -> list[Group]:
    """The groups of a table in its order, on its own data sets or on named ones."""
    cells = [c for name in names or datasets(table) for c in published_for(name)]
    keys = dict.fromkeys((c.dataset, c.corrupt, c.epsilon) for c in cells if c.table == table)
    return [_group(results, table, *key) for key in keys]


def every_group(results: Results) -> list[Group]:
    """Each group of the paper once, although the paper prints some in two tables."""
    found = {(g.dataset, g.corrupt, g.epsilon): g for t in (4, 3, 2, 1) for g in groups(results, t)}
    return [found[key] for key in sorted(found, key=_paper_order().index)]


@functools.cache
def _paper_order() -> list[tuple[str, str, float]]:
    return list(dict.fromkeys((c.dataset, c.corrupt, c.epsilon) for c in published()))


def _group(results: Results, table: int, dataset: str, corrupt: str, epsilon: float) -> Group:
    printed = {
        cell.method: cell
        for cell in published_for(dataset)
        if (cell.table, cell.corrupt, cell.epsilon) == (table, corrupt, epsilon)
    }

    def ours(method: str) -> dict[str, Estimate | None]:
        place = dataset, corrupt, method, epsilon
        return {name: results.cell(*place, name) for name in ACCOUNTANTS}

    shown = [method for method in METHOD_ORDER if method in printed]
    lines = tuple(PaperLine(printed[method], ours(method)) for method in shown)
    setting = best_setting(results, dataset)
    best = rival = None
    if setting is not None:
        best = results.cell(dataset, corrupt, setting, epsilon)
        rival = results.cell(dataset, corrupt, tuned_dpsgd(results, dataset, setting), epsilon)
    return Group(table, dataset, corrupt, epsilon, lines, setting, best, rival)


def our_settings(columns: Sequence[str]) -> list[str]:
    """The columns that are neither the paper's nor DP-SGD."""
    return [c for c in columns if c not in PAPER_COLUMNS and not c.endswith(DPSGD)]


def best_setting(results: Results, dataset: str) -> str | None:
    """The best tuned setting for a data set as a whole.

    Of the settings that fill the most cells of the paper, the one with the highest mean. It is not
    chosen per cell, which would select lucky runs.
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
    """The column of DP-SGD with the same tuning as a setting."""
    own = f"{setting}-{DPSGD}"
    return own if own in results.columns(dataset) else f"ours-{DPSGD}"


def plain_table(
    results: Results, table: int, names: Collection[str] | None = None, choice: CellChoice = EVERY
) -> list[dict[str, Any]]:
    """A table as plain objects, one per number of the paper; None means not run."""
    return [
        {
            "table": table,
            "dataset": group.dataset,
            "data": display_names.data_behind(group.dataset),
            "corrupt": group.corrupt,
            "epsilon": group.epsilon,
            "method": line.paper.method,
            "paper": line.paper.accuracy,
            **{name: plain(cell) for name, cell in line.ours.items()},
            "best_setting": group.setting,
            "best": plain(group.best),
            "dpsgd_same_tuning": plain(group.rival),
        }
        for group in groups(results, table, names)
        if choice.has(group.corrupt, group.epsilon)
        for line in group.lines
        if choice.has_method(line.paper.method)
    ]


def plain(cell: Estimate | None) -> dict[str, Any] | None:
    """An estimate as a plain object."""
    return None if cell is None else attrs.asdict(cell)


@attrs.frozen
class Comparison:
    """Two accuracies of one cell; None if not run."""

    group: Group  # the cell
    ours: float | None  # our accuracy in percent
    other: float | None  # the accuracy to compare with

    @property
    def difference(self) -> float | None:
        """Our accuracy minus the other."""
        return None if self.ours is None or self.other is None else self.ours - self.other


@attrs.frozen
class Tally:
    """The outcomes of one comparison in a set of cells."""

    claim: str  # what is won
    exception: str  # what it is called where it is lost
    won: tuple[Comparison, ...] = ()
    lost: tuple[Comparison, ...] = ()  # the exceptions
    missing: tuple[Comparison, ...] = ()  # comparisons for which a result is missing

    def of(self, comparisons: Iterable[Comparison], *, ties: bool) -> "Tally":
        """Count comparisons; with `ties`, equal accuracies count as won."""
        parts: dict[str, list[Comparison]] = {"won": [], "lost": [], "missing": []}
        for comparison in comparisons:
            difference = comparison.difference
            won = difference is not None and (difference > 0 or (ties and difference == 0))
            parts["missing" if difference is None else "won" if won else "lost"].append(comparison)
        return Tally(self.claim, self.exception, *map(tuple, parts.values()))

    @property
    def made(self) -> int:
        """The number of comparisons with both results."""
        return len(self.won) + len(self.lost)

    def on(self, *datasets: str) -> "Tally":
        """The count restricted to some data sets."""
        parts = (self.won, self.lost, self.missing)
        here = (tuple(c for c in part if c.group.dataset in datasets) for part in parts)
        return Tally(self.claim, self.exception, *here)


def summarise(results: Results) -> dict[str, Tally]:
    """The main counts of the report by a short name: over every cell of the paper, each once."""
    every, found = every_group(results), {}
    ptr, tuned = "TSGD+PTR", "tuned setting"

    def count(name: str, claim: str, exception: str, ours: _Of, other: _Of) -> None:
        pairs = (Comparison(group, _mean(ours(group)), _mean(other(group))) for group in every)
        found[name] = Tally(claim, exception).of(pairs, ties="≥" in claim)

    def ran(method: str, accountant: str) -> _Of:
        return lambda group: group.line(method).ours[accountant]

    def printed(group: Group) -> float:
        return group.line("ptr").paper.accuracy

    for of in ("pld", "rdp"):
        by = f"by {of.upper()}"
        told = f"{ptr} ≥ the paper's, {by}", f"{ptr} below the paper's, {by}"
        count(f"PTR ≥ paper, {of.upper()}", *told, ran("ptr", of), printed)
    for of in ("pld", "rdp"):
        by = f"by {of.upper()}"
        told = f"{ptr} > TSGD+Gaussian, {by}", f"{ptr} not above TSGD+Gaussian, {by}"
        count(f"PTR > Gaussian, {of.upper()}", *told, ran("ptr", of), ran("trimmed", of))
    told = f"the {tuned} ≥ the paper's {ptr}", f"The {tuned} below the paper's {ptr}"
    count("best ≥ paper", *told, lambda group: group.best, printed)
    same = "DP-SGD with the same tuning"
    told = f"the {tuned} > {same}", f"The {tuned} not above {same}"
    count("best > DP-SGD", *told, lambda group: group.best, lambda group: group.rival)
    return found


_Of = Callable[[Group], Estimate | float | None]
"""An accuracy of a cell."""


def _mean(accuracy: Estimate | float | None) -> float | None:
    return accuracy.mean if isinstance(accuracy, Estimate) else accuracy
