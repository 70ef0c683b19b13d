"""The training plan: one frozen value that holds everything the privacy of a run depends on.

To watch a run by, a plan may release the loss in training and the accuracy on held-out records.
Both are noisy and charged, and neither is released by default.
"""

import math
from functools import partial

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent._rounding import exact, nearest, rounded_up
from prudent._validate import ArgumentError
from prudent._warning import warn
from prudent.accounting.calibration import Accountant, Search, check_bands, in_turns, solve
from prudent.accounting.events import RandomAllocationDpEvent, WorstOfDpEvent
from prudent.accounting.group_privacy import InfiniteEpsilon, epsilon_of, why_infinite
from prudent.accounting.pld_accountant import PldAccountant
from prudent.accounting.relations import ADD_REMOVE, ZERO_OUT, Relation, check_relation
from prudent.accounting.robustness import AccuracyCertificate, Certifier
from prudent.training.aggregation import Aggregation, Mean, Sum, TrimmedSum

_SHOWN_DELTA = 1e-5
_WEAK = 50.0  # an ε above which a promise is none

RELEASED = "train_loss", "held_out_accuracy", "held_out_loss"
"""The names under which metrics show what is released here, each also with `_noise`."""


@attrs.frozen(kw_only=True)
class LossRelease:
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


class Sampling(_validate.Choice):
    """How records are drawn into batches."""

    POISSON = "poisson"
    """Each record is in each batch independently, with probability `sampling_rate`."""

    RANDOM_ALLOCATION = "random-allocation"
    """Each record is in exactly one of the 1/`sampling_rate` batches of an epoch.

    It is chosen uniformly, for each record and epoch independently ("balls and bins"). Sizes of
    batches vary: of shuffled batches of a fixed size no such price is known.
    """


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
        _validate.given_fields(self, _validate.positive, "bound", "expected_records")
        if (self.bound is None) is (self.metric is HeldOutMetric.LOSS):
            allowed = "the largest loss of a record with metric='loss', and None with 'accuracy'"
            raise ArgumentError("bound", allowed, got=self.bound)

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


