"""A model, a loss and public records, and what is found about them."""

import copy
from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from prudent._torch_private import pytree
from prudent._validate import Choice
from prudent.training.gradients.engine import run_on

BatchLoss = Callable[[Any, Any], Tensor]
NEAR = 1e-3
"""Relative difference that rounding does not explain."""


class Severity(Choice):
    """What a finding means for private training."""

    ERROR = "error"
    """It would be refused, or its guarantee would not hold."""

    WARNING = "warning"
    """It is possible, but probably not what was meant."""

    NOTE = "note"
    """Nothing is wrong."""


class LossKind(Choice):
    """What a loss returns for a batch."""

    MEAN = "mean"
    SUM = "sum"
    PER_RECORD = "per record"

    def __str__(self) -> str:
        if self is LossKind.PER_RECORD:
            return "one value per record: use prudent.fit or prudent.Step"
        return f"a {self.value} over the records: loss_reduction={self.value!r} of make_private"


@attrs.frozen
class Finding:
    """One finding of a check.

    Attributes:
        severity: What it means for private training.
        where: The layer, parameter or function concerned.
        problem: What was found.
        fix: What to do about it.
    """

    severity: Severity
    where: str
    problem: str
    fix: str

    def __str__(self) -> str:
        return f"[{self.severity.value}] {self.where}: {self.problem}\n    Fix: {self.fix}"


@attrs.define
class Subject:
    """A model, a loss and public records.

    Attributes:
        model: The model, which is never run: only copies of it are.
        loss: The loss.
        inputs: Inputs of the records.
        targets: Targets of the records.
        records: Number of records.
        kind: What the loss returns, as far as it is known.
    """

    model: nn.Module
    loss: BatchLoss
    inputs: Any
    targets: Any
    records: int
    kind: LossKind | None = None

    def outputs(self) -> Any:
        """The outputs of the model for all records at once."""
        return run_on(self.copied(), cloned(self.inputs))

    def copied(self) -> nn.Module:
        """A new copy of the model, to which nothing has been done."""
        return copy.deepcopy(self.model)

    def batch(self, rows: slice = slice(None)) -> Any:
        """A copy of the inputs and targets of some records."""
        return pytree.tree_map_only(
            Tensor, lambda leaf: leaf[rows].clone(), (self.inputs, self.targets)
        )

    def first(self, tree: Any) -> Any:
        """A batch of the first record alone; tensors without a record axis stay."""
        return self._by_record(tree, lambda leaf: leaf[:1].clone())

    def first_everywhere(self, tree: Any) -> Any:
        """The batch with copies of the first record in place of the others."""
        return self._by_record(tree, lambda leaf: leaf[:1].expand_as(leaf).clone())

    def has_rows(self, leaf: Any) -> bool:
        """Whether a tensor has the records on its first axis."""
        return isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] == self.records

    def _by_record(self, tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
        return pytree.tree_map_only(
            Tensor, lambda leaf: change(leaf.detach()) if self.has_rows(leaf) else leaf, tree
        )

    def record_loss(self, outputs: Any, targets: Any) -> Tensor:
        """The loss of a batch of one record, as engines call it."""
        return self.loss(outputs, targets).reshape(1)


def cloned(tree: Any) -> Any:
    """A copy of a tree of tensors, without their graph."""
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.detach().clone(), tree)


def same(one: Any, other: Any) -> bool:
    """Whether two trees of tensors agree up to rounding."""
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=True)
    return all(
        torch.allclose(a.double(), b.double(), rtol=NEAR, atol=NEAR * scale(a), equal_nan=True)
        for a, b in pairs
        if isinstance(a, Tensor)
    )


def scale(values: Tensor) -> float:
    """The largest finite magnitude; 0 if there is none."""
    finite = values[torch.isfinite(values)] if values.is_floating_point() else values
    return float(finite.abs().max()) if finite.numel() else 0.0
