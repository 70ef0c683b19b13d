"""Checkpoints: a run killed at any moment can be resumed, with the same noise on the same sums.

A checkpoint holds the model, the optimizer, the plan, the step, the trim and the key of the run.
Batches and noise are functions of key and step. So a resumed run draws the same batches and noise
as an uninterrupted one. The cost of steps is written to `paid.json` before the first of them is
taken.

A run that was killed has taken steps since its last checkpoint, and somebody may have seen their
results. A resumed run may take these steps again with the same noise only if they are bit for bit
the same releases, and no new ones. So every checkpoint holds fingerprints of its run, and

* if the resumed run proves that it is the same in every part, it repeats the lost steps with the
  same key, and they cost nothing;
* otherwise it draws a new key and does not repeat them. They stay paid for and count among the
  steps of the plan, so the model gets fewer updates, and the ε of the plan holds.

Fingerprints cannot see everything that a step depends on, such as a patched function of torch or an
outer `torch.autocast`. So a keyed digest of every release since the checkpoint is written, before
anybody can see it, and a repeated step is released only if it has the digest that it had before
(`ReleaseDigests`). If not, the run goes on with a new key from there.

Nothing is proved on a GPU, where the order of sums varies from run to run, nor by what has no
fingerprint (see `prudent._fingerprint`).

A checkpoint ends with a digest of its bytes, which is checked before anything else is read: a
damaged checkpoint would release different sums with the same noise. The digest guards against
accidents, not attacks: whoever can write the file can also write the digest.

Whoever reads a checkpoint can subtract the noise, past and future. It is as secret as the data, so
its file is readable by its owner only.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
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
from prudent.training.gradients.factors.products import precisions
from prudent.training.keystream import Key
from prudent.training.parallel import Processes, local
from prudent.training.plan import Plan
from prudent.training.step import Step, StepOutcome

CHECKPOINT_FORMAT = 1
PAID_FORMAT = 1

CHECKPOINT = "checkpoint.pt"

_SEAL = b"\nprudent sha-256\n"

RESTORE = "Restore the file from a copy, or start again in another folder."


@contextmanager
def resumable() -> Iterator[None]:
    """Adds to an error of the file system that the run can go on."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror or error}. The run stops; what it wrote before is intact, and "
            "every step that it took is paid for. Free some space or mend the disk, then start "
            "it again and resume: it goes on from its last checkpoint",
            error.filename,
        ) from error


@resumable()
def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write the state atomically: a reader sees the complete old one or the complete new one."""
    with replacing(folder / CHECKPOINT, "w+b", owner_only=True) as file:
        torch.save({"format": CHECKPOINT_FORMAT, **state}, file)
        # Appending to the archive is safe: a zip directory is located by searching from the end.
        file.write(_SEAL + _digest(file, file.tell()))


def load_checkpoint(folder: Path, device: torch.device) -> dict[str, Any] | None:
    """The last saved state, or None if there is none. Only tensors and plain values are read.

    Raises an error if the file is not bit for bit what was written, or a later version wrote it.
    The run would continue with other weights or another trim but the same noise, which whoever saw
    both could subtract.
    """
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END) - len(_SEAL) - hashlib.sha256().digest_size
        file.seek(max(0, end))
        damaged = partial(
            ArgumentError,
            "out",
            "with an intact checkpoint",
            shown=f"{str(path)!r}, which is damaged, truncated, or from another version",
            hint=RESTORE,
        )
        if end < 0 or file.read() != _SEAL + _digest(file, end):
            raise damaged(why="its digest does not match")
        file.seek(0)
        try:
            state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
        except Exception:  # torch has many, for files that no run wrote
            raise damaged(why="it holds other than tensors and plain values") from None
    check_format(state, CHECKPOINT_FORMAT, f"the checkpoint {str(path)!r}")
    state.pop("format")
    return state


def _digest(file: IO[bytes], end: int) -> bytes:
    """SHA-256 of the first `end` bytes of a file; leaves the file position at `end`."""
    file.seek(0)
    digest = hashlib.sha256()
    while (left := end - file.tell()) > 0:
        digest.update(file.read(min(left, 1 << 20)))
    return digest.digest()


class Paid(NamedTuple):
    """What `paid.json` records of a run."""

    steps: int  # the number of charged steps
    event: dp.DpEvent  # their privacy event
    relation: Relation  # the neighbouring relation of the plan
    renewals: int  # how often the run has drawn a new key, which ends what older checkpoints prove


def _of(run: str, folder: Path, name: str) -> Path:
    """A file of a run in a folder, which may hold several runs, each with its name."""
    return (folder / name).with_stem(f"{Path(name).stem}-{run}" if run else Path(name).stem)


@resumable()
def record_paid(folder: Path, plan: Plan, steps: int, *, renewals: int = 0, run: str = "") -> None:
    """Record that the first `steps` steps are paid for, before they are taken."""
    paid = Paid(steps, to_plain(plan.event_after(steps)), to_plain(plan.relation), renewals)
    with replacing(_of(run, folder, "paid.json")) as file:
        json.dump({"format": PAID_FORMAT, **paid._asdict()}, file, indent=1)


def charged(folder: Path, run: str = "") -> Paid | None:
    """What the run in a folder paid for; None if nothing was charged.

    Raises an error if the file is damaged, or a later version wrote it.
    """
    path = _of(run, folder, "paid.json")
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
        shown = f"{str(path)!r}, which is damaged"
        allowed = "with an intact record of what was paid"
        raise ArgumentError("out", allowed, shown=shown, hint=RESTORE) from error


DECISIVE = {
    "records": "the records",
    "loss": "the loss or what reads the records",
    "model": "the model",
    "optimizer": "the optimizer or its schedule",
    "execution": "precision, engine or batch size of the execution",
    "processes": "the number of processes",
    "machine": "the kind of device, versions or threads",
}
"""What decides what a step releases, except key and checkpoint: names of fingerprints, and words.

