"""Worst-case pairs of the exponential mechanism, and of the statistics that are chosen by it.

All records but one lie at one value y, near the upper end of the values an answer may take, and the
record lies at that end. Adding it brings the target nearer to every value above y and farther from
every value below, by as much as one record can. So the log-ratios are t above and t - ε below, the
extremes of a range of length ε: the pair is the worst there is. The nearer t is to ε, the rarer an
answer above y: the share of ε that an audit can see grows with the number of runs.

Where part of ε pays for confidence intervals, or for other parts of the answer, no pair is known
that uses up every part at once, so the price may be above the exact ε.
"""

import functools
import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterator, Sequence
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, cast

import attrs
import numpy as np
from typing_extensions import override

from prudent.audit.lower_bounds import FloatArray
from prudent.release import statistics
from prudent.release.columns.scales import INTEGER
from prudent.release.exponential.interval import IntervalChoice, Points, octave_candidates
from prudent.release.exponential.many_quantiles import CountedQuantiles, HalvedQuantiles
from prudent.release.exponential.measure import LatticeMeasure, Measure
from prudent.release.exponential.quantile import (
    ExponentialQuantile,
    ExponentialQuantiles,
    ExponentialRange,
    NearTarget,
)
from prudent.release.lattice import LAST_HALF, Lattice, end_of_half_octave, half_octaves
from prudent.release.moment_sums import OfFew
from prudent.release.noise import Noise, shares_of
from prudent.release.outcome import ScaledSpread, UnknownSpread
from prudent.release.request import Request
from tests.audit.releases.case import Case, Make, Run, exact_epsilon
from tests.oracles.array_column import ArrayColumn

_NEAR = 0.95  # t/ε: where 20,000 runs see most
_SEVERAL_SHARE = 0.25  # fraction of ε that the intervals of several quantiles get
_TOP = 2**40  # the largest answer; so many values that the mass of a single one is negligible
_TIMES = 30  # how many times the records beyond an extreme quantile there are
_BYTE = (0, 255)
_BYTES = LatticeMeasure(Lattice(0, *_BYTE))


def median_selected(epsilon: float, delta: float) -> Case:
    """The median without a proposal, with its interval."""
    case = _quantile(Fraction(1, 2), epsilon, delta)
    call = _called(statistics.median, bounds=(0, _TOP), epsilon=epsilon)
    return attrs.evolve(case, call=call, exact=None)


def quantiles(epsilon: float, delta: float) -> Case:
    """The quartiles, with intervals; the score adds up their losses as if they were not sorted."""
    ps = ["0.25", "0.5", "0.75"]

    def mechanism() -> ExponentialQuantiles:
        return _Several(ps, epsilon, _BYTES, _SEVERAL_SHARE)

    def laws(data: Sequence[int]) -> FloatArray:
        return np.array([_law(part, data, range(1, 256)) for part in mechanism().parts])

    def divergence(pair: tuple[Sequence[int], Sequence[int]]) -> float:
        more, fewer = map(laws, pair)
        return float(np.sum(more * np.log(more / fewer)))

    pair = max(_few_records(), key=divergence)
    losses = np.log(laws(pair[0]) / laws(pair[1]))

    return Case(
        epsilon=epsilon,
        pair=pair,
        prepare=_releasing(mechanism, lambda found: tuple(choice.index for choice in found)),
        call=_called(statistics.quantiles, ps=ps, bounds=_BYTE, epsilon=epsilon),
        score=lambda output: float(sum(losses[range(3), output])),
    )


def halved_quantiles(epsilon: float, delta: float) -> Case:
    """Several quantiles by halving, each choice on the records that earlier ones leave to it."""
    ps = ("1/5", "2/5", "3/5", "4/5")
    known, values = shares_of(epsilon, _SEVERAL_SHARE)
    mechanism = HalvedQuantiles(CountedQuantiles(ps, known), values)

    def read(data: Sequence[int]) -> Points:
        return Points.read(_integers(data), _BYTE, mechanism.points)

    def loss(output: Sequence[int], points: Points) -> float:
        """The log-probability of the places, given in the order in which they were chosen."""
        given, chances = iter(output), []

        def choose(chosen: ExponentialQuantile, records: Points) -> int:
            place, held = next(given), np.repeat(records.steps, records.counts)
            chances.append(_law(chosen, held.tolist(), [place, place + 1])[1])
            return place

        mechanism.places(points, choose)
        return float(np.log(chances).sum())

    def prepare(data: Any, noise: Noise) -> Run:
        points = read(data)

        def run() -> tuple[int, ...]:
            found: list[int] = []

            def choose(chosen: ExponentialQuantile, records: Points) -> int:
                found.append(chosen.release(records, noise).index)
                return found[-1]

            mechanism.places(points, choose)
            return tuple(found)

        return run

    pair = [128, 128, 128, 255], [128, 128, 128]
    more, fewer = map(read, pair)
    return Case(
        epsilon=epsilon,
        pair=pair,
        prepare=prepare,
        call=_called(statistics.quantiles, ps=ps, bounds=_BYTE, epsilon=epsilon),
        score=lambda output: loss(output, more) - loss(output, fewer),
    )


