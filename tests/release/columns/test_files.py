"""The file of a name is read and no other; those of a pattern are joined by column names."""

import datetime
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ibis", reason="needs the extra `tables`")

import duckdb
import ibis
import pandas as pd
import pyarrow as pa
import pyarrow.parquet

from prudent.release import Table, table
from prudent.release.columns import arrow_tables
from prudent.release.columns.opening import open_column
from prudent.release.columns.sources import SourceError
from tests.release.recording import Silence

ODD_NAMES = ["d[1]", "a*b", "q?", "[abc]", "x[!a]", "a]b[", "{a}", "s'q", "**", "[[]1]"]
DECOYS = ["d1", "axb", "qq", "a", "xb", "ab", "1]"]


def everything(path: Path, column: str = "x") -> list[float]:
    return open_column(path, column).order_statistics(1, 99).tolist()


@pytest.mark.unhurried
def test_a_column_without_a_name_has_that_of_its_place(tmp_path: Path) -> None:
    """As pandas writes the index into a CSV file, and a trailing comma makes one."""
    (tmp_path / "t.csv").write_text(",x,\n0,1,\n1,2,\n")
    assert everything(tmp_path / "t.csv") == [1.0, 2.0]
    assert everything(tmp_path / "t.csv", "column0") == [0.0, 1.0]
    frame = pa.table({"x": [1.0, 2.0], "": [3, 4]})
    for data in (frame, frame.to_pandas()):
        assert Table(data).columns.keys() == {"x", "column1"}
        assert open_column(data, "column1", where="x > 1").order_statistics(1, 9).tolist() == [4.0]
    some = pa.array([1, 2], pa.duration("s"))  # which is read with care
    pa.parquet.write_table(frame.append_column("wait", some), tmp_path / "t.parquet")
    assert Table(tmp_path / "t.parquet").columns.keys() == {"x", "wait"}
    assert everything(tmp_path / "t.parquet", "x + 1") == [2.0, 3.0]


