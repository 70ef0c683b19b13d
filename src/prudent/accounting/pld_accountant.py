"""dp_accounting's PLD accountant, extended with Propose-Test-Release. This is the default.

The privacy profile of each event is evaluated exactly on a grid of losses. Joining these values by
chords gives a pessimistic privacy-loss distribution (Doroshenko et al. 2022, arXiv:2207.04380);
lowering them first gives an optimistic one. The two directions, adding and removing a record, are
composed separately, and the worse one is reported. Module `convolution` explains how distributions
are composed and why rounding cannot hide a part of δ.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import dp_accounting as dp
import numpy as np

from prudent import _validate
from prudent.accounting._numeric import float_above
from prudent.accounting.events import RandomAllocationDpEvent, WorstOfDpEvent
from prudent.accounting.losses.composed import Composition, tabulated_pair
from prudent.accounting.losses.domination import (
    check_rate,
    dominating,
    leaves,
    pure_epsilon,
    refused,
    unsampled,
)
from prudent.accounting.losses.loss_tables import Array, LossTable
from prudent.accounting.losses.pairs import Dominating, MixturePair, TabulatedPair
from prudent.accounting.losses.repeated_selection import TrialCount, selected, trial_count
from prudent.accounting.rdp_accountant import EventAccountant, RdpAccountant

if TYPE_CHECKING:
    from dp_accounting.pld import pld_pmf

_MOST_RUNS = 10**12  # of one event; logarithms of moments of far more would overflow
_FEW_CANDIDATES = 64  # of which all together may cost less than what is known of the best

_MOST_KNOWN = 1 << 10
_KNOWN: dict[Any, Array] = {}  # ε by events, setting and δ; plans are priced repeatedly


class PldAccountant(EventAccountant):
    """Composes events by their privacy-loss distributions.

    Guarantee:
        `get_epsilon(δ)` is an ε for which everything composed so far is (ε, δ)-DP, and
        `epsilon_bounds(δ)` brackets the smallest such ε of the dominating pairs.

    Attributes:
        neighboring_relation: Adding or removing one record by default. Replacing a record by a
            special, empty record has the same ε. Replacing it by any other record is delegated to
            dp_accounting, for the events that it supports.
        value_discretization_interval: Accuracy of ε. The grid of losses is chosen for each query,
            as fine as the number of runs requires; at 1e-4 discretisation adds about 2e-5 to ε, and
            in proportion at other values. Events that are delegated to dp_accounting are tabulated
            with exactly this spacing.
    """

    def __init__(
        self,
        neighboring_relation: dp.NeighboringRelation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval: float = 1e-4,
    ) -> None:
        interval = _validate.positive(value_discretization_interval=value_discretization_interval)
        super().__init__(neighboring_relation)
        self._value_discretization_interval = interval
        self._entries: list[tuple[dp.DpEvent, int]] = []
        self._composed: dict[bool, Composition] = {}

    def _maybe_compose(self, event: dp.DpEvent, count: int, do_compose: bool) -> object:
        for leaf, times in leaves(event, max(count, 1)):
            if isinstance(leaf, WorstOfDpEvent) and len(leaf.events) == 1:  # itself, for one record
                if (error := self._maybe_compose(leaf.events[0], times, do_compose)) is not None:
                    return error
                continue
            _validate.between(0, _MOST_RUNS, count=times)
            error = None
            if not self._is_ours(leaf):
                error = refused(leaf, self.neighboring_relation)
                error = error or self._peer()._maybe_compose(leaf, times, False)
            if error is not None:
                return error
            if do_compose:
                self._composed.clear()
                known = [entry for entry, _ in self._entries]
                if leaf in known:
                    times += self._entries[known.index(leaf)][1]
                    _validate.between(0, _MOST_RUNS, count=times)
                    self._entries[known.index(leaf)] = leaf, times
                else:
                    self._entries.append((leaf, times))
        return None

    def _is_ours(self, leaf: dp.DpEvent) -> bool:
        """Whether the event is priced by this package rather than by dp_accounting."""
        if self.neighboring_relation is dp.NeighboringRelation.REPLACE_ONE:
            return False
        if isinstance(leaf, dp.PoissonSampledDpEvent):
            check_rate(leaf)
        elif trial_count(leaf) is None and not isinstance(leaf, WorstOfDpEvent):
            return dominating(leaf) is not None
        inner = leaf.events if isinstance(leaf, WorstOfDpEvent) else (leaf.event,)
        return all(PldAccountant()._maybe_compose(event, 1, False) is None for event in inner)

    def _epsilons(self, deltas: Array) -> Array:
        setting = self.neighboring_relation, self._value_discretization_interval
        asked = tuple(self._entries), setting, deltas.tobytes()
        try:
            known = _KNOWN.get(asked)
        except TypeError:  # an event of somebody else's that has no hash
            return self._least_epsilons(deltas)
        if known is None:
            if len(_KNOWN) >= _MOST_KNOWN:
                _KNOWN.clear()
            known = _KNOWN[asked] = self._least_epsilons(deltas)
        return known

    def _least_epsilons(self, deltas: Array) -> Array:
        composition = self._composition(upper=True)
        # Infinite even at δ = 1: a release that hides nothing has no meaningful ε.
        if composition.limit >= 1:
            return np.full(len(deltas), math.inf)
        found = [other.get_epsilon(deltas) for other in self._others()]
        least = np.minimum.reduce([composition.epsilons(deltas), *found])
        return np.where(deltas == 0, self._pure(float(least.max())), least)

    def _pure(self, found: float) -> float:
        """The ε at δ = 0, rounded up: the exact sum of those of all releases, or what was found."""
        known = [(pure_epsilon(leaf), times) for leaf, times in self._entries]
        if self.neighboring_relation is dp.NeighboringRelation.ADD_OR_REMOVE_ONE and all(
            isinstance(each, Fraction) for each, _ in known
        ):
            return float_above(sum(Fraction(each or 0) * times for each, times in known))
        return found * (1 + 1e-14)

    def epsilon_bounds(self, target_delta: float) -> tuple[float, float]:
        """Return (lower, upper) bounds on the ε of the dominating pairs; upper is `get_epsilon`.

        The lower bound limits what any accountant can prove from these pairs. It is not a lower
        bound for the mechanism itself, whose ε may be smaller than that of the pairs dominating it.
        """
        delta = _validate.between(0, 1, target_delta=target_delta)
        upper = self.get_epsilon(delta)
        return min(self._composition(upper=False).epsilon(delta), upper), upper

    def _deltas(self, epsilons: Array) -> Array:
        composition = self._composition(upper=True)
        found = np.full(len(epsilons), composition.limit)
        finite = np.isfinite(epsilons)
        if composition.limit < 1 and finite.any():
            found[finite] = composition.deltas(epsilons[finite])
        others = [other.get_delta(epsilons) for other in self._others()]
        return np.asarray(np.minimum.reduce([found, *others]))

    def profile(self, epsilons: Array) -> Array:
        """Upper bounds on δ at many finite ε, from one computation.

        Much quicker than `get_delta` for each of them, and at most a little above it.
        """
        try:
            wanted = np.asarray(epsilons, dtype=np.float64)
        except Exception:  # whatever an object raises that is no list of numbers
            wanted = np.array(np.nan)
        if wanted.ndim != 1 or not np.isfinite(wanted).all():
            raise _validate.ArgumentError("epsilons", "a list of finite numbers", got=epsilons)
        composition = self._composition(upper=True)
        if composition.limit >= 1:
            return np.full(len(wanted), composition.limit)
        return composition.profile(wanted)

    def directed_profiles(self, epsilons: Array) -> tuple[Array, Array]:
        """Upper bounds on δ at many finite ε >= 0, for removing a record and for adding one."""
        composition = self._composition(upper=True)
        if composition.limit >= 1:
            return np.ones(len(epsilons)), np.ones(len(epsilons))
        return composition.directed_profiles(np.asarray(epsilons, np.float64), quick=True)

    def distributions(self) -> tuple[LossTable, LossTable]:
        """Dominating distributions of the loss, for removing a record and for adding one."""
        return self._composition(upper=True).plain_distributions()

    def _others(self) -> list[EventAccountant]:
        """Accountants of the same events whose ε may be lower, if there are selections among them.

        The pairs of selections are coarse: for many candidates Rényi divergences may be better, and
        for a few the price of releasing all, of which the best is post-processing.
        """
        if all(trial_count(leaf) is None for leaf, _ in self._entries):
            return []
        others: list[EventAccountant] = []
        renyi = RdpAccountant(neighboring_relation=self.neighboring_relation)
        if all(renyi.supports(leaf) for leaf, _ in self._entries):
            for leaf, times in self._entries:
                renyi.compose(leaf, times)
            others.append(renyi)
        every = PldAccountant(self.neighboring_relation, self._value_discretization_interval)
        for leaf, times in self._entries:
            count = trial_count(leaf)
            few = count is not None and count.most <= _FEW_CANDIDATES
            every.compose(_all_released(leaf, count) if count and few else leaf, times)
        return [*others, every] if every._entries != self._entries else others

    def _composition(self, *, upper: bool) -> Composition:
        """The dominating pairs of everything composed so far."""
        if upper not in self._composed:
            interval, parts, lattice = self._value_discretization_interval, [], None
            for leaf, times in self._entries:
                worst, runs = None, times
                if self._is_ours(leaf):
                    worst, runs = _cases_of(leaf, times, upper=upper)
                elif upper:  # a lower bound may omit these events
                    worst, lattice = self._priced_by_dp_accounting(leaf), interval
                if worst is not None:
                    parts.append((worst, runs))
            self._composed[upper] = Composition(tuple(parts), interval, upper, lattice)
        return self._composed[upper]

    def _priced_by_dp_accounting(self, leaf: dp.DpEvent) -> Dominating | None:
        """The pairs of one run of an event priced by dp_accounting; None if it costs nothing."""
        peer = self._peer()
        peer.compose(leaf)
        if peer._contains_non_dp_event:
            return Dominating((MixturePair.of((1.0, 1.0, 0.0)),))

        def table(pmf: "pld_pmf.PLDPmf") -> LossTable:
            dense = pmf.to_dense_pmf()
            masses = np.maximum(dense._probs, 0.0)
            losses = np.arange(len(masses), dtype=float) + dense._lower_loss
            return LossTable(losses * dense._discretization, masses, float(dense._infinity_mass))

        forward, backward = table(peer._pld._pmf_remove), table(peer._pld._pmf_add)
        if not any(one.infinite or one.losses.any() for one in (forward, backward)):
            return None
        return Dominating((TabulatedPair((forward,), (backward,)),))

    def _peer(self) -> Any:
        """dp_accounting's own accountant, whose import takes longer than most prices."""
        from dp_accounting.pld import PLDAccountant

        return PLDAccountant(self.neighboring_relation, self._value_discretization_interval)


