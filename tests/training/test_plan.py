"""The plan prices what the trainer does, and solves on the safe side."""

import math

import attrs
import dp_accounting as dp
import numpy as np
import pytest

from prudent.accounting import (
    REPLACE_ONE,
    ZERO_OUT,
    GaussianTest,
    PldAccountant,
    ProposeTestReleaseDpEvent,
    RdpAccountant,
    Relation,
)
from prudent.training import Mean, Plan, ProposeTestRelease, Sum, TrimmedSum


def dpsgd(**changes):
    given = {
        "sampling_rate": 0.02,
        "steps": 200,
        "aggregation": Sum(clip=1.0, noise_multiplier=1.1),
    }
    return Plan(**(given | changes))


PTR = ProposeTestRelease(clip=2.0, propose=0.5, noise_multiplier=1.1, test=GaussianTest(4.0))


def test_the_event_is_every_step_sampled():
    event = dpsgd(aggregation=PTR).event
    assert isinstance(event, dp.SelfComposedDpEvent)
    assert event.count == 200
    assert event.event == dp.PoissonSampledDpEvent(0.02, PTR.event)
    assert isinstance(event.event.event, ProposeTestReleaseDpEvent)
    assert dpsgd().event_after(3).count == 3


def test_no_steps_cost_nothing():
    for accountant in (PldAccountant, RdpAccountant):
        assert dpsgd(steps=0).epsilon(1e-5, accountant=accountant) == 0
    assert dpsgd(steps=0, aggregation=Mean()).epsilon(1e-5) == 0


def test_without_privacy_there_is_no_epsilon():
    assert dpsgd(aggregation=Mean()).epsilon(1e-5) == math.inf


def test_a_test_costs_something():
    plain, tested = (dpsgd(aggregation=rule).epsilon(1e-5) for rule in (TRIMMED, PTR))
    assert plain < tested < 2 * plain


TRIMMED = TrimmedSum(clip=2.0, noise_multiplier=1.1)


def test_epsilon_grows_with_steps_and_rate():
    epsilons = [dpsgd().epsilon_after(steps, 1e-5) for steps in (1, 50, 200)]
    assert epsilons == sorted(set(epsilons))
    assert epsilons[-1] == dpsgd().epsilon(1e-5)
    assert dpsgd(sampling_rate=0.04).epsilon(1e-5) > epsilons[-1]


def test_calibration_is_on_the_safe_side_and_no_further():
    plan = dpsgd().calibrate(epsilon=1.0, delta=1e-5)
    assert 0.999 < plan.epsilon(1e-5) <= 1.0
    assert attrs.evolve(plan, aggregation=dpsgd().aggregation) == dpsgd()
    longest = dpsgd().longest(epsilon=1.0, delta=1e-5)
    assert longest.epsilon(1e-5) <= 1.0 < longest.epsilon_after(longest.steps + 1, 1e-5)


@pytest.mark.slow
def test_calibration_with_a_test():
    plan = dpsgd(aggregation=PTR).calibrate(epsilon=1.0, delta=1e-5)
    assert 0.999 < plan.epsilon(1e-5) <= 1.0
    longest = dpsgd(aggregation=PTR).longest(epsilon=1.0, delta=1e-5)
    assert longest.epsilon(1e-5) <= 1.0 < longest.epsilon_after(longest.steps + 1, 1e-5)


def test_what_cannot_be_reached():
    with pytest.raises(ValueError, match="No noise_multiplier"):
        dpsgd(sampling_rate=1.0, steps=10**8).calibrate(
            epsilon=1e-4, delta=1e-12, accountant=RdpAccountant
        )
    with pytest.raises(ValueError, match="Expected a private aggregation, got Mean"):
        dpsgd(aggregation=Mean()).calibrate(epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("steps", [10.0, np.int64(10)])
def test_a_number_of_steps_of_any_kind_is_priced_and_carried_out_as_one(steps):
    """epochs / rate is a float, and a size often a scalar of numpy."""
    plan = dpsgd(steps=steps, sampling_rate=np.float32(0.25))
    assert plan == dpsgd(steps=10, sampling_rate=0.25)
    assert repr(plan) == repr(dpsgd(steps=10, sampling_rate=0.25))
    assert plan.epsilon(1e-5) > 0
    with pytest.raises(ValueError, match="Expected steps a whole number >= 0, got -1"):
        plan.epsilon_after(-1, 1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling_rate": 0.0},
        {"sampling_rate": 1.01},
        {"sampling_rate": math.nan},
        {"steps": -1},
        {"steps": 1.5},
        {"expected_batch": 0.0},
        {"steps": "100"},
        {"sampling_rate": "0.1"},
        {"aggregation": "sum"},
    ],
)
def test_what_is_refused(changes):
    with pytest.raises(ValueError, match=f"Expected {next(iter(changes))} "):
        dpsgd(**changes)


@pytest.mark.unhurried
def test_certificates_are_for_the_plans_relation_unless_another_is_given():
    plan = dpsgd(sampling_rate=0.05, steps=20)
    found = plan.certificate(accuracy=0.9, records=2)
    assert found.relation == plan.relation == ZERO_OUT
    other = plan.certificate(accuracy=0.9, records=2, relation=REPLACE_ONE)
    assert 0 < other.at_least < found.at_least < 0.9
    assert plan.withstands(accuracy=0.9, above=0.7, relation=REPLACE_ONE) == 1
    person = attrs.evolve(plan, relation=Relation("zero-out", 3))  # what counts is `records`
    assert person.certificate(accuracy=0.9, records=2) == found
    fewer = plan.certificate(accuracy=0.9, records=2, runs=9)
    assert fewer.at_least < found.at_least
