"""Scalers without bounds: by moments, by quartiles, and by many quantiles of each column."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtr, ndtri
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from typing_extensions import override

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.estimators.base import BoundedEstimator, PrivateEstimator, TooFewRecordsError
from prudent.estimators.engine import SumEngine
from prudent.estimators.features import ClassMoments, standardised
from prudent.estimators.shares import BudgetPart, choices, sums
from prudent.release.lattice import FloatArray

_EDGE = 1e-7  # probabilities of the outermost values of a normal output


class _Scaler(OneToOneFeatureMixin, TransformerMixin, PrivateEstimator):
    """A map of each column alone, there and back; a gap stays a gap."""

    _supervised: ClassVar[bool] = False

    def _numbers(self, X: Any) -> FloatArray:
        """Rows that are to be mapped back, which have no names."""
        found = np.asarray(X, np.float64)
        if found.ndim != 2 or found.shape[1] != self.n_features_in_:
            raise ArgumentError("X", f"with {self.n_features_in_} columns", shown="others")
        return found


class _LinearScaler(_Scaler):
    """A scaler that subtracts a centre and divides by a scale, where it is asked to."""

    _centre: FloatArray
    scale_: FloatArray | None

    def transform(self, X: Any) -> FloatArray:
        """Scale rows."""
        rows = self._queries(X)
        return np.asarray((rows - self._centre) / (1.0 if self.scale_ is None else self.scale_))

    def inverse_transform(self, X: Any) -> FloatArray:
        """Return the rows that are scaled to these."""
        scale = 1.0 if self.scale_ is None else self.scale_
        return np.asarray(self._numbers(X) * scale + self._centre)


@dataclass(eq=False, repr=False, kw_only=True)
class StandardScaler(_LinearScaler, BoundedEstimator):
    """Private means and standard deviations of columns without bounds on the data.

    Values farther than about four deviations from the others are clipped before they count.

    Args:
        with_mean: Whether `transform` subtracts the mean.
        with_std: Whether `transform` divides by the standard deviation.

    Its other arguments are those of `PrivateEstimator`.

    Attributes:
        mean_: The mean of each column.
        var_: Its variance, at least a hundredth of the square of its released scale.
        scale_: Its standard deviation; None without `with_std`.
    """

    _title: ClassVar[str] = "standard scaler"

    with_mean: bool = True
    with_std: bool = True

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        return {"columns": choices(0.4, 2 * features), "count": sums(0.005), "moments": sums(0.595)}

    @override
    def _learn(self, engine: SumEngine) -> None:
        features = standardised(engine, len(engine.rows.names), self.n_records_)
        found = ClassMoments.release(
            engine, "moments", features, lambda rows: np.zeros(len(rows)), 1
        )
        self.mean_ = features.locations + found.means[0] * features.scales
        self.var_ = found.variances[0] * features.scales**2
        self.scale_ = np.sqrt(self.var_) if self.with_std else None
        self._centre = self.mean_ if self.with_mean else np.zeros_like(self.mean_)


@dataclass(eq=False, repr=False, kw_only=True)
class RobustScaler(_LinearScaler):
    """Private medians and ranges between two quantiles of columns, without bounds on the data.

    Args:
        with_centering: Whether `transform` subtracts the median.
        with_scaling: Whether `transform` divides by the range.
        quantile_range: The two quantiles, in per cent.

    Its other arguments are those of `PrivateEstimator`.

    Attributes:
        center_: The median of each column; None without `with_centering`.
        scale_: The range of each column, 1 where it is none; None without `with_scaling`.
    """

    _title: ClassVar[str] = "robust scaler"

    with_centering: bool = True
    with_scaling: bool = True
    quantile_range: tuple[float, float] = (25.0, 75.0)

    def _probabilities(self) -> list[float]:
        ends = _validate.values(quantile_range=self.quantile_range)
        if len(ends) != 2:
            raise ArgumentError("quantile_range", "two percentages", got=self.quantile_range)
        low, high = (_validate.between(0, 100, ends="()", quantile_range=each) for each in ends)
        if not low < high:
            raise ArgumentError("quantile_range", "ascending", got=self.quantile_range)
        return [0.5] * bool(self.with_centering) + [low / 100, high / 100] * bool(self.with_scaling)

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        asked = len(self._probabilities())
        return {"count": sums(0.01), "columns": choices(0.99, asked * features)}

    @override
    def _refusal(self, engine: SumEngine) -> TooFewRecordsError | None:
        return super()._refusal(engine) if self._probabilities() else None

    @override
    def _learn(self, engine: SumEngine) -> None:
        asked, width = self._probabilities(), len(engine.rows.names)
        self.center_ = self.scale_ = None
        self._centre = np.zeros(width)
        if not asked:
            return
        found = np.array(
            [[engine.quantile("columns", place, p) for p in asked] for place in range(width)]
        )
        if self.with_centering:
            self.center_ = self._centre = found[:, 0]
        if self.with_scaling:
            ranges = np.abs(found[:, -1] - found[:, -2])
            self.scale_ = np.where(ranges > 0, ranges, 1.0)


@dataclass(eq=False, repr=False, kw_only=True)
class QuantileTransformer(_Scaler):
    """A private map of each column to a uniform or normal one, without bounds on the data.

    A column is halved by a private median, its halves by one each, and so on: `levels` levels cost
    as much as so many quantiles, and give 2**levels - 1 of them.

    Args:
        levels: How often a column is halved, from 1 to 12.
        output_distribution: "uniform", or "normal".

    Its other arguments are those of `PrivateEstimator`.

    Attributes:
        quantiles_: The quantiles, one column for each feature.
        references_: Their probabilities.
    """

    _title: ClassVar[str] = "quantile transformer"

    levels: int = 4
    output_distribution: str = "uniform"

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        _validate.one_of(("uniform", "normal"), output_distribution=self.output_distribution)
        levels = _validate.count(1, 12, levels=self.levels)
        return {"count": sums(0.01), "columns": choices(0.99, levels * features)}

    @override
    def _learn(self, engine: SumEngine) -> None:
        places = range(len(engine.rows.names))
        found = [engine.cuts("columns", place, self.levels) for place in places]
        self.quantiles_ = np.stack(found, axis=1)
        self.references_ = np.arange(1, 2**self.levels) / 2**self.levels

    def transform(self, X: Any) -> FloatArray:
        """Map rows to probabilities, or to normal numbers of these probabilities.

        Between two quantiles the map is linear; beyond the outermost ones it goes on as far as
        the range of half of the quantiles, and ends there. A value that several quantiles share is
        mapped to the middle of their probabilities.
        """
        rows = self._queries(X)
        found = np.full(rows.shape, np.nan)
        for place, (values, shares) in enumerate(self._knots()):
            known = ~np.isnan(rows[:, place])
            numbers = rows[known, place]
            # The mean of the map from the left and of that from the right is in the middle of ties.
            upper = -np.interp(-numbers, -values[::-1], -shares[::-1])
            found[known, place] = (np.interp(numbers, values, shares) + upper) / 2
        if self.output_distribution == "normal":
            return np.asarray(ndtri(np.clip(found, _EDGE, 1 - _EDGE)))
        return found

    def inverse_transform(self, X: Any) -> FloatArray:
        """Return the rows that are mapped to these."""
        rows = self._numbers(X)
        shares = ndtr(rows) if self.output_distribution == "normal" else rows
        columns = [
            np.interp(shares[:, place], knots[1], knots[0])
            for place, knots in enumerate(self._knots())
        ]
        return np.stack(columns, axis=1)

    def _knots(self) -> list[tuple[FloatArray, FloatArray]]:
        """Points of the map of each column: quantiles, and an end at each side."""
        shares = np.concatenate([[0.0], self.references_, [1.0]])
        knots = []
        for values in self.quantiles_.T:
            reach = (values[-1] - values[0]) / 2
            knots.append(
                (np.concatenate([[values[0] - reach], values, [values[-1] + reach]]), shares)
            )
        return knots
