"""Real servers for tests: a PostgreSQL of their own, started on a free port and thrown away.

Where the server is not installed, whoever asks for it is skipped and told why.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
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


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """A fresh PostgreSQL server, by its address; stopped and deleted afterwards."""
    folder = programs()
    if folder is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    as_owner = ["runuser", "-u", OWNER, "--"] if os.geteuid() == 0 else []
    user = OWNER if as_owner else os.environ.get("USER", OWNER)
    port = free_port()
    home = Path(tempfile.mkdtemp(prefix="prudent-postgres-"))
    data = home / "data"
    settings = (
        f"listen_addresses=127.0.0.1 unix_socket_directories={home} "
        "fsync=off"  # only clients are killed in tests, never the machine
    )
    options = " ".join([f"-p {port}", *(f"-c {setting}" for setting in settings.split())])

    def call(program: str, *arguments: str) -> None:
        subprocess.run(
            [*as_owner, str(folder / program), *arguments],
            check=True,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=120,
        )

    try:
        if as_owner:
            shutil.chown(home, OWNER)
        call("initdb", "-D", str(data), "-U", user, "-A", "trust", "-E", "UTF8", "--no-sync")
        call("pg_ctl", "-D", str(data), "-o", options, "-l", str(home / "log"), "-w", "start")
        try:
            yield f"postgresql://{user}@127.0.0.1:{port}/postgres"
        finally:
            call("pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The address of a PostgreSQL server that all tests of this process share."""
    with postgres() as address:
        yield address


@pytest.fixture(scope="session")
def spark_session() -> Iterator[Any]:
    """A local Spark session that all tests of this process share: starting it takes seconds."""
    pytest.importorskip("pyspark", reason="needs pip install 'prudent[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java: apt-get install openjdk-17-jre-headless")
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
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
