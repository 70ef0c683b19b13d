"""The last steps of least squares: influences clipped as a whole, and intervals that allow for it.

The influence of a record is its whitened row times its residual; least squares is where influences
add up to zero. Rows are weighted by w = min(1, R/|z|) together with their residuals, so that a
linear model stays linear whatever the tails of its features.

1. A second moment of rows at a radius R whitens them. R grows with ε n, as far as rows are long.
2. A noisy histogram of the lengths of influences, in half octaves, chooses the length C at which
   they are clipped: noise and what is clipped are to be least together. It also has the index α of
   the tail: a power law that continues beyond C has a mean excess of C/(α - 1).
3. Two noisy Newton steps along the sum of clipped influences.
4. What was left out, as a noisy vector T: C/(α - 1) in the direction of each clipped influence, and
   what the weights took away. An interval goes from the answer towards where T points.
5. A test whether what the weights took away has a direction: then the table is not linear that far
   out, and there is no interval for the coefficients of least squares. Nor is there one if the
   tail is so heavy that it has no mean excess, where the ridge holds a coefficient back, or if
   the private scale of a column is so far off that the model leaves the column out.
"""

import math
from collections.abc import Callable

import attrs
import numpy as np
import numpy.typing as npt
from scipy.stats import chi2

from prudent.estimators.engine import BudgetPart, Map, SumEngine, lengths, sums
from prudent.estimators.features import StandardFeatures, Whitening, one_hot
from prudent.release.lattice import FloatArray

STEPS = 2
"""Newton steps along clipped influences."""

PARTS: dict[str, BudgetPart] = {
    "far moment": sums(0.09),
    "tail": sums(0.035),
    "final": sums(0.15, STEPS),
    "rest": sums(0.07),
    "weights": sums(0.015),
    "sandwich": sums(0.01),
}
"""What it costs."""

_BINS = 30  # half octaves of lengths of influences
_BELOW = 32.0  # the first of them begins so far below the usual length
_EXCESS = 0.5  # of what exceeds the clip has one direction, about
_LEAST_CLIP = 18.0  # influences are clipped at so many lengths of the first, at least
_CLEAR = 4.0  # deviations of noise from which on a bin holds records
_GAP = 4  # empty bins after which a clear one may be noise: influences seldom have gaps
_SURELY = 6.0  # deviations from which on it is none
_STEEP = 5.0  # deviations of noise from which on a number of records tells the index of the tail
_TAIL = 0.15  # of the records, at most, are a tail
_NO_INDEX = 1.5  # the index where no number is that clear
_LEAST_INDEX = 1.35  # an index below is taken for this one
_NO_MEAN = 1.25  # an index that is clearly below has no mean excess to speak of
_SURE = 2.0  # standard errors that make it clear
_OCTAVES = 5  # over so many
_ROOM = 0.08  # noise of the second moment, in records, which the radius may grow to
_MOST_RADIUS = 8.0  # in roots of the number of features
_SAFE = 2.0  # times T is allowed for
_DEVIATIONS = 1.96
_DOUBT = 1.5  # times the contraction of a step is allowed for
_LUCK = 3.0  # noise of an entry, by which an eigenvalue may be too large
_LINEAR = 0.98  # level of the test of what the weights took away
_WEAK = 3.25  # noise of an eigenvalue, below which the ridge holds steps back
_HELD = 0.5  # share of a coefficient's variance in directions which the ridge holds back

CURVED = "records far out do not follow the line, so its coefficients depend on their weight"
HEAVY = "the residuals' tail is so heavy that what clipping takes away has no bound"
HELD = "its direction is not clear of the noise"
DEPENDENT = "the rows of one unit are not independent of each other"
UNSEEN = "a column hardly varies, or its private scale is far off, so that the model leaves it out"


