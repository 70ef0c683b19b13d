"""Classifiers without bounds: naive Bayes and logistic regression.

**Gaussian naive Bayes** releases the moments of each label's columns, in one noisy sum.

**Logistic regression** takes noisy steps of the likelihood, and has intervals of two labels.

1. A noisy count of each label; standardised columns and the second moment that whitens them, as in
   linear regression (`features`). Columns are not clipped: rows are shortened as a whole.
2. Each round adds up, over all records, the shortened whitened row times (label - probabilities),
   which is never longer than √2 rows: no bound on a residual has to be found. Rounds start from the
   shares of the labels, with a bound on the curvature, and are accelerated.

For two labels, Newton steps follow: the same sum, times the inverse of a released curvature H. Let
κ be the factor by which a row is shortened; the sum is of κ² x (y - p(x)). As κ is a function of
the row x alone, it has its root at the true coefficients where the logistic model holds, whatever
the tails of the features: clipping has no bias there. The width of an interval has

- the sandwich H⁻¹ M H⁻¹ of a released second moment M of that sum, the noise of the last step, and
  that of H times the last step;
- what the last step leaves: half the third derivative of the likelihood, along it twice. It is at
  most the curvature, |σ''| <= σ', so by Cauchy and Schwarz √κ₄/2 · |step|²/√I in the metric of H,
  where I is the sum of σ' and κ₄ the kurtosis of the step over the rows: that of a normal one;
- where the model does not hold, what weights took away: T, the noisy sum of (1 - κ²) x (y - p(x)).
  An interval reaches from the answer to H⁻¹T, at least as far as the root without weights, and
  beyond both by the width.

There is none where H is not clear of its noise, where the last step is long (the likelihood of
labels that a plane separates has no maximum), or where T is clear of its own.
"""

import abc
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import attrs
import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from typing_extensions import override

from prudent import _validate
from prudent._validate import ArgumentError
from prudent.estimators.base import BoundedEstimator, CoefficientSummary, PrivateEstimator
from prudent.estimators.engine import LONGEST, BudgetPart, SumEngine, along, choices, lengths, sums
from prudent.estimators.features import (
    CLIP,
    MOMENT_CLIP,
    STEP,
    ClassMoments,
    Whitening,
    one_hot,
    standardised,
)
from prudent.estimators.influence import CURVED, HELD, UNSEEN, Refined, has_direction, sandwich
from prudent.release.columns.scales import category
from prudent.release.lattice import FloatArray

_FINENESS = 1024  # entries of the table for each unit of the exponent
_EXPONENTIALS = np.exp(-np.arange(40 * _FINENESS + 1) / _FINENESS)

ROUNDS, NEWTON_STEPS = 3, 2
"""Steps of the likelihood with a bound on its curvature, and with a released one."""

SEVERAL = "there are three or more labels"
FAR = "the likelihood has no maximum nearby: a plane may separate the labels"

