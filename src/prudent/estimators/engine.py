"""The one engine of private sums and quantiles under all models.

**Exact sums.** A record becomes a vector of whole numbers: clipped, and rounded to a public grid.
Whole numbers below 2**53 are exact in a double, so sums of them, and of products of two of them,
are exact however the rows are ordered, cut into batches and handed to BLAS. What a record adds is
a function of that record and of public values, bit for bit. For this to hold, what comes before
the rounding must be so as well: operations on single numbers are (`+`, `*`, `sqrt`, comparisons);
a matrix product of doubles is not, because its rounding depends on where a row lies in a batch.
`product` multiplies whole numbers by a matrix rounded to whole numbers, and is exact.

**Noise.** A Gaussian rounded to whole numbers and added to a sum of whole numbers is
post-processing of the Gaussian mechanism (`prudent.release.noise`), whose sensitivity is the
largest length of a record's vector. That length is checked in whole numbers, record by record: a
vector that is too long after all is replaced by zero, so the sensitivity never rests on rounding.

**Second moments.** For a vector v, the upper triangle of v vᵀ with entries off the diagonal times
√2 has the length |v|². So noise for a sensitivity of |v|² on the diagonal, and 1/√2 of it off the
diagonal, releases all of it.

**Quantiles.** Those of a column are chosen among doubles of 20 bits (`CoarseMeasure`), those
of a computed length on a public ladder of 833 values, where ties cost little. When a record is
added, the distance |rank - p n| changes by at most max(p, 1-p) either way: the range is twice that.

**Shares.** A model divides its budget in fractions of μ², calibrated together by the accountant.

A model asks for choices by the exponential mechanism and for sums with Gaussian noise. A choice of
bounded range ε₀ costs about as much as a Gaussian release of μ = ε₀/2, and the squares of μ add up.
So each part gets a fraction of μ². One number, the total μ, is then solved for with the event of
all parts together; the fractions decide what the model is good at, and never what it costs.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Protocol

import attrs
import dp_accounting as dp
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent.accounting.calibration import Search, solve
from prudent.accounting.events import ExponentialMechanismDpEvent
from prudent.accounting.losses.moments import gaussian_delta
from prudent.estimators.rows import Rows
from prudent.release.exponential.measure import CoarseMeasure, Decay, choose, rate
from prudent.release.exponential.quantile import ExponentialQuantile, Ranked
from prudent.release.lattice import FloatArray, IntArray
from prudent.release.noise import SLACK, Distribution, Noise

SMALLEST_EPSILON, LARGEST_EPSILON = 1e-2, 50.0
"""Limits of the ε of a model."""

LARGEST_MULTIPLIER = 2.0**15
"""Largest noise multiplier of a sum, at which its noise still fits the source of randomness."""

_LEAST_CHOICE = 2e-4  # ε of a private quantile, which reads more records with a smaller one
_SEARCH_FACTOR = 50.0


@attrs.frozen
class BudgetPart:
    """Releases of one kind, which share a fraction of μ² equally."""

    share: float  # the fraction of μ²
    times: int = 1  # the number of releases; 0 means that this part is not used
    # Whether they are choices by the exponential mechanism; otherwise Gaussian sums.
    choice: bool = False
    # Whether a certificate names the noise of these sums, so that their event must show it.
    shown: bool = False

    def mu(self, total: float) -> float:
        """The μ of one release, given the total."""
        return total * math.sqrt(self.share / self.times)

    def event(self, total: float) -> dp.DpEvent:
        """The event of all releases of this part, given the total μ."""
        one = (
            ExponentialMechanismDpEvent(2 * self.mu(total))
            if self.choice
            else dp.GaussianDpEvent(1 / self.mu(total))
        )
        return one if self.times == 1 else dp.SelfComposedDpEvent(one, self.times)


def choices(share: float, times: int = 1) -> BudgetPart:
    """Choices by the exponential mechanism: private quantiles."""
    return BudgetPart(share, times, choice=True)


def sums(share: float, times: int = 1, *, shown: bool = False) -> BudgetPart:
    """Sums with Gaussian noise."""
    return BudgetPart(share, times, shown=shown)


@attrs.frozen
class Prices:
    """What each part of a model may spend.

    Guarantee:
        If each part is used at most as often as it says, the model has the privacy of `event`, and
        is (ε, δ)-DP for adding or removing one unit, which has at most so many records: a sum
        changes by as many times what a record adds, and so does the score of a choice.
    """

    epsilon: float  # ε of the model
    delta: float  # δ of the model
    parts: Mapping[str, BudgetPart]  # the parts by name; a part that is used 0 times is left out
    mu: float  # the total μ of the parts
    # Events of what else the model releases, at a price of its own.
    also: tuple[dp.DpEvent, ...] = ()
    records: int = 1  # of a unit, at most

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of the model."""
        return _event(tuple(self.parts.values()), self.mu, self.also)

    def choice_epsilon(self, name: str) -> float:
        """ε of one choice of a part, for a record."""
        return 2 * self.parts[name].mu(self.mu) / self.records

    def multiplier(self, name: str) -> float:
        """The noise multiplier of one sum of a part, for a record."""
        return self.records / self.parts[name].mu(self.mu)


