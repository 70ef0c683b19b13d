"""Bounds for many canaries in one run: brute force, a linear program, and exact mechanisms."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import optimize, special, stats

from prudent import ArgumentError
from prudent.audit.result import claimed_curve
from prudent.audit.training.one_run import (
    GaussianCurve,
    PlanCurve,
    epsilon_of_mu,
    epsilon_of_right_guesses,
    is_curve_refuted,
    p_value,
)
from prudent.training import Plan, Sum

LEVEL = 0.05


def point_curve(epsilon, delta):
    """The curve of all that is (ε, δ)-DP."""
    misses = functools.partial(claimed_curve, epsilon=epsilon, delta=delta)
    return SimpleNamespace(at=epsilon, delta=delta, misses=misses)


def largest_tail(right, guesses, canaries, curve):
    """The largest Pr[T >= right] of all laws that satisfy the inequalities, by a linear program.

    The curve is convex and piecewise linear; each of its lines is an inequality.
    """
    count = np.arange(guesses + 1)
    rows, limits = [], []
    for j in range(1, guesses + 1):
        hits = np.where(count >= j, count, 0) / canaries
        alarms = np.where(count >= j - 1, guesses - count, 0) / canaries
        rest = 1 - curve.delta
        for slope, level in (
            (np.exp(curve.at), rest - np.exp(curve.at)),
            (np.exp(-curve.at), np.exp(-curve.at) * (rest - 1)),
        ):
            rows.append(slope * hits - alarms)  # g(x) = slope x + level <= y
            limits.append(-level)
    found = optimize.linprog(
        -(count >= right).astype(float),
        A_ub=np.array(rows),
        b_ub=np.array(limits),
        A_eq=np.ones((1, guesses + 1)),
        b_eq=[1.0],
    )
    return -found.fun


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.0, 0.01), (3.0, 0.001)])
@pytest.mark.parametrize(("guesses", "canaries"), [(6, 6), (10, 25), (20, 200)])
def test_the_recursion_solves_the_linear_program(epsilon, delta, guesses, canaries):
    curve = point_curve(epsilon, delta)
    for right in range(guesses // 2, guesses + 1, 3):
        most = largest_tail(right, guesses, canaries, curve)
        for tail, refuted in ((most * 0.999, False), (most * 1.001, True)):
            if 0 < tail < 1:
                found = is_curve_refuted(right, guesses, canaries, curve, confidence=1 - tail)
                assert found == refuted


def likely(guesses, chance):
    """The numbers of right guesses that are not rarer than the level."""
    tails = stats.binom.sf(np.arange(guesses + 1) - 1, guesses, chance)
    return np.flatnonzero(tails >= LEVEL)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
def test_randomised_response_is_refuted_at_most_as_often_as_stated(epsilon, delta):
    """The tightest mechanism there is: it tells each coin with δ, else answers with e^ε odds."""
    guesses, chance = 60, delta + (1 - delta) * special.expit(epsilon)
    for right in likely(guesses, chance):
        assert p_value(right, guesses, guesses, epsilon=epsilon, delta=delta) >= LEVEL
        curve = point_curve(epsilon, delta)
        assert not is_curve_refuted(right, guesses, guesses, curve, confidence=1 - LEVEL)
    if not delta:  # and without δ the bound is exact
        rarer = likely(guesses, chance)[-1] + 1
        assert p_value(rarer, guesses, guesses, epsilon=epsilon) < LEVEL


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_a_gaussian_run_is_refuted_at_most_as_often_as_stated(mu):
    canaries, guesses, trials = 100, 20, 1000
    random = np.random.default_rng(3)
    coins = random.random((trials, canaries)) < 0.5
    odds = mu * (mu * coins + random.standard_normal(coins.shape) - mu / 2)
    chosen = np.argsort(-np.abs(odds), 1)[:, :guesses]
    right = np.take_along_axis((odds > 0) == coins, chosen, 1).sum(1)
    claims = GaussianCurve(mu), point_curve(epsilon_of_mu(mu, 1e-3), 1e-3)
    for curve in claims:
        refuted = {
            count: is_curve_refuted(int(count), guesses, canaries, curve, confidence=1 - LEVEL)
            for count in np.unique(right)
        }
        alarms = sum(refuted[count] for count in right)
        assert alarms <= stats.binom.isf(1e-6, trials, LEVEL)
    # A run with half the noise is refuted nearly always, so the test above can fail.
    assert is_curve_refuted(guesses, guesses, canaries, GaussianCurve(mu / 4), confidence=0.95)


def test_a_lower_bound_grows_with_right_guesses_and_falls_with_delta():
    bounds = [
        epsilon_of_right_guesses(right, 100, 1000, delta=1e-5, confidence=0.95)
        for right in (50, 70, 90, 100)
    ]
    assert bounds[0] == 0.0
    assert bounds == sorted(bounds)
    assert bounds[-1] > 3.0
    more = epsilon_of_right_guesses(90, 100, 1000, delta=1e-3, confidence=0.95)
    assert more < bounds[2]


def test_a_closed_form_is_below_the_curve_of_the_accountant():
    plan = Plan(sampling_rate=1.0, steps=4, aggregation=Sum(clip=1.0, noise_multiplier=4.0))
    alarms = np.linspace(0.01, 0.99, 25)
    exact, lines = GaussianCurve(0.5).misses(alarms), PlanCurve(plan).misses(alarms)
    assert np.all(lines <= exact + 1e-6)
    assert np.all(lines >= exact - 0.01)
    assert GaussianCurve(0.5).epsilon(1e-5) == pytest.approx(plan.epsilon(1e-5), abs=1e-3)


@pytest.mark.parametrize("counts", [(3, 2, 5), (1, 6, 5), (-1, 2, 5), (0, 0, 0)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(ArgumentError):
        p_value(*counts, epsilon=1.0)


def test_no_guesses_refute_nothing():
    assert p_value(0, 0, 10, epsilon=0.0, delta=1e-5) == 1.0
    assert epsilon_of_right_guesses(0, 0, 10, delta=1e-5, confidence=0.95) == 0.0