def test_names_that_are_there_twice_are_said(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,A\n1,2,3\n")
    with pytest.raises(SourceError, match="'a' is there more than once"):
        open_column(tmp_path / "t.csv", "b")
    twice = pa.Table.from_arrays([pa.array([1.0])] * 3, names=["a", "b", "a"])
    for data in (twice, pd.DataFrame([[1.0, 2.0, 3.0]], columns=["a", "b", "a"])):
        with pytest.raises(SourceError, match="got 'a' more than once: rename one of them"):
            open_column(data, "a")
        assert open_column(data, "b").count() == 1
    capitals = pa.table({"a": [1.0], "A": [2.0]})
    assert open_column(capitals, "A").order_statistics(1, 1).tolist() == [2.0]
    assert open_column(capitals, "a + 1").order_statistics(1, 1).tolist() == [2.0]


@pytest.mark.unhurried
@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_name_is_no_pattern_if_there_is_such_a_file(
    name: str, suffix: str, tmp_path: Path
) -> None:
    for each, value in [(name, 1.0), *((decoy, 2.0) for decoy in DECOYS)]:
        path = tmp_path / (each + suffix)
        if suffix == ".csv":
            path.write_text(f"x,city\n{value},a\n")
        else:
            pa.parquet.write_table(pa.table({"x": [value], "city": ["a"]}), path)
    assert everything(tmp_path / (name + suffix)) == [1.0]
    cities = open_column(tmp_path / (name + suffix), "city", kind="categories")
    assert cities.leaders().most == 1


def test_a_name_that_cannot_be_written_as_no_pattern_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a\\[1].csv").write_text("x\n1\n")
    with pytest.raises(SourceError, match="Rename it"):
        open_column(tmp_path / "a\\[1].csv", "x")


def test_text_files_are_joined_by_the_names_of_their_columns(tmp_path: Path) -> None:
    """By position, the ages of the second file would be taken for salaries."""
    (tmp_path / "p1.csv").write_text("salary,age\n100,30\n200,31\n")
    (tmp_path / "p2.csv").write_text("age,salary\n32,300\n")
    (tmp_path / "p3.csv").write_text("salary,age\n400,33\n")
    assert everything(tmp_path / "p*.csv", "salary") == [100.0, 200.0, 300.0, 400.0]
    assert everything(tmp_path / "p*.csv", "age") == [30.0, 31.0, 32.0, 33.0]


def test_text_files_with_other_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p1.csv").write_text("salary,age\n100,30\n")
    (tmp_path / "p2.csv").write_text("salary,years\n200,31\n")
    with pytest.raises(SourceError, match=r"same column names, got other names .*p2\.csv"):
        open_column(tmp_path / "p*.csv", "salary")


def test_an_open_quote_in_a_header_makes_no_name_of_a_record(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('x,"y\n1,secret\n2,secret"\n')
    with pytest.raises(SourceError, match="first line of distinct column names") as caught:
        open_column(tmp_path / "t.csv", "z")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("other", [{"x": ["1", "secret"]}, {"x": [2**40]}, {"y": [1.0]}])
def test_parquet_files_with_other_types_are_refused(other: dict[str, list], tmp_path: Path) -> None:
    """Some values of one type can be converted into the other, and some cannot."""
    for name, columns in (("p1", {"x": pa.array([1], "int32"), "z": [1]}), ("p2", other)):
        pa.parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    with pytest.raises(SourceError, match=r"same columns and types, got .* in '.*p2\.parquet'"):
        open_column(tmp_path / "p*.parquet", "x")


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
def test_the_ends_that_a_file_names_decide_no_comparison(kind: pa.DataType, tmp_path: Path) -> None:
    """They leave NaN out, so that a record beyond 5 would change whether NaN is at most 5."""
    nan = float("nan")
    for last, above in ((2.0, 0), (1000.0, 1), (float("inf"), 1)):
        path = str(tmp_path / f"{last}.parquet")
        pa.parquet.write_table(pa.table({"x": pa.array([1.0, nan, nan, last], kind)}), path)
        with duckdb.connect(tmp_path / f"{last}.duckdb") as database:
            database.execute(f"CREATE VIEW v AS SELECT * FROM '{path}'")
        view = {"source": str(tmp_path / f"{last}.duckdb"), "table": "v"}
        for given in ({"source": path}, {"source": ibis.duckdb.connect().read_parquet(path)}, view):
            asked = Table(**given, noise=Silence())
            assert asked.count("x", epsilon=1.0).value == 2  # and no NaN
            assert asked.where("x <= 5").count(epsilon=1.0).value == 2 - above
            # NaN is greater than all numbers, as in these engines.
            assert asked.where("x > 5").count(epsilon=1.0).value == 2 + above
            both = asked.sql(
                "SELECT sum(CASE WHEN x < 5 THEN 1 ELSE 0 END) AS n FROM v", epsilon=1.0
            )
            assert both["n"].value == 2 - above


def test_parquet_files_may_differ_in_what_is_not_used(tmp_path: Path) -> None:
    for name, columns in (("p1", {"x": [1.0], "z": [1]}), ("p2", {"z": ["a"], "x": [2.0]})):
        pa.parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    assert everything(tmp_path / "p*.parquet") == [1.0, 2.0]


def test_folders_of_a_pattern_give_columns(tmp_path: Path) -> None:
    for year, value in ((2023, 1.0), (2024, 2.0)):
        folder = tmp_path / f"year={year}"
        folder.mkdir()
        pa.parquet.write_table(pa.table({"x": [value], "city": ["a"]}), folder / "f.parquet")
    pattern = tmp_path / "*" / "*.parquet"
    assert everything(pattern) == [1.0, 2.0]
    column = open_column(pattern, "x", where=lambda t: t.year == 2024)
    assert column.order_statistics(1, 9).tolist() == [2.0]


ODD_FILE = {
    "x": [1.0, 2.0, 3.0],
    "year": [2024, 2024, 2023],
    "day": [datetime.date(2024, 5, 1)] * 3,
    "a-b": pa.array([b"1", b"\xff\xfe", b"1"], pa.binary()).view(pa.string()),
    "word": pa.array([b"1", b"\xff\xfe", b"1"], pa.binary()).view(pa.string()),
}
TIMES = {
    "milliseconds": pa.array([1, 2**62, 3], pa.timestamp("ms")),
    "seconds": pa.array([1, 2**50, 3], pa.timestamp("s", "UTC")),
    "a list": pa.array([[1], [2**62], [3]], pa.list_(pa.timestamp("ms"))),
    "a structure": pa.array([{"a": 2**62}] * 3, pa.struct([("a", pa.timestamp("ms"))])),
}
ASKED: dict[str, tuple[dict[str, Any], bool]] = {
    "rows": ({"column": None, "kind": "rows"}, False),
    "a condition": ({"column": "x", "where": "year = 2024"}, False),
    "a value": ({"column": "x * year > 4", "kind": "truth"}, False),
    "a text": ({"column": "x", "where": "\"a-b\" = '1'"}, True),
    "words alone": ({"column": "x", "where": "word is not null"}, True),
    "a text of a table": ({"column": "x", "where": "t.\"a-b\" = '1'"}, True),
    "a text by its name": ({"column": "a-b", "kind": "categories"}, True),
    "a function": ({"column": "x", "where": lambda t: t["a-b"] == "1"}, True),
}


@pytest.mark.parametrize("name", ASKED)
def test_only_columns_that_are_used_are_read_with_care(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that are no texts stop no query, and a file is read by the engine where it can be."""
    pa.parquet.write_table(pa.table(ODD_FILE), tmp_path / "odd.parquet")
    cared: list[object] = []
    honest = arrow_tables.scanned

    def noted(*given: Any) -> Any:
        cared.append(given)
        return honest(*given)

    monkeypatch.setattr(arrow_tables, "scanned", noted)
    given, with_care = ASKED[name]
    column = open_column(tmp_path / "odd.parquet", **given)
    assert column.count() in (2, 3)
    assert bool(cared) == with_care


@pytest.mark.parametrize("name", TIMES)
def test_no_time_of_a_column_that_is_not_used_stops_a_query(name: str, tmp_path: Path) -> None:
    """DuckDB reads the statistics of every column of a file, and fails at those of far times."""
    pa.parquet.write_table(pa.table({"x": [1.0, 2.0, 3.0], "y": TIMES[name]}), tmp_path / "t.pq")
    assert open_column(tmp_path / "t.pq", "x", where="x < 3").count() == 2


@pytest.mark.unhurried
def test_several_questions_use_the_columns_of_all(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table(ODD_FILE), tmp_path / "odd.parquet")
    given: Any = {"epsilon": 1.0, "noise": Silence(), "delta": 1e-6}
    questions = ["count(*)", "avg(x)", "count(*) FILTER (WHERE \"a-b\" = '1')"]
    found = table(tmp_path / "odd.parquet", questions, by="day:month", groups=["2024-05"], **given)
    assert [each["2024-05"].value for each in found.answers.values()][::2] == [3, 2]


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_another_separator_is_named_before_anything_is_read(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "salaries.csv"
    path.write_text(f"name{separator}salary\na{separator}1,5\n")
    told = rf"by ',' in the first line .* got {re.escape(repr(separator))} between them.*delimiter="
    with pytest.raises(SourceError, match=told):
        open_column(path, "salary")
    path.write_text('"name;salary"\n1\n')  # in quotes it is one name
    assert open_column(path, "name;salary").count() == 1


@pytest.mark.parametrize("by_place", [True, False])
def test_texts_that_repeat_are_read_like_others(
    by_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read by their places in a list, which may hold a text that is not UTF-8."""
    stored = pa.array([b"a", b"\xff", None, "ü".encode(), b"", b"a"] * 1_000, pa.binary())
    texts = pa.Array.from_buffers(pa.string(), len(stored), stored.buffers())
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pa.table({"c.d": texts, "c": texts}), path, row_group_size=1_700)
    schema = pyarrow.parquet.read_schema(path)
    assert arrow_tables._repeated([str(path)], schema) == ["c.d", "c"]
    if not by_place:
        monkeypatch.setattr(arrow_tables, "_repeated", lambda *_: [])
    for name in ("c", "c.d"):
        column = open_column(path, name, kind="categories")
        assert (column.count(), column.distinct()) == (4_000, 3)
        assert column.counts_of(["", "ü", "a", "b"]).tolist() == [1_000, 1_000, 2_000, 0]
        assert column.most_frequent() == "a"
