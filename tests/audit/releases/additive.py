"""Worst-case pairs of releases that add Laplace noise to sums, counts and distances.

One record moves the sums by the whole sensitivity, in one coordinate. The log-likelihood ratio of
discrete Laplace noise is then ±ε on both sides of the interval between the two sums, where nearly
all outputs lie, so the price is exact, and easily seen. The noisy sums and counts are part of the
answer, and the loss of each adds to that of the others. Columns are opened, and engines asked, once
for each of the two data sets.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from prudent.release import joins, statistics
from prudent.release.columns.scales import TRUTH
from prudent.release.exponential.interval import Points
from prudent.release.exponential.many_quantiles import CountedQuantiles
from prudent.release.noise import Noise, PartitionSelection
from prudent.release.request import PricedPart, Request, Statistic, open_records
from tests.audit.releases.case import Case, Make, Run, Silent, exact_epsilon, laplace_case
from tests.oracles.array_column import ArrayColumn

_BOUNDS = (0.0, 1.0)
_OUTSIDE = 50.0  # a record that clipping must bring back to the upper bound
_RECORDS = 200  # enough that a noisy count is not clipped to zero
_HALVES = [0.0, 1.0] * (_RECORDS // 2)  # half of the records at each bound
_FAR = [*_HALVES, _OUTSIDE], _HALVES
_PAIRS = [(each, each) for each in _HALVES]
_TRUTHS = [False, True] * (_RECORDS // 2)
_FREQUENT, _RARE = "frequent", "rare"


def _of_column(
    statistic: Callable[..., Any],
    read: Callable[[Any], Any],
    pair: tuple[Sequence[float], Sequence[float]],
    **options: Any,
) -> Make:
    """The case of a public function of one column."""

    def case(epsilon: float, delta: float) -> Case:
        def prepare(data: Sequence[float], noise: Noise) -> Run:
            column = ArrayColumn(np.array(data), TRUTH if data[0] is False else None)
            return lambda: read(statistic(column, epsilon=epsilon, noise=noise, **options))

        return laplace_case(prepare, (list(pair[0]), list(pair[1])), epsilon)

    return case


def _value(released: Any) -> Any:
    return float(released.value)


def _sums(released: Any) -> Any:
    """The noisy sums, which are part of the answer."""
    return released.spread.moments.region.centre


def _bins(released: Any) -> Any:
    return released.below, *released.counts, released.above


def many_quantiles(epsilon: float, delta: float) -> Case:
    """The counts of a tree, of which a record raises one in each level by 1."""
    ps = tuple(f"{percent}/100" for percent in range(1, 100))
    mechanism, pair = CountedQuantiles(ps, epsilon), ([*_HALVES, 1.0], _HALVES)

    def read(data: Sequence[float]) -> Points:
        return Points.read(ArrayColumn(np.array(data)), _BOUNDS, 4)

    more, fewer = (np.concatenate(mechanism.counts(read(data), Silent())) for data in pair)
    (moved,) = np.nonzero(more - fewer)

    def prepare(data: Sequence[float], noise: Noise) -> Run:
        points, source = read(data), _Moved(noise, moved.tolist())
        return lambda: np.concatenate(mechanism.counts(points, source))[moved].tolist()

    def call(data: Any, noise: Noise) -> Any:
        return statistics.quantiles(
            np.array(data), ps=ps, bounds=_BOUNDS, epsilon=epsilon, noise=noise
        )

    return laplace_case(prepare, pair, epsilon, rate=epsilon / len(moved), call=call)


@attrs.frozen
class _Moved(Silent):
    """Noise for the numbers that a record moves; the others tell nothing, and get none."""

    noise: Noise
    places: Sequence[int]

    def of_value(self, distribution: Any, scale: float, size: int) -> list[int]:
        """See `Noise`."""
        found = [0] * size
        drawn = self.noise.of_value(distribution, scale, len(self.places))
        for place, each in zip(self.places, drawn, strict=True):
            found[place] = each
        return found


def partitions(epsilon: float, delta: float) -> Case:
    """Which groups occur: one group, kept with the most probability that the claim allows."""
    chosen = PartitionSelection(epsilon=epsilon, delta=delta)
    chances = np.array(chosen.chances, np.float64) / float(2**128)
    place = int(np.argmin(np.abs(chances[1:] + chances[:-1] - 1)))
    fewer, more = chances[place], chances[place + 1]
    return Case(
        epsilon=epsilon,
        delta=delta,
        pair=(place + 1, place),
        prepare=lambda records, noise: lambda: bool(chosen.select({"group": records}, noise)),
        score=lambda kept: math.log(more / fewer if kept else (1 - more) / (1 - fewer)),
        exact=exact_epsilon([[more, 1 - more], [fewer, 1 - fewer]], delta),
    )


def top_k(epsilon: float, delta: float) -> Case:
    """The most frequent of two public categories; one more record raises its count by 1."""
    categories, fewer = [_FREQUENT, _RARE], [_FREQUENT] * _RECORDS

    def call(data: Any, noise: Noise) -> Any:
        found: Any = statistics.top_k(
            _table(value=data), "value", 1, categories=categories, epsilon=epsilon, noise=noise
        )
        return _first(found)

    def prepare(data: Any, noise: Noise) -> Run:
        from prudent.release.statistics.summaries import TopCount

        table = _table(value=data)
        request = Request(data=table, by="value", groups=categories, epsilon=epsilon, noise=noise)
        ask = _answering(TopCount(), request, noise)
        return lambda: _first(dict([max(ask().items(), key=lambda item: item[1].value)]))

    return laplace_case(prepare, ([*fewer, _FREQUENT], fewer), epsilon, call=call)


def _first(found: Any) -> tuple[float, float]:
    """Whether the rare category is the first, and the count of the first."""
    ((name, released),) = found.items()
    return float(name == _RARE), float(released.value)


def join(epsilon: float, delta: float) -> Case:
    """The rows of two joined tables, of which a person counts with three of its twenty pairs."""
    few = [(person, 1, 1) for person in range(_RECORDS)]  # a person, with rows in either table

    def joined(data: Sequence[tuple[int, int, int]]) -> Any:
        one = _table(person=[person for person, times, _ in data for _ in range(times)])
        other = _table(person=[person for person, _, times in data for _ in range(times)])
        return joins.join(one, other, on="person", unit="person")

    def call(data: Any, noise: Noise) -> Any:
        found = statistics.count(joined(data), per_unit=3, epsilon=epsilon, noise=noise)
        return (float(found.value),)

    def prepare(data: Any, noise: Noise) -> Run:
        from prudent.release.statistics.moments import Count

        request = Request(data=joined(data), per_unit=3, epsilon=epsilon, noise=noise)
        ask = _answering(Count(), request, noise)
        return lambda: (float(ask()[None].value),)

    pair = [*few, (_RECORDS, 5, 4)], few
    return laplace_case(prepare, pair, epsilon, rate=epsilon / 3, call=call)


def _answering(statistic: Statistic, request: Request, noise: Noise) -> Run:
    """A release whose table is read, and which is priced, once; every run answers anew."""
    opened = open_records(request, statistic.kind(request))
    columns: Any = {group: _Once(column) for group, column in opened.items()}
    priced = statistic.price(request, next(iter(columns.values())))
    part = PricedPart(statistic, columns, priced.preview, priced)
    return lambda: part.answer(None, noise)


class _Once:
    """A column that answers each question once, and then from memory."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._column, name)
        if name == "second":
            found = _Once(found)
        elif callable(found):
            found = functools.cache(found)
        self.__dict__[name] = found
        return found


