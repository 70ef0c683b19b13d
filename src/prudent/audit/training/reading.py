"""Ways to turn scores into a lower bound on ε, chosen on pilot runs and fixed before the others.

Two bounds compete. *Guesses* (see `prudent.audit.lower_bounds`) counts right guesses on both sides
and suits releases that look alike with the canary and without. *Alarms* looks at high scores only:
(ε, δ)-DP says TPR <= e^ε FPR + δ, so Clopper-Pearson bounds on the two rates, each failing with
probability (1 - confidence)/2, refute every smaller ε. It suits sampled canaries, whose absence is
never certain.
"""

import attrs
import numpy as np
from scipy import special

from prudent.audit.lower_bounds import (
    BoolArray,
    Bound,
    FloatArray,
    Thresholds,
    choose_thresholds,
    epsilon_of_guesses,
)

_CANDIDATES = 400


@attrs.frozen
class Claim:
    """What is to be refuted, and how surely.

    Attributes:
        delta: δ of the claim.
        confidence: 1 minus the false-alarm rate.
    """

    delta: float
    confidence: float


@attrs.frozen
class Reading:
    """Thresholds on a score, and the bound that counts what is beyond them.

    Attributes:
        thresholds: When the attacker guesses.
        alarms: Whether the bound is that of alarms; else that of guesses.
    """

    thresholds: Thresholds
    alarms: bool = False

    def bound(self, scores: FloatArray, coins: BoolArray, claim: Claim) -> Bound:
        """The largest ε that runs with these scores refute."""
        right, guesses = self.thresholds.count(scores, coins)
        present = int(coins.sum())
        if self.alarms:
            groups = present, len(coins) - present
            lower = epsilon_of_alarms(right, guesses - right, *groups, claim)
        else:
            lower = epsilon_of_guesses(
                right, guesses, len(coins), delta=claim.delta, confidence=claim.confidence
            )
        return Bound(float(lower), len(coins), guesses, right, self.thresholds)


def epsilon_of_alarms(
    true: float | FloatArray,
    false: float | FloatArray,
    with_runs: float,
    without_runs: float,
    claim: Claim,
) -> FloatArray:
    """Return the largest ε that true and false alarms refute, for numbers or arrays of them.

    Guarantee:
        If the mechanism is (ε, δ)-DP and the test was fixed before the runs, the bound exceeds ε
        with a probability of at most 1 - confidence.
    """
    true, false = np.asarray(true, np.float64), np.asarray(false, np.float64)
    error = (1 - claim.confidence) / 2
    least = special.betaincinv(np.maximum(true, 1e-9), with_runs - true + 1, error)
    most = special.betaincinv(false + 1, np.maximum(without_runs - false, 1e-9), 1 - error)
    above = np.where(true > 0, least, 0.0) - claim.delta
    below = np.where(false < without_runs, most, 1.0)
    return np.asarray(np.log(np.maximum(above / below, 1.0)))


def best_reading(
    scores: FloatArray, coins: BoolArray, runs: int, claim: Claim, *, odds: bool
) -> tuple[Reading, float]:
    """The reading that should refute most, and about how much, from runs that are not counted.

    Args:
        scores: The scores of the pilot runs.
        coins: Whether each had the canary.
        runs: The number of runs that will be counted.
        claim: What is to be refuted.
        odds: Whether scores are the log-odds of an honest run. Then the pilot runs say how many
            guesses there will be, and the odds how many will be right: a few lucky guesses do not
            matter. A fault shows in the other reading, which is learned from the coins.
    """
    thresholds, share = choose_thresholds(
        scores, coins, delta=claim.delta, confidence=claim.confidence
    )
    found = [(Reading(thresholds), float(special.logit(max(share, 0.5))))]
    if odds:
        found += [_confident(scores, runs, claim), _alarming(scores, runs, claim)]
    return max(found, key=lambda each: each[1])


def _confident(scores: FloatArray, runs: int, claim: Claim) -> tuple[Reading, float]:
    """Guesses at large log-odds s, of which e^|s|/(1 + e^|s|) are right."""
    sizes, places, expected = _expected(np.abs(scores), runs)
    bounds = epsilon_of_guesses(
        expected,
        (places + 1) * runs / len(sizes),
        runs,
        delta=claim.delta,
        confidence=claim.confidence,
    )
    best = int(np.argmax(bounds))
    least = float(sizes[places[best]])
    return Reading(Thresholds(-least, least)), float(bounds[best])


def _alarming(scores: FloatArray, runs: int, claim: Claim) -> tuple[Reading, float]:
    """Alarms at high log-odds s, of which e^s/(1 + e^s) are true."""
    sizes, places, true = _expected(scores, runs)
    false = (places + 1) * runs / len(sizes) - true
    half = runs / 2
    true, false = np.minimum(true, half), np.minimum(false, half)
    bounds = epsilon_of_alarms(true, false, half, half, claim)
    best = int(np.argmax(bounds))
    thresholds = Thresholds(-np.inf, float(sizes[places[best]]))
    return Reading(thresholds, alarms=True), float(bounds[best])


def _expected(
    odds: FloatArray, runs: int
) -> "tuple[FloatArray, np.ndarray[tuple[int], np.dtype[np.intp]], FloatArray]":
    """Log-odds in descending order, places to cut them, and the right guesses expected there."""
    ordered = np.sort(odds)[::-1]
    places = np.unique(np.geomspace(1, len(ordered), _CANDIDATES).astype(np.intp)) - 1
    right = np.cumsum(special.expit(ordered))[places] * runs / len(ordered)
    return ordered, places, right
