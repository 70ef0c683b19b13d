"""Why an ε is infinite, and the least δ at which it is finite."""

import math

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent._rounding import exact, rounded_up
from prudent.accounting.convolution import any_infinite
from prudent.accounting.domination import leaves
from prudent.accounting.events import ProposeTestReleaseDpEvent
from prudent.accounting.group_privacy import epsilon_of
from prudent.accounting.pld_accountant import PldAccountant
from prudent.accounting.relations import ADD_REMOVE, Relation
from prudent.accounting.serialisation import describe

_STEPS = 6  # bisections of the exponent of δ, for relations of several records


@attrs.frozen
class InfiniteEpsilon:
    """The reason why no finite ε is proved at some δ.

    Attributes:
        delta: The δ asked for.
        least_delta: ε is finite for every δ above this; 1 if it is for none.
        reasons: What prevents a finite ε, one sentence for each part that does.
    """

    delta: float
    least_delta: float
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        if self.least_delta >= 1:
            remedy = "No δ below 1 makes ε finite."
        else:
            remedy = f"ε is finite for every δ above {rounded_up(self.least_delta, 3)}."
        return " ".join([f"ε is infinite at δ = {exact(self.delta)}.", *self.reasons, remedy])


def why_infinite(
    event: dp.DpEvent, delta: float, relation: Relation = ADD_REMOVE
) -> InfiniteEpsilon | None:
    """Explain why the ε of an event is infinite at a δ; None if it is finite.

    An ε is infinite if outputs that occur only with the record, or only without it, have a
    probability of δ or more. Such outputs come from releases without noise, from tests that pass by
    accident (with probability δ₀ each) where no bound on the sensitivity is known, and from
    mechanisms of which only some δ of their own is known. At δ = 0 it is infinite as soon as losses
    have no bound, as with Gaussian noise.

    Args:
        event: The privacy event.
        delta: δ.
        relation: The neighbouring relation.
    """
    delta = _validate.between(0, 1, delta=delta)
    if math.isfinite(epsilon_of(event, delta, relation)):
        return None
    parts = [(leaf, times, _limit(leaf)) for leaf, times in leaves(event)]
    least = max(0.0, any_infinite([(limit, times) for _, times, limit in parts]))
    reasons = [_reason(*part) for part in parts if part[2] > 0]
    if not reasons:
        reasons = ["δ = 0 needs losses that are bounded, and some here are not."]
    if relation.distance > 1 and least < 1:
        least = _least_for(event, relation, max(least, 1e-300))
        reasons.append(f"For {relation}, each of {relation.distance} records counts.")
    return InfiniteEpsilon(delta, least, tuple(reasons))


def _limit(leaf: dp.DpEvent) -> float:
    return PldAccountant().compose(leaf).get_delta(math.inf)


def _reason(leaf: dp.DpEvent, times: int, limit: float) -> str:
    what = describe(leaf).replace("\n", "; ")
    if limit >= 1:
        return f"One part hides nothing: {what}."
    inner, rate = leaf, 1.0
    while isinstance(inner, dp.PoissonSampledDpEvent):
        rate *= inner.sampling_probability
        inner = inner.event
    total = rounded_up(any_infinite([(limit, times)]), 3)
    if isinstance(inner, ProposeTestReleaseDpEvent):
        sampled = f" at sampling rate {rate:g}" if rate < 1 else ""
        tests = f"{times:,} tests{sampled} may each" if times > 1 else f"One test{sampled} may"
        return (
            f"{tests} pass by accident with probability δ₀ = {rounded_up(inner.failure)}, and no "
            f"bound holds then: δ must exceed {total}."
        )
    number = f"{times:,} × " if times > 1 else ""
    return f"δ must exceed {total} because of {number}{what}."


def _least_for(event: dp.DpEvent, relation: Relation, start: float) -> float:
    """A δ, within a small factor, from which on ε is finite for a relation of several records."""
    low, high = math.log(start), 0.0
    if not math.isfinite(epsilon_of(event, math.exp(high - 1e-9), relation)):
        return 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        finite = math.isfinite(epsilon_of(event, math.exp(middle), relation))
        low, high = (low, middle) if finite else (middle, high)
    return math.exp(high)
