"""Checkpoints: a run killed at any moment goes on as if nothing had happened.

A checkpoint holds the model, the optimizer, the plan, the step, the trim and the state of the
noise. Sampling is a function of seed and step. So a resumed run draws the batches and the noise it
would have drawn: the steps between the checkpoint and the kill are the same releases again, not
new ones. What those steps cost is written to the ledger before the first of them is taken.

Whoever reads a checkpoint can subtract the noise, past and future. It is as secret as the data, and
its file is for its owner alone.
"""

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from prudent.accounting.records import from_plain, to_plain
from prudent.training.plan import Plan

_CHECKPOINT = "checkpoint.pt"
_LEDGER = "ledger.json"
_LOCK = "running.lock"


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
            raise ValueError(
                f"Expected out a folder that no other run is at work in, got {str(folder)!r}. Wait "
                "for that run to end, or name another folder."
            ) from error
        yield


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Writes the state so that a reader sees the old file or the new one, whole."""
    temporary = folder / (_CHECKPOINT + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        torch.save(state, file)
        _settle(file)
    _replace(temporary, folder / _CHECKPOINT)


def load_checkpoint(folder: Path, device: torch.device) -> dict[str, Any] | None:
    """The last state, or None where there is none. Tensors and plain values only are read."""
    path = folder / _CHECKPOINT
    if not path.exists():
        return None
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state


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
    content = json.loads(path.read_text())
    return int(content["steps"]), from_plain(content["event"])


def _settle(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _replace(temporary: Path, target: Path) -> None:
    """Puts a file in its place for good: without the folder, a power loss may bring the old back.

    A charge would be undone after its steps were shown, or a seed forgotten that they were taken
    with.
    """
    os.replace(temporary, target)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
