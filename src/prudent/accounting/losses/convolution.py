"""Sums of independent privacy losses on a lattice, by a tilted Fourier transform with error bounds.

A distribution p on multiples of h is *tilted* to p̃ₖ = pₖ e^(λkh)/S, with S about the sum of pₖ
e^(λkh). The tilted distribution of a sum of T losses is the T-fold convolution of p̃, so tilted
distributions can be convolved and the tilt undone at the end. With λ near the saddle point of the
requested δ, the losses that make up δ carry most of the tilted mass, and rounding errors are small
*relative to δ*, however small δ is.

Guarantee:
    `convolved(parts, tilt, upper=True)` has at least the mass of the exact convolution at each loss
    of its window, and at infinity at least the mass that lies above the window. With `upper=False`
    it has at most the exact mass. Let u be the unit roundoff, N a power of two, and L = log₂ N.
    Every step below is a bound, not a first-order estimate, up to a factor 1 + 1e-3 that the
    constants absorb.

    1. *Transform.* The transform of length N is L levels of butterflies. A level multiplies by
       twiddle factors known to 4u in modulus (a complex product adds 2√2 u) and adds (u); an
       output is thus a sum over inputs of input × phase × L factors of modulus within 1 ± 8u, so
       |ẑⱼ - zⱼ| <= 10 L u ‖p̃‖₁ =: η‖p̃‖₁, for every j (compare Higham 2002, Theorem 24.2, which
       bounds the norm). Radix 4 is two such levels with fewer products. Sizes that are not powers
       of two use other butterflies, so they are not used.
    2. *Powers.* With wᵢⱼ = |ẑᵢⱼ| + ηᵢ >= |zᵢⱼ| and Wⱼ = Πᵢ wᵢⱼ^Tᵢ, the mean value theorem gives
       |Πẑᵢⱼ^Tᵢ - Πzᵢⱼ^Tᵢ| <= Wⱼ Σᵢ Tᵢ ηᵢ/wᵢⱼ. Computing the powers by repeated products adds a
       relative error of at most √5 u a product, Tᵢ products in effect: 3u Σᵢ Tᵢ Wⱼ.
       A frequency whose Wⱼ is negligible is set to zero, with an error of at most Wⱼ.
    3. *Inverse.* The error of each element is at most the mean over frequencies of those errors,
       plus (1.) η times the mean of the moduli.
    4. *Wrapping.* The transform is periodic, so mass outside the window of N losses is added
       inside. For an upper bound that is harmless. The mass above the window is bounded by
       Chernoff and moved to infinity. The mass below is not read (`LossTable.profile`), except
       without a tilt, where it is moved up to the least loss. For a lower bound, a bound on all
       mass that can have wrapped is subtracted everywhere.
"""

import math
from collections.abc import Sequence
from functools import cached_property

import attrs
import numpy as np
from numpy.typing import NDArray

from prudent.accounting._numeric import log_sum
from prudent.accounting.losses.loss_tables import (
    UNIT,
    Array,
    Chords,
    LossTable,
    Profile,
    evaluation_error,
    joined,
    lowered,
)
from prudent.accounting.losses.pairs import Dominating

LARGEST_SIZE = 2**22  # largest number of points of a window
_OUTSIDE = 1e-14  # tilted mass that may lie outside a window on each side
_BINS = 2048  # number of bins to which distributions are thinned for Chernoff bounds
_NEGLIGIBLE = -90.0  # powers with a smaller logarithm are replaced by zero
_TILTS = np.geomspace(1e-5, 1e9, 180)
_CONVERSION = _TILTS * np.log(_TILTS) - (1 + _TILTS) * np.log1p(_TILTS)
_CAP_COST = 1e-6  # largest fraction of δ that a cap may cost
_VISIBLE = 1e-9  # second difference of log-moments that rounding errors cannot imitate

Parts = Sequence[tuple[Dominating, int]]


