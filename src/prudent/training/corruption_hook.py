"""The hook through which faulty or hostile gradients are simulated in a step."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch

from prudent.training.chunk import Chunk
from prudent.training.gradients.results import Values

Corrupt = Callable[[Values, Chunk, torch.Generator], Values]
"""Replaces the per-example gradients of a chunk, to simulate faulty or hostile records.

It draws random numbers from a torch generator that belongs to the step and is saved in checkpoints.
No guarantee depends on this generator.
"""


@runtime_checkable
class Corruption(Protocol):
    """Makes a fraction of the records bad, such as the corruptions in `prudent.lab.corruption`."""

    @property
    def per_record(self) -> bool:
        """Whether what a bad record sends depends on no other record.

        If not, no accounting covers the corruption.
        """

    def hook(self, records: int, device: torch.device) -> Corrupt:
        """The function that a step calls, for a data set of `records` records."""


def hook_of(
    corrupt: Corrupt | Corruption | None, records: int, device: torch.device
) -> Corrupt | None:
    """The function that a step calls for a corruption of a data set of `records` records."""
    return corrupt.hook(records, device) if isinstance(corrupt, Corruption) else corrupt
