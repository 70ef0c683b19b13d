"""What `prudent demo` runs: a certified classifier, and private training methods side by side.

All of it takes two minutes on two cores. Pictures are SVG, readable on light and on dark pages.
"""

import contextlib
import csv
import io
import multiprocessing
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import nn

from prudent import _progress
from prudent._validate import ArgumentError
from prudent._warning import PredictableNoiseWarning
from prudent.training import Reporting
from prudent_lab import certifying
from prudent_lab.certifying import CertifyResult
from prudent_lab.datasets import Dataset
from prudent_lab.experiment import Setup, run
from prudent_lab.models import logistic_regression
from prudent_lab.settings import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_INK = "#0f1e2d"  # no line has this colour; the saved file replaces it by that of the reader
_SCHEME = (
    "<style>svg { color: #1f2328 } "
    "@media (prefers-color-scheme: dark) { svg { color: #e6edf3 } }</style>"
)


@contextlib.contextmanager
def panels(count: int, path: Path) -> "Iterator[list[Axes]]":
    """Panels side by side to draw on; at the end they are written to an SVG file.

    Text and axes take the colour of the reader's scheme, lines keep their own.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    drawn = io.StringIO()
    with style.context("prudent_lab.demo"):
        figure = Figure(figsize=(5.2 * count, 4.2), layout="constrained")
        yield list(figure.subplots(1, count, squeeze=False)[0])
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    head, opening, rest = drawn.getvalue().partition("<svg ")
    tag, closing, body = rest.partition(">")
    text = head + opening + tag + closing + _SCHEME + body
    path.write_text(text.replace(_INK, "currentColor"), "utf-8")


@attrs.frozen
class Classifier:
    """The certified classifier of the demo."""

    features: str
    epsilon: float
    title: str

    def certified(self, dataset: str) -> CertifyResult:
        """What it certifies on a data set, without corruption and without an attack."""
        torch.set_num_threads(1)  # training runs have the other cores
        _, result = certifying.run(
            lambda: certifying.read(dataset),
            features=self.features,
            classes=certifying.classes_of(dataset),
            epsilon=self.epsilon,
            attack=False,
        )
        return result


LETTERS = Classifier("letters", 0.3, "public letters")
EVALUATIONS = 12
"""How often each run is evaluated."""


@attrs.frozen
class Entry:
    """One training run of the demo."""

    key: str  # name of the run and its folder
    title: str  # name for display
    experiment: Experiment  # the experiment to run


def entries(common: Experiment) -> list[Entry]:
    """A linear model of the pixels by each method, with the same (ε, δ) and steps.

    Its gradients are longer than those of the usual network, so it has a clip and a rate of its
    own.
    """
    own = common.changed(clip=4.0, lr=0.5)
    return [
        Entry("ptr", "TSGD+PTR", own),
        Entry("trimmed", "TSGD+Gaussian", own.changed(method="trimmed")),
        Entry("dpsgd", "DP-SGD", own.changed(method="dpsgd")),
    ]


def train(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """Train on one core: what a run prints, and the curve of accuracy over ε."""
    torch.set_num_threads(1)
    # True of the first steps of these settings, and not of the run; the table shows how many pass.
    warnings.filterwarnings("ignore", "The test passed in", RuntimeWarning)
    # The seed is that of a demo on public records.
    warnings.filterwarnings("ignore", category=PredictableNoiseWarning)

    def linear(data: Dataset, seed: int) -> nn.Module:
        return logistic_regression(data.train_features.shape[1:], data.classes)

    result = run(
        experiment,
        setup=Setup(build=linear),
        evaluations=EVALUATIONS,
        reporting=Reporting(out=folder, progress=False),
    )
    curve = [(entry.epsilon, entry.evaluation["accuracy"]) for entry in result.fitted.history]
    return result.plain() | {"curve": curve}


def draw_training(rows: list[dict[str, Any]], common: Experiment, axes: "Axes") -> None:
    """Draw accuracy on clean test data against the ε spent so far."""
    colours = ("#2F8FD0", "#E08A00", "#8C8C8C")  # colour-blind safe
    for row, colour, marker in zip(rows, colours, "o^D", strict=False):
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


@attrs.frozen
class Demo:
    """What the demo found."""

    # One row per training run: key, title, accuracy, epsilon, noise_multiplier, pass_rate, curve.
    rows: list[dict[str, Any]]
    classifier: Classifier
    certified: CertifyResult  # what it certifies on the same data, before any corruption

    def plain(self) -> dict[str, Any]:
        """The demo as JSON holds it; accuracies of runs are fractions, certified ones percent."""
        return {"runs": self.rows, "certified": {self.classifier.features: self.certified.plain()}}


def run_demo(
    common: Experiment,
    out: Path,
    classifier: Classifier = LETTERS,
    *,
    workers: int | None = None,
    tell: Callable[[Classifier, CertifyResult], None] = lambda classifier, certified: None,
) -> Demo:
    """Certify a classifier and train by every method, and save a table and two pictures.

    Args:
        common: What all training runs share: data, corruption, (ε, δ), steps.
        out: Folder for `demo.csv`, `certified.svg`, `training.svg` and the training runs.
        classifier: What is certified.
        workers: How many processes work at a time; None means one per core.
        tell: Called as soon as the classifier is certified, while the rest goes on.
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
    chosen = entries(common)
    for entry in chosen:  # the data is public, so the ledger of an earlier demo may be deleted
        shutil.rmtree(out / entry.key, ignore_errors=True)
    spawn = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(workers or os.cpu_count(), mp_context=spawn) as pool,
        _progress.part("certificates and training runs", 1 + EVALUATIONS * len(chosen)),
    ):
        first = pool.submit(classifier.certified, common.dataset)
        runs = [pool.submit(train, each.experiment, out / each.key) for each in chosen]
        pending: set[Future[Any]] = {first, *runs}
        seen = 0
        try:
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                for job in done:
                    job.result()  # raises its error
                if first in done:
                    tell(classifier, first.result())
                metrics = (out / each.key / "metrics.jsonl" for each in chosen)
                now = sum(path.read_text().count("\n") for path in metrics if path.exists())
                now += first.done()
                _progress.advance(now - seen)
                seen = now
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    found = Demo(
        [
            {"key": each.key, "title": each.title} | run.result()
            for each, run in zip(chosen, runs, strict=True)
        ],
        classifier,
        first.result(),
    )
    with (out / "demo.csv").open("w", newline="") as file:
        names = [name for name in found.rows[0] if name != "curve"]
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(found.rows)
    with panels(1, out / "certified.svg") as (axes,):
        certifying.draw([(classifier.title, found.certified)], axes)
        axes.set_title("MNIST, private classifiers: proved for any bad records")
    with panels(1, out / "training.svg") as (axes,):
        draw_training(found.rows, common, axes)
    return found
