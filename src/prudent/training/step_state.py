"""The state that one step passes on to the next: copied, saved and restored as a whole."""

from typing import Any, Self

import attrs
import torch
from torch import Tensor


@attrs.define
class StepState:
    """The trim and the step counter, kept on the device and on the host.

    A captured step counts on the device, because its position in the keystream must advance at
    every replay. The host counts too, so that it can check whether the plan has steps left without
    waiting for the device.

    Attributes:
        trim: F of the next step, before rounding down; a scalar in double precision.
        number: Steps begun so far, a 64-bit integer on the device.
        taken: The same number, on the host.
    """

    trim: Tensor
    number: Tensor
    taken: int = 0

    @classmethod
    def start(cls, trim: float, device: torch.device) -> Self:
        """The state before the first step."""
        return cls(
            torch.tensor(trim, dtype=torch.float64, device=device),
            torch.zeros((), dtype=torch.int64, device=device),
        )

    def begin(self) -> None:
        """Count a step before anything is drawn: a failed step never shares its position."""
        self.taken += 1
        self.number += 1

    def clone(self) -> Self:
        """An independent copy, which later steps do not change."""
        return attrs.evolve(self, trim=self.trim.clone(), number=self.number.clone())

    def copy_(self, other: "StepState") -> None:
        """Copy another state into this one, in place: a CUDA graph refers to tensors by address."""
        self.trim.copy_(other.trim)
        self.move_to(other.taken)

    def move_to(self, taken: int) -> None:
        """Set both counters to `taken` steps."""
        self.number.fill_(taken)
        self.taken = taken

    def state_dict(self) -> dict[str, Any]:
        """The state as tensors and plain values, for a checkpoint."""
        return {"trim": self.trim.clone(), "taken": self.taken}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; the counters never go back.

        Steps that were taken since then are released and paid for, and their noise is used up.
        """
        self.trim.copy_(saved["trim"])
        self.move_to(max(self.taken, int(saved["taken"])))
