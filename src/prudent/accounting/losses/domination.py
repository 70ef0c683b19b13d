"""Dominating pairs of events (Errata 2.1, 2.3, 2.5 and 5).

For two neighbouring data sets, Propose-Test-Release is in one of two cases:

* *Case 1*: both data sets have local sensitivity above τ. Both margins are 0, so the test reveals
  nothing, but with probability δ₀ it passes by accident, and f₂ is released with too little noise.
* *Case 2*: f₂ moves by at most τ. The margins differ by at most 1, so the test reveals something,
  and both branches have enough noise.

Which events the accountants support under each of dp_accounting's neighbouring relations:

| relation | supported events |
|---|---|
| ADD_OR_REMOVE_ONE | every event of this package, and those of dp_accounting |
| REPLACE_SPECIAL | the same, with the same ε, and dp_accounting's events for this relation |
| REPLACE_ONE | those of dp_accounting; no event of this package |

Replacing a record by a special, empty record removes it from everything a mechanism computes: its
batch, its margin, its sum. So the dominating pairs are those of removing a record. Replacing it by
any other record moves a margin by up to two, which the events of this package do not describe.
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

import attrs
import dp_accounting as dp
import numpy as np
from dp_accounting import NeighboringRelation
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent import _validate
from prudent.accounting.events import (
    ApproximateDpEvent,
    BinomialSelectionDpEvent,
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    ExponentialMechanismDpEvent,
    GaussianTest,
    LaplaceTest,
    MarginTest,
    ProposeTestReleaseDpEvent,
    RandomAllocationDpEvent,
    Reveals,
    WorstOfDpEvent,
    check_size,
)
from prudent.accounting.losses.allocation import allocated_gaussian
from prudent.accounting.losses.pairs import (
    MOST_COMPONENTS,
    BoundedRangePair,
    Dominating,
    LaplacePair,
    MixturePair,
    Pair,
    spread,
)

_MOST_MARGINS = 256  # with more distinguishable margins, a branch is charged as the noisy margin
_FEWEST_COMPONENTS = 16  # least number of components of a discrete noisy margin
_TAIL_DISTANCE = 9.6  # in standard deviations: 4e-22 of a Gaussian lies beyond


@attrs.frozen(eq=False)
class DominatedDpEvent(dp.DpEvent):
    """An event that is given by its dominating pairs. It equals no other, even of equal pairs."""

    worst: Dominating  # the dominating pairs

    # dp_accounting's events compare their fields, of which their common class has none: without
    # these lines two of these events would be equal, and an accountant take one for the other.
    __eq__, __hash__ = object.__eq__, object.__hash__


def dominating(event: dp.DpEvent) -> Dominating | None:
    """Return the dominating pairs of an event, sampled or not; None if no closed form is known."""
    match event:
        case DominatedDpEvent():
            return event.worst
        case dp.PoissonSampledDpEvent():
            rate = check_rate(event)
            inner = dominating(event.event)
            # Sampling twice is the same as sampling once at the product of the rates.
            if inner is None:
                return None
            return attrs.evolve(inner, sampling_rate=rate * inner.sampling_rate)
        case ProposeTestReleaseDpEvent():
            return _of_release(event)
        case ExponentialMechanismDpEvent():
            return Dominating((BoundedRangePair(event.epsilon),))
        case ApproximateDpEvent():
            return Dominating((approximate_pair(event.epsilon, event.delta),))
        case RandomAllocationDpEvent():
            match additive_parts(event.event):
                case Parts(sigma=sigma, others=()) if event.steps == 1 or not 0 < sigma < math.inf:
                    return Dominating((MixturePair.of((1.0, 1.0, sigma)),))
                case Parts(sigma=sigma, others=()):
                    return Dominating((allocated_gaussian(sigma, event.steps),))
            return None
        case _:
            pair = product_pair(event)
            return None if pair is None else Dominating((pair,))


@lru_cache(maxsize=64)
def _of_release(event: ProposeTestReleaseDpEvent) -> Dominating:
    """Both cases. Cached, because a run is priced at many numbers of steps and at many δ."""
    pairs, slack = case_two(event)
    return Dominating((case_one(event), *pairs), slack=slack)


def check_rate(event: dp.PoissonSampledDpEvent) -> float:
    """Return the sampling probability, in [0, 1]; a tiny positive one is rounded up to 1e-12."""
    rate = _validate.between(0, 1, sampling_probability=event.sampling_probability)
    return max(rate, 1e-12) if rate > 0 else 0.0


def unsampled(leaf: dp.DpEvent) -> tuple[dp.DpEvent, float]:
    """The event inside any number of Poisson samplings, and the product of their rates."""
    rate = 1.0
    while isinstance(leaf, dp.PoissonSampledDpEvent):
        leaf, rate = leaf.event, rate * check_rate(leaf)
    return leaf, rate


def pure_epsilon(leaf: dp.DpEvent) -> Fraction | float | None:
    """The pure ε of a release, exactly; infinite if it has none, None if no formula is known."""
    match leaf:
        case dp.LaplaceDpEvent():
            scale = leaf.noise_multiplier
            return 1 / Fraction(scale) if 0 < scale < math.inf else None
        case LaplaceTest() | DiscreteLaplaceTest():
            return 1 / Fraction(leaf.scale)
        case ExponentialMechanismDpEvent() | ApproximateDpEvent(delta=0):
            return Fraction(leaf.epsilon)
        case DiscreteLaplaceDpEvent() if leaf.noise_parameter > 0:  # else there is no noise
            return Fraction(leaf.noise_parameter) * Fraction(leaf.sensitivity)
        case dp.GaussianDpEvent() | GaussianTest() | DiscreteGaussianTest():
            return math.inf
        case ProposeTestReleaseDpEvent():  # its noise is Gaussian
            return math.inf
    return None


def approximate_pair(epsilon: float, delta: float) -> MixturePair:
    """The pair of all (ε, δ)-DP mechanisms: randomised response that δ of the time says all."""
    rare = (1 - delta) * math.exp(-epsilon) / (1 + math.exp(-epsilon))
    often = (1 - delta) / (1 + math.exp(-epsilon))
    answers = ((rare, often, math.inf), (often, rare, math.inf))
    return MixturePair.of(*answers, *([(delta, delta, 0.0)] if delta else []))


def case_one(event: ProposeTestReleaseDpEvent) -> MixturePair:
    """The pair of Case 1: the branch is independent of the record, but f₂ has too little noise."""
    wrong = event.false_pass
    return MixturePair.of(
        (1 - wrong, 1 - wrong, event.noise_multiplier),
        (wrong, wrong, event.sigma_over_global),
    )


def case_one_without_false_pass(event: ProposeTestReleaseDpEvent) -> tuple[MixturePair, float]:
    """Case 1 with its false pass moved to δ (Errata 2.4): return the pair and δ before sampling."""
    wrong = event.false_pass
    sigma = event.sigma_over_global
    distance = 1.0 if sigma == 0 else math.erf(1 / (2 * math.sqrt(2) * sigma))
    pair = MixturePair.of((1 - wrong, 1 - wrong, event.noise_multiplier), (wrong, wrong, math.inf))
    return pair, wrong * distance


def case_two(event: ProposeTestReleaseDpEvent) -> tuple[tuple[Pair, ...], float]:
    """The pairs of Case 2, and the slack for the margins that a finite number of pairs omits."""
    margins = None if event.reveals is Reveals.MARGIN else telling_margins(event)
    if margins is None:
        return (noisy_margin_case(event),), 0.0
    pairs = [branch_pair(event, margin, margin - 1) for margin in margins]
    if event.reveals is Reveals.BRANCH:
        pairs += [pair.swapped() for pair in pairs]
    if event.noise_multiplier != event.sigma_over_proposal:
        # If both branches have the same noise multiplier, every pair above dominates this one, by
        # ignoring the branch. If not, it must be included: mixtures of it and the pairs of the
        # telling margins cover all other margins.
        weaker = min(event.noise_multiplier, event.sigma_over_proposal)
        pairs.append(MixturePair.of((1.0, 1.0, weaker)))
    if isinstance(event.test, LaplaceTest | DiscreteLaplaceTest):
        return tuple(pairs), 0.0
    return tuple(pairs), _lower_tail(event.test, _threshold(event) - margins[-1])


def noisy_margin_case(event: ProposeTestReleaseDpEvent) -> Pair:
    """The pair of Case 2 when the noisy margin is released.

    By post-processing it also dominates Case 2 when only the branch is revealed.
    """
    return margin_pair(event.test, min(event.noise_multiplier, event.sigma_over_proposal))


def _threshold(event: ProposeTestReleaseDpEvent) -> float:
    return event.test.threshold(event.failure)


def branch_pair(event: ProposeTestReleaseDpEvent, absent: int, present: int) -> MixturePair:
    """The pair of the branch, for a margin of `absent` without the record and `present` with it."""
    threshold = _threshold(event)
    passes = [event.test.tail(threshold - margin) for margin in (absent, present)]
    # Computed as a tail of the symmetric noise, because 1 - passes would lose all digits near 1.
    fails = [_lower_tail(event.test, threshold - margin) for margin in (absent, present)]
    return MixturePair.of(
        (fails[0], fails[1], event.noise_multiplier),
        (passes[0], passes[1], event.sigma_over_proposal),
    )


def _lower_tail(test: MarginTest, distance: float) -> float:
    """Pr[noise <= distance], accurate where it is small."""
    if isinstance(test, DiscreteLaplaceTest | DiscreteGaussianTest):
        return test.tail(-math.floor(distance) - 1)
    return test.tail(-distance)


def telling_margins(event: ProposeTestReleaseDpEvent) -> list[int] | None:
    """Return the margins D whose step from D to D-1 can be the worst; None if there are too many.

    With Laplace noise, all steps on one side of the threshold are thinned copies of the step next
    to it (Errata 2.3). With Gaussian noise the tail falls ever faster, so every step must be
    included until the branch is almost certain.
    """
    test, threshold = event.test, _threshold(event)
    if isinstance(test, LaplaceTest | DiscreteLaplaceTest):
        return [d for d in range(math.floor(threshold), math.floor(threshold) + 3) if d >= 1]
    last = math.ceil(threshold + _TAIL_DISTANCE * test.scale) + 1
    return list(range(1, last + 1)) if last <= _MOST_MARGINS else None


def margin_pair(test: MarginTest, sigma: float) -> Pair:
    """The pair of a noisy margin released together with Gaussian noise of multiplier `sigma`."""
    match test:
        case LaplaceTest():
            return LaplacePair(test.scale, sigma)
        case GaussianTest():
            both = 0.0 if sigma == 0 else 1 / math.hypot(1 / sigma, 1 / test.scale)
            return MixturePair.of((1.0, 1.0, both))
        case DiscreteLaplaceTest():
            rare = math.exp(-1 / test.scale) / (1 + math.exp(-1 / test.scale))
            return MixturePair.of((rare, 1 - rare, sigma), (1 - rare, rare, sigma))
        case DiscreteGaussianTest():
            values = np.arange(-test.reach, test.reach + 2)
            absent = np.exp(-0.5 * (values / test.scale) ** 2) / test.normaliser
            present = np.exp(-0.5 * ((values - 1) / test.scale) ** 2) / test.normaliser
            # All that lies beyond is taken to reveal the record: losses have no bound.
            beyond = (test.tail(test.reach) + test.tail(test.reach + 1)) * (1 + 1e-12)
            pair = MixturePair(
                np.append(absent, (beyond, 0.0)),
                np.append(present, (0.0, beyond)),
                np.full(len(values) + 2, sigma),
            )
            return spread(pair, _components(test, sigma))
        case _:
            raise _validate.ArgumentError("test", "a MarginTest this package defines", got=test)


def _components(test: DiscreteGaussianTest, sigma: float) -> int:
    """The number of grid losses for a noisy margin released together with Gaussian noise.

    Spreading a loss onto a grid of step h adds at most h²/4 to its variance. Where the noise mostly
    hides the margin, a coarse grid adds less than a millionth of their joint variance.
    """
    step = 2e-3 * math.hypot(1 / test.scale, 1 / sigma if sigma > 0 else math.inf)
    width = 2 * (test.reach + 1) / test.scale**2
    return min(MOST_COMPONENTS, max(_FEWEST_COMPONENTS, math.ceil(width / step) + 1))


@attrs.frozen
class Parts:
    """Independent additive-noise mechanisms of sensitivity 1, run on one batch."""

    sigma: float  # noise multiplier of all Gaussian parts combined; infinite if there are none
    # The other parts, represented as tests of a margin, and the number of runs of each.
    others: tuple[tuple[MarginTest, int], ...]


def additive_parts(event: dp.DpEvent) -> Parts | None:
    """Split a composition of additive-noise mechanisms into its parts; None for anything else."""
    precision = 0.0
    others: list[tuple[MarginTest, int]] = []
    for leaf, count in leaves(event):
        match leaf:
            case dp.GaussianDpEvent():
                if _validate.non_negative(noise_multiplier=leaf.noise_multiplier) == 0:
                    precision = math.inf
                else:
                    precision += count * check_size(noise_multiplier=leaf.noise_multiplier) ** -2
            case GaussianTest():
                precision += count * leaf.scale**-2
            case dp.LaplaceDpEvent(noise_multiplier=0) | DiscreteLaplaceDpEvent(noise_parameter=0):
                precision = math.inf  # no noise, the same as a Gaussian without noise
            case dp.LaplaceDpEvent():
                scale = check_size(noise_multiplier=leaf.noise_multiplier)
                others.append((LaplaceTest(scale), count))
            case DiscreteLaplaceDpEvent() if leaf.sensitivity == 1:
                others.append((DiscreteLaplaceTest(1 / leaf.noise_parameter), count))
            case LaplaceTest() | DiscreteLaplaceTest() | DiscreteGaussianTest():
                others.append((leaf, count))
            case _:
                return None
    return Parts(precision**-0.5 if precision > 0 else math.inf, tuple(others))


def product_pair(event: dp.DpEvent) -> Pair | None:
    """The pair of Gaussian parts with at most one other part; None if it has no closed form."""
    match additive_parts(event):
        case Parts(sigma=sigma, others=()):
            return MixturePair.of((1.0, 1.0, sigma))
        case Parts(sigma=sigma, others=((test, 1),)):
            return margin_pair(test, sigma)
        case _:
            return None


def leaves(event: dp.DpEvent, count: int = 1) -> Iterator[tuple[dp.DpEvent, int]]:
    """Yield the events inside nested compositions, each with its number of runs."""
    match event:
        case dp.NoOpDpEvent():
            return
        case dp.SelfComposedDpEvent():
            times = _validate.count(count=event.count)
            if times:
                yield from leaves(event.event, count * times)
        case dp.ComposedDpEvent():
            for inner in event.events:
                yield from leaves(inner, count)
        case dp.PoissonSampledDpEvent():
            if check_rate(event) > 0 and any(True for _ in leaves(event.event)):
                yield event, count
        case _:
            yield _validate.instance(dp.DpEvent, "a DpEvent", event=event), count


ErrorDetails: TypeAlias = dp.PrivacyAccountant.CompositionErrorDetails


def refused(leaf: dp.DpEvent, relation: NeighboringRelation) -> ErrorDetails | None:
    """Return why an event of this package is not supported under a relation; None if it is."""
    inner, _ = unsampled(leaf)
    ours = isinstance(
        inner,
        MarginTest
        | ProposeTestReleaseDpEvent
        | ExponentialMechanismDpEvent
        | ApproximateDpEvent
        | BinomialSelectionDpEvent
        | RandomAllocationDpEvent
        | WorstOfDpEvent,
    )
    if not ours or relation is not NeighboringRelation.REPLACE_ONE:
        return None
    return ErrorDetails(
        leaf,
        f"{type(inner).__name__} describes adding or removing a record. Compose it under "
        "ADD_OR_REMOVE_ONE: replacing a record is removing one and adding another.",
    )


def with_halved_noise(leaf: dp.DpEvent) -> dp.DpEvent:
    """Correct an event for replacing a record, where dp_accounting's Rényi accountant is wrong.

    A noise multiplier is relative to what one record can add; replacing a record moves the sum by
    twice as much. dp_accounting's PLD accountant takes this into account. Its Rényi accountant
    charges the event like a removed record: for a Gaussian, a quarter of the divergence. Halving
    the noise corrects this.
    """
    match leaf:
        case dp.GaussianDpEvent() | dp.LaplaceDpEvent():
            return attrs.evolve(leaf, noise_multiplier=leaf.noise_multiplier / 2)
        case dp.SampledWithoutReplacementDpEvent():
            match additive_parts(leaf.event):
                case Parts(sigma=sigma, others=()):
                    return attrs.evolve(leaf, event=dp.GaussianDpEvent(sigma / 2))
    return leaf
