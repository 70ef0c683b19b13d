"""Threads that share a connection to DuckDB, which has one answer at a time."""

import threading

import ibis
import pytest

from prudent.release.columns.dialects import arrow_batches, fetched

ROWS = 100_000


@pytest.mark.parametrize("ask", [fetched, lambda rows: list(arrow_batches(rows))])
def test_no_thread_ends_the_rows_that_another_reads(ask):
    connection = ibis.duckdb.connect()
    connection.raw_sql(f"CREATE TABLE t AS SELECT range::DOUBLE AS value FROM range({ROWS})")
    table = connection.table("t")
    batches = arrow_batches(table, 2**11)
    read = next(batches).num_rows
    other = threading.Thread(target=ask, args=[table.limit(1)], daemon=True)
    other.start()
    other.join(0.2)  # it waits, else it has ended by now
    read += sum(batch.num_rows for batch in batches)
    other.join(60)
    assert (read, other.is_alive()) == (ROWS, False)
