"""`prudent paper`: the figures and comparisons of the paper, its curves beside the exact ones."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prudent.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prudent.paper.bounds import Price

app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def _paper() -> None:
    """The paper's results, beside exact ones."""


@app.command()
def figure(
    number: Annotated[
        int,
        typer.Argument(metavar="FIGURE", help="1 to 5.", parser=options.read_whole_number),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to write; made if it is not there.")
    ] = Path(),
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
    from prudent.paper import figures

    drawn = figures.figure(number)
    from prudent.paper import plots

    for path in plots.save(drawn, out):
        typer.echo(path)


@app.command()
def compare(
    sampling_rate: options.SamplingRate = 256 / 60_000,
    steps: options.Steps = 5000,
    noise_multiplier: options.NoiseMultiplier = 1.1,
    propose: options.Propose = 0.5,
    test_scale: Annotated[float, options.number("b: scale of the paper's Laplace test.")] = 1.0,
    failure: options.Failure = 1e-8,
    delta: options.Delta = 1e-5,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also draw comparison.png and .svg there.")
    ] = None,
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
    from prudent.paper import bounds

    options.check_sizes(
        sampling_rate=sampling_rate,
        steps=steps,
        noise_multiplier=noise_multiplier,
        propose=propose,
        test_scale=test_scale,
    )
    setting = bounds.Setting(sampling_rate, noise_multiplier, propose, test_scale, failure, delta)
    prices = bounds.compare(setting, steps)
    if out is not None:
        from prudent.paper import plots

        title = f"{steps:,} steps at q = {sampling_rate:.4g}, σ₁ = {noise_multiplier:g}"
        for path in plots.save_comparison(prices, title, out):
            typer.echo(path, err=as_json)
    if as_json:
        rows = [
            {"analysis": p.analysis, "epsilon": options.plain(p.epsilon), "note": p.note}
            for p in prices
        ]
        typer.echo(json.dumps(rows, allow_nan=False))
    else:
        _print_prices(prices)


def _print_prices(prices: "Sequence[Price]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("analysis")
    table.add_column("ε", justify="right")
    table.add_column("", style="dim")
    for price in prices:
        shown = "–" if price.epsilon is None else options.rounded_up(price.epsilon)
        table.add_row(price.analysis, shown, price.note)
    Console(highlight=False).print(table)
