"""What a release would ask: shown before anything is read or charged, and what it then asks."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ibis = pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="needs the extra `tables`")

import pyarrow as pa  # noqa: E402

from prudent.release import Ledger, statistics, table  # noqa: E402
from prudent.release.columns import queries as table_queries  # noqa: E402
from prudent.release.columns import table_columns  # noqa: E402
from prudent.release.columns.sources import SourceError  # noqa: E402
from prudent.release.columns.units import StagedTable  # noqa: E402
from tests.release.recording import queries_of  # noqa: E402

COST: Any = {"epsilon": 1.0, "delta": 1e-6}
MEDIAN: Any = {"propose": 1.0, **COST}
TABLE = pa.table(
    {
        "x": np.random.default_rng(0).uniform(0.0, 100.0, 5_000),
        "city": ["Oslo", "Bergen"] * 2_500,
        "who": np.arange(5_000) // 2,
    }
)


@pytest.fixture
def narrowing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes small columns go the way of large ones."""
    for name in ("FEW", "FEW_READ"):
        monkeypatch.setattr(table_columns, name, 50)
    monkeypatch.setattr(table_columns, "SAMPLE", 2_000)
    monkeypatch.setattr(table_columns, "_SLACK", 0.05)


def without_numbers(sql: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"-?(\d+(\.\d+)?(e-?\d+)?|\binf\b)", "#", sql))


@pytest.mark.unhurried
@pytest.mark.usefixtures("narrowing")
@pytest.mark.parametrize(
    ("statistic", "own", "queries"),
    [
        (statistics.median, {"propose": 1.0}, 4),
        (statistics.iqr, {"propose": 1.0}, 6),
        (statistics.mode, {}, 1),
        (statistics.median, {"propose": 1.0, "unit": "who"}, 4),
    ],
)
def test_a_release_asks_what_was_explained(
    monkeypatch: pytest.MonkeyPatch, statistic: Any, own: dict[str, Any], queries: int
) -> None:
    """The same queries in the same order, down to the numbers in them; and how many passes."""
    backend = ibis.duckdb.connect()
    backend.con.register("t", TABLE)
    table = backend.table("t")
    explained = queries_of(statistic.__name__, table, "x", **own, **COST)
    sent: list[str] = []

    def noted(send: Any, query: Any, *size: int) -> Any:
        sent.append(str(ibis.to_sql(query, pretty=False)))
        return send(query, *size)

    for name in ("fetched", "arrow_batches"):
        monkeypatch.setattr(table_queries, name, partial(noted, getattr(table_queries, name)))
    statistic(table, "x", **own, **COST)
    if "unit" not in own:  # its grouping is explained in every query, and computed once
        assert [without_numbers(sql) for _, sql in explained] == list(map(without_numbers, sent))
    assert len(explained) == len(sent)
    assert len(sent) == queries


def test_the_most_frequent_category_is_read_in_a_second_question() -> None:
    ((asks, _),) = queries_of("mode", TABLE, "city", categories=["Bergen", "Oslo"], **COST)
    assert asks == table_queries.how_many_of_each.__doc__
    _, (counts, sql), (winner, _) = queries_of(
        "mode", TABLE, "city", by="city", groups=["Oslo"], **COST
    )
    assert counts == table_queries.two_largest_groups.__doc__
    assert winner == table_queries.largest_group.__doc__
    assert "Oslo" in sql


@pytest.mark.unhurried
def test_no_record_is_read_and_nothing_is_charged(tmp_path: Path) -> None:
    backend = ibis.duckdb.connect()
    backend.con.register("t", TABLE)
    trap = backend.sql(
        "SELECT CASE WHEN x > -1 THEN error('read') ELSE x END AS x FROM t",
        schema=ibis.schema({"x": "float64"}),
    )
    with Ledger.create(str(tmp_path / "budget.db"), epsilon=9.0, delta=1e-3) as ledger:
        assert len(queries_of("median", trap, "x", **MEDIAN, ledger=ledger)) == 4
        assert not ledger.history()
        with pytest.raises(SourceError, match="could not be read"):
            statistics.median(trap, "x", **MEDIAN, ledger=ledger)
        assert len(ledger.history()) == 1


@pytest.mark.unhurried
def test_made_up_records_lie_within_the_bounds() -> None:
    questions = queries_of("median", TABLE, "x", bounds=(1e6, 3e6), **MEDIAN)
    (edge,) = re.findall(r"< CAST\('([\d.]+)' AS DOUBLE\)", questions[2][1])
    assert 1.9e6 < float(edge) < 2.1e6


@pytest.mark.unhurried
@pytest.mark.parametrize("own", [{}, {"unit": "who"}], ids=["rows", "persons"])
def test_a_dry_run_of_a_table_shows_the_queries_and_computes_nothing(
    monkeypatch: pytest.MonkeyPatch, own: dict[str, Any]
) -> None:
    """What the engine keeps of units is not computed, and one query asks for two groups."""

    def computed(_: object) -> None:
        raise AssertionError("the rows of units were read")

    monkeypatch.setattr(StagedTable, "kept", computed)
    groups: Any = {"by": "city", "groups": ["Bergen", "Oslo", "Rome"]}
    preview: Any = table(TABLE, ["count(*)", "avg(x)"], **groups, **own, epsilon=1.0, dry_run=True)
    counted, averaged = (part.queries for part in preview.parts)
    assert len(counted) == 1
    assert [query.count("UNNEST") for query in averaged] == [0, 1, 1, 1]
