"""Certified accuracy of a data set beside what attacks achieve, as one value and one picture."""

import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
from scipy import sparse

from prudent._progress import track
from prudent.accounting.chargeable import LedgerLike
from prudent.certify.attacks import Records, RepeatedNoise, Target, best_attacks
from prudent.certify.classifier import CertifiedClassifier, decided
from prudent.certify.features import FeatureMap, feature_map
from prudent.certify.features.embedded import computed_once
from prudent.certify.vectors import in_chunks
from prudent.release.failures import withheld
from prudent.release.noise import Noise
from prudent.release.sums.additive import least_gaussian

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RECORDS = (0, 100, 500, 1000, 2000)
"""Numbers of bad records for which certified accuracy is reported."""


MAPS = {
    "mnist": "letters",
    "emnist-letters": "glyphs",
    "emnist-az": "glyphs",
    "cifar10": "resnet18",
    "imdb": "minilm",
    "census": "census",
}
"""The feature map made for a data set; `scattering` for others."""

RAW = ("cifar10", "imdb", "census")
"""Data sets whose records are read as they are stored: bytes, or numbers of a table."""

_CENSUS_KEPT = 15  # one in so many of the people with small incomes; 6 % have large ones


class BrokenCertificateError(AssertionError):
    """A certified prediction changed: the proof or the code is wrong. Please report it."""


@attrs.frozen
class Result:
    """What a classifier certifies, and what attacks made of it. Fractions, not percent.

    Attributes:
        accuracy: Accuracy on the test records.
        certified: For each number of bad records, the accuracy that is proved.
        attacked: For each number of bad records, the accuracy after the worst attack tried.
        attacks: For each number of bad records, the accuracy after each attack.
        median_radius: Median over the test records of the radius; that of a wrong prediction
            counts as −1.
        curve: Certified accuracy at many numbers of records, for the picture.
        epsilon: ε of the release.
        delta: δ of the release.
        balanced: Mean over the classes of the certified accuracy of their test records.
        largest: Fraction of the test records that are of the largest class: what is right
            without a look at the records.
    """

    accuracy: float
    certified: dict[int, float]
    attacked: dict[int, float]
    attacks: dict[int, dict[str, float]]
    median_radius: float
    curve: list[tuple[int, float]]
    epsilon: float
    delta: float
    balanced: dict[int, float] = attrs.field(factory=dict)
    largest: float = 0.0

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
            "balanced": percent(self.balanced),
            "largest_class": 100 * self.largest,
        }


Part: TypeAlias = tuple[npt.NDArray[np.generic], npt.NDArray[np.int64]]
"""Records, and their labels from 0 on."""


def run(
    read: Callable[[], tuple[Part, Part]],
    *,
    features: str | FeatureMap,
    classes: int,
    epsilon: float,
    delta: float,
    records: Sequence[int] = RECORDS,
    ledger: LedgerLike | None = None,
    noise: Noise | None = None,
) -> tuple[CertifiedClassifier, Result]:
    """Fit on the training records, certify the test records, attack, and compare.

    Attacks, and accuracy on the test records, are computed without noise: this is an experiment on
    public data. What the classifier released is private.

    Args:
        read: Reads the training and the test records; called after the charge.
        features: As for `CertifiedClassifier`.
        classes: The number of classes.
        epsilon: ε.
        delta: δ.
        records: Numbers of bad records.
        ledger: Charged before the records are read.
        noise: Source of randomness; None uses the operating system's.

    Returns:
        The fitted classifier, and the result.

    Raises:
        BrokenCertificateError: If an attack changed a prediction that was certified against it.
    """
    mapped = feature_map(features)
    same = RepeatedNoise(noise)
    budget = CertifiedClassifier(mapped, classes, epsilon, delta)
    if ledger is not None:
        label = f"certified classifier on {mapped.name} features"
        ledger.charge(budget.event, label, delta=delta)
    train, test = read()
    usable = (train[1] >= 0) & (train[1] < classes)
    fast, (records_in, queries_in) = withheld(lambda: computed_once(mapped, train[0], test[0]))
    vectors, finite = withheld(lambda: _mapped(fast, records_in))
    usable &= finite
    members = Records(vectors[usable], train[1][usable])
    released = members.fitted(budget, mapped, same)
    queries = np.concatenate(
        [mapped.pairing.queries(values) for _, values in in_chunks(fast.queries, queries_in)]
    )
    images, _ = _mapped(fast, queries_in)
    target = Target(members, released, queries, images, test[1], mapped.pairing)
    labels, radii = decided(target.scores)
    right = labels == test[1]
    tried = track(records, "attacks")
    attacks = {k: _attacked(target, budget, mapped, same, k) for k in tried}
    budget.released_ = released
    budget.noise_multiplier_ = least_gaussian(epsilon, delta)
    reach = max(*records, int(np.quantile(radii[right], 0.999)) if right.any() else 1)
    points = np.unique(np.linspace(0, reach, 201).astype(np.int64)).tolist()
    sizes = np.bincount(test[1], minlength=classes)
    weights = 1 / (np.count_nonzero(sizes) * sizes[test[1]])
    return budget, Result(
        accuracy=float(np.mean(right)),
        certified={k: float(np.mean(right & (radii >= k))) for k in records},
        attacked={k: min(found.values()) for k, found in attacks.items()},
        attacks=attacks,
        median_radius=float(np.median(np.where(right, radii, -1))),
        curve=[(k, float(np.mean(right & (radii >= k)))) for k in points],
        epsilon=epsilon,
        delta=delta,
        balanced={k: float(weights[right & (radii >= k)].sum()) for k in records},
        largest=float(sizes.max() / len(test[1])),
    )


