"""A running average of the weights: what a run shows and ends with, never what it steps from."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from prudent import _validate
from prudent.training.parallel.sharding import has_shards


class Average:
    """Of the trained parameters of a model, over its last steps.

    torch's AveragedModel asks the device at every step whether it is the first, which a step that
    is replayed as a graph must not wait for.

    Args:
        model: Whose parameters are followed; whole in every process.
        keep: Share of the average that a step keeps.

    Attributes:
        values: The averages, in the order of the parameters.
    """

    def __init__(self, model: nn.Module, keep: float) -> None:
        self._keep = _validate.between(0, 1, ends="[)", average=keep)
        if has_shards(model):
            raise _validate.ArgumentError(
                "average",
                "None for a model divided by fully_shard",
                got=keep,
                why="averages are kept whole",
            )
        self._trained: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.values = _copies(self._trained)

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Takes in the parameters after a step, from 0; at first all steps count the same."""
        torch._foreach_lerp_(self.values, self._trained, max(1 - self._keep, 1 / (step + 1)))

    def leave(self) -> None:
        """Puts the averages into the model."""
        _put(self.values, self._trained)

    def restore(self, values: list[Tensor] | None) -> None:
        """Goes on from saved averages; where there are none, from the parameters."""
        _put(self._trained if values is None else values, self.values)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """The model holds the averages for a while."""
        own = _copies(self._trained)
        self.leave()
        try:
            yield
        finally:
            _put(own, self._trained)


def _copies(values: list[Tensor]) -> list[Tensor]:
    return [value.detach().clone() for value in values]


@torch.no_grad()
def _put(values: list[Tensor], places: list[Tensor]) -> None:
    """In place: a captured step knows the parameters by their addresses."""
    for place, value in zip(places, values, strict=True):
        place.copy_(value)
