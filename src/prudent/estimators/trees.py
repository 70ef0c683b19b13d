"""Boosted trees without bounds, whose splits are public: drawn at random among private quantiles.

1. Each column is cut into 16 bins by private quantiles, halving by halving (`Engine.cuts`).
2. Trees are drawn before any record is looked at. Every second one has the bins of one column as
   its leaves; the others ask four random columns whether they are beyond a random cut.
3. Each tree in turn releases, for each of its leaves, the number of records and the sum of what the
   trees before it left over. No split is looked for in the data, so all the budget is for leaves.
"""

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import attrs
import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from typing_extensions import override

from prudent import _validate
from prudent.estimators.base import PrivateEstimator
from prudent.estimators.classifiers import PrivateClassifier, softmax
from prudent.estimators.engine import BudgetPart, SumEngine, choices, sums
from prudent.estimators.features import one_hot, standardise
from prudent.release.lattice import FloatArray

_LEVELS = 4  # a column is cut into 2**_LEVELS bins
_DEPTH = 4  # columns that a tree asks
_COUNT = 0.5  # of the length of a record's vector beside a residual of 1
_SHRINKAGE = 3.0  # records, times the noise of a leaf, that pull its value to zero
_CLIPS = 3  # private quantiles of the residuals, for as many stretches of trees
_CLIPPED = 20.0  # at least so many records, times ε of the choice, are clipped

_STEP = 2.0**-20  # of the values of leaves: sums of them are exact


Bins = npt.NDArray[np.int64]
"""The bin of each row in each column."""

Errors = Callable[[FloatArray, Bins], FloatArray]
"""What is left over for each row, which is a function of that row alone."""


@attrs.frozen
class Tree:
    """A public tree."""

    columns: tuple[int, ...]  # the columns that are asked
    # The bin that each column is asked to be beyond; None: the leaves are the bins of the one
    # column.
    splits: tuple[int, ...] | None = None

    @property
    def leaves(self) -> int:
        """The number of leaves."""
        return 1 << (_LEVELS if self.splits is None else len(self.splits))

    def places(self, bins: Bins) -> Bins:
        """The leaf of each row."""
        if self.splits is None:
            return bins[:, self.columns[0]]
        found = np.zeros(len(bins), np.int64)
        for column, split in zip(self.columns, self.splits, strict=True):
            found = 2 * found + (bins[:, column] > split)
        return found


@attrs.frozen(eq=False)
class Forest:
    """Public trees, with the released values of their leaves."""

    cuts: list[FloatArray]  # the released cuts of each column
    trees: list[Tree]  # the trees
    # For each tree that has them: the value of each leaf, one column for each output.
    values: list[FloatArray] = attrs.field(factory=list)

    def bins(self, rows: FloatArray) -> Bins:
        """The bin of each row in each column; a gap is in the first."""
        found = np.zeros((len(rows), len(self.cuts)), np.int64)
        for column, cuts in enumerate(self.cuts):
            numbers = rows[:, column]
            numbers = np.where(np.isnan(numbers), -np.inf, numbers)
            found[:, column] = np.searchsorted(cuts, numbers, side="right")
        return found

    def outputs(self, bins: Bins, width: int) -> FloatArray:
        """The sum of the leaves that each row is in; exact, as values are whole steps."""
        found = np.zeros((len(bins), width))
        for tree, values in zip(self.trees, self.values, strict=False):
            found += values[tree.places(bins)]
        return found


