"""Where a ledger is kept: a SQLite file, or a PostgreSQL database shared by a team.

A store keeps rows of text under (dataset, sequence) and knows nothing of privacy. What it promises:

* `exclusive` lets one writer at a time at a data set, across processes and machines;
* what was appended is on disk when `exclusive` ends without an error;
* a process killed at any point leaves either all of its row or nothing;
* if `exclusive` ends with a `StorageError`, the row may or may not be there: the answer to a commit
  can be lost. Only reading tells.
"""

import abc
import contextlib
import os
import re
import secrets
import sqlite3
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import override

from prudent import _extras, _validate
from prudent._validate import redacted, without_password

_PATIENCE = 120  # seconds to wait for another writer
_SCHEMES = ("postgresql", "postgres")
_KEYWORDS = re.compile(r"\s*(?:\w+\s*=\s*('[^']*'|\S*)\s+)*(?:host|hostaddr|dbname|service)\s*=")

_NO_LEDGER = (
    "if a ledger was there, restore it from a copy and charge again what was charged since; "
    "otherwise create a ledger there with `prudent budget create`."
)
_DAMAGED = (
    "release nothing. Restore the ledger from a copy, and before anything else charge again what "
    "was charged since."
)
_TABLE = """
CREATE TABLE IF NOT EXISTS prudent_ledger (
    dataset TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    record TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (dataset, sequence)
)
"""


class LedgerError(ValueError):
    """Something about a ledger is not as asked; the message says what, and what to do."""


class StorageError(LedgerError):
    """The ledger cannot be reached, read or written."""


class LedgerRow(NamedTuple):
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
        self._holds = False  # whether a transaction of `exclusive` is open
        self._closed = False

    _connection: Any  # to the database, as its driver has it
    # Not a defence against whoever owns the database, but against an honest mistake.
    _append_only: tuple[str, ...]

    def prepare(self) -> None:
        """Creates the table and its triggers where they are missing; harmless if all is there."""
        with self.exclusive(""):
            for statement in (_TABLE, *self._append_only):
                self._execute(statement)

    def close(self) -> None:
        """Closes the connection."""
        self._closed = True
        self._connection.close()

    @abc.abstractmethod
    def _execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Runs one statement, its parameters marked by `?`, and fetches what it answers."""

    @abc.abstractmethod
    def _transaction(self, dataset: str) -> contextlib.AbstractContextManager[object]:
        """Begins a transaction as the only writer of a data set; commits or rolls back."""

    @abc.abstractmethod
    def _translated(self) -> contextlib.AbstractContextManager[None]:
        """Turns the errors of the database into `StorageError`."""

    @abc.abstractmethod
    def _renew(self) -> None:
        """Makes a lost connection anew; only outside a transaction, which is lost with it."""

    def check_columns(self) -> None:
        """Refuses a table that another version of prudent has laid out."""
        with self._translated():
            table = self._connection.execute("SELECT * FROM prudent_ledger LIMIT 0")
        columns = [column[0] for column in table.description]
        if columns != ["dataset", *LedgerRow._fields]:
            raise StorageError(
                f"{self.location} was written by another version of prudent: its rows have the "
                f"columns {', '.join(columns)}. Open it with that version, or upgrade prudent. If "
                f"none opens it, {_DAMAGED}"
            )

    @contextlib.contextmanager
    def exclusive(self, dataset: str) -> Iterator[None]:
        """Holds off every other writer of a data set. What is appended inside stands or falls."""
        self._check_process()
        with self._turn, self._translated():
            self._renew()
            with self._transaction(dataset):
                self._holds = True
                try:
                    yield
                finally:
                    self._holds = False

    def append(self, dataset: str, row: LedgerRow) -> None:
        """Adds a row; only inside `exclusive`."""
        with self._translated():
            self._execute("INSERT INTO prudent_ledger VALUES (?, ?, ?, ?)", (dataset, *row))

    def rows(self, dataset: str, first: int = 0) -> list[LedgerRow]:
        """The rows of a data set in order, from a sequence number on."""
        self._check_process()
        rows = self._read(
            "SELECT sequence, record, digest FROM prudent_ledger "
            "WHERE dataset = ? AND sequence >= ? ORDER BY sequence",
            (dataset, first),
        )
        return [LedgerRow(*row) for row in rows]

    def datasets(self) -> list[str]:
        """The names of all data sets."""
        names = self._read("SELECT DISTINCT dataset FROM prudent_ledger ORDER BY dataset")
        return [name for (name,) in names]

    def _read(self, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Runs a statement that changes nothing."""
        with self._turn, self._translated():
            if not self._holds:
                self._renew()
            return self._execute(statement, parameters)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise StorageError(
                f"{self.location} was opened by another process; "
                "open the ledger again in each process that uses it."
            )
        if self._closed:
            raise StorageError(f"{self.location} is closed; open the ledger again.")


