"""Attacks on a certified classifier by someone who knows everything, the noise included.

An attack inserts or removes k records. It knows the records, the feature map, the noise and the
queries, and looks for the change that alters most predictions. Scores are linear in the sums, so an
attack can try thousands of changes without training; `experiment` then trains on the poisoned
records, with the same noise, and compares all predictions.
"""

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
from scipy import sparse

from prudent.certify.classifier import MOVE, CertifiedClassifier, constant_of, scores_of
from prudent.certify.features import FeatureMap
from prudent.certify.vectors import LENGTH, Pairing, Whole
from prudent.release.noise import Law, Noise, SecureNoise

_POOL = 100
_PARTS = 20  # in which queries are compared with records, to save memory
_ROUNDS = 24
_PLANNED = 2000  # queries that an aimed attack looks at while it chooses
_HASTE = (0.03, 0.1, 0.3)


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

    def integer(self, bound: int) -> int:
        """See `Noise`."""
        return self._source.integer(bound)

    def of_value(self, law: Law, scale: float, size: int) -> list[int]:
        """See `Noise`."""
        key = law, scale, size
        if key not in self._drawn:
            self._drawn[key] = self._source.of_value(law, scale, size)
        return self._drawn[key]


class Stored:
    """Vectors of records that were computed beforehand: a record is the number of its row.

    Args:
        like: The map that computed them.
        vectors: On the lattice, (records, width).
    """

    def __init__(self, like: FeatureMap, vectors: sparse.csr_array) -> None:
        self.name, self.width, self.digest = like.name, like.width, like.digest
        self.pairing, self.vectors = like.pairing, vectors

    def records(self, rows: npt.NDArray[np.generic]) -> npt.ArrayLike:
        """The vectors with these numbers."""
        dense: Whole = self.vectors[rows.astype(np.int64)].toarray()
        return dense / LENGTH

    queries = records


@attrs.frozen(eq=False)
class Records:
    """Records as lattice vectors, with the index of the class of each."""

    vectors: sparse.csr_array
    classes: npt.NDArray[np.int64]

    def sums(self, classes: int, pairing: Pairing) -> Whole:
        """The sums that these records add to the released ones."""
        shape = classes, len(self.classes)
        ones = np.ones(len(self.classes), dtype=np.int64)
        member = sparse.csr_array((ones, (self.classes, np.arange(shape[1]))), shape=shape)
        counts = np.bincount(self.classes, minlength=classes) * constant_of(pairing)
        return np.column_stack([(member @ self.vectors).toarray(), counts])

    def fitted(self, like: CertifiedClassifier, features: FeatureMap, noise: Noise) -> Whole:
        """What a classifier trained on these records releases, with the budget of another."""
        stored = Stored(features, self.vectors)
        classes = len(like.classes_)
        model = CertifiedClassifier(stored, classes, like.epsilon, like.delta, noise=noise)
        return model.fit(np.arange(len(self.classes)), self.classes).released_


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

    def sums(self, target: "Target") -> Whole:
        """What the attack adds to the released sums."""
        classes, pairing = len(target.released), target.pairing
        removed = target.records
        gone = Records(removed.vectors[self.removed], removed.classes[self.removed])
        return self.inserted.sums(classes, pairing) - gone.sums(classes, pairing)

    def applied(self, records: Records) -> Records:
        """The poisoned records."""
        kept = np.ones(len(records.classes), dtype=bool)
        kept[self.removed] = False
        return Records(
            sparse.vstack([records.vectors[kept], self.inserted.vectors], format="csr"),
            np.concatenate([records.classes[kept], self.inserted.classes]),
        )


