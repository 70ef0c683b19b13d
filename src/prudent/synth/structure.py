"""Which columns are measured together, and rows that follow what was measured.

Columns are placed one after another. Each gets up to `PARENTS` parents among those placed before,
chosen one at a time by the exponential mechanism, and the table of its counts together with its
parents is measured. Then pairs of columns that the rows made so far describe badly are chosen
likewise and measured, and rows are moved towards them.

**Scores.** A candidate table with counts f of a column's group x and its parents' groups g scores
Σ |W f(g, x) - f(g) w(x)| / W less the noise that it would have, where w(x)/W is the released share
of x, in whole numbers. A record changes f(g, x) and f(g) by one, so it changes the sum by at most
2(W - w(x))/W < 2 either way: a spread of 4 records. A pair that rows were made for scores
Σ |f(a, b) - m(a, b)| for the counts m of the rows made: a record changes it by at most 1 either
way, a spread of 2.

Everything after the noise is post-processing, in floating point.
"""

import itertools
import math
from collections.abc import Sequence

import attrs
import numpy as np

from prudent.release.lattice import FloatArray, IntArray
from prudent.synth.domain import Domain, coarse
from prudent.synth.engine import TableEngine

PARENTS = 3
"""The most parents of a column."""

SPREAD, REPAIR_SPREAD = 4, 2
"""How far apart one record can move the scores of candidates, in records."""

UNIT = 2**20
"""Shares of cells are whole numbers of one over this."""

_NOISE_SHARE = 0.05  # the cells of a table may cost this much total variation in noise
_SWEEPS = 12  # over all measured tables, when rows are moved towards them
_COPIES, _MOST_BASE = 8, 400_000  # rows that are made for one that is kept, and in all
_LAST = 3  # sweeps over one-way counts alone, at the end
_FITTINGS = 30  # of a table to its margins


