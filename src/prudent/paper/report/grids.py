"""The tables as grids: the paper's number, ours, the difference, and the tuned setting."""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from statistics import fmean

from prudent.paper.report import display_names
from prudent.paper.report.cells import Group, Line, datasets, groups
from prudent.paper.report.document import Cell, Grid, Tone
from prudent.paper.report.frontier import Frontier, Row, is_covered
from prudent.paper.report.summary import Comparison
from prudent.paper.results import Estimate, Reading, Results
from prudent.paper.runs.jobs import published, settings

_HEADER = (
    "corruption",
    "ε",
    "method",
    "paper",
    "ours, RDP",
    "difference",
    "ours, PLD",
    "difference",
    "seeds",
    "gain of PTR, PLD",
    "tuned setting",
    "DP-SGD, same tuning",
)
UNCOVERED = "†"


def table_grids(results: Results, table: int) -> list[Grid]:
    """One grid per data set of a table."""
    return [table_grid(results, table, dataset) for dataset in datasets(table)]


def table_grid(results: Results, table: int, dataset: str) -> Grid:
    """The part of a table on one data set."""
    here = [group for group in groups(results, table) if group.dataset == dataset]
    setting = here[0].setting
    notes = [
        display_names.substitute_note(dataset),
        f"Tuned setting: {setting}." if setting not in (None, "ours") else None,
    ]
    return Grid(
        _HEADER,
        tuple(
            row
            for _, same in itertools.groupby(here, key=lambda group: group.corrupt)
            for row in _rows(list(same))
        ),
        words=3,
        title=f"Table {table}: {display_names.dataset(dataset)}",
        note=" ".join(note for note in notes if note),
    )


def _rows(same: list[Group]) -> Iterator[tuple[Cell | None, ...]]:
    """The rows of one corruption, with its name in the first."""
    height = sum(len(group.lines) for group in same)
    name: Cell | None = Cell(display_names.corruption(same[0].corrupt), rows=height)
    for group in same:
        spans = len(group.lines)
        epsilon: Cell | None = Cell(f"{group.epsilon:g}", rows=spans)
        last: tuple[Cell | None, ...] = (
            _gain(group),
            _estimate(group.best, rows=spans),
            _estimate(group.rival, rows=spans),
        )
        for line in group.lines:
            yield (name, epsilon, *_line(line), *last)
            name, epsilon, last = None, None, (None, None, None)


def _gain(group: Group) -> Cell:
    """The gain of TSGD+PTR over TSGD+Gaussian by PLD, with those by RDP and in the paper."""
    exact, renyi = (group.gain(name) for name in ("pld", "rdp"))
    others = {"paper": group.paper_gain, "RDP": renyi}
    detail = ", ".join(
        f"{k} {display_names.difference(v)}" for k, v in others.items() if v is not None
    )
    text = display_names.difference(exact) or display_names.NOT_RUN
    return Cell(text, _tone(exact, ties=False), detail, rows=len(group.lines))


def _line(line: Line) -> tuple[Cell, ...]:
    return (
        Cell(display_names.method(line.paper.method)),
        Cell(display_names.accuracy(line.paper.accuracy)),
        *_against(line, "rdp"),
        *_against(line, "pld"),
        Cell(_seeds(line)),
    )


def _seeds(line: Line) -> str:
    counts = sorted({cell.seeds for cell in (line.rdp, line.pld) if cell is not None})
    return "–".join(map(str, counts))


def _against(line: Line, accountant: str) -> tuple[Cell, Cell]:
    ours = line.by(accountant)
    if ours is None:
        # A run has a row for each accountant unless even its first step exceeds ε.
        run = line.rdp is not None or line.pld is not None
        text = display_names.NOT_REACHED if run else display_names.NOT_RUN
        return Cell(text, Tone.MISSING), Cell("", Tone.MISSING)
    difference = ours.mean - line.paper.accuracy
    return Cell(display_names.estimate(ours)), Cell(
        display_names.difference(difference), _tone(difference)
    )


def _estimate(
    cell: Estimate | None, *, tone: Tone = Tone.PLAIN, rows: int = 1, usual_seeds: int | None = None
) -> Cell:
    """The cell of an estimate; shows the number of seeds unless it is the usual one."""
    if cell is None:
        return Cell(display_names.NOT_RUN, Tone.MISSING, rows=rows)
    detail = "" if cell.seeds == usual_seeds else display_names.seeds(cell)
    return Cell(display_names.estimate(cell), tone, detail, rows=rows)


