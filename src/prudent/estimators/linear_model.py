"""Linear models without bounds: noisy Newton steps in a whitened space.

1. A noisy count, then two private quantiles of each column: its location and its scale.
2. Features are standardised, clipped at ±8, and rows clipped in length. Their second moment is
   released, and whitens them (`features`).
3. Each round clips the residuals at a private quantile and takes one noisy Newton step.
4. One more sum: the squared residuals, and how many records were clipped.

Predictions are made on clipped features, too: there a model is never far from what it has seen.
"""

import abc
import math
from typing import Any, ClassVar

import attrs
import numpy as np
from sklearn.base import RegressorMixin
from typing_extensions import override

from prudent import _validate
from prudent._rounding import nearest, rounded_up
from prudent.estimators.base import PrivateEstimator, TooFewRecordsError
from prudent.estimators.certificate import Pull, SlopeCertificate, certify, radius_of
from prudent.estimators.engine import SumEngine
from prudent.estimators.features import (
    MOST_REACH,
    StandardFeatures,
    Whitening,
    standardise,
    standardised,
)
from prudent.estimators.shares import BudgetPart, Prices, choices, sums
from prudent.release.charging import Preview
from prudent.release.lattice import FloatArray

_WITH_QUANTILE = 25.0  # records, times ε of a quantile of a column, below which it is a guess
_DOUBT = 2.0  # deviations of the noisy count by which it must exceed what is needed
_WITH_MOMENT = 3.0  # records, in noise of the second moment, below which a model says nothing
_TARGET_CLIP = 4.0  # standardised targets are clipped here for R²
_DEVIATIONS = 2.2  # of an interval of 95 %: 1.96, and more for what clipping costs in precision
_USUAL_RESIDUAL = 0.7  # deviation of residuals, in that of the target: for a forecast


