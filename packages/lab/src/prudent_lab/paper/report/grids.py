"""The tables as grids: the paper's number, ours with its difference, and the tuned setting."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean, mode
from typing import Any

from prudent_lab.paper.jobs import Settings, published, settings
from prudent_lab.paper.report import display_names
from prudent_lab.paper.report.cells import (
    EVERY,
    METHOD_ORDER,
    CellChoice,
    PaperLine,
    groups,
    plain,
    variants,
)
from prudent_lab.paper.report.frontier import Frontier, Row, is_covered
from prudent_lab.paper.report.tables import Grid, GridCell, GridRow, Tone
from prudent_lab.paper.results import ACCOUNTANTS, Estimate, Reading, Results

UNCOVERED = "†"
_NETWORK_TABLE = 1
_BASE = "cifar10"
_LEAST_SEEDS = 2  # of a variant whose whole table is shown
_NOT_RUN = GridCell(display_names.NOT_RUN, Tone.MISSING)


def table_grid(
    results: Results,
    table: int,
    dataset: str,
    *,
    choice: CellChoice = EVERY,
    standalone: bool = True,
) -> Grid:
    """The part of a table on one data set.

    A row holds every method at one corruption and ε. Rows and columns that nothing was run for are
    left out, and the note says so.

    A `standalone` one describes a substitute for the paper's data in its note; the report does
    so once for all tables.
    """
    every = groups(results, table, [dataset])
    chosen = [group for group in every if choice.has(group.corrupt, group.epsilon)]
    here = [group for group in chosen if group.is_run] or chosen
    shown = list(filter(choice.has_method, here[0].methods))
    lines = [group.line(method) for group in here for method in shown]
    usual = _usual_seeds([cell for line in lines for cell in line.ours.values()])
    tuned = _usual_seeds([cell for group in here for cell in (group.best, group.rival)])
    columns: dict[str, Sequence[GridCell | str]] = {}
    for method in shown:
        lines = [group.line(method) for group in here]
        name = display_names.method(method)
        columns[f"{name}, paper"] = [display_names.accuracy(line.paper.accuracy) for line in lines]
        for accountant in ACCOUNTANTS:
            columns[f"{name}, {accountant.upper()}"] = [
                _estimate(
                    line.ours[accountant],
                    usual_seeds=usual,
                    paper=None if results.small else line.paper.accuracy,
                    # A run has a row for each accountant unless even its first step exceeds ε.
                    run=any(line.ours.values()),
                )
                for line in lines
            ]
    if choice.has_method("ours"):
        columns["tuned"] = [_estimate(group.best, usual_seeds=tuned) for group in here]
    if choice.has_method("ours-dpsgd"):
        columns["DP-SGD, tuned"] = [_estimate(group.rival, usual_seeds=tuned) for group in here]
    run = {
        name: cells for name, cells in columns.items() if any(cell != _NOT_RUN for cell in cells)
    }
    known = {group.corrupt for group in here}
    left_out = dict.fromkeys(group.corrupt for group in chosen if group.corrupt not in known)
    notes = [
        _seeds_note(usual, tuned if "tuned" in run else None),
        _not_run_note([name for name in columns if name not in run])
        if len(run) > len(shown)
        else f"{display_names.NOT_RUN.capitalize()}.",
        _not_run_note(list(map(display_names.corruption, left_out))),
        display_names.substitute_note(dataset) if standalone else None,
        display_names.SMALL_NOTE if results.small else None,
        f"Tuned setting: {here[0].setting}." if here[0].setting not in (None, "ours") else None,
    ]
    corruptions = (display_names.corruption(group.corrupt) for group in here)
    epsilons = (f"{group.epsilon:g}" for group in here)
    return Grid.of(
        ("corruption", "ε", *run),
        zip(corruptions, epsilons, *run.values(), strict=True),
        merged=True,
        title=f"Table {table}: {display_names.dataset(dataset)}",
        note=" ".join(note for note in notes if note),
    )


def _usual_seeds(cells: Sequence[Estimate | None]) -> int | None:
    """The most common number of seeds; None if nothing was run."""
    return mode(seeds) if (seeds := [cell.seeds for cell in cells if cell is not None]) else None


def _seeds_note(usual: int | None, tuned: int | None) -> str | None:
    if usual is None and tuned is None:
        return None
    parts = [str(usual)] if usual is not None else []
    if tuned is not None and tuned != usual:
        parts.append(f"{tuned} in the tuned setting")
    return f"Seeds: {', '.join(parts)}, unless a cell says otherwise."


def _not_run_note(names: list[str]) -> str | None:
    return f"{display_names.NOT_RUN.capitalize()}: {'; '.join(names)}." if names else None


def _estimate(
    cell: Estimate | None,
    *,
    tone: Tone = Tone.PLAIN,
    usual_seeds: int | None = None,
    paper: float | None = None,
    run: bool = False,
) -> GridCell:
    """The cell of an estimate, with its number of seeds unless that is the usual one.

    Beside a number of the paper it shows the difference. A `run` without an estimate had no step
    within ε.
    """
    if cell is None:
        return GridCell(display_names.NOT_REACHED, Tone.MISSING) if run else _NOT_RUN
    detail = []
    if paper is not None:
        tone = _tone(cell.mean - paper)
        detail.append(display_names.difference(cell.mean - paper))
    if cell.seeds != usual_seeds:
        detail.append(display_names.seeds(cell))
    return GridCell(display_names.estimate(cell), tone, ", ".join(detail))


def _tone(difference: float) -> Tone:
    return Tone.GOOD if difference >= 0 else Tone.BAD


def passing_grid(results: Results) -> Grid:
    """How often the test of TSGD+PTR passed in whole runs, and the trim at their end.

    Rows are corruptions, columns data sets.
    """
    runs: dict[tuple[str, str], dict[int, list[Reading]]] = defaultdict(lambda: defaultdict(list))
    for reading in sorted(results.readings, key=lambda reading: reading.steps):
        if reading.column == "ptr":
            runs[reading.dataset, reading.corrupt][reading.seed].append(reading)
    batches = {name: values["batch"] for name, values in settings()["datasets"].items()}
    shown = [name for name in batches if any(dataset == name for dataset, _ in runs)]

    def passed(dataset: str, corrupt: str) -> str:
        if (dataset, corrupt) not in runs:
            return ""
        passing = runs[dataset, corrupt].values()
        trim = fmean(run[-1].trim or 0 for run in passing) / batches[dataset]
        return f"{fmean(map(_share_passed, passing)):.0%}, {trim:.0%}"

    return Grid.of(
        ("corruption", *map(display_names.short, shown)),
        (
            (display_names.corruption(corrupt), *(passed(name, corrupt) for name in shown))
            for corrupt in dict.fromkeys(cell.corrupt for cell in published())
            if any((name, corrupt) in runs for name in shown)
        ),
        title="Tests passed, and F at the end as a share of the batch",
    )


def _share_passed(run: list[Reading]) -> float:
    """The pass rate of a whole run, from the rates between its readings."""
    before = [0, *(reading.steps for reading in run[:-1])]
    passed = (
        (reading.pass_rate or 0) * (reading.steps - start)
        for start, reading in zip(before, run, strict=True)
    )
    return sum(passed) / run[-1].steps


def frontier_grid(frontier: Frontier) -> Grid:
    """Attacks by methods at each ratio: the worst of each method, and the best of these."""
    usual = frontier.usual_seeds
    clean = [_estimate(row.clean, usual_seeds=usual) for row in frontier.at(frontier.ratios[0])]
    rows: list[GridRow] = [("0%", "none", *clean)]
    for ratio in frontier.ratios:
        rows += [(f"{ratio:.0%}", *line) for line in _frontier_lines(frontier, ratio)]
    title = (
        f"{display_names.attacker(frontier.attacker)}: {display_names.dataset(frontier.dataset)}, "
        f"every run at ε = {frontier.epsilon:g}"
    )
    notes = (
        f"Seeds: {usual}, unless a cell says otherwise.",
        display_names.substitute_note(frontier.dataset),
    )
    return Grid.of(
        ("bad", "attack", *map(display_names.method, frontier.columns)),
        rows,
        merged=True,
        words=2,
        title=title,
        note=" ".join(note for note in notes if note),
    )


def _frontier_lines(frontier: Frontier, ratio: float) -> Iterator[GridRow]:
    usual, methods = frontier.usual_seeds, frontier.at(ratio)

    def attacked(row: Row, kind: str) -> GridCell:
        if kind not in row.cells:
            return GridCell(display_names.NOT_MET)
        tone = Tone.WORST if kind == row.worst else Tone.PLAIN
        return _estimate(row.cells[kind], tone=tone, usual_seeds=usual)

    yield "worst accuracy", *(_least(row, frontier.best(ratio)) for row in methods)
    for kind in dict.fromkeys(kind for row in methods for kind in row.cells):
        mark = "" if is_covered(f"{kind}:0.1") else UNCOVERED
        yield display_names.kind(kind) + mark, *(attacked(row, kind) for row in methods)
        if kind in methods[0].success:
            found = (_estimate(row.success[kind], usual_seeds=usual) for row in methods)
            yield f"{display_names.kind(kind)}: success", *found


def worst_cases_grid(frontiers: Sequence[Frontier]) -> Grid:
    """The worst accuracy of each method by attacker and ratio, and the success of a backdoor."""
    first = frontiers[0]
    columns = list(dict.fromkeys(column for frontier in frontiers for column in frontier.columns))
    rows: list[GridRow] = []

    def add(name: str, ratio: float, cells: dict[str, GridCell]) -> None:
        met = (cells.get(column, display_names.NOT_MET) for column in columns)
        rows.append((name, f"{ratio:.0%}", *met))

    for frontier in frontiers:
        for ratio in frontier.ratios:
            best = frontier.best(ratio)
            cells = {row.column: _least(row, best) for row in frontier.at(ratio)}
            add(display_names.attacker(frontier.attacker), ratio, cells)
        for kind in frontier.rows[0].success:
            for ratio in frontier.ratios:
                cells = {
                    row.column: _estimate(row.success.get(kind), usual_seeds=frontier.usual_seeds)
                    for row in frontier.at(ratio)
                }
                add(f"{display_names.kind(kind)}: success", ratio, cells)
    return Grid.of(
        ("worst accuracy", "bad", *map(display_names.method, columns)),
        rows,
        merged=True,
        title=f"{display_names.dataset(first.dataset)}, every run at ε = {first.epsilon:g}",
        note="Lowest mean accuracy over the attacks that were run, in percent; for the backdoor, "
        "test records with the trigger that are taken for its class. The certified classifiers "
        "also meet an attack aimed at their counts, and compute no gradients.",
    )


def _least(row: Row, best: float | None) -> GridCell:
    if row.least is None:
        return _NOT_RUN
    met = sum(cell is not None for cell in row.cells.values())
    detail = "" if row.complete else f"of {met} of {len(row.cells)} attacks"
    tone = Tone.BEST if row.complete and row.least == best else Tone.PLAIN
    return GridCell(display_names.accuracy(row.least), tone, detail)


def network_grids(results: Results) -> list[Grid]:
    """What differs on CIFAR10: the paper's cells with other networks and momentum.

    The paper names a network for grey images and does not say how it reads colour, so its cells
    were run with the networks that its authors may have used. Empty if no other network was run.
    """
    lines = {
        name: [line for group in groups(results, _NETWORK_TABLE, [name]) for line in group.lines]
        for name in variants(_NETWORK_TABLE)
    }
    run = [name for name in lines if any(line.ours["pld"] for line in lines[name])]
    if not run:
        return []
    whole = [
        table_grid(results, _NETWORK_TABLE, name)
        for name in run
        if all((pld := line.ours["pld"]) and pld.seeds >= _LEAST_SEEDS for line in lines[name])
    ]
    return [_network_grid(results, [_BASE, *run]), *whole]


def _network_grid(results: Results, names: list[str]) -> Grid:
    """A row for each network and method; columns are the cells that most networks were run for."""
    by_network = {name: groups(results, _NETWORK_TABLE, [name]) for name in names}
    base = by_network[_BASE]
    run = [
        sum(any(line.ours["pld"] for line in cells[place].lines) for cells in by_network.values())
        for place in range(len(base))
    ]
    shown = [place for place, count in enumerate(run) if 2 * count > len(by_network)]
    methods = base[0].methods
    rows: list[GridRow] = []
    for method in methods:
        printed = (base[place].line(method).paper.accuracy for place in shown)
        gaps = [""] * len(ACCOUNTANTS)
        accuracies = map(display_names.accuracy, printed)
        rows.append(("the paper", display_names.method(method), *accuracies, *gaps))
    for name in names:
        own = display_names.dataset(name).removeprefix("CIFAR10, ")
        title = "tutorial network" if name == _BASE else own
        for method in methods:
            lines = [by_network[name][place].line(method) for place in shown]
            gaps = [_gap(lines, accountant) for accountant in ACCOUNTANTS]
            rows.append((title, display_names.method(method), *map(_network_cell, lines), *gaps))
    places = (
        f"{display_names.corruption(base[place].corrupt)}, ε = {base[place].epsilon:g}"
        for place in shown
    )
    return Grid.of(
        ("network", "method", *places, *(f"off by, {name.upper()}" for name in ACCOUNTANTS)),
        rows,
        merged=True,
        words=2,
        title="Table 1, CIFAR10: batch, rate, clip and noise as printed, by PLD",
        note="One seed unless a cell says otherwise. Off by: the mean distance from the paper's "
        "numbers in these cells, in points, where each accounting reaches ε.",
    )


def _network_cell(line: PaperLine) -> GridCell:
    pld = line.ours["pld"]
    tone = Tone.PLAIN if pld is None else _tone(pld.mean - line.paper.accuracy)
    return _estimate(pld, tone=tone, usual_seeds=1)


def _gap(lines: list[PaperLine], accountant: str) -> str:
    gaps = [
        abs(cell.mean - line.paper.accuracy)
        for line in lines
        if (cell := line.ours[accountant]) is not None
    ]
    return display_names.accuracy(fmean(gaps)) if gaps else display_names.NOT_MET


def own_grid(results: Results, mine: Settings, dataset: str) -> Grid:
    """The accuracies of one data set, a row for each corruption and ε."""
    one = mine["datasets"][dataset]
    columns = [(m, a) for m in METHOD_ORDER if m in one["methods"] for a in ACCOUNTANTS]

    def cell(corrupt: str, epsilon: float, method: str, accountant: str) -> GridCell:
        found = results.cell(dataset, corrupt, method, epsilon, accountant)
        return _estimate(found, run=bool(results.of(dataset, corrupt, method)))

    rows: Iterator[GridRow] = (
        (
            display_names.corruption(corrupt),
            f"{epsilon:g}",
            *(cell(corrupt, epsilon, *column) for column in columns),
        )
        for corrupt in one["corruptions"]
        for epsilon in one["epsilons"]
    )
    return Grid.of(
        ("corruption", "ε", *(f"{display_names.method(m)}, {a.upper()}" for m, a in columns)),
        rows,
        merged=True,
        title=f"{dataset}: {one['data']}",
        note=display_names.SMALL_NOTE if results.small else "",
    )


def plain_own(results: Results, mine: Settings) -> list[dict[str, Any]]:
    """The accuracies of all data sets as plain objects; None means not run, or no step within ε."""
    return [
        {
            "dataset": name,
            "data": one["data"],
            "corrupt": corrupt,
            "epsilon": epsilon,
            "method": method,
            **{a: plain(results.cell(name, corrupt, method, epsilon, a)) for a in ACCOUNTANTS},
        }
        for name, one in mine["datasets"].items()
        for corrupt in one["corruptions"]
        for epsilon in one["epsilons"]
        for method in one["methods"]
    ]
