"""Discrete distributions of privacy losses: built from a profile, read as δ and ε.

A distribution is built by joining the values of a profile at finitely many losses by chords
("connect the dots", Doroshenko et al. 2022, arXiv:2207.04380), which can only overstate the
profile, or from lowered values, which can only understate it. The bounds include rounding errors:
see `joined`.
"""

import math
from bisect import bisect_left
from functools import cached_property, partial
from typing import Any, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

UNIT = 2.0**-53  # the unit roundoff u of double precision
_EVALUATION = 64.0
"""Error bound of an evaluated profile, in u times the sum of the two tails whose difference it is;
an eighth of it is added for each unit of |ε| (rounding of the argument). Checked against mpmath."""

_USELESS = 0.1  # tails with a larger relative error are replaced by trivial bounds
_DIRECT_SPAN = 600.0  # exponents within this distance of each other are summed without logarithms
Profile: TypeAlias = tuple[Array, Array]
"""Values of t, increasing from zero, and upper bounds on δ(t) at these."""


@attrs.frozen(slots=False)
class LossTable:
    """A distribution of privacy losses at finitely many points, with its profile.

    Masses may be stored tilted: the actual mass is the stored one times exp(log_scale - tilt loss).
    Masses far in the tail then keep their relative precision.
    """

    losses: Array  # the finite losses, increasing
    # Mass of the first distribution at each loss, tilted; the second distribution has e^-loss times
    # as much.
    masses: Array
    infinite: float  # mass at infinite loss
    tilt: float = 0.0  # tilt of the masses
    log_scale: float = 0.0  # logarithm of the scale of the masses
    upper: bool = True  # whether profiles are rounded up; otherwise they are rounded down

    @cached_property
    def _above(self) -> tuple[Array, Array, float]:
        """Tails of both distributions from each loss upwards, rounded safely, and the anchor.

        The tail of the second distribution is stored multiplied by e^anchor. The relative error of
        a sum of n non-negative numbers is at most (n - 1) u; that of an exponential is the absolute
        error of its argument.
        """
        # Multiplying by e^anchor keeps the second distribution representable in the whole table.
        anchor = float(self.losses[0]) if len(self.losses) else 0.0
        exponents = self.log_scale - self.tilt * self.losses
        shifted = exponents - (self.losses - anchor)
        largest = max(
            abs(self.log_scale), *(abs((1 + self.tilt) * x) for x in (anchor, self.losses[-1]))
        )
        doubt = UNIT * (len(self.losses) + 8 * largest + 32)
        if np.ptp(shifted) <= _DIRECT_SPAN and np.abs(shifted).max() <= _DIRECT_SPAN:
            first = np.cumsum((self.masses * np.exp(exponents))[::-1])[::-1]
            second = np.cumsum((self.masses * np.exp(shifted))[::-1])[::-1]
        else:
            with np.errstate(divide="ignore", over="ignore"):
                logs = np.log(self.masses)
                first = np.exp(np.logaddexp.accumulate((logs + exponents)[::-1])[::-1])
                second = np.logaddexp.accumulate((logs + shifted)[::-1])[::-1]
            doubt *= 1 + _DIRECT_SPAN + float(np.max(np.abs(shifted)))
            second = np.exp(np.minimum(second, 700.0)) if self.upper else np.exp(second)
        if doubt > _USELESS:
            known = np.full(len(self.losses), float(self.upper))
            return np.append(known, 0.0), np.zeros(len(self.losses) + 1), anchor
        sign = 1.0 if self.upper else -1.0
        first = np.append(np.minimum(first, 1e300) * (1 + sign * doubt), 0.0)
        return first, np.append(second * (1 - sign * doubt), 0.0), anchor

    def profile(self, epsilon: Array) -> Array:
        """δ(ε) at any real ε.

        A tilted table has no valid masses below its least loss. There the result is 1 or, for a
        table that rounds down, the contribution of the losses above.
        """
        first, second, anchor = self._above
        start = np.searchsorted(self.losses, epsilon, side="right")
        with np.errstate(over="ignore", invalid="ignore"):
            growth = np.exp(np.minimum(epsilon - anchor, 700.0))
            inside = first[start] - np.where(second[start] > 0, growth * second[start], 0.0)
        total = np.maximum(0.0, inside) + self.infinite
        if self.upper and self.tilt > 0:
            total = np.where(epsilon < self.losses[0], np.maximum(total, 1.0), total)
        return np.asarray(total)

    def epsilon(self, delta: float) -> float:
        """The least ε >= 0 whose δ(ε) is at most `delta`; infinite if there is none.

        A tilted table that rounds up is not evaluated below its least loss.
        """
        if self.infinite > delta:
            return math.inf
        if self.profile(np.zeros(1))[0] <= delta:
            return 0.0
        losses = self.losses
        positive = int(np.searchsorted(losses, 0.0, side="right"))
        start = positive + bisect_left(losses[positive:], True, key=partial(self._affords, delta))
        if start == len(losses):
            return math.inf
        if start == 0 and self.upper and self.tilt > 0:
            return float(losses[0])
        first, second, anchor = self._above  # below this loss δ is first + infinite - e^ε second
        if second[start] == 0:
            return float(losses[start]) if self.upper else 0.0
        exact = anchor + math.log((first[start] + self.infinite - delta) / second[start])
        exact += math.copysign(4 * UNIT * (abs(exact) + abs(anchor) + 1), 1 if self.upper else -1)
        low = float(losses[start - 1]) if start > positive else 0.0
        return min(max(low, exact), float(losses[start]))

    def _affords(self, delta: float, loss: float) -> bool:
        return bool(self.profile(np.array([loss]))[0] <= delta)


