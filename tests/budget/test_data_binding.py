"""A second ledger for the same data is noticed."""

import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import dp_accounting as dp
import pytest

import prudent
from prudent.budget import allowance
from prudent.budget.allowance import data_name
from prudent.budget.ledger import Ledger, LedgerError, SecondLedgerError

BUDGET = {"epsilon": 1.0, "delta": 1e-6}
SMALL = dp.GaussianDpEvent(50.0)


@pytest.fixture(autouse=True)
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A list of ledgers for this test alone."""
    path = tmp_path / "lists" / "ledgers.jsonl"
    monkeypatch.setenv("PRUDENT_LEDGERS", str(path))
    return path


def test_a_ledger_is_bound_for_good(location: str) -> None:
    Ledger.create(location, **BUDGET, data="salaries").close()
    with Ledger.open(location) as ledger:
        assert ledger.data == ledger.balance().data == "salaries"
        ledger.charge(SMALL, details={"data": "salaries"})
        ledger.charge(SMALL)
        with pytest.raises(LedgerError, match="budget of salaries, but the release reads ages"):
            ledger.charge(SMALL, details={"data": "ages"})
        assert ledger.verify() == 2
    with Ledger(location, **BUDGET, data="salaries") as again:
        assert again.data == "salaries"
    with pytest.raises(LedgerError, match="already has a budget"):
        Ledger(location, **BUDGET, data="ages")


def test_a_second_ledger_is_noticed(tmp_path: Path, location: str) -> None:
    Ledger.create(location, **BUDGET, dataset="hr", data="salaries").close()
    with pytest.raises(SecondLedgerError, match="already has a budget: data set 'hr'") as caught:
        Ledger(tmp_path / "second.db", **BUDGET, data="salaries")
    assert not (tmp_path / "second.db").exists()
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with (
        Ledger.create(tmp_path / "free.db", **BUDGET) as free,
        pytest.raises(SecondLedgerError, match="Charge that one"),
    ):
        free.charge(SMALL, details={"data": "salaries"})
    with Ledger.create(tmp_path / "second.db", **BUDGET, data="salaries", another=True) as second:
        second.charge(SMALL, details={"data": "salaries"})


def test_a_copy_of_a_ledger_is_another_budget(tmp_path: Path) -> None:
    """It lacks what was charged since; a ledger that was moved, or has a second path, does not."""
    first, copy, moved = (tmp_path / f"{name}.db" for name in ("first", "copy", "moved"))
    Ledger.create(first, **BUDGET, data="salaries").close()
    shutil.copy(first, copy)
    with Ledger.open(copy) as ledger:
        with pytest.raises(SecondLedgerError, match=re.escape(f"'default' in {first}")):
            ledger.charge(SMALL, details={"data": "salaries"})
        assert not ledger.history()
    first.rename(moved)
    for _ in range(2):
        with Ledger.open(moved) as ledger:
            ledger.charge(SMALL, details={"data": "salaries"})
        if not first.exists():
            first.symlink_to(moved)


def test_a_second_budget_in_one_store_needs_no_list(location: str, listed: Path) -> None:
    Ledger.create(location, **BUDGET, data="salaries").close()
    listed.unlink()
    with pytest.raises(SecondLedgerError, match="data set 'default'"):
        Ledger.create(location, **BUDGET, dataset="other", data="salaries")
    Ledger.create(location, **BUDGET, dataset="other", data="ages").close()


def test_a_ledger_that_is_gone_counts_no_more(tmp_path: Path) -> None:
    Ledger.create(tmp_path / "first.db", **BUDGET, data="salaries").close()
    (tmp_path / "first.db").unlink()
    Ledger.create(tmp_path / "second.db", **BUDGET, data="salaries").close()


def test_a_file_is_the_same_by_any_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "salaries.csv"
    table.write_text("salary\n1\n")
    (tmp_path / "link.csv").symlink_to(table)
    Ledger.create(tmp_path / "first.db", **BUDGET, data=table).close()
    monkeypatch.chdir(tmp_path)
    for path in ("salaries.csv", Path("link.csv")):
        with pytest.raises(SecondLedgerError):
            Ledger.create("second.db", **BUDGET, data=path)


def test_no_content_and_no_password_is_kept(tmp_path: Path, listed: Path) -> None:
    """Two tables of the same name and other records make the same rows, their times apart."""
    assert "secret" not in data_name("postgresql://ana:secret@db/hr")
    table, rows = tmp_path / "salaries.csv", []
    for number, content in enumerate(("salary\n1\n", "salary\n999\n")):
        table.write_text(content)
        path = tmp_path / f"{number}.db"
        with Ledger.create(path, **BUDGET, data=table, another=True) as ledger:
            fields = ledger._store.rows("default")[0].record.split(",")
            rows.append([field for field in fields if not field.startswith('"time"')])
    assert rows[0] == rows[1]
    assert len(listed.read_text().splitlines()) == 2


def test_a_list_that_cannot_be_used_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRUDENT_LEDGERS", str(tmp_path))  # a folder
    with Ledger.create(tmp_path / "b.db", **BUDGET, data="salaries") as ledger:
        ledger.charge(SMALL, details={"data": "salaries"})


def test_a_line_cut_off_by_a_crash_does_no_harm(tmp_path: Path, listed: Path) -> None:
    listed.parent.mkdir()
    listed.write_text('{"data": "other", "led')
    Ledger.create(tmp_path / "first.db", **BUDGET, data="salaries").close()
    with listed.open("a") as file:
        file.write('{"data": "sal\n3\n')
    with pytest.raises(SecondLedgerError):
        Ledger.create(tmp_path / "second.db", **BUDGET, data="salaries")


def test_a_ledger_of_two_tables_keeps_the_budget_of_either(tmp_path: Path, location: str) -> None:
    Ledger.create(location, **BUDGET, data=["visits", "patients"]).close()
    with Ledger.open(location) as ledger:
        assert ledger.data == "patients + visits"
        for read in ("visits", "patients", "visits + patients"):
            ledger.charge(SMALL, details={"data": read})
        with pytest.raises(LedgerError, match="the release reads doctors"):
            ledger.charge(SMALL, details={"data": "visits + doctors"})
    for data in ("visits", "patients + doctors"):
        with pytest.raises(SecondLedgerError, match="already has a budget"):
            Ledger(tmp_path / "second.db", **BUDGET, data=data)
    with (
        Ledger.create(tmp_path / "third.db", **BUDGET, data="doctors") as other,
        pytest.raises(LedgerError, match="the release reads visits"),
    ):
        other.charge(SMALL, details={"data": "doctors + visits"})


@pytest.mark.unhurried
def test_a_join_is_charged_to_a_ledger_of_both_private_tables(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("ibis")
    pytest.importorskip("opendp")
    import pyarrow.parquet

    import prudent

    files = [tmp_path / f"{name}.parquet" for name in ("visits", "patients", "towns")]
    for file in files:
        pyarrow.parquet.write_table(pa.table({"id": [1, 2], "x": [1.0, 2.0]}), file)
    visits, patients, towns = map(str, files)
    persons = prudent.join(visits, patients, on="id", unit="id")
    with Ledger(tmp_path / "one.db", **BUDGET, data=visits) as one:
        with pytest.raises(LedgerError, match=r"patients\.parquet"):
            prudent.count(persons, epsilon=0.1, ledger=one)
        assert one.history() == []
        prudent.count(prudent.join(visits, towns, on="id", public=True), epsilon=0.1, ledger=one)
        assert one.history()[0].details.data == visits
    given = {"epsilon": 0.5, "delta": 1e-6, "data": [visits, patients], "another": True}
    with Ledger.create(tmp_path / "both.db", **given) as both:
        prudent.count(persons, epsilon=0.1, ledger=both)
        assert len(both.history()) == 1


@pytest.mark.unhurried
def test_a_duckdb_file_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its path, by its address, by one of its tables and in a join it is the same data."""
    duckdb = pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    with duckdb.connect("db.duckdb") as made:
        made.execute("CREATE TABLE v AS SELECT range AS p, 1.5 AS x FROM range(100)")
        made.execute("CREATE TABLE w AS SELECT range AS p, 2.5 AS y FROM range(100)")
    address = "duckdb://db.duckdb"
    join = prudent.join("v", "w", on="p", unit="p", connect=address)
    reads: list[dict[str, Any]] = [
        {"connect": address, "table": "v"},
        {"connect": f"duckdb://{tmp_path}/db.duckdb", "table": "main.v"},
        {"data": "db.duckdb", "table": "v"},
        {"data": tmp_path / "db.duckdb", "table": "w"},
        {"data": join},
    ]
    cost: Any = {"epsilon": 0.05}
    for place, data in enumerate(("db.duckdb", address)):
        with Ledger.create(f"{place}.db", **BUDGET, data=data, another=True) as ledger:
            for each in reads:
                prudent.count(**each, **cost, ledger=ledger)
            assert len(ledger.history()) == len(reads)
    with Ledger.create("other.db", **BUDGET) as other:
        for each in reads:
            with pytest.raises(SecondLedgerError):
                prudent.count(**each, **cost, ledger=other)


