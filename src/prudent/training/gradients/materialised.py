"""Per-example gradients, formed: small models, and corruption of the gradients themselves."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from prudent.training.gradients.contributions import Dense, by_record
from prudent.training.gradients.engine import (
    Engine,
    Gradients,
    Loss,
    Values,
    without_fused_attention,
)

Corrupt = Callable[[Values], Values]


class Materialised(Engine):
    """Forms every record's gradient with `torch.func`.

    Args:
        model: As for every engine.
        loss: As for every engine.
        corrupt: Applied to the per-example gradients, a tensor of shape (records, *shape) for every
            parameter, before their norms are taken: how a faulty or hostile worker is simulated.
        chunk_size: Records differentiated at a time; all of them unless given.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        corrupt: Corrupt | None = None,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__(model, loss)
        self.corrupt = corrupt
        self.chunk_size = chunk_size

    def _run(self, trained: Values, fixed: Values, inputs: Any, targets: Any) -> "Formed":
        def record_loss(values: Values, inputs: Any, targets: Any) -> Tensor:
            return self._record_loss(values | fixed, inputs, targets)

        differentiate = vmap(
            grad_and_value(record_loss),
            in_dims=(None, 0, 0),
            randomness="different",
            chunk_size=self.chunk_size,
        )
        values = {name: value.detach() for name, value in trained.items()}
        with without_fused_attention():
            per_example, losses = differentiate(values, inputs, targets)
        with torch.no_grad():
            if self.corrupt is not None:
                per_example = self.corrupt(per_example)
                _check_shapes(per_example, values, len(losses))
            return Formed(per_example, losses)


class Formed(Gradients):
    """Gradients that exist.

    Attributes:
        per_example: Gradients by parameter name, each of shape (records, *shape).
    """

    def __init__(self, per_example: Values, losses: Tensor) -> None:
        self.per_example = per_example
        self.losses = losses
        parts = [torch.linalg.vector_norm(by_record(g), dim=1) for g in per_example.values()]
        self.norms = torch.linalg.vector_norm(torch.stack(parts), dim=0)

    def weighted_sum(self, weights: Tensor) -> Values:
        """Σᵢ wᵢ gᵢ; nothing is freed before the object is, so it may be called again."""
        weights = self._checked(weights)
        return {name: Dense(g).weighted_sum(weights) for name, g in self.per_example.items()}


def _check_shapes(per_example: Values, parameters: Values, records: int) -> None:
    expected = {name: (records, *value.shape) for name, value in parameters.items()}
    got = {name: tuple(value.shape) for name, value in per_example.items()}
    if got != expected:
        raise ValueError(f"Expected corrupt to keep names and shapes {expected}, got {got}.")
