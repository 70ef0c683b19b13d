"""What other rules certify, on the same codes of records. None of them is private.

A radius is the number of inserted or removed records that change no prediction, as in
`certify.counts`. Rules with parts divide the records by a checksum of each, so that one record is
in one part, and each of their classifiers is that of the nearest class mean.

* Deep Partition Aggregation (Levine and Feizi, 2021): a classifier for each part; the majority of
  them decides. One record changes one vote, so a lead of v votes withstands v/2 records.
* Finite Aggregation (Wang, Levine and Feizi, 2022): D times as many parts, and as many classifiers,
  each of D parts. One record changes D classifiers, and the radius is found from the parts that
  could change the lead most.
* Run-off election (Rezaei and others, 2023): the two classes with the most votes meet in a second
  round, in which each part votes for the one that it finds more likely. The radius is that of the
  second round and of who takes part in it.
* The k nearest records vote (Jia and others, 2022): one record moves a lead by two at most.
* All records within a cosine vote (the same): one record moves a lead by one.
* The ramp of the cosine to the records themselves, in place of counts at landmarks.
"""

import zlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from prudent.certify.counts import Whole, decided
from prudent.certify.landmarks import SCALE, Codes, products

# Chosen as the ramps of the maps were, on the same public digits: `benchmarks.certify_choice`.
PARTS, SPREAD = 4500, 4
DUEL_PARTS = 3000
NEIGHBOURS = 5000
COSINE = 0.25
RECORDS_RAMP = (0.15, 0.35)
_ROWS, _CLASSIFIERS = 500, 1000  # at a time
_SEED = 5

Decided: TypeAlias = tuple[Whole, Whole]
"""The winning class at each query, and its radius."""


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
    given = records, labels, queries, classes
    yield f"Deep Partition Aggregation, {PARTS:,} parts", by_votes(*elected(*given, PARTS))
    yield (
        f"Finite Aggregation, {PARTS:,} × {SPREAD} parts",
        by_spread_votes(*elected(*given, PARTS, SPREAD), SPREAD),
    )
    yield f"run-off election, {DUEL_PARTS:,} parts", by_run_off(*elected(*given, DUEL_PARTS))
    for k in (10, NEIGHBOURS):
        yield f"{k:,} nearest neighbours", nearest_neighbours(*given, k)
    yield f"records within cosine {COSINE:g}", within_cosine(*given, COSINE)
    low, high = ramp
    yield f"ramp of the cosine to the records, {low:g} to {high:g}", by_records(*given, ramp)


def spread_of(parts: int, spread: int) -> Whole:
    """By how much the number of a classifier is less than the number of each of its parts."""
    return np.random.RandomState(_SEED).permutation(parts * spread)[:spread]


def elected(
    records: Codes, labels: Whole, queries: Codes, classes: int, parts: int, spread: int = 1
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int32]]:
    """The vote of each classifier, (queries, classifiers), and how many prefer a class to another.

    A classifier that has seen no record of two classes prefers one of them by lot.
    """
    many = parts * spread
    part = np.array([zlib.crc32(np.ascontiguousarray(row).tobytes()) % many for row in records])
    owners = (part[:, None] - spread_of(parts, spread)) % many
    votes = np.zeros((len(queries), many), np.int8)
    duels = np.zeros((len(queries), classes, classes), np.int32)
    lots = np.random.RandomState(_SEED)
    for first in range(0, many, _CLASSIFIERS):
        count = min(_CLASSIFIERS, many - first)
        seen, place = np.nonzero((owners >= first) & (owners < first + count))
        sums = np.zeros((classes, count, records.shape[1]), np.float32)
        np.add.at(sums, (labels[seen], owners[seen, place] - first), records[seen])
        norms = np.linalg.norm(sums, axis=2, keepdims=True)
        means = (sums / np.maximum(norms, 1e-6)).reshape(classes * count, -1)
        absent = (norms[:, :, 0] == 0).ravel()
        lot = -2 * SCALE - lots.rand(int(absent.sum())).astype(np.float32)
        for start in range(0, len(queries), _ROWS):
            rows = slice(start, start + _ROWS)
            cosines = queries[rows] @ means.T
            cosines[:, absent] = lot
            cosines = cosines.reshape(-1, classes, count)
            votes[rows, first : first + count] = cosines.argmax(axis=1)
            for name in range(classes if spread == 1 else 0):
                for other in range(name + 1, classes):
                    ahead = (cosines[:, name] >= cosines[:, other]).sum(axis=1)
                    duels[rows, name, other] += ahead
                    duels[rows, other, name] += count - ahead
    return votes, duels


def _counted(votes: npt.NDArray[np.integer[Any]], classes: int) -> Whole:
    return np.stack([(votes == name).sum(axis=1) for name in range(classes)], axis=1)


def by_votes(votes: npt.NDArray[np.int8], duels: npt.NDArray[np.int32]) -> Decided:
    """The majority, and how many records it withstands: each moves a lead by two at most."""
    return decided(_counted(votes, duels.shape[1]), np.full(len(votes), 2))


