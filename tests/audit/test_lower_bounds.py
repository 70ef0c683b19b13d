"""Lower bounds on ε: exact false-alarm rates, and thresholds from other runs than are counted."""

import math

import numpy as np
import pytest
from scipy import stats

from prudent.audit.lower_bounds import (
    Thresholds,
    bound_of_scores,
    choose_thresholds,
    clopper_pearson,
    epsilon_of_guesses,
)


def false_alarms(runs: int, epsilon: float, delta: float, confidence: float) -> float:
    """The exact probability that randomised response with accidents δ is taken for worse than ε.

    The attacker always guesses; an accident tells him the coin.
    """
    right = np.arange(runs + 1)
    chance = delta + (1 - delta) / (1 + math.exp(-epsilon))
    bounds = epsilon_of_guesses(right, runs, runs, delta=delta, confidence=confidence)
    return float(np.sum(stats.binom.pmf(right, runs, chance)[bounds > epsilon]))


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 4.0])
@pytest.mark.parametrize("runs", [10, 2000])
def test_the_false_alarm_rate_is_exact(
    runs: int, epsilon: float, delta: float, confidence: float
) -> None:
    assert false_alarms(runs, epsilon, delta, confidence) <= 1 - confidence


def test_the_bound_of_guesses_is_not_idle() -> None:
    """A pure claim uses up nearly all of the rate; a bound that never alarms proves nothing."""
    assert false_alarms(5000, 1.0, 0.0, 0.95) > 0.04


def test_accidents_are_allowed_for() -> None:
    """An attacker who only guesses after an accident is always right, and (0.1, 0.01) allows it."""
    runs, delta = 2000, 0.01
    guesses = np.arange(runs + 1)
    bounds = epsilon_of_guesses(guesses, guesses, runs, delta=delta, confidence=0.95)
    alarm = np.sum(stats.binom.pmf(guesses, runs, delta)[bounds > 0.1])
    assert alarm <= 0.05
    # Without the allowance every accident would be an alarm.
    pure = epsilon_of_guesses(guesses, guesses, runs, delta=0.0, confidence=0.95)
    assert np.sum(stats.binom.pmf(guesses, runs, delta)[pure > 0.1]) > 0.9


def test_a_guess_is_worth_what_clopper_and_pearson_say() -> None:
    interval = stats.binomtest(731, 1000, alternative="greater").proportion_ci(0.95, "exact")
    bound = float(epsilon_of_guesses(731, 1000, 4000, delta=0.0, confidence=0.95))
    assert bound == pytest.approx(math.log(interval.low / (1 - interval.low)), rel=1e-9)


@pytest.mark.parametrize(("right", "guesses"), [(0, 0), (0, 9), (3, 9)])
def test_few_or_wrong_guesses_refute_nothing(right: int, guesses: int) -> None:
    assert epsilon_of_guesses(right, guesses, 100, delta=0.0, confidence=0.95) == 0


def test_clopper_and_pearson() -> None:
    low, high = clopper_pearson(3, 50, 0.025)
    interval = stats.binomtest(3, 50).proportion_ci(0.95, "exact")
    assert (low, high) == pytest.approx((interval.low, interval.high))
    assert clopper_pearson(0, 0, 0.1) == (0.0, 1.0)
    assert clopper_pearson(0, 5, 0.1)[0] == 0
    assert clopper_pearson(5, 5, 0.1)[1] == 1


def laplace_scores(seed: int, runs: int, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    present = draw.random(runs) < 0.5
    return present + draw.laplace(scale=1 / epsilon, size=runs), present


def alarms(audits: int, runs: int, *, snoop: bool = False) -> int:
    """How many audits of an exact claim, thresholds and all, end in a false alarm."""
    found = 0
    for seed in range(audits):
        scores, present = laplace_scores(seed, runs, 1.0)
        if snoop:
            thresholds, _ = choose_thresholds(scores, present, delta=0.0, confidence=0.5)
            bound = thresholds.bound(scores, present, delta=0.0, confidence=0.9)
        else:
            bound = bound_of_scores(scores, present, delta=0.0, confidence=0.9)
        found += bound.lower > 1.0
    return found


def test_no_more_false_alarms_than_stated() -> None:
    found = alarms(100, 300)
    assert stats.binomtest(found, 100, 0.1, alternative="greater").pvalue > 1e-3


def test_thresholds_of_the_counted_runs_would_cry_wolf() -> None:
    """The check above can fail: with thresholds chosen on the runs themselves it does."""
    found = alarms(100, 300, snoop=True)
    assert stats.binomtest(found, 100, 0.1, alternative="greater").pvalue < 1e-3


def test_thresholds_find_an_atom_and_both_sides() -> None:
    scores = np.repeat([-1.0, 0.0, 1.0], [300, 400, 300])
    present = np.concatenate([np.arange(300) < 30, np.arange(400) < 200, np.arange(300) < 270])
    thresholds, promise = choose_thresholds(scores, present, delta=0.0, confidence=0.95)
    assert thresholds == Thresholds(-1.0, 1.0)
    assert 0.8 < promise < 0.9
    found = thresholds.bound(scores, present, delta=0.0, confidence=0.95)
    assert (found.right, found.guesses) == (540, 600)
    nothing, _ = choose_thresholds([], [], delta=0.0, confidence=0.95)
    found = nothing.bound(scores, present, delta=0.0, confidence=0.95)
    assert (found.right, found.guesses, found.lower) == (0, 0, 0.0)
