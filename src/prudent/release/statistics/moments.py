"""Private counts, sums, means and variances, by noise on exact sums of clipped values.

With public bounds the values are clipped to them. Without, the bounds are private, and a part of ε
pays for them (see `prudent.release.sums.winsorising`) and for the share of values that they clip.
The interval is about the clipped values. Nothing is tested, so nothing is refused, and with Laplace
noise there is no δ.
"""

from collections.abc import Mapping
from typing import Any, Unpack

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent._rounding import exact
from prudent.release import request
from prudent.release.columns.column import Column
from prudent.release.noise import Distribution, Noise
from prudent.release.outcome import (
    Branch,
    CountSpread,
    NoiseSpread,
    Released,
    ScaledSpread,
    UnknownSpread,
)
from prudent.release.preview import Preview
from prudent.release.request import Answer, Prepared, Price, TableOptions, statistic
from prudent.release.sums.additive import (
    LARGEST_EPSILON,
    SMALLEST_EPSILON,
    AdditiveMechanism,
    shares_of,
)
from prudent.release.sums.clipped_share import ClippedShare
from prudent.release.sums.clipped_total import ClippedTotal
from prudent.release.sums.moment_sums import Moment, Moments, MomentSpread, MomentSums, fine_lattice
from prudent.release.sums.winsorising import Clipping

CENTRE_SHARE, RADIUS_SHARE = 0.42, 0.25
"""Fractions of ε that private bounds cost, if none are given."""

TOTAL_SHARE = 0.47
"""The fraction of ε that the private bound of a sum costs."""

CLIPPED_SHARE = 0.05
"""The fraction of ε for the share of values that private bounds clip; the rest is for the noise."""


class CountOptions(Price, TableOptions, total=False):
    """Keyword arguments of `count`; see `Price` and `TableOptions`.

    Attributes:
        distribution: Distribution of the noise: Laplace, or Gaussian when very many releases share a budget.
            Gaussian noise needs `delta`.
    """

    distribution: Distribution


class MomentOptions(CountOptions, total=False):
    """Keyword arguments of `sum`, `mean` and `variance`; see also `CountOptions`.

    Attributes:
        bounds: Public bounds (low, high); values outside are clipped to them. None: the bounds are
            private, and so is the share of values outside, which are moved to them.
    """

    bounds: tuple[Any, Any] | None


@statistic(CountOptions, kind="categories")
def count(data: Any = None, column: str | None = None, **options: Unpack[CountOptions]) -> Answer:
    """Release the number of records that have a value, of any type.

    Args:
        data: See `median`.
        column: The column whose values are counted; None counts persons (`unit`), or the rows that
            have a group (`by`).
        **options: See `CountOptions`.

    Returns:
        `Released` with a whole number of at least 0; with `by`, a dictionary with one per group.
    """
    mechanism = additive(options)
    if column is None:
        unit = options.get("unit")
        column = options.get("by") if unit is None else unit

    def prepare(records: Column) -> Prepared:
        sensitivity = records.contribution.records
        spread = NoiseSpread(mechanism.distribution, mechanism.scale(sensitivity), 1.0)

        def answer(records: Column, noise: Noise) -> Released:
            (noisy,) = mechanism.noisy([records.count()], sensitivity, noise)
            return Released(
                max(0, noisy),  # nearer to the truth, which is not negative either
                Branch.ROBUST,
                spread.deviation,
                1.0,
                mechanism.event,
                mechanism.distribution.value,
                CountSpread(noisy, spread),
            )

        return Prepared(
            preview=_preview("count", mechanism, options, mechanism.event, spread), answer=answer
        )

    return request.release(prepare, data, column, options, kind="categories")


@statistic(MomentOptions)
def sum(data: Any = None, column: str | None = None, **options: Unpack[MomentOptions]) -> Answer:
    """Release the sum of the clipped values.

    Args:
        data: See `median`.
        column: See `median`.
        **options: See `MomentOptions`. Without bounds, values are clipped to a private interval
            around zero: one record adds at most the bound that is farther from zero, so the other
            one costs nothing.
    """

    def prepare(records: Column) -> Prepared:
        if records.scale.kind in ("date", "timestamp"):
            raise _validate.ArgumentError(
                "column", "of numbers or durations", shown="dates or times", why="dates have no sum"
            )
        parts = _parts(records, options, 0.0, TOTAL_SHARE)
        clipping, mechanism = parts.clipping, parts.sums

        def answer(records: Column, noise: Noise) -> Released:
            ends = clipping.ends(records, noise)
            total = ClippedTotal.between(ends, records.contribution.records)
            (noisy,) = mechanism.noisy([total.read(records)], total.sensitivity, noise)
            number, spread = total.lattice.value(noisy), total.spread(mechanism)
            found = Released(
                records.scale.value(number),
                Branch.ROBUST,
                spread.deviation,
                total.lattice.spacing,
                parts.event,
                mechanism.distribution.value,
                ScaledSpread(number, spread, records.scale),
                about=f"the sum of {clipped_values(ends, records)}",
            )
            return parts.with_share(found, ends, records, noise)

        spread = None
        if clipping.given is not None:
            total = ClippedTotal.between(clipping.given, records.contribution.records)
            spread = total.spread(mechanism)
        notes = parts.needs(records)
        preview = _preview("sum", mechanism, options, parts.event, spread, notes)
        return Prepared(preview=preview, answer=answer)

    return request.release(prepare, data, column, options)


@statistic(MomentOptions)
def mean(data: Any = None, column: str | None = None, **options: Unpack[MomentOptions]) -> Answer:
    """Release the mean of the clipped values.

    Args:
        data: See `median`.
        column: See `median`.
        **options: See `MomentOptions`. Without bounds, values are clipped to a private interval
            around the median; see `prudent.release.sums.winsorising`.
    """
    return _moment("mean", 1, data, column, options)


