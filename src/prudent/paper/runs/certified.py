"""The certified classifiers of the frontier: one private release in place of training.

They meet the same bad records as the trained methods, and besides an attack aimed at their sums by
someone who knows the feature map, the noise and the test records (`certify.attacks`).
"""

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import attrs
import numpy as np
import numpy.typing as npt
from scipy import sparse

from prudent.certify.attacks import Records, Target, best_attacks
from prudent.certify.classifier import CertifiedClassifier, decided, scores_of
from prudent.certify.features import FeatureMap, feature_map
from prudent.certify.vectors import Whole, in_chunks
from prudent.corruption import Backdoor, DataCorruption, corrupted_records, parse
from prudent.experiments.datasets import Dataset, load
from prudent.paper.corruptions import AIMED
from prudent.paper.results import Reading
from prudent.paper.runs.jobs import Job, settings
from prudent.release.noise import ReproducibleNoise
from prudent.release.sums.additive import least_gaussian

Images = npt.NDArray[np.generic]
T = TypeVar("T")
_PART = 1024  # records that a thread maps at a time


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
            noise_multiplier=round(least_gaussian(job.epsilons[0], settings()["delta"]), 5),
            accuracy=accuracy,
            pass_rate=None,
            trim=None,
            success=success,
        )
    ]


@attrs.frozen(eq=False)
class Known:
    """A data set with the vectors of its clean records: most bad ones differ in few images."""

    data: Dataset
    features: FeatureMap
    vectors: sparse.csr_array
    queries: Whole
    images: sparse.csr_array
    seen: dict[bytes, sparse.csr_array] = attrs.field(factory=dict, init=False)

    @classmethod
    def of(cls, data: Dataset, features: FeatureMap) -> "Known":
        """Map all records of a data set."""
        train, test = data.train_features.numpy(), data.test_features.numpy()
        asked = _queries(features, test)
        return cls(data, features, _vectors(features, train), asked, _vectors(features, test))

    @property
    def truth(self) -> npt.NDArray[np.int64]:
        """The labels of the test records."""
        return np.asarray(self.data.test_labels.numpy())

    def measured(self, noise: Whole, corruption: object, seed: int) -> tuple[float, float | None]:
        """Accuracy in percent under a corruption, and the success of its trigger if it has one."""
        members = Records(self.vectors, self.data.train_labels.numpy())
        if isinstance(corruption, DataCorruption):
            members = self._corrupted(corruption, seed)
        released = members.sums(self.data.classes, self.features.pairing) + noise
        accuracy = _percent(self._labels(self.queries, released) == self.truth)
        if not isinstance(corruption, Backdoor):
            return accuracy, None
        others = self.truth != corruption.target
        queries = _stamped(self, attrs.evolve(corruption, ratio=0.0))[others]
        return accuracy, _percent(self._labels(queries, released) == corruption.target)

    def _labels(self, queries: Whole, released: Whole) -> npt.NDArray[np.int64]:
        return decided(scores_of(queries, released, self.features.pairing))[0]

    def _corrupted(self, corruption: DataCorruption, seed: int) -> Records:
        bad = self.data.corrupted(corruption, seed)
        before, after = self.data.train_features.numpy(), bad.train_features.numpy()
        changed = np.flatnonzero((before != after).reshape(len(after), -1).any(axis=1))
        labels = bad.train_labels.numpy()
        if not len(changed):
            return Records(self.vectors, labels)
        kept = np.setdiff1d(np.arange(len(labels)), changed)
        vectors = sparse.vstack([self.vectors[kept], self._poison(after[changed])], format="csr")
        return Records(vectors, labels[np.concatenate([kept, changed])])

    def _poison(self, images: Images) -> sparse.csr_array:
        """The vectors of bad records; many repeat, in one run or at several ratios."""
        keys = [hashlib.sha256(image.tobytes()).digest() for image in images]
        new = {key: index for index, key in enumerate(keys) if key not in self.seen}
        if new:
            found = _vectors(self.features, images[list(new.values())])
            self.seen.update((key, found[[row]]) for row, key in enumerate(new))
        poison: sparse.csr_array = sparse.vstack([self.seen[key] for key in keys], format="csr")
        return poison

    def aimed_at(self, noise: Whole, ratio: float, seed: int) -> float:
        """Accuracy in percent after the worst attack aimed at the sums by the bad records."""
        labels, pairing = self.data.train_labels.numpy(), self.features.pairing
        honest = np.ones(len(labels), dtype=bool)
        honest[corrupted_records(len(labels), ratio, seed).numpy()] = False
        members = Records(self.vectors[honest], labels[honest])
        released = members.sums(self.data.classes, pairing) + noise
        target = Target(members, released, self.queries, self.images, self.truth, pairing)
        return min(
            _percent(self._labels(self.queries, released + attack.sums(target)) == self.truth)
            for attack in best_attacks(target, int((~honest).sum()))
            if not len(attack.removed)  # bad records are drawn, not chosen: none can be removed
        )


@functools.lru_cache(maxsize=1)
def _known(dataset: str, features: str) -> Known:
    return Known.of(load(settings()["datasets"][dataset]["data"]), feature_map(features))


@functools.lru_cache(maxsize=8)
def noise_of(known: Known, epsilon: float, seed: int) -> Whole:
    """The noise of a fit with a seed: the same for all records, so that only they differ."""
    members = Records(known.vectors[:0], known.data.train_labels.numpy()[:0])
    like = CertifiedClassifier(known.features, known.data.classes, epsilon, settings()["delta"])
    return members.fitted(like, known.features, ReproducibleNoise(seed))


@functools.lru_cache(maxsize=1)
def _stamped(known: Known, trigger: Backdoor) -> Whole:
    """The test records as queries, with the trigger in each."""
    return _queries(known.features, trigger.triggered(known.data.test_features).numpy())


def _vectors(features: FeatureMap, images: Images) -> sparse.csr_array:
    def mapped(part: Images) -> sparse.csr_array:
        chunks = in_chunks(features.records, part)
        rows = [sparse.csr_array(features.pairing.records(values)[0]) for _, values in chunks]
        return sparse.vstack(rows, format="csr")

    vectors: sparse.csr_array = sparse.vstack(_in_threads(mapped, images), format="csr")
    return vectors


def _queries(features: FeatureMap, images: Images) -> Whole:
    def mapped(part: Images) -> Whole:
        chunks = in_chunks(features.queries, part)
        return np.concatenate([features.pairing.queries(values) for _, values in chunks])

    return np.concatenate(_in_threads(mapped, images))


def _in_threads(act: "Callable[[Images], T]", images: Images) -> "list[T]":
    """What `act` makes of parts of images, in order; large array operations run side by side."""
    parts = [images[start : start + _PART] for start in range(0, len(images), _PART)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(act, parts))


def _percent(right: npt.NDArray[np.bool_]) -> float:
    return round(100 * float(np.mean(right)), 2)


def in_order(jobs: Sequence[Job]) -> Iterator[Job]:
    """The jobs, one feature map after the other, so that each is applied to the records once."""
    yield from sorted(jobs, key=lambda job: (job.features, job.dataset))
