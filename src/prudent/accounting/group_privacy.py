"""Group privacy: ε for any neighbouring relation, with several records changed or one replaced.

Accountants compute ε for one added or removed record. For a relation of distance k, the result is
the least of these bounds, all of which hold:

* *The chain* on the whole composition, for every event and accountant. Along k data sets, each one
  record from the next, P₀(A) ≤ e^ε₁ P₁(A) + δ(ε₁) ≤ …, so that
  δ_k(ε₁ + … + ε_k) ≤ δ(ε₁) + e^ε₁ δ(ε₂) + … + e^(ε₁ + … + ε_(k-1)) δ(ε_k).
* *Each release at distance k*, then composed. A Gaussian or Laplace mechanism of sensitivity 1 has
  sensitivity k, so its noise multiplier is divided by k. Along a chain the ranges of log-ratios
  add up, so the range of an exponential mechanism is multiplied by k. A Poisson-sampled Gaussian
  has a `ShiftedPair`, which is exact for the worst records. Any other sampled release is
  a mixture over the number of the unit's records in the batch (`_sampled`), each part bounded by a
  chain. Dominating pairs compose adaptively.

Where ε is infinite, `why_infinite` says why, and names the least δ at which it is finite.

**Comparison of Gaussian mixtures.** Let P = Σ pᵢ N(cᵢ, σ²I) and Q = Σ rⱼ N(dⱼ, σ²I) with ‖cᵢ‖ ≤ aᵢ
and ‖dⱼ‖ ≤ bⱼ. For every ε the divergence H(P‖Q) = sup over A of P(A) - e^ε Q(A) is at most that of
Σ pᵢ N(aᵢ, σ²) and Σ rⱼ N(-bⱼ, σ²) on the line.

*Proof.* Against N(0, σ²I) the densities are Σ pᵢ Uᵢ and Σ rⱼ Vⱼ, where log Uᵢ + Kᵢᵢ/2 and
log Vⱼ + Kⱼⱼ/2 are centred Gaussians of covariance K, the inner products of all c and d over σ². So
H = E F with F = φ(Σ pᵢ uᵢ - e^ε Σ rⱼ vⱼ), where φ is the positive part, or a smooth convex function
arbitrarily close to it. Move K along the straight line to K', the inner products of the aᵢ and -bⱼ.
By Gaussian integration by parts (Kahane's interpolation) d/dt E F = ½ Σ (K' - K)ₘₙ E[wₘ wₙ Fₘₙ],
where w are u and v. As φ'' ≥ 0, Fₘₙ ≥ 0 between two u or two v, and there K' ≥ K since
aᵢaⱼ ≥ ⟨cᵢ, cⱼ⟩; and Fₘₙ ≤ 0 between a u and a v, where K' ≤ K since -aᵢbⱼ ≤ ⟨cᵢ, dⱼ⟩. So no term is
negative. ∎

**A unit's records in a Poisson batch.** Condition on the sampling coins of all other records,
which is allowed because divergences are jointly convex. Of the unit's k records the coins choose
a set J with probability pᴶ, and J moves a release of sensitivity 1 by at most |J|. This gives
`ShiftedPair` with binomial masses on the shifts 0, …, k: against a single 0 when the records are
added or removed, and against the mirrored mixture when each is replaced by another that keeps its
coin.
"""

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cached_property

import attrs
import dp_accounting as dp
import numpy as np
from typing_extensions import override

from prudent import _validate
from prudent._rounding import exact, rounded_up
from prudent.accounting._numeric import float_above, float_below
from prudent.accounting.events import (
    LARGEST_EPSILON,
    ExponentialMechanismDpEvent,
    LaplaceTest,
    ProposeTestReleaseDpEvent,
)
from prudent.accounting.losses.convolution import any_infinite
from prudent.accounting.losses.domination import (
    DominatedDpEvent,
    Parts,
    additive_parts,
    dominating,
    leaves,
    margin_pair,
    unsampled,
)
from prudent.accounting.losses.loss_tables import Array
from prudent.accounting.losses.pairs import BoundedRangePair, BoundPair, Dominating, Pair
from prudent.accounting.losses.repeated_selection import trial_count
from prudent.accounting.pld_accountant import PldAccountant
from prudent.accounting.rdp_accountant import RdpAccountant
from prudent.accounting.relations import ADD_REMOVE, Adjacency, Relation, check_relation
from prudent.accounting.serialisation import describe

