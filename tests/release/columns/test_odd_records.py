"""One odd record is one value or none, wherever it stands: it changes no other, and raises nothing.

Whether a release fails, and in which words, is not charged for. So it must not depend on a record.
"""

import datetime
import sqlite3
import uuid
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("ibis", reason="needs the extra `tables`")

import duckdb
import ibis
import pandas
import pyarrow as pa
import pyarrow.parquet

from prudent.release.columns.column import Column
from prudent.release.columns.opening import open_column, open_groups, open_private_groups
from prudent.release.columns.table_columns import TableColumn
from prudent.release.lattice import Lattice
from prudent.release.margins import category_mode, interquartile_range
from prudent.release.noise import ReproducibleNoise
from prudent.release.outcome import Groups, Released, group_title
from prudent.release.statistics import median, mode, proportion, top_k
from prudent.release.statistics.tested import trimmed_mean
from tests.release.columns.odd_values import Hostile, HostileDate, HostileFloat, HostileText, date
from tests.release.recording import Book

BUDGET: Any = {"epsilon": 2.0, "delta": 1e-6}
VALUES = [50.0 + (i % 7) / 8 for i in range(300)]
ODD = [None, "secret", 10**400, [1, 2], {}, Decimal("sNaN"), Decimal("1e999"), object(), b"1", 1j]
ODD += [Hostile(), HostileFloat(1), HostileText("a"), HostileDate(2024, 1, 1), date("a")]
NAMES = [f"{place} {type(odd).__name__}" for place, odd in enumerate(ODD)]


def check_one_value_more(column: Column) -> None:
    kept = Counter(column.order_statistics(1, len(VALUES) + 9).tolist())
    assert not Counter(VALUES) - kept
    assert (kept - Counter(VALUES)).total() <= 1


@pytest.mark.parametrize("odd", ODD, ids=NAMES)
def test_among_categories(odd: Any) -> None:
    pandas = pytest.importorskip("pandas")
    values = np.fromiter(["a"] * 300 + [odd], dtype=object)
    for data in ((values.tolist(),), (values,), (pandas.DataFrame({"x": values}), "x")):
        outcome = mode(*data, **BUDGET)
        assert isinstance(outcome, Released)
        assert outcome.value == "a"


@pytest.mark.parametrize("odd", [True, 1.0, np.float64(1.0), Decimal(1), 2.5, "1"], ids=repr)
def test_the_type_of_the_mode_is_its_own(odd: Any) -> None:
    """[1, 1, 2.5] would become an array of doubles, and the mode 1.0."""
    outcome = mode([odd] + [1] * 300, **BUDGET)
    assert isinstance(outcome, Released)
    assert repr(outcome.value) == "1"


@pytest.mark.parametrize("make", [list, np.array, lambda values: pa.table({"x": values})])
def test_a_zero_has_no_sign(make: Any) -> None:
    data = make([-0.0] + [0.0] * 300)
    outcome = mode(data, *(["x"] if isinstance(data, pa.Table) else []), **BUDGET)
    assert isinstance(outcome, Released)
    # Whether numbers of a list or an array are integers is not public.
    assert repr(outcome.value) == ("0.0" if isinstance(data, pa.Table) else "0")


def test_equally_frequent_categories_of_two_types() -> None:
    column = open_column(["a", 1, datetime.date(2024, 1, 1), "a", 1], kind="categories")
    assert (column.most_frequent(), column.leaders()) == (1, (2, 2, False))
    assert column.counts_of(["a", 1, 1.0, datetime.date(2024, 1, 1)]).tolist() == [2, 2, 0, 1]
    assert category_mode(column, None, cap=9).margin == 0
    for categories in (["a", 1], [1, "a"]):
        empty = open_column(np.array([], "U1"), kind="categories")
        assert category_mode(empty, categories, cap=9).value == (1,)


@pytest.mark.parametrize("categories", [[], "ab", [[1]], [1j, 2j], {}])
def test_a_list_of_categories_that_is_none_costs_nothing(categories: Any) -> None:
    book = Book()
    with pytest.raises(ValueError, match="Expected categories"):
        mode(["a"], categories=categories, ledger=book, **BUDGET)
    assert not book.charges


def test_what_a_column_cannot_hold_costs_nothing() -> None:
    book = Book()
    table = pa.table({"x": [1, 2], "t": ["a", "b"], "s": [{"k": 1}, {"k": 2}]})
    wrong = (("x", {"categories": ["1", "2"]}), ("t", {"categories": [1, "1"]}), ("s", {}))
    for column, options in wrong:
        with pytest.raises(ValueError, match="Expected c"):
            mode(table, column, ledger=book, **options, **BUDGET)
    with pytest.raises(ValueError, match="numbers"):
        median(np.array(["a"]), propose=1.0, ledger=book, **BUDGET)
    assert not book.charges


