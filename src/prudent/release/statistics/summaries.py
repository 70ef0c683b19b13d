"""Private summaries of a column: a histogram, the most frequent values, a description."""

import itertools
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, cast

import attrs
import dp_accounting as dp
import numpy as np
from typing_extensions import override

from prudent import _validate
from prudent._rounding import nearest, outward
from prudent.accounting._numeric import float_below
from prudent.release.columns.column import Column, Pool
from prudent.release.columns.scales import Scale
from prudent.release.exponential.interval import Points, PrivateInterval
from prudent.release.exponential.many_quantiles import (
    MANY_BRANCHES,
    CountedQuantiles,
    HalvedQuantiles,
    placed,
)
from prudent.release.exponential.quantile import CONFIDENCE, Selected
from prudent.release.margins import HALF, rational
from prudent.release.moment_sums import ClippedShare, Moment, MomentSpread
from prudent.release.noise import LARGEST_EPSILON, AdditiveMechanism, Noise, composed, shares_of
from prudent.release.outcome import TOO_FEW, Answer, Branch, NoiseSpread, Released, UnknownSpread
from prudent.release.request import Priced, Request, Statistic, release, repeated
from prudent.release.statistics.moments import (
    Count,
    additive,
    clipped_values,
    preview,
    released_moments,
)
from prudent.release.statistics.quantile_statistics import chosen_value

EDGE_SHARES = 0.09, 0.07, 0.14
"""Fractions of ε for the two steps that find an interval, and for its quantiles."""

MOST_BINS = 10_000
_FEWEST_BINS = 4  # of edges that are not given, unless fewer are asked for
MOST_CATEGORIES = 100_000
_BAR = 40  # characters of the longest bar in text


@attrs.frozen(kw_only=True)
class Histogram(Answer):
    """Noisy counts of the records in each bin; it may be published.

    A bin holds its left edge and not its right one, but the last bin holds both. Counts are as
    released: a few may be negative, and sums of them have no bias.

    Attributes:
        edges: The edges of the bins, as values of the column's type.
        numbers: The edges as numbers, in the unit of the column's scale.
        counts: The noisy number of records in each bin.
        below: The noisy number of records below the first edge.
        above: The noisy number of records above the last edge.
        spread: The spread of each of these numbers.
        event: The privacy event, for any accountant.
        mechanism: The name of the mechanism.
        column: The name of the column; None if it has none.
        epsilon: ε that the release cost.
        delta: δ that it cost; 0 for a pure mechanism.
        notes: What was done to the records, one sentence each.
        protected: As for `Released`.
    """

    edges: tuple[Any, ...]
    numbers: tuple[float, ...] = attrs.field(repr=False)
    counts: tuple[int, ...]
    below: int
    above: int
    spread: NoiseSpread = attrs.field(repr=False)
    event: Any = attrs.field(default=None, repr=False)
    mechanism: str = "laplace"
    column: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    notes: tuple[str, ...] = ()
    protected: str = "record"

    def half_width(self, confidence: float = 0.95) -> float:
        """The distance from its true count that a count exceeds with probability 1 - confidence."""
        return self.spread.half_width(confidence)

    @override
    def lines(self) -> list[str]:
        """The histogram in words and bars, one line per bin."""
        longest = max(1, *self.counts)
        below, *bins, above = self._bins()
        first, last = ([(name, each, 0)] if each > 0 else [] for name, each in (below, above))
        rows = [*first, *((name, each, max(0, each)) for name, each in bins), *last]
        width = max(len(name) for name, *_ in rows) + 1
        found = [
            f"{name + ':':{width}} {each:>9,} {'█' * round(_BAR * drawn / longest)}".rstrip()
            for name, each, drawn in rows
        ]
        half = math.ceil(self.half_width())
        return [*found, f"each count ± {half:,} with probability 95 %", *self.notes]

    def _bins(self) -> list[tuple[str, int]]:
        """The counts of all bins with their names, and of the records beyond the edges."""
        # Without the last two digits of a double, in which arithmetic has its errors.
        edges = [nearest(each, 15) if isinstance(each, float) else str(each) for each in self.edges]
        bins = (f"{low} to {high}" for low, high in itertools.pairwise(edges))
        names = f"below {edges[0]}", *bins, f"above {edges[-1]}"
        return list(zip(names, (self.below, *self.counts, self.above), strict=True))

    def parts(self) -> dict[str, Released]:
        """The counts by the names of their bins, as the rows of a table of several statistics."""
        noise = self.spread.deviation
        return {
            name: Released(each, Branch.ROBUST, noise, 1.0, spread=self.spread)
            for name, each in self._bins()
        }

    @override
    def records(self) -> list[dict[str, Any]]:
        """The rows of a frame: each bin with its edges and its noisy count."""
        bins = zip(self.edges[:-1], self.edges[1:], self.counts, strict=True)
        return [{"low": low, "high": high, "count": count} for low, high, count in bins]

    def plain(self) -> dict[str, Any]:
        """The histogram as JSON holds it."""
        return {
            "status": "released",
            "edges": list(self.edges),
            "counts": list(self.counts),
            "below": self.below,
            "above": self.above,
            "half_width": self.half_width(),
            "mechanism": self.mechanism,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "notes": list(self.notes),
        }


