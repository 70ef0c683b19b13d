"""Compositions of dominating pairs: ε at a given δ and δ at a given ε, as upper or lower bounds.

Every query builds suitable distributions of the privacy loss: with a cap and a tilt near the answer
(`Scan`), a grid fine enough for the number of runs, and one tilted convolution per direction
(`convolution`).
"""

import math
from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property, lru_cache

import attrs
import numpy as np

from prudent.accounting._numeric import float_above
from prudent.accounting.losses.convolution import (
    LARGEST_SIZE,
    LatticeDistribution,
    LossWindow,
    Scan,
    WindowError,
    any_infinite,
    chords_of,
    convolved,
    knots,
    mirrored_chords,
    total_log_moments,
)
from prudent.accounting.losses.loss_tables import Array, LossTable, evaluation_bound
from prudent.accounting.losses.pairs import Dominating, TabulatedPair

DEFAULT_INTERVAL = 1e-4

_TOLERANCE = 2e-5  # ε that chords may add at the default interval
_TAIL_SHARE = 1e-8  # fraction of δ that the tails of all single runs may cost
_LEFT_SHARE = 1e-10  # mass that all runs together may move up to their least loss
_LEAST_TAIL, _WHOLE_TAIL = 1e-280, 1e-40
_PLAIN_TAIL = 1e-20  # mass that all runs may move to infinity without a tilt: rounding moves more
_FEWEST_POINTS, _MOST_POINTS = 2**12, 2**20  # of a single run's distribution
_WINDOW_SPREADS = 24.0  # width of a window in standard deviations, roughly
_WORTH_TILTING = -3.0  # logarithm of δ above which the plain distribution is as good
_WIDE = 2**18  # points of a window that another tilt should make narrower
_WASTE = 8.0  # that the logarithm of δ's scale may be worse than at the best tilt
_WHOLE_FINENESS = 1e-3  # of the spread of a single loss: the grid of distributions for every ε
_WHOLE_TILTS = (0.0, 1.0, 3.0, 10.0, 30.0, 100.0)
_QUICK_FINENESS, _QUICK_TILTS = 3e-2, (0.0, 1.0)
_MANY_QUERIES = 64  # beyond which one set of distributions for all is quicker
_FEW, _SEVERAL = 4, 100  # runs that are also priced one by one; that are tabulated finely
_MANY_PAIRS = 8  # beyond which the worst of the pairs is tabulated once
_TABLE_SPACING = 2e-3  # of its losses, relative to them
_MOST_COARSE = 5.0  # factor by which a table may be coarser for a coarse accountant
_MANY_LOSSES = 2**14  # of a single run, beyond which a table of it is evaluated instead
_FARTHEST_IN_TABLE, _WHOLE_MASS = 500.0, 1e-6  # loss of a table; how far from 1 its mass may be
_BROAD, _BROAD_TOLERANCE = 2**19, 1e-4  # points of a window; share of ε that saving them may add
_FARTHEST = 1e18  # of an ε at which a profile is evaluated
_DIRECTIONS = (False, True)  # whether a record is added


