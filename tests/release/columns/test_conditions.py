"""Conditions on rows: each looks at one row, and none fails because of what a row holds."""

import datetime
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

ibis = pytest.importorskip("ibis", reason="needs the extra `tables`")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet  # noqa: E402

from prudent.release.columns.opening import open_column  # noqa: E402

TABLE = pa.table(
    {
        "x": [1.0, 2.0, 3.0, 4.0],
        "city": ["a", "b", "A", None],
        "code": ["1", "x", "3", ""],
        "n": pa.array([0, 1, 2**63 - 1, -(2**63)], "int64"),
        "day": [datetime.date(2023, 12, 31), datetime.date(2024, 1, 1), datetime.date.max, None],
        "flag": [True, False, None, True],
        "hour": [datetime.time(1), None, None, None],
    }
)
OTHER = ibis.memtable({"y": [1.0]})


@ibis.udf.scalar.python
def own_function(x: float) -> bool:
    return x > 1


@pytest.mark.parametrize(
    "where",
    [
        lambda t: t.x < t.x.max(),
        lambda t: t.x.rank() > 1,
        lambda t: ibis.row_number() > 0,
        lambda t: ibis.random() < 0.5,
        lambda t: t.x.isin(t.filter(t.city == "a").x),
        lambda t: t.x.lag() > 0,
        lambda t: t.day < ibis.today(),
        lambda t: t.hour.cast("string") == "a",
        lambda t: t.x < OTHER.y.max(),
        lambda t: (t.flag & (t.x > 1)) | (t.x < t.x.mean()),
        lambda t: own_function(t.x),
        lambda t: t.city.like("a\\"),
        lambda t: t.city.rlike("(a"),
    ],
)
def test_what_is_not_listed_is_refused(where: Any) -> None:
    with pytest.raises(ValueError, match="one row at a time"):
        open_column(TABLE, "x", where=where)


def test_the_place_of_a_row_is_none_of_its_own(tmp_path: Path) -> None:
    """A row more at the top of a file would move all others."""
    pa.parquet.write_table(TABLE.select(["x"]), tmp_path / "t.parquet")
    for where in (lambda t: t.rowid() < 2, lambda t: (t.x > 1) & (t.rowid() % 2 == 0)):
        with pytest.raises(ValueError, match="Expected where"):
            open_column(tmp_path / "t.parquet", "x", where=where)


@pytest.mark.parametrize(
    "where",
    [
        lambda t: t.flag == 1,
        lambda t: t.city.isin(["a", 3]),
        lambda t: t.n.isin(["1", 3]),
        lambda t: t.day == t.city,
    ],
)
def test_only_values_of_one_kind_are_compared(where: Any) -> None:
    with pytest.raises(ValueError, match="where"):
        open_column(TABLE, "x", where=where)


ANYWHERE: list[tuple[Callable[[Any], Any], list[float]]] = [
    (lambda t: t.city == "a", [1.0]),
    (lambda t: t.city.lower() == "a", [1.0, 3.0]),
    (lambda t: t.city.isin(["a", "b"]) & (t.x > 1.5), [2.0]),
    (lambda t: t.city.like("a%") | t.city.isnull(), [1.0, 4.0]),
    (lambda t: t.city.fill_null("z").startswith("z"), [4.0]),
    (lambda t: t.n.between(0, 1), [1.0, 2.0]),
    (lambda t: t.n > 0.5, [2.0, 3.0]),
    (lambda t: t.day >= "2024-01-01", [2.0, 3.0]),
    (lambda t: t.day >= datetime.date(2024, 1, 1), [2.0, 3.0]),
    (lambda t: t.day.year() == 2024, [2.0]),
    (lambda t: ~t.flag, [2.0]),
    (lambda t: t.flag.cast("int64") == 0, [2.0]),
    (lambda t: t.flag.cast("float64").isnull(), [3.0]),
    (lambda t: ibis.ifelse(t.flag, t.x > 1, t.x > 9), [4.0]),
]
TRIED: list[tuple[Callable[[Any], Any], list[float]]] = [
    (lambda t: t.code.cast("int64") == 3, [3.0]),
    (lambda t: t.code.try_cast("int64") == 3, [3.0]),
    (lambda t: t.n + t.n == 2, [2.0]),
    (lambda t: -t.n < 0, [2.0, 3.0]),
    (lambda t: t.n * 2 == 2, [2.0]),
    (lambda t: 1 // t.n == 1, [2.0]),
    (lambda t: 7 % t.n == 0, [2.0]),
]


@pytest.mark.unhurried
@pytest.mark.parametrize(
    ("where", "kept"), [*ANYWHERE, *TRIED, (lambda t: t.n.cast("decimal") == 1, [2.0])]
)
def test_a_row_that_makes_a_condition_fail_is_not_kept(
    where: Any, kept: list[float], tmp_path: Path
) -> None:
    pa.parquet.write_table(TABLE, tmp_path / "t.parquet")
    for data in (TABLE, tmp_path / "t.parquet"):
        column = open_column(data, "x", where=where)
        assert column.order_statistics(1, 9).tolist() == kept


@pytest.fixture(scope="module")
def in_postgres(postgres_url: str) -> dict[str, Any]:
    psycopg = pytest.importorskip("psycopg")
    name = f"t_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url) as connection:
        connection.execute(
            f"CREATE TABLE {name} (x float8, city text, code text, n bigint, day date, flag bool, "
            "m numeric)"
        )
        amounts = ["1e400", "NaN", "0.75", "-Infinity"]
        for row in zip(*TABLE.drop_columns("hour").to_pydict().values(), amounts, strict=True):
            connection.execute(f"INSERT INTO {name} VALUES (%s, %s, %s, %s, %s, %s, %s)", row)
        connection.execute(f"UPDATE {name} SET day = 'infinity' WHERE x = 3")
    return {"connect": postgres_url, "table": name}


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        *ANYWHERE,
        *TRIED,
        (lambda t: t.m > 0.5, [1.0, 2.0, 3.0]),  # a NaN is larger than all numbers
        (lambda t: t.m == 0.75, [3.0]),
        (lambda t: t.m < Decimal("0.5"), [4.0]),
    ],
)
def test_in_postgresql(where: Any, kept: list[float], in_postgres: dict[str, Any]) -> None:
    column = open_column(**in_postgres, column="x", where=where)
    assert column.order_statistics(1, 9).tolist() == kept


def test_a_decimal_that_cannot_be_one_is_no_cast_of_a_boolean(in_postgres: dict[str, Any]) -> None:
    """PostgreSQL would stop at the first record that is true."""
    with pytest.raises(ValueError, match="a cast of boolean"):
        open_column(**in_postgres, column="x", where=lambda t: t.flag.cast("decimal(1, 1)") == 0)
