"""The rows of a ledger: the budget of a data set, and the charges to it.

The budget is (ε, δ), for which neighbours, of which data: the first row, never changed.

A ledger can be bound to data by name, so that a second ledger for the same data is noticed: a path,
the address of a table, or any name that is agreed on. Names are public. There is no fingerprint of
the content: a hash in a public ledger would let anyone who guesses the records check the guess, and
no noise would stand in between.

A list of bound ledgers is kept for each user, in the file that `PRUDENT_LEDGERS` names or else in
the user's data folder; a team shares one by setting `PRUDENT_LEDGERS`. It is a help against
mistakes: whoever wants a second budget can have one, by asking for it or without this list.

Rows are linked by hashes, and read as charges and their outcomes. The digest of a row is the
SHA-256 of the digest before it and of its own text, so a row that was changed, added in between or
taken out no longer fits the rows after it.
"""

import contextlib
import datetime
import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

import attrs
import dp_accounting as dp

from prudent import __version__, _validate
from prudent._formats import NewerFormatError, check_format
from prudent._rounding import exact
from prudent._validate import HIDDEN, without_password
from prudent.accounting import serialisation
from prudent.accounting.relations import ADD_REMOVE, Relation, check_relation
from prudent.budget.filters import AdaptiveFilter
from prudent.budget.storage import LedgerError, LedgerRow, is_postgres, open_store

ADVICE = (
    "Release nothing more from this data set until every charge is known. A copy lacks what was "
    "charged after it was made: continue from one only after charging that again."
)
BEFORE_THE_FIRST = LedgerRow(-1, "", "0" * 64)
OUTCOMES = ("released", "refused")
UNKNOWN = "unknown"


class TamperedLedgerError(LedgerError):
    """The rows of a ledger are not those that were written."""


