"""The error to expect of a private median, from releases rehearsed on synthetic data."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import attrs
import numpy as np
import numpy.typing as npt

from prudent import _validate
from prudent._progress import track
from prudent._rounding import rounded_up
from prudent.release import statistics
from prudent.release.lattice import LEAST_PROPOSAL, PLAUSIBLE, FloatArray
from prudent.release.noise import ReproducibleNoise
from prudent.release.outcome import Refused, Released

MOST_SYNTHETIC = 10**8
"""Most records of a synthetic data set, which is held in memory."""

_STEP = 2**0.25  # ratio of neighbouring proposals: the result is at most a fifth too large
_STRIDE = 16  # steps taken at once until the answer is bracketed
_FARTHEST = 400  # steps up before giving up: thirty orders of magnitude
_INVISIBLE = 1e-3  # noise below this fraction of the least gap between values need not shrink
_CENTRE = 5.0  # of a shape that only a spread is known of, in spreads: not at zero


class Shape(Protocol):
    """A frozen distribution of scipy.stats, or any object with the same `rvs` method."""

    def rvs(self, size: int, random_state: np.random.Generator) -> npt.ArrayLike:
        """Draw `size` values."""
        ...


def suggest_proposal(
    statistic: Callable[..., Any],
    *,
    count: int,
    shape: Shape,
    rehearsals: int = 10,
    seed: int = 0,
    epsilon: float,
    delta: float,
    **options: Any,
) -> float:
    """Return a proposal that passes every rehearsal on synthetic data, and is not much larger.

    No private data is read, so the suggestion costs nothing; it is as good as the assumed count and
    shape. It has three digits. Where values repeat, arbitrarily small proposals may pass; then the
    result is one whose noise is small compared with the least gap between two values.

    Args:
        statistic: A statistic of `prudent.release`, such as `median`, `iqr` or
            `partial(trimmed_mean, trim=100)`.
        count: The expected number of records.
        shape: The assumed distribution of the data, such as
            `scipy.stats.lognorm(0.5, scale=50_000)`.
        rehearsals: The number of synthetic data sets; all must pass.
        seed: Seed of the synthetic data.
        epsilon: ε of the release.
        delta: δ of the release.
        **options: Further options of the statistic.

    Raises:
        ValueError: If no proposal passes: too few records for this ε and δ.
    """
    _validate.count(1, MOST_SYNTHETIC, count=count)
    _validate.count(1, rehearsals=rehearsals)
    _validate.function(statistic=statistic)
    if not callable(getattr(shape, "rvs", None)):
        raise _validate.ArgumentError(
            "shape", "a distribution, as those of scipy.stats", shown=type(shape).__name__
        )
    generator = np.random.default_rng(_validate.count(seed=seed))
    samples = [
        np.asarray(shape.rvs(count, random_state=generator), np.float64) for _ in range(rehearsals)
    ]
    far = max(map(abs, options.get("bounds") or (PLAUSIBLE,)))
    finest = LEAST_PROPOSAL * 2.0 ** math.ceil(math.log2(far / PLAUSIBLE))
    start = max(finest, _spread(samples[0]))
    asked = {**options, "epsilon": epsilon, "delta": delta, "fallback": False, "ledger": None}

    def proposal_at(place: int) -> float:
        """It is rounded up to three digits, to be read and typed."""
        return float(rounded_up(start * _STEP**place, 3))

    def noise_at(place: int) -> float | None:
        """The noise at the proposal `place` steps above the start; None if it is refused."""
        asked["noise"] = ReproducibleNoise(seed)
        for sample in samples:
            outcome = statistic(sample, propose=proposal_at(place), **asked)
            if not isinstance(outcome, Released):
                return None
        return float(outcome.noise_scale)

    high = 0
    while (noise := noise_at(high)) is None:
        high += _STRIDE
        if high > _FARTHEST:
            raise ValueError(
                f"No proposal passes with {count} records of this shape at epsilon = "
                f"{epsilon:g}, delta = {delta:g}. Spend more, expect more "
                "records, or trim more."
            )
    proposed = proposal_at(high)
    least = max(finest, _INVISIBLE * _gap(samples[0]) / noise * proposed)
    lowest = math.ceil(math.log(least / start, _STEP))
    low = high - _STRIDE
    while low >= lowest and noise_at(low) is not None:
        high, low = low, low - _STRIDE
    low = max(low, lowest - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if noise_at(middle) is None else (low, middle)
    return proposal_at(high)


def _spread(sample: npt.NDArray[np.float64]) -> float:
    """The interquartile range; the range if that is 0; and 1 if the range is 0 as well."""
    spread = float(np.subtract(*np.quantile(sample, [0.75, 0.25])))
    return spread if spread > 0 else float(np.ptp(sample)) or 1.0


def _gap(sample: npt.NDArray[np.float64]) -> float:
    """The least gap between distinct values; for a single value its magnitude, or 1 if it is 0."""
    values = np.unique(sample)
    return float(np.min(np.diff(values))) if len(values) > 1 else abs(float(values[0])) or 1.0


@attrs.frozen
class Believed:
    """A distribution given by a few of its quantiles, straight between them."""

    # Values by probability, at least two. Below the first and above the last one the distribution
    # goes on as between its two nearest.
    quantiles: Mapping[float, float]

    def __attrs_post_init__(self) -> None:
        ps, values = self._sorted()
        if len(ps) < 2 or not (ps[0] >= 0 and ps[-1] <= 1) or np.any(np.diff(values) < 0):
            raise _validate.ArgumentError(
                "quantiles",
                "two or more values that do not fall, by probability in [0, 1]",
                got=dict(self.quantiles),
            )

    def _sorted(self) -> tuple[FloatArray, FloatArray]:
        ps = np.array(sorted(self.quantiles), np.float64)
        return ps, np.array([self.quantiles[p] for p in sorted(self.quantiles)], np.float64)

    def rvs(self, size: int, random_state: np.random.Generator) -> npt.ArrayLike:
        """Draw `size` values."""
        ps, values = self._sorted()
        drawn = random_state.random(size)
        inside = np.interp(drawn, ps, values)
        first = (values[1] - values[0]) / (ps[1] - ps[0])
        last = (values[-1] - values[-2]) / (ps[-1] - ps[-2])
        below = np.minimum(0.0, drawn - ps[0]) * first
        above = np.maximum(0.0, drawn - ps[-1]) * last
        return np.asarray(inside + below + above)


@attrs.frozen
class Expectation:
    """What one mechanism is expected to do.

    Attributes:
        error: Median of |answer - true statistic| over the rehearsals that answered; None if none
            did.
        refused: Fraction of rehearsals that were refused.
        options: The options to ask it with.
    """

    error: float | None
    refused: float
    options: Mapping[str, Any]


def expected(
    quantiles: Mapping[float, float], *, count: int, epsilon: float, delta: float, trials: int
) -> dict[str, Expectation]:
    """What each mechanism is expected to do for a median of data of believed quantiles."""
    believed = Believed(quantiles)
    drawn = believed.rvs(count, random_state=np.random.default_rng(0))
    values = np.sort(np.asarray(drawn, np.float64))
    truth, median = float(values[(len(values) - 1) // 2]), statistics.median
    found = {"exponential": _rehearsed(median, values, truth, trials, {}, epsilon=epsilon)}
    try:
        given: dict[str, Any] = {"count": count, "shape": believed, "epsilon": epsilon}
        proposal = suggest_proposal(median, **given, delta=delta)
    except ValueError:  # no proposal passes: too few records
        return found
    options = {"propose": proposal, "delta": delta}
    tested = _rehearsed(median, values, truth, trials, options, epsilon=epsilon)
    return found | {"propose-test-release": tested}


def _rehearsed(
    ask: Callable[..., Any],
    values: FloatArray,
    truth: float,
    trials: int,
    options: Mapping[str, Any],
    *,
    epsilon: float,
) -> Expectation:
    rehearsals = track(range(trials), "rehearsals")
    outcomes = [ask(values, epsilon=epsilon, **options) for _ in rehearsals]
    errors = [abs(float(each) - truth) for each in outcomes if not isinstance(each, Refused)]
    return Expectation(
        error=float(np.median(errors)) if errors else None,
        refused=1 - len(errors) / trials,
        options=MappingProxyType(dict(options)),
    )
