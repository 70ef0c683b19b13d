"""The budget of a data set: (ε, δ), for which neighbours, of which data.

It is the first row of a ledger, written once and never changed.

A ledger can be bound to data by name, so that a second ledger for the same data is noticed: a path,
the address of a table, or any name that is agreed on. Names are public. There is no fingerprint of
the content: a hash in a public ledger would let anyone who guesses the records check the guess, and
no noise would stand in between.

A list of bound ledgers is kept for each user, in the file that `PRUDENT_LEDGERS` names or else in
the user's data folder; a team shares one by setting `PRUDENT_LEDGERS`. It is a help against
mistakes: whoever wants a second budget can have one, by asking for it or without this list.
"""

import contextlib
import datetime
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

import attrs

from prudent import _validate
from prudent._formats import check_format
from prudent._rounding import exact
from prudent._validate import without_password
from prudent.accounting.relations import ADD_REMOVE, Relation, check_relation
from prudent.budget.charges import BEFORE_THE_FIRST, fields_of, reading, row_after
from prudent.budget.filters import AdaptiveFilter
from prudent.budget.storage import LedgerError, LedgerRow, Store, is_postgres, open_store

_LEAST_DELTA = 1e-300  # what floating point can still hold and halve
_LIST = "PRUDENT_LEDGERS"
_DUCKDB = "duckdb://"
_BETWEEN = " + "

