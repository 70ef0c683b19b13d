"""`prudent demo`: the main job, small enough for a laptop."""

import json
from pathlib import Path
from typing import Annotated

import typer

from prudent._rounding import rounded_up
from prudent.cli import options


def demo(
    epsilon: Annotated[float, options.number("ε of every training run.")] = 3.0,
    delta: Annotated[float, options.number("δ of every training run.")] = 1e-5,
    steps: Annotated[int, options.whole_number("Steps of each training run.")] = 300,
    batch: Annotated[int, options.whole_number("Expected batch size.")] = 512,
    corrupt: Annotated[
        str, typer.Option(metavar="KIND:RATIO", help="Which records to corrupt; see prudent train.")
    ] = "label:0.1",
    out: Annotated[Path, typer.Option(help="Folder for the table, plot and metrics.")] = Path(
        "runs/demo"
    ),
    as_json: options.Json = False,
) -> None:
    """Train private models on MNIST with a tenth of the labels wrong, by each method.

    Every method gets the same (ε, δ), priced by the same accountant. This is
    a small run: at full size each method trains for thousands of steps (an
    hour on a laptop, a minute on a GPU).

    [b]Example[/b]

    $ prudent demo --epsilon 3 --steps 300 --out runs/demo
    """
    from prudent import _validate

    _validate.count(1, steps=steps)
    from prudent.accounting import ZERO_OUT
    from prudent.experiments.demo import run_demo
    from prudent.experiments.experiment import Experiment

    common = Experiment(
        epsilon=epsilon, delta=delta, steps=steps, batch=batch, corrupt=corrupt, lr=2.0
    )
    rows = run_demo(common, out)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"MNIST, {corrupt}, {steps} steps: accuracy at ({epsilon:g}, {delta:g})-DP")
    for name in ("method", "accuracy", "ε", "noise multiplier", "test passed"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for row in rows:
        table.add_row(
            row["title"],
            f"{row['accuracy']:.2%}",
            rounded_up(row["epsilon"]),
            f"{row['noise_multiplier']:.3f}",
            f"{row['pass_rate']:.0%}" if row["key"].startswith("ptr") else "no test",
        )
    console = Console()
    console.print(table)
    console.print(f"Neighbours differ by {ZERO_OUT}.")
    console.print(
        "All four are equally private. The trimmed ones also bound what outliers can do; on a "
        "fault as mild as this one plain DP-SGD is hard to beat, and the test buys back part of "
        "what trimming costs."
    )
    console.print(f"Plot: {out / 'demo.png'}   table: {out / 'demo.csv'}   runs: {out}/*/")
