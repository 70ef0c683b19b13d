"""The test that requires the least noise, for a margin that typical data have."""

import math
from collections.abc import Sequence

import attrs

from prudent import _validate
from prudent.accounting.calibration import (
    COARSE_INTERVAL,
    TOLERANCE,
    Accountant,
    UnreachableTargetError,
)
from prudent.accounting.events import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    MarginTest,
)
from prudent.accounting.pld_accountant import PldAccountant
from prudent.accounting.rdp_accountant import RdpAccountant
from prudent.accounting.run import Run


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
