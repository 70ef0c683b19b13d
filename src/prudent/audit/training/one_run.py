"""Audit of private training in one run with many canaries, each in a direction of its own.

    plan = Plan(sampling_rate=1.0, steps=1, aggregation=Sum(clip=1.0, noise_multiplier=2.0))
    one_run(plan, delta=1e-5, canaries=10_000).lower

The cost is that of one training run. The bounds hold whatever the canaries do to each other.

Each of m canaries is in the data by a fair coin. From what the run shows, the attacker guesses r of
the coins; T guesses are right. The coins are independent, the guesses are not.

**Point** (Steinke, Nasr and Jagielski 2023). Under pure ε-DP each guess, given the coins and the
guesses before it, is right with a probability of at most p = e^ε/(1 + e^ε), so T is at most
B ~ Bin(r, p) in distribution. Under (ε, δ)-DP it is at most B + N, where N >= 0 is independent of B
with mean at most 2mδ. As Pr[B + N >= v] is linear in the distribution of N, its largest value is

    Pr[B >= v] + 2mδ max over i of (Pr[B >= v - i] - Pr[B >= v]) / i.

**Curve** (Mahloujifar, Melis and Chaudhuri 2025). Let f be a symmetric trade-off curve, g(x) the
least false-positive rate of a test with true-positive rate x, that is f(1 - x), and
P_j = Pr[T >= j].
Flip the coin of canary i: "guess i is right and T >= j" becomes "guess i is wrong and T >= j - 1".
So the probabilities x and y of these two events satisfy g(x) <= y, given all other coins; g is
convex, hence also on average over coins and over canaries. There x is E[T; T >= j]/m, or

    R_j = (j P_j + P_(j+1) + ... + P_r) / m,

and y is E[r - T; T >= j - 1]/m = ((r - j + 1) P_(j-1) - P_j - ... - P_r)/m. Therefore

    P_(j-1) >= (m g(R_j) + P_j + ... + P_r) / (r - j + 1),        P_(j-1) >= P_j.

The right sides grow with every P on them. So from P_c = β, and 0 above, the recursion down to 0
gives the least P_0 of all distributions with Pr[T >= c] >= β. If it exceeds 1 there is none: c
right guesses refute f, with a probability of a false alarm below β.
"""

import math
from collections.abc import Callable
from typing import TypeAlias

import attrs
import numpy as np
from scipy import optimize, signal, special, stats

from prudent import _validate
from prudent.accounting.losses.loss_tables import TradeOff
from prudent.accounting.pld_accountant import PldAccountant
from prudent.accounting.relations import ADD_REMOVE, ZERO_OUT
from prudent.audit.auditing import CONFIDENCE
from prudent.audit.lower_bounds import BoolArray, FloatArray
from prudent.audit.result import AuditResult
from prudent.audit.training.scenes import Likelihood, Releases, dirac, observe_lanes
from prudent.audit.training.white_box import with_batch
from prudent.training.aggregation import Sum
from prudent.training.noise import coefficients
from prudent.training.plan import Plan

_LINES = 200  # of a curve without a closed form
_INTERVAL = 1e-3  # a coarse grid of losses: the curve is a little lower, so it is refuted less
_SMALLEST_DELTA = 1e-7


@attrs.frozen
class GaussianCurve:
    """The curve of telling N(0, 1) from N(μ, 1): Gaussian differential privacy."""

    mu: float

    def misses(self, alarms: FloatArray) -> FloatArray:
        """The least false-negative rates at these false-positive rates."""
        return np.asarray(special.ndtr(-special.ndtri(alarms) - self.mu))

    def epsilon(self, delta: float) -> float:
        """The ε of the curve at δ."""
        return epsilon_of_mu(self.mu, delta)


@attrs.frozen(eq=False)
class PlanCurve:
    """The curve of a plan, from its privacy profile at a grid of ε.

    Guarantee:
        Every (ε, δ(ε)) of the plan gives lines below its curve. The greatest of finitely many lines
        is below it too, so whoever refutes this curve refutes the plan.
    """

    plan: Plan
    _lines: TradeOff = attrs.field(init=False, repr=False)

    @_lines.default
    def _from_profile(self) -> TradeOff:
        accountant = PldAccountant(value_discretization_interval=_INTERVAL)
        accountant.compose(self.plan.event)
        most = accountant.get_epsilon(_SMALLEST_DELTA)
        grid = np.linspace(0.0, most if math.isfinite(most) else 50.0, _LINES)
        profile = grid, accountant.profile(grid)
        return TradeOff(profile, profile)

    def misses(self, alarms: FloatArray) -> FloatArray:
        """The least false-negative rates at these false-positive rates."""
        return np.maximum(0.0, self._lines.least(1 - alarms, alarms))

    def epsilon(self, delta: float) -> float:
        """The ε of the plan at δ."""
        return self.plan.epsilon(delta)


