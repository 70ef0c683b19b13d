"""The store at a location."""

import os
from pathlib import Path

from prudent import _validate
from prudent.budget.postgres_store import PostgresStore
from prudent.budget.sqlite_store import SqliteStore
from prudent.budget.storage import Store, is_postgres


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
