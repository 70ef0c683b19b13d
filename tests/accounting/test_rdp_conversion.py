"""The conversion from Rényi divergence to (ε, δ) of Balle et al. and Canonne et al. (2020)."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prudent.accounting.losses.moments import gaussian_epsilon, rdp_to_epsilon_balle
from tests.raising import refused
from tests.tiers import examples


@pytest.mark.unhurried
@examples(24)
@given(
    st.lists(st.floats(0.01, 1), min_size=3, max_size=5),
    st.lists(st.floats(0.01, 1), min_size=5, max_size=5),
    st.floats(1.02, 40),
    st.floats(0.001, 0.5),
)
def test_it_holds_for_any_discrete_pair(first, second, order, delta):
    p = np.array(first) / sum(first)
    q = np.array(second[: p.size]) / sum(second[: p.size])
    rdp = max(0.0, math.log(np.sum(p**order * q ** (1 - order))) / (order - 1))
    epsilon = rdp_to_epsilon_balle(order, rdp, delta)
    assert np.maximum(p - math.exp(epsilon) * q, 0).sum() <= delta * (1 + 1e-12)


@pytest.mark.parametrize("sigma", [0.5, 1, 4, 30])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 0.1])
def test_the_gaussian_curve_exceeds_the_exact_epsilon(sigma, delta):
    orders = np.linspace(1.05, 80, 200)
    found = rdp_to_epsilon_balle(orders, orders / (2 * sigma**2), delta)
    assert found >= gaussian_epsilon(sigma, delta)


def test_the_closed_form():
    assert rdp_to_epsilon_balle(3, 0.5, 1e-4) == pytest.approx(
        0.5 + math.log(2 / 3) - (math.log(1e-4) + math.log(3)) / 2
    )


def test_the_best_order_wins_infinite_orders_are_skipped_and_nothing_is_negative():
    alone = rdp_to_epsilon_balle(8, 0.1, 1e-5)
    several = rdp_to_epsilon_balle([2, 8, 16], [0.1, 0.1, math.inf], 1e-5)
    assert several == pytest.approx(alone, rel=1e-12)
    assert rdp_to_epsilon_balle([2, 3], [math.inf, math.inf], 1e-5) == math.inf
    assert rdp_to_epsilon_balle([2, 1e4], [0.0, 0.0], 0.9) < 2e-5
    assert rdp_to_epsilon_balle(50, 0.0, 0.99) >= 0


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((1, 0.1, 1e-5), "order"), ((2, -0.1, 1e-5), "rdp"), ((2, math.nan, 1e-5), "rdp"),
     ((2, 0.1, 0), "delta"), ((2, 0.1, 1), "delta"), (([], [], 1e-5), "order")],
)  # fmt: skip
def test_bad_arguments_are_named(arguments, name):
    with refused(name):
        rdp_to_epsilon_balle(*arguments)
