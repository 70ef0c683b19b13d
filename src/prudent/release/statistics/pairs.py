"""Private statistics of two columns: ratio, weighted mean, covariance, correlation.

The records are the rows that have both values. With `unit`, each unit counts with one pair, of
what `per_unit` makes of both columns. Values are clipped to bounds, given or private, as for a
mean. All but the ratio follow from sums over pairs.

Let x and y lie between bounds, and let t and u in [0, 1] be how far each is on its way. A record
contributes to

| statistic | contributions of a record | their sum, at most |
| --- | --- | --- |
| weighted mean (u: the weight) | u(1 - t), ut | 1 |
| covariance | (1 - t)(1 - u), (1 - t)u, t(1 - u), tu | 1 |
| correlation | the four above, 2t(1 - t), 2u(1 - u) | 2 |

None is negative. So one record changes the sums by at most 1, or 2, in the sum of absolute
differences, and noise for that on each of them pays for all that follows. (t(1 - t) is at most 1/4;
twice of it, for the same noise, has half the error.)

Everything is counted in whole steps, as in `moment_sums`: with t = a/D and u = b/E for whole
numbers, the contributions times D E, or times D² E², are whole numbers.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, cast

import attrs
import dp_accounting as dp
from typing_extensions import override

from prudent import _validate
from prudent.release.columns.column import Column, Pool, together
from prudent.release.columns.scales import Scale
from prudent.release.columns.table_columns import PairColumn, ProductSums
from prudent.release.exponential.interval import PrivateInterval
from prudent.release.lattice import Lattice, check_bounds
from prudent.release.moment_sums import ClippedShare, Clipping, Moments, MomentSpread
from prudent.release.noise import AdditiveMechanism, Noise, NoiseRegion, composed, shares_of
from prudent.release.outcome import Branch, Released, ScaledSpread, UnknownSpread
from prudent.release.request import Priced, Request, Statistic
from prudent.release.statistics.moments import (
    CLIPPED_SHARE,
    NARROW_SHARE,
    WIDE_SHARE,
    Total,
    additive,
    clipped_values,
    preview,
)

Kind = Literal["weighted", "covariance", "correlation"]

_BITS = 25  # a width is 2**25 to 2**26 steps, so that products of steps are exact
_BITS_OF_NOISE = 32  # of the sensitivity, so that noise fits 64 bits
_LEAST_WEIGHT = 2.0**-40  # of a private bound on weights, which may be below zero


def lattice_between(ends: tuple[float, float]) -> Lattice:
    """Return the lattice between bounds that are about 2**25 steps apart."""
    low, high = check_bounds(ends)
    far = math.ldexp(max(abs(low), abs(high)), -51)
    return Lattice.for_unit(max(math.ldexp(high - low, -_BITS), far), (low, high))


@attrs.frozen
class PairSums:
    """The sums of one kind over pairs of values clipped to bounds.

    Guarantee:
        `sensitivity` bounds the sum of absolute differences of what `read` returns, when a pair is
        added or removed. Rounding a sum down to a multiple of 2**s moves it by at most
        (c + 2**s - 1)/2**s multiples when c >= 0 is added to it.
    """

    kind: Kind  # which sums
    first: Lattice  # the lattice of the first values, between their bounds
    second: Lattice  # that of the second ones

    @property
    def _unit(self) -> int:
        """What a contribution of 1 is, in whole steps."""
        unit = self.first.diameter * self.second.diameter
        return int(unit * unit if self.kind == "correlation" else unit)

    @property
    def _most(self) -> int:
        """What the contributions of one record add up to, at most."""
        return self._unit * (2 if self.kind == "correlation" else 1)

    @property
    def _shift(self) -> int:
        """s: sums are rounded down to multiples of 2**s."""
        return max(0, self._most.bit_length() - _BITS_OF_NOISE)

    @property
    def sensitivity(self) -> int:
        """How far one pair moves the sums, in multiples of 2**s."""
        size = {"weighted": 2, "covariance": 4, "correlation": 6}[self.kind]
        return (self._most + size * ((1 << self._shift) - 1)) >> self._shift

    def read(self, pairs: PairColumn) -> list[int]:
        """The sums of the pairs, exact but for the rounding, in multiples of 2**s."""
        return [each >> self._shift for each in self._exact(pairs.sums(self.first, self.second))]

    def _exact(self, sums: ProductSums) -> list[int]:
        wide, high = self.first.diameter, self.second.diameter
        if self.kind == "weighted":
            return [wide * sums.second - sums.product, sums.product]
        corners = [
            sums.count * wide * high - high * sums.first - wide * sums.second + sums.product,
            wide * sums.second - sums.product,
            high * sums.first - sums.product,
            sums.product,
        ]
        if self.kind == "covariance":
            return corners
        return [
            *(each * wide * high for each in corners),
            2 * high**2 * (wide * sums.first - sums.first_squares),
            2 * wide**2 * (high * sums.second - sums.second_squares),
        ]

    def release(self, pairs: PairColumn, mechanism: AdditiveMechanism, noise: Noise) -> NoiseRegion:
        """Release the sums; returns where they are, in records."""
        noisy = mechanism.noisy(self.read(pairs), self.sensitivity, noise)
        step = math.ldexp(1.0, self._shift) / self._unit
        # One step for the rounding of the sums, and one for that of the noise.
        return NoiseRegion(
            tuple(each * step for each in noisy),
            mechanism.distribution,
            mechanism.scale(self.sensitivity) * step,
            2 * step,
        )


@attrs.frozen
class PairMoments:
    """Covariance and correlation of clipped values, from noisy sums; see `outcome.Spread`.

    An interval holds the statistic with at least the given probability, over the noise alone. The
    sums are in a polytope with that probability. About fixed t₀ and u₀, mean products are ratios of
    linear functions, which are largest and smallest at corners of the polytope; and the covariance
    differs from the mean of (t - t₀)(u - u₀) by (E t - t₀)(E u - u₀).
    """

    sums: PairSums  # what was summed
    region: NoiseRegion  # where the sums are, in records

    @property
    def value(self) -> float:
        """The covariance, or the correlation."""
        return self._of(self.region.centre)

    @property
    def deviation(self) -> float:
        """The standard deviation of its noise, to first order in the noise."""
        centre, size = self.region.centre, len(self.region.centre)
        slopes = []
        for place in range(size):
            moved = [each + (place == here) for here, each in enumerate(centre)]
            slopes.append(self._of(moved) - self.value)
        return self.region.deviation * math.hypot(*slopes)

    @property
    def _widths(self) -> tuple[float, float]:
        first, second = self.sums.first, self.sums.second
        return first.diameter * first.spacing, second.diameter * second.spacing

    def _of(self, sums: Sequence[float]) -> float:
        few = sum(sums[:4]) < 1
        covariance, first, second = (0.0, 0.0, 0.0) if few else _about(sums, *_means(sums))
        wide, high = self._widths
        if self.sums.kind == "covariance":
            return min(0.25, max(-0.25, covariance)) * wide * high
        if min(first, second) <= 0:
            return 0.0
        return min(1.0, max(-1.0, covariance / math.sqrt(first * second)))

    def interval(self, value: Any, confidence: float) -> tuple[float, float]:
        """See `PairMoments`; where there may be no record, all that the bounds allow."""
        vertices = list(self.region.vertices(confidence))
        area = self._widths[0] * self._widths[1]
        if min(sum(vertex[:4]) for vertex in vertices) <= 0:
            return (-area / 4, area / 4) if self.sums.kind == "covariance" else (-1.0, 1.0)
        middle = _means(self.region.centre)
        means = [_means(vertex) for vertex in vertices]
        off = [max(abs(mean[place] - middle[place]) for mean in means) for place in (0, 1)]
        about = [_about(vertex, *middle) for vertex in vertices]
        # What the rounding of values to their lattices can change, as shares of the widths.
        rounding = 1 / self.sums.first.diameter + 1 / self.sums.second.diameter
        low = min(each[0] for each in about) - off[0] * off[1] - rounding
        high = max(each[0] for each in about) + off[0] * off[1] + rounding
        if self.sums.kind == "covariance":
            return max(-0.25, low) * area, min(0.25, high) * area
        least = [min(each[place + 1] for each in about) - off[place] ** 2 for place in (0, 1)]
        most = [max(each[place + 1] for each in about) + rounding for place in (0, 1)]
        smaller = _root((least[0] - rounding, least[1] - rounding))
        larger = _root(most)
        return (
            max(-1.0, _ratio(low, larger if low > 0 else smaller)),
            min(1.0, _ratio(high, smaller if high > 0 else larger)),
        )


def _means(sums: Sequence[float]) -> tuple[float, float]:
    """The means of t and u; of noisy sums, between 0 and 1."""
    count = max(1.0, sum(sums[:4]))
    return (
        min(1.0, max(0.0, (sums[2] + sums[3]) / count)),
        min(1.0, max(0.0, (sums[1] + sums[3]) / count)),
    )


def _about(sums: Sequence[float], t: float, u: float) -> tuple[float, float, float]:
    """The means of (t - t₀)(u - u₀), (t - t₀)² and (u - u₀)²; without squares, zeros."""
    count = max(1e-300, sum(sums[:4]))
    first, second = sums[2] + sums[3], sums[1] + sums[3]
    product = sums[3] - u * first - t * second + t * u * count
    if len(sums) == 4:
        return product / count, 0.0, 0.0
    ones = first - sums[4] / 2 - 2 * t * first + t * t * count
    twos = second - sums[5] / 2 - 2 * u * second + u * u * count
    return product / count, ones / count, twos / count


def _root(variances: Sequence[float]) -> float:
    return math.sqrt(max(0.0, variances[0]) * max(0.0, variances[1]))


def _ratio(one: float, other: float) -> float:
    return one / other if other > 0 else math.copysign(math.inf, one)


def _second(request: Request, records: Column) -> Request:
    """The same request of the second column."""
    if request.other is None:
        raise _validate.ArgumentError("other", "the name of a second column", shown="nothing")
    pairs = cast(PairColumn, records)
    own = pairs.second.scale.own_bounds if request.other_bounds is None else request.other_bounds
    return attrs.evolve(request, bounds=own)


@attrs.frozen
class RatioSpread:
    """The spread of a quotient of two released sums, each with half of what may fail."""

    above: Released
    below: Released

    @property
    def value(self) -> float:
        """The quotient; not a number if the sum below the line is zero."""
        above, below = _number(self.above)[0], _number(self.below)[0]
        return above / below if below else math.nan

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise, to first order."""
        (_, noise), (below, other) = _number(self.above), _number(self.below)
        return math.hypot(noise, self.value * other) / abs(below) if below else math.inf

    def interval(self, value: Any, confidence: float) -> tuple[float, float] | None:
        """See `outcome.Spread`; None if the sum below the line may be zero."""
        if not (self.above.known and self.below.known):
            return None
        ends = []
        for total in (self.above, self.below):
            spread = cast(ScaledSpread, total.spread)
            known = spread.spread.interval(spread.number, (1 + confidence) / 2)
            ends.append([end * _unit(spread.scale) for end in cast(tuple[float, float], known)])
        if ends[1][0] <= 0 <= ends[1][1]:
            return None
        quotients = [one / other for one in ends[0] for other in ends[1]]
        return min(quotients), max(quotients)