An empty fingerprint is unknown: it proves nothing, not even compared with itself.
"""


def unproved(own: Mapping[str, str], saved: Mapping[str, str]) -> list[str]:
    """What fingerprints do not prove to be that of a checkpoint, in words."""
    return [
        words for name, words in DECISIVE.items() if not own[name] or own[name] != saved.get(name)
    ]


def machine(device: torch.device) -> str:
    """What rounds the sums of a run; empty for a device on which their order is not fixed."""
    if device.type != "cpu":
        return ""
    processor = platform.processor()
    with suppress(OSError):  # libraries choose their kernels by its model
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        processor = next((each for each in lines if each.startswith("model name")), processor)
    return repr(
        (
            *(platform.machine(), processor, torch.backends.cpu.get_cpu_capability()),
            *(__version__, torch.__version__, sys.version),
            *(torch.get_num_threads(), torch.get_default_dtype(), precisions()),
            torch.are_deterministic_algorithms_enabled(),
        )
    )


PORTIONS = 100
"""Number of portions in which the steps of a plan are paid for, each before its first step, so that
few more are lost than were taken."""


@attrs.define
class ResumeState:
    """What a run hands on to the one that resumes it, besides its model. Secret.

    Beside its checkpoints a run records how many of its steps are paid for.
    """

    plan: Plan  # the plan of the run
    processes: Processes  # its processes, of which the first writes
    key: Key  # the key of noise, tests and sampling
    name: str  # a random public name, by which a ledger knows what it was charged for
    shares_folder: bool = False  # whether a folder may hold several runs, whose files have names
    lost: int = 0  # steps of the plan that were paid for but not repeated after a kill
    renewals: int = 0  # how often a new key was drawn instead
    paid: int = attrs.field(default=0, init=False)  # the number of steps paid for
    resumed: Paid | None = attrs.field(default=None, init=False)  # the record when it was resumed
    folders: set[Path] = attrs.field(factory=set, init=False)  # where the record is kept

    def plain(self) -> dict[str, Any]:
        """As a dictionary, for a checkpoint."""
        values = {"name": self.name, "lost": self.lost, "renewals": self.renewals}
        return {"key": self.key.secret.hex(), "predictable": self.key.predictable, **values}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on with what a checkpoint holds."""
        self.key = Key(bytes.fromhex(state["key"]), bool(state["predictable"]))
        self.name, self.lost, self.renewals = state["name"], state["lost"], state["renewals"]

    def past_lost_steps(self, taken: int, differing: Callable[[], list[str]]) -> int:
        """The number of steps after which to go on: `taken` if lost steps may be repeated.

        `differing` lists the parts of the run that are not proved to be what they were. A new key
        has new parts that take turns, so it begins with a new cycle: with those of the old one a
        record takes part no more often than is paid for.
        """
        paid = self.resumed
        if paid is None or paid.steps <= taken:
            return taken
        is_old = self.renewals < paid.renewals
        old = ["the key, of which a later checkpoint has a new one"] if is_old else []
        self.renewals = max(self.renewals, paid.renewals)
        parts = self.processes.gathered(old + differing())
        if not any(parts):
            return taken
        resumed = min(self.plan.steps, paid.steps + -paid.steps % self.plan.cycle)
        if self.processes.rank == 0:
            warn(
                f"The run goes on after step {resumed} with a new key, and the steps "
                f"{taken + 1} to {resumed}, which may have been taken after its last "
                "checkpoint, are not repeated: they stay paid for, and the model gets fewer "
                "updates. It cannot be "
                f"proved that these are what they were: {', '.join(dict.fromkeys(chain(*parts)))}; "
                "the same noise on other sums could be subtracted."
            )
        self.key = shared_key(self.key.renewed, self.processes)
        self.lost += resumed - taken
        self.renewals += 1
        return resumed

    def resume(self, folder: Path) -> Paid | None:
        """Go on with the record in a folder; returns what it says."""
        self.folders.add(folder)
        paid = self.processes.first(partial(charged, folder, self._run))
        self.paid, self.resumed = 0 if paid is None else paid.steps, paid
        return paid

    def begin(self, folder: Path, taken: int) -> None:
        """Keep the record in a folder that has a checkpoint, too."""
        if folder not in self.folders:
            self.folders.add(folder)
            self.paid = max(self.paid, taken)
            self._record(folder, self.renewals)

    def pay(self, taken: int, stop: int | None = None) -> None:
        """Record that steps after the first `taken` are paid for, before one of them is taken.

        Beyond `stop`, the step of the next checkpoint, nothing need be paid yet.
        """
        if taken >= self.paid and self.folders:
            portion = -(-self.plan.steps // PORTIONS)
            end = self.plan.steps if stop is None else stop
            self.paid = min(end, taken - taken % portion + portion)
            for folder in self.folders:
                self._record(folder, self.renewals)

    def begin_anew(self) -> None:
        """Record that a run that goes on from here repeats nothing, but draws a new key."""
        for folder in self.folders:
            self._record(folder, self.renewals + 1)

    def _record(self, folder: Path, renewals: int) -> None:
        record = partial(record_paid, folder, self.plan, self.paid, run=self._run)
        self.processes.first(partial(record, renewals=renewals))

    @property
    def _run(self) -> str:
        return self.name if self.shares_folder else ""


def shared_key(make: Callable[[], Key], processes: Processes) -> Key:
    """A key that the first process makes; the others get its secret."""

    def made() -> tuple[bytes, bool]:
        key = make()
        return key.secret, key.predictable

    return Key(*processes.first(made))


class ReleaseDigests:
    """Keyed digests of the releases since the last checkpoint, in a file beside it.

    Without the key they reveal nothing. Writes survive a kill of the process, not of the machine.
    Every process adds the digest of its part of a release; the first reads and writes. Without a
    folder everything is admitted.
    """

    def __init__(self, folder: Path | None, processes: Processes, run: str = "") -> None:
        self._path = None if folder is None else _of(run, folder, "releases.txt")
        self._processes, self.known = processes, dict[str, str]()
        if self._path is not None and self._path.exists():
            lines = self._path.read_text(errors="replace").splitlines()
            # A line that a kill cut off is equal to no release.
            self.known = {n: value for n, _, value in (line.partition(" ") for line in lines)}

    def clear(self) -> None:
        """Forget all of them: there is a new checkpoint, or a new key."""
        self.known, path = {}, self._path
        if path is not None:
            self._processes.first(lambda: path.unlink(missing_ok=True))

    def admits_step(self, key: Key, step: Step, outcome: StepOutcome) -> bool:
        """Whether a step may be released, as `admits`."""
        gradients = (local(p.grad) for p in step.model.parameters() if p.grad is not None)
        return self.admits(key, str(step.taken), (outcome.passed, outcome.watched, *gradients))

    def admits(self, key: Key, name: str, released: Iterable[torch.Tensor]) -> bool:
        """Whether what is to be released under a name is what was, if anything was; notes it.

        All processes call this, and get the same answer.
        """
        path = self._path
        if path is None:
            return True
        digest = hashlib.blake2b(key=key.secret, digest_size=32, person=b"prudent release")
        for tensor in released:
            plain = tensor.detach().cpu().contiguous().flatten()
            digest.update(plain.view(torch.uint8).numpy().data)
        parts = " ".join(self._processes.gathered(digest.hexdigest()))

        def check() -> bool:
            if name not in self.known:
                with resumable(), path.open("a") as file:
                    file.write(f"\n{name} {parts}")  # a line that was cut off ends here
                return True
            return self.known[name] == parts

        return self._processes.first(check)