def calibrate(
    epsilon: float,
    delta: float,
    parts: Mapping[str, BudgetPart],
    also: tuple[dp.DpEvent, ...] = (),
    records: int = 1,
) -> Prices:
    """Return the prices of the parts, as large as (epsilon, delta) allows.

    Raises:
        ArgumentError: if ε or δ is out of range, or ε is too small for so many parts.
    """
    epsilon = _validate.between(SMALLEST_EPSILON, LARGEST_EPSILON, epsilon=epsilon)
    delta = _validate.small_delta(1e-18, ends="[)", delta=delta)
    used = {name: part for name, part in parts.items() if part.times and part.share}
    total = math.fsum(part.share for part in used.values())
    used = {name: attrs.evolve(part, share=part.share / total) for name, part in used.items()}
    mu = _total_mu(epsilon, delta, tuple(used.values()), also)
    prices = Prices(epsilon, delta, used, mu, also, records)
    least = {True: _LEAST_CHOICE / 2, False: 1 / LARGEST_MULTIPLIER}
    if any(part.mu(mu) / records < least[part.choice] for part in used.values()):
        raise _validate.ArgumentError(
            "epsilon",
            "larger for a model of so many parts",
            got=epsilon,
            why="a part would get too little of it",
        )
    return prices


def _event(
    parts: tuple[BudgetPart, ...], mu: float, also: tuple[dp.DpEvent, ...] = ()
) -> dp.DpEvent:
    """The event of all parts; other Gaussian sums are one, whose μ² is the sum of theirs."""
    sums_share = math.fsum(part.share for part in parts if not (part.choice or part.shown))
    one = [BudgetPart(sums_share).event(mu)] if sums_share else []
    return dp.ComposedDpEvent([*(p.event(mu) for p in parts if p.choice or p.shown), *one, *also])


@functools.lru_cache(maxsize=256)
def _total_mu(
    epsilon: float, delta: float, parts: tuple[BudgetPart, ...], also: tuple[dp.DpEvent, ...]
) -> float:
    """The largest μ at which all parts together are (epsilon, delta)-DP, by the exact accountant.

    The search starts at the μ of a single Gaussian release, which is a few per cent too large.
    """
    guess = gaussian_mu(epsilon, delta) / 1.02
    noise = solve(
        lambda noise: _event(parts, 1 / noise, also),
        Search(safe=_SEARCH_FACTOR / guess, unsafe=1 / (_SEARCH_FACTOR * guess), guess=1 / guess),
        epsilon=epsilon * (1 - SLACK),
        delta=delta * (1 - SLACK),
        name="epsilon",
    )
    return 1 / noise


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The μ at which one Gaussian release is (epsilon, delta)-DP, to a few digits: a guess."""
    from scipy.optimize import brentq

    return float(
        brentq(lambda mu: float(gaussian_delta(epsilon, 1 / mu)) - delta, 1e-6, 100.0, xtol=1e-9)
    )


class Counted(Ranked, Protocol):
    """What cuts ask of a column."""

    def counts_below(self, edges: FloatArray) -> IntArray:
        """See `Column`."""
        ...


Map = Callable[[FloatArray], FloatArray]
"""A function of each row of a batch alone; see the module for which operations are."""

BITS = 16
"""The longest vector of a record has 2**BITS steps."""

LONGEST = 2**BITS
"""The length of the longest vector of a record, in steps."""

LADDER = 2.0 ** (np.arange(-40 * 8, 64 * 8 + 1) / 8)
"""The public values that a quantile of lengths may take."""

_MASSES = [2 ** (32 - max(0, abs(place // 8 - 40) - 4) // 2) for place in range(len(LADDER))]
"""Their masses before any data: half as much every second octave away from 1/16 and from 16.

