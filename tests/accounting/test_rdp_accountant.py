"""The Rényi accountant: peers, the errata's numbers, both books, foreign events."""

import itertools
import math

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from dp_accounting.dp_event import RandomizedResponseDpEvent, RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant as Peer
from dp_accounting.rdp import rdp_privacy_accountant

from prudent.accounting import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    PldAccountant,
    ProposeTestReleaseDpEvent,
    RdpAccountant,
)
from prudent.accounting.losses.domination import branch_pair, case_one
from prudent.accounting.losses.moments import renyi_divergence
from prudent.accounting.rdp_accountant import DEFAULT_ORDERS, _divergences
from tests.oracles import quadrature

DELTA = 1e-5
MNIST = 256 / 60_000
PTR = ProposeTestReleaseDpEvent(1.1, 0.5, LaplaceTest(1.0), 1e-8)


def rdp_of(event, orders=DEFAULT_ORDERS):
    return RdpAccountant(orders).compose(event)._rdp


@pytest.mark.parametrize(("sigma", "rate"), [(1.1, MNIST), (0.6, 0.3), (4.0, 1e-5), (2.0, 1.0)])
def test_a_free_test_leaves_the_subsampled_gaussian(sigma, rate):
    """The peer at whole orders; between them it is a few per cent high, so the integral there."""
    gaussian = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma))
    whole, between = (2.0, 3.0, 8.0, 33.0, 128.0), (1.1, 1.75, 3.5)
    peer = Peer(np.array(whole)).compose(gaussian)._rdp
    exact = [float(quadrature.renyi([(1, 0, sigma)], order, rate)) for order in between]
    release = ProposeTestReleaseDpEvent(sigma, 1.0, LaplaceTest(1e9), 1e-30)
    for event in (gaussian, dp.PoissonSampledDpEvent(rate, release)):
        assert rdp_of(event, whole) == pytest.approx(peer, rel=1e-6)
        assert rdp_of(event, between) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(("scale", "rate", "order"), [(1.0, 0.05, 2.5), (0.5, 0.3, 6.0)])
def test_free_noise_leaves_the_subsampled_laplace(scale, rate, order):
    components = quadrature.laplace_components(scale, 1e6, 40)
    exact = float(quadrature.renyi(components, order, rate))
    release = ProposeTestReleaseDpEvent(1e9, 1.0, LaplaceTest(scale), 1e-30)
    for event in (release, dp.LaplaceDpEvent(scale), LaplaceTest(scale)):
        sampled = dp.PoissonSampledDpEvent(rate, event)
        assert rdp_of(sampled, [order])[0] == pytest.approx(exact, rel=1e-6)


def test_an_unsampled_laplace_is_the_peers():
    event, orders = dp.LaplaceDpEvent(1.5), (1.5, 2.0, 9.0, 40.0)
    assert rdp_of(event, orders) == pytest.approx(Peer(np.array(orders)).compose(event)._rdp)


# Errata 3: RDP of one step of MNIST: order, Case 1, Case 2
EXACT = [
    (2, 2.34e-5, 5.91e-5),
    (4, 4.75e-5, 1.23e-4),
    (6, 3.77e-2, 1.92e-4),
    (8, 4.36, 2.69e-4),
    (11, 10.3, 1.13e-3),
]


@pytest.mark.parametrize(("order", "first", "second"), EXACT)
def test_one_step_costs_what_the_errata_say(order, first, second):
    orders = np.array([float(order)])
    accident = renyi_divergence(case_one(PTR), orders, MNIST)[0]
    plain, split, _ = _divergences(dp.PoissonSampledDpEvent(MNIST, PTR), orders)
    assert accident == pytest.approx(first, rel=0.005)
    assert split[0] == pytest.approx(second, rel=0.005)
    assert plain[0] == pytest.approx(max(first, second), rel=0.005)


