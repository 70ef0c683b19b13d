"""Faults of a ledger in a file: no charge is lost, none made twice in silence."""

import contextlib
import datetime
import os
import random
import shutil
import signal
import sqlite3
from pathlib import Path

import dp_accounting as dp
import pytest

from prudent.budget import allowance, storage
from prudent.budget.ledger import Ledger, LedgerError, StorageError
from prudent.cli import main

EVENT = dp.GaussianDpEvent(48.0)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with three charges; every row takes syncs of the disk, so it is made once."""
    path = tmp_path_factory.mktemp("template") / "budget.db"
    with Ledger(path, epsilon=1.0, delta=1e-6) as ledger:
        for number in range(3):
            ledger.charge(EVENT, f"charge {number}")
    return path


@pytest.fixture
def path(tmp_path: Path, template: Path) -> Path:
    return Path(shutil.copy(template, tmp_path))


def begun(path: Path) -> Path:
    Ledger(path, epsilon=1.0, delta=1e-6).close()
    return path


def labels(path: Path) -> list[str]:
    with Ledger.open(path) as ledger:
        assert ledger.verify() == len(ledger.history())
        return [charge.label for charge in ledger.history()]


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.unhurried
def test_no_flipped_bit_hides_a_charge(path: Path) -> None:
    """Not even one in the index: the rows that it hides leave no gap in the hashes."""
    with Ledger.open(path) as ledger:
        expected = ledger.history()
    content, chance = path.read_bytes(), random.Random(1)
    # A page of the index is nearly empty: bits are drawn from bytes that say something.
    telling = [8 * place for place, byte in enumerate(content) if byte]
    said = []
    for place in chance.sample(telling, 250):
        path.write_bytes(flipped(content, place + chance.randrange(8)))
        try:
            with Ledger.open(path) as ledger:
                assert ledger.history() == expected
        except LedgerError as error:
            said.append(str(error))
    assert len(said) > 100
    assert all("copy" in message for message in said)  # and no copy without charging again


def test_the_index_is_checked(path: Path) -> None:
    """The name of the data set in the last entry of the index: without it the last row is gone."""
    content = path.read_bytes()
    entries = [i for i in range(len(content)) if content.startswith(b"default\x03", i)]
    path.write_bytes(flipped(content, 8 * entries[-1]))
    connection = sqlite3.connect(path)
    with contextlib.closing(connection):
        found = connection.execute("SELECT * FROM prudent_ledger WHERE dataset = 'default'")
        assert len(found.fetchall()) == 3  # of four: SQLite itself does not mind
    with pytest.raises(StorageError, match=r"is damaged \(.*index.*\); release nothing. Restore"):
        Ledger.open(path)


@pytest.mark.parametrize("size", [0, 1, 50, 511, 4096, 8192, -1])
def test_a_truncated_file_is_no_new_ledger(path: Path, size: int) -> None:
    """Not even one cut to nothing, which SQLite takes for a new database."""
    content = path.read_bytes()
    path.write_bytes(content[:size])
    for budget in ({}, {"epsilon": 1.0, "delta": 1e-6}):
        with pytest.raises(StorageError, match="charge again what was charged since"):
            Ledger(path, **budget)
    path.write_bytes(content)
    assert len(labels(path)) == 3


def test_a_ledger_has_its_name_once_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a process killed while it makes one would leave an empty file."""

    class Killed(BaseException):
        pass

    def dying(source: object, target: object) -> None:
        raise Killed

    monkeypatch.setattr(os, "link", dying)
    with pytest.raises(Killed):
        begun(tmp_path / "budget.db")
    assert not (tmp_path / "budget.db").exists()
    monkeypatch.undo()
    begun(tmp_path / "budget.db")
    assert os.listdir(tmp_path) == ["budget.db"]


def died_at(path: Path, statement: str, after: bool) -> int:
    """Charges in another process, which kills itself before or after a statement; its status."""
    child = os.fork()
    if child == 0:
        ledger = Ledger.open(path)
        execute = ledger._store._execute

        def executing(text: str, parameters: tuple = ()) -> list:
            if text.startswith(statement) and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            found = execute(text, parameters)
            if text.startswith(statement) and after:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        ledger._store._execute = executing
        ledger.charge(EVENT, "died")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("statement", ["BEGIN", "SELECT", "INSERT", "COMMIT"])