Lengths are standardised, so one that is far away is a mistake, and with equal masses the hundreds
of values up there would make it a likely one.
"""

_EXACT = 2.0**52
_CACHED = 2**11  # rows whose vectors fit a processor's cache
_END = 2.0**64  # no double that a quantile may be is farther from zero
_LEAST_P = 10**6  # a probability is a multiple of one over this
_FAR = 21.0  # loss of log weight from which on all values weigh the same: a probability of 1e-9


def lengths(vectors: FloatArray) -> FloatArray:
    """The Euclidean length of each row, computed alike wherever the row lies."""
    squares = np.zeros(len(vectors))
    for place in range(vectors.shape[1]):
        squares += vectors[:, place] * vectors[:, place]
    return np.sqrt(squares)


def along(vectors: FloatArray, direction: FloatArray) -> FloatArray:
    """The product of each row with a released vector, computed alike wherever the row lies."""
    found = np.zeros(len(vectors))
    for place, number in enumerate(direction.tolist()):
        found += vectors[:, place] * number
    return found


def on_grid(vectors: FloatArray, radius: float) -> FloatArray:
    """Clip rows to a length and round them to whole numbers, `LONGEST` steps to a radius.

    Guarantee:
        The rows returned are whole numbers of at most 2**BITS in length, checked exactly; a row
        that holds a NaN becomes zero.
    """
    steps = vectors * (LONGEST / radius)
    room = LONGEST - math.sqrt(vectors.shape[1]) / 2 - 1  # rounding may lengthen a row
    longest = np.max(np.abs(steps), axis=1, initial=1.0)  # squares of huge numbers overflow
    size = lengths(steps / longest[:, None]) * longest
    whole = np.rint(steps * np.minimum(1.0, room / np.maximum(size, 1.0))[:, None])
    return np.where(lengths_within(whole, LONGEST)[:, None], whole, 0.0)


def lengths_within(whole: FloatArray, bound: int) -> npt.NDArray[np.bool_]:
    """Whether rows of whole numbers have at most a length; exact for a length below 2**26."""
    with np.errstate(invalid="ignore", over="ignore"):
        small = np.asarray((np.abs(whole) <= bound).all(axis=1))
        squares = np.where(small[:, None], whole, 0.0)
        return np.asarray(small & ((squares * squares).sum(axis=1) <= float(bound) ** 2))


def product(whole: FloatArray, matrix: FloatArray, bound: float) -> FloatArray:
    """Rows of whole numbers, at most `bound` long, times a public matrix that is rounded to fit."""
    largest = float(np.sqrt((matrix**2).sum(axis=0)).max(initial=0.0))
    if largest == 0:
        return np.zeros((len(whole), *matrix.shape[1:]))
    # Half a unit in each entry, from rounding, adds at most √m/2 to the length of a column.
    fits = _EXACT / bound - math.sqrt(len(matrix)) / 2 - 1
    exponent = math.floor(math.log2(fits / largest))
    return np.asarray(np.ldexp(whole @ np.rint(np.ldexp(matrix, exponent)), -exponent))


class SumEngine:
    """Answers what a model asks of its rows, within what was paid for.

    Every answer that a method returns has its noise already, and may be published.

    Guarantee:
        All answers together have the privacy of `prices.event`: a part that is asked more often
        than was paid for raises an error instead.
    """

    def __init__(
        self,
        rows: Rows,
        prices: Prices,
        noise: Noise,
        known: Mapping[int, tuple[float, float]] | None = None,
    ) -> None:
        """Ask these rows, at these prices, with noise from this source."""
        self.rows = rows
        self.known = {} if known is None else known
        self.prices = prices
        self._noise = noise
        self._used: Counter[str] = Counter()

    def _spend(self, name: str, *, choice: bool) -> float:
        """Count one use of a part, and return its ε if it is a choice, its multiplier if a sum."""
        part = self.prices.parts[name]
        self._used[name] += 1
        if self._used[name] > part.times or part.choice != choice:
            raise RuntimeError(f"{name} was not paid for {self._used[name]} times.")
        return self.prices.choice_epsilon(name) if choice else self.prices.multiplier(name)

    def deviation(self, name: str) -> float:
        """The standard deviation of the noise of a sum to which a record adds a length of 1."""
        return self.prices.multiplier(name)

    def count(self, name: str = "count") -> float:
        """Release the number of rows."""
        rows = sum(len(batch) for batch in self._batches(1))
        return float(self._noisy([rows], self._spend(name, choice=False), 1.0)[0])

    def quantile(self, name: str, place: int, p: float) -> float:
        """Release a quantile of a column by the exponential mechanism."""
        epsilon = self._spend(name, choice=True)
        mechanism = ExponentialQuantile(_fraction(p), epsilon, CoarseMeasure(), interval_share=0.0)
        return mechanism.release(self.rows.column(place), self._noise).value

    def cuts(
        self,
        name: str,
        column: Counted,
        levels: int,
        ends: tuple[float, float] = (-_END, _END),
        outer: int = 0,
    ) -> FloatArray:
        """Release values that cut a column into 2**levels parts of about equal size, ascending.

        They lie between public or released ends, which have all of the column between them. Each
        level halves all parts of the one before; `outer` more halve the outermost two parts alone.
        Parts are disjoint, and one record is in one of them, so a level costs as much as a single
        choice: levels + outer choices in all.
        """
        found: list[float] = []
        for level in range(levels + outer):
            epsilon = self._spend(name, choice=True)
            ranks = [0, *column.counts_below(np.array(found)).tolist(), column.count()]
            parts = [*zip(pairwise([ends[0], *found, ends[1]]), pairwise(ranks), strict=True)]
            if level >= levels and len(parts) > 1:
                parts = [parts[0], parts[-1]]
            middles = [
                self._between(_ColumnPart(column, *between), Fraction(1, 2), epsilon, within)
                for within, between in parts
            ]
            found = sorted([*found, *middles])
        return np.array(found)

    def _between(
        self, column: Ranked, p: Fraction, epsilon: float, ends: tuple[float, float]
    ) -> float:
        """A quantile of a column between two ends."""
        low, high = ends
        if not low < high:
            return low
        mechanism = ExponentialQuantile(p, epsilon, CoarseMeasure(ends), interval_share=0.0)
        return min(max(mechanism.release(column, self._noise).value, low), high)

    def generator(self) -> np.random.Generator:
        """Random numbers that are drawn independently of the data, and need not be secret."""
        return np.random.default_rng(self._noise.integer(2**128))

    def length(self, name: str, lengths: Map, p: float) -> float:
        """Release a quantile of a length, which a function computes of each row, on `LADDER`."""
        epsilon = self._spend(name, choice=True)
        exact = _fraction(p)
        counts = np.zeros(len(LADDER), np.int64)
        for batch in self._batches(1):
            places = np.searchsorted(LADDER, lengths(batch), side="left")
            counts += np.bincount(np.minimum(places, len(LADDER) - 1), minlength=len(LADDER))
        upto = np.cumsum(counts).tolist()
        target = exact.numerator * upto[-1]
        below = [0, *upto[:-1]]
        distances = [
            max(0, exact.denominator * low - target, target - exact.denominator * high)
            for low, high in zip(below, upto, strict=True)
        ]
        speed = rate(epsilon, 2 * max(exact, 1 - exact))
        cap = math.ceil((math.log(sum(_MASSES)) + _FAR) / float(speed))
        weights = Decay(speed, cap, exact.denominator).weights(distances)
        weights = [mass * weight for mass, weight in zip(_MASSES, weights, strict=True)]
        return float(LADDER[choose(weights, self._noise)])

    def total(self, name: str, vectors: Map, radius: float) -> FloatArray:
        """Release the sum of a vector, which a function computes of each row."""
        multiplier = self._spend(name, choice=False)
        total: list[int] = []
        for batch in self._batches(LONGEST):
            total = _added(total, on_grid(vectors(batch), radius).sum(axis=0))
        return np.asarray(self._noisy(total, multiplier, LONGEST) * (radius / LONGEST))

    def second_moment(self, name: str, vectors: Map, radius: float) -> FloatArray:
        """Release the sum of v vᵀ of a vector v, which a function computes of each row."""
        multiplier = self._spend(name, choice=False)
        total: list[int] = []
        width = 0
        for batch in self._batches(LONGEST**2):
            whole = on_grid(vectors(batch), radius)
            width = whole.shape[1]
            total = _added(total, (whole.T @ whole)[np.triu_indices(width)])
        rows, columns = np.triu_indices(width)
        scale = np.where(rows == columns, 1.0, math.sqrt(0.5)) * LONGEST**2
        entries = np.zeros(len(total))
        for same in (True, False):
            chosen = np.flatnonzero((rows == columns) == same)
            if len(chosen):
                values = [total[place] for place in chosen]
                entries[chosen] = self._noisy(values, multiplier, scale[chosen[0]])
        matrix = np.zeros((width, width))
        matrix[rows, columns] = matrix[columns, rows] = entries * (radius / LONGEST) ** 2
        return matrix

    def cross(
        self,
        name: str,
        pairs: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
        radii: tuple[float, float],
    ) -> FloatArray:
        """Release the sum of v wᵀ for two vectors of each row, each clipped to its radius."""
        multiplier = self._spend(name, choice=False)
        total: list[int] = []
        shape = (0, 0)
        for batch in self._batches(LONGEST**2):
            left, right = pairs(batch)
            first, second = on_grid(left, radii[0]), on_grid(right, radii[1])
            shape = first.shape[1], second.shape[1]
            total = _added(total, (first.T @ second).ravel())
        noisy = self._noisy(total, multiplier, LONGEST**2)
        return np.asarray(noisy.reshape(shape) * (radii[0] * radii[1] / LONGEST**2))

    def _batches(self, largest: int) -> Iterator[FloatArray]:
        """The rows in batches of which sums of numbers of this size are exact.

        There is one batch at least, which may be empty, so that every sum has its length.
        """
        most = min(int(2 * _EXACT) // largest, _CACHED)
        yield np.empty((0, len(self.rows.names)))
        for batch in self.rows.batches():
            for start in range(0, len(batch), most):
                yield batch[start : start + most]

    def _noisy(self, values: list[int], multiplier: float, sensitivity: float) -> FloatArray:
        scale = math.nextafter(multiplier * sensitivity, math.inf)
        drawn = self._noise.of_value(Distribution.GAUSSIAN, scale, len(values))
        return np.array([one + other for one, other in zip(values, drawn, strict=True)], float)


@attrs.frozen(eq=False, repr=False)
class _ColumnPart:
    """The records of a column after some rank, up to another; what a quantile asks of a column."""

    column: Ranked
    before: int
    upto: int

    def count(self) -> int:
        return self.upto - self.before

    def order_statistics(self, first: int, last: int) -> FloatArray:
        return self.column.order_statistics(
            max(first, 1) + self.before, min(last + self.before, self.upto)
        )


def _added(total: list[int], part: FloatArray) -> list[int]:
    numbers = list(map(int, part.tolist()))
    return [one + other for one, other in zip(total, numbers, strict=True)] if total else numbers


def _fraction(p: float) -> Fraction:
    """A probability as a simple fraction in (0, 1)."""
    return Fraction(min(max(round(p * _LEAST_P), 1), _LEAST_P - 1), _LEAST_P)