@attrs.frozen(slots=False)
class Composition:
    """Independent runs of dominating pairs, and their joint privacy cost."""

    parts: tuple[tuple[Dominating, int], ...]  # the pairs, each with its number of runs
    # Accuracy: chords add about 2e-5 to ε at 1e-4, and in proportion at other values.
    interval: float = DEFAULT_INTERVAL
    upper: bool = True  # whether results are upper bounds; otherwise they are lower bounds
    lattice: float | None = None  # a grid with all losses of some pairs, which the one used refines

    def epsilon(self, delta: float) -> float:
        """A bound, upper or lower, on the least ε at which the composition is (ε, delta)-DP."""
        worst = 0.0
        for way in self._ways:
            worst = max(worst, way.epsilon(delta, worst))
        return worst

    def delta(self, epsilon: float) -> float:
        """A bound, upper or lower, on the least δ at which the composition is (epsilon, δ)-DP."""
        return max((way.delta(epsilon) for way in self._ways), default=0.0)

    def profile(self, epsilon: Array) -> Array:
        """Bounds on δ at many ε at once, from one set of distributions; quicker than one by one."""
        return np.maximum(*self.directed_profiles(epsilon))

    def directed_profiles(self, epsilon: Array, *, quick: bool = False) -> tuple[Array, Array]:
        """Bounds on δ at many ε >= 0, for removing a record and for adding one.

        Fewer distributions, if `quick`, are several times as fast, and as tight unless δ is tiny.
        """
        if not self.parts:
            return np.zeros(len(epsilon)), np.zeros(len(epsilon))
        removing, adding = (way.profile(epsilon, quick=quick) for way in self._ways)
        return removing, adding

    def deltas(self, epsilons: Array) -> Array:
        """`delta` of each; of many, from one set of distributions."""
        if self._is_single or len(epsilons) > _MANY_QUERIES:
            return self.profile(epsilons)
        return np.array([self.delta(float(epsilon)) for epsilon in epsilons])

    def epsilons(self, deltas: Array) -> Array:
        """`epsilon` of each; of many, from one set of distributions."""
        if self._is_single or len(deltas) <= _MANY_QUERIES or not self.parts:
            return np.array([self.epsilon(float(delta)) for delta in deltas])
        return np.asarray(np.max([way.epsilons(deltas) for way in self._sums], axis=0))

    @property
    def _is_single(self) -> bool:
        return sum(times for _, times in self.parts) == 1

    @cached_property
    def limit(self) -> float:
        """δ at infinite ε: the probability that some loss is infinite."""
        return max(
            any_infinite([(worst.limit(adding=adding), times) for worst, times in self.parts])
            for adding in _DIRECTIONS
        )

    def plain_distributions(self) -> tuple[LossTable, LossTable]:
        """Untilted distributions of the sum, for removing a record and for adding one."""
        if not self.parts or self.limit >= 1:
            nothing = LossTable(np.zeros(1), np.full(1, 1 - self.limit), self.limit)
            return nothing, nothing
        removing, adding = (next(one.everywhere(tail=_PLAIN_TAIL)) for one in self._sums)
        return removing, adding

    @cached_property
    def _ways(self) -> "list[Single] | list[LossSum]":
        """One calculation for each direction; an empty list if nothing is composed."""
        if self._is_single:
            ((worst, _),) = self.parts
            return [Single(worst, adding, self.upper) for adding in _DIRECTIONS]
        return self._sums

    @property
    def _sums(self) -> "list[LossSum]":
        coarseness = math.sqrt(self.interval / DEFAULT_INTERVAL)
        spacing = _TABLE_SPACING * min(max(1.0, coarseness), _MOST_COARSE)
        parts = tuple(
            (tabulated(worst, upper=self.upper, spacing=spacing), times)
            for worst, times in self.parts
        )
        return [
            LossSum(parts, adding, self.upper, coarseness, self.lattice)
            for adding in _DIRECTIONS
            if parts
        ]

    def sampled(self, rate: float, *, quick: bool = False) -> Dominating:
        """The pairs of the composition run on a Poisson sample, bounded on the same side."""
        match self.parts:
            case ((Dominating() as worst, 1),) if rate == 1:
                return worst
            case ((Dominating(sampling_rate=1.0) as worst, 1),):
                return attrs.evolve(worst, sampling_rate=rate)
        sums = self._sums
        forward, backward = (tuple(one.everywhere(quick=quick)) for one in sums)
        largest = (sums[0].largest_loss, sums[1].largest_loss)
        return Dominating((TabulatedPair(forward, backward, largest),), rate)


@attrs.frozen(slots=False)
class Single:
    """One direction of a single release, whose profile has a closed form."""

    worst: Dominating  # the dominating pairs
    adding: bool  # whether a record is added; otherwise one is removed
    upper: bool  # whether results are upper bounds; otherwise they are lower bounds

    def profile(self, epsilon: Array, *, quick: bool = False) -> Array:
        """δ(ε), rounded up (`upper`) or down by its evaluation error; always quick.

        Beyond `_FARTHEST`, where products with ε would overflow, it is bounded by δ there or by 0.
        """
        asked, epsilon = epsilon, np.minimum(epsilon, _FARTHEST)
        # Widths of the chords that bound the slope; any positive values are valid.
        width = np.clip(np.abs(epsilon) / 64, 1e-9, 0.01)
        value = self.worst.profile(epsilon, adding=self.adding)
        before = self.worst.profile(epsilon - width, adding=self.adding)
        slope = np.maximum(before - value, 0.0) / -np.expm1(-width)
        error = evaluation_bound(epsilon, value, slope)
        profile = np.clip(value + error if self.upper else value - error, 0.0, 1.0)
        if not self.upper:
            profile = np.where(asked > _FARTHEST, 0.0, profile)
        return np.where(asked >= self.worst.largest_loss(adding=self.adding), 0.0, profile)

    def delta(self, epsilon: float) -> float:
        """δ(ε)."""
        return float(self.profile(np.array([epsilon]))[0])

    def epsilon(self, delta: float, floor: float = 0.0) -> float:
        """The least ε >= 0 whose δ(ε) is at most `delta`, found by repeated subdivision."""
        largest = self.worst.largest_loss(adding=self.adding)
        limit = self.worst.limit(adding=self.adding)
        if delta <= limit * (1 + 1e-12):
            return largest
        high = self.worst.reach((delta - limit) / 2, adding=self.adding)
        low = 0.0
        for _ in range(12):
            points = np.linspace(low, high, 33)
            enough = np.nonzero(self.profile(points) <= delta)[0]
            if not len(enough):
                return largest
            if enough[0] == 0:
                break
            low, high = float(points[enough[0] - 1]), float(points[enough[0]])
        return min(largest, low if enough[0] == 0 or not self.upper else high)