def test_the_address_that_version_0_1_0_noted_names_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db.duckdb"
    path.touch()
    with monkeypatch.context() as earlier:
        earlier.setattr(allowance, "is_duckdb", lambda address: False)
        Ledger.create(tmp_path / "first.db", **BUDGET, data=f"duckdb://{path}").close()
    with Ledger(tmp_path / "first.db", **BUDGET, data=path) as ledger:
        assert ledger.data == f"duckdb://{path}"
        ledger.charge(SMALL, details={"data": str(path)})
    with pytest.raises(SecondLedgerError):
        Ledger.create(tmp_path / "second.db", **BUDGET, data=path)
    with pytest.raises(SecondLedgerError):
        Ledger.create(tmp_path / "first.db", **BUDGET, dataset="other", data=path)


def test_a_database_is_opened_to_be_read_alone(tmp_path: Path) -> None:
    """Another process may have it open as well, and a path that is wrong makes no file."""
    duckdb = pytest.importorskip("duckdb")
    path = tmp_path / "db.duckdb"
    with duckdb.connect(str(path)) as made:
        made.execute("CREATE TABLE v AS SELECT 1.5 AS x FROM range(100)")
    path.chmod(0o400)
    before = path.stat().st_mtime_ns
    with duckdb.connect(str(path), read_only=True):
        prudent.count(connect=f"duckdb://{path}", table="v", epsilon=1.0)
    assert path.stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="open the database"):
        prudent.count(connect=f"duckdb://{tmp_path / 'missing.duckdb'}", table="v", epsilon=1.0)
    assert not (tmp_path / "missing.duckdb").exists()


