"""The budget of a data set as a value: (ε, δ), for which neighbours, kept by which filter."""

import math
from collections.abc import Mapping
from typing import Any, Self

import attrs

from prudent import _validate
from prudent._formats import check_format
from prudent._rounding import exact
from prudent.accounting.relations import ADD_REMOVE, Relation
from prudent.budget.adaptive_filter import AdaptiveFilter
from prudent.budget.filters import ExactFilter, Filter

_LEAST_DELTA = 1e-300  # what floating point can still hold and halve

FORMAT = 1
"""Of the rows of a ledger; its first row notes it."""


@attrs.frozen
class Budget:
    """What may be spent, fixed when a ledger is made.

    Attributes:
        epsilon: ε of everything released, for two data sets of the relation.
        delta: δ beside it.
        adaptive: Whether events may be chosen after seeing earlier answers.
        relation: Which data sets are neighbours.
        orders: Of the Rényi books of an adaptive filter; None: chosen for the budget.
        data: Name of the data that the budget is for; None if that is not noted.
    """

    epsilon: float
    delta: float
    adaptive: bool = True
    relation: Relation = ADD_REMOVE
    orders: tuple[float, ...] | None = None
    data: str | None = None

    @property
    def per_record(self) -> tuple[float, float]:
        """ε and δ that adding or removing a single record may use."""
        _validate.positive(epsilon=self.epsilon)
        _validate.between(0, 1, ends="()", delta=self.delta)
        epsilon, delta = self.relation.per_record(self.epsilon, self.delta)
        if not (epsilon > 0 and delta >= _LEAST_DELTA):
            raise ValueError(
                f"Expected epsilon and delta enough for {self.relation.distance} records, got "
                f"{self.epsilon!r} and {self.delta!r}: the share of one record is 0. Allow fewer "
                "records, or a larger delta."
            )
        return epsilon, delta

    def filter(self) -> Filter[Any]:
        """The filter that keeps the budget of one record."""
        if not self.adaptive:
            return ExactFilter(*self.per_record)
        return AdaptiveFilter(*self.per_record, self.orders or ())

    def for_relation(self, epsilon: float) -> float:
        """ε for the relation, rounded up, from one for a single record.

        Infinite beyond the share of one record: a chain of records then needs more than all of δ.
        """
        distance = self.relation.distance
        if distance == 1 or epsilon == 0:
            return epsilon
        if epsilon > self.per_record[0]:
            return math.inf
        return min(math.nextafter(epsilon * distance, math.inf), self.epsilon)

    def is_as_asked(self, asked: "Budget | None", **given: Any) -> bool:
        """Whether a ledger with this budget is what was asked for; None asks for nothing."""
        same = asked is None or (asked.epsilon, asked.delta) == (self.epsilon, self.delta)
        return same and all(
            getattr(self, name) == value for name, value in given.items() if value is not None
        )

    def to_fields(self) -> dict[str, Any]:
        """What the first row of a ledger notes."""
        filter_ = self.filter()
        return {
            "format": FORMAT,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "orders": filter_.orders if isinstance(filter_, AdaptiveFilter) else None,
            "relation": {
                "adjacency": self.relation.adjacency.value,
                "records": self.relation.records,
            },
            "data": self.data,
        }

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """The budget that a first row notes.

        Raises:
            NewerFormatError: If the row was written by a later version.
        """
        check_format(fields, FORMAT, "a ledger")
        orders = fields["orders"]
        return cls(
            fields["epsilon"],
            fields["delta"],
            orders is not None,
            Relation(**fields["relation"]),
            None if orders is None else tuple(orders),
            fields["data"],
        )

    def __str__(self) -> str:
        return (
            f"epsilon={exact(self.epsilon)}, delta={exact(self.delta)}, adaptive={self.adaptive}, "
            f"for {self.relation}"
        )
