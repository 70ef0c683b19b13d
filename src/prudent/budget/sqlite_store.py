"""A ledger in a SQLite file."""

import contextlib
import os
import secrets
import sqlite3
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from prudent.budget.storage import (
    DAMAGED,
    NO_LEDGER,
    PATIENCE,
    TABLE,
    StorageError,
    Store,
    shown,
)

# Not a defence against whoever owns the database, but against an honest mistake.
_APPEND_ONLY = [
    f"""
    CREATE TRIGGER IF NOT EXISTS prudent_ledger_no_{verb.lower()} BEFORE {verb} ON prudent_ledger
    BEGIN SELECT RAISE(ABORT, 'a privacy ledger is append-only'); END
    """
    for verb in ("UPDATE", "DELETE")
]
# What to do, by the family of SQLite's error code.
_ADVICE = {
    "SQLITE_BUSY": "another process is writing; try again.",
    "SQLITE_CANTOPEN": "check that the directory exists and may be written.",
    "SQLITE_CORRUPT": DAMAGED,
    "SQLITE_ERROR": NO_LEDGER,
    "SQLITE_FULL": "free some space and try again.",
    "SQLITE_IOERR": "check the disk and the space left on it, and try again.",
    "SQLITE_NOTADB": f"give the path of a ledger; {NO_LEDGER}",
    "SQLITE_PERM": "check that the file and its directory may be written.",
    "SQLITE_READONLY": "check that the file and its directory may be written, and that the file "
    "was not moved or replaced since it was opened.",
}


class SqliteStore(Store):
    """A ledger in one file.

    Uses the rollback journal rather than a write-ahead log: once a charge is committed it is in the
    file itself, so a copy of the file misses nothing. synchronous=EXTRA also syncs the directory,
    without which a power loss could bring an old journal back and undo the last charge.

    A new file gets its name when it holds the table, so an empty one is never taken for a ledger
    that has just begun. Whoever opens a file checks its pages: a damaged index hides rows, and the
    hashes of those that are left still match.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        super().__init__(shown(path))
        if create and not path.exists():
            with self._translated():
                _publish(path)
        elif not path.exists():
            raise StorageError(
                f"{self.location} does not exist; create it, for example with `prudent budget "
                f"create {self.location} --epsilon 1 --delta 1e-6`. If it was there before, "
                "restore it: a new one forgets what was charged."
            )
        with self._translated():
            self._connection = _connect(path)
            try:
                self._check_pages()
            except BaseException:
                self._connection.close()
                raise

    def _check_pages(self) -> None:
        if self._execute("PRAGMA page_count") == [(0,)]:
            raise StorageError(
                f"{self.location} is empty. If a ledger was there, restore it from a copy and "
                "charge again what was charged since; otherwise delete the file."
            )
        self._execute("PRAGMA synchronous = EXTRA")
        if (found := self._execute("PRAGMA integrity_check(1)")) != [("ok",)]:
            raise StorageError(f"{self.location} is damaged ({found[0][0]}); {DAMAGED}")

    @override
    def prepare(self) -> None:
        with self.exclusive(""):
            for statement in (TABLE, *_APPEND_ONLY):
                self._execute(statement)

    @override
    def close(self) -> None:
        self._connection.close()

    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        return self._connection.execute(statement, parameters).fetchall()

    @override
    def _renew(self) -> None:
        pass  # a file is always there

    @contextlib.contextmanager
    def _transaction(self, dataset: str) -> Iterator[None]:
        self._execute("BEGIN IMMEDIATE")  # locks the file for writing now, not at the first write
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            # An extended code such as SQLITE_READONLY_DBMOVED begins with the name of its family.
            # Without a code it is Python that could not read what is stored.
            family = "_".join(getattr(error, "sqlite_errorname", "SQLITE_CORRUPT").split("_")[:2])
            advice = _ADVICE.get(family, "nothing may be released.")
            raise StorageError(f"{self.location}: {error}; {advice}") from error
        except UnicodeDecodeError as error:  # a message of SQLite that quotes damaged bytes
            raise StorageError(f"{self.location} is damaged; {DAMAGED}") from error


def _connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    uri = f"file:{urllib.parse.quote(str(path.absolute()))}?mode={mode}"
    return sqlite3.connect(
        uri, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False
    )


def _publish(path: Path) -> None:
    """Makes a file with an empty table, which gets its name when it is complete.

    Does nothing if another process was faster.
    """
    path = path.resolve()
    aside = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with contextlib.closing(_connect(aside, "rwc")) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute(TABLE)
        with contextlib.suppress(FileExistsError):
            # Neither of these replaces a file that is there.
            (os.rename if os.name == "nt" else os.link)(aside, path)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