@statistic(MomentOptions)
def variance(
    data: Any = None, column: str | None = None, **options: Unpack[MomentOptions]
) -> Answer:
    """Release the variance of the clipped values: their mean square distance from their mean.

    Args:
        data: See `median`.
        column: See `median`.
        **options: See `MomentOptions`. Without bounds, values are clipped to a private interval
            around the median; see `prudent.release.sums.winsorising`.
    """
    return _moment("variance", 2, data, column, options)


def _moment(
    which: Moment, degree: int, data: Any, column: str | None, options: MomentOptions
) -> Answer:
    def prepare(records: Column) -> Prepared:
        parts = _parts(records, options, CENTRE_SHARE, RADIUS_SHARE)
        mechanism = parts.sums

        def answer(records: Column, noise: Noise) -> Released:
            ends = parts.clipping.ends(records, noise)
            moments = released_moments(degree, ends, records, mechanism, noise)
            spread = MomentSpread(moments, which, records.scale)
            found = Released(
                spread.value,
                Branch.ROBUST,
                spread.deviation,
                moments.spacing,
                parts.event,
                mechanism.distribution.value,
                spread,
                about=f"the {which} of {clipped_values(ends, records)}",
            )
            return parts.with_share(found, ends, records, noise)

        notes = (
            "The noise is inversely proportional to the number of records, so its size is known "
            "only after the release.",
            *parts.needs(records),
        )
        preview = _preview(which, mechanism, options, parts.event, None, notes)
        return Prepared(preview=preview, answer=answer)

    return request.release(prepare, data, column, options)


def released_moments(
    degree: int,
    ends: tuple[float, float],
    records: Column,
    mechanism: AdditiveMechanism,
    noise: Noise,
) -> Moments:
    """Release the sums of one degree of the values clipped to public or released bounds."""
    sums = MomentSums(degree, fine_lattice(ends), records.contribution.records)
    noisy = mechanism.noisy(sums.read(records), sums.sensitivity, noise)
    return sums.moments(noisy, mechanism.scale(sums.sensitivity), mechanism.distribution)


def additive(options: CountOptions, epsilon: float | None = None) -> AdditiveMechanism:
    """Return the mechanism of these options, checked; `epsilon` is a part of theirs."""
    whole = _validate.between(SMALLEST_EPSILON, LARGEST_EPSILON, epsilon=options["epsilon"])
    part = whole if epsilon is None else epsilon
    distribution = options.get("distribution", Distribution.LAPLACE)
    return AdditiveMechanism.calibrate(part, options.get("delta"), distribution)


@attrs.frozen(kw_only=True)
class _Parts:
    """The mechanisms of a sum or a moment, between which ε is divided.

    Attributes:
        clipping: How values are clipped; private bounds are paid for.
        share: Releases the share of clipped values; None if the bounds are given.
        sums: The noise of the sums.
    """

    clipping: Clipping
    share: AdditiveMechanism | None
    sums: AdditiveMechanism

    @property
    def event(self) -> dp.DpEvent:
        share = [] if self.share is None else [self.share.event]
        events = [*self.clipping.events, *share, self.sums.event]
        return events[0] if len(events) == 1 else dp.ComposedDpEvent(events)

    def needs(self, records: Column) -> tuple[str, ...]:
        """How many records an interval needs, if the bounds are private."""
        if self.share is None:
            return ()
        enough = ClippedShare.enough_records(self.share, records.contribution.records)
        return (f"With fewer than about {enough:,} records there may be no interval.",)

    def with_share(
        self, released: Released, ends: tuple[float, float], records: Column, noise: Noise
    ) -> Released:
        """The answer with the share of values that private bounds clipped.

        Where there are too few records to tell the share, the bounds are arbitrary, and an interval
        about the clipped values would mislead: there is none.
        """
        if self.share is None:
            return released
        found = ClippedShare.release(records, ends, self.share, noise)
        spread = UnknownSpread(released.spread) if found.interval is None else released.spread
        return attrs.evolve(
            released, spread=spread, clipped_share=found.interval, notes=(str(found),)
        )


def _parts(records: Column, options: MomentOptions, *shares: float) -> _Parts:
    """Divide ε between private bounds and the noise of the sums; given bounds cost nothing."""
    bounds = options.get("bounds")
    if bounds is not None:
        clipping = Clipping.to(bounds, records.scale)
        return _Parts(clipping=clipping, share=None, sums=additive(options))
    additive(options)  # checks ε, δ and the distribution
    centre, radius, share, rest = shares_of(options["epsilon"], *shares, CLIPPED_SHARE)
    return _Parts(
        clipping=Clipping.privately(records, centre, radius),
        share=AdditiveMechanism.calibrate(share),
        sums=additive(options, rest),
    )


def clipped_values(ends: tuple[float, float], records: Column) -> str:
    """The values that a statistic is about, in words."""
    low, high = (exact(records.scale.value(end)) for end in ends)
    return f"the values clipped to [{low}, {high}]"


def _preview(
    name: str,
    mechanism: AdditiveMechanism,
    options: Mapping[str, Any],
    event: dp.DpEvent,
    spread: NoiseSpread | None,
    notes: tuple[str, ...] = (),
) -> Preview:
    return Preview(
        statistic=name,
        mechanism=mechanism.distribution.value,
        epsilon=options["epsilon"],
        delta=0.0 if mechanism.distribution is Distribution.LAPLACE else options["delta"],
        event=event,
        noise_scale=None if spread is None else spread.deviation,
        half_width=None if spread is None else spread.half_width(0.95),
        notes=notes,
    )
