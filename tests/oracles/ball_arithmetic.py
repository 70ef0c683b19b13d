"""Independent verification of a reported (ε, δ), in ball arithmetic.

Everything that the accountant computes from the dominating pairs of an event is computed again
here, by other methods and with error bounds that the arithmetic tracks: the profiles from erfc at
128 bits, directly on both sides of zero; the distribution on a grid from their chords; the sum of
all losses by an untilted Fourier transform. Only the pairs themselves (`domination`) are shared
with the accountant. A verification takes seconds to minutes.
"""

import math
from itertools import pairwise

import attrs
import dp_accounting as dp
import numpy as np
from flint import acb, arb, ctx

from prudent import _validate
from prudent.accounting.losses.domination import dominating
from prudent.accounting.losses.pairs import (
    BoundedRangePair,
    Dominating,
    LaplacePair,
    MixturePair,
    Pair,
)

_BITS = 128  # δ = 1e-20 keeps 18 digits
_MOST_POINTS = 2**22
_CAP = 25.0  # a single loss above ε + 25 counts as infinite, which costs e^-25 of its mass
_RATES = [2.0**power for power in range(-6, 12)]  # of Chernoff bounds


def certified_delta(
    event: dp.DpEvent, count: int, epsilon: float, *, interval: float, tail: float
) -> float:
    """Return a proved upper bound on δ(ε) of `count` runs of one event.

    Neighbouring data sets differ by adding or removing one record.

    Args:
        event: An event whose dominating pairs have a closed form: a Gaussian, Laplace or
            Propose-Test-Release event, sampled or not.
        count: The number of runs.
        epsilon: ε >= 0.
        interval: The spacing of the grid of losses. What the grid adds to the bound falls with its
            square.
        tail: The δ that losses beyond the grid may cost: a small part of the expected δ.

    Guarantee:
        The chords of a profile dominate it, balls contain the exact values, and what a finite
        transform omits is bounded by Chernoff's inequality. So the bound holds for any grid and
        tail.

    Raises:
        ValueError: If the event has no such pairs, or the grid would need millions of points.
    """
    _validate.count(1, count=count)
    _validate.non_negative(epsilon=epsilon)
    _validate.positive(interval=interval)
    _validate.positive(tail=tail)
    worst = dominating(event)
    if worst is None:
        raise _validate.ArgumentError(
            "event", "one with dominating pairs in closed form", got=event
        )
    with ctx.workprec(_BITS):
        found = []
        for adding in (False, True):
            law = Law.of(worst, arb(interval), tail / count, epsilon + _CAP, adding=adding)
            found.append(law.composed(count).delta(epsilon))
    return min(1.0, max(found))


@attrs.frozen
class Law:
    """The chords of a profile, as masses at multiples of an interval, in balls.

    Attributes:
        interval: The exact spacing of the grid.
        first: The least loss, in intervals.
        masses: The mass at each loss from `first` on.
        infinite: Mass at infinite loss.
    """

    interval: arb
    first: int
    masses: list[arb]
    infinite: arb

    @classmethod
    def of(
        cls, worst: Dominating, interval: arb, tail: float, cap: float, *, adding: bool
    ) -> "Law":
        """The law of one direction, with tails of about `tail` and losses beyond `cap` cut off.

        Mass cut off on the right is moved to infinity, on the left to the least loss.
        """
        step = float(interval)
        right = math.ceil(min(cap, worst.reach(tail, adding=adding)) / step) + 1
        left = math.ceil(worst.reach(tail, adding=not adding, damped=True) / step) + 1
        _check_points(left + right)
        values = [_profile(worst, interval * k, adding=adding) for k in range(-left, right + 1)]
        # Where the slope of the chords in e^ε changes, the first law has the mass
        # e^ε (slope after - slope before).
        shrink, width = (-interval).exp(), -(-interval).expm1()
        steps = [(after - before) / width for before, after in pairwise(values)]
        inner = [shrink * after - before for before, after in pairwise(steps)]
        masses = [shrink * steps[0] + 1 - values[0], *inner, -steps[-1]]
        return cls(interval, -left, masses, values[-1])

    def composed(self, count: int) -> "Law":
        """The law of the sum of `count` losses; mass above a window is moved to infinity."""
        least, size = self._window(count)
        padded = [acb(0)] * size
        for k, mass in enumerate(self.masses):
            padded[k % size] += mass
        sums = acb.dft([z**count for z in acb.dft(padded)], inverse=True)
        start = least - count * self.first
        masses = [sums[(start + k) % size].real for k in range(size)]
        infinite = self._above(count, least + size) + 1 - (1 - self.infinite) ** count
        return Law(self.interval, least, masses, infinite)

    def delta(self, epsilon: float) -> float:
        """A bound on δ(ε), for ε within the grid."""
        with ctx.workprec(_BITS):
            total, growth = self.infinite, arb(epsilon).exp()
            step, loss = (-self.interval).exp(), (-self.interval * self.first).exp()
            for mass in self.masses:
                total += mass * (1 - growth * loss).nonnegative_part()
                loss *= step
        return _upper(total)

    def _window(self, count: int) -> tuple[int, int]:
        """Least loss and size of the window, in intervals; e^-100 of the sums lie beyond each end.

        The choice does not affect the proof: `_above` bounds the mass above the window, and mass
        below it is wrapped into the window, which can only raise δ.
        """
        step = float(self.interval)
        masses = np.array([float(mass) for mass in self.masses])
        losses = (self.first + np.arange(len(masses))) * step

        def end(sign: float) -> float:
            needs = []
            for rate in _RATES:
                exponents = sign * rate * losses
                moment = max(float(masses @ np.exp(exponents - exponents.max())), 1e-300)
                needs.append((count * (exponents.max() + math.log(moment)) + 100) / rate)
            return float(min(needs))

        least = max(count * self.first, math.floor(-end(-1.0) / step))
        size = min(math.ceil(end(1.0) / step) - least, count * (len(masses) - 1)) + 2
        _check_points(size)
        return least, 2 ** math.ceil(math.log2(size))

    def _above(self, count: int, end: int) -> arb:
        """A bound on the mass of finite sums from `end` intervals on."""
        if end > count * (self.first + len(self.masses) - 1):
            return arb(0)
        bounds = []
        for rate in _RATES:
            factor = (rate * self.interval).exp()
            moment = arb(0)
            for mass in reversed(self.masses):
                moment = moment * factor + mass
            moment *= (rate * self.interval * self.first).exp()
            bounds.append(moment**count * (-rate * self.interval * end).exp())
        return min(bounds, key=_upper)


