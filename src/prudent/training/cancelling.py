"""Noise that cancels: the noise of a step takes back part of the noise of the steps before it.

A model is a sum of updates, so what counts is the noise of the sum, and noise that is subtracted
again later does little harm. Let C be a lower triangular Toeplitz matrix of `bands` diagonals whose
columns have norm 1. The noise of step t is (C⁻¹z)ₜ with z independent and normal; since C is
banded, that is a recursion over the last `bands` - 1 noises:

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
from typing import Self, TypeAlias

import attrs
import numpy as np
import torch
from scipy import optimize, signal, special
from torch import Tensor

Array: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]

_MOST_STEPS = 10_000  # for which coefficients are found; longer runs have much the same


@lru_cache(maxsize=32)
def coefficients(bands: int, steps: int) -> tuple[float, ...]:
    """The entries of a column of C, from the diagonal down; their squares add up to at most 1.

    They minimise the mean squared error of the sums of noise after each step, among columns that
    decrease: each entry is a share of the one before it, at first as in (1 - x)^(-1/2), whose
    coefficients are near the best if `bands` is near `steps`.
    """
    if bands == 1:
        return (1.0,)
    count = min(max(int(steps), bands), _MOST_STEPS)
    start = np.log(2.0 * np.arange(1, bands) - 1)
    found = optimize.minimize(_error, start, (count,), method="L-BFGS-B", jac=True).x
    entries = _column(found)
    scale = math.sqrt(math.fsum(entries**2)) * (1 + 2.0**-50)  # rounding may not lengthen it
    column = tuple(float(each / scale) for each in entries)
    assert sum(Fraction(each) ** 2 for each in column) <= 1
    assert all(one >= other > 0 for one, other in pairwise(column))
    return column


def _column(logits: Array) -> Array:
    """Entries of which the first is 1 and each other a share of the one before, by its log-odds."""
    return np.cumprod(np.concatenate([[1.0], special.expit(logits)]))


def _error(logits: Array, steps: int) -> tuple[float, Array]:
    """The logarithm of the mean squared error of `steps` sums of noise, and its gradient.

    The sums of noise have the coefficients of s = 1/((1 - x) c); the derivative of s by cⱼ is
    -xʲ s/c. An error is as large as the norm of the column.
    """
    column = _column(logits)
    sums = np.cumsum(signal.lfilter([1.0], column, np.eye(1, steps)[0]))
    weighted = sums * (steps - np.arange(steps)) / steps
    moved = signal.lfilter([1.0], column, sums)
    squares, norm = float(weighted @ sums), float(column @ column)
    slopes = np.array([weighted[lag:] @ moved[: steps - lag] for lag in range(len(column))])
    by_entry = column * (2 * column / norm - 2 * slopes / squares)
    by_share = np.cumsum(by_entry[::-1])[::-1][1:]
    return math.log(squares * norm), by_share * special.expit(-logits)


@attrs.define
class NoiseHistory:
    """The last noises of a run, from which the next one is computed. As secret as the key.

    All of it is on the device, so that a captured step can follow it.
    """

    kept: Tensor  # the noise of step n in row n modulo `bands` - 1, in standard deviations
    last: Tensor  # number of the last step, counted from 1
    run: Tensor  # number of steps since the recursion began
    deviation: Tensor  # standard deviation of z in the last step
    column: Tensor  # A column of C. A resumed run has that of its checkpoint, on whatever machine.

    @classmethod
    def start(cls, bands: int, steps: int, numbers: int, device: torch.device) -> Self:
        """No noise so far, for a run of `steps` steps and gradients of so many numbers."""
        whole = torch.zeros(2, dtype=torch.int64, device=device)
        values = torch.zeros(bands - 1, numbers, dtype=torch.float64, device=device)
        none = torch.zeros((), dtype=torch.float64, device=device)
        column = torch.tensor(coefficients(bands, steps), dtype=torch.float64, device=device)
        return cls(values, whole[0].clone(), whole[1].clone(), none, column)

    def next_(self, normals: Tensor, deviation: Tensor, number: Tensor) -> Tensor:
        """The noise of a step in standard deviations, made of `normals` in place, and kept.

        The normals are z of the step, in double precision; the noise will be multiplied with their
        standard deviation, and `number` is that of the step, from 1, on the device.
        """
        rows = len(self.kept)
        goes_on = (number == self.last + 1) & (deviation == self.deviation)
        self.run.copy_(torch.where(goes_on, self.run + 1, 0))
        places = torch.arange(rows, device=number.device)
        lags = torch.remainder(number - 1 - places, rows) + 1
        weights = torch.where(lags <= self.run, self.column[lags], 0.0)
        noise = normals.sub_(weights @ self.kept).div_(self.column[0])
        self.kept.index_copy_(0, torch.remainder(number, rows).reshape(1), noise[None])
        self.last.copy_(number)
        self.deviation.copy_(deviation)
        return noise

    def plain(self) -> dict[str, Tensor]:
        """As a dictionary, for a checkpoint."""
        return {name: value.clone() for name, value in attrs.asdict(self, recurse=False).items()}

    @classmethod
    def of(cls, saved: dict[str, Tensor], device: torch.device) -> Self:
        """What `plain` returned."""
        return cls(**{name: value.to(device, copy=True) for name, value in saved.items()})
