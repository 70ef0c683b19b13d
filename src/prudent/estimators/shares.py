"""How a model divides its budget: fractions of μ², calibrated together by the exact accountant.

A model asks for choices by the exponential mechanism and for sums with Gaussian noise. A choice of
bounded range ε₀ costs about as much as a Gaussian release of μ = ε₀/2, and the squares of μ add up.
So each part gets a fraction of μ². One number, the total μ, is then solved for with the event of
all parts together; the fractions decide what the model is good at, and never what it costs.
"""

import functools
import math
from collections.abc import Mapping

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent.accounting.calibration import Search, solve
from prudent.accounting.events import ExponentialMechanismDpEvent
from prudent.accounting.losses.moments import gaussian_delta
from prudent.release.noise import SLACK

SMALLEST_EPSILON, LARGEST_EPSILON = 1e-2, 50.0
"""Limits of the ε of a model."""

LARGEST_MULTIPLIER = 2.0**15
"""Largest noise multiplier of a sum, at which its noise still fits the source of randomness."""

_LEAST_CHOICE = 2e-4  # ε of a private quantile, which reads more records with a smaller one
_SEARCH_FACTOR = 50.0


@attrs.frozen
class BudgetPart:
    """Releases of one kind, which share a fraction of μ² equally."""

    share: float  # the fraction of μ²
    times: int = 1  # the number of releases; 0 means that this part is not used
    # Whether they are choices by the exponential mechanism; otherwise Gaussian sums.
    choice: bool = False
    # Whether a certificate names the noise of these sums, so that their event must show it.
    shown: bool = False

    def mu(self, total: float) -> float:
        """The μ of one release, given the total."""
        return total * math.sqrt(self.share / self.times)

    def event(self, total: float) -> dp.DpEvent:
        """The event of all releases of this part, given the total μ."""
        one = (
            ExponentialMechanismDpEvent(2 * self.mu(total))
            if self.choice
            else dp.GaussianDpEvent(1 / self.mu(total))
        )
        return one if self.times == 1 else dp.SelfComposedDpEvent(one, self.times)


def choices(share: float, times: int = 1) -> BudgetPart:
    """Choices by the exponential mechanism: private quantiles."""
    return BudgetPart(share, times, choice=True)


def sums(share: float, times: int = 1, *, shown: bool = False) -> BudgetPart:
    """Sums with Gaussian noise."""
    return BudgetPart(share, times, shown=shown)


@attrs.frozen
class Prices:
    """What each part of a model may spend.

    Guarantee:
        If each part is used at most as often as it says, the model has the privacy of `event`, and
        is (ε, δ)-DP for adding or removing one unit, which has at most so many records: a sum
        changes by as many times what a record adds, and so does the score of a choice.
    """

    epsilon: float  # ε of the model
    delta: float  # δ of the model
    parts: Mapping[str, BudgetPart]  # the parts by name; a part that is used 0 times is left out
    mu: float  # the total μ of the parts
    # Events of what else the model releases, at a price of its own.
    also: tuple[dp.DpEvent, ...] = ()
    records: int = 1  # of a unit, at most

    @property
    def event(self) -> dp.DpEvent:
        """The privacy event of the model."""
        return _event(tuple(self.parts.values()), self.mu, self.also)

    def choice_epsilon(self, name: str) -> float:
        """ε of one choice of a part, for a record."""
        return 2 * self.parts[name].mu(self.mu) / self.records

    def multiplier(self, name: str) -> float:
        """The noise multiplier of one sum of a part, for a record."""
        return self.records / self.parts[name].mu(self.mu)


def calibrate(
    epsilon: float,
    delta: float,
    parts: Mapping[str, BudgetPart],
    also: tuple[dp.DpEvent, ...] = (),
    records: int = 1,
) -> Prices:
    """Return the prices of the parts, as large as (epsilon, delta) allows.

    Raises:
        ArgumentError: if ε or δ is out of range, or ε is too small for so many parts.
    """
    epsilon = _validate.between(SMALLEST_EPSILON, LARGEST_EPSILON, epsilon=epsilon)
    delta = _validate.small_delta(1e-18, ends="[)", delta=delta)
    used = {name: part for name, part in parts.items() if part.times and part.share}
    total = math.fsum(part.share for part in used.values())
    used = {name: attrs.evolve(part, share=part.share / total) for name, part in used.items()}
    mu = _total_mu(epsilon, delta, tuple(used.values()), also)
    prices = Prices(epsilon, delta, used, mu, also, records)
    sizes = {name: part.mu(mu) / records for name, part in used.items()}
    if any(
        size < (_LEAST_CHOICE / 2 if used[name].choice else 1 / LARGEST_MULTIPLIER)
        for name, size in sizes.items()
    ):
        raise _validate.ArgumentError(
            "epsilon",
            "larger for a model of so many parts",
            got=epsilon,
            why="a part would get too little of it",
        )
    return prices


def _event(
    parts: tuple[BudgetPart, ...], mu: float, also: tuple[dp.DpEvent, ...] = ()
) -> dp.DpEvent:
    """The event of all parts; other Gaussian sums are one, whose μ² is the sum of theirs."""
    sums_share = math.fsum(part.share for part in parts if not (part.choice or part.shown))
    one = [BudgetPart(sums_share).event(mu)] if sums_share else []
    return dp.ComposedDpEvent([*(p.event(mu) for p in parts if p.choice or p.shown), *one, *also])


@functools.lru_cache(maxsize=256)
def _total_mu(
    epsilon: float, delta: float, parts: tuple[BudgetPart, ...], also: tuple[dp.DpEvent, ...]
) -> float:
    """The largest μ at which all parts together are (epsilon, delta)-DP, by the exact accountant.

    The search starts at the μ of a single Gaussian release, which is a few per cent too large.
    """
    guess = gaussian_mu(epsilon, delta) / 1.02
    noise = solve(
        lambda noise: _event(parts, 1 / noise, also),
        Search(safe=_SEARCH_FACTOR / guess, unsafe=1 / (_SEARCH_FACTOR * guess), guess=1 / guess),
        epsilon=epsilon * (1 - SLACK),
        delta=delta * (1 - SLACK),
        name="epsilon",
    )
    return 1 / noise


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The μ at which one Gaussian release is (epsilon, delta)-DP, to a few digits: a guess."""
    from scipy.optimize import brentq

    return float(
        brentq(lambda mu: float(gaussian_delta(epsilon, 1 / mu)) - delta, 1e-6, 100.0, xtol=1e-9)
    )
