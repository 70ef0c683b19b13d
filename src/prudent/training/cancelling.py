"""Noise that cancels: the noise of a step takes back part of the noise of the steps before it.

A model is a sum of updates, so what counts is the noise of the sum, and noise that is subtracted
again later does little harm. Let C be the lower triangular Toeplitz matrix with the first `bands`
coefficients of (1 - x)^(-1/2) in each column, divided by their norm. The noise of step t is
(C⁻¹z)ₜ with z independent and normal; since C is banded, that is a recursion over the last
`bands` - 1 noises:

    wₜ = (zₜ - c₁wₜ₋₁ - … - cₖwₜ₋ₖ) / c₀,    k = bands - 1.

These are kept, in double precision: `bands` - 1 vectors as large as the model, in the first process
alone. They cannot be drawn again from the keystream in less than all steps so far, because every
noise depends on all before it.

Guarantee:
    If a record takes part in at most one of any `bands` steps in a row, what it adds to the run is
    dominated by one Gaussian release with the noise multiplier of the plan for each step that it
    takes part in; proof in `docs/correlated-noise.md`. That needs of C: columns of norm at most 1,
    of at most `bands` entries (`coefficients` proves both in exact arithmetic); of the noise: one
    deviation and no step left out in the recursion. After a gap, or with another deviation or
    number of parameters, it starts anew, which is another block of C.

    The coefficients decrease, so that all zeros of c₀ + c₁x + … are outside the unit disc (Eneström
    and Kakeya): rounding errors of the recursion die out.
"""

import math
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Self

import attrs
import torch
from torch import Tensor


@lru_cache(maxsize=32)
def coefficients(bands: int) -> tuple[float, ...]:
    """The entries of a column of C, from the diagonal down; their squares add up to at most 1."""
    column = [1.0]
    for lag in range(1, bands):
        column.append(column[-1] * (2 * lag - 1) / (2 * lag))
    scale = math.sqrt(math.fsum(each * each for each in column)) * (1 + 2.0**-50)
    column = [each / scale for each in column] if bands > 1 else column
    assert sum(Fraction(each) ** 2 for each in column) <= 1
    assert all(one > other > 0 for one, other in pairwise(column))
    return tuple(column)


@attrs.define
class NoiseHistory:
    """The last noises of a run, from which the next one is computed. As secret as the key.

    All of it is on the device, so that a captured step can follow it.

    Attributes:
        kept: The noise of step n in row n modulo `bands` - 1, in standard deviations.
        last: Number of the last step, counted from 1.
        run: Number of steps since the recursion began.
        deviation: Standard deviation of z in the last step.
    """

    kept: Tensor
    last: Tensor
    run: Tensor
    deviation: Tensor
    _column: Tensor = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        column = torch.tensor(coefficients(self.bands), dtype=torch.float64)
        self._column = column.to(self.kept.device)

    @classmethod
    def start(cls, bands: int, numbers: int, device: torch.device) -> Self:
        """No noise so far, for a gradient of so many numbers."""
        whole = torch.zeros(2, dtype=torch.int64, device=device)
        values = torch.zeros(bands - 1, numbers, dtype=torch.float64, device=device)
        none = torch.zeros((), dtype=torch.float64, device=device)
        return cls(values, whole[0].clone(), whole[1].clone(), none)

    @property
    def bands(self) -> int:
        """The number of bands of C."""
        return len(self.kept) + 1

    def next_(self, normals: Tensor, deviation: Tensor, number: Tensor) -> Tensor:
        """The noise of a step in standard deviations, made of `normals` in place, and kept.

        Args:
            normals: z of the step, in double precision.
            deviation: Its standard deviation, with which the noise will be multiplied.
            number: The number of the step, from 1, on the device.
        """
        rows = len(self.kept)
        goes_on = (number == self.last + 1) & (deviation == self.deviation)
        self.run.copy_(torch.where(goes_on, self.run + 1, 0))
        places = torch.arange(rows, device=number.device)
        lags = torch.remainder(number - 1 - places, rows) + 1
        weights = torch.where(lags <= self.run, self._column[lags], 0.0)
        noise = normals.sub_(weights @ self.kept).div_(self._column[0])
        self.kept.index_copy_(0, torch.remainder(number, rows).reshape(1), noise[None])
        self.last.copy_(number)
        self.deviation.copy_(deviation)
        return noise

    def plain(self) -> dict[str, Tensor]:
        """As a dictionary, for a checkpoint."""
        names = ("kept", "last", "run", "deviation")
        return {name: getattr(self, name).clone() for name in names}

    @classmethod
    def of(cls, saved: dict[str, Tensor], device: torch.device) -> Self:
        """What `plain` returned."""
        return cls(**{name: value.to(device, copy=True) for name, value in saved.items()})
