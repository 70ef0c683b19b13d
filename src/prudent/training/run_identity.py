"""What must be as it was when a run is resumed: the one rule against the same noise on other sums.

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
import sys
from pathlib import Path

import attrs
import torch

from prudent import __version__
from prudent._warning import warn

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
