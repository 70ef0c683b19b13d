"""Resuming a run: what must be as it was, and what is done about steps that may have been taken.

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

import platform
import secrets
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Self

import attrs
import torch

from prudent import __version__
from prudent._warning import warn
from prudent.training.keystream import Key
from prudent.training.parallel.processes import Processes
from prudent.training.plan import Plan
from prudent.training.run.checkpoint import Paid, charged, record_paid

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
    """

    records: str  # of the records, in their order
    loss: str  # of the loss, the collation and the corruption of gradients
    model: str  # of the structure and code of the model
    optimizer: str  # of the optimizer and its schedule, which lead from one step to the next
    execution: str  # of engine, precision, compilation and physical batch size
    processes: str  # the number of processes
    machine: str  # of the device and the libraries, which round sums

    def plain(self) -> dict[str, str]:
        """As a dictionary, for a checkpoint."""
        return attrs.asdict(self)

    def unproved(self, saved: dict[str, str], *, same_key: bool) -> list[str]:
        """The parts that are not proved to be those of a checkpoint, in words.

        `same_key` tells whether its key is the last that the run has drawn.
        """
        parts = [] if same_key else ["the key, of which a later checkpoint has a new one"]
        return parts + [
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


@attrs.define
class Continuity:
    """What a run hands on to the one that resumes it, besides its model. Secret."""

    key: Key  # the key of noise, tests and sampling
    # A random public name, by which a ledger knows what it was charged for.
    name: str = attrs.field(factory=lambda: secrets.token_hex(8))
    lost: int = 0  # steps of the plan that were paid for but not repeated after a kill
    renewals: int = 0  # how often a new key was drawn instead

    def plain(self) -> dict[str, Any]:
        """As a dictionary, for a checkpoint."""
        values = {"name": self.name, "lost": self.lost, "renewals": self.renewals}
        return {"key": self.key.secret.hex(), "predictable": self.key.predictable, **values}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """What a checkpoint holds."""
        key = Key(bytes.fromhex(state["key"]), bool(state["predictable"]))
        return cls(key, state["name"], state["lost"], state["renewals"])

    def past_lost_steps(
        self,
        taken: int,
        paid: Paid | None,
        unproved: Callable[[bool], list[str]],
        processes: Processes,
        plan: Plan,
    ) -> int:
        """The number of steps after which to go on: `taken` if lost steps may be repeated.

        `unproved` lists the parts of the run that are not proved to be what they were, given
        whether the key of the checkpoint is the last that the run has drawn. A new key has new
        parts that take turns, so it begins with a new cycle: with those of the old one a record
        takes part no more often than is paid for.
        """
        if paid is None or paid.steps <= taken:
            return taken
        is_last = self.renewals == paid.renewals
        self.renewals = max(self.renewals, paid.renewals)
        parts = processes.gathered(unproved(is_last))
        if not any(parts):
            return taken
        resumed = min(plan.steps, paid.steps + -paid.steps % plan.cycle)
        if processes.rank == 0:
            warn(
                f"The run goes on after step {resumed} with a new key, and the steps "
                f"{taken + 1} to {resumed}, which may have been taken after its last "
                "checkpoint, are not repeated: they stay paid for, and the model gets fewer "
                "updates. It cannot be "
                f"proved that these are what they were: {', '.join(dict.fromkeys(chain(*parts)))}; "
                "the same noise on other sums could be subtracted."
            )
        self.key = shared_key(self.key.renewed, processes)
        self.lost += resumed - taken
        self.renewals += 1
        return resumed


def shared_key(make: Callable[[], Key], processes: Processes) -> Key:
    """A key that the first process makes; the others get its secret."""

    def made() -> tuple[bytes, bool]:
        key = make()
        return key.secret, key.predictable

    return Key(*processes.first(made))


PORTIONS = 100
"""Number of portions in which the steps of a plan are paid for, each before its first step, so that
few more are lost than were taken."""


@attrs.define
class PaidSteps:
    """Records beside the checkpoints of a run how many of its steps are paid for."""

    plan: Plan  # the plan of the run
    processes: Processes  # its processes, of which the first writes
    run: str = ""  # the name of the run, where a folder may hold several
    steps: int = 0  # the number of steps paid for
    folders: set[Path] = attrs.field(factory=set, init=False)  # where the record is kept

    def resume(self, folder: Path) -> Paid | None:
        """Go on with the record in a folder; returns what it says."""
        self.folders.add(folder)
        paid = self.processes.first(partial(charged, folder, self.run))
        self.steps = 0 if paid is None else paid.steps
        return paid

    def begin(self, folder: Path, taken: int, renewals: int) -> None:
        """Keep the record in a folder that has a checkpoint, too."""
        if folder not in self.folders:
            self.folders.add(folder)
            self.steps = max(self.steps, taken)
            self._record(folder, renewals)

    def pay(self, taken: int, renewals: int, stop: int | None = None) -> None:
        """Record that steps after the first `taken` are paid for, before one of them is taken.

        Beyond `stop`, the step of the next checkpoint, nothing need be paid yet.
        """
        if taken >= self.steps and self.folders:
            portion = -(-self.plan.steps // PORTIONS)
            end = self.plan.steps if stop is None else stop
            self.steps = min(end, taken - taken % portion + portion)
            for folder in self.folders:
                self._record(folder, renewals)

    def _record(self, folder: Path, renewals: int) -> None:
        record = partial(record_paid, folder, self.plan, self.steps)
        self.processes.first(partial(record, renewals=renewals, run=self.run))