def _check_points(points: int) -> None:
    if points > _MOST_POINTS:
        raise _validate.ArgumentError(
            "interval",
            f"so that at most {_MOST_POINTS:,} losses are needed",
            shown=f"one that needs {points:,}",
            hint="Choose a larger one.",
        )


def _upper(ball: arb) -> float:
    """Return a double that is an upper bound on the ball."""
    return math.nextafter(float(ball.upper()), math.inf)


def _profile(worst: Dominating, epsilon: arb, *, adding: bool) -> arb:
    """δ(ε) of one direction: the worst of the pairs, Poisson-sampled."""
    rate, growth = arb(worst.sampling_rate), epsilon.exp()
    if adding:  # H(absent || sampled), zero where the weight is not positive
        weight = 1 - (1 - rate) * growth
        scale, base = weight, rate * growth / weight
    else:  # H(sampled || absent), 1 - e^ε where the weight is not positive
        weight = base = 1 + (growth - 1) / rate
        scale = rate
    if weight > 0:
        pairs = [pair.swapped() for pair in worst.pairs] if adding else worst.pairs
        found = scale * _largest([_pair_profile(pair, base.log()) for pair in pairs])
    else:  # if the ball of the weight contains zero, its upper end bounds the remaining term
        found = (1 - growth).nonnegative_part() + abs(weight.nonnegative_part())
    return found + rate * worst.slack


def _largest(balls: list[arb]) -> arb:
    largest = balls[0]
    for ball in balls[1:]:
        largest = largest.max(ball)
    return largest


def _pair_profile(pair: Pair, epsilon: arb) -> arb:
    match pair:
        case MixturePair():
            total, laws = arb(0), (pair.absent.tolist(), pair.present.tolist(), pair.sigma.tolist())
            for absent, present, sigma in zip(*laws, strict=True):
                if absent > 0 and present > 0:
                    loss = (arb(present) / arb(absent)).log()
                    total += arb(present) * _gaussian(epsilon - loss, sigma)
                elif present > 0:
                    total += arb(present)
            return total
        case LaplacePair():
            return _laplace(epsilon, arb(1) / arb(pair.scale), pair.sigma)
        case BoundedRangePair():
            return _bounded_range(epsilon, arb(pair.reach))
        case _:
            raise ValueError(f"Expected pairs in closed form, got {pair!r}.")


def _gaussian(epsilon: arb, sigma: float) -> arb:
    """The profile of N(1/σ, 1) against N(0, 1)."""
    if sigma == 0:
        return arb(1)
    if math.isinf(sigma):
        return (1 - epsilon.exp()).nonnegative_part()
    mu = 1 / arb(sigma)
    a = epsilon / mu - mu / 2
    return _tail(a, arb(0)) - _tail(a, mu)


def _laplace(epsilon: arb, reach: arb, sigma: float) -> arb:
    """The profile of Laplace noise, whose losses end at ±reach, together with Gaussian noise.

    The Laplace losses have atoms 1/2 at reach and e^-reach/2 at -reach, and the density
    e^((ℓ-reach)/2)/4 between them; the Gaussian profile is integrated over them.
    """
    if math.isinf(sigma):
        inside = -((epsilon - reach) / 2).expm1()
        return inside.nonnegative_part().max((1 - epsilon.exp()).nonnegative_part())
    mu = 1 / arb(sigma)
    upper, lower = (epsilon - reach) / mu - mu / 2, (epsilon + reach) / mu - mu / 2
    above = _tail(upper, arb(0)) - _tail(upper, mu / 2)
    below = _tail(lower, mu / 2) - _tail(lower, mu)
    return above + (-reach).exp() * below


def _bounded_range(epsilon: arb, reach: arb) -> arb:
    """The profile of the worst choice whose losses lie in a range of this length."""
    inside = (-((epsilon.max(-reach) - reach) / 2).expm1()).nonnegative_part()
    least = (1 - epsilon.exp()).nonnegative_part()
    return (inside * inside / -(-reach).expm1()).max(least)


def _tail(a: arb, shift: arb) -> arb:
    """Return exp(shift (a + shift/2)) Φ(-a - shift)."""
    return (shift * (a + shift / 2)).exp() * ((a + shift) / arb(2).sqrt()).erfc() / 2
