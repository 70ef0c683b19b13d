"""Least squares, ridge regression and quantile regression without bounds, by noisy Newton steps.

1. A noisy count, then two private quantiles of each column: its location and its scale.
2. Features are standardised, clipped at ±8, and rows clipped in length. Their second moment is
   released, and whitens them (`features`).
3. Each round clips the residuals at a private quantile and takes one noisy Newton step.
4. One more sum: the squared residuals, and how many records were clipped.
5. Records beyond four scales vote, column by column, whether the line continues there.

Predictions are made on clipped features, too, except in columns where the votes are clear: there a
line that was fitted to the middle is known to hold for the tails.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, ClassVar

import attrs
import numpy as np
from sklearn.base import RegressorMixin
from typing_extensions import override

from prudent import _validate
from prudent._rounding import nearest, rounded_up
from prudent.estimators.base import BoundedEstimator, CoefficientSummary
from prudent.estimators.certificate import Pull, certify, radius_of
from prudent.estimators.engine import BudgetPart, Prices, SumEngine, along, choices, sums
from prudent.estimators.features import (
    CLIP,
    FARTHEST,
    MOST_REACH,
    STEP,
    StandardFeatures,
    Whitening,
    one_hot,
    standardise,
    standardised,
)
from prudent.estimators.influence import PARTS, Refined, far_whitening, refine
from prudent.release.lattice import FloatArray

_WITH_QUANTILE = 25.0  # records, times ε of a quantile of a column, below which it is a guess
_DOUBT = 2.0  # deviations of the noisy count by which it must exceed what is needed
_WITH_MOMENT = 3.0  # records, in noise of the second moment, below which a model says nothing
_TARGET_CLIP = 4.0  # standardised targets are clipped here for R²
_DEVIATIONS = 2.2  # of an interval of 95 %: 1.96, and more for what clipping costs in precision
_USUAL_RESIDUAL = 0.7  # deviation of residuals, in that of the target: for a forecast
_CLIPPED_NOISE = 4.0  # so many deviations of the noise of a step, in records, may be clipped
_CLIPPED_CHOICE = 24.0  # at least so many records, times ε of the choice, are clipped
_NEAR = 4.0  # scales, beyond which a record votes whether the line goes on
_CLEAR_VOTE = 2.0  # deviations of noise from which on the votes of a column are clear
_CLEAR_SUM = 1.5  # the same for all columns together
_LEAST_KEPT = 0.5  # of the residuals are never clipped

_MOST_TOLERANCE = 1e6  # deviations of the target for one of a column; the squares of more overflow
_LEAST_QUANTILE = 1e-6  # to whose multiples a private quantile is rounded


@attrs.frozen(eq=False)
class Fitting:
    """What is known in the course of a fit; all of it is released."""

    engine: SumEngine  # answers for the rows
    count: float  # the noisy number of records
    whitening: Whitening  # whitens the features
    far: Whitening  # whitens them for the last steps
    centre: float  # the location of the target
    scale: float  # the scale of the target

    def targets(self, rows: FloatArray) -> FloatArray:
        """Standardised targets."""
        return np.clip((rows[:, -1] - self.centre) / self.scale, -FARTHEST, FARTHEST)

    def weighted(self, rows: FloatArray, found: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Features in steps, and standardised residuals that are weighted as their rows are."""
        steps, errors = self.residuals(rows, found)
        return steps, errors * self.whitening.weights(steps)

    def residuals(self, rows: FloatArray, found: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Features in steps, and standardised residuals."""
        steps = self.whitening.features.steps(rows)
        return steps, self.targets(rows) - along(steps, found * STEP)


@attrs.frozen(eq=False)
class NewtonStep:
    """One noisy Newton step."""

    move: FloatArray  # the step, in whitened coordinates
    noise: float  # the standard deviation of its noise, in each of them
    limit: float  # where residuals were clipped
    kept: float  # the share of residuals that should be within it


@dataclass(eq=False, repr=False, kw_only=True)
class LinearModel(CoefficientSummary, RegressorMixin, BoundedEstimator):
    """A linear model by rounds of noisy Newton steps: least squares, unless a subclass says more.

    Attributes:
        coef_: The slopes, in units of the target per unit of a column.
        intercept_: The prediction where all columns are 0.
        intervals_: An interval for each slope, one row each, that holds it with a probability of
            at least about 95 %, over the noise and over the sampling of records; NaN if there is
            none. See `prudent.estimators.influence` for what it rests on.
        intercept_interval_: The same for the intercept.
        no_interval_: Why some interval is missing; empty if none is.
        n_clipped_: The noisy number of records that are beyond eight scales in some column, or
            whose influence was clipped.
        r2_: A noisy R² on the records of the fit, if `r2` asks for it.
        certificate_: How many records the slopes withstand, if `certify` asks for it.
    """

    _rounds: ClassVar[int] = 2  # of Newton steps, each of which clips the residuals anew
    r2 = False  # an argument of those that can release it

    certify: float | None = None

    def _kept(self, fitting: Fitting, number: int) -> float:
        """The share of residuals that are within the limit of a round."""
        engine, width = fitting.engine, fitting.whitening.features.width
        clipped = max(
            _CLIPPED_NOISE * engine.deviation("steps") * math.sqrt(width),
            _CLIPPED_CHOICE / engine.prices.choice_epsilon("residuals"),
        )
        return max(_LEAST_KEPT, 1 - clipped / fitting.count)

    def _start(self, engine: SumEngine, place: int, centre: float) -> float:
        """The location of the target from which the rounds start."""
        return centre

    def _usual(self) -> tuple[float, float]:
        """How far a record may pull, and the deviation of its pull, for normal residuals.

        Both are in deviations of the residuals, and over the curvature.
        """
        return 3.0, 1.0

    def _pull(self, limit: float) -> Pull:
        """How a record pulls where residuals up to a limit pull in proportion."""
        return Pull(limit, limit, 1.0, lambda errors: np.clip(errors, -limit, limit))

    def _factor(self, limit: float, kept: float) -> float:
        """What makes a Newton step of the mean pull: one over the curvature of the loss."""
        return 1.0

    def _penalty(self, features: StandardFeatures) -> FloatArray:
        return np.zeros(features.width)

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        if self.certify is not None:
            _validate.between(0, _MOST_TOLERANCE, ends="(]", certify=self.certify)
        _validate.flag(r2=self.r2)
        certifies = self.certify is not None
        return PARTS | {
            "columns": choices(0.3, 2 * features),
            "target": choices(0.12, 2),
            "residuals": choices(0.12, self._rounds),
            "edges": sums(0.03),
            "count": sums(0.005, shown=certifies),
            "moment": sums(0.17),
            "steps": sums(0.11, self._rounds),
            "spread": sums(0.08 if self.r2 else 0.01),
            "votes": sums(0.02),
            "gradient": sums(0.1, int(certifies), shown=True),
            "curvature": sums(0.15, int(certifies), shown=True),
        }

    @override
    def _learn(self, engine: SumEngine) -> None:
        count, width = self.n_records_, len(engine.rows.names) - 1
        # Rows are shortened as a whole and not clipped column by column: a line stays a line.
        features = standardised(engine, width, count)
        features = features.rescaled(engine, "edges", count)
        (centre,), (scale,) = standardise(engine, "target", [width], count)
        centre = self._start(engine, width, centre)
        penalty = self._penalty(features)
        whitening = Whitening.release(engine, "moment", features, count, penalty)
        far = whitening
        if "far moment" in engine.prices.parts:
            far = far_whitening(engine, whitening, count, penalty)
        whitening = far if far.radius == whitening.radius else whitening
        fitting = Fitting(engine, count, whitening, far, centre, scale)
        found = np.zeros(width + 1)
        steps = []
        for number in range(self._rounds):
            step = self._step(fitting, found, number)
            pull = whitening.root.T @ (whitening.penalty * found)
            found = found + whitening.root @ (step.move - pull)
            steps.append(step)
        outcome = self._finish(fitting, found, steps)
        found = outcome.found
        self._spread(fitting, outcome, steps[-1].limit)
        limits = self._limits(fitting, found, steps[-1].limit)
        self._features = attrs.evolve(features, limits=limits)
        self._found = found * scale
        self._found[0] = self._found[0] + centre
        self.coef_, self.intercept_ = features.unscaled(self._found)
        centres = np.array([self.intercept_, *self.coef_])
        ends, self.no_interval_ = outcome.intervals(features, centres, scale, engine.prices.records)
        self.intercept_interval_, self.intervals_ = tuple(ends[0].tolist()), ends[1:]
        if self.certify is not None:
            # Residuals may grow along the way.
            room = 2 * radius_of(whitening, float(self.certify)) * whitening.reach
            self.certificate_ = certify(
                engine,
                whitening,
                lambda rows: fitting.weighted(rows, found),
                self._pull(steps[-1].limit + room),
                tolerance=float(self.certify),
                penalty=whitening.root.T @ (whitening.penalty * found),
                count=count,
            )

    def _step(self, fitting: Fitting, found: FloatArray, number: int) -> NewtonStep:
        """Release the limit and the step of a round."""
        engine, whitening, kept = fitting.engine, fitting.whitening, self._kept(fitting, number)
        limit = engine.length(
            "residuals", lambda rows: np.abs(fitting.weighted(rows, found)[1]), kept
        )
        pull, factor = self._pull(limit), self._factor(limit, kept)

        def pairs(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
            steps, errors = fitting.weighted(rows, found)
            return whitening.rows(steps), pull.of(errors)[:, None]

        move = engine.cross("steps", pairs, (whitening.reach, pull.bound))[:, 0] * factor
        noise = engine.deviation("steps") * whitening.reach * pull.bound * factor
        return NewtonStep(move, noise, limit, kept)

    @override
    def _needed(self, prices: Prices, features: int) -> float:
        chosen = [name for name in ("columns", "target") if name in prices.parts]
        needed = max(
            _WITH_QUANTILE / min(map(prices.choice_epsilon, chosen)),
            _WITH_MOMENT * prices.multiplier("moment") * (features + 1),
        )
        return needed + _DOUBT * prices.multiplier("count")

    def _spread(self, fitting: Fitting, outcome: Refined, limit: float) -> None:
        """Release the number of clipped records and, if it was asked for, R²."""

        def vectors(rows: FloatArray) -> FloatArray:
            steps, errors = fitting.weighted(rows, outcome.found)
            at_edge = (np.abs(steps) >= CLIP / STEP).any(axis=1)
            parts = [(at_edge | outcome.clipped(rows)) * 0.3]
            if self.r2:
                small = np.clip(errors / limit, -1.0, 1.0)
                targets = np.clip(fitting.targets(rows) / _TARGET_CLIP, -1.0, 1.0)
                parts += [small * small, targets * targets, targets * 0.5]
            return np.stack(parts, axis=1)

        engine, count = fitting.engine, fitting.count
        radius = math.sqrt(0.3**2 + (2.0 + 0.5**2 if self.r2 else 0.0))
        clipped, *sums_of = engine.total("spread", vectors, radius).tolist()
        self.n_clipped_ = min(max(0.0, clipped / 0.3), count)
        if self.r2:
            squares, target, centred = sums_of
            variance = limit**2 * max(squares, radius * engine.deviation("spread")) / count
            total = _TARGET_CLIP**2 * (target / count - (centred / 0.5 / count) ** 2)
            self.r2_ = 1 - variance / total if total > variance else 0.0

    def _finish(self, fitting: Fitting, found: FloatArray, steps: list[NewtonStep]) -> Refined:
        """What the rounds lead to: here the last steps of least squares."""
        return refine(
            fitting.engine,
            fitting.far,
            fitting.residuals,
            found,
            count=fitting.count,
            limit=steps[-1].limit,
            noise=steps[-1].noise,
        )

    def _limits(self, fitting: Fitting, found: FloatArray, limit: float) -> FloatArray:
        """Release where predictions clip each column: far away if the line continues there.

        A record beyond `_NEAR` scales votes, with at most one vote, for its farthest column: by how
        much the line is nearer to its target than the value of the line at `_NEAR` scales is.
        """
        engine, features, columns = fitting.engine, fitting.whitening.features, len(found) - 1
        if not columns:  # no level of any category was found
            return features.limits
        near = attrs.evolve(features, limits=np.full(columns, _NEAR))
        far = attrs.evolve(features, limits=np.full(columns, FARTHEST))

        def vectors(rows: FloatArray) -> FloatArray:
            numbers = far.vectors(rows)
            targets = fitting.targets(rows)
            flat = self._loss((targets - along(near.vectors(rows), found)) / (2 * limit))
            line = self._loss((targets - along(numbers, found)) / (2 * limit))
            sizes = np.abs(numbers[:, 1:])
            votes = np.where(sizes.max(axis=1) > _NEAR, np.clip(flat - line, -1.0, 1.0), 0.0)
            return one_hot(sizes.argmax(axis=1), columns) * votes[:, None]

        votes = engine.total("votes", vectors, 1.0) / engine.deviation("votes")
        together = votes.sum() > _CLEAR_SUM * math.sqrt(columns)
        return np.where((votes > _CLEAR_VOTE) | (together & (votes > -1.0)), FARTHEST, CLIP)

    def _loss(self, errors: FloatArray) -> FloatArray:
        """What a fit makes small, for residuals in any unit: their squares."""
        return errors * errors

    @override
    def _facts(self) -> list[str]:
        facts = [f"R² about {nearest(self.r2_, 2)}"] if self.r2 else []
        return facts + ([str(self.certificate_)] if self.certify is not None else [])

    @override
    def coefficients(self) -> Iterator[tuple[str, float, tuple[float, float]]]:
        """The name, the value and the ends of the interval of each, the intercept first."""
        yield "(intercept)", float(self.intercept_), self.intercept_interval_
        for term, value, ends in zip(self.terms_, self.coef_, self.intervals_, strict=True):
            yield str(term), float(value), tuple(ends.tolist())

    @override
    def _forecast(self, prices: Prices, records: int, features: int) -> str:
        width = features + 1
        pull, deviation = (_USUAL_RESIDUAL * each for each in self._usual())
        noise = prices.multiplier("steps") * MOST_REACH * math.sqrt(width / records) * pull
        lost = width * noise**2 / records
        wide = _DEVIATIONS * math.hypot(noise, deviation) / math.sqrt(records)
        sampling = _DEVIATIONS * deviation / math.sqrt(records)
        return (
            f"With {records:,} records and R² about 0.5: noise takes about "
            f"{rounded_up(min(lost, 1.0), 2)} off R²; the interval of a coefficient is about "
            f"± {rounded_up(wide, 2)} deviations of the target per deviation of the column, "
            f"± {rounded_up(sampling, 2)} without privacy."
        )

    def predict(self, X: Any) -> FloatArray:
        """Predict targets.

        Features beyond eight scales are moved there, but for columns in which the records far away
        showed that the line continues.
        """
        rows = self._queries(X)
        return along(self._features.vectors(rows), self._found)


@dataclass(eq=False, repr=False, kw_only=True)
class LinearRegression(LinearModel):
    """Private least squares without bounds on the data.

    | odd input | result |
    | --- | --- |
    | a row with a gap, or something that is not a number | the row is absent |
    | an infinite or huge value | clipped, like all values far from the others |
    | a constant column, or one that follows from others | a coefficient near 0, or shared |
    | too few records | `TooFewRecordsError`, after the noisy count |
    | a gap in a row to predict | the released location of that column |

    See `LinearModel` for the fitted attributes.

    Args:
        r2: Whether to release R² on the records of the fit as well, from the same budget.
        certify: If given, also release how many bad records the slopes withstand: without them,
            the slopes of this regression would be within this distance, in deviations of the
            target per deviation of a column. See `prudent.estimators.certificate`.

    Its other arguments are those of `PrivateEstimator`.
    """

    _title: ClassVar[str] = "linear regression"

    r2: bool = False


@dataclass(eq=False, repr=False)
class Ridge(LinearRegression):
    """Private least squares with a penalty on the slopes: alpha times the sum of their squares.

    Its intervals are about what the penalty leaves of the slopes, and not about the slopes without
    it.

    Args:
        alpha: The weight of the penalty.

    The other arguments are those of `LinearRegression`.
    """

    _title: ClassVar[str] = "ridge regression"

    alpha: float = 1.0

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        _validate.non_negative(alpha=self.alpha)
        return super()._parts(features)

    @override
    def _penalty(self, features: StandardFeatures) -> FloatArray:
        return np.concatenate([[0.0], self.alpha / features.scales**2])


@dataclass(eq=False, repr=False)
class QuantileRegressor(LinearModel):
    """Private quantile regression without bounds: the median, or another quantile, of the target.

    The check loss is smoothed over the residuals nearest to zero: a record pulls by the sign of its
    residual, and in proportion to it where that is small. No residual pulls harder than another, so
    no clipping is needed, and outliers in the target do little.

    See `LinearRegression` for odd input, and `LinearModel` for the fitted attributes.

    Args:
        quantile: The quantile, from 1e-6 to 1 - 1e-6; 0.5 is the median.

    The other arguments are those of `LinearRegression`.
    """

    _title: ClassVar[str] = "quantile regression"
    _smoothed: ClassVar[tuple[float, ...]] = (0.7, 0.5, 0.3, 0.3)  # of the residuals, by round
    _rounds: ClassVar[int] = len(_smoothed)

    quantile: float = 0.5

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        _validate.between(_LEAST_QUANTILE, 1 - _LEAST_QUANTILE, quantile=self.quantile)
        parts = super()._parts(features)
        return {name: part for name, part in parts.items() if name not in PARTS} | {
            "columns": choices(0.3, 2 * features),
            "target": choices(0.12, 3),
            "residuals": choices(0.18, self._rounds),
            "moment": sums(0.1875),
            "steps": sums(0.1875, self._rounds),
        }

    @override
    def _start(self, engine: SumEngine, place: int, centre: float) -> float:
        return engine.quantile("target", place, self.quantile)

    @override
    def _kept(self, fitting: Fitting, number: int) -> float:
        """Those over which the loss is smoothed; fewer for far quantiles."""
        return self._smoothed[number] * 4 * self.quantile * (1 - self.quantile)

    @override
    def _factor(self, limit: float, kept: float) -> float:
        """The curvature of the smoothed loss is the density of residuals near zero."""
        return 2 * limit / kept

    @override
    def _loss(self, errors: FloatArray) -> FloatArray:
        return np.abs(errors) / 2 + (self.quantile - 0.5) * errors

    @override
    def _finish(self, fitting: Fitting, found: FloatArray, steps: list[NewtonStep]) -> Refined:
        """The error after a round is the contraction of that before, plus its noise.

        So the noise of round k of K remains with a factor contraction^(K-k), and the start with
        contraction^K.
        """
        whitening = fitting.whitening
        noise, left = np.zeros(len(found)), whitening.contraction
        for step in steps:
            noise = left**2 * noise + step.noise**2
        size = float(np.linalg.norm(np.linalg.solve(whitening.root, found)))
        density = steps[-1].kept / (2 * steps[-1].limit)
        sampling = self.quantile * (1 - self.quantile) / density**2
        bias = left ** len(steps) * (size + np.sqrt(noise.sum()))
        return Refined(
            found=found,
            root=whitening.root,
            variance=np.diag(noise + sampling),
            bias=bias,
            deviations=_DEVIATIONS,
        )

    @override
    def _usual(self) -> tuple[float, float]:
        density = NormalDist().pdf(NormalDist().inv_cdf(self.quantile))
        spread = math.sqrt(self.quantile * (1 - self.quantile))
        return max(self.quantile, 1 - self.quantile) / density, spread / density

    @override
    def _pull(self, limit: float) -> Pull:
        shift = self.quantile - 0.5
        return Pull(
            limit,
            bound=max(self.quantile, 1 - self.quantile),
            slope=1 / (2 * limit),
            of=lambda errors: shift + np.clip(errors / (2 * limit), -0.5, 0.5),
        )
