"""Linear regression without bounds: noisy Newton steps in a whitened space.

1. A noisy count, then two private quantiles of each column: its location and its scale.
2. Features are standardised, clipped at ±8, and rows clipped in length. Their second moment is
   released, and whitens them (`features`).
3. Each round clips the residuals at a private quantile and takes one noisy Newton step.

Predictions are made on clipped features, too: there a model is never far from what it has seen.
"""

import math
from typing import Any, ClassVar

import numpy as np
from sklearn.base import RegressorMixin
from typing_extensions import override

from prudent.estimators.base import PrivateEstimator, TooFewRecordsError
from prudent.estimators.engine import Engine
from prudent.estimators.features import Features, Whitening, standardise
from prudent.estimators.shares import Part, choices, sums
from prudent.release.lattice import FloatArray

ROUNDS = 3
"""Newton steps, each of which clips the residuals anew."""

_CLIPPED_NOISE = 4.0  # so many deviations of the noise of a step, in records, may be clipped
_CLIPPED_CHOICE = 20.0  # at least so many records, times ε of the choice, are clipped
_LEAST_KEPT = 0.5  # of the residuals are never clipped


class LinearRegression(RegressorMixin, PrivateEstimator):
    """Private least squares without bounds on the data.

    Guarantee:
        `fit` is (ε, δ)-DP for adding or removing one record, whatever the data; see `event_`.

    | odd input | result |
    | --- | --- |
    | a row with a gap, or something that is not a number | the row is absent |
    | an infinite or huge value | clipped, like all values far from the others |
    | a constant column, or one that follows from others | a coefficient near 0, or shared |
    | too few records | `TooFewRecordsError`, after the noisy count |
    | a gap in a row to predict | the released location of that column |

    Args:
        epsilon: ε of the fit, from 0.01 to 50.
        delta: δ of the fit.
        ledger: Charged by `fit` before any record is read.
        noise: Source of randomness; None uses the operating system's.

    Attributes:
        coef_: The slopes, in units of the target per unit of a column.
        intercept_: The prediction where all columns are 0.
    """

    _title: ClassVar[str] = "linear regression"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        ledger: Any = None,
        noise: Any = None,
    ) -> None:
        self.epsilon, self.delta = epsilon, delta
        self.ledger, self.noise = ledger, noise

    @override
    def _parts(self, features: int) -> dict[str, Part]:
        return {
            "columns": choices(0.2, 2 * features),
            "target": choices(0.12, 2),
            "residuals": choices(0.18, ROUNDS),
            "count": sums(0.005),
            "moment": sums(0.2475),
            "steps": sums(0.2475, ROUNDS),
        }

    @override
    def _learn(self, engine: Engine) -> TooFewRecordsError | None:
        width = len(engine.rows.names) - 1
        self.n_records_ = engine.count()
        needed = self._needed(engine)
        if self.n_records_ < needed:
            return TooFewRecordsError(self.n_records_, needed)
        count = self.n_records_
        self._features = Features(*standardise(engine, "columns", range(width), count))
        (centre,), (scale,) = standardise(engine, "target", [width], count)
        whitening = Whitening.release(engine, "moment", self._features, count)
        found = np.zeros(width + 1)
        for _ in range(ROUNDS):
            found = found + whitening.root @ self._step(engine, whitening, found, centre, scale)
        self._found = found * scale
        self._found[0] += centre
        self.coef_, self.intercept_ = self._features.unscaled(self._found)
        return None

    def _needed(self, engine: Engine) -> float:
        """The number of records below which the quantiles are no better than a guess."""
        return 15 / min(map(engine.prices.choice_epsilon, ("columns", "target")))

    def _step(
        self, engine: Engine, whitening: Whitening, found: FloatArray, centre: float, scale: float
    ) -> FloatArray:
        """Release one Newton step, in whitened coordinates."""
        features = whitening.features

        def residuals(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
            steps = features.steps(rows)
            errors = (rows[:, -1] - centre) / scale - features.times(steps, found)
            return steps, errors * whitening.weights(steps)

        spread = engine.deviation("steps") * math.sqrt(features.width)
        clipped = max(
            _CLIPPED_NOISE * spread,
            _CLIPPED_CHOICE / engine.prices.choice_epsilon("residuals"),
        )
        kept = max(_LEAST_KEPT, 1 - clipped / self.n_records_)
        limit = engine.length("residuals", lambda rows: np.abs(residuals(rows)[1]), kept)

        def pairs(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
            steps, errors = residuals(rows)
            return whitening.rows(steps), np.clip(errors, -limit, limit)[:, None]

        return engine.cross("steps", pairs, (whitening.reach, limit))[:, 0]

    def predict(self, X: Any) -> FloatArray:
        """Predict targets; features beyond where the model was fitted are moved to its edge."""
        rows = self._queries(X)
        return self._features.times(self._features.steps(rows), self._found)
