"""`prudent certify`: a private classifier, and how many bad records its predictions withstand."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import attrs
import typer

from prudent._rounding import exact, rounded_up
from prudent._validate import ArgumentError
from prudent.cli import display, needs, options
from prudent.cli.answering import ledger_at
from prudent.cli.display import as_text, echo, echo_json, neutral, note, remark, show_table
from prudent_lab.commands import completion

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prudent.certify import CertifiedClassifier
    from prudent.training.run.checkpoint import Paid
    from prudent_lab.certifying import CertifyResult

NEEDS_OF_OPTIONS = {
    ("certify", "dataset"): (needs.TEXTS, needs.equals("imdb")),
    ("certify", "features"): (needs.TEXTS, needs.equals("minilm")),
}

_UNBALANCED = 0.6  # share of a class from which on accuracy alone says little
_CONDITIONS = (
    "The expectation is over the randomness of training (batches and noise), on this test set.",
    "Bad records may be chosen with knowledge of everything but that randomness; no seed may be "
    "known to their author.",
    "Nothing is said about faults that change gradients after they are clipped, or about other "
    "test sets.",
)
_ONE_RUN = (
    "This is the accuracy of one run: one draw of a random number, not its expectation, which it "
    "does not bound usefully. The certificates hold if the expectation is as large. To drop the "
    "condition, train several times on the same data and give all folders."
)


def read_counts(text: str | list[int]) -> list[int]:
    """Parses a comma-separated list of whole numbers, as typer wants it."""
    if not isinstance(text, str):
        return text
    return [options.read_whole_number(part.strip()) for part in text.split(",")]


_PANEL = "Training runs"


@attrs.frozen(kw_only=True)
class RunOptions:
    """What is to be proved about training runs."""

    records: Annotated[
        Any,
        typer.Option(
            metavar="A,B,…",
            parser=read_counts,
            help="Certify each number of records.",
            rich_help_panel=_PANEL,
        ),
    ] = "1,5,10,20"
    relation: Annotated[
        options.RelationName | None,
        typer.Option(
            metavar="NAME",
            help="How a bad record may differ: add-remove, zero-out or replace-one. "
            "\\[that of the run]",
            rich_help_panel=_PANEL,
        ),
    ] = None
    metric: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Which result of the evaluation, within 0 and 1.",
            rich_help_panel=_PANEL,
        ),
    ] = "accuracy"
    above: Annotated[
        float | None,
        options.number(
            "Also find the largest number of records that leaves more than this.", _PANEL
        ),
    ] = None
    confidence: Annotated[
        float, options.number("Of the expected accuracy that several runs prove.", _PANEL)
    ] = 0.95


@options.spread(RunOptions)
def certify(
    folders: list[Path] | None = typer.Argument(
        None,
        metavar="[DIR]...",
        help="Folders of training runs (--out of prudent train, out= of fit) to certify instead. "
        "Several: independent runs of one plan on the same data.",
        show_default=False,
    ),
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
    public: bool = typer.Option(
        False,
        "--public",
        help="The records of npz:PATH are public: measure accuracy on its test records. Named "
        "data sets are.",
    ),
    attack: bool = typer.Option(
        False, "--attack", help="Also attack the classifier, for some minutes; public records only."
    ),
    as_json: options.Json = False,
    **of_runs: Any,
) -> None:
    r"""Certify a private classifier of a data set: how many bad records it withstands.

    Each record adds one to a table, in the cell of its nearest public landmark
    and its label; the table is released once, with pure ε. Every prediction
    then withstands a number of inserted or removed records that is read off
    the table.

    On records of yours, npz:PATH, that is all: the classifier is released,
    charged and written to --out, and nothing else that depends on the records
    is printed. On public records, a named data set or --public, it is an
    experiment, which measures without noise and claims no ε. With --attack,
    attacks that know everything, the noise included, poison the records, and
    the classifier is fitted again: a certified prediction that changed would
    end the command.

    [b]What else is certified[/b]

    A training run:                  prudent certify DIR
    A quantile within an interval:   prudent release quantile --high VALUE
    A statistic, with its release:   prudent release median --certify TOLERANCE

    [b]Examples[/b]

    About a minute on two cores:
    $ prudent certify --dataset mnist --epsilon 0.1 --out runs/certify

    $ prudent certify --dataset mnist --features glyphs --epsilon 1

    [b]Training runs[/b]

    Privacy limits what k records can do to the expected accuracy of a run,
    whatever they are. The bound is exact for k records of DP-SGD, and by group
    privacy for Propose-Test-Release. It reads metrics.jsonl and paid.json
    of the run, no data, and costs no privacy. Both must agree with
    checkpoint.pt or, where the secret checkpoint is kept elsewhere, with
    each other.

    $ prudent certify runs/dpsgd --records 5,10,20

    Ten runs, so that nothing about the expectation is assumed:
    $ prudent certify runs/dpsgd-* --records 5 --confidence 0.99 --json
    """
    if folders:
        certify_runs(folders, RunOptions(**of_runs), as_json=as_json)
        return
    from prudent._files import check_writable
    from prudent.certify import CertifiedClassifier
    from prudent.release.noise import ReproducibleNoise
    from prudent_lab import certifying as experiment
    from prudent_lab.named_datasets import NAMED_DATASETS

    features = features or experiment.MAPS.get(dataset, "glyphs")
    public = public or dataset in NAMED_DATASETS
    if attack and not public:
        why = "it prints what the records are, without noise"
        raise ArgumentError("attack", "--public records", shown="records of yours", why=why)
    if public and ledger is not None:
        why = "an experiment measures without noise, so no ε covers it"
        raise ArgumentError("ledger", "none with public records", got=ledger, why=why)
    if out is not None:
        check_writable(out)  # before anything is paid for
    given: dict[str, Any] = {
        "features": features,
        "classes": experiment.classes_of(dataset),
        "epsilon": epsilon,
        "landmarks": 1024 if landmarks is None else _rows(landmarks),
        "noise": None if seed is None else ReproducibleNoise(seed),
    }
    if not public and out is None:
        raise ArgumentError("out", "a folder for the classifier", shown="none")
    if public:
        model, result = experiment.run(lambda: experiment.read(dataset), attack=attack, **given)
        if out is not None:
            experiment.plot(result, f"{dataset}, features {features}", out / "certified.png")
            (out / "certified.json").write_text(json.dumps(result.plain()) + "\n")
    else:
        model = _released(dataset, CertifiedClassifier(**given), ledger)
    if out is not None:
        model.save(out / "classifier.npz")
    if as_json:
        echo_json(result.plain() if public else {"epsilon": epsilon, "delta": 0.0})
    elif public:
        _show(result, out)
    else:
        echo(f"Released at ε = {exact(epsilon)}, δ = 0: {out}/classifier.npz.")
        echo("It predicts, with radii, by CertifiedClassifier.load.")
    if seed is not None:
        note(f"--seed {seed}: the noise is predictable. Leave it out for a private release.")


def _released(
    dataset: str, model: "CertifiedClassifier", ledger: str | None
) -> "CertifiedClassifier":
    """The classifier fitted on the training records of an archive, which are private."""
    from prudent_lab.datasets import archive_arrays

    def training() -> "Iterator[tuple[Any, Any]]":
        yield archive_arrays(dataset)[0]  # after the charge

    with ledger_at(ledger) as opened, display.only_elapsed():
        return model.set_params(ledger=opened).fit_chunks(training())


def _rows(path: Path) -> Any:
    """The numbers in an .npy file, of which no code is run."""
    from numpy.lib.format import read_array

    from prudent._formats import reading

    with reading(path, "an .npy file of numbers"), path.open("rb") as file:
        return read_array(file, allow_pickle=False)


def _show(result: "CertifyResult", out: Path | None) -> None:
    from rich.console import Console

    from prudent_lab.certifying import percent

    left = {k: f"{percent(value)}%" for k, value in result.attacked.items()}
    certified = {k: f"{percent(value)}%" for k, value in result.certified.items()}
    show_table(
        ("bad records", "certified", "after the worst attack"),
        [(f"{k:,}", value, left.get(k, "not tried")) for k, value in certified.items()],
        title=f"Accuracy on public test records, noise of ε = {exact(result.epsilon)}",
        words=0,
    )
    console = Console()
    console.print(f"Half of the predictions withstand {result.median_radius:,.0f} records or more.")
    if result.largest > _UNBALANCED:
        balanced = ", ".join(f"{k:,}: {percent(value)}%" for k, value in result.balanced.items())
        console.print(f"{percent(result.largest)}% of the test records are of one class.")
        console.print(f"Certified accuracy, mean over the classes: {balanced}.")
    if result.beyond is not None:
        remark(
            "Of single predictions none changed with as many copies of any vector as its radius, "
            f"and {result.beyond:.0%} did with one more."
        )
    remark("Certified is proved, for any records. Attacks show what happened, not what can.")
    remark("An experiment: measured without noise, so nothing here is private.")
    if out is not None:
        files = f"Picture: {out / 'certified.png'}   numbers: {out / 'certified.json'}   " + (
            f"classifier: {out / 'classifier.npz'}"
        )
        console.print(as_text(files))


class TrainedRun(NamedTuple):
    """What the folder of a training run says."""

    paid: "Paid"  # what the run was charged for
    epsilon: float | None  # None where it has no δ
    delta: float | None
    result: float  # of the last evaluation
    metrics: bytes  # their file, which tells copies of one run


def certify_runs(folders: list[Path], wanted: RunOptions, *, as_json: bool) -> None:
    """Bound the expected accuracy of training runs from below, if some records are bad."""
    from prudent.accounting import Certifier, Relation

    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ArgumentError("folders", "each named once", shown="one of them twice")
    trained = [_trained(folder, wanted.metric) for folder in folders]
    paid = trained[0].paid
    if any(run.paid[:3] != paid[:3] for run in trained):
        raise ArgumentError(
            "folders",
            "with runs of one plan",
            shown="different ones",
            why="only runs of one plan have one expected accuracy",
        )
    if len({run.metrics for run in trained}) < len(trained):
        raise ArgumentError(
            "folders",
            "with independent runs",
            shown="two with the same metrics",
            why="copies of one run, or runs with one seed, count as one",
        )
    epsilon, delta = max({run[1:3] for run in trained}, key=str)
    runs = len(trained) if len(trained) > 1 else None
    mean = sum(run.result for run in trained) / len(trained)
    relation = paid.relation if wanted.relation is None else Relation(wanted.relation)
    certifier = Certifier(paid.event, relation)
    proved = [
        certifier.certificate(accuracy=mean, records=count, runs=runs, confidence=wanted.confidence)
        for count in read_counts(wanted.records)
    ]
    first, above, most = proved[0], wanted.above, None
    if above is not None:
        most = certifier.withstands(accuracy=first.expected, above=above)
    conditions = [*([_ONE_RUN] if runs is None else []), *_CONDITIONS]
    if as_json:
        document = {
            "metric": wanted.metric,
            "accuracy": first.accuracy,
            "runs": len(trained),
            "expected": first.expected,
            "expected_is_assumed": first.runs is None,
            "confidence": first.confidence,
            "epsilon": epsilon,
            "delta": delta,
            "relation": first.relation.adjacency.value,
            "method": first.method.value,
            "certificates": [{"records": one.records, "at_least": one.at_least} for one in proved],
            "withstands": None if most is None else {"above": above, "records": most},
            "conditions": conditions,
        }
        echo_json(document)
        return
    told = "one run" if runs is None else f"{runs} runs"
    echo(f"{neutral(wanted.metric)} {first.accuracy:.6g}, {told}")
    if epsilon is not None:
        echo(f"({rounded_up(epsilon)}, {exact(delta)})-DP for {paid.relation}")
    for one in proved:
        echo(one.sentence)
    if most is not None:
        echo(f"More than {exact(above)} is left by up to {most:,} bad records.")
    for condition in conditions:
        remark(condition)


def _trained(folder: Path, metric: str) -> TrainedRun:
    """What a run paid for and its last result, with ε by what was paid."""
    import torch

    from prudent.accounting import epsilon_of, serialisation
    from prudent.training.run.checkpoint import charged, load_checkpoint
    from prudent.training.run.metrics import last_entry

    paid = charged(folder)
    if paid is None:
        raise ArgumentError(
            "folders", "with the paid.json of a run", shown=f"{str(folder)!r} without one"
        )
    metrics, entry = (folder / "metrics.jsonl").read_bytes(), last_entry(folder)
    delta, written, epsilon = entry.get("delta"), entry.get("epsilon"), None
    if isinstance(delta, float) and 0 < delta < 1:
        epsilon = epsilon_of(paid.event, delta, paid.relation)
    state = load_checkpoint(folder, torch.device("cpu"))
    if state is not None:
        if state["event"] != serialisation.to_json(paid.event):
            raise _disagreeing(folder, "checkpoint.pt")
    elif isinstance(written, int | float) and epsilon is not None:
        if entry["step"] != paid.steps or not math.isclose(written, epsilon, rel_tol=1e-2):
            raise _disagreeing(folder, "metrics.jsonl")
    else:
        raise ArgumentError(
            "folders",
            "with a checkpoint.pt, or an epsilon in metrics.jsonl, to check paid.json by",
            shown=f"{str(folder)!r} with neither",
            hint="Give fit a delta, or certify the run where its checkpoint is.",
        )
    value = entry.get(metric)
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ArgumentError(
            "metric",
            f"a result in [0, 1] of the last evaluation in {str(folder)!r}",
            got=metric,
            hint="Give fit an evaluation: Reporting(evaluate=prudent.training.accuracy(…)).",
        )
    return TrainedRun(paid, epsilon, delta, float(value), metrics)


def _disagreeing(folder: Path, file: str) -> ArgumentError:
    return ArgumentError(
        "folders",
        "whose files are of one run that has ended",
        shown=f"{str(folder)!r}, whose paid.json and {file} do not agree",
        hint="Restore the file that was changed, or resume the run to its end.",
    )