FORMAT = 1  # of the rows of a ledger; its first row notes it
Data: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@attrs.frozen
class Allowance:
    """What may be spent, fixed when a ledger is made."""

    # ε and δ of everything released, for two data sets of the relation.
    epsilon: float = attrs.field(validator=_validate.kept(_validate.positive))
    delta: float = attrs.field(validator=_validate.kept(_validate.between, 0, 1, ends="()"))
    relation: Relation = attrs.field(default=ADD_REMOVE, validator=_validate.by(check_relation))
    orders: tuple[float, ...] = ()  # of the filter's Rényi accounts; chosen if none are given
    data: str | None = None  # name of the data that the budget is for; None if that is not noted

    def __attrs_post_init__(self) -> None:
        if self.data is not None and not (self.data and self.data.isprintable()):
            raise _validate.ArgumentError("data", "a printable name", got=self.data)

    @property
    def per_record(self) -> tuple[float, float]:
        """ε and δ that adding or removing a single record may use."""
        epsilon, delta = self.relation.per_record(self.epsilon, self.delta)
        if not (epsilon > 0 and delta >= _LEAST_DELTA):
            raise ValueError(
                f"Expected epsilon and delta enough for {self.relation.distance} records, got "
                f"{self.epsilon!r} and {self.delta!r}: the share of one record is 0. Allow fewer "
                "records, or a larger delta."
            )
        return epsilon, delta

    def filter(self) -> AdaptiveFilter:
        """The filter that keeps the budget of one record."""
        return AdaptiveFilter(*self.per_record, self.orders)

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
        return {
            "format": FORMAT,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "orders": self.filter().orders,
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
        return cls(
            fields["epsilon"],
            fields["delta"],
            Relation(**fields["relation"]),
            tuple(fields["orders"]),
            fields["data"],
        )

    def __str__(self) -> str:
        return f"epsilon={exact(self.epsilon)}, delta={exact(self.delta)}, for {self.relation}"


def wanted(
    epsilon: float | None,
    delta: float | None,
    relation: Relation | None,
    data: str | None,
) -> Allowance | None:
    """The budget that was asked for; None if neither ε nor δ is given.

    Raises:
        ArgumentError: If only one of them is.
    """
    if relation is not None:
        check_relation(relation=relation)
    if epsilon is None and delta is None:
        return None
    if epsilon is None or delta is None:
        missing = "epsilon" if epsilon is None else "delta"
        raise _validate.ArgumentError(missing, "beside the other half of the budget", got=None)
    return Allowance(epsilon, delta, relation or ADD_REMOVE, data=data)


def begin(
    location: str | os.PathLike[str], dataset: str, budget: Allowance, *, another: bool = False
) -> bool:
    """Writes the first row of a data set, its budget; False if there already is one.

    Its data may have a budget elsewhere only if `another` is true.

    Raises:
        SecondLedgerError: If the data are known to have one, and `another` is not given.
    """
    _validate.instance(str, "a text", dataset=dataset)
    if not dataset or not dataset.isprintable():
        raise _validate.ArgumentError("dataset", "a printable name", got=dataset)
    fields = budget.to_fields()
    if budget.data is not None and not another:
        check_only(budget.data, location, dataset)
    store = open_store(location, create=True)
    with contextlib.closing(store), store.exclusive(dataset):
        if store.rows(dataset):
            return False
        if budget.data is not None and not another:
            for other in store.datasets():
                noted = noted_budget(store.rows(other)[0], other).data or ""
                if same := names_in(budget.data) & names_in(noted):
                    raise SecondLedgerError(min(same), store.location, other)
        store.append(dataset, row_after(BEFORE_THE_FIRST, dataset=dataset, time=now(), **fields))
    if budget.data is not None:
        remember(budget.data, location, dataset)
    return True


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


class SecondLedgerError(LedgerError):
    """The data already have a budget elsewhere.

    Attributes:
        data: The name of the data.
        location: Where their ledger is.
        dataset: Under which name it keeps their budget.
    """

    def __init__(self, data: str, location: str, dataset: str) -> None:
        self.data, self.location, self.dataset = data, location, dataset
        super().__init__(
            f"{data} already has a budget: data set {dataset!r} in {location}. Two budgets for the "
            "same data add up, and neither knows of the other. Charge that one; or, to allow both, "
            "create this one with another=True."
        )

    def __reduce__(self) -> tuple[type["SecondLedgerError"], tuple[str, str, str]]:
        return SecondLedgerError, (self.data, self.location, self.dataset)


def is_duckdb(address: str) -> bool:
    """Whether an address is that of a DuckDB file."""
    return len(address) > len(_DUCKDB) and address.startswith(_DUCKDB)


def data_name(data: Data) -> str:
    """The public name of data: a file by its full path, an address without its password.

    A DuckDB file has the same name by its path and by its address.

    Several, such as tables that are joined, have their names with " + " between.
    """
    if not isinstance(data, str | os.PathLike):
        found = {data_name(each) for each in _validate.values(data=data)}
        return _BETWEEN.join(sorted(found))
    text = str(_validate.instance((str, os.PathLike), "a path, an address or a name", data=data))
    if _BETWEEN in text and not Path(text).exists():
        return data_name(text.split(_BETWEEN))
    if is_duckdb(text):
        text = text.removeprefix(_DUCKDB).partition("?")[0]
    elif "://" in text or is_postgres(text):
        return without_password(text)
    path = Path(text)
    return str(path.resolve()) if path.exists() else text


def place(location: str | os.PathLike[str]) -> str:
    """The name of a ledger's place in the list: a full path, or an address without password."""
    _validate.path(location=location)
    text = os.fspath(location)
    if "://" in text or is_postgres(text):
        return without_password(text)
    return str(Path(text).resolve())


def names_in(name: str) -> set[str]:
    """The names of the single data in a name that `data_name` returned."""
    return set(name.split(_BETWEEN))


def check_only(data: str, location: str | os.PathLike[str], dataset: str) -> None:
    """Refuses data for which the list knows another ledger that is still there.

    Raises:
        SecondLedgerError: If there is one.
    """
    here = place(location), dataset
    for each in sorted(names_in(data)):
        known = _listed(each)
        for where, name in known if here not in known else ():
            if is_postgres(where) or Path(where).exists():
                raise SecondLedgerError(each, where, name)


def remember(data: str, location: str | os.PathLike[str], dataset: str) -> None:
    """Puts a ledger on the list. Does nothing if the list cannot be written."""
    line = "".join(
        json.dumps({"data": each, "ledger": place(location), "dataset": dataset}) + "\n"
        for each in sorted(names_in(data))
    )
    path = _list_path()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            ended = file.read(1) in (b"", b"\n")  # a crash may have cut off the last line
            file.write((line if ended else "\n" + line).encode())


def _listed(data: str) -> list[tuple[str, str]]:
    try:
        lines = _list_path().read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        # A line cut off by a crash, or not one of ours.
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            entry = json.loads(line)
            if entry["data"] == data:
                found.append((str(entry["ledger"]), str(entry["dataset"])))
    return found


def _list_path() -> Path:
    if given := os.environ.get(_LIST):
        return Path(given)
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "prudent" / "ledgers.jsonl"
