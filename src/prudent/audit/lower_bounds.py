"""Lower bounds on ε from runs with and without a record: what claims the runs refute.

Two bounds, each valid at every sample size:

**Guesses.** A fair coin decides for each run whether it sees the record. An attacker sees the
output and guesses, or abstains. If the mechanism is (ε, δ)-DP, its output is post-processing of
an answer that reveals the coin with probability δ and otherwise is right with probability
q = e^ε/(1 + e^ε) (Kairouz, Oh and Viswanath 2015). So given that a run revealed nothing and that
the attacker guessed, the guess is right with a probability of at most q, independently of all
other runs. At most k of N runs reveal the coin, except with probability P(Bin(N, δ) > k). Then the
chance of C right guesses out of K is at most P(Bin(K - k, q) >= C - k): replacing j <= k guesses
that were given away by right ones and dropping them leaves Bin(K - j, q), which is at most
k - j + Bin(K - k, q). The Clopper-Pearson bound on q follows, and with it one on ε.

**Errors.** With any numbers of runs with and without the record, (ε, δ)-DP says
TPR <= e^ε FPR + δ and 1 - FPR <= e^ε (1 - TPR) + δ for every test. Clopper-Pearson bounds on TPR
and FPR refute each δ that contradicts one of the two. Two rates share the confidence here.

Both assume that runs are independent, and that the test (a score and its thresholds) was fixed
before the runs that are counted. So thresholds are chosen on other runs, see `choose_thresholds`.

**Scores** say how much an output speaks for the record. A learned one estimates the log-ratio of
the two densities at an output. It is the log-ratio of the frequencies of the output's category,
plus that of its numbers given the category. A poor estimate costs power, never validity: the runs
that are counted are others.
"""

import datetime as dt
import decimal
import enum
import fractions
import itertools
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from prudent import _validate
from prudent._validate import ArgumentError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_REVEALED_SHARE = 0.01  # of 1 - confidence, for more revealed coins than are allowed for
_MOST_THRESHOLDS = 100  # candidates on each side
_NO_COUNT = 1e-9  # in place of 0, where no interval is computed


def epsilon_of_guesses(
    right: npt.ArrayLike, guesses: npt.ArrayLike, runs: int, *, delta: float, confidence: float
) -> FloatArray:
    """Return the largest ε that this many right guesses refute, for numbers or arrays of them.

    The attacker abstained from the runs without a guess.

    Guarantee:
        If each run saw the record by a fair coin, and the mechanism is (ε, δ)-DP for this pair of
        data sets, the bound exceeds ε with a probability of at most 1 - confidence.
    """
    _validate.between(0, 1, ends="[)", delta=delta)
    _validate.between(0.5, 1, ends="[)", confidence=confidence)
    right, guesses = np.asarray(right, np.float64), np.asarray(guesses, np.float64)
    revealed, error = revealed_runs(runs, delta, 1 - confidence)
    sure = np.maximum(right - revealed, 0.0)
    with np.errstate(divide="ignore"):
        least = special.betaincinv(np.maximum(sure, 1.0), guesses - right + 1.0, error)
        epsilon = np.log(least) - np.log1p(-least)
    return np.where(sure > 0, np.maximum(epsilon, 0.0), 0.0)


def revealed_runs(runs: int, delta: float, error: float) -> tuple[int, float]:
    """Return how many runs may reveal the coin, and the error probability that is left.

    It depends on public numbers alone, so it is fixed before the runs.
    """
    if delta == 0:
        return 0, error
    used = _REVEALED_SHARE * error
    return int(stats.binom.isf(used, runs, delta)), error - used


def clopper_pearson(
    successes: npt.ArrayLike, trials: npt.ArrayLike, error: float
) -> tuple[FloatArray, FloatArray]:
    """Return bounds on probabilities, each of which fails with a probability of at most `error`."""
    hits = np.asarray(successes, np.float64)
    missed = np.asarray(trials, np.float64) - hits
    low = special.betaincinv(np.maximum(hits, _NO_COUNT), missed + 1, error)
    high = special.betaincinv(hits + 1, np.maximum(missed, _NO_COUNT), 1 - error)
    return np.where(hits > 0, low, 0.0), np.where(missed > 0, high, 1.0)


@attrs.frozen
class Bound:
    """A lower bound on ε, and the counts that it follows from."""

    lower: float  # the largest ε refuted
    runs: int  # the runs that were counted
    guesses: int  # the number of guesses
    right: int  # the number of right guesses


