"""An edit of a ledger is noticed."""

import contextlib
import json
from collections.abc import Callable

import dp_accounting as dp
import pytest

from prudent._formats import NewerFormatError
from prudent.accounting import serialisation
from prudent.budget.allowance import BEFORE_THE_FIRST, row_after
from prudent.budget.ledger import Ledger, OverBudgetError, TamperedLedgerError
from prudent.budget.storage import LedgerRow, StorageError, Store, open_store

EVENTS = [dp.GaussianDpEvent(40.0), dp.LaplaceDpEvent(50.0), dp.GaussianDpEvent(60.0)]


@pytest.fixture
def ledger(location: str) -> Ledger:
    with Ledger(location, epsilon=1.0, delta=1e-6) as opened:
        for number, event in enumerate(EVENTS):
            opened.charge(event, f"release {number}")
        yield opened


def overwrite(store: Store, dataset: str, rows: list[LedgerRow]) -> None:
    """What an owner of the database can do: take the guard away, and write what he likes."""
    if store.location.startswith("postgresql"):
        store._execute("ALTER TABLE prudent_ledger DISABLE TRIGGER ALL")
    else:
        for verb in ("update", "delete"):
            store._execute(f"DROP TRIGGER IF EXISTS prudent_ledger_no_{verb}")
    store._execute("DELETE FROM prudent_ledger WHERE dataset = ?", (dataset,))
    for row in rows:
        store.append(dataset, row)


def edited(row: LedgerRow, **changes: object) -> LedgerRow:
    record = json.dumps({**json.loads(row.record), **changes})
    return row._replace(record=record)


def rehashed(rows: list[LedgerRow]) -> list[LedgerRow]:
    """The same records with a chain of hashes that is right again."""
    chain = [BEFORE_THE_FIRST]
    for row in rows:
        fields = json.loads(row.record)
        fields.pop("sequence")
        chain.append(row_after(chain[-1], **fields))
    return chain[1:]


def without_event(rows: list[LedgerRow]) -> list[LedgerRow]:
    fields = json.loads(rows[-1].record)
    fields.pop("event")
    return rehashed([*rows[:-1], rows[-1]._replace(record=json.dumps(fields))])


def cheaper(rows: list[LedgerRow]) -> list[LedgerRow]:
    """What the last row notes as spent halved, all hashes right."""
    spent = json.loads(rows[-1].record)["spent"]
    return rehashed([*rows[:-1], edited(rows[-1], spent=spent / 2)])


def mended(rows: list[LedgerRow]) -> list[LedgerRow]:
    """A label changed and the hash of that row made right; those after it still hold the old."""
    fields = json.loads(rows[1].record)
    fields.pop("sequence")
    return [rows[0], row_after(rows[0], **{**fields, "label": "other"}), *rows[2:]]


EDITS: dict[str, Callable[[list[LedgerRow]], list[LedgerRow]]] = {
    "a label": lambda rows: [*rows[:1], edited(rows[1], label="other"), *rows[2:]],
    "a label, its own hash mended": mended,
    "a space": lambda rows: [*rows[:2], rows[2]._replace(record=rows[2].record + " "), rows[3]],
    "the budget": lambda rows: [edited(rows[0], epsilon=100.0), *rows[1:]],
    "a digest": lambda rows: [*rows[:3], rows[3]._replace(digest="0" * 64)],
    "a row gone": lambda rows: [rows[0], rows[1], rows[3]],
    "a row gone, renumbered": lambda rows: [rows[0], rows[1], rows[3]._replace(sequence=2)],
    "the budget gone": lambda rows: rows[1:],
    "two rows swapped": lambda rows: [
        rows[0],
        rows[1]._replace(sequence=2),
        rows[2]._replace(sequence=1),
        rows[3],
    ],
    "a dearer event, rehashed": lambda rows: rehashed(
        [*rows[:3], edited(rows[3], event=json.loads(rows[1].record)["event"])]
    ),
    "less noted as spent, rehashed": cheaper,
    "a smaller budget, rehashed": lambda rows: rehashed([edited(rows[0], epsilon=1e-3), *rows[1:]]),
    "no event, rehashed": without_event,
    "an unknown field, rehashed": lambda rows: rehashed(
        [rows[0], edited(rows[1], details={"a": 1})]
    ),
    "another data set's rows, rehashed": lambda rows: rehashed(
        [edited(row, dataset="other") for row in rows]
    ),
}


@pytest.mark.unhurried
def test_an_honest_ledger_verifies(ledger: Ledger, location: str) -> None:
    assert ledger.verify() == len(EVENTS)
    assert ledger.verify(ledger.balance().digest) == len(EVENTS)
    assert ledger.verify(ledger.history()[0].digest) == len(EVENTS)
    with Ledger.open(location) as again:
        assert again.verify() == len(EVENTS)


def test_rows_written_back_as_they_were_verify(ledger: Ledger, location: str) -> None:
    """The edits below are noticed for what they change, not for having been made."""
    overwrite(ledger._store, "default", rehashed(ledger._store.rows("default")))
    with Ledger.open(location) as again:
        assert again.verify() == len(EVENTS)


