import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special

from prudent.accounting.losses.moments import gaussian_epsilon, rdp_to_epsilon_balle
from prudent_lab.paper.conversions import rdp_to_epsilon_classic, rdp_to_epsilon_optimal
from tests.raising import refused
from tests.tiers import examples

CONVERSIONS = [rdp_to_epsilon_classic, rdp_to_epsilon_balle, rdp_to_epsilon_optimal]


def largest_epsilon(order, rdp, delta):
    """Brute force over two-point pairs: the largest log((p - δ)/q) with divergence `rdp`."""

    def log_moment(p_logit, q_logit):
        return np.logaddexp(
            order * special.log_expit(p_logit) + (1 - order) * special.log_expit(q_logit),
            order * special.log_expit(-p_logit) + (1 - order) * special.log_expit(-q_logit),
        )

    def epsilon(p_logit):
        """Best ε at this p: the smallest q the divergence leaves."""
        q_logit = optimize.brentq(
            lambda y: log_moment(p_logit, y) - (order - 1) * rdp, p_logit - 800, p_logit, xtol=1e-13
        )
        return math.log(special.expit(p_logit) - delta) - special.log_expit(q_logit)

    grid = np.linspace(special.logit(delta) + 1e-6, 30, 60)
    values = [epsilon(p) for p in grid]
    best = int(np.argmax(values))
    refined = optimize.minimize_scalar(
        lambda p: -epsilon(p),
        bounds=(grid[max(best - 1, 0)], grid[min(best + 1, 59)]),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return max(0.0, -refined.fun, values[best])


@pytest.mark.parametrize("order", [1.05, 2, 7.5, 60])
@pytest.mark.parametrize("rdp", [0.01, 0.7, 5])
@pytest.mark.parametrize("delta", [1e-6, 0.02, 0.4])
def test_optimal_is_attained_by_a_two_point_pair(order, rdp, delta):
    brute = largest_epsilon(order, rdp, delta)
    found = rdp_to_epsilon_optimal(order, rdp, delta)
    assert found >= brute - 1e-9
    assert found == pytest.approx(brute, rel=1e-6, abs=1e-8)


@pytest.mark.unhurried
@examples(24)
@given(
    st.lists(st.floats(0.01, 1), min_size=3, max_size=5),
    st.lists(st.floats(0.01, 1), min_size=5, max_size=5),
    st.floats(1.02, 40),
    st.floats(0.001, 0.5),
)
def test_every_conversion_holds_for_any_discrete_pair(first, second, order, delta):
    p = np.array(first) / sum(first)
    q = np.array(second[: p.size]) / sum(second[: p.size])
    rdp = max(0.0, math.log(np.sum(p**order * q ** (1 - order))) / (order - 1))
    for conversion in CONVERSIONS:
        epsilon = conversion(order, rdp, delta)
        assert np.maximum(p - math.exp(epsilon) * q, 0).sum() <= delta * (1 + 1e-12)


@pytest.mark.parametrize("sigma", [0.5, 1, 4, 30])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 0.1])
def test_conversions_of_the_gaussian_curve_exceed_the_exact_epsilon(sigma, delta):
    orders = np.linspace(1.05, 80, 200)
    curve = orders / (2 * sigma**2)
    exact = gaussian_epsilon(sigma, delta)
    for conversion in CONVERSIONS:
        assert conversion(orders, curve, delta) >= exact


def test_optimal_is_strictly_better_where_delta_is_large():
    assert rdp_to_epsilon_optimal(2, 0.5, 0.2) < rdp_to_epsilon_balle(2, 0.5, 0.2) - 0.1


def test_optimal_stands_extreme_orders():
    assert rdp_to_epsilon_optimal(1e7, 3.0, 1e-5) == pytest.approx(3 + math.log1p(-1e-5), abs=1e-4)
    close = rdp_to_epsilon_optimal(np.nextafter(1, 2), 3.0, 1e-5)
    assert 3 < close <= rdp_to_epsilon_balle(np.nextafter(1, 2), 3.0, 1e-5)


def test_closed_forms():
    assert rdp_to_epsilon_classic(3, 0.5, 1e-4) == pytest.approx(0.5 + math.log(1e4) / 2)
    assert rdp_to_epsilon_balle(3, 0.5, 1e-4) == pytest.approx(
        0.5 + math.log(2 / 3) - (math.log(1e-4) + math.log(3)) / 2
    )


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_the_best_order_wins_infinite_orders_are_skipped_and_nothing_is_negative(conversion):
    alone = conversion(8, 0.1, 1e-5)
    assert conversion([2, 8, 16], [0.1, 0.1, math.inf], 1e-5) == pytest.approx(alone, rel=1e-12)
    assert conversion([2, 3], [math.inf, math.inf], 1e-5) == math.inf
    assert conversion([2, 1e4], [0.0, 0.0], 0.9) < 2e-5
    assert conversion(50, 0.0, 0.99) >= 0


def test_optimal_knows_that_no_divergence_means_no_loss():
    assert rdp_to_epsilon_optimal(2, 0.0, 1e-9) == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((1, 0.1, 1e-5), "order"), ((2, -0.1, 1e-5), "rdp"), ((2, math.nan, 1e-5), "rdp"),
     ((2, 0.1, 0), "delta"), ((2, 0.1, 1), "delta"), (([], [], 1e-5), "order")],
)  # fmt: skip
@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_bad_arguments_are_named(conversion, arguments, name):
    with refused(name):
        conversion(*arguments)
