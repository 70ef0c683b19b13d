"""A running average of the weights, used for evaluation and as the result, never for a step."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from prudent import _validate
from prudent.training.parallel.sharding import has_shards


class Average:
    """A running average of the trained parameters of a model over its last steps.

    torch's AveragedModel reads from the device at every step whether it is the first; a replayed
    CUDA graph must not wait for that.

    Args:
        model: The model to average; not sharded.
        keep: Fraction of the average that each step keeps.

    Attributes:
        values: The averages, in the order of the parameters.
    """

    def __init__(self, model: nn.Module, keep: float) -> None:
        self._keep = _validate.between(0, 1, ends="[)", average=keep)
        if has_shards(model):
            raise _validate.ArgumentError(
                "average",
                "None for a model sharded by fully_shard",
                got=keep,
                why="averages are not sharded",
            )
        self._trained: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self.values = _copies(self._trained)

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Update the averages after step number `step`, from 0; the first steps weigh the same."""
        update = get_ema_multi_avg_fn(min(self._keep, step / (step + 1)))
        update(self.values, self._trained, step)

    def leave(self) -> None:
        """Copy the averages into the model."""
        _put(self.values, self._trained)

    def restore(self, values: list[Tensor] | None) -> None:
        """Restore saved averages, or start from the parameters if there are none."""
        _put(self._trained if values is None else values, self.values)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """A context in which the model holds the averages."""
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
    """Copy values in place, because a captured step refers to parameters by address."""
    for place, value in zip(places, values, strict=True):
        place.copy_(value)