def iqr_selected(epsilon: float, delta: float) -> Case:
    """The interquartile range without a proposal: the pair of the largest ε among simple ones."""

    def mechanism() -> ExponentialRange:
        return _Range(epsilon, _BYTES)

    def law(data: Sequence[int]) -> FloatArray:
        """The probability of every range: a difference of two independent quartiles."""
        lower, upper = (_law(part, data, range(1, 256)) for part in mechanism().quartiles.parts)
        values = np.arange(256)
        ranges = np.abs(values[:, None] - values)
        both = np.outer(lower, upper)
        return np.array([np.sum(both[ranges == value]) for value in values])

    pair = max(_few_records(), key=lambda pair: exact_epsilon([law(data) for data in pair], 0.0))
    laws = [law(data) for data in pair]
    losses = np.log(laws[0] / laws[1])

    return Case(
        epsilon=epsilon,
        pair=pair,
        prepare=_releasing(mechanism, lambda found: int(found.value)),
        call=_called(statistics.iqr, bounds=_BYTE, epsilon=epsilon),
        score=lambda output: float(losses[output]),
        exact=exact_epsilon(laws, 0.0),
    )


def _called(statistic: Callable[..., Any], **options: Any) -> Callable[[Any, Noise], Any]:
    """The public function on whole numbers, as a case calls it."""
    return lambda data, noise: statistic(list(data), read_as="integer", noise=noise, **options)


def _integers(data: Sequence[int]) -> ArrayColumn:
    """A column of integers, which their type alone does not say."""
    return ArrayColumn(np.array(data, np.int64), INTEGER)


def _releasing(
    mechanism: Callable[[], Any], read: Callable[[Any], Any]
) -> Callable[[Any, Noise], Run]:
    """Every run releases anew from a column that is read once, by a mechanism of its own."""

    def prepare(data: Any, noise: Noise) -> Run:
        column, chosen = _integers(data), mechanism()
        return lambda: read(chosen.release(column, noise))

    return prepare


