"""Rényi divergences against their defining integrals in 34 digits."""

import math

import numpy as np
import pytest
from tests.oracles import quadrature

from prudent.accounting import moments
from prudent.accounting.cases import branch_pair, case_one, margin_pair
from prudent.accounting.events import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    ProposeTestReleaseDpEvent,
)
from prudent.accounting.pairs import LaplacePair, MixturePair

RELATIVE = 1e-9
MNIST = 256 / 60_000

# (σ, b, q, α, nodes over the margin)
LAPLACE = [
    (1.1, 1, MNIST, 1.01, 16),
    (1.1, 1, MNIST, 3.5, 16),
    (1.1, 1, MNIST, 8, 20),
    (0.4, 0.2, 0.3, 2.5, 40),
    (4, 0.2, 1e-5, 1.01, 40),
    (4, 50, 1e-5, 32, 16),
    (4, 50, 1, 256, 16),
    (1.1, 0.2, 1, 1.5, 40),
    (0.4, 50, 1e-5, 1.5, 16),
    (0.25, 1, 0.5, 9.75, 30),
]
MORE_LAPLACE = [
    (0.4, 1, 1e-5, 256, 120),
    (0.4, 50, 1, 100.5, 16),
    (1.1, 0.2, 1e-5, 256, 300),
    (2, 1, 0.02, 256, 120),
    (0.4, 1, 0.9, 33.3, 60),
    (20, 1, 1, 1.01, 16),
]


def agrees(pair, components, order, rate, adding):
    found = moments.renyi_divergence(pair, np.array([float(order)]), rate, adding=adding)[0]
    exact = float(quadrature.renyi(components, order, rate, adding=adding))
    assert found == pytest.approx(exact, rel=RELATIVE, abs=0)


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize(("sigma", "scale", "rate", "order", "nodes"), LAPLACE)
def test_noisy_margin_has_the_divergence_of_its_integral(sigma, scale, rate, order, nodes, adding):
    components = quadrature.laplace_components(scale, sigma, nodes)
    agrees(LaplacePair(scale, sigma), components, order, rate, adding)


@pytest.mark.slow
@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize(("sigma", "scale", "rate", "order", "nodes"), MORE_LAPLACE)
def test_noisy_margin_has_the_divergence_of_its_integral_at_extremes(
    sigma, scale, rate, order, nodes, adding
):
    components = quadrature.laplace_components(scale, sigma, nodes)
    agrees(LaplacePair(scale, sigma), components, order, rate, adding)


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("order", [1.01, 2, 5.5, 64])
@pytest.mark.parametrize(
    ("sigma", "propose", "failure", "rate"),
    [(1.1, 0.5, 1e-8, MNIST), (0.8, 0.5, 1e-2, 1e-5), (4, 0.2, 1e-4, 1), (1.1, 0.5, 0.3, 0.7)],
)
def test_accident_has_the_divergence_of_its_integral(sigma, propose, failure, rate, order, adding):
    # (1 - δ₀) of a Gaussian of σ and δ₀ of one of τσ, written out here and not taken from the pair.
    event = ProposeTestReleaseDpEvent(sigma, propose, LaplaceTest(1.0), failure)
    wrong = event.false_pass
    with quadrature.mpmath.workdps(quadrature.DIGITS):
        components = [(1 - quadrature.mpmath.mpf(wrong), 0, sigma), (wrong, 0, sigma * propose)]
    agrees(case_one(event), components, order, rate, adding)


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("order", [1.25, 3, 40])
@pytest.mark.parametrize("rate", [0.01, 1])
@pytest.mark.parametrize(
    "test",
    [LaplaceTest(1.0), DiscreteLaplaceTest(0.7), GaussianTest(2.0)],
    ids=lambda t: type(t).__name__,
)
def test_branch_has_the_divergence_of_its_integral(test, rate, order, adding):
    event = ProposeTestReleaseDpEvent(1.1, 0.5, test, 1e-3, 1.4)
    pair = branch_pair(event, 4, 3)
    assert float(np.sum(pair.absent)) == pytest.approx(1, abs=1e-15)
    for way in (pair, pair.swapped()):
        agrees_with_exact_masses(way, order, rate, adding)


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("order", [1.25, 6])
@pytest.mark.parametrize("rate", [0.01, 1])
@pytest.mark.parametrize(
    "test",
    [DiscreteLaplaceTest(1.5), DiscreteGaussianTest(2.0)],
    ids=lambda t: f"{type(t).__name__}-{t.scale}",
)
def test_discrete_margin_has_the_divergence_of_its_sum(test, rate, order, adding):
    """The components come from the law of the whole-number noise, summed in many digits."""
    mp = quadrature.mpmath
    with mp.workdps(quadrature.DIGITS):
        scale = mp.mpf(test.scale)

        def weight(k):
            if isinstance(test, DiscreteLaplaceTest):
                return mp.exp(-abs(k) / scale)
            return mp.exp(-(k**2) / (2 * scale**2))

        reach = int(30 + 90 * test.scale)
        total = mp.fsum(weight(k) for k in range(-reach, reach + 1))
        if isinstance(test, DiscreteLaplaceTest):  # its losses are ±1/b only: two lumps
            low = mp.fsum(weight(k) for k in range(-reach, 1)) / total
            components = [(low, -1 / scale, 1.1), (1 - low, 1 / scale, 1.1)]
        else:
            components = [
                (weight(k) / total, mp.log(weight(k - 1) / weight(k)), 1.1)
                for k in range(-math.ceil(14 * test.scale) - 3, math.ceil(14 * test.scale) + 4)
            ]
    agrees(margin_pair(test, 1.1), components, order, rate, adding)


