"""The real mechanism against its price: simulated on the worst data, enumerated on tiny."""

import math

import numpy as np
import pytest
from scipy import stats

from prudent.accounting import LaplaceTest, ProposeTestReleaseDpEvent
from prudent.accounting.losses.domination import branch_pair, dominating
from prudent.accounting.losses.pairs import Dominating
from tests.oracles.mechanism import TrimmedSum

RUNS = 150_000
CONFIDENCE = 1e-4  # of being wrong, each side
OTHERS = [0.0, 0.0, 0.0]


def bound_from_below(mechanism, epsilon, adding, seed, honest=None):
    """A confidence bound below δ(ε), from runs with and without the record.

    The event is where the likelihood ratio of the mechanism as claimed exceeds e^ε: the best one.
    """
    claimed = honest or mechanism
    generator = np.random.default_rng(seed)
    without, with_record = OTHERS, [*OTHERS, 1.0]
    first, second = (without, with_record) if adding else (with_record, without)

    def share(data):
        seen = mechanism.draw(data, RUNS, generator)
        ratio = claimed.density(first, *seen) > math.exp(epsilon) * claimed.density(second, *seen)
        return int(ratio.sum())

    high, low = share(first), share(second)
    least = stats.beta.ppf(CONFIDENCE, high, RUNS - high + 1)
    most = stats.beta.ppf(1 - CONFIDENCE, low + 1, RUNS - low)
    return least - math.exp(epsilon) * most


def price(mechanism, epsilon, adding):
    worst = dominating(mechanism.event)
    sampled = Dominating(worst.pairs, mechanism.rate)
    return sampled.profile(np.array([epsilon]), adding=adding)[0]


def propose(failure, sigma=1.0, scale=1.0):
    return ProposeTestReleaseDpEvent(sigma, 0.5, LaplaceTest(scale), failure)


# F = 0: no margin, only accidents (Case 1). F = 1 and a record of full size: Case 2.
CASE_ONE = TrimmedSum(propose(0.3, sigma=0.6, scale=50.0), allowed=0, rate=1.0)
CASE_TWO = TrimmedSum(propose(1e-4), allowed=1, rate=1.0)
SAMPLED_ONE = TrimmedSum(propose(0.3, sigma=0.6, scale=50.0), allowed=0, rate=0.5)
SAMPLED_TWO = TrimmedSum(propose(1e-4), allowed=1, rate=0.5)
SETTINGS = [
    pytest.param(CASE_ONE, 0.7, False, id="accident"),
    pytest.param(CASE_TWO, 0.7, False, id="margin"),
    pytest.param(CASE_TWO, 0.7, True, id="margin, adding"),
    pytest.param(SAMPLED_ONE, 0.4, False, id="sampled accident"),
    pytest.param(SAMPLED_TWO, 0.4, False, id="sampled margin"),
    pytest.param(SAMPLED_TWO, 0.3, True, id="sampled margin, adding"),
]


@pytest.mark.unhurried
@pytest.mark.parametrize(("mechanism", "epsilon", "adding"), SETTINGS)
def test_the_mechanism_costs_its_price_and_no_more(mechanism, epsilon, adding):
    paid = price(mechanism, epsilon, adding)
    seen = bound_from_below(mechanism, epsilon, adding, seed=11)
    assert 0.9 * paid <= seen <= paid


@pytest.mark.unhurried
@pytest.mark.parametrize(("mechanism", "epsilon", "adding"), SETTINGS)
def test_too_little_noise_is_caught(mechanism, epsilon, adding):
    broken = TrimmedSum(mechanism.event, mechanism.allowed, mechanism.rate, too_little_noise=0.85)
    assert bound_from_below(broken, epsilon, adding, 12, mechanism) > price(
        mechanism, epsilon, adding
    )


def test_a_test_without_noise_is_caught():
    broken = TrimmedSum(CASE_TWO.event, 1, 1.0, noisy_test=False)
    assert bound_from_below(broken, 0.7, False, 13, CASE_TWO) > price(CASE_TWO, 0.7, False)


@pytest.mark.parametrize("seed", range(8))
def test_tiny_data_sets_never_cost_more(seed):
    """All batches of up to four records, the joint density integrated (Errata 2.1, evidence)."""
    generator = np.random.default_rng(seed)
    count, allowed = int(generator.integers(1, 4)), int(generator.integers(0, 3))
    event = propose(
        10.0 ** generator.uniform(-6, -0.6), generator.uniform(0.5, 2), generator.uniform(0.5, 2)
    )
    mechanism = TrimmedSum(event, allowed, float(generator.choice([1.0, 0.5, 0.1])))
    others = generator.choice([-1, -0.5, -0.3, 0, 0.4, 0.5, 0.7, 1], count).tolist()
    record = float(generator.choice([-1.0, 1.0, 0.5]))
    margins, weights, outputs = mechanism.grid()
    seen = margins[:, None], (margins > mechanism.threshold)[:, None], outputs
    absent = mechanism.density(others, *seen)
    present = mechanism.density([*others, record], *seen)
    assert weights @ absent.sum(axis=1) == pytest.approx(1, abs=1e-6)
    # Only the branch: integrate the margin out on either side of the threshold.
    passes = (margins > mechanism.threshold) * weights
    sides = [np.stack([passes @ law, (weights - passes) @ law]) for law in (absent, present)]
    for reveals in ("margin", "branch", "monotone-branch"):
        shown = ProposeTestReleaseDpEvent(
            event.noise_multiplier, 0.5, event.test, event.failure, None, reveals
        )
        sampled = Dominating(dominating(shown).pairs, mechanism.rate)
        laws = (absent, present) if reveals == "margin" else sides
        volume = weights[:, None] if reveals == "margin" else 1.0
        for epsilon in (0.0, 0.3, 1.0, 2.0, 4.0):
            for adding in (False, True):
                first, second = laws if adding else laws[::-1]
                gap = np.maximum(0, first - math.exp(epsilon) * second)
                found = float((volume * gap).sum())
                assert found <= sampled.profile(np.array([epsilon]), adding=adding)[0] + 3e-6


def test_enumeration_would_notice_a_forgotten_direction():
    """A margin the record lowers costs more one way: the oriented pair must not be reversed."""
    event = ProposeTestReleaseDpEvent(3.0, 0.5, LaplaceTest(1.0), 0.05, None, "monotone-branch")
    epsilon = np.array([0.6])
    right = Dominating((branch_pair(event, 3, 2),)).profile(epsilon)[0]
    wrong = Dominating((branch_pair(event, 2, 3),)).profile(epsilon)[0]
    assert abs(right - wrong) > 1e-3