def release_counts(categories: Any, request: Request) -> Any:
    """Release the count of each category of a column, which is grouped by itself.

    What is wrong with it is said of the argument that was given.
    """
    if request.by is not None:
        raise _validate.ArgumentError("by", "None for top_k", got=request.by)
    if request.column is None:
        hint = "Give a series, or the name of a column with its frame or file."
        raise _validate.ArgumentError("column", "the name of a column", shown="nothing", hint=hint)
    try:
        counted = attrs.evolve(request, column=None, by=request.column, groups=categories)
        return release(TopCount(), counted)
    except _validate.ArgumentError as error:
        names = {"by": "column", "groups": "categories"}
        if error.argument not in names:
            raise
        hint = "" if error.argument == "groups" else "Of numbers, ask for a histogram or a median."
        fault = _validate.ArgumentError(
            names[error.argument], error.allowed, shown=str(error.value), hint=hint
        )
    raise fault


@attrs.frozen
class TopCount(Count):
    """The count of one of the most frequent categories."""

    title: ClassVar[str] = "top k"


@attrs.frozen
class _Parts:
    """How edges are found, if none are given, and the noise of the counts."""

    counts: AdditiveMechanism
    spread: NoiseSpread
    interval: PrivateInterval | None = None  # releases an interval that holds nearly all records
    quantiles: CountedQuantiles | None = None  # releases the quantiles of the records in it
    numbers: tuple[float, ...] = ()  # the edges, given or released
    column: str | None = None  # the name of the column

    def edges(self, pool: Column, bins: int, noise: Noise) -> tuple[float, ...]:
        """Release edges between which there are about as many records each, or fewer bins.

        A quantile is off by some records, and a bin that holds fewer has no meaning.
        """
        assert self.interval is not None
        assert self.quantiles is not None
        sizes = pool.half_octaves()
        known = self.interval.released_count(sizes[1], noise)
        ends = self.interval.release(pool, noise, sizes, known)
        supported = max(_FEWEST_BINS, round(2 * known / self.quantiles.rank_error()))
        number = min(bins, supported)
        points = Points.read(pool, ends, self.quantiles.points)
        inner = [Fraction(place, number) for place in range(1, number)] or [HALF]
        found = attrs.evolve(self.quantiles, ps=inner).release(points, noise, between=False)
        between = [each.value for each in found] if number > 1 else []
        return tuple(round_edges(*ends, between, whole=pool.scale.whole))


