"""What one record adds to every sum of every estimator, at the same released values."""

from typing import Any

import numpy as np
import pytest

from prudent.estimators import classifiers as logistic
from prudent.estimators import engine, features
from tests.estimators.models.fitting import ALL, Tape, data, fitted

RECORDS: dict[str, list[float]] = {
    "ordinary": [0.1, 510.0, 3.0],
    "far": [1e6, -1e6, 50.0],
    "huge": [1.7e308, -1.7e308, 1e300],
    "infinite": [np.inf, -np.inf, 3.0],
    "tiny": [5e-324, 0.0, -0.0],
    "a tie": [0.0, 500.0, 3.01],
}


def with_record(x: Any, y: Any, record: list[float], place: int) -> tuple[Any, Any]:
    more = np.insert(x, place, record, axis=0)
    return more, None if y is None else np.insert(y, place, 1)


def moves(one: Tape, other: Tape) -> list[float]:
    """How far the exact sums of each release are apart, relative to its sensitivity."""
    found: dict[int, float] = {}
    assert len(one.sums) == len(other.sums)
    for (release, values, size), (_, others, _) in zip(one.sums, other.sums, strict=True):
        difference = [float(a - b) / size for a, b in zip(values, others, strict=True)]
        found[release] = found.get(release, 0.0) + float(np.square(difference).sum())
    return [each**0.5 for each in found.values()]


def check(name: str, record: list[float]) -> None:
    """A record moves each sum by its sensitivity at most, and by what is its own, bit for bit."""
    x, y = data(name, 300)
    tape = fitted(name, *with_record(x, y, record, 150), epsilon=30.0)
    rest = fitted(name, x, y, tape, epsilon=30.0)
    alone = fitted(name, np.array([record]), None if y is None else [1], tape, epsilon=30.0)
    assert max(moves(tape, rest)) <= 1.0
    for whole, part, one in zip(tape.sums, rest.sums, alone.sums, strict=True):
        assert (whole[1] - part[1] == one[1]).all()


@pytest.mark.unhurried
@pytest.mark.parametrize("name", ALL)
def test_a_record_moves_each_sum_by_its_own_alone(name: str) -> None:
    check(name, RECORDS["far"])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("record", RECORDS)
def test_any_record_moves_each_sum_by_its_own_alone(name: str, record: str) -> None:
    check(name, RECORDS[record])


@pytest.mark.unhurried
@pytest.mark.parametrize("name", ["GradientBoostingClassifier", "GradientBoostingRegressor"])
def test_a_record_is_in_one_part_of_each_level_of_cuts(name: str) -> None:
    x, y = data(name, 100)
    tape = fitted(name, *with_record(x, y, RECORDS["a tie"], 50), epsilon=30.0)
    rest = fitted(name, x, y, tape, epsilon=30.0)
    changed = [len(one) - len(other) for one, other in zip(tape.parts, rest.parts, strict=True)]
    assert set(changed) == {0, 1}
    assert sum(changed) == tape.names.count("columns") + tape.names.count("target")


def test_a_row_that_is_not_clipped_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unclipped(vectors: Any, radius: float) -> Any:
        return np.rint(vectors * (engine.LONGEST / radius))

    monkeypatch.setattr(engine, "on_grid", unclipped)
    x, y = data("PCA", 300)
    tape = fitted("PCA", *with_record(x, y, RECORDS["far"], 150), epsilon=30.0)
    assert max(moves(tape, fitted("PCA", x, y, tape, epsilon=30.0))) > 1.0


def test_a_record_that_changes_the_others_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def centred(places: Any, kinds: int) -> Any:
        found = features.one_hot(places, kinds)
        return found - found.sum(axis=0) / max(1, len(found))

    monkeypatch.setattr(logistic, "one_hot", centred)
    with pytest.raises(AssertionError):
        check("LogisticRegression", RECORDS["far"])
