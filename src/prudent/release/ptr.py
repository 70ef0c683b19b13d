"""Propose-Test-Release (Algorithm 1) for any statistic that comes with a safety margin.

The proposal is a sensitivity τ. A private test decides whether the data set is far from every data
set on which one record can move the statistic by more than τ. If it is, the robust statistic f₂ is
released with noise calibrated to τ. If not, the mechanism refuses, or falls back: it releases f₂
with noise calibrated to its global sensitivity.

**Calibration** to (ε, δ) chooses the test, its failure probability and the noise. The cost of a run
is the larger of two cases, not their sum: an accident of the test, which costs δ₀, and the test
together with the noise. So δ₀ could be all of δ for a single release. Using half of it leaves the
other half to a ledger, and raises the threshold by less than one scale of the test's noise.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs
import dp_accounting as dp
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent import _validate
from prudent._rounding import exact
from prudent._validate import by
from prudent.accounting import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    MarginTest,
    ProposeTestReleaseDpEvent,
    Reveals,
)
from prudent.accounting.calibration import Search, solve
from prudent.release.columns.column import redact_errors
from prudent.release.lattice import Lattice
from prudent.release.margins import RobustValue
from prudent.release.noise import LARGEST_SCALE, SLACK, Distribution, Noise, checked_test, source_of
from prudent.release.outcome import Branch, NoiseSpread, Outcome, Refused, Released

Data = TypeVar("Data")

_STILL = 1e9
"""Noise multiplier charged for a value that no record can change while the margin is positive.