_RATIOS = tuple(4.0**k for k in np.arange(-1, 3.1, 0.25))  # of the δ of a link to the one before
_SHARES = (1, 1e-1, 1e-2, 1e-4, 1e-8, 1e-16, 1e-32, 1e-64, 1e-128)  # of δ, priced to choose a ratio
_LEAST_LINK = 1e-290  # δ of a link that is priced
_ROUGHLY = 1.05  # more than by which interpolated prices differ
_STEPS = 6  # bisections of the exponent of δ, for relations of several records
_ABOVE = 1 + 1e-12  # covers the relative error of binomial masses
_NEGLIGIBLE = 1e-60  # binomial mass that is left out and added to a profile
_NODES = 4096  # points at which the loss is tabulated in order to invert it
_FAR = 40.0  # standard deviations beyond which a Gaussian has no mass in floating point
_ROUNDING = 1e-12
"""Relative error of binomial masses and of a difference of their sums; added. Checked by mpmath."""
Profile = Callable[[Array], Array]
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
    known = math.inf
    apart = event_at_distance(event, relation)
    if apart is not None and accountant().supports(apart):
        known = accountant().compose(apart).get_epsilon(delta)
        if has_exact_pairs(event):
            return known
    whole = accountant().compose(event)
    return _chain_epsilon(whole.get_epsilon, delta, relation.distance, known)


def has_exact_pairs(event: dp.DpEvent) -> bool:
    """Whether `event_at_distance` gives pairs that are attained by the worst records."""
    for inner, rate in (unsampled(leaf) for leaf, _ in leaves(event)):
        if rate < 1 or not isinstance(inner, dp.LaplaceDpEvent | LaplaceTest):
            parts = additive_parts(inner)
            if parts is None or parts.sigma == 0 or parts.others:
                return False
    return True


def _chain_epsilon(
    curve: Callable[[float], float], delta: float, distance: int, known: float
) -> float:
    """The ε of the chain, for the best of many ways to divide δ among the links, or `known`.

    A few δ are priced in order to choose the way: between them √(-log δ) tells about ε.
    """
    pure = curve(0.0)  # finite if every event is pure DP
    known = min(known, float_above(distance * Fraction(pure)) if pure < math.inf else pure)
    if delta == 0:
        return known
    least = max(_LEAST_LINK, delta * 1e-3 * math.exp(-6 * distance * curve(delta)))
    deltas = [delta * share for share in _SHARES if delta * share > least]
    roots, prices = [math.sqrt(-math.log(one)) for one in deltas], [curve(one) for one in deltas]

    def rough(link: float) -> float:
        root = math.sqrt(-math.log(link))
        return float(np.interp(root, roots, prices, right=math.inf))

    totals = [_chain(rough, delta, distance, ratio) for ratio in _RATIOS]
    best = int(np.argmin(totals))
    if totals[best] > known * _ROUGHLY:
        return known
    return min(known, _chain(curve, delta, distance, _RATIOS[best]))


def _chain(curve: Callable[[float], float], delta: float, distance: int, ratio: float) -> float:
    """The ε of a chain whose links have shares of δ in a geometric sequence."""
    powers = ratio ** (np.arange(distance) - (distance - 1.0) * (ratio > 1))  # at most 1
    total = 0.0
    # Despite rounding, the shares must not add up to more than δ.
    for share in powers / powers.sum() * (1 - 1e-12):
        link = delta * float(share) * math.exp(-total)
        total = math.inf if link == 0 else total + curve(link)
        if total == math.inf:
            break
    return total


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


def _divided(scale: float, distance: int) -> float:
    """A scale of noise over a distance, rounded down: less noise costs more."""
    return float_below(Fraction(scale) / distance) if scale < math.inf else scale


def _leaf_at_distance(leaf: dp.DpEvent, relation: Relation) -> dp.DpEvent | None:
    inner, rate = unsampled(leaf)
    replaced = relation.adjacency is Adjacency.REPLACE_ONE
    parts = additive_parts(inner)
    if parts is not None and parts.sigma > 0 and not parts.others:
        if rate == 1:
            return dp.GaussianDpEvent(_divided(parts.sigma, relation.distance))
        pair = ShiftedPair.of_sample(relation.records, rate, parts.sigma, replaced=replaced)
        return DominatedDpEvent(pair)
    if rate == 1 and isinstance(inner, dp.LaplaceDpEvent | LaplaceTest):
        scale = inner.scale if isinstance(inner, LaplaceTest) else inner.noise_multiplier
        return dp.LaplaceDpEvent(_divided(scale, relation.distance))
    if rate == 1 and isinstance(inner, ExponentialMechanismDpEvent):
        reach = float_above(Fraction(inner.epsilon) * relation.distance)
        return ExponentialMechanismDpEvent(reach) if reach <= LARGEST_EPSILON else None
    if rate == 1 and trial_count(inner) is not None:
        candidate = event_at_distance(inner.event, relation)
        return None if candidate is None else attrs.evolve(inner, event=candidate)
    if dominating(inner) is None:
        return None
    return DominatedDpEvent(_sampled(_Bounds(inner), relation.records, rate, replaced=replaced))


