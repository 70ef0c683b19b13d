"""What an attacker can achieve: bounds on error rates and on membership inference, from profiles.

The attacker knows every record but one, and everything public, and decides from all that was
released whether that one record is in the data. Write P for the distribution of the output with the
record and Q for the distribution without it; δ₋(ε) = sup P(A) - e^ε Q(A) is the profile of removing
the record, and δ₊(ε) = sup Q(A) - e^ε P(A) that of adding it.

*Trade-off.* A test that says "present" on A has the false-positive rate α = Q(A) and misses with
probability β = 1 - P(A), which `TradeOff` bounds from below by δ₊, δ₋ and u = 1 - α. The largest of
its bounds over all ε is the trade-off curve of (Q, P) exactly (Dong, Roth and Su 2022),
so profiles and curves determine each other. Using one direction's profile for both is wrong for an
asymmetric mechanism, such as a sampled one. Testing P against Q exchanges δ₋ and δ₊; the curve
here is the lower of the two.

*Success at a prior.* If the record is present with probability p, a guess is right with probability
at most (1 - p) + p h(log((1 - p)/p)), where h is δ₋ for arguments ≥ 0 and
1 - e^ε + e^ε δ₊(-ε) for ε < 0.

Guarantee:
    Profiles are upper bounds and ε runs over a finite grid, so a trade-off curve is a lower bound
    on β, and every success rate an upper bound.
"""

import math
from collections.abc import Sequence

import attrs
import dp_accounting as dp
import numpy as np

from prudent import _validate
from prudent.accounting._numeric import each
from prudent.accounting.losses.domination import leaves
from prudent.accounting.losses.loss_tables import Array, TradeOff
from prudent.accounting.pld_accountant import PldAccountant

_POINTS = 400
_FARTHEST = 40.0  # an e^ε beyond which false-positive rates are below 1e-17
_TELLING = 1e-9  # the grid ends where the profile has fallen to this
_ROUNDING = 1e-15  # above the rounding errors of a bound, which are below 8u


@attrs.frozen(eq=False)
class AttackBounds:
    """Bounds on every attack on one record's membership, given a release's privacy profiles.

    Attributes:
        epsilons: A grid of ε, increasing from 0.
        removing: Upper bounds on δ₋ at these.
        adding: Upper bounds on δ₊ at these.
    """

    epsilons: Array
    removing: Array
    adding: Array

    @classmethod
    def of(cls, event: dp.DpEvent) -> "AttackBounds":
        """The bounds of an event, for one record added, removed or zeroed out."""
        accountant = PldAccountant().compose(event)
        if not any(True for _ in leaves(event)):
            return cls(np.zeros(1), *np.zeros((2, 1)))
        last = accountant.get_epsilon(min(1.0, max(_TELLING, 2 * accountant.get_delta(math.inf))))
        last = min(last, _FARTHEST)
        # Denser near zero, where success at moderate priors is decided.
        grid = last * np.linspace(0, 1, _POINTS) ** 1.5 if last > 0 else np.zeros(1)
        return cls(grid, *accountant.directed_profiles(grid))

    @property
    def profile(self) -> Array:
        """Upper bounds on δ(ε), the worse of both directions."""
        return np.maximum(self.removing, self.adding)

    def delta(self, epsilon: float) -> float | None:
        """An upper bound on δ at an ε of at least 0; None beyond the grid."""
        return self._at(self.profile, epsilon) if epsilon <= self.epsilons[-1] else None

    def misses(self, false_positives: float | Sequence[float] | Array) -> float | Array:
        """A lower bound on the miss rate β of every attack, at given false-positive rates α."""
        return each(self._misses, 0, 1, false_positives=false_positives)

    def success(self, prior: float | Sequence[float] | Array) -> float | Array:
        """An upper bound on the probability of a right guess, at prior probabilities."""
        return each(np.vectorize(self._success), 0, 1, prior=prior)

    def precision(self, prior: float, false_positives: float) -> float:
        """An upper bound on the probability that a claim "present" is right.

        Args:
            prior: Probability with which the record is present.
            false_positives: The attack's false-positive rate, > 0.
        """
        prior = _validate.between(0, 1, ends="()", prior=prior)
        alpha = _validate.between(0, 1, ends="(]", false_positives=false_positives)
        found = prior * (1 - float(np.asarray(self.misses(alpha))))
        return found / (found + (1 - prior) * alpha)

    def _misses(self, alpha: Array) -> Array:
        """The lower of the trade-off curves of (Q, P) and (P, Q)."""
        curve = TradeOff((self.epsilons, self.adding), (self.epsilons, self.removing))
        least = np.minimum(*(way.least(1 - alpha, alpha) for way in (curve, curve.reversed)))
        return np.maximum(0.0, least - _ROUNDING)

    def _success(self, prior: float) -> float:
        if prior in (0.0, 1.0):
            return 1.0
        odds = math.log1p(-prior) - math.log(prior)
        if odds >= 0:
            return min(1.0, 1 - prior + prior * self._at(self.removing, odds))
        return min(1.0, prior + (1 - prior) * self._at(self.adding, -odds))

    def _at(self, profile: Array, epsilon: float) -> float:
        """An upper bound between grid points: a profile does not increase with ε."""
        place = int(np.searchsorted(self.epsilons, epsilon, side="right")) - 1
        if place + 1 == len(self.epsilons):
            return float(profile[-1])
        # It is convex in e^ε, so the chord is above it.
        low, high = self.epsilons[place : place + 2]
        share = math.expm1(epsilon - low) / math.expm1(high - low)
        return float(profile[place] + min(1.0, share) * (profile[place + 1] - profile[place]))


@attrs.frozen
class PartPrice:
    """One part of a composed event and what it costs.

    Attributes:
        event: The part.
        count: How often it occurs.
        alone: ε of all its occurrences on their own.
        adds: What they add to the ε of the rest; less than `alone`, because composition is cheaper
            than a sum. Infinite if only they make ε infinite, NaN if ε is infinite without them.
    """

    event: dp.DpEvent
    count: int
    alone: float
    adds: float


def price_list(event: dp.DpEvent, delta: float) -> list[PartPrice]:
    """The price of each part of a composed event at one δ, in the order of the parts.

    Equal parts are listed once. Both numbers are differences or values of upper bounds.
    """
    _validate.between(0, 1, delta=delta)
    parts = PldAccountant().compose(event)._entries  # equal leaves counted together
    total = _epsilon(parts, delta)
    prices = []
    for index, (part, count) in enumerate(parts):
        rest = _epsilon(parts[:index] + parts[index + 1 :], delta)
        adds = max(0.0, total - rest) if math.isfinite(rest) else math.nan
        prices.append(PartPrice(part, count, _epsilon([(part, count)], delta), adds))
    return prices


def _epsilon(parts: list[tuple[dp.DpEvent, int]], delta: float) -> float:
    accountant = PldAccountant()
    for part, count in parts:
        accountant.compose(part, count)
    return accountant.get_epsilon(delta)
