"""Group privacy: ε for any neighbouring relation, with several records changed or one replaced.

Accountants compute ε for one added or removed record. For a relation of distance k, the result is
the least of these bounds, all of which hold:

* *The chain* on the whole composition, for every event and accountant. Along k data sets, each one
  record from the next, P₀(A) ≤ e^ε₁ P₁(A) + δ(ε₁) ≤ …, so that
  δ_k(ε₁ + … + ε_k) ≤ δ(ε₁) + e^ε₁ δ(ε₂) + … + e^(ε₁ + … + ε_(k-1)) δ(ε_k).
* *Each release at distance k*, then composed. A Gaussian or Laplace mechanism of sensitivity 1 has
  sensitivity k, so its noise multiplier is divided by k. Along a chain the ranges of log-ratios
  add up, so the range of an exponential mechanism is multiplied by k. A Poisson-sampled Gaussian
  has the pair of `group_pairs`, which is exact for the worst records. Any other sampled release is
  a mixture over the number of the person's records in the batch (`_sampled`), each part bounded by
  a chain. Dominating pairs compose adaptively.
"""

import math
from collections.abc import Callable, Iterator

import attrs
import dp_accounting as dp
import numpy as np

from prudent import _validate
from prudent.accounting.domination import (
    DominatedDpEvent,
    Parts,
    additive_parts,
    check_rate,
    dominating,
    leaves,
    margin_pair,
)
from prudent.accounting.events import LARGEST_EPSILON, ExponentialMechanismDpEvent, LaplaceTest
from prudent.accounting.group_pairs import (
    BoundPair,
    Profile,
    ShiftedPair,
    chained,
    nodes_up_to,
    sampled_counts,
)
from prudent.accounting.loss_tables import Array
from prudent.accounting.pairs import BoundedRangePair, Dominating
from prudent.accounting.pld_accountant import PldAccountant
from prudent.accounting.rdp_accountant import RdpAccountant
from prudent.accounting.relations import ADD_REMOVE, Adjacency, Relation, check_relation
from prudent.accounting.trial_counts import trial_count

_SHARES = (
    0.25,
    1.0,
    4.0,
    16.0,
)  # ratios of the δ of one link of a chain to that of the link before
_TAIL = 1e-22  # how far the profile of one release may be above its limit at the last node


def epsilon_of(
    event: dp.DpEvent,
    delta: float,
    relation: Relation = ADD_REMOVE,
    accountant: Callable[[], PldAccountant | RdpAccountant] = PldAccountant,
) -> float:
    """Return the ε at which an event is (ε, δ)-DP for a neighbouring relation.

    Args:
        event: The privacy event.
        delta: δ.
        relation: The neighbouring relation.
        accountant: Creates a new accountant for one added or removed record.

    Guarantee:
        The result is an upper bound: the least bound of this module's list that the accountant can
        compute.
    """
    _validate.between(0, 1, delta=delta)
    check_relation(relation=relation)
    _validate.function(accountant=accountant)
    if relation.distance == 1:
        return accountant().compose(event).get_epsilon(delta)
    bounds = []
    apart = event_at_distance(event, relation)
    if apart is not None and accountant().supports(apart):
        bounds.append(accountant().compose(apart).get_epsilon(delta))
        if has_exact_pairs(event):
            return bounds[0]
    whole = accountant().compose(event)
    return min(*bounds, _chain_epsilon(whole.get_epsilon, delta, relation.distance), math.inf)


def has_exact_pairs(event: dp.DpEvent) -> bool:
    """Whether `event_at_distance` gives pairs that are attained by the worst records."""
    return all(_noise_scales(*_unsampled(leaf)) for leaf, _ in leaves(event))


def _noise_scales(inner: dp.DpEvent, rate: float) -> bool:
    """Whether a release has only noise whose multiplier at distance k is known exactly."""
    if rate == 1 and isinstance(inner, dp.LaplaceDpEvent | LaplaceTest):
        return True
    parts = additive_parts(inner)
    return parts is not None and parts.sigma > 0 and not parts.others


