"""Real servers for tests: a PostgreSQL of their own, started on a free port and thrown away.

Where the server is not installed, whoever asks for it is skipped and told why.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

OWNER = "postgres"  # PostgreSQL refuses to run as root


def programs() -> Path | None:
    """The folder that holds `initdb` and `pg_ctl`; None if PostgreSQL is not installed."""
    found = shutil.which("pg_ctl")
    installed = [Path(found).parent] if found else []
    installed += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in installed if (folder / "initdb").exists()), None)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A PostgreSQL server of its own, in a folder of its own.

    Args:
        synced: Whether it syncs its files. Only a server whose machine is never lost need not.
    """

    def __init__(self, folder: Path, home: Path, *, synced: bool) -> None:
        self._folder, self._home, self._data = folder, home, home / "data"
        self._as_owner = ["runuser", "-u", OWNER, "--"] if os.geteuid() == 0 else []
        user = OWNER if self._as_owner else os.environ.get("USER", OWNER)
        port = free_port()
        self.address = f"postgresql://{user}@127.0.0.1:{port}/postgres"
        if self._as_owner:
            shutil.chown(home, OWNER)
        settings = [
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={home}",
            f"fsync={'on' if synced else 'off'}",
            "lock_timeout=60s",  # a connection that a failed test left open hangs no other
        ]
        self._options = " ".join([f"-p {port}", *(f"-c {setting}" for setting in settings)])
        self._call("initdb", "-U", user, "-A", "trust", "-E", "UTF8", "--no-sync")

    def start(self) -> None:
        self._call("pg_ctl", "-o", self._options, "-l", str(self._home / "log"), "-w", "start")

    def stop(self) -> None:
        """Ends it like a crash: every connection breaks, and the next start replays its log."""
        self._call("pg_ctl", "-m", "immediate", "-w", "stop")

    def _call(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [*self._as_owner, str(self._folder / program), "-D", str(self._data), *arguments],
            check=True,
            cwd=self._home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=600,
        )


@contextlib.contextmanager
def postgres(*, synced: bool = False) -> Iterator[Server]:
    """A fresh PostgreSQL server; stopped and deleted afterwards."""
    folder = programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    home = Path(tempfile.mkdtemp(prefix="prudent-postgres-"))
    try:
        server = Server(folder, home, synced=synced)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The address of a PostgreSQL server that all tests of this process share."""
    with postgres() as server:
        yield server.address


@pytest.fixture(scope="session")
def spark_session() -> Iterator[Any]:
    """A local Spark session that all tests of this process share: starting it takes seconds."""
    pytest.importorskip("pyspark", reason="needs the extra `spark`")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java: apt-get install openjdk-17-jre-headless")
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    started = builder.getOrCreate()
    yield started
    started.stop()


@pytest.fixture
def postgres_location(request: pytest.FixtureRequest) -> str:
    """The address of an empty schema: as good as a database of its own, and made at once."""
    psycopg = pytest.importorskip("psycopg", reason="needs psycopg: the extra `tables`")
    address = str(request.getfixturevalue("postgres_url"))
    name = f"ledger_{uuid.uuid4().hex}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{address}?options=-csearch_path%3D{name}"
