"""How many queries a statistic asks of a table: few, and the same whatever the records are."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("ibis")
pytest.importorskip("pandas")

import pandas

from prudent.release import statistics
from prudent.release.columns import queries
from prudent.release.noise import ReproducibleNoise

TABLES = {
    "normal": np.random.default_rng(1).normal(500.0, 100.0, 3_000),
    "lognormal": np.random.default_rng(2).lognormal(10.0, 2.0, 3_000),
    "odd": np.array([np.inf, -np.inf, 1e300, -1e-300, 0.0, 5.0]),
    "one": np.array([3.0]),
    "none": np.array([np.nan, np.nan]),
}
SCANS: dict[str, tuple[Callable[..., Any], int]] = {
    "mean": (statistics.mean, 3),
    "sum": (statistics.sum, 3),
    "variance": (statistics.variance, 3),
    "histogram": (statistics.histogram, 3),
    "describe": (statistics.describe, 3),
    "count": (statistics.count, 1),
}


def asked(values: Any, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that one release asks."""
    found: list[str] = []
    honest = queries.TableColumn._ask

    def counted(self: Any, question: Any, **given: Any) -> Any:
        found.append(question.__name__)
        return honest(self, question, **given)

    with monkeypatch.context() as patch:
        patch.setattr(queries.TableColumn, "_ask", counted)
        ask(pandas.DataFrame({"x": values}), "x", epsilon=1.0, noise=ReproducibleNoise(1))
    return found


@pytest.mark.unhurried
@pytest.mark.parametrize("name", SCANS)
def test_a_statistic_asks_few_queries_whatever_the_records(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, most = SCANS[name]
    seen = {tuple(asked(values, ask, monkeypatch)) for values in TABLES.values()}
    assert len(seen) == 1
    assert len(next(iter(seen))) == most


def test_bounds_leave_one_query(monkeypatch: pytest.MonkeyPatch) -> None:
    for statistic in (statistics.mean, statistics.sum, statistics.variance):

        def ask(*table: Any, statistic: Any = statistic, **given: Any) -> Any:
            return statistic(*table, bounds=(0, 1_000), **given)

        assert len(asked(TABLES["normal"], ask, monkeypatch)) == 1


@pytest.mark.unhurried
@pytest.mark.parametrize("name", TABLES)
def test_a_table_answers_as_an_array_does(name: str) -> None:
    frame = pandas.DataFrame({"x": TABLES[name]})
    for statistic in (statistics.sum, statistics.describe):
        one, other = (
            statistic(*data, epsilon=1.0, noise=ReproducibleNoise(8))
            for data in ((frame, "x"), (TABLES[name],))
        )
        assert one == other, statistic
