"""Worst-case pairs of releases that need a table: of two columns, or of all categories of one.

The queries depend on the data alone, so each is asked once for each of the two data sets. The noisy
sums and counts are part of the answer, and the loss of each adds to that of the others.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from prudent import _extras
from prudent.audit.releases.case import Case, Run, laplace_case
from prudent.release import joins, statistics
from prudent.release.noise import Noise
from prudent.release.request import Request, Statistic, open_records

_BOUNDS = (0.0, 1.0)
_CORNER = (50.0, 50.0)  # clipping must bring it back to the upper bounds
_PAIRS = [(0.0, 0.0), (1.0, 1.0)] * 100
_FREQUENT, _RARE = "frequent", "rare"


def ratio(epsilon: float, delta: float) -> Case:
    """A quotient of two sums, each for half of ε; a record above raises both by 1."""

    def read(released: Any) -> tuple[float, ...]:
        return float(released.spread.above.value), float(released.spread.below.value)

    return _of_pairs("ratio", read, epsilon, rate=epsilon / 2)


def weighted_mean(epsilon: float, delta: float) -> Case:
    """A weighted mean, from two sums; a record above, with a weight above, raises one by 1."""

    def read(released: Any) -> tuple[float, ...]:
        return tuple(released.spread.moments.region.centre)

    return _of_pairs("weighted-mean", read, epsilon, rate=epsilon)


def covariance(epsilon: float, delta: float) -> Case:
    """A covariance, from four sums; a record above in both columns raises one of them by 1."""
    return _of_pairs("covariance", _sums, epsilon, rate=epsilon)


def correlation(epsilon: float, delta: float) -> Case:
    """A correlation, from six sums; a record in the middle raises all of them, by 2 together."""
    case = _of_pairs("correlation", _sums, epsilon, rate=epsilon / 2, record=(0.5, 0.5))
    rare = "The record moves six sums, so the largest loss is rare: more runs see more."
    return attrs.evolve(case, notes=(rare,))


def top_k(epsilon: float, delta: float) -> Case:
    """The most frequent of two public categories; one more record raises its count by 1."""
    categories, fewer = [_FREQUENT, _RARE], [_FREQUENT] * 200

    def call(data: Any, noise: Noise) -> Any:
        found: Any = statistics.top_k(
            _table(value=data), "value", 1, categories=categories, epsilon=epsilon, noise=noise
        )
        return _first(found)

    def prepare(data: Any, noise: Noise) -> Run:
        from prudent.release.statistics.frequencies import TopCount, most_frequent

        request = Request(
            data=_table(value=data), by="value", groups=categories, epsilon=epsilon, noise=noise
        )
        opened = open_records(request, TopCount().kind(request))
        columns: Any = {name: _Once(column) for name, column in opened.items()}
        priced = TopCount().price(request, columns[_FREQUENT])
        return lambda: _first(
            most_frequent(
                {name: TopCount().answer(priced, each, noise) for name, each in columns.items()}, 1
            )
        )

    return laplace_case("top-k", prepare, ([*fewer, _FREQUENT], fewer), epsilon, call=call)


def join(epsilon: float, delta: float) -> Case:
    """The rows of two joined tables, of which a person counts with three of its twenty pairs."""
    few = [(person, 1, 1) for person in range(200)]  # a person, with rows in either table

    def call(data: Any, noise: Noise) -> Any:
        found = statistics.count(_joined(data), per_unit=3, epsilon=epsilon, noise=noise)
        return (float(found.value),)

    def prepare(data: Any, noise: Noise) -> Run:
        from prudent.release.statistics.moments import Count

        request = Request(data=_joined(data), per_unit=3, epsilon=epsilon, noise=noise)
        column: Any = _Once(open_records(request, Count().kind(request))[None])
        priced = Count().price(request, column)
        return lambda: (float(Count().answer(priced, column, noise).value),)

    pair = [*few, (200, 5, 4)], few
    return laplace_case("join", prepare, pair, epsilon, rate=epsilon / 3, call=call)


def _joined(data: Sequence[tuple[int, int, int]]) -> Any:
    one = _table(person=[person for person, times, _ in data for _ in range(times)])
    other = _table(person=[person for person, _, times in data for _ in range(times)])
    return joins.join(one, other, on="person", unit="person")


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
    read: Callable[[Any], tuple[float, ...]],
    epsilon: float,
    *,
    rate: float,
    record: tuple[float, float] = _CORNER,
) -> Case:
    """A case of a statistic of two columns within public bounds; see `laplace_case` for `rate`."""
    weighted = name == "weighted-mean"
    function: Callable[..., Any] = getattr(statistics, name.replace("-", "_"))
    second = {"largest_weight": 1.0} if weighted else {"other_bounds": _BOUNDS}

    def call(data: Any, noise: Noise) -> Any:
        given = {"bounds": _BOUNDS, "epsilon": epsilon, "noise": noise}
        return read(function(_columns(data), "x", "y", **given, **second))

    def prepare(data: Any, noise: Noise) -> Run:
        from prudent.release.statistics.pairs import Pairs, Ratio

        kind: Any = "weighted" if weighted else name
        statistic: Statistic = Ratio() if name == "ratio" else Pairs(kind)
        request = Request(
            data=_columns(data),
            column="x",
            other="y",
            bounds=_BOUNDS,
            other_bounds=_BOUNDS,
            epsilon=epsilon,
            noise=noise,
        )
        column: Any = _Once(open_records(request, "numbers")[None])
        priced = statistic.price(request, column)
        return lambda: read(statistic.answer(priced, column, noise))

    pair = [*_PAIRS, record], _PAIRS
    return laplace_case(name, prepare, pair, epsilon, rate=rate, call=call)


def _sums(released: Any) -> tuple[float, ...]:
    return tuple(released.spread.region.centre)


def _first(found: Any) -> tuple[float, float]:
    """Whether the rare category is the first, and the count of the first."""
    ((name, released),) = found.items()
    return float(name == _RARE), float(released.value)


def _columns(data: Sequence[tuple[float, float]]) -> Any:
    return _table(x=[x for x, _ in data], y=[y for _, y in data])


def _table(**columns: Sequence[Any]) -> Any:
    with _extras.needed("An audit of a release from a table"):
        import pyarrow
    return pyarrow.table(columns)
