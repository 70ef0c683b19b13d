"""What private classifiers share: public labels, probabilities, and scikit-learn's methods."""

import abc
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from typing_extensions import override

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.estimators.base import PrivateEstimator
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


class PrivateClassifier(ClassifierMixin, PrivateEstimator):
    """A classifier whose labels are public knowledge, or are found by a private choice.

    Attributes:
        classes_: The labels.
    """

    classes: Any

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
