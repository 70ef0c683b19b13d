"""Privacy units with several records, and the best of many candidates, in ball arithmetic.

**Groups.** Of Poisson-sampled Gaussian noise each of k records is in the sample with probability q,
so the noise N(0, 1) is moved by j/σ with a binomial probability. The ratio of the two densities
rises along the line, so the best event is a half-line; both sides of a narrow bracket of its end
bound the profile from above.

**Selections.** Let h be the profile of a candidate, K the number of candidates, f(u) = E u^K, and
T(u) the largest e^-t (u - h(t)). If Ψ(x) = c₀ + Σ λₖ (xₖ - x)₊ is at least f'(u) - f'(T(u)) x for
all u in [0, 1] and x >= 0, the profile of the selection at ε >= 0 is at most c₀ + Σ λₖ xₖ h(ε - log
xₖ): a proof is in `prudent.accounting.losses.repeated_selection`. Here Ψ joins, by chords, upper
bounds of the lines at a few x, for u in many small intervals; what is rounded is rounded away from
the claim.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import attrs
import numpy as np
from flint import arb

from prudent_verify.events import Event, Relation, UnknownEventError
from prudent_verify.laws import upper
from prudent_verify.pairs import least

_RANKS = 8000
_LOSSES = 1500
_BENDS = 800
_REFINED = 4
_MOST = 10**4  # candidates
_ROUNDING = 1e-11  # relative, above the errors of sums and of powers up to the number of candidates
_REACH = 60.0

_STEPS = 90  # bisections
_FAR = 1e6  # beyond it, no ball of a tail is above zero

_Array = np.ndarray[tuple[int], np.dtype[np.float64]]
_Law = list[tuple[arb, arb]]


def sampled_group(sigma: arb, rate: arb, relation: Relation) -> Callable[..., arb]:
    """The profile for all records of a privacy unit, removed, added or replaced."""
    records = relation.records
    weights = [
        math.comb(records, j) * rate**j * (1 - rate) ** (records - j) for j in range(records + 1)
    ]
    present = [(weight, arb(j) / sigma) for j, weight in enumerate(weights)]
    absent = [(arb(1), arb(0))]
    if relation.adjacency == "replace-one":
        absent = [(weight, -arb(j) / sigma) for j, weight in enumerate(weights)]

    def profile(epsilon: arb, *, adding: bool) -> arb:
        # Mirrored, the swapped pair has its largest losses on the right as well.
        first, second = (_mirrored(absent), _mirrored(present)) if adding else (present, absent)
        low, high = _bracket(first, second, epsilon)
        found = _above(first, low) - epsilon.exp() * _above(second, high)
        return found.nonnegative_part().max(least(epsilon))

    return profile


def _mirrored(law: _Law) -> _Law:
    return [(weight, -mean) for weight, mean in law]


def _above(law: _Law, at: float) -> arb:
    tails = (weight * ((at - mean) / arb(2).sqrt()).erfc() / 2 for weight, mean in law)
    return sum(tails, arb(0))


def _log_density(law: _Law, at: float) -> arb:
    bells = (weight * (-((at - mean) ** 2) / 2).exp() for weight, mean in law)
    return sum(bells, arb(0)).log()


def _bracket(first: _Law, second: _Law, epsilon: arb) -> tuple[float, float]:
    """Two points: the log-ratio of the densities is below ε at the first, above it at the second.

    Each sign is that of a ball, so it is certain. Where none is, an end of the line serves.
    """

    def excess(at: float) -> arb:
        return _log_density(first, at) - _log_density(second, at) - epsilon

    reach = 60.0 + max(abs(float(mean)) for _, mean in (*first, *second))
    low, high = -_FAR, _FAR
    if excess(-reach) > 0:
        return low, -reach
    if excess(reach) < 0:
        return reach, high
    low, high = -reach, reach
    for _ in range(_STEPS):
        middle = low + (high - low) * 0.4871  # not one half: at zero signs are often uncertain
        sign = excess(middle)
        if sign < 0:
            low = middle
        elif sign > 0:
            high = middle
        else:
            break
    return low, high


@attrs.frozen
class Selection:
    """The distribution of the number of candidates."""

    log_slope: Callable[[_Array], _Array]  # log f'(u), at ranks u

    @classmethod
    def of(cls, event: Event) -> "Selection":
        """The selection of an event."""
        if event.kind == "BinomialSelectionDpEvent":
            draws, probability = event["draws"], float(event["probability"])
            if draws > _MOST:
                raise UnknownEventError("Expected a binomial number of candidates.")
            first = math.log(draws * probability)

            def binomial(ranks: _Array) -> _Array:
                logs = np.log(np.maximum(1 - probability * (1 - ranks), 1e-300))
                return np.asarray(first + (draws - 1) * logs)

            return cls(binomial)
        mean, shape = float(event["mean"]), event["shape"]
        if not 1 <= mean <= _MOST:
            raise UnknownEventError("Expected between 1 and 10,000 candidates on average.")
        first = math.log(mean)
        if shape is None:  # a Poisson number
            return cls(lambda ranks: np.asarray(first - mean * (1 - ranks)))
        if not shape <= _MOST:
            raise UnknownEventError("Expected a smaller shape of the number of candidates.")
        base = _halting(mean, float(shape))

        def negative_binomial(ranks: _Array) -> _Array:
            rest = base + (1 - base) * (1 - ranks)
            return np.asarray(first + (shape + 1) * (math.log(base) - np.log(rest)))

        return cls(negative_binomial)

    def pure(self, candidate: Callable[..., arb], own: Fraction) -> Fraction:
        """A bound on the pure ε of the selection, from the profile and the pure ε of a candidate.

        With x at least every f'(u)/f'(T(u)), one chord to (x, 0) is a Ψ: log x is added to ε.
        """
        found = 0.0
        for adding in (False, True):
            ranks = self._ranks()
            for _ in range(_REFINED):  # the intervals with the largest bounds, again and again
                lows = self.log_slope(_after(candidate, ranks[:-1], adding=adding, most=float(own)))
                bounds = self.log_slope(ranks[1:]) - lows
                place = int(np.argmax(bounds))
                near = ranks[max(place - 8, 0) : place + 10]
                ranks = np.unique(np.append(ranks, np.linspace(near[0], near[-1], _LOSSES)))
            found = float(np.maximum(found, np.max(bounds)))  # NaN if either is
        return own + Fraction(found * (1 + _ROUNDING) + _ROUNDING)

    def profile(self, candidate: Callable[..., arb]) -> Callable[..., arb]:
        """The profile of the selection, from that of a candidate."""
        mixtures = {adding: self._mixture(candidate, adding=adding) for adding in (False, True)}

        def positive_part(epsilon: arb, *, adding: bool) -> arb:
            first, terms = mixtures[adding]
            parts = (mass * candidate(epsilon - shift, adding=adding) for mass, shift in terms)
            return sum(parts, first).min(arb(1))

        def profile(epsilon: arb, *, adding: bool) -> arb:
            if not epsilon < 0:
                return positive_part(abs(epsilon), adding=adding)
            # The difference of A and e^ε A' is, but for 1 - e^ε, that of A' and e^-ε A.
            back = positive_part(-epsilon, adding=not adding)
            return 1 - epsilon.exp() * (1 - back)

        return profile

    def _mixture(
        self, candidate: Callable[..., arb], *, adding: bool
    ) -> tuple[arb, list[tuple[arb, arb]]]:
        """c₀, and the terms λₖ xₖ and log xₖ."""
        ranks = self._ranks()
        highs = np.exp(self.log_slope(ranks[1:])) * (1 + _ROUNDING)
        slopes = self.log_slope(_after(candidate, ranks[:-1], adding=adding))
        lows = np.where(slopes <= -600, 0.0, np.exp(np.maximum(slopes, -600.0))) * (1 - _ROUNDING)
        most = float(np.max(highs / np.maximum(lows, 1e-12)))
        places = np.append(0.0, np.geomspace(math.exp(-3.0), most, _BENDS))
        highs, lows = highs * (1 + _ROUNDING), lows * (1 - _ROUNDING)
        values = [arb(max(float(np.max(highs - lows * place)), 0.0)) for place in places]
        exact = [arb(float(place)) for place in places]
        ends = zip(pairwise(values), pairwise(exact), strict=True)
        rises = [*((b - a) / (d - c) for (a, b), (c, d) in ends), arb(0)]
        bends = ((after - before).nonnegative_part() for before, after in pairwise(rises))
        terms = [(bend * at, at.log()) for bend, at in zip(bends, exact[1:], strict=True)]
        return values[-1], terms

    def _ranks(self) -> _Array:
        """Ranks from 0 to 1 between which log f' changes little."""
        even = np.linspace(0.0, 1.0, _RANKS)
        near = 1 - np.geomspace(1e-15, 1.0, _RANKS)
        known = np.unique(np.concatenate([even, near, [0.0, 1.0]]))
        slopes = self.log_slope(known)
        levels = np.linspace(max(slopes[0], slopes[-1] - 50), slopes[-1], _RANKS)
        return np.unique(np.concatenate([known, np.interp(levels, slopes, known)]))


