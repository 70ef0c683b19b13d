"""Tables and columns of other libraries are read as they are."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the extra `tables`")
pytest.importorskip("ibis", reason="needs the extra `tables`")

import duckdb
import ibis
import pyarrow as pa

import prudent
from prudent._validate import ArgumentError
from prudent.release.columns.column import SourceError
from tests.release.recording import Silence

TABLE = pa.table({"x": np.arange(100.0), 'odd "name"': np.arange(100.0), "city": ["a", "b"] * 50})
GIVEN: Any = {"bounds": (0, 100), "epsilon": 1.0, "noise": Silence()}


def narwhals(data: Any) -> Any:
    return pytest.importorskip("narwhals").from_native(data)


TABLES = {
    "relation": lambda: duckdb.connect().from_arrow(TABLE),
    "filtered relation": lambda: duckdb.connect().from_arrow(TABLE).filter("x >= 0"),
    "narwhals": lambda: narwhals(TABLE),
    "narwhals of pandas": lambda: narwhals(TABLE.to_pandas()),
    "record batch": lambda: TABLE.combine_chunks().to_batches()[0],
}
COLUMNS = {
    "arrow": lambda: TABLE["x"],
    "arrow array": lambda: TABLE["x"].combine_chunks(),
    "narwhals": lambda: narwhals(TABLE.to_pandas())["x"],
    "ibis": lambda: ibis.memtable(TABLE).x,
    "ibis expression": lambda: (ibis.memtable(TABLE).x * 2 / 2).name("twice"),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str) -> None:
    for column in ("x", 'odd "name"'):
        assert prudent.mean(TABLES[name](), column, **GIVEN).value == pytest.approx(49.5)
    found = prudent.count(TABLES[name](), by="city", groups=["a"], epsilon=1.0, noise=Silence())
    assert found["a"].value == 50
    assert prudent.count(TABLES[name](), epsilon=1.0, noise=Silence()).value == 100


@pytest.mark.parametrize("name", COLUMNS)
def test_columns(name: str) -> None:
    assert prudent.mean(COLUMNS[name](), **GIVEN).value == pytest.approx(49.5)


def _of_a_file() -> Any:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return pa.ipc.open_stream(sink.getvalue())


@pytest.mark.parametrize("stream", [TABLE.to_reader, _of_a_file])
def test_a_stream_that_is_read_once_answers_what_opens_it_twice(stream: Any) -> None:
    table = prudent.Table(stream(), noise=Silence())
    computed = "SELECT city, count(*) / 2 AS half FROM t GROUP BY city ORDER BY half"
    found = table.sql(computed, epsilon=50, delta=1e-6)["half"]
    assert {name: each.value for name, each in found.items()} == {"a": 25, "b": 25}
    assert table.count(epsilon=1).value == 100
    described = table.describe(epsilon=50)
    assert described["count(city)"].value == 100


def test_a_stream_that_breaks_off_is_never_an_empty_table() -> None:
    def batches() -> Any:
        yield from TABLE.to_batches()
        raise OSError

    table = prudent.Table(pa.RecordBatchReader.from_batches(TABLE.schema, batches()))
    for _ in range(2):
        with pytest.raises(SourceError):
            table.count(epsilon=1)


def test_a_stream_that_no_table_can_be_kept_for_is_refused_before_its_charge() -> None:
    class ArrayStream:
        __slots__ = ("stream",)

        def __arrow_c_stream__(self, requested: Any = None) -> Any:
            raise AssertionError

    with pytest.raises(ArgumentError, match="an Arrow table"):
        prudent.count(ArrayStream(), "x", epsilon=1)


def test_what_is_no_table_is_named_by_its_type() -> None:
    with pytest.raises(SourceError, match=r"an Arrow table, an ibis table .* got object"):
        prudent.mean(object(), "x", **GIVEN)


def test_a_missing_epsilon_says_just_that() -> None:
    with pytest.raises(TypeError, match=r"^mean\(\) missing a required argument: 'epsilon'$"):
        prudent.mean(TABLE, "x")  # type: ignore[call-overload]


def test_every_statistic_is_a_name_of_the_package() -> None:
    from prudent.release import statistics

    hidden = {"certify_quantile"}  # for authors of certificates
    assert set(statistics.__all__) - hidden <= set(prudent.__all__)


@pytest.mark.parametrize("odd", ["odd", None, True, [1]])
def test_one_record_in_a_class_made_of_a_frame_decides_nothing(odd: Any) -> None:
    """As of geopandas: its types are inferred from all records, though it hands over Arrow."""
    pandas = pytest.importorskip("pandas")
    made = type("Made", (pandas.DataFrame,), {"_constructor": property(lambda each: type(each))})
    values = [1.0, 2.0, 3.0] * 30
    found = [prudent.mean(made({"x": some}), "x", **GIVEN) for some in (values, [*values, odd])]
    assert [each.value for each in found] == pytest.approx([2.0, 2.0], abs=0.1)


def test_the_room_opens_without_its_furniture() -> None:
    code = "import sys, prudent.release; print([m for m in ('ibis', 'opendp') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