PrivacyCurve: TypeAlias = GaussianCurve | PlanCurve
"""A symmetric, convex trade-off curve."""


@attrs.frozen
class Family:
    """The curves of a plan with other noise, from the most private on.

    A plan promises more than one (ε, δ): its curve f bounds the errors of every test (Dong, Roth
    and Su 2022). An attacker with few runs sees the middle of the curve, not the tail that δ = 1e-5
    is about. So curves are refuted as a whole, and ε is read off the most private one refuted.
    It is of the plan's ε if the noise has the right shape and perhaps the wrong size.
    """

    plan: Plan  # as claimed

    def __attrs_post_init__(self) -> None:
        self.plan.refuse_allocation()
        if self.plan.relation not in (ADD_REMOVE, ZERO_OUT):
            raise _validate.ArgumentError(
                "plan", "with the relation ADD_REMOVE or ZERO_OUT", shown=str(self.plan.relation)
            )

    @property
    def is_gaussian(self) -> bool:
        """Whether every curve is one of Gaussian differential privacy."""
        return isinstance(self.plan.aggregation, Sum) and self.plan.sampling_rate == 1

    def less_private(self, factor: float) -> PrivacyCurve:
        """The curve of the plan with its noise divided by a factor."""
        rule = self.plan.aggregation
        noise = rule.noise_multiplier / factor  # type: ignore[attr-defined]
        if self.is_gaussian:
            return GaussianCurve(math.sqrt(self.plan.steps) / noise)
        return PlanCurve(attrs.evolve(self.plan, aggregation=rule.with_noise(noise)))


def epsilon_of_mu(mu: float, delta: float) -> float:
    """The ε at which μ-Gaussian DP is (ε, δ)-DP (Balle and Wang 2018)."""
    if mu <= 0:
        return 0.0

    def excess(epsilon: float) -> float:
        far = special.log_ndtr(-epsilon / mu - mu / 2) + epsilon
        return float(special.ndtr(mu / 2 - epsilon / mu) - math.exp(far) - delta)

    if excess(0.0) <= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, mu * (mu / 2 + 40)))


_LARGEST_FACTOR = 64.0
_LEAST_FACTOR = 0.02  # noise of fifty times the plan's: its price is next to nothing
_MOST_GUESSES = 5000
_LARGEST_EPSILON = 50.0
_PRECISION = 1e-4


class Against(_validate.Choice):
    """What one run is to refute."""

    POINT = "point"
    """(ε, δ)-DP, whatever the mechanism."""

    CURVE = "curve"
    """The whole trade-off curve of the plan, or of the plan with more noise."""


_NOTES = {
    Against.POINT: "The bound is on (ε, δ)-DP (Steinke, Nasr and Jagielski 2023).",
    Against.CURVE: "The bound is on the trade-off curve of the plan with other noise (Mahloujifar, "
    "Melis and Chaudhuri 2025).",
}


@attrs.frozen
class OneRunBound:
    """A way to turn right guesses into a lower bound on ε; of a curve, in the plan's family."""

    plan: Plan
    against: Against
    delta: float
    confidence: float

    def lower(self, right: int, guesses: int, canaries: int) -> float:
        """The largest ε refuted."""
        if self.against is Against.POINT:
            return epsilon_of_right_guesses(
                right, guesses, canaries, delta=self.delta, confidence=self.confidence
            )
        family = Family(self.plan)

        def refuted(factor: float) -> bool:
            if factor < _LEAST_FACTOR:
                return True
            curve = family.less_private(factor)
            return is_curve_refuted(right, guesses, canaries, curve, confidence=self.confidence)

        factor = largest_refuted(refuted, _LARGEST_FACTOR, precision=1e-3)
        return family.less_private(factor).epsilon(self.delta) if factor > _LEAST_FACTOR else 0.0


