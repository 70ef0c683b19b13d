"""A private summary of a column: count, mean, deviation, quartiles and tails in one release."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Unpack

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent.accounting._numeric import float_share
from prudent.release import request
from prudent.release.columns.column import Column
from prudent.release.columns.scales import Scale
from prudent.release.description import Description
from prudent.release.margins.quantile import HALF, rational
from prudent.release.noise import Distribution, Noise
from prudent.release.outcome import (
    Branch,
    Released,
    ReleasedInterval,
    ScaledSpread,
    UnknownSpread,
)
from prudent.release.preview import Preview
from prudent.release.request import Prepared, statistic
from prudent.release.selection.measure import Measure
from prudent.release.selection.quantile import CONFIDENCE, ExponentialQuantile, Selected
from prudent.release.selection.quantiles import ExponentialQuantiles
from prudent.release.statistics.moments import (
    CountOptions,
    additive,
    clipped_values,
    released_moments,
)
from prudent.release.statistics.tested import converted
from prudent.release.sums.additive import LARGEST_EPSILON, AdditiveMechanism, shares_of
from prudent.release.sums.clipped_share import ClippedShare
from prudent.release.sums.moment_sums import Moment, MomentSpread
from prudent.release.sums.winsorising import (
    PrivateRadius,
    around,
    base_measure,
    for_units,
    measure_between,
)

PROBABILITIES = ("0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99")
"""The quantiles of a description, by default."""

MEDIAN_SHARE, RADIUS_SHARE, CLIPPED_SHARE, QUANTILE_SHARE = 0.24, 0.15, 0.03, 0.34
"""Fractions of ε for the median, the interval around it, the share of values outside of it, and
all other quantiles.

The rest is for the noise of the sums.
"""

_SMALLEST_EPSILON = 0.01  # below, the parts of ε are too small for the exponential mechanism
_INTERVAL_SHARE = 0.25  # of the ε of a quantile
_WIDER = 1.5  # other quantiles are sought within so many radii of the median


@attrs.frozen(kw_only=True, slots=False)
class Plan:
    """How ε is divided among the parts of a description.

    Attributes:
        median: The mechanism of the median.
        radius: The mechanism of the radius around the median, to which values are clipped.
        share: The mechanism of the share of values that are clipped.
        others: The mechanism of the other quantiles, before the values they may take are known;
            None if there are none.
        sums: The mechanism of the moments.
    """

    median: ExponentialQuantile
    radius: PrivateRadius
    share: AdditiveMechanism
    others: ExponentialQuantiles | None
    sums: AdditiveMechanism

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of one description; the values of a measure do not change it."""
        chosen = (
            [self.median.event] if self.others is None else [self.median.event, self.others.event]
        )
        return dp.ComposedDpEvent(
            [
                for_units(dp.ComposedDpEvent(chosen), self.radius.records),
                self.radius.event,
                self.share.event,
                self.sums.event,
            ]
        )


@statistic(CountOptions)
def describe(
    data: Any = None,
    column: str | None = None,
    *,
    ps: Sequence[Any] = PROBABILITIES,
    **options: Unpack[CountOptions],
) -> Description | Preview:
    """Release a summary of a column: count, mean, deviation, quartiles and tails, without bounds.

    First comes the median, for 24 % of ε; then an interval around it that few records lie outside
    of, for 15 %, and their share, for 3 %; then the other quantiles, for 34 %, which are easily
    found near that interval; and the sums of the values clipped to it, for 24 %, from which count,
    mean and deviation follow.

    Args:
        data: See `median`.
        column: See `median`.
        ps: The probabilities of the quantiles, in ascending order; the median is always released.
        **options: See `CountOptions`; `epsilon` is at least 0.01, and the distribution is that of the noise
            of the sums.

    Returns:
        `Description`; with `by`, a dictionary with one per group.
    """
    distribution = options.get("distribution", Distribution.LAPLACE)
    additive(options)  # checks them
    _validate.between(_SMALLEST_EPSILON, LARGEST_EPSILON, epsilon=options["epsilon"])

    def prepare(records: Column) -> Prepared:
        plan = _plan(records, ps, options)

        def answer(records: Column, noise: Noise) -> Any:
            return _described(plan, records, noise)

        preview = Preview(
            statistic="description",
            mechanism=f"exponential, {distribution.value}",
            epsilon=options["epsilon"],
            delta=0.0 if distribution is Distribution.LAPLACE else options["delta"] or 0.0,
            event=plan.event,
        )
        return Prepared(preview=preview, answer=answer)

    return request.release(prepare, data, column, options)  # type: ignore[return-value]


