"""The worst-case pairs of the releases: neighbours indeed, and as bad as the price says."""

import functools
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import prudent
from prudent.accounting import DiscreteLaplaceTest
from prudent.release.margins import RobustValue
from prudent.release.noise import ReproducibleNoise
from tests.audit.releases import CASES, audit_case, tested
from tests.audit.releases.case import Case, delta_of_errors, exact_epsilon

EXACT = [
    "ptr",
    "median",
    "quantile",
    "iqr",
    "trimmed-mean",
    "mode",
    "count",
    "sum",
    "mean",
    "variance",
    "deviation",
    "proportion",
    "count-distinct",
    "histogram",
    "top-k",
    "join",
    "ratio",
    "weighted-mean",
    "covariance",
    "certificate",
    "partitions",
]
"""Cases whose pair attains the whole price."""

SLOW = {"sum-private-bounds", "mean-private-bounds", "variance-private-bounds", "describe"}


COSTLY = {"iqr-selected", "quantiles", "best-of-many", "federated-round"} | {"regression"}
"""Cases that take half a second or more to build."""


def cheap_first(names: Iterable[str]) -> list[Any]:
    """The names as parameters; the costly ones are tested with the slow tests."""
    marks = {name: [pytest.mark.slow] if name in COSTLY else [] for name in names}
    return [pytest.param(name, marks=each) for name, each in marks.items()]


@functools.cache
def case(name: str) -> Case:
    return CASES[name](1.0, 1e-6)


def multiset(data: Any) -> Counter[Any]:
    return Counter(tuple(row) if np.ndim(row) else row for row in np.asarray(data).tolist())


@pytest.mark.parametrize("name", cheap_first(CASES))
def test_the_pair_differs_by_one_record(name: str) -> None:
    more, fewer = case(name).pair
    if isinstance(more, RobustValue):  # the mechanism itself: its margins say what a neighbour is
        assert abs(more.margin - fewer.margin) <= 1
        moved = abs(more.value[0] - fewer.value[0])
        assert moved <= more.sensitivity or more.margin == fewer.margin == 0
    elif isinstance(more, int):
        assert more == fewer + 1
    else:
        one, other = multiset(more), multiset(fewer)
        assert (one - other).total() == 1
        assert not other - one


CALLED = [
    *("median", "quantile", "iqr", "trimmed-mean", "mode"),
    *("median-selected", "quantiles", "iqr-selected"),
]


@pytest.mark.parametrize("name", cheap_first(CALLED))
def test_a_run_is_what_the_public_function_releases(name: str) -> None:
    """Bit for bit, for the same noise: what a case leaves out does not change the answer."""
    call = case(name).call
    assert call is not None
    for data in case(name).pair:
        for seed in range(3):
            run = case(name).prepare(data, ReproducibleNoise(seed))()
            found = call(data, ReproducibleNoise(seed))
            if isinstance(found, prudent.Refused):
                assert run is None
            elif name == "median-selected":
                assert run[0] == found.value
            else:
                assert run == (found.value / found.spacing if found.spacing else found.value)


READ = [
    "top-k",
    "join",
    "ratio",
    "weighted-mean",
    "covariance",
    "correlation",
    "maximum",
    "minimum",
]


@pytest.mark.parametrize("name", cheap_first(READ))
def test_a_run_reads_what_the_public_function_releases(name: str) -> None:
    """As above, where a run is several numbers of an answer."""
    call = case(name).call
    assert call is not None
    for data in case(name).pair:
        assert case(name).prepare(data, ReproducibleNoise(1))() == call(data, ReproducibleNoise(1))


@pytest.mark.parametrize("name", sorted(SLOW))  # an audit runs the others: see below
def test_every_case_runs_on_both_data_sets(name: str) -> None:
    for data in case(name).pair:
        case(name).prepare(data, ReproducibleNoise(0))()


@pytest.mark.parametrize("name", [*EXACT, "correlation"])
def test_the_price_of_the_pair_is_the_claim(name: str) -> None:
    exact = case(name).exact
    assert exact is not None
    assert 0.999 <= exact <= 1 + 1e-12


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.1, 3.0])
@pytest.mark.parametrize("name", EXACT)
def test_the_price_of_the_pair_is_the_claim_at_any_epsilon(name: str, epsilon: float) -> None:
    exact = CASES[name](epsilon, 1e-6).exact
    assert exact is not None
    assert 0.99 * epsilon <= exact <= epsilon * (1 + 1e-12)


