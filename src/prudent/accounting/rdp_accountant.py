"""dp_accounting's Rényi accountant, extended with Propose-Test-Release; and what both share."""

import abc
import math
from collections.abc import Sequence
from typing import Self, overload

import dp_accounting as dp
import numpy as np
from dp_accounting.dp_event import RandomizedResponseDpEvent, RepeatAndSelectDpEvent

from prudent import _validate
from prudent.accounting import events
from prudent.accounting._numeric import each
from prudent.accounting.losses.domination import (
    Parts,
    additive_parts,
    approximate_pair,
    branch_pair,
    case_one,
    case_one_without_false_pass,
    leaves,
    margin_pair,
    refused,
    telling_margins,
    unsampled,
    with_halved_noise,
)
from prudent.accounting.losses.loss_tables import Array
from prudent.accounting.losses.moments import (
    best_delta,
    best_epsilon,
    divergence_of_removing,
    kullback_leibler,
    largest_loss,
    log_base_moments,
    log_sampled_ratio,
    renyi_divergence,
)
from prudent.accounting.losses.pairs import BoundedRangePair, MixturePair, Pair
from prudent.accounting.losses.repeated_selection import selected_divergences, trial_count

DEFAULT_ORDERS: tuple[float, ...] = (
    1.1,
    1.25,
    *(1.5 + k / 4 for k in range(35)),
    *range(11, 64),
    *(72.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0),
)

_ABOVE_ONE = 1 + 1e-6
_NOT_AT_ORDER_ONE = (RandomizedResponseDpEvent, dp.SampledWithoutReplacementDpEvent)
"""Events whose formulas in dp_accounting are not valid at order 1."""
_SELECTIONS = (RepeatAndSelectDpEvent, events.BinomialSelectionDpEvent)


class EventAccountant(dp.PrivacyAccountant):
    """What both accountants share: the events they take, and answers at one δ or ε, or at many."""

    def __init__(self, neighboring_relation: dp.NeighboringRelation) -> None:
        if not isinstance(neighboring_relation, dp.NeighboringRelation):
            choices = list(dp.NeighboringRelation)
            _validate.one_of(choices, neighboring_relation=neighboring_relation)
        super().__init__(neighboring_relation)

    def supports(self, event: dp.DpEvent) -> bool:
        """Whether `compose` accepts the event."""
        try:
            return bool(super().supports(event))
        except ValueError:  # a parameter out of range, which `compose` reports
            return False

    def compose(self, event: dp.DpEvent, count: int = 1) -> Self:
        """Add `count` runs of an event; zero runs cost nothing."""
        times = _validate.count(count=count)
        if times > 0 and any(True for _ in leaves(event)):
            super().compose(event, times)
        return self

    @overload
    def get_epsilon(self, target_delta: float) -> float: ...
    @overload
    def get_epsilon(self, target_delta: Sequence[float] | Array) -> Array: ...

    def get_epsilon(self, target_delta: float | Sequence[float] | Array) -> float | Array:
        """The least ε, rounded up, for which everything composed so far is (ε, δ)-DP.

        Args:
            target_delta: δ, or an array of them, which gives an array of its shape. Many δ are
                answered together, in a fraction of the time; an answer may then differ from that of
                a single δ by a fraction of a percent, and is an upper bound like it.
        """
        return each(self._epsilons, 0, 1, target_delta=target_delta)

    @overload
    def get_delta(self, target_epsilon: float) -> float: ...
    @overload
    def get_delta(self, target_epsilon: Sequence[float] | Array) -> Array: ...

    def get_delta(self, target_epsilon: float | Sequence[float] | Array) -> float | Array:
        """The least δ, rounded up, for which everything composed so far is (ε, δ)-DP.

        Args:
            target_epsilon: ε, or an array of them, as for `get_epsilon`.
        """
        return each(self._deltas, 0, math.inf, target_epsilon=target_epsilon)

    @abc.abstractmethod
    def _epsilons(self, deltas: Array) -> Array:
        """The ε of each of some different δ."""

    @abc.abstractmethod
    def _deltas(self, epsilons: Array) -> Array:
        """The δ of each of some different ε."""


