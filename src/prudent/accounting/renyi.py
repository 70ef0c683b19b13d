"""The Rényi accountant: dp_accounting's, taught Propose-Test-Release."""

from collections.abc import Sequence

import dp_accounting as dp
import numpy as np
from dp_accounting.rdp import RdpAccountant as _RdpAccountant
from dp_accounting.rdp import rdp_privacy_accountant as _rdp

from prudent import _validate
from prudent.accounting.cases import (
    Parts,
    additive_parts,
    branch_pair,
    case_one,
    case_one_without_accident,
    check_rate,
    leaves,
    margin_pair,
    telling_margins,
)
from prudent.accounting.events import (
    DiscreteGaussianTest,
    DiscreteLaplaceTest,
    GaussianTest,
    LaplaceTest,
    MarginTest,
    ProposeTestReleaseDpEvent,
    Reveals,
)
from prudent.accounting.moments import (
    interpolated,
    log_base_moments,
    log_sampled_moments,
    renyi_divergence,
)
from prudent.accounting.pairs import MixturePair, Pair
from prudent.accounting.tables import Array

DEFAULT_ORDERS: tuple[float, ...] = (
    1.1,
    1.25,
    *(1.5 + k / 4 for k in range(35)),
    *range(11, 64),
    *(72.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0),
)