@attrs.frozen
class Thresholds:
    """What an attacker guesses from a score: without up to `low`, with from `high` on."""

    low: float  # the largest score that is taken for a run without the record
    high: float  # the smallest score that is taken for a run with it

    def bound(
        self, scores: FloatArray, present: BoolArray, *, delta: float, confidence: float
    ) -> Bound:
        """Return the bound from all of these runs, before which the thresholds were fixed."""
        says_with, says_without = scores >= self.high, scores <= self.low
        right = int(np.sum(says_with & present) + np.sum(says_without & ~present))
        guesses = int(np.sum(says_with) + np.sum(says_without))
        claim = {"delta": delta, "confidence": confidence}
        lower = epsilon_of_guesses(right, guesses, len(scores), **claim)
        return Bound(float(lower), len(scores), guesses, right)


def choose_thresholds(
    scores: npt.ArrayLike, present: npt.ArrayLike, *, delta: float, confidence: float
) -> tuple[Thresholds, float]:
    """Return thresholds that should refute much with more runs like these, and how much.

    Every pair of thresholds is rated by a bound that allows for the number of thresholds, so that a
    few lucky guesses do not win. The rating is approximate (Wilson's interval), and proves nothing.
    The runs given here must not be counted afterwards.
    """
    scores, present = np.asarray(scores, np.float64), np.asarray(present, bool)
    if not len(scores):
        return Thresholds(-math.inf, math.inf), 0.0
    values, total, hits = _candidates(scores), np.sort(scores), np.sort(scores[present])
    above, above_right = (len(ranked) - np.searchsorted(ranked, values) for ranked in (total, hits))
    below, below_wrong = (np.searchsorted(ranked, values, side="right") for ranked in (total, hits))
    # One more choice on each side: never to guess so.
    right = np.add.outer(np.append(below - below_wrong, 0), np.append(above_right, 0))
    guesses = np.add.outer(np.append(below, 0), np.append(above, 0))
    lows, highs = np.append(values, -math.inf), np.append(values, math.inf)
    revealed, error = revealed_runs(len(scores), delta, 1 - confidence)
    z = float(special.ndtri(1 - error / len(lows)))
    counted = np.maximum(guesses - revealed, 1)
    share, weight = np.maximum(right - revealed, 0) / counted, z * z / counted
    root = np.sqrt(share * (1 - share) * weight + weight**2 / 4)
    bounds = (share + weight / 2 - root) / (1 + weight)
    bounds = np.where(np.less.outer(lows, highs), bounds, 0.0)
    low, high = np.unravel_index(int(np.argmax(bounds)), bounds.shape)
    return Thresholds(float(lows[low]), float(highs[high])), float(bounds[low, high])


def _candidates(scores: FloatArray) -> FloatArray:
    """Scores to try as thresholds: evenly spread over the values and over the runs.

    So neither a value that many runs share nor a tail is missed.
    """
    lists = np.unique(scores), np.sort(scores)
    places = [
        np.linspace(0, len(ranked) - 1, _MOST_THRESHOLDS).round().astype(int) for ranked in lists
    ]
    return np.unique(np.concatenate([ranked[at] for ranked, at in zip(lists, places, strict=True)]))


def bound_of_scores(
    scores: npt.ArrayLike,
    present: npt.ArrayLike,
    *,
    delta: float,
    confidence: float,
    held_out: float = 0.25,
) -> Bound:
    """Return the bound from scores of runs that saw the record by a fair coin.

    High scores speak for the record. The coins, `present`, were drawn before the runs.

    Guarantee:
        That of `epsilon_of_guesses`: the thresholds are chosen on the first runs, a fraction
        `held_out` of them, and the others are counted.
    """
    scores, present = np.asarray(scores, np.float64), np.asarray(present, bool)
    first = math.ceil(_validate.between(0, 1, ends="()", held_out=held_out) * len(scores))
    claim = {"delta": delta, "confidence": confidence}
    thresholds, _ = choose_thresholds(scores[:first], present[:first], **claim)
    return thresholds.bound(scores[first:], present[first:], **claim)


Described = tuple[Hashable, tuple[float, ...]]