_MOMENTUM = 0.5  # of the step before, which is looked ahead by
_LEAST_SHARE = 3.0  # noise of the number of records of a label, below which it is not taken to be
_FLOOR = 2.0  # noise of an eigenvalue of H, below which it is taken for this
_CLEAR = 3.25  # noise of an eigenvalue of H from which on it is clear
_LONGEST = 1.0  # a step changes scores by so much at most, in root mean square
_SETTLED = 0.35  # the last step of a fit that is near the maximum changes them by less
_KURTOSIS = 3.0


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
            several = len(set(found)) == len(found) > 1 and np.ndim(found) == 1
        except (TypeError, ValueError):
            several = False
        if not several or None in map(category, found):
            raise ArgumentError("classes", "two or more distinct labels", got=self.classes)
        return found

    def _keep_classes(self) -> int:
        """Set the fitted labels, and return their number."""
        self.classes_ = np.array(self._labels)
        if self.classes_.tolist() != self._labels:  # texts have been made of numbers among texts
            self.classes_ = np.array(self._labels, dtype=object)
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
        theta_: The mean of each column, clipped at four scales, for each label.
        var_: The variance of each column, clipped likewise, for each label.
        class_prior_: The share of each label.
        classes_: The labels.
    """

    _title: ClassVar[str] = "naive Bayes"

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        return {
            "columns": choices(0.3, 2 * features),
            "count": sums(0.005),
            "labels": sums(0.02),
            "moments": sums(0.675),
        }

    @override
    def _learn(self, engine: SumEngine) -> None:
        kinds, width = self._keep_classes(), len(engine.rows.names) - 1
        features = standardised(engine, width, self.n_records_)
        features = attrs.evolve(features, limits=np.full(width, MOMENT_CLIP))
        counts = engine.total("labels", lambda rows: one_hot(rows[:, -1], kinds), 1.0)
        counts = np.maximum(counts, 1.0)
        found = ClassMoments.release(engine, "moments", features, lambda rows: rows[:, -1], kinds)
        self._features, self._moments = features, found
        self.class_prior_ = counts / counts.sum()
        self.theta_ = features.locations + found.means * features.scales
        self.var_ = found.variances * features.scales**2

    @override
    def _scores(self, rows: FloatArray) -> FloatArray:
        means, variances = self._moments.means, self._moments.variances
        numbers = self._features.vectors(rows)[:, None, 1:]
        distances = ((numbers - means) ** 2 / variances + np.log(variances)).sum(axis=2)
        return np.asarray(np.log(self.class_prior_) - distances / 2)


@dataclass(eq=False, repr=False)
class LogisticRegression(CoefficientSummary, PrivateClassifier, BoundedEstimator):
    """Private multinomial logistic regression without bounds on the data.

    Its arguments are those of `PrivateEstimator`.

    Attributes:
        coef_: The slopes of the scores of each label; with two labels, of the second against the
            first.
        intercept_: The scores where all columns are 0.
        intervals_: For each slope, an interval that holds it with a probability of at least about
            95 %, over the noise and over the sampling of records; NaN if there is none.
        intercept_interval_: The same for each intercept.
        no_interval_: Why intervals are missing; empty if none is.
        classes_: The labels.
    """

    _title: ClassVar[str] = "logistic regression"

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        two = len(self._classes()) <= 2  # or not known yet
        return {
            "columns": choices(0.2, 2 * features),
            "edges": sums(0.02),
            "count": sums(0.005),
            "labels": sums(0.01),
            "moment": sums(0.1 if two else 0.25),
            "steps": sums(0.1 if two else 0.225, ROUNDS),
            "curvature": sums(0.14, NEWTON_STEPS * two),
            "newton": sums(0.12, NEWTON_STEPS - 1),
            "final": sums(0.18),
            "rest": sums(0.1, int(two)),
            "taken": sums(0.01, int(two)),
            "sandwich": sums(0.02, int(two)),
        }

    @override
    def _learn(self, engine: SumEngine) -> None:
        kinds, width = self._keep_classes(), len(engine.rows.names) - 1
        features = standardised(engine, width, self.n_records_)
        features = features.rescaled(engine, "edges", self.n_records_)
        whitening = Whitening.release(engine, "moment", features, self.n_records_)
        shares = engine.total("labels", lambda rows: one_hot(rows[:, -1], kinds), 1.0)
        found = np.zeros((width + 1, kinds))
        found[0] = np.log(np.maximum(shares, _LEAST_SHARE * engine.deviation("labels")))
        found[0] -= found[0].mean()
        before, newton = found, ["newton"] * (NEWTON_STEPS - 1) + ["final"]
        for part in ["steps"] * ROUNDS + newton * (kinds > 2):
            ahead = found + _MOMENTUM * (found - before)
            step = whitening.root @ _step(engine, part, whitening, ahead)
            before, found = found, ahead + kinds * step
        refined = None
        if kinds == 2:
            refined = _refine(engine, whitening, found[:, 1] - found[:, 0], self.n_records_)
            found = np.outer(refined.found, [-0.5, 0.5])
        self._features = attrs.evolve(features, limits=np.full(width, CLIP))
        self._found = found
        slopes, intercept = features.unscaled(found)
        if kinds == 2:
            slopes, intercept = slopes[:, 1:] - slopes[:, :1], intercept[1:] - intercept[:1]
        self.coef_, self.intercept_ = slopes.T, intercept
        ends, self.no_interval_ = np.full((len(intercept), width + 1, 2), np.nan), SEVERAL
        if refined is not None:
            centres = np.array([*self.intercept_, *self.coef_[0]])
            ends[0], self.no_interval_ = refined.intervals(
                features, centres, 1.0, engine.prices.records
            )
        self.intercept_interval_, self.intervals_ = ends[:, 0], ends[:, 1:]

    @override
    def coefficients(self) -> Iterator[tuple[str, float, tuple[float, float]]]:
        for at, label in enumerate(self.classes_[-len(self.coef_) :]):
            values = [self.intercept_[at], *self.coef_[at]]
            ends = [self.intercept_interval_[at], *self.intervals_[at]]
            rows = zip(["(intercept)", *self.terms_], values, ends, strict=True)
            for term, value, (low, high) in rows:
                name = f"{label}: {term}" if len(self.coef_) > 1 else term
                yield name, float(value), (float(low), float(high))

    @override
    def _scores(self, rows: FloatArray) -> FloatArray:
        return _scores(self._features.steps(rows), self._found)

    def decision_function(self, X: Any) -> FloatArray:
        """Return the score of each label; with two, that of the second against the first."""
        scores = self._scores(self._queries(X))
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores


def _scores(steps: FloatArray, found: FloatArray) -> FloatArray:
    """The score of each label for features in steps."""
    return np.stack([along(steps, each) for each in (found * STEP).T], axis=1)


def _step(engine: SumEngine, part: str, whitening: Whitening, found: FloatArray) -> FloatArray:
    """Release the gradient of the likelihood, in whitened coordinates."""

    def pairs(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
        steps = whitening.features.steps(rows)
        errors = one_hot(rows[:, -1], found.shape[1]) - softmax(_scores(steps, found))
        return whitening.rows(steps), errors * whitening.weights(steps)[:, None]

    return engine.cross(part, pairs, (whitening.reach, math.sqrt(2)))


def _refine(engine: SumEngine, whitening: Whitening, found: FloatArray, records: float) -> Refined:
    """Take Newton steps from released coefficients, of the second label against the first."""
    width, reach, features = len(found), whitening.reach, whitening.features
    count = max(records, 1.0)

    def parts(rows: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """What a row adds to the curvature, as a root, to the weighted gradient, and to T."""
        steps = features.steps(rows)
        whole: FloatArray = whitening.rows(steps)
        short = reach / np.maximum(lengths(whole), reach)
        shares = softmax(np.stack([np.zeros(len(rows)), along(steps, found * STEP)], axis=1))
        errors, slopes = rows[:, -1] - shares[:, 1], shares[:, 0] * shares[:, 1]
        weights, row = short * whitening.weights(steps), whole * short[:, None]
        # T is not longer than the reach: by the row alone, so that its mean is zero in the model.
        most = reach / np.maximum(lengths(row), reach / LONGEST)
        taken = np.minimum(1 / weights - weights, most) * errors
        return (
            row * np.sqrt(slopes)[:, None],
            row * (weights * errors)[:, None],
            row * taken[:, None],
        )

    noise = engine.deviation("curvature") * (reach / 2) ** 2
    for part in ["newton"] * (NEWTON_STEPS - 1) + ["final"]:
        curvature = engine.second_moment("curvature", lambda rows: parts(rows)[0], reach / 2)
        values, vectors = np.linalg.eigh(curvature)
        kept = np.maximum(values, _FLOOR * noise * math.sqrt(width))
        # From here on in coordinates in which the curvature is one in all directions.
        inner = vectors / np.sqrt(kept)
        step = inner.T @ engine.total(part, lambda rows: parts(rows)[1], reach)
        length = float(np.linalg.norm(inner @ step)) / math.sqrt(count)
        step = step * (_LONGEST / max(length, _LONGEST))
        found = found + whitening.root @ inner @ step
    rest = engine.total("rest", lambda rows: parts(rows)[2], reach)
    sizes = engine.total("taken", lambda rows: lengths(parts(rows)[2])[:, None] ** 2, reach**2)
    rest_noise = math.hypot(engine.deviation("rest") * reach, math.sqrt(max(sizes[0], 0.0) / width))
    squares = sandwich(engine, lambda rows: parts(rows)[1], reach)
    drawn = np.eye(width) * (
        (engine.deviation("final") * reach) ** 2 + noise**2 * float(step @ (step / kept))
    )
    size, information = float(step @ step), max(count * float(values.mean()), 1.0)
    missing = ""
    if whitening.hides_a_column:
        missing = UNSEEN
    elif math.sqrt(size / information) > _SETTLED:
        missing = FAR
    elif values[0] < _CLEAR * noise * math.sqrt(width):
        missing = HELD  # curvature elsewhere depends on the coefficient in this direction
    elif has_direction(rest, rest_noise**2):
        missing = CURVED
    return Refined(
        found=found,
        root=whitening.root @ inner,
        variance=inner.T @ (squares + drawn) @ inner,
        bias=np.full(width, math.sqrt(_KURTOSIS / information) / 2 * size),
        rest=inner.T @ rest,
        rest_noise=rest_noise / np.sqrt(kept),
        least=1.0,
        missing=missing,
    )
