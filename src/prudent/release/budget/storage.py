"""Where a ledger is kept: a SQLite file, or a PostgreSQL database shared by a team.

A store keeps rows of text under (dataset, sequence) and knows nothing of privacy. What it promises:

* `exclusive` lets one writer at a time at a data set, across processes and machines;
* what was appended is on disk when `exclusive` ends without an error, and gone if it does not;
* a process killed at any point leaves either all of its row or nothing.
"""

import abc
import contextlib
import os
import re
import sqlite3
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from prudent import _validate
from prudent._redaction import redacted, without_password

_PATIENCE = 120  # seconds to wait for another writer
_SCHEMES = ("postgresql", "postgres")
_KEYWORDS = re.compile(r"\s*(?:\w+\s*=\s*('[^']*'|\S*)\s+)*(?:host|hostaddr|dbname|service)\s*=")

_TABLE = """
CREATE TABLE IF NOT EXISTS prudent_ledger (
    dataset TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    record TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (dataset, sequence)
)
"""

# Not a defence against whoever owns the database, but against an honest mistake.
_SQLITE_APPEND_ONLY = [
    f"""
    CREATE TRIGGER IF NOT EXISTS prudent_ledger_no_{verb.lower()} BEFORE {verb} ON prudent_ledger
    BEGIN SELECT RAISE(ABORT, 'a privacy ledger is append-only'); END
    """
    for verb in ("UPDATE", "DELETE")
]
_POSTGRES_APPEND_ONLY = [
    """
    CREATE OR REPLACE FUNCTION prudent_ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN RAISE EXCEPTION ''a privacy ledger is append-only''; END'
    """,
    """
    CREATE OR REPLACE TRIGGER prudent_ledger_append_only
    BEFORE UPDATE OR DELETE OR TRUNCATE ON prudent_ledger
    FOR EACH STATEMENT EXECUTE FUNCTION prudent_ledger_refuse()
    """,
]


class LedgerError(ValueError):
    """Something about a ledger is not as asked; the message says what, and what to do."""


class StorageError(LedgerError):
    """The ledger cannot be reached, read or written."""


class Row(NamedTuple):
    """One row of a ledger, as stored."""

    sequence: int
    record: str
    digest: str


