"""Tables of a user's own runs: accuracy by method where each accountant reaches ε."""

from typing import Any

import attrs

from prudent.lab.paper.report import display_names
from prudent.lab.paper.report.cells import METHOD_ORDER
from prudent.lab.paper.report.document import Cell, Grid, Tone
from prudent.lab.paper.report.grids import spans
from prudent.lab.paper.results import ACCOUNTANTS, Results
from prudent.lab.paper.runs.jobs import Settings


def own_grid(results: Results, mine: Settings, dataset: str) -> Grid:
    """The accuracies of one data set, a row for each corruption and ε."""
    one = mine["datasets"][dataset]
    keys = [(corrupt, epsilon) for corrupt in one["corruptions"] for epsilon in one["epsilons"]]
    columns = [(m, a) for m in METHOD_ORDER if m in one["methods"] for a in ACCOUNTANTS]
    rows = (
        (Cell(f"{epsilon:g}"), *(_cell(results, dataset, corrupt, epsilon, c) for c in columns))
        for corrupt, epsilon in keys
    )
    names = spans([display_names.corruption(corrupt) for corrupt, _ in keys])
    return Grid(
        ("corruption", "ε", *(f"{display_names.method(m)}, {a.upper()}" for m, a in columns)),
        tuple((name, *row) for name, row in zip(names, rows, strict=True)),
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
            **{a: _plain(results, name, corrupt, epsilon, (method, a)) for a in ACCOUNTANTS},
        }
        for name, one in mine["datasets"].items()
        for corrupt in one["corruptions"]
        for epsilon in one["epsilons"]
        for method in one["methods"]
    ]


def _cell(
    results: Results, dataset: str, corrupt: str, epsilon: float, column: tuple[str, str]
) -> Cell:
    method, accountant = column
    found = results.cell(dataset, corrupt, method, epsilon, accountant)
    if found is None:
        run = results.has_run(dataset, corrupt, method)
        return Cell(display_names.NOT_REACHED if run else display_names.NOT_RUN, Tone.MISSING)
    return Cell(display_names.estimate(found), detail=display_names.seeds(found))


def _plain(
    results: Results, dataset: str, corrupt: str, epsilon: float, column: tuple[str, str]
) -> dict[str, Any] | None:
    method, accountant = column
    found = results.cell(dataset, corrupt, method, epsilon, accountant)
    return None if found is None else attrs.asdict(found)