@attrs.frozen(kw_only=True, repr=False)
class Plan:
    """A training plan: how batches are sampled, how many, and how each one is released.

    The sampler, the noise and the accounting all read the same plan, so they cannot disagree.
    Settings that cannot change the guarantee (engine, device, precision) are in `Execution`. In a
    run with a privacy unit a record here is a person.

    Attributes:
        sampling_rate: Probability with which each record is included in a batch, independently of
            the others.
        steps: Number of batches.
        aggregation: How each batch is released.
        expected_batch: The public batch size: the sum is divided by it, and trim fractions are
            relative to it. None: `sampling_rate` times the number of records, which is then public.
        relation: The neighbouring relation between data sets; every ε of the plan refers to it.
            None: `ADD_REMOVE` if `expected_batch` is given, else `ZERO_OUT`. Under `ADD_REMOVE` the
            number of records is secret, so neither `expected_batch` nor `sampling_rate` may be
            computed from it; if either is, use `ZERO_OUT`, which has the same price.
        before: What was released about the same records before the first step, such as a
            normalisation. Every event and every ε of the plan includes it.
        watch: The training loss as a release of its own, with noise; its price is in every event
            and every ε, and calibration leaves room for it. None: no loss is released.
        num_bands: With more than 1, the noise of a step takes back part of the noise of the
            `num_bands` - 1 steps before it, so that it cancels in the model (`prudent.training.
            noise`). Every record belongs to one of `num_bands` random parts, which take turns:
            each step draws from one of them, `num_bands` times as often. 1: DP-SGD.
        held_out: The accuracy or loss on held-out records as a release, with noise; likewise. Every
            ε then protects the held-out records as well. None: nothing is released of any.
        sampling: How records are drawn: "poisson", or "random-allocation", in which every record is
            in one batch of an epoch; for `fit`, with sums of one noise level. The price of the
            second is slightly lower.
    """

    sampling_rate: float
    steps: int
    aggregation: Aggregation
    expected_batch: float | None = None
    _relation: Relation | None = None
    before: dp.DpEvent | None = None
    watch: LossRelease | None = None
    num_bands: int = 1
    held_out: HeldOut | None = None
    sampling: Sampling = attrs.field(default=Sampling.POISSON, converter=Sampling)

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, partial(_validate.between, 0, 1, ends="(]"), "sampling_rate")
        _validate.fields(self, _validate.count, "steps")
        _validate.given_fields(self, _validate.positive, "expected_batch")
        if not isinstance(self.aggregation, Aggregation):
            raise ArgumentError(
                "aggregation",
                "one of Sum, TrimmedSum, ProposeTestRelease, Mean",
                got=self.aggregation,
            )
        if self._relation is not None:
            check_relation(relation=self._relation)
        kinds = {"before": dp.DpEvent, "watch": LossRelease, "held_out": HeldOut}
        for name, kind in kinds.items():
            allowed = f"a {kind.__name__} or None"
            _validate.given_fields(self, partial(_validate.instance, kind, allowed), name)
        _validate.fields(self, partial(_validate.count, 1), "num_bands")
        check_bands(self.num_bands, self.sampling_rate)
        if self.num_bands > 1 and type(self.aggregation) not in (Sum, TrimmedSum):
            allowed = f"1 with {type(self.aggregation).__name__}"
            why = "correlated noise is priced for sums with one noise level, and the noise of "
            why += "Propose-Test-Release depends on its test"
            hint = "Use Sum or TrimmedSum, or leave num_bands out."
            raise ArgumentError("num_bands", allowed, got=self.num_bands, why=why, hint=hint)
        if self.allocates:
            self._check_allocation()
        if self.relation.size_is_public:
            return
        changes, secret = "when the relation adds or removes records", "secret under this relation"
        if self.held_out is not None and self.held_out.expected_records is None:
            allowed, given = f"with expected_records {changes}", self.held_out
            why = f"the sum would be divided by the number of held-out records, which is {secret}"
            raise ArgumentError("held_out", allowed, got=given, why=why)
        if self.expected_batch is None:
            why = "the sum would be divided by sampling_rate times the number of records, which is "
            hint = "Give the public batch size, or another relation: ZERO_OUT has the same price "
            hint += "and makes the number of records public."
            raise ArgumentError("expected_batch", changes, got=None, why=why + secret, hint=hint)

    def _check_allocation(self) -> None:
        epoch, why = round(1 / self.sampling_rate), None
        if abs(epoch * self.sampling_rate - 1) > 1e-9:
            why = f"an epoch has a whole number of batches: sampling_rate=1/{epoch}"
        elif type(self.aggregation) not in (Sum, TrimmedSum) or self.watch or self.num_bands > 1:
            why = "its price is known only for equal steps of Gaussian noise: use Sum or TrimmedSum"
            why += ", without watch or num_bands"
        if why is not None:
            allowed = "'poisson' with this plan"
            raise ArgumentError("sampling", allowed, got=self.sampling.value, why=why)

    @property
    def allocates(self) -> bool:
        """Whether each record is in exactly one batch of an epoch."""
        return self.sampling is Sampling.RANDOM_ALLOCATION

    def refuse_allocation(self) -> None:
        """Raise an error where batches are drawn in a way that random allocation does not have."""
        if self.allocates:
            shown = "sampling='random-allocation'"
            why = "an epoch must not be left or entered halfway, which only `fit` ensures"
            raise ArgumentError("plan", "with sampling='poisson'", shown=shown, why=why)

    @property
    def parts(self) -> int:
        """The number of parts of the records that take turns: bands, or the batches of an epoch."""
        return round(1 / self.sampling_rate) if self.allocates else self.num_bands

    @property
    def relation(self) -> Relation:
        """The neighbouring relation: as given, or the default implied by `expected_batch`."""
        if self._relation is not None:
            return self._relation
        return ZERO_OUT if self.expected_batch is None else ADD_REMOVE

    def divisor(self, **given: float | None) -> float:
        """The public batch size by which a sum is divided: the plan's own, else the given one."""
        ((name, batch),) = given.items()
        batch = batch if self.expected_batch is None else self.expected_batch
        if batch is None:
            allowed, why = "or a plan with expected_batch", "the sum is divided by it"
            hint = "Use the sampling rate times the public number of records."
            raise ArgumentError(name, allowed, got=None, why=why, hint=hint)
        return _validate.positive(**{name: batch})

    def refuse_beyond(self, taken: int, unit: str = "steps") -> None:
        """Raise an error if so many steps, or units of another name, are all of the plan."""
        if taken >= self.steps:
            raise ValueError(
                f"Expected at most plan.steps = {self.steps} {unit}, got one more: the plan does "
                "not pay for it. Start with a plan of more steps."
            )

    @property
    def turn_rate(self) -> float:
        """Probability with which a record is drawn in a step of its turn."""
        return 1.0 if self.allocates else min(1.0, self.num_bands * self.sampling_rate)

    @property
    def cycle(self) -> int:
        """Number of steps after which turns and released losses repeat."""
        return self.parts if self.watch is None else math.lcm(self.num_bands, self.watch.loss_every)

    def __repr__(self) -> str:
        usual: dict[str, object] = {"before": None, "watch": None, "num_bands": 1, "held_out": None}
        usual["sampling"] = Sampling.POISSON
        own = ((field.alias, getattr(self, field.alias)) for field in attrs.fields(type(self)))
        shown = (f"{n}={v!r}" for n, v in own if n not in usual or v != usual[n])
        return f"Plan({', '.join(shown)})"

    def __str__(self) -> str:
        return f"{self.aggregation} on {self.priced()}"

    def priced(
        self, delta: float | None = None, taken: int | None = None, unit: str = "record"
    ) -> str:
        """The rate, the steps and the ε of the whole run in words, for people to read.

        δ is 1e-5 unless given. Once the run has begun, `taken` steps are taken.
        """
        delta = _SHOWN_DELTA if delta is None else delta
        done = "" if taken is None else f" ({taken:,} taken, {self.steps - taken:,} left)"
        price = f"ε ≤ {rounded_up(self.epsilon(delta))} at δ = {exact(delta)}"
        rate = (
            f"{self.steps:,} batch{'es' * (self.steps != 1)} at rate {nearest(self.sampling_rate)}"
        )
        rate += f" of {self.num_bands} parts in turn" if self.num_bands > 1 else ""
        rate += ", each record in one of an epoch" if self.allocates else ""
        return f"{rate}{done}: {price} for {self.relation.sentence(unit)}"

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of the whole run, for any accountant."""
        return self.event_after(self.steps)

    def event_after(self, steps: int) -> dp.DpEvent:
        """The privacy event of the first `steps` steps, and of what was released before them."""
        taken = self._steps_event(steps)
        if self.held_out is not None:
            taken = self.held_out.beside(taken, steps, self.relation)
        return taken if self.before is None else dp.ComposedDpEvent([self.before, taken])

    def _steps_event(self, steps: int) -> dp.DpEvent:
        if _validate.count(steps=steps) == 0:
            return dp.NoOpDpEvent()
        if self.allocates:
            return self._epochs_event(int(steps))
        # A record takes part in one step of each turn, and at most one in a cycle shows its loss.
        turns = -(-int(steps) // self.num_bands)
        watched = 0 if self.watch is None else -(-int(steps) // self.cycle)
        parts = []
        if turns > watched:
            parts.append(self._released(self.aggregation.event, turns - watched))
        if self.watch is not None:
            parts.append(self._released(self.watch.event(self.aggregation.event), watched))
        return in_turns(parts[0] if len(parts) == 1 else dp.ComposedDpEvent(parts), self.num_bands)

    def _epochs_event(self, steps: int) -> dp.DpEvent:
        """Whole epochs, and the first steps of another, of which a record may be in none."""
        release = self.aggregation.event
        epochs, rest = divmod(steps, self.parts)
        parts: list[dp.DpEvent] = []
        if epochs:
            whole = RandomAllocationDpEvent(release, self.parts)
            parts.append(dp.SelfComposedDpEvent(whole, epochs))
        if rest:
            some = RandomAllocationDpEvent(release, rest)
            sampled = dp.PoissonSampledDpEvent(rest / self.parts, some)
            parts.append(dp.SelfComposedDpEvent(sampled, 1))
        return parts[0] if len(parts) == 1 else dp.ComposedDpEvent(parts)

    def _released(self, release: dp.DpEvent, times: int) -> dp.DpEvent:
        if not isinstance(self.aggregation, Mean):
            release = dp.PoissonSampledDpEvent(self.turn_rate, release)
        return dp.SelfComposedDpEvent(release, times)

    def epsilon(self, delta: float, *, accountant: Accountant = PldAccountant) -> float:
        """The ε at which the whole run is (ε, δ)-DP for `relation`.

        If it is infinite, `why_infinite` says why, and at which δ it is not.
        """
        return self.epsilon_after(self.steps, delta, accountant=accountant)

    def epsilon_after(
        self, steps: int, delta: float, *, accountant: Accountant = PldAccountant
    ) -> float:
        """The ε of the first `steps` steps."""
        return epsilon_of(self.event_after(steps), delta, self.relation, accountant)

    def epsilon_shown(self, steps: int, delta: float) -> float:
        """As `epsilon_after`, before the end on a coarser grid: faster, and also an upper bound."""
        interval = 1e-4 if steps == self.steps else 1e-3
        accountant = partial(PldAccountant, value_discretization_interval=interval)
        return epsilon_of(self.event_after(steps), delta, self.relation, accountant)

    def why_infinite(self, delta: float) -> InfiniteEpsilon | None:
        """The reason why ε is infinite at a δ, as a text and as numbers; None if it is finite."""
        return why_infinite(self.event, delta, self.relation)

    def certificate(
        self,
        *,
        accuracy: float,
        records: int,
        runs: int | None = None,
        confidence: float = 0.95,
        relation: Relation | None = None,
    ) -> AccuracyCertificate:
        """A lower bound on the expected accuracy of the trained model if some records are bad.

        Args:
            accuracy: The expected accuracy, over the randomness of training, on a fixed test set;
                or the expectation of any other function of the model with values in [0, 1]. The
                accuracy of one run is a draw of that random value, not its expectation.
            records: The largest number of bad records.
            runs: If `accuracy` is the average of independent runs on the same data, their number:
                the certificate then starts from a lower confidence bound on the expectation.
            confidence: The probability with which that bound holds.
            relation: How a bad record may differ; None: as in the plan's `relation`.

        Guarantee:
            See `prudent.accounting.robustness`. It holds for bad records chosen with knowledge of
            everything but the randomness of the run; it does not hold for a run whose seed their
            author knows.
        """
        certifier = Certifier(self.event, self.relation if relation is None else relation)
        given = {"accuracy": accuracy, "confidence": confidence}
        return certifier.certificate(records=records, runs=runs, **given)

    def withstands(
        self, *, accuracy: float, above: float = 0.5, relation: Relation | None = None
    ) -> int:
        """The largest number of bad records for which the expected accuracy stays above a level.

        Args:
            accuracy: The expected accuracy, or the vote share of one input: the probability with
                which a trained model labels it correctly.
            above: The level. A label whose vote share stays above 0.5 wins every majority vote of
                sufficiently many runs.
            relation: As for `certificate`.
        """
        certifier = Certifier(self.event, self.relation if relation is None else relation)
        return certifier.withstands(accuracy=accuracy, above=above)

    def calibrate(
        self, *, epsilon: float, delta: float, accountant: Accountant = PldAccountant
    ) -> "Plan":
        """A copy of the plan with the least noise that makes the run (ε, δ)-DP, rounded up."""
        noise = solve(
            lambda sigma: self._with_noise(sigma).event,
            Search(safe=1e4, unsafe=1e-2, guess=1.0),
            epsilon=epsilon,
            delta=delta,
            accountant=accountant,
            relation=self.relation,
            name="noise_multiplier",
        )
        if epsilon > _WEAK:
            warn(
                f"epsilon={epsilon:g} protects nobody: whatever is inferred may become e^epsilon "
                "times as likely by one record. Values up to about 10 are usual."
            )
        return self._with_noise(noise)

    def longest(
        self, *, epsilon: float, delta: float, accountant: Accountant = PldAccountant
    ) -> "Plan":
        """A copy of the plan with the largest number of steps that keeps the run (ε, δ)-DP."""
        steps = solve(
            lambda count: self.event_after(int(count)),
            Search(safe=1, unsafe=1e9, guess=max(1, self.steps), whole=True),
            epsilon=epsilon,
            delta=delta,
            accountant=accountant,
            relation=self.relation,
            name="steps",
        )
        return attrs.evolve(self, steps=int(steps))

    def within(self, *, epsilon: float, delta: float) -> "Plan":
        """The plan if its run is (ε, δ)-DP, otherwise a copy with as many steps as that allows."""
        return (
            self if self.epsilon(delta) <= epsilon else self.longest(epsilon=epsilon, delta=delta)
        )

    def _with_noise(self, noise_multiplier: float) -> "Plan":
        return attrs.evolve(self, aggregation=self.aggregation.with_noise(noise_multiplier))