@attrs.frozen(eq=False)
class InfluenceTail:
    """A noisy histogram of the lengths of influences: [base 2^(j/2), base 2^((j+1)/2))."""

    base: float
    counts: FloatArray
    noise: float  # its standard deviation

    @classmethod
    def release(cls, engine: SumEngine, sizes: Map, base: float) -> "InfluenceTail":
        """Release the histogram, at the price of the part "tail"."""
        edges = base * 2.0 ** (np.arange(_BINS) / 2)

        def vectors(rows: FloatArray) -> FloatArray:
            # The last bin is open, and lengths below the first are in none.
            return one_hot(np.searchsorted(edges, sizes(rows), side="right") - 1, _BINS)

        return cls(base, engine.total("tail", vectors, 1.0), engine.deviation("tail"))

    @property
    def last(self) -> int:
        """The last bin that clearly holds records; -1 if none does."""
        found = np.flatnonzero(self.counts > _CLEAR * self.noise)
        gaps = np.flatnonzero(np.diff(found) > _GAP)
        found = found[: gaps[0] + 1] if len(gaps) else found
        sure = np.flatnonzero(self.counts > _SURELY * self.noise)
        return int(max([-1, *found[-1:], *sure[-1:]]))

    def above(self, end: int) -> FloatArray:
        """The numbers of records from each edge on, as far as a bin; 0 beyond."""
        found = np.zeros(_BINS + 1)
        found[: end + 1] = np.maximum(np.cumsum(self.counts[: end + 1][::-1])[::-1], 0.0)
        return found

    def clip(self, noise: float) -> float:
        """The length C at which `noise` C and the sum of what exceeds C are least together.

        Up to a deviation of records may be in the bin beyond the last clear one.
        """
        above = self.above(self.last)
        above[: self.last + 2] += self.noise
        places = np.arange(0, _BINS + 1, 0.25)
        logs = np.interp(places, np.arange(_BINS + 1), np.log(np.maximum(above, 1e-3)))
        pieces = np.exp(logs) * 2.0 ** (places / 2) * (2.0**0.125 - 1)
        exceeding = np.cumsum(pieces[::-1])[::-1][: 4 * _BINS : 2]
        clips = 2.0 ** (places[: 4 * _BINS : 2] / 2)
        cost = np.where(
            clips < _LEAST_CLIP, np.inf, (noise * clips) ** 2 + (_EXCESS * exceeding) ** 2
        )
        return float(self.base * clips[np.argmin(cost)])

    def index(self, count: float, octaves: int = 1) -> tuple[float, float]:
        """The index of the tail over its last clear octaves, or fewer; and its standard error."""
        # Bins that are not clear hold records as well: without them a tail would look short.
        end = min(self.last + _GAP, _BINS - 1)
        above = self.above(end)
        noise = self.noise * np.sqrt(np.maximum(end + 1 - np.arange(_BINS + 1), 1))
        clear = np.flatnonzero((above > _STEEP * noise) & (above <= _TAIL * count))
        if self.last < 0 or not len(clear) or clear[-1] < 2:
            return _NO_INDEX, 0.0
        at = clear[-1]
        back = max(2, min(2 * octaves, at - clear[0]))
        error = 2 * math.hypot(noise[at] / above[at], above[at] ** -0.5) / math.log(2) / back
        return 2 * math.log2(max(above[at - back] / above[at], 1.001)) / back, float(error)


@attrs.frozen(eq=False, kw_only=True)
class Refined:
    """What the last steps found, in the standardised coefficients, and how far off it may be."""

    found: FloatArray  # the coefficients
    root: FloatArray  # what makes coefficients of whitened coordinates
    variance: FloatArray  # a matrix: of noise and sampling, in whitened coordinates
    bias: FloatArray  # what the steps have not reached, in each of them
    # The noisy T, the deviation of its noise, and whether the ridge holds steps back, in each.
    rest: FloatArray = attrs.Factory(lambda self: 0.0 * self.bias, takes_self=True)
    rest_noise: FloatArray = attrs.Factory(lambda self: 0.0 * self.bias, takes_self=True)
    weak: npt.NDArray[np.bool_] = attrs.Factory(lambda self: self.bias < 0, takes_self=True)
    missing: str = ""  # why there are no intervals; empty if there are
    deviations: float = _DEVIATIONS  # of an interval of 95 %
    least: float = 0.0  # times T is allowed for, at least
    # Whether the influence of each row was clipped.
    clipped: Callable[[FloatArray], npt.NDArray[np.bool_]] = lambda rows: np.zeros(len(rows), bool)

    def intervals(
        self, features: StandardFeatures, centres: FloatArray, scale: float, records: int
    ) -> tuple[FloatArray, str]:
        """The ends of an interval for each coefficient, and why some are missing."""
        slopes = self.root[1:] / features.scales[:, None]
        rows = np.vstack([self.root[0] - features.locations @ slopes, slopes]) * scale
        ends = centres[:, None] + self.ends(rows) * [-1.0, 1.0]
        missing = self.missing if records == 1 else DEPENDENT
        held = (rows[:, self.weak] ** 2).sum(axis=1) > _HELD * (rows**2).sum(axis=1)
        held |= missing != ""
        ends[held] = np.nan
        return ends, missing or (HELD if held.any() else "")

    def ends(self, rows: FloatArray) -> FloatArray:
        """Below and above each combination of whitened coordinates, an interval's distance."""
        spread = np.einsum("ij,jk,ik->i", rows, self.variance, rows)
        noise = np.sqrt(rows**2 @ self.rest_noise**2)
        half = self.deviations * np.sqrt(spread + noise**2) + np.sqrt(rows**2 @ self.bias**2)
        towards = rows @ self.rest
        # Noise of T is in the half-width already: only what is beyond it has a direction.
        beyond = np.maximum(_SAFE * (np.abs(towards) - noise), self.least * np.abs(towards))
        towards = np.sign(towards) * np.maximum(beyond, 0.0)
        return np.stack([half + np.maximum(-towards, 0.0), half + np.maximum(towards, 0.0)], axis=1)