def _unsampled(leaf: dp.DpEvent) -> tuple[dp.DpEvent, float]:
    """The event inside any number of Poisson samplings, and the product of their rates."""
    inner, rate = leaf, 1.0
    while isinstance(inner, dp.PoissonSampledDpEvent):
        inner, rate = inner.event, rate * check_rate(inner)
    return inner, rate


def _chain_epsilon(curve: Callable[[float], float], delta: float, distance: int) -> float:
    """The ε of the chain, the least over several ways to divide δ among the links."""
    bounds = [distance * curve(0.0)]  # finite if every event is pure DP
    shared = delta * (1 - 1e-12)  # despite rounding, the shares must not add up to more than δ
    for ratio in _SHARES if delta > 0 else ():
        powers = ratio ** (np.arange(distance) - (distance - 1.0) * (ratio > 1))  # at most 1
        total = 0.0
        for share in powers / powers.sum():
            link = shared * float(share) * math.exp(-total)
            total = math.inf if link == 0 else total + curve(link)
            if total == math.inf:
                break
        bounds.append(total)
    return min(bounds)


def event_at_distance(event: dp.DpEvent, relation: Relation) -> dp.DpEvent | None:
    """Return an event whose ε for one record is an upper bound on that of `event` for `relation`.

    None if some release in it has no known dominating pair.
    """
    composed: list[dp.DpEvent] = []
    for leaf, times in leaves(event):
        apart = _leaf_at_distance(leaf, relation)
        if apart is None:
            return None
        composed.append(dp.SelfComposedDpEvent(apart, times))
    return dp.ComposedDpEvent(composed)


def _leaf_at_distance(leaf: dp.DpEvent, relation: Relation) -> dp.DpEvent | None:
    inner, rate = _unsampled(leaf)
    replaced = relation.adjacency is Adjacency.REPLACE_ONE
    parts = additive_parts(inner)
    if parts is not None and parts.sigma > 0 and not parts.others:
        if rate == 1:
            return dp.GaussianDpEvent(parts.sigma / relation.distance)
        pair = ShiftedPair.of_sample(relation.records, rate, parts.sigma, replaced=replaced)
        return DominatedDpEvent(Dominating((pair,)))
    if rate == 1 and isinstance(inner, dp.LaplaceDpEvent | LaplaceTest):
        scale = inner.scale if isinstance(inner, LaplaceTest) else inner.noise_multiplier
        return dp.LaplaceDpEvent(scale / relation.distance)
    if rate == 1 and isinstance(inner, ExponentialMechanismDpEvent):
        reach = inner.epsilon * relation.distance
        return ExponentialMechanismDpEvent(reach) if reach <= LARGEST_EPSILON else None
    if rate == 1 and trial_count(inner) is not None:
        candidate = event_at_distance(inner.event, relation)
        return None if candidate is None else attrs.evolve(inner, event=candidate)
    if dominating(inner) is None:
        return None
    return DominatedDpEvent(_sampled(_Bounds(inner), relation.records, rate, replaced=replaced))