def _plan(records: Column, ps: Sequence[Any], options: CountOptions) -> Plan:
    units, measure = records.contribution.records, base_measure(records.scale)
    exact = [converted("ps", rational, p) for p in _validate.values(ps=ps)]
    others = [p for p in exact if p != HALF]
    shares = MEDIAN_SHARE, RADIUS_SHARE, CLIPPED_SHARE, QUANTILE_SHARE if others else 0.0
    median, radius, share, rest, sums = shares_of(options["epsilon"], *shares)
    return Plan(
        median=ExponentialQuantile(HALF, float_share(median, units), measure),
        radius=PrivateRadius(epsilon=radius, records=units, whole=records.scale.whole),
        share=AdditiveMechanism.calibrate(share),
        others=ExponentialQuantiles(others, float_share(rest, units), measure, _INTERVAL_SHARE)
        if others
        else None,
        sums=additive(options, sums),
    )


def _described(plan: Plan, records: Column, noise: Noise) -> Description:
    median = plan.median.release(records, noise)
    radius = plan.radius.release(records, median.value, noise)
    ends = around(median.value, radius, records.scale)
    share = ClippedShare.release(records, ends, plan.share, noise)
    found = [(HALF, median, plan.median.measure)]
    if plan.others is not None:
        wider = around(median.value, _WIDER * radius, records.scale)
        near = measure_between(wider, records.scale)
        others = attrs.evolve(plan.others, measure=near)
        for p, each in zip(others.ps, others.release(records, noise), strict=True):
            found.append((p, each, near))
    moments = released_moments(2, ends, records, plan.sums, noise)

    clipped = clipped_values(ends, records)

    def moment(which: Moment) -> Released:
        spread = MomentSpread(moments, which, records.scale)
        known = which == "count" or share.interval is not None
        return Released(
            spread.value,
            Branch.ROBUST,
            spread.deviation,
            moments.spacing,
            plan.event,
            plan.sums.distribution.value,
            spread if known else UnknownSpread(spread),
            about=None if which == "count" else f"the {which} of {clipped}",
            clipped_share=None if which == "count" else share.interval,
        )

    return Description(
        count=moment("count"),
        mean=moment("mean"),
        deviation=moment("deviation"),
        quantiles=_ordered(found, records.scale, plan.event),
        event=plan.event,
        mechanism=f"exponential, {plan.sums.distribution.value}",
        notes=(
            f"The mean, the deviation and their intervals are those of {clipped}.",
            str(share),
        ),
    )


def _ordered(
    found: Sequence[tuple[Fraction, Selected, Measure]], scale: Scale, event: dp.DpEvent
) -> dict[str, Released]:
    """The quantiles in ascending order, each in an interval that holds it.

    The median is the most accurate of them, so the others are moved to its side.
    """
    middle = found[0][1].value
    found = sorted(found, key=lambda each: each[0])
    released = {}
    for p, selected, measure in found:
        move = min if p < HALF else max
        value = selected.value if p == HALF else move(selected.value, middle)
        spread = None
        if selected.interval is not None and selected.interval_indices is not None:
            first, last = selected.interval_indices
            if (
                measure.low < first and last < measure.high
            ):  # beyond an end, values were moved to it
                low, high = min(selected.interval[0], value), max(selected.interval[1], value)
                ends = ReleasedInterval(low, high, CONFIDENCE, selected.useless)
                spread = ScaledSpread(value, ends, scale)
        released[f"{float(p):.12g}"] = Released(
            scale.value(value), Branch.SELECTED, 0.0, 0.0, event, "exponential", spread
        )
    return released