_UNTOLD = frozenset({"notes", "epsilon", "delta", "mechanism"})
"""What an outcome says of itself besides what it releases."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MOST_BINS = 40
_FEWEST_PER_BIN = 25
_LEAD = 0.02  # probability of a right guess by which a learned score must beat a known one
_MOST_COORDINATES = 8  # of a vector that are tried one by one


def described(output: Any) -> Described:
    """Return the category of an output and its numbers, from which a score can be learned.

    | output | category | numbers |
    | --- | --- | --- |
    | a number, a date, a duration | its type | itself |
    | a text, a boolean, None, a member of an enumeration | itself | |
    | NaN or an infinity | itself | |
    | a tuple, a list, an array | those of its entries | those of its entries |
    | a mapping | its keys, and the categories of its values | those of its values |
    | an outcome of `prudent.release` | as the mapping that its `plain()` returns | |

    Raises:
        ArgumentError: if it is of a kind that is not in the table above.
    """
    match output:
        case bool() | np.bool_():
            return ("truth", bool(output)), ()
        case None | str() | bytes() | enum.Enum():
            return (type(output).__name__, output), ()
        case int() | float() | np.number() | decimal.Decimal() | fractions.Fraction():
            return _number(output)
        case dt.datetime():
            aware = output if output.tzinfo else output.replace(tzinfo=dt.UTC)
            return "time", ((aware - _EPOCH) / dt.timedelta(seconds=1),)
        case dt.date():
            return "date", (float(output.toordinal()),)
        case dt.timedelta():
            return "duration", (output / dt.timedelta(seconds=1),)
        case Mapping():
            told = {key: part for key, part in output.items() if key not in _UNTOLD}
            kind, numbers = _entries(list(told.values()))
            return (tuple(map(str, told)), kind), numbers
        case list() | tuple() | np.ndarray():
            return _array(output)
    if hasattr(output, "plain"):
        return described(output.plain())
    if hasattr(output, "__array__"):
        return _array(np.asarray(output))
    raise ArgumentError(
        "mechanism",
        "to return a number, a text, an array, an outcome, or tuples and mappings of these",
        shown=f"an object of type {type(output).__name__}",
        hint="Give score=, a function from an output to a number.",
    )


def _number(output: Any) -> Described:
    try:
        number = float(output)
    except OverflowError:
        number = math.inf if output > 0 else -math.inf
    return ("number", (number,)) if math.isfinite(number) else (("number", str(number)), ())


def _array(output: Any) -> Described:
    array = np.asarray(output) if isinstance(output, np.ndarray) else None
    if array is not None and array.dtype.kind in "iufb" and np.all(np.isfinite(array)):
        return ("array", array.shape), tuple(array.astype(np.float64).ravel().tolist())
    return _entries(list(output))


def _entries(entries: list[Any]) -> Described:
    descriptions = [described(entry) for entry in entries]
    return tuple(kind for kind, _ in descriptions), tuple(
        n for _, numbers in descriptions for n in numbers
    )


class Outputs(Sequence[Any]):
    """Outputs of runs; each is described once, however many scores look at it."""

    def __init__(self, outputs: Sequence[Any], told: list[Described] | None = None) -> None:
        self._outputs, self._told = outputs, told

    @property
    def told(self) -> list[Described]:
        """The category and the numbers of every output."""
        if self._told is None:
            self._told = [described(output) for output in self._outputs]
        return self._told

    def __len__(self) -> int:
        return len(self._outputs)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Outputs(self._outputs[place], None if self._told is None else self._told[place])
        return self._outputs[place]


Score: TypeAlias = Callable[[Outputs], FloatArray]
"""Scores of several outputs; high ones speak for the record."""


def each(score: Callable[[Any], float]) -> Score:
    """Return the score of several outputs, from that of one."""
    return lambda outputs: np.array([float(score(output)) for output in outputs], np.float64)


def best_score(
    candidates: Sequence[Score],
    outputs: Outputs,
    present: BoolArray,
    *,
    delta: float,
    confidence: float,
    learn: bool,
) -> Score:
    """Return the candidate that promises most on held-out runs; learned ones may be added.

    More candidates are learned on the first half of these runs, if `learn` is true.
    """
    half = len(outputs) // 2 if learn else 0
    scores = [*candidates]
    if learn:
        scores += learned(outputs[:half], present[:half])
    if len(scores) == 1:
        return scores[0]
    rest, seen = outputs[half:], present[half:]

    def promises(place: int) -> float:
        score = scores[place]
        _, promise = choose_thresholds(score(rest), seen, delta=delta, confidence=confidence)
        return promise + (_LEAD if place < len(candidates) else 0.0)

    return scores[max(range(len(scores)), key=promises)]


def learned(outputs: Outputs, present: BoolArray) -> list[Score]:
    """Return several scores learned from these runs: what helps depends on the mechanism."""
    dimensions = max((len(numbers) for _, numbers in outputs.told), default=0)
    projections: list[_Projection] = [_independent]
    if dimensions > 1:
        projections += [_linear, *map(_coordinate, range(min(dimensions, _MOST_COORDINATES)))]
    shapes = (True, False) if dimensions else (False,)
    return [
        _learn(outputs.told, present, projection, monotone)
        for projection, monotone in itertools.product(projections, shapes)
    ]


_Columns: TypeAlias = list[FloatArray]
_Projection: TypeAlias = Callable[[FloatArray, BoolArray], Callable[[FloatArray], _Columns]]
"""Given runs, what to look at in a matrix of outputs: columns whose log-ratios are added."""


def _independent(_: FloatArray, __: BoolArray) -> Callable[[FloatArray], _Columns]:
    return lambda rows: list(rows.T)


def _coordinate(place: int) -> _Projection:
    return lambda _, __: lambda rows: [rows[:, place]] if place < rows.shape[1] else []


def _linear(rows: FloatArray, present: BoolArray) -> Callable[[FloatArray], _Columns]:
    """The direction that separates the means best, for a common covariance."""
    if not 0 < np.sum(present) < len(present):
        return _nothing
    with np.errstate(over="ignore", invalid="ignore"):  # such a direction is given up below
        deviation = np.std(rows, axis=0)
        scale = np.where(deviation > 0, deviation, 1.0)
        centred = (rows - np.mean(rows, axis=0)) / scale
        moved = np.mean(centred[present], axis=0) - np.mean(centred[~present], axis=0)
        covariance = centred.T @ centred / len(rows) + 1e-6 * np.eye(rows.shape[1])
        if not np.all(np.isfinite(covariance)):
            return _nothing
        direction = np.linalg.solve(covariance, moved) / scale
    return lambda rows: [rows @ direction]


def _nothing(_: FloatArray) -> _Columns:
    return []


def _learn(
    told: Sequence[Described], present: BoolArray, projection: _Projection, monotone: bool
) -> Score:
    places = _by_kind(told)
    totals = Counter(present.tolist())
    known = {}
    for kind, where in places.items():
        with_it = int(np.sum(present[where]))
        without_it = len(where) - with_it
        ratio = np.log((with_it + 1) / (without_it + 1) * (totals[False] + 1) / (totals[True] + 1))
        rows = np.array([told[place][1] for place in where], np.float64)
        known[kind] = _learn_kind(float(ratio), rows, present[where], projection, monotone)

    def score(outputs: Outputs) -> FloatArray:
        scores = np.zeros(len(outputs))
        for kind, where in _by_kind(outputs.told).items():
            if kind in known:
                rows = np.array([outputs.told[place][1] for place in where], np.float64)
                scores[where] = known[kind](rows)
        return scores

    return score


def _by_kind(told: Sequence[Described]) -> dict[Hashable, list[int]]:
    places: dict[Hashable, list[int]] = {}
    for place, (kind, _) in enumerate(told):
        places.setdefault(kind, []).append(place)
    return places


def _learn_kind(
    ratio: float, rows: FloatArray, present: BoolArray, projection: _Projection, monotone: bool
) -> Callable[[FloatArray], FloatArray]:
    """The score of a category: its own log-ratio, and those of the numbers given it."""
    columns = projection(rows, present) if rows.shape[1] else _nothing
    histograms = [_Histogram.learn(column, present, monotone) for column in columns(rows)]

    def score(rows: FloatArray) -> FloatArray:
        found = zip(columns(rows), histograms, strict=True)
        return sum((each.score(column) for column, each in found), np.full(len(rows), ratio))

    return score


@attrs.frozen(eq=False)
class _Histogram:
    """Log-ratios of the frequencies of a number in bins that hold about the same number of runs."""

    edges: FloatArray
    ratios: FloatArray

    @classmethod
    def learn(cls, column: FloatArray, present: BoolArray, monotone: bool) -> "_Histogram":
        bins = max(1, min(_MOST_BINS, len(column) // _FEWEST_PER_BIN))
        values, counts = np.unique(column, return_counts=True)
        quantiles = np.quantile(column, np.linspace(0, 1, bins + 1)[1:-1], method="lower")
        # A value that many runs share is a bin of its own.
        atoms = values[counts >= max(_FEWEST_PER_BIN, len(column) / bins / 2)]
        edges = np.unique(np.concatenate([quantiles, atoms, np.nextafter(atoms, np.inf)]))
        inside = np.searchsorted(edges, column, side="right")
        with_it, without_it = (
            np.bincount(inside[group], minlength=len(edges) + 1) + 1.0
            for group in (present, ~present)
        )
        part = with_it / (with_it + without_it)
        if monotone:
            part = _monotone(part, with_it + without_it)
        base = np.sum(with_it) / np.sum(without_it)
        return cls(edges, np.log(part / (1 - part) / base))

    def score(self, column: FloatArray) -> FloatArray:
        return np.asarray(self.ratios[np.searchsorted(self.edges, column, side="right")])


def _monotone(part: FloatArray, weights: FloatArray) -> FloatArray:
    """The monotone sequence nearest to this one, rising or falling.

    The noise of most mechanisms has a monotone log-ratio; what is not monotone is then chance.
    """
    fits = [
        optimize.isotonic_regression(part, weights=weights, increasing=increasing).x
        for increasing in (True, False)
    ]
    return np.asarray(min(fits, key=lambda fit: float(np.sum(weights * (part - fit) ** 2))))
