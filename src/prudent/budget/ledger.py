"""The budget of a data set: charge first, release after, and never beyond (ε, δ).

    with Ledger("budget.db", epsilon=1.0, delta=1e-6) as ledger:
        ledger.charge(event, "median of salary")  # on disk when this returns, or OverBudgetError
        ...  # only now read the data and release

Rows are only ever appended. Each holds the hash of all before it, so that an edit is noticed.
"""

import contextlib
import functools
import getpass
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent._progress import track
from prudent._rounding import exact, rounded_up
from prudent.accounting import serialisation
from prudent.accounting.relations import ADD_REMOVE, Relation
from prudent.budget import allowance
from prudent.budget.allowance import Allowance, reading, tampered
from prudent.budget.allowance import Charge as Charge
from prudent.budget.allowance import ChargeDetails as ChargeDetails
from prudent.budget.allowance import SecondLedgerError as SecondLedgerError
from prudent.budget.allowance import TamperedLedgerError as TamperedLedgerError
from prudent.budget.filters import AdaptiveFilter, Offer, Room, Sums, offers
from prudent.budget.storage import LedgerError as LedgerError
from prudent.budget.storage import LedgerRow, Store, is_postgres, open_store, shown
from prudent.budget.storage import StorageError as StorageError


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


class Ledger:
    """A budget (ε, δ) of one data set, kept in SQLite or PostgreSQL.

    Opens the ledger; if a budget is given and there is no ledger yet, creates it. Any number of
    processes may charge one ledger at once; each opens its own `Ledger`.

    Guarantee:
        What is released after successful charges is, taken together, (ε, δ)-DP for neighbours of
        `relation`, however the events are chosen (see `AdaptiveFilter`). A charge is on disk before
        `charge` returns: a crash after it loses budget, never privacy. What was charged is priced
        again whenever a ledger is opened or has grown; sums that rows note decide nothing.

    Args:
        location: A path, `postgresql://user@host/database`, or `host=… dbname=… user=…`.
        epsilon: Budget. May be left out to open an existing ledger; otherwise it must agree.
        delta: Budget, in (0, 0.5), beside `epsilon`.
        dataset: A ledger keeps a budget for each data set, under its name.
        relation: Which data sets are neighbours; for a new ledger by default those that differ
            by adding or removing one record. For a relation at distance k a single record gets
            its share of the budget (`Relation.per_record`).
        data: Path, address or name of the data that a new ledger is bound to; several, if
            releases join them.
        asker: Name of who asks, noted with every charge; by default $PRUDENT_ASKER, or else the
            name of the user.

    Raises:
        LedgerError: If there is no such ledger, or its budget is another.
        SecondLedgerError: If the data are known to have a budget in another ledger.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        dataset: str = "default",
        relation: Relation | None = None,
        data: allowance.Data | None = None,
        asker: str | None = None,
    ) -> None:
        if asker is None:
            asker = os.environ.get("PRUDENT_ASKER")
            with contextlib.suppress(KeyError, OSError, ImportError):  # no user, as in containers
                asker = asker or getpass.getuser()
        else:
            _validate.instance(str, "a text", asker=asker)
        self._asker = asker
        name = None if data is None else allowance.data_name(data)
        wanted = allowance.wanted(epsilon, delta, relation, name)
        if wanted is not None:
            allowance.begin(location, dataset, wanted)
        self._location, self._dataset = location, dataset
        self._turn = threading.RLock()
        self._store = open_store(location, create=False)
        try:
            if not (rows := self._store.rows(dataset)):
                known = ", ".join(map(repr, self._store.datasets())) or "none"
                raise LedgerError(
                    f"{self._store.location} has no budget for data set {dataset!r}, only for "
                    f"{known}. Create one with `prudent budget create`."
                )
            self._budget = allowance.noted_budget(rows[0], dataset)
            if not self._budget.is_as_asked(wanted, relation, name):
                raise LedgerError(
                    f"{self._store.location} already has a budget for {dataset!r}: {self._budget}. "
                    "Open it without a budget, or with this one."
                )
            self._filter = self._budget.filter()
            self._journal = LedgerJournal(dataset, self._filter)
            self._journal.follow(rows)
        except BaseException:
            self._store.close()
            raise

    @classmethod
    def create(
        cls,
        location: str | os.PathLike[str],
        *,
        epsilon: float,
        delta: float,
        dataset: str = "default",
        relation: Relation = ADD_REMOVE,
        data: allowance.Data | None = None,
        another: bool = False,
    ) -> Self:
        """A new ledger, or a new data set in one; an error if it is already there.

        Takes the arguments of `Ledger`, and `another`: whether data that are known to have a budget
        may have this one as well. Their releases are then covered by the sum of the budgets only.
        """
        _validate.flag(another=another)
        name = None if data is None else allowance.data_name(data)
        budget = Allowance(epsilon, delta, relation, data=name)
        if not allowance.begin(location, dataset, budget, another=another):
            raise LedgerError(
                f"{shown(location)} already has a budget for data set {dataset!r}, and a "
                "budget is never changed. Open it, or choose another name."
            )
        return cls(location, dataset=dataset)

    @classmethod
    def open(cls, location: str | os.PathLike[str], *, dataset: str = "default") -> Self:
        """An existing ledger; an error if there is none."""
        return cls(location, dataset=dataset)

    def charge(
        self,
        event: dp.DpEvent,
        label: str = "",
        *,
        delta: float | None = None,
        details: ChargeDetails | Mapping[str, Any] | None = None,
    ) -> Charge:
        """Charges an event, before any data is read. On disk when this returns.

        Args:
            event: What will be released, for any accountant of this package.
            label: What for; public, like all of the ledger.
            delta: The δ that the release was calibrated for, if it was: addition then counts it
                as (ε, δ) with this δ. Any value is safe. A pure event needs none.
            details: What is asked, for the history, as a `ChargeDetails` or a mapping of its
                fields; public. Where it names the data, they must be those of this ledger.

        Raises:
            OverBudgetError: If it would overdraw the budget. Nothing was charged.
            SecondLedgerError: If the data have a budget in another ledger. Nothing was charged.
            StorageError: If it is not known whether the charge is on disk. Release nothing.
        """
        _validate.instance(str, "a text", label=label)
        details = ChargeDetails.of(details)
        if details.asker is None:
            details = attrs.evolve(details, asker=self._asker)
        if details.data is not None:
            name = allowance.data_name(details.data)
            known = allowance.names_in(name if self.data is None else self.data)
            if other := allowance.names_in(name) - known:
                raise LedgerError(
                    f"{self._store.location} keeps the budget of {self.data}, but the release "
                    f"reads {' and '.join(sorted(other))}. Charge a ledger of all of these."
                )
            if self.data is None or not is_postgres(os.fspath(self._location)):
                # A file that is bound may be a copy of another; a server has many addresses.
                allowance.check_only(name, self._location, self._dataset)
        if delta is not None:
            delta = _validate.between(0, 1, ends="[)", delta=delta)
        asked = self._price_alone(event, delta)
        epsilon, at_delta = self._filter.alone(event, delta)
        with self._turn:
            self._journal.catch_up(self._store)  # prices charges of others before they have to wait
            with _doubt(), self._store.exclusive(self._dataset):
                self._journal.catch_up(self._store)
                state = self._filter.charged(self._journal.state, event, delta)
                if not self._filter.admits(state):
                    raise OverBudgetError(asked, self._balance())
                row = allowance.row_after(
                    self._journal.last,
                    dataset=self._dataset,
                    time=allowance.now(),
                    label=label,
                    event=serialisation.to_plain(event),
                    delta=delta,
                    spent=serialisation.to_plain(self._spent(state)),
                    price={"epsilon": serialisation.to_plain(epsilon), "delta": at_delta},
                    details=details.to_plain(),
                )
                self._store.append(self._dataset, row)  # it counts once `exclusive` has ended
            self._journal.follow([row])  # read no more: what is on disk must not end with an error
        return Charge.of(row)

    def record_outcome(
        self, charge: Charge, outcome: str | Mapping[str, int], *, answer: str | None = None
    ) -> None:
        """Notes what came of a charge, after its release. Costs nothing.

        Whether a release answered or refused is part of what it releases, and is paid for. A
        charge whose release crashed keeps the outcome "unknown".

        Args:
            charge: As returned by `charge`.
            outcome: "released" or "refused", or how many of each there were among the groups.
            answer: SHA-256 of what was released, as a receipt has it.

        Raises:
            LedgerError: If the charge is not of this ledger, or its outcome is already noted.
        """
        fields = allowance.outcome_fields(charge, outcome, answer)
        with self._turn:
            with self._store.exclusive(self._dataset):
                self._journal.catch_up(self._store)
                rows = self._store.rows(self._dataset, charge.sequence)
                noted = self._journal.answered.get(charge.sequence)
                if noted is None or rows[0].digest != charge.digest:
                    raise LedgerError(f"Charge {charge.sequence} is not one of {self!r}.")
                if noted:
                    raise LedgerError(f"The outcome of charge {charge.sequence} is already noted.")
                # No time: how long a release took is not public.
                row = allowance.row_after(self._journal.last, dataset=self._dataset, **fields)
                self._store.append(self._dataset, row)
            self._journal.follow([row])

    def proof(self, charge: Charge) -> dict[str, Any]:
        """What a receipt holds of a charge: its rows up to its outcome, and the digest before.

        Later rows are left out: their times could tell how long a release took.
        """
        before, *rows = self._store.rows(self._dataset, charge.sequence - 1)
        noted = list(map(allowance.decoded, rows))
        ends = (n for n, row in enumerate(noted) if row.get("charge") == charge.sequence)
        rows = rows[: next(filter(lambda n: allowance.is_outcome(noted[n]), ends), 0) + 1]
        return {
            "dataset": self._dataset,
            "before": before.digest,
            "rows": [{"record": row.record, "digest": row.digest} for row in rows],
            "head": rows[-1].digest,
        }

    def fits(self, event: dp.DpEvent, *, delta: float | None = None) -> bool:
        """Whether a charge of this event would be admitted now. Charges nothing."""
        self._price_alone(event, delta)
        with self._turn:
            self._journal.catch_up(self._store)
            return self._filter.admits(self._filter.charged(self._journal.state, event, delta))

    def balance(self) -> Balance:
        """Where the budget stands now."""
        with self._turn:
            self._journal.catch_up(self._store)
            return self._balance()

    def offers(self) -> list[Offer]:
        """What still fits, as numbers of pure releases of some ε; each instead of the others."""
        with self._turn:
            self._journal.catch_up(self._store)
            return offers(self._filter, self._journal.state)

    @property
    def spent(self) -> float:
        """An ε for which the events charged so far, as a list, are (ε, δ)-DP."""
        with self._turn:
            self._journal.catch_up(self._store)
            return self._spent(self._journal.state)

    @property
    def remaining(self) -> float:
        """What is left of ε."""
        return max(0.0, self._budget.epsilon - self.spent)

    @property
    def limits(self) -> tuple[float, float]:
        """ε and δ of the budget, for neighbours of `relation`."""
        return self._budget.epsilon, self._budget.delta

    @property
    def relation(self) -> Relation:
        """Which data sets are neighbours."""
        return self._budget.relation

    @property
    def data(self) -> str | None:
        """Name of the data that the ledger is bound to; None if there is none."""
        return self._budget.data

    def history(self) -> list[Charge]:
        """Every charge with its outcome, oldest first."""
        return allowance.with_outcomes(self._store.rows(self._dataset, 1))

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
        return verify(rows, self._dataset, self._budget, digest)

    def close(self) -> None:
        """Closes the connection."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        """Pickles as its address, without a password: another process opens the same ledger."""
        text = os.fspath(self._location)
        place = shown(text) if is_postgres(text) else os.path.abspath(text)
        given = functools.partial(type(self), place, dataset=self._dataset, asker=self._asker)
        return given, ()

    def __repr__(self) -> str:
        return f"Ledger({self._store.location!r}, dataset={self._dataset!r}, {self._budget})"

    def _price_alone(self, event: dp.DpEvent, delta: float | None) -> float:
        """ε of an event for one record; also gets the price before others have to wait for it."""
        return self._filter.spent(self._filter.charged(self._filter.opening(), event, delta))

    def _spent(self, state: Sums) -> float:
        return self._budget.for_relation(self._filter.spent(state))

    def _balance(self) -> Balance:
        spent = self._spent(self._journal.state)
        return Balance(
            dataset=self._dataset,
            epsilon=self._budget.epsilon,
            delta=self._budget.delta,
            relation=self._budget.relation,
            epsilon_per_record=self._filter.epsilon,
            delta_per_record=self._filter.delta,
            spent=spent,
            remaining=max(0.0, self._budget.epsilon - spent),
            fits=self._filter.room(self._journal.state),
            charges=len(self._journal.answered),
            digest=self._journal.last.digest,
            data=self.data,
        )


@contextlib.contextmanager
def _doubt() -> Iterator[None]:
    """Adds to an error of the store what it means for a charge that was under way."""
    try:
        yield
    except StorageError as error:
        raise StorageError(
            f"{error} Release nothing: the charge may or may not have been written. The history "
            "of the ledger shows whether it was; if so, it is spent, and asking again costs again."
        ) from error


def datasets(location: str | os.PathLike[str]) -> list[str]:
    """The names of the data sets that have a budget there."""
    with contextlib.closing(open_store(location, create=False)) as store:
        return store.datasets()


_VERSIONS_DIFFER = 0.01  # how much more an event may cost now than when it was noted


class LedgerJournal:
    """The rows of one data set, read so far.

    Sums that rows note decide nothing: events are priced again.

    Attributes:
        dataset: Whose rows.
        filter: Prices the charges.
        state: Of the filter, after the charges read so far.
        last: The last row read.
        answered: For the number of each charge, whether its outcome is noted.
    """

    def __init__(self, dataset: str, filter_: AdaptiveFilter) -> None:
        self.dataset, self.filter = dataset, filter_
        self.state = filter_.opening()
        self.last = allowance.BEFORE_THE_FIRST
        self.answered: dict[int, bool] = {}

    def follow(self, rows: Iterable[LedgerRow]) -> None:
        """Takes in the rows that come after the last one.

        Raises:
            TamperedLedgerError: At the first row that does not.
        """
        for row in rows:
            fields = allowance.fields_of(self.last, row, self.dataset)
            if allowance.is_outcome(fields):
                self.answered[allowance.read_outcome(row, fields, self.answered)] = True
            elif row.sequence > 0:
                with reading(row):
                    event = serialisation.from_plain(fields["event"])
                    self.state = self.filter.charged(self.state, event, fields["delta"])
                self.answered[row.sequence] = False
            self.last = row

    def catch_up(self, store: Store) -> None:
        """Takes in what others have appended since; the last row must still be there."""
        rows = store.rows(self.dataset, self.last.sequence)
        if not rows or rows[0] != self.last:
            raise tampered(self.last, "it was taken away or changed")
        self.follow(rows[1:])


def verify(rows: list[LedgerRow], dataset: str, budget: Allowance, digest: str | None) -> int:
    """The number of charges, if all rows are as they were written; see `Ledger.verify`.

    Raises:
        TamperedLedgerError: At the first row that is not.
    """
    if digest is not None:
        _validate.instance(str, "a text", digest=digest)
    filter_ = budget.filter()
    journal, count = LedgerJournal(dataset, filter_), 0
    for row in track(rows, "charges"):
        journal.follow([row])
        if len(journal.answered) > count:
            count += 1
            with reading(row):
                noted = float(allowance.decoded(row)["spent"])
            spent = budget.for_relation(filter_.spent(journal.state))
            if not noted >= spent * (1 - _VERSIONS_DIFFER):
                told = f"it notes ε = {exact(noted)} as spent, but its events cost {exact(spent)}"
                raise tampered(row, told)
            if not filter_.admits(journal.state):
                raise tampered(row, "it overdraws the budget")
    if digest is not None and digest not in {row.digest for row in rows}:
        raise TamperedLedgerError(
            f"No row of {dataset!r} has the digest {digest}: rows were taken away or rewritten. "
            f"{allowance.ADVICE}"
        )
    return count
