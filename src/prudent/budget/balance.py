"""Where a budget stands, as a value to print or to store."""

from typing import Any

import attrs

from prudent._rounding import exact, rounded_up
from prudent.accounting import serialisation
from prudent.accounting.relations import Relation
from prudent.budget.filters import Room
from prudent.budget.storage import LedgerError


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
        fits = {
            name: serialisation.to_plain(value) for name, value in attrs.asdict(self.fits).items()
        }
        plain = {
            f.name: serialisation.to_plain(getattr(self, f.name)) for f in attrs.fields(Balance)
        }
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
        self.asked = asked
        self.spent = balance.spent
        self.remaining = balance.remaining
        self.fits = balance.fits
        # The price is computed from the event: often less than the ε that was asked for.
        super().__init__(
            f"Over budget: the computed price of this release is ε = {rounded_up(asked, 4)}"
            f"{balance._share}, but of ε = {exact(balance.epsilon)} at "
            f"δ = {exact(balance.delta)} for {balance.dataset!r} "
            f"{rounded_up(balance.spent, 4)} is spent. What would fit: {balance.fits}"
            f"{balance._each}."
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (str(self), self.__dict__)


def _unpickled(message: str, fields: dict[str, Any]) -> OverBudgetError:
    error = OverBudgetError.__new__(OverBudgetError, message)
    error.args = (message,)
    error.__dict__.update(fields)
    return error
