"""The parameters of many sampled releases as one value: price, calibration and best test."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent.accounting.calibration import (
    COARSE_INTERVAL,
    TOLERANCE,
    Accountant,
    Search,
    UnreachableTargetError,
    solve,
)
from prudent.accounting.events import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    MarginTest,
    ProposeTestReleaseDpEvent,
    Reveals,
    WorstOfDpEvent,
)
from prudent.accounting.group_privacy import epsilon_of
from prudent.accounting.pld_accountant import PldAccountant
from prudent.accounting.rdp_accountant import RdpAccountant
from prudent.accounting.relations import ADD_REMOVE, Relation, check_relation

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

    A record is in one of `num_bands` parts, whatever the data are, and for each of them it costs
    at most `event`: the worst of these. For several records, which may be in different parts, a
    `WorstOfDpEvent` has only the bound of the chain.
    """
    return event if num_bands == 1 else WorstOfDpEvent([event])


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

    sampling_rate: float = 1.0
    steps: int = 1
    noise_multiplier: float = 1.0
    test: MarginTest | None = None
    propose: float = 0.5
    failure: float = 1e-8
    reveals: Reveals = attrs.field(default=Reveals.MONOTONE_BRANCH, converter=Reveals)
    relation: Relation = ADD_REMOVE
    num_bands: int = 1

    def __attrs_post_init__(self) -> None:
        _validate.fields(self, partial(_validate.between, 0, 1), "sampling_rate")
        _validate.fields(self, check_relation, "relation")
        _validate.fields(self, _validate.count, "steps")
        _validate.fields(self, _validate.positive, "noise_multiplier")
        _validate.fields(self, partial(_validate.count, 1), "num_bands")
        check_bands(self.num_bands, self.sampling_rate)
        if self.num_bands > 1 and self.test is not None:
            raise _validate.ArgumentError(
                "num_bands",
                "1 with a test",
                got=self.num_bands,
                why="correlated noise has one level",
            )
        _ = self.event  # its constructor validates the remaining fields

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of all steps, for any accountant."""
        release: dp.DpEvent = dp.GaussianDpEvent(self.noise_multiplier)
        if self.test is not None:
            release = ProposeTestReleaseDpEvent(
                self.noise_multiplier, self.propose, self.test, self.failure, None, self.reveals
            )
        rate = min(1.0, self.num_bands * self.sampling_rate)
        sampled = dp.PoissonSampledDpEvent(rate, release)
        turns = -(-self.steps // self.num_bands)
        return in_turns(dp.SelfComposedDpEvent(sampled, turns), self.num_bands)

    def epsilon(self, delta: float, accountant: Accountant = PldAccountant) -> float:
        """The ε at which the run is (ε, δ)-DP for its neighbouring relation."""
        return epsilon_of(self.event, delta, self.relation, accountant)

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
        accountant: Accountant = PldAccountant,
    ) -> "Run":
        """A copy with one parameter solved: the least noise, the most steps, and so on.

        The present value of that parameter is ignored.

        Args:
            parameter: The parameter to solve for. Noise, test scale and proposal are made as small
                as the target allows; steps, failure and sampling rate as large as it allows.
            epsilon: Target ε, > 0.
            delta: Target δ, in (0, 1).
            accountant: Which accountant prices the run.

        Returns:
            The run with that parameter solved; its ε at `delta` is at most `epsilon`.

        Raises:
            UnreachableTargetError: If no allowed value meets the target.
        """
        _validate.one_of(get_args(Parameter), parameter=parameter)
        if self.test is None and parameter in ("test_scale", "failure", "propose"):
            raise _validate.ArgumentError("test", f"a test, to solve for {parameter}", got=None)
        value = solve(
            lambda x: self.replace(parameter, x).event,
            self._search(parameter),
            epsilon=epsilon,
            delta=delta,
            accountant=accountant,
            relation=self.relation,
            name=parameter,
        )
        return self.replace(parameter, value)

    def _search(self, parameter: Parameter) -> Search:
        """Where to look for a parameter; no part is drawn from with a rate above 1."""
        search, most = _SEARCHES[parameter], 1 / self.num_bands
        if parameter != "sampling_rate" or self.num_bands == 1:
            return search
        return attrs.evolve(search, unsafe=most, guess=min(search.guess, most / 2))


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
    _validate.instance(Run, "a Run", run=run)
    kinds = _validate.values(kinds=kinds)
    if not all(isinstance(kind, type) and issubclass(kind, MarginTest) for kind in kinds):
        raise _validate.ArgumentError("kinds", "kinds of MarginTest", got=kinds)
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
            fresh = PldAccountant(value_discretization_interval=COARSE_INTERVAL)
        return fresh.compose(candidate.event).get_epsilon(delta)

    best, unreachable = None, None
    for candidate in sorted(candidates, key=lambda one: one.epsilon(delta, RdpAccountant)):
        if best is not None:
            same_noise = candidate.replace("noise_multiplier", best.noise_multiplier)
            if rough(same_noise) > rough(best) * (1 - TOLERANCE):
                continue
        try:
            solved = candidate.calibrate(
                "noise_multiplier", epsilon=epsilon, delta=delta, accountant=accountant
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