class RdpAccountant(_RdpAccountant):
    """Composes events by their Rényi divergences. Add-or-remove-one-record adjacency.

    Keeps two books: the plain one, and one in which every accident of a test (a margin of 0 that
    passes) is charged to δ instead (Errata 2.4). The better of the two is reported.

    Guarantee:
        `get_epsilon(δ)` is an ε for which everything composed so far is (ε, δ)-DP.
    """

    def __init__(self, orders: Sequence[float] | None = None) -> None:
        chosen = DEFAULT_ORDERS if orders is None else tuple(orders)
        for order in chosen:
            _validate.between(1, np.inf, ends="()", orders=order)
        super().__init__(np.array(chosen, float), dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
        self._rdp: Array = np.zeros(len(chosen))
        self._split_rdp: Array = np.zeros(len(chosen))
        self._split_delta = 0.0

    def compose(self, event: dp.DpEvent, count: int = 1) -> "RdpAccountant":
        """Adds `count` runs of an event; zero runs cost nothing."""
        if _validate.count(count=count) > 0 and any(True for _ in leaves(event)):
            super().compose(event, count)
        return self

    def _maybe_compose(self, event: dp.DpEvent, count: int, do_compose: bool) -> object:
        for leaf, times in leaves(event, max(count, 1)):
            if _is_ours(leaf):
                if do_compose:
                    plain, split, delta = _divergences(leaf, self._orders)
                    self._rdp = self._rdp + times * plain
                    self._split_rdp = self._split_rdp + times * split
                    self._split_delta += times * delta
            else:
                error = self._compose_theirs(leaf, times, do_compose)
                if error is not None:
                    return error
        return None

    def _compose_theirs(self, leaf: dp.DpEvent, times: int, do_compose: bool) -> object:
        """Lets dp_accounting price an event, once, for both books."""
        books = self._rdp, self._split_rdp, self._split_delta
        self._rdp = np.zeros_like(self._split_rdp)
        error = super()._maybe_compose(leaf, times, do_compose)
        added = self._rdp
        self._rdp, self._split_rdp, self._split_delta = books
        if error is None and do_compose:
            self._rdp, self._split_rdp = self._rdp + added, self._split_rdp + added
        return error

    @property
    def accidents_apart(self) -> tuple[Array, float]:
        """The second book: divergences at `orders` without accidents, and the δ they add up to."""
        return self._split_rdp.copy(), self._split_delta

    def get_epsilon(self, target_delta: float) -> float:
        """The least ε, over orders and both books, for which all this is (ε, δ)-DP."""
        return self.get_epsilon_and_optimal_order(target_delta)[0]

    def get_epsilon_and_optimal_order(self, target_delta: float) -> tuple[float, float]:
        """The ε of `get_epsilon` and the order that gives it."""
        delta = _validate.between(0, 1, target_delta=target_delta)
        answers = [_rdp.compute_epsilon(self._orders, self._rdp, delta)]
        if delta > self._split_delta > 0:
            rest = delta - self._split_delta
            answers.append(_rdp.compute_epsilon(self._orders, self._split_rdp, rest))
        epsilon, order = min(answers)
        return float(epsilon), float(order)

    def get_delta(self, target_epsilon: float) -> float:
        """The least δ, over orders and both books, for which all this is (ε, δ)-DP."""
        return self.get_delta_and_optimal_order(target_epsilon)[0]

    def get_delta_and_optimal_order(self, target_epsilon: float) -> tuple[float, float]:
        """The δ of `get_delta` and the order that gives it."""
        epsilon = _validate.non_negative(target_epsilon=target_epsilon)
        plain = _rdp.compute_delta(self._orders, self._rdp, epsilon)
        split = _rdp.compute_delta(self._orders, self._split_rdp, epsilon)
        delta, order = min(plain, (split[0] + self._split_delta, split[1]))
        return min(1.0, float(delta)), float(order)


def _unsampled(leaf: dp.DpEvent) -> tuple[dp.DpEvent, float]:
    """What is inside nested Poisson sampling, and the product of its rates."""
    rate = 1.0
    while isinstance(leaf, dp.PoissonSampledDpEvent):
        rate *= check_rate(leaf)
        leaf = leaf.event
    return leaf, rate


def _is_ours(leaf: dp.DpEvent) -> bool:
    inner, _ = _unsampled(leaf)
    return isinstance(inner, ProposeTestReleaseDpEvent) or additive_parts(inner) is not None


def _divergences(leaf: dp.DpEvent, orders: Array) -> tuple[Array, Array, float]:
    """Rényi divergences of one run: plain, with accidents charged to δ, and that δ."""
    event, rate = _unsampled(leaf)
    if isinstance(event, ProposeTestReleaseDpEvent):
        safe, accident = case_one_without_accident(event)
        test = _case_two_divergence(event, orders, rate)
        plain = np.maximum(test, renyi_divergence(case_one(event), orders, rate))
        split = np.maximum(test, renyi_divergence(safe, orders, rate))
        return plain, split, rate * accident
    parts = additive_parts(event)
    assert parts is not None
    plain = _parts_divergence(parts, orders, rate)
    return plain, plain, 0.0


def _case_two_divergence(event: ProposeTestReleaseDpEvent, orders: Array, rate: float) -> Array:
    """The worst divergence of Case 2, over margins and over directions where they differ.

    The noisy margin beside Gaussian noise is symmetric, so removing a record is the worse direction
    (Errata 2.2, Theorem B). A branch alone is not symmetric: both directions count. With Gaussian
    noise the worst margin moves away with the order, so there the branch is charged as the margin
    it comes from.
    """
    laplace = isinstance(event.test, LaplaceTest | DiscreteLaplaceTest)
    weaker = min(event.noise_multiplier, event.sigma_over_proposal)
    if event.reveals is Reveals.MARGIN or not laplace:
        return _parts_divergence(Parts(weaker, ((event.test, 1),)), orders, rate)
    pairs: list[Pair] = [branch_pair(event, d, d - 1) for d in telling_margins(event) or ()]
    if event.reveals is Reveals.BRANCH:
        pairs += [pair.swapped() for pair in pairs]
    worst = renyi_divergence(MixturePair.of((1.0, 1.0, weaker)), orders, rate)
    for pair in pairs:
        np.maximum(worst, renyi_divergence(pair, orders, rate), out=worst)
        np.maximum(worst, renyi_divergence(pair.swapped(), orders, rate, adding=True), out=worst)
    return worst


def _parts_divergence(parts: Parts, orders: Array, rate: float) -> Array:
    """Several independent parts on one batch (Errata 5), exact at whole orders.

    Between them too where there is one pair with a closed form; else the logarithm of the moment,
    convex in the order, is interpolated upwards.
    """
    match parts.others:
        case ():
            return renyi_divergence(MixturePair.of((1.0, 1.0, parts.sigma)), orders, rate)
        case ((LaplaceTest() | GaussianTest() | DiscreteLaplaceTest() as test, 1),):
            return renyi_divergence(margin_pair(test, parts.sigma), orders, rate)
    powers = np.arange(2, int(np.ceil(orders.max())) + 1, dtype=np.float64)
    log_base = 0.5 * powers * (powers - 1) * parts.sigma**-2.0
    for test, count in parts.others:
        log_base = log_base + count * _log_test_moments(test, powers)
    whole = orders == np.floor(orders)
    logs = np.empty(orders.shape)
    logs[whole] = log_sampled_moments(log_base, orders[whole], rate)
    logs[~whole] = [interpolated(log_base, float(order), rate) for order in orders[~whole]]
    return np.maximum(0.0, logs) / (orders - 1)


def _log_test_moments(test: MarginTest, powers: Array) -> Array:
    """Logarithms of the moments of a noisy margin alone, at whole powers.

    Completing the square in a discrete Gaussian shifts its sum by a whole number, so its moments
    are those of the Gaussian. Summed term by term they would need terms out to the power itself.
    """
    if isinstance(test, DiscreteGaussianTest):
        return np.asarray(0.5 * powers * (powers - 1) / test.scale**2)
    return log_base_moments(margin_pair(test, np.inf), powers)
