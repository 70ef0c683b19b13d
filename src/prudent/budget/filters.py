"""The privacy filter: may one more event be charged to a budget (ε, δ)?

Who asks may look at earlier answers before choosing the next event. Composition theorems for
events fixed in advance say nothing about that; a filter does. docs/budget.md has the proofs.
"""

import functools
import math
from fractions import Fraction
from itertools import starmap

import attrs
import dp_accounting as dp
import numpy as np
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent import _validate
from prudent._rounding import exact, rounded_down, rounded_up
from prudent.accounting._numeric import float_above, float_below
from prudent.budget import prices
from prudent.budget.prices import Costs, Limits, Offers, gaussian_limit, suitable_orders, sum_up

_LONGEST_DENOMINATOR = 4096  # bits, of an exact sum
_MOST = 1024  # releases that are counted as still fitting
_MORE = 1 + 1e-9
_SMALLEST_EPSILON = 1e-6  # no release asks for less; rounding leaves less of a spent budget


def _some(epsilon: float) -> float:
    return epsilon if epsilon >= _SMALLEST_EPSILON else 0.0


def _useful(noise_multiplier: float) -> float:
    """A little more noise than the least, so that the rounding of its price fits as well."""
    return noise_multiplier * _MORE if noise_multiplier <= 1 / _SMALLEST_EPSILON else math.inf


@attrs.frozen
class Room:
    """What would still fit."""

    # Largest ε of a release at `delta` that surely fits; 0 if none of a millionth does.
    epsilon: float = attrs.field(converter=_some)
    delta: float  # the δ beside it
    # Least noise multiplier of a Gaussian release that surely fits; infinite if none of a million
    # does.
    noise_multiplier: float = attrs.field(converter=_useful)

    def __str__(self) -> str:
        choices = []
        if self.epsilon > 0:
            epsilon, delta = rounded_down(self.epsilon, 3), rounded_down(self.delta, 3)
            choices.append(f"a release with ε <= {epsilon} at δ <= {delta}")
        if self.noise_multiplier < math.inf:
            choices.append(
                f"Gaussian noise with multiplier >= {rounded_up(self.noise_multiplier, 3)}"
            )
        return " or ".join(choices) if choices else "nothing"


@attrs.frozen
class Sums:
    """What all charges took from each account so far; see `Costs`. A sum beyond its limit stays so.

    After the first charge either all charges are added up, and the set-aside δ is infinite or
    beyond its limit for good, or the accounts are open and the sums of the whole are infinite.
    Two are for show. `alone` is what a single charge costs, and infinite after the second. `listed`
    holds pairs (reserve, Σμ²): all charges as a list cost that much Gaussian noise beside noise of
    variance `reserve`, so that they never cost more than both together. Reserves increase, sums
    decrease.
    """

    epsilon: Fraction | float
    set_aside: float
    gaussian: float
    divergences: tuple[float, ...]
    whole_epsilon: Fraction | float = Fraction(0)
    whole_delta: Fraction | float = Fraction(0)
    alone: float = 0.0
    listed: Offers = ((0.0, 0.0),)


