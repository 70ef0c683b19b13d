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

from prudent.audit.releases.case import Case, Run, exact_epsilon
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

    def release(column: Any, noise: Noise) -> Any:
        return statistics.count(column, epsilon=epsilon, noise=noise).value

    return _laplace("count", release, epsilon, _records(1.0))


def sum(epsilon: float, delta: float) -> Case:
    """The sum of values in [0, 1], and a record far above."""

    def release(column: Any, noise: Noise) -> Any:
        return statistics.sum(column, bounds=_BOUNDS, epsilon=epsilon, noise=noise).value

    return _laplace("sum", release, epsilon, _records(_OUTSIDE))


def mean(epsilon: float, delta: float) -> Case:
    """The mean of values in [0, 1], from two sums, one of which a record above raises by 1."""
    return _moment("mean", statistics.mean, epsilon)


def variance(epsilon: float, delta: float) -> Case:
    """The variance of values in [0, 1], from three sums; a record above raises one of them by 1."""
    return _moment("variance", statistics.variance, epsilon)


def deviation(epsilon: float, delta: float) -> Case:
    """The standard deviation of values in [0, 1], from the sums of the variance."""
    return _moment("deviation", statistics.deviation, epsilon)


def proportion(epsilon: float, delta: float) -> Case:
    """The share of records that are true, from two sums, one of which a true record raises by 1."""

    def release(column: Any, noise: Noise) -> Any:
        found: Any = statistics.proportion(column, epsilon=epsilon, noise=noise).spread
        return found.moments.region.centre

    fewer = [False, True] * (_RECORDS // 2)
    return _laplace("proportion", release, epsilon, ([*fewer, True], fewer), place=1)


def count_distinct(epsilon: float, delta: float) -> Case:
    """The number of different values, and a record with one more."""

    def release(column: Any, noise: Noise) -> Any:
        return statistics.count_distinct(column, epsilon=epsilon, noise=noise).value

    return _laplace("count-distinct", release, epsilon, (range(_RECORDS + 1), range(_RECORDS)))


def histogram(epsilon: float, delta: float) -> Case:
    """A histogram of two bins, one of which a record raises by 1."""

    def release(column: Any, noise: Noise) -> Any:
        found = statistics.histogram(column, edges=[0.0, 0.5, 1.0], epsilon=epsilon, noise=noise)
        return (found.below, *found.counts, found.above)

    return _laplace("histogram", release, epsilon, _records(1.0), place=2)


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

    def score(output: Any) -> float:
        off = np.array(output) - fewer[moved]
        return float(epsilon / len(moved) * np.sum(np.abs(off) - np.abs(off - 1)))

    return Case(
        name="many-quantiles",
        epsilon=epsilon,
        delta=0.0,
        with_record=pair[0],
        without_record=pair[1],
        prepare=prepare,
        call=lambda data, noise: statistics.quantiles(
            np.array(data), ps=ps, bounds=_BOUNDS, epsilon=epsilon, noise=noise
        ),
        score=score,
        exact=epsilon,
    )


def certificate(epsilon: float, delta: float) -> Case:
    """How many records keep the median within an interval; one more record changes it by 1."""

    def release(column: Any, noise: Noise) -> Any:
        found = statistics.certify_quantile(column, low=0.0, high=1.0, epsilon=epsilon, noise=noise)
        return found.value

    return _laplace("certificate", release, epsilon, _records(0.5))


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
        with_record=place + 1,
        without_record=place,
        prepare=prepare,
        score=lambda kept: math.log(more / fewer if kept else (1 - more) / (1 - fewer)),
        exact=exact_epsilon([[more, 1 - more], [fewer, 1 - fewer]], delta),
    )


def _records(value: float) -> tuple[list[float], list[float]]:
    """Half of the records at each bound, with and without one more."""
    fewer = [0.0, 1.0] * (_RECORDS // 2)
    return [*fewer, value], fewer


def _moment(name: str, statistic: Callable[..., Any], epsilon: float) -> Case:
    def release(column: Any, noise: Noise) -> Any:
        found = statistic(column, bounds=_BOUNDS, epsilon=epsilon, noise=noise)
        return found.spread.moments.region.centre  # the noisy sums, which are part of the answer

    place = 1 if name == "mean" else 2
    return _laplace(name, release, epsilon, _records(_OUTSIDE), place=place)


def _laplace(
    name: str,
    release: Callable[[Any, Noise], Any],
    epsilon: float,
    pair: tuple[Sequence[float], Sequence[float]],
    place: int | None = None,
) -> Case:
    """A case of discrete Laplace noise on one number, or on one of several, that a record moves.

    Args:
        name: The name of the case.
        release: Releases from a column.
        epsilon: ε of the claim.
        pair: The data with the record and without it; the number is larger by 1 with it.
        place: Which of several numbers the record moves; None if there is only one.
    """

    def prepare(data: Sequence[float], noise: Noise) -> Run:
        column = ArrayColumn(np.array(data))
        return lambda: release(column, noise)

    centre = _centre(release, pair[1], place)

    def score(output: Any) -> float:
        value = float(output if place is None else output[place])
        return epsilon * (abs(value - centre) - abs(value - centre - 1))

    return Case(
        name=name,
        epsilon=epsilon,
        delta=0.0,
        with_record=list(pair[0]),
        without_record=list(pair[1]),
        prepare=prepare,
        score=score,
        exact=epsilon,
    )


class Silent:
    """A source of noise that adds none: it shows where a release is centred."""

    def of_test(self, test: Any) -> int:
        """See `Noise`."""
        return 0

    def of_value(self, distribution: Any, scale: float, size: int) -> list[int]:
        """See `Noise`."""
        return [0] * size

    def integer(self, bound: int) -> int:
        """See `Noise`."""
        return bound // 2


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


def _centre(
    release: Callable[[Any, Noise], Any], data: Sequence[float], place: int | None
) -> float:
    found = release(ArrayColumn(np.array(data)), Silent())
    return float(found if place is None else found[place])
