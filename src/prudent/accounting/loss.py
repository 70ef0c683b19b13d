"""The privacy-loss accountant: dp_accounting's, extended with Propose-Test-Release. The default.

Profiles are exact; only their values on a grid of losses enter, joined by chords (a pessimistic
law: Doroshenko et al. 2022, arXiv:2207.04380) or lowered below them (an optimistic one). Each
direction, adding a record and removing one, is composed apart and the worse is reported. How laws
are composed, and why rounding cannot hide a part of δ, is in `convolution`.
"""

import dp_accounting as dp
import numpy as np
from dp_accounting.pld import PLDAccountant as _PLDAccountant
from dp_accounting.pld import pld_pmf, privacy_loss_distribution

from prudent import _validate
from prudent.accounting.cases import check_rate, dominating, leaves
from prudent.accounting.composed import Composition
from prudent.accounting.pairs import Dominating, MixturePair, TabulatedPair
from prudent.accounting.tables import LossTable


class PldAccountant(_PLDAccountant):
    """Composes events by their privacy-loss distributions. Add-or-remove-one-record adjacency.

    Guarantee:
        `get_epsilon(δ)` is an ε for which everything composed so far is (ε, δ)-DP, and
        `epsilon_bounds(δ)` brackets the smallest such ε of the dominating pairs.

    Attributes:
        value_discretization_interval: Accuracy. The grid of losses is chosen for each question, as
            fine as the number of runs needs; at 1e-4 it adds about 2e-5 of ε, at other values in
            proportion. Events that dp_accounting prices are tabulated on this very grid.
    """

    def __init__(self, value_discretization_interval: float = 1e-4) -> None:
        interval = _validate.positive(value_discretization_interval=value_discretization_interval)
        super().__init__(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, interval)
        self._finest_interval = interval
        self._entries: list[tuple[dp.DpEvent, int]] = []
        self._composed: dict[bool, Composition] = {}

    def compose(self, event: dp.DpEvent, count: int = 1) -> "PldAccountant":
        """Adds `count` runs of an event; zero runs cost nothing."""
        if _validate.count(count=count) > 0 and any(True for _ in leaves(event)):
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
        return self._composition(upper=True).epsilon(delta)

    def epsilon_bounds(self, target_delta: float) -> tuple[float, float]:
        """Brackets the ε of the dominating pairs: (a lower bound on it, `get_epsilon`).

        The lower bound is one on what the pairs cost, hence on what any accountant of them can
        prove, and not one on the mechanism, which may cost less than the pairs that dominate it.
        """
        delta = _validate.between(0, 1, target_delta=target_delta)
        upper = self.get_epsilon(delta)
        return min(self._composition(upper=False).epsilon(delta), upper), upper

    def get_delta(self, target_epsilon: float) -> float:
        """The least δ, rounded up, for which everything composed so far is (ε, δ)-DP."""
        epsilon = _validate.non_negative(target_epsilon=target_epsilon)
        return self._composition(upper=True).delta(epsilon)

    def _composition(self, *, upper: bool) -> Composition:
        """The dominating pairs of everything composed so far."""
        if upper not in self._composed:
            parts, lattice = [], None
            for leaf, times in self._entries:
                worst, runs = _cases_of(leaf, times, upper=upper)
                if worst is None and upper:  # leaving these events out is a lower bound
                    worst, lattice = self._priced_by_dp_accounting(leaf), self._finest_interval
                if worst is not None:
                    parts.append((worst, runs))
            self._composed[upper] = Composition(tuple(parts), self._finest_interval, upper, lattice)
        return self._composed[upper]

    def _priced_by_dp_accounting(self, leaf: dp.DpEvent) -> Dominating:
        """One run of an event that dp_accounting alone knows."""
        self._pld = privacy_loss_distribution.identity(self._finest_interval)
        super()._maybe_compose(leaf, 1, True)
        if self._contains_non_dp_event:  # known only once dp_accounting has seen its events
            return Dominating((MixturePair.of((1.0, 1.0, 0.0)),))

        def table(pmf: pld_pmf.PLDPmf) -> LossTable:
            dense = pmf.to_dense_pmf()
            masses = np.maximum(dense._probs, 0.0)
            losses = np.arange(len(masses), dtype=float) + dense._lower_loss
            return LossTable(losses * dense._discretization, masses, float(dense._infinity_mass))

        forward, backward = table(self._pld._pmf_remove), table(self._pld._pmf_add)
        return Dominating((TabulatedPair((forward,), (backward,)),))


def _is_ours(leaf: dp.DpEvent) -> bool:
    """Whether this package, rather than dp_accounting, prices the event."""
    if isinstance(leaf, dp.PoissonSampledDpEvent):
        check_rate(leaf)
        return bool(PldAccountant().supports(leaf.event))
    return dominating(leaf) is not None


def _cases_of(leaf: dp.DpEvent, times: int, *, upper: bool) -> tuple[Dominating | None, int]:
    """The dominating pairs of a leaf and how often they are composed.

    Gaussians are composed in closed form; a sampled composition gets its pair tabulated, on the
    side of the truth that is asked for; None is left for dp_accounting.
    """
    gaussian = dominating(dp.SelfComposedDpEvent(leaf, times))
    if gaussian is not None:
        return gaussian, 1
    worst = dominating(leaf)
    if worst is None and isinstance(leaf, dp.PoissonSampledDpEvent):
        inner = PldAccountant().compose(leaf.event)._composition(upper=upper)
        worst = inner.sampled(check_rate(leaf)) if inner.parts else None
    return worst, times
