"""Which pairs of columns are measured, and rows that follow all that was measured.

First a tree of pairs that joins all columns is chosen and measured, edge by edge, and rows are made
along it. Then pairs that those rows describe badly are chosen and measured, in two rounds. Last,
rows are weighted, drawn and swapped until they follow all of it.

**Scores.** A table with counts f in cells of a pair of columns scores
Σ |f - m| - 2 Σ min(f, τ), where m are whole counts of what was released so far (columns that are
independent, or the rows made), and τ is about the noise: what the table would tell, less what noise
would hide of it. A record adds one to one f. So it changes |f - m| by at most one either way and
min(f, τ) by zero or one: the score by -3 to 1, a spread of 4 records. Each pair is a candidate in
several resolutions.

Everything after the noise is post-processing, in floating point.
"""

import itertools
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from prudent.release.lattice import FloatArray, IntArray
from prudent.synth.domain import Domain, coarse
from prudent.synth.engine import TableEngine

SPREAD = 4
"""How far apart one record can move the scores of candidates, in records."""

FINER = (1, 4, 16, 64)
"""Resolutions of a table: its cells, relative to those whose noise is `NOISE_SHARE` of the rows."""

NOISE_SHARE = 0.05
LOST = 0.8  # τ, in deviations of the noise
SWEEPS = 12  # over all measured tables, when rows are weighted
COPIES, MOST_BASE = 8, 400_000  # rows that are made for one that is kept, and in all
LAST = 3  # sweeps over one-way counts alone, at the end
FITTINGS = 30  # of a table to its margins
TRIALS = 16
FLOOR = 0.5
TEMPER = 1.0