def draw_trees(columns: int, count: int, draw: np.random.Generator) -> list[Tree]:
    """Draw trees independently of the data."""
    if not columns:  # of a formula with categories, of which no level was found
        return [Tree((), ())] * count
    order = draw.permutation(columns).tolist()
    found = []
    for number in range(count):
        if number % 2:
            found.append(Tree((order[number // 2 % columns],)))
            continue
        asked = draw.choice(columns, _DEPTH, replace=columns < _DEPTH).tolist()
        found.append(Tree(tuple(asked), tuple(draw.integers(2**_LEVELS - 1, size=_DEPTH).tolist())))
    return found


@dataclass(eq=False, repr=False, kw_only=True)
class _Boosted(PrivateEstimator, abc.ABC):
    """What boosted trees of numbers and of labels share."""

    _title: ClassVar[str] = "boosted trees"

    n_estimators: int = 40
    learning_rate: float = 0.4

    def _check(self) -> int:
        _validate.between(0, 1, ends="(]", learning_rate=self.learning_rate)
        return _validate.count(1, 1000, n_estimators=self.n_estimators)

    def _grown(self, engine: SumEngine, columns: int) -> Forest:
        """Public trees, after the cuts of the columns were released."""
        cuts = [
            engine.cuts("columns", engine.rows.column(place), _LEVELS)
            if place not in engine.known
            # A feature that is 0 or 1: all cuts are between the two.
            else np.full(2**_LEVELS - 1, sum(engine.known[place]))
            for place in range(columns)
        ]
        return Forest(cuts, draw_trees(columns, self._check(), engine.generator()))

    def _leaves(
        self, engine: SumEngine, forest: Forest, errors: Errors, length: float, factor: float = 1.0
    ) -> None:
        """Release the values of the leaves of the next tree, from what is left over for each row.

        What is left over is clipped to a length.
        """
        tree = forest.trees[len(forest.values)]

        def pairs(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
            bins = forest.bins(rows)
            left = np.clip(errors(rows, bins) / length, -1.0, 1.0)
            known = np.full((len(rows), 1), _COUNT)
            return one_hot(tree.places(bins), tree.leaves), np.concatenate([known, left], axis=1)

        radius = math.sqrt(1 + _COUNT**2)
        found = engine.cross("leaves", pairs, (1.0, radius))
        counts = np.maximum(found[:, :1] / _COUNT, 0.0)
        means = np.clip(found[:, 1:] / (counts + _SHRINKAGE * engine.deviation("leaves")), -1, 1)
        values = self.learning_rate * factor * length * means
        forest.values.append(np.asarray(np.rint(values / _STEP) * _STEP))


class GradientBoostingRegressor(RegressorMixin, _Boosted):
    """Private boosted trees for numbers, without bounds on the data.

    Args:
        n_estimators: The number of trees.
        learning_rate: The fraction of what is left over that each tree takes away.

    Its other arguments are those of `PrivateEstimator`.
    """

    _quantiles: ClassVar[str] = "target"

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        return {
            "columns": choices(0.15, _LEVELS * features),
            "target": choices(0.05, 2),
            "residuals": choices(0.1, _CLIPS),
            "count": sums(0.005),
            "leaves": sums(0.695, self._check()),
        }

    @override
    def _learn(self, engine: SumEngine) -> None:
        count, width = self.n_records_, len(engine.rows.names) - 1
        (self._centre,), (self._scale,) = standardise(engine, "target", [width], count)
        forest = self._grown(engine, width)
        epsilon = engine.prices.choice_epsilon("residuals")
        kept = min(0.95, max(0.5, 1 - _CLIPPED / (epsilon * max(count, 1.0))))

        def errors(rows: FloatArray, bins: Bins) -> FloatArray:
            numbers = (rows[:, -1:] - self._centre) / self._scale
            return np.asarray(numbers - forest.outputs(bins, 1))

        def sizes(rows: FloatArray) -> FloatArray:
            return np.abs(errors(rows, forest.bins(rows))[:, 0])

        stretch = math.ceil(len(forest.trees) / _CLIPS)
        for number in range(len(forest.trees)):
            if number % stretch == 0:
                length = engine.length("residuals", sizes, kept)
            self._leaves(engine, forest, errors, length)
        self._forest = forest

    def predict(self, X: Any) -> FloatArray:
        """Predict targets."""
        rows = self._queries(X)
        outputs = self._forest.outputs(self._forest.bins(rows), 1)
        return np.asarray(self._centre + self._scale * outputs[:, 0])


@dataclass(eq=False, repr=False)
class GradientBoostingClassifier(_Boosted, PrivateClassifier):
    """Private boosted trees for labels, without bounds on the data.

    Args:
        n_estimators: The number of trees.
        learning_rate: The fraction of what is left over that each tree takes away.

    Its other arguments are those of `PrivateEstimator`.

    Attributes:
        classes_: The labels.
    """

    @override
    def _parts(self, features: int) -> dict[str, BudgetPart]:
        return {
            "columns": choices(0.2, _LEVELS * features),
            "count": sums(0.005),
            "leaves": sums(0.795, self._check()),
        }

    @override
    def _learn(self, engine: SumEngine) -> None:
        kinds, width = self._keep_classes(), len(engine.rows.names) - 1
        forest = self._grown(engine, width)

        def errors(rows: FloatArray, bins: Bins) -> FloatArray:
            return one_hot(rows[:, -1], kinds) - softmax(forest.outputs(bins, kinds))

        for _ in forest.trees:
            self._leaves(engine, forest, errors, math.sqrt(2), kinds)
        self._forest = forest

    @override
    def _scores(self, rows: FloatArray) -> FloatArray:
        return self._forest.outputs(self._forest.bins(rows), len(self.classes_))
