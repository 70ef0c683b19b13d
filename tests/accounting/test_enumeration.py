"""The price of the real mechanism, enumerated on tiny data."""

import math

import numpy as np
import pytest

from prudent.accounting import LaplaceTest, ProposeTestReleaseDpEvent
from prudent.accounting.losses.domination import branch_pair, dominating
from prudent.accounting.losses.pairs import Dominating
from tests.oracles.mechanism import TrimmedSum


def propose(failure, sigma=1.0, scale=1.0):
    return ProposeTestReleaseDpEvent(sigma, 0.5, LaplaceTest(scale), failure)


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
