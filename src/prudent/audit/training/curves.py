"""Trade-off curves of plans: the claim that an audit of a whole curve refutes.

A plan promises more than one (ε, δ): its curve f bounds the errors of every test, so that a test
with false-positive rate x has a false-negative rate of at least f(x) (Dong, Roth and Su 2022). An
attacker with few runs sees the middle of the curve, not the tail that δ = 1e-5 is about. So curves
of one family, the plan with more or less noise, are refuted as a whole, and the ε of the most
private curve refuted is read off at δ.

Such a bound says less than one on (ε, δ) alone: it is of the plan's ε if the plan's true curve is
in the family, that is, if its noise has the right shape and perhaps the wrong size.
"""

import math
from typing import TypeAlias

import attrs
import numpy as np
from scipy import optimize, special

from prudent import _validate
from prudent.accounting.losses.loss_tables import TradeOff
from prudent.accounting.pld_accountant import PldAccountant
from prudent.accounting.relations import ADD_REMOVE, ZERO_OUT
from prudent.audit.lower_bounds import FloatArray
from prudent.training.aggregation import Sum
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
    """The curves of a plan with other noise, from the most private on."""

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