def _once(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that computes the weights of a quantile once for the data set of its object."""

    def known(self: Any, window: NearTarget, *intervals: Any) -> Any:
        key = method, self.p, *map(tuple, intervals)
        if key not in self._memory:
            self._memory[key] = method(self, window, *intervals)
        return self._memory[key]

    return known


class _Remembering(ExponentialQuantile):
    """The same mechanism for one data set, whose weights are computed once."""

    _memory: Any = cached_property(lambda self: {})
    value_weights = _once(ExponentialQuantile.value_weights)
    interval_weights = _once(ExponentialQuantile.interval_weights)


class _Several(ExponentialQuantiles):
    """Several of them."""

    @cached_property
    @override
    def parts(self) -> tuple[ExponentialQuantile, ...]:
        return tuple(_Remembering(**attrs.asdict(part, recurse=False)) for part in super().parts)


class _Range(ExponentialRange):
    """The range between two of them."""

    @cached_property
    @override
    def quartiles(self) -> ExponentialQuantiles:
        return _Several(**attrs.asdict(super().quartiles, recurse=False))


def _quantile(p: Fraction, epsilon: float, delta: float, **options: Any) -> Case:
    """A quantile by the exponential mechanism, without its interval if that has no share."""
    measure = LatticeMeasure(Lattice(0, 0, _TOP))

    def mechanism() -> ExponentialQuantile:
        return _Remembering(p, epsilon, measure, **options)

    larger = max(p, 1 - p)
    copies = math.ceil(larger / (1 - p))  # so many that the target is a whole Δ below them
    forgetful = ExponentialQuantile(p, epsilon, measure, **options)
    y = _seldom_above(forgetful, lambda y: [y] * copies)
    pair = [float(y)] * copies + [4.0 * _TOP], [float(y)] * copies  # clipped to the largest
    cuts = [y, y + 1, _TOP]
    laws = [_law(mechanism(), data, cuts) for data in pair]
    losses = np.log(laws[0] / laws[1])

    def read(found: Any) -> Any:
        return (found.index, found.whole) if forgetful.interval_share else found.index

    def score(output: Any) -> float:
        index = output[0] if isinstance(output, tuple) else output
        return float(losses[int(np.searchsorted(cuts, index, side="right"))])

    return Case(
        epsilon=epsilon,
        pair=pair,
        prepare=_releasing(mechanism, read),
        score=score,
        exact=exact_epsilon(laws, 0.0),
    )


def _seldom_above(mechanism: ExponentialQuantile, records: Callable[[int], list[int]]) -> int:
    """The value y above which an answer is as rare as it should be, on the records that y makes."""
    epsilon = mechanism.epsilon
    wanted = (math.exp(-_NEAR * epsilon) - math.exp(-epsilon)) / -math.expm1(-epsilon)
    low, high = 1, _TOP - 1
    while high - low > 1:
        y = (low + high) // 2
        above = float(_law(mechanism, records(y), [y, y + 1])[-1])
        low, high = (y, high) if above > wanted else (low, y)
    return low


def _extreme(name: str, epsilon: float, delta: float) -> Case:
    """The maximum or minimum: an extreme quantile, whose probability a noisy count decides.

    So many records lie at the ends that the target is near two records at y, whatever the count
    says; one more at the end moves the target as it does for one quantile. The count adds its loss.
    """
    from prudent.release.statistics.quantile_statistics import COUNT_SHARE, Extreme

    statistic = Extreme(lowest=name == "minimum")
    bounds = (-_TOP, 0) if statistic.lowest else (0, _TOP)
    request = Request(bounds=bounds, epsilon=epsilon)
    priced = statistic.price(request, _integers([]))
    (count, quantile), depth = priced.mechanism, int(priced.preview.rank_error or 1)
    chosen: ExponentialQuantile = quantile.mechanism.chosen
    records = _TIMES * depth

    def data(y: int) -> list[int]:
        return [0] * (records - depth - 1) + [y] * 2 + [_TOP] * (depth - 1)

    upper = LatticeMeasure(Lattice(0, 0, _TOP))
    y = _seldom_above(attrs.evolve(chosen, p=1 - Fraction(1, _TIMES), measure=upper), data)
    pair = [*data(y), 4 * _TOP], data(y)
    if statistic.lowest:
        y, pair = -y, ([-each for each in pair[0]], [-each for each in pair[1]])

    @functools.cache
    def losses(p: Fraction) -> FloatArray:
        laws = [_law(attrs.evolve(chosen, p=p), each, [y, y + 1]) for each in pair]
        return np.asarray(np.log(laws[0] / laws[1]))

    def read(released: Any) -> tuple[float, float]:
        """The value, and the probability that the note tells."""
        (told,) = re.findall(r"the (0\.\d+)-quantile", released.notes[-1])
        return float(released.value), float(told)

    def prepare(data: Sequence[int], noise: Noise) -> Run:
        memory: dict[Hashable, Any] = {}

        class Known(_Remembering):
            """The quantile of any probability, whose weights are computed once for each."""

            _memory = property(lambda self: memory)

        known = Known(**attrs.asdict(chosen, recurse=False))
        remembered = attrs.evolve(
            quantile, mechanism=attrs.evolve(quantile.mechanism, chosen=known)
        )
        release = attrs.evolve(priced, mechanism=(count, remembered))
        column = _integers(data)
        return lambda: read(statistic.answer(release, column, noise))

    def call(data: Any, noise: Noise) -> Any:
        function: Callable[..., Any] = getattr(statistics, name)
        options = {"bounds": bounds, "epsilon": epsilon, "noise": noise}
        return read(function(list(data), read_as="integer", **options))

    def score(output: tuple[float, float]) -> float:
        value, p = output[0], Fraction(str(output[1]))
        counted = round(depth / (p if statistic.lowest else 1 - p))
        of_count = abs(counted - records) - abs(counted - records - 1)
        place = int(np.searchsorted([y, y + 1], value, side="right"))
        return COUNT_SHARE * epsilon * of_count + float(losses(p)[place])

    return Case(
        epsilon=epsilon,
        pair=pair,
        prepare=prepare,
        call=call,
        score=score,
    )


def _law(mechanism: ExponentialQuantile, data: Sequence[float], cuts: Sequence[int]) -> FloatArray:
    """The probability of an answer before the first cut, between cuts, and from the last on."""
    measure: Measure = mechanism.measure
    column = ArrayColumn(np.array(data, np.float64))
    window = NearTarget.read(column, measure, mechanism.p, mechanism.reach)
    starts, weights = mechanism.value_weights(window)
    edges = np.unique(np.array([*starts, *cuts, measure.high + 1], np.int64))
    masses = np.diff(measure.below(edges).astype(object))
    place = np.searchsorted(starts, edges[:-1], side="right") - 1
    parts = [int(mass) * weights[at] for mass, at in zip(masses, place.tolist(), strict=True)]
    total = sum(parts)
    masses = np.zeros(len(cuts) + 1)
    for edge, part in zip(edges[:-1].tolist(), parts, strict=True):
        masses[int(np.searchsorted(cuts, edge, side="right"))] += float(Fraction(part, total))
    return masses


def _few_records() -> Iterator[tuple[list[int], list[int]]]:
    """Pairs of bytes: a few equal records, and one more at an end."""
    for y, copies, added in itertools.product((20, 128, 235), (1, 3), _BYTE):
        yield [y] * copies + [added], [y] * copies


def private_interval(epsilon: float, delta: float) -> Case:
    """The choice of an interval of half-octaves: a record far from zero, and nothing else."""
    choice, candidates = IntervalChoice(epsilon), octave_candidates(INTEGER)
    value = _seldom_inside()

    def law(data: Sequence[int]) -> FloatArray:
        """The probability of an interval that holds the value, and of one that does not."""
        outside = candidates.outside(*_integers(data).half_octaves())
        levels, weights = choice.weights(outside, candidates)
        if len(levels) > 1:  # the record is inside or outside
            return np.array([weight / sum(weights) for weight in weights])
        place = half_octaves(np.array([value]))[0]
        holds = (candidates.first <= place) & (place <= candidates.last)
        held = int(candidates.masses[holds].sum()) / int(candidates.masses.sum())
        return np.array([held, 1 - held])

    laws = [law([round(value)]), law([])]
    losses = np.log(laws[0] / laws[1])

    def prepare(data: Sequence[int], noise: Noise) -> Run:
        places, counts = _integers(data).half_octaves()
        place = int(half_octaves(np.array([value]))[0])

        def run() -> int:
            first, last = choice.release(candidates, places, counts, noise)
            return 0 if first <= place <= last else 1

        return run

    return Case(
        epsilon=epsilon,
        pair=([round(value)], []),
        prepare=prepare,
        score=lambda output: float(losses[output]),
        exact=exact_epsilon(laws, 0.0),
    )


def _seldom_inside() -> float:
    """The value, farthest from zero, that a seventh of the mass of all intervals holds."""
    candidates = octave_candidates(INTEGER)
    for place in range(LAST_HALF, 0, -1):
        holds = (candidates.first <= place) & (place <= candidates.last)
        if 7 * int(candidates.masses[holds].sum()) > int(candidates.masses.sum()):
            return end_of_half_octave(place) * 0.9
    raise AssertionError("an interval of whole numbers holds some value")


def _public(release: Callable[..., Any], epsilon: float, delta: float) -> Case:
    """A case of a public function on whole numbers: a record at zero, and one more.

    The second is where a seventh of the intervals reach before any data are read, which is rare
    enough to tell much and frequent enough to be seen, in a release of which a part of ε goes to
    the choice.
    """

    def call(data: Any, noise: Noise) -> Any:
        return release(data, epsilon=epsilon, noise=noise)

    return Case(
        epsilon=epsilon,
        pair=([0, round(_seldom_inside())], [0]),
        prepare=lambda data, noise: partial(call, _integers(data), noise),
        call=lambda data, noise: call(_integers(data), noise),
    )


def _moments(released: Any) -> tuple[float, ...]:
    """The noisy sums and the private bounds, which are part of the answer.

    Where all half-octaves have sums, those of the two records, and of all.
    """
    spread: Any = released.spread
    if isinstance(spread, UnknownSpread):
        spread = spread.noise
    if isinstance(spread, ScaledSpread):
        places = half_octaves(np.array([_seldom_inside(), 0.0])) + LAST_HALF
        sums = cast(OfFew, spread.spread).sums
        return (*sums[:, places[0]], sums[0, places[1]], float(sums.sum()))
    moments = spread.moments
    return (*moments.ends, *moments.region.centre)


def _sum(data: Any, **options: Any) -> tuple[float, ...]:
    """The released sum and the scale of its noise, from which the private bound follows."""
    released: Any = statistics.sum(data, **options)
    return float(released.value), math.log2(released.noise_scale)


def _description(data: Any, **options: Any) -> tuple[float, ...]:
    """The median and the moments of a description."""
    described: Any = statistics.describe(data, ps=["0.5"], **options)
    return described.quantiles["0.5"].value, *_moments(described.mean)


CASES: dict[str, Make] = {
    "exponential": partial(_quantile, Fraction(1, 2), interval_share=0.0),
    "exponential-quantile": partial(_quantile, Fraction(9, 10), interval_share=0.0),
    "median-selected": median_selected,
    "quantiles": quantiles,
    "halved-quantiles": halved_quantiles,
    "iqr-selected": iqr_selected,
    "maximum": partial(_extreme, "maximum"),
    "minimum": partial(_extreme, "minimum"),
    "private-interval": private_interval,
    # Of values that are clipped to a private interval.
    "sum-private-bounds": partial(_public, _sum),
    "mean-private-bounds": partial(_public, lambda *a, **b: _moments(statistics.mean(*a, **b))),
    "variance-private-bounds": partial(
        _public, lambda *a, **b: _moments(statistics.variance(*a, **b))
    ),
    "describe": partial(_public, _description),
}
