"""The budget of a data set: charge first, release after, and never beyond (ε, δ).

    with Ledger("budget.db", epsilon=1.0, delta=1e-6) as ledger:
        ledger.charge(event, "median of salary")  # on disk when this returns, or OverBudgetError
        ...  # only now read the data and release

Rows are only ever appended. Each holds the hash of all before it, so that an edit is noticed.
"""

import contextlib
import datetime
import os
import threading
from types import TracebackType
from typing import Any, Self

import dp_accounting as dp

from prudent import _validate
from prudent.accounting import serialisation
from prudent.accounting.relations import ADD_REMOVE, Relation
from prudent.release.budget.allowance import Budget
from prudent.release.budget.balance import Balance, Charge, OverBudgetError
from prudent.release.budget.hash_chain import (
    ADVICE,
    BEFORE_THE_FIRST,
    TamperedLedgerError,
    fields_of,
    reading,
    row_after,
    tampered,
)
from prudent.release.budget.storage import LedgerError, Row, StorageError, open_store, shown

__all__ = [
    "Balance",
    "Charge",
    "Ledger",
    "LedgerError",
    "OverBudgetError",
    "StorageError",
    "TamperedLedgerError",
    "datasets",
]


_VERSIONS_DIFFER = 0.01  # how much more an event may cost now than when it was noted


