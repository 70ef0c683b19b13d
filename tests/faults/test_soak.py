"""The soak at a small size; `make soak` runs it at length."""

from pathlib import Path

import pytest

from tests.faults import ledger_soak
from tests.servers import postgres


def test_killed_processes_at_a_file(tmp_path: Path) -> None:
    result = ledger_soak.soak(
        str(tmp_path / "budget.db"),
        tmp_path / "log",
        epsilon=1.0,
        multiplier=40.0,
        workers=3,
        kills=4,
    )
    assert result.problems == []


def test_killed_processes_at_a_server_that_crashes(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'prudent[tables]'")
    with postgres() as server:

        def restart() -> None:
            server.stop()
            server.start()

        result = ledger_soak.soak(
            server.address,
            tmp_path / "log",
            epsilon=1.0,
            multiplier=40.0,
            workers=3,
            kills=3,
            restart=restart,
            restarts=2,
        )
    assert result.problems == []
    assert result.lost_answers > 0
