"""What both accountants owe to code written for dp_accounting: relations, `supports`."""

import math

import dp_accounting as dp
import pytest
from dp_accounting import NeighboringRelation as Relation
from dp_accounting.dp_event import (
    DiscreteLaplaceDpEvent,
    RandomizedResponseDpEvent,
)
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant as PeerRdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from prudent.accounting import (
    DiscreteGaussianTest,
    GaussianTest,
    LaplaceTest,
    PldAccountant,
    ProposeTestReleaseDpEvent,
    RdpAccountant,
)
from tests.raising import refused
from tests.tiers import examples

DELTA = 1e-5
PTR = ProposeTestReleaseDpEvent(1.1, 0.5, LaplaceTest(1.0), 1e-8)
both = pytest.mark.parametrize("accountant", [PldAccountant, RdpAccountant])


def sampled(event, rate=0.1):
    return dp.PoissonSampledDpEvent(rate, event)


# --- events without noise, and parameters out of range --------------------------------------------


@both
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize(
    "event",
    [
        *(dp.GaussianDpEvent(0), dp.LaplaceDpEvent(0), DiscreteLaplaceDpEvent(0, 1)),
        dp.NonPrivateDpEvent(),
    ],
    ids=lambda e: type(e).__name__,
)
def test_an_event_without_noise_hides_nothing(accountant, event, times):
    assert accountant().supports(event)
    spent = accountant().compose(event, times)
    assert spent.get_epsilon(0.5) == spent.get_epsilon(1) == math.inf
    assert spent.get_delta(9.0) == spent.get_delta(math.inf) == 1
    beside = accountant().compose(dp.ComposedDpEvent([PTR, event]))
    assert beside.get_epsilon(0.5) == math.inf


@pytest.mark.parametrize("event", [dp.GaussianDpEvent(0), dp.LaplaceDpEvent(0)], ids=str)
def test_sampled_without_noise_is_revealed_as_often_as_sampled(event):
    accountant = PldAccountant().compose(sampled(event))
    assert accountant.get_delta(1.0) == pytest.approx(0.1)
    assert accountant.get_epsilon(0.09) == math.inf
    assert accountant.get_epsilon(0.11) < math.inf
    assert RdpAccountant().compose(sampled(event)).get_epsilon(0.5) == math.inf


@both
@pytest.mark.parametrize(
    "event",
    [
        sampled(PTR, 1.7),
        sampled(PTR, math.nan),
        sampled(dp.GaussianDpEvent(1.0), -0.1),
        sampled(dp.GaussianDpEvent(-1.0)),
        dp.GaussianDpEvent(-1.0),
        dp.GaussianDpEvent(math.nan),
        dp.LaplaceDpEvent(-1.0),
        dp.SelfComposedDpEvent(PTR, -1),
        dp.ComposedDpEvent([PTR, sampled(dp.LaplaceDpEvent(math.inf))]),
    ],
    ids=str,
)
def test_a_parameter_out_of_range_is_not_supported_and_named_when_composed(accountant, event):
    assert not accountant().supports(event)
    with pytest.raises(ValueError, match="Expected"):
        accountant().compose(event)


@pytest.mark.parametrize(
    ("accountant", "event"),
    [
        (PldAccountant, RandomizedResponseDpEvent(0.5, 2)),
        (PldAccountant, dp.UnsupportedDpEvent()),
        (PldAccountant, dp.ZCDpEvent(0.1)),
        (PldAccountant, sampled(dp.ComposedDpEvent([PTR, dp.ZCDpEvent(0.1)]))),
        (RdpAccountant, RandomizedResponseDpEvent(0.5, 2)),
        (RdpAccountant, dp.UnsupportedDpEvent()),
        (RdpAccountant, sampled(dp.SelfComposedDpEvent(PTR, 2))),
    ],
    ids=str,
)
def test_an_unsupported_event_is_named_and_not_composed(accountant, event):
    spent = accountant().compose(PTR)
    before = spent.get_epsilon(DELTA)
    assert not spent.supports(event)
    with pytest.raises(dp.UnsupportedEventError, match=type(event).__name__):
        spent.compose(dp.ComposedDpEvent([PTR, event]))
    assert spent.get_epsilon(DELTA) == before


