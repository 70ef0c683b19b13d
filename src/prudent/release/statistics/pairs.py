"""Private statistics of two columns: ratio, weighted mean, covariance, correlation.

The records are the rows that have both values. With `unit`, each person counts with one pair, of
what `per_unit` makes of both columns. Values are clipped to bounds, given or private, as for a
mean.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, cast

import attrs
import dp_accounting as dp
from typing_extensions import override

from prudent import _validate
from prudent.release.columns.column import Column
from prudent.release.columns.sql.pair_columns import PairColumn
from prudent.release.columns.sql.query_batching import together
from prudent.release.exponential.interval import PrivateInterval
from prudent.release.noise import Noise
from prudent.release.outcome import Branch, Released, UnknownSpread
from prudent.release.request import (
    Priced,
    Request,
    Statistic,
)
from prudent.release.statistics.moments import (
    CLIPPED_SHARE,
    NARROW_SHARE,
    WIDE_SHARE,
    Total,
    additive,
    clipped_values,
    preview,
)
from prudent.release.statistics.pair_sums import Kind, PairMoments, PairSums, lattice_between
from prudent.release.sums.additive import AdditiveMechanism, composed, shares_of
from prudent.release.sums.clipping import ClippedShare, Clipping
from prudent.release.sums.moments import Moments, MomentSpread

_LEAST_WEIGHT = 2.0**-40  # of a private bound on weights, which may be below zero


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

    @staticmethod
    def number(total: Released) -> float:
        """A sum as a number in the unit of its values; durations in seconds."""
        scaled = cast(Any, total.spread)
        known = scaled if hasattr(scaled, "number") else scaled.noise
        return float(known.number) * _unit(known.scale)

    @property
    def value(self) -> float:
        """The quotient; not a number if the sum below the line is zero."""
        below = self.number(self.below)
        return self.number(self.above) / below if below else math.nan

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise, to first order."""
        below = self.number(self.below)
        if not below:
            return math.inf
        return math.hypot(_noise(self.above), self.value * _noise(self.below)) / abs(below)

    def interval(self, value: Any, confidence: float) -> tuple[float, float] | None:
        """See `outcome.Spread`; None if the sum below the line may be zero."""
        each = (1 + confidence) / 2
        found = [_ends(total, each) for total in (self.above, self.below)]
        if found[0] is None or found[1] is None or found[1][0] <= 0 <= found[1][1]:
            return None
        quotients = [one / other for one in found[0] for other in found[1]]
        return min(quotients), max(quotients)


def _unit(scale: Any) -> float:
    if scale.kind == "decimal":
        return float(10.0**-scale.digits)
    return 1e-6 if scale.kind == "duration" else 1.0


def _noise(total: Released) -> float:
    scaled = cast(Any, total.spread)
    known = scaled if hasattr(scaled, "number") else scaled.noise
    return float(known.spread.deviation) * _unit(known.scale)


def _ends(total: Released, confidence: float) -> tuple[float, float] | None:
    scaled = cast(Any, total.spread)
    if not hasattr(scaled, "number"):
        return None
    low, high = scaled.spread.interval(scaled.number, confidence)
    return low * _unit(scaled.scale), high * _unit(scaled.scale)


@attrs.frozen
class Ratio(Statistic):
    """The quotient of two sums."""

    sums: ClassVar[Statistic] = Total()

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
        return Priced(preview=public, mechanism=(above, below))

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Released:
        above, below = priced.mechanism
        second = cast(PairColumn, records).second
        totals = together(
            [
                lambda: self.sums.answer(above, records, noise),
                lambda: self.sums.answer(below, second, noise),
            ]
        )
        spread = RatioSpread(*totals)
        known = all(total.known for total in totals)
        about = f"{spread.above.about} divided by {spread.below.about}"
        return Released(
            spread.value,
            Branch.ROBUST,
            spread.deviation,
            0.0,
            priced.preview.event,
            priced.preview.mechanism,
            spread if known else UnknownSpread(spread),
            about=about,
        )


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
            [
                lambda: first.ends(pairs, noise),
                lambda: second.ends(pairs.second, noise),
            ]
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
            0.0,
            priced.preview.event,
            mechanism.distribution.value,
            spread if known else UnknownSpread(spread),
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
