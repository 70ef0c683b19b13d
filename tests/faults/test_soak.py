"""The soak at a small size; `make soak` runs it at length."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import ledger_soak
from tests.servers import postgres

ROOT = Path(__file__).parents[2]


@pytest.mark.slow  # its small version is in tests/budget/test_processes.py
def test_killed_processes_at_a_file(tmp_path: Path) -> None:
    size = {"epsilon": 1.0, "multiplier": 40.0, "workers": 3, "kills": 4}
    location, log = str(tmp_path / "budget.db"), tmp_path / "log"
    assert ledger_soak.soak(location, log, **size).problems == []


@pytest.mark.thorough
def test_killed_processes_at_a_server_that_crashes(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="needs psycopg: the extra `tables`")
    size = {"epsilon": 1.0, "multiplier": 20.0, "workers": 2, "kills": 1, "restarts": 1}
    log = tmp_path / "log"
    with postgres() as server:

        def restart() -> None:
            server.stop()
            server.start()

        result = ledger_soak.soak(server.address, log, restart=restart, **size)
        assert result.problems == []
        (log / "liar").write_text("+a release that nobody charged\n")
        problems = ledger_soak.check(
            server.address, log, fits=result.charges + 1, killed=1, statuses=[1]
        )
    assert problems == [
        "a process ended otherwise than by a kill or an empty budget",
        "a release was never charged",
        "the ledger holds another number of charges than fit",
    ]


@pytest.mark.slow  # its small version is test_killed_and_resumed_is_as_if_nothing_had_happened
def test_killed_training_runs(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.training_soak", str(tmp_path), "20", "7"],
        env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kills"] == 20
