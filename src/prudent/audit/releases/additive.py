"""Worst-case pairs of releases that add Laplace noise to sums, counts and distances.

One record moves the sums by the whole sensitivity, in one coordinate. The log-likelihood ratio of
discrete Laplace noise is then ±ε on both sides of the interval between the two sums, where nearly
all outputs lie, so the price is exact, and easily seen. These cases call the public functions; only
the column is opened once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from prudent.audit.releases.case import Case, Run, Silent, exact_epsilon, laplace_case
from prudent.release import statistics
from prudent.release.columns.column import ArrayColumn
from prudent.release.exponential.interval import Points
from prudent.release.noise import Noise
from prudent.release.partitions import PartitionSelection
from prudent.release.sums.tree import CountedQuantiles

_BOUNDS = (0.0, 1.0)
_OUTSIDE = 50.0  # a record that clipping must bring back to the upper bound
_RECORDS = 200  # enough that a noisy count is not clipped to zero


def count(epsilon: float, delta: float) -> Case:
    """The number of records."""
    return _of_column("count", statistics.count, _value, _records(1.0), epsilon)


def sum(epsilon: float, delta: float) -> Case:
    """The sum of values in [0, 1], and a record far above."""
    pair = _records(_OUTSIDE)
    return _of_column("sum", statistics.sum, _value, pair, epsilon, bounds=_BOUNDS)


def mean(epsilon: float, delta: float) -> Case:
    """The mean of values in [0, 1], from two sums, one of which a record above raises by 1."""
    pair = _records(_OUTSIDE)
    return _of_column("mean", statistics.mean, _sums, pair, epsilon, bounds=_BOUNDS)


def variance(epsilon: float, delta: float) -> Case:
    """The variance of values in [0, 1], from three sums; a record above raises one of them by 1."""
    pair = _records(_OUTSIDE)
    return _of_column("variance", statistics.variance, _sums, pair, epsilon, bounds=_BOUNDS)


def deviation(epsilon: float, delta: float) -> Case:
    """The standard deviation of values in [0, 1], from the sums of the variance."""
    pair = _records(_OUTSIDE)
    return _of_column("deviation", statistics.deviation, _sums, pair, epsilon, bounds=_BOUNDS)


def proportion(epsilon: float, delta: float) -> Case:
    """The share of records that are true, from two sums, one of which a true record raises by 1."""
    fewer = [False, True] * (_RECORDS // 2)
    return _of_column("proportion", statistics.proportion, _sums, ([*fewer, True], fewer), epsilon)


def count_distinct(epsilon: float, delta: float) -> Case:
    """The number of different values, and a record with one more."""
    pair = range(_RECORDS + 1), range(_RECORDS)
    return _of_column("count-distinct", statistics.count_distinct, _value, pair, epsilon)


def histogram(epsilon: float, delta: float) -> Case:
    """A histogram of two bins, one of which a record raises by 1."""

    def read(found: Any) -> Any:
        return found.below, *found.counts, found.above

    edges = [0.0, 0.5, 1.0]
    return _of_column("histogram", statistics.histogram, read, _records(1.0), epsilon, edges=edges)


def many_quantiles(epsilon: float, delta: float) -> Case:
    """The counts of a tree, of which a record raises one in each level by 1."""
    ps = tuple(f"{percent}/100" for percent in range(1, 100))
    mechanism, pair = CountedQuantiles(ps, epsilon), _records(1.0)

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

    rate = epsilon / len(moved)
    return laplace_case("many-quantiles", prepare, pair, epsilon, rate=rate, call=call)


def certificate(epsilon: float, delta: float) -> Case:
    """How many records keep the median within an interval; one more record changes it by 1."""
    ends = {"low": 0.0, "high": 1.0}
    certify = statistics.certify_quantile
    return _of_column("certificate", certify, _value, _records(0.5), epsilon, **ends)


def partitions(epsilon: float, delta: float) -> Case:
    """Which groups occur: one group, kept with the most probability that the claim allows."""
    chosen = PartitionSelection(epsilon=epsilon, delta=delta)
    chances = np.array(chosen.chances, np.float64) / float(2**128)
    place = int(np.argmin(np.abs(chances[1:] + chances[:-1] - 1)))
    fewer, more = chances[place], chances[place + 1]

    def prepare(records: int, noise: Noise) -> Run:
        return lambda: bool(chosen.select({"group": records}, noise))

    return Case(
        name="partitions",
        epsilon=epsilon,
        delta=delta,
        pair=(place + 1, place),
        prepare=prepare,
        score=lambda kept: math.log(more / fewer if kept else (1 - more) / (1 - fewer)),
        exact=exact_epsilon([[more, 1 - more], [fewer, 1 - fewer]], delta),
    )


def _records(value: float) -> tuple[list[float], list[float]]:
    """Half of the records at each bound, with and without one more."""
    fewer = [0.0, 1.0] * (_RECORDS // 2)
    return [*fewer, value], fewer


def _value(released: Any) -> Any:
    return float(released.value)


def _sums(released: Any) -> Any:
    """The noisy sums, which are part of the answer."""
    return released.spread.moments.region.centre


def _of_column(
    name: str,
    statistic: Callable[..., Any],
    read: Callable[[Any], Any],
    pair: tuple[Sequence[float], Sequence[float]],
    epsilon: float,
    **options: Any,
) -> Case:
    """A case of a public function; the column is opened once for all runs."""

    def prepare(data: Sequence[float], noise: Noise) -> Run:
        column = ArrayColumn(np.array(data))
        return lambda: read(statistic(column, epsilon=epsilon, noise=noise, **options))

    return laplace_case(name, prepare, (list(pair[0]), list(pair[1])), epsilon)


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