Such a value needs no noise. A Gaussian of this multiplier reveals more, so the charge is an upper
bound.
"""

_HEADROOM = 20.0  # margins are capped this many scales of the test's noise beyond the threshold
_LARGEST_CAP = 2**22  # records; the window that is read to find a margin must fit into memory


@attrs.frozen(kw_only=True)
class ProposeTestReleaseMechanism:
    """A Propose-Test-Release mechanism, with all its public parameters.

    Guarantee:
        If the measured margin is safe (it changes by at most 1 with a record, and is 0 wherever a
        record can move the value by more than `propose`), a release has the privacy of `event`.

    Attributes:
        propose: The proposal τ, in the unit of the data. 0 stands for a category, which is released
            without noise or refused.
        robust_noise_multiplier: Noise scale of f₂, divided by τ.
        distribution: Distribution of the noise in both branches; Laplace for a single number only.
        test: A discrete test of the margin.
        failure: δ₀, the largest probability with which a margin of 0 passes.
        bounds: Public bounds on the data; None if there are none.
        fallback_sensitivity: Global sensitivity (GS) of the fallback, in the unit of the data; None
            means the distance between the bounds.
        fallback_noise_multiplier: Noise scale of the fallback, divided by its GS. Infinite: the
            mechanism refuses instead of falling back.
    """

    propose: float = attrs.field(validator=by(_validate.non_negative))
    robust_noise_multiplier: float = attrs.field(validator=by(_validate.positive))
    test: MarginTest = attrs.field(validator=lambda _, field, value: checked_test(value))
    failure: float
    distribution: Distribution = attrs.field(
        default=Distribution.LAPLACE, validator=by(_validate.one_of, list(Distribution))
    )
    bounds: tuple[float, float] | None = None
    fallback_sensitivity: float | None = attrs.field(
        default=None, validator=attrs.validators.optional(by(_validate.positive))
    )
    fallback_noise_multiplier: float = attrs.field(
        default=math.inf, validator=by(_validate.positive_or_infinite)
    )

    def __attrs_post_init__(self) -> None:
        if self.falls_back:
            if not self.propose:
                raise _validate.ArgumentError(
                    "propose",
                    "> 0 for a fallback",
                    got=0,
                    why="a value that is released as it is has no noise to fall back on",
                    hint="Leave the fallback out.",
                )
            if math.isinf(self.sensitivity_in_steps):
                raise _validate.ArgumentError(
                    "bounds",
                    "for a fallback",
                    shown="none",
                    why="without them no noise is enough",
                    hint="Give bounds=(low, high), or leave the fallback out.",
                )
            if self.fallback_noise_multiplier * self.sensitivity_in_steps > LARGEST_SCALE:
                raise _validate.ArgumentError(
                    "bounds",
                    "within a billion proposals of each other for a fallback",
                    shown=f"{self.bounds!r} and propose={self.propose:g}",
                    hint="Propose more, or give narrower bounds.",
                )
        _ = self.lattice, self.event  # their constructors validate the remaining fields
        if self.cap > _LARGEST_CAP:
            raise ValueError(
                f"Expected test and failure to ask for at most 2**22 records, got a test that asks "
                f"for {self.threshold:,} at failure = {exact(self.failure)}. Take a smaller scale."
            )
        if self.robust_noise_multiplier * self.steps > LARGEST_SCALE:
            raise _validate.ArgumentError(
                "robust_noise_multiplier",
                "at most 2**41, so that every draw fits 64 bits",
                shown=f"{self.robust_noise_multiplier:g}",
            )

    @classmethod
    def calibrate(
        cls,
        *,
        propose: float,
        epsilon: float,
        delta: float,
        bounds: tuple[float, float] | None = None,
        fallback_sensitivity: float | None = None,
        fallback: bool = False,
        distribution: Distribution = Distribution.LAPLACE,
        failure: float | None = None,
    ) -> "ProposeTestReleaseMechanism":
        """Return the mechanism with the least noise of which one run is (epsilon, delta)-DP.

        Args:
            propose: See `ProposeTestReleaseMechanism`, as for the arguments that are not here.
            epsilon: ε of one run, at least 0.001.
            delta: δ of one run, in (0, 1/2).
            fallback: Whether a failed test releases the statistic with noise for `bounds`.
            failure: As there, in (0, delta]; None means delta/2.

        Guarantee:
            The event of the mechanism costs at most (epsilon, delta). With Laplace noise this is a
            theorem, whose condition is `failure <= delta`. With Gaussian noise it was solved so
            that the accountant's ε of the event, `failure` included, meets the target.
        """
        _validate.between(1e-3, 50, epsilon=epsilon)
        _validate.small_delta(1e-18, ends="[)", delta=delta)
        try:
            chance = delta / 2 if failure is None else _validate.between(0, delta, failure=failure)
        except ValueError:
            chance = 0.0
        if not chance:
            raise _validate.ArgumentError(
                "failure",
                f"in (0, delta = {delta:g}]",
                got=failure,
                why="a margin of 0 that passes may reveal everything, and delta pays for that",
                hint="Lower failure, or raise delta.",
            )
        unscaled = cls(
            propose=propose,
            robust_noise_multiplier=1.0,
            test=DiscreteLaplaceTest(1.0),
            failure=chance,
            bounds=bounds,
            fallback_sensitivity=fallback_sensitivity,
            fallback_noise_multiplier=1.0 if _validate.flag(fallback=fallback) else math.inf,
            distribution=distribution,
        )
        if distribution is Distribution.LAPLACE:
            # Half of ε for the test and half for the value minimises noise × threshold. Nothing
            # needs to be solved. Either the data are sensitive, and all that can happen is an
            # accident of probability `failure` <= δ; or the test and the value are ε/2-DP each, so
            # that both together are ε-DP. A value without noise leaves all of ε to the test.
            scale = math.nextafter((2 if propose else 1) / epsilon, math.inf)
            return _noisier(attrs.evolve(unscaled, test=DiscreteLaplaceTest(scale)), scale)
        target = epsilon * (1 - SLACK), delta * (1 - SLACK)
        mechanism = attrs.evolve(unscaled, test=_gaussian_test(*target))
        bare = attrs.evolve(  # what does not affect the price is fixed, so that caching works
            mechanism,
            propose=1.0 if propose else 0.0,
            bounds=(0.0, 1.0) if fallback else None,
            fallback_sensitivity=None,
        )
        return _noisier(mechanism, _least_multiplier(_noisier(bare, 1.0), *target))

    @property
    def falls_back(self) -> bool:
        """Whether a failed test still releases something."""
        return math.isfinite(self.fallback_noise_multiplier)

    @property
    def lattice(self) -> Lattice:
        """The lattice that values are rounded to."""
        return Lattice.for_proposal(self.propose or 1.0, self.bounds)

    @property
    def steps(self) -> int:
        """τ in steps of the lattice, rounded up."""
        return self.lattice.steps_of_proposal(self.propose) if self.propose else 0

    @property
    def sensitivity_in_steps(self) -> float:
        """GS of the fallback in steps of the lattice, rounded up; infinite without bounds."""
        if self.fallback_sensitivity is not None:
            return self.lattice.steps_of_proposal(self.fallback_sensitivity)
        return self.lattice.diameter if self.bounds is not None else math.inf

    @property
    def threshold(self) -> int:
        """The threshold: the test passes when the noisy margin exceeds it."""
        return int(self.test.threshold(self.failure))

    @property
    def cap(self) -> int:
        """The largest margin that needs to be distinguished; larger ones pass the test anyway."""
        return math.ceil(self.threshold + _HEADROOM * self.test.scale)

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of one run, whatever its outcome.

        An accident of the test (a margin of 0 that passes) is charged as if it revealed everything,
        with bounds or without: the event has propose=0. Therefore the test and the noise of the
        value may be charged as a composition: either the noise covers what one record can change,
        or the charge for the accident already covers everything that follows.
        """
        if self.distribution is Distribution.GAUSSIAN and self.propose:
            return self._test_event(self.fallback_noise_multiplier, self.robust_noise_multiplier)
        test = self._test_event(math.inf, _STILL)
        if self.propose == 0:  # there is no fallback, so no noisy value is ever released
            return test
        weaker = min(self.robust_noise_multiplier, self.fallback_noise_multiplier)
        # This event has the privacy loss of randomised response, ±ε with ε = 1/weaker, which
        # dominates every ε-DP mechanism.
        return dp.ComposedDpEvent([test, DiscreteLaplaceDpEvent(1 / weaker, 1)])

    def _test_event(self, fallback: float, robust: float) -> ProposeTestReleaseDpEvent:
        return ProposeTestReleaseDpEvent(
            fallback, 0.0, self.test, self.failure, robust, Reveals.BRANCH
        )

    def release(
        self, data: Data, measure: Callable[[Data], RobustValue], *, noise: Noise | None = None
    ) -> Outcome:
        """Run the mechanism once.

        Args:
            data: The records, in whatever form `measure` reads them.
            measure: Returns f₂ and its margin for the sensitivity `steps`, in steps of `lattice`.
            noise: Source of randomness; None uses the operating system's.

        Raises:
            SourceError: If `measure` fails. The original message is withheld, since it may quote
                records.
        """
        noise = source_of(noise)
        measured = redact_errors(measure, data)
        single = len(measured.value) == 1  # independent of the test
        if self.distribution is Distribution.LAPLACE and not single:
            raise ValueError("Expected distribution=Distribution.GAUSSIAN for a vector.")
        noisy_margin = min(measured.margin, self.cap) + noise.of_test(self.test)
        if noisy_margin > self.threshold:
            if self.propose == 0:
                return Released(measured.value[0], Branch.ROBUST, 0.0, 0.0, self.event)
            scale = self.robust_noise_multiplier * self.steps
            return self._released(measured.value, scale, Branch.ROBUST, noise)
        if self.falls_back:
            scale = self.fallback_noise_multiplier * self.sensitivity_in_steps
            return self._released(measured.value, scale, Branch.FALLBACK, noise)
        return Refused(self._reason, self.event)

    @property
    def _reason(self) -> str:
        """What failed, in one sentence that is the same for all data."""
        moves = "move it by more than the proposal" if self.propose else "replace the answer"
        far = ""
        if self.propose and not self.lattice.bounded:
            far = f", or it is beyond ±{self.lattice.reach / self.propose:.2g} proposals"
        return (
            f"The noisy margin did not exceed {self.threshold:,} records: a few records more or "
            f"less might {moves}{far}."
        )

    def spread(self, scale: float) -> NoiseSpread:
        """The spread of a value with noise of this scale, in steps."""
        spacing = self.lattice.spacing
        return NoiseSpread(self.distribution, scale * spacing, spacing)

    def _released(
        self, steps: Sequence[int], scale: float, branch: Branch, noise: Noise
    ) -> Released:
        scale = math.nextafter(scale, math.inf)  # the product may have been rounded down
        added = noise.of_value(self.distribution, scale, len(steps))
        lattice, spread = self.lattice, self.spread(scale)
        values = [lattice.value(one + other) for one, other in zip(steps, added, strict=True)]
        value = values[0] if len(values) == 1 else tuple(values)
        return Released(
            value,
            branch,
            spread.deviation,
            lattice.spacing,
            self.event,
            spread=spread if len(values) == 1 else None,
        )


