"""A private summary of a column: count, mean, deviation, quartiles and tails in one release."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import dp_accounting as dp
from typing_extensions import override

from prudent import _validate
from prudent._rounding import outward
from prudent.release.columns.column import Column
from prudent.release.exponential.interval import PrivateInterval
from prudent.release.exponential.many_quantiles import (
    MANY_BRANCHES,
    CountedQuantiles,
    HalvedQuantiles,
    placed,
)
from prudent.release.exponential.quantile import CONFIDENCE, Selected
from prudent.release.noise import Noise
from prudent.release.outcome import (
    TOO_FEW,
    Answer,
    Branch,
    Released,
    UnknownSpread,
)
from prudent.release.ptr.margins import HALF, rational
from prudent.release.request import Priced, Request, Statistic
from prudent.release.statistics.moments import additive, clipped_values, preview, released_moments
from prudent.release.statistics.quantile_statistics import chosen_value
from prudent.release.sums.additive import LARGEST_EPSILON, AdditiveMechanism, shares_of
from prudent.release.sums.moments import ClippedShare, Moment, MomentSpread

PROBABILITIES: tuple[str, ...] = ("0.01", "0.05", "0.25", "0.5", "0.75", "0.95", "0.99")
"""The quantiles of a description, by default."""

WIDE_SHARE, NARROW_SHARE, CLIPPED_SHARE, QUANTILE_SHARE = 0.14, 0.06, 0.03, 0.5
"""Fractions of ε for the two steps that find an interval, the share of values outside of it, and
all quantiles.

The rest is for the noise of the sums.
"""

_INTERVAL_SHARE = 0.3  # of the ε of the quantiles, for their intervals
_SMALLEST_EPSILON = 0.01  # below, the parts of ε are too small for the exponential mechanism


@attrs.frozen(kw_only=True)
class Description(Answer):
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
    event: Any = attrs.field(default=None, repr=False)
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
        """Name, value and interval of each number, in words.

        A number that is too uncertain for an interval is left out, unless none was asked for.
        """
        found = []
        for name, each in self.parts().items():
            ends = each.usual_interval
            if each.spread is None:
                found.append((name, each.shown, ""))
            elif ends is None:
                found.append((name, "", f"({TOO_FEW})"))
            else:
                found.append((name, each.shown, " to ".join(outward(*ends))))
        return found

    def parts(self) -> dict[str, Released]:
        """The numbers, by name."""
        named = {"count": self.count, "mean": self.mean, "deviation": self.deviation}
        return named | {f"{p}-quantile": each for p, each in self.quantiles.items()}

    @override
    def lines(self) -> list[str]:
        rows = self.rows()
        widths = [max(len(row[place]) for row in rows) for place in (0, 1)]
        return [
            *(f"{name:<{widths[0]}}  {value:>{widths[1]}}  {end}" for name, value, end in rows),
            *self.notes,
        ]

    def plain(self) -> dict[str, Any]:
        """The summary as JSON holds it."""
        moments = {name: getattr(self, name) for name in ("count", "mean", "deviation")}
        return {
            "status": "released",
            **{name: each.plain()["value"] for name, each in moments.items()},
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


@attrs.frozen(kw_only=True, slots=False)
class DescriptionPlan:
    """How ε is divided among the parts of a description."""

    interval: PrivateInterval  # the mechanism of the interval to which values are clipped
    share: AdditiveMechanism  # the mechanism of the share of values that are clipped
    quantiles: HalvedQuantiles  # the mechanism of the quantiles
    sums: AdditiveMechanism  # the mechanism of the moments

    @classmethod
    def of(cls, request: Request, records: Column, ps: Sequence[Any]) -> "DescriptionPlan":
        """Divide ε; the median is always among the quantiles."""
        units = records.contribution.records
        asked = {HALF, *(rational(p, "ps") for p in _validate.values(ps=ps))}
        shares = WIDE_SHARE, NARROW_SHARE, CLIPPED_SHARE, QUANTILE_SHARE
        wide, narrow, share, both, sums = shares_of(request.epsilon, *shares)
        known, values = shares_of(both, _INTERVAL_SHARE if request.confidence else 0.0)
        counted = CountedQuantiles(sorted(asked), known, units, request.confidence, MANY_BRANCHES)
        quantiles = HalvedQuantiles(counted, values)
        return cls(
            interval=PrivateInterval.of(records, wide, narrow, quantiles.points),
            share=AdditiveMechanism.calibrate(share),
            quantiles=quantiles,
            sums=additive(request, sums),
        )

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of one description."""
        parts = self.quantiles.event, self.share.event, self.sums.event
        return dp.ComposedDpEvent([*self.interval.events, *parts])


@attrs.frozen
class Summary(Statistic):
    """A description of a column; see `describe`."""

    ps: Sequence[Any]

    @override
    def price(self, request: Request, records: Column) -> Priced:
        mechanism = additive(request)  # checks the options
        _validate.between(_SMALLEST_EPSILON, LARGEST_EPSILON, epsilon=request.epsilon)
        if request.confidence:
            _validate.between(CONFIDENCE, 1, ends="[)", confidence=request.confidence)
        plan = DescriptionPlan.of(request, records, self.ps)
        public = preview("description", mechanism, request, plan.event)
        names = f"exponential, {public.mechanism}"
        return Priced(preview=attrs.evolve(public, mechanism=names), mechanism=plan)

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Description:
        plan: DescriptionPlan = priced.mechanism
        widest = plan.interval.widest(records, noise)
        points = plan.interval.read(records, widest)
        chosen = plan.quantiles.release(points, noise, between=False)
        ends = plan.interval.within(points, widest, noise)
        moments = released_moments(2, ends, records, plan.sums, noise)
        share = ClippedShare.release(records, ends, plan.share, noise)

        clipped, whole = clipped_values(ends, records), records.scale.whole

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
                confidence=plan.quantiles.confidence or CONFIDENCE,
            )

        return Description(
            count=moment("count"),
            mean=moment("mean"),
            deviation=moment("deviation"),
            quantiles={
                f"{float(p):.12g}": self._quantile(placed(points, one, ends, whole), plan, records)
                for p, one in zip(plan.quantiles.counted.ps, chosen, strict=True)
            },
            notes=(
                f"The mean, the deviation and their intervals are those of {clipped}.",
                str(share),
            ),
        )

    def _quantile(self, one: Selected, plan: DescriptionPlan, records: Column) -> Released:
        """A quantile; a tail of too few records may be anywhere: it is within the clipping."""
        confidence, scale = plan.quantiles.confidence, records.scale
        found = chosen_value(one.value, one.interval, one.whole, confidence, scale)
        return attrs.evolve(found, event=plan.event, mechanism="exponential")
