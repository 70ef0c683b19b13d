"""A private summary of a column: count, mean, deviation, quartiles and tails in one release."""

import html
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import attrs
import dp_accounting as dp
from typing_extensions import override

from prudent import _validate
from prudent._rounding import outward
from prudent.accounting._numeric import float_share
from prudent.release.columns.column import Column
from prudent.release.columns.scales import Scale
from prudent.release.exponential.interval import PrivateInterval
from prudent.release.exponential.measure import UniformMeasure
from prudent.release.exponential.quantile import (
    CONFIDENCE,
    ExponentialQuantile,
    ExponentialQuantiles,
    Selected,
)
from prudent.release.lattice import Lattice
from prudent.release.noise import Noise
from prudent.release.outcome import (
    TOO_FEW,
    Branch,
    Released,
    ReleasedInterval,
    ScaledSpread,
    UnknownSpread,
    price_lines,
    rows_of,
)
from prudent.release.ptr.margins import HALF, rational
from prudent.release.request import (
    Priced,
    Request,
    Statistic,
)
from prudent.release.statistics.moments import (
    additive,
    clipped_values,
    preview,
    released_moments,
)
from prudent.release.sums.additive import LARGEST_EPSILON, AdditiveMechanism, shares_of
from prudent.release.sums.clipping import ClippedShare, for_units
from prudent.release.sums.moments import Moment, MomentSpread

PROBABILITIES = ("0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99")
"""The quantiles of a description, by default."""

WIDE_SHARE, NARROW_SHARE, CLIPPED_SHARE, MEDIAN_SHARE, QUANTILE_SHARE = 0.14, 0.06, 0.03, 0.16, 0.34
"""Fractions of ε for the two steps that find an interval, the share of values outside of it, the
median, and all other quantiles.

The rest is for the noise of the sums.
"""

_SMALLEST_EPSILON = 0.01  # below, the parts of ε are too small for the exponential mechanism
_INTERVAL_SHARE = 0.25  # of the ε of a quantile
_POINTS = 2**14  # that a quantile may be


@attrs.frozen(kw_only=True)
class Description:
    """Count, mean, deviation and quantiles of a column; it may be published.

    Attributes:
        count: The number of records.
        mean: The mean of the clipped values.
        deviation: The standard deviation of the clipped values.
        quantiles: The value of each probability, as its text: "0.25", "0.5", …
        event: The privacy event of all of it, for any accountant.
        mechanism: The names of the mechanisms.
        epsilon: ε that all of it cost.
        delta: δ that all of it cost; 0 for pure mechanisms.
        notes: What was done to the records and what to keep in mind, one sentence each.
        protected: As for `Released`.
    """

    count: Released
    mean: Released
    deviation: Released
    quantiles: Mapping[str, Released]
    event: Any = attrs.field(repr=False)
    mechanism: str = "exponential, laplace"
    epsilon: float | None = None
    delta: float | None = None
    notes: tuple[str, ...] = ()
    protected: str = "record"

    def __getitem__(self, p: Any) -> Released:
        """The quantile of a probability, given as a number or its text."""
        return self.quantiles[str(p)]

    @property
    def median(self) -> Released:
        """The quantile of probability one half."""
        return self.quantiles["0.5"]

    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value and 95 % interval of each number, in words.

        A number that is too uncertain for an interval is left out.
        """
        return [(name, *_value_and_interval(each)) for name, each in self.parts().items()]

    def parts(self) -> dict[str, Released]:
        """The numbers, by name."""
        named = {"count": self.count, "mean": self.mean, "deviation": self.deviation}
        return named | {f"{p}-quantile": each for p, each in self.quantiles.items()}

    def lines(self) -> list[str]:
        """The summary as a table of text."""
        rows = self.rows()
        widths = [max(len(row[place]) for row in rows) for place in (0, 1)]
        return [
            *(f"{name:<{widths[0]}}  {value:>{widths[1]}}  {end}" for name, value, end in rows),
            *self.notes,
        ]

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *price_lines(self)])

    def to_frame(self) -> Any:
        """Return a pandas frame with one row for each number: value, low, high, status."""
        import pandas as pd

        return pd.DataFrame([{"statistic": name} | row for name, row in rows_of(self)])

    def plain(self) -> dict[str, Any]:
        """The summary as JSON holds it."""
        moments = {name: getattr(self, name) for name in ("count", "mean", "deviation")}
        return {
            "status": "released",
            **{name: each.value for name, each in moments.items()},
            "quantiles": {p: each.value for p, each in self.quantiles.items()},
            "intervals": {
                name: list(each.usual_interval)
                for name, each in {**moments, **self.quantiles}.items()
                if each.usual_interval is not None
            },
            "mechanism": self.mechanism,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        """The summary for a notebook."""
        cells = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td>"
            f"<td>{html.escape(interval)}</td></tr>"
            for name, value, interval in self.rows()
        )
        head = "<tr><th></th><th>value</th><th>95 % interval</th></tr>"
        notes = html.escape(" ".join([*self.notes, *price_lines(self)]))
        return f"<table>{head}{cells}</table><small>{notes}</small>"


@attrs.frozen(kw_only=True, slots=False)
class DescriptionPlan:
    """How ε is divided among the parts of a description."""

    interval: PrivateInterval  # the mechanism of the interval to which values are clipped
    share: AdditiveMechanism  # the mechanism of the share of values that are clipped
    # The mechanism of the median, before the values it may take are known.
    median: ExponentialQuantile
    # The mechanism of the other quantiles, likewise; None if there are none.
    others: ExponentialQuantiles | None
    sums: AdditiveMechanism  # the mechanism of the moments

    @classmethod
    def of(cls, request: Request, records: Column, ps: Sequence[Any]) -> "DescriptionPlan":
        """Divide ε; the median is always among the quantiles."""
        units, measure = records.contribution.records, UniformMeasure(Lattice(0, 0, _POINTS))
        others = [p for p in (rational(p, "ps") for p in _validate.values(ps=ps)) if p != HALF]
        shares = WIDE_SHARE, NARROW_SHARE, CLIPPED_SHARE, MEDIAN_SHARE
        wide, narrow, share, median, rest, sums = shares_of(
            request.epsilon, *shares, QUANTILE_SHARE if others else 0.0
        )
        each = float_share(rest, units)
        return cls(
            interval=PrivateInterval.of(records, wide, narrow, _POINTS),
            share=AdditiveMechanism.calibrate(share),
            median=ExponentialQuantile(HALF, float_share(median, units), measure, _INTERVAL_SHARE),
            others=ExponentialQuantiles(others, each, measure, _INTERVAL_SHARE) if others else None,
            sums=additive(request, sums),
        )

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of one description; the values of a measure do not change it."""
        chosen = [self.median.event]
        if self.others is not None:
            chosen.append(self.others.event)
        return dp.ComposedDpEvent(
            [
                *self.interval.events,
                for_units(dp.ComposedDpEvent(chosen), self.interval.wide.records),
                self.share.event,
                self.sums.event,
            ]
        )


