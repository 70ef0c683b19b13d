"""What other rules certify on the same codes of records. None of them is private.

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
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from prudent.certify.codes import SCALE, Codes
from prudent.certify.radius import Whole

RECORDS_RAMP = (0.1, 0.4)
"""Of the cosine to records, where that to landmarks says nothing about it."""

PARTS = 6000
_NEIGHBOURS = 10
_ROWS = 500

Decided = tuple[Whole, Whole]
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
    rows, winners = np.arange(len(votes)), votes.argmax(axis=1)
    earlier = np.arange(votes.shape[1]) < winners[:, None]
    leads = votes[rows, winners][:, None] - votes - earlier
    leads[rows, winners] = np.iinfo(np.int64).max
    return winners, leads.min(axis=1) // 2


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
    third = np.sort(
        np.where(
            (np.arange(votes.shape[1]) == winners[:, None])
            | (np.arange(votes.shape[1]) == others[:, None]),
            -1,
            votes,
        ),
        axis=1,
    )[:, -1]
    stays = np.maximum(votes[rows, winners] - third - 1, 0) // 2
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
    """The theorem of `radius` with each record in a cell of its own; rounded down."""
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