def test_a_kill_at_any_statement(path: Path, statement: str, after: bool) -> None:
    assert died_at(path, statement, after) == -signal.SIGKILL
    committed = (statement, after) == ("COMMIT", True)
    with Ledger.open(path) as ledger:
        ledger.charge(EVENT, "next")
    assert labels(path)[3:] == (["died"] if committed else []) + ["next"]


def test_a_full_disk(disk, template: Path) -> None:
    path = Path(shutil.copy(template, disk.path))
    with Ledger.open(path) as ledger:
        before = ledger.balance()
        disk.fill()
        with pytest.raises(
            StorageError,
            match=r"full; free some space and try again\. Release nothing: the charge may",
        ):
            ledger.charge(EVENT, "on a full disk")
        assert ledger.balance() == before
        disk.free()
        ledger.charge(EVENT, "after")
    assert labels(path)[3:] == ["after"]
    disk.fill()
    with pytest.raises(StorageError, match=r"free some space|check that the directory"):
        begun(disk.path / "other.db")
    assert sorted(os.listdir(disk.path)) == ["budget.db", "filling"]


def test_a_read_only_disk(disk, template: Path) -> None:
    path = Path(shutil.copy(template, disk.path))
    disk.protect()
    try:
        assert len(labels(path)) == 3
        with Ledger.open(path) as ledger, pytest.raises(StorageError, match="may be written"):
            ledger.charge(EVENT, "on a read-only disk")
        with pytest.raises(StorageError, match="check that the directory exists and may be"):
            begun(disk.path / "other.db")
    finally:
        disk.protect(False)
    assert len(labels(path)) == 3


@pytest.mark.parametrize("closed", ["file", "folder", "reading"])
def test_a_user_without_rights(template: Path, unprivileged, closed: str) -> None:
    folder = Path(f"/tmp/prudent-rights-{os.getpid()}-{closed}")  # nobody enters pytest's own
    folder.mkdir()
    try:
        path = Path(shutil.copy(template, folder))
        folder.chmod(0o555 if closed == "folder" else 0o777)
        path.chmod({"file": 0o444, "folder": 0o666, "reading": 0o000}[closed])
        with unprivileged():
            if closed == "reading":
                with pytest.raises(StorageError, match="may be written"):
                    Ledger.open(path)
            else:
                with (
                    Ledger.open(path) as ledger,
                    pytest.raises(StorageError, match="may be written"),
                ):
                    ledger.charge(EVENT, "without rights")
        path.chmod(0o666)
        assert len(labels(path)) == 3
    finally:
        folder.chmod(0o777)
        shutil.rmtree(folder)


def test_a_file_that_was_moved_away(path: Path) -> None:
    """Charges must not go to a file that nobody will open again."""
    with Ledger.open(path) as ledger:
        path.rename(path.with_suffix(".old"))
        with pytest.raises(StorageError, match="was not moved or replaced"):
            ledger.charge(EVENT, "to a file that was moved")
    with pytest.raises(StorageError, match="If it was there before, restore it"):
        Ledger.open(path)
    assert len(labels(path.with_suffix(".old"))) == 3


def test_another_process_that_holds_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_PATIENCE", 0.05)
    with Ledger.open(path) as ledger, contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match=r"locked; another process is writing; try again"):
            ledger.charge(EVENT, "while it was locked")
        other.rollback()
        ledger.charge(EVENT, "after")
    assert labels(path)[3:] == ["after"]


def test_a_clock_that_goes_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order is that of the rows; times are only told."""

    class Earlier(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(1999, 1, 1, tzinfo=tz)

    with monkeypatch.context() as patched:
        patched.setattr(allowance.datetime, "datetime", Earlier)
        with Ledger.open(path) as ledger:
            ledger.charge(EVENT, "in 1999")
    with Ledger.open(path) as ledger:
        last = ledger.charge(EVENT, "today")
        times = [charge.time for charge in ledger.history()]
        assert [charge.sequence for charge in ledger.history()] == [1, 2, 3, 4, 5]
        assert ledger.balance().digest == last.digest
    assert labels(path)[3:] == ["in 1999", "today"]
    assert times[3] < times[0] <= times[4]


def test_the_command_line_says_it_in_one_line(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_bytes(b"")
    assert main(["budget", "show", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "is empty. If a ledger was there, restore it from a copy" in line
