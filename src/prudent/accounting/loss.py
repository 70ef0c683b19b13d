"""The privacy-loss accountant: dp_accounting's, taught Propose-Test-Release. The default.

Profiles are exact; only their values on a grid of losses enter, joined by chords (a pessimistic
law: Doroshenko et al. 2022, arXiv:2207.04380) or lowered below them (an optimistic one). Each
direction, adding a record and removing one, is composed apart and the worse is reported.
"""

import math
from collections.abc import Callable, Iterable

import dp_accounting as dp
import numpy as np
from dp_accounting.pld import common, pld_pmf, privacy_loss_distribution
from dp_accounting.pld import PLDAccountant as _PLDAccountant

from prudent import _validate
from prudent.accounting.cases import check_rate, dominating, leaves
from prudent.accounting.events import MarginTest, ProposeTestReleaseDpEvent
from prudent.accounting.pairs import Array, Dominating, TabulatedPair

_TAIL = 1e-20  # of a single release: pushed to infinite loss, as a worst case
_TRUNCATION = 1e-15  # of a composition: dp_accounting's own default
_FFT_NOISE = 4e-14  # what rounding inside the convolutions may hide or invent, per composition
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
        self._composed: dict[bool, _Pld | None] = {True: None, False: None}

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
        self._composed = {True: None, False: None}
        for index, (known, count) in enumerate(self._entries):
            if known == leaf:
                self._entries[index] = (known, count + times)
                return
        self._entries.append((leaf, times))

    def get_epsilon(self, target_delta: float) -> float:
        """The least ε, rounded up, for which everything composed so far is (ε, δ)-DP."""
        return self._epsilon(target_delta, pessimistic=True)

    def epsilon_bounds(self, target_delta: float) -> tuple[float, float]:
        """Brackets the true ε of the dominating pairs: (below it, `get_epsilon`)."""
        upper = self.get_epsilon(target_delta)
        if math.isinf(upper):
            return math.inf if self._contains_non_dp_event else 0.0, upper
        return min(upper, self._epsilon(target_delta, pessimistic=False)), upper

    def get_delta(self, target_epsilon: float) -> float:
        """The least δ, rounded up, for which everything composed so far is (ε, δ)-DP."""
        epsilon = _validate.non_negative(target_epsilon=target_epsilon)
        pld = self._pld_of(pessimistic=True)
        if self._contains_non_dp_event:
            return 1.0
        return min(1.0, float(pld.get_delta_for_epsilon(epsilon)) + self._rounding())

    def _epsilon(self, target_delta: float, *, pessimistic: bool) -> float:
        delta = _validate.between(0, 1, target_delta=target_delta)
        pld = self._pld_of(pessimistic=pessimistic)
        if self._contains_non_dp_event:
            return math.inf
        slack = self._rounding() if pessimistic else -self._rounding()
        return _least_epsilon(lambda e: float(pld.get_delta_for_epsilon(e)) + slack, delta)

    def _rounding(self) -> float:
        return _FFT_NOISE * sum(1 for _, count in self._entries if count > 1)

    def _pld_of(self, *, pessimistic: bool) -> _Pld:
        composed = self._composed[pessimistic]
        if composed is None:
            composed = self._compose_entries(pessimistic=pessimistic)
            self._composed[pessimistic] = composed
        return composed

    def _compose_entries(self, *, pessimistic: bool) -> _Pld:
        """Composes the ledger anew, on one grid that suits all of it."""
        cases = [(leaf, times, _cases_of(leaf)) for leaf, times in self._entries]
        interval = max(
            self._finest_interval,
            sum(_composed_span(worst, times) for _, times, worst in cases if worst) / _MOST_LOSSES,
        )
        self._value_discretization_interval = interval
        self._pld = privacy_loss_distribution.identity(interval)
        for leaf, times, worst in cases:
            if worst is not None:
                single = discretise(worst, interval, pessimistic=pessimistic)
                several = single if times == 1 else single.self_compose(times, _TRUNCATION)
                self._pld = self._pld.compose(several)
            elif pessimistic:  # leaving the event out is the optimistic bound
                super()._maybe_compose(leaf, times, True)
        return self._pld


def _is_ours(leaf: dp.DpEvent) -> bool:
    """Whether this package, rather than dp_accounting, prices the event."""
    if isinstance(leaf, dp.PoissonSampledDpEvent):
        check_rate(leaf)
        return PldAccountant().supports(leaf.event)
    return isinstance(leaf, MarginTest | ProposeTestReleaseDpEvent | dp.GaussianDpEvent) or (
        dominating(leaf) is not None
    )


def _cases_of(leaf: dp.DpEvent) -> Dominating | None:
    """The dominating pairs of a leaf; a sampled composition gets its pair tabulated."""
    if isinstance(leaf, dp.PoissonSampledDpEvent) and check_rate(leaf) == 0:
        return None
    worst = dominating(leaf)
    if worst is None and isinstance(leaf, dp.PoissonSampledDpEvent):
        return Dominating((tabulate(leaf.event),), leaf.sampling_probability)
    return worst


def tabulate(event: dp.DpEvent) -> TabulatedPair:
    """The dominating pair of any supported event, from its pessimistic loss distributions."""
    pld = PldAccountant().compose(event)._pld_of(pessimistic=True)
    remove, add = (pmf.to_dense_pmf() for pmf in (pld._pmf_remove, pld._pmf_add))

    def table(pmf: pld_pmf.DensePLDPmf) -> tuple[Array, Array, float]:
        losses = (pmf._lower_loss + np.arange(pmf.size)) * pmf._discretization
        return losses, np.maximum(pmf._probs, 0.0), float(pmf._infinity_mass)

    return TabulatedPair(*table(remove), table(add))


def discretise(worst: Dominating, interval: float, *, pessimistic: bool) -> _Pld:
    """The loss distributions of both directions on the grid of multiples of `interval`."""
    reach_remove, reach_add = worst.reach(_TAIL), worst.reach(_TAIL, adding=True)
    return _Pld(
        _pmf(worst, interval, -reach_add, reach_remove, adding=False, pessimistic=pessimistic),
        _pmf(worst, interval, -reach_remove, reach_add, adding=True, pessimistic=pessimistic),
    )


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
    interval = sum(reach) / 4096
    if times == 1:
        return sum(reach)
    spans = []
    for low, high, adding in ((-reach[1], reach[0], False), (-reach[0], reach[1], True)):
        pmf = _pmf(worst, interval, low, high, adding=adding, pessimistic=True).to_dense_pmf()
        bounds = common.compute_self_convolve_bounds(pmf._probs, times, _TRUNCATION)
        spans.append((bounds[1] - bounds[0]) * interval)
    return max(*spans, sum(reach))


def _least_epsilon(delta_at: Callable[[float], float], target: float) -> float:
    """The least ε >= 0 with delta_at(ε) <= target, to 1e-9 relative, rounded up."""
    if delta_at(0.0) <= target:
        return 0.0
    low, high = 0.0, 1.0
    while delta_at(high) > target:
        low, high = high, 2 * high
        if high > 1e9:
            return math.inf
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if delta_at(middle) > target else (low, middle)
    return high


def epsilon_of(events: Iterable[tuple[dp.DpEvent, int]], delta: float) -> float:
    """ε of a list of (event, count) by a fresh accountant."""
    accountant = PldAccountant()
    for event, count in events:
        accountant.compose(event, count)
    return accountant.get_epsilon(delta)
