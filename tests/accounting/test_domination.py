"""From events to dominating pairs: no margin is forgotten, no mechanism costs more."""

import itertools
import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent.accounting.events import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    ProposeTestReleaseDpEvent,
)
from prudent.accounting.losses.domination import (
    additive_parts,
    branch_pair,
    case_one,
    case_one_without_false_pass,
    dominating,
    leaves,
    margin_pair,
    noisy_margin_case,
    product_pair,
    telling_margins,
)
from prudent.accounting.losses.pairs import Dominating, LaplacePair, MixturePair
from tests.raising import refused

EPSILONS = np.linspace(-6, 12, 145)
TESTS = [LaplaceTest(1.0), LaplaceTest(0.3), LaplaceTest(4.0), GaussianTest(2.0),
         DiscreteLaplaceTest(1.0), DiscreteLaplaceTest(3.0), DiscreteGaussianTest(1.5)]  # fmt: skip
NOISES = [(1.1, None), (1.1, 0.6), (1.1, 2.5), (0.5, 4.0), (math.inf, 1.1)]


def all_margins(event, margins):
    """The exact profile of the branch, over every pair of neighbouring margins up to `margins`."""
    both_ways = event.reveals.value == "branch"
    worst = {False: np.zeros_like(EPSILONS), True: np.zeros_like(EPSILONS)}
    for low in range(margins):
        pairs = [branch_pair(event, low + 1, low), branch_pair(event, low, low)]
        pairs += [branch_pair(event, low, low + 1)] if both_ways else []
        for pair, adding in itertools.product(pairs, (False, True)):
            one_way = pair.swapped() if adding else pair
            worst[adding] = np.maximum(worst[adding], one_way.profile(EPSILONS))
    return worst


@pytest.mark.parametrize("reveals", ["branch", "monotone-branch"])
@pytest.mark.parametrize("noises", NOISES, ids=str)
@pytest.mark.parametrize("test", TESTS, ids=lambda t: f"{type(t).__name__}-{t.scale}")
@pytest.mark.parametrize("failure", [1e-2, 1e-8])
def test_the_telling_margins_stand_for_all_of_them(test, noises, reveals, failure):
    event = ProposeTestReleaseDpEvent(noises[0], 0.5, test, failure, noises[1], reveals)
    few = dominating(event)
    every = all_margins(event, math.ceil(test.threshold(failure) + 12 * test.scale) + 4)
    for adding in (False, True):
        excess = every[adding] - few.profile(EPSILONS, adding=adding)
        assert excess.max() <= 1e-14
    coupled = noises[1] is None and isinstance(test, LaplaceTest)
    if coupled:  # nothing is added either, but for the accidents of Case 1
        without = Dominating(few.pairs[1:], slack=few.slack)
        for adding in (False, True):
            gap = without.profile(EPSILONS, adding=adding) - every[adding]
            assert gap.max() <= 1e-14


@pytest.mark.parametrize("which", [0, 1, 2])
def test_forgetting_a_telling_margin_is_noticed(which):
    """Each of the three is needed for some place of the threshold between two margins."""
    missing = 0.0
    for threshold in (5.05, 5.3, 5.6, 5.95):
        failure = 0.5 * math.exp(-threshold)
        event = ProposeTestReleaseDpEvent(3.0, 0.5, LaplaceTest(1.0), failure, None, "branch")
        kept = [branch_pair(event, d, d - 1) for d in telling_margins(event)]
        del kept[which]
        few = Dominating((*kept, *(pair.swapped() for pair in kept)))
        missing = max(missing, (all_margins(event, 20)[False] - few.profile(EPSILONS)).max())
    assert missing > 1e-5


def test_unequal_noises_need_the_weaker_pair():
    event = ProposeTestReleaseDpEvent(0.5, 0.5, LaplaceTest(1.0), 1e-8, 4.0, "branch")
    every = all_margins(event, 40)[False]
    margins = telling_margins(event)
    telling = [branch_pair(event, d, d - 1) for d in margins]
    telling += [pair.swapped() for pair in telling]
    assert (every - Dominating(tuple(telling)).profile(EPSILONS)).max() > 1e-3


@pytest.mark.parametrize("test", TESTS, ids=lambda t: f"{type(t).__name__}-{t.scale}")
@pytest.mark.parametrize("noises", NOISES, ids=str)
def test_what_reveals_less_costs_no_more(test, noises):
    costs = [
        dominating(ProposeTestReleaseDpEvent(noises[0], 0.5, test, 1e-6, noises[1], reveals))
        for reveals in ("margin", "branch", "monotone-branch")
    ]
    for adding in (False, True):
        margin, branch, monotone = (cost.profile(EPSILONS, adding=adding) for cost in costs)
        assert np.all(branch <= margin + 1e-14)
        assert np.all(monotone <= branch + 1e-14)


def test_many_margins_are_charged_as_the_noisy_margin():
    event = ProposeTestReleaseDpEvent(1.1, 0.5, GaussianTest(50.0), 1e-8, None, "branch")
    assert telling_margins(event) is None
    found = dominating(event).profile(EPSILONS)
    margin = Dominating((case_one(event), noisy_margin_case(event))).profile(EPSILONS)
    assert found == pytest.approx(margin, abs=1e-15)


