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

    def bound(
        self, scores: FloatArray, coins: BoolArray, claim: Claim, *, scale: float = 1.0
    ) -> Bound:
        """The largest ε refuted by runs with these scores, or by `scale` times as many alike."""
        right, guesses = self.thresholds.count(scores, coins)
        present = int(coins.sum())
        if self.alarms:
            groups = scale * present, scale * (len(coins) - present)
            lower = epsilon_of_alarms(scale * right, scale * (guesses - right), *groups, claim)
        else:
            lower = epsilon_of_guesses(
                scale * right,
                scale * guesses,
                round(scale * len(coins)),
                delta=claim.delta,
                confidence=claim.confidence,
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


def readings(
    scores: FloatArray, coins: BoolArray, runs: int, claim: Claim, *, odds: bool
) -> list[Reading]:
    """Promising readings for `runs` runs, found on pilot runs that are not counted.

    Args:
        scores: The scores of the pilot runs.
        coins: Whether each had the canary.
        runs: The number of runs that will be counted.
        claim: What is to be refuted.
        odds: Whether scores are the log-odds of an honest run.
    """
    learned, _ = choose_thresholds(scores, coins, delta=claim.delta, confidence=claim.confidence)
    found = [Reading(learned), Reading(Thresholds(-np.inf, learned.high), alarms=True)]
    if odds:
        found += [_confident(scores, runs, claim), _alarming(scores, runs, claim)]
    return found


def _confident(scores: FloatArray, runs: int, claim: Claim) -> Reading:
    """Guesses at large log-odds s, of which e^|s|/(1 + e^|s|) are right.

    So the coins of the pilot runs are not needed, and a few lucky guesses do not matter.
    """
    sizes, places, expected = _expected(np.abs(scores), runs)
    bounds = epsilon_of_guesses(
        expected,
        (places + 1) * runs / len(sizes),
        runs,
        delta=claim.delta,
        confidence=claim.confidence,
    )
    least = float(sizes[places[int(np.argmax(bounds))]])
    return Reading(Thresholds(-least, least))


def _alarming(scores: FloatArray, runs: int, claim: Claim) -> Reading:
    """Alarms at high log-odds s, of which e^s/(1 + e^s) are true."""
    sizes, places, true = _expected(scores, runs)
    false = (places + 1) * runs / len(sizes) - true
    bounds = epsilon_of_alarms(true, false, runs / 2, runs / 2, claim)
    least = float(sizes[places[int(np.argmax(bounds))]])
    return Reading(Thresholds(-np.inf, least), alarms=True)


def _expected(
    odds: FloatArray, runs: int
) -> "tuple[FloatArray, np.ndarray[tuple[int], np.dtype[np.intp]], FloatArray]":
    """Log-odds in descending order, places to cut them, and the expected right guesses up to each."""
    ordered = np.sort(odds)[::-1]
    places = np.unique(np.geomspace(1, len(ordered), _CANDIDATES).astype(np.intp)) - 1
    right = np.cumsum(special.expit(ordered))[places] * runs / len(ordered)
    return ordered, places, right
