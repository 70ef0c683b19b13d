"""Distributions of privacy losses on a grid, in balls, and their composition.

The chords of a profile between points of the grid are above it, and are the profile of masses at
these points; balls contain the exact masses; what a finite transform omits is bounded by Chernoff's
inequality. So a bound holds for every choice of grid, points and window: they are chosen in
floating point, and a bad choice only makes the bound larger.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TypeAlias

import attrs
import numpy as np
from flint import acb, arb

Profile: TypeAlias = Callable[[arb], arb]  # δ of one direction, at every real ε
_Floats: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]

_MOST_POINTS = 2**20
_RATES = [2.0**power for power in range(-6, 14)]  # of Chernoff bounds
_FARTHEST = 2000.0  # losses


class CoarseGridError(ValueError):
    """A grid that would need too many points."""


def upper(ball: arb) -> float:
    """A double that is an upper bound on the ball."""
    return math.nextafter(float(ball.upper()), math.inf)


@attrs.frozen(slots=False)
class Law:
    """Masses at multiples of an interval."""

    interval: arb  # the exact spacing of the grid
    steps: Sequence[int]  # the losses with mass, increasing, in intervals
    masses: Sequence[arb]  # the mass at each of them
    infinite: arb  # mass at infinite loss

    @classmethod
    def of(
        cls, profile: Profile, back: Profile, interval: float, growth: float, tail: float
    ) -> "Law":
        """The chords of a profile, as masses; `back` is the profile of the other direction.

        Points are `interval` apart, farther by `growth` times their distance from zero. Mass beyond
        the last one, about `tail`, is moved to infinity, below the first one to it.
        """
        exact, steps = arb(interval), _grid(profile, back, interval, growth, tail)
        values = [profile(exact * step) for step in steps]
        return cls(exact, steps, _masses(exact, steps, values), values[-1])

    @classmethod
    def below(
        cls, profile: Profile, back: Profile, interval: float, growth: float, tail: float
    ) -> "Law":
        """Masses whose profile is at most the given one; for the arguments see `of`.

        With e^ε as the variable a profile is convex. In the middle of each gap it is supported by a
        line, of which two secants bound the slope; values on no such line or above join by chords
        below the profile. Where they would be below the least profile, 1 - e^ε or 0, that serves;
        their lower hull is convex, so it is the profile of two distributions.
        """
        exact, steps = arb(interval), _grid(profile, back, interval, growth, tail)
        points = [(exact * step).exp() for step in steps]
        floors = [(1 - point).nonnegative_part() for point in points]
        values: list[arb] = [arb(1)] * len(steps)
        for k, (a, b) in enumerate(pairwise(steps)):
            middle, near = exact * (a + b) / 2, exact * (b - a) * arb(2) ** -40
            left, here, right = (profile(at) for at in (middle - near, middle, middle + near))
            at = middle.exp()
            steep = (here - left) / (at * -(-near).expm1())
            flat = (right - here) / (at * near.expm1())
            values[k] = values[k].min(here + flat * (points[k] - at))
            values[k + 1] = (here + steep * (points[k + 1] - at)).lower()
            values[k] = values[k].lower()
        low = [not value > floor for value, floor in zip(values, floors, strict=True)]
        low = [any(low[max(k - 1, 0) : k + 2]) for k in range(len(low))]
        low[0] = low[-1] = True
        values = [f if clamp else v for v, f, clamp in zip(values, floors, low, strict=True)]
        hull: list[int] = []
        for k, (point, value) in enumerate(zip(points, values, strict=True)):
            while len(hull) > 1:
                i, j = hull[-2:]
                before = (values[j] - values[i]) * (point - points[j])
                if before < (value - values[j]) * (points[j] - points[i]):
                    break
                hull.pop()
            hull.append(k)
        kept = [steps[k] for k in hull]
        return cls(exact, kept, _masses(exact, kept, [values[k] for k in hull]), arb(0))

    @cached_property
    def _suffixes(self) -> tuple[list[arb], list[arb]]:
        """The mass from each point on, and its mean of e^-loss."""
        damped = [
            m * (-self.interval * k).exp() for k, m in zip(self.steps, self.masses, strict=True)
        ]
        return (
            list(accumulate(reversed(self.masses), initial=arb(0)))[::-1],
            list(accumulate(reversed(damped), initial=arb(0)))[::-1],
        )

    def delta(self, epsilon: arb) -> arb:
        """δ at any real ε."""
        place = bisect.bisect_left(self.steps, float(epsilon / self.interval))
        # The sum over all losses above ε is the largest of its kind; a double may miss its place.
        masses, damped = self._suffixes
        growth = epsilon.exp()
        found = masses[place] - growth * damped[place]
        for cut in (place - 1, place + 1):
            if 0 <= cut < len(masses):
                found = found.max(masses[cut] - growth * damped[cut])
        return self.infinite + found

    def floats(self) -> tuple[_Floats, _Floats]:
        """Losses and masses, in floating point."""
        masses = np.array([max(float(mass), 0.0) for mass in self.masses])
        return np.array(self.steps, dtype=float) * float(self.interval), masses


def _grid(
    profile: Profile, back: Profile, interval: float, growth: float, tail: float
) -> list[int]:
    """The points, in intervals, that reach as far as a profile is above a tail."""
    right = _reach(lambda at: upper(profile(arb(at))), tail)
    left = _reach(lambda at: math.exp(-at) * upper(back(arb(at))), tail)
    steps = [-step for step in _spaced(left / interval, growth)[:0:-1]]
    return steps + _spaced(right / interval, growth)


def _masses(exact: arb, steps: Sequence[int], values: Sequence[arb]) -> list[arb]:
    """Those of the chords between values of a profile at points.

    Where the slope in e^ε changes, the first law has the mass e^ε (slope after - slope before).
    """
    widths = [(exact * (b - a)).expm1() for a, b in pairwise(steps)]  # over e^ε of the left
    falls = [(a - b) / width for (a, b), width in zip(pairwise(values), widths, strict=True)]
    masses = [1 - values[0] - falls[0]]
    for (before, after), (a, b) in zip(pairwise(falls), pairwise(steps), strict=False):
        masses.append(before * (exact * (b - a)).exp() - after)
    return [*masses, falls[-1] * (exact * (steps[-1] - steps[-2])).exp()]


def _reach(profile: Callable[[float], float], tail: float) -> float:
    """About the first loss at which a profile has come down to a tail above its limit."""
    limit = profile(_FARTHEST)
    low, high = 0.0, 1.0
    while profile(high) > limit + tail and high < _FARTHEST:
        low, high = high, 2 * high
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if profile(middle) > limit + tail else (low, middle)
    return high


def _spaced(end: float, growth: float) -> list[int]:
    """Whole numbers from 0 to about `end`, with gaps in proportion to their size."""
    steps = [0]
    while steps[-1] < end:
        steps.append(steps[-1] + max(1, int(growth * steps[-1])))
        if len(steps) > _MOST_POINTS:
            raise CoarseGridError("Too many points.")
    return steps if len(steps) > 1 else [0, 1]


def composed(laws: Sequence[tuple[Law, int]], tail: float, *, below: bool = False) -> Law:
    """The law of the sum of independent losses on one grid, each law with its number of runs.

    About the mass `tail` is left outside the window, at either end. Its δ is at least that of the
    sum; with `below`, at most.
    """
    interval = laws[0][0].interval
    least, size = _window(laws, tail)
    product = [acb(1)] * size
    for law, count in laws:
        padded = [acb(0)] * size
        for step, mass in zip(law.steps, law.masses, strict=True):
            padded[step % size] += mass
        product = [a * z**count for a, z in zip(product, acb.dft(padded), strict=True)]
    sums = acb.dft(product, inverse=True)
    masses = [sums[(least + k) % size].real for k in range(size)]
    kept = arb(1)
    for law, count in laws:
        kept *= (1 - law.infinite) ** count
    # A transform wraps what lies above the window to its foot, and what lies below to its head.
    infinite = -_beyond(laws, least, -1) if below else _beyond(laws, least + size, 1) + 1 - kept
    return Law(interval, range(least, least + size), masses, infinite)


def _window(laws: Sequence[tuple[Law, int]], tail: float) -> tuple[int, int]:
    """Least loss and size of the window, in intervals.

    The choice does not affect the proof: `_beyond` bounds the mass above the window, and mass below
    it is wrapped into the window, which can only raise δ, and is bounded where that matters.
    """
    step = float(laws[0][0].interval)
    plain = [(law.floats(), count) for law, count in laws]
    wanted = -math.log(tail)

    def end(sign: float) -> float:
        needs = []
        for rate in _RATES:
            total = wanted
            for (losses, masses), count in plain:
                exponents = sign * rate * losses
                most = float(exponents.max())
                moment = max(float(masses @ np.exp(exponents - most)), 1e-300)
                total += count * (most + math.log(moment))
            needs.append(total / rate)
        return float(min(needs))

    first = sum(count * law.steps[0] for law, count in laws)
    last = sum(count * law.steps[-1] for law, count in laws)
    least = max(first, math.floor(-end(-1.0) / step))
    size = max(1, min(math.ceil(end(1.0) / step), last) - least) + 2
    if size > _MOST_POINTS:
        raise CoarseGridError("Too many losses.")
    return least, 2 ** math.ceil(math.log2(size))


def _beyond(laws: Sequence[tuple[Law, int]], end: int, sign: int) -> arb:
    """A bound on the mass of finite sums from `end` intervals on; with sign -1, of those below."""
    if sign * end > sum(
        count * max(sign * law.steps[0], sign * law.steps[-1]) for law, count in laws
    ):
        return arb(0)
    interval, best = laws[0][0].interval, arb(1)
    for rate in _RATES:
        bound = (-rate * sign * interval * end).exp()
        for law, count in laws:
            own = zip(law.steps, law.masses, strict=True)
            terms = (mass * (rate * sign * interval * step).exp() for step, mass in own)
            bound *= sum(terms, arb(0)) ** count
        best = best.min(bound)
    return best
