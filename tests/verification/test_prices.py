"""Prices of every kind of event, proved again; and what is below them, refuted."""

import json
import math

import dp_accounting as dp
import mpmath
import pytest
from dp_accounting.dp_event import DiscreteLaplaceDpEvent, RepeatAndSelectDpEvent

from prudent.accounting import (
    ADD_REMOVE,
    REPLACE_ONE,
    ZERO_OUT,
    ApproximateDpEvent,
    BinomialSelectionDpEvent,
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    ExponentialMechanismDpEvent,
    GaussianTest,
    LaplaceTest,
    ProposeTestReleaseDpEvent,
    Relation,
    WorstOfDpEvent,
)
from prudent.accounting.group_privacy import epsilon_of
from prudent.accounting.serialisation import to_plain

pytest.importorskip("flint")
from prudent_verify.events import Relation as Typed
from prudent_verify.events import parsed
from prudent_verify.pairs import UnknownEventError
from prudent_verify.prices import ROUNDING, Parts, prove

RATE = 256 / 60_000
GAUSSIAN = dp.GaussianDpEvent


def sampled(event, steps=2000, rate=RATE):
    return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, event), steps)


def ptr(test, reveals="margin"):
    return ProposeTestReleaseDpEvent(1.1, 0.5, test, 1e-8, None, reveals)


def together(*events):
    return dp.ComposedDpEvent(list(events))


LAPLACE = dp.LaplaceDpEvent(2.0)
CHOICE = ExponentialMechanismDpEvent(0.4)
COUNT = DiscreteLaplaceDpEvent(0.3, 1)
REFUSING = ProposeTestReleaseDpEvent(math.inf, 0.0, DiscreteLaplaceTest(3.0), 1e-8, 3.0, "branch")

QUICK = {
    "pure": (together(LAPLACE, CHOICE, COUNT), 0.0, ADD_REMOVE),
    "pure, replaced": (together(LAPLACE, CHOICE), 0.0, REPLACE_ONE),
    "gaussian": (GAUSSIAN(2.0), 1e-6, ADD_REMOVE),
    "sensitivity": (DiscreteLaplaceDpEvent(0.2, 3), 1e-6, ADD_REMOVE),
    "refusing": (REFUSING, 1e-6, ADD_REMOVE),
    "noisy margin": (ptr(LaplaceTest(1.0)), 1e-6, ADD_REMOVE),
    "one sample": (dp.PoissonSampledDpEvent(0.1, ptr(LaplaceTest(1.0))), 1e-6, ADD_REMOVE),
    "replaced": (together(GAUSSIAN(6.0), GAUSSIAN(9.0)), 1e-5, REPLACE_ONE),
}
LONGER = {
    "composed": (together(LAPLACE, CHOICE, COUNT), 1e-6, ADD_REMOVE),
    "approximate": (together(ApproximateDpEvent(0.5, 1e-7), LAPLACE), 1e-6, ADD_REMOVE),
    "discrete gaussian": (together(DiscreteGaussianTest(6.0), COUNT), 1e-6, ADD_REMOVE),
    "training": (sampled(GAUSSIAN(1.1)), 1e-5, ZERO_OUT),
    "tested training": (sampled(ptr(LaplaceTest(1.0))), 1e-5, ZERO_OUT),
    "branches": (sampled(ptr(LaplaceTest(1.0), "branch"), 500), 1e-7, ZERO_OUT),
    "monotone": (sampled(ptr(GaussianTest(2.0), "monotone-branch"), 500), 1e-5, ZERO_OUT),
    "three records": (sampled(GAUSSIAN(2.0), 500), 1e-5, Relation("zero-out", 3)),
    "a chain": (sampled(ptr(LaplaceTest(3.0)), 100), 1e-5, Relation("add-remove", 4)),
    "replaced in samples": (sampled(GAUSSIAN(2.0), 500), 1e-5, REPLACE_ONE),
    "geometric": (RepeatAndSelectDpEvent(sampled(GAUSSIAN(1.5), 500), 10.0, 1.0), 1e-5, ZERO_OUT),
    "logarithmic": (RepeatAndSelectDpEvent(GAUSSIAN(9.0), 20.0, 0.0), 1e-5, ADD_REMOVE),
    "poisson": (RepeatAndSelectDpEvent(GAUSSIAN(9.0), 10.0, math.inf), 1e-5, ADD_REMOVE),
    "held-out records": (
        WorstOfDpEvent([sampled(GAUSSIAN(1.1), 500), GAUSSIAN(9.0)]),
        1e-5,
        ZERO_OUT,
    ),
    "worst of": (WorstOfDpEvent([dp.LaplaceDpEvent(4.0), CHOICE]), 1e-5, ADD_REMOVE),
}
CASES = {name: pytest.param(*case, id=name) for name, case in QUICK.items()}
CASES |= {
    name: pytest.param(*case, id=name, marks=pytest.mark.thorough) for name, case in LONGER.items()
}


def shown(event, relation, epsilon, delta):
    plain = json.loads(json.dumps(to_plain(event)))
    return prove(parsed(plain), Typed.parsed(to_plain(relation)), epsilon, delta)


def proved(event, relation, epsilon, delta):
    return shown(event, relation, epsilon, delta).epsilon


BRACKETED = ("composed", "a chain", "held-out records")
"""Losses with atoms between the points of a grid, and chains: their bounds are less sharp."""


