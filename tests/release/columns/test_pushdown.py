"""What leaves an engine: counts and a window, never the rows; told by the engine itself."""

import json
import re
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="needs the extra `tables`")

from prudent.release import statistics
from prudent.release.columns import queries as table_queries
from prudent.release.columns import table_columns
from prudent.release.columns.table_columns import TableColumn
from tests.release.columns.pushdown import check_little_leaves, fetch_everything, growth
from tests.release.recording import queries_of

COST: Any = {"epsilon": 1.0, "delta": 1e-6}
ROWS = 20_000

RELEASES: dict[str, Callable[[dict[str, str]], Any]] = {
    "median": lambda where: statistics.median(**where, column="x", propose=1.0, **COST),
    "iqr": lambda where: statistics.iqr(**where, column="x", propose=1.0, **COST),
    "trimmed mean": lambda where: statistics.trimmed_mean(
        **where, column="x", trim=40, propose=1.0, **COST
    ),
    "mode": lambda where: statistics.mode(**where, column="y", **COST),
}


@pytest.fixture
def make_table(postgres_url: str) -> Callable[[int], str]:
    """Makes tables of evenly spaced numbers `x` from 0 to 100, and whole `y`, in the server.

    They go when the server does: to drop one here would wait for ever where a test failed and its
    traceback still holds a connection.
    """
    psycopg = pytest.importorskip("psycopg")

    def make(rows: int) -> str:
        name = f"t_{uuid.uuid4().hex}"
        with psycopg.connect(postgres_url) as connection:
            connection.execute(
                f"CREATE TABLE {name} AS SELECT 100 * i / {rows}.0::float8 AS x, i % 100 AS y "
                f"FROM generate_series(1, {rows}) AS i"
            )
        return name

    return make


@pytest.fixture
def narrowing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes small columns go the way of large ones."""
    for name in ("FEW", "FEW_READ"):
        monkeypatch.setattr(table_columns, name, 50)


def telling(address: str) -> str:
    """The address, with a server that writes down every query and how many rows it gave."""
    settings = (
        "-csession_preload_libraries=auto_explain -cauto_explain.log_min_duration=0 "
        "-cauto_explain.log_analyze=on -cauto_explain.log_timing=off "
        "-cauto_explain.log_format=json"
    )
    return f"{address}?options={settings.replace(' ', '%20').replace('=', '%3D')}"


def told(address: str, table: str) -> list[tuple[str, int]]:
    """The queries about a table, from the server's own log, and the rows that left for each."""
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(address) as connection:
        (log,) = connection.execute(
            "SELECT pg_read_file(current_setting('data_directory') || '/../log')"
        ).fetchone()
    entries = [json.loads(entry) for entry in re.findall(r"plan:\n((?:\t.*\n)+)", log)]
    return [
        (entry["Query Text"], entry["Plan"]["Actual Rows"])
        for entry in entries
        if table in entry["Query Text"]
    ]


@pytest.mark.usefixtures("narrowing")
@pytest.mark.parametrize(
    ("release", "queries"), [("median", 5), ("iqr", 7), ("trimmed mean", 7), ("mode", 2)]
)
def test_little_leaves_postgres(
    make_table: Callable[[int], str], postgres_url: str, release: str, queries: int
) -> None:
    """One query asks for no row: it tells the types that the server has and ibis has not."""
    table = make_table(ROWS)
    RELEASES[release]({"connect": telling(postgres_url), "table": table})
    sent = told(postgres_url, table)
    assert len(sent) == queries
    check_little_leaves(sent)


@pytest.mark.usefixtures("narrowing")
def test_a_release_that_fetches_rows_is_caught(
    make_table: Callable[[int], str], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TableColumn, "order_statistics", fetch_everything)
    table = make_table(ROWS)
    RELEASES["median"]({"connect": telling(postgres_url), "table": table})
    with pytest.raises(AssertionError):
        check_little_leaves(told(postgres_url, table))


def plan_of(url: str, sql: str) -> str:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(url) as connection:
        return "\n".join(row[0] for row in connection.execute(f"EXPLAIN {sql}"))


@pytest.mark.usefixtures("narrowing")
def test_postgres_uses_an_index_on_the_column(
    make_table: Callable[[int], str], postgres_url: str
) -> None:
    psycopg = pytest.importorskip("psycopg")
    table = make_table(100_000)

    def plan() -> str:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(f"VACUUM ANALYZE {table}")
        where: Any = {"connect": postgres_url, "table": table, "column": "x"}
        *_, (asks, sql) = queries_of("median", **where, propose=1.0, **COST)
        assert asks == table_queries.near_ranks.__doc__
        return plan_of(postgres_url, sql)

    before = plan()
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"CREATE INDEX ON {table} (x)")
    after = plan()
    assert ("Seq Scan" in before, "Index" in before) == (True, False)
    assert ("Seq Scan" in after, "Index" in after) == (False, True)


def test_postgres_takes_few_groups_for_few(
    make_table: Callable[[int], str], postgres_url: str
) -> None:
    """Of as many as rows it would let one process count what several can."""
    psycopg = pytest.importorskip("psycopg")
    table = make_table(20_000)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"VACUUM ANALYZE {table}")
    where: Any = {"connect": postgres_url, "table": table, "column": "x", "epsilon": 1.0}
    questions = queries_of("mean", **where)
    assert len(questions) == 3
    for _, sql in questions:
        plan = plan_of(postgres_url, sql)
        rows = re.findall(r"Aggregate .*rows=(\d+)", plan)
        assert rows
        assert all(int(each) < ROWS / 10 for each in rows), plan


MEMORY = """
import sys
from prudent.release.statistics import median, trimmed_mean
from prudent.release.columns.table_columns import TableColumn
from tests.release.columns.pushdown import fetch_everything, peak_memory

address, few, many, how = sys.argv[1:]
if how == "fetching":
    TableColumn.order_statistics = fetch_everything

def peak(table):
    where = {"connect": address, "table": table, "column": "x"}
    median(**where, propose=1.0, epsilon=1.0, delta=1e-6)
    trimmed_mean(**where, trim=40, propose=1.0, epsilon=1.0, delta=1e-6)
    return peak_memory()

before = peak(few)
print(peak(many) - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(
    make_table: Callable[[int], str], postgres_url: str
) -> None:
    few, many = make_table(100_000), make_table(1_000_000)
    asking = growth(MEMORY, postgres_url, few, many, "asking")
    assert asking < 4  # MB, where a copy of the column would be 8
    assert growth(MEMORY, postgres_url, few, many, "fetching") > 8


def test_what_leaves_is_judged() -> None:
    check_little_leaves(
        [("SELECT COUNT(*) FROM t", 1), ("SELECT x, COUNT(*) FROM t GROUP BY 1", 9)]
    )
    with pytest.raises(AssertionError):
        check_little_leaves([("SELECT x FROM t", 1)])
    with pytest.raises(AssertionError):
        check_little_leaves([("SELECT x, COUNT(*) FROM t GROUP BY 1", ROWS)])
    assert np.array_equal(fetch_everything(_Numbers(), 2, 3), [2.0, 3.0])


class _Numbers:
    """As much of a column as `fetch_everything` needs."""

    @property
    def rows(self) -> Any:
        import ibis
        import pyarrow as pa

        backend = ibis.duckdb.connect()
        backend.con.register("t", pa.table({"value": [3.0, 1.0, 2.0]}))
        return backend.table("t")
