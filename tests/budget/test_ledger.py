"""A ledger admits what fits, refuses what does not, and forgets nothing."""

import math
import os
import pickle
import sqlite3
import threading
from pathlib import Path

import dp_accounting as dp
import pytest

from prudent.accounting import ZERO_OUT, DiscreteLaplaceTest, ProposeTestReleaseDpEvent
from prudent.budget import ledger as ledgers
from prudent.budget.ledger import Ledger, LedgerError, OverBudgetError, StorageError
from tests.raising import refused

SMALL = dp.GaussianDpEvent(40.0)
MUCH = dp.GaussianDpEvent(6.0)
MEDIAN = ProposeTestReleaseDpEvent(
    math.inf, 0.0, DiscreteLaplaceTest(10.0), 1e-8, robust_noise_multiplier=30.0, reveals="branch"
)


@pytest.fixture
def ledger(location: str) -> Ledger:
    with Ledger(location, epsilon=1.0, delta=1e-6) as opened:
        yield opened


def test_a_new_ledger_has_spent_nothing(ledger: Ledger) -> None:
    balance = ledger.balance()
    assert (balance.spent, balance.remaining, balance.charges) == (0.0, 1.0, 0)
    assert ledger.history() == []


def test_a_charge_is_noted_and_paid_for(ledger: Ledger) -> None:
    first = ledger.charge(MEDIAN, "median of salary", delta=1e-7)
    second = ledger.charge(SMALL, "mean of age")
    assert ledger.history() == [first, second]
    assert [charge.label for charge in ledger.history()] == ["median of salary", "mean of age"]
    assert ledger.history()[0].event == MEDIAN
    assert 0 < first.spent < second.spent == ledger.spent
    assert ledger.remaining == pytest.approx(1 - ledger.spent)


@pytest.mark.parametrize("multiplier", [7.0, 8.0, 9.0, 10.0])
def test_a_refusal_shows_no_less_as_spent_than_is(ledger: Ledger, multiplier: float) -> None:
    ledger.charge(dp.GaussianDpEvent(multiplier))
    with pytest.raises(OverBudgetError, match="is spent") as caught:
        ledger.charge(dp.GaussianDpEvent(1.0))
    refusal = caught.value
    words = str(refusal).replace(",", "").split()
    asked, spent = float(words[words.index("price") + 7]), float(words[words.index("spent.") - 2])
    assert refusal.asked <= asked < refusal.asked * 1.01
    assert refusal.spent <= spent < refusal.spent * 1.01
    spent_of_it = str(ledger.balance()).partition(" of 1 spent at δ = ")[0]
    assert float(spent_of_it.removeprefix("'default': ε = ")) == spent


def test_a_charge_beyond_the_budget_is_refused_and_leaves_no_trace(ledger: Ledger) -> None:
    ledger.charge(MUCH)
    before = ledger.balance()
    with pytest.raises(OverBudgetError) as caught:
        ledger.charge(MUCH)
    assert ledger.balance() == before
    error = caught.value
    assert error.spent == before.spent
    assert error.remaining == before.remaining
    assert error.asked == pytest.approx(0.68, abs=0.02)
    assert "Gaussian noise with multiplier >=" in str(error)
    for number in (error.asked, error.spent):
        assert f"{number:.4g}" in str(error)


def test_what_would_fit_fits_and_a_little_more_does_not(ledger: Ledger) -> None:
    ledger.charge(MUCH)
    fits = ledger.balance().fits
    assert not ledger.fits(dp.GaussianDpEvent(fits.noise_multiplier * 0.99))
    assert ledger.fits(dp.GaussianDpEvent(fits.noise_multiplier * 1.0001))
    ledger.charge(dp.GaussianDpEvent(fits.noise_multiplier * 1.0001))


def test_asking_whether_it_fits_charges_nothing(ledger: Ledger) -> None:
    assert ledger.fits(MUCH)
    assert ledger.history() == []


def test_a_ledger_is_there_when_opened_again(location: str) -> None:
    with Ledger.create(location, epsilon=1.0, delta=1e-6) as first:
        first.charge(MUCH)
        spent = first.spent
    with Ledger.open(location) as again:
        assert again.spent == spent
        with pytest.raises(OverBudgetError):
            again.charge(MUCH)


def test_two_ledgers_at_one_place_see_each_other(location: str) -> None:
    with (
        Ledger(location, epsilon=1.0, delta=1e-6) as one,
        Ledger(location, epsilon=1.0, delta=1e-6) as other,
    ):
        one.charge(MUCH)
        with pytest.raises(OverBudgetError):
            other.charge(MUCH)
        other.charge(SMALL)
        assert one.spent == other.spent
        assert len(one.history()) == 2


def test_each_data_set_has_its_own_budget(location: str) -> None:
    with (
        Ledger(location, epsilon=1.0, delta=1e-6, dataset="salaries") as one,
        Ledger(location, epsilon=2.0, delta=1e-6, dataset="ages") as other,
    ):
        one.charge(MUCH)
        assert other.spent == 0
    assert ledgers.datasets(location) == ["ages", "salaries"]


