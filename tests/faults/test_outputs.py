"""Faults of what is written beside ledgers and runs: results, caches, certificates, answers."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from prudent._files import check_writable, replacing
from prudent.budget.ledger import Ledger
from prudent.cli import main
from prudent_lab import data_files as files
from prudent_lab.paper import results

READING = results.Reading(
    dataset="mnist",
    corrupt="label:0.1",
    column="TSGD+PTR",
    target=None,
    seed=0,
    epsilon=1.0,
    accountant="pld",
    steps=10,
    noise_multiplier=1.0,
    accuracy=93.5,
    pass_rate=0.5,
    trim=3,
    success=12.75,
)


class Killed(BaseException):
    """Ends a function like a kill does."""


def test_a_file_is_replaced_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def fail(error: type[BaseException]) -> None:
        with replacing(path) as file:
            file.write("half")
            raise error

    for error in (Killed, ValueError):
        with pytest.raises(error):
            fail(error)
        assert path.read_text() == "before"
    with replacing(path) as file:
        file.write("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_a_device_or_pipe_is_not_replaced(tmp_path: Path, capfd) -> None:
    """As root, `--out /dev/null --force` made a regular file of the device."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(FileExistsError, match=r"regular file: '.*/pipe'"), replacing(path) as file:
        file.write("x")
    assert main(["sample", "salaries", "--out", str(path), "--force"]) == 2
    assert "regular file" in capfd.readouterr().err
    assert path.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]


def test_a_full_disk_names_the_file_and_leaves_no_half(disk) -> None:
    path = disk.path / "file"
    path.write_text("before")
    disk.fill()
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*/file'"),
        replacing(path) as file,
    ):
        file.write("x" * 100_000)
    assert path.read_text() == "before"
    assert sorted(os.listdir(disk.path)) == ["file", "filling"]
    with pytest.raises(OSError, match="No space left on device"):
        check_writable(disk.path / "folder")


def test_rows_of_results_are_written_all_or_none(disk) -> None:
    """A part of a row could be read as another number: 12.75 as 12.7, or 1."""
    path = disk.path / "results.csv"
    results.append(path, [READING])
    before = path.read_text()
    disk.fill(room=1000)
    more = [results.attrs.evolve(READING, seed=seed) for seed in range(1, 200)]
    with pytest.raises(OSError, match="No space left"):
        results.append(path, more)
    assert path.read_text() == before
    disk.free()
    results.append(path, more)
    assert results.read(path).readings == (READING, *more)


def test_an_incomplete_line_of_results_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    results.append(path, [READING])
    path.write_text(path.read_text()[:-2])  # 12.75 became 12.7
    with pytest.raises(ValueError, match="the last line is incomplete"):
        results.read(path)


def test_a_damaged_cache_is_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    computed = []

    def compute() -> np.ndarray:
        computed.append(None)
        return np.arange(12.0).reshape(3, 4)

    files.cached_array("key", compute)
    (path,) = tmp_path.rglob("*.npy")
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    damaged = [content[:size] for size in (0, 5, 100, len(content) - 1)]
    for bit in generator.integers(8 * len(content), size=60):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << (bit % 8)
        damaged.append(bytes(changed))
    for number, other in enumerate(damaged, start=1):
        path.write_bytes(other)
        assert (files.cached_array("key", compute) == np.arange(12.0).reshape(3, 4)).all()
        assert len(computed) <= number + 1
        assert path.read_bytes() == content or len(computed) <= number  # spaces of its header
    assert len(computed) > 50


def test_output_that_cannot_be_written_is_noticed_before_paying(
    tmp_path: Path, archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, out = tmp_path / "budget.db", tmp_path / "out"
    Ledger(ledger, epsilon=2.0, delta=1e-6).close()
    out.write_text("a file where the folder should be")
    given = ["certify", "--dataset", f"npz:{archive}", "--epsilon", "1"]
    assert main([*given, "--ledger", str(ledger), "--out", str(out)]) == 2
    assert str(out) in capsys.readouterr().err
    with Ledger.open(ledger) as opened:
        assert opened.history() == []


@pytest.mark.slow
def test_an_answer_that_cannot_be_printed(tmp_path: Path) -> None:
    """It is paid for and lost: the command says so, and the history keeps the charge."""
    ledger, table = tmp_path / "budget.db", tmp_path / "table.csv"
    Ledger(ledger, epsilon=1.0, delta=1e-6).close()
    table.write_text("salary\n" + "\n".join(str(50_000 + i) for i in range(500)) + "\n")
    command = ["release", "median", str(table), "--column", "salary", "--epsilon", "0.5"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "prudent", *command, "--ledger", str(ledger), "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode != 0
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    with Ledger.open(ledger) as opened:
        assert len(opened.history()) == 1
