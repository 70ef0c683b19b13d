"""The budget of a data set: (ε, δ), for which neighbours, kept by which filter.

It is the first row of a ledger, written once and never changed.
"""

import contextlib
import datetime
import math
import os
from collections.abc import Mapping
from typing import Any, Self

import attrs

from prudent import _validate
from prudent._formats import check_format
from prudent._rounding import exact
from prudent.accounting.relations import ADD_REMOVE, Relation, check_relation
from prudent.budget import data_binding
from prudent.budget.charges import BEFORE_THE_FIRST, fields_of, reading, row_after
from prudent.budget.data_binding import SecondLedgerError
from prudent.budget.filters import AdaptiveFilter, ExactFilter, Filter
from prudent.budget.storage import LedgerError, LedgerRow, Store, open_store

_LEAST_DELTA = 1e-300  # what floating point can still hold and halve

FORMAT = 1
"""Of the rows of a ledger; its first row notes it."""


@attrs.frozen
class Allowance:
    """What may be spent, fixed when a ledger is made."""

    epsilon: float  # ε of everything released, for two data sets of the relation
    delta: float  # δ beside it
    adaptive: bool = True  # whether events may be chosen after seeing earlier answers
    relation: Relation = ADD_REMOVE  # which data sets are neighbours
    # Of the Rényi accounts of an adaptive filter; None: chosen for the budget.
    orders: tuple[float, ...] | None = None
    data: str | None = None  # name of the data that the budget is for; None if that is not noted

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

    def is_as_asked(self, asked: "Allowance | None", **given: Any) -> bool:
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


def wanted(
    epsilon: float | None,
    delta: float | None,
    adaptive: bool | None,
    relation: Relation | None,
    data: str | None,
) -> Allowance | None:
    """The budget that was asked for; None if neither ε nor δ is given.

    Raises:
        ArgumentError: If only one of them is.
    """
    if adaptive is not None:
        _validate.flag(adaptive=adaptive)
    if relation is not None:
        check_relation(relation=relation)
    if epsilon is None and delta is None:
        return None
    if epsilon is None or delta is None:
        missing = "epsilon" if epsilon is None else "delta"
        raise _validate.ArgumentError(missing, "beside the other half of the budget", got=None)
    return Allowance(
        _validate.positive(epsilon=epsilon),
        _validate.between(0, 1, ends="()", delta=delta),
        adaptive is None or bool(adaptive),
        ADD_REMOVE if relation is None else relation,
        data=data,
    )


def begin(
    location: str | os.PathLike[str], dataset: str, budget: Allowance, *, another: bool = False
) -> bool:
    """Writes the first row of a data set, its budget; False if there already is one.

    Its data may have a budget elsewhere only if `another` is true.

    Raises:
        SecondLedgerError: If the data are known to have one, and `another` is not given.
    """
    if not text(dataset=dataset) or not dataset.isprintable():
        raise _validate.ArgumentError("dataset", "a printable name", got=dataset)
    if budget.data is not None and not (budget.data and budget.data.isprintable()):
        raise _validate.ArgumentError("data", "a printable name", got=budget.data)
    fields = budget.to_fields()
    if budget.data is not None and not another:
        data_binding.check_only(budget.data, location, dataset)
    store = open_store(location, create=True)
    with contextlib.closing(store), store.exclusive(dataset):
        if store.rows(dataset):
            return False
        if budget.data is not None and not another:
            _check_store(store, budget.data)
        store.append(dataset, row_after(BEFORE_THE_FIRST, dataset=dataset, time=now(), **fields))
    if budget.data is not None:
        data_binding.remember(budget.data, location, dataset)
    return True


def _check_store(store: Store, data: str) -> None:
    """Refuses data for which the same store keeps another budget."""
    for other in store.datasets():
        noted = noted_budget(store.rows(other)[0], other).data
        if noted is not None and (
            same := data_binding.names_in(data) & data_binding.names_in(noted)
        ):
            raise SecondLedgerError(min(same), store.location, other)


def rows_from_the_first(store: Store, dataset: str) -> list[LedgerRow]:
    """All rows of a data set.

    Raises:
        LedgerError: If there are none.
    """
    rows = store.rows(dataset)
    if not rows:
        known = ", ".join(map(repr, store.datasets())) or "none"
        raise LedgerError(
            f"{store.location} has no budget for data set {dataset!r}, only for {known}. "
            "Create one with `prudent budget create`."
        )
    return rows


def noted_budget(first: LedgerRow, dataset: str) -> Allowance:
    """The budget that the first row of a data set notes."""
    fields = fields_of(BEFORE_THE_FIRST, first, dataset)
    with reading(first):
        return Allowance.of_fields(fields)


def now() -> str:
    """The time in UTC, as rows note it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def text(**argument: Any) -> str:
    """Returns the argument if it is a text."""
    ((name, value),) = argument.items()
    if not isinstance(value, str):
        raise _validate.ArgumentError(name, "a text", got=value)
    return value
