"""The event of any (ε, δ)-DP mechanism: what it costs alone and composed."""

import math

import numpy as np
import pytest

from prudent.accounting import (
    ApproximateDpEvent,
    PldAccountant,
    RdpAccountant,
)
from prudent.accounting.losses.domination import dominating

EVENT = ApproximateDpEvent(0.7, 1e-3)


def test_its_profile_is_the_largest_of_all_such_mechanisms() -> None:
    (pair,) = dominating(EVENT).pairs
    for epsilon in (0.0, 0.3, 0.7, 1.0, 5.0):
        # Kairouz, Oh and Viswanath (2015): δ + (1 - δ) max(0, e^ε₀ - e^ε)/(1 + e^ε₀).
        rest = max(0.0, math.exp(0.7) - math.exp(epsilon)) / (1 + math.exp(0.7))
        expected = 1e-3 + (1 - 1e-3) * rest
        assert float(pair.profile(np.array(epsilon))) == pytest.approx(expected, abs=1e-12)


def test_accountants_agree_on_a_composition() -> None:
    exact = PldAccountant().compose(EVENT, 4)
    assert exact.get_epsilon(0.004) <= 4 * 0.7
    assert exact.get_epsilon(0.0039) == math.inf  # everything is revealed more often than that
    assert 0 < exact.get_epsilon(0.05) <= RdpAccountant().compose(EVENT, 4).get_epsilon(0.05)


def test_without_delta_it_is_randomised_response() -> None:
    event = ApproximateDpEvent(0.7, 0.0)
    assert PldAccountant().compose(event).get_epsilon(0.0) == pytest.approx(0.7)


@pytest.mark.parametrize(("epsilon", "delta"), [(0, 0.1), (-1, 0.1), (1, 1), (1, -1e-9)])
def test_its_fields_are_checked(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match="Expected"):
        ApproximateDpEvent(epsilon, delta)
