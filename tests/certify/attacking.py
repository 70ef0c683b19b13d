"""Thousands of attacks with full knowledge on a fitted classifier."""

import attrs
import numpy as np
from scipy import sparse

from prudent.certify.attacks import Records
from prudent.certify.classifier import decided, scores_of
from prudent.certify.vectors import Pairing, Whole


@attrs.frozen
class Outcome:
    """What attacks achieved.

    Attributes:
        tries: How many there were.
        broken: Certified predictions that changed, over all tries.
        changed: Other predictions that changed.
        sharp: How many queries changed under copies of themselves, two more than they withstand.
    """

    tries: int
    broken: int
    changed: int
    sharp: int


def attacked(
    released: Whole,
    images: sparse.csr_array,
    queries: Whole,
    pairing: Pairing,
    *,
    each: int,
    most: int,
    radius_off: int = 0,
) -> Outcome:
    """Try `each` insertions aimed at each query, of up to `most` records: itself, others, nothing.

    Args:
        released: The sums.
        images: Vectors that the queries have as records.
        queries: Vectors of the queries.
        pairing: Of the feature map.
        each: Attacks per query.
        most: Most records of an attack, but for the first, which is as large as need be.
        radius_off: Added to every radius, to see that the test can fail.
    """
    classes, draw = len(released), np.random.default_rng(4)
    scores = scores_of(queries, released, pairing)
    before, radii = decided(scores)
    radii = radii + radius_off
    tries = broken = changed = sharp = 0
    records = sparse.vstack([images, 0 * images[[0]]], format="csr")
    nothing = records.shape[0] - 1
    # What one copy of each record adds to the scores of its class: scores are linear in the sums.
    apart = Records(records, np.arange(nothing + 1)).sums(nothing + 1, pairing)
    moves = scores_of(queries, apart, pairing)
    for index in range(len(queries)):
        runner_up = int(np.argsort(-scores[index], kind="stable")[1])
        for turn in range(each):
            k, name = int(draw.integers(1, most)), int(draw.integers(classes))
            inserted = int(draw.integers(len(queries)))
            if turn == 0:  # the sharpest
                k, name, inserted = int(radii[index]) + 2, runner_up, index
            elif turn % 3 == 0:
                name, inserted = int(before[index]), nothing
            after = scores.copy()
            after[:, name] += k * moves[:, inserted]
            if index == 0:  # the sums that the attack leaves have these scores
                added = Records(records[[inserted]], np.array([name])).sums(classes, pairing) * k
                assert np.array_equal(scores_of(queries, released + added, pairing), after)
            moved = decided(after)[0] != before
            tries += 1
            broken += int((moved & (radii >= k)).sum())
            changed += int((moved & (radii < k)).sum())
            sharp += int(turn == 0 and moved[index])
    return Outcome(tries, broken, changed, sharp)