def row_after(last: LedgerRow, **fields: Any) -> LedgerRow:
    """The row after another, its fields as canonical JSON."""
    sequence = last.sequence + 1
    record = json.dumps(
        {"sequence": sequence, **fields}, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return LedgerRow(sequence, record, _digest(last, record))


def _digest(last: LedgerRow, record: str) -> str:
    return hashlib.sha256(f"{last.digest}\n{record}".encode()).hexdigest()


def fields_of(last: LedgerRow, row: LedgerRow, dataset: str) -> dict[str, Any]:
    """The fields of a row that must follow another one.

    Raises:
        TamperedLedgerError: If it does not.
    """
    if row.sequence != last.sequence + 1:
        raise tampered(row, f"it follows row {last.sequence}")
    if row.digest != _digest(last, row.record):
        raise tampered(row, "its hash does not match")
    fields = decoded(row)
    if (fields.get("dataset"), fields.get("sequence")) != (dataset, row.sequence):
        raise tampered(row, "it was written for another place")
    return fields


def decoded(row: LedgerRow) -> dict[str, Any]:
    """The fields of a row, whatever comes before it."""
    try:
        fields = json.loads(row.record)
    except json.JSONDecodeError as error:
        raise tampered(row, "it is not JSON") from error
    if not isinstance(fields, dict):
        raise tampered(row, "it is not a record")
    return fields


def tampered(row: LedgerRow, reason: str) -> TamperedLedgerError:
    """The error that names a row and what is wrong with it."""
    return TamperedLedgerError(f"Row {row.sequence} is not as it was written: {reason}. {ADVICE}")


@contextlib.contextmanager
def reading(row: LedgerRow) -> Iterator[None]:
    """Turns what goes wrong with the fields of a row into the error that names it."""
    try:
        yield
    except (NewerFormatError, TamperedLedgerError):
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise TamperedLedgerError(
            f"Row {row.sequence} cannot be read by prudent {__version__} ({error}): another "
            "version wrote it, or it was changed. Upgrade prudent and open the ledger again. If "
            f"that cannot read it either: {ADVICE}"
        ) from error


_TEXT = attrs.validators.optional(_validate.by(_validate.instance, str, "a text"))


def _groups(value: Any) -> Any:
    """Group names as texts; a number stays one."""
    if value is None or isinstance(value, int | str):
        return value
    return tuple(map(str, value))


@attrs.frozen
class ChargeDetails:
    """What a release asks, for the history. Public, like all of a ledger; every field optional.

    Attributes:
        statistic: Such as "median".
        column: Its name.
        mechanism: Such as "exponential" or "propose-test-release".
        proposal: The proposed sensitivity, where there is one.
        groups: The public names of the groups, their number, or how they are selected.
        unit: The privacy unit (user ID column).
        epsilon: The ε that was asked for; by default the price of the event.
        data: Name, path or address of what is read. It must be that of the ledger's data, if the
            ledger is bound to some.
        asker: Name of who asked; by default that of the ledger.
        request: SHA-256 of all that was asked, with its unit and neighbours, as a receipt has it.
    """

    statistic: str | None = attrs.field(default=None, validator=_TEXT)
    column: str | None = attrs.field(default=None, validator=_TEXT)
    mechanism: str | None = attrs.field(default=None, validator=_TEXT)
    proposal: float | str | None = None
    groups: tuple[str, ...] | int | str | None = attrs.field(default=None, converter=_groups)
    unit: str | None = attrs.field(default=None, validator=_TEXT)
    epsilon: float | None = None
    data: str | None = attrs.field(default=None, validator=_TEXT)
    asker: str | None = attrs.field(default=None, validator=_TEXT)
    request: str | None = attrs.field(default=None, validator=_TEXT)

    def to_plain(self) -> dict[str, Any]:
        """For JSON: the fields that are given."""
        return {name: value for name, value in attrs.asdict(self).items() if value is not None}

    @classmethod
    def of(cls, given: "ChargeDetails | Mapping[str, Any] | None") -> "ChargeDetails":
        """The details from a mapping of the same names; none at all from None.

        Raises:
            ArgumentError: If there is no such field.
        """
        if isinstance(given, ChargeDetails):
            return given
        if given is not None:
            _validate.instance(Mapping, "a mapping of its fields", details=given)
        names = [field.name for field in attrs.fields(cls)]
        for name in given or {}:
            if name not in names:
                raise _validate.ArgumentError("details", f"with fields among {names}", got=name)
        return cls(**(given or {}))


@attrs.frozen
class Charge:
    """One charge, as noted.

    Attributes:
        sequence: The number of its row; 1 for the first.
        time: When, in UTC.
        label: What for, in the words of whoever charged.
        event: What was charged.
        delta: At which δ simple composition counts it, if that was told.
        spent: ε of everything charged up to here, this included.
        digest: SHA-256 over this row and, through its predecessor's, all before it.
        details: What the release asked.
        epsilon: ε of this charge by itself, at `at_delta`.
        at_delta: δ beside it: 0 for a pure event, else that told, else the budget's.
        outcome: How many answers were "released" and how many "refused"; empty if that is not
            known: the release is under way, or it ended without an answer.
    """

    sequence: int
    time: datetime.datetime
    label: str
    event: dp.DpEvent
    delta: float | None
    spent: float
    digest: str
    details: ChargeDetails
    epsilon: float
    at_delta: float
    outcome: Mapping[str, int] = attrs.field(factory=dict)

    @classmethod
    def of(cls, row: LedgerRow) -> Self:
        """The charge that a row notes, its outcome apart."""
        fields = decoded(row)
        with reading(row):
            return cls(
                sequence=row.sequence,
                time=datetime.datetime.fromisoformat(fields["time"]),
                label=fields["label"],
                event=serialisation.from_plain(fields["event"]),
                delta=fields["delta"],
                spent=float(fields["spent"]),
                digest=row.digest,
                details=ChargeDetails.of(fields["details"]),
                epsilon=float(fields["price"]["epsilon"]),
                at_delta=float(fields["price"]["delta"]),
            )

    @property
    def outcome_text(self) -> str:
        """The outcome in words, such as "released" or "3 released, 1 refused"."""
        if sum(self.outcome.values()) == 1:
            return next(name for name, count in self.outcome.items() if count)
        counts = ((self.outcome.get(name, 0), name) for name in OUTCOMES)
        return ", ".join(f"{count} {name}" for count, name in counts if count) or UNKNOWN

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "sequence": self.sequence,
            "time": self.time.isoformat(),
            "label": self.label,
            **{field.name: None for field in attrs.fields(ChargeDetails)},
            **self.details.to_plain(),
            "epsilon": serialisation.to_plain(self.asked_epsilon),
            "delta": self.at_delta,
            "outcome": dict(self.outcome) or UNKNOWN,
            "event": serialisation.to_plain(self.event),
            "spent": serialisation.to_plain(self.spent),
            "digest": self.digest,
        }

    @property
    def asked_epsilon(self) -> float:
        """The ε that was asked for, or else the price of the event."""
        return self.epsilon if self.details.epsilon is None else self.details.epsilon


