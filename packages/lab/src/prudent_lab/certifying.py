"""Experiments: certified accuracy of a public data set, beside attacks.

What they find is computed from the records without noise. So they are for records that are public,
and claim no ε: that of the settings is what the same release of private records would cost.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _progress
from prudent._progress import part, track
from prudent.certify.classifier import RECORDS, CertifiedClassifier
from prudent.certify.counts import (
    UNTOUCHABLE,
    Codes,
    Features,
    Flags,
    Landmarks,
    Partition,
    Whole,
    decided,
)
from prudent.records.arrays import parts
from prudent.release.columns.column import SourceError, redact_errors
from prudent.release.noise import Distribution, Noise, SecureNoise
from prudent_lab.attacks import Target, accuracy_after, best_attacks, changed_at
from prudent_lab.data_files import cached_array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAPS = {"cifar10": "resnet18", "imdb": "minilm", "census": "census", "mnist": "letters"}
"""The public features made for a data set; `glyphs` for others."""

RAW = ("cifar10", "imdb", "census")
"""Data sets whose records are read as they are stored: bytes, or numbers of a table."""

CHOSEN_ON = {"mnist": 50_000}
"""The training record from which on, to the last, the settings of a map were chosen.

They are public for that, and no record beside them was looked at.
"""

_COLOURS = ("#2F8FD0", "#009E73")  # colour-blind safe
_CENSUS_KEPT = 15  # one in so many of the people with small incomes; 6 % have large ones
_PLANNED = 2000  # queries that attacks look at while they choose
_ROWS = 1024
_CODED = 4096  # records, by several threads
_SINGLE = 100  # predictions that are attacked one by one


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
    # Fraction of test records whose prediction was changed by copies of one record, any vector, one
    # more than its radius; None without attacks.
    beyond: float | None = None
    # Mean over the classes of the certified accuracy of their test records.
    balanced: dict[int, float] = attrs.field(factory=dict)
    # Fraction of the test records that are of the largest class: what is right without a look at
    # the records.
    largest: float = 0.0
    delta: float = 0.0  # δ of the release

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
            "changed_by_one_more": self.beyond,
            "balanced": percents(self.balanced),
            "largest_class": 100 * self.largest,
        }


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


class BrokenCertificateError(AssertionError):
    """A certified prediction changed: the proof or the code is wrong. Please report it."""


class RepeatedNoise:
    """Draws noise once, and the same again for every later fit. NOT PRIVATE if fitted twice.

    Certificates compare runs with the same noise; so do attacks.
    """

    def __init__(self, source: Noise | None = None) -> None:
        self._source = source or SecureNoise()
        self._drawn: dict[tuple[Distribution, float, int], list[int]] = {}

    def of_test(self, test: Any) -> int:
        """See `Noise`."""
        return self._source.of_test(test)

    def integer(self, bound: int) -> int:
        """See `Noise`."""
        return self._source.integer(bound)

    def of_value(self, distribution: Distribution, scale: float, size: int) -> list[int]:
        """See `Noise`."""
        key = distribution, scale, size
        if key not in self._drawn:
            self._drawn[key] = self._source.of_value(distribution, scale, size)
        return self._drawn[key]


Part: TypeAlias = tuple[npt.NDArray[np.generic], npt.NDArray[np.int64]]
"""Records, and their labels from 0 on."""


def run(
    read: Callable[[], tuple[Part, Part]],
    *,
    features: str | Partition,
    classes: int,
    epsilon: float,
    landmarks: Any = 1024,
    records: Sequence[int] = RECORDS,
    attack: bool = True,
    noise: Noise | None = None,
) -> tuple[CertifiedClassifier, CertifyResult]:
    """Fit on the training records, certify the test records, and attack.

    Args:
        read: Reads the training and the test records, which are public.
        features: As for `CertifiedClassifier`, like `landmarks`.
        classes: The number of classes.
        epsilon: ε.
        landmarks: As for `CertifiedClassifier`.
        records: Numbers of bad records; with 0 alone nothing is attacked.
        attack: Whether to attack, which takes most of the time; an attack that changes a certified
            prediction raises a BrokenCertificateError.
        noise: Source of randomness; None uses the operating system's.
    """
    model = CertifiedClassifier(epsilon, classes, landmarks, features)
    public = model.known().partition
    coded, same = of_codes(public), RepeatedNoise(noise)
    both: list[tuple[Any, Whole]] = []

    def training() -> Iterator[tuple[Any, Whole]]:
        try:
            found = read()
        except FileNotFoundError as error:  # names files, quotes no record
            raise SourceError(str(error)) from None
        both.extend((coded_by(public, records), labels) for records, labels in found)
        yield both[0]

    quick = CertifiedClassifier(epsilon, classes, None, coded, noise=same)
    quick.fit_chunks(training())
    model.fit_counts(quick.counts_)
    (given, labels), (asked, truth) = both
    with part("certifying test records"):
        scores, moves = quick.scores(asked)
    winners, radii = decided(scores, moves)
    right = winners == truth
    attacks: dict[int, dict[str, float]] = {}
    attacked, beyond = {0: float(np.mean(right))}, None
    if attack and any(records):
        chosen = np.arange(0, len(asked), max(1, len(asked) // _PLANNED))
        seen = asked[chosen]
        places, names = redact_errors(
            lambda: (cells_of(coded, given), quick.known().classes.numbers(labels))
        )
        present = (places >= 0).all(axis=1) & (names >= 0)
        target = Target(
            quick.counts_,
            coded.sizes,
            places[present],
            names[present],
            coded.weights(seen),
            truth[chosen],
            coded.cells(seen),
        )
        again = CertifiedClassifier(epsilon, classes, None, coded, noise=same)
        for k in track([k for k in records if k], "attacks"):
            attacks[k], attacked[k] = _attacked(target, again, asked, truth, winners, radii, k)
        beyond = _changed_beyond(target, radii[chosen])
    reach = max(*records, int(np.quantile(radii[right], 0.999)) if right.any() else 1)
    points = np.unique(np.linspace(0, reach, 201).astype(np.int64)).tolist()
    sizes = np.bincount(truth, minlength=classes)
    weights = 1 / (np.count_nonzero(sizes) * sizes[truth])
    return model, CertifyResult(
        accuracy=float(np.mean(right)),
        certified=shares(right, radii, records),
        attacked=attacked,
        attacks=attacks,
        median_radius=median_radius(right, radii),
        beyond=beyond,
        curve=list(shares(right, radii, points).items()),
        epsilon=epsilon,
        balanced={k: float(weights[right & (radii >= k)].sum()) for k in records},
        largest=float(sizes.max() / len(truth)),
    )


@attrs.frozen(eq=False)
class Coded:
    """Features of records that were coded beforehand: a record is its code, or NaN."""

    name: str  # that of the features that coded them
    digest: str  # likewise

    def codes(self, records: Codes) -> tuple[Codes, Flags]:
        """The codes as they are."""
        present: Flags = np.asarray(np.isfinite(records).all(axis=1))
        return np.where(present[:, None], records, np.float32(0)), present


def of_codes(partition: Partition) -> Partition:
    """The same partition of records that were coded beforehand by `coded_by`."""
    if isinstance(partition, Landmarks):
        features = partition.features
        return attrs.evolve(partition, features=Coded(features.name, features.digest))
    if getattr(partition, "embedding", None) is None:
        return partition
    return attrs.evolve(partition, embedding=None)  # type: ignore[misc]


def coded_by(partition: Partition, records: Any) -> Any:
    """The codes or embeddings of records, as `of_codes` takes them: networks are slow."""
    if isinstance(partition, Landmarks):
        return _codes(partition.features, records)
    embedding = getattr(partition, "embedding", None)
    return records if embedding is None else _embedded(embedding, records)


def _codes(features: Features, records: Any) -> Codes:
    embedding = getattr(features, "embedding", None)
    if embedding is not None:  # of a slow network, cached
        features = attrs.evolve(features, embedding=None)  # type: ignore[misc]
        records = _embedded(embedding, records)
    found = []
    with part(f"features {features.name}", len(records)):
        for each in parts(records, _CODED):
            codes, present = features.codes(each)
            found.append(np.where(present[:, None], codes, np.float32(np.nan)))
            _progress.advance(len(codes))
    return np.concatenate(found)


def _embedded(embedding: Any, records: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    def compute() -> npt.NDArray[np.float32]:
        rows = []
        with part(f"embedding by {embedding.name}", len(records)):
            for each in parts(records, _ROWS):
                rows.append(embedding(each).astype(np.float32))
                _progress.advance(len(each))
        return np.concatenate(rows)

    content = hashlib.sha256(repr((records.shape, records.dtype)).encode())
    content.update(np.ascontiguousarray(records).data)
    key = f"{embedding.name}-{embedding.digest[:32]}-{content.hexdigest()[:32]}"
    return cached_array(key, compute)


def cells_of(partition: Partition, records: Any) -> Whole:
    """The cells of records, a few at a time."""
    return np.concatenate([partition.cells(each) for each in parts(records, _ROWS)])


def _attacked(
    target: Target,
    again: CertifiedClassifier,
    asked: Any,
    truth: Whole,
    winners: Whole,
    radii: Whole,
    k: int,
) -> tuple[dict[str, float], float]:
    """Accuracy after each attack with k records, and after the worst one, fitted anew."""
    attacks = list(best_attacks(target, k))
    found = {attack.name: accuracy_after(target, attack) for attack in attacks}
    worst = min(attacks, key=lambda attack: found[attack.name])
    poisoned = again.known().empty()
    poisoned.insert(*worst.poisoned(target.places, target.classes))
    again.fit_counts(poisoned)
    now = decided(*again.scores(asked))[0]
    if not np.array_equal(again.counts_.cells, worst.applied(target.counts).cells):
        raise BrokenCertificateError(f"{worst.name}: counts are not those of a fit")
    if (now != winners)[radii >= len(worst)].any():
        raise BrokenCertificateError(f"{worst.name} with {len(worst)} records")
    return found, float(np.mean(now == truth))


def _changed_beyond(target: Target, radii: Whole) -> float:
    """The fraction of some predictions that one record more than their radius changes."""
    queries = np.flatnonzero(radii < UNTOUCHABLE)
    queries = queries[:: max(1, len(queries) // _SINGLE)].tolist()
    if broken := sum(changed_at(target, each, int(radii[each])) for each in queries):
        raise BrokenCertificateError(f"copies of one record, {broken} predictions")
    return float(np.mean([changed_at(target, each, int(radii[each]) + 1) for each in queries]))


def read(dataset: str) -> tuple[Part, Part]:
    """The training and the test records of a public data set; those of `RAW` as they are stored.

    Records that the map of the data set was chosen on are left out: see `CHOSEN_ON`.
    """
    from prudent_lab.datasets import load, read_arrays

    if dataset not in RAW:
        (records, labels), test = load(dataset).arrays
        kept = CHOSEN_ON.get(dataset)
        return (records[:kept], labels[:kept]), test
    train, test = ((x, y.astype(np.int64)) for x, y in read_arrays(dataset))
    return thinned(train, 0, _CENSUS_KEPT) if dataset == "census" else train, test


def classes_of(dataset: str) -> int:
    """The number of classes of a data set, which is public."""
    from prudent_lab.datasets import archive_classes
    from prudent_lab.named_datasets import NAMED_DATASETS

    named = NAMED_DATASETS.get(dataset)
    return named.classes if named else archive_classes(dataset)


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