@attrs.frozen(slots=False)
class LossSum:
    """One direction of a composition: the sum of many losses."""

    parts: tuple[tuple[Dominating, int], ...]  # the dominating pairs, each with its number of runs
    adding: bool  # whether a record is added; otherwise one is removed
    upper: bool  # whether results are upper bounds; otherwise they are lower bounds
    coarseness: float  # the factor by which the grid may be coarser than by default
    lattice: float | None  # a grid that it must refine; None for no such requirement
    _scans: dict[float, Scan] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    @property
    def runs(self) -> int:
        """The number of losses in the sum."""
        return sum(times for _, times in self.parts)

    @property
    def largest_loss(self) -> float:
        """An upper bound on the sum of all losses: the exact sum, rounded up."""
        largest = [(times, worst.largest_loss(adding=self.adding)) for worst, times in self.parts]
        if not all(math.isfinite(loss) for _, loss in largest):
            return math.inf
        return float_above(sum((times * Fraction(loss) for times, loss in largest), Fraction(0)))

    def epsilon(self, delta: float, floor: float = 0.0) -> float:
        """The best of several bounds on the least ε >= 0 whose δ(ε) is at most `delta`.

        An upper bound at or below `floor` is returned without being improved.
        """
        if delta == 0:
            return self.largest_loss if self.upper else 0.0
        scan = self._scan(max(_TAIL_SHARE * delta / self.runs, _LEAST_TAIL))
        quick = min(scan.epsilon(delta), self.largest_loss, self._shared(delta))
        if self.upper and (quick <= floor or math.isinf(quick)):
            return quick
        if math.isinf(quick):
            masses = [(w.infinite_mass(adding=self.adding), times) for w, times in self.parts]
            return math.inf if any_infinite(masses) > delta * (1 + 1e-12) else 0.0
        best = quick if self.upper else 0.0
        for table in self._tables(scan, quick, delta):
            least = table.epsilon(delta)
            best = min(best, least) if self.upper else max(best, least)
            if (least > table.losses[0] or least == 0) if self.upper else best > quick / 2:
                break
        return best

    def _shared(self, delta: float) -> float:
        """The sum of the ε of a few single runs that share δ; else infinite.

        What has a largest loss needs no share. At the edge of a bounded distribution this is exact.
        """
        singles = [(Single(worst, self.adding, True), times) for worst, times in self.parts]
        bounded = [(one.worst.largest_loss(adding=self.adding), times) for one, times in singles]
        sharing = sum(times for largest, times in bounded if math.isinf(largest))
        if sharing > _FEW:
            return math.inf
        return sum(
            times * (one.epsilon(delta / sharing) if math.isinf(largest) else largest)
            for (one, times), (largest, _) in zip(singles, bounded, strict=True)
        )

    def delta(self, epsilon: float) -> float:
        """The best of several bounds on δ(ε)."""
        largest = self.largest_loss
        if self.upper and epsilon >= largest:
            return 0.0
        scan = self._scan(_WHOLE_TAIL)
        renyi = scan.delta(epsilon)
        # Just below the largest loss a grid is too coarse: δ(ε) <= 1 - e^(ε - largest), rounded up.
        best = min(renyi, -math.expm1(epsilon - largest) * (1 + 1e-15)) if self.upper else 0.0
        for table in self._tables(scan, epsilon, renyi * 1e-3):
            delta = float(table.profile(np.array([epsilon]))[0])
            best = min(best, delta) if self.upper else max(best, delta)
            if epsilon >= table.losses[0] if self.upper else best > renyi / 1e3:
                break
        return best

    def profile(self, epsilon: Array, *, quick: bool = False) -> Array:
        """The best bounds on δ(ε) at several tilts; at few of them if `quick`."""
        best = np.min if self.upper else np.max
        tables = self.everywhere(quick=quick)
        profile = best([table.profile(epsilon) for table in tables], axis=0)
        return np.where(self.upper & (epsilon >= self.largest_loss), 0.0, profile)

    def epsilons(self, deltas: Array) -> Array:
        """The best bounds on the least ε >= 0 of each δ, at several tilts."""
        best = np.minimum if self.upper else np.maximum
        epsilons = np.full(len(deltas), self.largest_loss if self.upper else 0.0)
        for table in self.everywhere():
            read = [table.epsilon(float(d)) if d > 0 or self.upper else 0.0 for d in deltas]
            best(epsilons, read, out=epsilons)
        return epsilons

    def everywhere(self, *, quick: bool = False, tail: float | None = None) -> Iterator[LossTable]:
        """Yield distributions at several tilts, so that one of them is accurate at each ε.

        A mass of `tail` of all runs counts as infinite; a very small one if that is None.
        """
        scan = self._scan(_WHOLE_TAIL if tail is None else tail / self.runs)
        reach = float(scan.caps[-1])
        fineness = _QUICK_FINENESS if quick else _WHOLE_FINENESS
        wanted = fineness * scan.spread() / math.sqrt(self.runs)
        interval = self._interval(wanted, self._span(reach, _WHOLE_TAIL) / _MOST_POINTS)
        terms = self._terms(interval, reach, _WHOLE_TAIL, scan.tail)
        for tilt in _QUICK_TILTS if quick else _WHOLE_TILTS:
            while True:
                try:
                    table = convolved(terms, tilt, upper=self.upper)
                    break
                except WindowError:
                    interval *= 2
                    terms = self._terms(interval, reach, _WHOLE_TAIL, scan.tail)
            yield table

    def _scan(self, tail: float) -> Scan:
        if tail not in self._scans:
            self._scans[tail] = Scan.of(self.parts, adding=self.adding, tail=tail)
        return self._scans[tail]

    def _tables(self, scan: Scan, epsilon: float, delta: float) -> Iterator[LossTable]:
        """Yield distributions of the sum around `epsilon`, of decreasing tilt, the last without."""
        cap = scan.cap(epsilon, delta)
        reach, left_tail = float(scan.caps[cap]), _LEFT_SHARE / self.runs
        tilt, spread = scan.saddle(epsilon, cap)
        span = self._span(reach, left_tail)
        least = max(span / _MOST_POINTS, _WINDOW_SPREADS * spread / LARGEST_SIZE * 2)
        wanted = self._wanted_interval(epsilon, tilt, spread)
        broad = _WINDOW_SPREADS * spread / wanted / _BROAD
        if broad > 1:
            wanted *= min(broad, math.sqrt(max(1.0, _BROAD_TOLERANCE * epsilon / _TOLERANCE)))
        if self.runs <= _SEVERAL:  # too few for variances to decide
            wanted = min(wanted, span / _FEWEST_POINTS)
        interval = self._interval(wanted, least)
        while True:
            terms = self._terms(interval, reach, left_tail, scan.tail)
            try:
                for one in _tilts(terms, tilt, epsilon):
                    yield convolved(terms, one, upper=self.upper)
                return
            except WindowError as error:
                interval *= error.factor

    def _wanted_interval(self, epsilon: float, tilt: float, spread: float) -> float:
        """The grid interval at which chords add about `_TOLERANCE` to ε.

        Moving mass to both ends of an interval h multiplies E e^(λ loss) by about 1 + λ(λ+1)h²/12
        in every run. That adds T(λ+1)h²/12 to ε, and Th²/6 to the variance.
        """
        room = max(tilt * epsilon, 1.0) / (tilt * (tilt + 1))
        room = min(room, spread**2) if spread > 0 else room
        return math.sqrt(12 * _TOLERANCE * room / self.runs)

    def _span(self, reach: float, left_tail: float) -> float:
        """The width of the range of losses of a single run."""
        lefts = (w.reach(left_tail, adding=not self.adding, damped=True) for w, _ in self.parts)
        return reach + max(lefts)

    def _interval(self, wanted: float, least: float) -> float:
        """The interval of the grid, given a wanted one and the least one that is feasible."""
        interval = max(wanted * self.coarseness, least)
        if self.lattice is None or interval < least:
            return interval
        parts = min(math.ceil(self.lattice / interval), int(self.lattice / least))
        return self.lattice / max(1, parts)

    def _terms(
        self, interval: float, cap: float, left_tail: float, tail: float
    ) -> list[LatticeDistribution]:
        """The distributions of all losses on multiples of an interval.

        Losses beyond the cap are treated as infinite, and mass `left_tail` may be moved up to the
        least loss. Where there are many losses a table of the pairs is evaluated instead, which may
        move mass `tail` to infinity.
        """
        terms = []
        for worst, times in self.parts:
            left = worst.reach(left_tail, adding=not self.adding, damped=True)
            if cap + left > _MANY_LOSSES * interval and tail >= _WHOLE_TAIL:
                worst = as_table(worst, self.upper, tail)
            # One more point at the end: the profile must not fall over the last interval, or the
            # error of that fall would count as infinite loss.
            above, below = (
                np.arange(1, math.ceil(end / interval) + 2, dtype=np.float64) * interval
                for end in (cap, left)
            )
            chords = chords_of(worst, above, below, adding=self.adding, upper=self.upper)
            terms.append(LatticeDistribution.of(chords, interval, -len(below), times))
        return terms