@attrs.frozen(slots=False)
class Chords:
    """Masses whose profile is piecewise linear in e^ε, with their rounding errors."""

    losses: Array  # the losses at which the slope of the profile changes, increasing
    masses: Array  # the non-negative masses at these losses
    infinite: float  # mass at infinite loss
    # Bound on the difference between each mass and that of the exact distribution; zero where the
    # masses have already been rounded up.
    doubt: Array

    @property
    def table(self) -> LossTable:
        """The distribution as a table, rounded up if all doubts are zero and down otherwise.

        Rounding down subtracts the doubts from the mass at infinity, which counts in full at every
        ε. If that mass is too small, all masses are scaled down by the largest fraction of the
        profile that the doubts can make up.
        """
        if not self.doubt.any():
            return LossTable(self.losses, self.masses, self.infinite)
        certain = self.infinite - 1.001 * float(self.doubt.sum())
        if certain >= 0:
            return LossTable(self.losses, self.masses, certain, upper=False)
        believed = LossTable(self.losses, self.masses, 0.0, upper=False).profile(self.losses[:-1])
        doubted = LossTable(self.losses, self.doubt, 0.0).profile(self.losses[:-1])
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.max(np.where(doubted > 0, doubted / believed, 0.0), initial=0.0)
        kept = self.masses * (1 - min(1.0, float(share)))
        return LossTable(self.losses, kept, self.infinite, upper=False)


def joined(excess: Array, zero: int, losses: Array, *, upper: bool = True) -> Chords:
    """Return the distribution whose profile joins its values at `losses` by chords in e^ε.

    Args:
        excess: The excess of the profile over the least possible one, which is 1 - e^ε left of zero
            and 0 right of it. The slope of the least profile changes only at zero, so omitting it
            keeps its rounding errors out of all other masses.
        zero: The index of ε = 0 in the grid.
        losses: The grid, increasing.
        upper: Whether masses are rounded up to a dominating distribution; otherwise their doubts
            are kept.

    Guarantee:
        With `upper`, the measure returned has at least the mass of the exact chords at each loss.
        A mass is a difference of two steps, each the quotient of a difference of values, so its
        rounding error is at most a few u times the steps; this is added. A negative mass, where
        rounding has made the values non-convex, becomes zero. More mass at a finite loss only
        raises a profile, at every ε, and does so after composition as well.
    """
    gaps = np.diff(losses)
    step = np.diff(excess) / -np.expm1(-gaps)  # not with e^gap, which overflows on a coarse grid
    after, before = np.append(step, 0.0), np.append(0.0, step)
    masses = np.append(np.exp(-gaps), 1.0) * after - before
    masses[zero] += 1.0
    masses[0] -= excess[0]
    doubt = 8 * UNIT * (np.abs(after) + np.abs(before) + np.abs(masses))
    infinite = float(excess[-1])
    if upper:
        return Chords(losses, np.maximum(masses + doubt, 0.0), infinite, np.zeros_like(masses))
    doubt += np.maximum(0.0, -masses)
    return Chords(losses, np.maximum(masses, 0.0), infinite, doubt)


