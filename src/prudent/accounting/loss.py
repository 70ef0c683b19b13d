"""The privacy-loss accountant: dp_accounting's, taught Propose-Test-Release. The default.

Profiles are exact; only their values on a grid of losses enter, joined by chords (a pessimistic
law: Doroshenko et al. 2022, arXiv:2207.04380) or lowered below them (an optimistic one). Each
direction, adding a record and removing one, is composed apart and the worse is reported.
"""

import dataclasses
import functools
import math
import sys

import dp_accounting as dp
import numpy as np
from dp_accounting.pld import PLDAccountant as _PLDAccountant
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from prudent import _validate
from prudent.accounting.cases import check_rate, dominating, leaves
from prudent.accounting.neighbouring import check_relation, refused
from prudent.accounting.pairs import Dominating, TabulatedPair
from prudent.accounting.tables import Array, LossTable, joined, lowered

_TAIL = 1e-20  # of a single release: pushed to infinite loss, as a worst case
_FFT_NOISE = 2e-13  # what rounding inside a convolution may hide: several times the worst seen
_MANY_PAIRS = 8  # beyond which the worst of the pairs is tabulated once
_TABLE_LOSSES = 2**13  # points of such a table
_MOST_LOSSES = 2**21  # grid points of a composition; a coarser grid is used beyond