class RdpAccountant(EventAccountant):
    """Composes events by their Rényi divergences.

    Keeps two accounts: a plain one, and one in which every false pass of a test (of a margin of 0)
    is set aside from δ instead of charged to the divergence (Errata 2.4). The better one is
    reported.

    Guarantee:
        `get_epsilon(δ)` is an ε for which everything composed so far is (ε, δ)-DP.

    Attributes:
        orders: Rényi orders, from 1 (the Kullback-Leibler divergence) to infinity (the largest
            loss). For sampled releases, divergences of orders above 16,384 are upper bounds.
        neighboring_relation: As for `PldAccountant`.
    """

    def __init__(
        self,
        orders: Sequence[float] | None = None,
        neighboring_relation: dp.NeighboringRelation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
    ) -> None:
        chosen = DEFAULT_ORDERS if orders is None else tuple(_validate.values(orders=orders))
        if not chosen:
            raise _validate.ArgumentError("orders", "with at least one entry", shown="none")
        for order in chosen:
            _validate.between(1, np.inf, orders=order)
        super().__init__(neighboring_relation)
        self._orders: Array = np.array(chosen, float)
        self._rdp: Array = np.zeros(len(chosen))
        self._split_rdp: Array = np.zeros(len(chosen))
        self._split_delta = 0.0

    def _maybe_compose(self, event: dp.DpEvent, count: int, do_compose: bool) -> object:
        for leaf, times in leaves(event, max(count, 1)):
            if self.neighboring_relation is dp.NeighboringRelation.REPLACE_ONE:
                leaf = with_halved_noise(leaf)
            if self._is_ours(leaf):
                if do_compose:
                    self._add(times, *_divergences(leaf, self._orders))
                continue
            error = refused(leaf, self.neighboring_relation)
            if error is None and isinstance(leaf, events.WorstOfDpEvent):
                error = self._compose_worst(leaf, times, do_compose)
            elif error is None and isinstance(leaf, _SELECTIONS):
                error = self._compose_selection(leaf, times, do_compose)
            elif error is None:
                error = self._compose_theirs(leaf, times, do_compose)
            if error is not None:
                return error
        return None

    def _compose_worst(self, leaf: events.WorstOfDpEvent, times: int, do_compose: bool) -> object:
        """Charge the largest divergence at each order, and the largest set-aside δ."""
        accounts = []
        for event in leaf.events:
            alone = RdpAccountant(self._orders.tolist(), self.neighboring_relation)
            error = alone._maybe_compose(event, 1, do_compose)
            if error is not None:
                return error
            accounts.append((alone._rdp, alone._split_rdp, alone._split_delta))
        if do_compose:
            plain, split, deltas = zip(*accounts, strict=True)
            self._add(times, np.max(plain, axis=0), np.max(split, axis=0), max(deltas))
        return None

    def _add(self, times: int, plain: Array, split: Array, delta: float = 0.0) -> None:
        """Add runs to both accounts, and what was set aside for the second."""
        self._rdp = self._rdp + times * plain
        self._split_rdp = self._split_rdp + times * split
        self._split_delta += times * delta

    def _compose_selection(self, leaf: dp.DpEvent, times: int, do_compose: bool) -> object:
        """Charge the best of many runs; no δ is set aside."""
        count = trial_count(leaf)
        candidate = RdpAccountant(self._orders.tolist(), self.neighboring_relation)
        error = candidate._maybe_compose(leaf.event, 1, do_compose)
        if error is not None or not do_compose:
            return error
        if count is None:  # of very many there is dp_accounting's bound alone
            from dp_accounting.rdp.rdp_privacy_accountant import _compute_rdp_repeat_and_select

            with np.errstate(invalid="ignore"):
                found = _compute_rdp_repeat_and_select(
                    self._orders, candidate._rdp, leaf.mean, leaf.shape
                )
            added = np.where(np.isnan(found), np.inf, found)
        else:
            added = selected_divergences(count, self._orders, candidate._rdp)
        self._add(times, added, added)
        return None

    def _is_ours(self, leaf: dp.DpEvent) -> bool:
        """Whether the event is priced by this package rather than by dp_accounting."""
        if self.neighboring_relation is dp.NeighboringRelation.REPLACE_ONE:
            return isinstance(leaf, dp.GaussianDpEvent | dp.LaplaceDpEvent)
        inner, _ = unsampled(leaf)
        ours = isinstance(
            inner,
            events.ProposeTestReleaseDpEvent
            | events.ExponentialMechanismDpEvent
            | events.ApproximateDpEvent,
        )
        return ours or additive_parts(inner) is not None

    def _compose_theirs(self, leaf: dp.DpEvent, times: int, do_compose: bool) -> object:
        """Have dp_accounting price an event once, and add the result to both accounts."""
        from dp_accounting.rdp import RdpAccountant as Peer  # takes longer than most prices

        # Divergences do not decrease with the order.
        lifted = isinstance(leaf, _NOT_AT_ORDER_ONE)
        orders = np.maximum(self._orders, _ABOVE_ONE) if lifted else self._orders
        peer = Peer(orders, self.neighboring_relation)
        with np.errstate(invalid="ignore"):
            error = peer._maybe_compose(leaf, times, do_compose)
        if error is None and do_compose:
            added = np.where(np.isnan(peer.rdp), np.inf, peer.rdp)
            self._add(1, added, added)
        return error

    @property
    def orders(self) -> Array:
        """The Rényi orders."""
        return self._orders.copy()

    @property
    def rdp(self) -> Array:
        """The divergences of everything composed so far at `orders`."""
        return self._rdp.copy()

    @property
    def with_set_aside(self) -> tuple[Array, float]:
        """The second account: divergences at `orders`, and the δ that was set aside for them."""
        return self._split_rdp.copy(), self._split_delta

    def _epsilons(self, deltas: Array) -> Array:
        return np.array([self.get_epsilon_and_optimal_order(delta)[0] for delta in deltas])

    def _deltas(self, epsilons: Array) -> Array:
        return np.array([self.get_delta_and_optimal_order(epsilon)[0] for epsilon in epsilons])

    def get_epsilon_and_optimal_order(self, target_delta: float) -> tuple[float, float]:
        """The least ε over all orders and both accounts, and the order that gives it."""
        delta = _validate.between(0, 1, target_delta=target_delta)
        answers = [best_epsilon(self._orders, self._rdp, delta)]
        if delta > self._split_delta > 0:
            rest = delta - self._split_delta
            answers.append(best_epsilon(self._orders, self._split_rdp, rest))
        return min(answers)

    def get_delta_and_optimal_order(self, target_epsilon: float) -> tuple[float, float]:
        """The least δ over all orders and both accounts, and the order that gives it."""
        epsilon = _validate.between(0, np.inf, target_epsilon=target_epsilon)
        plain = best_delta(self._orders, self._rdp, epsilon)
        split, order = best_delta(self._orders, self._split_rdp, epsilon)
        return min(plain, (min(1.0, split + self._split_delta), order))


