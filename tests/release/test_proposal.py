"""Proposals from a search that is paid for."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")

from prudent._validate import ArgumentError
from prudent.accounting import PldAccountant
from prudent.release import ProposalSearch, search_quantile
from prudent.release.charging import Preview
from prudent.release.outcome import Refused

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
SHAPE = stats.norm(50.0, 10.0)


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