def test_the_better_book_is_reported():
    event = dp.PoissonSampledDpEvent(MNIST, PTR)
    accountant = RdpAccountant().compose(event, 8000)
    orders = np.array(DEFAULT_ORDERS)
    plain, split, accident = (8000 * part for part in _divergences(event, orders))
    alone = [
        rdp_privacy_accountant.compute_epsilon(orders, plain, DELTA)[0],
        rdp_privacy_accountant.compute_epsilon(orders, split, DELTA - accident)[0],
    ]
    assert alone[1] < 0.97 * alone[0]
    assert accountant.get_epsilon(DELTA) == pytest.approx(min(alone))
    epsilon, order = accountant.get_epsilon_and_optimal_order(DELTA)
    assert epsilon == accountant.get_epsilon(DELTA)
    assert order in DEFAULT_ORDERS
    assert accountant.get_delta(epsilon) <= DELTA * 1.01
    below = accident / 2  # the split book has nothing left to give here
    assert accountant.get_epsilon(below) == pytest.approx(
        rdp_privacy_accountant.compute_epsilon(orders, plain, below)[0]
    )


def test_an_unbounded_statistic_has_a_price_by_the_split_only():
    event = ProposeTestReleaseDpEvent(1.1, 0.0, LaplaceTest(1.0), 1e-9)
    accountant = RdpAccountant().compose(dp.PoissonSampledDpEvent(MNIST, event), 1000)
    assert np.all(np.isinf(accountant._rdp))
    assert PldAccountant().compose(
        dp.PoissonSampledDpEvent(MNIST, event), 1000
    ).get_epsilon(DELTA) < accountant.get_epsilon(DELTA) < 2  # fmt: skip
    assert math.isinf(accountant.get_epsilon(1e-10))


@pytest.mark.parametrize("order", [2.0, 9.0, 40.0, 200.0])
@pytest.mark.parametrize("scale", [0.4, 3.0])
def test_a_discrete_gaussian_is_a_gaussian_at_whole_orders(scale, order):
    """Σ exp(-x²(1-α)/2s² - α(x-1)²/2s²) completes to a shift by α, however far out that is."""
    with mpmath.workdps(40):
        s = mpmath.mpf(scale)
        reach = int(20 * scale) + 20

        def total(centre):
            inside = range(int(centre) - reach, int(centre) + reach + 1)
            return mpmath.fsum(mpmath.exp(-((x - centre) ** 2) / (2 * s * s)) for x in inside)

        moment = mpmath.exp(order * (order - 1) / (2 * s * s)) * total(order) / total(0)
        exact = float(mpmath.log(moment) / (order - 1))
    assert rdp_of(DiscreteGaussianTest(scale), [order])[0] == pytest.approx(exact, rel=1e-12)
    between = rdp_of(DiscreteGaussianTest(scale), [order + 0.5, order + 1])
    assert exact <= between[0] <= between[1]


@pytest.mark.parametrize("order", [2, 3, 8])
@pytest.mark.parametrize("rate", [0.01, 0.4])
def test_parts_on_one_batch_have_the_moments_of_their_product(order, rate):
    """Errata 5: two Laplace parts and a Gaussian one, by brute-force quadrature of the product."""
    with mpmath.workdps(quadrature.DIGITS):
        one = quadrature.laplace_components(1.0, 1.0, 16)
        two = quadrature.laplace_components(2.0, 1.0, 16)
        product = [(a * b, m + n, 1.5) for a, m, _ in one for b, n, _ in two]
    exact = float(quadrature.renyi(product, order, rate))
    inner = dp.ComposedDpEvent([dp.LaplaceDpEvent(1.0), LaplaceTest(2.0), dp.GaussianDpEvent(1.5)])
    sampled = dp.PoissonSampledDpEvent(rate, inner)
    assert rdp_of(sampled, [float(order)])[0] == pytest.approx(exact, rel=1e-9)
    between = rdp_of(sampled, [order + 0.5])[0]
    assert exact <= between <= rdp_of(sampled, [order + 1.0])[0]


REVEALS = ("margin", "branch", "monotone-branch")
NOISES = ((1.1, None), (1.1, 0.7), (math.inf, 1.1))
PLAIN_CASES = list(zip(REVEALS, NOISES, strict=True))  # each value of each once