def _number(total: Released) -> tuple[float, float]:
    """A sum and the deviation of its noise, in the unit of its values; durations in seconds."""
    spread: Any = total.spread if total.known else cast(UnknownSpread, total.spread).noise
    unit = _unit(spread.scale)
    return float(spread.number) * unit, float(spread.spread.deviation) * unit


def _unit(scale: Scale) -> float:
    if scale.kind == "decimal":
        return float(10.0**-scale.digits)
    return 1e-6 if scale.kind == "duration" else 1.0


def _pools(pool: Column) -> tuple[Column, Column]:
    """The pools of the first and of the second columns of pairs."""
    return pool, cast(Column, cast(Pool, pool).second())


@attrs.frozen
class Ratio(Statistic):
    """The quotient of two sums."""

    sums: ClassVar[Total] = Total()

    @override
    def price(self, request: Request, records: Column) -> Priced:
        second = _second(request, records)
        half, rest = shares_of(request.epsilon, 0.5)
        share = None if request.delta is None else request.delta / 2
        above = self.sums.price(attrs.evolve(request, epsilon=half, delta=share), records)
        below = self.sums.price(
            attrs.evolve(second, epsilon=rest, delta=share), cast(PairColumn, records).second
        )
        event = dp.ComposedDpEvent([above.preview.event, below.preview.event])
        public = preview("ratio", additive(request), request, event)
        return Priced(preview=public, mechanism=(above, below), of_all_groups=True)

    @override
    def prepare(self, priced: Priced, pool: Column, noise: Noise) -> Priced:
        both = zip(priced.mechanism, _pools(pool), strict=True)
        tasks = [functools.partial(self.sums.prepare, *each, noise) for each in both]
        return attrs.evolve(priced, mechanism=tuple(together(tasks)))

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Released:
        columns = records, cast(PairColumn, records).second
        both = zip(priced.mechanism, columns, strict=True)
        totals = together([functools.partial(self.sums.answer, *each, noise) for each in both])
        spread = RatioSpread(*totals)
        known = all(total.known for total in totals)
        about = f"{spread.above.about} divided by {spread.below.about}"
        return Released(
            spread.value,
            Branch.ROBUST,
            spread.deviation,
            spread=spread if known else UnknownSpread(spread),
            about=about,
        )

    @override
    def finish(
        self, priced: Priced, pool: Column, outcomes: list[Any], noise: Noise
    ) -> Sequence[Any]:
        both = zip(priced.mechanism, _pools(pool), strict=True)
        shares = [self.sums.clipped_share(*each, noise) for each in both]
        if all(each is None or each.interval is not None for each in shares):
            return outcomes
        return [attrs.evolve(each, spread=UnknownSpread(each.spread)) for each in outcomes]


