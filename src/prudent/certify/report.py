"""What a classifier certifies, as one value, a table and a picture.

Percentages are rounded down: what is printed as proved is proved.
"""

from collections.abc import Iterable, Sequence
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from prudent.certify.counts import Whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#2F8FD0", "#009E73")  # colour-blind safe


@attrs.frozen
class CertifyResult:
    """What a classifier certifies, and what attacks made of it. Fractions, not percent."""

    accuracy: float  # accuracy on the test records
    certified: dict[int, float]  # for each number of bad records, the accuracy that is proved
    # For each number of bad records, the accuracy after the worst attack tried.
    attacked: dict[int, float]
    # For each number of bad records, the accuracy after each attack, on the test records that the
    # attacks were chosen on.
    attacks: dict[int, dict[str, float]]
    # Median over the test records of the radius; that of a wrong prediction counts as −1.
    median_radius: float
    curve: list[tuple[int, float]]  # certified accuracy at many numbers of records, for the picture
    epsilon: float  # ε of the release
    # Median over test records of how many copies of a real record changed a prediction, over the
    # radius; None without attacks.
    sharpness: float | None = None
    # Fraction of test records whose prediction was changed by copies of one record, any vector, one
    # more than its radius; None without attacks.
    beyond: float | None = None
    # Mean over the classes of the certified accuracy of their test records.
    balanced: dict[int, float] = attrs.field(factory=dict)
    # Fraction of the test records that are of the largest class: what is right without a look at
    # the records.
    largest: float = 0.0
    delta: float = 0.0  # δ of the release
    # Accuracy certified by rules that are not private, for each number of bad records, and their
    # median radius; by their name.
    others: dict[str, tuple[dict[int, float], float]] = attrs.field(factory=dict)

    def plain(self) -> dict[str, Any]:
        """The result in percent, as JSON holds it."""

        def percents(values: dict[Any, float]) -> dict[str, float]:
            return {str(name): 100 * value for name, value in values.items()}

        return {
            "accuracy": 100 * self.accuracy,
            "certified": percents(self.certified),
            "median_radius": self.median_radius,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "attacked": percents(self.attacked),
            "attacks": {str(k): percents(found) for k, found in self.attacks.items()},
            "empirical_over_certified": self.sharpness,
            "changed_by_one_more": self.beyond,
            "balanced": percents(self.balanced),
            "largest_class": 100 * self.largest,
            "others": {
                name: percents(row) | {"median_radius": median}
                for name, (row, median) in self.others.items()
            },
        }

    def table(self) -> str:
        """The certified accuracy, and that after attacks, in percent as CSV."""
        left = {k: percent(value) for k, value in self.attacked.items()}
        lines = [f"{k},{percent(value)},{left.get(k, '')}" for k, value in self.certified.items()]
        return "\n".join(["bad_records,certified,after_the_worst_attack", *lines, ""])


def percent(share: float, digits: int = 2) -> str:
    """A share in percent, rounded down."""
    exact = 100 * Decimal(repr(float(share)))  # the decimal that the number stands for
    return str(exact.quantize(Decimal(1).scaleb(-digits), ROUND_FLOOR))


def shares(right: Whole, radii: Whole, records: Iterable[int]) -> dict[int, float]:
    """For each number of records, the fraction that is right and certified against them."""
    return {k: float(np.mean(right & (radii >= k))) for k in records}


def median_radius(right: Whole, radii: Whole) -> float:
    """The median radius; that of a wrong prediction counts as −1."""
    return float(np.median(np.where(right, radii, -1)))


def draw(found: Sequence[tuple[str, CertifyResult]], axes: "Axes") -> None:
    """Draw what classifiers certify against bad records, and what the worst attack tried did."""
    for (title, result), colour in zip(found, _COLOURS, strict=False):
        records, certified = zip(*((k, 100 * value) for k, value in result.curve), strict=True)
        clean = percent(result.certified.get(0, result.accuracy), 1)
        label = f"{title}, ε = {result.epsilon:g}: {clean}% without bad records"
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