class Store(abc.ABC):
    """Rows of text, appended under a lock. Used from one process; threads take turns."""

    def __init__(self, location: str) -> None:
        self.location = location
        self._process = os.getpid()
        self._turn = threading.RLock()

    @abc.abstractmethod
    def prepare(self) -> None:
        """Creates what is missing; harmless if all is there."""

    @abc.abstractmethod
    def close(self) -> None:
        """Lets go of the database."""

    @abc.abstractmethod
    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Runs one statement, its parameters marked by `?`, and fetches what it answers."""

    @abc.abstractmethod
    def _transaction(self, dataset: str) -> contextlib.AbstractContextManager[object]:
        """Begins a transaction as the only writer of a data set; commits or rolls back."""

    @abc.abstractmethod
    def _translated(self) -> contextlib.AbstractContextManager[None]:
        """Turns the errors of the database into `StorageError`."""

    @contextlib.contextmanager
    def exclusive(self, dataset: str) -> Iterator[None]:
        """Holds off every other writer of a data set. What is appended inside stands or falls."""
        self._check_process()
        with self._turn, self._translated(), self._transaction(dataset):
            yield

    def append(self, dataset: str, row: Row) -> None:
        """Adds a row; only inside `exclusive`."""
        with self._translated():
            self._execute("INSERT INTO prudent_ledger VALUES (?, ?, ?, ?)", (dataset, *row))

    def rows(self, dataset: str, first: int = 0) -> list[Row]:
        """The rows of a data set in order, from a sequence number on."""
        self._check_process()
        with self._turn, self._translated():
            found = self._execute(
                "SELECT sequence, record, digest FROM prudent_ledger "
                "WHERE dataset = ? AND sequence >= ? ORDER BY sequence",
                (dataset, first),
            )
        return [Row(*row) for row in found]

    def datasets(self) -> list[str]:
        """The names of all data sets."""
        with self._turn, self._translated():
            found = self._execute("SELECT DISTINCT dataset FROM prudent_ledger ORDER BY dataset")
        return [name for (name,) in found]

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StorageError(
                f"{self.location} was opened by another process; "
                "open the ledger again in each process that uses it."
            )


class SqliteStore(Store):
    """A ledger in one file.

    Uses the rollback journal rather than a write-ahead log: once a charge is committed it is in the
    file itself, so a copy of the file misses nothing. synchronous=EXTRA also syncs the directory,
    without which a power loss could bring an old journal back and undo the last charge.
    """

    def __init__(self, path: Path, *, create: bool) -> None:
        super().__init__(shown(path))
        mode = "rwc" if create else "rw"
        uri = f"file:{urllib.parse.quote(str(path.absolute()))}?mode={mode}"
        if not create and not path.exists():
            raise StorageError(
                f"{self.location} does not exist; create it with `prudent budget create`."
            )
        with self._translated():
            self._connection = sqlite3.connect(
                uri, uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
            )
            self._execute("PRAGMA synchronous = EXTRA")

    @override
    def prepare(self) -> None:
        with self.exclusive(""):
            for statement in (_TABLE, *_SQLITE_APPEND_ONLY):
                self._execute(statement)

    @override
    def close(self) -> None:
        self._connection.close()

    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        return self._connection.execute(statement, parameters).fetchall()

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
            hint = {
                "SQLITE_BUSY": "another process is writing; try again.",
                "SQLITE_NOTADB": "give the path of a ledger.",
                "SQLITE_CANTOPEN": "check that the directory exists and may be written.",
                "SQLITE_READONLY": "check that the file and its directory may be written.",
                "SQLITE_ERROR": "create a ledger there with `prudent budget create`.",
            }.get(getattr(error, "sqlite_errorname", ""), "nothing may be released.")
            raise StorageError(f"{self.location}: {error}; {hint}") from error


class PostgresStore(Store):
    """A ledger in a database. Its user needs SELECT and INSERT on the table, no more.

    Args:
        address: `postgresql://user@host/database`, or `host=… dbname=… user=…`.
    """

    def __init__(self, address: str) -> None:
        super().__init__(shown(address))
        self._address = address
        try:
            import psycopg
        except ImportError as error:
            raise StorageError(
                "A ledger in PostgreSQL needs psycopg: pip install 'prudent[tables]'."
            ) from error
        self._error = psycopg.Error
        _check_address(address)
        with self._translated():
            self._connection: psycopg.Connection[Any] = psycopg.connect(
                address, autocommit=True, connect_timeout=_PATIENCE
            )
            self._execute("SET synchronous_commit = on")  # whatever the server's default is
            self._execute(f"SET lock_timeout = '{_PATIENCE}s'")

    @override
    def prepare(self) -> None:
        with self.exclusive(""):
            for statement in (_TABLE, *_POSTGRES_APPEND_ONLY):
                self._execute(statement)

    @override
    def close(self) -> None:
        self._connection.close()

    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        cursor = self._connection.execute(statement.replace("?", "%s").encode(), parameters)
        return cursor.fetchall() if cursor.description else []

    @contextlib.contextmanager
    def _transaction(self, dataset: str) -> Iterator[None]:
        with self._connection.transaction():
            # An advisory lock needs no right to update the table, and is there before its rows are.
            self._execute(
                "SELECT pg_advisory_xact_lock(hashtext('prudent_ledger'), hashtext(?))", (dataset,)
            )
            yield

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            # A traceback shows the cause too, so the cause itself must not hold a password.
            error.args = tuple(redacted(argument, self._address) for argument in error.args)
            reason = " ".join(str(error).split())
            raise StorageError(f"{self.location}: {reason}") from error


def is_postgres(location: str) -> bool:
    """Whether a location is an address of PostgreSQL rather than a path."""
    return urllib.parse.urlsplit(location).scheme in _SCHEMES or bool(_KEYWORDS.match(location))


def shown(location: str | os.PathLike[str]) -> str:
    """A location as it may be printed: an address without its password and its options."""
    return without_password(os.fspath(location))


def _check_address(address: str) -> None:
    """Refuses an address that a driver would cut in the wrong places, and quote."""
    scheme, separator, rest = address.partition("://")
    user_and_password = rest.rpartition("@")[0]
    if separator and any(character in user_and_password for character in "/?#@ "):
        raise StorageError(
            f"Expected a password without '/', '?', '#', '@' and spaces in {scheme}://…, got one "
            "with such a character. Write it percent-encoded ('/' as %2F), or leave the password "
            "out and keep it in PGPASSWORD or ~/.pgpass."
        )


def open_store(location: str | os.PathLike[str], *, create: bool) -> Store:
    """The store at a path or at an address of PostgreSQL.

    Args:
        location: Where.
        create: Whether to make a new file, or a table in the database, if there is none.
    """
    text = os.fspath(location) if isinstance(location, os.PathLike | str) else ""
    if not isinstance(text, str) or not text or "\0" in text:
        raise _validate.ArgumentError("location", "a path or an address", shown=repr(location)[:99])
    if "://" in text and not is_postgres(text):
        raise _validate.ArgumentError(
            "location",
            "a path, or an address of PostgreSQL: postgresql://user@host/database",
            got=text,
        )
    store = PostgresStore(text) if is_postgres(text) else SqliteStore(Path(text), create=create)
    try:
        if create:
            store.prepare()
    except BaseException:
        store.close()
        raise
    return store