def _of_pairs(
    name: str,
    read: Callable[[Any], Any],
    *,
    parts: int = 1,
    record: float = _OUTSIDE,
) -> Make:
    """The case of a statistic of two columns within public bounds.

    The record has one value in both; the loss of a sum is at most ε over `parts` per unit.
    """
    weighted = name == "weighted_mean"
    function: Callable[..., Any] = getattr(statistics, name)
    second = {"largest_weight": 1.0} if weighted else {"other_bounds": _BOUNDS}

    def columns(data: Sequence[tuple[float, float]]) -> Any:
        return _table(x=[x for x, _ in data], y=[y for _, y in data])

    def case(epsilon: float, delta: float) -> Case:
        def call(data: Any, noise: Noise) -> Any:
            given = {"bounds": _BOUNDS, "epsilon": epsilon, "noise": noise}
            return read(function(columns(data), "x", "y", **given, **second))

        def prepare(data: Any, noise: Noise) -> Run:
            from prudent.release.statistics.pairs import Pairs, Ratio

            kind: Any = "weighted" if weighted else name
            statistic: Statistic = Ratio() if name == "ratio" else Pairs(kind)
            both: Any = {"bounds": _BOUNDS, "other_bounds": _BOUNDS, "column": "x", "other": "y"}
            request = Request(data=columns(data), epsilon=epsilon, noise=noise, **both)
            ask = _answering(statistic, request, noise)
            return lambda: read(ask()[None])

        pair = [*_PAIRS, (record, record)], _PAIRS
        return laplace_case(prepare, pair, epsilon, rate=epsilon / parts, call=call)

    return case


