"""Dominating pairs of events in closed form, with profiles in balls.

A pair has two distributions: with the record and without it. Its profile at ε is the largest
difference Pr[present] - e^ε Pr[absent] over all events. Every number here is a ball that holds the
exact value, so the upper end of a computed profile is a proved bound. The pairs of
Propose-Test-Release are those of the errata, 2.1 to 2.5, written down from there.
"""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial, reduce
from itertools import pairwise
from typing import TypeAlias

import attrs
from flint import arb

from prudent_verify.events import ALLOCATED, Event, UnknownEventError
from prudent_verify.laws import Law, Profile

BITS = 128  # precision: δ = 1e-20 keeps 18 digits
THRESHOLD_ERROR = 3e-12
"""The double that a program uses for a threshold changes no probability by more, relatively."""

_LARGEST, _FARTHEST = 1e300, 1 << 60
_MOST_MARGINS = 256
_FEW = 8  # pairs for which the noise itself is quick enough
_BEYOND = 10  # standard deviations of a Gaussian test
FAR = 16  # standard deviations of Gaussian noise that tells next to nothing
VAST = 1e8  # σ of such noise


def positive(value: int | float | Fraction) -> arb:
    """An exact number that must be finite and more than zero."""
    if type(value) not in (int, float, Fraction) or not 0 < value <= _LARGEST:
        raise UnknownEventError(f"Expected a number > 0, got {value!r:.40}.")
    return arb(value.numerator) / value.denominator if isinstance(value, Fraction) else arb(value)


def fewest(holds: Callable[[int], bool]) -> int:
    """The least whole number from which on a condition holds."""
    low, high = -1, 0
    while not holds(high):
        low, high = high, 2 * high + 1
        if high > _FARTHEST:
            raise UnknownEventError("No whole number of a sound size is found.")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def least(epsilon: arb) -> arb:
    """The profile of two equal distributions: the least there is."""
    return (1 - epsilon.exp()).nonnegative_part()


def gaussian(epsilon: arb, sigma: arb | None) -> arb:
    """The profile of N(1/σ, 1) against N(0, 1); a σ of None is infinite."""
    if sigma is None:
        return least(epsilon)
    if not sigma > 0:
        return arb(1)
    mu = 1 / sigma
    a = epsilon / mu - mu / 2
    return _tail(a, arb(0)) - _tail(a, mu)


def after(epsilon: arb, sigma: arb | None, then: Profile) -> arb:
    """A bound on the profile of Gaussian noise and what follows, close to it if σ is large.

    The loss of the noise is above `FAR` over σ with a small probability, which is added.
    """
    if sigma is None:
        return then(epsilon)
    if not sigma > 0:
        return arb(1)
    return then(epsilon - FAR / sigma) + _tail(FAR - 1 / (2 * sigma), arb(0))


def _tail(a: arb, shift: arb) -> arb:
    """Return exp(shift (a + shift/2)) Φ(-a - shift)."""
    return (shift * (a + shift / 2)).exp() * ((a + shift) / arb(2).sqrt()).erfc() / 2


@attrs.frozen
class Mixture:
    """A public label, drawn with other probabilities with the record; Gaussian noise for each."""

    parts: tuple[tuple[arb, arb, arb | None], ...]  # without the record, with it, and σ
    law: Law | None = None  # dominates the noise of every label; None: the noise itself

    def profile(self, epsilon: arb, *, adding: bool, then: Profile | None = None) -> arb:
        """The profile; with `adding` that of the swapped pair.

        `then` is the profile of what is released afterwards; None: nothing is.
        """
        total = arb(0)
        for absent, present, sigma in self.parts:
            first, second = (absent, present) if adding else (present, absent)
            if first > 0 and second > 0:
                at = epsilon - (first / second).log()
                total += first * (
                    self._noise(at, sigma) if then is None else after(at, sigma, then)
                )
            else:
                total += first
        return total

    def _noise(self, epsilon: arb, sigma: arb | None) -> arb:
        return gaussian(epsilon, sigma) if self.law is None else self.law.delta(epsilon)