@pytest.mark.parametrize("name", ["exponential", "exponential-quantile"])
def test_the_exponential_pair_is_as_near_as_was_asked(name: str) -> None:
    assert case(name).exact == pytest.approx(0.95, abs=1e-3)


@pytest.mark.parametrize("name", ["ptr", "count"])
def test_an_audit_sees_most_of_the_price(name: str) -> None:
    found = audit_case(name, epsilon=1.0, delta=1e-6, runs=1000, seed=2, confidence=0.99)
    assert 0.3 < found.lower <= 1.0
    assert not found.refuted


@pytest.mark.parametrize("name", cheap_first(sorted(set(CASES) - SLOW)))
def test_every_case_runs(name: str) -> None:
    found = case(name).audit(runs=10, seed=3).result
    assert found.claimed == 1.0
    assert found.runs in (10, 15)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
def test_every_slow_case_runs(name: str) -> None:
    assert not audit_case(name, epsilon=1.0, runs=500, confidence=0.999).refuted


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_an_audit_sees_nine_tenths_of_the_price(name: str) -> None:
    """With the operating system's noise; the confidence keeps chance out of a repeated test."""
    found = audit_case(name, epsilon=1.0, delta=1e-6, runs=60_000, confidence=0.999)
    assert 0.9 <= found.lower <= 1.0


@pytest.mark.slow
def test_an_audit_sees_nine_tenths_of_an_exponential_mechanism() -> None:
    found = audit_case("exponential", epsilon=1.0, runs=400_000, confidence=0.99)
    assert 0.9 <= found.lower <= 1.0


@pytest.mark.unhurried
def test_an_accident_uses_up_delta_and_no_more() -> None:
    found = audit_case("ptr-accident", epsilon=1.0, delta=0.05, runs=1500, seed=1, confidence=0.9)
    chance = DiscreteLaplaceTest(2.0).false_pass(0.05)
    assert found.lower_delta is not None
    assert 0.3 * chance < found.lower_delta <= chance <= 0.05
    assert not found.refuted


def test_an_exact_epsilon_is_that_of_randomised_response() -> None:
    laws = [0.01, 0.9 * 0.99, 0.1 * 0.99, 0.0], [0.0, 0.1 * 0.99, 0.9 * 0.99, 0.01]
    assert exact_epsilon(laws, 0.01) == pytest.approx(math.log(9))
    assert exact_epsilon(laws, 0.001) == math.inf
    assert exact_epsilon(laws, 0.9) == 0.0
    assert exact_epsilon([[0.5, 0.5], [0.5, 0.5]], 0.0) == 0.0


def test_an_exact_epsilon_is_the_crossing_of_the_profile() -> None:
    """Against the definition: the profile at ε is δ, by brute force over all outcomes."""
    draw = np.random.default_rng(4)
    more, fewer = draw.dirichlet(np.ones(30)), draw.dirichlet(np.ones(30))
    epsilon = exact_epsilon([more, fewer], 0.05)
    profile = max(
        np.sum(np.maximum(0, more - math.exp(epsilon) * fewer)),
        np.sum(np.maximum(0, fewer - math.exp(epsilon) * more)),
    )
    assert profile == pytest.approx(0.05)


def test_a_delta_is_refuted_where_an_accident_is_too_frequent() -> None:
    assert 0.04 < delta_of_errors(500, 10_000, 0, 10_000, epsilon=1.0, confidence=0.95) < 0.05
    assert delta_of_errors(500, 10_000, 500, 10_000, epsilon=1.0, confidence=0.95) == 0


def test_the_score_of_a_pair_is_its_log_likelihood_ratio() -> None:
    case = tested.ptr(1.0, 1e-6)
    assert case.score is not None
    assert case.score(None) == pytest.approx(-0.5)
    assert case.score(-(10**6)) == pytest.approx(1.0)
    assert case.score(10**6) == pytest.approx(0.0)