@pytest.mark.parametrize(
    ("with_password", "bare"),
    [
        ("postgresql://ana:secret@db/hr", "postgresql://ana@db/hr"),
        ("postgresql://ana:secret@db/hr", "postgres://ana@db/hr"),
        ("host=db password='a b' dbname=hr", "host=db dbname=hr"),
        ("password=secret host=db dbname=hr", "host=db dbname=hr"),
    ],
)
def test_a_database_is_the_same_with_a_password_and_without(
    tmp_path: Path, with_password: str, bare: str
) -> None:
    Ledger.create(tmp_path / "first.db", **BUDGET, data=with_password).close()
    with pytest.raises(SecondLedgerError):
        Ledger.create(tmp_path / "second.db", **BUDGET, data=bare)
    with Ledger.open(tmp_path / "first.db") as ledger:
        ledger.charge(SMALL, details={"data": bare})


def test_a_ledger_on_the_list_is_known_by_either_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever opens it without the password, or with it, is told of a second ledger."""
    allowance.remember("salaries", "postgresql://ana:secret@db/privacy", "default")
    for address in ("postgresql://ana@db/privacy", "postgres://ana:other@db/privacy"):
        allowance.check_only("salaries", address, "default")
    with pytest.raises(SecondLedgerError):
        allowance.check_only("salaries", "postgresql://ana@db/other", "default")


def test_a_file_with_a_plus_in_its_name_is_no_join(tmp_path: Path) -> None:
    one, both = tmp_path / "a", tmp_path / "a + b"
    one.touch()
    both.touch()
    with Ledger.create(tmp_path / "both.db", **BUDGET, data=both) as ledger:
        ledger.charge(SMALL, details={"data": str(both)})
        with pytest.raises(LedgerError, match="but the release reads"):
            ledger.charge(SMALL, details={"data": str(one)})
    Ledger.create(tmp_path / "one.db", **BUDGET, data=one).close()


def test_a_name_longer_than_any_file_has_is_a_name() -> None:
    assert data_name("x" * 400) == "x" * 400