class Ledger:
    """A budget (ε, δ) of one data set, kept in SQLite or PostgreSQL.

    Opens the ledger; if a budget is given and there is no ledger yet, creates it. Any number of
    processes may charge one ledger at once; each opens its own `Ledger`.

    Guarantee:
        What is released after successful charges is, taken together, (ε, δ)-DP for neighbours of
        `relation`: by `AdaptiveFilter` however the events are chosen or, with `adaptive=False`, by
        `ExactFilter` if their list was fixed in advance. A charge is on disk before `charge`
        returns: a crash after it loses budget, never privacy. What was charged is priced again
        whenever a ledger is opened or has grown; sums that rows note decide nothing.

    Args:
        location: A path, `postgresql://user@host/database`, or `host=… dbname=… user=…`.
        epsilon: Budget. May be left out to open an existing ledger; otherwise it must agree.
        delta: Budget, in (0, 1), beside `epsilon`.
        dataset: A ledger keeps a budget for each data set, under its name.
        adaptive: Which filter; True for a new ledger unless said otherwise.
        relation: Which data sets are neighbours; for a new ledger by default those that differ
            by adding or removing one record. For a relation at distance k a single record gets
            its share of the budget (`Relation.per_record`).

    Raises:
        LedgerError: If there is no such ledger, or its budget is another.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        dataset: str = "default",
        adaptive: bool | None = None,
        relation: Relation | None = None,
    ) -> None:
        wanted = _budget(epsilon, delta, adaptive, relation)
        if wanted is not None:
            _begin(location, dataset, wanted)
        self._dataset = dataset
        self._turn = threading.RLock()
        self._store = open_store(location, create=False)
        try:
            rows = self._rows_from_the_first()
            self._budget = _noted_budget(rows[0], dataset)
            if not self._budget.is_as_asked(wanted, adaptive=adaptive, relation=relation):
                raise LedgerError(
                    f"{self._store.location} already has a budget for {dataset!r}: {self._budget}. "
                    "Open it without a budget, or with this one."
                )
            self._filter = self._budget.filter()
            self._state = self._filter.opening()
            self._last = BEFORE_THE_FIRST
            self._follow(rows)
        except BaseException:
            self._store.close()
            raise

    def _rows_from_the_first(self) -> list[Row]:
        rows = self._store.rows(self._dataset)
        if not rows:
            known = ", ".join(map(repr, self._store.datasets())) or "none"
            raise LedgerError(
                f"{self._store.location} has no budget for data set {self._dataset!r}, only for "
                f"{known}. Create one with `prudent budget create`."
            )
        return rows

    @classmethod
    def create(
        cls,
        location: str | os.PathLike[str],
        *,
        epsilon: float,
        delta: float,
        dataset: str = "default",
        adaptive: bool = True,
        relation: Relation = ADD_REMOVE,
    ) -> Self:
        """A new ledger, or a new data set in one; an error if it is already there."""
        if not _begin(location, dataset, Budget(float(epsilon), float(delta), adaptive, relation)):
            raise LedgerError(
                f"{shown(location)} already has a budget for data set {dataset!r}, and a "
                "budget is never changed. Open it, or choose another name."
            )
        return cls(location, dataset=dataset)

    @classmethod
    def open(cls, location: str | os.PathLike[str], *, dataset: str = "default") -> Self:
        """An existing ledger; an error if there is none."""
        return cls(location, dataset=dataset)

    def charge(self, event: dp.DpEvent, label: str = "", *, delta: float | None = None) -> Charge:
        """Charges an event, before any data is read. On disk when this returns.

        Args:
            event: What will be released, for any accountant of this package.
            label: What for; public, like all of the ledger.
            delta: The δ that the release was calibrated for, if it was: simple composition then
                counts it as (ε, δ) with this δ. Any value is safe.

        Raises:
            OverBudgetError: If it would overdraw the budget. Nothing was charged.
            StorageError: If it is not known whether the charge is on disk. Release nothing.
        """
        _text(label=label)
        if delta is not None:
            delta = _validate.between(0, 1, ends="[)", delta=delta)
        asked = self._price_alone(event, delta)
        with self._turn:
            self._catch_up()  # prices what others charged before they have to wait for it
            with self._store.exclusive(self._dataset):
                self._catch_up()
                state = self._filter.charged(self._state, event, delta)
                if not self._filter.admits(state):
                    raise OverBudgetError(asked, self._balance())
                row = self._next_row(
                    time=_now(),
                    label=label,
                    event=serialisation.to_plain(event),
                    delta=delta,
                    spent=serialisation.to_plain(self._spent(state)),
                )
                self._store.append(self._dataset, row)
            self._last, self._state = row, state
        return Charge.of(row)

    def fits(self, event: dp.DpEvent, *, delta: float | None = None) -> bool:
        """Whether a charge of this event would be admitted now. Charges nothing."""
        self._price_alone(event, delta)
        with self._turn:
            self._catch_up()
            return self._filter.admits(self._filter.charged(self._state, event, delta))

    def balance(self) -> Balance:
        """Where the budget stands now."""
        with self._turn:
            self._catch_up()
            return self._balance()

    @property
    def spent(self) -> float:
        """An ε for which the events charged so far, as a list, are (ε, δ)-DP."""
        with self._turn:
            self._catch_up()
            return self._spent(self._state)

    @property
    def remaining(self) -> float:
        """What is left of ε."""
        return max(0.0, self._budget.epsilon - self.spent)

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbours."""
        return self._budget.relation

    def history(self) -> list[Charge]:
        """Every charge, the first first."""
        return [Charge.of(row) for row in self._store.rows(self._dataset, 1)]

    def verify(self, digest: str | None = None) -> int:
        """Reads every row, follows the hashes, and prices every charge again.

        Args:
            digest: A `Balance.digest` noted earlier. With it, also rows taken from the end, or a
                ledger rewritten as a whole, are noticed: the hashes alone cannot show that.

        Returns:
            How many charges there are.

        Raises:
            TamperedLedgerError: At the first row that is not as it was written.
        """
        rows = self._store.rows(self._dataset)
        last, state = BEFORE_THE_FIRST, self._filter.opening()
        for row in rows:
            fields = fields_of(last, row, self._dataset)
            last = row
            if row.sequence > 0:
                with reading(row):
                    state = self._priced(state, fields)
                    # Exact prices take a composition each: those on the way decide nothing.
                    if self._budget.adaptive or row is rows[-1]:
                        self._check_price(row, state, float(fields["spent"]))
        if digest is not None and digest not in {row.digest for row in rows}:
            raise TamperedLedgerError(
                f"No row of {self._dataset!r} has the digest {digest}: rows were taken away or "
                f"rewritten. {ADVICE}"
            )
        return len(rows) - 1

    def _check_price(self, row: Row, state: Any, noted: float) -> None:
        spent = self._spent(state)
        if not noted >= spent * (1 - _VERSIONS_DIFFER):
            raise tampered(row, f"it notes ε = {noted:g} as spent, but its events cost {spent:g}")
        if not self._filter.admits(state):
            raise tampered(row, "it overdraws the budget")

    def close(self) -> None:
        """Lets go of the database."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({self._store.location!r}, dataset={self._dataset!r}, {self._budget})"

    def _price_alone(self, event: dp.DpEvent, delta: float | None) -> float:
        """ε of an event by itself; also gets the price before others have to wait for it."""
        return self._spent(self._filter.charged(self._filter.opening(), event, delta))

    def _spent(self, state: Any) -> float:
        return self._budget.for_relation(self._filter.spent(state))

    def _catch_up(self) -> None:
        """Takes in what others have charged since; the last row known must still be there."""
        rows = self._store.rows(self._dataset, self._last.sequence)
        if not rows or rows[0] != self._last:
            raise tampered(self._last, "it was taken away or changed")
        self._follow(rows[1:])

    def _follow(self, rows: list[Row]) -> None:
        for row in rows:
            fields = fields_of(self._last, row, self._dataset)
            if row.sequence > 0:
                with reading(row):
                    self._state = self._priced(self._state, fields)
            self._last = row

    def _priced(self, state: Any, fields: dict[str, Any]) -> Any:
        """The state after a noted charge. A row may note any sum, so none is read."""
        return self._filter.charged(
            state, serialisation.from_plain(fields["event"]), fields["delta"]
        )

    def _balance(self) -> Balance:
        spent = self._spent(self._state)
        return Balance(
            dataset=self._dataset,
            epsilon=self._budget.epsilon,
            delta=self._budget.delta,
            relation=self._budget.relation,
            epsilon_per_record=self._filter.epsilon,
            delta_per_record=self._filter.delta,
            adaptive=self._budget.adaptive,
            spent=spent,
            remaining=max(0.0, self._budget.epsilon - spent),
            fits=self._filter.room(self._state),
            charges=self._last.sequence,
            digest=self._last.digest,
        )

    def _next_row(self, **fields: Any) -> Row:
        return row_after(self._last, dataset=self._dataset, **fields)


def datasets(location: str | os.PathLike[str]) -> list[str]:
    """The names of the data sets that have a budget there."""
    with contextlib.closing(open_store(location, create=False)) as store:
        return store.datasets()


def _budget(
    epsilon: float | None,
    delta: float | None,
    adaptive: bool | None,
    relation: Relation | None,
) -> Budget | None:
    if epsilon is None and delta is None:
        return None
    if epsilon is None or delta is None:
        missing = "epsilon" if epsilon is None else "delta"
        raise _validate.ArgumentError(missing, "beside the other half of the budget", got=None)
    return Budget(float(epsilon), float(delta), adaptive is not False, relation or ADD_REMOVE)


def _noted_budget(first: Row, dataset: str) -> Budget:
    fields = fields_of(BEFORE_THE_FIRST, first, dataset)
    with reading(first):
        return Budget.of_fields(fields)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


def _begin(location: str | os.PathLike[str], dataset: str, budget: Budget) -> bool:
    """Writes the first row of a data set, its budget; False if there already is one."""
    if not _text(dataset=dataset) or not dataset.isprintable():
        raise _validate.ArgumentError("dataset", "a printable name", got=dataset)
    fields = budget.to_fields()
    with contextlib.closing(open_store(location, create=True)) as store:
        with store.exclusive(dataset):
            if store.rows(dataset):
                return False
            row = row_after(BEFORE_THE_FIRST, dataset=dataset, time=_now(), **fields)
            store.append(dataset, row)
        return True


def _text(**argument: Any) -> str:
    ((name, value),) = argument.items()
    if not isinstance(value, str):
        raise _validate.ArgumentError(name, "a text", got=value)
    return value
