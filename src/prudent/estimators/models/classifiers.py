"""Classifiers without bounds: what they share, and naive Bayes.

**Gaussian naive Bayes** releases the moments of each label's columns, in one noisy sum.
"""

import abc
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
from prudent.estimators.features import ClassMoments, standardised
from prudent.estimators.shares import BudgetPart, choices, sums
from prudent.release.lattice import FloatArray

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
