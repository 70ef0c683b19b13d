"""Chernoff bounds of a composition over all tilts and caps, which locate the losses that decide δ.

A cap replaces every single loss beyond it by infinity, which can only overstate δ. Caps make rare,
very large losses cheap to handle: a loss c in one run counts almost fully towards δ(ε) wherever c
is well above ε, so treating it as infinite costs at most a factor e^(ε-c) of its mass. (The factor
follows from E e^-loss <= 1 for the other losses, under the first distribution.)
"""

import math
from collections.abc import Sequence

import attrs
import numpy as np

from prudent.accounting.loss_tables import Array, Chords, evaluation_error, joined, lowered
from prudent.accounting.pairs import Dominating

_TILTS = np.geomspace(1e-5, 1e9, 180)
_CAP_COST = 1e-6  # largest fraction of δ that a cap may cost
_VISIBLE = 1e-9  # second difference of log-moments that rounding errors cannot imitate

Parts = Sequence[tuple[Dominating, int]]


def chords_of(worst: Dominating, right: Array, left: Array, *, adding: bool, upper: bool) -> Chords:
    """The law of losses of one direction at -`left` (decreasing), 0 and `right` (increasing)."""
    losses = np.concatenate([-left[::-1], [0.0], right])
    zero = len(left)
    above = worst.profile(losses[zero:], adding=adding)
    # Left of zero a profile is 1 - e^ε plus e^ε times that of the opposite direction at -ε.
    mirrored = worst.profile(left, adding=not adding)[::-1] * np.exp(losses[:zero])
    excess = np.append(mirrored, np.minimum.accumulate(above))
    return bounded(excess, zero, losses, worst.infinite_mass(adding=adding), upper=upper)


def bounded(excess: Array, zero: int, losses: Array, limit: float, *, upper: bool) -> Chords:
    """Return chords above (`upper`) or below a profile, including its evaluation error."""
    error = evaluation_error(excess, losses)
    if upper:
        return joined(excess + error, zero, losses)
    least = -np.expm1(np.minimum(losses, 0.0))
    floor = np.maximum(limit - least, 0.0)
    lower = lowered(np.maximum(excess - error, floor), zero, losses, limit)
    return joined(lower, zero, losses, upper=False)


