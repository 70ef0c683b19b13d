"""Logistic regression without bounds: noisy steps of the multinomial likelihood in whitened space.

1. A noisy count, two private quantiles of each column, and the second moment that whitens the
   features, as in linear regression (`features`).
2. Each round adds up, over all records, the whitened row times (label - probabilities), which is
   never longer than √2: no bound on a residual has to be found. The step is a Newton step as long
   as all labels are about equally probable; steps are accelerated, because curvature falls later.
"""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from prudent.estimators.engine import SumEngine
from prudent.estimators.features import Whitening, one_hot, standardised
from prudent.estimators.models.probabilities import PrivateClassifier, softmax
from prudent.estimators.shares import BudgetPart, choices, sums
from prudent.release.lattice import FloatArray

ROUNDS = 4
"""Steps of the likelihood."""

_MOMENTUM = 0.5  # of the step before, which is looked ahead by


@dataclass(eq=False, repr=False)
class LogisticRegression(PrivateClassifier):
    """Private multinomial logistic regression without bounds on the data.

    Its arguments are those of `PrivateEstimator`.

    Attributes:
        coef_: The slopes of the scores of each label; with two labels, of the second against the
            first.
        intercept_: The scores where all columns are 0.
        classes_: The labels.
    """

    _title: ClassVar[str] = "logistic regression"

    epsilon: float = 1.0
    delta: float = 1e-6
    _: KW_ONLY
    classes: Any = None
    bounds: Any = None
    ledger: Any = None
    noise: Any = None

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        return {
            "columns": choices(0.2, 2 * features),
            "count": sums(0.005),
            "moment": sums(0.35),
            "steps": sums(0.445, ROUNDS),
        }

    @override
    def _learn(self, engine: SumEngine) -> None:
        kinds, width = self._keep_classes(), len(engine.rows.names) - 1
        self._features = standardised(engine, width, self.n_records_)
        whitening = Whitening.release(engine, "moment", self._features, self.n_records_)
        found = before = np.zeros((width + 1, kinds))
        for _ in range(ROUNDS):
            ahead = found + _MOMENTUM * (found - before)
            step = whitening.root @ self._step(engine, whitening, ahead)
            before, found = found, ahead + kinds * step
        self._found = found
        slopes, intercept = self._features.unscaled(found)
        if kinds == 2:
            slopes, intercept = slopes[:, 1:] - slopes[:, :1], intercept[1:] - intercept[:1]
        self.coef_, self.intercept_ = slopes.T, intercept

    def _step(self, engine: SumEngine, whitening: Whitening, found: FloatArray) -> FloatArray:
        """Release the gradient of the likelihood, in whitened coordinates."""
        features, kinds = whitening.features, found.shape[1]

        def pairs(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
            steps = features.steps(rows)
            errors = one_hot(rows[:, -1], kinds) - softmax(features.times(steps, found))
            return whitening.rows(steps), errors * whitening.weights(steps)[:, None]

        return engine.cross("steps", pairs, (whitening.reach, math.sqrt(2)))

    @override
    def _scores(self, rows: FloatArray) -> FloatArray:
        return self._features.times(self._features.steps(rows), self._found)

    def decision_function(self, X: Any) -> FloatArray:
        """Return the score of each label; with two, that of the second against the first."""
        scores = self._scores(self._queries(X))
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores
