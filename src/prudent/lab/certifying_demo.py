"""The certified classifiers of the demo."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from prudent.certify import report
from prudent.certify.classifier import RECORDS
from prudent.certify.report import Result
from prudent.lab import certifying as experiment
from prudent.lab.certifying import Part
from prudent.lab.datasets import load

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


def certified(dataset: str, classifier: Classifier, records: Sequence[int] = RECORDS) -> Result:
    """What a classifier on a data set, without corruption, certifies and attacks achieve.

    Args:
        dataset: As for `load`.
        classifier: The classifier.
        records: Numbers of bad records with which it is attacked; 0 is no attack.
    """
    import torch

    torch.set_num_threads(1)  # training runs have the other cores
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
        records=records,
    )
    return result


def draw(found: Sequence[tuple[Classifier, Result]], axes: "Axes") -> None:
    """Draw what each classifier certifies, and beside it what the worst attack tried achieved."""
    report.draw([(each.title, result) for each, result in found], axes)
    axes.set_title("MNIST, private classifiers: proved for any bad records")
