"""Private quantiles: median, quantile, several quantiles at once, interquartile range.

Without a proposal they are chosen by the exponential mechanism: no bounds, no δ, never refused.
With one they are tested before they are trusted.
"""

import math
from fractions import Fraction
from typing import Any, ClassVar, TypeAlias

import attrs
import dp_accounting as dp
from typing_extensions import override

from prudent import _validate
from prudent._rounding import exact, rounded_up
from prudent.accounting._numeric import float_share
from prudent.release import margins
from prudent.release.certificates import DistanceRelease, quantile_distance
from prudent.release.charging import Preview
from prudent.release.columns.column import Column
from prudent.release.columns.scales import Scale
from prudent.release.exponential.interval import Points, PrivateInterval
from prudent.release.exponential.many_quantiles import (
    BRANCHES,
    MANY_BRANCHES,
    CountedQuantiles,
    HalvedQuantiles,
    placed,
)
from prudent.release.exponential.measure import DoubleMeasure, LatticeMeasure, Measure
from prudent.release.exponential.quantile import (
    CONFIDENCE,
    INTERVAL_SHARE,
    ExponentialQuantile,
    ExponentialQuantiles,
    ExponentialRange,
    Selected,
    for_units,
)
from prudent.release.margins import RobustValue
from prudent.release.noise import AdditiveMechanism, Noise, composed, shares_of
from prudent.release.outcome import Branch, Outcome, Released, ReleasedInterval, ScaledSpread
from prudent.release.ptr import ProposeTestReleaseMechanism as Mechanism
from prudent.release.request import Priced, Request, Statistic, check_single
from prudent.release.statistics import tested
from prudent.release.statistics.tested import Tested

_ADVICE = (
    "Leave the proposal out (the exponential mechanism needs none and never refuses), propose "
    "more, or spend a larger ε."
)

_SEVERAL_SHARE = 0.25
"""Fraction of ε for the intervals of several quantiles, which each get a small part of it."""

WIDE_SHARE, NARROW_SHARE = 0.16, 0.06
"""Fractions of ε for the two steps that find an interval, before a quantile in a tail is chosen
without bounds, or many are.

Only n (1 - p) records lie above a quantile, too few in a small table to outweigh all the values
beyond the data. All n records tell where they are.
"""

_STEEPEST, _HALVINGS, _MANY_HALVINGS = 1.0, 4, 9
"""How the interval is narrowed: by little, since a quantile beyond it would be moved to its end.

Many quantiles are among its points, which are too coarse in one that is far too wide.
"""

_ONE_BY_ONE = 3
"""The most quantiles that are chosen one by one."""

_HALVED = 15
"""The most quantiles that are chosen by halving, in four levels; more follow from a tree."""

_TAIL = Fraction(1, 5)
"""Quantiles with less than this fraction of the records on one side are in a tail."""

ManyQuantiles: TypeAlias = HalvedQuantiles | CountedQuantiles
"""How quantiles are found among the points of an interval."""


@attrs.frozen
class Quantile(Tested):
    """One quantile: tested with a proposal, chosen by rank without."""

    p: Fraction

    advice: ClassVar[str] = _ADVICE

    @override
    def measure(self, records: Column, mechanism: Mechanism, propose: int, cap: int) -> RobustValue:
        return margins.quantile(records, mechanism.lattice, self.p, propose=propose, cap=cap)

    @override
    def price(self, request: Request, records: Column) -> Priced:
        name = margins.title(self.p)
        if request.propose is not None:
            return self.priced(
                name, tested.calibrate(request, scale=records.scale), request, records
            )
        measure = _choice(request, records)
        rest, scaled = _scaled(request, records, self.p)
        share = float_share(rest, records.contribution.records)
        chosen = ExponentialQuantile(self.p, share, measure, *_interval(request))
        notes = []
        if chosen.interval_share:
            enough = int(float(rounded_up(chosen.enough_records, 2)))
            notes = [f"With fewer than about {enough:,} records there may be no interval."]
        choosing = QuantileSelector(chosen, scaled)
        return _priced(name, choosing, chosen.rank_error(), request, records, *notes)

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Outcome:
        if not isinstance(priced.mechanism, QuantileSelector):
            return super().answer(priced, records, noise)
        chosen: Any = priced.mechanism.chosen  # an `ExponentialQuantile`
        selected = priced.mechanism.release(records, noise)
        found = chosen_value(selected, chosen.confidence, records.scale)
        if not selected.whole or selected.among is None:
            return found
        advice = self._advice(chosen, selected.among, records)
        return attrs.evolve(found, notes=(advice,))

    def _advice(
        self, chosen: ExponentialQuantile, among: tuple[float, float], records: Column
    ) -> str:
        """How many records would do, without bounds and with released ends as bounds.

        It follows from p, ε and what was released; how many records there are is not known.
        """
        share = chosen.epsilon / (1 - WIDE_SHARE - NARROW_SHARE)  # bounds cost nothing
        near = attrs.evolve(chosen, epsilon=share, measure=_measure(among, records.scale))
        enough = (rounded_up(each.enough_records, 2) for each in (chosen, near))
        without, with_bounds = (f"{int(float(each)):,}" for each in enough)
        low, high = (exact(records.scale.value(end)) for end in among)
        return (
            f"Too few records for an interval of the {margins.title(self.p)} at this "
            f"ε: without bounds about {without} are enough; with the bounds {low} and {high} about "
            f"{with_bounds}, and its rank is then off by about "
            f"{rounded_up(near.typical_rank_error(), 1)} records."
        )

    @override
    def distance(self, priced: Priced, records: Column, value: Any) -> tuple[int, Any, Any]:
        """See `Statistic`; two counts give the exact distance."""
        scale, number = records.scale, records.scale.number(value)
        low, high = number - priced.tolerance, number + priced.tolerance
        return quantile_distance(records, self.p, low, high), scale.value(low), scale.value(high)


