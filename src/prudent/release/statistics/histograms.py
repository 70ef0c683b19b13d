"""A private histogram: noisy counts of the records in each of several bins."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Unpack

import dp_accounting as dp
import numpy as np

from prudent import _validate
from prudent.release import request
from prudent.release.columns.column import Column
from prudent.release.columns.scales import Scale
from prudent.release.noise import Distribution, Noise
from prudent.release.outcome import NoiseSpread
from prudent.release.preview import Preview
from prudent.release.request import Prepared, statistic
from prudent.release.statistics.moments import CountOptions, additive
from prudent.release.sums.additive import shares_of
from prudent.release.sums.bin_counts import Histogram
from prudent.release.sums.winsorising import Clipping

CENTRE_SHARE, RADIUS_SHARE = 0.2, 0.2
"""Fractions of ε that private edges cost, if none are given; the rest is for the counts."""

_MOST_BINS = 10_000


@statistic(CountOptions)
def histogram(
    data: Any = None,
    column: str | None = None,
    *,
    edges: Sequence[Any] | None = None,
    bins: int = 20,
    **options: Unpack[CountOptions],
) -> Histogram | Preview:
    """Release how many records lie in each bin.

    A record is in one bin, so the noise of each count is that of a single count, however many bins
    there are.

    Args:
        data: See `median`.
        column: See `median`.
        edges: Public edges of the bins, in ascending order; records outside are counted below and
            above. None: round numbers that cover a private interval around the median, which costs
            40 % of ε.
        bins: The number of bins to aim at, without edges.
        **options: See `CountOptions`.

    Returns:
        `Histogram`; with `by`, a dictionary with one per group.
    """
    bins = _validate.count(1, _MOST_BINS, bins=bins)
    distribution = options.get("distribution", Distribution.LAPLACE)
    additive(options)  # checks them

    def prepare(records: Column) -> Prepared:
        numbers = None if edges is None else _given(edges, records.scale)
        centre, radius, rest = shares_of(
            options["epsilon"], *((0.0, 0.0) if numbers else (CENTRE_SHARE, RADIUS_SHARE))
        )
        clipping = None if numbers else Clipping.privately(records, centre, radius)
        mechanism = additive(options, rest)
        parts = [*([] if clipping is None else clipping.events), mechanism.event]
        event = parts[0] if len(parts) == 1 else dp.ComposedDpEvent(parts)
        sensitivity = records.contribution.records
        spread = NoiseSpread(distribution, mechanism.scale(sensitivity), 1.0)

        def answer(records: Column, noise: Noise) -> Any:
            found = numbers
            if found is None:
                assert clipping is not None
                found = round_edges(*clipping.ends(records, noise), bins, whole=records.scale.whole)
            below, *counts, above = mechanism.noisy(_counts(records, found), sensitivity, noise)
            return Histogram(
                edges=tuple(map(records.scale.value, found)),
                numbers=tuple(found),
                counts=tuple(counts),
                below=below,
                above=above,
                spread=spread,
                event=event,
                mechanism=distribution.value,
                column=column,
            )

        preview = Preview(
            statistic="histogram",
            mechanism=distribution.value,
            epsilon=options["epsilon"],
            delta=0.0 if distribution is Distribution.LAPLACE else options["delta"] or 0.0,
            event=event,
            noise_scale=spread.deviation,
            half_width=spread.half_width(0.95),
        )
        return Prepared(preview=preview, answer=answer)

    return request.release(prepare, data, column, options)  # type: ignore[return-value]


def _counts(records: Column, edges: Sequence[float]) -> list[int]:
    """The number of records below, in each bin, and above; one record changes one of them by 1."""
    beyond = np.array([*edges[:-1], math.nextafter(edges[-1], math.inf)])
    upto = records.counts_below(beyond).tolist()
    return [last - first for first, last in itertools.pairwise([0, *upto, records.count()])]


def _given(edges: Sequence[Any], scale: Scale) -> list[float]:
    """Public edges as numbers, in ascending order."""
    try:
        numbers = [scale.number(edge) for edge in edges]
    except TypeError:
        numbers = []
    ascending = all(one < other for one, other in itertools.pairwise(numbers))
    finite = all(map(math.isfinite, numbers))
    if not 2 <= len(numbers) <= _MOST_BINS + 1 or not ascending or not finite:
        raise _validate.ArgumentError("edges", "two or more values in ascending order", got=edges)
    return numbers


def round_edges(low: float, high: float, bins: int, *, whole: bool) -> list[float]:
    """About `bins` + 1 multiples of a round step that cover an interval."""
    raw = (high - low) / bins
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(each for each in (1, 2, 2.5, 5, 10) if each * power >= raw * (1 - 1e-9))
    if whole:
        step = max(1.0, math.ceil(step))
    first, last = math.floor(low / step), math.ceil(high / step)
    found = np.unique(np.arange(first, max(last, first + 1) + 1) * step)
    return [float(edge) for edge in found.tolist()]
