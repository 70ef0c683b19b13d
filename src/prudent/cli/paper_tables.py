"""`prudent paper table` and `prudent paper frontier`: results of runs, and the runs themselves."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from prudent.cli import completion, options
from prudent.cli.display import echo_json, remark

if TYPE_CHECKING:
    from prudent.paper.results import Results

TABLES = (1, 2, 3, 4)

ResultsOption = Annotated[
    Path | None,
    typer.Option(
        "--results",
        metavar="FILE",
        help="CSV with the results of runs; by default those that come with the package. One of "
        "small runs ends in .small.csv.",
    ),
]
SizeOption = Annotated[
    Literal["small", "full"],
    typer.Option(
        metavar="SIZE",
        help="small: few short runs, minutes on a CPU, kept apart; full: as in the paper.",
    ),
]
RunOption = Annotated[bool, typer.Option("--run", help="Run what is missing first.")]
RunSeedsOption = Annotated[
    int | None,
    options.whole_number("Number of seeds to use and, with --run, to run (small: 1, full: 5)."),
]
DeviceOption = Annotated[
    str,
    typer.Option(
        help="Where to run: cpu or cuda.", autocompletion=completion.among(*completion.DEVICES)
    ),
]


def table(
    number: Annotated[
        int,
        typer.Argument(metavar="TABLE", help="1 to 4.", parser=options.read_whole_number),
    ],
    size: SizeOption = "full",
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only this data set of the table, such as mnist.",
            autocompletion=completion.among(*completion.DATASETS),
        ),
    ] = None,
    results: ResultsOption = None,
    run: RunOption = False,
    seeds: RunSeedsOption = None,
    device: DeviceOption = "cpu",
    as_json: options.Json = False,
) -> None:
    """Print a table of the paper: its number, ours, the difference.

    Reads the results that come with the package, so it takes seconds; a cell
    that nobody ran says so. By RDP a run is read where Rényi accounting
    reaches ε, by PLD where the exact accounting does. Accuracy is in percent
    on clean test data, mean ± standard deviation over seeds.

    1  random faults: MNIST, CIFAR10, EMNIST
    2  the last layer of pretrained networks
    3  severe faults: targeted labels, flipped signs
    4  DP-SGD beside both

    With --run, runs are added to runs/paper/results.csv (or to the file that
    --results names), run by run: stop it when you like, and start it again.
    The full size needs a GPU and hours.

    [b]Examples[/b]

    $ prudent paper table 1

    $ prudent paper table 1 --dataset mnist --size small --run

    $ prudent paper table 4 --run --seeds 3 --device cuda
    """
    from prudent import _validate

    _validate.one_of(TABLES, paper_table=number)
    if seeds is not None:
        _validate.count(1, seeds=seeds)
    from prudent.paper.report import cells, filling

    datasets = cells.datasets(number)
    if dataset is not None:
        datasets = [_validate.one_of(datasets, dataset=dataset)]
    path = filling.results_path(size, results, running=run)
    if run:
        jobs = filling.table_jobs(number, datasets, size, seeds)
        filling.fill(jobs, path, size=size, device=device)
    found = _read(path, size, seeds)
    if as_json:
        rows = cells.plain_table(found, number)
        shown = [row for row in rows if row["dataset"] in datasets]
        echo_json(shown)
        return
    from prudent.paper.report import grids, terminal

    for name in datasets:
        terminal.show(grids.table_grid(found, number, name))


def frontier(
    size: SizeOption = "full",
    results: ResultsOption = None,
    run: RunOption = False,
    seeds: RunSeedsOption = None,
    device: DeviceOption = "cpu",
    as_json: options.Json = False,
) -> None:
    """Every method under every attack at one price, by who the attacker is.

    Beyond the paper: fourteen faults and attacks by 10, 20 and 30 % of the
    records, all methods at the same (ε, δ), in two tables: bad records (inputs
    and labels are chosen, also as a backdoor, with its success rate) and bad
    gradients (each step's gradients are chosen). Measured, not guaranteed: the
    next attack may do more. What is proved: prudent certify. With --run what
    is missing is run first.

    [b]Examples[/b]

    $ prudent paper frontier

    $ prudent paper frontier --size small --run
    """
    from prudent import _validate

    if seeds is not None:
        _validate.count(1, seeds=seeds)
    from prudent.paper.report import filling
    from prudent.paper.report.frontier import frontiers
    from prudent.paper.report.grids import frontier_grid

    path = filling.results_path(size, results, running=run)
    if run:
        filling.fill(filling.frontier_jobs(size, seeds), path, size=size, device=device)
    found = frontiers(_read(path, size, seeds))
    if as_json:
        rows = [row for each in found for row in each.plain()]
        echo_json(rows)
        return
    from prudent.paper.report import terminal

    for each in found:
        terminal.show(frontier_grid(each))
    remark("Accuracy under the attacks that were tried: measured, not guaranteed.")


def _read(path: Path, size: str, seeds: int | None) -> "Results":
    from prudent.paper.results import read

    if size == "small" and not path.is_file():
        raise FileNotFoundError(f"{path}: no small results yet. Make them: add --run")
    return read(path, seeds=seeds)