@attrs.frozen
class Quantiles(Statistic):
    """Several quantiles, chosen by rank."""

    ps: tuple[Fraction, ...]

    @override
    def price(self, request: Request, records: Column) -> Priced:
        measure, units = _choice(request, records), records.contribution.records
        many = len(self.ps) > _ONE_BY_ONE
        branches = MANY_BRANCHES if request.bounds is None else BRANCHES
        rest, scaled = _scaled(request, records, *self.ps, always=many)
        share, confidence = _interval(request, _SEVERAL_SHARE)
        if not many:
            each = float_share(rest, units)
            chosen: Any = ExponentialQuantiles(self.ps, each, measure, share, confidence)
        elif len(self.ps) > _HALVED:
            chosen = CountedQuantiles(self.ps, rest, units, request.confidence, branches)
        else:
            known, values = shares_of(rest, share)
            counted = CountedQuantiles(self.ps, known, units, request.confidence, branches)
            chosen = HalvedQuantiles(counted, values)
        ends = measure.value(measure.low), measure.value(measure.high)
        choosing = QuantileSelector(chosen, scaled, None if request.bounds is None else ends)
        return _priced("quantiles", choosing, chosen.rank_error(), request, records)

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Released:
        scale, selected = records.scale, priced.mechanism.release(records, noise)
        intervals = tuple(
            () if one.interval is None else None if one.whole else scale.ends(*one.interval)
            for one in selected
        )
        return Released(
            tuple(scale.value(one.value) for one in selected),
            Branch.SELECTED,
            intervals=intervals,
            titles=tuple(map(margins.title, self.ps)),
            confidence=priced.mechanism.chosen.confidence,
        )


@attrs.frozen
class Range(Tested):
    """The interquartile range: tested with a proposal, chosen by rank without."""

    advice: ClassVar[str] = _ADVICE
    difference: ClassVar[bool] = True

    @override
    def measure(self, records: Column, mechanism: Mechanism, propose: int, cap: int) -> RobustValue:
        return margins.interquartile_range(records, mechanism.lattice, propose=propose, cap=cap)

    @override
    def price(self, request: Request, records: Column) -> Priced:
        if request.propose is not None:
            return self.priced(
                "iqr", tested.calibrate(request, scale=records.scale), request, records
            )
        if request.certify is not None:
            raise _validate.ArgumentError(
                "certify", "with propose, for an interquartile range", got=request.certify
            )
        measure = _choice(request, records)
        share = float_share(request.epsilon, records.contribution.records)
        chosen = ExponentialRange(share, measure, *_interval(request))
        error = chosen.quartiles.rank_error()
        return _priced("iqr", QuantileSelector(chosen), error, request, records)

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Outcome:
        if not isinstance(priced.mechanism, QuantileSelector):
            return super().answer(priced, records, noise)
        selected, chosen = priced.mechanism.release(records, noise), priced.mechanism.chosen
        return chosen_value(selected, chosen.confidence, records.scale, difference=True)


