"""The best model of a run, and when to stop, by what the run has shown.

What is shown was released and charged, or is a result on public records, so to stop by it and to
choose a model by it is post-processing: the whole is at most the price of the plan. A run that
stops early costs no less than its plan. When it stopped depends on what was released, and the ε of
the steps taken is only that of a run whose length was fixed before.
"""

from collections.abc import Container
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from prudent._validate import ArgumentError
from prudent.training.parallel.sharding import has_shards
from prudent.training.plan import Plan


@attrs.define
class BestModel:
    """Follows one number of the metrics of a run.

    Attributes:
        monitor: Its name. A name that ends in "loss" is better if it is lower, any other if it is
            higher.
        patience: Number of times in a row without a better value after which the run ends; None: it
            takes all steps.
        keeps: Whether the model with the best value is what the run returns.
        certain: Whether the plan releases this number, though not every time.
        value: The best value so far.
        step: The step that it is from.
        waited: How many times in a row the value was not better.
        model: The parameters and buffers of that model, if it is kept.
    """

    monitor: str
    patience: int | None
    keeps: bool
    certain: bool
    value: float | None = None
    step: int | None = None
    waited: int = 0
    model: dict[str, Tensor] | None = None

    @classmethod
    def of(
        cls, plan: Plan, model: nn.Module, monitor: str | None, patience: int | None, *, keeps: bool
    ) -> "BestModel | None":
        """What to follow in a run; None: nothing."""
        if patience is None and not keeps:
            return None
        released = [] if plan.held_out is None else [plan.held_out.name]
        released += [] if plan.watch is None else ["train_loss"]
        if monitor is None and not released:
            raise ArgumentError(
                "monitor",
                "the name of a number that the run shows",
                got=None,
                hint="Name a result of evaluate, or give the plan a prudent.HeldOut.",
            )
        if keeps and has_shards(model):
            raise ArgumentError("keep_best", "False for a model sharded by fully_shard", got=True)
        monitor = released[0] if monitor is None else monitor
        return cls(monitor, patience, keeps, monitor in released)

    @property
    def is_over(self) -> bool:
        """Whether the run ends here."""
        return self.patience is not None and self.waited >= self.patience

    def check(self, shown: Container[str]) -> None:
        """Raise an error if what an evaluation shows is not what is followed."""
        if not self.certain and self.monitor not in shown:
            raise ArgumentError(
                "monitor", "the name of a number that the run shows", got=self.monitor
            )

    def follow(self, step: int, value: float | None, model: nn.Module) -> None:
        """Compare a new value of a model with the best; None: there was none this time."""
        if value is None:
            self.check(())
            return
        sign = -1 if self.monitor.endswith("loss") else 1
        if self.value is not None and not sign * value > sign * self.value:
            self.waited += 1
            return
        self.value, self.step, self.waited = value, step, 0
        if self.keeps:
            self.model = {name: v.detach().clone() for name, v in model.state_dict().items()}

    @torch.no_grad()
    def leave(self, model: nn.Module) -> None:
        """Copy the best model into the model, if there is one."""
        if self.keeps and self.model is not None:
            model.load_state_dict(self.model)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it."""
        names = ("monitor", "value", "step", "waited", "model")
        return {name: getattr(self, name) for name in names}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from a checkpoint, unless it followed another number or kept no model."""
        if state is None or state["monitor"] != self.monitor:
            return
        if not self.keeps or state["model"] is not None or state["step"] is None:
            for name, value in state.items():
                setattr(self, name, value)
