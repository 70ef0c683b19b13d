"""The loss of the training records as a release of its own: noisy, and charged."""

import math
from functools import partial

import attrs
import dp_accounting as dp

from prudent import _validate


@attrs.frozen(kw_only=True)
class Watch:
    """Releases the mean training loss with noise, at the first of every `loss_every` steps.

    The loss of each record in the step's batch is clipped to [0, `bound`]; their sum gets Gaussian
    noise and is divided by the public batch size. Whatever follows from it costs nothing more:
    curves, stopping early, the choice of a model.

    Attributes:
        loss_every: Number of steps from one release to the next.
        bound: Largest loss of a record; a public number, such as the logarithm of the number of
            classes, which a model that guesses has. A loss that is not a number counts as `bound`.
        noise_multiplier: Standard deviation of the noise on the sum, divided by `bound`; that of
            the mean is `deviation`.

    Guarantee:
        One record changes the sum by at most `bound`. The loss is released from the same Poisson
        sample as the gradient, so both are one release on it: two noisy sums are one Gaussian
        release whose squared inverse multipliers add up, and Propose-Test-Release and a Gaussian
        release are composed before, not after, the price of sampling (`event`).
    """

    loss_every: int
    bound: float
    noise_multiplier: float = 10.0

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, partial(_validate.count, 1), "loss_every")
        _validate.fields(self, _validate.positive, "bound", "noise_multiplier")

    def releases(self, steps: int) -> int:
        """The number of losses released in so many steps, of which the first is always one."""
        return -(-steps // self.loss_every)

    def deviation(self, expected_batch: float) -> float:
        """Standard deviation of the noise on one released mean."""
        return self.noise_multiplier * self.bound / expected_batch

    def event(self, release: dp.DpEvent) -> dp.DpEvent:
        """What a step releases of its batch together with the loss, before sampling."""
        if isinstance(release, dp.GaussianDpEvent):
            return dp.GaussianDpEvent(
                1 / math.hypot(1 / release.noise_multiplier, 1 / self.noise_multiplier)
            )
        return dp.ComposedDpEvent([release, dp.GaussianDpEvent(self.noise_multiplier)])
