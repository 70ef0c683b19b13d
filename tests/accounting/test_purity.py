"""Only pure events have an ε at δ = 0: what lies beyond the end of a cut-off law is infinite."""

import itertools
import math
import random
from fractions import Fraction

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from dp_accounting.dp_event import RepeatAndSelectDpEvent

from prudent.accounting import (
    ApproximateDpEvent,
    BinomialSelectionDpEvent,
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    ExponentialMechanismDpEvent,
    GaussianTest,
    LaplaceTest,
    PldAccountant,
    ProposeTestReleaseDpEvent,
    RdpAccountant,
    Reveals,
    WorstOfDpEvent,
)
from prudent.accounting.group_privacy import epsilon_of
from prudent.accounting.losses.domination import dominating
from prudent.accounting.relations import ADD_REMOVE, REPLACE_ONE, Relation
from prudent.budget.prices import pure_epsilon

PURE = [
    dp.LaplaceDpEvent(3.0),
    LaplaceTest(3.0),
    DiscreteLaplaceTest(0.4),
    DiscreteLaplaceTest(300.0),
    ExponentialMechanismDpEvent(0.7),
    ApproximateDpEvent(0.5, 0.0),
]
NOT_PURE = [
    dp.GaussianDpEvent(3.0),
    dp.GaussianDpEvent(0.05),
    GaussianTest(3.0),
    *(DiscreteGaussianTest(scale) for scale in (0.02, 0.3, 5.0, 1e4)),
    ApproximateDpEvent(0.5, 1e-30),
    ProposeTestReleaseDpEvent(math.inf, 0.0, DiscreteLaplaceTest(3.0), 1e-30, 1e9, Reveals.BRANCH),
]
TESTED = [
    ProposeTestReleaseDpEvent(4.0, 0.5, test(scale), 1e-9, reveals=reveals)
    for test, scale, reveals in itertools.product(
        (LaplaceTest, GaussianTest, DiscreteLaplaceTest, DiscreteGaussianTest),
        (0.5, 4.0, 100.0),
        Reveals,
    )
]
AROUND = {
    "alone": lambda event: event,
    "sampled": lambda event: dp.PoissonSampledDpEvent(0.3, event),
    "twice": lambda event: dp.SelfComposedDpEvent(event, 2),
    "beside": lambda event: dp.ComposedDpEvent([dp.LaplaceDpEvent(2.0), event]),
    "one of two": lambda event: WorstOfDpEvent([dp.LaplaceDpEvent(2.0), event]),
}
SELECTED = {
    "best of a few": lambda event: BinomialSelectionDpEvent(event, 3, 0.5),
    "best of some": lambda event: RepeatAndSelectDpEvent(event, 2.0, 1.0),
}


def shown(event: dp.DpEvent) -> str:
    return str(event)[:70]


@pytest.mark.parametrize("kind", ["laplace", "discrete", "choice", "approximate"])
def test_a_largest_loss_is_rounded_up(kind: str) -> None:
    """It is attained: nothing else keeps a bounded ε from being printed below the true one."""
    rng = random.Random(3)
    with mpmath.workdps(60):
        for _ in range(12):
            scale, rate = 10 ** rng.uniform(-1.2, 5), 10 ** rng.uniform(-4, 0)
            loss, event = {
                "laplace": (1 / mpmath.mpf(scale), dp.LaplaceDpEvent(scale)),
                "discrete": (1 / mpmath.mpf(scale), DiscreteLaplaceTest(scale)),
                "choice": (mpmath.mpf(1 / scale), ExponentialMechanismDpEvent(1 / scale)),
                "approximate": (mpmath.mpf(1 / scale), ApproximateDpEvent(1 / scale, 0.0)),
            }[kind]
            sampled = max(
                mpmath.log1p(rate * mpmath.expm1(loss)), -mpmath.log1p(rate * mpmath.expm1(-loss))
            )
            for truth, whole in (
                (loss, event),
                (3 * loss, dp.SelfComposedDpEvent(event, 3)),
                (sampled, dp.PoissonSampledDpEvent(rate, event)),
                (5 * sampled, dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, event), 5)),
                (max(loss, mpmath.mpf("1e-6")), WorstOfDpEvent([event, dp.LaplaceDpEvent(1e6)])),
            ):
                found = PldAccountant().compose(whole).get_epsilon(0.0)
                assert truth <= found <= truth * (1 + 1e-9) + mpmath.mpf("1e-14")
                assert RdpAccountant([2.0, math.inf]).compose(whole).get_epsilon(0.0) >= truth


@pytest.mark.parametrize("rate", [1e-12, 1e-6, 0.5, 1 - 1e-12])
def test_a_largest_loss_keeps_its_digits_on_a_sample(rate: float) -> None:
    """Also of a record that is hardly ever drawn, or nearly always; and of as many runs."""
    for loss in (0.5, 1.0, 20.0, 500.0):
        event = dp.PoissonSampledDpEvent(rate, ExponentialMechanismDpEvent(loss))
        worst = dominating(event)
        with mpmath.workdps(60):
            for adding in (False, True):
                truth = abs(mpmath.log1p(rate * mpmath.expm1(-loss if adding else loss)))
                assert truth <= worst.largest_loss(adding=adding) <= truth * (1 + 2e-15)
            truth = mpmath.log1p(rate * mpmath.expm1(loss))
            assert PldAccountant().compose(event, 10**6).get_epsilon(0.0) >= 10**6 * truth