def is_outcome(fields: Mapping[str, Any]) -> bool:
    """Whether a row notes what came of a charge rather than a charge."""
    return "outcome" in fields and "event" not in fields


def outcome_fields(
    charge: Charge, outcome: str | Mapping[str, int], answer: str | None
) -> dict[str, Any]:
    """What a row notes of the outcome of a charge.

    It is "released" or "refused", or how many of each there were among the groups; and the digest
    of what was released, if that is known.

    Raises:
        ArgumentError: If it is something else.
    """
    counts = {outcome: 1} if isinstance(outcome, str) else dict(outcome)
    known = all(name in OUTCOMES for name in counts)
    if not counts or not known or not all(type(n) is int and n >= 0 for n in counts.values()):
        raise _validate.ArgumentError(
            "outcome", "'released', 'refused' or the number of each", got=outcome
        )
    known_answer = {} if answer is None else {"answer": answer}
    return {"charge": charge.sequence, "outcome": counts, **known_answer}


def read_outcome(row: LedgerRow, fields: Mapping[str, Any], charges: Mapping[int, Any]) -> int:
    """The number of the charge whose outcome a row notes.

    Raises:
        TamperedLedgerError: If there is no such charge before the row.
    """
    with reading(row):
        number = fields["charge"]
        counts = fields["outcome"]
        sound = isinstance(counts, dict) and all(type(n) is int for n in counts.values())
        if type(number) is not int or number not in charges or not sound:
            raise tampered(row, "it notes the outcome of no charge")
        return number


def with_outcomes(rows: list[LedgerRow]) -> list[Charge]:
    """All charges among the rows, each with its outcome; the first that was noted counts."""
    charges: dict[int, Charge] = {}
    for row in rows:
        fields = decoded(row)
        if is_outcome(fields):
            number = read_outcome(row, fields, charges)
            if not charges[number].outcome:
                charges[number] = attrs.evolve(charges[number], outcome=fields["outcome"])
        else:
            charges[row.sequence] = Charge.of(row)
    return list(charges.values())


_LEAST_DELTA = 1e-300  # what floating point can still hold and halve
_LIST = "PRUDENT_LEDGERS"
_DUCKDB = "duckdb://"
_BETWEEN = " + "
_SECRET = re.escape(HIDDEN)

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

    def is_as_asked(
        self, asked: "Allowance | None", relation: Relation | None, data: str | None
    ) -> bool:
        """Whether a ledger with this budget is what was asked for; None asks for nothing."""
        same = asked is None or (asked.epsilon, asked.delta) == (self.epsilon, self.delta)
        bound = data is None or names_in(data) == names_in(self.data or "")
        return same and bound and relation in (None, self.relation)

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
    if _BETWEEN in text and not os.path.exists(text):
        return data_name(text.split(_BETWEEN))
    if is_duckdb(text):
        text = text.removeprefix(_DUCKDB).partition("?")[0]
    elif "://" in text or is_postgres(text):
        return without_password(text)
    return str(Path(text).resolve()) if os.path.exists(text) else text


def place(location: str | os.PathLike[str]) -> str:
    """The name of a ledger's place in the list: a full path, or an address as it is compared."""
    _validate.path(location=location)
    text = os.fspath(location)
    if "://" in text or is_postgres(text):
        return _compared(without_password(text))
    return str(Path(text).resolve())


def names_in(name: str) -> set[str]:
    """The names of the single data in one that `data_name` returned, in this version or earlier.

    Version 0.1.0 named a DuckDB file by its address. An address names the same data whether it was
    given with a password or without, and whether its scheme is postgres or postgresql.
    """
    names = [name] if os.path.exists(name) else name.split(_BETWEEN)
    return {data_name(each) if is_duckdb(each) else _compared(each) for each in names}


def _compared(address: str) -> str:
    """An address as it is compared: without any word about a password, its scheme in full."""
    bare = re.sub(rf":{_SECRET}(?=@)|\s*\b\w+\s*=\s*{_SECRET}", "", address).strip()
    return re.sub(r"^postgres://", "postgresql://", bare)


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
            if data in names_in(str(entry["data"])):
                found.append((place(str(entry["ledger"])), str(entry["dataset"])))
    return found


def _list_path() -> Path:
    if given := os.environ.get(_LIST):
        return Path(given)
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "prudent" / "ledgers.jsonl"
