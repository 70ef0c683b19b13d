"""What is released of the values of parts: medians of numbers, or votes for labels.

Each way says what it costs before anything is read, and how many spoiled parts its answer
withstands.
"""

import math
from collections.abc import Hashable, Sequence
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import attrs
import dp_accounting as dp
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.accounting.calibration import Search, solve
from prudent.accounting.events import ExponentialMechanismDpEvent
from prudent.release.certificates import CAP, Certificate, DistanceRelease
from prudent.release.certificates import SHARE as CERTIFICATE_SHARE
from prudent.release.charging import Preview
from prudent.release.columns.column import ArrayColumn
from prudent.release.exponential.quantile import ExponentialQuantile, Selected
from prudent.release.noise import SLACK, Distribution, Noise
from prudent.release.outcome import Branch, Released, ReleasedInterval
from prudent.release.sums.additive import AdditiveMechanism, composed, shares_of

MOST_PARTS = 10**6
"""Largest number of parts."""

_HALF = Fraction(1, 2)
_INTERVAL_SHARE = 0.4  # of ε, where an interval is asked for
_ENOUGH, _ENOUGH_FOR_INTERVAL = 60.0, 280.0  # parts, times the ε of one median
_ENOUGH_VOTES = 30.0  # parts, divided by the scale of the noise

FloatArray = npt.NDArray[np.float64]


@attrs.frozen(kw_only=True)
class AggregateRequest:
    """The arguments of `aggregate` that decide its price, checked."""

    epsilon: float  # ε of the release
    delta: float | None  # δ of the release; None for a pure one
    size: int  # how many numbers or labels each part has
    single: bool  # whether it is one that comes without a list
    parts: int | None  # the number of parts; None to choose one
    tolerance: float | None  # of a certificate; None if none is asked for
    confidence: float | None  # of an interval and of certificates; None if no interval is asked for


def preview_of(
    mechanism: str, asked: AggregateRequest, events: list[dp.DpEvent], parts: int
) -> Preview:
    """The price of an aggregation, from its events."""
    return Preview(
        statistic="aggregate",
        mechanism=mechanism,
        epsilon=asked.epsilon,
        delta=asked.delta or 0.0,
        event=composed(events),
        notes=(f"Of {parts:,} disjoint parts; one record is in one of them.",),
    )


def selected(
    value: Any,
    certificate: Certificate | None,
    *,
    spread: Any = None,
    intervals: Any = None,
    name: str = "exponential",
) -> Released:
    """A released value; its price is filled in later."""
    return Released(
        value=value,
        branch=Branch.SELECTED,
        noise_scale=0.0,
        spacing=0.0,
        event=None,
        mechanism=name,
        spread=spread,
        certificate=certificate,
        intervals=intervals,
        about=None if spread is None else "the exact median of the parts",
    )


