"""Noise drawn on the device of the training.

The noise of the test decides with a probability as small as 1e-8 which branch is taken, so it is
drawn in double precision: a single-precision uniform has no values that small. Generators are those
of torch, which are not cryptographically secure; see the sharp edges.
"""

import functools

import numpy as np
import torch
from torch import Tensor

from prudent.accounting.events import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    MarginTest,
)


def margin_noise(
    test: MarginTest, device: torch.device, generator: torch.Generator | None = None
) -> Tensor:
    """One draw of the test's noise, a double-precision scalar on the device."""
    if isinstance(test, GaussianTest):
        normal = torch.randn((), dtype=torch.float64, device=device, generator=generator)
        return normal * test.scale
    uniform = torch.rand((), dtype=torch.float64, device=device, generator=generator)
    if isinstance(test, LaplaceTest):
        centred = uniform - 0.5
        # Of 1 - 2|u| exactly zero can be drawn once in 2^53: its logarithm is cut off there.
        tail = (1 - 2 * centred.abs()).clamp_min(2.0**-54)
        return -test.scale * torch.sign(centred) * torch.log(tail)
    table = _distribution(test, device)
    return torch.searchsorted(table, uniform, right=True) - (len(table) // 2)


@functools.lru_cache(maxsize=32)
def _distribution(test: MarginTest, device: torch.device) -> Tensor:
    """Pr[noise <= k] for k from -reach to reach of a whole-number law, symmetric about 0."""
    if isinstance(test, DiscreteGaussianTest):
        reach = test.reach
    elif isinstance(test, DiscreteLaplaceTest):
        reach = int(np.ceil(48 * test.scale)) + 2
    else:
        raise ValueError(f"Expected test a MarginTest this package defines, got {test!r}.")
    above = np.array([test.tail(k) for k in range(reach)])  # Pr[noise > k], k >= 0
    below = above[::-1]  # Pr[noise <= -k-1], by symmetry
    return torch.tensor(np.concatenate([below, 1 - above, [1.0]]), device=device)
