"""Intermediate tables that an engine computes once, at the first query, and drops with the column.

Grouping the rows of every unit takes longer than any question about the result, so the result is
kept in the engine: as a temporary table in DuckDB and PostgreSQL, as a cached frame in Spark. Where
that is not possible, the grouping is repeated in every query. Which of the two happens depends on
the engine and on permissions, never on the data, and neither reads a record before the first query.
"""

import contextlib
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import attrs
import ibis
import ibis.expr.types as ir

from prudent.release.columns.dialects import backend_name

Keep = Callable[[], ir.Table]


class StagedTable:
    """A table that is computed by an engine at most once."""

    def __init__(self, rows: ir.Table, *, own_connection: bool, owner: object = None) -> None:
        """Prepare the table, without reading a record.

        Args:
            rows: The table to compute.
            own_connection: Whether the connection was opened here. The transaction of a connection
                to PostgreSQL that belongs to the caller is left alone.
            owner: An object to keep alive as long as this table, such as the open source.
        """
        self._rows = rows
        self._owner = owner
        self._stage = _stage(rows, own_connection)
        self._kept: ir.Table | None = None
        weakref.finalize(self, self._stage.drop)

    @property
    def rows(self) -> ir.Table:
        """The table as an expression of its source."""
        return self._rows

    def kept(self) -> ir.Table:
        """The table as the engine keeps it; computed by the first call."""
        if self._kept is None:
            self._kept = self._stage.fill()
        return self._kept


@attrs.frozen
class _Stage:
    """Where an engine keeps a table: how to fill it, and how to drop it without failing."""

    fill: Keep
    drop: Callable[[], None] = lambda: None


def _stage(rows: ir.Table, own_connection: bool) -> _Stage:
    engine, backend = backend_name(rows), rows.get_backend()
    name = f"prudent_{uuid.uuid4().hex}"
    if engine == "duckdb":
        return _in_duckdb(rows, backend, name)
    if engine == "pyspark":
        return _in_spark(rows, backend, name)
    if engine == "postgres" and own_connection and _created(rows, backend.con, name):
        return _in_postgres(rows, backend, name)
    return _Stage(lambda: rows)


def _in_duckdb(rows: ir.Table, backend: Any, name: str) -> _Stage:
    def fill() -> ir.Table:
        backend.raw_sql(f"CREATE TEMP TABLE {name} AS {ibis.to_sql(rows)}")
        return backend.table(name, database=("temp", "main"))

    def drop() -> None:
        with contextlib.suppress(Exception):  # the connection may be closed already
            backend.con.execute(f"DROP TABLE IF EXISTS temp.{name}")

    return _Stage(fill, drop)


def _in_spark(rows: ir.Table, backend: Any, name: str) -> _Stage:
    session = backend._session
    frames: list[Any] = []

    def fill() -> ir.Table:
        frames.append(session.sql(str(ibis.to_sql(rows))).cache())
        frames[0].createTempView(name)
        return backend.table(name)

    def drop() -> None:
        with contextlib.suppress(Exception):  # the session may be stopped already
            session.catalog.dropTempView(name)
            for frame in frames:
                frame.unpersist()

    return _Stage(fill, drop)


def _created(rows: ir.Table, connection: Any, name: str) -> bool:
    """Create an empty temporary table in PostgreSQL; False if the user has no permission.

    A read-only transaction may fill a temporary table but not create one. So the table is created
    in a transaction of its own, before the one that reads. Its types are those of the query, as
    PostgreSQL names them: ibis names some that do not hold every value, such as `money`.
    """
    connection.commit()
    connection.read_only = False
    try:
        connection.execute(f"CREATE TEMP TABLE {name} AS {ibis.to_sql(rows)} WITH NO DATA")
        connection.commit()
        return True
    except Exception:
        connection.rollback()
        return False
    finally:
        connection.read_only = True


def _in_postgres(rows: ir.Table, backend: Any, name: str) -> _Stage:
    columns = ", ".join(rows.columns)

    def fill() -> ir.Table:
        backend.con.execute(f"INSERT INTO {name} ({columns}) {ibis.to_sql(rows)}")
        return backend.table(name)

    return _Stage(fill)  # it is dropped with the connection, which belongs to the column
