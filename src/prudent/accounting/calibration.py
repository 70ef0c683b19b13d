"""Solving for one parameter of an event, or of a run of many releases, given a target (ε, δ).

Every returned value was priced by the accountant, and its ε is at or below the target.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union, get_args

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent._rounding import exact
from prudent.accounting import events
from prudent.accounting.events import MarginTest, Reveals
from prudent.accounting.relations import ADD_REMOVE, Relation, check_relation

if TYPE_CHECKING:  # most releases have a formula, and import no accountant
    from prudent.accounting.pld_accountant import PldAccountant
    from prudent.accounting.rdp_accountant import RdpAccountant

Accountant: TypeAlias = Union["type[PldAccountant]", "type[RdpAccountant]"]

TOLERANCE = 1e-5  # relative tolerance of the returned parameter
COARSE_INTERVAL = 1e-3  # grid of losses for the search; the answer is priced on the fine grid


class UnreachableTargetError(ValueError):
    """No allowed value of the parameter meets the target.

    Attributes:
        parameter: What was solved for.
    """

    def __init__(self, message: str, parameter: str) -> None:
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
    """A safe and an unsafe point by ever longer steps from the guess; None if all are unsafe.

    If all points are safe, both are the unsafe end.
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


Parameter: TypeAlias = Literal[
    "noise_multiplier", "steps", "test_scale", "failure", "propose", "sampling_rate"
]
"""What can be solved for; the scale is that of the test."""

_SEARCHES: dict[str, Search] = {
    "noise_multiplier": Search(safe=1e4, unsafe=1e-2, guess=1.0),
    "steps": Search(safe=1, unsafe=1e9, guess=1000, whole=True),
    "test_scale": Search(safe=1e4, unsafe=1e-2, guess=2.0),
    "failure": Search(safe=1e-30, unsafe=0.499, guess=1e-8),
    "propose": Search(safe=1.0, unsafe=1e-2, guess=0.3),
    "sampling_rate": Search(safe=1e-9, unsafe=1.0, guess=0.01),
}


def in_turns(event: dp.DpEvent, num_bands: int) -> dp.DpEvent:
    """The event of a run with correlated noise, given what it releases of one part of records.

    A record is in one of `num_bands` parts, and for each of them it costs at most `event`. Several
    records may be in different parts: for those a `WorstOfDpEvent` has only the chain's bound.
    """
    return event if num_bands == 1 else events.WorstOfDpEvent([event])


def check_bands(num_bands: int, sampling_rate: float) -> None:
    """Raise an error for numbers of bands that no run can have."""
    if num_bands > 1 and num_bands * sampling_rate > 1 + 1e-9:
        raise _validate.ArgumentError(
            "num_bands",
            f"at most 1/sampling_rate = {math.floor(1 / sampling_rate)}",
            got=num_bands,
            why="each step draws from one of so many parts, so many times as often",
        )


@attrs.frozen(kw_only=True)
class Run:
    """Many sampled runs of one mechanism: all parameters that its privacy cost depends on.

    Attributes:
        sampling_rate: Probability with which each record enters a step, independently.
        steps: The number of steps.
        noise_multiplier: σ₁/GS(f₁).
        test: The private test; None means the plain Gaussian mechanism.
        propose: τ/GS(f₂); unused without a test.
        failure: The largest probability with which a margin of 0 passes; unused without a test.
        reveals: What an observer learns about the test. By default the branch of a monotone
            margin, such as that of the trimmed sum, as in a training plan.
        relation: The neighbouring relation.
        num_bands: Number of parts of the records that take turns, for correlated noise, as in a
            training plan; 1 with a test.
    """

    sampling_rate: float = attrs.field(
        default=1.0, validator=_validate.kept(_validate.between, 0, 1)
    )
    steps: int = attrs.field(default=1, validator=_validate.kept(_validate.count))
    noise_multiplier: float = attrs.field(default=1.0, validator=_validate.kept(_validate.positive))
    test: MarginTest | None = None
    propose: float = 0.5
    failure: float = 1e-8
    reveals: Reveals = attrs.field(default=Reveals.MONOTONE_BRANCH, converter=Reveals)
    relation: Relation = attrs.field(default=ADD_REMOVE, validator=_validate.by(check_relation))
    num_bands: int = attrs.field(default=1, validator=_validate.kept(_validate.count, 1))

    def __attrs_post_init__(self) -> None:
        check_bands(self.num_bands, self.sampling_rate)
        if self.num_bands > 1 and self.test is not None:
            raise _validate.ArgumentError("num_bands", "1 with a test", got=self.num_bands)
        _ = self.event  # its constructor validates the remaining fields

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of all steps, for any accountant."""
        release: dp.DpEvent = dp.GaussianDpEvent(self.noise_multiplier)
        if self.test is not None:
            release = events.ProposeTestReleaseDpEvent(
                self.noise_multiplier, self.propose, self.test, self.failure, None, self.reveals
            )
        rate = min(1.0, self.num_bands * self.sampling_rate)
        sampled = dp.PoissonSampledDpEvent(rate, release)
        turns = -(-self.steps // self.num_bands)
        return in_turns(dp.SelfComposedDpEvent(sampled, turns), self.num_bands)

    def epsilon(self, delta: float, accountant: Accountant | None = None) -> float:
        """The ε at which the run is (ε, δ)-DP; by the PLD accountant unless another is given."""
        from prudent.accounting.group_privacy import epsilon_of
        from prudent.accounting.pld_accountant import PldAccountant

        return epsilon_of(self.event, delta, self.relation, accountant or PldAccountant)

    def replace(self, parameter: Parameter, value: float) -> "Run":
        """Return a copy with one parameter changed."""
        _validate.one_of(get_args(Parameter), parameter=parameter)
        value = _validate.non_negative(**{parameter: value})
        if parameter == "test_scale":
            if self.test is None:
                raise _validate.ArgumentError("test", "a test, whose scale to change", got=None)
            return attrs.evolve(self, test=attrs.evolve(self.test, scale=value))
        if parameter == "steps":
            return attrs.evolve(self, steps=int(value))
        change: dict[str, Any] = {parameter: value}
        return attrs.evolve(self, **change)

    def calibrate(
        self,
        parameter: Parameter = "noise_multiplier",
        *,
        epsilon: float,
        delta: float,
        accountant: Accountant | None = None,
    ) -> "Run":
        """A copy with one parameter solved: the least noise, the most steps, and so on.

        The present value of that parameter is ignored.

        Args:
            parameter: The parameter to solve for. Noise, test scale and proposal are made as small
                as the target allows; steps, failure and sampling rate as large as it allows.
            epsilon: Target ε, > 0.
            delta: Target δ, in (0, 1).
            accountant: Which accountant prices the run; by default the PLD accountant.

        Returns:
            The run with that parameter solved; its ε at `delta` is at most `epsilon`.

        Raises:
            UnreachableTargetError: If no allowed value meets the target.
        """
        _validate.one_of(get_args(Parameter), parameter=parameter)
        if self.test is None and parameter in ("test_scale", "failure", "propose"):
            raise _validate.ArgumentError("test", f"a test, to solve for {parameter}", got=None)
        search, most = _SEARCHES[parameter], 1 / self.num_bands
        if parameter == "sampling_rate" and self.num_bands > 1:  # no part has a rate above 1
            search = attrs.evolve(search, unsafe=most, guess=min(search.guess, most / 2))
        value = solve(
            lambda x: self.replace(parameter, x).event,
            search,
            epsilon=epsilon,
            delta=delta,
            accountant=accountant,
            relation=self.relation,
            name=parameter,
        )
        return self.replace(parameter, value)