class PldAccountant(_PLDAccountant):
    """Composes events by their privacy-loss distributions.

    Guarantee:
        `get_epsilon(δ)` is an ε for which everything composed so far is (ε, δ)-DP, and
        `epsilon_bounds(δ)` brackets the smallest such ε of the dominating pairs.

    Attributes:
        neighboring_relation: Adding or removing one record, unless told otherwise. Replacing one by
            a special, empty record costs the same. Replacing one by any other is left to
            dp_accounting, for the events it can price.
        value_discretization_interval: The finest grid of losses used. A release whose losses would
            need more than two million points gets a coarser grid, which is still an upper bound.
    """

    def __init__(
        self,
        neighboring_relation: dp.NeighboringRelation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        value_discretization_interval: float = 1e-4,
    ) -> None:
        interval = _validate.positive(value_discretization_interval=value_discretization_interval)
        # Past the base class: it would keep a distribution of its own, and `_pld` is computed here.
        dp.PrivacyAccountant.__init__(self, check_relation(neighboring_relation))
        self._value_discretization_interval = interval
        self._contains_non_dp_event = False
        self._entries: list[tuple[dp.DpEvent, int]] = []
        self._composed: dict[bool, tuple[LossTable, LossTable]] = {}

    def supports(self, event: dp.DpEvent) -> bool:
        """Whether `compose` accepts the event."""
        try:
            return bool(super().supports(event))
        except ValueError:  # a parameter out of range, which `compose` reports
            return False

    def compose(self, event: dp.DpEvent, count: int = 1) -> "PldAccountant":
        """Adds `count` runs of an event; zero runs cost nothing."""
        if _validate.count(count=count) > 0 and any(True for _ in leaves(event)):
            super().compose(event, count)
        return self

    def _maybe_compose(self, event: dp.DpEvent, count: int, do_compose: bool) -> object:
        for leaf, times in leaves(event, max(count, 1)):
            error = None
            if not self._is_ours(leaf):
                error = refused(leaf, self.neighboring_relation)
                error = error or super()._maybe_compose(leaf, times, False)
            if error is not None:
                return error
            if do_compose:
                self._add_entry(leaf, times)
        return None

    def _is_ours(self, leaf: dp.DpEvent) -> bool:
        """Whether this package, rather than dp_accounting, prices the event."""
        if self.neighboring_relation is dp.NeighboringRelation.REPLACE_ONE:
            return False
        if isinstance(leaf, dp.PoissonSampledDpEvent):
            check_rate(leaf)
            return PldAccountant()._maybe_compose(leaf.event, 1, False) is None
        return dominating(leaf) is not None

    def _add_entry(self, leaf: dp.DpEvent, times: int) -> None:
        self._composed.clear()
        for index, (known, count) in enumerate(self._entries):
            if known == leaf:
                self._entries[index] = (known, count + times)
                return
        self._entries.append((leaf, times))

    def get_epsilon(self, target_delta: float) -> float:
        """The least ε, rounded up, for which everything composed so far is (ε, δ)-DP."""
        delta = _validate.between(0, 1, target_delta=target_delta)
        tables = self._tables(pessimistic=True)
        if any(table.infinite >= 1 for table in tables):
            return math.inf  # at δ = 1 too: no ε describes a release that hides nothing
        return max(table.epsilon(delta - self._rounding()) for table in tables)

    def epsilon_bounds(self, target_delta: float) -> tuple[float, float]:
        """Brackets the true ε of the dominating pairs: (below it, `get_epsilon`)."""
        delta = _validate.between(0, 1, target_delta=target_delta)
        upper = self.get_epsilon(delta)
        lower = max(
            table.epsilon(min(1.0, delta + self._rounding()))
            for table in self._tables(pessimistic=False)
        )
        return min(lower, upper), upper

    def get_delta(self, target_epsilon: float) -> float:
        """The least δ, rounded up, for which everything composed so far is (ε, δ)-DP."""
        epsilon = _validate.between(0, math.inf, target_epsilon=target_epsilon)
        finite = np.array([min(epsilon, sys.float_info.max)])
        worst = max(float(t.profile(finite)[0]) for t in self._tables(pessimistic=True))
        return min(1.0, worst + self._rounding())

    def _rounding(self) -> float:
        """What the convolutions of this ledger may hide; a single release needs none."""
        runs = [count for _, count in self._entries]
        convolutions = len(runs) - 1 + sum(max(1.0, n / 1e5) for n in runs if n > 1)
        return _FFT_NOISE * max(0.0, convolutions)

    def _tables(self, *, pessimistic: bool) -> tuple[LossTable, LossTable]:
        """The composed losses of removing a record and of adding one."""
        if pessimistic not in self._composed:
            self._composed[pessimistic] = self._compose_entries(pessimistic=pessimistic)
        return self._composed[pessimistic]

    def _compose_entries(self, *, pessimistic: bool) -> tuple[LossTable, LossTable]:
        """Composes the ledger anew, on one grid that suits all of it."""
        ours, theirs = [], []
        for leaf, times in self._entries:
            if self._is_ours(leaf):
                worst, runs = _cases_of(leaf, times, pessimistic=pessimistic)
                ours.append((_tabulated(worst, pessimistic=pessimistic), runs))
            else:
                theirs.append((leaf, times))
        span = sum(_composed_span(worst, runs) for worst, runs in ours)
        interval = max(self._value_discretization_interval, span / _MOST_LOSSES)
        tables = []
        for worst, runs in ours:
            remove, add = discretise(worst, interval, pessimistic=pessimistic)
            tables.append((remove.self_composed(runs), add.self_composed(runs)))
        if theirs and pessimistic:  # leaving these events out is an optimistic bound
            tables.append(self._compose_theirs(theirs, interval))
        if self._contains_non_dp_event:  # known only once dp_accounting has seen its events
            everything = LossTable(interval, 0, np.zeros(1), 1.0)
            return everything, everything
        if not tables:
            nothing = LossTable(interval, 0, np.ones(1), 0.0)
            return nothing, nothing
        removes, adds = zip(*tables, strict=True)
        return functools.reduce(LossTable.composed, removes), functools.reduce(
            LossTable.composed, adds
        )

    def _compose_theirs(
        self, events: list[tuple[dp.DpEvent, int]], interval: float
    ) -> tuple[LossTable, LossTable]:
        """Lets dp_accounting price the events it alone knows."""
        peer = _PLDAccountant(self.neighboring_relation, interval)
        for leaf, times in events:
            peer.compose(leaf, times)
        self._contains_non_dp_event = peer._contains_non_dp_event

        def table(pmf: pld_pmf.PLDPmf) -> LossTable:
            dense = pmf.to_dense_pmf()
            masses = np.maximum(dense._probs, 0.0)
            return LossTable(interval, dense._lower_loss, masses, float(dense._infinity_mass))

        return table(peer._pld._pmf_remove), table(peer._pld._pmf_add)

    @property
    def _pld(self) -> PrivacyLossDistribution:
        """Everything composed so far, for code that reads dp_accounting's accountant from inside.

        What convolutions may hide counts as infinite loss: ε and δ read from it are upper bounds.
        """
        remove, add = (
            pld_pmf.DensePLDPmf(
                table.interval,
                table.first,
                table.masses,
                min(1.0, table.infinite + self._rounding()),
                pessimistic_estimate=True,
            )
            for table in self._tables(pessimistic=True)
        )
        return PrivacyLossDistribution(remove, add)


