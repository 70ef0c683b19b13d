"""Checkpoints: a run killed at any moment goes on as if nothing had happened.

A checkpoint holds the model, the optimizer, the plan, the step, the trim and the key of the run.
Batches and noise are functions of key and step. So a resumed run draws the batches and the noise it
would have drawn: the steps between the checkpoint and the kill are the same releases again, not
new ones. What those steps cost is written to the ledger before the first of them is taken.

A checkpoint ends with a digest of its bytes, which is compared before anything of it is read: a
damaged one would give other sums the same noise. That is a guard against accidents; whoever can
write the file can write the digest.

Whoever reads a checkpoint can subtract the noise, past and future. It is as secret as the data, and
its file is for its owner alone.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch

from prudent._validate import ArgumentError
from prudent.accounting.serialisation import from_plain, to_plain
from prudent.training.plan import Plan

_CHECKPOINT = "checkpoint.pt"
_LEDGER = "ledger.json"
_LOCK = "running.lock"
_SEAL = b"\nprudent sha-256\n"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keeps every other run out of a folder until this one has ended, or was killed.

    Two at once would each take steps with noise of its own, and the ledger would tell of one.
    """
    # The lock of a SQLite file is the system's own: it is there on every system, and a process
    # that dies lets go of it.
    file = sqlite3.connect(folder / _LOCK, timeout=0, isolation_level=None)
    with contextlib.closing(file):
        try:
            file.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorname != "SQLITE_BUSY":
                raise
            raise ArgumentError(
                "out",
                "a folder that no other run is at work in",
                got=str(folder),
                hint="Wait for that run to end, or name another folder.",
            ) from error
        yield


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Writes the state so that a reader sees the old file or the new one, whole."""
    temporary = folder / (_CHECKPOINT + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "w+b") as file:
        torch.save(state, file)
        # Behind the archive, whose directory is found from its end all the same.
        file.write(_SEAL + _digest(file, file.tell()))
        _settle(file)
    _replace(temporary, folder / _CHECKPOINT)


def load_checkpoint(folder: Path, device: torch.device) -> dict[str, Any] | None:
    """The last state, or None where there is none. Tensors and plain values only are read.

    Raises:
        ValueError: If the file is not, bit for bit, what was written: it would go on with other
            weights or another trim and the same noise, and whoever saw both could subtract.
    """
    path = folder / _CHECKPOINT
    if not path.exists():
        return None
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END) - len(_SEAL) - hashlib.sha256().digest_size
        file.seek(max(0, end))
        if end < 0 or file.read() != _SEAL + _digest(file, end):
            raise ArgumentError(
                "out",
                "with the checkpoint as it was written",
                shown=f"{str(path)!r}, which is damaged, cut off, or of another version",
                why="its digest does not fit",
                hint="Put a copy of that same file back, or begin anew in another folder.",
            )
        file.seek(0)
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
    return state


def _digest(file: BinaryIO, end: int) -> bytes:
    """SHA-256 of the first bytes of a file; where the file stands then is `end`."""
    file.seek(0)
    found = hashlib.sha256()
    while (left := end - file.tell()) > 0:
        found.update(file.read(min(left, 1 << 20)))
    return found.digest()


def charge(folder: Path, plan: Plan, steps: int) -> None:
    """Records that the first `steps` steps are paid for, before they are taken."""
    temporary = folder / (_LEDGER + ".new")
    with temporary.open("w") as file:
        content = {
            "steps": steps,
            "event": to_plain(plan.event_after(steps)),
            "relation": to_plain(plan.relation),
        }
        json.dump(content, file, indent=1)
        _settle(file)
    _replace(temporary, folder / _LEDGER)


def charged(folder: Path) -> tuple[int, Any] | None:
    """Steps paid for so far and their event; None where nothing was charged."""
    path = folder / _LEDGER
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        return int(content["steps"]), from_plain(content["event"])
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(
            "out",
            "with the ledger as it was written",
            shown=f"{str(path)!r}, which is damaged",
            hint="Put a copy of that same file back, or begin anew in another folder.",
        ) from error


def _settle(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _replace(temporary: Path, target: Path) -> None:
    """Puts a file in its place for good: without the folder, a power loss may bring the old back.

    A charge would be undone after its steps were shown, or a key forgotten that they were taken
    with.
    """
    os.replace(temporary, target)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