@pytest.mark.parametrize("odd", [None, "secret", 1j], ids=repr)
def test_one_odd_record_of_a_frame_changes_no_kind_of_answer(odd: Any) -> None:
    """It makes the integers of pandas doubles, complex numbers or objects."""
    values = [0] * 100 + [2] * 200 + [1] * 300
    public = {"categories": [0, 1, 2]}
    for statistic, options in (
        (top_k, {"k": 2}),
        (top_k, {"k": 3, **public}),
        (mode, public),
        (proportion, {}),
    ):
        answers = []
        for records in (values, [*values, odd]):
            book = Book()
            answer = statistic(
                pandas.Series(records), ledger=book, noise=ReproducibleNoise(1), **options, **BUDGET
            )
            assert len(book.charges) == 1
            names = set(map(group_title, answer)) if isinstance(answer, Groups) else answer.branch
            answers.append((type(answer), names))
        assert answers[0] == answers[1], statistic


def test_a_misspelt_option_is_refused() -> None:
    """`units=` left unread would protect rows where persons were meant."""
    with pytest.raises(TypeError, match="units"):
        median(VALUES, epsilon=1.0, bounds=(0, 100), units="person")  # type: ignore[call-arg]


LINES = {
    "a byte that is no text": b"\xff,a\n",
    "another end of line": b"7,a\r\n",
    "an end of line inside": b"7\r,a\n",
    "text after a quote": b'"7"8,a\n',
    "a line end in quotes": b'7,"a\nb"\n',
    "too many fields": b"7,8,9\n",
    "too few": b"7\n",
    "a zero byte": b"7\x00,a\n",
    "a very long field": b"7," + b"a" * 3_000_000 + b"\n",
}


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("place", [0, 150, 300])
def test_in_a_text_file(name: str, place: int, tmp_path: Path) -> None:
    lines = [b"%f,a\n" % value for value in VALUES]
    lines.insert(place, LINES[name])
    (tmp_path / "t.csv").write_bytes(b"x,y\n" + b"".join(lines))
    check_one_value_more(open_column(tmp_path / "t.csv", "x"))


@pytest.mark.thorough
def test_in_a_text_file_that_threads_could_share(tmp_path: Path) -> None:
    """Threads that begin inside of quotes would take the lines there for records."""
    lines = [b'%d,"one\n%d,b\ntwo"\n' % (i % 100, i) for i in range(900_000)]
    lines.insert(450_000, b'"7"8,a\n')
    (tmp_path / "t.csv").write_bytes(b"x,y\n" + b"".join(lines))
    column = open_column(tmp_path / "t.csv", "x")
    assert 900_000 <= column.count() <= 900_001
    assert column.order_statistics(899_990, 900_001).max() == 99.0


def test_cities_that_a_collation_calls_equal_are_two(tmp_path: Path) -> None:
    """Else a record would be in both groups, and pay for one."""
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute("CREATE TABLE t (x DOUBLE, city VARCHAR COLLATE NOCASE)")
        connection.execute("INSERT INTO t VALUES (1, 'Oslo'), (2, 'oslo'), (3, 'oslo')")
    where: Any = {"source": tmp_path / "t.duckdb", "table": "t"}
    groups = open_groups(**where, column="x", by="city", groups=["Oslo", "oslo"])
    assert [column.count() for column in groups.values()] == [1, 2]
    cities = open_column(**where, column="city", kind="categories")
    assert (cities.most_frequent(), cities.leaders()) == ("oslo", (2, 1, True))
    units = open_column(**where, column="x", unit="city")
    assert units.count() == 2  # two persons, not one


def test_an_enum_is_ordered_as_its_texts_are(tmp_path: Path) -> None:
    """The margin counts who comes first: it must be told as the engine tells it."""
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.execute("CREATE TABLE t (e ENUM ('z', 'a'))")
        connection.execute("INSERT INTO t VALUES ('z'), ('a')")
    column = open_column(tmp_path / "t.duckdb", "e", table="t", kind="categories")
    assert (column.most_frequent(), column.leaders()) == ("a", (1, 1, False))