def _after(
    candidate: Callable[..., arb], ranks: _Array, *, adding: bool, most: float = 1.0
) -> _Array:
    """T(u), rounded down: over some t only, which makes it no larger; most of them below `most`."""
    half = np.linspace(0, most, _LOSSES // 3)
    half = np.append(half, np.geomspace(most, max(_REACH, 2 * most), _LOSSES // 6))
    losses = np.unique(np.concatenate([-half, half]))
    deltas = np.array([upper(candidate(arb(float(t)), adding=adding)) for t in losses])
    found = np.zeros_like(ranks)
    for t, delta in zip(losses, deltas, strict=True):
        np.maximum(found, math.exp(-t) * (ranks - delta) * (1 - _ROUNDING), out=found)
    return np.clip(found - 4e-16, 0.0, 1.0)


def _halting(mean: float, shape: float) -> float:
    """γ of a truncated negative binomial number with this mean, η (1/γ - 1)/(1 - γ^η)."""
    if mean == 1 or shape == 1:
        return 1 / mean
    low, high = -60.0, -1e-17
    for _ in range(200):
        middle = (low + high) / 2
        rise = math.expm1(-middle)
        found = rise / -middle if shape == 0 else shape * rise / -math.expm1(shape * middle)
        low, high = (middle, high) if found > mean else (low, middle)
    return math.exp(high)
