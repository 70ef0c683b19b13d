"""Ledgers for the tests: the same suite on SQLite and on PostgreSQL."""

from pathlib import Path

import pytest

from tests.servers import postgres_location as postgres_location
from tests.servers import postgres_url as postgres_url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.thorough)])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a ledger can be made, in each kind of store."""
    if request.param == "sqlite":
        return str(tmp_path / "budget.db")
    return str(request.getfixturevalue("postgres_location"))
