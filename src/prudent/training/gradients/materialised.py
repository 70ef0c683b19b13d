"""The engine that forms per-example gradients with `torch.func`."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from prudent.training.gradients.answers import Formed, Values
from prudent.training.gradients.checkpointing import checkpoints_become, without_checkpoint
from prudent.training.gradients.engine import Engine, Loss, without_fused_attention
from prudent.training.gradients.leaves import leaves_behind, refuse_foreign
from prudent.training.gradients.leftovers import Leftovers
from prudent.training.gradients.record_streams import Draws, rows_of
from prudent.training.gradients.watching import Watch


class Materialised(Engine):
    """Forms every record's gradient with `torch.func`.

    Args:
        model: As for every engine.
        loss: As for every engine.
        recompute: As for every engine.
        autocast: As for every engine.
        chunk_size: Number of records differentiated at a time; all unless given.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        recompute: bool = False,
        autocast: torch.dtype | None = None,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__(model, loss, recompute=recompute, autocast=autocast)
        self.chunk_size = chunk_size

    def _form(self, trained: Values, fixed: Values, inputs: Any, targets: Any) -> Formed:
        leftovers = Leftovers(self.model)
        formed = self._differentiate(trained, fixed, inputs, targets, leftovers)
        leftovers.refuse()
        return formed

    def _differentiate(
        self, trained: Values, fixed: Values, inputs: Any, targets: Any, leftovers: Leftovers
    ) -> Formed:
        def record_loss(values: Values, inputs: Any, targets: Any, row: Tensor) -> Tensor:
            leftovers.note((inputs, targets))
            with Watch(leftovers, Draws(row)):
                return self._record_loss(values | fixed, inputs, targets)

        differentiate = vmap(
            grad_and_value(record_loss),
            in_dims=(None, 0, 0, 0),
            randomness="different",
            chunk_size=self.chunk_size,
        )
        values = {name: value.detach() for name, value in trained.items()}
        with (
            without_fused_attention(),
            checkpoints_become(without_checkpoint),
            torch.enable_grad(),  # so that leaves outside the model are detected
        ):
            rows = rows_of((inputs, targets))
            per_example, losses = differentiate(values, inputs, targets, rows)
        refuse_foreign(leaves_behind([losses, *per_example.values()]), (), values)
        with torch.no_grad(), torch.autocast(losses.device.type, enabled=False):
            return Formed(per_example, losses)
