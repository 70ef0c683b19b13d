"""Dates as groups, amounts of money, and integers of 128 bits."""

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

ibis = pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="needs the extra `tables`")

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet  # noqa: E402

import prudent  # noqa: E402
from prudent._validate import ArgumentError  # noqa: E402
from prudent.release import statistics  # noqa: E402
from prudent.release.columns.column import SourceError  # noqa: E402
from prudent.release.columns.opening import (  # noqa: E402
    open_column,
    open_groups,
    open_private_groups,
)
from prudent.release.noise import ReproducibleNoise  # noqa: E402
from tests.release.recording import Book, Silence  # noqa: E402

FIRST = datetime.date(2024, 5, 30)
DAYS = [FIRST + datetime.timedelta(days=i % 3) for i in range(600)]
TABLE = pa.table(
    {
        "x": [float(i % 3) for i in range(600)],
        "day": pa.array([*DAYS[:-3], None, None, None]),
        "time": pa.array([datetime.datetime.combine(day, datetime.time(7)) for day in DAYS]),
    }
)


@pytest.mark.parametrize("groups", [DAYS[:2], ["2024-05-30", "2024-05-31"]], ids=["dates", "texts"])
def test_dates_may_be_public_groups(groups: list[Any]) -> None:
    columns = open_groups(TABLE, "x", by="day", groups=groups)
    assert [columns[group].count() for group in groups] == [199, 199]
    found = statistics.count(
        TABLE, by="day", groups=groups, epsilon=1.0, noise=ReproducibleNoise(1)
    )
    assert list(found) == groups


def test_dates_may_be_private_groups() -> None:
    assert open_private_groups(TABLE, by="day").counts() == dict.fromkeys(DAYS[:3], 199)
    found = statistics.mean(
        TABLE, "x", by="day", groups="private", bounds=(0, 2), epsilon=5.0, delta=1e-6
    )
    assert set(found) == set(DAYS[:3])


@pytest.mark.parametrize("group", ["soon", 7, None, float("nan")])
def test_a_group_that_is_no_date_is_refused_as_such(group: object) -> None:
    with pytest.raises(ArgumentError, match="Expected groups dates such as 2024-05-31"):
        open_groups(TABLE, "x", by="day", groups=[group])


@pytest.mark.parametrize("groups", ["private", [datetime.datetime(2024, 5, 30, 7)]])
def test_a_type_that_cannot_be_grouped_by_is_named(groups: Any) -> None:
    """Before: "Expected groups of type timestamp, as the column is", given a timestamp."""
    book = Book()
    with pytest.raises(ArgumentError, match=r"by a column of texts.*'time' of type timestamp"):
        statistics.count(TABLE, by="time", groups=groups, epsilon=1.0, delta=1e-6, ledger=book)
    assert not book.charges


def test_far_dates_in_duckdb_are_in_no_private_group() -> None:
    backend = ibis.duckdb.connect()
    backend.raw_sql(
        "CREATE TABLE t AS SELECT * FROM (VALUES (DATE '2024-05-30', 1.0), ('infinity', 1.0), "
        "('-infinity', 1.0), (DATE '290000-01-01', 1.0), (NULL, 1.0)) AS v(day, x)"
    )
    assert open_private_groups(backend.table("t"), by="day").counts() == {FIRST: 1}


@pytest.mark.parametrize("kind", ["eager", "lazy"])
@pytest.mark.parametrize("dtype", ["Int128", "UInt128"])
def test_integers_of_128_bits_are_read(kind: str, dtype: str) -> None:
    polars = pytest.importorskip("polars")
    if not hasattr(polars, dtype):
        pytest.skip(f"this polars has no {dtype}")
    ends = (2**127 - 1, -(2**127)) if dtype == "Int128" else (0, 2**128 - 1)
    values = [*range(200, 800), None, *ends]
    frame = polars.DataFrame({"x": polars.Series(values, dtype=getattr(polars, dtype))})
    data = frame.lazy() if kind == "lazy" else frame
    found = statistics.median(data, "x", epsilon=50.0, bounds=(-1000, 1000))
    assert 488 <= found.value <= 512


@pytest.mark.parametrize("kind", ["eager", "lazy"])
@pytest.mark.parametrize("dtype", ["Categorical", "Enum", "String"])
def test_categories_of_polars_are_texts(kind: str, dtype: str) -> None:
    polars = pytest.importorskip("polars")
    of = polars.Enum(["b", "a"]) if dtype == "Enum" else getattr(polars, dtype)
    frame = polars.DataFrame({"x": polars.Series(["a", "b", "a", None] * 50, dtype=of)})
    data = frame.lazy() if kind == "lazy" else frame
    assert statistics.mode(data, "x", epsilon=50.0, delta=1e-6).value == "a"
    assert 148 <= statistics.count(data, "x", epsilon=50.0).value <= 152