@attrs.frozen(eq=False)
class Target:
    """What an attack knows: everything.

    Attributes:
        records: The records of the fit.
        released: What it released.
        queries: The vectors of the queries.
        images: Vectors that the queries would have as records.
        truth: The index of the right class of each query.
        pairing: Of the feature map.
    """

    records: Records
    released: Whole
    queries: Whole
    images: sparse.csr_array
    truth: npt.NDArray[np.int64]
    pairing: Pairing

    @property
    def scores(self) -> Whole:
        """The scores at the queries."""
        return scores_of(self.queries, self.released, self.pairing)


def best_attacks(target: Target, k: int) -> Iterator[Attack]:
    """The most harmful attack of each kind with k records.

    | kind | what is done |
    | --- | --- |
    | copies | k copies of one query, named as another class; all are valid inputs |
    | mixture | k queries of a class with small radii, named as another class |
    | nothing | k zero vectors, named as a class: they lower its score at every query |
    | removal | the k records of a class most similar to weak queries of it are removed |
    | aimed | vectors chosen one after the other, whether or not a record has them; see `aimed` |
    """
    scores = target.scores
    weak = _weakest(scores, target.truth)
    groups = [weak[target.truth[weak] == each] for each in range(scores.shape[1])]
    groups = [group[: max(20, len(group) // 5)] for group in groups if len(group)]
    none = np.zeros(0, dtype=np.int64)

    pool = target.images[weak[:: max(1, len(weak) // _POOL)][:_POOL]]
    index, name = _best(target, scores, pool, k)
    yield Attack("copies", _repeated(pool[[index]], name, k), none)

    means = sparse.csr_array([target.images[group].mean(axis=0) for group in groups])
    index, name = _best(target, scores, means, k)
    yield Attack("mixture", _repeated(target.images[groups[index]], name, k), none)

    zero = sparse.csr_array((1, target.images.shape[1]), dtype=np.int64)
    index, name = _best(target, scores, zero, k)
    yield Attack("nothing", _repeated(zero, name, k), none)

    yield Attack("removal", _repeated(zero, 0, 0), _removal(target, scores, groups, k))

    yield aimed(target, k)


def aimed(target: Target, k: int) -> Attack:
    """Insertion of k records whose vectors and classes are chosen one by one to do most harm.

    Any vector that the pairing allows may be inserted, whether or not a record has it, so whoever
    inserts records has fewer to choose from. In each round every class is offered the zero vector,
    which lowers it at all queries, and the vector that most raises it where it is close to winning;
    the offer after which the fewest predictions are right, softly counted, is taken. How softly
    depends on the haste, the share of k that a gap may have to count: several are tried.
    """
    step = max(1, len(target.truth) // _PLANNED)
    seen = attrs.evolve(target, queries=target.queries[::step], truth=target.truth[::step])
    best, chosen = np.inf, _Plan([0 * target.queries[0]], [0], [0]).attack
    for haste in _HASTE:
        attack = _planned(seen, k, haste).attack
        released = target.released + attack.sums(target)
        moved = scores_of(target.queries, released, target.pairing)
        if (accuracy := _accuracy(moved, target.truth)) < best:
            best, chosen = accuracy, attack
    return chosen


@attrs.frozen(eq=False)
class _Plan:
    """Vectors to insert, the class of each, and how often."""

    vectors: list[Whole]
    names: list[int]
    counts: list[int]

    @property
    def attack(self) -> Attack:
        """The insertion of these vectors."""
        rows = np.repeat(np.arange(len(self.counts)), self.counts)
        vectors = sparse.csr_array(np.array(self.vectors))[rows]
        names = np.array(self.names, dtype=np.int64)[rows]
        return Attack("aimed", Records(vectors, names), np.zeros(0, dtype=np.int64))


def _planned(target: Target, k: int, haste: float) -> _Plan:
    """The choices of `aimed`, made on the queries of a target."""
    unit = 2.0 * MOVE
    queries = (target.queries / LENGTH).astype(np.float32)
    scores, rows = target.scores / unit, np.arange(len(queries))
    plan = _Plan([], [], [])
    for part in np.array_split(np.arange(k), min(k, _ROUNDS)):
        size, own = len(part), scores[rows, target.truth]
        rank = np.sort(scores, axis=1)
        rest = np.where(own == rank[:, -1], rank[:, -2], rank[:, -1])
        near = _soft((own - rest) / (haste * k))
        pull = near * (1 - near)  # large where the decision is close
        pulls = pull[:, None] * _soft((scores - rest[:, None]) / (haste * k))
        pulls[rows, target.truth] = 0
        directions = (queries.T @ pulls.astype(np.float32)).T.astype(np.float64)
        offers = [target.pairing.nearest(each) for each in directions]
        likes = queries @ (np.array(offers).T / LENGTH).astype(np.float32)
        best, taken = np.inf, (0, np.zeros(len(rows)), offers[0])
        for name, offer in enumerate(offers):
            for like, vector in ((likes[:, name], offer), (np.zeros(len(rows)), 0 * offer)):
                moved = scores[:, name] + size * (like - 0.5)
                others = np.where(name == target.truth, rest, np.maximum(rest, moved))
                mine = np.where(name == target.truth, moved, own)
                if (left := float(_soft((mine - others) / (haste * k)).mean())) < best:
                    best, taken = left, (name, moved, vector)
        scores[:, taken[0]] = taken[1]
        plan.names.append(taken[0])
        plan.vectors.append(taken[2])
        plan.counts.append(size)
    return plan


def _soft(values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """1/(1 + e⁻ᵛ)."""
    return np.asarray(0.5 * (1 + np.tanh(values / 2)), dtype=np.float64)


def _weakest(scores: Whole, truth: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Indices of queries that are predicted right, the smallest gap first."""
    ranked = np.sort(scores, axis=1)
    gaps = np.where(scores.argmax(axis=1) == truth, ranked[:, -1] - ranked[:, -2], -1)
    order = np.argsort(gaps, kind="stable")
    return order[gaps[order] >= 0]


def _repeated(vectors: sparse.csr_array, name: int, k: int) -> Records:
    """As many as k records, taken from the rows in turn."""
    return Records(vectors[np.arange(k) % vectors.shape[0]], np.full(k, name, dtype=np.int64))


def _accuracy(scores: npt.NDArray[Any], truth: npt.NDArray[np.int64]) -> float:
    return float(np.mean(scores.argmax(axis=1) == truth))


def _best(target: Target, scores: Whole, vectors: sparse.csr_array, k: int) -> tuple[int, int]:
    """The row of vectors, and the class to name it as, of which k copies do most harm."""
    likes = [vectors @ part.T for part in np.array_split(target.queries, _PARTS)]
    moves = k * (np.concatenate(likes, axis=1).astype(np.float64) - MOVE)
    best, found = np.inf, (0, 0)
    for index, row in enumerate(moves):
        for name in range(scores.shape[1]):
            moved = scores.astype(np.float64)
            moved[:, name] += row
            if (accuracy := _accuracy(moved, target.truth)) < best:
                best, found = accuracy, (index, name)
    return found


def _removal(
    target: Target, scores: Whole, groups: list[npt.NDArray[np.int64]], k: int
) -> npt.NDArray[np.int64]:
    """Of all classes, the removal of k records similar to its weak queries that does most harm."""
    worst, chosen = _accuracy(scores, target.truth), np.zeros(0, dtype=np.int64)
    for group in groups:
        name = target.truth[group[0]]
        members = np.flatnonzero(target.records.classes == name)
        alike = target.records.vectors[members] @ target.queries[group].mean(axis=0)
        removed = members[np.argsort(-alike, kind="stable")[:k]]
        gone = Records(target.records.vectors[removed], target.records.classes[removed])
        sums = gone.sums(scores.shape[1], target.pairing)
        moved = scores - scores_of(target.queries, sums, target.pairing)
        if (accuracy := _accuracy(moved, target.truth)) < worst:
            worst, chosen = accuracy, removed
    return chosen
