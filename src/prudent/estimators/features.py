"""Standardised and whitened features, from released values alone.

A column of unknown scale is standardised by two private quantiles; standardised rows are rounded
to whole steps, so that their products with released matrices are exact (`engine.product`).

Whitening multiplies rows by the inverse root of their released second moment. Whitened rows are
all about equally long, √(d/n), in all directions; so a sum of them needs little noise for what it
says, and a step along it is a Newton step.

`ClassMoments` are weighted first and second moments of standardised columns, by group, in one noisy
sum. The vector of a record is (1, z, z²/s) for its standardised columns z, clipped, in the block of
its group. Where it is longer than the radius it is shortened as a whole: the record then has a
weight below 1 in all moments alike, so that means stay means.
"""

import math
from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from prudent.estimators.engine import LONGEST, Map, SumEngine, lengths, on_grid, product
from prudent.release.lattice import FloatArray

CLIP = 8.0
"""Standardised features are clipped here, unless their records say that a line goes on."""

FARTHEST = 2.0**27
"""No standardised number is farther from zero; for arithmetic only."""

MOMENT_CLIP = 4.0
"""Standardised features are clipped here where their squares are added up."""

STEP = 2.0**-13
"""The step of the grid of standardised features."""

LEAST_REACH, MOST_REACH = 1.0, 1.5
"""The longest whitened row, in root mean squares: with few records and with many."""

_OCTAVES = 24  # beyond `CLIP`, of the histogram that finds scales that say nothing
_CLEAR = 4.0  # deviations of noise from which on an octave holds records
_BEYOND = 2.0  # times the end of the last of them: a few records may be farther out
_LEAST_P, _MOST_P = 0.1, 0.25  # quantiles in the tails say more about the scale, if n allows
_ROOM = 45.0  # records, times ε, that a quantile should be away from the end of the column
_DEGENERATE = 1e-9  # a range smaller than this, relative to its ends, is none
_SEEN = 4.0  # noise of an entry, below which the variance of a column is not seen
_RIDGE = 0.5  # the ridge, in noise of an eigenvalue of the second moment
_RECORDS_PER_NOISE = 40.0  # at which the reach begins to grow, per noise of a sum and feature
_LEAST_WEIGHT = 0.05  # the mean square of the factors by which rows are shortened, at least
_LEAST_COUNT = 50.0  # a noisy count is taken to be at least this

# Of the moments of groups:
_SQUARES = 2.0  # squares are divided by this, so that they weigh as much as the columns
_MOMENT_REACH = 1.25  # the radius, in root mean squares of a normal vector
_LEAST_VARIANCE = 1e-2  # of a standardised column


def standardise(
    engine: SumEngine, part: str, places: Sequence[int], count: float
) -> tuple[FloatArray, FloatArray]:
    """Release a location and a scale of some columns; costs two choices of `part` for each.

    The scale of a column whose two quantiles agree is the size of its values, or 1. Where both are
    public, they cost nothing.
    """
    locations, scales = np.zeros(len(places)), np.ones(len(places))
    for at, place in enumerate(places):
        if place in engine.known:
            locations[at], scales[at] = engine.known[place]
            continue
        epsilon = engine.prices.choice_epsilon(part)
        p = min(_MOST_P, max(_LEAST_P, _ROOM / (epsilon * max(count, _LEAST_COUNT))))
        low, high = sorted(engine.quantile(part, place, each) for each in (p, 1 - p))
        size = max(abs(low), abs(high))
        scale = (high - low) / (2 * float(norm.ppf(1 - p)))
        locations[at] = low + (high - low) / 2
        scales[at] = scale if scale > _DEGENERATE * size else size or 1.0
    return locations, scales


def standardised(engine: SumEngine, columns: int, count: float) -> "StandardFeatures":
    """Released locations and scales of the first columns, which the part `columns` pays for."""
    locations, scales = standardise(engine, "columns", range(columns), count)
    return StandardFeatures(locations, scales)


