"""Columns in DuckDB: the same answers as an array, from any source, one value per unit."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ibis = pytest.importorskip("ibis", reason="needs the extra `tables`")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet  # noqa: E402

from prudent.release.columns import joining, queries, table_columns  # noqa: E402
from prudent.release.columns.column import Column  # noqa: E402
from prudent.release.columns.joining import open_source  # noqa: E402
from prudent.release.columns.opening import open_column, open_groups  # noqa: E402
from prudent.release.columns.sources import SourceError  # noqa: E402
from prudent.release.columns.table_columns import TableColumn  # noqa: E402
from prudent.release.lattice import Lattice  # noqa: E402
from tests.release.columns.columns_suite import (  # noqa: E402
    ADVERSARIAL,
    LATTICES,
    check_same_answers,
    check_same_window,
)

VALUES = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]


@pytest.fixture
def narrowing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes small columns go the way of large ones."""
    for name in ("FEW", "FEW_READ"):
        monkeypatch.setattr(table_columns, name, 50)
    monkeypatch.setattr(table_columns, "SAMPLE", 100)
    monkeypatch.setattr(queries, "QUANTILES", 50)


def everything(column: Column) -> list[float]:
    return column.order_statistics(1, column.count()).tolist()


@pytest.mark.thorough
@pytest.mark.usefixtures("narrowing")
def test_same_answers_when_narrowed_by_a_sample() -> None:
    """A sample narrows ranks, whatever the lattice: one with bounds."""
    column = open_column(pa.table({"x": ADVERSARIAL}), "x")
    check_same_answers(column, ADVERSARIAL, LATTICES[1:2])


@pytest.mark.unhurried
@pytest.mark.parametrize(
    "bracket", [(math.inf, -math.inf), (2.0, 2.0), (-math.inf, -8.0), (9e307, math.inf), (0.1, 0.1)]
)
def test_same_answers_when_the_sample_misleads(
    monkeypatch: pytest.MonkeyPatch, bracket: tuple[float, float]
) -> None:
    monkeypatch.setattr(TableColumn, "_suggested", lambda *_: bracket)
    check_same_window(open_column(pa.table({"x": ADVERSARIAL}), "x"), ADVERSARIAL)


@pytest.mark.unhurried
@pytest.mark.usefixtures("narrowing")
def test_only_a_window_leaves_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    ask = queries.fetched

    def watched(expression: Any) -> Any:
        found = ask(expression)
        taken.append(len(next(iter(found.values()))) if isinstance(found, dict) else 1)
        return found

    monkeypatch.setattr(queries, "fetched", watched)
    values = np.random.default_rng(0).normal(size=100_000).round(4)
    column = open_column(pa.table({"x": values}), "x")
    found = column.order_statistics(50_000, 50_100)
    np.testing.assert_array_equal(found, np.sort(values)[49_999:50_100])
    column.sum_between(10, 99_000, Lattice.for_proposal(1.0))
    column.counts_below(np.linspace(-3, 3, 50))
    assert max(taken) <= 101


# --- sources -------------------------------------------------------------------------------------


def _parquet(folder: Path) -> Any:
    pa.parquet.write_table(pa.table({"x": VALUES}), folder / "t.parquet")
    return folder / "t.parquet"


def _several_parquets(folder: Path) -> Any:
    for index, part in enumerate((VALUES[:3], VALUES[3:])):
        pa.parquet.write_table(pa.table({"x": part}), folder / f"part{index}.parquet")
    return str(folder / "part*.parquet")


def _csv(folder: Path) -> Any:
    lines = ["name,x", *(f'"a, b",{value}' for value in VALUES)]
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return str(folder / "t.csv")


def _tsv(folder: Path) -> Any:
    (folder / "t.tsv").write_text("x\tname\n" + "".join(f"{value}\tb\n" for value in VALUES))
    return str(folder / "t.tsv")


def _pandas(_: Path) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"x": VALUES, "other": [object()] * len(VALUES)})


def _polars(_: Path) -> Any:
    return pytest.importorskip("polars").DataFrame({"x": VALUES, "other": [[1]] * len(VALUES)})


def _integers(_: Path) -> Any:
    return pa.table({"x": [int(value) for value in VALUES]})


def _decimals(_: Path) -> Any:
    return pa.table({"x": pa.array(VALUES).cast(pa.decimal128(9, 0))})


def _ibis(_: Path) -> Any:
    return ibis.memtable({"x": VALUES})


SOURCES = [_parquet, _several_parquets, _csv, _tsv, _pandas, _polars, _integers, _decimals, _ibis]


@pytest.mark.parametrize("make", SOURCES)
def test_every_source_gives_the_same_column(make: Callable[[Path], Any], tmp_path: Path) -> None:
    assert everything(open_column(make(tmp_path), "x")) == sorted(VALUES)


