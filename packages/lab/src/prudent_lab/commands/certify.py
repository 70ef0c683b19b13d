"""`prudent certify`: a private classifier, and how many bad records its predictions withstand."""

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from prudent.cli import completion, needs, options, progress
from prudent.cli.commands import certify_run
from prudent.cli.display import as_text, echo_json, note, remark, show_table

if TYPE_CHECKING:
    from prudent.certify.report import CertifyResult

NEEDS_OF_OPTIONS = {
    ("certify", "dataset"): (needs.TEXTS, needs.equals("imdb")),
    ("certify", "features"): (needs.TEXTS, needs.equals("minilm")),
}

_UNBALANCED = 0.6  # share of a class from which on accuracy alone says little

app = typer.Typer(invoke_without_command=True, rich_markup_mode="rich")
app.command("run")(certify_run.run)


@app.callback()
def certify(
    context: typer.Context,
    dataset: str = options.value(
        "NAME",
        "A data set of prudent train, imdb or census.",
        completion.CERTIFIABLE,
        default="mnist",
    ),
    features: str | None = options.value(
        "NAME",
        "The public features: letters (public letters) or glyphs (no data) for images of "
        "28 × 28, resnet18 for colour images, minilm for texts, census, vectors:D for D "
        "numbers per record. By default those made for the data set.",
        completion.FEATURES,
        default=None,
    ),
    landmarks: Path | None = options.value(
        "FILE",
        "An .npy file with public records, unlabelled, instead of the map's landmarks.",
        default=None,
    ),
    epsilon: float = options.number("ε of the one release; δ is 0.", default=0.3),
    out: Path | None = options.value(
        "DIR", "Folder for the classifier, the picture and the table.", default=None
    ),
    ledger: options.Ledger = None,
    seed: int | None = options.whole_number(
        "Repeatable noise, for rehearsals: whoever knows it can subtract it.", default=None
    ),
    attack: bool = typer.Option(
        False, "--attack", help="Also attack the classifier, for some minutes."
    ),
    compare: bool = typer.Option(
        False,
        "--compare",
        help="Also certify by rules that are not private, on the same features: partition "
        "aggregation, run-off election, nearest neighbours.",
    ),
    as_json: options.Json = False,
) -> None:
    r"""Certify a private classifier of a data set: how many bad records it withstands.

    Each record adds one to a table, in the cell of its nearest public landmark
    and its label; the table is released once, with pure ε. Every prediction
    then withstands a number of inserted or removed records that is read off
    the table. With --attack, attacks that know everything, the noise included,
    poison the records, and the classifier is fitted again: a certified
    prediction that changed would end the command.

    [b]What else is certified[/b]

    A training run:                  prudent certify run DIR
    A quantile within an interval:   prudent release certify-quantile
    A statistic, with its release:   prudent release median --certify TOLERANCE

    [b]Examples[/b]

    About a minute on two cores:
    $ prudent certify --dataset mnist --epsilon 0.1 --out runs/certify

    $ prudent certify --dataset mnist --features glyphs --epsilon 1
    """
    if context.invoked_subcommand is not None:
        return
    from prudent._files import check_writable
    from prudent.budget.ledger import Ledger
    from prudent.certify import report
    from prudent.release.noise import ReproducibleNoise
    from prudent_lab import certifying as experiment
    from prudent_lab.datasets import archive_classes
    from prudent_lab.named_datasets import NAMED_DATASETS

    features = features or experiment.MAPS.get(dataset, "glyphs")
    if out is not None:
        check_writable(out)  # before anything is paid for
    public = dataset in NAMED_DATASETS
    nothing = contextlib.nullcontext()
    budget: Any = nothing if ledger is None else Ledger.open(ledger)
    with budget as opened, nothing if public else progress.only_elapsed():
        model, result = experiment.run(
            lambda: experiment.read(dataset),
            features=features,
            classes=NAMED_DATASETS[dataset].classes if public else archive_classes(dataset),
            epsilon=epsilon,
            landmarks=1024 if landmarks is None else _rows(landmarks),
            attack=attack,
            compare=compare,
            ledger=opened,
            noise=None if seed is None else ReproducibleNoise(seed),
        )
    if out is not None:
        model.save(out / "classifier.npz")
        report.plot(result, f"{dataset}, features {features}", out / "certified.png")
        (out / "certified.json").write_text(json.dumps(result.plain()) + "\n")
        (out / "certified.csv").write_text(result.table())
    if as_json:
        echo_json(result.plain())
    else:
        _show(result, out)
    if seed is not None:
        note(f"--seed {seed}: the noise is predictable. Leave it out for a private release.")


def _rows(path: Path) -> Any:
    import numpy as np

    from prudent._formats import reading

    with reading(path, "an .npy file of numbers"), path.open("rb") as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _show(result: "CertifyResult", out: Path | None) -> None:
    from rich.console import Console

    left = {k: f"{value:.2%}" for k, value in result.attacked.items()}
    show_table(
        ("bad records", "certified", "after the worst attack"),
        [(f"{k:,}", f"{v:.2%}", left.get(k, "not tried")) for k, v in result.certified.items()],
        title=f"ε = {result.epsilon:g}, δ = 0: accuracy on test records",
        words=0,
    )
    console = Console()
    console.print(f"Half of the predictions withstand {result.median_radius:,.0f} records or more.")
    if result.largest > _UNBALANCED:
        balanced = ", ".join(f"{k:,}: {value:.2%}" for k, value in result.balanced.items())
        console.print(f"{result.largest:.2%} of the test records are of one class.")
        console.print(f"Certified accuracy, mean over the classes: {balanced}.")
    for name, row in result.others.items():
        proved = ", ".join(f"{k}: {value:.2f}%" for k, value in row.items() if k.isdecimal())
        console.print(f"{name}, not private: {proved}; median {row['median_radius']:,.0f}.")
    if result.sharpness is not None and result.beyond is not None:
        remark(
            f"Copies of a real record changed predictions at {result.sharpness:.3f} times the "
            f"radius (median). Of single predictions none changed with as many copies of any "
            f"vector as its radius, and {result.beyond:.0%} did with one more."
        )
    remark("Certified is proved, for any records. Attacks show what happened, not what can.")
    if out is not None:
        files = f"Picture: {out / 'certified.png'}   table: {out / 'certified.csv'}   " + (
            f"classifier: {out / 'classifier.npz'}"
        )
        console.print(as_text(files))
