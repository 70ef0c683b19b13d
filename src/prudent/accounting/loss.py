"""The privacy-loss accountant: dp_accounting's, taught Propose-Test-Release. The default.

Profiles are exact; only their values on a grid of losses enter, joined by chords (a pessimistic
law: Doroshenko et al. 2022, arXiv:2207.04380) or lowered below them (an optimistic one). Each
direction, adding a record and removing one, is composed apart and the worse is reported.
"""

import dataclasses
import functools
import math

import dp_accounting as dp
import numpy as np
from dp_accounting.pld import common, pld_pmf, privacy_loss_distribution
from dp_accounting.pld import PLDAccountant as _PLDAccountant

from prudent import _validate
from prudent.accounting.cases import check_rate, dominating, leaves
from prudent.accounting.pairs import Array, Dominating, LossTable, TabulatedPair

_TAIL = 1e-20  # of a single release: pushed to infinite loss, as a worst case
_TRUNCATION = 1e-15  # of a composition: dp_accounting's own default
_FFT_NOISE = 2e-13  # what rounding inside a convolution may hide: several times the worst seen
_MANY_PAIRS = 8  # beyond which the worst of the pairs is tabulated once
_TABLE_LOSSES = 2**13  # points of such a table
_MOST_LOSSES = 2**21  # grid points of a composition; a coarser grid is used beyond

_Pld = privacy_loss_distribution.PrivacyLossDistribution
_Relation = dp.NeighboringRelation


class PldAccountant(_PLDAccountant):  # type: ignore[misc]
    """Composes events by their privacy-loss distributions. Add-or-remove-one-record adjacency.

    Guarantee:
        `get_epsilon(δ)` is an ε for which everything composed so far is (ε, δ)-DP, and
        `epsilon_bounds(δ)` brackets the smallest such ε of the dominating pairs.

    Attributes:
        value_discretization_interval: The finest grid of losses used. A release whose losses would
            need more than two million points gets a coarser grid, which is still an upper bound.
    """

    def __init__(self, value_discretization_interval: float = 1e-4) -> None:
        interval = _validate.positive(value_discretization_interval=value_discretization_interval)
        super().__init__(_Relation.ADD_OR_REMOVE_ONE, interval)
        self._finest_interval = interval
        self._entries: list[tuple[dp.DpEvent, int]] = []
        self._composed: dict[bool, tuple[LossTable, LossTable]] = {}

    def compose(self, event: dp.DpEvent, count: int = 1) -> "PldAccountant":
        """Adds `count` runs of an event; zero runs cost nothing."""
        if _validate.count(count=count) > 0:
            super().compose(event, count)
        return self

    def _maybe_compose(self, event: dp.DpEvent, count: int, do_compose: bool) -> object:
        for leaf, times in leaves(event, max(count, 1)):
            error = None if _is_ours(leaf) else super()._maybe_compose(leaf, times, False)
            if error is not None:
                return error
            if do_compose:
                self._add_entry(leaf, times)
        return None

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
        if self._contains_non_dp_event:
            return math.inf
        return max(
            table.epsilon(delta - self._rounding()) for table in self._tables(pessimistic=True)
        )

    def epsilon_bounds(self, target_delta: float) -> tuple[float, float]:
        """Brackets the true ε of the dominating pairs: (below it, `get_epsilon`)."""
        upper = self.get_epsilon(target_delta)
        if self._contains_non_dp_event:
            return upper, upper
        lower = max(
            table.epsilon(min(1.0, target_delta + self._rounding()))
            for table in self._tables(pessimistic=False)
        )
        return min(lower, upper), upper

    def get_delta(self, target_epsilon: float) -> float:
        """The least δ, rounded up, for which everything composed so far is (ε, δ)-DP."""
        epsilon = np.array([_validate.non_negative(target_epsilon=target_epsilon)])
        if self._contains_non_dp_event:
            return 1.0
        worst = max(float(t.profile(epsilon)[0]) for t in self._tables(pessimistic=True))
        return min(1.0, worst + self._rounding())

    def _rounding(self) -> float:
        """What the convolutions of this ledger may hide; a single release needs none."""
        runs = [count for _, count in self._entries]
        convolutions = len(runs) - 1 + sum(max(1.0, n / 1e5) for n in runs if n > 1)
        return _FFT_NOISE * max(0.0, convolutions)

    def _tables(self, *, pessimistic: bool) -> tuple[LossTable, LossTable]:
        """The composed losses of removing a record and of adding one."""
        if pessimistic not in self._composed:
            self._composed[pessimistic] = _tables_of(self._compose_entries(pessimistic=pessimistic))
        return self._composed[pessimistic]

    def _compose_entries(self, *, pessimistic: bool) -> _Pld:
        """Composes the ledger anew, on one grid that suits all of it."""
        ours, theirs = [], []
        for leaf, times in self._entries:
            worst, runs = _cases_of(leaf, times)
            if worst is None:
                theirs.append((leaf, times))
            else:
                ours.append((_tabulated(worst, pessimistic=pessimistic), runs))
        span = sum(_composed_span(worst, runs) for worst, runs in ours)
        interval = max(self._finest_interval, span / _MOST_LOSSES)
        self._value_discretization_interval = interval
        self._pld = privacy_loss_distribution.identity(interval)
        if pessimistic:  # leaving these events out is an optimistic bound
            for leaf, times in theirs:
                super()._maybe_compose(leaf, times, True)
        released = [] if not theirs or not pessimistic else [self._pld]
        for worst, runs in ours:
            single = discretise(worst, interval, pessimistic=pessimistic)
            released.append(single if runs == 1 else single.self_compose(runs, _TRUNCATION))
        return functools.reduce(_Pld.compose, released) if released else self._pld