@pytest.mark.parametrize("event", TESTED, ids=shown)
def test_no_propose_test_release_is_pure(event: dp.DpEvent) -> None:
    for whole in (event, dp.PoissonSampledDpEvent(0.3, event)):
        assert PldAccountant().compose(whole).get_epsilon(0.0) == math.inf


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("event", NOT_PURE, ids=shown)
def test_what_is_not_pure_has_no_epsilon_without_delta(event: dp.DpEvent, around: object) -> None:
    whole = around(event)
    assert PldAccountant().compose(whole).get_epsilon(0.0) == math.inf
    renyi = RdpAccountant((2.0, 64.0, math.inf))
    if renyi.supports(whole):
        assert renyi.compose(whole).get_epsilon(0.0) == math.inf
    assert pure_epsilon(whole) == math.inf


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
@pytest.mark.parametrize("event", PURE, ids=shown)
def test_what_is_pure_has_one(event: dp.DpEvent, around: object) -> None:
    whole = around(event)
    assert pure_epsilon(whole) < math.inf
    assert PldAccountant().compose(whole).get_epsilon(0.0) < math.inf


@pytest.mark.parametrize("around", SELECTED.values(), ids=SELECTED)
@pytest.mark.parametrize(
    ("event", "pure"),
    [(dp.LaplaceDpEvent(2.0), True), (DiscreteGaussianTest(5.0), False)],
    ids=["laplace", "gaussian"],
)
def test_so_it_is_with_the_best_of_several(event: dp.DpEvent, around: object, pure: bool) -> None:
    assert (PldAccountant().compose(around(event)).get_epsilon(0.0) < math.inf) == pure


@pytest.mark.parametrize("relation", [Relation(records=2), REPLACE_ONE], ids=str)
def test_so_it_is_for_groups(relation: Relation) -> None:
    assert epsilon_of(DiscreteGaussianTest(5.0), 0.0, relation) == math.inf
    assert epsilon_of(dp.LaplaceDpEvent(5.0), 0.0, relation) < math.inf


def exact_delta(scale: float, epsilon: float) -> mpmath.mpf:
    """δ(ε) of discrete Gaussian noise, all integers up to 60 standard deviations in 60 digits."""
    with mpmath.workdps(60):
        reach = math.ceil(60 * scale) + 2
        weights = {
            x: mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * mpmath.mpf(scale) ** 2))
            for x in range(-reach - 1, reach + 1)
        }
        growth = mpmath.exp(mpmath.mpf(epsilon))
        excess = sum(
            max(mpmath.mpf(0), weights[x - 1] - growth * weights[x]) for x in range(-reach, reach)
        )
        return excess / sum(weights.values())


@pytest.mark.parametrize("scale", [0.3, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-12, 1e-18, 1e-20, 1e-21, 1e-24, 1e-30, 1e-60])
def test_the_tail_of_discrete_gaussian_noise_is_counted(scale: float, delta: float) -> None:
    epsilon = PldAccountant().compose(DiscreteGaussianTest(scale)).get_epsilon(delta)
    if epsilon < math.inf:
        assert exact_delta(scale, epsilon) <= delta
    if delta >= 1e-20:
        assert exact_delta(scale, epsilon * (1 - 2e-3)) > delta


def test_profiles_end_where_the_largest_loss_is() -> None:
    """A finite largest loss leaves nothing at infinity, and an infinite one is never claimed."""
    for event in (*PURE, *NOT_PURE, *TESTED):
        worst = dominating(event)
        if worst is not None:
            for adding in (False, True):
                largest = worst.largest_loss(adding=adding)
                if largest < math.inf:
                    beyond = worst.profile(np.array([largest * (1 + 1e-9)]), adding=adding)
                    assert beyond[0] <= 1e-15


@pytest.mark.parametrize("seed", range(8))
def test_a_pure_price_is_not_below_the_exact_sum(seed: int) -> None:
    """In rational numbers, for one record and for several."""
    rng = random.Random(seed)
    parts = []
    for _ in range(3):
        x, count = rng.uniform(0.1, 5), rng.randint(1, 9)
        kinds = (
            (dp.LaplaceDpEvent(x), 1 / Fraction(x)),
            (ExponentialMechanismDpEvent(x), Fraction(x)),
            (DiscreteLaplaceTest(x), 1 / Fraction(x)),
        )
        event, exact = rng.choice(kinds)
        parts.append((dp.SelfComposedDpEvent(event, count), count * exact))
    events, exact = [event for event, _ in parts], sum(each for _, each in parts)
    for relation in (ADD_REMOVE, REPLACE_ONE, Relation("add-remove", 3)):
        for event, wanted in ((dp.ComposedDpEvent(events), exact), parts[0]):
            found = epsilon_of(event, 0.0, relation)
            assert wanted * relation.distance <= Fraction(found)
            assert found <= float(wanted * relation.distance) * (1 + 1e-14)
