"""Rows that hold each other: each carries the hash of itself and all before it."""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from prudent.budget.storage import LedgerError, Row

ADVICE = (
    "Release nothing more from this data set until every charge is known. A copy lacks what was "
    "charged after it was made: continue from one only after charging that again."
)
BEFORE_THE_FIRST = Row(-1, "", "0" * 64)


class TamperedLedgerError(LedgerError):
    """The rows of a ledger are not those that were written."""


def row_after(last: Row, **fields: Any) -> Row:
    """The next row: canonical JSON, and the hash of it and all before it."""
    sequence = last.sequence + 1
    record = json.dumps(
        {"sequence": sequence, **fields}, sort_keys=True, separators=(",", ":"), allow_nan=False
    )
    return Row(sequence, record, _digest(last, record))


def _digest(last: Row, record: str) -> str:
    return hashlib.sha256(f"{last.digest}\n{record}".encode()).hexdigest()


def fields_of(last: Row, row: Row, dataset: str) -> dict[str, Any]:
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


def decoded(row: Row) -> dict[str, Any]:
    """The fields of a row, wherever it stands."""
    try:
        fields = json.loads(row.record)
    except json.JSONDecodeError as error:
        raise tampered(row, "it is not JSON") from error
    if not isinstance(fields, dict):
        raise tampered(row, "it is not a record")
    return fields


def tampered(row: Row, reason: str) -> TamperedLedgerError:
    """The error that names a row and what is wrong with it."""
    return TamperedLedgerError(f"Row {row.sequence} is not as it was written: {reason}. {ADVICE}")


@contextlib.contextmanager
def reading(row: Row) -> Iterator[None]:
    """Turns what goes wrong with the fields of a row into the error that names it."""
    try:
        yield
    except TamperedLedgerError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise tampered(row, f"its fields cannot be read ({error})") from error