def on_lattice(
    mechanism: ProposeTestReleaseMechanism,
    statistic: Callable[[Data], float],
    margin: Callable[[Data], int],
) -> Callable[[Data], RobustValue]:
    """Combine a numeric statistic, in the unit of the data, and its margin into a measure.

    The result of `statistic` is clipped to the bounds and rounded to the lattice: numbers within τ
    of each other stay within `steps` steps. NaN is moved to the lower end. This does not work for
    vectors, which must be rounded record by record before they are summed, because rounding the sum
    moves every coordinate.

    Args:
        mechanism: The mechanism that will release the number.
        statistic: The number, as a function of the data.
        margin: Its margin for `mechanism.propose`, as a function of the data.

    Returns:
        A function to pass to `ProposeTestReleaseMechanism.release` as `measure`.
    """
    _validate.instance(ProposeTestReleaseMechanism, "a mechanism", mechanism=mechanism)
    _validate.function(statistic=statistic)
    _validate.function(margin=margin)
    _validate.positive(propose=mechanism.propose)  # the proposal sets the spacing of the lattice

    def measure(data: Data) -> RobustValue:
        lattice, value = mechanism.lattice, statistic(data)
        step = lattice.low if math.isnan(value) else int(lattice.steps(value))
        return RobustValue((step,), margin(data), mechanism.steps)

    return measure