def _cases_of(leaf: dp.DpEvent, times: int, *, upper: bool) -> tuple[Dominating | None, int]:
    """Return the dominating pairs of a leaf, as bounds by `upper`, and how often to compose them.

    They are None where the lower bound omits all of the leaf, and where the leaf costs nothing.
    """
    if not upper and isinstance(unsampled(leaf)[0], RandomAllocationDpEvent):
        return None, times  # its table is an upper bound alone
    gaussian = dominating(dp.SelfComposedDpEvent(leaf, times))  # composed in closed form
    if gaussian is not None:
        return gaussian, 1
    worst = dominating(leaf)
    return (_of_inner(leaf, upper=upper) if worst is None else worst), times


def _of_inner(leaf: dp.DpEvent, *, upper: bool) -> Dominating | None:
    """The pairs of an event that contains others: sampled, one of several, or the best of many."""
    if isinstance(leaf, WorstOfDpEvent):
        known = [_whole(event, upper=upper) for event in leaf.events]
        pairs = tuple(tabulated_pair(one, upper) for one in known if one is not None)
        return Dominating(pairs) if pairs else None
    if isinstance(leaf, dp.PoissonSampledDpEvent):
        return _whole(leaf.event, check_rate(leaf), upper=upper)
    candidate, count = _whole(leaf.event, upper=upper), trial_count(leaf)
    if candidate is None or count is None or not upper:  # a lower bound omits selections
        return None
    if candidate.limit() >= 1 or candidate.limit(adding=True) >= 1:
        return Dominating((MixturePair.of((1.0, 1.0, 0.0)),))
    renyi = RdpAccountant()
    every: Callable[[Array], Array] | None = None
    if count.most <= _FEW_CANDIDATES:
        every = PldAccountant().compose(_all_released(leaf, count)).profile
    return selected(
        candidate, count, renyi.compose(leaf).get_delta if renyi.supports(leaf) else None, every
    )


def _all_released(leaf: dp.DpEvent, count: TrialCount) -> dp.DpEvent:
    """The event of releasing as many candidates of a selection as there may be."""
    return dp.SelfComposedDpEvent(leaf.event, int(count.most))


def _whole(event: dp.DpEvent, rate: float = 1.0, *, upper: bool) -> Dominating | None:
    """The pairs of everything inside an event, on a Poisson sample; None if that is nothing."""
    inner = PldAccountant().compose(event)._composition(upper=upper)
    # One pair of a sample enters many runs, so it is worth its time; the others are read once.
    return inner.sampled(rate, quick=rate == 1) if inner.parts else None
