"""Sums over the steps of a run, kept on the device until metrics are read."""

from typing import NamedTuple, Self

import attrs
import torch
from torch import Tensor

from prudent.training.step import StepOutcome


class Averages(NamedTuple):
    """Means over the steps since the previous reading.

    Attributes:
        pass_rate: Fraction of passed tests.
        drawn: Mean number of records drawn. Private.
        loss: Mean loss. Private.
    """

    pass_rate: float
    drawn: float
    loss: float


@attrs.define
class Counters:
    """Sums over steps, and the position of the last reading.

    Attributes:
        passes: Passed tests since the start of the run.
        drawn: Records drawn since the last reading. Private.
        losses: Sum of mean losses since the last reading. Private.
        read_step: Step of the last reading.
        read_passes: Passed tests at the last reading.
    """

    passes: Tensor
    drawn: Tensor
    losses: Tensor
    read_step: int = 0
    read_passes: float = 0.0

    @classmethod
    def start(cls, device: torch.device) -> Self:
        """All counters at zero."""
        # Separate tensors: saving a view in a checkpoint would save its private neighbours, too.
        passes, drawn, losses = (
            torch.zeros((), dtype=torch.float64, device=device) for _ in range(3)
        )
        return cls(passes, drawn, losses)

    def add(self, outcome: StepOutcome) -> None:
        """Count a step, in place and without reading values from the device."""
        self.passes += outcome.passed
        self.drawn += outcome.drawn
        self.losses += outcome.loss

    def read(self, step: int) -> Averages:
        """The averages since the last reading, which this one replaces."""
        since = max(1, step - self.read_step)
        passes = float(self.passes)
        averages = Averages(
            pass_rate=(passes - self.read_passes) / since,
            drawn=float(self.drawn) / since,
            loss=float(self.losses) / since,
        )
        self.read_step, self.read_passes = step, passes
        self.drawn.zero_()
        self.losses.zero_()
        return averages

    def restore(self, step: int, passes: Tensor) -> None:
        """Continue after `step` steps of a saved run, `passes` of which passed."""
        self.passes.copy_(passes)
        self.read_step, self.read_passes = step, float(self.passes)
