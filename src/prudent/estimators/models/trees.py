"""Boosted trees without bounds, whose splits are public: drawn at random among private quantiles.

1. Each column is cut into 16 bins by private quantiles, halving by halving (`Engine.cuts`).
2. Trees are drawn before any record is looked at. Every second one has the bins of one column as
   its leaves; the others ask four random columns whether they are beyond a random cut.
3. Each tree in turn releases, for each of its leaves, the number of records and the sum of what the
   trees before it left over. No split is looked for in the data, so all the budget is for leaves.

What is left over is the residual, clipped at a private quantile, for numbers; label minus
probabilities, which is never longer than √2, for labels.
"""

import math
from typing import Any, ClassVar

import attrs
import numpy as np
from sklearn.base import RegressorMixin
from typing_extensions import override

from prudent import _validate
from prudent.estimators.base import PrivateEstimator, TooFewRecordsError
from prudent.estimators.engine import Engine, Map
from prudent.estimators.features import standardise
from prudent.estimators.models.probabilities import PrivateClassifier, softmax
from prudent.estimators.models.start import one_hot, refusal
from prudent.estimators.shares import Part, choices, sums
from prudent.release.lattice import FloatArray

_LEVELS = 4  # a column is cut into 2**_LEVELS bins
_DEPTH = 4  # columns that a tree asks
_COUNT = 0.5  # of the length of a record's vector beside a residual of 1
_SHRINKAGE = 3.0  # records, times the noise of a leaf, that pull its value to zero
_CLIPS = 3  # private quantiles of the residuals, for as many stretches of trees
_CLIPPED = 20.0  # at least so many records, times ε of the choice, are clipped

_STEP = 2.0**-20  # of the values of leaves: sums of them are exact


@attrs.frozen(eq=False)
class Tree:
    """A public tree: which leaf a row is in. Each of its questions is about one column.

    Attributes:
        columns: The columns that are asked.
        cuts: The values that each of them is compared with, ascending.
    """

    columns: tuple[int, ...]
    cuts: tuple[FloatArray, ...]

    @property
    def leaves(self) -> int:
        """The number of leaves."""
        return math.prod(len(each) + 1 for each in self.cuts)

    def places(self, rows: FloatArray) -> FloatArray:
        """The leaf of each row; a gap is below all cuts."""
        found = np.zeros(len(rows), np.int64)
        for column, cuts in zip(self.columns, self.cuts, strict=True):
            numbers = rows[:, column]
            numbers = np.where(np.isnan(numbers), -np.inf, numbers)
            found = found * (len(cuts) + 1) + np.searchsorted(cuts, numbers, side="right")
        return found.astype(np.float64)


@attrs.frozen(eq=False)
class Forest:
    """Trees with the values of their leaves, one column for each output."""

    trees: list[Tree]
    values: list[FloatArray] = attrs.field(factory=list)

    def outputs(self, rows: FloatArray, width: int) -> FloatArray:
        """The sum of the leaves that each row is in; exact, as values are whole steps."""
        found = np.zeros((len(rows), width))
        for tree, values in zip(self.trees, self.values, strict=False):
            found += values[tree.places(rows).astype(np.int64)]
        return found


