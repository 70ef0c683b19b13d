"""Files that are complete or absent, folders for one run at a time, and disks that refuse."""

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from prudent._validate import ArgumentError

_ROOM = "Free some space and try again."
_RIGHTS = "Check that it may be written by this user, or choose another place."
_ADVICE = {errno.EIO: "Check the disk."}
_ADVICE |= dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), _ROOM)
_ADVICE |= dict.fromkeys((errno.EROFS, errno.EACCES, errno.EPERM), _RIGHTS)
_LOCK = "running.lock"


def advice(error: OSError) -> str:
    """What to do about an error of the file system; empty if the error says it itself."""
    if error.errno is None or error.strerror != os.strerror(error.errno):
        return ""
    return _ADVICE.get(error.errno, "")


def check_writable(folder: Path) -> None:
    """Make a folder, if it is missing, and a file in it; called before what it is for is paid for.

    Raises:
        OSError: If files cannot be made there; names the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0" * 4096)
            settle(file)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error


@contextlib.contextmanager
def replacing(path: Path, mode: str = "w", *, owner_only: bool = False) -> Iterator[IO[Any]]:
    """A file to write that takes the place of `path` once it is complete and on disk.

    A kill, a full disk or an error in between leaves `path` as it was. One process at a time may
    replace a file.

    Args:
        path: The file, which need not exist yet.
        mode: `w` for text in UTF-8, `wb` for bytes; with `+` it can also be read.
        owner_only: Whether only its owner may read the file.

    Raises:
        OSError: If it cannot be written, or is a device or a pipe, which a file would take the
            place of for good; names the file.
    """
    aside = path.with_name(path.name + ".new")
    encoding = None if "b" in mode else "utf-8"
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise FileExistsError(errno.EEXIST, "Expected a regular file", str(path))
        aside.unlink(missing_ok=True)  # left by a process that was killed
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0)
        number = os.open(aside, flags, 0o600 if owner_only else 0o666)
        with os.fdopen(number, mode, encoding=encoding) as file:
            yield file
            settle(file)
        os.replace(aside, path)
        if os.name == "posix":  # folders cannot be opened elsewhere
            names = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(names)  # a power loss could undo the rename
            finally:
                os.close(names)
    except BaseException as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        cause: BaseException | None = error
        while isinstance(cause, RuntimeError):  # torch hides the error of the file system
            cause = cause.__context__
        if isinstance(cause, OSError):
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def settle(file: IO[Any]) -> None:
    """Wait until what was written to a file is on disk."""
    file.flush()
    os.fsync(file.fileno())


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a folder against other runs until this one ends or is killed.

    Two runs at once would each take steps with their own noise, and `paid.json` would record only
    one of them.
    """
    # SQLite locks files through the operating system: this works on every platform, and the lock is
    # released when the process dies.
    import sqlite3

    with contextlib.ExitStack() as stack:
        try:
            file = sqlite3.connect(folder / _LOCK, timeout=0, isolation_level=None)
            stack.enter_context(contextlib.closing(file))
            file.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorname == "SQLITE_BUSY"
            mend = (
                "Check the space left on the disk and who may write there, or choose another "
                "folder. A run that was begun there goes on with resume=True."
            )
            raise ArgumentError(
                "out",
                "a folder that no other run is using" if busy else "a folder that can be written",
                got=str(folder),
                why="" if busy else str(error),
                hint="Wait for that run to end, or choose another folder." if busy else mend,
            ) from error
        yield
