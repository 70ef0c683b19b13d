"""`prudent demo`: the main jobs, small enough for a laptop."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from prudent._rounding import exact, rounded_up
from prudent.cli import options
from prudent.cli.display import as_text, echo_json, note, output_mode, show_table
from prudent_lab.commands import completion

if TYPE_CHECKING:
    from rich.console import Console

    from prudent.release.outcome import Released
    from prudent_lab.certifying import CertifyResult
    from prudent_lab.demo import Classifier

_TABLE = (
    "No bounds on the data, no guess, no δ. These records are public, so here we may look: the "
    "exact median is 16,420. They ship with the package: prudent sample salaries."
)
_PASSED = (
    "Test passed: in that share of the steps the private test found that one record moves the "
    "trimmed sum little, and the step had half the noise. More is trimmed after a failed test and "
    "less after a passed one, in equal steps, which drives the share towards one half by design."
)
_BAD_RECORDS = (
    "All are equally private. On bad records DP-SGD is hard to beat, and the test buys back "
    "part of what trimming costs. What each method keeps under attack is measured, not proved: "
    "prudent paper table frontier."
)
_PROVED = (
    "Certified is proved: a prediction stays the same whatever that many records are, inserted or "
    "removed."
)
_MORE = (
    "Next: prudent certify --attack attacks a classifier, prudent train --recipe list shows tuned "
    "models, prudent paper table 1 the paper's numbers beside ours."
)


def demo(
    epsilon: float = options.number("ε of every training run.", default=1.0),
    delta: float = options.number("δ of every training run.", default=1e-5),
    steps: int = options.whole_number("Steps of each training run.", default=300),
    batch: int = options.whole_number("Expected batch size.", default=512),
    corrupt: str = options.value(
        "KIND:RATIO",
        "Which records to corrupt; see prudent train.",
        completion.CORRUPTIONS,
        default="label:0.1",
    ),
    out: Path = typer.Option(Path("runs/demo"), help="Folder for the table, pictures and metrics."),
    as_json: options.Json = False,
) -> None:
    """See the main jobs at work, within two minutes on two cores.

    First a private median of a table of real incomes, with a proof of how many
    bad records it withstands. Then, on MNIST, a classifier from one private
    release, and how many bad records its predictions are proved to withstand;
    and private training methods side by side on data with a tenth of the
    labels wrong, with the same (ε, δ), priced by the same accountant.

    [b]Example[/b]

    $ prudent demo
    """
    from prudent import _validate

    _validate.count(1, steps=steps)
    from rich.console import Console

    console, began = Console(highlight=False), time.monotonic()
    answer = _median()
    if not as_json:
        show_median(answer, console)
    note("Now certifying and training on MNIST: about a minute on two cores.")
    from prudent_lab.demo import run_demo
    from prudent_lab.settings import Experiment

    common = Experiment.of(epsilon=epsilon, delta=delta, steps=steps, batch=batch, corrupt=corrupt)

    def tell(classifier: "Classifier", certified: "CertifyResult") -> None:
        if not as_json:
            show_certified(classifier, certified, console)

    done = run_demo(common, out, tell=tell)
    if as_json:
        echo_json({"table": answer.plain()} | done.plain())
        return
    title = f"MNIST, {corrupt}, {steps} steps: accuracy at ({exact(epsilon)}, {exact(delta)})-DP"
    show_runs(done.rows, title, console)
    if not output_mode().quiet:
        console.print(_MORE)
    files = (
        f"Pictures: {out / 'certified.svg'} and {out / 'training.svg'}   "
        f"table: {out / 'demo.csv'}   runs: {out}/*/"
    )
    console.print(as_text(files), soft_wrap=True)
    note(f"Took {time.monotonic() - began:.0f} s, {sum(os.times()[:4]):.0f} processor seconds.")


def _median() -> "Released":
    """The table's answer: the median of the incomes that ship with the package."""
    from prudent.release import median
    from prudent.samples import SAMPLES

    return median(SAMPLES["salaries"].file, "salary", epsilon=0.3, certify=1000)


def show_median(answer: "Released", console: "Console") -> None:
    """Print a private median, and what it stands for."""
    console.print("The median of 15,992 incomes, released with two proofs:")
    console.print(str(answer), markup=False, soft_wrap=True)
    if not output_mode().quiet:
        console.print(_TABLE)
    console.print()


def show_runs(rows: list[dict[str, Any]], title: str, console: "Console") -> None:
    """Print the training runs, and what the rate of passed tests means."""
    from prudent.accounting import ZERO_OUT

    cells = [
        (
            row["title"],
            f"{row['accuracy']:.2%}",
            rounded_up(row["epsilon"]),
            f"{row['noise_multiplier']:.3f}",
            f"{row['pass_rate']:.0%}" if row["key"] == "ptr" else "no test",
        )
        for row in rows
    ]
    show_table(("method", "accuracy", "ε", "noise multiplier", "test passed"), cells, title=title)
    console.print(f"Neighbours differ by {ZERO_OUT}.")
    if not output_mode().quiet:
        console.print(_PASSED)
        console.print(_BAD_RECORDS)
    console.print()


def show_certified(classifier: "Classifier", found: "CertifyResult", console: "Console") -> None:
    """Print certified accuracy against the number of bad records."""
    from rich.table import Table

    from prudent.accounting import ADD_REMOVE
    from prudent.certify.classifier import RECORDS
    from prudent_lab.certifying import percent

    table = Table(title="MNIST, one private release: certified accuracy against bad records")
    table.add_column("bad records", justify="right")
    title = f"{classifier.title}\nε = {exact(found.epsilon)}\ncertified"
    table.add_column(title, justify="right", style="bold")
    for k in RECORDS:
        table.add_row(f"{k:,}", f"{percent(found.certified[k])}%")
    console.print(table)
    console.print(f"Neighbours differ by {ADD_REMOVE}.")
    if not output_mode().quiet:
        console.print(_PROVED)
    console.print()
