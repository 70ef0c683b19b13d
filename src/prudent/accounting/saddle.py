"""Where a composition's δ is decided: Chernoff bounds over all tilts and caps at once.

A cap sends every single loss beyond it to infinity, which can only overstate δ. It is what makes
rare, enormous losses affordable: a loss c in one run counts almost fully towards δ(ε) wherever c is
well above ε, so calling it infinite costs at most a factor e^(ε-c) of its mass. (The others' losses
have E e^-loss <= 1 under the first law, whence the factor.)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prudent.accounting.pairs import Dominating
from prudent.accounting.tables import Array, Chords, evaluation_error, joined, lowered

_TILTS = np.geomspace(1e-5, 1e9, 180)
_CAP_COST = 1e-6  # of δ, that a cap may cost

Parts = Sequence[tuple[Dominating, int]]


def chords_of(worst: Dominating, right: Array, left: Array, *, adding: bool, upper: bool) -> Chords:
    """The law of losses of one direction at -`left` (decreasing), 0 and `right` (increasing)."""
    losses = np.concatenate([-left[::-1], [0.0], right])
    zero = len(left)
    above = worst.profile(losses[zero:], adding=adding)
    # Left of zero a profile is 1 - e^ε and e^ε times the opposite direction's at -ε.
    mirrored = worst.profile(left, adding=not adding)[::-1] * np.exp(losses[:zero])
    excess = np.append(mirrored, np.minimum.accumulate(above))
    return bounded(excess, zero, losses, worst.infinite_mass(adding=adding), upper=upper)


def bounded(excess: Array, zero: int, losses: Array, limit: float, *, upper: bool) -> Chords:
    """Chords on their side of a profile, the error of its evaluation included."""
    error = evaluation_error(excess, losses)
    if upper:
        return joined(excess + error, zero, losses)
    least = -np.expm1(np.minimum(losses, 0.0))
    floor = np.maximum(limit - least, 0.0)
    lower = lowered(np.maximum(excess - error, floor), zero, losses, limit)
    return joined(lower, zero, losses, upper=False)


@dataclass(frozen=True)
class Scan:
    """Moments of one direction of a composition, for every tilt and cap.

    Attributes:
        runs: How many losses are added.
        caps: Losses at which a single one may be capped.
        log_moments: log E e^(tilt total), for each tilt (row) and cap (column); an upper bound.
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
        """Scans the composition, down to a tail of single runs that counts as infinite."""
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
        """An ε that `delta` affords: the least Chernoff bound over tilts and caps.

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
        """A δ that `epsilon` affords, by the same bounds."""
        exponents = self.log_moments + (_CONVERSION - _TILTS * epsilon)[:, None]
        bounds = self.beyond + np.exp(np.minimum(np.nan_to_num(exponents, nan=1.0), 1.0))
        return min(1.0, float(bounds.min()) * (1 + 1e-12))

    def cap(self, epsilon: float, delta: float) -> int:
        """The least cap (its index) that costs next to nothing of `delta` about `epsilon`."""
        cost = (self.beyond - self.infinite) * np.exp(np.minimum(epsilon - self.caps, 0.0))
        return int(np.argmax(cost <= _CAP_COST * delta)) if delta > 0 else len(self.caps) - 1

    def saddle(self, epsilon: float, cap: int) -> tuple[float, float]:
        """The tilt that is best for `epsilon` under a cap, and the spread of the tilted law."""
        column = self.log_moments[:, cap]
        best = int(np.argmin(np.nan_to_num(column - _TILTS * epsilon, nan=np.inf)))
        middle = min(max(best, 1), len(_TILTS) - 2)
        tilts, values = _TILTS[middle - 1 : middle + 2], column[middle - 1 : middle + 2]
        slopes = np.diff(values) / np.diff(tilts)
        variance = 2 * (slopes[1] - slopes[0]) / (tilts[2] - tilts[0])
        return float(_TILTS[best]), math.sqrt(max(float(variance), 0.0))


_CONVERSION = _TILTS * np.log(_TILTS) - (1 + _TILTS) * np.log1p(_TILTS)


def knots(
    cases: Sequence[Dominating],
    tail: float,
    *,
    adding: bool,
    damped: bool = False,
    spacing: float = 0.05,
) -> Array:
    """Losses that are close together on every scale, from that of a typical loss to the largest.

    Their distance is `spacing` times the loss, or times a typical one where that is larger.
    Rounding of a profile counts over the distance of two losses, so they must not come closer.
    """
    reach = max(worst.reach(tail, adding=adding, damped=damped) for worst in cases)
    typical = min(half_reach(worst, adding=adding) for worst in cases)
    steps = np.arange(1, math.ceil(math.asinh(reach / typical) / spacing))
    # One more at the end: over the last stretch nothing may fall, or its error counts as infinite.
    return np.append(typical * np.sinh(steps * spacing), [reach, reach * (1 + spacing)])


def half_reach(worst: Dominating, *, adding: bool) -> float:
    """Where a profile has fallen half the way to its limit: the scale of a typical loss."""
    start = float(worst.profile(np.zeros(1), adding=adding)[0])
    return worst.reach((start - worst.limit(adding=adding)) / 2, adding=adding)