@pytest.fixture
def money(postgres_location: str) -> str:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(postgres_location) as connection:
        connection.execute("CREATE TABLE pay (amount money, day date, who int)")
        connection.execute(
            "INSERT INTO pay SELECT CAST(CAST(i AS numeric) / 4 AS money), "
            "CASE WHEN i % 2 = 0 THEN date '2024-05-30' ELSE date 'infinity' END, i / 2 "
            "FROM generate_series(1, 400) AS i"
        )
        connection.execute("INSERT INTO pay VALUES ('-92233720368547758.08'), (NULL)")
    return postgres_location


@pytest.mark.parametrize("unit", [None, "who"])
def test_amounts_of_money_are_decimals(money: str, unit: str | None) -> None:
    book = Book()
    found = statistics.median(
        connect=money, table="pay", column="amount", unit=unit, epsilon=50.0, ledger=book
    )
    assert isinstance(found.value, Decimal)
    assert 45 <= found.value <= 55
    assert len(book.charges) == 1


def test_amounts_of_a_table_of_the_caller_are_decimals(money: str) -> None:
    backend = ibis.connect(money)
    pay = backend.table("pay")
    found = statistics.median(pay.filter(pay.who >= 0), "amount", epsilon=50.0)
    backend.disconnect()
    assert 45 <= found.value <= 55


def test_dates_of_postgresql_may_be_groups(money: str) -> None:
    assert open_private_groups(connect=money, table="pay", by="day").counts() == {FIRST: 200}
    columns = open_groups(None, "amount", connect=money, table="pay", by="day", groups=[FIRST])
    assert columns[FIRST].count() == 200


def _decimals(digits: int, *, bits: int = 128) -> pa.Array:
    """1.5 twice hundred times, then four numbers with more digits than their type."""
    odd = [10**digits, -(10**digits), 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]
    stored = [15] * 200 + [each % 2**bits for each in odd]
    data = pa.py_buffer(b"".join(each.to_bytes(bits // 8, "little") for each in stored))
    dtype = {32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128}[bits](digits, 1)
    return pa.Array.from_buffers(dtype, len(stored), [None, data])


@pytest.mark.parametrize(
    ("digits", "bits"), [(2, 32), (4, 64), (9, 64), (5, 128), (18, 128), (20, 128), (38, 128)]
)
def test_a_decimal_with_more_digits_than_its_type_is_no_value(digits: int, bits: int) -> None:
    """DuckDB would read what its memory holds, of other records."""
    table = pa.table({"x": _decimals(digits, bits=bits).slice(1)})
    assert prudent.count(table, "x", epsilon=50, noise=Silence()).value == 199
    assert open_column(table, "x").order_statistics(1, 203).tolist() == [15.0] * 199


def _relabelled(file: Path, digits: int) -> None:
    """Let a file say that its decimals, of 9 or 38 digits, have fewer."""
    written = file.read_bytes()
    said = next(each for each in (b"\x15\x02\x15\x4c", b"\x15\x02\x15\x12") if each in written)
    assert written.count(said) == 2  # one digit after the point, and 38 or 9 in all
    file.write_bytes(written.replace(said, said[:3] + bytes([2 * digits])))
    assert pa.parquet.read_schema(file).field("x").type == pa.decimal128(digits, 1)


@pytest.mark.parametrize("text", [True, False])
def test_decimals_of_a_file_in_wide_integers_are_no_value_beyond_their_digits(
    text: bool, tmp_path: Path
) -> None:
    file = tmp_path / "t.parquet"
    odd = [Decimal("20000000.0"), Decimal("1000.0")]
    columns = {"x": pa.array([Decimal("1.5")] * 200 + odd, pa.decimal128(9, 1)), "y": [1.0] * 202}
    table = pa.table(columns | ({"z": ["a"] * 202} if text else {}))
    pa.parquet.write_table(table, file, store_schema=False, store_decimal_as_integer=True)
    _relabelled(file, 4)
    assert open_column(file, "x").order_statistics(1, 202).tolist() == [15.0] * 200
    assert len(open_column(file, "y").order_statistics(1, 202)) == 202


def test_run_end_encoded_decimals_have_their_digits_as_well() -> None:
    words = np.array([15, 0, 15, 0])
    values = pa.Array.from_buffers(pa.decimal128(4, 1), 2, [None, pa.py_buffer(words)])
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([3, 4], pa.int32()), values)
    words[2] = 10**6  # Arrow checks what it makes, and not what is in memory later
    assert open_column(pa.table({"x": runs}), "x").order_statistics(1, 4).tolist() == [15.0] * 3


def test_decimals_of_a_file_in_more_bytes_than_their_digits_need_are_refused(
    tmp_path: Path,
) -> None:
    file = tmp_path / "t.parquet"
    table = pa.table({"x": _decimals(38), "y": [1.0] * 204})
    pa.parquet.write_table(table, file, store_schema=False)
    _relabelled(file, 12)
    with pytest.raises(SourceError, match="as many bytes as their digits need, got more in 'x'"):
        open_column(file, "x")
    assert len(open_column(file, "y").order_statistics(1, 204)) == 204
