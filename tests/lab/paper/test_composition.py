import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prudent_lab.paper.theorems import ConditionError, amplify_by_sampling, strong_composition


def composed_delta(total, epsilon, delta, count):
    """Hockey stick of `count` copies of the worst (ε, δ) pair, outcome by outcome."""
    answer = (1 - delta) / (1 + math.exp(epsilon))
    one = np.array([delta, answer * math.exp(epsilon), answer, 0.0])
    p, q = np.ones(1), np.ones(1)
    for _ in range(count):
        p, q = np.outer(p, one).ravel(), np.outer(q, one[::-1]).ravel()
    return np.maximum(p - math.exp(total) * q, 0).sum()


@given(st.floats(0, 3), st.sampled_from([0, 1e-6, 0.01]), st.integers(1, 6), st.floats(1e-7, 0.5))
def test_strong_composition_is_the_smallest_epsilon_of_the_worst_pair(epsilon, delta, count, extra):
    delta_total = 1 - (1 - delta) ** count * (1 - extra)
    total = strong_composition(epsilon, delta, count, delta_total)
    assert 0 <= total <= count * epsilon
    assert composed_delta(total, epsilon, delta, count) <= delta_total + 1e-13
    if total > 1e-3:
        below = composed_delta(total * (1 - 1e-6), epsilon, delta, count)
        assert below >= delta_total - 1e-13


def test_strong_composition_passes_through_the_published_points():
    """At (k - 2i) ε the theorem states δ_i in closed form."""
    epsilon, delta, count, i = 0.1, 1e-7, 400, 150
    shares = [
        math.comb(count, j)
        * (math.exp((count - j) * epsilon) - math.exp((count - 2 * i + j) * epsilon))
        / (1 + math.exp(epsilon)) ** count
        for j in range(i)
    ]
    delta_total = 1 - (1 - delta) ** count * (1 - math.fsum(shares))
    found = strong_composition(epsilon, delta, count, delta_total)
    assert found == pytest.approx((count - 2 * i) * epsilon, rel=1e-8)


def test_strong_composition_stands_many_steps_and_large_epsilon():
    total = strong_composition(0.01, 1e-9, 100_000, 1e-3)
    assert 5 < total < 40
    assert strong_composition(800.0, 0.0, 3, 1e-9) == pytest.approx(2400)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0.0, 0.0, 7, 0.0), 0),
        ((1.0, 0.0, 0, 0.0), 0),
        ((1.0, 0.0, 3, 0.0), 3),
        ((2.0, 0.1, 1, 0.1), 2),
    ],
)
def test_strong_composition_at_its_edges(arguments, expected):
    assert strong_composition(*arguments) == pytest.approx(expected, rel=1e-12)


def test_strong_composition_refuses_less_than_the_deltas_cost():
    with pytest.raises(ConditionError, match=r"delta_total >= .*0\.0009\d+.*too small.*PldAcc"):
        strong_composition(0.1, 1e-6, 1000, 1e-5)


@given(st.floats(0, 800), st.floats(0, 1))
def test_sampling_amplifies(epsilon, rate):
    amplified, delta = amplify_by_sampling(epsilon, 1e-5, rate)
    assert delta == rate * 1e-5
    assert 0 <= amplified <= epsilon * (1 + 1e-15)
    if epsilon < 500 and rate > 0:
        assert math.exp(amplified) == pytest.approx(1 + rate * math.expm1(epsilon), rel=1e-12)


def test_sampling_keeps_small_epsilon_exact():
    assert amplify_by_sampling(1e-9, 0.0, 1e-6)[0] == pytest.approx(1e-15, rel=1e-8)
    assert amplify_by_sampling(3.0, 0.25, 1.0) == (3.0, 0.25)