@pytest.mark.parametrize(("event", "delta", "relation"), CASES.values())
def test_prices_are_proved_and_lower_ones_are_not(event, delta, relation, request):
    epsilon = epsilon_of(event, delta, relation)
    found = shown(event, relation, epsilon, delta)
    assert found.least <= epsilon * (1 + ROUNDING)
    if request.node.callspec.id in BRACKETED:
        assert found.epsilon <= epsilon * 1.001
    else:
        assert found.epsilon <= epsilon * (1 + max(found.rounding, ROUNDING))
        assert found.rounding <= 1e-5
    false = shown(event, relation, 0.98 * epsilon, delta)
    assert false.epsilon > 0.98 * epsilon * (1 + ROUNDING)
    assert false.least > 0.98 * epsilon or request.node.callspec.id in COARSE


COARSE = ("a chain", "geometric", "logarithmic", "poisson", "worst of")
"""Events of which sharper bounds are known than those that are shown here."""


@pytest.mark.parametrize("short", [0.999, 0.9999], ids=["0.1 %", "0.01 %"])
@pytest.mark.parametrize("name", ["gaussian", "refusing", "noisy margin", "replaced"])
def test_a_price_a_little_too_low_is_refuted(name, short):
    event, delta, relation = QUICK[name]
    claim = short * epsilon_of(event, delta, relation)
    found = shown(event, relation, claim, delta)
    assert claim < found.least <= found.epsilon


def test_few_outcomes_are_summed_one_by_one():
    """The exact δ of two counts and a test: over all outcomes, in 50 digits."""
    counts = [(mpmath.mpf(parameter), -mpmath.mpf(parameter)) for parameter in (0.4, 0.2)]
    with mpmath.workdps(50):

        def delta(epsilon):
            """Of a test at margins from 1 to 20, each with the counts."""
            ratio = mpmath.exp(-mpmath.mpf(1) / 3)
            threshold = mpmath.ceil(-3 * mpmath.log(mpmath.mpf("1e-7") * (1 + ratio)) - 1)
            worst = mpmath.mpf(0)
            for margin in range(1, 60):
                less, one = (_passes(threshold - m, ratio) for m in (margin - 1, margin))
                for p, q in ((less, one), (one, less)):
                    worst = max(worst, _delta([(p, q), (1 - p, 1 - q)], counts, epsilon))
            wrong = _passes(threshold, ratio)
            return max(
                worst, _delta([(wrong, mpmath.mpf(0)), (1 - wrong, 1 - wrong)], counts, epsilon)
            )

        test = ProposeTestReleaseDpEvent(
            math.inf, 0.0, DiscreteLaplaceTest(3.0), 1e-7, 1e9, "branch"
        )
        noises = [DiscreteLaplaceDpEvent(parameter, 1) for parameter in (0.4, 0.2)]
        event = together(test, *noises)
        found = shown(event, ADD_REMOVE, 0.9, 1e-6)
        assert delta(found.epsilon) <= 1e-6 < delta(found.epsilon * (1 - 3e-6))
        assert 0.9 < found.least <= found.epsilon


def _passes(distance, ratio):
    """Pr[discrete Laplace noise > distance]."""
    if distance >= 0:
        return ratio ** (distance + 1) / (1 + ratio)
    return 1 - ratio**-distance / (1 + ratio)


def _delta(labels, noises, epsilon):
    """Σ max(0, p - e^ε q) over all outcomes of labels and of two-valued noises."""
    outcomes = labels
    for high, low in noises:
        up, down = (1 / (1 + mpmath.exp(-each)) for each in (high, low))
        outcomes = [(p * a, q * b) for p, q in outcomes for a, b in ((up, down), (down, up))]
    return sum(max(mpmath.mpf(0), p - mpmath.exp(epsilon) * q) for p, q in outcomes)


@pytest.mark.thorough
def test_a_run_is_between_bounds_that_its_own_claim_is_not_part_of():
    """The bound from below needs no trust in the claim: it is that of dp_accounting to 4 digits."""
    event = sampled(GAUSSIAN(1.1))
    truth = dp.pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    found = shown(event, ADD_REMOVE, 0.999 * truth, 1e-5)
    assert 0.999 * truth < found.least <= truth * (1 + 1e-4)
    assert found.least > truth * (1 - 5e-4)


@pytest.mark.thorough
def test_the_best_of_a_binomial_number_has_a_proof_though_not_the_sharpest():
    event = BinomialSelectionDpEvent(GAUSSIAN(9.0), 8, 0.9)
    epsilon = epsilon_of(event, 1e-5)
    assert epsilon * 0.98 < proved(event, ADD_REMOVE, epsilon, 1e-5) < epsilon * 1.02


@pytest.mark.parametrize(
    "event",
    [dp.NonPrivateDpEvent(), dp.SampledWithoutReplacementDpEvent(10, 2, GAUSSIAN(1.0))],
    ids=["no noise", "another sampling"],
)
def test_nothing_is_claimed_about_other_events(event):
    with pytest.raises(UnknownEventError):
        proved(event, ADD_REMOVE, 1.0, 1e-6)
    with pytest.raises(UnknownEventError):
        proved(event, ADD_REMOVE, 1.0, 0.0)


def test_numbers_of_an_event_are_checked():
    for bad in (-1.0, 0.0, "x", None, True, math.nan):
        event = {"kind": "GaussianDpEvent", "noise_multiplier": bad}
        with pytest.raises(ValueError, match=r"Expected|could not convert"):
            parsed(event)


def test_rounded_thresholds_are_covered_in_all_releases_inside_others():
    test = to_plain(dp.SelfComposedDpEvent(dp.LaplaceDpEvent(4.0), 500))
    inside = {"kind": "WorstOfDpEvent", "events": [test, to_plain(GAUSSIAN(9.0))]}
    both = {"kind": "ComposedDpEvent", "events": [to_plain(GAUSSIAN(2.0)), inside]}
    parts = Parts.of(parsed(both), Typed("add-remove", 1))
    assert parts.releases >= 501 > sum(count for _, count in parts.laws)