@attrs.frozen(kw_only=True)
class Medians:
    """Numbers: the median of each, by the exponential mechanism."""

    asked: AggregateRequest
    quantile: ExponentialQuantile
    certifies: DistanceRelease | None
    parts: int
    preview: Preview

    @classmethod
    def priced(cls, asked: AggregateRequest) -> "Medians":
        """Calibrate the release; nothing is read."""
        certifies, rest = None, asked.epsilon
        if asked.tolerance is not None:
            share, rest = shares_of(asked.epsilon, CERTIFICATE_SHARE)
            certifies = DistanceRelease(epsilon=share, confidence=asked.confidence or 0.95)
        quantile = _median(
            _each(rest, asked.delta, asked.size, _interval_share(asked)),
            _interval_share(asked),
            asked.confidence or 0.95,
        )
        enough = _ENOUGH if asked.confidence is None else _ENOUGH_FOR_INTERVAL
        parts = asked.parts or min(MOST_PARTS, math.ceil(enough / (2 * quantile.epsilon)))
        events = [_event(quantile, asked.size)]
        if certifies is not None:
            events.append(certifies.event)
        return cls(
            asked=asked,
            quantile=quantile,
            certifies=certifies,
            parts=parts,
            preview=preview_of("exponential", asked, events, parts),
        )

    def read(self, value: Any) -> FloatArray | None:
        """The numbers of a part, if they are as many as asked for and all finite."""
        numbers = np.asarray(value, np.float64)
        wanted = () if self.asked.single else (self.asked.size,)
        if numbers.shape != wanted and not (self.asked.single and numbers.size == 1):
            return None
        return numbers.reshape(-1) if np.isfinite(numbers).all() else None

    def release(self, values: list[FloatArray], noise: Noise) -> Released:
        """Release from the values of the parts that have one."""
        columns = np.stack(values).T if values else np.empty((self.asked.size, 0))
        chosen = [self.quantile.release(ArrayColumn(each), noise) for each in columns]
        certificate = self._certificate(columns, chosen, noise)
        numbers = tuple(each.value for each in chosen)
        kept = self.asked.confidence
        if self.asked.single:
            (one,) = chosen
            spread = one.interval and ReleasedInterval(*one.interval, kept or 0.95, one.whole)
            return selected(numbers[0], certificate, spread=spread)
        ends = tuple(None if each.whole else each.interval for each in chosen)
        found = selected(numbers, certificate, intervals=None if kept is None else ends)
        return attrs.evolve(found, confidence=kept or 0.95)

    def _certificate(
        self, columns: FloatArray, chosen: list[Selected], noise: Noise
    ) -> Certificate | None:
        if self.certifies is None or self.asked.tolerance is None:
            return None
        tolerance = self.asked.tolerance
        ends = [(each.value - tolerance, each.value + tolerance) for each in chosen]
        distance = min(
            median_distance(column, *both) for column, both in zip(columns, ends, strict=True)
        )
        low, high = ends[0] if self.asked.single else zip(*ends, strict=True)
        return self.certifies.release(distance, low, high, noise=noise)


