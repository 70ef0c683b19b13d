"""ε is divided by what the questions need, which is public."""

from fractions import Fraction
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("ibis", reason="needs the extra `tables`")

import numpy as np
import pyarrow as pa

import prudent
from prudent.release.questions import rehearsal


@pytest.mark.unhurried
def test_a_share_follows_from_the_question_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "_RECORDS", 100)
    asked = ["count(*)", "median(x)", "quantile(x, 0.99)", "avg(x)", "var_pop(x)"]
    shares = []
    for values in ([0.0], [1e9, -1e9, 5.0]):
        preview = prudent.table(pa.table({"x": values}), asked, epsilon=2.0, dry_run=True)
        assert isinstance(preview, prudent.release.Preview)
        shares.append([part.epsilon for part in preview.parts])
    assert shares[0] == shares[1]
    assert sum(shares[0]) == pytest.approx(2.0)
    count, median, tail, mean, variance = shares[0]
    assert count < median < mean < variance < tail


@pytest.mark.thorough
def test_by_need_is_better_than_equal_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise is drawn from seeds, so the outcome is the same on every run."""
    table_division = pytest.importorskip("benchmarks.table_division")
    monkeypatch.setattr(table_division, "RUNS", 8)
    equal = table_division.errors([1.0] * len(table_division.QUESTIONS))
    by_need = table_division.errors(table_division.needs())
    assert np.mean(by_need) < 0.9 * np.mean(equal)  # one of 80 sums is far off in these draws
    assert max(by_need) < max(equal)


@pytest.mark.unhurried
@pytest.mark.parametrize("number", [1, 3, 7, 11])
def test_the_parts_of_delta_add_up_to_no_more_than_delta(number: int) -> None:
    """Exactly, as those of ε do: a sum of rounded parts may be above the whole."""
    frame = pa.table({"g": ["a", "b"], **{f"x{place}": [1.0, 2.0] for place in range(number)}})
    asks = [prudent.release.Ask("mode", f"x{place}") for place in range(number)]
    for delta in (1e-7, 3e-9, 0.1 * 3e-6, 7.77e-8):
        found: Any = prudent.table(frame, asks, epsilon=1.0, delta=delta, dry_run=True)
        parts = found.parts or (found,)
        assert sum(Fraction(part.delta) for part in parts) <= Fraction(found.delta)
        assert sum(Fraction(part.epsilon) for part in parts) <= 1
        assert found.delta <= delta
