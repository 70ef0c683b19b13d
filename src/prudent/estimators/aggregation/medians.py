"""Numbers of parts: the private median of each, and how many spoiled parts it withstands."""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any

import attrs
import dp_accounting as dp
import numpy as np
import numpy.typing as npt

from prudent.accounting.calibration import Search, solve
from prudent.accounting.events import ExponentialMechanismDpEvent
from prudent.estimators.aggregation.asked import MOST_PARTS, AggregateRequest, preview_of, selected
from prudent.release.certificates import CAP, Certificate, DistanceRelease
from prudent.release.certificates import SHARE as CERTIFICATE_SHARE
from prudent.release.charging import Preview
from prudent.release.columns.column import ArrayColumn
from prudent.release.exponential.quantile import ExponentialQuantile, Selected
from prudent.release.noise import SLACK, Noise
from prudent.release.outcome import Released, ReleasedInterval
from prudent.release.sums.additive import composed, shares_of

_HALF = Fraction(1, 2)
_INTERVAL_SHARE = 0.4  # of ε, where an interval is asked for
_ENOUGH, _ENOUGH_FOR_INTERVAL = 60.0, 280.0  # parts, times the ε of one median

FloatArray = npt.NDArray[np.float64]


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
            spread = one.interval and ReleasedInterval(*one.interval, kept or 0.95, one.useless)
            return selected(numbers[0], certificate, spread=spread)
        ends = tuple(None if each.useless else each.interval for each in chosen)
        return selected(numbers, certificate, intervals=None if kept is None else ends)

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