@attrs.frozen
class Laplace:
    """Laplace noise, whose losses end at ±reach, together with Gaussian noise."""

    reach: arb
    sigma: arb | None

    def profile(self, epsilon: arb, *, adding: bool) -> arb:
        """The Gaussian profile, integrated over the Laplace losses.

        They have atoms 1/2 at reach and e^-reach/2 at -reach, and the density e^((ℓ-reach)/2)/4
        between them.
        """
        if self.sigma is None:
            inside = -((epsilon - self.reach) / 2).expm1()
            return inside.nonnegative_part().max(least(epsilon))
        if not self.sigma > 0:
            return arb(1)
        mu = 1 / self.sigma
        upper = (epsilon - self.reach) / mu - mu / 2
        lower = (epsilon + self.reach) / mu - mu / 2
        above = _tail(upper, arb(0)) - _tail(upper, mu / 2)
        below = _tail(lower, mu / 2) - _tail(lower, mu)
        return above + (-self.reach).exp() * below


@attrs.frozen
class BoundedRange:
    """The worst choice whose losses lie in a range of this length (the exponential mechanism)."""

    reach: arb

    def profile(self, epsilon: arb, *, adding: bool) -> arb:
        """The profile; it is its own under exchange of the two distributions."""
        inside = (-((epsilon.max(-self.reach) - self.reach) / 2).expm1()).nonnegative_part()
        return (inside * inside / -(-self.reach).expm1()).max(least(epsilon))


Pair: TypeAlias = Mixture | Laplace | BoundedRange


@attrs.frozen(eq=False)
class Worst:
    """The pairs of one release, of which the worst counts at every ε, on a Poisson sample."""

    pairs: tuple[Pair, ...]  # the pairs
    rate: arb  # the probability with which a record is in the sample
    slack: arb  # what the pairs leave out of δ, before sampling

    @property
    def outcomes(self) -> float:
        """The number of outcomes of all pairs; infinite if they are not finitely many."""
        if self.rate < 1 or len(self._mixtures) < len(self.pairs):
            return math.inf
        parts = [part for pair in self._mixtures for part in pair.parts]
        noiseless = all(not (sigma is not None and 0 < sigma < VAST) for _, _, sigma in parts)
        return len(parts) if noiseless else math.inf

    @property
    def _mixtures(self) -> list[Mixture]:
        return [pair for pair in self.pairs if isinstance(pair, Mixture)]

    def before(self, then: Callable[..., arb]) -> Callable[..., arb]:
        """The profile of this release, of finitely many outcomes, and of what follows it.

        The later release may be chosen after this one: its own worst pair counts at each outcome.
        """

        def profile(epsilon: arb, *, adding: bool) -> arb:
            rest = partial(then, adding=adding)
            each = [pair.profile(epsilon, adding=adding, then=rest) for pair in self._mixtures]
            return largest(each) + self.slack

        return profile

    def __call__(self, epsilon: arb, *, adding: bool) -> arb:
        """δ(ε) of removing a record or of adding one, at any real ε."""

        def pairs(at: arb, *, adding: bool) -> arb:
            return largest([pair.profile(at, adding=adding) for pair in self.pairs])

        return sampled(pairs, self.rate)(epsilon, adding=adding) + self.rate * self.slack


def sampled(profile: Callable[..., arb], rate: arb) -> Callable[..., arb]:
    """The profile of a release on a Poisson sample (errata 2.1, Subsampling)."""

    def transformed(epsilon: arb, *, adding: bool) -> arb:
        growth = epsilon.exp()
        if adding:  # H(absent || sampled), zero where the weight is not positive
            weight = 1 - (1 - rate) * growth
            scale, base = weight, rate * growth / weight
        else:  # H(sampled || absent), 1 - e^ε where the weight is not positive
            weight = base = 1 + (growth - 1) / rate
            scale = rate
        if weight > 0:
            return scale * profile(base.log(), adding=adding)
        # If the ball of the weight contains zero, its upper end bounds the remaining term.
        return least(epsilon) + abs(weight.nonnegative_part())

    return transformed


def largest(balls: list[arb]) -> arb:
    """The largest of some balls."""
    return reduce(arb.max, balls)


def worst_of(event: Event, rate: arb) -> Worst:
    """The pairs of an event that is no composition of releases."""
    zero = arb(0)
    match event.kind:
        case "ProposeTestReleaseDpEvent":
            pairs, slack = _of_release(event)
            return Worst(pairs, rate, slack)
        case "ExponentialMechanismDpEvent":
            return Worst((BoundedRange(positive(event["epsilon"])),), rate, zero)
        case "ApproximateDpEvent":
            # Randomised response, and all is revealed with probability δ.
            epsilon, delta = arb(event["epsilon"]), arb(event["delta"])
            often = (1 - delta) / (1 + (-epsilon).exp())
            rare = often * (-epsilon).exp()
            answers = ((rare, often, None), (often, rare, None))
            revealed = ((delta, zero, None), (zero, delta, None)) if delta > 0 else ()
            return Worst((Mixture((*answers, *revealed)),), rate, zero)
        case _:
            if (pair := additive(event)) is None:
                raise UnknownEventError("A sample of several releases has no closed form here.")
            return Worst((pair,), rate, zero)


