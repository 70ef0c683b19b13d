"""What a classifier certifies, as one value, a table and a picture."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from prudent.certify.radius import Whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#2F8FD0", "#009E73")  # colour-blind safe


@attrs.frozen
class CertifyResult:
    """What a classifier certifies, and what attacks made of it. Fractions, not percent.

    Attributes:
        accuracy: Accuracy on the test records.
        certified: For each number of bad records, the accuracy that is proved.
        attacked: For each number of bad records, the accuracy after the worst attack tried.
        attacks: For each number of bad records, the accuracy after each attack, on the test records
            that the attacks were chosen on.
        median_radius: Median over the test records of the radius; that of a wrong prediction
            counts as −1.
        sharpness: Median over test records of how many copies of a real record changed a
            prediction, over the radius; None without attacks.
        beyond: Fraction of test records whose prediction was changed by copies of one record, any
            vector, one more than its radius; None without attacks.
        curve: Certified accuracy at many numbers of records, for the picture.
        epsilon: ε of the release.
        balanced: Mean over the classes of the certified accuracy of their test records.
        largest: Fraction of the test records that are of the largest class: what is right
            without a look at the records.
        delta: δ of the release.
        others: Accuracy certified by rules that are not private, for each number of bad records,
            and under `median_radius` the median; by their name.
    """

    accuracy: float
    certified: dict[int, float]
    attacked: dict[int, float]
    attacks: dict[int, dict[str, float]]
    median_radius: float
    curve: list[tuple[int, float]]
    epsilon: float
    sharpness: float | None = None
    beyond: float | None = None
    balanced: dict[int, float] = attrs.field(factory=dict)
    largest: float = 0.0
    delta: float = 0.0
    others: dict[str, dict[str, float]] = attrs.field(factory=dict)

    def plain(self) -> dict[str, Any]:
        """The result in percent, as JSON holds it."""

        def percent(values: dict[Any, float]) -> dict[str, float]:
            return {str(name): 100 * value for name, value in values.items()}

        return {
            "accuracy": 100 * self.accuracy,
            "certified": percent(self.certified),
            "median_radius": self.median_radius,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "attacked": percent(self.attacked),
            "attacks": {str(k): percent(found) for k, found in self.attacks.items()},
            "empirical_over_certified": self.sharpness,
            "changed_by_one_more": self.beyond,
            "balanced": percent(self.balanced),
            "largest_class": 100 * self.largest,
            "others": self.others,
        }

    def table(self) -> str:
        """The certified accuracy, and that after attacks, in percent as CSV."""
        left = {k: f"{100 * value:.2f}" for k, value in self.attacked.items()}
        lines = [f"{k},{100 * value:.2f},{left.get(k, '')}" for k, value in self.certified.items()]
        return "\n".join(["bad_records,certified,after_the_worst_attack", *lines, ""])


def shares(right: "Whole", radii: Whole, records: Iterable[int]) -> dict[int, float]:
    """For each number of records, the fraction that is right and certified against them."""
    return {k: float(np.mean(right & (radii >= k))) for k in records}


def median_radius(right: "Whole", radii: Whole) -> float:
    """The median radius; that of a wrong prediction counts as −1."""
    return float(np.median(np.where(right, radii, -1)))


def draw(found: Sequence[tuple[str, CertifyResult]], axes: "Axes") -> None:
    """Draw what classifiers certify against bad records, and what the worst attack tried did."""
    for (title, result), colour in zip(found, _COLOURS, strict=False):
        records, certified = zip(*((k, 100 * value) for k, value in result.curve), strict=True)
        label = f"{title}, ε = {result.epsilon:g}: {certified[0]:.1f}% without bad records"
        axes.plot(records, certified, color=colour, label=label)
        axes.fill_between(records, certified, color=colour, alpha=0.12)
        tried = sorted(result.attacked.items())
        if len(tried) > 1:
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
    axes.set_xlim(0, max(k for _, result in found for k, _ in result.curve))
    axes.legend(loc="lower left", frameon=False, fontsize=8)


def plot(result: CertifyResult, title: str, path: Path) -> None:
    """Save the drawing of one result."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.8), layout="constrained")
    axes = figure.add_subplot()
    draw([(title, result)], axes)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