@attrs.frozen(slots=False, eq=False)
class ShiftedPair(Pair):
    """The pair Σ pᵢ N(aᵢ, 1) against Σ rⱼ N(-bⱼ, 1), with all shifts at least 0.

    The loss increases with the output, so the worst event for any ε is a half-line.
    """

    present: Array  # the masses pᵢ
    up: Array  # the shifts aᵢ
    absent: Array  # the masses rⱼ
    down: Array  # the shifts bⱼ

    @classmethod
    def of_sample(cls, records: int, rate: float, sigma: float, *, replaced: bool) -> Dominating:
        """The pair for a unit of `records` records, Poisson-sampled, with Gaussian noise."""
        masses, counts, rest = sampled_counts(records, rate)
        shifts = counts / sigma
        others = (masses, shifts) if replaced else (np.ones(1), np.zeros(1))
        return Dominating((cls(masses, shifts, *others),), slack=rest)

    @override
    def profile(self, epsilon: Array) -> Array:
        from scipy import special

        epsilon = np.asarray(epsilon, dtype=np.float64)
        start = self._where_loss_is(epsilon)
        seen = special.ndtr(self.up - start[..., None]) @ self.present
        exponents = epsilon[..., None] + special.log_ndtr(-self.down - start[..., None])
        unseen = np.exp(np.minimum(exponents, 700.0)) @ self.absent
        inside = np.maximum(0.0, seen - unseen) + _ROUNDING * seen
        return np.minimum(1.0, np.maximum(inside, -np.expm1(np.minimum(epsilon, 0.0))))

    def swapped(self) -> "ShiftedPair":
        """The pair with the two distributions exchanged, reflected so that shifts are positive."""
        return self._swapped

    @cached_property
    def _swapped(self) -> "ShiftedPair":  # once, because it tabulates its loss
        return ShiftedPair(self.absent, self.down, self.present, self.up)

    def _loss(self, x: Array) -> tuple[Array, Array]:
        """The loss at x and its slope."""
        logs = []
        for masses, shifts in ((self.present, self.up), (self.absent, -self.down)):
            exponents = np.log(masses) + shifts * (x[..., None] - shifts / 2)
            peak = exponents.max(axis=-1)
            densities = np.exp(exponents - peak[..., None])
            total = densities.sum(axis=-1)
            logs.append((peak + np.log(total), densities @ shifts / total))
        (above, mean), (below, other_mean) = logs
        return above - below, mean - other_mean

    @cached_property
    def _tabulated_loss(self) -> tuple[Array, Array]:
        reach = _FAR + float(max(self.up.max(), self.down.max()))
        nodes = np.linspace(-reach, reach, _NODES)
        return nodes, np.maximum.accumulate(self._loss(nodes)[0])

    def _where_loss_is(self, epsilon: Array) -> Array:
        """The x at which the loss is ε, or the end of the range that holds all mass.

        Takes Newton steps between two nodes, and bisects where one would leave the bracket. An
        error in x lowers the profile only to second order, because x maximises the difference that
        defines it.
        """
        nodes, losses = self._tabulated_loss
        right = np.clip(np.searchsorted(losses, epsilon), 1, len(nodes) - 1)
        low, high = nodes[right - 1], nodes[right]
        x = np.clip(np.interp(epsilon, losses, nodes), low, high)
        for _ in range(4):
            loss, slope = self._loss(x)
            low, high = np.where(loss < epsilon, x, low), np.where(loss < epsilon, high, x)
            with np.errstate(divide="ignore", invalid="ignore"):
                newton = x + (epsilon - loss) / slope
            x = np.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        inside = np.where(epsilon >= losses[-1], nodes[-1], x)
        return np.where(epsilon <= losses[0], nodes[0], inside)


