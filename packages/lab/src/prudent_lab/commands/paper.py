"""`prudent paper`: the figures and tables of the paper, its numbers beside ours."""

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
import typer

from prudent import _validate
from prudent._progress import track
from prudent._validate import ArgumentError
from prudent.cli import options
from prudent.cli.display import echo, echo_json, remark, show_files
from prudent_lab.commands import completion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from prudent_lab.paper.jobs import Job
    from prudent_lab.paper.results import Results

FIGURES = (1, 2, 3, 4, 5)
TABLES = (1, 2, 3, 4)
_MOST_STEPS = {"small": 40, "full": None}

ResultsOption = Annotated[
    Path | None,
    typer.Option(
        "--results",
        metavar="FILE",
        help="CSV with the results of runs; by default those that come with the package. One of "
        "small runs ends in .small.csv.",
    ),
]
SeedsOption = Annotated[int | None, options.whole_number("Largest number of seeds to use.")]

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def _paper() -> None:
    """The paper's results, beside exact ones."""


@attrs.frozen(kw_only=True)
class Filling:
    """How cells are filled: by runs of which size, how many, and where."""

    size: Annotated[
        Literal["small", "full"],
        options.value(
            "SIZE", "small: few short runs, minutes on a CPU, kept apart; full: as in the paper."
        ),
    ] = "full"
    run: Annotated[bool, typer.Option("--run", help="Run what is missing first.")] = False
    seeds: Annotated[
        int | None,
        options.whole_number("Number of seeds to use and, with --run, to run (small: 1, full: 5)."),
    ] = None
    device: Annotated[
        str,
        typer.Option(
            help="Where to run: cpu or cuda.", autocompletion=options.among(*completion.DEVICES)
        ),
    ] = "cpu"
    as_json: options.Json = False

    def filled(self, given: Path | None, jobs: "Callable[[int], Iterable[Job]]") -> "Results":
        """The results of a file, after the missing runs were made, of a number of seeds."""
        from prudent_lab.paper.jobs import SEEDS
        from prudent_lab.paper.results import read, results_path

        path = results_path(self.size, given, running=self.run)
        if self.seeds is not None:
            _validate.count(1, seeds=self.seeds)
        if self.run and (wanted := list(jobs(self.seeds or SEEDS[self.size]))):
            from prudent_lab.paper.grid import run_jobs

            with contextlib.redirect_stdout(sys.stderr):  # standard output is for the table
                run_jobs(wanted, path, device=self.device, most_steps=_MOST_STEPS[self.size])
        if self.size == "small" and not path.is_file():
            raise FileNotFoundError(f"{path}: no small results yet. Make them: add --run")
        return read(path, seeds=self.seeds)


@app.command()
@options.spread(Filling)
def table(
    name: str = typer.Argument(metavar="TABLE", help="1 to 4, or frontier."),
    dataset: list[str] | None = options.value(
        "NAME",
        "Only this data set, such as mnist; may be repeated.",
        completion.DATASETS,
        default=None,
    ),
    corrupt: list[str] | None = options.value(
        "KIND", "Only this corruption, such as label:0.1 or none.", default=None
    ),
    method: list[str] | None = options.value(
        "NAME", "Only trimmed, dpsgd, ptr, ours or ours-dpsgd.", default=None
    ),
    epsilon: list[float] | None = options.value("NUMBER", "Only the rows of this ε.", default=None),
    results: ResultsOption = None,
    **given: Any,
) -> None:
    r"""Print a table of the paper: its number, ours, the difference.

    Reads the results that come with the package, so it takes seconds; a cell
    that was not run says so. By RDP a run is read where Rényi accounting
    reaches ε, by PLD where the exact accounting does. Accuracy is in percent
    on clean test data, mean ± standard deviation over seeds.

    1  random faults: MNIST, CIFAR10, EMNIST
    2  the last layer of pretrained networks
    3  severe faults: targeted labels, flipped signs
    4  DP-SGD beside both

    frontier: every method under every attack at one price, by who the
    attacker is. Beyond the paper: fourteen faults and attacks by 10, 20 and
    30 % of the records, in two tables: bad records (inputs and labels are
    chosen, also as a backdoor, with its success rate) and bad gradients (each
    step's gradients are chosen). Measured, not guaranteed: the next attack may
    do more. What is proved: prudent certify.

    With --run, runs are added to runs/paper/results.csv (or to the file that
    --results names), run by run: stop it when you like, and start it again.
    The full size needs a GPU and hours; --dataset, --corrupt, --method and
    --epsilon choose some cells of the paper's tables, to run and to show.

    [b]Examples[/b]

    $ prudent paper table 1

    $ prudent paper table 1 --dataset mnist --size small --run

    $ prudent paper table 1 --dataset mnist --corrupt label:0.1 --method ptr --run

    $ prudent paper table 4 --run --seeds 3 --device cuda

    $ prudent paper table frontier --size small --run
    """
    from prudent_lab.paper.jobs import CellChoice, chosen_jobs
    from prudent_lab.paper.report import comparison

    filling = Filling(**given)
    if name == "frontier":
        for argument, chosen in {"dataset": dataset, "corrupt": corrupt, "method": method}.items():
            if chosen:
                raise ArgumentError(argument, "only with a table of the paper", got=chosen)
        _frontier(filling, results)
        return
    number = int(_validate.one_of([*map(str, TABLES), "frontier"], paper_table=name))
    datasets = comparison.datasets(number)
    if dataset:
        every = [*datasets, *comparison.variants(number)]
        datasets = [_validate.one_of(every, dataset=name) for name in dataset]
    choice = CellChoice.of(
        number, datasets, corrupt=corrupt or None, method=method or None, epsilon=epsilon or None
    )
    found = filling.filled(
        results, lambda seeds: chosen_jobs(number, datasets, seeds, choice, filling.size)
    )
    if filling.as_json:
        echo_json(comparison.plain_table(found, number, datasets, choice))
        return
    from prudent_lab.paper.report import tables

    for name in datasets:
        shown = comparison.paper_table(found, number, name, choice)
        echo(tables.as_markdown(shown, aligned=True) + "\n")


