"""Calibration: solve for the noise, the number of steps or the test, given a target (ε, δ).

Every returned value was priced by the accountant, and its ε is at or below the target.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent.accounting.events import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    MarginTest,
    ProposeTestReleaseDpEvent,
    Reveals,
)
from prudent.accounting.group_privacy import epsilon_of
from prudent.accounting.pld_accountant import PldAccountant
from prudent.accounting.rdp_accountant import RdpAccountant
from prudent.accounting.relations import ADD_REMOVE, Relation, check_relation

Accountant: TypeAlias = type[PldAccountant] | type[RdpAccountant]
Parameter: TypeAlias = Literal[
    "noise_multiplier", "steps", "test_scale", "failure", "propose", "sampling_rate"
]

_TOLERANCE = 1e-5  # relative tolerance of the returned parameter
_COARSE_INTERVAL = 1e-3  # grid of losses for the search; the answer is priced on the fine grid


class UnreachableTargetError(ValueError):
    """No allowed value of the parameter meets the target.

    Attributes:
        parameter: What was solved for; None where it is not a single number.
    """

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


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
    """

    sampling_rate: float = 1.0
    steps: int = 1
    noise_multiplier: float = 1.0
    test: MarginTest | None = None
    propose: float = 0.5
    failure: float = 1e-8
    reveals: Reveals = attrs.field(default=Reveals.MONOTONE_BRANCH, converter=Reveals)
    relation: Relation = ADD_REMOVE

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, partial(_validate.between, 0, 1), "sampling_rate")
        _validate.fields(self, check_relation, "relation")
        _validate.fields(self, _validate.count, "steps")
        _validate.fields(self, _validate.positive, "noise_multiplier")
        _ = self.event  # its constructor validates the remaining fields

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of all steps, for any accountant."""
        release: dp.DpEvent = dp.GaussianDpEvent(self.noise_multiplier)
        if self.test is not None:
            release = ProposeTestReleaseDpEvent(
                self.noise_multiplier, self.propose, self.test, self.failure, None, self.reveals
            )
        sampled = dp.PoissonSampledDpEvent(self.sampling_rate, release)
        return dp.SelfComposedDpEvent(sampled, self.steps)

    def epsilon(self, delta: float, accountant: Accountant = PldAccountant) -> float:
        """The ε at which the run is (ε, δ)-DP for its neighbouring relation."""
        return epsilon_of(self.event, delta, self.relation, accountant)

    def replace(self, parameter: Parameter, value: float) -> "Run":
        """Return a copy with one parameter changed."""
        if parameter == "test_scale":
            if self.test is None:
                raise ValueError("Expected a test to solve its scale, got test=None.")
            return attrs.evolve(self, test=attrs.evolve(self.test, scale=value))
        if parameter == "steps":
            return attrs.evolve(self, steps=int(value))
        change: dict[str, Any] = {parameter: value}
        return attrs.evolve(self, **change)


@attrs.frozen
class Search:
    """The range in which a parameter is searched, outwards from a guess.

    Attributes:
        safe: The end of the range with the smallest ε.
        unsafe: The end of the range with the largest ε.
        guess: Where the search begins.
        whole: Whether only integers are allowed.
    """

    safe: float
    unsafe: float
    guess: float
    whole: bool = False


_SEARCHES: dict[str, Search] = {
    "noise_multiplier": Search(safe=1e4, unsafe=1e-2, guess=1.0),
    "steps": Search(safe=1, unsafe=1e9, guess=1000, whole=True),
    "test_scale": Search(safe=1e4, unsafe=1e-2, guess=2.0),
    "failure": Search(safe=1e-30, unsafe=0.499, guess=1e-8),
    "propose": Search(safe=1.0, unsafe=1e-2, guess=0.3),
    "sampling_rate": Search(safe=1e-9, unsafe=1.0, guess=0.01),
}


def calibrate(
    run: Run,
    parameter: Parameter,
    *,
    epsilon: float,
    delta: float,
    accountant: Accountant = PldAccountant,
) -> Run:
    """Solve for one parameter of a run: the least noise, the most steps, and so on.

    Args:
        run: The other parameters; its value of the solved parameter is ignored.
        parameter: The parameter to solve for. Noise, test scale and proposal are made as small as
            the target allows; steps, failure and sampling rate as large as it allows.
        epsilon: Target ε, > 0.
        delta: Target δ, in (0, 1).
        accountant: Which accountant prices the run.

    Returns:
        The run with that parameter solved; `run.epsilon(delta, accountant)` is at most `epsilon`.

    Raises:
        UnreachableTargetError: If no allowed value meets the target.
    """
    _validate.one_of(get_args(Parameter), parameter=parameter)
    if run.test is None and parameter in ("test_scale", "failure", "propose"):
        raise ValueError(f"Expected a test to solve its {parameter}, got test=None.")
    value = solve(
        lambda x: run.replace(parameter, x).event,
        _SEARCHES[parameter],
        epsilon=epsilon,
        delta=delta,
        accountant=accountant,
        relation=run.relation,
        name=parameter,
    )
    return run.replace(parameter, value)


def solve(
    event_of: Callable[[float], dp.DpEvent],
    search: Search,
    *,
    epsilon: float,
    delta: float,
    accountant: Accountant = PldAccountant,
    relation: Relation = ADD_REMOVE,
    name: str = "parameter",
) -> float:
    """Return the value nearest to the unsafe end whose event is (epsilon, delta)-DP.

    The event's ε for the relation must not decrease from the safe end to the unsafe end. With the
    PLD accountant the search starts on a coarse grid of losses. A coarse grid can only overstate ε,
    so its answer is already safe; the fine grid then moves it a little further.
    """
    epsilon = _validate.positive(epsilon=epsilon)
    delta = _validate.between(0, 1, ends="()", delta=delta)

    def gap(value: float, fresh: Callable[[], PldAccountant | RdpAccountant]) -> float:
        spent = epsilon_of(event_of(value), delta, relation, fresh)
        far = math.log(spent / epsilon) if 0 < spent < math.inf else math.copysign(50, spent - 1)
        # The sign decides what is safe, so it must survive the rounding of the quotient.
        return min(far, 0.0) if spent <= epsilon else max(far, math.ulp(0.0))

    def fine(value: float) -> float:
        return gap(value, accountant)

    def coarse(value: float) -> float:
        return gap(value, lambda: PldAccountant(value_discretization_interval=_COARSE_INTERVAL))

    bracket = None
    if accountant is PldAccountant:
        bracket = _bracket(coarse, search, 2.0)
        if bracket is not None:
            rough = _close_in(coarse, *bracket, search.whole, 100 * _TOLERANCE)
            bracket = _bracket(fine, attrs.evolve(search, guess=rough), 1.002)
    if bracket is None:
        bracket = _bracket(fine, search, 2.0)
    if bracket is None:
        low, high = sorted((search.safe, search.unsafe))
        raise UnreachableTargetError(
            f"No {name} in [{low:g}, {high:g}] gives epsilon <= {epsilon:g} at delta = {delta:g}. "
            "Raise epsilon or delta, or change another parameter.",
            parameter=name,
        )
    return _close_in(fine, *bracket, search.whole, _TOLERANCE)


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


@attrs.frozen
class TestChoice:
    """The test chosen by `best_test`, with the noise that it requires.

    Attributes:
        run: The run with the chosen test and the noise it needs.
        threshold: The threshold that the noisy margin must exceed.
        pass_probability: The probability with which the given margin passes.
    """

    __test__ = False  # keeps pytest from collecting this class as a test case

    run: Run
    threshold: float
    pass_probability: float


def best_test(
    run: Run,
    *,
    margin: int,
    epsilon: float,
    delta: float,
    pass_probability: float = 0.5,
    kinds: Sequence[type[MarginTest]] = (
        LaplaceTest,
        GaussianTest,
        DiscreteLaplaceTest,
        DiscreteGaussianTest,
    ),
    accountant: Accountant = PldAccountant,
) -> TestChoice:
    """Choose the kind and scale of test that requires the least noise, for an expected margin.

    A larger scale makes the test cheaper but its threshold higher. So each kind gets the largest
    scale at which `margin` still passes with `pass_probability`, and the kinds are compared by the
    noise multiplier that the target (ε, δ) then requires.

    Args:
        run: Sampling rate, steps, proposal, failure and what is revealed.
        margin: The margin that typical data have; a public expectation, not a measurement.
        epsilon: Target ε.
        delta: Target δ.
        pass_probability: The probability with which that margin should pass.
        kinds: The kinds of test to choose from.
        accountant: Which accountant prices the run.
    """
    _validate.count(1, margin=margin)
    _validate.between(0, 1, ends="()", pass_probability=pass_probability)
    tests = [_largest_test(kind, margin, run.failure, pass_probability) for kind in kinds]
    candidates = [attrs.evolve(run, test=test) for test in tests if test is not None]
    if not candidates:
        raise UnreachableTargetError(
            f"No test passes a margin of {margin} with probability {pass_probability:g} at failure "
            f"{run.failure:g}. Expect a larger margin, or allow a larger failure."
        )
    best = _least_noise(candidates, epsilon=epsilon, delta=delta, accountant=accountant)
    assert best.test is not None
    threshold = best.test.threshold(run.failure)
    return TestChoice(best, threshold, best.test.tail(threshold - margin))


def _least_noise(
    candidates: Sequence[Run], *, epsilon: float, delta: float, accountant: Accountant
) -> Run:
    """Return the candidate that meets the target with the least noise, with its noise solved.

    Solving evaluates the accountant many times. So the candidate that is likely best is solved
    first, and another one only if its ε is smaller at the same noise. Both are compared on a coarse
    grid.
    """

    def rough(candidate: Run) -> float:
        fresh: PldAccountant | RdpAccountant = accountant()
        if accountant is PldAccountant:
            fresh = PldAccountant(value_discretization_interval=_COARSE_INTERVAL)
        return fresh.compose(candidate.event).get_epsilon(delta)

    best, unreachable = None, None
    for candidate in sorted(candidates, key=lambda one: one.epsilon(delta, RdpAccountant)):
        if best is not None:
            same_noise = candidate.replace("noise_multiplier", best.noise_multiplier)
            if rough(same_noise) > rough(best) * (1 - _TOLERANCE):
                continue
        try:
            solved = calibrate(
                candidate, "noise_multiplier", epsilon=epsilon, delta=delta, accountant=accountant
            )
        except UnreachableTargetError as error:
            unreachable = error
            continue
        if best is None or solved.noise_multiplier < best.noise_multiplier:
            best = solved
    if best is None:
        assert unreachable is not None
        raise unreachable
    return best


def _largest_test(
    kind: type[MarginTest], margin: int, failure: float, pass_probability: float
) -> MarginTest | None:
    """Return the test of the largest scale that the margin passes with this probability."""

    def passes(scale: float) -> bool:
        test = kind(scale)
        return test.tail(test.threshold(failure) - margin) >= pass_probability

    low, high = 1e-2, min(1e4, kind.largest_scale)
    if not passes(low):
        return None
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if passes(middle) else (low, middle)
    return kind(low)
