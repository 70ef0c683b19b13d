"""Certified accuracy of a data set beside what attacks achieve, as one value and one picture."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from prudent.certify.attacks import Records, RepeatedNoise, best_attacks
from prudent.certify.classifier import CertifiedClassifier, LedgerLike, decided, scores_of
from prudent.certify.features import FeatureMap, feature_map
from prudent.certify.vectors import LENGTH, Whole, in_chunks, whole_vectors
from prudent.release.noise import Noise

RECORDS = (0, 100, 500, 1000, 2000)
"""Numbers of bad records for which certified accuracy is reported."""


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
    """

    accuracy: float
    certified: dict[int, float]
    attacked: dict[int, float]
    attacks: dict[int, dict[str, float]]
    median_radius: float
    curve: list[tuple[int, float]]
    epsilon: float
    delta: float

    def plain(self) -> dict[str, Any]:
        """The result in percent, as JSON holds it."""

        def percent(values: dict[Any, float]) -> dict[str, float]:
            return {str(name): round(100 * value, 3) for name, value in values.items()}

        return {
            "accuracy": round(100 * self.accuracy, 3),
            "certified": percent(self.certified),
            "median_radius": self.median_radius,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "attacked": percent(self.attacked),
            "attacks": {str(k): percent(found) for k, found in self.attacks.items()},
        }


class Stored:
    """A feature map applied to fixed records beforehand: its records are their row numbers."""

    def __init__(self, features: FeatureMap, records: npt.NDArray[np.generic]) -> None:
        self.name, self.width, self.digest = features.name, features.width, features.digest
        self._map, self._records = features, records
        self._rows: npt.NDArray[np.float64] | None = None

    def __call__(self, rows: npt.NDArray[np.generic]) -> npt.ArrayLike:
        """The features of the records with these numbers; all are computed on the first call."""
        if self._rows is None:
            self._rows = np.zeros((len(self._records), self.width))
            for part, vectors, finite in in_chunks(self._map, self._records):
                self._rows[part] = np.where(finite[:, None], vectors / LENGTH, np.nan)
        return self._rows[rows.astype(np.int64)]

    def whole(self) -> tuple[Whole, npt.NDArray[np.bool_]]:
        """All records on the lattice, and which have finite features."""
        return whole_vectors(self(np.arange(len(self._records))))


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
        The fitted classifier, to be saved (it holds the features of `train`; load it for other
        queries), and the result.

    Raises:
        BrokenCertificateError: If an attack changed a prediction that was certified against it.
    """
    mapped = feature_map(features)
    same = RepeatedNoise(noise)
    if ledger is not None:
        event = CertifiedClassifier(mapped, classes, epsilon, delta).event
        ledger.charge(event, f"certified classifier on {mapped.name} features", delta=delta)
    train, test = read()
    stored, shown = Stored(mapped, train[0]), Stored(mapped, test[0])
    model = CertifiedClassifier(stored, classes, epsilon, delta, noise=same)
    model.fit(np.arange(len(train[1])), train[1])

    queries, truth = shown.whole()[0], test[1]
    labels, radii = decided(scores_of(queries, model.released_))
    right = labels == truth
    vectors, finite = stored.whole()
    usable = finite & (train[1] >= 0) & (train[1] < classes)
    members = Records(vectors[usable], train[1][usable])
    attacks = {
        k: _attacked(members, model, same, queries, truth, (labels, radii), k) for k in records
    }
    reach = max(*records, int(np.quantile(radii[right], 0.999)) if right.any() else 1)
    points = np.unique(np.linspace(0, reach, 201).astype(np.int64)).tolist()
    return model, Result(
        accuracy=float(np.mean(right)),
        certified={k: float(np.mean(right & (radii >= k))) for k in records},
        attacked={k: min(found.values()) for k, found in attacks.items()},
        attacks=attacks,
        median_radius=float(np.median(np.where(right, radii, -1))),
        curve=[(k, float(np.mean(right & (radii >= k)))) for k in points],
        epsilon=epsilon,
        delta=delta,
    )


def _attacked(
    members: Records,
    model: CertifiedClassifier,
    noise: Noise,
    queries: Whole,
    truth: npt.NDArray[np.int64],
    predicted: tuple[npt.NDArray[np.int64], Whole],
    k: int,
) -> dict[str, float]:
    """Accuracy after each attack with k records, trained anew with the same noise."""
    labels, radii = predicted
    if k == 0:
        return {"none": float(np.mean(labels == truth))}
    found = {}
    for attack in best_attacks(members, model.released_, queries, truth, k):
        poisoned = attack.applied(members).fitted(model, noise)
        now, _ = decided(scores_of(queries, poisoned.released_))
        if (now != labels)[radii >= len(attack)].any():
            raise BrokenCertificateError(f"{attack.name} with {len(attack)} records")
        found[attack.name] = float(np.mean(now == truth))
    return found


def plot(result: Result, title: str, path: Path) -> None:
    """Draw certified accuracy against the number of bad records, beside the attacks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.8), layout="constrained")
    counts, certified = zip(*result.curve, strict=True)
    shares = [100 * value for value in certified]
    axes.plot(counts, shares, color="#0072B2", label="certified: no k records can do worse")
    axes.fill_between(counts, shares, color="#0072B2", alpha=0.12)
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
    axes.set_ylabel("accuracy on test records, %")
    axes.set_ylim(0, 100)
    axes.set_xlim(0, counts[-1])
    axes.set_title(f"{title}, ({result.epsilon:g}, {result.delta:g})-DP")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="lower left")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
