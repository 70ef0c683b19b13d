"""Discrete laws of privacy losses on a grid: building them from a profile, composing, reading.

A law is built by joining the values of a profile on the grid by chords ("connect the dots",
Doroshenko et al. 2022, arXiv:2207.04380), which can only overstate it, or from lowered values,
which can only understate it.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import fft

Array: TypeAlias = NDArray[np.float64]

_TRUNCATION = 1e-15  # mass that a composition may cut off on each side
_CHERNOFF_BINS = 2048


def log_sum_exp(exponents: Array, weights: Array) -> float:
    """Logarithm of the sum of weights times exponentials; weights may be zero, not all of them."""
    peak = float(np.max(exponents[weights > 0]))
    return peak + math.log(float(weights @ np.exp(np.minimum(exponents - peak, 0.0))))


@dataclass(frozen=True)
class LossTable:
    """A law of privacy losses, and the profile it stands for.

    Attributes:
        interval: Distance between neighbouring losses.
        first: The least loss, in intervals.
        masses: Mass of the first law at each loss; the second law has e^-loss times as much.
        infinite: Mass at infinite loss.
    """

    interval: float
    first: int
    masses: Array
    infinite: float

    @property
    def losses(self) -> Array:
        """The losses, increasing."""
        return np.arange(self.first, self.first + len(self.masses), dtype=float) * self.interval

    @cached_property
    def _above(self) -> tuple[Array, Array]:
        """From each loss upwards: mass of the first law, and logarithm of that of the second."""
        first = np.cumsum(self.masses[::-1])[::-1]
        with np.errstate(divide="ignore"):
            log_second = np.log(self.masses) - self.losses
        log_second = np.logaddexp.accumulate(log_second[::-1])[::-1]
        return np.append(first, 0.0), np.append(log_second, -np.inf)

    def profile(self, epsilon: Array) -> Array:
        """δ(ε) at any real ε."""
        first, log_second = self._above
        start = np.searchsorted(self.losses, epsilon, side="right")
        inside = first[start] - np.exp(np.minimum(epsilon + log_second[start], 700.0))
        return np.maximum(0.0, inside) + self.infinite

    def epsilon(self, delta: float) -> float:
        """The least ε >= 0 whose δ(ε) is at most `delta`; infinite when there is none."""
        if self.infinite > delta:
            return math.inf
        if self.profile(np.zeros(1))[0] <= delta:
            return 0.0
        losses = self.losses
        positive = int(np.searchsorted(losses, 0.0, side="right"))
        enough = self.profile(losses[positive:]) <= delta
        start = positive + int(np.argmax(enough))
        first, log_second = self._above  # just below this loss δ is first + infinite - e^ε second
        exact = math.log(first[start] + self.infinite - delta) - log_second[start]
        return max(0.0, min(math.nextafter(exact, math.inf), float(losses[start])))

    def span_of(self, times: int) -> tuple[int, int]:
        """Least and greatest loss of `times` runs, in intervals, but for `_TRUNCATION` each side.

        A Chernoff bound at a few rates. Long tables are thinned first: exponentials are convex, so
        moving mass to both ends of a stretch, keeping its mean, can only raise their expectation.
        """
        width = -(-len(self.masses) // _CHERNOFF_BINS)
        starts = np.arange(0, len(self.masses), width)
        offset = self.masses * (np.arange(len(self.masses)) % width / width)
        onwards = np.add.reduceat(offset, starts)
        thinned = np.append(np.add.reduceat(self.masses, starts) - onwards, 0.0)
        thinned[1:] += onwards
        losses = (self.first + np.arange(len(thinned)) * width) * self.interval
        need = -math.log(_TRUNCATION)
        scale = 1 / max(self.interval, float(losses[-1] - losses[0]))
        rates = scale * np.geomspace(0.5, 2000.0, 24)
        up = [(times * log_sum_exp(rate * losses, thinned) + need) / rate for rate in rates]
        down = [(times * log_sum_exp(-rate * losses, thinned) + need) / rate for rate in rates]
        least = max(times * self.first, math.floor(-min(down) / self.interval))
        last = self.first + len(self.masses) - 1
        return least, max(least, min(times * last, math.ceil(min(up) / self.interval)))

    def self_composed(self, times: int) -> "LossTable":
        """The law of the sum of `times` independent losses."""
        if times == 1 or not self.masses.any():  # without finite losses all is at infinity already
            return self
        least, greatest = self.span_of(times)
        size = fft.next_fast_len(max(greatest - least + 1, len(self.masses)), real=True)
        power = fft.irfft(fft.rfft(self.masses, size) ** times, size)
        # The transform is periodic: what lies outside the span has wrapped round into it.
        masses = np.roll(power, times * self.first - least)[: greatest - least + 1]
        infinite = 1.0
        if self.infinite < 1:
            infinite = -math.expm1(times * math.log1p(-self.infinite))
        return self._like(least, masses, infinite + 2 * _TRUNCATION)

    def composed(self, other: "LossTable") -> "LossTable":
        """The law of the sum of two independent losses on the same grid."""
        size = fft.next_fast_len(len(self.masses) + len(other.masses) - 1, real=True)
        product = fft.rfft(self.masses, size) * fft.rfft(other.masses, size)
        masses = fft.irfft(product, size)[: len(self.masses) + len(other.masses) - 1]
        infinite = self.infinite + other.infinite - self.infinite * other.infinite
        return self._like(self.first + other.first, masses, infinite)._trimmed()

    def _trimmed(self) -> "LossTable":
        """Cuts thin tails: the right one goes to infinity, the left one to the least loss kept."""
        below, above = np.cumsum(self.masses), np.cumsum(self.masses[::-1])
        left = int(np.searchsorted(below, _TRUNCATION))
        right = len(self.masses) - int(np.searchsorted(above, _TRUNCATION))
        if right <= left:
            return self
        kept = self.masses[left:right].copy()
        kept[0] += below[left - 1] if left else 0.0
        return self._like(self.first + left, kept, self.infinite + _TRUNCATION)

    def _like(self, first: int, masses: Array, infinite: float) -> "LossTable":
        return LossTable(self.interval, first, np.maximum(masses, 0.0), infinite)


def joined(excess: Array, zero: int, interval: float) -> LossTable:
    """The law whose profile joins its values on a grid by chords in e^ε.

    Args:
        excess: What the profile exceeds the least possible one by, which is 1 - e^ε left of zero
            and 0 right of it. That line bends at zero alone, so leaving it out keeps its rounding
            out of every other mass.
        zero: Where in the grid ε = 0 is.
        interval: Of the grid.
    """
    step = np.diff(excess) / -math.expm1(-interval)  # no e^interval: a coarse grid may overflow it
    masses = math.exp(-interval) * np.append(step, 0.0) - np.append(0.0, step)
    masses[zero] += 1.0
    masses[0] -= excess[0]
    return LossTable(interval, -zero, np.maximum(masses, 0.0), float(excess[-1]))


def lowered(excess: Array, zero: int, interval: float, limit: float) -> Array:
    """Grid values, as for `joined`, whose chords stay below the profile.

    Between two grid points the profile, convex in e^ε, lies above the lines through the
    neighbouring chords, so its chord overshoots it by at most the height of that triangle.
    Lowering both ends by the larger overshoot beside them, one end further where the other has
    come to the least possible profile, and taking the lower convex hull, gives the profile of a
    pair that the original dominates. `limit` is the profile's limit at infinity.
    """
    epsilons = np.arange(-zero, len(excess) - zero, dtype=float) * interval
    least = -np.expm1(np.minimum(epsilons, 0.0))
    floor = np.maximum(limit - least, 0.0)
    if len(excess) < 3:
        return floor
    rise = np.diff(excess + least)
    growth = math.exp(min(interval, 300.0))  # already all there is, and its products stay finite
    left = rise[1:-1] - rise[:-2] * growth
    right = rise[2:] / growth - rise[1:-1]
    with np.errstate(invalid="ignore", divide="ignore"):
        height = np.nan_to_num(left * right / (left + right), nan=0.0)
        apex = np.clip(np.nan_to_num(right / (left + right), nan=0.5), 1e-300, 1 - 1e-16)
    # The outermost chords have a neighbour on one side only: lower them all the way.
    height = np.concatenate([excess[1:2], np.maximum(height, 0.0), excess[-2:-1]])
    apex = np.concatenate([[1 - 1e-16], apex, [1e-300]])
    room = excess - floor
    drop = np.minimum(room, np.maximum(np.append(height, 0.0), np.append(0.0, height)))
    short = np.maximum(0.0, height - (1 - apex) * drop[:-1] - apex * drop[1:])
    further = np.maximum(np.append(short / (1 - apex), 0.0), np.append(0.0, short / apex))
    drop = np.minimum(room, drop + further)
    if 0 < limit < 1:
        bend = zero + math.floor(math.log1p(-limit) / interval)
        on_grid = -math.expm1((bend + 1 - zero) * interval)
        at_bend = slice(bend, bend + 2)
        overshoots = bend >= 0 and on_grid < limit * (1 - 1e-9)
        if overshoots and np.all(drop[at_bend] == room[at_bend]):
            # The least profile bends between two grid points: a chord of it is above it there.
            return lowered(excess, zero, interval, on_grid)
    values = excess - drop + least
    values[0], values[-1] = (floor + least)[[0, -1]]
    return _lower_hull(np.exp(np.minimum(epsilons, 700.0)), values) - least


def _lower_hull(x: Array, y: Array) -> Array:
    """The greatest convex function below the points, at their abscissae."""
    kept: list[int] = []
    xs, ys = x.tolist(), y.tolist()
    for i in range(len(xs)):
        while len(kept) > 1:
            j, k = kept[-2], kept[-1]
            if (ys[k] - ys[j]) * (xs[i] - xs[k]) <= (ys[i] - ys[k]) * (xs[k] - xs[j]):
                break
            kept.pop()
        kept.append(i)
    return np.asarray(np.interp(x, x[kept], y[kept]))
