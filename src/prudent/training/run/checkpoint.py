"""Checkpoints: a run killed at any moment can be resumed with the same batches and noise.

A checkpoint holds the model, the optimizer, the plan, the step, the trim and the key of the run.
Batches and noise are functions of key and step. So a resumed run draws the same batches and noise
as an uninterrupted one: the steps between the checkpoint and the kill repeat the same releases and
are not new ones. Their cost is written to `paid.json` before the first of them is taken. Where it
cannot be proved that they are the same releases, they are not repeated.

A checkpoint ends with a digest of its bytes, which is checked before anything else is read: a
damaged checkpoint would release different sums with the same noise. The digest guards against
accidents, not attacks: whoever can write the file can also write the digest.

Whoever reads a checkpoint can subtract the noise, past and future. It is as secret as the data, so
its file is readable by its owner only.

What must be as it was when a run is resumed is one rule, against the same noise on other sums.
A run that was killed has taken steps since its last checkpoint, and somebody may have seen their
results. A resumed run may take these steps again with the same noise only if they are bit for bit
the same releases. So every checkpoint holds the `Identity` of its run, and

* if the resumed run proves that it is the same in every part, it repeats the lost steps with the
  same key, and they cost nothing;
* otherwise it draws a new key and does not repeat them. They stay paid for and count among the
  steps of the plan, so the model gets fewer updates, and the ε of the plan holds.

Nothing is proved on a GPU, where the order of sums varies from run to run, nor by what has no
fingerprint (see `prudent._fingerprint`).
"""

import contextlib
import hashlib
import json
import os
import platform
import sys
from pathlib import Path
from typing import IO, Any, NamedTuple

import attrs
import dp_accounting as dp
import torch

from prudent import __version__
from prudent._files import replacing
from prudent._formats import NewerFormatError, check_format
from prudent._validate import ArgumentError
from prudent._warning import warn
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


_NAMES = {
    "records": "the records",
    "loss": "the loss or what reads the records",
    "model": "the model",
    "optimizer": "the optimizer or its schedule",
    "execution": "precision, engine or batch size of the execution",
    "processes": "the number of processes",
    "machine": "the kind of device, versions or threads",
}


@attrs.frozen(kw_only=True)
class Identity:
    """Fingerprints of everything that decides what a step releases, except key and checkpoint.

    An empty one is unknown: it proves nothing, not even compared with itself.

    Attributes:
        records: Of the records, in their order.
        loss: Of the loss, the collation and the corruption of gradients.
        model: Of the structure and code of the model.
        optimizer: Of the optimizer and its schedule, which lead from one step to the next.
        execution: Of engine, precision, compilation and physical batch size.
        processes: The number of processes.
        machine: Of the device and the libraries, which round sums.
    """

    records: str
    loss: str
    model: str
    optimizer: str
    execution: str
    processes: str
    machine: str

    def plain(self) -> dict[str, str]:
        """As a dictionary, for a checkpoint."""
        return attrs.asdict(self)

    def unproved(self, saved: dict[str, str], *, same_key: bool) -> list[str]:
        """The parts that are not proved to be what they were, in words.

        Args:
            saved: The identity in a checkpoint, as `plain` returned it.
            same_key: Whether the key of the checkpoint is the last that the run has drawn.
        """
        found = [] if same_key else ["the key, of which a later checkpoint has a new one"]
        return found + [
            words
            for name, words in _NAMES.items()
            if not getattr(self, name) or getattr(self, name) != saved.get(name)
        ]


def machine(device: torch.device) -> str:
    """What rounds the sums of a run; empty for a device on which their order is not fixed."""
    if device.type != "cpu":
        return ""
    settings = (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
    )
    versions = (__version__, torch.__version__, sys.version)
    capability = torch.backends.cpu.get_cpu_capability()
    return repr((platform.machine(), _processor(), capability, *versions, *settings))


def _processor() -> str:
    """The model of the processor: libraries choose their kernels by it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), platform.processor())


PORTIONS = 100
"""Number of portions in which the steps of a plan are paid for, each before its first step, so that
few more are lost than were taken."""


def warn_of_lost_steps(first: int, last: int, unproved: list[str]) -> None:
    """Warn that steps which may have been taken before a kill are not taken again."""
    warn(
        f"The run goes on after step {last} with a new key, and the steps {first} to {last}, which "
        "may have been taken after its last checkpoint, are not repeated: they stay paid for, and "
        "the model gets fewer updates. It cannot be proved that these are what they were: "
        f"{', '.join(unproved)}; the same noise on other sums could be subtracted."
    )


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
    found = hashlib.sha256()
    while (left := end - file.tell()) > 0:
        found.update(file.read(min(left, 1 << 20)))
    return found.digest()


@resumable()
def record_paid(folder: Path, plan: Plan, steps: int, *, renewals: int = 0, run: str = "") -> None:
    """Record that the first `steps` steps are paid for, before they are taken.

    Args:
        folder: The folder of the run.
        plan: Its plan.
        steps: The number of steps.
        renewals: How often the run has drawn a new key.
        run: The name of the run, where a folder may hold several.
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
    """What `paid.json` records of a run.

    Attributes:
        steps: The number of charged steps.
        event: Their privacy event.
        relation: The neighbouring relation of the plan.
        renewals: How often the run has drawn a new key, which ends what older checkpoints prove.
    """

    steps: int
    event: dp.DpEvent
    relation: Relation
    renewals: int


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