_TEST_SHARE = 0.7
"""Fraction of ε spent on the test with Gaussian noise; nearly optimal for ε from 0.1 to 5."""


@functools.lru_cache(maxsize=256)
def _gaussian_test(epsilon: float, delta: float) -> DiscreteGaussianTest:
    """The test that on its own costs its fraction of ε."""
    scale = solve(
        GaussianTest,
        Search(safe=1e4, unsafe=1e-2, guess=5 / epsilon),
        epsilon=_TEST_SHARE * epsilon,
        delta=delta,
        name="scale",
    )
    return DiscreteGaussianTest(min(scale, DiscreteGaussianTest.largest_scale))


def _noisier(
    mechanism: ProposeTestReleaseMechanism, multiplier: float
) -> ProposeTestReleaseMechanism:
    fallback = multiplier if mechanism.falls_back else math.inf
    return attrs.evolve(
        mechanism, robust_noise_multiplier=multiplier, fallback_noise_multiplier=fallback
    )


@functools.lru_cache(maxsize=1024)
def _least_multiplier(
    mechanism: ProposeTestReleaseMechanism, epsilon: float, delta: float
) -> float:
    """Return a noise multiplier within a few per cent of the least one.

    The branch of a Gaussian test has hundreds of dominating pairs. Releasing the noisy margin of a
    continuous Gaussian has only one, and costs slightly more. Solving for the latter gives a first
    value, which one or two corrections improve. The returned value was priced with the exact event.
    """

    def spent(multiplier: float) -> float:
        from prudent.accounting import PldAccountant

        return PldAccountant().compose(_noisier(mechanism, multiplier).event).get_epsilon(delta)

    test = GaussianTest(mechanism.test.scale)
    value = solve(
        lambda multiplier: attrs.evolve(
            _noisier(mechanism, multiplier).event, test=test, reveals=Reveals.MARGIN
        ),
        Search(safe=1e6, unsafe=1e-2, guess=10.0),
        epsilon=epsilon,
        delta=delta,
        name="noise_multiplier",
    )
    while (cost := spent(value)) > epsilon:
        value *= 1.01
    for less in (value * cost / epsilon, value * math.sqrt(cost / epsilon)):
        if less < 0.995 * value and spent(less) <= epsilon:
            return less
    return value
