"""Where a budget stands, and what still fits into it, as values to print or to store."""

import math
from typing import Any

import attrs
from dp_accounting.dp_event import DiscreteLaplaceDpEvent

from prudent._rounding import exact, rounded_down, rounded_up
from prudent.accounting import serialisation
from prudent.accounting.relations import Relation
from prudent.budget.filters import ExactFilter, Filter, Room
from prudent.budget.storage import LedgerError

_MOST = 1024  # releases that are counted
_MOST_EXACT = 32  # with exact accounting, which takes a composition for each guess


@attrs.frozen
class Balance:
    """Where a budget stands.

    Attributes:
        dataset: Whose budget.
        epsilon: The budget's ε, for neighbours of `relation`.
        delta: The budget's δ, likewise.
        relation: Which data sets are neighbours.
        epsilon_per_record: ε that adding or removing one record may use.
        delta_per_record: δ beside it.
        adaptive: Whether events may be chosen after seeing earlier answers.
        spent: An ε for which the events charged so far, as a list, are (ε, δ)-DP. The guarantee of
            the ledger is the budget itself, whatever this says in between.
        remaining: ε - spent.
        fits: What would still fit, as events are priced: for one record.
        charges: How many there were.
        digest: Of the last row. Kept elsewhere, it shows later whether rows were taken away.
        data: Name of the data that the budget is for; None if the ledger is not bound to any.
    """

    dataset: str
    epsilon: float
    delta: float
    relation: Relation
    epsilon_per_record: float
    delta_per_record: float
    adaptive: bool
    spent: float
    remaining: float
    fits: Room
    charges: int
    digest: str
    data: str | None = None

    def __str__(self) -> str:
        return (
            f"{self.dataset!r}: ε = {rounded_up(self.spent, 4)} of {exact(self.epsilon)} "
            f"spent at δ = {exact(self.delta)}, charges: {self.charges}; "
            f"what would fit: {self.fits}{self._each}"
        )

    @property
    def _each(self) -> str:
        """What `fits` is counted for, where one record is not the whole relation."""
        return "" if self.relation.distance == 1 else ", priced for one record"

    @property
    def _share(self) -> str:
        """What the price of one record is to be compared with, where that is not the budget."""
        if self.relation.distance == 1:
            return ""
        epsilon, delta = map(exact, (self.epsilon_per_record, self.delta_per_record))
        return f" for one record, whose share is ε = {epsilon} at δ = {delta}"

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        to_plain = serialisation.to_plain
        plain = {name: to_plain(value) for name, value in attrs.asdict(self, recurse=False).items()}
        fits = {name: to_plain(value) for name, value in attrs.asdict(self.fits).items()}
        relation = {"adjacency": self.relation.adjacency.value, "records": self.relation.records}
        return {**plain, "relation": relation, "fits": fits}


class OverBudgetError(LedgerError):
    """A charge that would overdraw the budget. Nothing was charged; nothing may be released.

    A refusal depends on events alone, never on data, so it tells nothing about them.

    Attributes:
        asked: ε of the refused event by itself, for one record at its share of δ.
        spent: ε of what was charged before.
        remaining: What is left of ε.
        fits: What would still fit.
    """

    def __init__(self, asked: float, balance: Balance) -> None:
        super().__init__(asked, balance)
        self.asked, self.spent = asked, balance.spent
        self.remaining, self.fits = balance.remaining, balance.fits

    def __str__(self) -> str:
        asked, balance = self.args
        # The price is computed from the event: often less than the ε that was asked for.
        return (
            f"Over budget: the computed price of this release is ε = {rounded_up(asked, 4)}"
            f"{balance._share}, but of ε = {exact(balance.epsilon)} at "
            f"δ = {exact(balance.delta)} for {balance.dataset!r} "
            f"{rounded_up(balance.spent, 4)} is spent. What would fit: {balance.fits}"
            f"{balance._each}."
        )


@attrs.frozen
class Offer:
    """So many more releases of this ε fit, one after the other, and nothing else beside them."""

    count: int  # how many; `at_least` says whether there was no need to count further
    epsilon: float  # ε of each, at δ = 0
    at_least: bool = False  # whether more of them fit

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

    Each is counted by charging a copy of the state with the distribution of a randomised response.
    That is the most that an ε-DP release can reveal, so every pure release of that ε fits as often.
    """
    by_list = isinstance(filter_, ExactFilter)
    largest = _largest(filter_, state)
    if largest == 0:
        return []
    # The largest of …, 0.1, 0.2, 0.5, 1, … that is not above a third of it.
    exponent = math.floor(math.log10(largest / 3))
    digit = max(n for n in (1, 2, 5) if n * 10.0**exponent <= largest / 3 * (1 + 1e-12))
    middle = float(f"{digit}e{exponent}")
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
