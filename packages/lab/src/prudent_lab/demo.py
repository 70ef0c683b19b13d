"""What `prudent demo` runs: certified classifiers, and private training methods side by side.

`SHORT` is what `prudent demo` does, within two minutes on two cores; `FULL` is `--full`. Pictures
are SVG that is readable on light and on dark pages.
"""

import contextlib
import csv
import io
import multiprocessing
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch

from prudent import _progress
from prudent._validate import ArgumentError
from prudent._warning import PredictableNoiseWarning
from prudent.accounting import LaplaceTest
from prudent.certify.classifier import RECORDS
from prudent.training import Reporting
from prudent_lab import certifying
from prudent_lab.certifying import CertifyResult
from prudent_lab.experiment import Setup, run
from prudent_lab.models import logistic_regression
from prudent_lab.recipes import recipe_named
from prudent_lab.settings import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#0f1e2d"  # no line has this colour; the saved file replaces it by that of the reader
_SCHEME = (
    "<style>svg { color: #1f2328 } "
    "@media (prefers-color-scheme: dark) { svg { color: #e6edf3 } }</style>"
)
_STYLE: Any = {
    "axes.edgecolor": _INK,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": _INK,
    "axes.titlesize": 10.5,
    "figure.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.alpha": 0.2,
    "grid.color": _INK,
    "legend.frameon": False,
    "legend.labelcolor": _INK,
    "svg.hashsalt": "prudent",  # the same picture is the same file
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


@contextlib.contextmanager
def panels(count: int, path: Path) -> "Iterator[list[Axes]]":
    """Panels side by side to draw on; at the end they are written to an SVG file.

    Text and axes take the colour of the reader's scheme, lines keep their own.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    drawn = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(5.2 * count, 4.2), layout="constrained")
        yield list(figure.subplots(1, count, squeeze=False)[0])
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    head, opening, rest = drawn.getvalue().partition("<svg ")
    tag, closing, body = rest.partition(">")
    text = head + opening + tag + closing + _SCHEME + body
    path.write_text(text.replace(_INK, "currentColor"), "utf-8")


@attrs.frozen
class Classifier:
    """A certified classifier of the demo."""

    features: str
    epsilon: float
    title: str


CLASSIFIERS = (
    Classifier("letters", 0.3, "public letters"),
    Classifier("glyphs", 1.0, "no public data"),
)
"""The classifiers of the demo, the better one first."""


def certify(
    dataset: str, classifier: Classifier, records: Sequence[int] = RECORDS
) -> CertifyResult:
    """What a classifier on a data set, without corruption, certifies and attacks achieve.

    `records` are the numbers of bad records with which it is attacked; 0 is no attack.
    """
    torch.set_num_threads(1)  # training runs have the other cores
    _, result = certifying.run(
        lambda: certifying.read(dataset),
        features=classifier.features,
        classes=certifying.classes_of(dataset),
        epsilon=classifier.epsilon,
        records=records,
    )
    return result


def draw_certified(certified: Sequence[tuple[Classifier, CertifyResult]], axes: "Axes") -> None:
    """Draw what each classifier certifies, and beside it what the worst attack tried achieved."""
    certifying.draw([(classifier.title, result) for classifier, result in certified], axes)
    axes.set_title("MNIST, private classifiers: proved for any bad records")


EVALUATIONS = 12
"""How often each run is evaluated."""


@attrs.frozen
class Entry:
    """One training run of the demo."""

    key: str  # name of the run and its folder
    title: str  # name for display
    experiment: Experiment  # the experiment to run
    # What is trained: "network", the usual one; "linear", a linear model of the pixels; or the name
    # of a recipe.
    model: str = "network"

    def setup(self) -> Setup | None:
        """What is trained, and on what; None: the usual network."""
        if self.model == "network":
            return None
        if self.model != "linear":
            return recipe_named(self.model).setup
        return Setup(
            build=lambda data, seed: logistic_regression(
                data.train_features.shape[1:], data.classes
            )
        )


def entries(common: Experiment) -> list[Entry]:
    """The runs of the full demo: methods with the same (ε, δ) and steps, and on MNIST a recipe."""
    papers = common.changed(test=LaplaceTest(1.0), reveals="margin")
    found = [
        Entry("ptr", "TSGD+PTR (Gaussian test, branch revealed)", common),
        Entry("ptr-paper", "TSGD+PTR (the paper's Laplace test, margin revealed)", papers),
        Entry("trimmed", "TSGD+Gaussian", common.changed(method="trimmed")),
        Entry("dpsgd", "DP-SGD", common.changed(method="dpsgd")),
    ]
    if common.dataset == "mnist":  # the recipe that is small enough for a laptop
        recipe, spent = recipe_named("glyphs-linear"), common.privacy
        budget = {} if spent.epsilon is None else {"epsilon": spent.epsilon, "delta": spent.delta}
        own = recipe.settings(seed=common.seed, **budget)
        found.append(Entry("recipe", f"recipe {recipe.name}, no bad records", own, recipe.name))
    return found


def linear_entries(common: Experiment) -> list[Entry]:
    """The runs of the short demo: a linear model of the pixels by each method.

    Its gradients are longer than those of the network, so it has a clip and a rate of its own.
    """
    own = common.changed(clip=4.0, lr=0.5)
    return [
        Entry("ptr", "TSGD+PTR", own, "linear"),
        Entry("trimmed", "TSGD+Gaussian", own.changed(method="trimmed"), "linear"),
        Entry("dpsgd", "DP-SGD", own.changed(method="dpsgd"), "linear"),
    ]


def train(entry: Entry, folder: Path) -> dict[str, Any]:
    """Train one entry on one core.

    Returns:
        accuracy, epsilon, noise_multiplier, pass_rate and more, and the curve of accuracy over ε.
    """
    torch.set_num_threads(1)
    # True of the first steps of these settings, and not of the run; the table shows how many pass.
    warnings.filterwarnings("ignore", "The test passed in", RuntimeWarning)
    # The seed is that of a demo on public records.
    warnings.filterwarnings("ignore", category=PredictableNoiseWarning)
    result = run(
        entry.experiment,
        setup=entry.setup(),
        evaluations=EVALUATIONS,
        reporting=Reporting(out=folder, progress=False),
    )
    curve = [(entry.epsilon, entry.evaluation["accuracy"]) for entry in result.fitted.history]
    return result.plain() | {"curve": curve}


def draw_training(rows: list[dict[str, Any]], common: Experiment, axes: "Axes") -> None:
    """Draw accuracy on clean test data against the ε spent so far."""
    colours = ("#2F8FD0", "#7CC4EE", "#E08A00", "#8C8C8C", "#009E73")  # colour-blind safe
    for row, colour, marker in zip(rows, colours, "os^Dv", strict=False):
        epsilons, accuracies = zip(*row["curve"], strict=True)
        percent = [100 * accuracy for accuracy in accuracies]
        label = f"{row['title']}: {row['accuracy']:.1%}"
        axes.plot(epsilons, percent, color=colour, marker=marker, markersize=4, label=label)
    axes.set_xlabel(f"ε spent (δ = {common.privacy.delta:g})")
    axes.set_ylabel("accuracy on clean test data, %")
    kind, _, ratio = str(common.corrupt).partition(":")
    fault = f"{float(ratio):.0%} of the records bad ({kind})" if ratio else "no bad records"
    axes.set_title(f"{common.dataset.upper()}, private training, {fault}")
    low, high = axes.get_ylim()
    axes.set_ylim(bottom=max(0.0, low - 0.5 * (high - low)))  # room for the legend
    axes.legend(loc="lower right", fontsize=8)


Certified = Sequence[tuple[Classifier, CertifyResult]]


@attrs.frozen
class Size:
    """How much the demo does."""

    entries: Callable[[Experiment], list[Entry]]  # makes the training runs of what they share
    classifiers: tuple[Classifier, ...]  # the classifiers to certify
    attacked: tuple[int, ...]  # numbers of bad records with which each classifier is attacked


SHORT = Size(linear_entries, CLASSIFIERS[:1], (0,))
FULL = Size(entries, CLASSIFIERS, tuple(RECORDS))


@attrs.frozen
class Demo:
    """What the demo found."""

    # One row per training run: key, title, accuracy, epsilon, noise_multiplier, pass_rate, curve.
    rows: list[dict[str, Any]]
    certified: Certified  # what each classifier certifies on the same data, before any corruption

    def plain(self) -> dict[str, Any]:
        """The demo as JSON holds it; accuracies of runs are fractions, certified ones percent."""
        certified = {classifier.features: result.plain() for classifier, result in self.certified}
        return {"runs": self.rows, "certified": certified}


def run_demo(
    common: Experiment,
    out: Path,
    size: Size = SHORT,
    *,
    workers: int | None = None,
    tell: Callable[[Certified], None] = lambda certified: None,
) -> Demo:
    """Certify classifiers and train by every method, and save a table and two pictures.

    Args:
        common: What all training runs share: data, corruption, (ε, δ), steps.
        out: Folder for `demo.csv`, `certified.svg`, `training.svg` and the training runs.
        size: How much to do.
        workers: How many processes work at a time; None means one per core.
        tell: Called as soon as the classifiers are certified, while the rest goes on.
    """
    if not common.is_covered:
        raise ArgumentError(
            "corrupt",
            "a corruption of single records",
            got=common.corrupt,
            why="its bad records read others, so no ε can be shown",
            hint="Run it with prudent train.",
        )
    out.mkdir(parents=True, exist_ok=True)
    entries = size.entries(common)
    for entry in entries:  # the data is public, so the ledger of an earlier demo may be deleted
        shutil.rmtree(out / entry.key, ignore_errors=True)
    steps = len(size.classifiers) + EVALUATIONS * len(entries)
    spawn = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(workers or os.cpu_count(), mp_context=spawn) as pool,
        _progress.part("certificates and training runs", steps),
    ):
        certifying = [
            pool.submit(certify, common.dataset, each, size.attacked) for each in size.classifiers
        ]
        runs = {
            entry.key: pool.submit(train, entry, out / entry.key)
            for entry in reversed(entries)  # a recipe takes longest, so it goes first
        }
        watched = _watched([out / entry.key for entry in entries], certifying)
        try:
            results = watched(certifying)
            certified = list(zip(size.classifiers, results, strict=True))
            tell(certified)
            watched(runs.values())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    rows = [
        {"key": entry.key, "title": entry.title} | runs[entry.key].result() for entry in entries
    ]
    with (out / "demo.csv").open("w", newline="") as file:
        names = [name for name in rows[0] if name != "curve"]
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    with panels(1, out / "certified.svg") as (axes,):
        draw_certified(certified, axes)
    with panels(1, out / "training.svg") as (axes,):
        draw_training(rows, common, axes)
    return Demo(rows, certified)


def _watched(
    folders: Sequence[Path], certifying: "Sequence[Future[Any]]"
) -> "Callable[[Iterable[Future[Any]]], list[Any]]":
    """A function that waits for processes and shows the progress of all, by the metrics they write.

    It returns what they found, or raises the error of the first that failed.
    """
    shown = 0

    def wait(awaited: "Iterable[Future[Any]]") -> list[Any]:
        nonlocal shown
        pending = list(awaited)
        while True:
            found = [job.result() for job in pending if job.done()]
            metrics = (folder / "metrics.jsonl" for folder in folders)
            seen = sum(path.read_text().count("\n") for path in metrics if path.exists())
            seen += sum(job.done() for job in certifying)
            _progress.advance(seen - shown)
            shown = seen
            if len(found) == len(pending):
                return found
            time.sleep(0.2)

    return wait
