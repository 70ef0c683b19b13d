"""What still fits into a budget, as releases that one can ask for."""

import math
from typing import Any

import attrs
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent._rounding import exact, rounded_down
from prudent.budget.filters import ExactFilter, Filter

_MOST = 1024  # releases that are counted
_MOST_EXACT = 32  # with exact accounting, which takes a composition for each guess


@attrs.frozen
class Offer:
    """So many more releases of this ε fit, one after the other, and nothing else beside them.

    Attributes:
        count: How many; `at_least` says whether there was no need to count further.
        epsilon: ε of each, at δ = 0.
        at_least: Whether more of them fit.
    """

    count: int
    epsilon: float
    at_least: bool = False

    def __str__(self) -> str:
        many = f"{'at least ' if self.at_least else ''}{self.count}"
        return f"{many} at ε = {exact(self.epsilon)}"

    @staticmethod
    def sentence(offers: list["Offer"]) -> str:
        """The offers in words: one or the other."""
        if not offers:
            return "nothing more"
        first, *others = offers
        more = "".join(f", or {offer}" for offer in others)
        return f"{first.count} release{'s' * (first.count > 1)} at ε = {exact(first.epsilon)}{more}"


def offers(filter_: Filter[Any], state: Any) -> list[Offer]:
    """What still fits: one large release, or some of a middle ε, or many of a small one.

    Each is counted by charging a copy of the state with the law of a randomised response. That is
    the most that an ε-DP release can reveal, so every pure release of that ε fits as often.
    """
    by_list = isinstance(filter_, ExactFilter)
    largest = _largest(filter_, state)
    if largest == 0:
        return []
    middle = _round_number(largest / 3)
    levels = [largest, middle] if by_list else [largest, middle, float(f"{middle / 10:.1g}")]
    most = _MOST_EXACT if by_list else _MOST
    found = [_counted(filter_, state, epsilon, most) for epsilon in levels]
    return [offer for offer in found if offer.count > 0]


def _counted(filter_: Filter[Any], state: Any, epsilon: float, most: int) -> Offer:
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


def _largest(filter_: Filter[Any], state: Any) -> float:
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


def _round_number(value: float) -> float:
    """The largest of …, 0.1, 0.2, 0.5, 1, … that is not above a value."""
    exponent = math.floor(math.log10(value))
    digit = max(digit for digit in (1, 2, 5) if digit * 10.0**exponent <= value * (1 + 1e-12))
    return float(f"{digit}e{exponent}")