def _frontier(filling: Filling, results: Path | None) -> None:
    """Every method under every attack at one price."""
    from prudent_lab.paper.jobs import frontier_jobs
    from prudent_lab.paper.report import tables
    from prudent_lab.paper.report.frontier import frontier_table, frontiers

    found = frontiers(filling.filled(results, lambda seeds: frontier_jobs(seeds, filling.size)))
    if filling.as_json:
        echo_json([row for each in found for row in each.plain()])
        return
    for each in found:
        echo(tables.as_markdown(frontier_table(each), aligned=True) + "\n")
    remark("Accuracy under the attacks that were tried: measured, not guaranteed.")


@app.command()
def figure(
    name: str = typer.Argument(metavar="FIGURE", help="1 to 5."),
    out: Path = options.value("DIR", "Folder to write to; created if missing.", default=Path()),
    as_json: options.Json = False,
) -> None:
    """Draw a figure of the paper, with exact curves added.

    Writes figureN.png, figureN.svg and figureN.csv, whose columns are
    figure, panel, curve, x and y.

    1  ε of one release over its noise: direct, Rényi, exact
    2  Rényi divergence of a sampled release over its order
    3  ε over rounds of composition
    4  Figure 1 for three proposals
    5  Figure 3 for three proposals

    [b]Example[/b]

    $ prudent paper figure 3 --out figures
    """
    number = int(_validate.one_of([*map(str, FIGURES)], figure=name))
    from prudent_lab.paper import panels, plots

    show_files(plots.save(panels.figure(number), out), as_json=as_json)


@app.command()
def report(
    out: Path = options.value(
        "FILE",
        "File to write, .html; or a folder, for every figure and table too. Created if missing.",
        default=Path("report.html"),
    ),
    results: ResultsOption = None,
    seeds: SeedsOption = None,
    figures: bool = typer.Option(True, help="Include the paper's figures; takes half a minute."),
    overview: Path | None = options.value(
        "FILE", "Also write the page up to its tables, as Markdown.", default=None
    ),
    as_json: options.Json = False,
) -> None:
    """Write all results to one self-contained HTML page.

    First which claims of the paper hold; what is proved about bad records,
    and what survived attacks; how many cells are at least as good as the
    paper's, and which are not; then its tables with ours beside, accuracy
    against ε, every attack, the figures, and what was chosen where the paper
    is silent. Every number is computed from the results.

    With a folder for --out, beside report.html: figure1 to figure5 (.png,
    .svg, .csv) and table1 to table4 (.md, .json). About a minute, and
    nothing is trained.

    [b]Examples[/b]

    $ prudent paper report --out report.html

    $ prudent paper report --out paper

    $ prudent paper report --results runs/paper/results.csv
    """
    if seeds is not None:
        _validate.count(1, seeds=seeds)
    from prudent_lab.paper import plots
    from prudent_lab.paper.panels import figure
    from prudent_lab.paper.report import comparison, page, tables
    from prudent_lab.paper.results import read, shipped

    found = read(shipped() if results is None else results, seeds=seeds)
    command = "prudent paper report"
    folder = None if out.suffix == ".html" else out
    path = out if folder is None else folder / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = [figure(n) for n in track(FIGURES if figures else (), "figures")]
    path.write_text(page.as_html(found, command, figures=drawn), "utf-8")
    written = [path]
    if overview is not None:
        overview.parent.mkdir(parents=True, exist_ok=True)
        overview.write_text(page.as_markdown(found, f"{command} --overview", whole=False), "utf-8")
        written.append(overview)
    if folder is not None:  # every figure and every table, each in files of its own
        written += [path for each in drawn for path in plots.save(each, folder)]
        for number in track(TABLES, "tables"):
            parts = [comparison.paper_table(found, number, n) for n in comparison.datasets(number)]
            text = "\n\n".join(map(tables.as_markdown, parts))
            rows = json.dumps(comparison.plain_table(found, number), allow_nan=False, indent=1)
            for ending, content in ((".md", text), (".json", rows)):
                written.append(folder / f"table{number}{ending}")
                written[-1].write_text(content + "\n", "utf-8")
    show_files(written, as_json=as_json)
