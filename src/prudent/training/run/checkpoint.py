"""Checkpoints: a run killed at any moment can be resumed with the same batches and noise.

A checkpoint holds the model, the optimizer, the plan, the step, the trim and the key of the run.
Batches and noise are functions of key and step. So a resumed run draws the same batches and noise
as an uninterrupted one: the steps between the checkpoint and the kill repeat the same releases and
are not new ones. Their cost is written to `paid.json` before the first of them is taken. Where it
cannot be proved that they are the same releases, they are not repeated; see `resuming`.

A checkpoint ends with a digest of its bytes, which is checked before anything else is read: a
damaged checkpoint would release different sums with the same noise. The digest guards against
accidents, not attacks: whoever can write the file can also write the digest.

Whoever reads a checkpoint can subtract the noise, past and future. It is as secret as the data, so
its file is readable by its owner only.
"""

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import IO, Any, NamedTuple

import dp_accounting as dp
import torch

from prudent._files import replacing
from prudent._formats import NewerFormatError, check_format
from prudent._validate import ArgumentError
from prudent.accounting.relations import Relation
from prudent.accounting.serialisation import from_plain, to_plain
from prudent.training.plan import Plan


class resumable(contextlib.ContextDecorator):  # noqa: N801 - used as a function
    """Adds to an error of the file system that the run can go on."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise the error again, with what it means for the run."""
        if isinstance(error, OSError):
            raise OSError(
                error.errno,
                f"{error.strerror or error}. The run stops; what it wrote before is intact, and "
                "every step that it took is paid for. Free some space or mend the disk, then start "
                "it again and resume: it goes on from its last checkpoint",
                error.filename,
            ) from error


CHECKPOINT_FORMAT = 1
PAID_FORMAT = 1

CHECKPOINT = "checkpoint.pt"

_SEAL = b"\nprudent sha-256\n"


@resumable()
def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write the state atomically: a reader sees either the complete old or the complete new one."""
    with replacing(folder / CHECKPOINT, "w+b", owner_only=True) as file:
        torch.save({"format": CHECKPOINT_FORMAT, **state}, file)
        # Appending to the archive is safe: a zip directory is located by searching from the end.
        file.write(_SEAL + _digest(file, file.tell()))


def load_checkpoint(folder: Path, device: torch.device) -> dict[str, Any] | None:
    """The last saved state, or None if there is none. Only tensors and plain values are read.

    Raises:
        NewerFormatError: If a later version wrote the file, in a format unknown to this one.
        ValueError: If the file is not bit for bit what was written. The run would continue with
            other weights or another trim but the same noise, which whoever saw both could subtract.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END) - len(_SEAL) - hashlib.sha256().digest_size
        file.seek(max(0, end))
        if end < 0 or file.read() != _SEAL + _digest(file, end):
            raise _damaged(path, "its digest does not match")
        file.seek(0)
        try:
            state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
        except Exception:  # torch has many, for files that no run wrote
            raise _damaged(path, "it holds other than tensors and plain values") from None
    check_format(state, CHECKPOINT_FORMAT, f"the checkpoint {str(path)!r}")
    state.pop("format")
    return state


def _damaged(path: Path, why: str) -> ArgumentError:
    return ArgumentError(
        "out",
        "with an intact checkpoint",
        shown=f"{str(path)!r}, which is damaged, truncated, or from another version",
        why=why,
        hint="Restore the file from a copy, or start again in another folder.",
    )


def _digest(file: IO[bytes], end: int) -> bytes:
    """SHA-256 of the first `end` bytes of a file; leaves the file position at `end`."""
    file.seek(0)
    digest = hashlib.sha256()
    while (left := end - file.tell()) > 0:
        digest.update(file.read(min(left, 1 << 20)))
    return digest.digest()


@resumable()
def record_paid(folder: Path, plan: Plan, steps: int, *, renewals: int = 0, run: str = "") -> None:
    """Record that the first `steps` steps are paid for, before they are taken.

    A folder may hold several runs, each with its name.
    """
    content = {
        "format": PAID_FORMAT,
        "steps": steps,
        "renewals": renewals,
        "event": to_plain(plan.event_after(steps)),
        "relation": to_plain(plan.relation),
    }
    with replacing(_paid(folder, run)) as file:
        json.dump(content, file, indent=1)


def _paid(folder: Path, run: str) -> Path:
    return folder / (f"paid-{run}.json" if run else "paid.json")


class Paid(NamedTuple):
    """What `paid.json` records of a run."""

    steps: int  # the number of charged steps
    event: dp.DpEvent  # their privacy event
    relation: Relation  # the neighbouring relation of the plan
    renewals: int  # how often the run has drawn a new key, which ends what older checkpoints prove


def charged(folder: Path, run: str = "") -> Paid | None:
    """What the run in a folder paid for; None if nothing was charged.

    Raises:
        NewerFormatError: If a later version wrote the file, in a format unknown to this one.
        ValueError: If the file is damaged.
    """
    path = _paid(folder, run)
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        check_format(content, PAID_FORMAT, f"the file {str(path)!r}")
        event, relation = from_plain(content["event"]), from_plain(content["relation"])
        return Paid(int(content["steps"]), event, relation, int(content["renewals"]))
    except NewerFormatError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArgumentError(
            "out",
            "with an intact record of what was paid",
            shown=f"{str(path)!r}, which is damaged",
            hint="Restore the file from a copy, or start again in another folder.",
        ) from error
