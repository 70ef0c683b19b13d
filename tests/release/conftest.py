"""Ledgers for the tests: the same suite on SQLite and on PostgreSQL."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.release import postgres_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Path]:
    """The directory of a running server's socket."""
    pytest.importorskip("psycopg", reason="no psycopg here: pip install 'prudent[tables]'")
    with postgres_server.running() as directory:
        yield directory


@pytest.fixture
def postgres_location(postgres: Path) -> str:
    """The address of an empty database."""
    import psycopg

    name = f"t{uuid.uuid4().hex}"
    address = f"postgresql://postgres@/{{}}?host={postgres}"
    with psycopg.connect(address.format("postgres"), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return address.format(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger can be made, in each kind of store."""
    if request.param == "sqlite":
        return str(tmp_path / "budget.db")
    return str(request.getfixturevalue("postgres_location"))
