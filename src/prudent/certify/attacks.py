"""Attacks on a certified classifier by someone who knows everything, the noise included.

An attack inserts or removes k records. It knows the records, the feature map, the noise and the
queries, and looks for the change that alters most predictions. Scores are linear in the sums, so an
attack can try thousands of changes without training; `experiment` then trains on the poisoned
records, with the same noise, and compares all predictions.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from prudent.certify.classifier import HALF, CertifiedClassifier, scores_of
from prudent.certify.features import Vectors
from prudent.certify.vectors import LENGTH, Whole
from prudent.release.noise import Law, Noise, SecureNoise

_POOL = 200


class RepeatedNoise:
    """Draws noise once, and the same again for every later fit. NOT PRIVATE if fitted twice.

    Certificates compare runs with the same noise; so do attacks.
    """

    def __init__(self, source: Noise | None = None) -> None:
        self._source = source or SecureNoise()
        self._drawn: dict[tuple[Law, float, int], list[int]] = {}

    def of_test(self, test: Any) -> int:
        """See `Noise`."""
        return self._source.of_test(test)

    def of_value(self, law: Law, scale: float, size: int) -> list[int]:
        """See `Noise`."""
        key = law, scale, size
        if key not in self._drawn:
            self._drawn[key] = self._source.of_value(law, scale, size)
        return self._drawn[key]


@attrs.frozen(eq=False)
class Records:
    """Records as lattice vectors, with the index of the class of each."""

    vectors: Whole
    classes: npt.NDArray[np.int64]

    def sums(self, classes: int) -> Whole:
        """The sums that these records add to the released ones."""
        sums = np.zeros((classes, self.vectors.shape[1] + 1), dtype=np.int64)
        np.add.at(sums[:, :-1], self.classes, self.vectors)
        np.add.at(sums[:, -1], self.classes, HALF)
        return sums

    def fitted(self, like: CertifiedClassifier, noise: Noise) -> CertifiedClassifier:
        """A classifier trained on these records, with the budget of another."""
        classes = len(like.classes_)
        model = CertifiedClassifier(
            Vectors(self.vectors.shape[1]), classes, like.epsilon, like.delta, noise=noise
        )
        return model.fit(self.vectors / LENGTH, self.classes)


@attrs.frozen(eq=False)
class Attack:
    """A change of k records.

    Attributes:
        name: What is done.
        inserted: Records to insert.
        removed: Indices of records to remove.
    """

    name: str
    inserted: Records
    removed: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.inserted.classes) + len(self.removed)

    def applied(self, records: Records) -> Records:
        """The poisoned records."""
        kept = np.ones(len(records.classes), dtype=bool)
        kept[self.removed] = False
        return Records(
            np.concatenate([records.vectors[kept], self.inserted.vectors]),
            np.concatenate([records.classes[kept], self.inserted.classes]),
        )


def best_attacks(
    records: Records, released: Whole, queries: Whole, truth: npt.NDArray[np.int64], k: int
) -> Iterator[Attack]:
    """The most harmful attack of each kind with k records.

    Args:
        records: The records of the fit.
        released: What it released.
        queries: The vectors of the queries.
        truth: The index of the right class of each query.
        k: How many records may be inserted or removed.

    | kind | what is done |
    | --- | --- |
    | copies | k copies of one query, named as another class; all are valid inputs |
    | vector | k times the mean vector of weak queries of a class, named as another class |
    | nothing | k zero vectors, named as a class: they lower its score at every query |
    | removal | the k records most similar to weak queries of their class are removed |
    """
    scores = scores_of(queries, released)
    search = _Search(scores, queries, truth, k)
    weak = search.weakest()
    none = np.zeros(0, dtype=np.int64)

    pool = queries[weak[:: max(1, len(weak) // _POOL)][:_POOL]]
    vector, target = search.best(pool)
    yield Attack("copies", _copies(vector, target, k), none)

    parts = dict(search.parts(weak))
    means = np.stack([queries[part].mean(axis=0) for part in parts.values()])
    lengths = np.sqrt(np.square(means).sum(axis=1, keepdims=True))
    vectors = np.floor(means * (LENGTH * (1 - 2.0**-30) / np.maximum(lengths, 1))).astype(np.int64)
    vector, target = search.best(vectors)
    yield Attack("vector", _copies(vector, target, k), none)

    zero = np.zeros_like(queries[:1])
    vector, target = search.best(zero)
    yield Attack("nothing", _copies(vector, target, k), none)

    aims = zip(parts, vectors, strict=True)
    yield Attack("removal", _copies(zero[0], 0, 0), _removal(records, search, aims, k))


def _copies(vector: Whole, target: int, k: int) -> Records:
    return Records(np.repeat(vector[None], k, axis=0), np.full(k, target))


def _removal(
    records: Records, search: "_Search", aims: Iterable[tuple[int, Whole]], k: int
) -> npt.NDArray[np.int64]:
    """Of all classes, the removal of k records similar to its weak queries that does most harm."""
    worst, chosen = search.accuracy(search.scores), np.zeros(0, dtype=np.int64)
    for target, vector in aims:
        members = np.flatnonzero(records.classes == target)
        alike = records.vectors[members] @ vector
        removed = members[np.argsort(-alike, kind="stable")[:k]]
        gone = Records(records.vectors[removed], records.classes[removed])
        moved = search.scores - scores_of(search.queries, gone.sums(search.classes))
        if (accuracy := search.accuracy(moved)) < worst:
            worst, chosen = accuracy, removed
    return chosen


@attrs.frozen(eq=False)
class _Search:
    """Scores at the queries, and what k copies of one vector would make of them."""

    scores: Whole
    queries: Whole
    truth: npt.NDArray[np.int64]
    k: int

    @property
    def classes(self) -> int:
        return int(self.scores.shape[1])

    def accuracy(self, scores: Whole) -> float:
        return float(np.mean(scores.argmax(axis=1) == self.truth))

    def weakest(self) -> npt.NDArray[np.int64]:
        """Indices of queries that are predicted right, the smallest gap first."""
        ranked = np.sort(self.scores, axis=1)
        gaps = np.where(self.scores.argmax(axis=1) == self.truth, ranked[:, -1] - ranked[:, -2], -1)
        order = np.argsort(gaps, kind="stable")
        return order[gaps[order] >= 0]

    def parts(self, weak: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
        """Each class with its weak queries."""
        for target in range(self.classes):
            part = weak[self.truth[weak] == target]
            yield target, part[: max(20, len(part) // 10)] if len(part) else weak

    def best(self, vectors: Whole) -> tuple[Whole, int]:
        """The vector, and the class to name it as, of which k copies do most harm."""
        moves = self.k * (self.queries @ vectors.T - LENGTH * HALF)
        best, found = np.inf, (vectors[0], 0)
        for column, vector in zip(moves.T, vectors, strict=True):
            for target in range(self.classes):
                moved = self.scores.copy()
                moved[:, target] += column
                if (accuracy := self.accuracy(moved)) < best:
                    best, found = accuracy, (vector, target)
        return found
