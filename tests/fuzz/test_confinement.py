"""What a fed path can reach: a fuzzed process writes inside its scratch folder alone."""

import multiprocessing
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("torch", reason="most entries are about training")
pytest.importorskip("hypothesis")

from tests.fuzz import __main__ as fuzz
from tests.fuzz.confinement import confine

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes are forked")


def _in_child(act: Callable[[], None]) -> None:
    child = multiprocessing.get_context("fork").Process(target=act)
    child.start()
    child.join()
    assert child.exitcode == 0


def test_a_relative_path_stays_inside(tmp_path: Path) -> None:
    def write() -> None:
        fuzz._keep_inside(tmp_path / "share" / "scratch")
        Path("../../nowhere").mkdir()
        Path("../../nowhere/x").write_text("x")
        Path("../../../../../y").write_text("y")

    _in_child(write)
    assert os.listdir(tmp_path) == ["share"]
    assert sorted(path.name for path in tmp_path.rglob("?") if path.is_file()) == ["x", "y"]


def test_nothing_outside_can_be_written(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "kept").write_text("kept")

    def write() -> None:
        if not confine([inside]):
            return  # an older kernel, or another system
        (inside / "new").write_text("new")
        os.replace(inside / "new", inside / "file")
        Path("/dev/null").write_text("lost")
        acts: list[Callable[[], object]] = [
            lambda: (outside / "new").write_text("new"),
            lambda: (outside / "kept").write_text("new"),
            lambda: os.truncate(outside / "kept", 0),
            lambda: (outside / "kept").unlink(),
            lambda: os.replace(inside / "file", outside / "kept"),
            lambda: (outside / "folder").mkdir(),
            lambda: sqlite3.connect(outside / "new.db").execute("create table t (x)"),
        ]
        for act in acts:
            with pytest.raises((OSError, sqlite3.OperationalError)):
                act()

    _in_child(write)
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("kept", "kept")]
