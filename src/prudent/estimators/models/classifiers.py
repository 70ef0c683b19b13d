"""Classifiers without bounds: what they share, logistic regression and naive Bayes.

**Logistic regression** takes noisy steps of the multinomial likelihood in whitened space.

1. A noisy count, two private quantiles of each column, and the second moment that whitens the
   features, as in linear regression (`features`).
2. Each round adds up, over all records, the whitened row times (label - probabilities), which is
   never longer than √2: no bound on a residual has to be found. The step is a Newton step as long
   as all labels are about equally probable; steps are accelerated, because curvature falls later.

**Gaussian naive Bayes** releases the moments of each label's columns, in one noisy sum.
"""

import abc
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from typing_extensions import override

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.estimators.base import BoundedEstimator, PrivateEstimator
from prudent.estimators.engine import SumEngine
from prudent.estimators.features import ClassMoments, Whitening, one_hot, standardised
from prudent.estimators.shares import BudgetPart, choices, sums
from prudent.estimators.summaries import CoefficientSummary
from prudent.release.lattice import FloatArray

ROUNDS = 4
"""Steps of the likelihood."""

_STOPPED = "the steps stop before the maximum of the likelihood, by an unknown distance"
_MOMENTUM = 0.5  # of the step before, which is looked ahead by
_FINENESS = 1024  # entries of the table for each unit of the exponent
_EXPONENTIALS = np.exp(-np.arange(40 * _FINENESS + 1) / _FINENESS)


def softmax(scores: FloatArray) -> FloatArray:
    """The softmax of each row, the same bits wherever the row lies.

    Exponentials are read from a table at public points: what `exp` returns for a number may depend
    on its place in an array.
    """
    below = scores.max(axis=1, keepdims=True, initial=-np.inf) - scores
    places = np.rint(np.minimum(below * _FINENESS, len(_EXPONENTIALS) - 1)).astype(np.int64)
    weights = _EXPONENTIALS[places]
    total = np.zeros(len(scores))
    for place in range(scores.shape[1]):
        total += weights[:, place]
    return np.asarray(weights / total[:, None])


@dataclass(eq=False, repr=False, kw_only=True)
class PrivateClassifier(ClassifierMixin, PrivateEstimator, abc.ABC):
    """A classifier whose labels are public knowledge, or are found by a private choice.

    Attributes:
        classes_: The labels.
    """

    classes: Any = None

    @override
    def _classes(self) -> list[Any]:
        if self.classes is None:
            return []
        found = _validate.values(classes=self.classes)
        found = [each.item() if isinstance(each, np.generic) else each for each in found]
        try:
            several = len(set(found)) == len(found) > 1
        except TypeError:
            several = False
        if not several:
            raise ArgumentError("classes", "two or more distinct labels", got=self.classes)
        return found

    def _keep_classes(self) -> int:
        """Set the fitted labels, and return their number."""
        self.classes_ = np.array(self._labels)
        return len(self._labels)

    @abc.abstractmethod
    def _scores(self, rows: FloatArray) -> FloatArray:
        """The score of each label for rows of features; their softmax is the probability."""

    def predict_proba(self, X: Any) -> FloatArray:
        """Return the probability of each label."""
        return softmax(self._scores(self._queries(X)))

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Return the logarithm of the probability of each label."""
        return np.asarray(np.log(self.predict_proba(X)))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return the most probable label."""
        scores = self._scores(self._queries(X))
        found: npt.NDArray[Any] = self.classes_[scores.argmax(axis=1)]
        return found


@dataclass(eq=False, repr=False)
class LogisticRegression(CoefficientSummary, PrivateClassifier, BoundedEstimator):
    """Private multinomial logistic regression without bounds on the data.

    Its arguments are those of `PrivateEstimator`.

    Attributes:
        coef_: The slopes of the scores of each label; with two labels, of the second against the
            first.
        intercept_: The scores where all columns are 0.
        classes_: The labels.
        no_interval_: Why there are no intervals: a few steps of the likelihood with a bound on its
            curvature stop before its maximum, by a distance that is not released.
    """

    _title: ClassVar[str] = "logistic regression"
    _through_origin: ClassVar[bool] = True

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
        features = standardised(engine, width, self.n_records_)
        self._features = features if self._intercept else features.through_origin()
        whitening = Whitening.release(engine, "moment", self._features, self.n_records_)
        found = before = np.zeros((width + 1, kinds))
        for _ in range(ROUNDS):
            ahead = found + _MOMENTUM * (found - before)
            step = whitening.root @ self._step(engine, whitening, ahead)
            before, found = found, ahead + kinds * step
        found[0] *= self._intercept
        self._found = found
        slopes, intercept = self._features.unscaled(found)
        if kinds == 2:
            slopes, intercept = slopes[:, 1:] - slopes[:, :1], intercept[1:] - intercept[:1]
        self.coef_, self.intercept_ = slopes.T, intercept
        self.no_interval_ = _STOPPED

    @override
    def _coefficients(self) -> Iterator[tuple[str, float, tuple[float, float]]]:
        several = len(self.coef_) > 1
        for at, (first, slopes) in enumerate(zip(self.intercept_, self.coef_, strict=True)):
            label = f"{self.classes_[at]}: " if several else ""
            terms = zip(["(intercept)", *self.terms_], [first, *slopes], strict=True)
            for term, value in itertools.islice(terms, not self._intercept, None):
                yield f"{label}{term}", float(value), (math.nan, math.nan)

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


@dataclass(eq=False, repr=False)
class GaussianNB(PrivateClassifier, BoundedEstimator):
    """Private Gaussian naive Bayes without bounds on the data.

    Its arguments are those of `PrivateEstimator`.

    Attributes:
        theta_: The mean of each column, for each label.
        var_: The variance of each column, for each label.
        class_prior_: The share of each label.
        classes_: The labels.
    """

    _title: ClassVar[str] = "naive Bayes"

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        return {"columns": choices(0.3, 2 * features), "count": sums(0.005), "moments": sums(0.695)}

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
