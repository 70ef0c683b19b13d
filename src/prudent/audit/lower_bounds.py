"""Lower bounds on ε from runs with and without a record: what claims the runs refute.

Two bounds, each valid at every sample size:

**Guesses.** A fair coin decides for each run whether it sees the record. An attacker sees the
output and guesses, or abstains. If the mechanism is (ε, δ)-DP, its output is post-processing of
an answer that reveals the coin with probability δ and otherwise is right with probability
q = e^ε/(1 + e^ε) (Kairouz, Oh and Viswanath 2015). So given that a run revealed nothing and that
the attacker guessed, the guess is right with a probability of at most q, independently of all
other runs. At most k of N runs reveal the coin, except with probability P(Bin(N, δ) > k). Then the
chance of C right guesses out of K is at most P(Bin(K - k, q) >= C - k): replacing j <= k guesses
that were given away by right ones and dropping them leaves Bin(K - j, q), which is at most
k - j + Bin(K - k, q). The Clopper-Pearson bound on q follows, and with it one on ε.

**Errors.** With any numbers of runs with and without the record, (ε, δ)-DP says
TPR <= e^ε FPR + δ and 1 - FPR <= e^ε (1 - TPR) + δ for every test. Clopper-Pearson bounds on TPR
and FPR refute each δ that contradicts one of the two. Two rates share the confidence here.

Both assume that runs are independent, and that the test (a score and its thresholds) was fixed
before the runs that are counted. So thresholds are chosen on other runs, see `choose_thresholds`.
"""

import math

import attrs
import numpy as np
import numpy.typing as npt
from scipy import special, stats

from prudent import _validate

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_REVEALED_SHARE = 0.01  # of 1 - confidence, for more revealed coins than are allowed for
_MOST_THRESHOLDS = 100  # candidates on each side
_NO_COUNT = 1e-9  # in place of 0, where no interval is computed


def epsilon_of_guesses(
    right: npt.ArrayLike, guesses: npt.ArrayLike, runs: int, *, delta: float, confidence: float
) -> FloatArray:
    """Return the largest ε that this many right guesses refute, for numbers or arrays of them.

    The attacker abstained from the runs without a guess.

    Guarantee:
        If each run saw the record by a fair coin, and the mechanism is (ε, δ)-DP for this pair of
        data sets, the bound exceeds ε with a probability of at most 1 - confidence.
    """
    _validate.between(0, 1, ends="[)", delta=delta)
    _validate.between(0.5, 1, ends="[)", confidence=confidence)
    right, guesses = np.asarray(right, np.float64), np.asarray(guesses, np.float64)
    revealed, error = revealed_runs(runs, delta, 1 - confidence)
    sure = np.maximum(right - revealed, 0.0)
    with np.errstate(divide="ignore"):
        least = special.betaincinv(np.maximum(sure, 1.0), guesses - right + 1.0, error)
        epsilon = np.log(least) - np.log1p(-least)
    return np.where(sure > 0, np.maximum(epsilon, 0.0), 0.0)


def revealed_runs(runs: int, delta: float, error: float) -> tuple[int, float]:
    """Return how many runs may reveal the coin, and the error probability that is left.

    It depends on public numbers alone, so it is fixed before the runs.
    """
    if delta == 0:
        return 0, error
    used = _REVEALED_SHARE * error
    return int(stats.binom.isf(used, runs, delta)), error - used


def clopper_pearson(
    successes: npt.ArrayLike, trials: npt.ArrayLike, error: float
) -> tuple[FloatArray, FloatArray]:
    """Return bounds on probabilities, each of which fails with a probability of at most `error`."""
    hits = np.asarray(successes, np.float64)
    missed = np.asarray(trials, np.float64) - hits
    low = special.betaincinv(np.maximum(hits, _NO_COUNT), missed + 1, error)
    high = special.betaincinv(hits + 1, np.maximum(missed, _NO_COUNT), 1 - error)
    return np.where(hits > 0, low, 0.0), np.where(missed > 0, high, 1.0)


@attrs.frozen
class Bound:
    """A lower bound on ε, and the counts that it follows from."""

    lower: float  # the largest ε refuted
    runs: int  # the runs that were counted
    guesses: int  # the number of guesses
    right: int  # the number of right guesses


