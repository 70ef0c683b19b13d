"""In which unit gradients are measured: a public factor that follows their lengths.

A clip far below the gradients cuts all of them to one length. Honest gradients point many ways, so
that little is left of their mean, and a few records that agree outweigh it; a clip far above them
is all noise. The lengths change a hundredfold in a run, so no fixed clip is right throughout.
"""

import math
from functools import partial

import attrs
import torch
from torch import Tensor

from prudent import _validate

_FARTHEST = 40.0


@attrs.frozen(kw_only=True)
class AdaptiveScale:
    """Multiplies all gradients by a factor under which a share of them is no longer than the clip.

    Adaptive clipping (Andrew et al., 2021) with the sum in units of the clip: how long a step is
    does not change with it. Every step also releases, with noise, how many gradients were no longer
    than the clip, and the next factor is made of that. So the factor is public, one record changes
    the scaled sum by no more than before, and the count by one: the price of a step is that of its
    aggregation and of one Gaussian release of the count, on one batch.

    The factor is a power of two, so that scaling rounds nothing and no bound moves.

    Attributes:
        quantile: The share of the expected batch that shall be no longer than the clip.
        speed: How fast the factor follows: its logarithm moves by this, times how far off the share
            was.
        noise: Standard deviation of the noise on the count.
    """

    quantile: float = 0.8
    speed: float = 0.2
    noise: float = 10.0

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, partial(_validate.between, 0, 1, ends="()"), "quantile")
        _validate.fields(self, _validate.positive, "speed", "noise")

    @staticmethod
    def factor(exponent: Tensor) -> Tensor:
        """The power of two nearest to 2^exponent."""
        return torch.exp2(torch.round(exponent))

    @staticmethod
    def short(scaled: Tensor, valid: Tensor, clip: float) -> Tensor:
        """How many gradients are no longer than the clip. Private: it needs its noise.

        Args:
            scaled: Norms times the factor.
            valid: False for padding.
            clip: R.
        """
        return (valid & ~(scaled > clip)).sum().double()

    def drawn_noise(self, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
        """What is added to the count before anyone sees it."""
        return self.noise * torch.randn((), dtype=torch.float64, device=device, generator=generator)

    def next(self, exponent: Tensor, noisy_count: Tensor, expected_batch: float) -> Tensor:
        """The exponent of the next step: more are short than should be, and it grows."""
        off = noisy_count / expected_batch - self.quantile
        return (exponent + self.speed / math.log(2) * off).clamp(-_FARTHEST, _FARTHEST)
