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
from prudent.accounting import serialisation as records
from prudent.release.budget.adaptive_filter import AdaptiveFilter
from prudent.release.budget.balance import Balance, Charge, OverBudgetError
from prudent.release.budget.filters import ExactFilter, Filter
from prudent.release.budget.hash_chain import (
    BEFORE_THE_FIRST,
    TOLERANCE,
    TamperedLedgerError,
    agree,
    fields_of,
    reading,
    row_after,
    tampered,
)
from prudent.release.budget.storage import LedgerError, Row, StorageError, open_store

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


class Ledger:
    """A budget (ε, δ) of one data set, kept in SQLite or PostgreSQL.

    Opens the ledger; if a budget is given and there is no ledger yet, creates it. Any number of
    processes may charge one ledger at once; each opens its own `Ledger`.

    Guarantee:
        What is released after successful charges is (ε, δ)-DP, taken together: by `AdaptiveFilter`
        however the events are chosen or, with `adaptive=False`, by `ExactFilter` if their list was
        fixed in advance. A charge is on disk before `charge` returns: a crash after it loses
        budget, never privacy.

    Args:
        location: A path, or `postgresql://user@host/database`.
        epsilon: Budget. May be left out to open an existing ledger; otherwise it must agree.
        delta: Budget, in (0, 1), beside `epsilon`.
        dataset: A ledger keeps a budget for each data set, under its name.
        adaptive: Which filter; True for a new ledger unless said otherwise.

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
    ) -> None:
        wanted = _filter_of(epsilon, delta, adaptive)
        if wanted is not None:
            _begin(location, dataset, wanted)
        self._dataset = dataset
        self._turn = threading.RLock()
        self._store = open_store(location, create=False)
        try:
            self._begin_reading(wanted, adaptive)
        except BaseException:
            self._store.close()
            raise

    def _begin_reading(self, wanted: Filter[Any] | None, adaptive: bool | None) -> None:
        rows = self._store.rows(self._dataset)
        if not rows:
            known = ", ".join(map(repr, self._store.datasets())) or "none"
            raise LedgerError(
                f"{self._store.location} has no budget for data set {self._dataset!r}, only for "
                f"{known}. Create one with `prudent budget create`."
            )
        self._last = BEFORE_THE_FIRST
        self._filter = _filter_from(rows[0], self._dataset)
        self._state = self._filter.opening()
        same = wanted is None or (wanted.epsilon, wanted.delta) == (
            self._filter.epsilon,
            self._filter.delta,
        )
        if not same or adaptive not in (None, self._adaptive):
            raise LedgerError(
                f"{self._store.location} already has a budget for {self._dataset!r}: "
                f"epsilon={self._filter.epsilon:g}, delta={self._filter.delta:g}, "
                f"adaptive={self._adaptive}. Open it without a budget, or with this one."
            )
        self._follow(rows)

    @classmethod
    def create(
        cls,
        location: str | os.PathLike[str],
        *,
        epsilon: float,
        delta: float,
        dataset: str = "default",
        adaptive: bool = True,
    ) -> Self:
        """A new ledger, or a new data set in one; an error if it is already there."""
        wanted = _filter_of(epsilon, delta, adaptive)
        assert wanted is not None
        if not _begin(location, dataset, wanted):
            raise LedgerError(
                f"{os.fspath(location)} already has a budget for data set {dataset!r}, and a "
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
            with self._store.exclusive(self._dataset):
                self._catch_up()
                state = self._filter.charged(self._state, event, delta)
                spent = self._filter.spent(state)
                if not spent <= self._filter.epsilon:
                    raise OverBudgetError(asked, self._balance())
                row = self._next_row(
                    time=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
                    label=label,
                    event=records.to_plain(event),
                    delta=delta,
                    spent=records.to_plain(spent),
                    total=self._filter.total(state),
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
            return self._filter.spent(self._state)

    @property
    def remaining(self) -> float:
        """What is left of ε."""
        return max(0.0, self._filter.epsilon - self.spent)

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
                    event = records.from_plain(fields["event"])
                    state = self._filter.charged(state, event, fields["delta"])
                    # Only sums that decide about later charges are followed row by row.
                    if self._adaptive or row is rows[-1]:
                        self._check_sums(row, state, fields["total"])
        if digest is not None and digest not in {row.digest for row in rows}:
            raise TamperedLedgerError(
                f"No row of {self._dataset!r} has the digest {digest}: rows were taken away or "
                "rewritten. Restore the ledger from a copy."
            )
        return len(rows) - 1

    def _check_sums(self, row: Row, state: Any, noted: Any) -> None:
        if not agree(self._filter.total(state), noted):
            raise tampered(row, "its sums are not those of its events")
        if not self._filter.spent(state) <= self._filter.epsilon * (1 + TOLERANCE):
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
        return (
            f"Ledger({self._store.location!r}, epsilon={self._filter.epsilon:g}, "
            f"delta={self._filter.delta:g}, dataset={self._dataset!r}, adaptive={self._adaptive})"
        )

    @property
    def _adaptive(self) -> bool:
        return isinstance(self._filter, AdaptiveFilter)

    def _price_alone(self, event: dp.DpEvent, delta: float | None) -> float:
        """ε of an event by itself; also gets the price before others have to wait for it."""
        return self._filter.spent(self._filter.charged(self._filter.opening(), event, delta))

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
                    event = records.from_plain(fields["event"])
                    self._state = self._filter.resumed(self._state, event, fields["total"])
            self._last = row

    def _balance(self) -> Balance:
        spent = self._filter.spent(self._state)
        return Balance(
            dataset=self._dataset,
            epsilon=self._filter.epsilon,
            delta=self._filter.delta,
            adaptive=self._adaptive,
            spent=spent,
            remaining=max(0.0, self._filter.epsilon - spent),
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


def _filter_of(
    epsilon: float | None, delta: float | None, adaptive: bool | None
) -> Filter[Any] | None:
    if epsilon is None and delta is None:
        return None
    if epsilon is None or delta is None:
        missing = "epsilon" if epsilon is None else "delta"
        raise ValueError(f"Expected {missing} beside the other half of the budget, got None.")
    kind = ExactFilter if adaptive is False else AdaptiveFilter
    return kind(float(epsilon), float(delta))


def _filter_from(first: Row, dataset: str) -> Filter[Any]:
    """The filter of a ledger, from its first row."""
    budget = fields_of(BEFORE_THE_FIRST, first, dataset)
    with reading(first):
        epsilon, delta = budget["epsilon"], budget["delta"]
        if budget["orders"] is None:
            return ExactFilter(epsilon, delta)
        return AdaptiveFilter(epsilon, delta, budget["orders"])


def _begin(location: str | os.PathLike[str], dataset: str, filter_: Filter[Any]) -> bool:
    """Writes the first row of a data set, its budget; False if there already is one."""
    if not _text(dataset=dataset) or not dataset.isprintable():
        raise ValueError(f"Expected dataset a printable name, got {dataset!r}.")
    with contextlib.closing(open_store(location, create=True)) as store:
        with store.exclusive(dataset):
            if store.rows(dataset):
                return False
            row = row_after(
                BEFORE_THE_FIRST,
                dataset=dataset,
                time=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
                epsilon=filter_.epsilon,
                delta=filter_.delta,
                orders=filter_.orders if isinstance(filter_, AdaptiveFilter) else None,
            )
            store.append(dataset, row)
        return True


def _text(**argument: Any) -> str:
    ((name, value),) = argument.items()
    if not isinstance(value, str):
        raise ValueError(f"Expected {name} a text, got {value!r}.")
    return value