@pytest.mark.unhurried
@pytest.mark.parametrize(
    "test",
    [LaplaceTest(1.0), GaussianTest(3.0), DiscreteLaplaceTest(2.0), DiscreteGaussianTest(2.0)],
    ids=lambda t: type(t).__name__,
)
@pytest.mark.parametrize(
    ("reveals", "noises"),
    [
        pytest.param(*case, marks=() if case in PLAIN_CASES else pytest.mark.slow)
        for case in itertools.product(REVEALS, NOISES)
    ],
    ids=str,
)
def test_renyi_is_never_below_the_losses(reveals, test, noises):
    event = ProposeTestReleaseDpEvent(noises[0], 0.5, test, 1e-8, noises[1], reveals)
    sampled = dp.PoissonSampledDpEvent(0.02, event)
    pld = (
        PldAccountant(value_discretization_interval=1e-3)
        .compose(sampled, 300)
        .epsilon_bounds(DELTA)[0]
    )
    assert pld < RdpAccountant().compose(sampled, 300).get_epsilon(DELTA)


def test_a_branch_is_charged_for_its_worst_margin_and_direction():
    event = ProposeTestReleaseDpEvent(1.1, 0.5, LaplaceTest(1.0), 1e-6, None, "branch")
    orders = np.array([1.5, 3.0, 12.0])
    _, split, _ = _divergences(dp.PoissonSampledDpEvent(0.1, event), orders)
    for low in range(30):
        for pair in (branch_pair(event, low, low + 1), branch_pair(event, low + 1, low)):
            for adding in (False, True):
                there = renyi_divergence(pair, orders, 0.1, adding=adding)
                assert np.all(there <= split * (1 + 1e-12))


# --- composition, foreign events, arguments ----------------------------------------------------


def test_repeating_and_selecting_a_release_costs_at_most_what_the_peer_says():
    """The peer's formula, fed with the plain divergences of one release."""
    event = RepeatAndSelectDpEvent(PTR, 3.0, 1.0)
    one = rdp_of(PTR)
    expected = rdp_privacy_accountant._compute_rdp_repeat_and_select(
        np.array(DEFAULT_ORDERS), one, 3.0, 1.0
    )
    accountant = RdpAccountant().compose(PTR).compose(event, 2)
    assert np.all(accountant._rdp[1:] <= (one + 2 * expected)[1:] * (1 + 1e-9))
    assert np.all(accountant._rdp >= 3 * one)
    assert accountant.get_epsilon(DELTA) > RdpAccountant().compose(PTR, 3).get_epsilon(DELTA)


# --- orders 1 and infinity ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "mean", "largest"),
    [
        (dp.GaussianDpEvent(2.0), 1 / 8, math.inf),
        (dp.LaplaceDpEvent(0.5), 2 + math.expm1(-2), 2.0),
        (DiscreteGaussianTest(2.0), 1 / 8, math.inf),
        (
            dp.ComposedDpEvent([LaplaceTest(0.5), LaplaceTest(1.0)]),
            1 + math.exp(-2) + 1 / math.e,
            3,
        ),
        (dp.ZCDpEvent(0.1, 0.2), 0.3, math.inf),
        (PTR, None, math.inf),
    ],
    ids=str,
)
def test_order_one_is_the_mean_loss_and_infinity_the_largest(event, mean, largest):
    found = RdpAccountant([1.0, math.inf, 1.0001]).compose(event).rdp
    assert found[1] == pytest.approx(largest)
    assert found[0] == pytest.approx(mean or found[2], rel=1e-3 if mean is None else 1e-9)
    assert found[0] <= found[2] <= found[1]


def test_parts_on_one_batch_have_a_mean_and_a_largest_loss():
    inner = dp.ComposedDpEvent([LaplaceTest(1.0), LaplaceTest(2.0)])
    mean, above, largest = rdp_of(dp.PoissonSampledDpEvent(0.1, inner), [1.0, 1.01, math.inf])
    assert largest == pytest.approx(math.log(0.9 + 0.1 * math.exp(1.5)))
    assert 0 < mean <= above * (1 + 1e-12) <= largest


