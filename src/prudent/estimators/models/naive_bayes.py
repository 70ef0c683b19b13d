"""Gaussian naive Bayes without bounds: moments of each label's columns, in one noisy sum."""

from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from prudent.estimators.base import TooFewRecordsError
from prudent.estimators.engine import SumEngine
from prudent.estimators.models.moments import ClassMoments
from prudent.estimators.models.probabilities import PrivateClassifier
from prudent.estimators.models.start import refusal, standardised
from prudent.estimators.shares import BudgetPart, choices, sums
from prudent.release.lattice import FloatArray


class GaussianNB(PrivateClassifier):
    """Private Gaussian naive Bayes without bounds on the data.

    Guarantee:
        `fit` is (ε, δ)-DP for adding or removing one record, whatever the data; see `event_`.

    Args:
        epsilon: ε of the fit, from 0.01 to 50.
        delta: δ of the fit.
        classes: The public list of labels; a record of another label is absent. None: labels are
            those that a private choice finds to have enough records, which costs a part of ε and δ.
        bounds: Public bounds (low, high) of columns, by name or place, if any are known: these
            columns need no quantiles.
        ledger: Charged by `fit` before any record is read.
        noise: Source of randomness; None uses the operating system's.

    Attributes:
        theta_: The mean of each column, for each label.
        var_: The variance of each column, for each label.
        class_prior_: The share of each label.
        classes_: The labels.
    """

    _title: ClassVar[str] = "naive Bayes"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        classes: Any = None,
        bounds: Any = None,
        ledger: Any = None,
        noise: Any = None,
    ) -> None:
        self.epsilon, self.delta, self.classes = epsilon, delta, classes
        self.bounds, self.ledger, self.noise = bounds, ledger, noise

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        return {
            "columns": choices(0.3, 2 * features),
            "count": sums(0.005),
            "moments": sums(0.695),
        }

    @override
    def _learn(self, engine: SumEngine) -> TooFewRecordsError | None:
        kinds, width = self._keep_classes(), len(engine.rows.names) - 1
        self.n_records_ = engine.count()
        if (refused := refusal(engine, self.n_records_)) is not None:
            return refused
        features = standardised(engine, width, self.n_records_)
        found = ClassMoments.release(engine, "moments", features, lambda rows: rows[:, -1], kinds)
        self._features, self._moments = features, found
        self.class_prior_ = found.counts / found.counts.sum()
        self.theta_ = features.locations + found.means * features.scales
        self.var_ = found.variances * features.scales**2
        return None

    @override
    def _scores(self, rows: FloatArray) -> FloatArray:
        means, variances = self._moments.means, self._moments.variances
        numbers = self._features.vectors(rows)[:, None, 1:]
        distances = ((numbers - means) ** 2 / variances + np.log(variances)).sum(axis=2)
        return np.asarray(np.log(self.class_prior_) - distances / 2)
