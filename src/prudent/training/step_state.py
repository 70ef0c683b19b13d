"""What a step leaves for the next one: one value, copied, saved and put back as a whole."""

from typing import Any, Self

import attrs
import torch
from torch import Tensor


@attrs.define
class StepState:
    """The trim and the count of steps, on the device and on the host.

    A captured step counts on the device: its position in the keystream must move on at every
    replay. The host counts too, because it must not wait for the device to see whether the plan
    has a step left.

    Attributes:
        trim: F of the next step, before it is rounded down; a scalar in double precision.
        number: Steps begun so far, a 64-bit integer on the device.
        taken: The same number, on the host.
    """

    trim: Tensor
    number: Tensor
    taken: int = 0

    @classmethod
    def start(cls, trim: float, device: torch.device) -> Self:
        """Before the first step."""
        return cls(
            torch.tensor(trim, dtype=torch.float64, device=device),
            torch.zeros((), dtype=torch.int64, device=device),
        )

    def begin(self) -> None:
        """Counts a step before anything is drawn: one that fails never shares its position."""
        self.taken += 1
        self.number += 1

    def clone(self) -> Self:
        """A copy that further steps leave alone."""
        return attrs.evolve(self, trim=self.trim.clone(), number=self.number.clone())

    def copy_(self, other: "StepState") -> None:
        """Takes over another state in place: a graph knows the tensors by their addresses."""
        self.trim.copy_(other.trim)
        self.move_to(other.taken)

    def move_to(self, taken: int) -> None:
        """Goes on as if so many steps had been taken."""
        self.number.fill_(taken)
        self.taken = taken

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values for a checkpoint."""
        return {"trim": self.trim.clone(), "taken": self.taken}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Goes on from what `state_dict` returned."""
        self.trim.copy_(saved["trim"])
        self.move_to(int(saved["taken"]))