@attrs.frozen
class AdaptiveFilter:
    """Decides whether charges are within the budget (ε, δ), however the events are chosen.

    A state, `Sums`, is what it remembers of the charges; it is a value, never changed in place.

    From each event some δₜ is set aside, a function of the charges so far: but for an event of that
    probability, its losses are bounded. A charge is admitted if the set-aside δₜ sum to at most
    17/32 δ and, with it, any one of these accounts is within its limit, what was set aside apart:

    * *simple*: each charge is εₜ-DP, and the εₜ sum to at most ε;
    * *Gaussian*: the charges cost as much as Gaussian noise of μ²ₜ, and the μ²ₜ sum to at most the
      μ² that is (ε, 12/32 δ)-DP;
    * *Rényi*, one account for each of two orders α: the divergences of order α sum to at most
      ε + log(α/(α-1)) + log(αr)/(α-1), r = 3/64 δ.

    The first charge decides between these accounts and plain addition: if they admit fewer
    charges like it than its ε and δ, added up, fit into (ε, δ), then ε and δ of all charges are
    added up from the first to the last, and all accounts stay closed.

    Guarantee:
        Whatever is released after admitted charges is, taken together, (ε, δ)-DP, also if each
        event is chosen after seeing all earlier answers, and also if answers of several charges
        arrive in turns. The shares of δ sum to δ: every course of events ends in one of the
        accounts, which pays with its own share, and what is set aside serves all of them. The first
        event is chosen before any answer, so what follows from it alone is the same on all
        courses of events: a later choice between accounts and addition is not valid
        (docs/budget.md).

    Attributes:
        epsilon: ε of the budget.
        delta: δ of the budget.
        orders: Of the Rényi accounts.
    """

    epsilon: float
    delta: float
    orders: tuple[float, ...] = attrs.field(default=(), converter=tuple[float, ...])

    def __attrs_post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon)
        _validate.small_delta(delta=self.delta)
        if not self.orders:
            object.__setattr__(self, "orders", suitable_orders(self.epsilon, self.delta))
        for order in self.orders:
            _validate.between(1, math.inf, ends="()", orders=order)
        if len(self.orders) != 2:
            raise _validate.ArgumentError("orders", "two numbers above 1", got=self.orders)

    @property
    def limits(self) -> Limits:
        """What the sums of each account may reach."""
        return _limits(self.epsilon, self.delta, self.orders)

    def opening(self) -> Sums:
        """The state before any charge."""
        return Sums(Fraction(0), 0.0, 0.0, (0.0,) * len(self.orders))

    def charged(self, state: Sums, event: dp.DpEvent, delta: float | None) -> Sums:
        """The state after one more event, at the first of its costs that the accounts admit.

        If they admit none, at the first.
        """
        offers = prices.price(self.limits, event, delta)
        sums = self._in_order([self._added(state, costs) for costs in offers])
        admitted = next(filter(self._accounts_admit, sums), None)
        if admitted is None:
            return sums[0]
        if state == self.opening() and self._addition_holds_more(offers):
            return attrs.evolve(sums[0], set_aside=math.inf)
        return attrs.evolve(admitted, whole_epsilon=math.inf, whole_delta=math.inf)

    def _in_order(self, sums: list[Sums]) -> list[Sums]:
        """The possible sums in the order of preference.

        Setting δ aside lowers the ε of simple addition. Once that account is full, δ is only set
        aside if the Gaussian account needs it: not from Gaussian noise, whatever was told.
        """
        if any(total.epsilon <= self.limits.epsilon for total in sums):
            return sums
        lasting = [total for total in sums if total.gaussian <= self.limits.gaussian]
        others = [total for total in sums if total not in lasting]
        return [*sorted(lasting, key=lambda total: total.set_aside), *others]

    def alone(self, event: dp.DpEvent, delta: float | None) -> tuple[float, float]:
        """ε of an event by itself, and the δ beside it: 0 if pure, else that told or all of δ."""
        *_, costs = prices.price(self.limits, event, delta)
        if costs.whole_epsilon == math.inf:
            return math.inf, self.delta
        return float_above(costs.whole_epsilon), float(costs.whole_delta)

    def _added(self, state: Sums, costs: Costs) -> Sums:
        return Sums(
            _exact_sum(state.epsilon, costs.epsilon),
            sum_up(state.set_aside, costs.set_aside),
            self._least_variance(state.gaussian, costs.gaussian),
            tuple(map(sum_up, state.divergences, costs.divergences)),
            _exact_sum(state.whole_epsilon, costs.whole_epsilon),
            _exact_sum(state.whole_delta, costs.whole_delta),
            costs.alone if state == self.opening() else math.inf,
            _together(state.listed, costs.gaussian),
        )

    def _least_variance(self, spent: float, offers: Offers, count: int = 1) -> float:
        """The sum of μ² after `count` charges at the first offer that the limit allows.

        An offer (reserve, μ²) holds only if its reserve is left after the charges. The first is the
        cheapest; infinite if there is none.
        """
        limit = self.limits.gaussian
        sums = ((sum_up(spent, count * price), reserve) for reserve, price in offers)
        return next((sum_ for sum_, reserve in sums if sum_up(sum_, reserve) <= limit), math.inf)

    def _addition_holds_more(self, offers: tuple[Costs, ...]) -> bool:
        """Whether the accounts cannot hold as many charges like the first as addition does."""
        first = offers[0]
        if first.whole_delta == 0 or first.whole_epsilon == math.inf:
            return False
        count = int(self.limits.delta // first.whole_delta)
        if first.whole_epsilon > 0:
            count = min(count, int(self.limits.epsilon // first.whole_epsilon))
        return count > 0 and not any(
            self._accounts_admit(
                Sums(
                    count * costs.epsilon,
                    count * costs.set_aside,
                    self._least_variance(0.0, costs.gaussian, count),
                    tuple(count * divergence for divergence in costs.divergences),
                )
            )
            for costs in offers
        )

    def _accounts_admit(self, state: Sums) -> bool:
        limits = self.limits
        return state.set_aside <= limits.set_aside and (
            state.epsilon <= limits.epsilon
            or state.gaussian <= limits.gaussian
            or bool(np.any(np.array(state.divergences) <= limits.divergences))
        )

    def _adds_up(self, state: Sums) -> bool:
        limits = self.limits
        return state.whole_epsilon <= limits.epsilon and state.whole_delta <= limits.delta

    def admits(self, state: Sums) -> bool:
        """Whether the state is within the budget."""
        return self._adds_up(state) or self._accounts_admit(state)

    def spent(self, state: Sums) -> float:
        """An ε for which the charged events, as a list fixed in advance, are (ε, δ)-DP."""
        if state == self.opening():
            return 0.0
        limits, answers = self.limits, [state.alone]
        if state.whole_delta <= limits.delta:
            answers.append(float_above(state.whole_epsilon))
        if state.set_aside <= limits.set_aside:
            over = np.array(state.divergences) - limits.divergences
            answers += [float_above(state.epsilon), max(0.0, self.epsilon + float(np.min(over)))]
            if state.listed:
                # What is left of the limit may be less than a price's reserve, or be spent later.
                answers.append(limits.gaussian_spent(min(starmap(sum_up, state.listed))))
        spent = min(answers)
        # Inverting a limit rounds up: what is within it is not shown as beyond the budget.
        return min(spent, self.epsilon) if self.admits(state) else spent

    def room(self, state: Sums) -> Room:
        """What would still fit."""
        limits = self.limits
        if state == self.opening():
            return Room(self.epsilon, self.delta, gaussian_limit(self.epsilon, self.delta) ** -0.5)
        if self._adds_up(state):
            epsilon = float_below(limits.epsilon - state.whole_epsilon)
            return Room(epsilon, float_below(limits.delta - state.whole_delta), math.inf)
        if state.set_aside > limits.set_aside:
            return Room(0.0, 0.0, math.inf)
        delta = max(0.0, limits.set_aside * (1 - 2**-50) - state.set_aside)  # sums are rounded up
        epsilon = float_below(max(0, limits.epsilon - state.epsilon)) if delta > 0 else 0.0
        left = (limits.divergences - np.array(state.divergences)) / np.array(self.orders) * 2
        most = max(limits.gaussian - state.gaussian, float(np.max(left)))
        return Room(epsilon, delta, most**-0.5 if most > 0 else math.inf)


@functools.lru_cache(maxsize=64)
def _limits(epsilon: float, delta: float, orders: tuple[float, ...]) -> Limits:
    return Limits(epsilon, delta, orders)


def _together(first: Offers, second: Offers) -> Offers:
    """The offers of two lists of charges as one list: at each reserve the sum of what it affords.

    A price for one reserve holds for every larger one.
    """
    sums: list[tuple[float, float]] = []
    for reserve in sorted({reserve for reserve, _ in (*first, *second)}):
        prices = [[price for least, price in each if least <= reserve] for each in (first, second)]
        if all(prices):
            total = sum_up(*map(min, prices))
            if not sums or total < sums[-1][1]:
                sums.append((reserve, total))
    return tuple(sums)


def _exact_sum(first: Fraction | float, second: Fraction | float) -> Fraction | float:
    """A sum without rounding, until its denominator gets out of hand; then rounded up."""
    total = first + second
    if isinstance(total, Fraction) and total.denominator.bit_length() > _LONGEST_DENOMINATOR:
        unit = 2 ** (_LONGEST_DENOMINATOR // 2)
        return Fraction(math.ceil(total * unit), unit)
    return total


@attrs.frozen
class Offer:
    """So many more releases of this ε fit, one after the other, and nothing else beside them."""

    count: int  # how many; `at_least` says whether there was no need to count further
    epsilon: float  # ε of each, at δ = 0
    at_least: bool = False  # whether more of them fit

    def __str__(self) -> str:
        return self._told()

    def _told(self, noun: str = "") -> str:
        many = f"{'at least ' if self.at_least else ''}{self.count}"
        return f"{many}{noun} at ε = {exact(self.epsilon)}"

    @staticmethod
    def sentence(offers: list["Offer"]) -> str:
        """The offers in words: one or the other."""
        if not offers:
            return "nothing more"
        first, *others = offers
        more = "".join(f", or {offer}" for offer in others)
        return first._told(" releases" if first.count > 1 else " release") + more


def offers(filter_: AdaptiveFilter, state: Sums) -> list[Offer]:
    """What still fits: one large release, or some of a middle ε, or many of a small one.

    Each is counted by charging a copy of the state with the distribution of a randomised response.
    That is the most that an ε-DP release can reveal, so every pure release of that ε fits as often.
    """
    largest = _largest(filter_, state)
    if largest == 0:
        return []
    # The largest of …, 0.1, 0.2, 0.5, 1, … that is not above a third of it.
    exponent = math.floor(math.log10(largest / 3))
    digit = max(n for n in (1, 2, 5) if n * 10.0**exponent <= largest / 3 * (1 + 1e-12))
    middle = float(f"{digit}e{exponent}")
    levels = (largest, middle, float(f"{middle / 10:.1g}"))
    found = [_counted(filter_, state, epsilon, _MOST) for epsilon in levels]
    return [offer for offer in found if offer.count > 0]


def _counted(filter_: AdaptiveFilter, state: Sums, epsilon: float, most: int) -> Offer:
    """The number of releases of an ε that fit, up to a limit."""
    event = DiscreteLaplaceDpEvent(epsilon, 1)
    states = [state]

    def fits(count: int) -> bool:
        while len(states) <= count:
            states.append(filter_.charged(states[-1], event, None))
        return filter_.admits(states[count])

    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    if high > most:
        return Offer(low, epsilon, at_least=True)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return Offer(low, epsilon)


def _largest(filter_: AdaptiveFilter, state: Sums) -> float:
    """The largest ε, to two digits, of which a release fits for sure; 0 if none is found.

    Simple addition leaves `Room.epsilon`. Gaussian noise of which μ² is left stands for any
    ε-DP release with 2Φ⁻¹(1/(1 + e^(-ε))) = μ.
    """
    from scipy import special

    room = filter_.room(state)
    by_noise = special.logit(special.ndtr(1 / (2 * room.noise_multiplier)))
    for epsilon in sorted((room.epsilon, float(by_noise)), reverse=True):
        digits = float(rounded_down(min(epsilon, filter_.epsilon), 2)) if epsilon > 0 else 0.0
        if digits > 0 and _counted(filter_, state, digits, 1).count:
            return digits
    return 0.0