def _divergences(leaf: dp.DpEvent, orders: Array) -> tuple[Array, Array, float]:
    """Rényi divergences of one run: plain; after some δ was set aside; and that δ."""
    event, rate = unsampled(leaf)
    if isinstance(event, events.ProposeTestReleaseDpEvent):
        safe, false_pass = case_one_without_false_pass(event)
        test = _case_two_divergence(event, orders, rate)
        plain = np.maximum(test, renyi_divergence(case_one(event), orders, rate))
        split = np.maximum(test, renyi_divergence(safe, orders, rate))
        return plain, split, rate * false_pass
    if isinstance(event, events.ExponentialMechanismDpEvent):
        pair = BoundedRangePair(event.epsilon)
        ways = [renyi_divergence(pair, orders, rate, adding=adding) for adding in (False, True)]
        plain = np.maximum(*ways)
        return plain, plain, 0.0
    if isinstance(event, events.ApproximateDpEvent):
        # Without its δ it is randomised response, which is symmetric.
        split = renyi_divergence(approximate_pair(event.epsilon, 0.0), orders, rate)
        plain = np.full_like(split, np.inf) if event.delta and rate else split
        return plain, split, rate * event.delta
    parts = additive_parts(event)
    assert parts is not None
    plain = _parts_divergence(parts, orders, rate)
    return plain, plain, 0.0


