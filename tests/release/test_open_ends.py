"""Without bounds a lattice still ends somewhere; no answer is released from there."""

import functools
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent.release.columns.column import Column
from prudent.release.lattice import FARTHEST, Lattice
from prudent.release.margins import (
    RobustValue,
    check_margin,
    interquartile_range,
    quantile,
)
from prudent.release.outcome import Refused, Released
from prudent.release.statistics import iqr, median, trimmed_mean
from prudent.release.statistics.tested import trimmed_mean as measured_mean
from tests.oracles.array_column import ArrayColumn
from tests.release.recording import Book

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
TAU, CAP = 2, 5
Measure = Callable[..., RobustValue]


def a_quantile(p: str) -> Measure:
    def measure(column: Column, lattice: Lattice, *, propose: int, cap: int) -> RobustValue:
        return quantile(column, lattice, Fraction(p), propose=propose, cap=cap)

    return measure


def a_mean(trim: int) -> Measure:
    return functools.partial(measured_mean, trim=trim, default=0)


MEASURES = {
    **{f"{p}-quantile": a_quantile(p) for p in ("1/2", "1/4", "9/10", "1")},
    "iqr": interquartile_range,
    "mean": a_mean(0),
    "trimmed mean": a_mean(2),
}
DOMAIN = [-math.inf, 0.0, 1.0, 9.0, math.inf]


@pytest.mark.unhurried
@pytest.mark.parametrize("name", MEASURES)
def test_margins_stay_safe_and_are_zero_where_the_answer_is_at_an_end(name: str) -> None:
    @functools.cache
    def measured(*data: float) -> RobustValue:
        found = MEASURES[name](ArrayColumn(data), lattice=Lattice(0), propose=TAU, cap=CAP)
        assert abs(found.value[0]) < FARTHEST or found.margin == 0, data
        return found

    checked = check_margin(
        lambda data: float(measured(*sorted(data)).value[0]),
        lambda data: measured(*sorted(data)).margin,
        propose=TAU,
        domain=DOMAIN,
        size=5,
    )
    assert checked == 5 * math.comb(4 + 5, 5)


@pytest.mark.parametrize("end", [-math.inf, math.inf])
@pytest.mark.parametrize("name", MEASURES)
def test_many_records_at_an_end_are_far_from_no_end(name: str, end: float) -> None:
    """The interquartile range of clipped records is 0: only the margin can tell."""
    column = ArrayColumn([end] * 40 + [0.0])
    assert MEASURES[name](column, lattice=Lattice(0), propose=TAU, cap=CAP).margin == 0


@pytest.mark.parametrize("name", MEASURES)
def test_bounds_are_no_such_ends(name: str) -> None:
    column = ArrayColumn([9.0] * 40)
    bounded = Lattice(0, -9, 9)
    found = MEASURES[name](column, lattice=bounded, propose=TAU, cap=CAP)
    free = MEASURES[name](column, lattice=Lattice(0), propose=TAU, cap=CAP)
    assert found.margin >= free.margin
    if name not in ("mean", "1-quantile"):
        assert found.margin > 0


MICROSECONDS = 1_700_000_000_000_000 + np.arange(0, 20_000, 2)
STATISTICS = {
    "median": median,
    "iqr": iqr,
    "trimmed mean": functools.partial(trimmed_mean, trim=200),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_time_stamps_in_microseconds_are_released_or_refused_never_clipped(name: str) -> None:
    released = STATISTICS[name](MICROSECONDS, propose=100, **BUDGET)
    truth = {"iqr": 10_000.0}.get(name, 1.70000000001e15)
    assert isinstance(released, Released)
    assert abs(released.value - truth) < 40 * released.noise_scale + 10_000
    refused = STATISTICS[name](MICROSECONDS, propose=1, **BUDGET)
    assert isinstance(refused, Refused)
    assert "or it is beyond ±7e+13 proposals" in refused.reason


@pytest.mark.parametrize("name", STATISTICS)
def test_a_proposal_far_too_small_is_refused_before_anything_is_charged(name: str) -> None:
    book, salaries = Book(), np.full(500, 250_000.0)
    with pytest.raises(ValueError, match="Propose more, or give public bounds"):
        STATISTICS[name](salaries, propose=1e-9, **BUDGET, ledger=book)
    assert not book.charges
    released = STATISTICS[name](salaries, propose=1e-3, **BUDGET)
    assert abs(released.value - (0 if name == "iqr" else 250_000)) < 1