def one_run(
    plan: Plan,
    *,
    delta: float,
    epsilon: float | None = None,
    canaries: int = 10_000,
    guesses: int | None = None,
    against: Against | str = Against.POINT,
    confidence: float = CONFIDENCE,
) -> AuditResult:
    """Try to refute the price of a plan in a single run, in which every record is a canary.

    A fair coin decides for each canary whether it is in the data. The attacker sees every release
    and guesses where the likelihood ratio is most telling.

    Guarantee:
        If the run is as private as claimed, the result is `refuted` with a probability of at most
        1 - confidence: for `point` the claim is (ε, δ)-DP, for `curve` the plan's trade-off curve.

    Args:
        plan: A plan of DP-SGD. Its steps are those of `fit`. A trimmed or tested sum keeps few of
            many equal canaries, so one run says little about it; see `white_box`.
        delta: δ of the claim.
        epsilon: ε of the claim; None: `plan.epsilon(delta)`.
        canaries: The number of canaries and of coordinates of the model.
        guesses: The number of guesses, fixed before the run. None: what should refute most, found
            by a simulation of an honest run.
        against: What to refute: `point` or `curve`.
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
    bound = OneRunBound(plan, Against(against), delta, confidence)
    claimed = plan.epsilon(delta) if epsilon is None else epsilon
    count = _validate.count(2, canaries=canaries)
    if guesses is None:
        guesses = promising_guesses(bound, count)
    coins = np.asarray(np.random.default_rng().random(count) < 0.5)
    right = right_guesses(_odds(plan, observe_lanes(plan, coins)), coins, guesses)
    return AuditResult(
        name=f"training, one run with {count} canaries",
        claimed=claimed,
        delta=delta,
        lower=bound.lower(right, guesses, count),
        confidence=confidence,
        runs=count,
        guesses=guesses,
        right=right,
        exact=Likelihood(plan, dirac(plan.aggregation)).epsilon(delta),
        notes=(_NOTES[bound.against],),
    )


def promising_guesses(bound: OneRunBound, canaries: int) -> int:
    """The number of guesses that would refute most, by a simulation of an honest run."""
    plan, random = bound.plan, np.random.default_rng()
    rule = plan.aggregation
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
    # A curve without a closed form takes long to refute, and what suits a point suits it as well.
    if not Family(plan).is_gaussian:
        bound = attrs.evolve(bound, against=Against.POINT)
    return int(
        max(offers, key=lambda r: bound.lower(math.floor(expected[r - 1]), int(r), canaries))
    )


def right_guesses(odds: FloatArray, coins: BoolArray, guesses: int) -> int:
    """The number of right guesses among those with the largest log-odds, either way."""
    chosen = np.argsort(-np.abs(odds), kind="stable")[:guesses]
    return int(np.sum((odds[chosen] > 0) == coins[chosen]))


def _odds(plan: Plan, along: FloatArray) -> FloatArray:
    """The log-odds of each canary, given what its lane shows."""
    return Likelihood(plan, dirac(plan.aggregation)).score(Releases.of_sums(along))


def p_value(
    right: int, guesses: int, canaries: int, *, epsilon: float, delta: float = 0.0
) -> float:
    """An upper bound on the probability of this many right guesses if a run is (ε, δ)-DP."""
    check_counts(right, guesses, canaries)
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

    return largest_refuted(refuted, _LARGEST_EPSILON)


def is_curve_refuted(
    right: int, guesses: int, canaries: int, curve: PrivacyCurve, *, confidence: float
) -> bool:
    """Whether this many right guesses of one run refute a trade-off curve.

    Guarantee:
        If the run has errors on or above the curve for every canary, the answer is yes with a
        probability of at most 1 - confidence, for a number of guesses fixed before the run.
    """
    check_counts(right, guesses, canaries)
    tail = 1 - confidence  # P_j
    above = 0.0  # P_(j+1) + ... + P_r
    for j in range(right, 0, -1):
        hits = min(1.0, (j * tail + above) / canaries)
        alarms = float(curve.misses(np.array(1 - hits)))
        above += tail
        tail = max(tail, (canaries * alarms + above) / (guesses - j + 1))
        if tail > 1:
            return True
    return False


def largest_refuted(
    refuted: Callable[[float], bool], largest: float, *, precision: float = _PRECISION
) -> float:
    """The largest refuted claim of a family in ascending order, rounded down; 0 if none is."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while high < largest and refuted(high):
        low, high = high, 2 * high
    while high - low > precision * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def check_counts(right: int, guesses: int, canaries: int) -> None:
    """Raise an error unless right <= guesses <= canaries."""
    _validate.count(1, canaries=canaries)
    _validate.count(0, canaries, guesses=guesses)
    _validate.count(0, guesses, right=right)
