"""The certified classifiers of the demo."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs

from prudent.certify import experiment
from prudent.certify.classifier import RECORDS
from prudent.certify.experiment import Part, Result
from prudent.experiments.datasets import load

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
    reach = max(k for _, result in found for k, _ in result.curve)
    for (each, result), colour in zip(found, _COLOURS, strict=False):
        counts, shares = zip(*((k, 100 * v) for k, v in result.curve if k <= reach), strict=True)
        label = f"{each.title}, ε = {result.epsilon:g}: {shares[0]:.1f}%"
        axes.plot(counts, shares, color=colour, label=label)
        axes.fill_between(counts, shares, color=colour, alpha=0.12)
        tried = sorted(result.attacked.items())
        if len(tried) == 1:
            continue
        axes.plot(
            [k for k, _ in tried],
            [100 * value for _, value in tried],
            color=colour,
            marker="o",
            markersize=4,
            linestyle="--",
            label="after the worst attack tried",
        )
    axes.set_title("MNIST, private classifiers: proved for any bad records")
    axes.set_xlabel("bad records inserted or removed")
    axes.set_ylabel("certified accuracy on clean test data, %")
    axes.set_ylim(0, 100)
    axes.set_xlim(0, reach)
    axes.legend(loc="lower left", fontsize=8)
