"""What a release says, told again: the same answers to the same questions, of other records.

A release asks its source of noise, and what it says depends on the records through the noisy
answers alone. So a release of neighbouring records that gets the noisy answers of the first one
must end in the same way, and the distance between the exact answers is what it has to pay for.
"""

import bisect
import contextlib
import functools
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import attrs
import numpy as np

from prudent.release import ReproducibleNoise
from prudent.release.exponential import measure as measures
from prudent.release.exponential.interval import IntervalChoice
from prudent.release.noise import ONE, PartitionSelection, in_order


@attrs.define(eq=False)
class Query:
    """One question to the source of noise.

    Attributes:
        asked: Its public facts: kind, scale, size.
        exact: The exact answers, or the logarithm of the chance of a choice; None where not seen.
        told: The noisy answers.
    """

    asked: tuple[Any, ...]
    exact: list[Any]
    told: list[Any]

    @property
    def seen(self) -> bool:
        return None not in self.exact

    def loss(self, other: "Query") -> tuple[float, float]:
        """The largest privacy loss between the exact answers: pure, and μ² of Gaussian noise."""
        kind, scale = self.asked[0], self.asked[1]
        pairs = list(zip(self.exact, other.exact, strict=True))
        if kind == "gaussian":
            return 0.0, sum(((a - b) / scale) ** 2 for a, b in pairs)
        unit = 1.0 if kind == "choice" else scale  # a choice notes the logarithm of its chance
        return sum(abs(a - b) for a, b in pairs) / unit, 0.0


class Noisy(int):
    """Noise that is told the exact answer when it is added to it, and gives the noisy one."""

    query: Query
    place: int
    __array_ufunc__ = None  # numbers of numpy leave the sum to this class

    def __radd__(self, exact: Any) -> int:
        found = self.query
        found.exact[self.place] = int(exact)
        if found.told[self.place] is None:
            found.told[self.place] = int(exact) + int(self)
        return int(found.told[self.place])

    __add__ = __radd__


class Transcript:
    """A source of noise that notes what it is asked and, given an earlier one, tells it again.

    Attributes:
        queries: What was asked.
        differs: The first question that was not the earlier one, in words; None if all were.
    """

    def __init__(self, seed: int, earlier: "Transcript | None" = None) -> None:
        self._seed, self._earlier = seed, earlier
        self.queries: list[Query] = []
        self.differs: str | None = None

    def _next(self, *asked: Any, size: int) -> tuple[Query, ReproducibleNoise]:
        place, told = len(self.queries), [None] * size
        if self._earlier is not None and self.differs is None:
            if place >= len(self._earlier.queries):
                self.differs = f"question {place}, {asked[:3]}, was not asked before"
            else:
                before = self._earlier.queries[place]
                if before.asked == asked and len(before.told) == size:
                    told = list(before.told)
                else:
                    self.differs = f"question {place} was {before.asked}, is {asked}"
        self.queries.append(Query(asked, [None] * size, told))
        return self.queries[-1], ReproducibleNoise(self._seed * 1009 + place)

    def of_test(self, test: Any) -> int:
        """See `Noise`."""
        kind = "gaussian" if "Gaussian" in type(test).__name__ else "test"
        query, source = self._next(kind, test.scale, size=1)
        return self._noisy(query, [source.of_test(test)])[0]

    def of_value(self, distribution: Any, scale: float, size: int) -> list[int]:
        """See `Noise`."""
        query, source = self._next(distribution.value, scale, size=size)
        return self._noisy(query, source.of_value(distribution, scale, size))

    def integer(self, bound: int) -> int:
        """See `Noise`; what the records do not decide is the same both times."""
        _, source = self._next("integer", bound, size=0)
        return source.integer(bound)

    @staticmethod
    def _noisy(query: Query, drawn: Sequence[int]) -> list[int]:
        found = []
        for place, each in enumerate(drawn):
            noise = Noisy(each)
            noise.query, noise.place = query, place
            found.append(noise)
        return found

    def choice(self, *public: Any, total: int, draw: Any, weight: Any) -> Any:
        """One of several places: `draw` gives the place at a number, `weight` that of a place."""
        query, source = self._next("choice", *public, size=1)
        if query.told[0] is None:
            query.told[0] = draw(source.integer(total))
        chosen = weight(query.told[0])
        query.exact[0] = math.log(chosen) - math.log(total) if chosen else -math.inf
        return query.told[0]

    def kept(self, selection: PartitionSelection, counts: Mapping[Any, int]) -> Any:
        """The private groups that are kept; a group that is not there counts no record."""
        query, source = self._next("groups", selection.epsilon, size=1)
        if query.told[0] is None:
            every = sorted(counts, key=in_order)
            query.told[0] = [g for g in every if source.integer(ONE) < selection.chance(counts[g])]
        query.exact = [{group: selection.chance(count) for group, count in counts.items()}]
        return query.told[0]

    def loss(self, other: "Transcript") -> tuple[float, float]:
        """The privacy loss between two transcripts; of questions whose exact answers were seen."""
        found = []
        for one, two in zip(self.queries, other.queries, strict=True):
            if one.asked[0] == "groups":
                found.append((_loss_of_groups(one, two), 0.0))
            elif one.seen and two.seen:
                found.append(one.loss(two))
        return math.fsum(pure for pure, _ in found), math.fsum(each for _, each in found)

    @property
    def seen(self) -> bool:
        """Whether all exact answers were seen, so that noisy ones were told again."""
        return all(query.seen for query in self.queries)