def test_a_budget_is_never_changed(location: str) -> None:
    Ledger.create(location, epsilon=1.0, delta=1e-6).close()
    with pytest.raises(LedgerError, match="already has a budget for data set 'default'"):
        Ledger.create(location, epsilon=2.0, delta=1e-6)
    for other in ({"epsilon": 2.0}, {"epsilon": 1.0, "relation": ZERO_OUT}):
        with pytest.raises(LedgerError, match="epsilon=1, delta=1e-06, for adding or removing"):
            Ledger(location, delta=1e-6, **other)
    with pytest.raises(LedgerError, match="no budget for data set 'other', only for 'default'"):
        Ledger.open(location, dataset="other")


def test_threads_of_one_process_take_turns(ledger: Ledger) -> None:
    threads = [threading.Thread(target=ledger.charge, args=(SMALL,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [charge.sequence for charge in ledger.history()] == list(range(1, 9))


def test_a_ledger_does_not_cross_a_fork(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    process = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: process + 1)
    with pytest.raises(StorageError, match="open the ledger again in each process"):
        ledger.charge(SMALL)


def test_a_closed_ledger_says_so(ledger: Ledger) -> None:
    ledger.close()
    for ask in (ledger.history, lambda: ledger.charge(dp.GaussianDpEvent(50.0))):
        with pytest.raises(StorageError, match=r"is closed; open the ledger again\.$"):
            ask()


def test_an_error_inside_the_transaction_undoes_the_row(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the disk is full between the row and its commit."""
    append = ledger._store.append

    def append_and_fail(*arguments: object) -> None:
        append(*arguments)
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(ledger._store, "append", append_and_fail)
        with pytest.raises(MemoryError):
            ledger.charge(SMALL)
    assert ledger.history() == []
    ledger.charge(SMALL)
    assert ledger.verify() == 1


def test_the_database_itself_refuses_changes(ledger: Ledger) -> None:
    ledger.charge(SMALL)
    for change in ("UPDATE prudent_ledger SET digest = ''", "DELETE FROM prudent_ledger"):
        with pytest.raises(StorageError, match="append-only"), ledger._store._translated():
            ledger._store._execute(change)
    assert ledger.verify() == 1


def test_a_refusal_travels_between_processes(ledger: Ledger) -> None:
    with pytest.raises(OverBudgetError) as caught:
        ledger.charge(dp.GaussianDpEvent(0.5))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.asked, copy.fits) == (
        str(caught.value),
        caught.value.asked,
        caught.value.fits,
    )


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"epsilon": 0.0, "delta": 1e-6}, "epsilon"),
        ({"epsilon": math.inf, "delta": 1e-6}, "epsilon"),
        ({"epsilon": 1.0, "delta": 0.0}, "delta"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta"),
        ({"epsilon": 1.0}, "delta"),
        ({"delta": 1e-6}, "epsilon"),
        ({"epsilon": 1.0, "delta": 1e-6, "dataset": ""}, "dataset"),
        ({"epsilon": 1.0, "delta": 1e-6, "dataset": "a\0b"}, "dataset"),
    ],
)
def test_a_bad_budget_is_named_before_anything_is_made(
    tmp_path: Path, arguments: dict[str, object], wrong: str
) -> None:
    with refused(wrong):
        Ledger(tmp_path / "budget.db", **arguments)
    assert not (tmp_path / "budget.db").exists()


def test_bad_charges_are_named(ledger: Ledger) -> None:
    with refused("label"):
        ledger.charge(SMALL, 3)
    with refused("delta"):
        ledger.charge(SMALL, delta=math.nan)
    with pytest.raises(ValueError, match="that an accountant supports"):
        ledger.charge(dp.UnsupportedDpEvent())
    with pytest.raises(OverBudgetError, match="price of this release is ε = ∞"):
        ledger.charge(dp.NonPrivateDpEvent())
    assert ledger.history() == []


def test_other_files_are_not_ledgers(tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("not a database, though long enough to be taken for one\n" * 40)
    with pytest.raises(StorageError, match="not a database; give the path of a ledger"):
        Ledger.open(text)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE salaries (amount REAL)")
    connection.close()
    with pytest.raises(StorageError, match="create a ledger there"):
        Ledger.open(other)
    with pytest.raises(StorageError, match="check that the directory exists"):
        Ledger(tmp_path / "nowhere" / "budget.db", epsilon=1.0, delta=1e-6)


def test_sqlite_is_told_to_lose_nothing(tmp_path: Path) -> None:
    with Ledger(tmp_path / "budget.db", epsilon=1.0, delta=1e-6) as ledger:
        assert ledger._store._execute("PRAGMA synchronous") == [(3,)]
        assert ledger._store._execute("PRAGMA journal_mode") == [("delete",)]


def test_postgresql_is_told_to_lose_nothing(postgres_location: str) -> None:
    with Ledger(postgres_location, epsilon=1.0, delta=1e-6) as ledger:
        assert ledger._store._execute("SHOW synchronous_commit") == [("on",)]