@attrs.frozen
class QuantileSelector:
    """How quantiles are chosen: among all values, or near a scale that is released first.

    Guarantee:
        The scale is an `IntervalChoice`, and the values near it are a measure like any other, so
        both together have the privacy of their composition.
    """

    # The mechanism of the quantiles, for all values.
    chosen: ExponentialQuantile | ExponentialQuantiles | ExponentialRange | ManyQuantiles
    # Releases an interval that nearly all records lie in; None chooses among all values.
    scaled: PrivateInterval | None = None
    bounds: tuple[float, float] | None = None  # public bounds, instead of that interval

    def event(self, records: int) -> dp.DpEvent:
        """The privacy event, for units of so many records."""
        event = self.chosen.event
        if not isinstance(self.chosen, ManyQuantiles):  # for the ε of one record
            event = for_units(event, records)
        return composed([*([] if self.scaled is None else self.scaled.events), event])

    def release(self, records: Column, noise: Noise) -> Any:
        """Release the scale, if it is asked for, and the quantiles.

        Answers are on the scale; intervals are of the records where they are, and may reach beyond.
        """
        if isinstance(self.chosen, ManyQuantiles):
            return self._many(self.chosen, records, noise)
        if self.scaled is None:
            return self.chosen.release(records, noise)
        sizes = records.half_octaves()
        known = self.scaled.released_count(sizes[1], noise)
        among = self.scaled.release(records, noise, sizes, known)
        assert not isinstance(self.chosen, ExponentialRange)  # its quartiles are in no tail
        # The number is larger than this above the true one with a probability of 1 % at most.
        error = self.scaled.size.scale(self.scaled.narrow.records) * math.log(50)
        chosen: Any = attrs.evolve(
            self.chosen,
            measure=_measure(among, records.scale),
            all_values=self.chosen.measure,
            least_count=known - error,
        )
        found = chosen.release(records, noise)
        return attrs.evolve(found, among=among) if isinstance(found, Selected) else found

    def _many(self, chosen: ManyQuantiles, records: Column, noise: Noise) -> tuple[Selected, ...]:
        """Many quantiles, among the points of the bounds or of the interval."""
        ends = self.bounds if self.scaled is None else self.scaled.release(records, noise)
        assert ends is not None
        points, whole = Points.read(records, ends, chosen.points), records.scale.whole
        found = chosen.release(points, noise, between=not whole)
        return tuple(placed(points, one, ends, whole, self.scaled is None) for one in found)


def chosen_value(
    selected: Selected, confidence: float, scale: Scale, difference: bool = False
) -> Released:
    """A number that was chosen by rank, as a value of its column with the interval around it."""
    number, spread = selected.value, None
    if selected.interval is not None:
        known = ReleasedInterval(*selected.interval, confidence, selected.whole)
        spread = ScaledSpread(number, known, scale, difference)
    value = scale.difference(number) if difference else scale.value(number)
    return Released(value, Branch.SELECTED, spread=spread)


def _measure(ends: tuple[float, float], scale: Scale) -> Measure:
    """The values of a column between released ends."""
    if not scale.whole:
        return DoubleMeasure(ends)
    lattice = scale.lattice()
    first, last = lattice.steps(list(ends)).tolist()
    return LatticeMeasure(attrs.evolve(lattice, low=min(first, last - 1), high=last))


def _scaled(
    request: Request, records: Column, *ps: Fraction, always: bool = False
) -> tuple[float, PrivateInterval | None]:
    """What is left of ε, and how a scale is found, if a quantile needs one."""
    middle = all(min(p, 1 - p) >= _TAIL for p in ps) and not always
    if request.bounds is not None or middle:
        return request.epsilon, None
    wide, narrow, rest = shares_of(request.epsilon, WIDE_SHARE, NARROW_SHARE)
    halvings = _MANY_HALVINGS if always else _HALVINGS
    return rest, PrivateInterval.of(records, wide, narrow, steepest=_STEEPEST, halvings=halvings)


def _interval(request: Request, share: float = INTERVAL_SHARE) -> tuple[float, float]:
    """The fraction of ε for an interval, and its confidence; nothing for one of confidence 0."""
    return (share, request.confidence) if request.confidence else (0.0, CONFIDENCE)


def _choice(request: Request, records: Column) -> Measure:
    """The values an answer may take; options of the test are refused.

    A unit with several records shares ε between them, since ranges add up.
    """
    _validate.between(1e-3, 50, epsilon=request.epsilon)
    if request.fallback:
        raise _validate.ArgumentError(
            "fallback", "with propose only", got=True, why="without a proposal nothing is tested"
        )
    if records.scale.whole:
        return LatticeMeasure(records.scale.lattice(request.bounds))
    return DoubleMeasure(request.bounds)