def agrees_with_exact_masses(pair, order, rate, adding):
    """Normalises the pair's masses in many digits: E - 1 may be far below double precision."""
    mp = quadrature.mpmath
    with mp.workdps(quadrature.DIGITS):
        absent = [mp.mpf(float(a)) for a in pair.absent]
        present = [mp.mpf(float(p)) for p in pair.present]
        absent[int(np.argmax(absent))] += 1 - mp.fsum(absent)
        present[int(np.argmax(present))] += 1 - mp.fsum(present)
        components = [
            (a, mp.log(p / a), s) for a, p, s in zip(absent, present, pair.sigma, strict=True)
        ]
    agrees(pair, components, order, rate, adding)


def test_removing_is_the_worse_direction_of_symmetric_pairs():
    orders = np.array([1.01, 1.5, 2.5, 7.75, 30.5])
    event = ProposeTestReleaseDpEvent(1.1, 0.5, LaplaceTest(1.0), 1e-3)
    for pair in (LaplacePair(0.5, 1.1), case_one(event)):
        for rate in (1e-4, 0.3, 0.99):
            removing = moments.renyi_divergence(pair, orders, rate)
            adding = moments.renyi_divergence(pair, orders, rate, adding=True)
            assert np.all(adding <= removing * (1 + 1e-12))


def test_an_asymmetric_pair_can_be_worse_to_add():
    """Errata 2.2: without symmetry adding can be the worse direction, so both must be asked."""
    pair = MixturePair.of((0.1, 0.05, math.inf), (0.9, 0.95, math.inf))
    two = np.array([2.0])
    removing = math.expm1(moments.renyi_divergence(pair, two, 0.3)[0])
    adding = math.expm1(moments.renyi_divergence(pair, two, 0.3, adding=True)[0])
    assert removing == pytest.approx(0.00250, abs=5e-6)
    assert adding == pytest.approx(0.00289, abs=5e-6)


def test_what_can_be_told_for_certain_has_infinite_divergence():
    pair = MixturePair.of((1.0, 0.9, 1.0), (0.0, 0.1, 1.0))
    assert np.all(np.isinf(moments.renyi_divergence(pair, np.array([1.5, 2.0]), 0.1)))


def test_interpolation_between_whole_orders_is_above_the_truth():
    pair = LaplacePair(1.0, 1.1)
    base = moments.log_base_moments(pair, np.arange(2.0, 9.0))
    for order in (1.2, 2.5, 7.9):
        exact = moments.renyi_divergence(pair, np.array([order]), 0.05)[0]
        above = moments.interpolated(base, order, 0.05) / (order - 1)
        assert exact < above < 3 * exact


def test_a_quadrature_too_large_falls_back_to_the_interpolated_bound(monkeypatch):
    pair, orders = LaplacePair(1.0, 1.1), np.array([2.5, 6.25])
    exact = moments.renyi_divergence(pair, orders, 0.05)
    monkeypatch.setattr(moments, "_MOST_NODES", 1)
    bound = moments.renyi_divergence(pair, orders, 0.05)
    assert np.all(bound > exact)
    assert np.all(np.isinf(moments.renyi_divergence(pair, orders, 0.05, adding=True)))
