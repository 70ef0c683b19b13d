"""Folders that one run at a time may use."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from prudent._validate import ArgumentError

_LOCK = "running.lock"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a folder against other runs until this one ends or is killed.

    Two runs at once would each take steps with their own noise, and `paid.json` would record only
    one of them.
    """
    # SQLite locks files through the operating system: this works on every platform, and the lock is
    # released when the process dies.
    try:
        file = sqlite3.connect(folder / _LOCK, timeout=0, isolation_level=None)
    except sqlite3.OperationalError as error:
        raise _unwritable(folder, error) from error
    with contextlib.closing(file):
        try:
            file.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY":
                raise _unwritable(folder, error) from error
            raise ArgumentError(
                "out",
                "a folder that no other run is using",
                got=str(folder),
                hint="Wait for that run to end, or choose another folder.",
            ) from error
        yield


def _unwritable(folder: Path, error: Exception) -> ArgumentError:
    return ArgumentError(
        "out",
        "a folder that can be written",
        got=str(folder),
        why=str(error),
        hint="Check the space left on the disk and who may write there, or choose another folder. "
        "A run that was begun there goes on with resume=True.",
    )