@attrs.frozen
class Pairs(Statistic):
    """A statistic that follows from sums over pairs."""

    which: Kind

    @override
    def price(self, request: Request, records: Column) -> Priced:
        second, pairs = _second(request, records), cast(PairColumn, records)
        additive(request)  # checks the options
        rest, clippings, shares = request.epsilon, [], []
        for own, column in ((request, pairs), (second, pairs.second)):
            if own.bounds is not None:
                clippings.append(Clipping.to(own.bounds, column.scale))
                continue
            each = WIDE_SHARE, NARROW_SHARE, CLIPPED_SHARE / 2
            wanted = (request.epsilon * share / rest for share in each)
            wide, narrow, share, rest = shares_of(rest, *wanted)
            clippings.append(Clipping(interval=PrivateInterval.of(column, wide, narrow)))
            shares.append(AdditiveMechanism.calibrate(share))
        sums = additive(request, rest)
        parts = *clippings[0].events, *clippings[1].events, *(each.event for each in shares)
        event = composed([*parts, sums.event])
        name = "weighted mean" if self.which == "weighted" else self.which
        public = preview(name, sums, request, event)
        return Priced(preview=public, mechanism=(*clippings, shares, sums))

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Released:
        first, second, shares, mechanism = priced.mechanism
        pairs = cast(PairColumn, records)
        ends, others = together(
            [lambda: first.ends(pairs, noise), lambda: second.ends(pairs.second, noise)]
        )
        if self.which == "weighted":
            others = 0.0, others[1] if others[1] > 0 else _LEAST_WEIGHT
        sums = PairSums(self.which, lattice_between(ends), lattice_between(others))
        both = ("First", first, pairs, ends), ("Second", second, pairs.second, others)
        private = [(place, *each) for place, clip, *each in both if clip.given is None]
        readings: list[Callable[[], Any]] = [
            lambda: sums.release(pairs, mechanism, noise),
            *(
                functools.partial(_outside, column, within, share, noise)
                for (_, column, within), share in zip(private, shares, strict=True)
            ),
        ]
        region, *outside = together(readings)
        spread: PairMoments | MomentSpread = PairMoments(sums, region)
        if self.which == "weighted":
            low, high = (sums.first.value(end) for end in (sums.first.low, sums.first.high))
            moments = Moments(region, (low, high), sums.first.spacing)
            spread = MomentSpread(moments, "mean", pairs.scale)
        known = all(share.interval is not None for share in outside)
        name = priced.preview.statistic
        values = clipped_values(ends, pairs)
        other_values = clipped_values(others, pairs.second).removeprefix("the values ")
        joint = "with weights" if self.which == "weighted" else "and others"
        return Released(
            spread.value,
            Branch.ROBUST,
            spread.deviation,
            spread=spread if known else UnknownSpread(spread),
            about=f"the {name} of {values} {joint} {other_values}",
            notes=tuple(
                f"{place} column: {share}"
                for (place, *_), share in zip(private, outside, strict=True)
            ),
        )


def _outside(
    column: Column, ends: tuple[float, float], mechanism: AdditiveMechanism, noise: Noise
) -> ClippedShare:
    """Release the share of values outside; a clipped sum counts them, read with the other sums."""
    column.clipped_sum(*ends, lattice_between(ends))
    return ClippedShare.release(column, ends, mechanism, noise)
