"""The essay of the report: why cells differ from the paper's, and what was tried against attacks.

The text is `essay.md`. It contains no accuracies: `{study|setting|corruption}` is replaced by the
number in `held_out.csv`, and the table of ideas is made from `ideas.csv`.
"""

import csv
import functools
import re
from collections.abc import Iterator
from importlib import resources

from prudent.lab.paper.report import display_names
from prudent.lab.paper.report.document import Bullets, Cell, Grid, Listing, Paragraph, Section, Tone
from prudent.lab.paper.results import Results
from prudent.lab.paper.runs.jobs import Job, settings

_COMMANDS = """\
$ prudent paper table 1 --dataset mnist --corrupt label:0.1 --method ptr --run
$ prudent paper table 1 --dataset cifar10-momentum
$ prudent paper grid mine.toml --run --seeds 3"""
_GRID = """\
# mine.toml
[datasets.wine]
like = "mnist"           # batch, rate, clip, noise and trim of the paper's MNIST
data = "npz:wine.npz"    # the arrays of an archive, or a name as for prudent train
epsilons = [1.0, 3.0]
methods = ["ptr", "dpsgd"]
corruptions = ["none", "label:0.1", "faults.py:Swap:0.2"]"""
_FAULTS = """\
# faults.py
import attrs

from prudent.lab.corruption import corrupted_records


@attrs.frozen
class Swap:
    \"\"\"Reverses the features of bad records.\"\"\"

    ratio: float

    def apply(self, features, labels, *, classes, seed):
        bad = corrupted_records(len(labels), self.ratio, seed).to(features.device)
        changed = features.clone()
        changed[bad] = features[bad].flip(1)
        return changed, labels"""
_PLACEHOLDER = re.compile(r"\{([^{}]+)\}")


def why() -> Section:
    """The section that explains the exceptions of the summary."""
    title = "Why there are exceptions"
    return Section(title, "why", (_bullets(title),))


def networks() -> Bullets:
    """The explanation of what other networks and momentum give on CIFAR10."""
    return _bullets("What differs on CIFAR10")


def own_runs() -> Section:
    """The section on running cells, data sets and corruptions of one's own."""
    first, second, third = map(Paragraph, lines("Runs of your own"))
    blocks = (first, Listing(_COMMANDS, "console"), second, Listing(_GRID, "toml"))
    return Section("Runs of your own", "own", (*blocks, Listing(_FAULTS, "python"), third))


def bad_records() -> Bullets:
    """The explanation of the attacks by chosen records."""
    return _bullets("Bad records")


def how_far(results: Results) -> Bullets:
    """The explanation of the attacks on gradients: how far a constant vector moves the model."""
    frontier = settings()["frontier"]
    epsilon, dataset = frontier["epsilon"], frontier["dataset"]
    travels = []
    for column in frontier["columns"]:
        if column in settings()["certified"]:
            continue
        cell = [
            reading
            for reading in results.readings
            if (reading.dataset, reading.column) == (dataset, column)
            and (reading.epsilon, reading.accountant) == (epsilon, "pld")
            and reading.target in (None, epsilon)
        ]
        if cell:
            rate = Job(dataset, "none", column, (epsilon,), 0).experiment.lr
            travels.append(f"{display_names.method(column)} {rate * cell[0].steps:,.0f}")
    together = f" Here: {', '.join(travels)}." if travels else ""
    return _bullets("How far a push carries", travels=together)


def ideas() -> Section:
    """The section on ideas that were tried to improve the frontier."""
    studies: dict[str, list[dict[str, str]]] = {}
    for row in _rows("ideas.csv"):
        studies.setdefault(row["study"], []).append(row)
    return Section(
        "Ideas against the worst attack",
        "ideas",
        (
            Paragraph(
                "On MNIST at ε = 3, one seed, accuracy on training records held out. The base is "
                "TSGD+PTR with a Gaussian test of which only the branch is known, F up to the "
                "whole batch (in the last two tables to half). Only the average of the weights is "
                "in the library. None of these numbers is a guarantee."
            ),
            *map(_study, studies.values()),
            _bullets("What was tried"),
        ),
    )


def lines(title: str, **values: str) -> Iterator[str]:
    """The items of a chapter of the essay, with their numbers filled in."""
    known = values | _held_out()
    for line in filter(None, _chapters()[title].splitlines()):
        yield _PLACEHOLDER.sub(lambda match: known[match[1]], line.removeprefix("- "))


def _bullets(title: str, **values: str) -> Bullets:
    return Bullets(tuple(lines(title, **values)))


@functools.cache
def _chapters() -> dict[str, str]:
    text = resources.files("prudent.lab.paper.report").joinpath("essay.md").read_text("utf-8")
    parts = re.split(r"^# (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@functools.cache
def _held_out() -> dict[str, str]:
    return {
        f"{row['study']}|{row['setting']}|{row['corrupt']}": row["accuracy"]
        for row in _rows("held_out.csv")
    }


def _rows(name: str) -> list[dict[str, str]]:
    text = resources.files("prudent.lab.paper").joinpath(name).read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def _study(rows: list[dict[str, str]]) -> Grid:
    attacks = sorted({row["corrupt"] for row in rows}, key=lambda name: (name != "none", name))
    names = list(dict.fromkeys(row["idea"] for row in rows))
    found = {(row["idea"], row["corrupt"]): float(row["accuracy"]) for row in rows}
    least = {
        name: min(found[name, attack] for attack in attacks if attack != "none")
        for name in names
        if all((name, attack) in found for attack in attacks)
    }
    best = max(least.values(), default=None)

    def shown(value: float | None, tone: Tone = Tone.PLAIN) -> Cell:
        if value is None:
            return Cell(display_names.NOT_RUN, Tone.MISSING)
        return Cell(display_names.accuracy(value), tone)

    return Grid(
        ("idea", *map(display_names.corruption, attacks), "worst"),
        tuple(
            (
                Cell(name),
                *(shown(found.get((name, attack))) for attack in attacks),
                shown(least.get(name), Tone.BEST if least.get(name) == best else Tone.PLAIN),
            )
            for name in names
        ),
        title=f"{int(rows[0]['steps']):,} steps of {rows[0]['batch']}, rate {rows[0]['lr']}",
    )
