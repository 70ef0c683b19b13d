"""The rows of a ledger: linked by hashes, and read as charges and their outcomes.

The digest of a row is the SHA-256 of the digest before it and of its own text, so a row that was
changed, added in between or taken out no longer fits the rows after it.
"""

import contextlib
import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Self

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent.accounting import serialisation
from prudent.budget.storage import LedgerError, LedgerRow

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
    except TamperedLedgerError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise tampered(row, f"its fields cannot be read ({error})") from error


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


def is_outcome_of(row: LedgerRow, charge: Charge) -> bool:
    """Whether a row notes what came of this charge."""
    fields = decoded(row)
    return is_outcome(fields) and fields.get("charge") == charge.sequence


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
