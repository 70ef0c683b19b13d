"""The certified classifiers of the frontier: one private release in place of training.

They meet the same bad records as the trained methods, and besides an attack aimed at their counts
by someone who knows the features, the noise and the test records (`certify.attacks`).
"""

import functools
from collections.abc import Iterable, Iterator

import attrs
import numpy as np
import numpy.typing as npt

from prudent.certify.classifier import CertifiedClassifier, Known
from prudent.certify.counts import Codes, Counts, Partition, Weights, Whole, scores_of
from prudent.records.arrays import parts
from prudent.release.noise import ReproducibleNoise
from prudent_lab.attacks import Target, best_attacks
from prudent_lab.certifying import cells_of, coded_by, of_codes
from prudent_lab.corruption import AIMED, Backdoor, DataCorruption, corrupted_mask, parse
from prudent_lab.datasets import Dataset, load
from prudent_lab.paper.jobs import Job, settings
from prudent_lab.paper.results import Reading

_ROWS = 1024
_PLANNED = 2000  # test records that an aimed attack looks at while it chooses


def run_certified(job: Job) -> list[Reading]:
    """Fit the classifier of a job on its records, and return its row."""
    known = _known(job.dataset, job.features)
    noise = noise_of(known, job.epsilons[0], job.seed)
    kind, _, ratio = job.corrupt.partition(":")
    if kind == AIMED:
        accuracy, success = known.aimed_at(noise, float(ratio), job.seed), None
    else:
        accuracy, success = known.measured(noise, parse(job.corrupt), job.seed)
    return [
        Reading(
            *job.run,
            epsilon=job.epsilons[0],
            accountant="pld",
            steps=1,
            noise_multiplier=round(1 / job.epsilons[0], 5),
            accuracy=accuracy,
            pass_rate=None,
            trim=None,
            success=success,
        )
    ]


@attrs.frozen(eq=False)
class Measured:
    """A data set with the codes of its clean records: most bad ones differ in few images."""

    data: Dataset
    public: Partition
    partition: Partition
    train: Codes
    test: Codes

    @classmethod
    def of(cls, data: Dataset, public: Partition) -> "Measured":
        """Code all records of a data set."""
        both = data.train_features.numpy(), data.test_features.numpy()
        given, asked = (coded_by(public, records) for records in both)
        return cls(data, public, of_codes(public), given, asked)

    @functools.cached_property
    def places(self) -> Whole:
        """The cells of the clean records."""
        return cells_of(self.partition, self.train)

    @functools.cached_property
    def weights(self) -> list[Weights]:
        """The weights of the clean test records: every run asks for them."""
        return list(self._weights(self.test))

    @property
    def truth(self) -> npt.NDArray[np.int64]:
        """The labels of the test records."""
        return np.asarray(self.data.test_labels.numpy())

    def model(self, epsilon: float) -> Known:
        """The public facts of a classifier of these data."""
        return CertifiedClassifier(epsilon, self.data.classes, features=self.partition).known()

    def measured(self, noise: Counts, corruption: object, seed: int) -> tuple[float, float | None]:
        """Accuracy in percent under a corruption, and the success of its trigger if it has one."""
        places, labels = self.places, self.data.train_labels.numpy()
        if isinstance(corruption, DataCorruption):
            places, labels = self._corrupted(corruption, seed)
        counts = _with_noise(noise, places, labels)
        accuracy = _percent(_labels(self.weights, counts) == self.truth)
        if not isinstance(corruption, Backdoor):
            return accuracy, None
        others = self.truth != corruption.target
        stamped = corruption.triggered(self.data.test_features).numpy()[others]
        codes = coded_by(self.public, stamped)
        return accuracy, _percent(_labels(self._weights(codes), counts) == corruption.target)

    def _weights(self, codes: Codes) -> Iterator[Weights]:
        return (self.partition.weights(each) for each in parts(codes, _ROWS))

    def _corrupted(self, corruption: DataCorruption, seed: int) -> tuple[Whole, Whole]:
        bad = self.data.corrupted(corruption, seed)
        before, after = self.data.train_features.numpy(), bad.train_features.numpy()
        changed = np.flatnonzero((before != after).reshape(len(after), -1).any(axis=1))
        places = self.places.copy()
        if len(changed):
            places[changed] = cells_of(self.public, after[changed])
        return places, bad.train_labels.numpy()

    def aimed_at(self, noise: Counts, ratio: float, seed: int) -> float:
        """Accuracy in percent after the worst attack aimed at the counts by the bad records."""
        labels = self.data.train_labels.numpy()
        bad = corrupted_mask(len(labels), ratio, seed).numpy()
        honest = self.places[~bad], labels[~bad]
        counts = _with_noise(noise, *honest)
        step = max(1, len(self.test) // _PLANNED)
        seen, public = self.test[::step], self.partition
        asked = public.weights(seen), self.truth[::step]
        target = Target(counts, public.sizes, *honest, *asked, public.cells(seen))
        return min(
            _percent(_labels(self.weights, attack.applied(counts)) == self.truth)
            for attack in best_attacks(target, int(bad.sum()))
            if attack.name != "removal"  # bad records are drawn, not chosen: none can be removed
        )


@functools.lru_cache(maxsize=1)
def _known(dataset: str, features: str) -> Measured:
    data = load(settings()["datasets"][dataset]["data"])
    public = CertifiedClassifier(1.0, data.classes, None, features).known().partition
    return Measured.of(data, public)


def noise_of(known: Measured, epsilon: float, seed: int) -> Counts:
    """The noise of a fit with a seed: the same for all records, so that only they differ."""
    model = known.model(epsilon)
    return model.empty().released(model.pricing, ReproducibleNoise(seed))


def _with_noise(noise: Counts, places: Whole, labels: Whole) -> Counts:
    counts = attrs.evolve(noise, cells=noise.cells.copy(), totals=noise.totals.copy())
    counts.insert(places, labels)
    return counts


def _labels(weights: Iterable[Weights], counts: Counts) -> Whole:
    found = [scores_of(each, counts.cells, counts.totals, counts.tables) for each in weights]
    winners: Whole = np.concatenate(found).argmax(axis=1)
    return winners


def _percent(right: npt.NDArray[np.bool_]) -> float:
    return round(100 * float(np.mean(right)), 2)