def _is_ours(leaf: dp.DpEvent) -> bool:
    """Whether this package, rather than dp_accounting, prices the event."""
    if isinstance(leaf, dp.PoissonSampledDpEvent):
        check_rate(leaf)
        return bool(PldAccountant().supports(leaf.event))
    return dominating(leaf) is not None


def _cases_of(leaf: dp.DpEvent, times: int) -> tuple[Dominating | None, int]:
    """The dominating pairs of a leaf and how often they are composed.

    Gaussians are composed in closed form; a sampled composition gets its pair tabulated; None is
    left for dp_accounting.
    """
    gaussian = dominating(dp.SelfComposedDpEvent(leaf, times))
    if gaussian is not None:
        return gaussian, 1
    worst = dominating(leaf)
    if worst is None and isinstance(leaf, dp.PoissonSampledDpEvent):
        inner = PldAccountant().compose(leaf.event)
        worst = Dominating((TabulatedPair(*inner._tables(pessimistic=True)),), check_rate(leaf))
    return worst, times


def _tables_of(pld: _Pld) -> tuple[LossTable, LossTable]:
    """The two loss distributions as plain arrays."""
    remove, add = (pmf.to_dense_pmf() for pmf in (pld._pmf_remove, pld._pmf_add))

    def table(pmf: pld_pmf.DensePLDPmf) -> LossTable:
        losses = (pmf._lower_loss + np.arange(pmf.size)) * pmf._discretization
        return LossTable(losses, np.maximum(pmf._probs, 0.0), float(pmf._infinity_mass))

    return table(remove), table(add)


def discretise(worst: Dominating, interval: float, *, pessimistic: bool) -> _Pld:
    """The loss distributions of both directions on the grid of multiples of `interval`."""
    reach_remove, reach_add = worst.reach(_TAIL), worst.reach(_TAIL, adding=True)
    return _Pld(
        _pmf(worst, interval, -reach_add, reach_remove, adding=False, pessimistic=pessimistic),
        _pmf(worst, interval, -reach_remove, reach_add, adding=True, pessimistic=pessimistic),
    )