def _two_sums(released: Any) -> tuple[float, float]:
    return float(released.spread.above.value), float(released.spread.below.value)


def _all_sums(released: Any) -> tuple[float, ...]:
    return tuple(released.spread.region.centre)


def _table(**columns: Sequence[Any]) -> Any:
    import pyarrow

    return pyarrow.table(columns)


CASES: dict[str, Make] = {
    "count": _of_column(statistics.count, _value, ([*_HALVES, 1.0], _HALVES)),
    # Of values in [0, 1]: a record far above raises one of the sums by 1.
    "sum": _of_column(statistics.sum, _value, _FAR, bounds=_BOUNDS),
    "mean": _of_column(statistics.mean, _sums, _FAR, bounds=_BOUNDS),
    "variance": _of_column(statistics.variance, _sums, _FAR, bounds=_BOUNDS),
    "deviation": _of_column(statistics.deviation, _sums, _FAR, bounds=_BOUNDS),
    # The share of records that are true, from two sums: a true record raises one of them by 1.
    "proportion": _of_column(statistics.proportion, _sums, ([*_TRUTHS, True], _TRUTHS)),
    "count-distinct": _of_column(
        statistics.count_distinct, _value, (range(_RECORDS + 1), range(_RECORDS))
    ),
    "histogram": _of_column(
        statistics.histogram, _bins, ([*_HALVES, 1.0], _HALVES), edges=[0.0, 0.5, 1.0]
    ),
    # How many records keep the median within an interval; one more record changes it by 1.
    "certificate": _of_column(
        statistics.certify_quantile, _value, ([*_HALVES, 0.5], _HALVES), low=0.0, high=1.0
    ),
    "partitions": partitions,
    "many-quantiles": many_quantiles,
    "top-k": top_k,
    "join": join,
    # A quotient of two sums, each for half of ε; a record above raises both by 1.
    "ratio": _of_pairs("ratio", _two_sums, parts=2),
    # From two and from four sums: a record above in both columns raises one of them by 1.
    "weighted-mean": _of_pairs("weighted_mean", lambda found: tuple(_sums(found))),
    "covariance": _of_pairs("covariance", _all_sums),
    # From six sums: a record in the middle raises all of them, by 2 together. So the largest loss
    # is rare, and more runs see more.
    "correlation": _of_pairs(
        "correlation",
        _all_sums,
        parts=2,
        record=0.5,
    ),
}
