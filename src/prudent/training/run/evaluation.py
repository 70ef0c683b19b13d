"""Evaluation of a model on public data, and reading the metrics of a run."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from prudent._torch_private import pytree
from prudent.training.gradients.engine import run_on

Evaluate = Callable[[nn.Module], Mapping[str, float]]


@contextmanager
def modes_kept(model: nn.Module) -> Iterator[None]:
    """Restore the training or evaluation mode of every module on exit.

    `model.train()` would also switch layers that are meant to stay in evaluation mode.
    """
    before = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def accuracy(features: Any, labels: Tensor, batch: int = 1000) -> "Accuracy":
    """An evaluation function for `fit`: the fraction of correct labels on public data.

    Args:
        features: A tensor or a tree of tensors, with records along the first dimension, passed to
            the model as in training. The model returns scores of classes, or an object with them as
            `logits`.
        labels: Class indices.
        batch: Number of records per forward pass.
    """
    return Accuracy(features, labels, batch)


@attrs.frozen(eq=False)
class Accuracy:
    """The evaluation function that `accuracy` returns."""

    features: Any
    labels: Tensor
    batch: int = 1000

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """The fraction of correct labels, as `{"accuracy": ...}`."""
        starts = range(0, len(self.labels), self.batch)
        right = sum(self.right(model, start, start + self.batch) for start in starts)
        return {"accuracy": right / len(self.labels)}

    def rehearse(self, model: nn.Module) -> None:
        """Evaluate one record, so that errors show before anything is charged."""
        self.right(model, 0, 1)

    @torch.no_grad()
    def right(self, model: nn.Module, start: int, stop: int) -> int:
        """The number of correct labels among the records from `start` to before `stop`."""
        device = next(model.parameters()).device
        inputs = pytree.tree_map_only(
            Tensor, lambda leaf: leaf[start:stop].to(device), self.features
        )
        with modes_kept(model):
            outputs = run_on(model.eval(), inputs)
        guesses = getattr(outputs, "logits", outputs).argmax(-1)
        return int((guesses == self.labels[start:stop].to(device)).sum())