def _tabulated(worst: Dominating, *, pessimistic: bool) -> Dominating:
    """Replaces many pairs by one table of their maximum, before sampling.

    The table is the same chords over a few thousand points, so it stays on its side of the truth.
    """
    if len(worst.pairs) <= _MANY_PAIRS:
        return worst
    unsampled = dataclasses.replace(worst, sampling_rate=1.0)
    interval = (unsampled.reach(_TAIL) + unsampled.reach(_TAIL, adding=True)) / _TABLE_LOSSES
    tables = _tables_of(discretise(unsampled, interval, pessimistic=pessimistic))
    return Dominating((TabulatedPair(*tables),), worst.sampling_rate)


def _pmf(
    worst: Dominating,
    interval: float,
    low: float,
    high: float,
    *,
    adding: bool,
    pessimistic: bool,
) -> pld_pmf.PLDPmf:
    first, last = math.floor(low / interval), math.ceil(high / interval)
    epsilons = np.arange(first, last + 1) * interval
    deltas = np.clip(worst.profile(epsilons, adding=adding), 0.0, 1.0)
    deltas = np.minimum.accumulate(np.maximum(deltas, np.maximum(0.0, -np.expm1(epsilons))))
    if not pessimistic:
        deltas = lowered(deltas, epsilons, interval, worst.infinite_mass(adding=adding))
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, deltas)


def lowered(deltas: Array, epsilons: Array, interval: float, limit: float) -> Array:
    """Grid values whose chords stay below the convex profile that has these values.

    Between two grid points the profile lies above the lines through the neighbouring chords, so
    the chord overshoots it by at most the height of that triangle (in g = e^ε, where profiles are
    convex). Lowering both ends by the larger overshoot beside them, and taking the lower convex
    hull, gives the profile of a pair that the original dominates.
    """
    floor = np.maximum(limit, -np.expm1(epsilons))
    if len(deltas) < 3:
        return np.minimum.accumulate(floor)
    rise = np.diff(deltas)
    growth = math.exp(interval)
    before = np.append(-np.inf, rise[:-1]) * growth
    after = np.append(rise[1:], 0.0) / growth
    with np.errstate(invalid="ignore", divide="ignore"):
        left, right = rise - before, after - rise
        height = np.where(np.isinf(left), right, left * right / (left + right))
    height = np.maximum(0.0, np.nan_to_num(height, nan=0.0))
    overshoot = np.maximum(np.append(height, 0.0), np.append(0.0, height))
    values = np.maximum(deltas - overshoot, floor)
    values[0], values[-1] = -math.expm1(epsilons[0]) if epsilons[0] < 0 else limit, limit
    return _lower_hull(np.exp(epsilons), values)


def _lower_hull(x: Array, y: Array) -> Array:
    """The greatest convex function below the points, at their abscissae."""
    kept: list[int] = []
    xs, ys = x.tolist(), y.tolist()
    for i in range(len(xs)):
        while len(kept) > 1:
            j, k = kept[-2], kept[-1]
            if (ys[k] - ys[j]) * (xs[i] - xs[k]) <= (ys[i] - ys[k]) * (xs[k] - xs[j]):
                break
            kept.pop()
        kept.append(i)
    return np.asarray(np.interp(x, x[kept], y[kept]))


def _composed_span(worst: Dominating, times: int) -> float:
    """How wide a range of losses `times` runs cover, by a Chernoff bound on a coarse grid."""
    reach = worst.reach(_TAIL), worst.reach(_TAIL, adding=True)
    interval = sum(reach) / 1024
    if times == 1:
        return sum(reach)
    spans = []
    for low, high, adding in ((-reach[1], reach[0], False), (-reach[0], reach[1], True)):
        pmf = _pmf(worst, interval, low, high, adding=adding, pessimistic=True).to_dense_pmf()
        bounds = common.compute_self_convolve_bounds(pmf._probs, times, _TRUNCATION)
        spans.append((bounds[1] - bounds[0]) * interval)
    return max(*spans, sum(reach))
