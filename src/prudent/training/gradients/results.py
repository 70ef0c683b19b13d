"""The result of an engine for one physical batch: norms first, then one weighted sum."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from prudent._validate import ArgumentError
from prudent.training.gradients.factors.contributions import Dense, by_record
from prudent.training.gradients.factors.norms import lengths
from prudent.training.gradients.record_streams import is_same

Values = dict[str, Tensor]


class Gradients(ABC):
    """The per-example gradients of one physical batch, each that of its own record's loss."""

    norms: Tensor  # l2 norms over all trained parameters jointly, shape (records,)
    losses: Tensor  # the loss of each record, shape (records,)

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Values:
        """Σᵢ wᵢ gᵢ by parameter name. Call it once: it frees what was stored for it.

        Sums are in double precision. A record of weight zero contributes exactly zero, even if its
        gradient is not finite.
        """

    def without(self, refused: Tensor) -> Self:
        """Mark refused records as having a gradient that is not finite."""
        self.norms = self.norms.masked_fill(refused, torch.nan)
        self.losses = self.losses.masked_fill(refused, torch.nan)
        return self

    def _checked(self, weights: Tensor) -> Tensor:
        if weights.shape != self.norms.shape:
            raise ArgumentError(
                "weights",
                f"of shape {tuple(self.norms.shape)}, one per record",
                got=tuple(weights.shape),
            )
        return weights.detach()


class Recomputed(Gradients):
    """Gradients of which only the norms are kept; the batch is rerun for the weighted sum.

    Args:
        run_again: Reruns the batch; maps weights to the losses and the weighted sum.
        norms: As for all gradients.
        losses: As for all gradients.
        near: Largest difference allowed between the losses of the two runs.
    """

    def __init__(
        self,
        run_again: Callable[[Tensor], tuple[Tensor, Values]],
        norms: Tensor,
        losses: Tensor,
        near: float,
    ) -> None:
        self._run_again, self._near = run_again, near
        self.norms, self.losses = norms, losses

    def weighted_sum(self, weights: Tensor) -> Values:
        """Read and run the batch again.

        Raises an error if its records or losses differ from the first run.
        """
        losses, total = self._run_again(self._checked(weights))
        check_same([losses], [self.losses], self._near)
        return total


def check_same(again: Sequence[Tensor], before: Sequence[Tensor], near: float) -> None:
    """Raise an error if the second run of a batch gives other numbers than the first."""
    if not is_same(again, before, near):
        raise ValueError(
            "Expected a batch that is run twice (recompute=True) to have the same records and the "
            "same losses twice, got others: its norms would not bound its sum. The data set and "
            "the model may draw from torch's default generators, which are set back, but not from "
            "random, numpy or a generator of their own, as some augmentations do. Leave recompute "
            "unset for them."
        )


class NoRecords(Gradients):
    """The gradients of an empty batch, which Poisson sampling can draw."""

    def __init__(self, trained: Mapping[str, Tensor]) -> None:
        self._trained = trained
        self.norms = next(iter(trained.values())).new_zeros(0, requires_grad=False)
        self.losses = self.norms.clone()

    def weighted_sum(self, weights: Tensor) -> Values:
        """Zeros for every parameter."""
        self._checked(weights)
        return {name: torch.zeros_like(value.detach()) for name, value in self._trained.items()}


class Formed(Gradients):
    """Per-example gradients that are held in memory.

    Attributes:
        per_example: Gradients by parameter name, each of shape (records, *shape).
    """

    def __init__(self, per_example: Values, losses: Tensor) -> None:
        self.per_example = per_example
        self.losses = losses
        parts = [lengths(by_record(gradient)) for gradient in per_example.values()]
        self.norms = torch.linalg.vector_norm(torch.stack(parts), dim=0)

    @override
    def without(self, refused: Tensor) -> Self:
        self.per_example = {
            name: gradient.masked_fill(refused.view(-1, *[1] * (gradient.ndim - 1)), torch.nan)
            for name, gradient in self.per_example.items()
        }
        return super().without(refused)

    def corrupted(self, corrupt: Callable[[Values], Values]) -> "Formed":
        """The gradients after `corrupt` has replaced them."""
        expected = {name: value.shape for name, value in self.per_example.items()}
        with torch.no_grad():
            corrupted = corrupt(self.per_example)
            got = {name: value.shape for name, value in corrupted.items()}
            if got != expected:
                raise ArgumentError("corrupt", f"to keep names and shapes {expected}", got=got)
            return Formed(corrupted, self.losses)

    def weighted_sum(self, weights: Tensor) -> Values:
        """Σᵢ wᵢ gᵢ by parameter name; nothing is freed, so this may be called again."""
        weights = self._checked(weights)
        with torch.no_grad(), torch.autocast(weights.device.type, enabled=False):
            return {name: Dense(g).weighted_sum(weights) for name, g in self.per_example.items()}
