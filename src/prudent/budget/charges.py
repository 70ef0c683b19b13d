"""Charges as a ledger notes them: what was asked, its price, and what came of it."""

import datetime
from collections.abc import Mapping
from typing import Any, Self

import attrs
import dp_accounting as dp

from prudent import _validate
from prudent.accounting import serialisation
from prudent.budget.hash_chain import decoded, reading, tampered
from prudent.budget.storage import Row

OUTCOMES = ("released", "refused")
UNKNOWN = "unknown"


def _optional_text(_: object, attribute: Any, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise _validate.ArgumentError(attribute.name, "a text", got=value)


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
        unit: The column that tells one person from another.
        epsilon: The ε that was asked for; by default the price of the event.
        data: Name, path or address of what is read. It must be that of the ledger's data, if the
            ledger is bound to some.
    """

    statistic: str | None = attrs.field(default=None, validator=_optional_text)
    column: str | None = attrs.field(default=None, validator=_optional_text)
    mechanism: str | None = attrs.field(default=None, validator=_optional_text)
    proposal: float | str | None = None
    groups: tuple[str, ...] | int | str | None = attrs.field(default=None, converter=_groups)
    unit: str | None = attrs.field(default=None, validator=_optional_text)
    epsilon: float | None = None
    data: str | None = attrs.field(default=None, validator=_optional_text)

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
    def of(cls, row: Row) -> Self:
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


def outcome_fields(charge: Charge, outcome: str | Mapping[str, int]) -> dict[str, Any]:
    """What a row notes of the outcome of a charge.

    Args:
        charge: Whose.
        outcome: "released" or "refused", or how many of each there were among the groups.

    Raises:
        ArgumentError: If it is something else.
    """
    counts = {outcome: 1} if isinstance(outcome, str) else dict(outcome)
    known = all(name in OUTCOMES for name in counts)
    if not counts or not known or not all(type(n) is int and n >= 0 for n in counts.values()):
        raise _validate.ArgumentError(
            "outcome", "'released', 'refused' or the number of each", got=outcome
        )
    return {"charge": charge.sequence, "outcome": counts}


def read_outcome(row: Row, fields: Mapping[str, Any], charges: Mapping[int, Any]) -> int:
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


def with_outcomes(rows: list[Row]) -> list[Charge]:
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
