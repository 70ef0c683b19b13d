"""Trim policies: how many gradients to leave out, computed from the public batch size."""

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
    already released. If it were a fraction of the drawn batch, one record could change it.
    """

    @abstractmethod
    def start(self, expected_batch: float) -> float:
        """F of the first step, before rounding down."""

    @abstractmethod
    def next(self, trim: Tensor, passed: Tensor, expected_batch: float) -> Tensor:
        """F of the next step, before rounding down, given the branch of this one."""

    @staticmethod
    def records(trim: Tensor) -> Tensor:
        """F rounded down to a whole number."""
        return torch.floor(trim)


@attrs.frozen
class FixedTrim(Trim):
    """Trims a fixed fraction of the expected batch.

    Attributes:
        share: The fraction, in [0, 1].
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
    """Trims more after a failed test and less after a passed one.

    The pass rate tends to up/(up + down) unless F reaches a bound. A passed test indicates that few
    gradients are large, so fewer need trimming; a failed test indicates that many are (Errata 27).
    Adapting in the opposite direction is a positive feedback loop (Errata 28).

    Attributes:
        first: Fraction of the expected batch trimmed in the first step.
        up: Fraction of the expected batch added after a failed test.
        down: Fraction of the expected batch subtracted after a passed test.
        least: Lower bound on the trimmed fraction.
        most: Upper bound on the trimmed fraction. Beyond it, the remaining gradients would
            represent too few records.
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