@attrs.frozen
class Thresholds:
    """What an attacker guesses from a score: without up to `low`, with from `high` on."""

    low: float  # the largest score that is taken for a run without the record
    high: float  # the smallest score that is taken for a run with it

    def bound(
        self, scores: FloatArray, present: BoolArray, *, delta: float, confidence: float
    ) -> Bound:
        """Return the bound from all of these runs, before which the thresholds were fixed."""
        says_with, says_without = scores >= self.high, scores <= self.low
        right = int(np.sum(says_with & present) + np.sum(says_without & ~present))
        guesses = int(np.sum(says_with) + np.sum(says_without))
        claim = {"delta": delta, "confidence": confidence}
        lower = epsilon_of_guesses(right, guesses, len(scores), **claim)
        return Bound(float(lower), len(scores), guesses, right)


def choose_thresholds(
    scores: npt.ArrayLike, present: npt.ArrayLike, *, delta: float, confidence: float
) -> tuple[Thresholds, float]:
    """Return thresholds that should refute much with more runs like these, and how much.

    Every pair of thresholds is rated by a bound that allows for the number of thresholds, so that a
    few lucky guesses do not win. The rating is approximate (Wilson's interval), and proves nothing.
    The runs given here must not be counted afterwards.
    """
    scores, present = np.asarray(scores, np.float64), np.asarray(present, bool)
    if not len(scores):
        return Thresholds(-math.inf, math.inf), 0.0
    values, total, hits = _candidates(scores), np.sort(scores), np.sort(scores[present])
    above, above_right = (len(ranked) - np.searchsorted(ranked, values) for ranked in (total, hits))
    below, below_wrong = (np.searchsorted(ranked, values, side="right") for ranked in (total, hits))
    # One more choice on each side: never to guess so.
    right = np.add.outer(np.append(below - below_wrong, 0), np.append(above_right, 0))
    guesses = np.add.outer(np.append(below, 0), np.append(above, 0))
    lows, highs = np.append(values, -math.inf), np.append(values, math.inf)
    revealed, error = revealed_runs(len(scores), delta, 1 - confidence)
    z = float(special.ndtri(1 - error / len(lows)))
    counted = np.maximum(guesses - revealed, 1)
    share, weight = np.maximum(right - revealed, 0) / counted, z * z / counted
    root = np.sqrt(share * (1 - share) * weight + weight**2 / 4)
    bounds = (share + weight / 2 - root) / (1 + weight)
    bounds = np.where(np.less.outer(lows, highs), bounds, 0.0)
    low, high = np.unravel_index(int(np.argmax(bounds)), bounds.shape)
    return Thresholds(float(lows[low]), float(highs[high])), float(bounds[low, high])


def _candidates(scores: FloatArray) -> FloatArray:
    """Scores to try as thresholds: evenly spread over the values and over the runs.

    So neither a value that many runs share nor a tail is missed.
    """
    lists = np.unique(scores), np.sort(scores)
    places = [
        np.linspace(0, len(ranked) - 1, _MOST_THRESHOLDS).round().astype(int) for ranked in lists
    ]
    return np.unique(np.concatenate([ranked[at] for ranked, at in zip(lists, places, strict=True)]))


def bound_of_scores(
    scores: npt.ArrayLike,
    present: npt.ArrayLike,
    *,
    delta: float,
    confidence: float,
    held_out: float = 0.25,
) -> Bound:
    """Return the bound from scores of runs that saw the record by a fair coin.

    High scores speak for the record. The coins, `present`, were drawn before the runs.

    Guarantee:
        That of `epsilon_of_guesses`: the thresholds are chosen on the first runs, a fraction
        `held_out` of them, and the others are counted.
    """
    scores, present = np.asarray(scores, np.float64), np.asarray(present, bool)
    first = math.ceil(_validate.between(0, 1, ends="()", held_out=held_out) * len(scores))
    claim = {"delta": delta, "confidence": confidence}
    thresholds, _ = choose_thresholds(scores[:first], present[:first], **claim)
    return thresholds.bound(scores[first:], present[first:], **claim)