@pytest.mark.unhurried
@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_an_edit_is_noticed(ledger: Ledger, location: str, edit: str) -> None:
    rows = ledger._store.rows("default")
    overwrite(ledger._store, "default", EDITS[edit](rows))

    def open_and_verify() -> None:
        with Ledger.open(location) as again:
            again.verify()
            again.history()

    with pytest.raises(TamperedLedgerError, match="Release nothing more") as caught:
        open_and_verify()
    assert "charging that again" in str(caught.value)  # no copy may forget what was charged since


@pytest.mark.parametrize(
    ("row", "changes", "error", "message"),
    [
        (0, {"format": 2}, NewerFormatError, "it needs a newer version of prudent"),
        (0, {"format": 0}, TamperedLedgerError, r"^Row 0 cannot be read.*another version wrote it"),
        (1, {"event": {"kind": "Later"}}, TamperedLedgerError, r"^Row 1 cannot.*Upgrade prudent"),
        (1, {"details": {"later": 1}}, TamperedLedgerError, r"^Row 1 cannot.*Upgrade prudent"),
    ],
)
def test_what_another_version_wrote_is_not_called_changed(
    ledger: Ledger,
    location: str,
    row: int,
    changes: dict[str, object],
    error: type[Exception],
    message: str,
) -> None:
    rows = ledger._store.rows("default")
    rows[row] = edited(rows[row], **changes)
    overwrite(ledger._store, "default", rehashed(rows))
    with pytest.raises(error, match=message), Ledger.open(location) as again:
        again.history()


@pytest.mark.parametrize(
    "change", ["RENAME COLUMN record TO content", "ADD COLUMN format INTEGER DEFAULT 2"]
)
def test_a_table_of_another_version_is_refused_before_a_charge(location: str, change: str) -> None:
    Ledger(location, epsilon=1.0, delta=1e-6).close()
    with contextlib.closing(open_store(location, create=False)) as store:
        store._execute(f"ALTER TABLE prudent_ledger {change}")
    for given in ({}, {"epsilon": 1.0, "delta": 1e-6}):
        with pytest.raises(StorageError, match="another version of prudent: its rows have the col"):
            Ledger(location, **given)


def test_an_open_ledger_notices_that_rows_were_taken_away(ledger: Ledger) -> None:
    rows = ledger._store.rows("default")
    overwrite(ledger._store, "default", rows[:-1])
    with pytest.raises(TamperedLedgerError, match=r"Row 3 .* taken away or changed"):
        ledger.charge(EVENTS[0])
    with pytest.raises(TamperedLedgerError, match="Row 3"):
        ledger.balance()


def test_an_edited_ledger_admits_no_charge(ledger: Ledger, location: str) -> None:
    rows = ledger._store.rows("default")
    with Ledger.open(location) as other:
        other.charge(EVENTS[0])
    last = ledger._store.rows("default")[-1]
    overwrite(ledger._store, "default", [*rows, edited(last, label="other")])
    with pytest.raises(TamperedLedgerError, match="Row 4"):
        ledger.charge(EVENTS[0])


def forged(last: LedgerRow, event: dp.DpEvent, **noted: object) -> LedgerRow:
    """A row with a hash that is right, as anyone may append who may INSERT."""
    fields = {"time": "2026-01-01T00:00:00+00:00", "label": "forged", "delta": None, "spent": 0.0}
    return row_after(
        last, dataset="default", event=serialisation.to_plain(event), **{**fields, **noted}
    )


@pytest.mark.unhurried
def test_an_appended_row_cannot_reset_the_budget(location: str) -> None:
    """Rows may note any sums, under hashes that are right. None of them is believed."""
    with Ledger(location, epsilon=1.0, delta=1e-6) as ledger:
        ledger.charge(dp.GaussianDpEvent(5.0))
        spent = ledger.spent
        zeros = dict.fromkeys(("epsilon", "delta", "accident", "gaussian"), 0.0)
        total = {**zeros, "divergences": [0.0] * 5, "alone": "inf"}
        with ledger._store.exclusive("default"):
            last = ledger._store.rows("default")[-1]
            ledger._store.append("default", forged(last, dp.NoOpDpEvent(), total=total))
        for opened in (ledger, Ledger.open(location)):
            with opened:
                assert opened.spent >= spent * (1 - 1e-9)
                with pytest.raises(OverBudgetError):
                    opened.charge(dp.GaussianDpEvent(5.0))
                with pytest.raises(TamperedLedgerError, match="notes ε = 0 as spent"):
                    opened.verify()


def test_an_appended_row_that_overdraws_leaves_nothing_to_spend(location: str) -> None:
    """Whoever may append can block a ledger, but not open it."""
    with Ledger(location, epsilon=1.0, delta=1e-6) as ledger:
        with ledger._store.exclusive("default"):
            last = ledger._store.rows("default")[-1]
            ledger._store.append("default", forged(last, dp.NonPrivateDpEvent()))
        assert ledger.remaining == 0
        with pytest.raises(OverBudgetError):
            ledger.charge(EVENTS[0])