def far_whitening(
    engine: SumEngine, before: Whitening, count: float, penalty: FloatArray
) -> Whitening:
    """Release a second moment of rows at a radius that grows with ε n, as far as rows are long.

    Its noise hides weak directions. At the radius of `before`, both second moments are one.
    """
    width = before.features.width
    room = _ROOM * max(count, 1.0) / (engine.deviation("far moment") * math.sqrt(width))
    most = min(before.features.extent, _MOST_RADIUS * before.radius)
    radius = max(before.radius, min(math.sqrt(room), most))
    return Whitening.release(engine, "far moment", before.features, count, penalty, radius, before)


def sandwich(engine: SumEngine, influences: Map, clip: float) -> FloatArray:
    """Release the second moment of influences, on the safe side of its noise."""
    squares = engine.second_moment("sandwich", influences, clip)
    values, vectors = np.linalg.eigh(squares)
    doubt = engine.deviation("sandwich") * clip**2
    return np.asarray((vectors * (np.maximum(values, 0.0) + doubt)) @ vectors.T)


def has_direction(taken: FloatArray, variance: float) -> bool:
    """Whether what weights took away is more than sampling and noise of this variance are."""
    return bool(taken @ taken / variance > chi2.ppf(_LINEAR, len(taken)))


def refine(
    engine: SumEngine,
    whitening: Whitening,
    residuals: Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]],
    found: FloatArray,
    *,
    count: float,
    limit: float,
    noise: float,
) -> Refined:
    """Take the last steps from released coefficients."""
    width, root = len(found), whitening.root

    def influences(
        rows: FloatArray, found: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Influences, what the weights took from them, and the lengths of influences."""
        steps, errors = residuals(rows, found)
        weights, whitened = whitening.weights(steps), whitening.rows(steps)
        whole = whitened * (weights * errors)[:, None]
        return whole, whitened * (errors * (1 / weights - weights))[:, None], lengths(whole)

    base = limit / _BELOW * math.sqrt(width / max(count, 1.0))
    tail = InfluenceTail.release(engine, lambda rows: influences(rows, found)[2], base)
    clip = tail.clip(engine.deviation("final") * math.sqrt(width))
    for _ in range(STEPS):
        move = engine.total("final", lambda rows: influences(rows, found)[0], clip)  # noqa: B023
        found = found + root @ (move - root.T @ (whitening.penalty * found))
    final = found
    index, error = tail.index(count)
    factor = 1 / (max(index - error / 2, _LEAST_INDEX) - 1)
    longest = clip * max(factor, 1.0)

    def left_out(rows: FloatArray) -> FloatArray:
        whole, taken, sizes = influences(rows, final)
        excess = np.where(sizes > clip, clip * factor / np.maximum(sizes, clip), 0.0)
        return whole * excess[:, None] + taken

    rest = engine.total("rest", left_out, longest)
    taken = engine.total("weights", lambda rows: influences(rows, final)[1], clip) / clip
    squares = sandwich(engine, lambda rows: influences(rows, final)[0], clip)
    usual = engine.deviation("weights") ** 2 + float(np.trace(squares)) / clip**2 / width
    missing, (heaviest, doubt) = "", tail.index(count, _OCTAVES)
    if whitening.hides_a_column:
        missing = UNSEEN  # the others then answer for what it explains
    elif heaviest + _SURE * doubt < _NO_MEAN:  # its mean excess clearly has no bound
        missing = HEAVY
    elif has_direction(taken, usual):
        missing = CURVED
    left = whitening.contraction
    own = (1 + left**2) * (engine.deviation("final") * clip) ** 2 + left**4 * width * noise**2
    size = float(np.linalg.norm(np.linalg.solve(root, found)))
    # Where the noise of an eigenvalue happens to enlarge it, it is printed rather than held back,
    # and contracts less than its size says.
    surely = whitening.eigenvalues - _LUCK * whitening.noise
    kept = 1 - surely / (whitening.eigenvalues + whitening.ridge)
    slowly = np.minimum(1.0, np.maximum(_DOUBT * left, kept))
    return Refined(
        found=found,
        root=root,
        clipped=lambda rows: np.asarray(influences(rows, final)[2] > clip),
        variance=squares + np.diag(own),
        bias=slowly ** (2 + STEPS) * (size + math.sqrt(own.sum())),  # four steps in all
        rest=rest,
        rest_noise=np.full(width, engine.deviation("rest") * longest),
        weak=whitening.eigenvalues < _WEAK * whitening.noise * math.sqrt(width),
        missing=missing,
    )
