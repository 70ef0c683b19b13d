"""Private counts, sums, means, shares and variances, by noise on exact sums of clipped values.

With public bounds the values are clipped to them. Without, the bounds are private, and a part of ε
pays for them (see `prudent.release.moment_sums`) and for the share of values that they clip.
The interval is about the clipped values. Nothing is tested, so nothing is refused, and with Laplace
noise there is no δ.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, ClassVar, Literal, cast

import attrs
import dp_accounting as dp
from typing_extensions import override

from prudent import _validate
from prudent._rounding import exact, outward, rounded_up
from prudent.accounting._numeric import float_below
from prudent.release.charging import Preview
from prudent.release.columns.column import Column, Kind, Pool
from prudent.release.columns.scales import NUMBER
from prudent.release.exponential.interval import PrivateInterval
from prudent.release.moment_sums import (
    CONFIDENCE,
    ClippedShare,
    ClippedTotal,
    Clipping,
    Moment,
    Moments,
    MomentSpread,
    MomentSums,
    OctaveSums,
    fine_lattice,
)
from prudent.release.noise import (
    LARGEST_EPSILON,
    SMALLEST_EPSILON,
    AdditiveMechanism,
    Distribution,
    Noise,
    composed,
    shares_of,
)
from prudent.release.outcome import (
    Branch,
    CountSpread,
    NoiseSpread,
    Released,
    ScaledSpread,
    UnknownSpread,
)
from prudent.release.request import Priced, Request, Statistic, repeated

WIDE_SHARE, NARROW_SHARE = 0.12, 0.16
"""Fractions of ε for the two steps that find private bounds, if none are given."""

CLIPPED_SHARE = 0.03
"""The fraction of ε for the share of values that private bounds clip; the rest is for the noise."""

_MEAN_WIDE_SHARE = 0.09  # of a mean or a sum, instead of `WIDE_SHARE`
_MEAN_INTERVAL: dict[str, Any] = {"size_share": 0.19, "farther": 2.0}
_OF_GROUPS = 0.5  # of these fractions, with groups: bounds that all of them share cost each less
_HALVINGS = 8  # with groups, in the second step: one less, since less of ε keeps bounds wide
_FEW = 160.0  # records times ε: for fewer no bounds of a mean or a sum are sought (`OctaveSums`)
_WIDE, _NARROW = 1 / 2, 1 / 4  # of the bounds: intervals of too few records, and of enough
_MANY, _STEEPEST = 1e4, 5.0  # records times ε from which on narrower bounds are preferred: their s


@attrs.frozen
class Count(Statistic):
    """The number of records."""

    title: ClassVar[str] = "count"

    @override
    def kind(self, request: Request) -> Kind:
        return "rows" if request.column is None else "categories"

    def number(self, records: Column) -> int:
        """What is counted; a record changes it by at most 1."""
        return records.count()

    @override
    def price(self, request: Request, records: Column) -> Priced:
        mechanism = additive(request)
        spread = _spread_of_counts(mechanism, records)
        return Priced(
            preview=preview(self.title, mechanism, request, mechanism.event, spread),
            mechanism=mechanism,
        )

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Released:
        mechanism = priced.mechanism
        spread = _spread_of_counts(mechanism, records)
        (noisy,) = mechanism.noisy([self.number(records)], records.contribution.records, noise)
        return Released(
            max(0, noisy),  # nearer to the truth, which is not negative either
            Branch.ROBUST,
            spread.deviation,
            1.0,
            spread=CountSpread(noisy, spread),
        )


@attrs.frozen
class Distinct(Count):
    """The number of different values."""

    title: ClassVar[str] = "count of distinct values"

    @override
    def kind(self, request: Request) -> Kind:
        return "sets"

    @override
    def price(self, request: Request, records: Column) -> Priced:
        rows = request.per_unit
        if request.unit is not None and (isinstance(rows, bool) or not isinstance(rows, int)):
            raise _validate.ArgumentError(
                "per_unit",
                "how many values of one unit count, with unit",
                got=rows,
                hint="Give per_unit=3, for example.",
            )
        return super().price(request, records)

    @override
    def number(self, records: Column) -> int:
        return records.distinct()


def _spread_of_counts(mechanism: AdditiveMechanism, records: Column) -> NoiseSpread:
    """The spread of a noisy count of records."""
    return NoiseSpread(mechanism.distribution, mechanism.scale(records.contribution.records), 1.0)


@attrs.frozen
class OfClipped(Statistic):
    """A statistic of clipped values, whose private bounds are those of all groups together.

    Guarantee:
        The bounds, and the share of values outside of them, are released from the pool, calibrated
        to what a unit contributes to it; the sums are released from each group. So tables that
        differ by a unit cost the former once, and the sums as often as it is in groups.
    """

    @override
    def prepare(self, priced: Priced, pool: Column, noise: Noise) -> Priced:
        parts: _Parts = priced.mechanism  # then with the bounds; None for too few records
        return attrs.evolve(priced, mechanism=(parts, parts.ends(pool, noise)))

    @override
    def finish(
        self, priced: Priced, pool: Column, outcomes: list[Any], noise: Noise
    ) -> Sequence[Any]:
        share = self.clipped_share(priced, pool, noise)
        if share is None:
            return outcomes
        note = str(share) if len(outcomes) == 1 else f"All groups together: {share}"
        return [
            attrs.evolve(
                each,
                # Where half of the values or more may have been clipped, the bounds are arbitrary,
                # and what follows from the clipped values would mislead: it is not shown.
                spread=UnknownSpread(each.spread) if share.interval is None else each.spread,
                clipped_share=share.interval,
                notes=(*each.notes, note),
            )
            for each in outcomes
        ]

    def clipped_share(self, priced: Priced, pool: Column, noise: Noise) -> ClippedShare | None:
        """The share of values outside of private bounds; None if there are none."""
        parts, ends = priced.mechanism
        if parts.share is None or ends is None:
            return None
        return ClippedShare.release(pool, ends, parts.share, noise)


@attrs.frozen
class Total(OfClipped):
    """The sum of clipped values."""

    @override
    def price(self, request: Request, records: Column) -> Priced:
        if records.scale.kind in ("date", "timestamp"):
            raise _validate.ArgumentError(
                "column", "of numbers or durations", shown="dates or times", why="dates have no sum"
            )
        parts = _Parts.of(request, records, few=True)
        spread = None
        if parts.clipping.given is not None:
            total = ClippedTotal.between(parts.clipping.given, records.contribution.records)
            spread = total.spread(parts.sums)
        notes = parts.needs(records)
        public = preview("sum", parts.sums, request, parts.event, spread, *notes)
        return Priced(preview=public, mechanism=parts, of_all_groups=True)

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Released:
        parts, ends = priced.mechanism
        if ends is None:
            return _of_few("sum", parts, records, noise)
        if parts.clipping.given is None:  # the bound that is nearer to zero costs nothing
            ends = -max(map(abs, ends)), max(map(abs, ends))
        total = ClippedTotal.between(ends, records.contribution.records)
        (noisy,) = parts.sums.noisy([total.read(records, ends)], total.sensitivity, noise)
        number, spread = total.lattice.value(noisy), total.spread(parts.sums)
        return Released(
            records.scale.value(number),
            Branch.ROBUST,
            spread.deviation,
            total.lattice.spacing,
            spread=ScaledSpread(number, spread, records.scale),
            about=f"the sum of {clipped_values(ends, records)}",
        )


@attrs.frozen
class OneMoment(OfClipped):
    """A moment of clipped values, from sums of one degree."""

    which: Moment
    degree: int

    @override
    def price(self, request: Request, records: Column) -> Priced:
        parts = _Parts.of(request, records, few=self.degree == 1)
        later = (
            "The noise is inversely proportional to the number of records, so its size is known "
            "only after the release."
        )
        notes = later, *parts.needs(records)
        public = preview(self.which, parts.sums, request, parts.event, None, *notes)
        return Priced(preview=public, mechanism=parts, of_all_groups=True)

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Released:
        parts, ends = priced.mechanism
        if ends is None:
            return _of_few("mean", parts, records, noise)
        moments = released_moments(self.degree, ends, records, parts.sums, noise)
        spread = MomentSpread(moments, self.which, records.scale)
        return Released(
            spread.value,
            Branch.ROBUST,
            spread.deviation,
            moments.spacing,
            spread=spread,
            about=f"the {self.which} of {clipped_values(ends, records)}",
            notes=_too_few(moments) if self.which == "mean" else (),
        )


@attrs.frozen
class Proportion(OneMoment):
    """The share of records that are true: the mean of booleans."""

    which: Moment = attrs.field(default="mean", init=False)
    degree: int = attrs.field(default=1, init=False)

    @override
    def kind(self, request: Request) -> Kind:
        return "truth"

    @override
    def price(self, request: Request, records: Column) -> Priced:
        priced = super().price(request, records)
        return attrs.evolve(priced, preview=attrs.evolve(priced.preview, statistic="proportion"))

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Released:
        return attrs.evolve(super().answer(priced, records, noise), about=None)


def _too_few(moments: Moments) -> tuple[str, ...]:
    """How many records would do, where the noise leaves most of the bounds as the interval.

    It follows from what was released. An interval with corners at a distance r of the count, as a
    fraction of it, is at most r/(1 - r) of the bounds wide.
    """
    low, high = moments.mean_interval(CONFIDENCE)
    if high - low <= _WIDE * moments.width:
        return ()
    origin = attrs.evolve(moments.region, centre=(0.0,) * len(moments.region.centre))
    radius = max(abs(sum(vertex)) for vertex in origin.vertices(CONFIDENCE))
    enough = int(float(rounded_up(radius * (1 + _NARROW) / _NARROW, 2)))
    return (
        f"Too few records for a mean at this ε: its interval is most of the bounds. With about "
        f"{enough:,} records it is a quarter of them.",
    )


def released_moments(
    degree: int,
    ends: tuple[float, float],
    records: Column,
    mechanism: AdditiveMechanism,
    noise: Noise,
) -> Moments:
    """Release the sums of one degree of the values clipped to public or released bounds."""
    sums = MomentSums(degree, fine_lattice(ends), records.contribution.records)
    noisy = mechanism.noisy(sums.read(records, ends), sums.sensitivity, noise)
    return sums.moments(noisy, mechanism.scale(sums.sensitivity), mechanism.distribution)


def additive(request: Request, epsilon: float | None = None) -> AdditiveMechanism:
    """Return the mechanism of these options, checked; `epsilon` is a part of theirs."""
    whole = _validate.between(SMALLEST_EPSILON, LARGEST_EPSILON, epsilon=request.epsilon)
    part = whole if epsilon is None else epsilon
    return AdditiveMechanism.calibrate(part, request.delta, request.distribution)


@attrs.frozen(kw_only=True)
class _Parts:
    """The mechanisms of a sum or a moment, between which ε is divided."""

    clipping: Clipping  # how values are clipped; private bounds are paid for
    # Releases the share of clipped values; None if the bounds are given.
    share: AdditiveMechanism | None
    sums: AdditiveMechanism  # the noise of the sums
    few: float = 0.0  # the number of records below which no private bounds are looked for
    fold: int = 1  # the number of groups in which a unit pays for the sums

    @classmethod
    def of(cls, request: Request, records: Column, *, few: bool = False) -> "_Parts":
        """Divide ε between private bounds and the noise of the sums; given bounds cost nothing."""
        whole, fold = additive(request), request.fold  # checks ε, δ and the distribution
        if request.bounds is not None:
            clipping = Clipping.to(request.bounds, records.scale)
            return cls(clipping=clipping, share=None, sums=whole, fold=fold)
        part = 1.0 if request.by is None else _OF_GROUPS
        bounds = part * (_MEAN_WIDE_SHARE if few else WIDE_SHARE), part * NARROW_SHARE
        *shares, rest = shares_of(request.epsilon, *bounds, CLIPPED_SHARE)
        wide, narrow, share = (float_below(Fraction(each) * fold) for each in shares)
        pool, others = cast(Column, Pool([records], fold)), _MEAN_INTERVAL if few else {}
        if request.by is not None:
            others = others | {"halvings": _HALVINGS}
        return cls(
            clipping=Clipping(interval=PrivateInterval.of(pool, wide, narrow, **others)),
            share=AdditiveMechanism.calibrate(share),
            sums=additive(request, rest),
            few=_FEW / part * records.contribution.records / request.epsilon if few else 0.0,
            fold=fold,
        )

    @property
    def event(self) -> dp.DpEvent:
        """The event of a unit in all its groups."""
        share = [] if self.share is None else [self.share.event]
        return composed([*self.clipping.events, *share, repeated(self.sums.event, self.fold)])

    def ends(self, pool: Column, noise: Noise) -> tuple[float, float] | None:
        """The bounds; None where there are too few records for private ones."""
        interval = self.clipping.interval
        if interval is None or not self.few:
            return self.clipping.ends(pool, noise)
        sizes = pool.half_octaves()
        known = interval.released_count(sizes[1], noise)
        if known < self.few:
            return None
        if known > self.few * _MANY / _FEW:
            interval = attrs.evolve(interval, steepest=_STEEPEST)
        return interval.release(pool, noise, sizes, known)

    def needs(self, records: Column) -> tuple[str, ...]:
        """How many records an interval needs, if the bounds are private."""
        if self.share is None:
            return ()
        units = records.contribution.records * self.fold
        enough = ClippedShare.enough_records(self.share, units)
        return (f"With fewer than about {enough:,} records there may be no interval.",)


def _of_few(
    which: Literal["mean", "sum"], parts: _Parts, records: Column, noise: Noise
) -> Released:
    """The mean or the sum where there are too few records for private bounds.

    Neither the ε of the bounds nor that of the share of clipped values is used then.
    """
    own, scale = records.contribution, records.scale
    if scale.kind == "integer" and own.unit is not None and own.per_unit == "mean":
        scale = NUMBER  # the mean of a unit is no whole number
    sums = OctaveSums(scale, own.records)
    found = sums.release(which, records, parts.sums, noise)
    shown = (outward(*map(records.scale.value, ends)) for ends in found.ranges)
    about = " and ".join(
        f"equal to {low}" if low == high else f"from about {low} to {high}" for low, high in shown
    )
    note = (
        f"Too few records for private bounds at this ε: values were looked for at all sizes, those "
        f"{about} are in the {which}, and others were left out. With public bounds all are in it, "
        f"and it has an interval."
    )
    return Released(
        records.scale.value(found.value),
        Branch.ROBUST,
        found.deviation,
        spread=UnknownSpread(ScaledSpread(found.value, found, records.scale)),
        about=f"the {which} of the values {about}",
        notes=(note,),
    )


def clipped_values(ends: tuple[float, float], records: Column) -> str:
    """The values that a statistic is about, in words."""
    low, high = (exact(records.scale.value(end)) for end in ends)
    return f"the values clipped to [{low}, {high}]"


def preview(
    name: str,
    mechanism: AdditiveMechanism,
    request: Request,
    event: dp.DpEvent,
    spread: NoiseSpread | None = None,
    *notes: str,
) -> Preview:
    """What is known of a release with additive noise, before the data are read."""
    return Preview(
        statistic=name,
        mechanism=mechanism.distribution.value,
        epsilon=request.epsilon,
        delta=0.0 if mechanism.distribution is Distribution.LAPLACE else request.required_delta,
        event=event,
        noise_scale=None if spread is None else spread.deviation,
        half_width=None if spread is None else spread.half_width(0.95),
        notes=notes,
    )
