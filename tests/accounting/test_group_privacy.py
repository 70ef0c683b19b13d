"""Prices of groups and replacements, against exact laws of small mechanisms."""

import itertools
import math

import dp_accounting as dp
import numpy as np
import pytest
from scipy import stats

from prudent.accounting import (
    ADD_REMOVE,
    REPLACE_ONE,
    ZERO_OUT,
    DiscreteLaplaceTest,
    LaplaceTest,
    PldAccountant,
    ProposeTestReleaseDpEvent,
    RdpAccountant,
    Relation,
    Reveals,
    epsilon_of,
)
from prudent.accounting.group_privacy import event_at_distance
from prudent.accounting.losses.domination import dominating

PTR = ProposeTestReleaseDpEvent(1.1, 0.5, LaplaceTest(1.0), 1e-3, None, Reveals.BRANCH)


def sampled(rate, event, steps=1):
    return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, event), steps)


@pytest.mark.unhurried
@pytest.mark.parametrize("accountant", [PldAccountant, RdpAccountant])
@pytest.mark.parametrize("event", [dp.GaussianDpEvent(2.0), sampled(0.01, PTR, 50)])
def test_one_record_added_removed_or_blanked_is_the_accountants_own(event, accountant):
    exact = accountant().compose(event).get_epsilon(1e-6)
    for relation in (ADD_REMOVE, ZERO_OUT):
        assert epsilon_of(event, 1e-6, relation, accountant) == exact


@pytest.mark.parametrize("accountant", [PldAccountant, RdpAccountant])
@pytest.mark.parametrize("relation", [REPLACE_ONE, Relation("add-remove", 3)])
def test_additive_noise_scales(relation, accountant):
    event = dp.ComposedDpEvent([dp.GaussianDpEvent(6.0), dp.LaplaceDpEvent(9.0)])
    k = relation.distance
    scaled = dp.ComposedDpEvent([dp.GaussianDpEvent(6.0 / k), dp.LaplaceDpEvent(9.0 / k)])
    found = epsilon_of(event, 1e-6, relation, accountant)
    assert found == pytest.approx(accountant().compose(scaled).get_epsilon(1e-6), rel=1e-6)


def test_pure_privacy_scales():
    assert epsilon_of(dp.LaplaceDpEvent(5.0), 0.0, REPLACE_ONE) == pytest.approx(0.4)
    for event in (dp.NoOpDpEvent(), dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 0)):
        assert epsilon_of(event, 1e-6, REPLACE_ONE) == 0
    assert epsilon_of(dp.NonPrivateDpEvent(), 1e-6, REPLACE_ONE) == math.inf


def counting_laws(records, rate, replaced):
    """Exact laws of a noisy count: a person's records are worth 1 each, against 0 or against -1."""
    values = np.arange(-120, 121)

    def law(worth):
        total = np.zeros(len(values))
        for count in range(records + 1):
            mass = stats.binom.pmf(count, records, rate)
            total += mass * np.exp(-np.abs(values - worth * count) / 2.0)
        return total / np.exp(-np.abs(values) / 2.0).sum()

    return law(1), law(-1 if replaced else 0)


def excess(first, second, epsilon):
    return np.maximum(0.0, first - math.exp(epsilon) * second).sum()


@pytest.mark.parametrize("rate", [1.0, 0.3, 0.02])
@pytest.mark.parametrize("relation", [REPLACE_ONE, Relation("zero-out", 3), Relation(records=2)])
def test_sampled_groups_are_above_the_exact_law_of_a_noisy_count(relation, rate):
    replaced = relation == REPLACE_ONE
    with_records, without = counting_laws(relation.records, rate, replaced)
    event = dp.PoissonSampledDpEvent(rate, DiscreteLaplaceTest(2.0))
    worst = dominating(next(iter(event_at_distance(event, relation).events)).event)
    for epsilon in (0.0, 0.05, 0.2, 0.5, 0.9):
        removing, adding = (
            float(worst.profile(np.array([epsilon]), adding=adding)[0]) for adding in (False, True)
        )
        exact = excess(with_records, without, epsilon)
        assert exact - 1e-12 <= removing <= max(1.7 * exact, 0.05)
        assert excess(without, with_records, epsilon) - 1e-12 <= adding


