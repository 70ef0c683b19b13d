"""Scores of the classes at a query, and how many records the largest one withstands.

Let N be a table of counts: N[c, l] is the number of records of class c in cell l, in each of T
tables, and n[c] the number of records of class c; both with whatever noise. A query x weighs each
cell by w(l) in [0, 1], which depends on x and public facts alone. The similarity of x and a record
is the mean weight of its T cells, and the score of class c is

    Σ over cells l of w(l) N[c, l] / T − n[c]/2,

the sum over the records of the class of their similarity − 1/2, and noise. The class with the
largest score is predicted, the first of them if there are several.

Theorem. Let m be the largest of |similarity − 1/2| over all records there can be; m <= 1/2. The
prediction a at x withstands r inserted or removed records, with the same noise, if for each other
class b the gap between the scores of a and b is more than r m, or is r m and a comes before b.

Proof. A record inserted into class c, or removed from it, moves the score of c by
±(similarity − 1/2), at most m in size, and no other score. So r records, n_c of them in class c,
change the gap between a and b by at most n_a m + n_b m <= r m. ∎

The radius is the largest such r. It is sharp: with one table some cell has |w − 1/2| = m, and r + 1
copies of a record in that cell, named as a (if w < 1/2) or as the nearest other class, change the
prediction. A changed record is one removed and one inserted, and counts twice.

Without the half a record could move a score by 1, only upwards; with it a record unlike the query
counts against its class, and radii double. No rule withstands more records than two classes have:
whoever can remove one class and insert it under the name of another can exchange their names.

All numbers here are whole: weights in steps of 1/STEPS, scores in units of 1/(2 · STEPS · T).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

STEPS = 1 << 12  # the weight 1, in steps
UNTOUCHABLE = int(np.iinfo(np.int64).max)  # the radius of a prediction that no record can move
Whole = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]
"""Weights of cells, one row per query: whole numbers from 0 to STEPS."""


def scores_of(weights: Weights, cells: Whole, totals: Whole, tables: int) -> Whole:
    """The score of each class at each query, exactly.

    Weights have one row per query, counts one per class.
    """
    half = STEPS * tables * totals
    largest = 2 * STEPS * int(np.abs(cells).sum(axis=1).max(initial=0))
    if largest < 1 << 53:  # then float64 is exact, and many times faster
        found = (weights.astype(np.float64) @ cells.T.astype(np.float64)).astype(np.int64)
    else:
        found = weights.astype(np.int64) @ cells.T
    return 2 * found - half


def moves_of(weights: Weights, sizes: Sequence[int]) -> Whole:
    """The most that one record can move a score at each query: m of the theorem."""
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    most = np.maximum.reduceat(weights, starts, axis=1).astype(np.int64).sum(axis=1)
    least = np.minimum.reduceat(weights, starts, axis=1).astype(np.int64).sum(axis=1)
    middle = STEPS * len(sizes)
    found: Whole = np.maximum(2 * most - middle, middle - 2 * least)
    return found


def decided(scores: Whole, moves: Whole) -> tuple[Whole, Whole]:
    """The number of the winning class at each query, and its radius."""
    rows, winners = np.arange(len(scores)), scores.argmax(axis=1)
    gaps = scores[rows, winners][:, None] - scores
    # A class that comes later must get ahead, one that comes earlier need only draw level.
    earlier = np.arange(scores.shape[1]) < winners[:, None]
    reach = (gaps - earlier) // np.maximum(moves, 1)[:, None]
    reach[rows, winners] = UNTOUCHABLE
    reach[moves == 0] = UNTOUCHABLE
    return winners, reach.min(axis=1)