def sampled_counts(records: int, rate: float) -> tuple[Array, Array, float]:
    """The distribution of the number of a unit's records in a Poisson batch.

    Returns:
        Masses, counts, and a bound on the mass of the larger counts, which are left out.
        Divergences are jointly convex, so that mass raises a profile by itself at most. (A
        huge shift of negligible mass would leave the loss too coarsely tabulated to be inverted.)
    """
    counts = np.arange(records + 1.0)
    with np.errstate(divide="ignore"):
        ratios = (records - counts[:-1]) / (counts[:-1] + 1) * (rate / np.float64(1 - rate))
        mode = min(records, math.floor((records + 1) * rate))
        fewer = np.cumprod(1 / ratios[:mode][::-1])[::-1]
    masses = np.concatenate([fewer, [1.0], np.cumprod(ratios[mode:])])
    masses /= masses.sum()
    more = np.append(np.cumsum(masses[::-1])[-2::-1], 0.0)
    last = int(np.argmax(more < _NEGLIGIBLE / 2))
    kept = np.flatnonzero(masses[: last + 1])
    return masses[kept], counts[kept], _NEGLIGIBLE * (last < records)


def chained(first: Profile, second: Profile, nodes: Array) -> Array:
    """Bound the profile of two steps, from S to S' to S'', by those of the steps, at ε ≥ 0.

    P(A) ≤ e^s P'(A) + h(s) and P'(A) ≤ e^t P''(A) + h'(t), so h''(s + t) ≤ h(s) + e^s h'(t). The
    result is the least of these bounds over several splits of ε.
    """
    least = np.ones_like(nodes)
    for share in np.linspace(0.0, 1.0, 33):
        part = share * nodes
        with np.errstate(over="ignore", invalid="ignore"):
            split = first(part) + np.nan_to_num(np.exp(part) * second(nodes - part), nan=np.inf)
        np.minimum(least, split, out=least)
    return least


def nodes_up_to(reach: float) -> Array:
    """Values of ε from zero to `reach`: dense, and denser near zero."""
    even = np.linspace(0.0, reach, 2048)
    return np.unique(np.concatenate([even, np.geomspace(1e-7 * reach, reach, 2048)]))


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
        if records in self._known:
            return self._known[records]
        exact = self._exact(records)
        if exact is not None:
            nodes = nodes_up_to(max(exact.reach(_TAIL), exact.reach(_TAIL, adding=True)))
            removing, adding = exact.profile(nodes), exact.profile(nodes, adding=True)
        else:
            nodes = nodes_up_to(records * self._reach)
            some, others = self.added(records // 2), self.added(records - records // 2)
            removing = chained(some.profile, others.profile, nodes)
            adding = chained(some.swapped().profile, others.swapped().profile, nodes)
        return self._known.setdefault(records, BoundPair.of(nodes, removing, adding))

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
    """The dominating pairs of a unit's records under Poisson sampling.

    Condition on the sampling coins of all other records (divergences are jointly convex). None of
    the unit's records is drawn with probability 1 - r, r = 1 - (1 - q)^k; otherwise j ≥ 1 are,
    with binomial weights. So the output has the distribution M₀ or, at rate r, a mixture M of the
    distributions at distance j. The profile of M against M₀ is at most the weighted mean of theirs.
    This is sampling at rate r of one mechanism.

    Replaced records keep their coins, so (1-r) M₀ + r M is compared with (1-r) M₀ + r M'. With
    e^ε = 1 + r (e^t - 1) and b = e^(ε - t) the divergence is r H_t(M ‖ (1-b) M₀ + b M') (Balle,
    Barthe and Gaboardi 2018), at most r times the weighted mean of both profiles at t.
    """
    masses, counts, rest = sampled_counts(records, rate)
    drawn = counts > 0
    weights, numbers = masses[drawn], [int(count) for count in counts[drawn]]
    some = min(1.0, float(weights.sum()) * _ABOVE)
    mixed = _mean([bounds.added(number) for number in numbers], weights / some * _ABOVE)
    if not replaced:
        return Dominating((mixed,), some, rest / some)
    swapped = _mean([bounds.replaced(number) for number in numbers], weights / some * _ABOVE)
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
    return Dominating((BoundPair.of(outer, either[first], either[first]),), slack=rest)


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
    parts = [
        (leaf, times, PldAccountant().compose(leaf).get_delta(math.inf))
        for leaf, times in leaves(event)
    ]
    least = max(0.0, any_infinite([(limit, times) for _, times, limit in parts]))
    reasons = [_reason(*part) for part in parts if part[2] > 0]
    if not reasons:
        reasons = ["δ = 0 needs losses that are bounded, and some here are not."]
    if relation.distance > 1 and least < 1:
        least = _least_for(event, relation, max(least, 1e-300))
        reasons.append(f"For {relation}, each of {relation.distance} records counts.")
    return InfiniteEpsilon(delta, least, tuple(reasons))


def _reason(leaf: dp.DpEvent, times: int, limit: float) -> str:
    what = describe(leaf).replace("\n", "; ")
    if limit >= 1:
        return f"One part hides nothing: {what}."
    inner, rate = unsampled(leaf)
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
