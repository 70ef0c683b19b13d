"""The first row of a ledger: its budget, written once and never changed."""

import contextlib
import datetime
import os
from typing import Any

from prudent import _validate
from prudent.accounting.relations import ADD_REMOVE, Relation, check_relation
from prudent.budget import data_binding
from prudent.budget.allowance import Budget
from prudent.budget.data_binding import SecondLedgerError
from prudent.budget.hash_chain import BEFORE_THE_FIRST, fields_of, reading, row_after
from prudent.budget.storage import LedgerError, Row, Store
from prudent.budget.stores import open_store


def budget(
    epsilon: float | None,
    delta: float | None,
    adaptive: bool | None,
    relation: Relation | None,
    data: str | None,
) -> Budget | None:
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
    return Budget(
        _validate.positive(epsilon=epsilon),
        _validate.between(0, 1, ends="()", delta=delta),
        adaptive is None or bool(adaptive),
        ADD_REMOVE if relation is None else relation,
        data=data,
    )


def begin(
    location: str | os.PathLike[str], dataset: str, budget: Budget, *, another: bool = False
) -> bool:
    """Writes the first row of a data set, its budget; False if there already is one.

    Args:
        location: Where.
        dataset: Whose.
        budget: What is written.
        another: Whether its data may have a budget elsewhere.

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
        if noted_budget(store.rows(other)[0], other).data == data:
            raise SecondLedgerError(data, store.location, other)


def rows_from_the_first(store: Store, dataset: str) -> list[Row]:
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


def noted_budget(first: Row, dataset: str) -> Budget:
    """The budget that the first row of a data set notes."""
    fields = fields_of(BEFORE_THE_FIRST, first, dataset)
    with reading(first):
        return Budget.of_fields(fields)


def now() -> str:
    """The time in UTC, as rows note it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def text(**argument: Any) -> str:
    """Returns the argument if it is a text."""
    ((name, value),) = argument.items()
    if not isinstance(value, str):
        raise _validate.ArgumentError(name, "a text", got=value)
    return value
