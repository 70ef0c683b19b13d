"""Audit of private training in one run with many canaries, each in a direction of its own.

    plan = Plan(sampling_rate=1.0, steps=1, aggregation=Sum(clip=1.0, noise_multiplier=2.0))
    one_run(plan, delta=1e-5, canaries=10_000).lower

The cost is that of one training run. The bound holds whatever the canaries do to each other.

Each of m canaries is in the data by a fair coin. From what the run shows, the attacker guesses r of
the coins; T guesses are right. The coins are independent, the guesses are not.

Under pure ε-DP each guess, given the coins and the guesses before it, is right with a probability
of at most p = e^ε/(1 + e^ε), so T is at most B ~ Bin(r, p) in distribution. Under (ε, δ)-DP it is
at most B + N, where N >= 0 is independent of B with mean at most 2mδ (Steinke, Nasr and Jagielski
2023). As Pr[B + N >= v] is linear in the distribution of N, its largest value is

    Pr[B >= v] + 2mδ max over i of (Pr[B >= v - i] - Pr[B >= v]) / i.
"""

import math

import numpy as np
from scipy import signal, special, stats

from prudent import _validate
from prudent.accounting.relations import ADD_REMOVE, ZERO_OUT
from prudent.audit.auditing import CONFIDENCE, AuditResult, check_claim
from prudent.audit.lower_bounds import FloatArray
from prudent.audit.training.scenes import Likelihood, Releases, dirac, observe_lanes
from prudent.audit.training.white_box import with_batch
from prudent.training.aggregation import Sum
from prudent.training.noise import coefficients
from prudent.training.plan import Plan

_MOST_GUESSES = 5000
_LARGEST_EPSILON = 50.0
_PRECISION = 1e-4
_NOTE = "The bound is on (ε, δ)-DP (Steinke, Nasr and Jagielski 2023)."


def one_run(
    plan: Plan,
    *,
    delta: float,
    epsilon: float | None = None,
    canaries: int = 10_000,
    guesses: int | None = None,
    confidence: float = CONFIDENCE,
) -> AuditResult:
    """Try to refute the price of a plan in a single run, in which every record is a canary.

    A fair coin decides for each canary whether it is in the data. The attacker sees every release
    and guesses where the likelihood ratio is most telling.

    Guarantee:
        If the run is (ε, δ)-DP as claimed, the result is `refuted` with a probability of at most
        1 - confidence.

    Args:
        plan: A plan of DP-SGD. Its steps are those of `fit`. A trimmed or tested sum keeps few of
            many equal canaries, so one run says little about it; see `white_box`.
        delta: δ of the claim.
        epsilon: ε of the claim; None: `plan.epsilon(delta)`.
        canaries: The number of canaries and of coordinates of the model.
        guesses: The number of guesses, fixed before the run. None: what should refute most, found
            by a simulation of an honest run.
        confidence: 1 minus the false-alarm rate.
    """
    plan = with_batch(plan)
    if not isinstance(plan.aggregation, Sum):
        raise _validate.ArgumentError(
            "plan",
            "DP-SGD (Sum)",
            shown=type(plan.aggregation).__name__,
            hint="Of many equal canaries a trimmed sum keeps few: use white_box.",
        )
    plan.refuse_allocation()
    if plan.relation not in (ADD_REMOVE, ZERO_OUT):
        raise _validate.ArgumentError(
            "plan", "with the relation ADD_REMOVE or ZERO_OUT", shown=str(plan.relation)
        )
    claimed = plan.epsilon(delta) if epsilon is None else epsilon
    check_claim(claimed, delta, confidence)
    count = _validate.count(2, canaries=canaries)
    if guesses is not None:
        _validate.count(0, count, guesses=guesses)
    else:
        guesses = promising_guesses(plan, count, delta=delta, confidence=confidence)
    coins = np.asarray(np.random.default_rng().random(count) < 0.5)
    odds = _odds(plan, observe_lanes(plan, coins))
    chosen = np.argsort(-np.abs(odds), kind="stable")[:guesses]
    right = int(np.sum((odds[chosen] > 0) == coins[chosen]))
    lower = epsilon_of_right_guesses(right, guesses, count, delta=delta, confidence=confidence)
    return AuditResult(
        name=f"training, one run with {count} canaries",
        claimed=claimed,
        delta=delta,
        lower=lower,
        confidence=confidence,
        runs=count,
        guesses=guesses,
        right=right,
        exact=Likelihood(plan, dirac(plan.aggregation)).epsilon(delta),
        notes=(_NOTE,),
    )


def promising_guesses(plan: Plan, canaries: int, *, delta: float, confidence: float) -> int:
    """The number of guesses that would refute most, by a simulation of an honest run."""
    rule, random = plan.aggregation, np.random.default_rng()
    assert isinstance(rule, Sum)
    coins = random.random(canaries) < 0.5
    shape = canaries, plan.steps
    drawn = coins[:, None] & (random.random(shape) < plan.turn_rate)
    parts = random.integers(plan.num_bands, size=(canaries, 1))
    drawn &= np.arange(plan.steps) % plan.num_bands == parts
    column = coefficients(plan.num_bands, plan.steps)
    noise = signal.lfilter([1.0], column, random.standard_normal(shape), axis=1)
    along = rule.clip * (drawn + rule.noise_multiplier * noise)
    sizes = np.sort(np.abs(_odds(plan, along)))[::-1]
    expected = np.cumsum(1 / (1 + np.exp(-sizes)))
    most = min(canaries, _MOST_GUESSES)
    offers = np.unique(np.geomspace(min(8, canaries), most, 12).astype(int))

    def promise(guesses: int) -> float:
        right = math.floor(expected[guesses - 1])
        claim = {"delta": delta, "confidence": confidence}
        return epsilon_of_right_guesses(right, guesses, canaries, **claim)

    return max(map(int, offers), key=promise)


def _odds(plan: Plan, along: FloatArray) -> FloatArray:
    """The log-odds of each canary, given what its lane shows."""
    return Likelihood(plan, dirac(plan.aggregation)).score(Releases.of_sums(along))


def p_value(
    right: int, guesses: int, canaries: int, *, epsilon: float, delta: float = 0.0
) -> float:
    """An upper bound on the probability of this many right guesses if a run is (ε, δ)-DP."""
    _validate.count(1, canaries=canaries)
    _validate.count(0, canaries, guesses=guesses)
    _validate.count(0, guesses, right=right)
    chance = special.expit(epsilon)
    tail = float(stats.binom.sf(right - 1, guesses, chance))
    if delta == 0 or right == 0:
        return min(1.0, tail)
    steps = np.arange(1, right + 1)
    slopes = (stats.binom.sf(right - 1 - steps, guesses, chance) - tail) / steps
    return min(1.0, tail + 2 * canaries * delta * float(slopes.max()))


def epsilon_of_right_guesses(
    right: int, guesses: int, canaries: int, *, delta: float, confidence: float
) -> float:
    """The largest ε that this many right guesses of one run refute at δ.

    Guarantee:
        If the run is (ε, δ)-DP, the bound exceeds ε with a probability of at most 1 - confidence.
    """

    def refuted(epsilon: float) -> bool:
        return p_value(right, guesses, canaries, epsilon=epsilon, delta=delta) < 1 - confidence

    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < _LARGEST_EPSILON and refuted(high):
        low, high = high, 2 * high
    while high - low > _PRECISION * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
