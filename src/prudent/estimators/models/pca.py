"""Principal components without bounds, from one noisy second moment of standardised columns."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from typing_extensions import override

from prudent import _validate
from prudent.estimators.base import PrivateEstimator
from prudent.estimators.engine import SumEngine
from prudent.estimators.features import standardised
from prudent.estimators.shares import BudgetPart, choices, sums
from prudent.release.lattice import FloatArray

_REACH = 1.25  # the longest row, in root mean squares; a longer one counts with a smaller weight


@dataclass(eq=False, repr=False)
class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, PrivateEstimator):
    """Private principal components without bounds on the data.

    Rows far from the others are shortened. That keeps the directions of the components, and makes
    the variances of columns with long tails smaller.

    Args:
        n_components: How many components to keep; None keeps all.

    Its other arguments are those of `PrivateEstimator`.

    Attributes:
        components_: The components, one in each row, the largest variance first.
        explained_variance_: The variance along each of them.
        explained_variance_ratio_: Its share of the variance of all.
        mean_: The mean of each column.
        n_components_: The number of components.
    """

    _title: ClassVar[str] = "principal components"
    _supervised: ClassVar[bool] = False

    n_components: int | None = None
    epsilon: float = 1.0
    delta: float = 1e-6
    _: KW_ONLY
    bounds: Any = None
    ledger: Any = None
    noise: Any = None

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        if self.n_components is not None:
            most = max(features, getattr(self, "n_features_in_", 0))  # some may have bounds
            _validate.count(1, most, n_components=self.n_components)
        return {
            "columns": choices(0.25, 2 * features),
            "count": sums(0.005),
            "moment": sums(0.745),
        }

    @override
    def _learn(self, engine: SumEngine) -> None:
        width = len(engine.rows.names)
        features = standardised(engine, width, self.n_records_)
        radius = _REACH * math.sqrt(features.width)
        moment = engine.second_moment("moment", features.vectors, radius)
        weight = max(float(moment[0, 0]), 1.0)
        mean = np.clip(moment[0, 1:] / weight, -1.0, 1.0)
        covariance = moment[1:, 1:] / weight - np.outer(mean, mean)
        values, vectors = np.linalg.eigh(covariance * np.outer(features.scales, features.scales))
        values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
        largest = np.abs(vectors).argmax(axis=0)
        vectors = vectors * np.sign(vectors[largest, np.arange(width)])
        self.n_components_ = width if self.n_components is None else self.n_components
        self.mean_ = features.locations + mean * features.scales
        self.components_ = np.ascontiguousarray(vectors.T[: self.n_components_])
        self.explained_variance_ = values[: self.n_components_]
        total = float(values.sum()) or 1.0
        self.explained_variance_ratio_ = self.explained_variance_ / total

    @property
    def _n_features_out(self) -> int:
        return int(self.n_components_)

    def transform(self, X: Any) -> FloatArray:
        """Return the coordinates of rows along the components; a gap is at the mean."""
        rows = self._queries(X)
        return np.asarray(np.where(np.isnan(rows), 0.0, rows - self.mean_) @ self.components_.T)

    def inverse_transform(self, X: Any) -> FloatArray:
        """Return the rows that have these coordinates, and no part along other components."""
        return np.asarray(np.asarray(X, np.float64) @ self.components_ + self.mean_)
