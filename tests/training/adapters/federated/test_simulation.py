"""The strategy in Flower's simulation engine, at toy size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `federated`")
pytest.importorskip("ray", reason="needs the extra `federated`")

PROGRAM = Path(__file__).with_name("simulation.py")


def test_it_learns_beside_hostile_and_failing_clients(tmp_path: Path) -> None:
    """In a process of its own: ray has warnings and threads that do not concern these tests."""
    run = subprocess.run(
        [sys.executable, PROGRAM], capture_output=True, text=True, cwd=tmp_path, timeout=900
    )
    assert run.returncode == 0, run.stderr[-4000:]
    answer = json.loads(run.stdout.splitlines()[-1])
    assert answer["taken"] == 6
    # Three of ten at length 50 would leave a mean near 15; only clipped to 1, near 1 or 2.
    assert answer["mean"] == pytest.approx(answer["truth"], abs=0.1)
    assert [entry["passed"] for entry in answer["metrics"]] == [1] * 6
    assert all(set(entry) == {"passed", "trim", "noise"} for entry in answer["metrics"])
    assert "this client always fails" in run.stderr
