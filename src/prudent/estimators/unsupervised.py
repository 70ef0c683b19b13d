"""Models without targets: k-means and principal components, without bounds.

**k-means** clusters the noisy means of cells between public random hyperplanes, which is
post-processing, and then takes two noisy Lloyd steps. **Principal components** are those of one
noisy second moment. Columns are standardised by private quantiles, and rows clipped in length.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.cluster import KMeans as PublicKMeans
from typing_extensions import override

from prudent import _validate
from prudent.estimators.base import BoundedEstimator
from prudent.estimators.engine import BudgetPart, Map, SumEngine, choices, sums
from prudent.estimators.features import StandardFeatures, one_hot, standardised
from prudent.release.lattice import FloatArray

ROUNDS = 2
"""Lloyd steps on the records."""

_REACH = 1.5  # the longest row, in root mean squares
_CELL = 8.0  # a cell should hold so many deviations of the noise of its sums
_MOST_PLANES = 8
_MOST_CLUSTERS = 1000  # with more a batch of rows takes gigabytes, four cells for each cluster
_STARTS = 20  # of k-means on cells
_LONGEST_ROW = 1.25  # of components, in root mean squares; longer ones get a smaller weight


@dataclass(eq=False, repr=False)
class KMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BoundedEstimator):
    """Private k-means without bounds on the data, in standardised columns.

    Labels of the records are not kept: `predict` tells those of any rows.

    Args:
        n_clusters: The number of clusters, at most 1,000.

    Its other arguments are those of `PrivateEstimator`.

    Attributes:
        cluster_centers_: The centres, in the units of the columns.
        cluster_sizes_: The noisy number of records of each cluster.
    """

    _title: ClassVar[str] = "k-means"
    _supervised: ClassVar[bool] = False

    n_clusters: int = 8

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        _validate.count(1, _MOST_CLUSTERS, n_clusters=self.n_clusters)
        return {
            "columns": choices(0.2, 2 * features),
            "count": sums(0.005),
            "cells": sums(0.395),
            "steps": sums(0.38, ROUNDS),
            "sizes": sums(0.02),
        }

    @override
    def _learn(self, engine: SumEngine) -> None:
        kinds = int(self.n_clusters)
        features = standardised(engine, len(engine.rows.names), self.n_records_)
        radius = _REACH * math.sqrt(features.width)
        centres = self._start(engine, features, radius, kinds)
        for _ in range(ROUNDS):
            nearest = _nearest(features, centres)
            found = _cells(engine, "steps", features, nearest, kinds, radius)
            noise = engine.deviation("steps") * radius
            sizes = np.maximum(found[:, :1], 1.0)
            # A centre moves as far as its records outweigh the noise.
            kept = sizes**2 / (sizes**2 + noise**2)
            centres = centres + kept * (found[:, 1:] / sizes - centres)
        # Rows far from the others are shortened in a step: they count for less than one.
        nearest = _nearest(features, centres)
        counts = engine.total("sizes", lambda rows: one_hot(nearest(rows), kinds), 1.0)
        self.cluster_sizes_ = np.maximum(counts, 0.0)
        self._features, self._centres = features, centres
        self.cluster_centers_ = features.locations + centres * features.scales

    def _start(
        self, engine: SumEngine, features: StandardFeatures, radius: float, kinds: int
    ) -> FloatArray:
        """Centres from the noisy means of cells between public random hyperplanes."""
        width, draw = features.width - 1, engine.generator()
        noise = engine.deviation("cells") * radius
        room = max(self.n_records_, 1.0) / (_CELL * noise)
        planes = int(np.clip(math.floor(math.log2(max(room, 2.0))), 1, _MOST_PLANES))
        planes = max(planes, math.ceil(math.log2(kinds)) + 1)
        directions = draw.normal(size=(features.width, planes))
        directions[1:] /= np.sqrt((directions[1:] ** 2).sum(axis=0))
        directions[0] *= 0.5  # planes pass near the middle, not all through it

        def cells(rows: FloatArray) -> FloatArray:
            sides = features.times(features.steps(rows), directions) > 0
            found = np.zeros(len(rows))
            for plane in range(planes):
                found = 2 * found + sides[:, plane]
            return found

        found = _cells(engine, "cells", features, cells, 2**planes, radius)
        full = found[:, 0] > max(noise, 1.0)
        if full.sum() < kinds:  # hardly any records: any centres are as good
            return np.asarray(draw.normal(size=(kinds, width)))
        means = np.clip(found[full, 1:] / found[full, :1], -radius, radius)
        public = PublicKMeans(kinds, n_init=_STARTS, random_state=int(draw.integers(2**31)))
        weights = found[full, 0]
        return np.asarray(public.fit(means, sample_weight=weights).cluster_centers_)

    @property
    def _n_features_out(self) -> int:
        return int(self.n_clusters)

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """Return the cluster of each row: that of the nearest centre, in standardised columns."""
        return np.asarray(self.transform(X).argmin(axis=1), np.int64)

    def fit_predict(self, X: Any, y: Any = None, **options: Any) -> npt.NDArray[np.int64]:
        """Fit the model, and return the cluster of each row."""
        return self.fit(X, y, **options).predict(X)

    def transform(self, X: Any) -> FloatArray:
        """Return the distance of each row from each centre, in standardised columns."""
        queries = self._queries(X)  # says if the model is not fitted
        rows = self._features.vectors(queries)[:, 1:]
        squares = (rows**2).sum(axis=1)[:, None] - 2 * rows @ self._centres.T
        return np.asarray(np.sqrt(np.maximum(squares + (self._centres**2).sum(axis=1), 0.0)))

    def score(self, X: Any, y: Any = None) -> float:
        """Return minus the sum of squared distances from the nearest centres."""
        return -float((self.transform(X).min(axis=1) ** 2).sum())


def _nearest(features: StandardFeatures, centres: FloatArray) -> Map:
    """The place of the centre that is nearest to each row: |c|² - 2 z·c is least."""
    matrix = np.concatenate([(centres**2).sum(axis=1)[None, :], -2 * centres.T])

    def places(rows: FloatArray) -> FloatArray:
        nearest = features.times(features.steps(rows), matrix).argmin(axis=1)
        return np.asarray(nearest, np.float64)

    return places


def _cells(
    engine: SumEngine, part: str, features: StandardFeatures, places: Map, kinds: int, radius: float
) -> FloatArray:
    """Release the number of rows in each cell, and the sum of their features."""

    def pairs(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
        return one_hot(places(rows), kinds), features.vectors(rows)

    return engine.cross(part, pairs, (1.0, radius))


@dataclass(eq=False, repr=False)
class PCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BoundedEstimator):
    """Private principal components without bounds on the data.

    Rows far from the others are shortened. That keeps the directions of the components, and makes
    variances smaller: of columns with long tails, and of the first component where columns are
    strongly correlated (by a fifth, of normal columns).

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

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        if self.n_components is not None:
            most = max(features, getattr(self, "n_features_in_", 0))  # some may have bounds
            _validate.count(1, most, n_components=self.n_components)
        return {"columns": choices(0.25, 2 * features), "count": sums(0.005), "moment": sums(0.745)}

    @override
    def _learn(self, engine: SumEngine) -> None:
        width = len(engine.rows.names)
        features = standardised(engine, width, self.n_records_)
        radius = _LONGEST_ROW * math.sqrt(features.width)
        moment = engine.second_moment("moment", features.vectors, radius)
        weight = max(float(moment[0, 0]), 1.0)
        mean = np.clip(moment[0, 1:] / weight, -1.0, 1.0)
        covariance = moment[1:, 1:] / weight - np.outer(mean, mean)
        values, vectors = np.linalg.eigh(covariance * np.outer(features.scales, features.scales))
        values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
        largest = np.abs(vectors).argmax(axis=0)
        vectors = vectors * np.sign(vectors[largest, np.arange(width)])
        self.n_components_ = width if self.n_components is None else int(self.n_components)
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
