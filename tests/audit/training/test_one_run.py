"""One run with many canaries: how much of the price it finds, and that an honest run stands."""

import numpy as np
import pytest
from scipy import special, stats

from prudent import ArgumentError
from prudent.accounting import GaussianTest
from prudent.audit.training.one_run import epsilon_of_right_guesses, one_run, p_value
from prudent.training import Plan, ProposeTestRelease, Sum, noise

pytestmark = pytest.mark.usefixtures("same_draws")


def plan(noise_multiplier, rate=1.0, steps=1):
    rule = Sum(clip=1.0, noise_multiplier=noise_multiplier)
    return Plan(sampling_rate=rate, steps=steps, aggregation=rule)


def test_one_run_finds_two_fifths_of_the_price():
    result = one_run(plan(1.0), delta=1e-5, canaries=20_000, guesses=480)
    assert 0.4 < result.share < 1
    assert not result.refuted
    assert result.runs == 20_000


def test_a_sampled_run_is_audited_too():
    result = one_run(plan(1.0, rate=0.5, steps=4), delta=1e-4, canaries=4_000)
    assert 0.2 < result.share < 1


def test_a_tenth_of_the_noise_is_found(monkeypatch):
    add = noise.HostNoise.add_
    monkeypatch.setattr(
        noise.HostNoise,
        "add_",
        lambda self, total, deviation, state: add(self, total, deviation / 10, state),
    )
    result = one_run(plan(2.0), delta=1e-5, canaries=2_000, guesses=500)
    assert result.refuted


def test_a_tested_sum_is_refused():
    rule = ProposeTestRelease(clip=1.0, propose=0.5, noise_multiplier=1.0, test=GaussianTest(4.0))
    with pytest.raises(ArgumentError, match="white_box"):
        one_run(Plan(sampling_rate=1.0, steps=1, aggregation=rule), delta=1e-5)


# The bound.

LEVEL = 0.05


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
    if not delta:  # and without δ the bound is exact
        rarer = likely(guesses, chance)[-1] + 1
        assert p_value(rarer, guesses, guesses, epsilon=epsilon) < LEVEL


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


@pytest.mark.parametrize("counts", [(3, 2, 5), (1, 6, 5), (-1, 2, 5), (0, 0, 0)])
def test_impossible_counts_are_refused(counts):
    with pytest.raises(ArgumentError):
        p_value(*counts, epsilon=1.0)


def test_no_guesses_refute_nothing():
    assert p_value(0, 0, 10, epsilon=0.0, delta=1e-5) == 1.0
    assert epsilon_of_right_guesses(0, 0, 10, delta=1e-5, confidence=0.95) == 0.0
