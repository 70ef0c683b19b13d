"""`prudent demo`: the main job, small enough for a laptop."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prudent._rounding import rounded_up
from prudent.cli import completion, options
from prudent.cli.display import as_text, echo_json, manner

if TYPE_CHECKING:
    from rich.console import Console

    from prudent.certify.demo import Classifier
    from prudent.certify.experiment import Result

_PASSED = (
    "Test passed: in that share of the steps the private test found that one record moves the "
    "trimmed sum little, and the step had half the noise. More is trimmed after a failed test and "
    "less after a passed one, in equal steps, which drives the share towards one half by design."
)
_RECIPE = (
    "The recipe is a linear model on features that were made from no data, trained without bad "
    "records. prudent train --recipe list shows the others."
)
_BAD_RECORDS = (
    "All are equally private. On bad records DP-SGD is hard to beat, and the test buys back "
    "part of what trimming costs. What each method keeps under attack is measured, not proved: "
    "prudent paper frontier."
)
_PROVED = (
    "Certified is proved: a prediction stays the same whatever that many records are, inserted or "
    "removed. Attacks show what happened, not what can."
)


def demo(
    epsilon: Annotated[float, options.number("ε of every training run.")] = 3.0,
    delta: Annotated[float, options.number("δ of every training run.")] = 1e-5,
    steps: Annotated[int, options.whole_number("Steps of each training run.")] = 300,
    batch: Annotated[int, options.whole_number("Expected batch size.")] = 512,
    corrupt: Annotated[
        str,
        typer.Option(
            metavar="KIND:RATIO",
            help="Which records to corrupt; see prudent train.",
            autocompletion=completion.among(*completion.CORRUPTIONS),
        ),
    ] = "label:0.1",
    out: Annotated[Path, typer.Option(help="Folder for the table, picture and metrics.")] = Path(
        "runs/demo"
    ),
    as_json: options.Json = False,
) -> None:
    """Train private models on MNIST with bad records, and certify one against them.

    First every training method on data with a tenth of the labels wrong, with
    the same (ε, δ), priced by the same accountant. This is a small run: at full
    size each method trains for thousands of steps (an hour on a laptop, a
    minute on a GPU). Beside them a recipe on clean data, at full size. Then two
    classifiers, each from one private release, with features made from public
    letters and from no data at all, and how many bad records their predictions
    are proved to withstand.

    [b]Example[/b]

    $ prudent demo --epsilon 3 --steps 300 --out runs/demo
    """
    from prudent import _validate

    _validate.count(1, steps=steps)
    from prudent.certify.demo import run_demo
    from prudent.experiments.experiment import Experiment

    common = Experiment(
        epsilon=epsilon, delta=delta, steps=steps, batch=batch, corrupt=corrupt, lr=2.0
    )
    done = run_demo(common, out)
    if as_json:
        echo_json(done.plain())
        return
    from rich.console import Console

    console = Console(highlight=False)
    title = f"MNIST, {corrupt}, {steps} steps: accuracy at ({epsilon:g}, {delta:g})-DP"
    show_runs(done.rows, title, console)
    show_certified(done.certified, console)
    files = f"Picture: {out / 'demo.svg'}   table: {out / 'demo.csv'}   runs: {out}/*/"
    console.print(as_text(files))


def show_runs(rows: list[dict[str, Any]], title: str, console: "Console") -> None:
    """Print the training runs, and what the rate of passed tests means."""
    from rich.table import Table

    from prudent.accounting import ZERO_OUT

    table = Table(title=title)
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
    console.print(table)
    console.print(f"Neighbours differ by {ZERO_OUT}.")
    if not manner().quiet:
        console.print(_PASSED)
        console.print(_BAD_RECORDS)
        if any(row["key"] == "recipe" for row in rows):
            console.print(_RECIPE)
    console.print()


def show_certified(found: "Sequence[tuple[Classifier, Result]]", console: "Console") -> None:
    """Print accuracy at (ε, δ), and certified accuracy against the number of bad records."""
    from rich.table import Table

    from prudent.accounting import ADD_REMOVE

    table = Table(title="MNIST, one private release: certified accuracy against bad records")
    table.add_column("bad records", justify="right")
    for each, result in found:
        title = f"{each.title}\n({result.epsilon:g}, {result.delta:g})-DP"
        table.add_column(f"{title}\ncertified", justify="right", style="bold")
        table.add_column(f"{each.title}\nafter the worst\nattack tried", justify="right")
    for k in found[0][1].certified:
        cells = [(result.certified[k], result.attacked[k]) for _, result in found]
        table.add_row(f"{k:,}", *(f"{value:.2%}" for pair in cells for value in pair))
    console.print(table)
    console.print(f"Neighbours differ by {ADD_REMOVE}.")
    if not manner().quiet:
        console.print(_PROVED)
