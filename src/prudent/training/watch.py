"""What a plan releases to watch a run by: the loss in training, the accuracy on held-out records.

Both are noisy and charged, and neither is released by default.
"""

import math
from functools import partial

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.accounting.events import WorstOfDpEvent
from prudent.accounting.relations import Relation

RELEASED = "train_loss", "held_out_accuracy", "held_out_loss"
"""The names under which metrics show what is released here, each also with `_noise`."""


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


class HeldOutMetric(_validate.Choice):
    """What is released of held-out records."""

    ACCURACY = "accuracy"
    """The fraction of right labels."""

    LOSS = "loss"
    """The mean loss, each clipped to [0, `bound`]."""


@attrs.frozen(kw_only=True)
class HeldOut:
    """Releases the accuracy or the loss on private held-out records with noise.

    It is released after every `every` steps and after the last step, of all held-out records each
    time. What a record (with a privacy unit: the mean of a person's records) adds to the sum is its
    value less half the bound, at most half the bound in size; the noisy sum is divided by the
    public number of held-out records, and half the bound is added. Whatever follows from it costs
    nothing more: curves, stopping early, the choice of the best model.

    Attributes:
        every: Number of steps from one release to the next.
        metric: "accuracy", the fraction of right labels, or "loss", the mean clipped loss.
        bound: With "loss", the largest loss of a record, a public number; 1 with "accuracy". A loss
            that is not a number counts as `bound`, and an input that the model rejects as wrong.
        noise_multiplier: Standard deviation of the noise on the sum, divided by half the bound;
            that of what is released is `deviation`.
        expected_records: The public number of held-out records, or people, by which the sum is
            divided. None: their true number, which the plan's relation must then declare public.

    Guarantee:
        Let T be the training records and H the held-out ones, two data sets of which every record
        (or person) is in at most one, and let its side be a function of itself and of public facts:
        an earlier cohort, a hash of its key, or its position if the number of records is public. A
        random split of a number of records that is secret is none: one record more would move
        others to the other side. Neighbours then differ in one record of T, or in one of H.

        *In T.* Given what was released before, a held-out release is a function of that, of H,
        which is the same for both, and of new noise: post-processing. So the run costs what
        training does. *In H.* Given what was released before, the model is the same for both, a
        step is a function of T and of new noise, and each held-out release is a Gaussian one of
        sensitivity half the bound. So the run costs what these releases do.

        At every ε, δ is therefore at most the larger of both: `WorstOfDpEvent`, and no less can be
        said, as each of them is attained. For relations of more than one record, which may be on
        both sides, both are charged (`beside`).
    """

    every: int
    metric: HeldOutMetric = attrs.field(
        default=HeldOutMetric.ACCURACY,
        converter=HeldOutMetric,
        repr=lambda value: repr(value.value),
    )
    bound: float | None = None
    noise_multiplier: float = 20.0
    expected_records: float | None = None

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, partial(_validate.count, 1), "every")
        _validate.fields(self, _validate.positive, "noise_multiplier")
        for name in ("bound", "expected_records"):
            if getattr(self, name) is not None:
                _validate.fields(self, _validate.positive, name)
        if (self.bound is None) is (self.metric is HeldOutMetric.LOSS):
            raise ArgumentError(
                "bound",
                "the largest loss of a record with metric='loss', and None with 'accuracy'",
                got=self.bound,
            )

    @property
    def name(self) -> str:
        """The name under which it is shown."""
        return f"held_out_{self.metric.value}"

    @property
    def largest(self) -> float:
        """The largest value of a record."""
        return 1.0 if self.bound is None else self.bound

    def releases(self, steps: int) -> int:
        """The number of releases in a run of so many steps; at most so many in its first ones."""
        return -(-steps // self.every)

    def is_due(self, taken: int, steps: int) -> bool:
        """Whether there is a release after `taken` of all the steps."""
        return taken > 0 and (taken % self.every == 0 or taken == steps)

    def steps_due(self, steps: int) -> list[int]:
        """The numbers of steps after which there is a release."""
        return [*range(self.every, steps, self.every), *([steps] if steps else [])]

    def deviation(self, records: float) -> float:
        """Standard deviation of the noise on what is released of so many records."""
        return self.noise_multiplier * self.largest / 2 / records

    def beside(self, training: dp.DpEvent, steps: int, relation: Relation) -> dp.DpEvent:
        """The event of a run of so many steps and of its releases on held-out records."""
        if steps == 0:
            return training
        alone = dp.SelfComposedDpEvent(
            dp.GaussianDpEvent(self.noise_multiplier), self.releases(steps)
        )
        if relation.distance > 1:
            return dp.ComposedDpEvent([training, alone])
        return WorstOfDpEvent([training, alone])