def _tone(difference: float | None, *, ties: bool = True) -> Tone:
    if difference is None:
        return Tone.MISSING
    return Tone.GOOD if difference > 0 or (ties and difference == 0) else Tone.BAD


def passing_grid(results: Results) -> Grid:
    """How often the test of TSGD+PTR passed in whole runs, and the trim at their end."""
    runs: dict[tuple[str, str], list[list[Reading]]] = defaultdict(list)
    by_run: dict[tuple[str, str, int], list[Reading]] = defaultdict(list)
    for reading in results.readings:
        if reading.column == "ptr":
            by_run[reading.dataset, reading.corrupt, reading.seed].append(reading)
    for (dataset, corrupt, _), readings in by_run.items():
        runs[dataset, corrupt].append(sorted(readings, key=lambda reading: reading.steps))
    cells = dict.fromkeys((cell.dataset, cell.corrupt) for cell in published())
    batches = {name: values["batch"] for name, values in settings()["datasets"].items()}
    return Grid(
        ("data set", "corruption", "tests passed", "F at the end, of the batch"),
        tuple(
            (
                Cell(display_names.dataset(dataset)),
                Cell(display_names.corruption(corrupt)),
                Cell(f"{fmean(map(_share_passed, found)):.0%}"),
                Cell(f"{fmean(run[-1].trim or 0 for run in found) / batches[dataset]:.0%}"),
            )
            for dataset in batches
            for corrupt in (corrupt for name, corrupt in cells if name == dataset)
            if (found := runs[dataset, corrupt])
        ),
        words=2,
    )


def _share_passed(run: list[Reading]) -> float:
    """The pass rate of a whole run, from the rates between its readings."""
    before = [0, *(reading.steps for reading in run[:-1])]
    passed = (
        (reading.pass_rate or 0) * (reading.steps - start)
        for start, reading in zip(before, run, strict=True)
    )
    return sum(passed) / run[-1].steps


def exceptions_grid(comparisons: tuple[Comparison, ...], ours: str, other: str) -> Grid:
    """The cells in which our result is lower."""
    return Grid(
        ("data set", "corruption", "ε", ours, other, "difference"),
        tuple(
            (
                Cell(display_names.dataset(c.group.dataset)),
                Cell(display_names.corruption(c.group.corrupt)),
                Cell(f"{c.group.epsilon:g}"),
                Cell("" if c.ours is None else display_names.accuracy(c.ours)),
                Cell("" if c.other is None else display_names.accuracy(c.other)),
                Cell(display_names.difference(c.difference), _tone(c.difference)),
            )
            for c in comparisons
        ),
        words=2,
    )


def frontier_grid(frontier: Frontier) -> Grid:
    """Methods by attacks, with the worst attack of each row and the best worst case highlighted."""
    return Grid(
        (
            "bad",
            "method",
            "least",
            "clean",
            *(
                display_names.kind(kind) + ("" if is_covered(f"{kind}:0.1") else UNCOVERED)
                for kind in frontier.kinds
            ),
        ),
        tuple(_frontier_rows(frontier)),
        words=2,
        title=f"{display_names.dataset(frontier.dataset)}, every run at ε = {frontier.epsilon:g}",
        note=" ".join(
            filter(
                None,
                (
                    f"Seeds: {frontier.usual_seeds}, where no other number is told.",
                    display_names.substitute_note(frontier.dataset),
                ),
            )
        ),
    )


def _frontier_rows(frontier: Frontier) -> Iterator[tuple[Cell | None, ...]]:
    ratios = [row.ratio for row in frontier.rows]
    usual = frontier.usual_seeds
    for index, row in enumerate(frontier.rows):
        first = index == 0 or ratios[index - 1] != row.ratio
        yield (
            Cell(f"{row.ratio:.0%}", rows=ratios.count(row.ratio)) if first else None,
            Cell(display_names.method(row.column)),
            _least(row, frontier.best(row.ratio)),
            _estimate(row.clean, usual_seeds=usual),
            *(
                _estimate(
                    row.cells.get(kind),
                    tone=Tone.WORST if kind == row.worst else Tone.PLAIN,
                    usual_seeds=usual,
                )
                for kind in frontier.kinds
            ),
        )


def _least(row: Row, best: float | None) -> Cell:
    if row.least is None:
        return Cell(display_names.NOT_RUN, Tone.MISSING)
    met = sum(cell is not None for cell in row.cells.values())
    detail = "" if row.complete else f"of {met} of {len(row.cells)} attacks"
    tone = Tone.BEST if row.complete and row.least == best else Tone.PLAIN
    return Cell(display_names.accuracy(row.least), tone, detail)