def _tilts(terms: list[LatticeDistribution], guess: float, epsilon: float) -> Iterator[float]:
    """Yield tilts for `epsilon`: the best first, then decreasing ones, finally zero.

    Where a few losses are very large, the best one makes the window very wide: rounding errors are
    small enough for one that is worse by a few powers of e.
    """
    tilts = guess * 2.0 ** np.arange(1, -9, -0.5)
    moments = total_log_moments(terms, tilts)
    exponents = moments - tilts * epsilon
    best = chosen = int(np.argmin(exponents))

    def window_size(at: int) -> int:
        return LossWindow.of(terms, float(tilts[at]), float(moments[at])).size

    if exponents[best] < _WORTH_TILTING:
        size = window_size(best)
        for other in range(best + 1, len(tilts)):
            if size <= _WIDE or exponents[other] > exponents[best] + _WASTE:
                break
            narrower = window_size(other)
            if narrower < size:
                chosen, size = other, narrower
        yield from (float(tilt) for tilt in tilts[chosen::2])
    yield 0.0


def tabulated(worst: Dominating, *, upper: bool, spacing: float = _TABLE_SPACING) -> Dominating:
    """Replace many pairs, before sampling, by chords of their maximum: a bound as `upper` says."""
    if len(worst.pairs) <= _MANY_PAIRS:
        return worst
    pair = tabulated_pair(attrs.evolve(worst, sampling_rate=1.0), upper, spacing=spacing)
    return Dominating((pair,), worst.sampling_rate)


