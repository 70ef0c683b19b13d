"""The per-example gradients by their definition: one backward for each record alone."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from prudent.training.gradients import Engine

Loss = Callable[[Any, Any], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss for outputs of any shape, its gradient different at every position."""
    outputs = outputs.reshape(len(outputs), -1)
    scale = torch.linspace(0.5, 1.5, outputs.shape[1], dtype=outputs.dtype)
    return ((outputs - targets[:, None]) * scale).square().sum(1)


def alone(
    model: nn.Module, loss: Loss, inputs: Any, targets: Any, records: int
) -> dict[str, Tensor]:
    """Gradients of shape (records, *shape) by name, from `records` separate backwards."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rows: dict[str, list[Tensor]] = {name: [] for name in trained}
    for i in range(records):
        one, target = pytree.tree_map_only(
            Tensor, lambda leaf, i=i: leaf[i : i + 1], (inputs, targets)
        )
        outputs = (
            model(**one)
            if isinstance(one, dict)
            else (model(*one) if isinstance(one, tuple) else model(one))
        )
        gradients = torch.autograd.grad(
            loss(outputs, target).sum(), list(trained.values()), materialize_grads=True
        )
        for name, gradient in zip(trained, gradients, strict=True):
            rows[name].append(gradient)
    return {name: torch.stack(row) for name, row in rows.items()}


def assert_agrees(
    engine: Engine, inputs: Any, targets: Any, records: int, tolerance: float = 1e-10
) -> None:
    """Norms and a weighted sum are those of the separate backwards."""
    truth = alone(engine.model, engine.loss, inputs, targets, records)
    norms = torch.stack([g.reshape(records, -1).square().sum(1) for g in truth.values()])
    weights = torch.linspace(0.2, 1.7, records, dtype=norms.dtype)
    gradients = engine(engine.model, inputs, targets)
    torch.testing.assert_close(gradients.norms, norms.sum(0).sqrt(), rtol=tolerance, atol=tolerance)
    total = gradients.weighted_sum(weights)
    assert list(total) == list(truth)
    for name, gradient in truth.items():
        expected = torch.einsum("m,m...->...", weights, gradient)
        torch.testing.assert_close(total[name], expected, rtol=tolerance, atol=tolerance, msg=name)