@attrs.frozen
class Summary(Statistic):
    """A description of a column; see `describe`."""

    ps: Sequence[Any]

    @override
    def price(self, request: Request, records: Column) -> Priced:
        mechanism = additive(request)  # checks the options
        _validate.between(_SMALLEST_EPSILON, LARGEST_EPSILON, epsilon=request.epsilon)
        plan = DescriptionPlan.of(request, records, self.ps)
        public = preview("description", mechanism, request, plan.event)
        names = f"exponential, {public.mechanism}"
        return Priced(preview=attrs.evolve(public, mechanism=names), mechanism=plan)

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Description:
        return _described(priced.mechanism, records, noise)


def _described(plan: DescriptionPlan, records: Column, noise: Noise) -> Description:
    widest = plan.interval.widest(records, noise)
    points = plan.interval.read(records, widest)
    near = points.measure
    chosen = [(HALF, attrs.evolve(plan.median, measure=near).release(points, noise))]
    if plan.others is not None:
        others = attrs.evolve(plan.others, measure=near)
        chosen += zip(others.ps, others.release(points, noise), strict=True)
    ends = plan.interval.within(points, widest, noise)
    moments = released_moments(2, ends, records, plan.sums, noise)
    share = ClippedShare.release(records, ends, plan.share, noise)

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
        quantiles=_ordered(chosen, near, records.scale, plan.event),
        event=plan.event,
        mechanism=f"exponential, {plan.sums.distribution.value}",
        notes=(
            f"The mean, the deviation and their intervals are those of {clipped}.",
            str(share),
        ),
    )


def _ordered(
    chosen: Sequence[tuple[Fraction, Selected]],
    measure: UniformMeasure,
    scale: Scale,
    event: dp.DpEvent,
) -> dict[str, Released]:
    """The quantiles in ascending order, each in an interval that holds it.

    The median is the most accurate of them, so the others are moved to its side. Values were moved
    to the nearest point, so an interval is half a point wider on either side.
    """
    middle, spacing = chosen[0][1].value, measure.lattice.spacing
    half = 0.0 if scale.whole and spacing == 1 else spacing / 2
    chosen = sorted(chosen, key=lambda each: each[0])
    released = {}
    for p, selected in chosen:
        move = min if p < HALF else max
        value = selected.value if p == HALF else move(selected.value, middle)
        spread = None
        if selected.interval is not None and selected.interval_indices is not None:
            first, last = selected.interval_indices
            # Beyond an end, values were moved to it.
            if measure.low < first and last < measure.high:
                low, high = min(selected.interval[0], value), max(selected.interval[1], value)
                ends = ReleasedInterval(low - half, high + half, CONFIDENCE, selected.useless)
                spread = ScaledSpread(value, ends, scale)
        released[f"{float(p):.12g}"] = Released(
            scale.value(value), Branch.SELECTED, 0.0, 0.0, event, "exponential", spread
        )
    return released


def _value_and_interval(released: Released) -> tuple[str, str]:
    ends = released.usual_interval
    if ends is None:
        return "", f"({TOO_FEW})"
    return released.shown, " to ".join(outward(*ends))
