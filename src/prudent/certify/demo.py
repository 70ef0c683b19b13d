"""The demo: private training methods side by side, and a classifier with certified predictions."""

import multiprocessing
from pathlib import Path
from typing import Any

import attrs
from rich.console import Console

from prudent.certify import experiment
from prudent.certify.experiment import Part, Result
from prudent.experiments import demo, picture
from prudent.experiments.datasets import load
from prudent.experiments.experiment import Experiment


@attrs.frozen
class Demo:
    """What the demo found.

    Attributes:
        rows: One row per training method: key, title, accuracy, epsilon, noise_multiplier,
            pass_rate, curve.
        certified: Certified accuracy of a classifier on the same data, before any corruption.
    """

    rows: list[dict[str, Any]]
    certified: Result

    def plain(self) -> dict[str, Any]:
        """The demo as JSON holds it; accuracies of runs are fractions, certified ones percent."""
        return {"runs": self.rows, "certified": self.certified.plain()}


def run_demo(
    common: Experiment,
    out: Path,
    *,
    features: str = "scattering",
    epsilon: float = 1.0,
    delta: float = 1e-6,
    workers: int | None = None,
) -> Demo:
    """Train by every method, certify a classifier beside it, and save a table and a picture.

    Args:
        common: What all training runs share: data, corruption, (ε, δ), steps.
        out: Folder for `demo.csv`, `demo.svg` and the training runs.
        features: Name of the public feature map of the certified classifier.
        epsilon: ε of the certified classifier.
        delta: δ of the certified classifier.
        workers: Training runs at a time; None means one per core.
    """
    with multiprocessing.get_context("spawn").Pool(1) as aside:  # ended if training fails
        pending = aside.apply_async(certified, (common.dataset, features, epsilon, delta))
        rows = demo.run_demo(common, out, workers)
        with Console(stderr=True).status("certified predictions"):
            done = Demo(rows, pending.get())
    draw(done, common, out / "demo.svg")
    return done


def certified(dataset: str, features: str, epsilon: float, delta: float) -> Result:
    """What a classifier on a data set, without corruption, certifies and attacks achieve."""
    found = load(dataset)
    parts: tuple[Part, Part] = (
        (found.train_features.numpy(), found.train_labels.numpy()),
        (found.test_features.numpy(), found.test_labels.numpy()),
    )
    _, result = experiment.run(
        lambda: parts, features=features, classes=found.classes, epsilon=epsilon, delta=delta
    )
    return result


def draw(done: Demo, common: Experiment, path: Path) -> None:
    """Draw certified accuracy against bad records, and accuracy against ε, beside each other."""
    guarantee = f"({done.certified.epsilon:g}, {done.certified.delta:g})-DP"
    with picture.panels(2, path) as (left, right):
        experiment.draw(done.certified, left)
        left.set_title(f"{common.dataset.upper()}, {guarantee}: proved for any bad records")
        demo.draw(done.rows, common, right)
