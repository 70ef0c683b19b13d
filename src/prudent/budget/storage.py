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
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from prudent._redaction import without_password

PATIENCE = 120  # seconds to wait for another writer
_SCHEMES = ("postgresql", "postgres")
_KEYWORDS = re.compile(r"\s*(?:\w+\s*=\s*('[^']*'|\S*)\s+)*(?:host|hostaddr|dbname|service)\s*=")

NO_LEDGER = (
    "if a ledger was there, restore it from a copy and charge again what was charged since; "
    "otherwise create a ledger there with `prudent budget create`."
)
DAMAGED = (
    "release nothing. Restore the ledger from a copy, and before anything else charge again what "
    "was charged since."
)
TABLE = """
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
        self._holds = False  # whether a transaction of `exclusive` is open

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

    @abc.abstractmethod
    def _renew(self) -> None:
        """Makes a lost connection anew; only outside a transaction, which is lost with it."""

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

    def append(self, dataset: str, row: Row) -> None:
        """Adds a row; only inside `exclusive`."""
        with self._translated():
            self._execute("INSERT INTO prudent_ledger VALUES (?, ?, ?, ?)", (dataset, *row))

    def rows(self, dataset: str, first: int = 0) -> list[Row]:
        """The rows of a data set in order, from a sequence number on."""
        self._check_process()
        found = self._read(
            "SELECT sequence, record, digest FROM prudent_ledger "
            "WHERE dataset = ? AND sequence >= ? ORDER BY sequence",
            (dataset, first),
        )
        return [Row(*row) for row in found]

    def datasets(self) -> list[str]:
        """The names of all data sets."""
        found = self._read("SELECT DISTINCT dataset FROM prudent_ledger ORDER BY dataset")
        return [name for (name,) in found]

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


def is_postgres(location: str) -> bool:
    """Whether a location is an address of PostgreSQL rather than a path."""
    return urllib.parse.urlsplit(location).scheme in _SCHEMES or bool(_KEYWORDS.match(location))


def shown(location: str | os.PathLike[str]) -> str:
    """A location as it may be printed: an address without its password and its options."""
    return without_password(os.fspath(location))