def pairs_repaired(columns: int) -> int:
    """The number of pairs that are measured after rows were made once."""
    return min((columns - 1) * (columns - 2) // 2, 2 * columns)


@attrs.frozen(eq=False)
class Marginal:
    """A table of counts as it was measured: released, with its noise."""

    columns: tuple[int, ...]  # by place
    maps: tuple[IntArray, ...]  # from cells of each column to its groups in the table
    counts: IntArray  # with noise
    deviation: float  # of the noise of each count

    def groups(self, codes: Sequence[IntArray]) -> IntArray:
        """The cell of the table that each row is in."""
        flat = np.zeros(len(codes[0]), np.int64)
        for column, groups, size in zip(self.columns, self.maps, self.counts.shape, strict=True):
            flat = flat * size + groups[codes[column]]
        return flat


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
        codes: Sequence[IntArray],
        engine: TableEngine,
        one: Sequence[FloatArray],
    ) -> None:
        """Begin with one-way counts.

        Args:
            domains: Of the columns.
            codes: The cell of each record in each column. Private.
            engine: What asks them.
            one: The released counts of the cells of each column, of one sum, none negative.
        """
        self._domains, self._codes, self._engine, self._one = domains, codes, engine, one
        self.rows = max(1, round(float(one[0].sum())))
        self._sigma = engine.deviation("tables") if len(domains) > 1 else 1.0
        self._cells = max(9.0, NOISE_SHARE * self.rows / (0.4 * self._sigma))
        self._maps: dict[tuple[int, int], IntArray] = {}
        self._generator = engine.generator()
        self._base = self.rows * max(1, min(COPIES, MOST_BASE // self.rows))
        self.measured: list[Marginal] = []
        every = itertools.combinations(range(len(domains)), 2)
        self._forms = {(*pair, finer): self._table(pair, finer) for pair in every for finer in FINER}
        self._exact = {key: self._counted(form, codes) for key, form in self._forms.items()}
        lost = round(LOST * self._sigma)
        self._hidden = {
            key: 2 * int(np.minimum(each, lost).sum()) for key, each in self._exact.items()
        }

    # ---- tables of counts

    def _map(self, column: int, most: int) -> IntArray:
        if (column, most) not in self._maps:
            shares = self._one[column] / self.rows
            self._maps[column, most] = coarse(self._domains[column], shares, most)
        return self._maps[column, most]

    def _table(self, columns: tuple[int, ...], finer: int) -> Marginal:
        """The form of a table: small columns as they are, others in groups, within `_cells`."""
        room, found = self._cells * finer, {}
        ascending = sorted(columns, key=lambda column: (self._domains[column].size, column))
        for place, column in enumerate(ascending):
            most = max(2, int(room ** (1 / (len(columns) - place))))
            found[column] = self._map(column, most)
            room /= int(found[column].max()) + 1
        maps = tuple(found[column] for column in columns)
        empty = np.zeros([int(each.max()) + 1 for each in maps], np.int64)
        return Marginal(columns, maps, empty, self._sigma)

    def _counted(self, table: Marginal, codes: Sequence[IntArray]) -> IntArray:
        size = table.counts.size
        return np.bincount(table.groups(codes), minlength=size).reshape(table.counts.shape)

    # ---- the choice of tables

    def fit(self) -> list[IntArray]:
        """Choose and measure all tables, and return the cells of the rows made, by column."""
        count = len(self._domains)
        if count == 1:
            return [self._allotted(self._one[0], self.rows)]
        scores = self._scores(self._independent)
        placed: set[int] = set()
        while len(placed) < count:
            near = [key for key in scores if not placed or len(placed & {*key[:2]}) == 1]
            best = self._engine.best("select", [scores[key] for key in near], 1, SPREAD)
            self._measure(near[best], scores)
            placed |= {*near[best][:2]}
        codes = self._made()
        weights = self._raked(codes)
        left = pairs_repaired(count)
        while left:
            fresh = self._scores(lambda form: self._weighted(form, codes, weights))
            scores = {key: fresh[key] for key in scores}
            for _ in range(min(count, left)):
                best = self._engine.best("select", list(scores.values()), 1, SPREAD)
                self._measure(list(scores)[best], scores)
                left -= 1
            codes = self._made()
            weights = self._raked(codes)
        chosen = self._allotted(weights, self.rows)
        return [each[chosen] for each in codes]

    def _scores(self, expected: Callable[[Marginal], FloatArray]) -> dict[tuple[int, int, int], int]:
        """The score of each candidate, in records; see the module."""
        return {
            key: int(np.abs(self._exact[key] - np.rint(expected(form)).astype(np.int64)).sum())
            - self._hidden[key]
            for key, form in self._forms.items()
        }

    def _independent(self, form: Marginal) -> FloatArray:
        a, b = self._margins(form)
        return np.outer(a, b) / self.rows

    def _weighted(self, form: Marginal, codes: Sequence[IntArray], weights: FloatArray) -> FloatArray:
        made = np.bincount(form.groups(codes), weights, form.counts.size)
        return (made * (self.rows / weights.sum())).reshape(form.counts.shape)

    def _margins(self, form: Marginal) -> list[FloatArray]:
        return [
            np.bincount(groups, self._one[column])
            for column, groups in zip(form.columns, form.maps, strict=True)
        ]

    def _measure(self, key: tuple[int, int, int], scores: dict[tuple[int, int, int], int]) -> None:
        """Release a table, and take its pair out of the candidates."""
        noisy = self._engine.counts("tables", self._exact[key])
        self.measured.append(attrs.evolve(self._forms[key], counts=noisy))
        for finer in FINER:
            scores.pop((*key[:2], finer))

    # ---- rows

    def _goal(self, table: Marginal) -> FloatArray:
        """What was measured, without negative counts, and near the one-way counts."""
        counts = projected(table.counts.astype(float), float(self.rows))
        return _fitted(counts, *self._margins(table))

    def _made(self) -> list[IntArray]:
        """The cells of rows that are made along the tree, which was measured first, by column."""
        count = len(self._domains)
        goals = [self._goal(each) for each in self.measured]
        lifts = [
            np.log((goal + FLOOR) / (self._independent(each) + FLOOR)) * TEMPER
            for goal, each in zip(goals, self.measured, strict=True)
        ]
        root = self.measured[0].columns[0]
        made = {root: self._allotted(self._one[root], self._base)}
        for place, table in enumerate(self.measured[: count - 1]):
            counts, (parent, column), (above, groups) = goals[place], table.columns, table.maps
            if parent not in made:
                counts, parent, column, above, groups = counts.T, column, parent, groups, above
            parents = above[made[parent]]
            sizes = np.bincount(parents, minlength=len(counts))
            order = np.argsort(parents, kind="stable")
            order = self._generator.permutation(self._base)
            order = order[np.argsort(parents[order].astype(np.int16), kind="stable")]
            chosen = np.concatenate(
                [self._allotted(row, size) for row, size in zip(counts, sizes.tolist(), strict=True)]
            )
            cells = np.empty(self._base, np.int64)
            for group in range(int(groups.max()) + 1):
                inside, rows = np.flatnonzero(groups == group), np.flatnonzero(chosen == group)
                cells[rows] = inside[self._allotted(self._one[column][inside], len(rows))]
            others = []
            for lift, other in zip(lifts, self.measured, strict=True):
                if other is table or column not in other.columns:
                    continue
                at = other.columns.index(column)
                if other.columns[1 - at] in made:
                    past = other.maps[1 - at][made[other.columns[1 - at]]][order]
                    others.append((lift if at else lift.T, past * other.counts.shape[at], other.maps[at]))
            if others:
                cells = self._tried(cells, np.cumsum(sizes) - sizes, sizes, others)
            made[column] = np.empty_like(cells)
            made[column][order] = cells
        return [made[column] for column in range(count)]

    def _tried(self, cells, starts, sizes, others):
        start, size = np.repeat(starts, sizes), np.repeat(sizes, sizes)
        inside = np.arange(len(cells)) - start
        best, found = np.full(len(cells), -np.inf), cells
        for k in range(TRIALS):
            here = inside + (0 if not k else int(self._generator.integers(len(cells))))
            drawn = cells[here % size + start]
            score = -np.log(self._generator.standard_exponential(len(cells)))
            for lift, past, groups in others:
                score += lift.ravel()[past + groups[drawn]]
            found = np.where(score > best, drawn, found)
            np.maximum(best, score, out=best)
        return found

    def _allotted(self, weights: FloatArray, rows: int) -> IntArray:
        """So many places in proportion to weights, as nearly as whole numbers can be, shuffled."""
        weights = weights + 1e-12
        ends = np.cumsum(weights) * (rows / weights.sum())
        # One random start: each place gets its share, rounded up or down.
        ends = np.floor(ends + self._generator.random())
        ends[-1] = rows
        found = np.repeat(
            np.arange(len(weights)), np.diff(np.minimum(ends, rows), prepend=0).astype(np.int64)
        )
        self._generator.shuffle(found)
        return found

    def _raked(self, codes: Sequence[IntArray]) -> FloatArray:
        """Weights of rows with which they follow all measured tables, and one-way counts last."""
        targets = [(each.groups(codes), self._goal(each).ravel()) for each in self.measured]
        ones = list(zip(codes, self._one, strict=True))
        weights = np.ones(len(codes[0]))
        for _ in range(SWEEPS):
            for cells, goal in (*targets, *ones):
                now = np.bincount(cells, weights, len(goal))
                factor = (goal + 0.1) / (now + 0.1)
                weights = weights * np.clip(factor, 0.2, 5.0)[cells]
        for _ in range(LAST):
            for cells, goal in ones:
                now = np.bincount(cells, weights, len(goal))
                weights = weights * ((goal + 1e-9) / (now + 1e-9))[cells]
        return weights


def _fitted(counts: FloatArray, rows: FloatArray, columns: FloatArray) -> FloatArray:
    """A table near `counts` with nearly these sums of rows and these of columns."""
    table = counts + 1e-6 * np.outer(rows, columns) / max(columns.sum() * rows.sum(), 1e-300)
    for _ in range(FITTINGS):
        table = table * (columns / np.maximum(table.sum(axis=0), 1e-300))
        table = table * (rows / np.maximum(table.sum(axis=1), 1e-300))[:, None]
    return np.asarray(table)
