"""The plan: everything about a training run that its privacy depends on, in one frozen value."""

from functools import partial

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent.accounting.calibration import Accountant, Search, solve
from prudent.accounting.loss import PldAccountant
from prudent.training.aggregation import Aggregation, Mean


@attrs.frozen(kw_only=True)
class Plan:
    """How batches are sampled, how many, and how each becomes a release.

    The sampler, the sensitivity and the price all come from here, so they cannot disagree. What
    cannot change the guarantee (engine, device, precision) is in `Execution`.

    Attributes:
        sampling_rate: Probability with which each record enters a batch, independently.
        steps: How many batches.
        aggregation: What is released of each batch.
        expected_batch: Sampling rate times the public size of the data. The sum is divided by it
            and trims are shares of it. None: `sampling_rate` times the size of the training set,
            which is then treated as public.
    """

    sampling_rate: float
    steps: int
    aggregation: Aggregation
    expected_batch: float | None = None

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, partial(_validate.between, 0, 1, ends="(]"), "sampling_rate")
        _validate.fields(self, _validate.count, "steps")
        if self.expected_batch is not None:
            _validate.fields(self, _validate.positive, "expected_batch")
        if not isinstance(self.aggregation, Aggregation):
            raise ValueError(
                "Expected aggregation one of Sum, TrimmedSum, ProposeTestRelease, Mean, got "
                f"{self.aggregation!r}."
            )

    @property
    def event(self) -> dp.DpEvent:
        """The whole run, for any accountant."""
        return self.event_after(self.steps)

    def event_after(self, steps: int) -> dp.DpEvent:
        """The first `steps` steps."""
        if _validate.count(steps=steps) == 0:
            return dp.NoOpDpEvent()
        release = self.aggregation.event
        if isinstance(self.aggregation, Mean):
            return dp.SelfComposedDpEvent(release, int(steps))
        sampled = dp.PoissonSampledDpEvent(self.sampling_rate, release)
        return dp.SelfComposedDpEvent(sampled, int(steps))

    def epsilon(self, delta: float, *, accountant: Accountant = PldAccountant) -> float:
        """The ε at which the whole run is (ε, δ)-DP."""
        return self.epsilon_after(self.steps, delta, accountant=accountant)

    def epsilon_after(
        self, steps: int, delta: float, *, accountant: Accountant = PldAccountant
    ) -> float:
        """The ε of the first `steps` steps."""
        return accountant().compose(self.event_after(steps)).get_epsilon(delta)

    def calibrate(
        self, *, epsilon: float, delta: float, accountant: Accountant = PldAccountant
    ) -> "Plan":
        """A plan with the least noise that makes the run (ε, δ)-DP, rounded to the safe side."""
        noise = solve(
            lambda sigma: self._with_noise(sigma).event,
            Search(safe=1e4, unsafe=1e-2, guess=1.0),
            epsilon=epsilon,
            delta=delta,
            accountant=accountant,
            name="noise_multiplier",
        )
        return self._with_noise(noise)

    def longest(
        self, *, epsilon: float, delta: float, accountant: Accountant = PldAccountant
    ) -> "Plan":
        """A plan with the most steps that keep the run (ε, δ)-DP."""
        steps = solve(
            lambda count: self.event_after(int(count)),
            Search(safe=1, unsafe=1e9, guess=max(1, self.steps), whole=True),
            epsilon=epsilon,
            delta=delta,
            accountant=accountant,
            name="steps",
        )
        return attrs.evolve(self, steps=int(steps))

    def _with_noise(self, noise_multiplier: float) -> "Plan":
        return attrs.evolve(self, aggregation=self.aggregation.with_noise(noise_multiplier))