def by_spread_votes(
    votes: npt.NDArray[np.int8], duels: npt.NDArray[np.int32], spread: int
) -> Decided:
    """The majority, and how many parts must change for another class to win.

    A part takes from the lead over a class at most 2 for each of its classifiers that votes for the
    winner, 1 for each that votes for neither, and nothing for the others.
    """
    counts = _counted(votes, duels.shape[1])
    winners, radii = counts.argmax(axis=1), np.full(len(votes), np.iinfo(np.int64).max)
    offsets = spread_of(votes.shape[1] // spread, spread)
    values = np.arange(2 * spread, -1, -1)
    for query, (row, winner) in enumerate(zip(votes, winners, strict=True)):
        for other in range(counts.shape[1]):
            if other == winner:
                continue
            taken = np.ones(len(row), np.int64) + (row == winner) - (row == other)
            most = sum(np.roll(taken, offset) for offset in offsets)
            often = np.bincount(most, minlength=2 * spread + 1)[::-1]
            needed = counts[query, winner] - counts[query, other] + (other > winner)
            for value, times in zip(values, often, strict=True):
                if value * times >= needed or not value:
                    break
                needed -= value * times
            reach = often[values > value].sum() + (-(-needed // value) if value else 0) - 1
            radii[query] = min(radii[query], reach)
    return winners, np.maximum(radii, 0)


def by_run_off(votes: npt.NDArray[np.int8], duels: npt.NDArray[np.int32]) -> Decided:
    """The winner of the second round, and a number of records that change neither round.

    The winner stays if no two classes get ahead of it in the first round, and if it beats whoever
    can become the other of the second: a class gets there after enough records have moved votes
    from the present one to it. A vote that moves from the winner to a class takes two from the lead
    over this class and one from the lead over the others.
    """
    counts = _counted(votes, duels.shape[1])
    order = np.argsort(-counts, axis=1, kind="stable")
    first, second = order[:, 0], order[:, 1]
    rows = np.arange(len(counts))
    ahead = duels[rows, first, second] >= duels[rows, second, first]
    winners = np.where(ahead, first, second)
    others = np.where(ahead, second, first)
    radii = np.full(len(counts), np.iinfo(np.int64).max)
    for name in range(counts.shape[1]):
        lead = duels[rows, winners, name].astype(np.int64) - duels[rows, name, winners]
        beaten = np.maximum(lead - 1, 0) // 2  # records after which it may lose the duel
        swap = np.maximum(counts[rows, others] - counts[:, name] - 1, 0) // 2  # or not get there
        allowed = np.where(name == others, beaten, np.maximum(beaten, swap))
        radii = np.where(name == winners, radii, np.minimum(radii, allowed))
    leads = (
        counts[rows, winners][:, None] - counts + (np.arange(counts.shape[1]) > winners[:, None])
    )
    leads[rows, winners] = np.iinfo(np.int32).max
    leads.sort(axis=1)
    gone = np.maximum(-(-leads[:, 1] // 2), -(-(leads[:, 0] + leads[:, 1]) // 3))
    return winners, np.minimum(radii, np.maximum(gone - 1, 0))


def nearest_neighbours(
    records: Codes, labels: Whole, queries: Codes, classes: int, k: int
) -> Decided:
    """The majority of the nearest records; one record moves a lead by two at most."""
    votes, k = np.zeros((0, classes), np.int64), min(k, len(records) - 1)
    for found in products(queries, records, _ROWS):
        near = labels[np.argpartition(-found, k, axis=1)[:, :k]]
        votes = np.concatenate([votes, _counted(near, classes)])
    return decided(votes, np.full(len(votes), 2))


def within_cosine(
    records: Codes, labels: Whole, queries: Codes, classes: int, cosine: float
) -> Decided:
    """The majority of the records within a cosine; one record moves a lead by one."""
    votes, members = np.zeros((0, classes), np.int64), np.eye(classes, dtype=np.float32)[labels]
    for found in products(queries, records, _ROWS):
        near = (found > cosine * SCALE * SCALE).astype(np.float32)
        votes = np.concatenate([votes, (near @ members).astype(np.int64)])
    return decided(votes, np.ones(len(votes), np.int64))


def by_records(
    records: Codes, labels: Whole, queries: Codes, classes: int, ramp: tuple[float, float]
) -> Decided:
    """The theorem of `counts` with each record in a cell of its own; rounded down."""
    low, high = (SCALE * SCALE * cosine for cosine in ramp)
    scores, sizes = np.zeros((0, classes)), np.bincount(labels, minlength=classes)
    for found in products(queries, records, _ROWS):
        weights = np.clip((found - low) / (high - low), 0, 1)
        own = [weights[:, labels == name].sum(axis=1, dtype=np.float64) for name in range(classes)]
        scores = np.concatenate([scores, np.stack(own, axis=1) - sizes / 2])
    ranked = np.sort(scores, axis=1)
    gaps = ranked[:, -1] - ranked[:, -2] - 1e-6 * len(records)
    return scores.argmax(axis=1), np.maximum(np.ceil(2 * gaps) - 1, 0).astype(np.int64)
