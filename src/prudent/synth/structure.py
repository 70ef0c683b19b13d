"""Which pairs of columns are measured, and rows that follow all that was measured.

First a tree of pairs that joins all columns is chosen and measured, and rows are made along it.
Then pairs that those rows describe badly are chosen and measured, in two rounds, after each of
which rows are made anew. Last, rows are weighted so that they follow all tables, and drawn.

**Scores.** A table with counts f in cells of a pair of columns scores
Σ |f - m| - 2 Σ min(f, τ), where m are whole counts of what was released so far (columns that are
independent, or the rows made), and τ is about the noise: what the table would tell, less what noise
would hide of it. A record adds one to one f. So it changes |f - m| by at most one either way and
min(f, τ) by zero or one: the score by -3 to 1, a spread of 4 records. Each pair is a candidate in
several resolutions.

Everything after the noise is post-processing, in floating point.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from prudent.release.lattice import FloatArray, IntArray
from prudent.synth.columns import Counts, Domain, coarse
from prudent.synth.engine import TableEngine

SPREAD = 4  # how far apart one record can move the scores of candidates, in records
Key = tuple[int, int, int]  # a candidate: the places of two columns, and one of `_FINER`

_NOISE_SHARE = 0.05  # so much total variation in noise have the cells of the coarsest tables
_FINER = (1, 4, 16, 64)  # times as many cells have finer ones
_LOST = 0.8  # τ, in deviations of the noise
_ROUNDS = 2  # in which pairs are measured after rows were made
_COPIES, _DRAFTS, _MOST_BASE = 8, 100_000, 400_000  # rows made for one kept; to score; in all
_TRIALS = 16  # values that are tried for each cell of a row
_POWER = 0.5  # of the ratio of a count to that of independent columns, by which one is kept
_SWEEPS = 12  # over all measured tables, when rows are weighted
_LAST = 3  # sweeps over one-way counts alone, at the end
_FITTINGS = 30  # of a table to its margins


def pairs_repaired(columns: int) -> int:
    """The number of pairs that are measured after rows were made once."""
    return min((columns - 1) * (columns - 2) // 2, 3 * columns)


@attrs.frozen(eq=False)
class Marginal:
    """A table of counts: with noise where it was measured."""

    columns: tuple[int, ...]  # by place
    maps: tuple[IntArray, ...]  # from cells of each column to its groups in the table
    counts: IntArray
    deviation: float  # of the noise of each count

    def groups(self, codes: Mapping[int, IntArray]) -> IntArray:
        """The cell of the table that each row is in, from the cells of each column."""
        found: Any = 0
        for column, groups, size in zip(self.columns, self.maps, self.counts.shape, strict=True):
            found = found * size + groups[codes[column]]
        return np.asarray(found, np.int64)

    def counted(self, codes: Mapping[int, IntArray], weights: Any = None) -> Any:
        """How many rows, or how much weight, each cell of the table has."""
        found = np.bincount(self.groups(codes), weights, self.counts.size)
        return found.reshape(self.counts.shape)


def projected(counts: FloatArray, total: float) -> FloatArray:
    """The nearest table without negative counts that has this sum."""
    falling = np.sort(counts.ravel())[::-1]
    excess = (np.cumsum(falling) - total) / np.arange(1, falling.size + 1)
    last = np.flatnonzero(falling > excess)[-1]
    return np.asarray(np.maximum(counts - excess[last], 0.0))


class Structure:
    """Chooses and measures tables, and makes rows."""

    def __init__(
        self,
        domains: Sequence[Domain],
        pairs: Callable[[Sequence[tuple[int, int]]], Mapping[tuple[int, int], Counts]],
        engine: TableEngine,
        one: Sequence[FloatArray],
    ) -> None:
        """Begin with `one`, the released counts of each column, of one sum, none negative.

        `pairs` counts the records in the cells of pairs of columns, and is private.
        """
        self._domains, self._engine, self._one = domains, engine, one
        self.rows = max(1, round(float(one[0].sum())))
        self._sigma = engine.deviation("tables") if len(domains) > 1 else 1.0
        self._cells = max(9.0, _NOISE_SHARE * self.rows / (0.4 * self._sigma))
        self._generator = engine.generator()
        self.measured: list[Marginal] = []
        self._exact: dict[Key, Marginal] = {}  # candidates; private
        for first in range(len(domains) - 1):
            asked = [(first, other) for other in range(first + 1, len(domains))]
            for pair, (*cells, records) in pairs(asked).items():
                codes = dict(zip(pair, cells, strict=True))
                for finer in _FINER:
                    form = self._form(pair, finer)
                    counts = form.counted(codes, records).astype(np.int64)
                    self._exact[*pair, finer] = attrs.evolve(form, counts=counts)

    # ---- tables of counts

    def _form(self, columns: tuple[int, int], finer: int) -> Marginal:
        """The form of a table: a small column as it is, others in groups, within the cells."""
        room, found = self._cells * finer, {}
        ascending = sorted(columns, key=lambda column: (self._domains[column].size, column))
        for most, column in zip((int(math.sqrt(room)), 0), ascending, strict=True):
            shares, most = self._one[column] / self.rows, max(2, most or int(room))
            found[column] = coarse(self._domains[column], shares, most)
            room /= int(found[column].max()) + 1
        maps = tuple(found[column] for column in columns)
        empty = np.zeros([int(each.max()) + 1 for each in maps], np.int64)
        return Marginal(columns, maps, empty, self._sigma)

    def _margins(self, form: Marginal) -> list[FloatArray]:
        """The released counts of the groups of each column."""
        return [
            np.asarray(np.bincount(groups, self._one[column]), np.float64)
            for column, groups in zip(form.columns, form.maps, strict=True)
        ]

    def _independent(self, form: Marginal) -> FloatArray:
        return np.outer(*self._margins(form)) / self.rows

    def _goal(self, table: Marginal) -> FloatArray:
        """What was measured, without negative counts, and near the one-way counts."""
        counts = projected(table.counts.astype(float), float(self.rows))
        rows, columns = self._margins(table)
        counts += 1e-6 * np.outer(rows, columns) / self.rows**2
        for _ in range(_FITTINGS):
            counts *= columns / np.maximum(counts.sum(axis=0), 1e-300)
            counts *= (rows / np.maximum(counts.sum(axis=1), 1e-300))[:, None]
        return counts

    # ---- the choice of tables

    def fit(self) -> list[IntArray]:
        """Choose and measure all tables, and return the cells of the rows made, by column."""
        count = len(self._domains)
        if count == 1:
            return [self._allotted(self._one[0], self.rows)]
        scores, placed = self._scores(self._independent), set[int]()
        while len(placed) < count:
            placed |= self._measure(
                {
                    key: score
                    for key, score in scores.items()
                    if key in self._exact and (not placed or len(placed & {*key[:2]}) == 1)
                }
            )
        most = self.rows * max(1, min(_COPIES, _MOST_BASE // self.rows))
        left = pairs_repaired(count)
        for rounds in range(_ROUNDS, 0, -1):
            codes, weights = self._made(min(most, _DRAFTS))
            scores = self._scores(lambda form: form.counted(codes, weights))  # noqa: B023
            for _ in range(math.ceil(left / rounds)):
                self._measure({key: scores[key] for key in self._exact})
            left -= math.ceil(left / rounds)
        codes, weights = self._made(most)
        chosen = self._allotted(weights, self.rows)
        return [codes[column][chosen] for column in range(count)]

    def _scores(self, expected: Callable[[Marginal], FloatArray]) -> dict[Key, int]:
        """The score of each candidate, in records; see the module."""
        lost, found = round(_LOST * self._sigma), {}
        for key, exact in self._exact.items():
            known = np.rint(expected(exact)).astype(np.int64)
            beyond = np.abs(exact.counts - known) - 2 * np.minimum(exact.counts, lost)
            found[key] = int(beyond.sum())
        return found

    def _measure(self, scores: Mapping[Key, int]) -> set[int]:
        """Choose a candidate, release its table, and return its columns."""
        key = list(scores)[self._engine.best("select", list(scores.values()), SPREAD)]
        exact = self._exact[key]
        noisy = self._engine.counts("tables", exact.counts)
        self.measured.append(attrs.evolve(exact, counts=noisy))
        for finer in _FINER:
            del self._exact[*key[:2], finer]
        return {*exact.columns}

    # ---- rows

    def _made(self, rows: int) -> tuple[dict[int, IntArray], FloatArray]:
        """The cells of rows, by column, and weights with which rows follow all tables.

        Columns are placed along the tree, which was measured first: each as its table with its
        parent says, and then moved between rows with the same parent towards other tables.
        """
        goals = [self._goal(each) for each in self.measured]
        lifts = [
            _POWER * np.log((goal + 0.5) / (self._independent(each) + 0.5))
            for goal, each in zip(goals, self.measured, strict=True)
        ]
        root = self.measured[0].columns[0]
        made = {root: self._allotted(self._one[root], rows)}
        for place, table in enumerate(self.measured[: len(self._domains) - 1]):
            counts, (parent, column), (above, groups) = goals[place], table.columns, table.maps
            if parent not in made:
                counts, parent, column, above, groups = counts.T, column, parent, groups, above
            parents = above[made[parent]]
            sizes = np.bincount(parents, minlength=len(counts))
            order = self._generator.permutation(rows)
            order = order[np.argsort(parents[order].astype(np.uint16), kind="stable")]
            parts = zip(counts, sizes.tolist(), strict=True)
            chosen = np.concatenate([self._allotted(*each) for each in parts])
            cells = np.empty(rows, np.int64)
            for group in range(int(groups.max()) + 1):
                inside, there = np.flatnonzero(groups == group), np.flatnonzero(chosen == group)
                cells[there] = inside[self._allotted(self._one[column][inside], len(there))]
            others = []
            for lift, other in zip(lifts, self.measured, strict=True):
                if other is not table and column in other.columns:
                    at = other.columns.index(column)
                    if (known := made.get(other.columns[1 - at])) is not None:
                        past = other.maps[1 - at][known][order] * other.counts.shape[at]
                        others.append(((lift if at else lift.T).ravel(), past, other.maps[at]))
            made[column] = np.empty_like(cells)
            made[column][order] = self._moved(cells, sizes, others)
        return made, self._raked(made, goals)

    def _moved(
        self,
        cells: IntArray,
        sizes: IntArray,
        others: Sequence[tuple[FloatArray, IntArray, IntArray]],
    ) -> IntArray:
        """Cells that fit tables with other columns, each from a row of the same parent.

        `cells` are those of a column, by parent, of which each has one of `sizes`; `others` are log
        weights of a table, where each row is in it, and the groups of the column.
        """
        if not others:
            return cells
        start, size = np.repeat(np.cumsum(sizes) - sizes, sizes), np.repeat(sizes, sizes)
        inside = np.arange(len(cells)) - start
        best, found = np.full(len(cells), -np.inf), cells
        for _ in range(_TRIALS):
            drawn = cells[(inside + self._generator.integers(len(cells))) % size + start]
            score = -np.log(self._generator.standard_exponential(len(cells)))  # Gumbel's
            for lift, past, groups in others:
                score += lift[past + groups[drawn]]
            found = np.where(score > best, drawn, found)
            np.maximum(best, score, out=best)
        return found

    def _allotted(self, weights: FloatArray, rows: int) -> IntArray:
        """So many places in proportion to weights, as nearly as whole numbers can be, shuffled."""
        weights = weights + 1e-12
        # One random start: each place gets its share, rounded up or down.
        ends = np.floor(np.cumsum(weights) * (rows / weights.sum()) + self._generator.random())
        ends[-1] = rows
        sizes = np.diff(np.minimum(ends, rows), prepend=0).astype(np.int64)
        found = np.repeat(np.arange(len(weights)), sizes)
        self._generator.shuffle(found)
        return found

    def _raked(self, codes: Mapping[int, IntArray], goals: Sequence[FloatArray]) -> FloatArray:
        """Weights of rows with which they follow all measured tables, and one-way counts last."""
        flat = (each.groups(codes) for each in self.measured)
        targets = [(cells, goal.ravel()) for cells, goal in zip(flat, goals, strict=True)]
        ones = [(codes[column], one) for column, one in enumerate(self._one)]
        weights = np.ones(len(codes[0]))
        for sweep in range(_SWEEPS + _LAST):
            last = sweep >= _SWEEPS
            least, ends = (1e-9, (0.0, math.inf)) if last else (0.1, (0.2, 5.0))
            for cells, goal in ones if last else (*targets, *ones):
                now = np.bincount(cells, weights, len(goal))
                weights *= np.clip((goal + least) / (now + least), *ends)[cells]
        return np.asarray(weights * (self.rows / weights.sum()), np.float64)
