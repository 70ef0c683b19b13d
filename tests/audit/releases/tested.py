"""Worst-case pairs of Propose-Test-Release, and of the statistics that are released by it.

One record changes two things at once: the margin crosses the threshold, so that the test passes
with probability e^ε₁ times as large on one side; and the value moves by the whole proposal. With
Laplace noise both losses are attained on one event of large probability: the test passes, and the
value lies beyond that of the luckier side. So the price ε = ε₁ + ε₂ is exact, and the audit sees
it. The accident of the test, in which a margin of 0 passes, is a case of its own: it costs δ.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, TypeAlias

import attrs
import numpy as np
from scipy import special

from prudent.accounting.losses.domination import branch_pair
from prudent.release import margins, statistics
from prudent.release.margins import RobustValue
from prudent.release.noise import Distribution, Noise
from prudent.release.outcome import Released
from prudent.release.ptr import ProposeTestReleaseMechanism
from prudent.release.request import Request
from prudent.release.statistics import tested
from tests.audit.releases.case import Case, Make, Run, discrete_laplace, exact_epsilon
from tests.oracles.array_column import ArrayColumn

Measure: TypeAlias = Callable[[Any], RobustValue]
Pairs: TypeAlias = Iterator[tuple[Any, Any]]

_PROPOSE = 1.0
_BOUNDS = (-1000.0, 1000.0)
_OUTSIDE = 50.0  # how far outside the bounds the record lies: clipping must bring it back
_SPAN = {Distribution.LAPLACE: 60.0, Distribution.GAUSSIAN: 12.0}
"""Scales of the noise beyond which an exact law is cut off: a mass of 1e-26."""


def ptr(epsilon: float, delta: float) -> Case:
    """The mechanism itself: the margin crosses the threshold, and the value moves by τ."""
    mechanism = _calibrated(epsilon, delta)
    margin, steps = mechanism.threshold, mechanism.steps
    pair = RobustValue((0,), margin + 1, steps), RobustValue((steps,), margin, steps)
    return _case(mechanism, lambda data: data, pair, epsilon, delta)


def ptr_accident(epsilon: float, delta: float) -> Case:
    """Both margins are 0, the values are far apart, and the test passes by accident.

    Here δ₀ is all of δ. The claim is tight in δ rather than in ε, so a δ that is large enough to be
    seen should be claimed.
    """
    mechanism = _calibrated(epsilon, delta, failure=delta)
    steps = mechanism.steps
    pair = RobustValue((10**6 * steps,), 0, steps), RobustValue((0,), 0, steps)
    return Case(
        epsilon=epsilon,
        delta=delta,
        pair=pair,
        prepare=_prepare(mechanism, lambda data: data),
        score=lambda output: 0.0 if output is None else float(output > 10**5 * steps),
        exact=0.0,
        delta_at=(epsilon, delta),
    )


def _of_quantile(p: Fraction, epsilon: float, delta: float) -> Case:
    """A quantile of records at two values that are τ apart."""
    mechanism = _calibrated(epsilon, delta)
    measure = _measure(mechanism, margins.quantile, p)
    # The margin of m records within τ of each other is about m (1 - P)/P, P = max(p, 1 - p).
    larger = max(p, 1 - p)
    about = math.floor((mechanism.threshold + 1) * larger / (1 - larger))
    sizes = range(max(2, about - 12), about + 12)
    pair = _search(mechanism, measure, _two_values(sizes, (p,)))
    call = partial(statistics.quantile, p=str(p), propose=_PROPOSE)
    return _case(mechanism, measure, pair, epsilon, delta, call)


def iqr(epsilon: float, delta: float) -> Case:
    """The interquartile range of records at two values that are τ apart."""
    mechanism = _calibrated(epsilon, delta)
    measure = _measure(mechanism, margins.interquartile_range)
    about = 3 * (mechanism.threshold + 1)
    pairs = _two_values(range(max(2, about - 6), about + 6), (Fraction(1, 4), Fraction(3, 4)))
    pair = _search(mechanism, measure, pairs)
    call = partial(statistics.iqr, propose=_PROPOSE)
    return _case(mechanism, measure, pair, epsilon, delta, call)


def trimmed_mean(epsilon: float, delta: float) -> Case:
    """The trimmed mean: a record at an end uses up the margin, and leaves one record untrimmed."""
    mechanism = _calibrated(epsilon, delta, bounds=_BOUNDS)
    trim = mechanism.threshold + 8
    measure = _measure(mechanism, tested.trimmed_mean, trim, default=-mechanism.steps)

    def pairs() -> Pairs:
        for extreme in range(trim + 1):
            fewer = [0.0] * (2 * trim - extreme) + [_BOUNDS[1]] * extreme
            yield [*fewer, _OUTSIDE * _BOUNDS[1]], fewer

    pair = _search(mechanism, measure, list(pairs())[4:12])
    own: Any = {"trim": trim, "propose": _PROPOSE, "default": -_PROPOSE, "bounds": _BOUNDS}
    call = partial(statistics.trimmed_mean, **own)
    return _case(mechanism, measure, pair, epsilon, delta, call)


def mode(epsilon: float, delta: float) -> Case:
    """The mode of categories: no noise on the value, so all of ε is for the test."""
    mechanism = tested.calibrate(Request(epsilon=epsilon, delta=delta))
    often = mechanism.threshold + 2

    def measure(data: Any) -> RobustValue:
        return margins.category_mode(ArrayColumn(np.array(data)), None, cap=mechanism.cap)

    pair = ["a"] * often, ["a"] * (often - 1)
    return _case(mechanism, measure, pair, epsilon, delta, statistics.mode)


def _calibrated(
    epsilon: float,
    delta: float,
    *,
    bounds: tuple[float, float] | None = None,
    failure: float | None = None,
) -> ProposeTestReleaseMechanism:
    """The mechanism that a statistic with these options uses."""
    own = tested.calibrate(Request(epsilon=epsilon, delta=delta, propose=_PROPOSE, bounds=bounds))
    return own if failure is None else attrs.evolve(own, failure=failure)


def _measure(
    mechanism: ProposeTestReleaseMechanism,
    margin: Callable[..., RobustValue],
    *own: Any,
    **more: Any,
) -> Measure:
    """What a margin measures of a column, as the mechanism asks it."""
    common: Any = {"propose": mechanism.steps, "cap": mechanism.cap}
    return lambda data: margin(
        ArrayColumn(np.array(data)), mechanism.lattice, *own, **common, **more
    )


def _two_values(sizes: Sequence[int], ranks: Sequence[Fraction]) -> Pairs:
    """Records at 0 and at τ, so that a quantile of one of these ranks is about to move."""
    for size in sizes:
        for p in ranks:
            for lower in range(
                max(1, math.floor(p * size) - 2), min(size, math.ceil(p * size) + 3)
            ):
                more = [0.0] * lower + [_PROPOSE] * (size - lower)
                yield more, more[1:]
                yield more, more[:-1]


def _search(
    mechanism: ProposeTestReleaseMechanism, measure: Measure, pairs: Any
) -> tuple[Any, Any]:
    """The pair whose value moves most, and whose margin crosses the threshold if one does."""

    def rating(pair: tuple[Any, Any]) -> tuple[int, int, int]:
        more, fewer = measure(pair[0]), measure(pair[1])
        moved = abs(more.value[0] - fewer.value[0])
        lesser = min(more.margin, fewer.margin)
        return (
            int(more.margin != fewer.margin) + int(moved == mechanism.steps),
            -abs(lesser - mechanism.threshold),
            moved,
        )

    return max(pairs, key=rating)  # type: ignore[no-any-return]


def _case(
    mechanism: ProposeTestReleaseMechanism,
    measure: Measure,
    pair: tuple[Any, Any],
    epsilon: float,
    delta: float,
    call: Callable[..., Any] | None = None,
) -> Case:
    measured = measure(pair[0]), measure(pair[1])
    return Case(
        epsilon=epsilon,
        delta=delta,
        pair=pair,
        prepare=_prepare(mechanism, measure),
        call=None
        if call is None
        else lambda data, noise: call(np.array(data), epsilon=epsilon, delta=delta, noise=noise),
        score=_score(mechanism, *measured),
        exact=exact_epsilon(_laws(mechanism, measured), delta),
    )


def _prepare(
    mechanism: ProposeTestReleaseMechanism, measure: Measure
) -> Callable[[Any, Noise], Run]:
    """Measure once; every run then tests the margin and adds noise to the value anew."""

    def prepare(data: Any, noise: Noise) -> Run:
        measured = measure(data)
        spacing = mechanism.lattice.spacing

        def run() -> Any:
            outcome = mechanism.release(data, lambda _: measured, noise=noise)
            if not isinstance(outcome, Released):
                return None
            value = margins.read(outcome.value)
            return value if isinstance(value, str) else round(value / spacing)

        return run

    return prepare


def _score(
    mechanism: ProposeTestReleaseMechanism, more: RobustValue, fewer: RobustValue
) -> Callable[[Any], float]:
    """The exact log-likelihood ratio of an outcome: that of the branch, and that of the value."""
    branch = branch_pair(_test_event(mechanism), fewer.margin, more.margin)
    fails, passes = branch.losses.tolist()
    if mechanism.propose == 0:
        return lambda output: fails if output is None else passes
    scale = math.nextafter(mechanism.robust_noise_multiplier * mechanism.steps, math.inf)
    here, there = float(more.value[0]), float(fewer.value[0])
    is_laplace = mechanism.distribution is Distribution.LAPLACE

    def loss(value: float) -> float:
        if is_laplace:
            return (abs(value - there) - abs(value - here)) / scale
        return ((value - there) ** 2 - (value - here) ** 2) / (2 * scale**2)

    return lambda output: fails if output is None else passes + loss(output)


def _test_event(mechanism: ProposeTestReleaseMechanism) -> Any:
    return getattr(mechanism.event, "events", [mechanism.event])[0]


def _laws(mechanism: ProposeTestReleaseMechanism, pair: Sequence[RobustValue]) -> list[Any]:
    """The probabilities of a refusal and of every value, for both; categories have one value."""
    scale = mechanism.robust_noise_multiplier * mechanism.steps

    def law(which: RobustValue) -> Any:
        passes = branch_pair(_test_event(mechanism), which.margin, which.margin).absent
        if mechanism.propose == 0:
            return passes
        ends = [each.value[0] for each in pair]
        span = math.ceil(_SPAN[mechanism.distribution] * scale)
        values = np.arange(min(ends) - span, max(ends) + span + 1)
        if mechanism.distribution is Distribution.LAPLACE:
            chances = discrete_laplace(values, which.value[0], scale)
        else:  # rounded to whole steps
            chances = np.diff(special.ndtr((values - 0.5 - which.value[0]) / scale))
        return np.concatenate([passes[:1], passes[1] * chances])

    return [law(which) for which in pair]


CASES: dict[str, Make] = {
    "ptr": ptr,
    "ptr-accident": ptr_accident,
    "median": partial(_of_quantile, Fraction(1, 2)),
    "quantile": partial(_of_quantile, Fraction(9, 10)),
    "iqr": iqr,
    "trimmed-mean": trimmed_mean,
    "mode": mode,
}
