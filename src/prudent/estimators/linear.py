"""Least squares, ridge regression and quantile regression without bounds."""

import math
from dataclasses import KW_ONLY, dataclass
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from prudent import _validate
from prudent.estimators.certificate import Pull
from prudent.estimators.engine import SumEngine
from prudent.estimators.features import StandardFeatures
from prudent.estimators.linear_model import Fitting, LinearModel, NewtonStep
from prudent.estimators.shares import BudgetPart, choices
from prudent.release.lattice import FloatArray

ROUNDS = 3
"""Newton steps of least squares, each of which clips the residuals anew."""

_CLIPPED_NOISE = 4.0  # so many deviations of the noise of a step, in records, may be clipped
_CLIPPED_CHOICE = 24.0  # at least so many records, times ε of the choice, are clipped
_LEAST_KEPT = 0.5  # of the residuals are never clipped


@dataclass(eq=False, repr=False)
class LinearRegression(LinearModel):
    """Private least squares without bounds on the data.

    | odd input | result |
    | --- | --- |
    | a row with a gap, or something that is not a number | the row is absent |
    | an infinite or huge value | clipped, like all values far from the others |
    | a constant column, or one that follows from others | a coefficient near 0, or shared |
    | too few records | `TooFewRecordsError`, after the noisy count |
    | a gap in a row to predict | the released location of that column |

    See `LinearModel` for the fitted attributes.

    Args:
        r2: Whether to release R² on the records of the fit as well, from the same budget.
        certify: If given, also release how many bad records the slopes withstand: without them,
            the slopes of this regression would be within this distance, in deviations of the
            target per deviation of a column. See `prudent.estimators.certificate`.

    Its other arguments are those of `PrivateEstimator`.
    """

    _title: ClassVar[str] = "linear regression"

    epsilon: float = 1.0
    delta: float = 1e-6
    _: KW_ONLY
    r2: bool = False
    certify: float | None = None
    bounds: Any = None
    ledger: Any = None
    noise: Any = None

    @override
    def _rounds(self) -> int:
        return ROUNDS

    @override
    def _start(self, engine: SumEngine, place: int, centre: float) -> float:
        return centre

    @override
    def _sampling(self, steps: list[NewtonStep], variance: float) -> float:
        return variance

    @override
    def _usual(self) -> tuple[float, float]:
        return 3.0, 1.0

    @override
    def _pull(self, limit: float) -> Pull:
        return Pull(limit, limit, 1.0, lambda errors: np.clip(errors, -limit, limit))

    @override
    def _step(self, fitting: Fitting, found: FloatArray, number: int) -> NewtonStep:
        engine, whitening = fitting.engine, fitting.whitening
        spread = engine.deviation("steps") * math.sqrt(len(found))
        clipped = max(
            _CLIPPED_NOISE * spread, _CLIPPED_CHOICE / engine.prices.choice_epsilon("residuals")
        )
        kept = max(_LEAST_KEPT, 1 - clipped / fitting.count)
        limit = engine.length(
            "residuals", lambda rows: np.abs(fitting.residuals(rows, found)[1]), kept
        )

        def pairs(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
            steps, errors = fitting.residuals(rows, found)
            return whitening.rows(steps), np.clip(errors, -limit, limit)[:, None]

        move = engine.cross("steps", pairs, (whitening.reach, limit))[:, 0]
        return NewtonStep(move, engine.deviation("steps") * whitening.reach * limit, limit)


class Ridge(LinearRegression):
    """Private least squares with a penalty on the slopes: alpha times the sum of their squares.

    Its intervals are about what the penalty leaves of the slopes, and not about the slopes without
    it.

    Args:
        alpha: The weight of the penalty.

    The other arguments are those of `LinearRegression`.
    """

    _title: ClassVar[str] = "ridge regression"

    def __init__(
        self,
        alpha: float = 1.0,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        r2: bool = False,
        certify: float | None = None,
        bounds: Any = None,
        ledger: Any = None,
        noise: Any = None,
    ) -> None:
        super().__init__(
            epsilon, delta, r2=r2, certify=certify, bounds=bounds, ledger=ledger, noise=noise
        )
        self.alpha = alpha

    @override
    def _penalty(self, features: StandardFeatures) -> FloatArray:
        alpha = _validate.non_negative(alpha=self.alpha)
        return np.concatenate([[0.0], alpha / features.scales**2])


@dataclass(eq=False, repr=False)
class QuantileRegressor(LinearModel):
    """Private quantile regression without bounds: the median, or another quantile, of the target.

    The check loss is smoothed over the residuals nearest to zero: a record pulls by the sign of its
    residual, and in proportion to it where that is small. No residual pulls harder than another, so
    no clipping is needed, and outliers in the target do little.

    See `LinearRegression` for odd input, and `LinearModel` for the fitted attributes.

    Args:
        quantile: The quantile, in (0, 1); 0.5 is the median.

    The other arguments are those of `LinearRegression`.
    """

    _title: ClassVar[str] = "quantile regression"
    _clips: ClassVar[bool] = False
    _smoothed: ClassVar[tuple[float, ...]] = (0.7, 0.5, 0.3, 0.3)  # of the residuals, by round

    quantile: float = 0.5
    epsilon: float = 1.0
    delta: float = 1e-6
    _: KW_ONLY
    certify: float | None = None
    bounds: Any = None
    ledger: Any = None
    noise: Any = None

    @override
    def _rounds(self) -> int:
        _validate.between(0, 1, ends="()", quantile=self.quantile)
        return len(self._smoothed)

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        return super()._parts(features) | {"target": choices(0.12, 3)}

    @override
    def _start(self, engine: SumEngine, place: int, centre: float) -> float:
        return engine.quantile("target", place, self.quantile)

    def _kept(self, number: int) -> float:
        """The share of residuals over which the loss is smoothed; smaller for far quantiles."""
        return self._smoothed[number] * 4 * self.quantile * (1 - self.quantile)

    @override
    def _sampling(self, steps: list[NewtonStep], variance: float) -> float:
        density = self._kept(-1) / (2 * steps[-1].limit)
        return self.quantile * (1 - self.quantile) / density**2

    @override
    def _usual(self) -> tuple[float, float]:
        density = NormalDist().pdf(NormalDist().inv_cdf(self.quantile))
        spread = math.sqrt(self.quantile * (1 - self.quantile))
        return max(self.quantile, 1 - self.quantile) / density, spread / density

    @override
    def _pull(self, limit: float) -> Pull:
        shift = self.quantile - 0.5
        return Pull(
            limit,
            bound=max(self.quantile, 1 - self.quantile),
            slope=1 / (2 * limit),
            of=lambda errors: shift + np.clip(errors / (2 * limit), -0.5, 0.5),
        )

    @override
    def _step(self, fitting: Fitting, found: FloatArray, number: int) -> NewtonStep:
        engine, whitening, kept = fitting.engine, fitting.whitening, self._kept(number)
        limit = engine.length(
            "residuals", lambda rows: np.abs(fitting.residuals(rows, found)[1]), kept
        )
        pull = self._pull(limit)

        def pairs(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
            steps, errors = fitting.residuals(rows, found)
            return whitening.rows(steps), pull.of(errors)[:, None]

        # The second derivative of the smoothed loss is the density of residuals near zero.
        length = 2 * limit / kept
        move = engine.cross("steps", pairs, (whitening.reach, pull.bound))[:, 0] * length
        return NewtonStep(
            move, engine.deviation("steps") * whitening.reach * pull.bound * length, limit
        )
