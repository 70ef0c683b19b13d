"""Attacks on a certified classifier by someone who knows everything, the noise included.

An attack inserts or removes k records and looks for the change that alters most predictions. Scores
are linear in the counts, so thousands of changes are tried without a fit; `certifying` then counts
the poisoned records anew, adds the same noise, and compares all predictions. Single predictions are
attacked with as many records as their radius says, and with one more.
"""

import functools
from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from prudent.certify.counts import STEPS, Counts, Weights, Whole, scores_of

_POOL = 200
_ROUNDS = 24
_HASTE = (0.03, 0.1, 0.3)

Real = npt.NDArray[np.float64]


@attrs.frozen(eq=False)
class Target:
    """What an attack knows: everything."""

    counts: Counts  # what was released
    sizes: tuple[int, ...]  # the cells of each table
    places: Whole  # the cells of the records, (records, tables)
    classes: Whole  # the number of the class of each record
    weights: Weights  # the weights of the queries
    truth: Whole  # the number of the right class of each query
    images: Whole  # the cells that the queries have as records

    @functools.cached_property
    def scores(self) -> Whole:
        """The scores at the queries."""
        counts = self.counts
        return scores_of(self.weights, counts.cells, counts.totals, counts.tables)

    def moves(self, places: Whole) -> Whole:
        """What one record in these cells adds to the score of its class, (queries, records)."""
        weight = sum(self.weights[:, column].astype(np.int64) for column in places.T)
        return np.asarray(2 * weight - STEPS * len(self.sizes))

    def extremes(self, row: npt.NDArray[np.float32]) -> tuple[Whole, Whole]:
        """The cell of each table with the largest of some numbers of cells, and the smallest."""
        starts = np.cumsum([0, *self.sizes[:-1]])
        tables = np.split(row, starts[1:])
        largest, smallest = (
            starts + np.array([find(cells) for cells in tables]) for find in (np.argmax, np.argmin)
        )
        return largest, smallest


@attrs.frozen(eq=False)
class Attack:
    """A change of records."""

    name: str  # what is done
    places: Whole  # the cells of the records, (kinds, tables)
    classes: Whole  # the class that each kind of record is named as
    times: Whole  # how many there are of each kind; negative: removed

    def __len__(self) -> int:
        return int(np.abs(self.times).sum())

    def applied(self, counts: Counts) -> Counts:
        """The counts after the attack."""
        cells, totals = counts.cells.copy(), counts.totals.copy()
        for column in self.places.T:
            np.add.at(cells, (self.classes, column), self.times)
        np.add.at(totals, self.classes, self.times)
        return attrs.evolve(counts, cells=cells, totals=totals)

    def poisoned(self, places: Whole, names: Whole) -> tuple[Whole, Whole]:
        """The cells and classes of records after the attack."""
        kept = np.ones(len(names), dtype=bool)
        gone = self.times < 0
        for place, name in zip(self.places[gone], self.classes[gone], strict=True):
            alike = np.flatnonzero(kept & (names == name) & (places == place).all(axis=1))
            kept[alike[:1]] = False
        times = np.maximum(self.times, 0)
        return (
            np.concatenate([places[kept], np.repeat(self.places, times, axis=0)]),
            np.concatenate([names[kept], np.repeat(self.classes, times)]),
        )