def median_distance(values: FloatArray, low: float, high: float) -> int:
    """The least number of parts to spoil before the median of their values leaves [low, high].

    It is 0 if it is outside already, and if no part has a value. A spoiled part changes its value,
    falls silent or begins to speak.
    """
    count, below = len(values), int((values < low).sum())
    within = int((values <= high).sum())
    above_end = -(-(2 * within - count + 1) // 2)
    below_end = -(-(count - 2 * below) // 2)
    return min(CAP, max(0, min(above_end, below_end))) if count else 0


def _interval_share(asked: AggregateRequest) -> float:
    return 0.0 if asked.confidence is None else _INTERVAL_SHARE


def _median(epsilon: float, share: float, confidence: float) -> ExponentialQuantile:
    return ExponentialQuantile(_HALF, epsilon, interval_share=share, confidence=confidence)


def _event(quantile: ExponentialQuantile, size: int) -> dp.DpEvent:
    """The event of so many medians: a record replaces a value, which costs twice as much."""
    parts = [quantile.value_epsilon, quantile.interval_epsilon]
    events: list[dp.DpEvent] = [ExponentialMechanismDpEvent(2 * each) for each in parts if each]
    if size > 1:
        events = [dp.SelfComposedDpEvent(each, size) for each in events]
    return composed(events)


@lru_cache(maxsize=64)
def _each(epsilon: float, delta: float | None, size: int, share: float) -> float:
    """The ε of each of several medians that together cost (epsilon, delta), on the safe side."""
    equal = epsilon / (2 * size)
    while Fraction(equal) * 2 * size > Fraction(epsilon):
        equal = math.nextafter(equal, 0.0)
    if delta is None or size == 1:
        return equal
    found = solve(
        lambda each: _event(_median(each, share, 0.95), size),
        Search(safe=equal, unsafe=epsilon / 2, guess=min(epsilon / 2, equal * math.sqrt(size))),
        epsilon=epsilon * (1 - SLACK),
        delta=delta * (1 - SLACK),
        name="epsilon of each number",
    )
    return max(equal, found)


@attrs.frozen(kw_only=True)
class Votes:
    """Labels: the votes for each, with noise."""

    asked: AggregateRequest
    labels: tuple[Hashable, ...]
    places: dict[Hashable, int] = attrs.field(repr=False)
    noise: AdditiveMechanism
    parts: int
    preview: Preview

    @classmethod
    def priced(cls, asked: AggregateRequest, labels: Sequence[Hashable]) -> "Votes":
        """Calibrate the release; nothing is read."""
        known = _validate.values(labels=labels)
        if len(known) < 2 or not all(isinstance(each, Hashable) for each in known):
            raise ArgumentError("labels", "two or more distinct values", got=labels)
        places = {label: place for place, label in enumerate(known)}
        if len(places) < len(known):
            raise ArgumentError("labels", "two or more distinct values", got=labels)
        if asked.tolerance is not None:
            raise ArgumentError(
                "certify", "none for a vote, which comes with its proof", got=asked.tolerance
            )
        kind = Distribution.LAPLACE if asked.delta is None else Distribution.GAUSSIAN
        noise = AdditiveMechanism.calibrate(asked.epsilon, asked.delta, kind)
        if asked.delta is not None:  # for few votes the noise that needs no δ may still be less
            pure = AdditiveMechanism.calibrate(asked.epsilon)
            if _vote_scale(pure, asked.size) * math.sqrt(2) < _vote_scale(noise, asked.size):
                noise = pure
        scale = _vote_scale(noise, asked.size)
        parts = asked.parts or min(MOST_PARTS, math.ceil(_ENOUGH_VOTES * scale))
        name = noise.distribution.value
        return cls(
            asked=asked,
            labels=tuple(known),
            places=places,
            noise=noise,
            parts=parts,
            preview=preview_of(name, asked, [noise.event], parts),
        )

    def read(self, value: Any) -> list[int] | None:
        """The places of the labels of a part, if all of them are in the public list."""
        if not self.asked.single:
            value = value.tolist() if hasattr(value, "tolist") else list(value)
            if len(value) != self.asked.size:
                return None
        else:
            value = [value.item() if hasattr(value, "item") else value]
        return [self.places[each] for each in value]

    def release(self, values: list[list[int]], noise: Noise) -> Released:
        """Release from the values of the parts that have one."""
        size, kinds = self.asked.size, len(self.labels)
        votes = np.array(values, np.int64).reshape(len(values), size)
        counts = np.stack([(votes == place).sum(axis=0) for place in range(kinds)], axis=1)
        scale = _vote_scale(self.noise, size)
        drawn = noise.of_value(self.noise.distribution, scale, counts.size)
        noisy = counts + np.array(drawn, np.int64).reshape(counts.shape)
        winners = noisy.argmax(axis=1)
        chosen = tuple(self.labels[place] for place in winners)
        value = chosen[0] if self.asked.single else chosen
        confidence = self.asked.confidence or 0.95
        error = self._noise_bound(scale, (1 - confidence) / counts.size)
        certificate = Certificate(
            low=value,
            high=value,
            needed=int(min(needed_votes(noisy, winners, 2 * error).min(), CAP)),
            confidence=confidence,
            epsilon=0.0,
            event=dp.NoOpDpEvent(),
            basis={
                "kind": "votes",
                "counts": noisy.tolist(),
                "distribution": self.noise.distribution.value,
                "scale": scale,
            },
        )
        deviation = self.noise.distribution.deviation(scale)
        return attrs.evolve(
            selected(value, certificate, name=self.noise.distribution.value), noise_scale=deviation
        )

    def _noise_bound(self, scale: float, beta: float) -> int:
        """A whole number that the noise of one count exceeds with probability at most beta."""
        if self.noise.distribution is Distribution.LAPLACE:
            return math.ceil(-scale * math.log(beta))
        return math.ceil(-scale * NormalDist().inv_cdf(beta / 2)) + 1


def _vote_scale(mechanism: AdditiveMechanism, size: int) -> float:
    """The scale of the noise of the counts of so many votes; a record replaces one in each."""
    moved = 2 * size if mechanism.distribution is Distribution.LAPLACE else math.sqrt(2 * size)
    return math.nextafter(mechanism.multiplier * moved, math.inf)


def needed_votes(
    counts: npt.NDArray[np.int64], winners: npt.NDArray[np.int64], error: int
) -> npt.NDArray[np.int64]:
    """The least number of parts to spoil before each winner loses, if gaps are `error` too wide.

    An earlier label wins a tie, a later one must get ahead.
    """
    rows, kinds = np.arange(len(counts)), np.arange(counts.shape[1])
    gaps = counts[rows, winners][:, None] - counts - error + (kinds > winners[:, None])
    gaps[rows, winners] = 2 * CAP
    found: npt.NDArray[np.int64] = np.maximum(0, -(-gaps.min(axis=1) // 2))
    return found
