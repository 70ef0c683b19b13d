"""Gaussian naive Bayes without bounds: moments of each label's columns, in one noisy sum."""

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from prudent.estimators.engine import SumEngine
from prudent.estimators.features import ClassMoments, standardised
from prudent.estimators.models.probabilities import PrivateClassifier
from prudent.estimators.shares import BudgetPart, choices, sums
from prudent.release.lattice import FloatArray


@dataclass(eq=False, repr=False)
class GaussianNB(PrivateClassifier):
    """Private Gaussian naive Bayes without bounds on the data.

    Its arguments are those of `PrivateEstimator`.

    Attributes:
        theta_: The mean of each column, for each label.
        var_: The variance of each column, for each label.
        class_prior_: The share of each label.
        classes_: The labels.
    """

    _title: ClassVar[str] = "naive Bayes"

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
            "columns": choices(0.3, 2 * features),
            "count": sums(0.005),
            "moments": sums(0.695),
        }

    @override
    def _learn(self, engine: SumEngine) -> None:
        kinds, width = self._keep_classes(), len(engine.rows.names) - 1
        features = standardised(engine, width, self.n_records_)
        found = ClassMoments.release(engine, "moments", features, lambda rows: rows[:, -1], kinds)
        self._features, self._moments = features, found
        self.class_prior_ = found.counts / found.counts.sum()
        self.theta_ = features.locations + found.means * features.scales
        self.var_ = found.variances * features.scales**2

    @override
    def _scores(self, rows: FloatArray) -> FloatArray:
        means, variances = self._moments.means, self._moments.variances
        numbers = self._features.vectors(rows)[:, None, 1:]
        distances = ((numbers - means) ** 2 / variances + np.log(variances)).sum(axis=2)
        return np.asarray(np.log(self.class_prior_) - distances / 2)
