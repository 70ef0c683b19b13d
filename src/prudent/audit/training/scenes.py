"""Data sets on which one record changes a step as much as it can: the stages of a white-box audit.

The model is linear and its loss is its output, so the gradient of a record is the record itself:
whoever chooses the records chooses the gradients, at every step, whatever the weights are. A
*Dirac canary* is a record whose clipped gradient is the clip along a known direction.

| scene | others | canary | tight for |
|---|---|---|---|
| `dirac` | zero gradients | R along u | DP-SGD at every rate; both cases of the test |
| `displaced` | τ along u | R along u, so one more τ is kept if the test passes | Case 2 at rate 1 |
| `opposed` | τ (or R) along -u | slightly shorter, along u | division, and trims by batch size |

The records of the last two are drawn too, which hides the canary unless the sampling rate is 1.
"""

from typing import cast

import attrs
import torch
from torch import Tensor, nn

from prudent import _validate
from prudent.training.aggregation import (
    Aggregation,
    ProposeTestRelease,
    clip_weights,
    keep_smallest,
)

_SHORTER = 1 - 1e-6  # a norm that ranks below those of the other records, and moves a sum as far


class Linear(nn.Module):
    """A linear model whose output for a record is its inner product with the weights."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer = nn.Linear(size, 1, bias=False, dtype=torch.float64)

    def forward(self, inputs: Tensor) -> Tensor:
        """The output for each record."""
        return cast(Tensor, self.layer(inputs))[:, 0]


def output_as_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each record: the output, so that the gradient is the record."""
    return outputs


@attrs.frozen(eq=False)
class Scene:
    """Records with and without a canary.

    Attributes:
        name: Which scene.
        others: The gradients of the other records, shape (records, 2).
        canary: The gradient of the canary.
        direction: The direction in which the canary moves the sum.
    """

    name: str
    others: Tensor
    canary: Tensor
    direction: Tensor

    def records(self, *, present: bool) -> Tensor:
        """The data set, the canary first if it is present."""
        return torch.cat([self.canary[None], self.others]) if present else self.others

    def release(self, rule: Aggregation, trim: int, *, present: bool) -> "Expected":
        """What an honest step releases of all records, apart from the noise."""
        records = self.records(present=present)
        norms = torch.linalg.vector_norm(records, dim=1)
        valid = torch.ones(len(records), dtype=torch.bool)
        weights, clipped = clip_weights(norms, valid, rule.clip)
        kept = weights * keep_smallest(clipped, valid, torch.tensor(float(trim)))
        along = records @ self.direction
        above = 0
        if isinstance(rule, ProposeTestRelease):
            above = int((clipped > rule.proposal).sum())
        return Expected(
            margin=max(0, trim - above),
            total=float((weights * along).sum()),
            trimmed=float((kept * along).sum()),
        )


@attrs.frozen
class Expected:
    """What a step computes before its noise.

    Attributes:
        margin: The margin of the test.
        total: The clipped sum along the direction of the scene.
        trimmed: The trimmed sum along it.
    """

    margin: int
    total: float
    trimmed: float


def dirac(rule: Aggregation) -> Scene:
    """A canary of the clip, among records without a gradient."""
    canary = torch.tensor([2 * rule.clip, 0.0], dtype=torch.float64)
    return Scene("dirac", torch.zeros(1, 2, dtype=torch.float64), canary, _unit())


def displaced(rule: ProposeTestRelease, trim: int) -> Scene:
    """A canary that is trimmed in place of a record of norm τ, which lowers the margin by one."""
    others = rule.proposal * _unit().expand(max(1, trim), 2)
    return Scene("displaced", others.clone(), 2 * rule.clip * _unit(), _unit())


def opposed(rule: Aggregation, count: int) -> Scene:
    """A canary against the sum of all others: any effect on their weights adds to its own."""
    norm = rule.proposal if isinstance(rule, ProposeTestRelease) else rule.clip
    others = -norm * _unit().expand(_validate.count(1, count=count), 2)
    return Scene("opposed", others.clone(), _SHORTER * norm * _unit(), _unit())


def _unit() -> Tensor:
    return torch.tensor([1.0, 0.0], dtype=torch.float64)
