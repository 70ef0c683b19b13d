"""The section on what differs on CIFAR10: the paper's cells with other networks and momentum.

The paper names a network for grey images and does not say how it reads colour, so its cells were
run with the networks that its authors may have used, and with momentum.
"""

from statistics import fmean

from prudent.lab.paper.report import display_names, essay
from prudent.lab.paper.report.cells import METHOD_ORDER, Group, Line, groups, variants
from prudent.lab.paper.report.document import Block, Cell, Grid, Section, Tone
from prudent.lab.paper.report.grids import spans, table_grid
from prudent.lab.paper.results import ACCOUNTANTS, Results

_TABLE = 1
_BASE = "cifar10"
_LEAST_SEEDS = 2  # of a variant whose whole table is shown


def section(results: Results) -> Section | None:
    """The comparison of networks; None if no other network was run."""
    run = [name for name in variants(_TABLE) if _lines(results, name)]
    if not run:
        return None
    blocks: list[Block] = [essay.networks(), _grid(results, [_BASE, *run])]
    blocks += [
        table_grid(results, _TABLE, name)
        for name in run
        if all(_seeds(line) >= _LEAST_SEEDS for group in _groups(results, name) for line in group)
    ]
    return Section("CIFAR10: what differs", "networks", tuple(blocks))


def _groups(results: Results, name: str) -> list[tuple[Line, ...]]:
    return [group.lines for group in groups(results, _TABLE, [name])]


def _seeds(line: Line) -> int:
    return 0 if line.pld is None else line.pld.seeds


def _lines(results: Results, name: str) -> list[Line]:
    """The lines of a data set that were run."""
    return [line for lines in _groups(results, name) for line in lines if line.pld is not None]


def _grid(results: Results, names: list[str]) -> Grid:
    """A row for each network and method; columns are the cells that most networks were run for."""
    found = {name: groups(results, _TABLE, [name]) for name in names}
    shown = [
        place
        for place in range(len(found[_BASE]))
        if 2 * sum(_is_run(each[place]) for each in found.values()) > len(found)
    ]
    methods = [m for m in METHOD_ORDER if m in found[_BASE][0].methods]
    rows: list[tuple[Cell, ...]] = [
        (
            Cell(display_names.method(method)),
            *(_paper(found[_BASE][place].line(method)) for place in shown),
            *[Cell("")] * len(ACCOUNTANTS),
        )
        for method in methods
    ]
    titles = ["the paper"] * len(methods)
    for name in names:
        for method in methods:
            lines = [found[name][place].line(method) for place in shown]
            cells = (_ours(line) for line in lines)
            gaps = (Cell(_gap(lines, accountant)) for accountant in ACCOUNTANTS)
            rows.append((Cell(display_names.method(method)), *cells, *gaps))
            titles.append(_title(name))
    header = (
        "network",
        "method",
        *(_header(found[_BASE][place]) for place in shown),
        *(f"off by, {accountant.upper()}" for accountant in ACCOUNTANTS),
    )
    return Grid(
        header,
        tuple((title, *row) for title, row in zip(spans(titles), rows, strict=True)),
        words=2,
        title="Table 1, CIFAR10: batch, rate, clip and noise as printed, by PLD",
        note="One seed unless a cell says otherwise. Off by: the mean distance from the paper's "
        "numbers in these cells, in points, where each accounting reaches ε.",
    )


def _is_run(group: Group) -> bool:
    return any(line.pld is not None for line in group.lines)


def _header(group: Group) -> str:
    return f"{display_names.corruption(group.corrupt)}, ε = {group.epsilon:g}"


def _title(name: str) -> str:
    own = display_names.dataset(name).removeprefix("CIFAR10, ")
    return "tutorial network" if name == _BASE else own


def _paper(line: Line) -> Cell:
    return Cell(display_names.accuracy(line.paper.accuracy))


def _ours(line: Line) -> Cell:
    if line.pld is None:
        return Cell(display_names.NOT_RUN, Tone.MISSING)
    tone = Tone.GOOD if line.pld.mean >= line.paper.accuracy else Tone.BAD
    detail = "" if line.pld.seeds == 1 else display_names.seeds(line.pld)
    return Cell(display_names.estimate(line.pld), tone, detail)


def _gap(lines: list[Line], accountant: str) -> str:
    gaps = [
        abs(cell.mean - line.paper.accuracy)
        for line in lines
        if (cell := line.by(accountant)) is not None
    ]
    return display_names.accuracy(fmean(gaps)) if gaps else display_names.NOT_MET
