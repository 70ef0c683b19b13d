"""Proposals from rehearsals, and from a search that is paid for."""

import functools
from typing import Any

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent._validate import ArgumentError
from prudent.accounting import PldAccountant
from prudent.release.charging import Preview
from prudent.release.lattice import least_proposal
from prudent.release.outcome import Refused, Released
from prudent.release.statistics import median, trimmed_mean
from prudent.release.statistics.tested import ProposalSearch, search_quantile
from prudent.release.suggestion import suggest_proposal

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
SHAPE = stats.norm(50.0, 10.0)


@pytest.mark.parametrize(
    "statistic", [median, functools.partial(trimmed_mean, trim=100)], ids=["median", "trimmed mean"]
)
def test_a_suggestion_passes_on_data_of_that_shape_and_a_tenth_of_it_does_not(statistic) -> None:
    propose = suggest_proposal(statistic, count=2_000, shape=SHAPE, rehearsals=3, **BUDGET)
    generator = np.random.default_rng(77)
    fresh = [SHAPE.rvs(2_000, random_state=generator) for _ in range(10)]

    def passed(share: float) -> int:
        outcomes = [statistic(data, propose=share * propose, **BUDGET) for data in fresh]
        return sum(isinstance(outcome, Released) for outcome in outcomes)

    assert passed(1.5) >= 9
    assert passed(0.1) == 0


def test_the_median_needs_about_the_width_of_as_many_records_as_the_margin() -> None:
    # The margin of a median is about count × density × τ; the threshold of this test is 28.
    propose = suggest_proposal(median, count=20_000, shape=SHAPE, rehearsals=3, **BUDGET)
    records = 20_000 * SHAPE.pdf(50.0) * propose
    assert 25 < records < 80
    assert propose == float(f"{propose:.3g}")  # it is read, typed and kept in the history


def test_too_few_records_are_said_to_be_too_few() -> None:
    with pytest.raises(ValueError, match="expect more records"):
        suggest_proposal(median, count=10, shape=SHAPE, rehearsals=1, **BUDGET)


def test_a_suggestion_never_charges() -> None:
    class Untouched:
        def charge(self, *_: object, **__: object) -> None:
            raise AssertionError

    suggest_proposal(median, count=2_000, shape=SHAPE, rehearsals=1, ledger=Untouched(), **BUDGET)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "proposals", [pytest.param([1.0], marks=pytest.mark.slow), [0.1, 1.0, 10.0]]
)
def test_a_search_costs_what_was_asked(proposals: list[float]) -> None:
    search = ProposalSearch.calibrate(proposals, **BUDGET)
    spent = PldAccountant().compose(search.event).get_epsilon(1e-6)
    assert 0.99 < spent <= 1.0
    assert len(search.mechanisms) == len(proposals)


@pytest.mark.thorough
def test_a_search_stops_at_the_smallest_proposal_that_passes() -> None:
    data = SHAPE.rvs(20_000, random_state=np.random.default_rng(3))
    released = search_quantile(data, proposals=[3.0, 1e-5, 30.0], **BUDGET)
    assert released.noise_scale == pytest.approx(np.sqrt(8) * 3.0, rel=1e-3)
    assert isinstance(search_quantile(data, proposals=[1e-5, 1e-6, 1e-7], **BUDGET), Refused)


@pytest.mark.unhurried
def test_the_whole_search_is_charged_once_and_first() -> None:
    charges: list[object] = []

    class Book:
        def charge(self, event: object, label: str = "", *, delta: float | None = None) -> None:
            charges.append(event)

    released = search_quantile([5.0] * 500, proposals=[1.0, 2.0], ledger=Book(), **BUDGET)
    assert charges == [released.event]


def test_a_search_goes_the_way_of_every_release() -> None:
    """A margin counts single records: three of one unit would cost three times what is charged."""
    pa = pytest.importorskip("pyarrow", reason="needs the extra `tables`")
    pytest.importorskip("ibis", reason="needs the extra `tables`")
    table = pa.table({"x": np.arange(900.0) % 50, "who": np.arange(900) // 3})
    asked: dict[str, Any] = {"unit": "who", "proposals": [5.0, 50.0], **BUDGET}
    with pytest.raises(ArgumentError, match="per_unit"):
        search_quantile(table, "x", per_unit=3, **asked)
    preview = search_quantile(table, "x", dry_run=True, **asked)
    assert isinstance(preview, Preview)
    outcome = search_quantile(table, "x", **asked)
    assert outcome.event == preview.event
    assert outcome.notes[0] == "Each who counts with the mean of its values."


@pytest.mark.parametrize(
    "wrong", [{"proposals": []}, {"proposals": [-1.0]}, {"proposals": [1.0], "by": "city"}]
)
def test_bad_input(wrong: dict) -> None:
    with pytest.raises(ValueError, match="Expected"):
        search_quantile([1.0], **wrong, **BUDGET)


def test_a_suggestion_on_ties_stops_where_its_noise_no_longer_shows() -> None:
    """There every proposal passes, however small."""
    shapes = {
        1.0: stats.randint(0, 2),  # 0 or 1: the median of many is one of them, and hardly moves
        7.0: stats.rv_discrete(values=([0, 7], [0.9, 0.1]))(),
        5.0: stats.rv_discrete(values=([5], [1.0]))(),
    }
    for gap, shape in shapes.items():
        propose = suggest_proposal(median, count=2_000, shape=shape, rehearsals=1, **BUDGET)
        assert gap / 2_000 < np.sqrt(8) * propose < gap / 500


@pytest.mark.parametrize("bounds", [None, (0.0, 1e6)])
@pytest.mark.parametrize("largest", [1e-9, 1.0])
def test_a_suggestion_goes_as_far_as_the_lattice_does(
    largest: float, bounds: tuple[float, float] | None
) -> None:
    class MostlyZero:
        def rvs(self, size: int, random_state: np.random.Generator) -> np.ndarray:
            others = largest * random_state.random(size)
            return np.where(random_state.random(size) < 0.9, 0.0, others)

    propose = suggest_proposal(
        median, count=2_000, shape=MostlyZero(), rehearsals=1, bounds=bounds, **BUDGET
    )
    assert least_proposal(bounds) <= propose <= 2 * least_proposal(bounds)


def test_a_suggestion_goes_below_a_thousandth_of_the_spread_where_that_passes() -> None:
    budget = {"epsilon": 10.0, "delta": 1e-6}
    propose = suggest_proposal(median, count=200_000, shape=SHAPE, rehearsals=2, **budget)
    assert propose < 4e-4 * 13.5  # of the interquartile range
    records = 200_000 * SHAPE.pdf(50.0) * propose
    assert 1.5 < records < 15  # the threshold of this test is 2.8