def _priced(
    name: str,
    mechanism: QuantileSelector,
    rank_error: int,
    request: Request,
    records: Column,
    *notes: str,
) -> Priced:
    preview = Preview(
        statistic=name,
        mechanism="exponential",
        epsilon=request.epsilon,
        event=mechanism.event(records.contribution.records),
        rank_error=rank_error,
        notes=notes,
    )
    return Priced(preview=preview, mechanism=mechanism)


@attrs.frozen
class QuantileRobustness(Statistic):
    """How many records a quantile withstands within an interval."""

    p: Fraction
    low: Any
    high: Any

    @override
    def price(self, request: Request, records: Column) -> Priced:
        mechanism = DistanceRelease(epsilon=request.epsilon, confidence=request.confidence)
        low, high = self._ends(records.scale)
        check_single(records, "a certificate", "the certificate")
        if not low <= high or (low, high) == (-math.inf, math.inf):
            raise _validate.ArgumentError(
                "low",
                "at most high, and at least one of the two",
                shown=f"low={self.low!r} and high={self.high!r}",
                hint="They are the ends of the interval that is certified.",
            )
        preview = Preview(
            statistic=f"certificate of a {margins.title(self.p)}",
            mechanism="laplace",
            epsilon=mechanism.epsilon,
            event=mechanism.event,
            noise_scale=math.sqrt(2) / mechanism.epsilon,
        )
        return Priced(preview=preview, mechanism=mechanism)

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Released:
        ends = self._ends(records.scale)
        shown = [None if math.isinf(end) else records.scale.value(end) for end in ends]
        distance = quantile_distance(records, self.p, *ends)
        certificate = priced.mechanism.release(distance, *shown, noise=noise)
        return Released(
            certificate.needed,
            Branch.ROBUST,
            math.sqrt(2) / priced.mechanism.epsilon,
            1.0,
            certificate=certificate,
        )

    def _ends(self, scale: Scale) -> tuple[float, float]:
        return (
            -math.inf if self.low is None else scale.number(self.low, "low"),
            math.inf if self.high is None else scale.number(self.high, "high"),
        )


COUNT_SHARE = 0.1
"""The fraction of ε for the count that tells how extreme a quantile may be."""

_EXTREME = Fraction(999_999, 10**6)  # a probability has six decimals


@attrs.frozen
class Extreme(Statistic):
    """A quantile as extreme as its rank error allows."""

    lowest: bool

    @override
    def price(self, request: Request, records: Column) -> Priced:
        count, rest = shares_of(_validate.positive(epsilon=request.epsilon), COUNT_SHARE)
        mechanism = AdditiveMechanism.calibrate(count)
        quantile = self._at(_EXTREME).price(attrs.evolve(request, epsilon=rest), records)
        event = dp.ComposedDpEvent([mechanism.event, quantile.preview.event])
        public = attrs.evolve(
            quantile.preview,
            statistic="minimum" if self.lowest else "maximum",
            epsilon=request.epsilon,
            event=event,
        )
        return Priced(preview=public, mechanism=(mechanism, quantile))

    def _at(self, p: Fraction) -> Quantile:
        return Quantile(1 - p if self.lowest else p)

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Released:
        mechanism, quantile = priced.mechanism
        (counted,) = mechanism.noisy([records.count()], records.contribution.records, noise)
        depth = quantile.preview.rank_error or 1
        share = 1 - Fraction(depth, max(1, counted))
        p = max(Fraction(1, 2), min(_EXTREME, Fraction(math.floor(share * 10**6), 10**6)))
        chosen = self._at(p)
        choosing = quantile.mechanism
        placed = attrs.evolve(choosing, chosen=attrs.evolve(choosing.chosen, p=chosen.p))
        found = chosen.answer(attrs.evolve(quantile, mechanism=placed), records, noise)
        assert isinstance(found, Released)
        side = "below" if self.lowest else "above"
        beyond = math.ceil(float(1 - p) * max(1, counted))
        note = (
            f"This is the {margins.title(chosen.p)}: about {beyond:,} records lie {side} it. The "
            f"{priced.preview.statistic} itself is the value of one record, so it is private."
        )
        return attrs.evolve(found, notes=(*found.notes, note))