def _case_two_divergence(
    event: events.ProposeTestReleaseDpEvent, orders: Array, rate: float
) -> Array:
    """The worst divergence of Case 2, over margins, and over directions where they differ.

    A noisy margin with Gaussian noise is symmetric, so removing a record is the worse direction
    (Errata 2.2, Theorem B); a branch alone is not. With Gaussian test noise the worst margin grows
    with the order without bound: there a branch is charged like the noisy margin it is made of.
    """
    laplace = isinstance(event.test, events.LaplaceTest | events.DiscreteLaplaceTest)
    weaker = min(event.noise_multiplier, event.sigma_over_proposal)
    if event.reveals is events.Reveals.MARGIN or not laplace:
        return _parts_divergence(Parts(weaker, ((event.test, 1),)), orders, rate)
    pairs: list[Pair] = [branch_pair(event, d, d - 1) for d in telling_margins(event) or ()]
    if event.reveals is events.Reveals.BRANCH:
        pairs += [pair.swapped() for pair in pairs]
    worst = renyi_divergence(MixturePair.of((1.0, 1.0, weaker)), orders, rate)
    for pair in pairs:
        np.maximum(worst, renyi_divergence(pair, orders, rate), out=worst)
        np.maximum(worst, renyi_divergence(pair.swapped(), orders, rate, adding=True), out=worst)
    return worst


def _parts_divergence(parts: Parts, orders: Array, rate: float) -> Array:
    """Divergences of several independent parts on one batch (Errata 5), exact at integer orders.

    At other orders they are exact where one pair has a closed form, and upper bounds otherwise.
    """
    match parts.others:
        case ():
            return renyi_divergence(MixturePair.of((1.0, 1.0, parts.sigma)), orders, rate)
        case (
            (
                events.LaplaceTest() | events.GaussianTest() | events.DiscreteLaplaceTest() as test,
                1,
            ),
        ):
            return renyi_divergence(margin_pair(test, parts.sigma), orders, rate)
    if parts.sigma == 0:
        return np.full(orders.shape, np.inf)

    pairs: list[tuple[Pair, int]] = [(MixturePair.of((1.0, 1.0, parts.sigma)), 1)]
    pairs += [(_moments_pair(test), count) for test, count in parts.others]

    def log_base(powers: Array) -> Array:
        return np.asarray(sum(count * log_base_moments(pair, powers) for pair, count in pairs))

    found = np.empty(orders.shape)
    inside = (orders > 1) & (orders < np.inf)
    found[inside] = divergence_of_removing(log_base, orders[inside], rate)
    # Without sampling, D_1 and D_∞ are additive. D_1 is convex in the mixture that sampling makes,
    # hence the factor `rate`, and it never exceeds D_2.
    mean = rate * sum(count * kullback_leibler(pair, 1.0) for pair, count in pairs)
    found[orders == 1] = np.minimum(mean, divergence_of_removing(log_base, np.array([2.0]), rate))
    largest = sum(count * largest_loss(pair, 1.0) for pair, count in pairs)
    found[orders == np.inf] = log_sampled_ratio(np.array(largest), rate)
    return found


def _moments_pair(test: events.MarginTest) -> Pair:
    """A pair with the same integer moments, mean loss and largest loss as the noisy margin.

    For a discrete Gaussian these are those of the continuous Gaussian, because completing the
    square shifts the sum by an integer. Summing term by term would need terms up to the order.
    """
    if isinstance(test, events.DiscreteGaussianTest):
        return MixturePair.of((1.0, 1.0, test.scale))
    return margin_pair(test, np.inf)
