"""How a quantile without a proposal is released: by the exponential mechanism."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from prudent import _validate
from prudent._rounding import rounded_up
from prudent.accounting._numeric import float_share
from prudent.release.columns.column import Column
from prudent.release.columns.scales import Scale
from prudent.release.noise import Noise
from prudent.release.outcome import Branch, Released, ReleasedInterval, ScaledSpread
from prudent.release.preview import Preview
from prudent.release.request import Certification, Options, Prepared
from prudent.release.selection.measure import DoubleMeasure, LatticeMeasure, Measure
from prudent.release.selection.quantile import ExponentialQuantile, Selected
from prudent.release.selection.quantiles import ExponentialQuantiles, ExponentialRange
from prudent.release.statistics.tested import bounds
from prudent.release.sums.winsorising import for_units

_MEANINGLESS = ("fallback", "test", "failure")

_SEVERAL_SHARE = 0.25
"""Fraction of ε for the intervals of several quantiles, which each get a small part of it."""


def prepared_quantile(
    name: str,
    p: Fraction,
    options: Options,
    records: Column,
    certification: Certification | None,
) -> Prepared:
    """Return the release of one quantile."""
    _check(options)
    mechanism = ExponentialQuantile(
        p,
        _per_record(options, records),
        measure_of(records.scale, options),
        confidence=options.get("confidence", 0.95),
    )
    event = for_units(mechanism.event, records.contribution.records)

    def answer(records: Column, noise: Noise) -> Released:
        found = mechanism.release(records, noise)
        return _released(found, records.scale, mechanism.confidence, event)

    enough = int(float(rounded_up(mechanism.enough_records, 2)))
    few = f"With fewer than about {enough:,} records there may be no interval."
    preview = Preview(
        statistic=name,
        mechanism="exponential",
        epsilon=options["epsilon"],
        delta=0.0,
        event=event,
        rank_error=mechanism.rank_error(),
        notes=(few,),
    )
    return Prepared(preview=preview, answer=answer, certification=certification)


def prepared_quantiles(ps: Sequence[Any], options: Options, records: Column) -> Prepared:
    """Return the release of several quantiles."""
    _check(options)
    mechanism = ExponentialQuantiles(
        ps,
        _per_record(options, records),
        measure_of(records.scale, options),
        interval_share=_SEVERAL_SHARE,
        confidence=options.get("confidence", 0.95),
    )
    event = for_units(mechanism.event, records.contribution.records)

    def answer(records: Column, noise: Noise) -> Released:
        scale, found = records.scale, mechanism.release(records, noise)
        intervals = tuple(
            None if one.useless or one.interval is None else scale.ends(*one.interval)
            for one in found
        )
        return Released(
            tuple(scale.value(one.value) for one in found),
            Branch.SELECTED,
            0.0,
            0.0,
            event,
            "exponential",
            intervals=intervals,
        )

    preview = Preview(
        statistic="quantiles",
        mechanism="exponential",
        epsilon=options["epsilon"],
        delta=0.0,
        event=event,
        rank_error=max(part.rank_error() for part in mechanism.parts),
    )
    return Prepared(preview=preview, answer=answer)


def prepared_range(options: Options, records: Column) -> Prepared:
    """Return the release of an interquartile range."""
    _check(options)
    mechanism = ExponentialRange(
        _per_record(options, records),
        measure_of(records.scale, options),
        confidence=options.get("confidence", 0.95),
    )
    event = for_units(mechanism.event, records.contribution.records)

    def answer(records: Column, noise: Noise) -> Released:
        number, interval, useless = mechanism.release(records, noise)
        spread = None
        if interval is not None:
            known = ReleasedInterval(*interval, mechanism.confidence, useless)
            spread = ScaledSpread(number, known, records.scale, difference=True)
        return Released(
            records.scale.difference(number),
            Branch.SELECTED,
            0.0,
            0.0,
            event,
            "exponential",
            spread,
        )

    preview = Preview(
        statistic="iqr",
        mechanism="exponential",
        epsilon=options["epsilon"],
        delta=0.0,
        event=event,
        rank_error=max(part.rank_error() for part in mechanism.quartiles.parts),
    )
    return Prepared(preview=preview, answer=answer)


def measure_of(scale: Scale, options: Options) -> Measure:
    """The values an answer may take: those of the column's type, within public bounds."""
    if scale.whole:
        return LatticeMeasure(scale.lattice(options.get("bounds")))
    return DoubleMeasure(bounds(options, scale))


def _check(options: Options) -> None:
    """Refuse options of the test, which would silently do nothing."""
    _validate.between(1e-3, 50, epsilon=options["epsilon"])
    for name in _MEANINGLESS:
        if options.get(name) is not None and options.get(name) is not False:
            raise _validate.ArgumentError(
                name,
                "with propose only",
                got=options.get(name),
                why="without a proposal nothing is tested",
            )


def _per_record(options: Options, records: Column) -> float:
    """ε for one record: a unit with several of them shares it, since ranges add up."""
    return float_share(options["epsilon"], records.contribution.records)


def _released(found: Selected, scale: Scale, confidence: float, event: Any) -> Released:
    spread = None
    if found.interval is not None:
        known = ReleasedInterval(*found.interval, confidence, found.useless)
        spread = ScaledSpread(found.value, known, scale)
    return Released(
        scale.value(found.value),
        Branch.SELECTED,
        0.0,
        0.0,
        event,
        "exponential",
        spread,
    )
