"""A PostgreSQL server of the tests' own: started on a socket in a directory that goes with it."""

import contextlib
import glob
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def program(name: str) -> str | None:
    """A program of the server, on the path or where Debian keeps it."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return shutil.which(name) or (found[-1] if found else None)


@contextlib.contextmanager
def running() -> Iterator[Path]:
    """Starts a server, and yields the directory of its socket."""
    initdb, control = program("initdb"), program("pg_ctl")
    if initdb is None or control is None:
        pytest.skip("no PostgreSQL server here: install the package postgresql")
    directory = Path(tempfile.mkdtemp(prefix="prudent-postgres-"))
    prefix = _as_postgres(directory)

    def call(*command: str) -> None:
        done = subprocess.run(
            [*prefix, *command], cwd=directory, capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")

    data, log = str(directory / "data"), str(directory / "log")
    try:
        call(initdb, "-D", data, "-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-sync")
        # No network, and no fsync: what is killed in these tests is clients, not the machine.
        settings = f"-c listen_addresses='' -c unix_socket_directories='{directory}' -c fsync=off"
        call(control, "-D", data, "-l", log, "-o", settings, "-w", "start")
        try:
            yield directory
        finally:
            call(control, "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _as_postgres(directory: Path) -> list[str]:
    """The server refuses to run as root, so root runs it as the user the package made."""
    if os.geteuid() != 0:
        return []
    try:
        shutil.chown(directory, "postgres")
    except LookupError:
        pytest.skip("PostgreSQL does not run as root, and there is no user postgres to run it as")
    return ["runuser", "-u", "postgres", "--"]
