"""What a classifier certifies, as one value, a table and a picture; and what other rules do.

What they certify is on the same codes of records. None of them is private.

* Deep Partition Aggregation (Levine and Feizi, 2021): records are divided by a checksum into parts,
  a classifier is trained on each part, and the majority of them decides. One record changes one
  part, so one vote: a lead of v votes withstands v/2 records.
* Run-off election (Rezaei and others, 2023): the two classes with the most votes meet in a second
  round, in which each part votes for the one that it finds more likely. The radius is that of the
  second round and of who takes part in it.
* Nearest neighbours: the majority of the k nearest records; inserted ones can be nearer than all.
* The ramp of the cosine to the records themselves, in place of counts at landmarks.

The classifier of a part is that of the nearest class mean.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import numpy.typing as npt

from prudent._rounding import rounded_down
from prudent.certify.counts import Whole, decided
from prudent.certify.landmarks import SCALE, Codes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RECORDS_RAMP = (0.1, 0.4)  # of the cosine to records, where that to landmarks says nothing about it
PARTS = 6000
_NEIGHBOURS = 10
_ROWS = 500

Decided = tuple[Whole, Whole]  # the winning class at each query, and its radius
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
    # Accuracy certified by rules that are not private, for each number of bad records, and under
    # `median_radius` the median; by their name.
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
        clean = rounded_down(certified[0], 3)
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


def certified_by_others(
    records: Codes,
    labels: Whole,
    queries: Codes,
    classes: int,
    ramp: tuple[float, float] = RECORDS_RAMP,
) -> Iterator[tuple[str, Decided]]:
    """The name of each rule, and what it predicts and certifies.

    Records and queries are given by their codes; see `Landmarks` for the ramp.
    """
    alike = _likes(records, labels, queries, classes)
    yield f"DPA, {PARTS:,} parts", by_votes(alike[0])
    yield f"run-off election, {PARTS:,} parts", by_run_off(*alike)
    yield f"{_NEIGHBOURS} nearest neighbours", nearest_neighbours(records, labels, queries, classes)
    yield "ramp of the cosine to the records", by_records(records, labels, queries, classes, ramp)


def _likes(
    records: Codes, labels: Whole, queries: Codes, classes: int
) -> tuple[Whole, npt.NDArray[np.int32]]:
    """Votes of the parts, (queries, classes), and how many parts prefer a class to another."""
    part = np.array([zlib.crc32(np.ascontiguousarray(row).tobytes()) % PARTS for row in records])
    sums = np.zeros((classes, PARTS, records.shape[1]), np.float32)
    np.add.at(sums, (labels, part), records)
    norms = np.linalg.norm(sums, axis=2, keepdims=True)
    means = (sums / np.maximum(norms, 1e-6)).reshape(classes * PARTS, -1)
    absent = (norms[:, :, 0] == 0).ravel()
    votes = np.zeros((len(queries), classes), np.int64)
    duels = np.zeros((len(queries), classes, classes), np.int32)
    for start in range(0, len(queries), _ROWS):
        rows = slice(start, start + _ROWS)
        cosines = queries[rows] @ means.T
        cosines[:, absent] = -np.inf
        cosines = cosines.reshape(-1, classes, PARTS)
        chosen = cosines.argmax(axis=1)
        for name in range(classes):
            votes[rows, name] = (chosen == name).sum(axis=1)
            for other in range(name + 1, classes):  # the first wins a draw, as argmax decides
                ahead = (cosines[:, name] >= cosines[:, other]).sum(axis=1)
                duels[rows, name, other], duels[rows, other, name] = ahead, PARTS - ahead
    return votes, duels


def by_votes(votes: Whole) -> Decided:
    """The majority, and how many records it withstands: each moves a lead by two at most."""
    return decided(votes, np.full(len(votes), 2))


def by_run_off(votes: Whole, duels: npt.NDArray[np.int32]) -> Decided:
    """The winner of the second round, and a number of records that change neither round.

    The winner stays if it stays among the first two, and beats whoever can become the other: a
    class b gets there after enough records have moved votes from the present second to it.
    """
    order = np.argsort(-votes, axis=1, kind="stable")
    first, second = order[:, 0], order[:, 1]
    rows = np.arange(len(votes))
    ahead = duels[rows, first, second] >= duels[rows, second, first]
    winners = np.where(ahead, first, second)
    others = np.where(ahead, second, first)
    radii = np.full(len(votes), np.iinfo(np.int64).max)
    for name in range(votes.shape[1]):
        lead = duels[rows, winners, name].astype(np.int64) - duels[rows, name, winners]
        beaten = np.maximum(lead - 1, 0) // 2  # records after which it may lose the duel
        swap = np.maximum(votes[rows, others] - votes[:, name] - 1, 0) // 2  # or not get there
        allowed = np.where(name == others, beaten, np.maximum(beaten, swap))
        # The winner must also keep ahead of the class, or of the other, to stay among two.
        radii = np.where(name == winners, radii, np.minimum(radii, allowed))
    rest = votes.copy()
    rest[rows, winners] = rest[rows, others] = -1
    stays = np.maximum(votes[rows, winners] - rest.max(axis=1) - 1, 0) // 2
    return winners, np.minimum(radii, stays)


def nearest_neighbours(records: Codes, labels: Whole, queries: Codes, classes: int) -> Decided:
    """The majority of the nearest records; one record moves a lead by two at most."""
    votes = np.zeros((len(queries), classes), np.int64)
    for start in range(0, len(queries), _ROWS):
        products = queries[start : start + _ROWS] @ records.T
        near = np.argpartition(-products, _NEIGHBOURS, axis=1)[:, :_NEIGHBOURS]
        for name in range(classes):
            votes[start : start + _ROWS, name] = (labels[near] == name).sum(axis=1)
    return by_votes(votes)


def by_records(
    records: Codes, labels: Whole, queries: Codes, classes: int, ramp: tuple[float, float]
) -> Decided:
    """The theorem of `counts` with each record in a cell of its own; rounded down."""
    low, high = (SCALE * SCALE * cosine for cosine in ramp)
    scores = np.zeros((len(queries), classes))
    sizes = np.bincount(labels, minlength=classes)
    for start in range(0, len(queries), _ROWS):
        products = queries[start : start + _ROWS] @ records.T
        weights = np.clip((products - low) / (high - low), 0, 1)
        for name in range(classes):
            own = weights[:, labels == name].sum(axis=1, dtype=np.float64)
            scores[start : start + _ROWS, name] = own - sizes[name] / 2
    ranked = np.sort(scores, axis=1)
    gaps = ranked[:, -1] - ranked[:, -2] - 1e-6 * len(records)
    return scores.argmax(axis=1), np.maximum(np.ceil(2 * gaps) - 1, 0).astype(np.int64)
