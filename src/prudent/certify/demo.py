"""The demo: private training methods side by side, and classifiers with certified predictions."""

import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from prudent._progress import part
from prudent.certify import experiment
from prudent.certify.experiment import Part, Result
from prudent.experiments import demo, picture
from prudent.experiments.datasets import load
from prudent.experiments.experiment import Experiment

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@attrs.frozen
class Classifier:
    """A certified classifier of the demo.

    Attributes:
        features: Name of the public feature map.
        epsilon: ε of its release.
        title: What the map was made from.
    """

    features: str
    epsilon: float
    title: str


CLASSIFIERS = (
    Classifier("letters", 0.3, "public letters"),
    Classifier("glyphs", 1.0, "no public data"),
)
"""The classifiers of the demo, the better one first."""

_COLOURS = ("#2F8FD0", "#009E73")  # colour-blind safe


@attrs.frozen
class Demo:
    """What the demo found.

    Attributes:
        rows: One row per training method: key, title, accuracy, epsilon, noise_multiplier,
            pass_rate, curve.
        certified: What each classifier certifies on the same data, before any corruption.
    """

    rows: list[dict[str, Any]]
    certified: list[tuple[Classifier, Result]]

    def plain(self) -> dict[str, Any]:
        """The demo as JSON holds it; accuracies of runs are fractions, certified ones percent."""
        certified = {each.features: result.plain() for each, result in self.certified}
        return {"runs": self.rows, "certified": certified}


def run_demo(
    common: Experiment,
    out: Path,
    *,
    classifiers: Sequence[Classifier] = CLASSIFIERS,
    workers: int | None = None,
) -> Demo:
    """Train by every method, certify classifiers beside it, and save a table and a picture.

    Args:
        common: What all training runs share: data, corruption, (ε, δ), steps.
        out: Folder for `demo.csv`, `demo.svg` and the training runs.
        classifiers: The classifiers to certify.
        workers: Training runs at a time; None means one per core.
    """
    work = [(common.dataset, each) for each in classifiers]
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(len(work)) as aside:  # ended if training fails
        pending = aside.starmap_async(certified, work)
        rows = demo.run_demo(common, out, workers)
        with part("certified predictions"):
            done = Demo(rows, list(zip(classifiers, pending.get(), strict=True)))
    draw(done, common, out / "demo.svg")
    return done


def certified(dataset: str, classifier: Classifier) -> Result:
    """What a classifier on a data set, without corruption, certifies and attacks achieve."""
    found = load(dataset)
    parts: tuple[Part, Part] = (
        (found.train_features.numpy(), found.train_labels.numpy()),
        (found.test_features.numpy(), found.test_labels.numpy()),
    )
    _, result = experiment.run(
        lambda: parts,
        features=classifier.features,
        classes=found.classes,
        epsilon=classifier.epsilon,
    )
    return result


def draw(done: Demo, common: Experiment, path: Path) -> None:
    """Draw certified accuracy against bad records, and accuracy against ε, beside each other."""
    with picture.panels(2, path) as (left, right):
        _draw_certified(done.certified, left)
        left.set_title(f"{common.dataset.upper()}, private classifiers: proved for any bad records")
        demo.draw(done.rows, common, right)


def _draw_certified(found: Sequence[tuple[Classifier, Result]], axes: "Axes") -> None:
    """Draw what each classifier certifies, and beside it what the worst attack tried achieved."""
    reach = max(k for _, result in found for k in result.certified)
    for (each, result), colour in zip(found, _COLOURS, strict=False):
        counts, shares = zip(*((k, 100 * v) for k, v in result.curve if k <= reach), strict=True)
        label = f"{each.title}, ε = {result.epsilon:g}: {shares[0]:.1f}%"
        axes.plot(counts, shares, color=colour, label=label)
        axes.fill_between(counts, shares, color=colour, alpha=0.12)
        tried = sorted(result.attacked.items())
        axes.plot(
            [k for k, _ in tried],
            [100 * value for _, value in tried],
            color=colour,
            marker="o",
            markersize=4,
            linestyle="--",
            label="after the worst attack tried",
        )
    axes.set_xlabel("bad records inserted or removed")
    axes.set_ylabel("certified accuracy on clean test data, %")
    axes.set_ylim(0, 100)
    axes.set_xlim(0, reach)
    axes.legend(loc="lower left", fontsize=8)
