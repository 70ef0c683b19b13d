"""The public functions: near the truth, charged first, silent about the data."""

import functools
import math
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.accounting import PldAccountant
from prudent.release.noise import Distribution, ReproducibleNoise
from prudent.release.outcome import Branch, Refused, Released
from prudent.release.statistics import iqr, median, mode, quantile, trimmed_mean
from tests.release.recording import Book

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
SAMPLE = np.random.default_rng(5).normal(100.0, 10.0, 20_000)
SORTED = np.sort(SAMPLE)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_series_is_as_good_as_an_array(library: str) -> None:
    series = pytest.importorskip(library).Series("minutes", SAMPLE)
    if library == "pandas":
        series = pytest.importorskip(library).Series(SAMPLE, name="minutes")
    pytest.importorskip("ibis")
    options = {"propose": 0.1, **BUDGET, "noise": ReproducibleNoise(1)}
    given = median(series, **options)
    assert given == median(SAMPLE, **options | {"noise": ReproducibleNoise(1)})


CASES = {
    "median": (median, {"propose": 0.1}, SORTED[9_999]),
    "quantile": (functools.partial(quantile, p=0.9), {"propose": 0.2}, SORTED[17_999]),
    "iqr": (iqr, {"propose": 0.1}, SORTED[14_999] - SORTED[4_999]),
    "trimmed mean": (
        functools.partial(trimmed_mean, trim=200),
        {"propose": 0.01},
        SORTED[200:-200].mean(),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_released_is_near_the_truth(name: str) -> None:
    statistic, arguments, truth = CASES[name]
    released = statistic(SAMPLE, **arguments, **BUDGET)
    assert isinstance(released, Released)
    assert released.branch is Branch.ROBUST
    assert abs(released.value - truth) < 25 * released.noise_scale
    assert released.noise_scale == pytest.approx(math.sqrt(8) * arguments["propose"], rel=1 / 64)
    assert (released.value / released.spacing).is_integer()


def test_bad_input_is_not_charged() -> None:
    book = Book()
    for wrong in (
        {"propose": -1},
        {"propose": 0},
        {"propose": 1, "unit": "person"},
        {"propose": 1, "groups": "a"},
    ):
        with pytest.raises(ValueError, match="Expected"):
            median(SAMPLE, **wrong, **BUDGET, ledger=book)
    with pytest.raises(ValueError, match="numbers"):
        median(np.array(["a", "b"]), propose=1, **BUDGET, ledger=book)
    with pytest.raises(TypeError, match="unexpected keyword"):
        median(SAMPLE, propose=1, **BUDGET, ledger=book, bound=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="epsilon"):
        median(SAMPLE, propose=1, delta=1e-6, ledger=book)  # type: ignore[call-arg]
    assert book.charges == []


@pytest.mark.parametrize(
    "statistic",
    [median, iqr, functools.partial(trimmed_mean, trim=3)],
    ids=["median", "iqr", "trimmed mean"],
)
def test_a_number_needs_a_proposal_above_zero(statistic) -> None:
    book = Book()
    with pytest.raises(ValueError, match="Expected propose finite and > 0, got 0"):
        statistic([4.0] * 500, propose=0, **BUDGET, ledger=book)
    assert book.charges == []


def test_a_refusal_says_the_same_whatever_the_data() -> None:
    outcomes = [median(data, propose=1.0, **BUDGET) for data in ([], [1.0], [1e300, -1e300])]
    assert len({outcome.reason for outcome in outcomes}) == 1
    assert len({repr(outcome.event) for outcome in outcomes}) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"default": math.nan},
        {"default": 1e300},
        {"default": 7.0, "bounds": (0, 5)},
        {"bounds": "ab"},
        {"trim": 10**30},
    ],
)
def test_a_trimmed_mean_that_cannot_be_is_not_charged(wrong: dict) -> None:
    book = Book()
    with pytest.raises(ValueError, match="Expected"):
        trimmed_mean(SAMPLE, **{"trim": 5, "propose": 0.1, **BUDGET, **wrong}, ledger=book)
    assert book.charges == []


def test_a_fallback_answers_where_the_test_fails() -> None:
    released = median(SAMPLE[:10], propose=0.1, **BUDGET, bounds=(0, 200), fallback=True)
    assert released.branch is Branch.FALLBACK
    assert released.noise_scale == pytest.approx(math.sqrt(8) * 200, rel=1e-3)
    mean = trimmed_mean(SAMPLE[:10], trim=2, propose=0.1, **BUDGET, bounds=(0, 200), fallback=True)
    assert mean.noise_scale == pytest.approx(math.sqrt(8) * 100, rel=1e-3)


def test_the_fallback_of_a_mean_has_noise_for_every_step_of_the_lattice() -> None:
    """Rounded to the lattice, bound and default are 1,001 steps apart; as doubles, 1,000.0."""
    bounds, default = (0.0, 1002.5), math.nextafter(2.5, 0)
    assert bounds[1] - default == 1000.0
    released = trimmed_mean(
        [], trim=2, propose=64.0, **BUDGET, bounds=bounds, default=default, fallback=True
    )
    assert (released.branch, released.spacing) == (Branch.FALLBACK, 1.0)
    assert released.noise_scale >= math.sqrt(8) * 1001


@pytest.mark.unhurried
def test_gaussian_noise_on_request() -> None:
    released = median(SAMPLE, propose=0.1, **BUDGET, distribution=Distribution.GAUSSIAN)
    assert PldAccountant().compose(released.event).get_epsilon(1e-6) <= 1.0
    assert released.noise_scale > math.sqrt(8) * 0.1


def test_p_may_be_a_fraction() -> None:
    released = quantile(SAMPLE, p=Fraction(1, 3), propose=0.2, **BUDGET)
    assert abs(released.value - np.quantile(SAMPLE, 1 / 3)) < 25 * released.noise_scale


class TestMode:
    def test_a_clear_category_is_released_as_it_is(self) -> None:
        released = mode(["b"] * 500 + ["a"] * 300, **BUDGET)
        assert (released.value, released.noise_scale, released.spacing) == ("b", 0.0, 0.0)
        assert PldAccountant().compose(released.event).get_epsilon(1e-6) <= 1.0

    def test_a_close_race_is_refused(self) -> None:
        assert isinstance(mode(["b"] * 500 + ["a"] * 499, **BUDGET), Refused)

    def test_only_public_categories_count(self) -> None:
        data = ["secret"] * 900 + ["a"] * 100
        assert mode(data, categories=["a", "b"], **BUDGET).value == "a"

    def test_bounds_make_no_sense_for_categories(self) -> None:
        with pytest.raises(TypeError, match="bounds"):
            mode(["a"], **BUDGET, bounds=(0, 1))
