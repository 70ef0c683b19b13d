"""Solving for a parameter: the noise, the steps, the test, given a target (ε, δ).

Whatever is returned was priced again, and its ε is at or below the target.
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

_TOLERANCE = 1e-5  # relative, of the returned parameter
_COARSE_INTERVAL = 1e-3  # of the losses while searching; the answer is priced on the fine grid


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
    """Many sampled runs of one mechanism: everything its price depends on.

    Attributes:
        sampling_rate: Probability with which each record enters a step, independently.
        steps: How many.
        noise_multiplier: σ₁/GS(f₁).
        test: The private test; None is the plain Gaussian mechanism.
        propose: τ/GS(f₂); unused without a test.
        failure: How often a margin of 0 may pass; unused without a test.
        reveals: What an observer learns of the test: by default the branch of a monotone margin,
            which is what a trimmed sum has, as in a training plan.
        relation: Which data sets are neighbours.
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
        _ = self.event  # checks the rest

    @property
    def event(self) -> dp.DpEvent:
        """The whole of it, for any accountant."""
        release: dp.DpEvent = dp.GaussianDpEvent(self.noise_multiplier)
        if self.test is not None:
            release = ProposeTestReleaseDpEvent(
                self.noise_multiplier, self.propose, self.test, self.failure, None, self.reveals
            )
        sampled = dp.PoissonSampledDpEvent(self.sampling_rate, release)
        return dp.SelfComposedDpEvent(sampled, self.steps)

    def epsilon(self, delta: float, accountant: Accountant = PldAccountant) -> float:
        """The ε at which this is (ε, δ)-DP for its relation."""
        return epsilon_of(self.event, delta, self.relation, accountant)

    def replace(self, parameter: Parameter, value: float) -> "Run":
        """A copy with one parameter changed."""
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
    """Where a parameter is searched: from a guess, outwards, to the ends.

    Attributes:
        safe: The end with the least ε.
        unsafe: The end with the most.
        guess: Where to begin.
        whole: Whether only whole numbers are allowed.
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
    """Solves for one parameter of a run: least noise, most steps, and so on.

    Args:
        run: The other parameters; its own value of the solved one is not used.
        parameter: Which to solve for. Noise, test scale and proposal are made as small as the
            target allows; steps, failure and sampling rate as large.
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
    """The value nearest to the unsafe end whose event is (epsilon, delta)-DP for the relation.

    The event's ε must not decrease from the safe end to the unsafe one. The privacy-loss accountant
    searches on a coarse grid first: it can only overstate ε, so its answer is safe already, and the
    fine grid moves it a little further.
    """
    epsilon = _validate.positive(epsilon=epsilon)
    delta = _validate.between(0, 1, ends="()", delta=delta)

    def gap(value: float, fresh: Callable[[], PldAccountant | RdpAccountant]) -> float:
        spent = epsilon_of(event_of(value), delta, relation, fresh)
        far = math.log(spent / epsilon) if 0 < spent < math.inf else math.copysign(50, spent - 1)
        # The sign decides what is safe, and must not be rounded away with the quotient.
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
    """A safe and an unsafe point, by ever longer steps from the guess; None if all is unsafe.

    When all is safe, both points are the unsafe end.
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
    """The safe end of a narrowed bracket, by inverse interpolation on a logarithmic scale."""
    points, widths = [safe, unsafe], [math.inf, math.inf, math.inf]
    while abs(width := math.log(unsafe[0] / safe[0])) > tolerance:
        if whole and abs(unsafe[0] - safe[0]) <= 1:
            break
        widths.append(abs(width))
        share = (_root(points) - math.log(safe[0])) / width
        # Aim past the root, at the end further from it: once the root is known, that end moves.
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
    """The logarithm of the value of gap zero, by a parabola through the nearest three points."""
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
    """A test, and what it leaves to pay.

    Attributes:
        run: The run with the chosen test and the noise it needs.
        threshold: What the noisy margin must exceed.
        pass_probability: How often the given margin passes.
    """

    __test__ = False  # not a test case, whatever its name

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
    """The kind and scale of test that leaves the least noise, for a margin the data can show.

    A larger scale makes the test cheaper and its threshold higher. So each kind gets the largest
    scale at which `margin` still passes with `pass_probability`, and the kinds are compared by the
    noise multiplier that the target (ε, δ) then needs.

    Args:
        run: Sampling rate, steps, proposal, failure and what is revealed.
        margin: How large a margin typical data show; a public expectation, not a measurement.
        epsilon: Target ε.
        delta: Target δ.
        pass_probability: How often that margin should pass.
        kinds: Tests to choose among.
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
    """The candidate that meets the target with the least noise, solved.

    Solving takes many prices, so the one that is likely best goes first, and another is solved
    only if at that noise it costs less. The comparison uses a coarse grid for both.
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
    """The test of largest scale that a margin passes often enough."""

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