def test_lists_and_structures_are_refused_where_they_would_be_read(tmp_path: Path) -> None:
    """A text inside that is not UTF-8 stops the scan of a whole Parquet file."""
    words = pa.array([b"a"] * 300 + [b"\xff"]).view(pa.string())
    nested = {
        "list": pa.ListArray.from_arrays(pa.array(range(302), pa.int32()), words),
        "struct": pa.StructArray.from_arrays([words], ["k"]),
        "json": pa.ExtensionArray.from_storage(pa.json_(), words),
    }
    pyarrow.parquet.write_table(pa.table({"x": [1.0] * 301, **nested}), tmp_path / "t.parquet")
    for name in nested:
        with pytest.raises(ValueError, match="Expected unit a column of texts, numbers"):
            open_column(tmp_path / "t.parquet", "x", unit=name)
        with pytest.raises(ValueError, match="lists, structures or documents"):
            open_column(tmp_path / "t.parquet", "x", where=lambda t, name=name: t[name].notnull())
    assert open_column(tmp_path / "t.parquet", "x", where=lambda t: t.x > 0).count() == 301


def test_an_engine_of_unknown_habits_is_refused_before_the_charge(tmp_path: Path) -> None:
    """A column of SQLite holds anything, and a collation may put one record into two groups."""
    path, book = tmp_path / "t.db", Book()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (x REAL)")
    connection.close()
    backend = ibis.sqlite.connect(path)
    for given in ({"connect": f"sqlite://{path}", "table": "t"}, {"data": backend.table("t")}):
        with pytest.raises(ValueError, match="a table in DuckDB, PostgreSQL or Spark, got sqlite"):
            median(**given, column="x", epsilon=1.0, ledger=book)
    backend.disconnect()
    assert not book.charges


def test_a_group_that_no_double_holds_is_one_of_its_own() -> None:
    names = [2**53, 2**53 + 1, 2**64 - 1]
    table = pa.table({"x": [1.0, 2.0, 3.0], "g": pa.array(names, pa.uint64())})
    groups = open_groups(table, "x", by="g", groups=names[:2])
    assert [column.order_statistics(1, 9).tolist() for column in groups.values()] == [[1.0], [2.0]]
    found = open_private_groups(table, "x", by="g")
    assert found.counts() == dict.fromkeys(names[:2], 1)  # DuckDB cannot be asked for the third
    assert found.columns(names[1:2])[names[1]].count() == 1


@pytest.mark.unhurried
@pytest.mark.parametrize("trim", [0, 2])
def test_engines_are_asked_as_often_whatever_the_number_of_records(
    trim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if there is none, if windows of ranks are empty or the same, or all are trimmed."""
    lattice, cap = Lattice.for_proposal(1.0), 3
    asked: list[str] = []
    ask = TableColumn._ask

    def watched(self: TableColumn, question: Any, *reader: Any, **given: Any) -> Any:
        asked.append(question.__name__)
        return ask(self, question, *reader, **given)

    monkeypatch.setattr(TableColumn, "_ask", watched)
    seen = set()
    for count in (0, 1, 2, 3, 4, 5, 30):
        column = open_column(pa.table({"x": pa.array([1.0] * count, pa.float64())}), "x")
        asked.clear()
        interquartile_range(column, lattice, propose=64, cap=cap)
        trimmed_mean(column, lattice, trim, default=0, propose=64, cap=cap)
        seen.add(tuple(asked))
    assert len(seen) == 1


def test_a_null_where_none_may_be() -> None:
    schema = pa.schema([pa.field("c", pa.string(), nullable=False)])
    broken = pa.Table.from_arrays([pa.array(["a"] * 300 + [None])], schema=schema)
    outcome = mode(broken, "c", **BUDGET)
    assert isinstance(outcome, Released)
    assert outcome.value == "a"


@pytest.mark.unhurried
def test_in_postgresql(postgres_url: str) -> None:
    """Its numbers reach far beyond doubles, where a cast is an error of the whole query."""
    psycopg = pytest.importorskip("psycopg")
    name = f"odd_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE TYPE {name}_e AS ENUM ('z', 'a')")
        connection.execute(f"CREATE TABLE {name} (x NUMERIC, e {name}_e)")
        connection.execute(
            f"INSERT INTO {name} VALUES (1e400, 'z'), (-1e400, 'z'), (1e-400, 'a'), "
            "('NaN', 'a'), ('Infinity', NULL), (0.1, NULL)"
        )
    where: Any = {"connect": postgres_url, "table": name}
    values = open_column(**where, column="x").order_statistics(1, 9)
    np.testing.assert_array_equal(values, [-np.inf, 0.0, 0.1, np.inf, np.inf])
    letters = open_column(**where, column="e", kind="categories")
    assert (letters.most_frequent(), letters.leaders()) == ("a", (2, 2, False))