def draw_trees(cuts: list[FloatArray], count: int, draw: np.random.Generator) -> list[Tree]:
    """Draw trees independently of the data, given released cuts of each column."""
    columns = len(cuts)
    order = draw.permutation(columns)
    found = []
    for number in range(count):
        if number % 2:
            column = int(order[number // 2 % columns])
            found.append(Tree((column,), (np.unique(cuts[column]),)))
            continue
        asked = draw.choice(columns, _DEPTH, replace=columns < _DEPTH).tolist()
        split = tuple(draw.choice(cuts[column], 1) for column in asked)
        found.append(Tree(tuple(asked), split))
    return found


class _Boosted(PrivateEstimator):
    """What boosted trees of numbers and of labels share."""

    n_estimators: int
    learning_rate: float

    def _check(self) -> int:
        _validate.between(0, 1, ends="(]", learning_rate=self.learning_rate)
        return _validate.count(1, 1000, n_estimators=self.n_estimators)

    def _grown(self, engine: Engine, columns: int) -> Forest:
        """Public trees, after the cuts of the columns were released."""
        cuts = [engine.cuts("columns", place, _LEVELS) for place in range(columns)]
        return Forest(draw_trees(cuts, self._check(), engine.generator()))

    def _leaves(
        self, engine: Engine, tree: Tree, errors: Map, length: float, factor: float = 1.0
    ) -> FloatArray:
        """Release the values of the leaves of a tree, from what was left over for each row."""

        def pairs(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
            left = errors(rows) / length
            known = np.full((len(rows), 1), _COUNT)
            return one_hot(tree.places(rows), tree.leaves), np.concatenate([known, left], axis=1)

        radius = math.sqrt(1 + _COUNT**2)
        found = engine.cross("leaves", pairs, (1.0, radius))
        counts = np.maximum(found[:, :1] / _COUNT, 0.0)
        means = np.clip(found[:, 1:] / (counts + _SHRINKAGE * engine.deviation("leaves")), -1, 1)
        return np.asarray(np.rint(self.learning_rate * factor * length * means / _STEP) * _STEP)


class GradientBoostingRegressor(RegressorMixin, _Boosted):
    """Private boosted trees for numbers, without bounds on the data.

    Guarantee:
        `fit` is (ε, δ)-DP for adding or removing one record, whatever the data; see `event_`.

    Args:
        epsilon: ε of the fit, from 0.01 to 50.
        delta: δ of the fit.
        n_estimators: The number of trees.
        learning_rate: The fraction of what is left over that each tree takes away.
        ledger: Charged by `fit` before any record is read.
        noise: Source of randomness; None uses the operating system's.
    """

    _title: ClassVar[str] = "boosted trees"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        n_estimators: int = 40,
        learning_rate: float = 0.4,
        ledger: Any = None,
        noise: Any = None,
    ) -> None:
        self.epsilon, self.delta = epsilon, delta
        self.n_estimators, self.learning_rate = n_estimators, learning_rate
        self.ledger, self.noise = ledger, noise

    @override
    def _parts(self, features: int) -> dict[str, Part]:
        return {
            "columns": choices(0.15, _LEVELS * features),
            "target": choices(0.05, 2),
            "residuals": choices(0.1, _CLIPS),
            "count": sums(0.005),
            "leaves": sums(0.695, self._check()),
        }

    @override
    def _learn(self, engine: Engine) -> TooFewRecordsError | None:
        width = len(engine.rows.names) - 1
        count = self.n_records_ = engine.count()
        if (refused := refusal(engine, count, "target")) is not None:
            return refused
        (self._centre,), (self._scale,) = standardise(engine, "target", [width], count)
        forest = self._grown(engine, width)
        epsilon = engine.prices.choice_epsilon("residuals")
        kept = min(0.95, max(0.5, 1 - _CLIPPED / (epsilon * max(count, 1.0))))

        def errors(rows: FloatArray) -> FloatArray:
            numbers = (rows[:, -1:] - self._centre) / self._scale
            return np.asarray(numbers - forest.outputs(rows, 1))

        stretch = math.ceil(len(forest.trees) / _CLIPS)
        for number, tree in enumerate(forest.trees):
            if number % stretch == 0:
                length = engine.length("residuals", lambda rows: np.abs(errors(rows)[:, 0]), kept)
            clipped = _clipped(errors, length)
            forest.values.append(self._leaves(engine, tree, clipped, length))
        self._forest = forest
        return None

    def predict(self, X: Any) -> FloatArray:
        """Predict targets."""
        outputs = self._forest_outputs(X)
        return np.asarray(self._centre + self._scale * outputs[:, 0])

    def _forest_outputs(self, X: Any) -> FloatArray:
        rows = self._queries(X)
        return self._forest.outputs(rows, 1)


def _clipped(errors: Map, length: float) -> Map:
    return lambda rows: np.clip(errors(rows), -length, length)


class GradientBoostingClassifier(_Boosted, PrivateClassifier):
    """Private boosted trees for labels, without bounds on the data.

    Guarantee:
        `fit` is (ε, δ)-DP for adding or removing one record, whatever the data; see `event_`.

    Args:
        epsilon: ε of the fit, from 0.01 to 50.
        delta: δ of the fit.
        classes: The public list of labels; None means 0 and 1. A record of another label is absent.
        n_estimators: The number of trees.
        learning_rate: The fraction of what is left over that each tree takes away.
        ledger: Charged by `fit` before any record is read.
        noise: Source of randomness; None uses the operating system's.

    Attributes:
        classes_: The labels.
    """

    _title: ClassVar[str] = "boosted trees"

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        *,
        classes: Any = None,
        n_estimators: int = 40,
        learning_rate: float = 0.4,
        ledger: Any = None,
        noise: Any = None,
    ) -> None:
        self.epsilon, self.delta, self.classes = epsilon, delta, classes
        self.n_estimators, self.learning_rate = n_estimators, learning_rate
        self.ledger, self.noise = ledger, noise

    @override
    def _parts(self, features: int) -> dict[str, Part]:
        return {
            "columns": choices(0.2, _LEVELS * features),
            "count": sums(0.005),
            "leaves": sums(0.795, self._check()),
        }

    @override
    def _learn(self, engine: Engine) -> TooFewRecordsError | None:
        kinds, width = self._keep_classes(), len(engine.rows.names) - 1
        self.n_records_ = engine.count()
        if (refused := refusal(engine, self.n_records_)) is not None:
            return refused
        forest = self._grown(engine, width)

        def errors(rows: FloatArray) -> FloatArray:
            return one_hot(rows[:, -1], kinds) - softmax(forest.outputs(rows, kinds))

        for tree in forest.trees:
            forest.values.append(self._leaves(engine, tree, errors, math.sqrt(2), kinds))
        self._forest = forest
        return None

    @override
    def _scores(self, rows: FloatArray) -> FloatArray:
        return self._forest.outputs(rows, len(self.classes_))