# What to do, by the family of SQLite's error code.
_SQLITE_ADVICE = {
    "SQLITE_BUSY": "another process is writing; try again.",
    "SQLITE_CANTOPEN": "check that the directory exists and may be written.",
    "SQLITE_CORRUPT": _DAMAGED,
    "SQLITE_ERROR": _NO_LEDGER,
    "SQLITE_FULL": "free some space and try again.",
    "SQLITE_IOERR": "check the disk and the space left on it, and try again.",
    "SQLITE_NOTADB": f"give the path of a ledger; {_NO_LEDGER}",
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

    _append_only = tuple(
        f"""
        CREATE TRIGGER IF NOT EXISTS prudent_ledger_no_{verb.lower()}
        BEFORE {verb} ON prudent_ledger
        BEGIN SELECT RAISE(ABORT, 'a privacy ledger is append-only'); END
        """
        for verb in ("UPDATE", "DELETE")
    )

    _connection: sqlite3.Connection

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
            self._connection = _connected(path)
            try:
                if self._execute("PRAGMA page_count") == [(0,)]:
                    raise StorageError(
                        f"{self.location} is empty. If a ledger was there, restore it from a copy "
                        "and charge again what was charged since; otherwise delete the file."
                    )
                self._execute("PRAGMA synchronous = EXTRA")
                if (damage := self._execute("PRAGMA integrity_check(1)")) != [("ok",)]:
                    raise StorageError(f"{self.location} is damaged ({damage[0][0]}); {_DAMAGED}")
            except BaseException:
                self._connection.close()
                raise

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
            advice = _SQLITE_ADVICE.get(family, "nothing may be released.")
            raise StorageError(f"{self.location}: {error}; {advice}") from error
        except UnicodeDecodeError as error:  # a message of SQLite that quotes damaged bytes
            raise StorageError(f"{self.location} is damaged; {_DAMAGED}") from error


def _connected(path: Path, mode: str = "rw") -> sqlite3.Connection:
    uri = f"file:{urllib.parse.quote(str(path.absolute()))}?mode={mode}"
    return sqlite3.connect(
        uri, uri=True, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
    )


def _publish(path: Path) -> None:
    """Makes a file with an empty table, which gets its name when it is complete.

    Does nothing if another process was faster.
    """
    path = path.resolve()
    aside = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        with contextlib.closing(_connected(aside, "rwc")) as connection:
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute(_TABLE)
        with contextlib.suppress(FileExistsError):
            # Neither of these replaces a file that is there.
            (os.rename if os.name == "nt" else os.link)(aside, path)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


# What to do, by SQLSTATE or its class.
_POSTGRES_ADVICE = {
    "08": "the connection was lost; try again when the server answers.",
    "25006": "the database may only be read; give the address of the primary server.",
    "42501": "the user needs SELECT and INSERT on the table prudent_ledger.",
    "42P01": _NO_LEDGER,
    "53": "the server is short of disk, memory or connections; make room and try again.",
    "55P03": "another process is charging; try again.",
    "57P": "the server was stopped or restarted; try again when it answers.",
    "58": "check the disk of the server and the space left on it, and try again.",
    "XX": _DAMAGED,
}


class PostgresStore(Store):
    """A ledger in a database. Its user needs SELECT and INSERT on the table, no more."""

    _append_only = (
        """
        CREATE OR REPLACE FUNCTION prudent_ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN RAISE EXCEPTION ''a privacy ledger is append-only''; END'
        """,
        """
        CREATE OR REPLACE TRIGGER prudent_ledger_append_only
        BEFORE UPDATE OR DELETE OR TRUNCATE ON prudent_ledger
        FOR EACH STATEMENT EXECUTE FUNCTION prudent_ledger_refuse()
        """,
    )

    def __init__(self, address: str) -> None:
        super().__init__(shown(address))
        self._address = address
        with _extras.needed("A ledger in PostgreSQL"):
            import psycopg
        self._driver = psycopg
        scheme, separator, rest = address.partition("://")
        if separator and any(character in rest.rpartition("@")[0] for character in "/?#@ "):
            raise StorageError(  # a driver would cut it in the wrong places, and quote it
                "Expected a password without '/', '?', '#', '@' and spaces in "
                f"{scheme}://…, got one with such a character. Write it percent-encoded ('/' as "
                "%2F), or leave it out and keep it in PGPASSWORD or ~/.pgpass."
            )
        with self._translated():
            self._connect()

    def _connect(self) -> None:
        self._connection = self._driver.connect(
            self._address, autocommit=True, connect_timeout=_PATIENCE
        )
        # Whatever the defaults of the server are. Rows are read after the wait for the lock: in a
        # repeatable read they would be those of before.
        self._execute("SET synchronous_commit = on")
        self._execute("SET default_transaction_isolation = 'read committed'")
        self._execute(f"SET lock_timeout = '{_PATIENCE}s'")

    @override
    def _renew(self) -> None:
        if not self._connection.closed:
            # Only asking shows whether the server still knows this connection.
            with contextlib.suppress(self._driver.OperationalError):
                self._execute("SELECT 1")
        if self._connection.closed:
            self._connect()

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
        except self._driver.Error as error:
            # A traceback shows the cause too, so the cause itself must not hold a password.
            error.args = tuple(redacted(argument, self._address) for argument in error.args)
            reason = " ".join(str(error).split()).rstrip(".")
            raise StorageError(f"{self.location}: {reason}; {self._advice(error)}") from error

    def _advice(self, error: Exception) -> str:
        state = getattr(error, "sqlstate", None)
        if state is None and isinstance(error, self._driver.OperationalError):
            state = "08"  # the server said nothing
        advice = [text for code, text in _POSTGRES_ADVICE.items() if (state or "").startswith(code)]
        return advice[0] if advice else "nothing may be released."


def open_store(location: str | os.PathLike[str], *, create: bool) -> Store:
    """The store at a path or at an address of PostgreSQL.

    Makes a new file, or a table in the database, if there is none and `create` is true.
    """
    text = os.fspath(location) if isinstance(location, os.PathLike | str) else ""
    if not isinstance(text, str) or not text or "\0" in text:
        raise _validate.ArgumentError("location", "a path or an address", shown=repr(location)[:99])
    if "://" in text and not is_postgres(text):
        allowed = "a path, or an address of PostgreSQL: postgresql://user@host/database"
        raise _validate.ArgumentError("location", allowed, got=text)
    store = PostgresStore(text) if is_postgres(text) else SqliteStore(Path(text), create=create)
    try:
        if create:
            store.prepare()
        store.check_columns()
    except BaseException:
        store.close()
        raise
    return store


def is_postgres(location: str) -> bool:
    """Whether a location is an address of PostgreSQL rather than a path."""
    return urllib.parse.urlsplit(location).scheme in _SCHEMES or bool(_KEYWORDS.match(location))


def shown(location: str | os.PathLike[str]) -> str:
    """A location as it may be printed: an address without its password and its options."""
    return without_password(os.fspath(location))