@attrs.frozen
class Scan:
    """Moments of one direction of a composition, for every tilt and cap.

    Attributes:
        runs: The number of losses in the sum.
        caps: The losses at which single losses may be capped.
        log_moments: Upper bounds on log E e^(tilt total), for each tilt (row) and cap (column).
        beyond: Probability that some loss exceeds the cap, infinite ones included.
        infinite: Probability that some loss is infinite without a cap.
    """

    runs: int
    caps: Array
    log_moments: Array
    beyond: Array
    infinite: float

    @classmethod
    def of(cls, parts: Parts, *, adding: bool, tail: float) -> "Scan":
        """Scan the composition; a tail of mass `tail` of each single run counts as infinite."""
        right = knots([worst for worst, _ in parts], tail, adding=adding)
        left = knots([worst for worst, _ in parts], tail, adding=not adding, damped=True)
        start = len(left)
        moments = np.zeros((len(_TILTS), len(right) + 1))
        log_none = np.zeros(len(right) + 1)
        for worst, times in parts:
            chords = chords_of(worst, right, left, adding=adding, upper=True)
            with np.errstate(divide="ignore"):
                logs = np.log(chords.masses) + _TILTS[:, None] * chords.losses
            capped = np.logaddexp.accumulate(logs, axis=1)[:, start:]
            with np.errstate(invalid="ignore"):
                moments += times * (capped + 2e-13 * (1 + np.abs(capped)))
            masses = np.append(chords.masses[start:], chords.infinite)
            over = np.cumsum(masses[::-1])[::-1][1:]
            with np.errstate(divide="ignore"):
                log_none += times * np.log1p(-np.minimum(over * (1 + 1e-12), 1.0))
        infinite = -math.expm1(float(log_none[-1]))
        runs = sum(times for _, times in parts)
        return cls(runs, np.append(0.0, right), moments, -np.expm1(log_none), infinite)

    def epsilon(self, delta: float) -> float:
        """An upper bound on ε at `delta`: the least Chernoff bound over tilts and caps.

        E (1 - e^(ε-L))₊ <= E e^(λ(L-ε)) λ^λ/(1+λ)^(1+λ), the conversion from Rényi divergences.
        """
        room = delta - self.beyond
        if not np.any(room > 0):
            return math.inf
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = self.log_moments, _CONVERSION[:, None], -np.log(room)
            rounding = 1e-13 * sum(np.abs(term) for term in terms)
            bounds = (sum(terms) + rounding) / _TILTS[:, None]
        least = float(np.nanmin(np.where(np.isnan(bounds) | (room <= 0), np.inf, bounds)))
        return max(0.0, least * (1 + 1e-12) if least < math.inf else least)

    def delta(self, epsilon: float) -> float:
        """An upper bound on δ at `epsilon`, by the same bounds."""
        exponents = self.log_moments + (_CONVERSION - _TILTS * epsilon)[:, None]
        bounds = self.beyond + np.exp(np.minimum(np.nan_to_num(exponents, nan=1.0), 1.0))
        return min(1.0, float(bounds.min()) * (1 + 1e-12))

    def cap(self, epsilon: float, delta: float) -> int:
        """The index of the least cap that costs a negligible part of `delta` near `epsilon`."""
        cost = (self.beyond - self.infinite) * np.exp(np.minimum(epsilon - self.caps, 0.0))
        return int(np.argmax(cost <= _CAP_COST * delta)) if delta > 0 else len(self.caps) - 1

    def saddle(self, epsilon: float, cap: int) -> tuple[float, float]:
        """The best tilt for `epsilon` under a cap, and the standard deviation of the tilted law."""
        column = self.log_moments[:, cap]
        best = int(np.argmin(np.nan_to_num(column - _TILTS * epsilon, nan=np.inf)))
        variances, _ = _curvature(column)
        variance = float(variances[min(max(best, 1), len(_TILTS) - 2) - 1])
        return float(_TILTS[best]), math.sqrt(max(variance, 0.0))

    def spread(self) -> float:
        """The standard deviation of the sum, at the least tilt where rounding leaves it visible."""
        variances, bends = _curvature(self.log_moments[:, -1])
        with np.errstate(invalid="ignore"):
            visible = np.nonzero(bends > _VISIBLE)[0]
        return math.sqrt(variances[visible[0]]) if len(visible) else 0.0


def _curvature(log_moments: Array) -> tuple[Array, Array]:
    """Second derivatives at the inner tilts, and the second differences they are computed from."""
    with np.errstate(invalid="ignore"):
        rises, steps = np.diff(log_moments), np.diff(_TILTS)
        bends = rises[1:] / steps[1:] * steps[:-1] - rises[:-1]
        return 2 * bends / (steps[:-1] * (steps[1:] + steps[:-1])), bends


_CONVERSION = _TILTS * np.log(_TILTS) - (1 + _TILTS) * np.log1p(_TILTS)


def knots(
    cases: Sequence[Dominating],
    tail: float,
    *,
    adding: bool,
    damped: bool = False,
    spacing: float = 0.05,
) -> Array:
    """Losses that are closely spaced on every scale, from a typical loss to the largest.

    Their distance is `spacing` times the loss, or times a typical loss where that is larger. It
    must not be smaller, because rounding errors of a profile are divided by it.
    """
    reach = max(worst.reach(tail, adding=adding, damped=damped) for worst in cases)
    typical = min(half_reach(worst, adding=adding) for worst in cases)
    steps = np.arange(1, math.ceil(math.asinh(reach / typical) / spacing))
    # One more point at the end: the profile must not fall over the last interval, or the error of
    # that fall would count as infinite loss.
    return np.append(typical * np.sinh(steps * spacing), [reach, reach * (1 + spacing)])


def half_reach(worst: Dominating, *, adding: bool) -> float:
    """The ε at which a profile has fallen halfway to its limit: the scale of a typical loss."""
    start = float(worst.profile(np.zeros(1), adding=adding)[0])
    return worst.reach((start - worst.limit(adding=adding)) / 2, adding=adding)