def _cases_of(leaf: dp.DpEvent, times: int, *, pessimistic: bool) -> tuple[Dominating, int]:
    """The dominating pairs of a leaf and how often they are composed.

    Gaussians are composed in closed form; a sampled composition gets its pair tabulated, on the
    side of the truth that is asked for.
    """
    gaussian = dominating(dp.SelfComposedDpEvent(leaf, times))
    if gaussian is not None:
        return gaussian, 1
    worst = dominating(leaf)
    if worst is None:
        inner = PldAccountant().compose(leaf.event)
        pair = TabulatedPair(*inner._tables(pessimistic=pessimistic))
        slack = inner._rounding() if pessimistic else 0.0
        worst = Dominating((pair,), check_rate(leaf), slack)
    return worst, times


def discretise(
    worst: Dominating, interval: float, *, pessimistic: bool
) -> tuple[LossTable, LossTable]:
    """The laws of losses of removing a record and of adding one, on multiples of `interval`."""
    right, left = (
        worst.profile(
            np.arange(_points(worst, interval, adding), dtype=np.float64) * interval, adding=adding
        )
        for adding in (False, True)
    )

    def table(right: Array, left: Array, *, adding: bool) -> LossTable:
        # Left of zero a profile is 1 - e^ε and e^ε times the opposite direction's at -ε.
        zero = len(left) - 1
        mirrored = left[:0:-1] * np.exp(-interval * np.arange(zero, 0, -1))
        excess = np.append(mirrored, np.minimum.accumulate(right))
        if not pessimistic:
            excess = lowered(excess, zero, interval, worst.infinite_mass(adding=adding))
        return joined(excess, zero, interval)

    return table(right, left, adding=False), table(left, right, adding=True)


def _points(worst: Dominating, interval: float, adding: bool) -> int:
    return math.ceil(worst.reach(_TAIL, adding=adding) / interval) + 2


def _tabulated(worst: Dominating, *, pessimistic: bool) -> Dominating:
    """Replaces many pairs by one table of their maximum, before sampling.

    The table is the same chords over a few thousand points, so it stays on its side of the truth.
    """
    if len(worst.pairs) <= _MANY_PAIRS:
        return worst
    unsampled = dataclasses.replace(worst, sampling_rate=1.0)
    tables = discretise(unsampled, _single_span(unsampled) / _TABLE_LOSSES, pessimistic=pessimistic)
    return Dominating((TabulatedPair(*tables),), worst.sampling_rate)


def _single_span(worst: Dominating) -> float:
    return worst.reach(_TAIL) + worst.reach(_TAIL, adding=True)


def _composed_span(worst: Dominating, times: int) -> float:
    """How wide a range of losses `times` runs cover, seen on a coarse grid."""
    single = _single_span(worst)
    if times == 1:
        return single
    spans = (table.span_of(times) for table in discretise(worst, single / 1024, pessimistic=True))
    return max(single, *((high - low) * single / 1024 for low, high in spans))