def test_the_accident_moved_to_delta_covers_the_accident():
    """Errata 2.4: the pair without it plus its δ is never below the pair with it."""
    for propose in (0.0, 0.05, 0.5):
        event = ProposeTestReleaseDpEvent(1.1, propose, LaplaceTest(1.0), 1e-2)
        pair, delta = case_one_without_false_pass(event)
        excess = case_one(event).profile(EPSILONS) - pair.profile(EPSILONS) - delta
        assert excess.max() <= 1e-15
        assert excess.max() >= -1e-2


def test_an_unbounded_statistic_costs_its_accidents():
    event = ProposeTestReleaseDpEvent(1.1, 0.0, LaplaceTest(1.0), 1e-3)
    assert case_one(event).infinite_mass == pytest.approx(1e-3)
    gaussian = MixturePair.of((1.0, 1.0, 1.1)).profile(EPSILONS)
    found = case_one(event).profile(EPSILONS)
    assert found == pytest.approx((1 - 1e-3) * gaussian + 1e-3, abs=1e-14)


def test_two_noises_use_the_smaller_beside_the_margin():
    for first, second in ((1.0, 3.0), (3.0, 1.0), (math.inf, 1.0)):
        event = ProposeTestReleaseDpEvent(first, 0.5, LaplaceTest(2.0), 1e-6, second)
        assert noisy_margin_case(event) == LaplacePair(2.0, 1.0)
        wrong = case_one(event)
        assert wrong.sigma.tolist() == [first, second * 0.5]


def test_gaussian_parts_act_as_one():
    event = dp.ComposedDpEvent([
        dp.SelfComposedDpEvent(dp.GaussianDpEvent(2.0), 3), GaussianTest(5.0), dp.NoOpDpEvent(),
    ])  # fmt: skip
    assert additive_parts(event).sigma == pytest.approx((3 / 4 + 1 / 25) ** -0.5)
    assert additive_parts(event).others == ()
    with_laplace = dp.ComposedDpEvent([event, dp.LaplaceDpEvent(1.5)])
    assert product_pair(with_laplace) == LaplacePair(1.5, additive_parts(event).sigma)
    assert product_pair(dp.SelfComposedDpEvent(dp.LaplaceDpEvent(1.5), 2)) is None
    assert additive_parts(dp.ComposedDpEvent([event, dp.ZCDpEvent(0.1)])) is None
    assert additive_parts(DiscreteLaplaceDpEvent(0.5, 2)) is None
    one = additive_parts(DiscreteLaplaceDpEvent(0.5, 1))
    assert one.others == ((DiscreteLaplaceTest(2.0), 1),)


def test_leaves_skip_what_costs_nothing():
    gaussian = dp.GaussianDpEvent(1.0)
    event = dp.ComposedDpEvent([
        dp.NoOpDpEvent(),
        dp.SelfComposedDpEvent(gaussian, 0),
        dp.PoissonSampledDpEvent(0.0, gaussian),
        dp.PoissonSampledDpEvent(0.5, dp.NoOpDpEvent()),
        dp.SelfComposedDpEvent(
            dp.ComposedDpEvent([gaussian, dp.SelfComposedDpEvent(gaussian, 2)]), 3
        ),
    ])  # fmt: skip
    assert list(leaves(event)) == [(gaussian, 3), (gaussian, 6)]


@pytest.mark.parametrize("sigma", [0.1, 1.1, 30.0])
@pytest.mark.parametrize("scale", [30.0, 200.0, pytest.param(1000.0, marks=pytest.mark.slow)])
def test_few_losses_stand_for_all_of_a_wide_discrete_margin(scale, sigma):
    """Fewer components, at a price no lower than all of them and higher by next to nothing."""
    test = DiscreteGaussianTest(scale)
    values = np.arange(-test.reach, test.reach + 2)
    masses = (np.exp(-0.5 * ((values - m) / scale) ** 2) / test.normaliser for m in (0, 1))
    exact = MixturePair(*masses, np.full(len(values), sigma))
    pair = margin_pair(test, sigma)
    assert len(pair.present) <= min(256, len(values)) + 2  # and what is beyond, on either side
    both = math.hypot(1 / scale, 1 / sigma)
    epsilon = np.array([0.0, 0.5, 1.0, 2.0, 4.0]) * both + both**2 / 2
    for found, true in ((pair, exact), (pair.swapped(), exact.swapped())):
        ratio = found.profile(epsilon) / true.profile(epsilon)
        assert np.all(ratio >= 1 - 1e-9)
        assert np.all(ratio <= 1 + (1e-4 if sigma < scale / 50 else 1e-2))


def test_a_margin_that_the_noise_hides_needs_few_losses():
    assert len(margin_pair(DiscreteGaussianTest(1000.0), 1.1).present) < 20
    assert len(margin_pair(DiscreteGaussianTest(1000.0), math.inf).present) == 258


@pytest.mark.parametrize("noise", [-1.0, math.inf, "2"])
def test_a_laplace_event_is_refused_by_the_name_of_its_own_field(noise):
    with refused("noise_multiplier"):
        additive_parts(dp.LaplaceDpEvent(noise))
