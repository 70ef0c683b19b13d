"""Scores learned from runs: how much an output speaks for the record.

A learned score estimates the log-ratio of the two densities at an output. It is the log-ratio of
the frequencies of the output's category, plus that of its numbers given the category. A poor
estimate costs power, never validity: the runs that are counted are others.
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
from scipy import optimize

from prudent._validate import ArgumentError
from prudent.audit.lower_bounds import BoolArray, FloatArray, choose_thresholds

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