def test_order_infinity_prices_pure_events_at_no_delta():
    accountant = RdpAccountant([2.0, math.inf]).compose(dp.LaplaceDpEvent(10.0), 2)
    assert accountant.get_epsilon(0) == pytest.approx(0.2)
    assert accountant.get_epsilon_and_optimal_order(0)[1] == math.inf
    assert accountant.get_delta(0.2) == pytest.approx(0, abs=1e-15)
    exact = PldAccountant().compose(dp.LaplaceDpEvent(10.0), 2)
    for epsilon in (0.0, 0.05, 0.15):  # no pure pair is worse than randomized response
        response = (math.exp(0.2) - math.exp(epsilon)) / (1 + math.exp(0.2))
        pure = RdpAccountant([math.inf]).compose(dp.LaplaceDpEvent(10.0), 2).get_delta(epsilon)
        assert pure == pytest.approx(response)
        assert exact.get_delta(epsilon) <= accountant.get_delta(epsilon) <= response * (1 + 1e-12)


@pytest.mark.parametrize("orders", [[1.0], [math.inf], [1.0, 2.0, math.inf]])
@pytest.mark.parametrize(
    "event",
    [PTR, dp.GaussianDpEvent(1.0), dp.LaplaceDpEvent(1.0), dp.ZCDpEvent(0.0, 0.5)],
    ids=lambda e: type(e).__name__,
)
def test_both_conversions_are_sane_at_their_ends(orders, event):
    accountant = RdpAccountant(orders).compose(event)
    assert accountant.get_epsilon(1) == 0 or orders == [math.inf]
    assert accountant.get_epsilon(0) > 0
    assert accountant.get_delta(0) > 0
    assert accountant.get_delta(math.inf) <= accountant.get_delta(100.0) <= 1
    for delta in (1e-9, 0.1, 0.99):
        assert accountant.get_delta(accountant.get_epsilon(delta)) <= delta * (1 + 1e-6) or (
            accountant.get_epsilon(delta) == math.inf
        )


@pytest.mark.parametrize("accountant", [RdpAccountant, lambda: RdpAccountant([1.0, 2.0, math.inf])])
def test_nothing_hidden_has_no_epsilon_and_nothing_composed_no_price(accountant):
    for delta in (0, 1e-5, 1):
        assert accountant().get_epsilon(delta) == 0
        assert accountant().compose(dp.NonPrivateDpEvent()).get_epsilon(delta) == math.inf
    for epsilon in (0, 1.0, math.inf):
        assert accountant().get_delta(epsilon) == 0
        assert accountant().compose(dp.NonPrivateDpEvent()).get_delta(epsilon) == 1


@pytest.mark.parametrize("event", [PTR, dp.GaussianDpEvent(1.0), dp.LaplaceDpEvent(1.0)])
def test_a_huge_order_has_a_price(event):
    for order in (1e10, 1e10 + 0.5, 1e100):
        for rate in (1.0, 0.01):
            sampled = dp.PoissonSampledDpEvent(rate, event)
            below, there = rdp_of(sampled, [1024.0, order])
            assert below <= there


# --- what is supported ----------------------------------------------------------------------------


def test_an_event_dp_accounting_cannot_price_leaves_the_books_alone():
    accountant = RdpAccountant([1.0, 2.0]).compose(dp.GaussianDpEvent(1.0))
    with pytest.raises(ValueError, match="xi must be"):
        accountant.compose(dp.ZCDpEvent(0.1, -1.0))
    assert list(accountant.rdp) == [0.5, 1.0]


@pytest.mark.parametrize(
    "event",
    [
        RandomizedResponseDpEvent(0.5, 2),
        dp.SampledWithoutReplacementDpEvent(9, 3, dp.GaussianDpEvent(1.0)),
    ],
    ids=lambda e: type(e).__name__,
)
def test_order_one_of_a_foreign_event_is_bounded_from_above(event):
    accountant = RdpAccountant([1.0, 1.01, 2.0], dp.NeighboringRelation.REPLACE_ONE)
    rdp = accountant.compose(event).rdp
    assert 0 < rdp[0] <= rdp[1] * (1 + 1e-9) <= rdp[2] * (1 + 1e-8)