@pytest.mark.parametrize("relation", [REPLACE_ONE, Relation("zero-out", 2)])
def test_composed_groups_are_above_the_exact_law(relation):
    """Three steps of a sampled noisy count: every answer, in both directions."""
    rate, delta = 0.2, 0.01
    first, second = counting_laws(relation.records, rate, relation == REPLACE_ONE)
    middle = slice(95, 146)  # all but 1e-5 of the mass; what is cut can only lower the excess
    laws = [
        np.einsum("i,j,k->ijk", law[middle], law[middle], law[middle]) for law in (first, second)
    ]
    for accountant in (PldAccountant, RdpAccountant):
        event = sampled(rate, DiscreteLaplaceTest(2.0), 3)
        found = epsilon_of(event, delta, relation, accountant)
        for one, other in itertools.permutations(laws):
            assert excess(one, other, found) <= delta
        assert found < 4


class Ladder:
    """Data sets S₀, …, S₂, each one record from the next, under Propose-Test-Release on a line.

    A rung has a margin and the two answers; a run shows the branch and the noisy answer.
    """

    def __init__(self, rungs):
        self.rungs = rungs
        self.x = np.linspace(-12, 14, 10401)

    def law(self, rung):
        margin, full, robust = self.rungs[rung]
        passes = PTR.test.tail(PTR.test.threshold(PTR.failure) - margin)
        parts = ((1 - passes, full, 1.1), (passes, robust, 0.55))
        return np.concatenate(
            [mass * stats.norm.pdf(self.x, shift, s) for mass, shift, s in parts]
        ) * (self.x[1] - self.x[0])


LADDERS = [
    Ladder([(3, 0, 0), (4, 1, 0.5), (5, 2, 1.0)]),  # margins tell, both answers move
    Ladder([(6, 0, 0), (7, 1, 0.5), (8, 2, 1.0)]),  # around the threshold
    Ladder([(0, 0, 0), (0, 1, 1.0), (0, 2, 2.0)]),  # accidents: too little noise
    Ladder([(0, 0, 0), (0, 1, 1.0), (1, 2, 1.5)]),  # an accident, then a tested step
    Ladder([(1, 0, 0), (0, 1, 0.5), (0, 2, 1.5)]),
]


@pytest.mark.unhurried
@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("ladder", LADDERS)
def test_a_group_under_propose_test_release_is_above_the_laws_of_a_ladder(ladder, rate):
    """Two records more, and one replaced by another, where the worst data are known."""
    none, one, two = (ladder.law(rung) for rung in range(3))
    keeps = 1 - rate
    grouped = keeps**2 * none + 2 * rate * keeps * one + rate**2 * two
    ends = keeps * one + rate * none, keeps * one + rate * two  # two neighbours of the middle rung
    event = dp.PoissonSampledDpEvent(rate, PTR)
    for relation, (first, second) in (
        (Relation(records=2), (grouped, none)),
        (REPLACE_ONE, ends),
    ):
        worst = dominating(next(iter(event_at_distance(event, relation).events)).event)
        for epsilon in (0.0, 0.1, 0.5, 1.0, 3.0):
            for adding, (p, q) in enumerate([(first, second), (second, first)]):
                bound = worst.profile(np.array([epsilon]), adding=bool(adding))[0]
                assert excess(p, q, epsilon) <= bound + 1e-9


@pytest.mark.thorough
@pytest.mark.parametrize("event", [PTR, dp.GaussianDpEvent(1.0)], ids=["ptr", "gaussian"])
def test_replacing_costs_less_than_two_records_and_more_than_one(event):
    composed = sampled(0.01, event, 200)
    one, replaced, two = (
        epsilon_of(composed, 1e-6, relation)
        for relation in (ADD_REMOVE, REPLACE_ONE, Relation(records=2))
    )
    assert one < replaced <= two < 4 * one


@pytest.mark.thorough
def test_the_chain_serves_events_without_a_pair():
    inner = dp.ComposedDpEvent([PTR, dp.GaussianDpEvent(5.0)])
    event = sampled(0.01, inner, 20)
    assert event_at_distance(event, REPLACE_ONE) is None
    single = epsilon_of(event, 1e-6)
    assert 2 * single < epsilon_of(event, 1e-6, REPLACE_ONE) < 6 * single


@pytest.mark.unhurried
@pytest.mark.parametrize("relation", [Relation("zero-out", 2), REPLACE_ONE, Relation(records=3)])
def test_different_releases_are_not_taken_for_one(relation):
    """In either order, and at least as expensive as the dearer of them."""
    parts = [sampled(0.2, DiscreteLaplaceTest(scale), 3) for scale in (2.0, 0.5)]
    dearest = max(epsilon_of(part, 1e-5, relation) for part in parts)
    one, other = (
        epsilon_of(dp.ComposedDpEvent(list(order)), 1e-5, relation)
        for order in itertools.permutations(parts)
    )
    assert one == pytest.approx(other, rel=1e-6)
    assert one >= dearest