def additive(event: Event) -> Pair | None:
    """The pair of Gaussian noise with at most one other noise, on the same records; else None."""
    precision, others = arb(0), []
    for leaf, count in leaves(event):
        if leaf.kind == "GaussianDpEvent":
            precision += count / positive(leaf["noise_multiplier"]) ** 2
        else:
            others += [leaf] if count == 1 else [leaf, leaf]
    sigma = 1 / precision.sqrt() if precision > 0 else None
    if not others:
        return alone(sigma)
    return _with(others[0], sigma) if len(others) == 1 else None


def alone(sigma: arb | None) -> Mixture:
    """The pair of Gaussian noise."""
    return Mixture(((arb(1), arb(1), sigma),))


def leaves(event: Event, count: int = 1) -> Iterator[tuple[Event, int]]:
    """The releases inside nested compositions, each with its number of runs.

    A test by itself releases a noisy margin, which is noise of sensitivity 1.
    """
    match event.kind:
        case "SelfComposedDpEvent":
            yield from leaves(event["event"], count * event["count"])
        case kind if kind == ALLOCATED:
            # Given the step that a record was allotted, that step alone depends on it; which one is
            # drawn without the data, and by convexity the mixture tells no more than one step does.
            yield from leaves(event["event"], count)
        case "ComposedDpEvent":
            for inner in event["events"]:
                yield from leaves(inner, count)
        case "GaussianTest" | "LaplaceTest" as kind:
            scale = ("noise_multiplier", event["scale"])
            yield Event(f"{kind.removesuffix('Test')}DpEvent", (scale,)), count
        case "DiscreteLaplaceTest":
            decay = ("noise_parameter", 1 / Fraction(event["scale"]))
            yield Event("DiscreteLaplaceDpEvent", (decay, ("sensitivity", 1))), count
        case _:
            yield event, count


def _with(noise: Event, sigma: arb | None) -> Pair | None:
    """The pair of a noise together with Gaussian noise; None for events of other kinds."""
    match noise.kind:
        case "LaplaceDpEvent":
            return Laplace(1 / positive(noise["noise_multiplier"]), sigma)
        case "DiscreteLaplaceDpEvent":
            return _discrete_laplace(
                positive(noise["noise_parameter"]), noise["sensitivity"], sigma
            )
        case "DiscreteGaussianTest":
            masses, rest = MarginTest(noise.kind, noise["scale"]).masses()
            reach = len(masses) - 1
            places = range(1 - reach, reach + 1)
            parts = [(masses[abs(x)], masses[abs(x - 1)], sigma) for x in places]
            # What lies beyond is taken to reveal the record: losses have no bound.
            ends = 2 * (rest + masses[reach])
            return Mixture((*parts, (ends, arb(0), sigma), (arb(0), ends, sigma)))
    return None


def _discrete_laplace(decay: arb, sensitivity: int, sigma: arb | None) -> Mixture:
    """Whole numbers of mass proportional to exp(-decay |x|), moved by the sensitivity."""
    if sensitivity > _MOST_MARGINS:
        raise UnknownEventError("Expected a small whole sensitivity in the event.")
    ratio = (-decay).exp()
    end, far = 1 / (1 + ratio), ratio**sensitivity / (1 + ratio)
    middle = (1 - ratio) / (1 + ratio)
    between = [
        (middle * ratio**x, middle * ratio ** (sensitivity - x), sigma)
        for x in range(1, sensitivity)
    ]
    return Mixture(((end, far, sigma), *between, (far, end, sigma)))