def test_a_duckdb_file(tmp_path: Path) -> None:
    path = tmp_path / "t.duckdb"
    backend = ibis.duckdb.connect(path)
    backend.raw_sql(f"CREATE TABLE t AS SELECT CAST(unnest({VALUES}) AS DOUBLE) AS x")
    backend.raw_sql("CREATE SCHEMA s")
    backend.raw_sql("CREATE TABLE s.t AS SELECT x + 1 AS x FROM main.t")
    backend.disconnect()
    assert everything(open_column(path, "x", table="t")) == sorted(VALUES)
    assert everything(open_column(path, "x", table="s.t")) == [x + 1 for x in sorted(VALUES)]
    address = f"duckdb://{path}?read_only=True"
    assert everything(open_column(connect=address, table="t", column="x")) == sorted(VALUES)


IN_JUPYTER = """
import sys, types
kernel = types.SimpleNamespace(config={"IPKernelApp": {}})
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: kernel)
sys.modules["ipywidgets"] = None  # not installed
from prudent.release.columns.joining import open_source
source = open_source(sys.argv[1])
opened = source.table
shown = opened.get_backend().raw_sql("SELECT current_setting('enable_progress_bar')").fetchone()
print(*opened.columns, *shown)
"""


@pytest.mark.thorough
def test_a_file_opens_in_jupyter_where_duckdb_cannot_draw_its_progress(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"x": [1.0]}), tmp_path / "one.parquet")
    command = [sys.executable, "-c", IN_JUPYTER, str(tmp_path / "one.parquet")]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    assert ran.stdout == "x False\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "nowhere.parquet", "column": "x"}, "Expected data an existing file"),
        ({"source": "nowhere/*.csv", "column": "x"}, "Expected data an existing file"),
        ({"source": "nowhere/*.parquet", "column": "x"}, "Expected data an existing file"),
        ({"source": "salaries.xlsx", "column": "x"}, r"Expected data a \.parquet, \.csv"),
        ({"source": "a\0.csv", "column": "x"}, "Expected data an existing file"),
        ({"source": 3, "column": "x"}, "an ibis table or a Spark data frame, got int"),
        ({"column": "x"}, "either data or connect"),
        ({"source": "t.csv", "connect": "postgres://h/d", "column": "x"}, "either data or"),
        ({"connect": "duckdb://", "column": "x"}, "Expected table the name of a table"),
        ({"connect": "duckdb://", "table": "t", "column": "x"}, "Could not find table 't'"),
        ({"connect": "nonsense://h", "table": "t", "column": "x"}, "Spark, got nonsense"),
        ({"source": pa.table({"x": [1.0]})}, "Expected column one of x, got nothing"),
        ({"source": pa.table({"x": [1.0]}), "column": "y"}, "unknown column .y.. Columns: x"),
        ({"source": pa.table({"x": [1.0]}), "column": "x", "unit": "u"}, "unit: unknown column"),
        ({"source": pa.table({"x": [1.0]}), "column": "x", "table": "t"}, "table only with"),
        (
            {"source": pa.table({"x": ["a"]}), "column": "x"},
            "of numbers, .* got 'x', which holds text",
        ),
        ({"source": VALUES, "column": "x"}, "only with a table, got an array"),
        ({"source": VALUES, "kind": "numeric", "connect": "a"}, "Expected kind one of"),
    ],
)
def test_what_cannot_be_opened_is_said(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_column(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"column": "y"}, "column: unknown column .y.. Columns: l, t, x"),
        ({"column": "x", "unit": "u"}, "unit: unknown column .u.. Columns: l, t, x"),
        ({"column": "x", "where": "y > 1"}, "where: unknown column .y.. Columns: l, t, x"),
        ({"column": "x", "by": "t:moth", "groups": ["2024-01"]}, "month, .* got 'moth'"),
    ],
)
def test_a_misspelt_name_is_answered_with_all_columns(
    tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    """Also of a file with types that are read with care, of which few columns are opened."""
    times = pa.array([0], pa.timestamp("ms"))
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(pa.table({"l": [[1]], "x": [1.0], "t": times}), path)
    opening = open_groups if "by" in arguments else open_column
    with pytest.raises(ValueError, match=message):
        opening(path, **arguments)


def test_a_folder_is_answered_with_a_pattern(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"Give a pattern, such as .*/\*\.parquet\.$"):
        open_column(tmp_path, "x")


def test_a_header_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("größe\n1\n".encode("latin-1"))
    with pytest.raises(SourceError, match="in UTF-8, got another encoding"):
        open_column(tmp_path / "t.csv", "größe")


@pytest.mark.filterwarnings("ignore:fetch_arrow_table:DeprecationWarning")  # ibis calls it
@pytest.mark.parametrize("table", [None, "paye"])
def test_the_tables_of_a_database_are_named(tmp_path: Path, table: str | None) -> None:
    path = tmp_path / "hr.duckdb"
    backend = ibis.duckdb.connect(path)
    for name in ("people", "pay"):
        backend.raw_sql(f"CREATE TABLE {name} (x DOUBLE)")
    backend.disconnect()
    with pytest.raises(SourceError, match=r"Tables there: pay, people\.$"):
        open_column(path, "x", table=table)


# --- one record is one value or none --------------------------------------------------------------


def test_text_that_is_a_number_counts(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x\n1e3\n-2.5\n007\n+4\n")
    assert everything(open_column(tmp_path / "t.csv", "x")) == [-2.5, 4.0, 7.0, 1000.0]


def test_errors_of_the_engine_quote_no_record() -> None:
    """DuckDB would say: Could not convert string 'secret' to DOUBLE."""
    backend = ibis.duckdb.connect()
    backend.raw_sql("CREATE VIEW t AS SELECT CAST(s AS DOUBLE) AS x FROM (VALUES ('secret')) v(s)")
    column = open_column(backend.table("t"), "x")
    with pytest.raises(SourceError, match="could not be read") as caught:
        column.order_statistics(1, 1)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_a_unit_of_categories_counts_with_its_first_in_order_of_characters() -> None:
    table = pa.table({"user": [1, 1, 1, 2], "c": ["b", "Z", "é", "b"]})
    column = open_column(table, "c", unit="user", kind="categories")
    assert (column.most_frequent(), column.leaders()) == ("Z", (1, 1, False))
    assert column.counts_of(["Z", "b", "é"]).tolist() == [1, 1, 0]


def test_categories_keep_their_type_and_ties_go_to_the_first() -> None:
    table = pa.table({"c": ["b", "a", "b", "a", "c", None], "n": [2, 2, 1, 1, 3, None]})
    column = open_column(table, "c", kind="categories")
    assert column.count() == 5
    assert (column.most_frequent(), column.leaders()) == ("a", (2, 2, False))
    assert column.counts_of(["c", "b", "q"]).tolist() == [1, 2, 0]
    assert column.counts_of([]).tolist() == []
    numbers = open_column(table, "n", kind="categories")
    assert (numbers.most_frequent(), numbers.leaders()) == (1, (2, 2, False))
    assert numbers.counts_of([3, 7]).tolist() == [1, 0]
    with pytest.raises(ValueError, match="Expected categories of type int64, each once, got"):
        numbers.counts_of(["3"])
    assert isinstance(numbers, TableColumn)
    assert numbers.typed(["3", 4, np.int64(5)]) == [3, 4, 5]
    with pytest.raises(ValueError, match="categories of type int64, as the column is, got 'x'"):
        numbers.typed(["x"])


# --- groups ---------------------------------------------------------------------------------------

CITIES = pa.table({"city": ["a", "a", "b", None, "c"], "x": [1.0, 2.0, 3.0, 4.0, 5.0]})


def test_groups_of_a_public_list() -> None:
    opened = open_groups(CITIES, "x", by="city", groups=["b", "a", "empty"])
    assert {group: everything(column) for group, column in opened.items()} == {
        "b": [3.0],
        "a": [1.0, 2.0],
        "empty": [],
    }
    assert list(opened) == ["b", "a", "empty"]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (None, "public knowledge, got None. Which values of 'city' occur depends"),
        ([], "one or more distinct values"),
        (["a", "a"], "one or more distinct values"),
        ("ab", "a list"),
    ],
)
def test_a_private_or_empty_list_of_groups_is_refused(groups: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_groups(CITIES, "x", by="city", groups=groups)


def test_two_spellings_of_a_group_are_refused() -> None:
    """Both would be released from the same rows, which parallel composition does not cover."""
    table = pa.table({"g": [1, 2], "x": [1.0, 2.0]})
    assert everything(open_groups(table, "x", by="g", groups=["1", 2])["1"]) == [1.0]
    with pytest.raises(ValueError, match="distinct"):
        open_groups(table, "x", by="g", groups=["1", 1])


# --- where ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [lambda t: t.nothing, lambda t: t.x, 3])
def test_where_must_be_true_or_false(where: Any) -> None:
    with pytest.raises(ValueError, match="function of the table that says which rows"):
        open_column(CITIES, "x", where=where)


# --- what was opened is closed --------------------------------------------------------------------


def test_what_was_opened_is_closed_with_the_last_column(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    source = open_source(CITIES)
    monkeypatch.setattr(
        joining,
        "open_table",
        lambda *_, **__: type(source)(source.table, lambda: closed.append(True)),
    )
    opened = open_groups(CITIES, "x", by="city", groups=["a", "b"])
    last = opened.pop("b")
    del opened
    assert everything(last) == [3.0]
    assert not closed
    del last
    assert closed == [True]
