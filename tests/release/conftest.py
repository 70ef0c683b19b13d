"""Ledgers for the tests: the same suite on SQLite and on PostgreSQL."""

import uuid
from pathlib import Path

import pytest

from tests.servers import postgres_url as postgres_url
from tests.servers import spark_session as spark_session


@pytest.fixture
def postgres_location(request: pytest.FixtureRequest) -> str:
    """The address of an empty schema: as good as a database of its own, and made at once."""
    psycopg = pytest.importorskip("psycopg", reason="needs psycopg: pip install 'prudent[tables]'")
    address = str(request.getfixturevalue("postgres_url"))
    name = f"ledger_{uuid.uuid4().hex}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{address}?options=-csearch_path%3D{name}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.thorough)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger can be made, in each kind of store."""
    if request.param == "sqlite":
        return str(tmp_path / "budget.db")
    return str(request.getfixturevalue("postgres_location"))