def _loss_of_groups(one: Query, two: Query) -> float:
    (a,), (b,), (kept,) = one.exact, two.exact, one.told
    total = 0.0
    for group in {*a, *b}:
        left, right = a.get(group, 0), b.get(group, 0)
        if group not in kept:
            left, right = ONE - left, ONE - right
        if left != right:
            total += math.log(left) - math.log(right) if left and right else math.inf
    return abs(total)


@functools.lru_cache(maxsize=1)
def _own(count: int) -> list[Any]:
    """Our modules, of so many that are imported."""
    return [each for name, each in list(sys.modules.items()) if name.startswith("prudent.")]


@contextlib.contextmanager
def choices_noted() -> Iterator[None]:
    """Let a transcript note draws by weight too, and tell them again."""
    draw, choose, select = measures.draw, measures.choose, PartitionSelection.select
    choose_range = IntervalChoice.release

    def noted_draw(measure: Any, starts: Any, weights: Any, noise: Any) -> int:
        if not isinstance(noise, Transcript):
            return draw(measure, starts, weights, noise)
        edges = measure.below(np.array([*starts, measure.high + 1], np.int64)).tolist()
        masses = [end - begin for begin, end in itertools.pairwise(edges)]
        total = sum(mass * weight for mass, weight in zip(masses, weights, strict=True))
        return noise.choice(
            (measure.low, measure.high),
            total=total,
            draw=lambda number: draw(measure, starts, weights, _Given(number)),
            weight=lambda index: weights[bisect.bisect_right(starts, index) - 1],
        )

    def noted_choose(weights: Any, noise: Any) -> int:
        if not isinstance(noise, Transcript):
            return choose(weights, noise)
        return noise.choice(
            len(weights),
            total=sum(weights),
            draw=lambda number: choose(weights, _Given(number)),
            weight=lambda place: weights[place],
        )

    def noted_select(self: PartitionSelection, counts: Any, noise: Any) -> Any:
        if not isinstance(noise, Transcript):
            return select(self, counts, noise)
        return list(noise.kept(self, counts))

    def noted_range(self: IntervalChoice, among: Any, places: Any, counts: Any, noise: Any) -> Any:
        if not isinstance(noise, Transcript):
            return choose_range(self, among, places, counts, noise)
        outside = among.outside(places, counts)
        levels, weights = self.weights(outside, among)

        def weight(told: tuple[int, int]) -> int:
            (place,) = np.flatnonzero((among.first == told[0]) & (among.last == told[1]))
            level = min(np.searchsorted(levels, outside[place]), len(levels) - 1)
            same = np.minimum(outside, levels[-1]) == levels[level]
            return int(among.masses[place]) * weights[level] // int(among.masses[same].sum())

        return noise.choice(
            len(among.masses),
            total=sum(weights),
            draw=lambda number: choose_range(
                self, among, places, counts, ReproducibleNoise(number % 2**32)
            ),
            weight=weight,
        )

    instead = {draw: noted_draw, choose: noted_choose}
    with contextlib.ExitStack() as patched:
        for module in _own(len(sys.modules)):
            for word in ("draw", "choose"):
                if (found := vars(module).get(word)) in (draw, choose):
                    patched.enter_context(mock.patch.object(module, word, instead[found]))
        patched.enter_context(mock.patch.object(PartitionSelection, "select", noted_select))
        patched.enter_context(mock.patch.object(IntervalChoice, "release", noted_range))
        yield


@attrs.frozen
class _Given:
    """A source of one number."""

    number: int

    def integer(self, bound: int) -> int:
        return self.number