def read(dataset: str) -> tuple[Part, Part]:
    """The training and the test records of a data set of `RAW`."""
    from prudent.experiments.datasets import read_arrays

    train, test = ((x, y.astype(np.int64)) for x, y in read_arrays(dataset))
    return thinned(train, 0, _CENSUS_KEPT) if dataset == "census" else train, test


def thinned(part: Part, label: int, keep: int) -> Part:
    """The records without those of a class, except one in `keep` by a checksum of each.

    Where a class is much larger than the others it wins wherever it is present at all. Whether a
    record is kept depends on this record alone, so that both guarantees hold for the given records:
    to insert or remove one inserts or removes at most one of those that are kept.
    """
    records, labels = part
    kept = [
        zlib.crc32(np.ascontiguousarray(record).tobytes()) % keep == 0 if own == label else True
        for record, own in zip(records, labels.tolist(), strict=True)
    ]
    return records[np.array(kept, dtype=bool)], labels[np.array(kept, dtype=bool)]


def _mapped(
    features: FeatureMap, records: npt.NDArray[np.generic]
) -> tuple[sparse.csr_array, npt.NDArray[np.bool_]]:
    """Vectors of records, most of whose entries may be zero, and which records are finite."""
    chunks = (features.pairing.records(v) for _, v in in_chunks(features.records, records))
    rows = [(sparse.csr_array(row), finite) for row, finite in chunks]  # dense ones take gigabytes
    vectors = sparse.vstack([row for row, _ in rows], format="csr")
    return vectors, np.concatenate([finite for _, finite in rows])


def _attacked(
    target: Target, like: CertifiedClassifier, features: FeatureMap, noise: Noise, k: int
) -> dict[str, float]:
    """Accuracy after each attack with k records; after the worst one trained anew.

    Sums are whole numbers, so what an attack makes of them is known without training. The worst
    attack is trained nevertheless, from the poisoned records and with the same noise.
    """
    labels, radii = decided(target.scores)
    if k == 0:
        return {"none": float(np.mean(labels == target.truth))}
    found: dict[str, float] = {}
    worst = None
    for attack in best_attacks(target, k):
        released = target.released + attack.sums(target)
        now, _ = decided(attrs.evolve(target, released=released).scores)
        if (now != labels)[radii >= len(attack)].any():
            raise BrokenCertificateError(f"{attack.name} with {len(attack)} records")
        found[attack.name] = float(np.mean(now == target.truth))
        if found[attack.name] == min(found.values()):
            worst = attack, released
    if worst is not None:
        attack, released = worst
        trained = attack.applied(target.records).fitted(like, features, noise)
        if not np.array_equal(trained, released):
            raise BrokenCertificateError(f"{attack.name}: sums are not those of training")
    return found


def draw(result: Result, axes: "Axes") -> None:
    """Draw certified accuracy against the number of bad records, beside the attacks."""
    counts, certified = zip(*result.curve, strict=True)
    shares = [100 * value for value in certified]
    axes.plot(counts, shares, color="#2F8FD0", label="certified: no such records can do worse")
    axes.fill_between(counts, shares, color="#2F8FD0", alpha=0.15)
    tried = sorted(result.attacked.items())
    axes.plot(
        [k for k, _ in tried],
        [100 * value for _, value in tried],
        color="#D55E00",
        marker="o",
        linestyle="--",
        label="after the worst attack tried",
    )
    axes.set_xlabel("bad records inserted or removed")
    axes.set_ylabel("accuracy on clean test data, %")
    axes.set_ylim(0, 100)
    axes.set_xlim(0, counts[-1])
    axes.legend(loc="upper right", frameon=False, fontsize=8)


def plot(result: Result, title: str, path: Path) -> None:
    """Save the drawing of a result."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
    draw(result, axes)
    axes.set_title(f"{title}, ({result.epsilon:g}, {result.delta:g})-DP")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
