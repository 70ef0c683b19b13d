"""Trade-off curves and attack success against brute force on finite mechanisms and closed forms."""

import itertools
import math

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from scipy import stats

from prudent.accounting import (
    ApproximateDpEvent,
    AttackBounds,
    ExponentialMechanismDpEvent,
    PartPrice,
    PldAccountant,
    price_list,
)

RATES = np.array([0.0, 1e-4, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0])


def profile(first, second, epsilons):
    """δ(ε) = sup first(A) - e^ε second(A), by summing positive parts."""
    return np.maximum(first - np.exp(epsilons)[:, None] * second, 0).sum(1)


def bounds_of(present, absent, points=1500, last=12.0):
    """The bounds that exact profiles of a finite mechanism give."""
    grid = np.linspace(0, last, points)
    removing, adding = profile(present, absent, grid), profile(absent, present, grid)
    return AttackBounds(grid, removing, adding)


def best_test(null, other, alpha):
    """The least miss rate at a false-positive rate, over all randomised tests: Neyman, Pearson."""
    order = np.argsort(-(other + 1e-300) / (null + 1e-300))
    room, found = alpha, 0.0
    for index in order:
        share = 1.0 if null[index] <= room else room / null[index]
        found, room = found + share * other[index], room - share * null[index]
        if room <= 0:
            break
    return 1 - found


def mechanisms():
    rng = np.random.default_rng(4)
    for size in (2, 3, 5, 8):
        yield rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))
    # Asymmetric: a rare output that nearly gives the record away, as sampling makes them.
    yield np.array([0.01, 0.99]), np.array([0.0001, 0.9999])


@pytest.mark.unhurried
@pytest.mark.parametrize(("present", "absent"), list(mechanisms()))
def test_curve_and_profile_are_duals(present, absent):
    """The curve is that of the best tests in either direction, and gives the profile back."""
    bounds = bounds_of(present, absent)
    exact = np.array(
        [min(best_test(absent, present, a), best_test(present, absent, a)) for a in RATES]
    )
    found = bounds.misses(RATES)
    assert np.all(found <= exact + 1e-12)
    np.testing.assert_allclose(found, exact, atol=7e-3)
    # Back: δ(ε) = 1 - min over α of (β + e^ε α).
    alphas = np.linspace(0, 1, 1001)
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        worse = max(
            profile(a, b, np.array([epsilon]))[0] for a, b in ((present, absent), (absent, present))
        )
        back = 1 - np.min(bounds.misses(alphas) + math.exp(epsilon) * alphas)
        assert back == pytest.approx(worse, abs=4e-3 * math.exp(epsilon))


def test_one_direction_alone_would_be_wrong():
    """For an asymmetric pair, either profile used for both terms claims more than is true."""
    present, absent = np.array([0.2, 0.8]), np.array([0.01, 0.99])
    right = bounds_of(present, absent)
    exact = min(best_test(absent, present, 0.01), best_test(present, absent, 0.01))
    assert right.misses(0.01) == pytest.approx(exact, abs=1e-2)
    assert right.misses(0.01) <= exact
    grid = right.epsilons
    wrong = AttackBounds(grid, right.adding, right.adding)
    assert wrong.misses(0.01) > exact + 0.05
    assert wrong.success(0.1) < (1 - 0.1) + 0.1 * profile(present, absent, np.log([9.0]))[0] - 1e-3


@pytest.mark.parametrize(("present", "absent"), list(mechanisms()))
@pytest.mark.parametrize("prior", [0.02, 0.1, 0.5, 0.8, 0.99])
def test_success_is_that_of_the_best_guess(present, absent, prior):
    """Over all 2ⁿ deterministic guesses; some guess reaches it."""
    best = max(
        sum(
            prior * p if says else (1 - prior) * q
            for p, q, says in zip(present, absent, guess, strict=True)
        )
        for guess in itertools.product((True, False), repeat=len(present))
    )
    bound = bounds_of(present, absent).success(prior)
    assert best - 1e-12 <= bound <= best + 1e-4


def test_precision_is_that_of_the_best_claim():
    present, absent = np.array([0.2, 0.8]), np.array([0.01, 0.99])
    bounds = bounds_of(present, absent)
    assert bounds.precision(0.1, 0.01) >= 0.1 * 0.2 / (0.1 * 0.2 + 0.9 * 0.01) - 1e-12


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_gaussian_noise_has_its_known_curve(sigma):
    bounds = AttackBounds.of(dp.GaussianDpEvent(sigma))
    inside = RATES[1:-1]
    exact = stats.norm.cdf(stats.norm.isf(inside) - 1 / sigma)
    found = bounds.misses(inside)
    assert np.all(found <= exact)
    np.testing.assert_allclose(found, exact, atol=1e-3)
    distance = float(2 * mpmath.ncdf(1 / (2 * mpmath.mpf(sigma))) - 1)
    assert bounds.success(0.5) == pytest.approx((1 + distance) / 2, rel=1e-9)
    assert bounds.success(0.5) >= (1 + distance) / 2


def test_a_sampled_mechanism_agrees_with_dp_accounting():
    """Both directions, at the losses of its own tables."""
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.0)), 3)
    bounds = AttackBounds.of(event)
    theirs = dp.pld.PLDAccountant(value_discretization_interval=1e-3).compose(event)._pld
    for ours, peer in ((bounds.removing, theirs._pmf_remove), (bounds.adding, theirs._pmf_add)):
        for place in (0, 50, 150):
            expected = peer.get_delta_for_epsilon(bounds.epsilons[place])
            assert ours[place] == pytest.approx(expected, rel=2e-2, abs=1e-7)
    assert not np.allclose(bounds.removing, bounds.adding, rtol=0.05)


def test_nothing_and_everything():
    nothing = AttackBounds.of(dp.NoOpDpEvent())
    np.testing.assert_allclose(nothing.misses(RATES), 1 - RATES)
    assert nothing.success([0.5, 0.9]).tolist() == [0.5, 0.9]
    everything = AttackBounds.of(dp.GaussianDpEvent(0.0))
    assert np.all(everything.misses(RATES) == 0)
    assert everything.success(0.3) == 1
    pure = AttackBounds.of(ApproximateDpEvent(1.0, 0.0))
    assert pure.success(0.5) == pytest.approx(math.e / (1 + math.e))


class TestPriceList:
    EVENT = dp.ComposedDpEvent(
        [
            dp.GaussianDpEvent(3.0),
            dp.ComposedDpEvent([ExponentialMechanismDpEvent(0.5), dp.GaussianDpEvent(3.0)]),
            dp.NoOpDpEvent(),
        ]
    )

    def test_each_part_once_with_what_it_costs(self):
        first, second = price_list(self.EVENT, 1e-6)
        assert isinstance(first, PartPrice)
        assert (first.event, first.count) == (dp.GaussianDpEvent(3.0), 2)
        assert (second.event, second.count) == (ExponentialMechanismDpEvent(0.5), 1)
        total = PldAccountant().compose(self.EVENT).get_epsilon(1e-6)
        gaussian = PldAccountant().compose(dp.GaussianDpEvent(3.0), 2).get_epsilon(1e-6)
        assert first.alone == gaussian
        assert second.adds == pytest.approx(total - gaussian)
        assert 0 < second.adds < second.alone

    def test_one_part_that_makes_all_infinite(self):
        whole = dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), dp.NonPrivateDpEvent()])
        fine, broken = price_list(whole, 1e-6)
        assert math.isnan(fine.adds)
        assert broken.alone == broken.adds == math.inf
        assert price_list(dp.NoOpDpEvent(), 1e-6) == []