# --- one event, many ways -------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "event",
    [
        dp.NoOpDpEvent(),
        dp.SelfComposedDpEvent(PTR, 0),
        sampled(PTR, 0.0),
        sampled(dp.NoOpDpEvent()),
        dp.ComposedDpEvent([]),
    ],
    ids=str,
)
def test_nothing_costs_nothing(accountant, event):
    spent = accountant().compose(event, 7)
    assert spent.get_epsilon(1e-6) == spent.get_delta(0.0) == 0
    assert accountant().compose(PTR, 0).get_epsilon(0.0) == 0


@both
def test_sampling_twice_is_sampling_at_the_product(accountant):
    twice, once = (
        accountant().compose(event, 100).get_epsilon(DELTA)
        for event in (sampled(sampled(PTR, 0.02), 0.5), sampled(PTR, 0.01))
    )
    assert twice == pytest.approx(once)


COARSE = {"pld": lambda: PldAccountant(value_discretization_interval=2e-2), "rdp": RdpAccountant}
releases = st.builds(
    ProposeTestReleaseDpEvent,
    *(st.floats(0.8, 5), st.floats(0.2, 1)),
    st.sampled_from([LaplaceTest(1.0), GaussianTest(3.0), DiscreteGaussianTest(2.0)]),
    st.sampled_from([1e-8, 1e-6]),
)
events = st.one_of(
    releases,
    st.builds(dp.GaussianDpEvent, st.floats(1, 10)),
    st.builds(dp.LaplaceDpEvent, st.floats(1, 10)),
    st.builds(dp.PoissonSampledDpEvent, st.sampled_from([0.0, 0.01, 0.5]), releases),
)


@pytest.mark.thorough
@pytest.mark.parametrize("fresh", COARSE.values(), ids=COARSE)
@examples(8)
@given(runs=st.lists(st.tuples(events, st.integers(0, 6)), max_size=3), data=st.data())
def test_the_order_of_composing_does_not_matter(fresh, runs, data):
    def total(order):
        accountant = fresh()
        for event, count in order:
            accountant.compose(event, count)
        return pytest.approx(accountant.get_epsilon(1e-4), rel=1e-6, abs=1e-9)

    expected = fresh().compose(
        dp.ComposedDpEvent([dp.SelfComposedDpEvent(event, count) for event, count in runs])
    )
    for order in (runs, data.draw(st.permutations(runs))):
        assert expected.get_epsilon(1e-4) == total(order)


@pytest.mark.unhurried
@pytest.mark.parametrize("fresh", COARSE.values(), ids=COARSE)
@examples(12, brief=5)
@given(
    sigma=st.floats(0.5, 5), rate=st.floats(1e-4, 1), steps=st.integers(1, 200),
    delta=st.floats(1e-9, 1e-2), test=st.sampled_from([LaplaceTest(1.0), GaussianTest(3.0)]),
    change=st.sampled_from(["sigma", "rate", "steps", "delta"]),
)  # fmt: skip
def test_monotone_in_everything(fresh, sigma, rate, steps, delta, test, change):
    def cost(sigma, rate, steps, delta):
        event = ProposeTestReleaseDpEvent(sigma, 0.5, test, 1e-10)
        return fresh().compose(sampled(event, rate), steps).get_epsilon(delta)

    safe = {
        "sigma": (sigma * 1.2, rate, steps, delta),
        "rate": (sigma, rate * 0.8, steps, delta),
        "steps": (sigma, rate, steps // 2, delta),
        "delta": (sigma, rate, steps, delta * 2),
    }[change]
    less, more = cost(*safe), cost(sigma, rate, steps, delta)
    # Different values may get different grids: a hair of discretisation is allowed.
    assert 0 <= less <= more * (1 + 1e-3) + 1e-6


# --- the ends of ε and δ --------------------------------------------------------------------------


@both
def test_an_infinite_epsilon_leaves_what_no_epsilon_covers(accountant):
    assert accountant().compose(PTR).get_delta(math.inf) <= 1e-8
    assert accountant().compose(dp.GaussianDpEvent(1.0)).get_delta(math.inf) < 1e-15
    textbook = ProposeTestReleaseDpEvent(math.inf, 0.0, LaplaceTest(1.0), 1e-6, 1.0)
    assert accountant().compose(textbook).get_delta(math.inf) == pytest.approx(1e-6, rel=1e-9)


@both
def test_at_delta_one_a_private_event_costs_nothing(accountant):
    assert accountant().compose(PTR).get_epsilon(1) == 0


# --- neighbouring relations -----------------------------------------------------------------------


@both
@pytest.mark.parametrize("event", [PTR, sampled(PTR, 0.01), dp.LaplaceDpEvent(2.0)], ids=str)
def test_an_empty_record_in_place_of_one_costs_as_much_as_removing_it(accountant, event):
    special = accountant(neighboring_relation=Relation.REPLACE_SPECIAL)
    assert special.supports(event)
    expected = accountant().compose(event, 3).get_epsilon(DELTA)
    assert special.compose(event, 3).get_epsilon(DELTA) == expected
    assert special.neighboring_relation is Relation.REPLACE_SPECIAL


@both
@pytest.mark.parametrize(
    "event",
    [
        PTR,
        sampled(PTR),
        GaussianTest(3.0),
        sampled(sampled(DiscreteGaussianTest(3.0))),
        dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), LaplaceTest(1.0)]),
        sampled(dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), PTR])),
    ],
    ids=str,
)
def test_our_events_have_no_price_for_replacing_a_record(accountant, event):
    replacing = accountant(neighboring_relation=Relation.REPLACE_ONE)
    assert not replacing.supports(event)
    with pytest.raises(dp.UnsupportedEventError):
        replacing.compose(event)
    assert replacing.get_epsilon(DELTA) == 0