class WindowError(ValueError):
    """The window would need too many points; `factor` says how much coarser the grid must be."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        super().__init__(f"Expected a grid {factor:.3g} times coarser.")


@attrs.frozen(slots=False, eq=False)
class LatticeDistribution:
    """A distribution of losses on multiples of an interval, run `times` times."""

    interval: float  # distance between neighbouring losses
    first: int  # the least loss, in intervals
    masses: Array  # the mass at each loss from `first` on
    infinite: float  # mass at infinite loss
    doubt: Array  # bound on the error of each mass; zeros for a distribution that was rounded up
    times: int = 1  # the number of runs

    @classmethod
    def of(cls, chords: Chords, interval: float, first: int, times: int) -> "LatticeDistribution":
        """That of chords whose losses are the multiples of `interval` from `first` on."""
        return cls(interval, first, chords.masses, chords.infinite, chords.doubt, times)

    @property
    def losses(self) -> Array:
        """The finite losses."""
        return np.arange(self.first, self.first + len(self.masses), dtype=float) * self.interval

    @cached_property
    def thinned(self) -> tuple[Array, Array]:
        """The distribution on at most `_BINS` + 1 points, with no smaller exponential moments.

        Exponentials are convex, so moving the mass of an interval to its ends, with the same mean,
        can only raise their expectation.
        """
        width = -(-len(self.masses) // _BINS)
        starts = np.arange(0, len(self.masses), width)
        offset = self.masses * (np.arange(len(self.masses)) % width / width)
        onwards = np.add.reduceat(offset, starts)
        lumps = np.append(np.add.reduceat(self.masses, starts) - onwards, 0.0)
        lumps[1:] += onwards
        losses = np.arange(len(lumps), dtype=np.float64) * width + self.first
        return losses * self.interval, np.maximum(lumps, 0.0)


def log_moments(losses: Array, masses: Array, rates: Array) -> Array:
    """The logarithm of Σ masses exp(rate losses) for each rate; -∞ if all masses are zero."""
    with np.errstate(divide="ignore"):
        return log_sum(rates[:, None] * losses[None, :] + np.log(masses)[None, :])


def total_log_moments(terms: Sequence[LatticeDistribution], rates: Array) -> Array:
    """Upper bounds on log E exp(rate total loss), without infinite losses."""
    return np.asarray(sum(term.times * log_moments(*term.thinned, rates) for term in terms))


def convolved(terms: Sequence[LatticeDistribution], tilt: float, *, upper: bool) -> LossTable:
    """Return the distribution of the sum of all losses, on a window around the tilted mean.

    Args:
        terms: The distributions to compose, each with its number of runs, on one lattice.
        tilt: λ >= 0. Any value is valid; the saddle point of the target makes the bound tight.
        upper: Whether the result dominates the exact distribution; otherwise the exact distribution
            dominates it.

    Raises:
        WindowError: If the window would have more than `LARGEST_SIZE` points.
    """
    interval = terms[0].interval
    infinite = any_infinite([(term.infinite, term.times) for term in terms])
    if not all(term.masses.any() for term in terms):  # all mass is at infinity
        return LossTable(np.zeros(1), np.zeros(1), infinite, upper=upper)
    tilted = [_tilted(term, tilt, upper=upper) for term in terms]
    log_scale = sum(term.times * scale for term, (_, _, scale) in zip(terms, tilted, strict=True))
    window = LossWindow.of(terms, tilt, log_scale)
    size = window.size
    if size > LARGEST_SIZE:
        raise WindowError(2 * size / LARGEST_SIZE)
    power, error = _power(terms, [(m, d) for m, d, _ in tilted], size)
    # Element i of the transform belongs to the loss times·first + i, modulo the period.
    offset = sum(term.times * term.first for term in terms)
    masses = np.roll(power, (offset - window.least) % size)
    losses = np.arange(window.least, window.least + size, dtype=float) * interval
    if upper:
        infinite = infinite * (1 + 4 * UNIT) + math.exp(min(window.log_above, 0.0))
        masses = np.maximum(masses, 0.0) + error
        if tilt == 0:
            masses[0] += window.outside
    else:
        infinite *= 1 - 4 * UNIT
        masses = np.maximum(masses - error - window.outside, 0.0)
    return LossTable(losses, masses, infinite, tilt, log_scale, upper)


def any_infinite(masses: Sequence[tuple[float, int]]) -> float:
    """The probability that some independent loss is infinite, from that of one and its runs."""
    if any(mass >= 1 for mass, _ in masses):
        return 1.0
    return -math.expm1(sum(times * math.log1p(-mass) for mass, times in masses))


@attrs.frozen
class LossWindow:
    """A range of the lattice that holds nearly all mass of a sum of losses."""

    least: int  # the least loss in it, in intervals
    size: int  # the number of losses in it, a power of two
    log_above: float  # logarithm of a bound on the mass above it
    outside: float  # bound on the tilted mass outside it

    @classmethod
    def of(
        cls, terms: Sequence[LatticeDistribution], tilt: float, log_scale: float
    ) -> "LossWindow":
        """The window with at most `_OUTSIDE` tilted mass beyond each end, by Chernoff bounds."""
        interval = terms[0].interval
        thin = [(term.times, *term.thinned) for term in terms]
        first = sum(term.times * term.first for term in terms)
        last = sum(term.times * (term.first + len(term.masses) - 1) for term in terms)
        widest = max(float(x[-1] - x[0]) for _, x, _ in thin) or interval
        runs = sum(term.times for term in terms)
        # Rates for all widths, from the widest possible sum to one within a point of the lattice.
        rates = np.geomspace(1 / (widest * math.sqrt(runs)), 40 / interval, 64)

        def moments(tilts: Array) -> Array:
            largest = max(float(np.abs(x).max()) for _, x, _ in thin)
            rounding = 0.01 + runs * (1e-12 + 4 * UNIT * np.abs(tilts) * largest)
            return np.asarray(rounding + sum(t * log_moments(x, m, tilts) for t, x, m in thin))

        below, above = moments(tilt - rates) - log_scale, moments(tilt + rates)
        log_outside = math.log(_OUTSIDE)
        least = max(first, math.floor(np.nanmax((log_outside - below) / rates) / interval))
        top = np.nanmin((above - log_scale - log_outside) / rates)
        greatest = max(least, min(last, math.ceil(top / interval)))
        size = max(2 ** math.ceil(math.log2(greatest - least + 1)), 2)
        log_above = -math.inf
        if least + size <= last:
            log_above = float(np.nanmin(above - (tilt + rates) * (least + size) * interval))
        return cls(least, size, log_above, 2 * _OUTSIDE)


def _tilted(term: LatticeDistribution, tilt: float, *, upper: bool) -> tuple[Array, float, float]:
    """Tilted masses, the sum of their doubts, and log S. S is only a unit: any value is exact."""
    exponents = tilt * term.losses
    with np.errstate(divide="ignore"):
        logs = np.log(term.masses) + exponents
    peak = float(logs.max())
    if not math.isfinite(peak):
        return np.zeros_like(term.masses), 0.0, 0.0
    log_scale = peak + math.log(float(np.exp(logs - peak).sum()))
    masses = term.masses * np.exp(np.minimum(exponents - log_scale, 700.0))
    # The error of the argument, 2u times its terms, is the relative error of the exponential.
    relative = UNIT * (2 * np.abs(exponents) + 2 * abs(log_scale) + 8)
    if upper:
        return masses * (1 + relative), 0.0, log_scale
    with np.errstate(over="ignore"):
        doubts = term.doubt * np.exp(np.minimum(exponents - log_scale, 700.0))
    return masses, float(np.sum(doubts + masses * relative)), log_scale


def _power(
    terms: Sequence[LatticeDistribution], tilted: Sequence[tuple[Array, float]], size: int
) -> tuple[Array, float]:
    """Return the cyclic convolution of all tilted masses, and a bound on each element's error."""
    from scipy import fft

    eta = 10 * math.log2(size) * UNIT
    spectra, radii, log_total = [], [], np.zeros(size // 2 + 1)
    for term, (masses, doubt) in zip(terms, tilted, strict=True):
        # Folded modulo the size, masses have the transform of all of them at `size` points.
        rows = -(-len(masses) // size)  # the most that are added in one place
        folded = masses
        if rows > 1:
            folded = np.pad(masses, (0, rows * size - len(masses))).reshape(rows, size).sum(axis=0)
        spectrum = fft.rfft(folded, size)
        radius = (eta + rows * UNIT) * float(masses.sum()) * 1.001 + doubt
        modulus = np.abs(spectrum) * (1 + 4 * UNIT) + radius
        log_total += term.times * np.log(modulus)
        spectra.append(spectrum)
        radii.append((term.times, radius, modulus))
    kept = log_total > _NEGLIGIBLE
    weights = np.full(size // 2 + 1, 2.0)
    weights[[0, -1]] = 1.0
    product = np.zeros(size // 2 + 1, dtype=np.complex128)
    product[kept] = 1.0
    errors = np.zeros(int(kept.sum()))
    for spectrum, (times, radius, modulus) in zip(spectra, radii, strict=True):
        product[kept] *= _integer_power(spectrum[kept], times)
        errors += times * (radius / modulus[kept] + 3 * UNIT) + 3 * UNIT
    # T times a logarithm has an error of a few u T times its size; the factor covers the resulting
    # relative error of the exponential.
    runs = sum(term.times for term in terms)
    bounds = np.exp(log_total[kept]) * (1 + 1e-3 + 8 * UNIT * runs)
    dropped = float(np.count_nonzero(~kept)) * 2 * math.exp(_NEGLIGIBLE) * 1.01
    error = float(weights[kept] @ (bounds * np.minimum(errors, 2.0))) + dropped
    error += eta * 1.001 * (float(weights[kept] @ bounds) + dropped)
    return fft.irfft(product, size), error / size * (1 + 1e-3)


def _integer_power(base: NDArray[np.complex128], exponent: int) -> NDArray[np.complex128]:
    """Powers by repeated squaring; its rounding error is that of `exponent` products."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base
        exponent >>= 1
        if exponent:
            base = base * base
    return result


def chords_of(worst: Dominating, right: Array, left: Array, *, adding: bool, upper: bool) -> Chords:
    """The losses of one direction at -`left` (decreasing), 0 and `right` (increasing)."""
    here, there = np.append(0.0, right), np.append(0.0, left)
    above = here, worst.profile(here, adding=adding)
    mirrored = there, worst.profile(there, adding=not adding)
    return mirrored_chords(above, mirrored, worst.infinite_mass(adding=adding), upper=upper)


def mirrored_chords(right: Profile, left: Profile, limit: float, *, upper: bool) -> Chords:
    """As `chords_of`, from the profiles of this direction and of the opposite one.

    Chords are above the profile (`upper`) or below it, its evaluation error included.
    """
    losses = np.append(-left[0][:0:-1], right[0])
    zero = len(left[0]) - 1
    # Left of zero a profile is 1 - e^ε plus e^ε times that of the opposite direction at -ε.
    excess = np.append(left[1][:0:-1] * np.exp(losses[:zero]), np.minimum.accumulate(right[1]))
    error = evaluation_error(excess, losses)
    if upper:
        return joined(excess + error, zero, losses)
    least = -np.expm1(np.minimum(losses, 0.0))
    floor = np.maximum(limit - least, 0.0)
    lower = lowered(np.maximum(excess - error, floor), zero, losses, limit)
    return joined(lower, zero, losses, upper=False)


@attrs.frozen
class Scan:
    """Chernoff bounds of one direction of a composition: they locate the losses that decide δ.

    A cap replaces every single loss beyond it by infinity, which can only overstate δ. Caps make
    rare, very large losses cheap to handle: a loss c in one run counts almost fully towards δ(ε)
    wherever c is well above ε, so treating it as infinite costs at most a factor e^(ε-c) of its
    mass. (The factor follows from E e^-loss <= 1 for the other losses, under the first
    distribution.)
    """

    runs: int  # the number of losses in the sum
    caps: Array  # the losses at which single losses may be capped
    log_moments: Array  # upper bounds on log E e^(tilt total), for each tilt (row) and cap (column)
    beyond: Array  # probability that some loss exceeds the cap, infinite ones included
    infinite: float  # probability that some loss is infinite without a cap
    tail: float  # the mass of each single run that counts as infinite

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
        return cls(runs, np.append(0.0, right), moments, -np.expm1(log_none), infinite, tail)

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
        """The best tilt for `epsilon` under a cap, and the standard deviation of the tilted sum."""
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