@attrs.frozen
class MarginTest:
    """A private test of a margin: its noise, and where it passes."""

    kind: str
    scale: arb = attrs.field(converter=positive)

    def passes(self, distance: arb) -> arb:
        """Pr[noise > distance]; a whole number if the noise is one."""
        if self.kind == "GaussianTest":
            return (distance / self.scale / arb(2).sqrt()).erfc() / 2
        if self.kind == "LaplaceTest":
            above = (-abs(distance) / self.scale).exp() / 2
            if distance >= 0:
                return above
            return 1 - above if distance < 0 else above.union(1 - above)
        steps = round(float(distance))
        if steps < -1:
            return 1 - self.passes(arb(-steps - 1))
        if self.kind == "DiscreteLaplaceTest":
            ratio = (-1 / self.scale).exp()
            return ratio ** (steps + 1) / (1 + ratio)
        masses, rest = self.masses()
        return sum(masses[steps + 1 :], rest)

    def masses(self) -> tuple[list[arb], arb]:
        """Those of discrete Gaussian noise at x >= 0, and a ball with the sum of all beyond."""
        reach = math.ceil(14 * float(self.scale)) + 2
        if reach > _MOST_TERMS:
            raise UnknownEventError("Discrete Gaussian noise of this scale is not summed here.")
        square = 2 * self.scale**2
        weights = [(-(arb(x) ** 2) / square).exp() for x in range(reach + 1)]
        # From one term to the next the ratio falls, so a geometric series bounds the rest.
        last = (-(arb(reach + 1) ** 2) / square).exp()
        rest = arb(0).union(last / (1 - (-arb(2 * reach + 3) / square).exp()))
        whole = 2 * sum(weights[1:], weights[0] / 2 + rest)
        return [weight / whole for weight in weights], rest / whole

    def threshold(self, failure: arb) -> arb:
        """The threshold as a real number, whose double `THRESHOLD_ERROR` covers; or a whole one."""
        if self.kind == "LaplaceTest":
            return -self.scale * (2 * failure).log()
        if self.kind == "GaussianTest":
            return self.scale * arb(2).sqrt() * (2 * failure).erfcinv()
        return arb(fewest(lambda steps: self.passes(arb(steps)) <= failure))


_MOST_TERMS = 1 << 16


def _of_release(event: Event) -> tuple[tuple[Pair, ...], arb]:
    """The pairs of Propose-Test-Release, and what they leave out of δ."""
    test = MarginTest(event["test"].kind, event["test"]["scale"])
    failure = positive(event["failure"])
    fallback = None if event["noise_multiplier"] is None else arb(event["noise_multiplier"])
    robust = fallback
    if event["robust_noise_multiplier"] is not None:
        robust = arb(event["robust_noise_multiplier"])
    if robust is None:
        raise UnknownEventError("Expected noise in the robust branch of the event.")
    threshold = test.threshold(failure)
    wrong = test.passes(threshold).min(failure)
    # Case 1: the branch does not depend on the record, and a false pass has too little noise.
    over_global = robust * arb(event["propose"])
    first = Mixture(((1 - wrong, 1 - wrong, fallback), (wrong, wrong, over_global)))
    # Case 2: the margin moves by one, and both branches have noise enough for the record.
    weaker = robust if fallback is None else robust.min(fallback)
    noise = Event("GaussianDpEvent", (("noise_multiplier", float(weaker)),))
    margin = additive(Event("ComposedDpEvent", (("events", (event["test"], noise)),)))
    assert margin is not None
    if event["reveals"] == "margin":
        return (first, margin), arb(0)
    low, high = math.floor(float(threshold.lower())), math.floor(float(threshold.upper()))
    slack = arb(0)
    if test.kind in ("LaplaceTest", "DiscreteLaplaceTest"):
        margins = range(max(1, low - 1), high + 4)  # the others are thinned copies of these (2.3)
    else:
        last = high + math.ceil(_BEYOND * float(test.scale)) + 2
        if last > _MOST_MARGINS:
            return (first, margin), arb(0)
        margins = range(1, last + 1)
        slack = 1 - test.passes(threshold - last)
    pairs: list[Mixture] = []
    passes = [test.passes(threshold - each) for each in (margins[0] - 1, *margins)]
    for less, one in pairwise(passes):
        pairs.append(Mixture(((1 - one, 1 - less, fallback), (one, less, robust))))
        if event["reveals"] == "branch":
            pairs.append(Mixture(((1 - less, 1 - one, fallback), (less, one, robust))))
    if fallback is None or not fallback.overlaps(robust):
        return (first, *pairs, alone(weaker)), slack
    if len(pairs) > _FEW:  # chords on a fine grid, with less than a millionth more variance
        normal = partial(gaussian, sigma=weaker)
        law = Law.of(normal, normal, 1 / (500 * float(weaker)), 0.0, 1e-32)
        pairs = [attrs.evolve(pair, law=law) for pair in pairs]
    return (first, *pairs), slack
