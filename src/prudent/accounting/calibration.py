"""Solving for one parameter of an event, given a target (ε, δ).

Every returned value was priced by the accountant, and its ε is at or below the target.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, Union

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent._rounding import exact
from prudent.accounting.relations import ADD_REMOVE, Relation

if TYPE_CHECKING:  # most releases have a formula, and import no accountant
    from prudent.accounting.pld_accountant import PldAccountant
    from prudent.accounting.rdp_accountant import RdpAccountant

Accountant: TypeAlias = Union["type[PldAccountant]", "type[RdpAccountant]"]

TOLERANCE = 1e-5  # relative tolerance of the returned parameter
COARSE_INTERVAL = 1e-3  # grid of losses for the search; the answer is priced on the fine grid


class UnreachableTargetError(ValueError):
    """No allowed value of the parameter meets the target.

    Attributes:
        parameter: What was solved for; None where it is not a single number.
    """

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


@attrs.frozen
class Search:
    """The range in which a parameter is searched, outwards from a guess."""

    safe: float  # the end of the range with the smallest ε
    unsafe: float  # the end of the range with the largest ε
    guess: float  # where the search begins
    whole: bool = False  # whether only integers are allowed


def solve(
    event_of: Callable[[float], dp.DpEvent],
    search: Search,
    *,
    epsilon: float,
    delta: float,
    accountant: Accountant | None = None,
    relation: Relation = ADD_REMOVE,
    name: str = "parameter",
) -> float:
    """Return the value nearest to the unsafe end whose event is (epsilon, delta)-DP.

    The event's ε for the relation must not decrease from the safe end to the unsafe end. With the
    PLD accountant the search starts on a coarse grid of losses. A coarse grid can only overstate ε,
    so its answer is already safe; the fine grid then moves it a little further. This is the
    accountant unless another is given.
    """
    from prudent.accounting.group_privacy import epsilon_of, why_infinite
    from prudent.accounting.pld_accountant import PldAccountant

    accountant = PldAccountant if accountant is None else accountant
    epsilon = _validate.positive(epsilon=epsilon)
    delta = _validate.small_delta(delta=delta)

    def gap(value: float, fresh: "Callable[[], PldAccountant | RdpAccountant]") -> float:
        spent = epsilon_of(event_of(value), delta, relation, fresh)
        far = math.log(spent / epsilon) if 0 < spent < math.inf else math.copysign(50, spent - 1)
        # The sign decides what is safe, so it must survive the rounding of the quotient.
        return min(far, 0.0) if spent <= epsilon else max(far, math.ulp(0.0))

    fine = partial(gap, fresh=accountant)
    bracket = None
    if accountant is PldAccountant:
        quick = partial(PldAccountant, value_discretization_interval=COARSE_INTERVAL)
        coarse = partial(gap, fresh=quick)
        bracket = _bracket(coarse, search, 2.0)
        if bracket is not None:
            rough = _close_in(coarse, *bracket, search.whole, 100 * TOLERANCE)
            bracket = _bracket(fine, attrs.evolve(search, guess=rough), 1.002)
    if bracket is None:
        bracket = _bracket(fine, search, 2.0)
    if bracket is None:
        low, high = sorted((search.safe, search.unsafe))
        reason = why_infinite(event_of(search.safe), delta, relation)
        raise UnreachableTargetError(
            f"No {name} in [{low:g}, {high:g}] gives epsilon <= {exact(epsilon)} at "
            f"delta = {exact(delta)}. "
            + (f"At {name} = {search.safe:g}: {reason} " if reason else "")
            + "Raise epsilon or delta, or change another parameter.",
            parameter=name,
        )
    return _close_in(fine, *bracket, search.whole, TOLERANCE)


_Gap: TypeAlias = Callable[[float], float]
_Point: TypeAlias = tuple[float, float]  # a value and its gap


def _bracket(gap: _Gap, search: Search, factor: float) -> tuple[_Point, _Point] | None:
    """Find a safe and an unsafe point by ever longer steps from the guess; None if all are unsafe.

    If all points are safe, both returned points are the unsafe end.
    """
    value, step = search.guess, factor
    here = value, gap(value)
    end = search.unsafe if here[1] <= 0 else search.safe
    while True:
        outwards = value * step if end > value else value / step
        value = min(outwards, end) if end > value else max(outwards, end)
        if search.whole:
            value = float(math.ceil(value) if end > here[0] else math.floor(value))
        there = value, gap(value)
        if here[1] <= 0 < there[1]:
            return here, there
        if there[1] <= 0 < here[1]:
            return there, here
        if value == end:
            return (there, there) if end == search.unsafe else None
        here, step = there, step * step


def _close_in(gap: _Gap, safe: _Point, unsafe: _Point, whole: bool, tolerance: float) -> float:
    """Narrow a bracket by inverse interpolation on a logarithmic scale; return its safe end."""
    points, widths = [safe, unsafe], [math.inf, math.inf, math.inf]
    while abs(width := math.log(unsafe[0] / safe[0])) > tolerance:
        if whole and abs(unsafe[0] - safe[0]) <= 1:
            break
        widths.append(abs(width))
        share = (_root(points) - math.log(safe[0])) / width
        # Aim slightly past the estimated root, towards the end farther from it: if the estimate is
        # good, the evaluated point replaces that end and the bracket shrinks.
        share += math.copysign(0.4 * tolerance / abs(width), 0.5 - share)
        if not 0 < share < 1 or widths[-1] > widths[-4] / 2:
            share = 0.5
        value = safe[0] * math.exp(share * width)
        if whole:
            low, high = sorted((safe[0], unsafe[0]))
            value = float(min(max(round(value), low + 1), high - 1))
        middle = value, gap(value)
        points.append(middle)
        safe, unsafe = (middle, unsafe) if middle[1] <= 0 else (safe, middle)
    return safe[0]


def _root(points: Sequence[_Point]) -> float:
    """Estimate the logarithm of the root of the gap by a parabola through the nearest 3 points."""
    nearest = sorted(points, key=lambda point: abs(point[1]))[:3]
    if len({gap for _, gap in nearest}) < len(nearest):
        return math.nan
    total = 0.0
    for value, gap in nearest:
        others = (other for _, other in nearest if other != gap)
        total += math.log(value) * math.prod(other / (other - gap) for other in others)
    return total
