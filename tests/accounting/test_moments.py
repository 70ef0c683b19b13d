"""Rényi divergences against their defining integrals in 34 digits."""

import math

import numpy as np
import pytest

from prudent.accounting.events import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    ProposeTestReleaseDpEvent,
)
from prudent.accounting.losses import moments
from prudent.accounting.losses.domination import branch_pair, case_one, margin_pair
from prudent.accounting.losses.pairs import LaplacePair, MixturePair
from tests.oracles import quadrature

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


@pytest.mark.unhurried
@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize(
    ("sigma", "scale", "rate", "order", "nodes"),
    [*LAPLACE, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_LAPLACE)],
)
def test_noisy_margin_has_the_divergence_of_its_integral(sigma, scale, rate, order, nodes, adding):
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
    pair = margin_pair(test, 1.1)
    if isinstance(test, DiscreteGaussianTest):  # of what was cut off nothing is known but its mass
        assert moments.renyi_divergence(pair, np.array([2.0]), rate)[0] == math.inf
        pair = MixturePair(pair.absent[:-2], pair.present[:-2], pair.sigma[:-2])
    agrees(pair, components, order, rate, adding)


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
    pair, orders = LaplacePair(1.0, 1.1), np.array([1.2, 2.5, 7.9])
    exact = moments.renyi_divergence(pair, orders, 0.05)
    above = moments.divergence_of_removing(
        lambda powers: moments.log_base_moments(pair, powers), orders, 0.05
    )
    assert np.all((exact < above) & (above < 3 * exact))


@pytest.mark.parametrize("adding", [False, True])
def test_a_quadrature_too_large_falls_back_to_a_bound(monkeypatch, adding):
    pair, orders = LaplacePair(1.0, 1.1), np.array([1.0, 2.5, 6.25])
    exact = moments.renyi_divergence(pair, orders, 0.05, adding=adding)
    monkeypatch.setattr(moments, "_MOST_NODES", 1)
    bound = moments.renyi_divergence(pair, orders, 0.05, adding=adding)
    assert np.all((exact < bound) & np.isfinite(bound))


# --- order 1 and order infinity, and orders far out ---------------------------------------------

BRANCH = branch_pair(ProposeTestReleaseDpEvent(1.1, 0.5, LaplaceTest(1.0), 1e-3, 1.4), 4, 3)
PAIRS = {
    "laplace": LaplacePair(0.7, 1.1),
    "branch": BRANCH,
    "swapped branch": BRANCH.swapped(),
    "gaussian": MixturePair.of((1.0, 1.0, 0.8)),
    "one-sided": MixturePair.of((0.2, 0.0, 1.5), (0.8, 1.0, 1.5)),
}


def mean_loss(pair, rate, adding):
    """D_1 from its definition: the trapezoidal rule in many digits, far finer than the σ of all."""
    mp = quadrature.mpmath
    with mp.workdps(25):
        if isinstance(pair, LaplacePair):
            components = quadrature.laplace_components(pair.scale, pair.sigma, 20)
            masses = [(a, a * mp.exp(loss), s) for a, loss, s in components]
        else:
            masses = zip(pair.absent, pair.present, pair.sigma, strict=True)
        q, total = mp.mpf(rate), mp.mpf(0)
        for absent, present, sigma in masses:

            def term(x, absent=absent, present=present, sigma=sigma):
                without = absent * mp.npdf(x)
                sampled = (1 - q) * without + q * present * mp.npdf(x, 1 / mp.mpf(float(sigma)))
                first, second = (without, sampled) if adding else (sampled, without)
                return first * mp.log(first / second)

            total += mp.fsum(term(mp.mpf(i) / 4) for i in range(-40, 48)) / 4
        return float(total)


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("rate", [0.01, 0.6, 1])
@pytest.mark.parametrize("name", PAIRS)
def test_order_one_is_the_mean_loss(name, rate, adding):
    pair = PAIRS[name]
    found = moments.renyi_divergence(pair, np.array([1.0]), rate, adding=adding)[0]
    if name == "one-sided" and rate == 1:
        assert adding == math.isinf(found)
        return
    assert found == pytest.approx(mean_loss(pair, rate, adding), rel=1e-9)
    just_above = moments.renyi_divergence(pair, np.array([1.0001]), rate, adding=adding)[0]
    assert found <= just_above <= found * 1.01


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("rate", [0.01, 1])
@pytest.mark.parametrize(
    "pair",
    [
        LaplacePair(0.7, math.inf),
        MixturePair.of((0.1, 0.05, math.inf), (0.9, 0.95, math.inf)),
        margin_pair(DiscreteLaplaceTest(0.4), math.inf),
    ],
    ids=["laplace", "two labels", "discrete laplace"],
)
def test_order_infinity_is_the_largest_loss(pair, rate, adding):
    if isinstance(pair, LaplacePair):
        ratios = np.exp([-1 / pair.scale, 1 / pair.scale])
    else:
        ratios = pair.present / pair.absent
    losses = np.log(1 - rate + rate * ratios)
    exact = -losses.min() if adding else losses.max()
    orders = np.array([2.0, 64.0, 16384.0, 1e6, 1e10, 1e100, 1e200, math.inf])
    found = moments.renyi_divergence(pair, orders, rate, adding=adding)
    assert found[-1] == pytest.approx(exact, rel=1e-12)
    assert np.all(found <= exact * (1 + 1e-9))
    assert found[-2] == pytest.approx(exact, rel=1e-9)


def test_gaussian_noise_has_no_largest_loss_unless_a_sample_hides_it():
    pair, infinity = PAIRS["gaussian"], np.array([math.inf])
    assert math.isinf(moments.renyi_divergence(pair, infinity, 0.1)[0])
    adding = moments.renyi_divergence(pair, infinity, 0.1, adding=True)[0]
    assert adding == pytest.approx(-math.log(0.9))


@pytest.mark.parametrize("adding", [False, True])
@pytest.mark.parametrize("rate", [1e-4, 0.3, 1])
@pytest.mark.parametrize("name", PAIRS)
def test_beyond_the_closed_form_there_is_a_bound(monkeypatch, name, rate, adding):
    orders = np.array([20.0, 33.3, 64.0])
    exact = moments.renyi_divergence(PAIRS[name], orders, rate, adding=adding)
    monkeypatch.setattr(moments, "_MOST_POWERS", 16)
    bound = moments.renyi_divergence(PAIRS[name], orders, rate, adding=adding)
    assert np.all(bound >= exact * (1 - 1e-12))
    if not adding:  # where the moment is the largest term's, Minkowski's inequality is tight
        assert bound[-1] == pytest.approx(exact[-1], rel=0.25)