@attrs.frozen(eq=False)
class StandardFeatures:
    """Standardised features of rows, in whole steps of 2**-13, with a constant first."""

    locations: FloatArray  # the released location of each column
    scales: FloatArray  # the released scale of each column, positive
    # Where each standardised column is clipped.
    limits: FloatArray = attrs.Factory(lambda own: np.full(len(own.scales), CLIP), takes_self=True)
    extent: float = 0.0  # the length beyond which few rows are, if it is known to be large

    @property
    def width(self) -> int:
        """The number of features, with the constant."""
        return len(self.locations) + 1

    def rescaled(self, engine: SumEngine, part: str, count: float) -> "StandardFeatures":
        """Enlarge scales that say nothing, at the price of `part`; columns are then not clipped.

        Two quantiles of a column that is mostly zero say little about the rest of it. A noisy
        histogram of each column, in octaves beyond `CLIP` scales, tells its root mean square as far
        as octaves clearly hold records. One record adds one to each column: √d in length.
        """
        columns, edges = self.width - 1, CLIP * 2.0 ** np.arange(_OCTAVES)
        free = attrs.evolve(self, limits=np.full(columns, FARTHEST))
        if not columns:
            return free

        def vectors(rows: FloatArray) -> FloatArray:
            places = np.searchsorted(edges, np.abs(free.vectors(rows)[:, 1:]), side="right") - 1
            return one_hot(places.reshape(-1), _OCTAVES).reshape(len(rows), columns * _OCTAVES)

        found = engine.total(part, vectors, math.sqrt(columns)).reshape(columns, _OCTAVES)
        found[found < _CLEAR * engine.deviation(part) * math.sqrt(columns)] = 0.0
        factors = np.sqrt(1.0 + found @ (2 * edges**2) / max(count, _LEAST_COUNT))
        ends = np.maximum(1.0, _BEYOND * (2 * edges * (found > 0)).max(axis=1) / factors)
        extent = float(np.linalg.norm([1.0, *ends]))
        return attrs.evolve(free, scales=self.scales * factors, extent=extent)

    def steps(self, rows: FloatArray) -> FloatArray:
        """The features of rows, clipped; a gap is at the location. A target may follow them."""
        numbers = (rows[:, : self.width - 1] - self.locations) / self.scales
        clipped = np.clip(np.where(np.isnan(numbers), 0.0, numbers), -self.limits, self.limits)
        found = np.full((len(rows), self.width), 1 / STEP)
        found[:, 1:] = np.rint(clipped / STEP)
        return found

    def vectors(self, rows: FloatArray) -> FloatArray:
        """The features of rows as doubles: the constant 1, and the standardised columns."""
        return self.steps(rows) * STEP

    def times(self, steps: FloatArray, matrix: FloatArray) -> FloatArray:
        """Features times a released matrix or vector, exactly alike for equal rows."""
        return product(steps, matrix * STEP, math.sqrt(self.width) * CLIP / STEP)

    def unscaled(self, coefficients: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Slopes and intercept in the units of the columns, for one or several outputs."""
        slopes = (coefficients[1:].T / self.scales).T
        return slopes, coefficients[0] - self.locations @ slopes


@attrs.frozen(eq=False)
class Whitening:
    """A released second moment of features, and the map that whitens them."""

    features: StandardFeatures  # what standardises the columns
    radius: float  # rows of features are clipped to this length
    moment: FloatArray  # the released second moment
    eigenvalues: FloatArray  # those of the released second moment, at least 0, without the ridge
    ridge: float  # what was added to them
    noise: float  # standard deviation of the noise of an entry off the diagonal
    # What was added to the diagonal, for rows of the mean weight after clipping.
    penalty: FloatArray
    # The whitening matrix: columns are eigenvectors over the roots of the eigenvalues.
    root: FloatArray
    reach: float  # whitened rows are clipped to this length

    @classmethod
    def release(
        cls,
        engine: SumEngine,
        part: str,
        features: StandardFeatures,
        count: float,
        penalty: float | FloatArray = 0.0,
        radius: float | None = None,
        before: "Whitening | None" = None,
    ) -> "Whitening":
        """Release the second moment of the features, at the price of `part`.

        Rows are clipped to the radius, by default the root of the number of features; `penalty` is
        added to the diagonal. One that was released `before` at the same radius is averaged in.
        """
        width = features.width
        radius = math.sqrt(width) if radius is None else radius
        moment = engine.second_moment(part, lambda rows: features.steps(rows) * STEP, radius)
        noise = engine.deviation(part) * radius**2 / math.sqrt(2)
        if before is not None and before.radius == radius:
            share = before.noise**2 / (before.noise**2 + noise**2)
            moment = share * moment + (1 - share) * before.moment
            noise *= math.sqrt(share)
        ridge = _RIDGE * noise * math.sqrt(width)
        weight = min(max(float(moment[0, 0]) / max(count, _LEAST_COUNT), _LEAST_WEIGHT), 1.0)
        penalty = np.zeros(width) + penalty * weight
        values, vectors = np.linalg.eigh(moment + np.diag(penalty))
        values = np.maximum(values, 0.0)
        root = vectors / np.sqrt(values + ridge)
        effective = min(max(float(np.trace(root.T @ moment @ root)), 1.0), width)
        # Short rows need little noise; long ones make whole Newton steps. With few records the
        # noise is the greater error, with many the steps are.
        clear = count / (_RECORDS_PER_NOISE * engine.deviation(part) * width)
        factor = min(max(LEAST_REACH, math.sqrt(max(clear, 0.0))), MOST_REACH)
        reach = factor * math.sqrt(effective / max(count, _LEAST_COUNT))
        return cls(features, radius, moment, values, ridge, noise, penalty, root, reach)

    @property
    def contraction(self) -> FloatArray:
        """About what is left of an error after one Newton step, along each eigenvector.

        The ridge leaves a part of it, and the noise of the second moment E mixes it with errors
        along the others: rows of rootᵀ E root have about this length.
        """
        inverse = 1 / (self.eigenvalues + self.ridge)
        mixed = self.noise * np.sqrt(inverse * inverse.sum())
        return np.asarray(np.minimum(1.0, np.hypot(self.ridge * inverse, mixed)))

    @property
    def hides_a_column(self) -> bool:
        """Whether the variance of a column is not clear of the noise of an entry."""
        least = max(float(self.moment[0, 0]), self.noise)
        variances = np.diag(self.moment) - self.moment[0] ** 2 / least
        return bool((variances[1:] < _SEEN * self.noise).any())

    def weights(self, steps: FloatArray) -> FloatArray:
        """The factor by which the row of each record is shortened to the radius."""
        return np.asarray(self.radius / np.maximum(lengths(steps) * STEP, self.radius))

    def rows(self, steps: FloatArray) -> FloatArray:
        """The whitened rows of features, shortened to the radius and before the reach."""
        whole = on_grid(steps * STEP, self.radius)
        return product(whole, self.root * (self.radius / LONGEST), LONGEST)


def one_hot(places: FloatArray | npt.NDArray[np.int64], kinds: int) -> FloatArray:
    """A row with a one at each place, which is a whole number."""
    return np.asarray(places[:, None] == np.arange(kinds), np.float64)


@attrs.frozen(eq=False)
class ClassMoments:
    """Released moments of standardised columns, one row for each group."""

    means: FloatArray  # the mean of each column
    variances: FloatArray  # the variance of each column, positive

    @classmethod
    def release(
        cls, engine: SumEngine, part: str, features: StandardFeatures, groups: Map, kinds: int
    ) -> "ClassMoments":
        """Release the moments, of features clipped at `MOMENT_CLIP`.

        `groups` returns the place of the group of each row.
        """
        width = features.width - 1
        radius = _MOMENT_REACH * math.sqrt(1 + width * (1 + 3 / _SQUARES**2))

        def pairs(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
            numbers = features.vectors(rows)[:, 1:]
            ones = np.ones((len(rows), 1))
            return (
                one_hot(groups(rows), kinds),
                np.concatenate([ones, numbers, numbers * numbers / _SQUARES], axis=1),
            )

        sums = engine.cross(part, pairs, (1.0, radius))
        counts = np.maximum(sums[:, :1], 1.0)
        # A group with fewer records than the noise of a sum says nothing about its mean.
        noise = engine.deviation(part) * radius
        kept = counts**2 / (counts**2 + noise**2)
        means = np.clip(kept * sums[:, 1 : width + 1] / counts, -MOMENT_CLIP, MOMENT_CLIP)
        squares = kept * sums[:, width + 1 :] / counts * _SQUARES + (1 - kept)
        return cls(means, np.maximum(squares - means**2, _LEAST_VARIANCE))
