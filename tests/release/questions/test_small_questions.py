"""Questions that were read wrongly, refused without need, or answered without a word."""

import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("ibis", reason="needs the extra `tables`")

import pyarrow as pa

import prudent
from tests.release.recording import Silence

QUIET: Any = {"epsilon": 10.0, "noise": Silence()}
TABLE = pa.table(
    {
        "x": [1.0, None] * 50,
        "ts": [datetime.datetime(2024, 1, 1 + place % 4) for place in range(100)],
        "d": [datetime.date(2023 + place % 2, 1, 1) for place in range(100)],
        "name": ["a"] * 100,
    }
)


@pytest.mark.parametrize(
    ("query", "value"),
    [
        ("SELECT count() FROM t", 100),
        ("SELECT count(x IS NULL) FROM t", 100),
        ("SELECT avg(x IS NULL) FROM t", 0.5),
        ("SELECT count(*) FROM t WHERE ts >= DATE '2024-01-02'", 75),
        ("SELECT count(*) FROM t WHERE ts BETWEEN DATE '2024-01-02' AND DATE '2024-01-03'", 50),
    ],
)
def test_a_query_means_what_it_says(query: str, value: float) -> None:
    found: Any = prudent.sql(query, t=TABLE, **QUIET)
    (answer,) = found.values()
    assert answer.value == pytest.approx(value, abs=1e-3)


def test_a_constant_date_may_stand_beside_times() -> None:
    day = datetime.date(2024, 1, 2)
    assert prudent.count(TABLE, where=lambda t: t.ts >= day, **QUIET).value == 75


@pytest.mark.parametrize("condition", ["year(d) IN (2024, 2022)", "year(d) = 2024"])
def test_groups_that_a_condition_lists_are_public(condition: str) -> None:
    """Also of what is computed from a column: no delta is needed."""
    query = f"SELECT year(d), count(*) AS n FROM t WHERE {condition} GROUP BY year(d)"
    found: Any = prudent.sql(query, t=TABLE, **QUIET)
    assert found["n"][2024].value == 50


def test_declared_text_is_refused_before_a_charge(tmp_path: Path) -> None:
    with prudent.Ledger(tmp_path / "l.db", epsilon=1.0, delta=1e-6) as ledger:
        with pytest.raises(prudent.ArgumentError, match="'name', which holds text"):
            prudent.median(TABLE, "name", epsilon=0.5, ledger=ledger)
        assert not ledger.history()


@pytest.fixture
def dates(tmp_path: Path) -> Path:
    """Dates in two formats, of which one is read."""
    lines = ["2024-01-05,a"] * 50 + ["05.01.2024,a"] * 20 + ["2024-02-05,b"] * 30 + [",b"] * 5
    (tmp_path / "d.csv").write_text("\n".join(["d,c", *lines]) + "\n")
    return tmp_path / "d.csv"


def test_rows_whose_date_is_not_read_are_counted(dates: Path) -> None:
    months = prudent.count(dates, by="d:month", groups=["2024-01..2024-02"], **QUIET)
    assert [each.value for each in months.values()] == [50, 30, 20]
    assert list(months)[-1] == "no date"
    given: Any = {"groups": "private", "delta": 1e-6, **QUIET}
    assert prudent.count(dates, by="d:month", **given)["no date"].value == 20
    both = prudent.count(dates, by=["d:month", "c"], **given)
    assert both["no date", "a"].value == 20


def test_a_group_without_a_date_is_sorted_beside_others(dates: Path) -> None:
    query = f"SELECT date_trunc('month', d), count(*) AS n FROM '{dates}' GROUP BY 1 ORDER BY 1"
    found: Any = prudent.sql(query, delta=1e-6, **QUIET)
    assert [each.value for each in found["n"].values()] == [50, 30, 20]


def test_a_description_of_undeclared_columns_says_why_it_only_counts(dates: Path) -> None:
    found: Any = prudent.describe(dates, **QUIET)
    assert set(found.answers) == {"count(d)", "count(c)"}
    assert "no declared type" in str(found)
    assert "no declared type" in found.plain()["notes"][0]
    assert "no declared type" not in str(prudent.describe(TABLE.select(["x"]), **QUIET))