@attrs.frozen
class Bins(Statistic):
    """Counts of the records in bins; see `histogram`.

    Guarantee:
        Edges that are not given are released from the records of all groups together, the counts
        from each group, as for the bounds of a mean (`moments.OfClipped`).
    """

    edges: Sequence[Any] | None
    bins: int

    @override
    def price(self, request: Request, records: Column) -> Priced:
        additive(request)  # checks the options
        fold, rest = request.fold, request.epsilon
        own: dict[str, Any] = {"column": request.column}
        events: list[dp.DpEvent] = []  # of the edges
        if self.edges is not None:
            own |= {"numbers": tuple(_given(self.edges, records.scale))}
        else:
            *shares, rest = shares_of(rest, *EDGE_SHARES)
            wide, narrow, tree = (float_below(Fraction(each) * fold) for each in shares)
            pool = cast(Column, Pool([records], fold))
            units = pool.contribution.records
            quantiles = CountedQuantiles((HALF,), tree, units, 0.0, MANY_BRANCHES)
            interval = PrivateInterval.of(pool, wide, narrow)
            own |= {"interval": interval, "quantiles": quantiles}
            events = [*interval.events, quantiles.event]
        mechanism = additive(request, rest)
        scale = mechanism.scale(records.contribution.records)
        parts = _Parts(mechanism, NoiseSpread(mechanism.distribution, scale, 1.0), **own)
        event = composed([*events, repeated(mechanism.event, fold)])
        public = preview("histogram", mechanism, request, event, parts.spread)
        return Priced(preview=public, mechanism=parts, of_all_groups=True)

    @override
    def prepare(self, priced: Priced, pool: Column, noise: Noise) -> Priced:
        parts: _Parts = priced.mechanism
        if parts.interval is None:
            return priced
        edges = parts.edges(pool, self.bins, noise)
        return attrs.evolve(priced, mechanism=attrs.evolve(parts, numbers=edges))

    @override
    def answer(self, priced: Priced, records: Column, noise: Noise) -> Histogram:
        parts: _Parts = priced.mechanism
        edges, scale = parts.numbers, records.scale
        sensitivity = records.contribution.records
        below, *counts, above = parts.counts.noisy(_counts(records, edges), sensitivity, noise)
        return Histogram(
            edges=tuple(map(scale.value, edges)),
            numbers=edges,
            counts=tuple(counts),
            below=below,
            above=above,
            spread=parts.spread,
            column=parts.column,
        )


def _counts(records: Column, edges: Sequence[float]) -> list[int]:
    """The number of records below, in each bin, and above; one record changes one of them by 1."""
    beyond = np.array([*edges[:-1], math.nextafter(edges[-1], math.inf)])
    upto = records.counts_below(beyond).tolist()
    return [last - first for first, last in itertools.pairwise([0, *upto, records.count()])]


def _given(edges: Sequence[Any], scale: Scale) -> list[float]:
    """Public edges as numbers, in ascending order."""
    try:
        numbers = [scale.number(edge, "edges") for edge in edges]
    except TypeError:
        numbers = []
    ascending = all(one < other for one, other in itertools.pairwise(numbers))
    finite = all(map(math.isfinite, numbers))
    if not 2 <= len(numbers) <= MOST_BINS + 1 or not ascending or not finite:
        raise _validate.ArgumentError("edges", "two or more values in ascending order", got=edges)
    return numbers


def round_edges(low: float, high: float, inner: Sequence[float], *, whole: bool) -> list[float]:
    """The ends of an interval and ascending values between them, to the digits that they need.

    A value moves by at most a quarter of the distance to the next one; what is then the same as
    another, or an end, is left out.
    """
    values = sorted({low, high, *(each for each in inner if low < each < high)})
    found = [low]
    for before, value, after in zip(values, values[1:], values[2:], strict=False):
        power = math.floor(math.log10(min(value - before, after - value) / 2))
        rounded = float(round(Fraction(value), -power))
        rounded = float(round(rounded)) if whole else rounded
        if found[-1] < rounded < high:
            found.append(rounded)
    return [*found, high]


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
        found = chosen_value(one, plan.quantiles.confidence, records.scale)
        return attrs.evolve(found, event=plan.event, mechanism="exponential")
