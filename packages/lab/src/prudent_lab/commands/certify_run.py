"""`prudent certify DIR`: what bad records can leave of the accuracy of a training run."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from prudent._rounding import rounded_up
from prudent._validate import ArgumentError
from prudent.cli import options
from prudent.cli.display import echo, echo_json, neutral, remark

if TYPE_CHECKING:
    from prudent.training.run.checkpoint import Paid

Price = tuple[float | None, float | None]
"""ε and δ of a run; None where it has no δ."""

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


def certify_runs(folders: list[Path], wanted: RunOptions, *, as_json: bool) -> None:
    """Bound the expected accuracy of training runs from below, if some records are bad."""
    from prudent.accounting import Certifier, Relation

    paid, entries = _one_plan(folders), _entries(folders)
    prices = {_price(*each) for each in zip(folders, paid, entries, strict=True)}
    epsilon, delta = max(prices, key=str)
    results = [_result(*each, wanted.metric) for each in zip(entries, folders, strict=True)]
    runs = len(results) if len(results) > 1 else None
    mean = sum(results) / len(results)
    relation = paid[0].relation if wanted.relation is None else Relation(wanted.relation)
    certifier = Certifier(paid[0].event, relation)
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
            "runs": len(results),
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
        echo(f"({rounded_up(epsilon)}, {delta:g})-DP for {paid[0].relation}")
    for one in proved:
        echo(one.sentence)
    if most is not None:
        echo(f"More than {above:g} is left by up to {most:,} bad records.")
    for condition in conditions:
        remark(condition)


def _one_plan(folders: list[Path]) -> "list[Paid]":
    """What each run paid for, which must be the same for all."""
    from prudent.training.run.checkpoint import charged

    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ArgumentError("folders", "each named once", shown="one of them twice")
    charges = []
    for folder in folders:
        charge = charged(folder)
        if charge is None:
            raise ArgumentError(
                "folders", "with the paid.json of a run", shown=f"{str(folder)!r} without one"
            )
        charges.append(charge)
    if any(charge[:3] != charges[0][:3] for charge in charges):
        raise ArgumentError(
            "folders",
            "with runs of one plan",
            shown="different ones",
            why="only runs of one plan have one expected accuracy",
        )
    return charges


def _price(folder: Path, paid: "Paid", entry: dict[str, Any]) -> Price:
    """The δ in the metrics of a run and its ε by what was paid, checked by another of its files.

    Raises:
        ArgumentError: If the files do not agree, or nothing is there to check by.
    """
    import torch

    from prudent.accounting import epsilon_of, serialisation
    from prudent.training.run.checkpoint import load_checkpoint

    delta, written = entry.get("delta"), entry.get("epsilon")
    epsilon = None
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
    return epsilon, delta


def _disagreeing(folder: Path, file: str) -> ArgumentError:
    return ArgumentError(
        "folders",
        "whose files are of one run that has ended",
        shown=f"{str(folder)!r}, whose paid.json and {file} do not agree",
        hint="Restore the file that was changed, or resume the run to its end.",
    )


def _entries(folders: list[Path]) -> list[dict[str, Any]]:
    """The last metrics of each run, which must not be copies of one run."""
    from prudent.training.run.metrics import last_entry

    texts = {(folder / "metrics.jsonl").read_bytes() for folder in folders}
    if len(texts) < len(folders):
        raise ArgumentError(
            "folders",
            "with independent runs",
            shown="two with the same metrics",
            why="copies of one run, or runs with one seed, count as one",
        )
    return [last_entry(folder) for folder in folders]


def _result(entry: dict[str, Any], folder: Path, metric: str) -> float:
    """The result of the last evaluation of a run."""
    value = entry.get(metric)
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ArgumentError(
            "metric",
            f"a result in [0, 1] of the last evaluation in {str(folder)!r}",
            got=metric,
            hint="Give fit an evaluation: Reporting(evaluate=prudent.training.accuracy(…)).",
        )
    return float(value)