def as_table(worst: Dominating, upper: bool, tail: float) -> Dominating:
    """A table of pairs that is quick to evaluate at many losses; the pairs where there is none.

    Losses whose exponentials overflow have none, and a table without all of the mass would be none.
    """
    if isinstance(worst.pairs[0], TabulatedPair):
        return worst
    if max(worst.reach(tail, adding=adding) for adding in _DIRECTIONS) > _FARTHEST_IN_TABLE:
        return worst
    pair = tabulated_pair(worst, upper, tail)
    totals = [float(one.masses.sum()) + one.infinite for one in (*pair.forward, *pair.backward)]
    whole = all(abs(total - 1) < _WHOLE_MASS for total in totals)
    return Dominating((pair,)) if whole else worst


@lru_cache(maxsize=32)
def tabulated_pair(
    worst: Dominating, upper: bool, tail: float = _WHOLE_TAIL, spacing: float = _TABLE_SPACING
) -> TabulatedPair:
    """A table of the worst of the pairs, an upper or a lower bound as `upper` says.

    That of unsampled pairs is the same for every number of runs and every rate. Losses beyond
    which less than `tail` lies are treated as infinite.
    """
    removing, added = (
        np.append(0.0, knots([worst], tail, adding=adding, spacing=spacing))
        for adding in _DIRECTIONS
    )
    seen = removing, worst.profile(removing)
    unseen = added, worst.profile(added, adding=True)
    forward = mirrored_chords(seen, unseen, worst.infinite_mass(), upper=upper)
    backward = mirrored_chords(unseen, seen, worst.infinite_mass(adding=True), upper=upper)
    largest = worst.largest_loss(), worst.largest_loss(adding=True)
    return TabulatedPair((forward.table,), (backward.table,), largest)
