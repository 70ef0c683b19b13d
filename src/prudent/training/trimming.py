"""How many gradients to leave out: always from the expected batch, never from the drawn one."""

import math
from abc import ABC, abstractmethod
from functools import partial

import attrs
import torch
from torch import Tensor
from typing_extensions import override

from prudent import _validate


class Trim(ABC):
    """A policy for F, the number of largest gradients left out.

    F is a whole number that depends on the expected batch size, which is public, and on branches
    already released; were it a share of the drawn batch, one record could change it.
    """

    @abstractmethod
    def start(self, expected_batch: float) -> float:
        """F of the first step, before it is rounded down."""

    @abstractmethod
    def next(self, trim: Tensor, passed: Tensor, expected_batch: float) -> Tensor:
        """F of the next step, from the branch of this one."""

    @staticmethod
    def records(trim: Tensor) -> Tensor:
        """F as a whole number."""
        return torch.floor(trim)


@attrs.frozen
class FixedTrim(Trim):
    """Always the same share of the expected batch.

    Attributes:
        share: In [0, 1].
    """

    share: float

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, partial(_validate.between, 0, 1), "share")

    @override
    def start(self, expected_batch: float) -> float:
        return float(math.floor(self.share * expected_batch))

    @override
    def next(self, trim: Tensor, passed: Tensor, expected_batch: float) -> Tensor:
        return trim


@attrs.frozen(kw_only=True)
class AdaptiveTrim(Trim):
    """Trims more after a failed test, less after a passed one.

    The pass rate tends to up/(up + down), unless F meets a bound. Passing says that few gradients
    are large, so fewer need to go; failing says that many are (Errata 27). The other way round
    feeds on itself (Errata 28).

    Attributes:
        first: Share of the expected batch trimmed at first.
        up: Added after a failure, as a share of the expected batch.
        down: Taken off after a pass.
        least: Never below this share.
        most: Never above this share: what more trimming would leave speaks for few.
    """

    first: float = 0.25
    up: float = 0.02
    down: float = 0.02
    least: float = 0.0
    most: float = 0.5

    def __attrs_post_init__(self) -> None:
        share = partial(_validate.between, 0, 1)
        _validate.fields(self, share, "first", "up", "down", "least", "most")
        if not self.least <= self.first <= self.most:
            raise _validate.ArgumentError(
                "first", f"in [least, most] = [{self.least}, {self.most}]", got=self.first
            )

    @override
    def start(self, expected_batch: float) -> float:
        return self.first * expected_batch

    @override
    def next(self, trim: Tensor, passed: Tensor, expected_batch: float) -> Tensor:
        moved = torch.where(
            passed, trim - self.down * expected_batch, trim + self.up * expected_batch
        )
        return moved.clamp(self.least * expected_batch, self.most * expected_batch)