def pairs_repaired(columns: int) -> int:
    """The number of pairs that are measured after rows were made once."""
    return min(columns * (columns - 1) // 2, 2 * columns)


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


def shares_in_units(weights: FloatArray) -> IntArray:
    """Whole numbers in proportion to weights, with a sum of exactly `UNIT`."""
    ends = np.rint(np.cumsum(weights) * (UNIT / weights.sum())).astype(np.int64)
    ends[-1] = UNIT
    return np.asarray(np.diff(ends, prepend=0), np.int64)


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
        self._cells = max(9.0, _NOISE_SHARE * self.rows / (0.4 * self._sigma))
        self._penalty = math.sqrt(2 / math.pi) * self._sigma
        self._maps: dict[tuple[int, int], IntArray] = {}
        self._scores: dict[tuple[int, tuple[int, ...]], int] = {}
        self._generator = engine.generator()
        self._base = self.rows * max(1, min(_COPIES, _MOST_BASE // self.rows))
        self.made: dict[int, IntArray] = {}
        self.measured: list[Marginal] = []

    # ---- tables of counts

    def _map(self, column: int, most: int) -> IntArray:
        if (column, most) not in self._maps:
            shares = self._one[column] / self.rows
            self._maps[column, most] = coarse(self._domains[column], shares, most)
        return self._maps[column, most]

    def _table(self, columns: tuple[int, ...]) -> Marginal:
        """The form of a table: small columns as they are, others in groups, within `_cells`."""
        room, found = self._cells, {}
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

    def _measure(self, columns: tuple[int, ...]) -> Marginal:
        table = self._table(columns)
        noisy = self._engine.counts("tables", self._counted(table, self._codes))
        table = attrs.evolve(table, counts=noisy)
        self.measured.append(table)
        return table

    def _score(self, column: int, parents: tuple[int, ...]) -> int:
        """The score of a column with parents, in 1/UNIT records; see the module."""
        key = column, tuple(sorted(parents))
        if key not in self._scores:
            table = self._table((*key[1], column))
            counts = self._counted(table, self._codes).reshape(-1, table.counts.shape[-1])
            grouped = _added(table.maps[-1], self._one[column], counts.shape[1])
            shares = shares_in_units(grouped)
            apart = np.abs(counts * UNIT - counts.sum(axis=1, keepdims=True) * shares).sum()
            self._scores[key] = int(apart) - round(self._penalty * counts.size * UNIT)
        return self._scores[key]

    # ---- the choice of tables

    def fit(self) -> list[IntArray]:
        """Choose and measure all tables, and return the cells of the rows made, by column."""
        every = range(len(self._domains))
        if len(self._domains) == 1:
            return [self._allotted(self._one[0], self.rows)]
        pairs = list(itertools.combinations(every, 2))
        first = self._best([self._score(b, (a,)) for a, b in pairs])
        root, column = pairs[first]
        self.made[root] = self._allotted(self._one[root], self._base)
        self._place(column, (root,))
        while len(self.made) < len(self._domains):
            free = [column for column in every if column not in self.made]
            options = [(column, parent) for column in free for parent in self.made]
            scores = [self._score(column, (parent,)) for column, parent in options]
            column, parent = options[self._best(scores)]
            parents: tuple[int, ...] = (parent,)
            for _ in range(PARENTS - 1):
                more = [other for other in self.made if other not in parents]
                sets = [parents, *((*parents, other) for other in more)]
                chosen = self._best([self._score(column, each) for each in sets])
                if not chosen:
                    break
                parents = sets[chosen]
            self._place(column, parents)
        codes = [self.made[column] for column in every]
        return self._repaired(codes)

    def _best(self, scores: Sequence[int]) -> int:
        return self._engine.best("select", scores, UNIT, SPREAD)

    def _place(self, column: int, parents: tuple[int, ...]) -> None:
        """Measure a column with its parents, and make its cells for the rows of the parents."""
        table = self._measure((*parents, column))
        size = table.counts.shape[-1]
        counts = projected(table.counts.astype(float), self.rows).reshape(-1, size)
        above = attrs.evolve(
            table, columns=parents, maps=table.maps[:-1], counts=table.counts[..., 0]
        )
        groups = above.groups(
            [self.made.get(each, self.made[parents[0]]) for each in range(len(self._domains))]
        )
        sizes = np.bincount(groups, minlength=len(counts))
        goal = _added(table.maps[-1], self._one[column], size) * (self._base / self.rows)
        fitted = _fitted(counts, sizes.astype(float), goal)
        chosen = np.empty(self._base, np.int64)
        order = np.argsort(groups, kind="stable")
        for place, rows in zip(np.cumsum(sizes) - sizes, np.flatnonzero(sizes >= 0), strict=True):
            if sizes[rows]:
                inside = order[place : place + sizes[rows]]
                chosen[inside] = self._allotted(fitted[rows], int(sizes[rows]))
        self.made[column] = self._refined(column, table.maps[-1], chosen)

    def _refined(self, column: int, groups: IntArray, chosen: IntArray) -> IntArray:
        """Cells for groups of a column, within each group as the one-way counts say."""
        cells = np.empty(len(chosen), np.int64)
        for group in range(int(groups.max()) + 1):
            inside, rows = np.flatnonzero(groups == group), np.flatnonzero(chosen == group)
            if len(rows):
                cells[rows] = inside[self._allotted(self._one[column][inside], len(rows))]
        return cells

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

    # ---- rows that follow several tables

    def _repaired(self, codes: list[IntArray]) -> list[IntArray]:
        """Measure the pairs that rows describe worst, and choose rows that follow all tables."""
        weights = self._raked(codes)
        left = [
            pair
            for pair in itertools.combinations(range(len(codes)), 2)
            if not any(set(pair) <= set(each.columns) for each in self.measured)
        ]
        forms = {pair: self._table(pair) for pair in left}
        rounds = min(pairs_repaired(len(codes)), len(left))
        for start in range(0, rounds, len(codes)):
            scores = {pair: self._misfit(each, codes, weights) for pair, each in forms.items()}
            for _ in range(min(len(codes), rounds - start)):
                place = self._engine.best("repair", list(scores.values()), 1, REPAIR_SPREAD)
                pair = list(scores)[place]
                self._measure(pair)
                del scores[pair], forms[pair]
            weights = self._raked(codes)
        chosen = self._allotted(weights, self.rows)
        return [each[chosen] for each in codes]

    def _misfit(self, form: Marginal, codes: Sequence[IntArray], weights: FloatArray) -> int:
        """The score of a pair, in records; see the module."""
        size = form.counts.size
        made = np.bincount(form.groups(codes), weights, size) * (self.rows / weights.sum())
        exact = self._counted(form, self._codes).ravel()
        whole = np.rint(made).astype(np.int64)
        return int(np.abs(exact - whole).sum()) - round(self._penalty * size)

    def _raked(self, codes: Sequence[IntArray]) -> FloatArray:
        """Weights of rows with which they follow all measured tables, and one-way counts last."""
        goals = [(each, each.groups(codes)) for each in self.measured]
        targets = [
            (at, projected(each.counts.ravel().astype(float), 1.0 * self.rows))
            for each, at in goals
        ]
        targets += list(zip(codes, self._one, strict=True))
        weights = np.ones(len(codes[0]))
        for _ in range(_SWEEPS):
            for cells, goal in targets:
                now = np.bincount(cells, weights, len(goal))
                factor = (goal + 0.1) / (now + 0.1)
                weights = weights * np.clip(factor, 0.2, 5.0)[cells]
        for _ in range(_LAST):
            for cells, goal in targets[len(goals) :]:
                now = np.bincount(cells, weights, len(goal))
                weights = weights * ((goal + 1e-9) / (now + 1e-9))[cells]
        return weights


def _added(groups: IntArray, weights: FloatArray, size: int) -> FloatArray:
    return np.asarray(np.bincount(groups, weights, size), np.float64)


def _fitted(counts: FloatArray, rows: FloatArray, columns: FloatArray) -> FloatArray:
    """A table near `counts` with these sums of rows and nearly these of columns."""
    least = columns / max(columns.sum(), 1e-300)
    empty = counts.sum(axis=1, keepdims=True) < 1e-9
    table = counts + (1e-6 + empty) * least
    for _ in range(_FITTINGS):
        table = table * (columns / np.maximum(table.sum(axis=0), 1e-300))
        table = table * (rows / np.maximum(table.sum(axis=1), 1e-300))[:, None]
    return np.asarray(table)