class _Bounds:
    """Bounds on the profiles of one unsampled release, for any number of records."""

    def __init__(self, event: dp.DpEvent) -> None:
        worst = dominating(event)
        assert worst is not None
        self._worst = worst
        self._parts = additive_parts(event)
        self._reach = max(worst.reach(_TAIL), worst.reach(_TAIL, adding=True))
        self._known: dict[int, BoundPair] = {}

    def added(self, records: int) -> BoundPair:
        """Bounds for `records` records present against none of them."""
        if records not in self._known:
            self._known[records] = self._make(records)
        return self._known[records]

    def _make(self, records: int) -> BoundPair:
        exact = self._exact(records)
        if exact is not None:
            reach = max(exact.reach(_TAIL), exact.reach(_TAIL, adding=True))
            nodes = nodes_up_to(reach)
            return BoundPair.of(nodes, exact.profile(nodes), exact.profile(nodes, adding=True))
        nodes = nodes_up_to(records * self._reach)
        some, others = self.added(records // 2), self.added(records - records // 2)
        removing = chained(some.profile, others.profile, nodes)
        back, back_others = some.swapped().profile, others.swapped().profile
        return BoundPair.of(nodes, removing, chained(back, back_others, nodes))

    def _exact(self, records: int) -> Dominating | None:
        """The exact pairs, for one record or for noise that scales; None otherwise."""
        match self._parts:
            case _ if records == 1:
                return self._worst
            case None if isinstance(self._worst.pairs[0], BoundedRangePair):
                return Dominating((BoundedRangePair(records * self._worst.pairs[0].reach),))
            case Parts(sigma=sigma, others=((LaplaceTest(scale=scale), 1),)) if sigma > 0:
                test = LaplaceTest(scale / records)
                return Dominating((margin_pair(test, sigma / records),))
            case _:
                return None

    def replaced(self, records: int) -> BoundPair:
        """Bounds for replacing `records` records: exact where possible, else the better chain.

        One chain removes the records before it adds the others; the other chain adds first.
        """
        if self._exact(2 * records) is not None:
            return self.added(2 * records)
        present = self.added(records)
        removing, adding = present.profile, present.swapped().profile
        nodes = nodes_up_to(2 * records * self._reach)
        either = np.minimum(chained(removing, adding, nodes), chained(adding, removing, nodes))
        return BoundPair.of(nodes, either, either)


def _sampled(bounds: _Bounds, records: int, rate: float, *, replaced: bool) -> Dominating:
    """The dominating pairs of a person's records under Poisson sampling.

    Condition on the sampling coins of all other records (divergences are jointly convex). None of
    the person's records is drawn with probability 1 - r, r = 1 - (1 - q)^k; otherwise j ≥ 1 are,
    with binomial weights. So the output has the distribution M₀ or, at rate r, a mixture M of the
    distributions at distance j. The profile of M against M₀ is at most the weighted mean of theirs.
    This is sampling at rate r of one mechanism.

    Replaced records keep their coins, so (1-r) M₀ + r M is compared with (1-r) M₀ + r M'. With
    e^ε = 1 + r (e^t - 1) and b = e^(ε - t) the divergence is r H_t(M ‖ (1-b) M₀ + b M') (Balle,
    Barthe and Gaboardi 2018), at most r times the weighted mean of both profiles at t.
    """
    masses, counts = sampled_counts(records, rate)
    drawn = counts > 0
    weights, numbers = masses[drawn], [int(count) for count in counts[drawn]]
    some = min(1.0, float(weights.sum()))
    mixed = _mean([bounds.added(number) for number in numbers], weights / some)
    if not replaced:
        return Dominating((mixed,), some)
    swapped = _mean([bounds.replaced(number) for number in numbers], weights / some)
    inner = np.append(0.0, swapped.nodes[swapped.nodes > 0])
    near, far = np.minimum(inner, 1.0), np.maximum(inner, 1.0)
    outer = np.where(
        inner < 1,
        np.log1p(some * np.expm1(near)),
        far + np.log(some + (1 - some) * np.exp(-far)),
    )
    share = np.exp(outer - inner)
    either = some * ((1 - share) * mixed.profile(inner) + share * swapped.profile(inner))
    outer, first = np.unique(outer, return_index=True)  # rounding may have made two of them equal
    return Dominating((BoundPair.of(outer, either[first], either[first]),))


def _mean(pairs: list[BoundPair], weights: Array) -> BoundPair:
    """The pair of the labelled mixture: the weighted mean of the profiles, at all their nodes."""
    if len(pairs) == 1:
        return pairs[0]
    nodes = np.unique(np.abs(np.concatenate([[0.0], *(pair.nodes for pair in pairs)])))

    def mean(profiles: Iterator[Profile]) -> Array:
        values = sum(w * profile(nodes) for w, profile in zip(weights, profiles, strict=True))
        return np.asarray(values)

    forward = mean(pair.profile for pair in pairs)
    return BoundPair.of(nodes, forward, mean(pair.swapped().profile for pair in pairs))