@both
def test_the_error_says_which_relation_prices_the_event(accountant):
    with pytest.raises(dp.UnsupportedEventError, match="under ADD_OR_REMOVE_ONE"):
        accountant(neighboring_relation=Relation.REPLACE_ONE).compose(sampled(PTR))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("event", "relation"),
    [
        (RandomizedResponseDpEvent(0.5, 3), Relation.REPLACE_ONE),
        (dp.GaussianDpEvent(3.0), Relation.REPLACE_ONE),
        (sampled(dp.GaussianDpEvent(3.0)), Relation.REPLACE_ONE),
        (RandomizedResponseDpEvent(0.5, 3), Relation.REPLACE_SPECIAL),
    ],
    ids=str,
)
def test_what_dp_accounting_prices_for_replacing_costs_the_same_here(event, relation):
    ours = PldAccountant(relation).compose(event, 4).get_epsilon(DELTA)
    theirs = PLDAccountant(relation)
    for _ in range(4):  # of a randomized response dp_accounting charges one run, whatever the count
        theirs.compose(event)
    assert ours == pytest.approx(theirs.get_epsilon(DELTA), rel=1e-4)


@pytest.mark.unhurried
def test_replacing_a_record_moves_a_sum_twice():
    """dp_accounting's Rényi accountant has it move once: below its own privacy-loss accountant."""
    orders, replace = [1.0, 2.0, 8.0, 32.0, 128.0], Relation.REPLACE_ONE
    for noise, event in ((3.0, dp.GaussianDpEvent(3.0)), (4.0, dp.LaplaceDpEvent(4.0))):
        halved = RdpAccountant(orders).compose(type(event)(noise / 2), 5)
        assert list(RdpAccountant(orders, replace).compose(event, 5).rdp) == list(halved.rdp)
    gaussian = dp.GaussianDpEvent(3.0)
    exact = PLDAccountant(replace).compose(gaussian, 5).get_epsilon(DELTA)
    assert PeerRdpAccountant(orders, replace).compose(gaussian, 5).get_epsilon(DELTA) < exact
    assert RdpAccountant(orders, replace).compose(gaussian, 5).get_epsilon(DELTA) > exact
    drawn = dp.SampledWithoutReplacementDpEvent(50, 50, gaussian)  # everything: no sampling at all
    ours = RdpAccountant([2.0, 8.0], replace)
    assert ours.compose(drawn).rdp == pytest.approx([4 / 9, 16 / 9])


def test_a_sample_does_not_hide_an_answer_that_comes_without_a_record():
    """A randomized response is given by each record itself: one left out leaves none."""
    event = sampled(RandomizedResponseDpEvent(0.5, 3))
    for accountant in (PldAccountant, RdpAccountant):
        assert not accountant(neighboring_relation=Relation.REPLACE_SPECIAL).supports(event)


@both
@pytest.mark.parametrize("relation", [1e-3, "add", None, 7])
def test_a_relation_that_is_none_is_named(accountant, relation):
    with refused("neighboring_relation"):
        accountant(neighboring_relation=relation)
