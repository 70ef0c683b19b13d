"""Every estimator with data to fit, and what its engine is asked, replayed.

A replay answers every question of a fit with what was released in another one. So the exact sums
of two data sets can be compared at the same released values, round by round.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import attrs
import numpy as np

from prudent import estimators
from prudent.estimators import engine
from prudent.release.exponential.quantile import ExponentialQuantile
from prudent.release.noise import ReproducibleNoise

NUMBERS: dict[str, Callable[..., Any]] = {
    "LinearRegression": lambda **given: estimators.LinearRegression(r2=True, certify=1.0, **given),
    "Ridge": lambda **given: estimators.Ridge(alpha=9.0, **given),
    "QuantileRegressor": lambda **given: estimators.QuantileRegressor(0.3, certify=1.0, **given),
}
SUPERVISED: dict[str, Callable[..., Any]] = {
    "LogisticRegression": estimators.LogisticRegression,
    "GaussianNB": estimators.GaussianNB,
    "GradientBoostingClassifier": lambda **given: estimators.GradientBoostingClassifier(
        n_estimators=3, **given
    ),
    "GradientBoostingRegressor": lambda **given: estimators.GradientBoostingRegressor(
        n_estimators=3, **given
    ),
}
UNSUPERVISED: dict[str, Callable[..., Any]] = {
    "PCA": lambda **given: estimators.PCA(2, **given),
    "KMeans": lambda **given: estimators.KMeans(3, **given),
}
SUPERVISED |= NUMBERS
ALL = SUPERVISED | UNSUPERVISED


def data(name: str, count: int = 3000, seed: int = 0) -> tuple[Any, Any]:
    """Features, with a column of ties and a label that follows from the others; or a number."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(count, 3)) * [1.0, 100.0, 0.01] + [0.0, 500.0, 3.0]
    x[:, 2] = np.rint(x[:, 2] * 100) / 100
    score = x[:, 0] + (x[:, 1] - 500) / 100
    if name.endswith("Regressor") or name in NUMBERS:
        return x, 10 * score + 3
    label = score + 0.3 * draw.normal(size=count) > 0
    return x, (label.astype(int) if name in SUPERVISED else None)


def noise(seed: int = 0) -> ReproducibleNoise:
    return ReproducibleNoise(seed)


@attrs.define
class Tape:
    """What an engine released, and the exact sums behind it.

    Attributes:
        names: The part that paid for each release.
        answers: What each question was answered with, in order.
        sums: For each noisy sum: the release it belongs to, its exact values and its sensitivity.
        parts: The records that each private quantile looked at.
    """

    names: list[str] = attrs.field(factory=list)
    answers: list[Any] = attrs.field(factory=list)
    sums: list[tuple[int, Any, float]] = attrs.field(factory=list)
    parts: list[Any] = attrs.field(factory=list)


@contextlib.contextmanager
def taped(replay: Tape | None = None) -> Iterator[Tape]:
    """Record what engines release; with a tape, answer as it was answered then."""
    tape = Tape()
    before = iter(() if replay is None else replay.answers)
    spend, noisy, choose = engine.SumEngine._spend, engine.SumEngine._noisy, engine.choose
    release = ExponentialQuantile.release

    def answered(found: Any) -> Any:
        tape.answers.append(found if replay is None else next(before))
        return tape.answers[-1]

    def _spend(self: Any, name: str, **given: Any) -> float:
        tape.names.append(name)
        return spend(self, name, **given)

    def _noisy(self: Any, values: Any, multiplier: float, sensitivity: float) -> Any:
        tape.sums.append((len(tape.names), np.array(values, dtype=object), sensitivity))
        return answered(noisy(self, values, multiplier, sensitivity))

    def _choose(weights: Any, source: Any) -> int:
        return int(answered(choose(weights, source)))

    def _release(self: Any, column: Any, source: Any = None) -> Any:
        tape.parts.append(column.order_statistics(1, column.count()))
        return answered(release(self, column, source))

    with (
        mock.patch.object(engine.SumEngine, "_spend", _spend),
        mock.patch.object(engine.SumEngine, "_noisy", _noisy),
        mock.patch.object(engine, "choose", _choose),
        mock.patch.object(ExponentialQuantile, "release", _release),
    ):
        yield tape


class Never:
    """A noise source that is asked for what needs no secrecy alone."""

    def __init__(self, seed: int = 7) -> None:
        self._seeded = ReproducibleNoise(seed)

    def of_test(self, test: Any) -> int:
        return 0

    def of_value(self, distribution: Any, scale: float, size: int) -> list[int]:
        return [0] * size

    def integer(self, bound: int) -> int:
        return self._seeded.integer(bound) if bound != 2**128 else 12345


def fitted(name: str, x: Any, y: Any, replay: Tape | None = None, **given: Any) -> Tape:
    """Fit an estimator, to public labels if it needs any, and return its tape."""
    if name in SUPERVISED and name not in NUMBERS and not name.endswith("Regressor"):
        given["classes"] = [0, 1]
    with taped(replay) as tape:
        ALL[name](noise=Never(), **given).fit(x, y)
    return tape
