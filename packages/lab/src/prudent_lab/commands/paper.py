"""`prudent paper`: the figures, tables and comparisons of the paper, its numbers beside ours."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from prudent._progress import track
from prudent._rounding import rounded_up
from prudent.cli import options
from prudent.cli.display import echo, echo_json, neutral, note, show_files, show_table
from prudent_lab.commands import paper_tables
from prudent_lab.commands.paper_tables import TABLES, ResultsOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prudent_lab.paper.panels import Figure
    from prudent_lab.paper.results import Results

FIGURES = (1, 2, 3, 4, 5)
_DESCENT: dict[str, Any] = {
    "workers": 100,
    "strong_convexity": 1.0,
    "smoothness": 2.0,
    "gradient_bound": 1.0,
    "gradient_deviation": 0.1,
    "dimension": 10,
    "noise": 1.0,
}

SeedsOption = Annotated[int | None, options.whole_number("Largest number of seeds to use.")]

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
app.command()(paper_tables.table)


@app.callback()
def _paper() -> None:
    """The paper's results, beside exact ones."""


@app.command()
def figure(
    name: str = typer.Argument(metavar="FIGURE", help="1 to 5, or convergence."),
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

    convergence: how far trimmed, noisy descent stays from the optimum, by
    share of bad gradients. The paper's theorem is false as printed: it treats
    trimmed honest gradients as unbiased. Drawn are its bound, where its
    conditions hold, and the corrected one (Errata 6). Other settings:
    prudent_lab.paper.convergence.distances.

    [b]Example[/b]

    $ prudent paper figure 3 --out figures
    """
    from prudent import _validate

    _validate.one_of([*map(str, FIGURES), "convergence"], figure=name)
    from prudent_lab.paper import panels, plots
    from prudent_lab.paper.convergence import distances

    if name == "convergence":
        rows = distances(**_DESCENT)
        made = plots.save_drawing(lambda: plots.draw_distances(rows), out, "convergence")
    else:
        made = plots.save(panels.figure(int(name)), out)
    show_files(made, as_json=as_json)


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
    docs: Path | None = options.value(
        "FILE", "Also write the tables to this file, as Markdown.", default=None
    ),
    overview: Path | None = options.value(
        "FILE", "Also write the page up to its tables, as Markdown.", default=None
    ),
    as_json: options.Json = False,
) -> None:
    """Write all results to one self-contained HTML page.

    First which claims of the paper hold; what is proved about bad records,
    and what survived attacks; how
    many cells are at least as good as the paper's, and which are not; then
    its tables with ours beside, accuracy against ε, the private test over
    time, every attack, the figures, and what was chosen where the paper is
    silent. Every number is computed from the results.

    With a folder for --out, beside report.html: figure1 to figure5 (.png,
    .svg, .csv) and table1 to table4 (.md, .json). About a minute, and
    nothing is trained.

    [b]Examples[/b]

    $ prudent paper report --out report.html

    $ prudent paper report --out paper

    $ prudent paper report --results runs/paper/results.csv --docs tables.md
    """
    from prudent_lab.paper.panels import figure
    from prudent_lab.paper.report import page

    found, command = _read_given(results, seeds), "prudent paper report"
    folder = None if out.suffix == ".html" else out
    path = out if folder is None else folder / "report.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = [figure(n) for n in track(FIGURES if figures else (), "figures")]
    path.write_text(page.as_html(found, command, figures=drawn), "utf-8")
    written = [path]
    for given, flag in ((docs, "--docs"), (overview, "--overview")):
        if given is not None:
            given.parent.mkdir(parents=True, exist_ok=True)
            text = page.as_markdown(found, f"{command} {flag}", whole=flag == "--docs")
            given.write_text(text, "utf-8")
            written.append(given)
    if folder is not None:
        written += _parts(found, drawn, folder)
    show_files(written, as_json=as_json)


def _parts(found: "Results", drawn: "Sequence[Figure]", folder: Path) -> list[Path]:
    """Every figure and every table, each in files of its own."""
    from prudent_lab.paper import plots
    from prudent_lab.paper.report import tables
    from prudent_lab.paper.report.comparison import datasets, paper_table, plain_table

    written = [path for each in drawn for path in plots.save(each, folder)]
    for number in track(TABLES, "tables"):
        parts = [paper_table(found, number, name) for name in datasets(number)]
        text = "\n\n".join(map(tables.as_markdown, parts))
        rows = json.dumps(plain_table(found, number), allow_nan=False, indent=1)
        for ending, content in ((".md", text), (".json", rows)):
            written.append(folder / f"table{number}{ending}")
            written[-1].write_text(content + "\n", "utf-8")
    return written


def _read_given(path: Path | None, seeds: int | None) -> "Results":
    """Results of either size, those of the package if none are named."""
    from prudent import _validate

    if seeds is not None:
        _validate.count(1, seeds=seeds)
    from prudent_lab.paper.results import read, shipped

    return read(shipped() if path is None else path, seeds=seeds)


def _tell_files(paths: "Sequence[Path]", *, as_json: bool) -> None:
    """Say which files were written besides the result."""
    for path in paths:
        (note if as_json else echo)(neutral(path))


@app.command()
def compare(
    sampling_rate: options.SamplingRate = 256 / 60_000,
    steps: options.Steps = 5000,
    noise_multiplier: options.NoiseMultiplier = 1.1,
    propose: options.Propose = 0.5,
    test_scale: float = options.number("b, the scale of the paper's Laplace test.", default=1.0),
    failure: options.Failure = 1e-8,
    delta: float = options.number("Target δ.", default=1e-5),
    out: Path | None = options.value(
        "DIR", "Also write comparison.png and .svg to this folder.", default=None
    ),
    as_json: options.Json = False,
) -> None:
    r"""Price one run by every analysis: the paper's and the exact ones.

    Without flags, 5000 steps of the paper's training on MNIST. An analysis
    whose conditions fail says so instead of printing a number.

    [b]Examples[/b]

    $ prudent paper compare
    $ prudent paper compare --noise-multiplier 8 --steps 1000 \
        --sampling-rate 0.01 --out figures
    """
    from prudent_lab.paper import bounds

    options.check_sizes(
        sampling_rate=sampling_rate,
        steps=steps,
        noise_multiplier=noise_multiplier,
        propose=propose,
        test_scale=test_scale,
    )
    setting = bounds.Setting(sampling_rate, noise_multiplier, propose, test_scale, failure, delta)
    prices = bounds.price_list(setting, steps)
    if out is not None:
        from prudent_lab.paper import plots

        title = f"{steps:,} steps at q = {sampling_rate:.4g}, σ₁ = {noise_multiplier:g}"
        made = plots.save_drawing(lambda: plots.draw_comparison(prices, title), out, "comparison")
        _tell_files(made, as_json=as_json)
    if as_json:
        # The reason for a null that stands for no missing number.
        reasons = ("infinite" if p.epsilon == float("inf") else "" for p in prices)
        pairs = zip(prices, reasons, strict=True)
        echo_json([attrs.asdict(p) | {"note": p.note or reason} for p, reason in pairs])
        return
    shown = ("–" if p.epsilon is None else rounded_up(p.epsilon) for p in prices)
    cells = [(p.analysis, epsilon, p.note) for p, epsilon in zip(prices, shown, strict=True)]
    show_table(("analysis", "ε", ""), cells, lines=False)