@attrs.frozen(eq=False)
class Fitting:
    """What is known in the course of a fit; all of it is released."""

    engine: SumEngine  # answers for the rows
    count: float  # the noisy number of records
    whitening: Whitening  # whitens the features
    centre: float  # the location of the target
    scale: float  # the scale of the target

    def residuals(self, rows: FloatArray, found: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Features in steps, and standardised residuals that are weighted as their rows are."""
        features = self.whitening.features
        steps = features.steps(rows)
        errors = (rows[:, -1] - self.centre) / self.scale - features.times(steps, found)
        return steps, errors * self.whitening.weights(steps)


@attrs.frozen(eq=False)
class NewtonStep:
    """One noisy Newton step."""

    move: FloatArray  # the step, in whitened coordinates
    noise: float  # the standard deviation of its noise, in each of them
    limit: float  # where residuals were clipped


class LinearModel(RegressorMixin, PrivateEstimator, abc.ABC):
    """A linear model by rounds of noisy Newton steps; subclasses say what a round does.

    Attributes:
        coef_: The slopes, in units of the target per unit of a column.
        intercept_: The prediction where all columns are 0.
        intervals_: An interval for each slope, one row each, that holds it with a probability of
            about 95 %, over the noise and over the sampling of records from a linear model whose
            residuals have a variance that does not depend on the features.
        intercept_interval_: The same for the intercept.
        n_clipped_: The noisy number of records of which the row or the residual was clipped.
        r2_: A noisy R² on the records of the fit, if `r2` asks for it.
        certificate_: How many records the slopes withstand, if `certify` asks for it.
    """

    r2: bool = False
    certify: float | None
    _clips: ClassVar[bool] = True  # whether residuals beyond the limit count as clipped

    @abc.abstractmethod
    def _rounds(self) -> int:
        """The number of rounds."""

    @abc.abstractmethod
    def _step(self, fitting: Fitting, found: FloatArray, number: int) -> NewtonStep:
        """Release the step of a round."""

    @abc.abstractmethod
    def _start(self, engine: SumEngine, place: int, centre: float) -> float:
        """The location of the target from which the rounds start."""

    @abc.abstractmethod
    def _sampling(self, steps: list[NewtonStep], variance: float) -> float:
        """The sampling variance of a whitened coordinate, from that of standardised residuals."""

    @abc.abstractmethod
    def _usual(self) -> tuple[float, float]:
        """How far a record may pull, and the deviation of its pull, for normal residuals.

        Both are in deviations of the residuals, and over the curvature.
        """

    @abc.abstractmethod
    def _pull(self, limit: float) -> Pull:
        """How a record pulls where residuals up to a limit pull in proportion."""

    def _penalty(self, features: StandardFeatures) -> FloatArray:
        return np.zeros(features.width)

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        if self.certify is not None:
            _validate.positive(certify=self.certify)
        return {
            "columns": choices(0.3, 2 * features),
            "target": choices(0.12, 2),
            "residuals": choices(0.18, self._rounds()),
            "count": sums(0.005),
            "moment": sums(0.1875),
            "steps": sums(0.1875, self._rounds()),
            "spread": sums(0.08 if self.r2 else 0.02),
            "gradient": sums(0.1, int(self.certify is not None)),
            "curvature": sums(0.15, int(self.certify is not None)),
        }

    @override
    def _refusal(self, engine: SumEngine) -> TooFewRecordsError | None:
        doubt = _DOUBT * engine.deviation("count")
        needed = self._needed(engine.prices, len(engine.rows.names) - 1) + doubt
        return TooFewRecordsError(self.n_records_, needed) if self.n_records_ < needed else None

    @override
    def _learn(self, engine: SumEngine) -> None:
        count, width = self.n_records_, len(engine.rows.names) - 1
        features = standardised(engine, width, count)
        (centre,), (scale,) = standardise(engine, "target", [width], count)
        centre = self._start(engine, width, centre)
        whitening = Whitening.release(engine, "moment", features, count, self._penalty(features))
        fitting = Fitting(engine, count, whitening, centre, scale)
        found = np.zeros(width + 1)
        steps = []
        for number in range(self._rounds()):
            step = self._step(fitting, found, number)
            pull = whitening.root.T @ (whitening.penalty * found)
            found = found + whitening.root @ (step.move - pull)
            steps.append(step)
        variance = self._spread(fitting, found, steps[-1].limit)
        self._features, self._found = features, found * scale
        self._found[0] += centre
        self.coef_, self.intercept_ = features.unscaled(self._found)
        self._set_intervals(fitting, found, steps, variance)
        if self.certify is not None:
            self.certificate_ = self._certificate(fitting, found, steps[-1].limit)

    def _certificate(self, fitting: Fitting, found: FloatArray, limit: float) -> SlopeCertificate:
        """Release how many records the slopes withstand; residuals may grow along the way."""
        whitening = fitting.whitening
        tolerance = _validate.positive(certify=self.certify)
        room = 2 * radius_of(whitening, tolerance) * whitening.reach
        return certify(
            fitting.engine,
            whitening,
            lambda rows: fitting.residuals(rows, found),
            self._pull(limit + room),
            tolerance=tolerance,
            penalty=whitening.root.T @ (whitening.penalty * found),
            count=fitting.count,
        )

    @staticmethod
    def _needed(prices: Prices, features: int) -> float:
        """The number of records below which the answer is no better than a guess."""
        chosen = [name for name in ("columns", "target") if name in prices.parts]
        return max(
            _WITH_QUANTILE / min(map(prices.choice_epsilon, chosen)),
            _WITH_MOMENT * prices.multiplier("moment") * (features + 1),
        )

    def _spread(self, fitting: Fitting, found: FloatArray, limit: float) -> float:
        """Release the clipped residuals' variance, the number of clipped records and R²."""

        def vectors(rows: FloatArray) -> FloatArray:
            steps, errors = fitting.residuals(rows, found)
            clipped = features.at_edge(steps) | (self._clips & (np.abs(errors) > limit))
            small = np.clip(errors / limit, -1.0, 1.0)
            parts = [small * small, clipped * 0.3]
            if self.r2:
                targets = (rows[:, -1] - fitting.centre) / (fitting.scale * _TARGET_CLIP)
                targets = np.clip(targets, -1.0, 1.0)
                parts += [targets * targets, targets * 0.5]
            return np.stack(parts, axis=1)

        engine, count, features = fitting.engine, fitting.count, fitting.whitening.features
        radius = math.sqrt(1.0 + 0.3**2 + (1.0 + 0.5**2 if self.r2 else 0.0))
        squares, clipped, *target = engine.total("spread", vectors, radius).tolist()
        noise = radius * engine.deviation("spread")
        self.n_clipped_ = min(max(0.0, clipped / 0.3), count)
        variance = limit**2 * max(squares, noise) / count
        if self.r2:
            total = _TARGET_CLIP**2 * (target[0] / count - (target[1] / 0.5 / count) ** 2)
            self.r2_ = 1 - variance / total if total > variance else 0.0
        # On the safe side of the noise: too small a variance would make intervals too short.
        return float(variance + 2 * limit**2 * noise / count)

    def _set_intervals(
        self, fitting: Fitting, found: FloatArray, steps: list[NewtonStep], variance: float
    ) -> None:
        """Intervals from the noise of all rounds, sampling, and what the rounds have not reached.

        The error after a round is the contraction of that before, plus its noise. So the noise of
        round k of K remains with a factor contraction^(K-k), and the start with contraction^K.
        """
        whitening, width = fitting.whitening, len(found)
        left = whitening.contraction
        sampling = self._sampling(steps, variance)
        noise = np.zeros(width)
        for step in steps:
            noise = left**2 * noise + step.noise**2
        size = float(np.linalg.norm(np.linalg.solve(whitening.root, found)))
        bias = left ** len(steps) * (size + np.sqrt(noise.sum()))
        features = whitening.features
        slopes = whitening.root[1:] / features.scales[:, None]
        rows = np.vstack([whitening.root[0] - features.locations @ slopes, slopes])
        rows = rows * fitting.scale
        half = _DEVIATIONS * np.sqrt(rows**2 @ (noise + sampling)) + np.sqrt(rows**2 @ bias**2)
        centres = np.array([self.intercept_, *self.coef_])
        ends = np.stack([centres - half, centres + half], axis=1)
        self.intercept_interval_, self.intervals_ = tuple(ends[0].tolist()), ends[1:]

    def dry_run(self, records: int, features: int) -> Preview:
        """What a fit would cost, and about how good it would be; reads and charges nothing.

        Args:
            records: A guess at the number of records; what is known in public.
            features: The number of features.
        """
        records = _validate.count(1, records=records)
        prices = self._prices(_validate.count(1, features=features))
        width = features + 1
        needed = self._needed(prices, features)
        pull, deviation = (_USUAL_RESIDUAL * each for each in self._usual())
        noise = prices.multiplier("steps") * MOST_REACH * math.sqrt(width / records) * pull
        lost = width * noise**2 / records
        wide = _DEVIATIONS * math.hypot(noise, deviation) / math.sqrt(records)
        sampling = _DEVIATIONS * deviation / math.sqrt(records)
        enough = needed + _DOUBT * prices.multiplier("count")
        notes = [f"It needs about {int(nearest(enough, 2)):,} records."]
        if records < enough:
            notes.append(f"With {records:,} it would refuse, after a noisy count.")
        else:
            notes.append(
                f"With {records:,} records and R² about 0.5: noise takes about "
                f"{rounded_up(min(lost, 1.0), 2)} off R²; the interval of a coefficient is about "
                f"± {rounded_up(wide, 2)} deviations of the target per deviation of the column, "
                f"± {rounded_up(sampling, 2)} without privacy."
            )
        return attrs.evolve(self._preview(prices), notes=tuple(notes))

    def predict(self, X: Any) -> FloatArray:
        """Predict targets; features beyond where the model was fitted are moved to its edge."""
        rows = self._queries(X)
        return self._features.times(self._features.steps(rows), self._found)
