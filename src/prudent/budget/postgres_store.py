"""A ledger in a PostgreSQL database."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import override

from prudent import _extras
from prudent._redaction import redacted
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

# What to do, by SQLSTATE or its class.
_ADVICE = {
    "08": "the connection was lost; try again when the server answers.",
    "25006": "the database may only be read; give the address of the primary server.",
    "42501": "the user needs SELECT and INSERT on the table prudent_ledger.",
    "42P01": NO_LEDGER,
    "53": "the server is short of disk, memory or connections; make room and try again.",
    "55P03": "another process is charging; try again.",
    "57P": "the server was stopped or restarted; try again when it answers.",
    "58": "check the disk of the server and the space left on it, and try again.",
    "XX": DAMAGED,
}


class PostgresStore(Store):
    """A ledger in a database. Its user needs SELECT and INSERT on the table, no more.

    Args:
        address: `postgresql://user@host/database`, or `host=… dbname=… user=…`.
    """

    def __init__(self, address: str) -> None:
        super().__init__(shown(address))
        self._address = address
        with _extras.needed("A ledger in PostgreSQL"):
            import psycopg
        self._driver = psycopg
        _check_address(address)
        self._closed = False
        with self._translated():
            self._connect()

    def _connect(self) -> None:
        self._connection = self._driver.connect(
            self._address, autocommit=True, connect_timeout=PATIENCE
        )
        self._execute("SET synchronous_commit = on")  # whatever the server's default is
        self._execute(f"SET lock_timeout = '{PATIENCE}s'")

    @override
    def _renew(self) -> None:
        if self._closed:
            return
        if not self._connection.closed:
            # Only asking shows whether the server still knows this connection.
            with contextlib.suppress(self._driver.OperationalError):
                self._execute("SELECT 1")
        if self._connection.closed:
            self._connect()

    @override
    def prepare(self) -> None:
        with self.exclusive(""):
            for statement in (TABLE, *_APPEND_ONLY):
                self._execute(statement)

    @override
    def close(self) -> None:
        self._closed = True
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
        except self._driver.Error as error:
            # A traceback shows the cause too, so the cause itself must not hold a password.
            error.args = tuple(redacted(argument, self._address) for argument in error.args)
            reason = " ".join(str(error).split()).rstrip(".")
            raise StorageError(f"{self.location}: {reason}; {self._advice(error)}") from error

    def _advice(self, error: Exception) -> str:
        state = getattr(error, "sqlstate", None)
        if state is None and isinstance(error, self._driver.OperationalError):
            state = "08"  # the server said nothing
        found = [text for code, text in _ADVICE.items() if (state or "").startswith(code)]
        return found[0] if found else "nothing may be released."


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
