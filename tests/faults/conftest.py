"""Disks that are full or read-only, and users without rights."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest

from tests.servers import postgres_url as postgres_url

NOBODY = 65534


@attrs.frozen
class Disk:
    """A small file system of its own, in memory."""

    path: Path

    def fill(self, room: int = 0) -> None:
        """Uses up all space but the last few bytes."""
        with (self.path / "filling").open("wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"\0" * 4096)
            file.truncate(max(0, file.tell() - room))

    def free(self) -> None:
        (self.path / "filling").unlink()

    def protect(self, protected: bool = True) -> None:
        """Makes it read-only, or writable again."""
        mode = "ro" if protected else "rw"
        subprocess.run(["mount", "-o", f"remount,{mode}", str(self.path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk that a test can fill or protect; needs the right to mount."""
    path = tmp_path / "disk"
    path.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mounting, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a file system")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def unprivileged() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context without the rights of root, which no permission holds back."""

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        if os.geteuid() != 0:
            yield
            return
        os.seteuid(NOBODY)
        try:
            yield
        finally:
            os.seteuid(0)

    return context