def best_attacks(target: Target, k: int) -> Iterator[Attack]:
    """The most harmful attack of each kind with k records.

    | kind | what is done |
    | --- | --- |
    | copies | k copies of one query, named as another class; all are valid inputs |
    | mixture | k queries of a class with small radii, named as another class |
    | removal | the k records of a class most similar to weak queries of it are removed |
    | aimed | cells and classes chosen one after the other, whether or not a record is in them |
    """
    scores = target.scores
    ranked = np.sort(scores, axis=1)
    right = scores.argmax(axis=1) == target.truth
    gaps = np.where(right, ranked[:, -1] - ranked[:, -2], -1)
    order = np.argsort(gaps, kind="stable")
    weak = order[gaps[order] >= 0]  # predicted right, the smallest gap first
    groups = [weak[target.truth[weak] == name] for name in range(scores.shape[1])]
    groups = [group[: max(20, len(group) // 5)] for group in groups if len(group)]

    pool = target.images[weak[:: max(1, len(weak) // _POOL)][:_POOL]]
    index, name = _best(scores, target.moves(pool) * k, target.truth)
    yield _inserted("copies", pool[[index]], name, k)

    mixed = [target.moves(target.images[group]).mean(axis=1) * k for group in groups]
    index, name = _best(scores, np.stack(mixed, axis=1), target.truth)
    yield _inserted("mixture", target.images[groups[index]], name, k)

    yield _removal(target, scores, groups, k)
    yield aimed(target, k)


def aimed(target: Target, k: int) -> Attack:
    """Insertion of k records whose cells and classes are chosen one by one to do most harm.

    In each round every class is offered, in each table, the cell that most raises it where it is
    close to winning, and the one that most lowers it where it wins; the offer after which the
    fewest predictions are right, softly counted, is taken. How softly depends on the haste, the
    share of k that a gap may have to count: several are tried.
    """
    plans = [_planned(target, k, haste) for haste in _HASTE]
    return min(plans, key=lambda plan: accuracy_after(target, plan))


def scores_after(target: Target, attack: Attack, queries: Whole | None = None) -> Whole:
    """The scores at all queries, or at some, after an attack: they are linear in the counts."""
    rows = np.arange(len(target.weights)) if queries is None else queries
    counts = target.counts
    none = attrs.evolve(counts, cells=0 * counts.cells, totals=0 * counts.totals)
    change = attack.applied(none)
    used = np.unique(attack.places)
    weights = target.weights[np.ix_(rows, used)]
    moved = scores_of(weights, change.cells[:, used], change.totals, counts.tables)
    scores: Whole = target.scores[rows] + moved
    return scores


def accuracy_after(target: Target, attack: Attack) -> float:
    """The accuracy on the queries after an attack."""
    return _accuracy(scores_after(target, attack), target.truth)


def changed_at(target: Target, query: int, records: int) -> bool:
    """Whether so many copies of one record, any vector there can be, change one prediction.

    The worst record is tried for each class: the one most like the query, named as another class,
    and the one least like it, named as the predicted class.
    """
    alike, unlike = target.extremes(target.weights[query])
    winner = target.scores[query].argmax()
    for name in range(target.scores.shape[1]):
        place = unlike if name == winner else alike
        attack = _inserted("copies", place[None], name, records)
        if scores_after(target, attack, np.array([query])).argmax() != winner:
            return True
    return False


def _planned(target: Target, k: int, haste: float) -> Attack:
    unit = STEPS * len(target.sizes)
    scores, rows = target.scores / (2.0 * unit), np.arange(len(target.truth))
    chosen: list[tuple[Whole, int, int]] = []
    for part in np.array_split(np.arange(k), min(k, _ROUNDS)):
        own, rank = scores[rows, target.truth], np.sort(scores, axis=1)
        rest = np.where(own == rank[:, -1], rank[:, -2], rank[:, -1])
        near = _soft((own - rest) / (haste * k))
        pull = near * (1 - near)  # large where the decision is close
        pulls = pull[:, None] * _soft((scores - rest[:, None]) / (haste * k))
        pulls[rows, target.truth] = -pull
        wanted = pulls.T.astype(np.float32) @ target.weights  # (classes, cells)
        best, taken = np.inf, (np.zeros(0, np.int64), 0, scores[:, 0])
        for name, row in enumerate(wanted):
            for offer in target.extremes(row):
                moved = scores[:, name] + len(part) * target.moves(offer[None])[:, 0] / (2.0 * unit)
                others = np.where(name == target.truth, rest, np.maximum(rest, moved))
                mine = np.where(name == target.truth, moved, own)
                if (left := float(_soft((mine - others) / (haste * k)).mean())) < best:
                    best, taken = left, (offer, name, moved)
        scores[:, taken[1]] = taken[2]
        chosen.append((taken[0], taken[1], len(part)))
    places, classes, times = zip(*chosen, strict=True)
    return Attack("aimed", np.stack(places), np.array(classes), np.array(times))


def _soft(values: Real) -> Real:
    """1/(1 + e⁻ᵛ)."""
    return np.asarray(0.5 * (1 + np.tanh(values / 2)), dtype=np.float64)


def _inserted(name: str, places: Whole, label: int, k: int) -> Attack:
    """As many as k records, in these cells in turn."""
    times = np.bincount(np.arange(k) % len(places), minlength=len(places))
    return Attack(name, places, np.full(len(places), label), times)


def _accuracy(scores: npt.NDArray[np.generic], truth: Whole) -> float:
    return float(np.mean(np.asarray(scores).argmax(axis=1) == truth))


def _best(scores: Whole, moves: npt.NDArray[np.generic], truth: Whole) -> tuple[int, int]:
    """The column of moves, and the class to name it as, that do most harm."""
    best, chosen = np.inf, (0, 0)
    for index, column in enumerate(np.asarray(moves, dtype=np.float64).T):
        for name in range(scores.shape[1]):
            moved = scores.astype(np.float64)
            moved[:, name] += column
            if (accuracy := _accuracy(moved, truth)) < best:
                best, chosen = accuracy, (index, name)
    return chosen


def _removal(target: Target, scores: Whole, groups: Sequence[Whole], k: int) -> Attack:
    """Of all classes, the removal of k records similar to its weak queries that does most harm."""

    def removed(rows: Whole) -> Attack:
        times = np.full(len(rows), -1)
        return Attack("removal", target.places[rows], target.classes[rows], times)

    best, chosen = np.inf, np.zeros(0, np.int64)
    for group in groups:
        members = np.flatnonzero(target.classes == target.truth[group[0]])
        mean = target.weights[group].mean(axis=0)
        alike = mean[target.places[members]].sum(axis=1)
        rows = members[np.argsort(-alike, kind="stable")[:k]]
        if (accuracy := accuracy_after(target, removed(rows))) < best:
            best, chosen = accuracy, rows
    return removed(chosen)