def evaluation_error(excess: Array, losses: Array) -> Array:
    """A bound on the evaluation error of `excess`, computed from its own chords.

    A profile is first(L > ε) - e^ε second(L > ε). The second term is the magnitude of the slope of
    the profile, which the chord to the left overstates (to the right, for the mirrored half).
    """
    step = np.abs(np.diff(excess)) / -np.expm1(-np.diff(losses))
    slope = np.maximum(np.append(step, 0.0), np.append(0.0, step))
    return evaluation_bound(losses, excess, slope)


def evaluation_bound(epsilon: Array, value: Array, slope: Array) -> Array:
    """A bound on the error of evaluated profiles, given (bounds on) their values and slopes."""
    return UNIT * (_EVALUATION + 8 * np.abs(epsilon)) * (np.abs(value) + 2 * slope)


def lowered(excess: Array, zero: int, losses: Array, limit: float) -> Array:
    """Return values, in the form of `joined`, whose chords stay below the profile.

    The profile is convex in e^ε. So between two points it lies above the extensions of the
    neighbouring chords, and its own chord exceeds it by at most the height of the triangle that
    they form. Each value is lowered by the larger of the heights on its two sides; where one end of
    a chord reaches the least possible profile, the other end is lowered further. The lower convex
    hull of these values is the profile of a pair that the original dominates. `limit` is the limit
    of the profile at infinity.
    """
    least = -np.expm1(np.minimum(losses, 0.0))
    floor = np.maximum(limit - least, 0.0)
    if len(excess) < 3:
        return floor
    # The slope of the least profile changes at zero, so it must be added to the chords there.
    rise, ratio = np.diff(excess), _growth(losses)
    left = rise[1:-1] - rise[:-2] * ratio[:-1]
    right = rise[2:] / ratio[1:] - rise[1:-1]
    widths = np.diff(np.exp(np.minimum(losses[max(zero - 1, 0) : zero + 2], 300.0)))
    if 1 < zero < len(losses) - 1:
        right[zero - 2] += widths[0]
    if 0 < zero < len(losses) - 2:
        left[zero - 1] += widths[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        height = np.nan_to_num(left * right / (left + right), nan=0.0)
        apex = np.clip(np.nan_to_num(right / (left + right), nan=0.5), 1e-300, 1 - 1e-16)
    # The outermost chords have a neighbour on one side only, so they are lowered completely.
    height = np.concatenate([excess[1:2], np.maximum(height, 0.0), excess[-2:-1]])
    apex = np.concatenate([[1 - 1e-16], apex, [1e-300]])
    room = np.maximum(excess - floor, 0.0)
    drop = np.minimum(room, np.maximum(np.append(height, 0.0), np.append(0.0, height)))
    short = np.maximum(0.0, height - (1 - apex) * drop[:-1] - apex * drop[1:])
    further = np.maximum(np.append(short / (1 - apex), 0.0), np.append(0.0, short / apex))
    drop = np.minimum(room, drop + further)
    if 0 < limit < 1:
        bend = int(np.searchsorted(losses, math.log1p(-limit), side="right")) - 1
        on_grid = -math.expm1(losses[bend + 1]) if bend + 1 < len(losses) else limit
        at_bend = slice(bend, bend + 2)
        overshoots = bend >= 0 and on_grid < limit * (1 - 1e-9)
        if overshoots and np.all(drop[at_bend] == room[at_bend]):
            # The slope of the least profile changes between two grid points, where its chord is
            # above it.
            return lowered(excess, zero, losses, on_grid)
    values = excess - drop
    values[[0, -1]] = floor[[0, -1]]
    return _lower_hull(np.exp(np.minimum(losses, 700.0)), values, zero) * (1 - 16 * UNIT)


def _growth(losses: Array) -> Array:
    """The ratio of each interval of e^losses to the one before; limited, so products are finite."""
    gaps = np.minimum(np.diff(losses), 300.0)
    return np.asarray(np.exp(gaps[:-1]) * np.expm1(gaps[1:]) / np.expm1(gaps[:-1])).clip(
        math.exp(-300.0), math.exp(300.0)
    )


def _lower_hull(x: Array, y: Array, zero: int) -> Array:
    """The greatest convex function below the points, in the form of `joined`.

    A point above the chord of its neighbours is no corner; all of these are left out at once, until
    there is none. The values are without the least profile, of slope -1 left of `zero`.
    """
    corners, least = np.arange(len(x)), np.maximum(0.0, x[zero] - x)
    while True:
        widths = np.maximum(np.diff(x[corners]), 1e-300)
        slopes = np.diff(y[corners]) / widths + np.diff(least[corners]) / widths
        above = np.flatnonzero(np.diff(slopes) < 0) + 1
        if not len(above):
            break
        corners = np.delete(corners, above)
    hull = np.interp(x, x[corners], y[corners])
    after = int(np.searchsorted(corners, zero))
    if corners[after] != zero:  # a segment across zero, on which the least profile is not linear
        across = slice(corners[after - 1], corners[after] + 1)
        hull[across] = np.interp(x, x[corners], (y + least)[corners])[across] - least[across]
    return np.asarray(hull)


@attrs.frozen(eq=False, slots=False)
class TradeOff:
    """Lower bounds on probabilities under one distribution, given those under another.

    Let P and Q be two distributions of an output, δ(t) an upper bound on sup over events of
    P - e^t Q, and δ'(t) one on sup of Q - e^t P. An event, or the expectation of a function with
    values in [0, 1], that is u under P is under Q, for every t ≥ 0, at least

        e^-t (u - δ(t))    and    1 - δ'(t) - e^t (1 - u).

    The first is the definition of δ; the second is that of δ' for the complement. Every t gives a
    valid bound, so nothing is lost but tightness by taking finitely many.
    """

    forward: Profile  # the profile of P against Q
    backward: Profile  # the profile of Q against P

    @property
    def reversed(self) -> "TradeOff":
        """The trade-off of Q and P."""
        return TradeOff(self.backward, self.forward)

    def least(self, u: Array | float, rest: Array | float | None = None) -> Array:
        """The greatest bounds over all t, up to rounding; `rest` is 1 - u, if known better."""
        u, rest = np.asarray(u), np.asarray(1 - u if rest is None else rest)
        flat = self._flat(u[..., None], ...).max(axis=-1)
        steep = self._steep(rest[..., None], ...).max(axis=-1)
        return np.asarray(np.maximum(flat, steep))

    def searched(self, u: Array) -> Array:
        """As `least`, much faster: for convex profiles the best t is found by bisection.

        Which t is chosen does not affect validity.
        """
        below, above = self._bends
        low, high = np.searchsorted(below, -u), np.searchsorted(above, u - 1)
        return np.maximum(self._flat(u, low), self._steep(1 - u, high))

    def searched_once(self, u: float) -> float:
        """As `searched`, of one number, for chains of many thousand bounds."""
        below, above, shrink, forward, grow, backward = self._plain
        low, high = bisect_left(below, -u), bisect_left(above, u - 1)
        return max(shrink[low] * (u - forward[low]), 1 - grow[high] * (1 - u) - backward[high])

    @cached_property
    def _plain(self) -> tuple[list[float], ...]:
        arrays = *self._bends, self._factors[0], self.forward[1], self._factors[1], self.backward[1]
        return tuple(array.tolist() for array in arrays)

    def _flat(self, u: Array, at: Any) -> Array:
        return np.asarray(self._factors[0][at] * (u - self.forward[1][at]))

    def _steep(self, rest: Array, at: Any) -> Array:
        return np.asarray(1 - self._factors[1][at] * rest - self.backward[1][at])

    @cached_property
    def _factors(self) -> tuple[Array, Array]:
        return np.exp(-self.forward[0]), np.exp(self.backward[0])

    @cached_property
    def _bends(self) -> tuple[Array, Array]:
        """Where the best t changes, in -u and in u - 1."""
        shrink, grow = self._factors
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            below = np.diff(shrink * self.forward[1]) / np.diff(shrink)
            above = -np.diff(self.backward[1]) / np.diff(grow)
        below, above = (np.nan_to_num(bends, nan=0.0, posinf=1.0) for bends in (below, above))
        return -np.minimum.accumulate(below), -np.minimum.accumulate(above)
