"""Conditions as text: the same rows as the condition they say, and errors that help."""

import datetime
import itertools
import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ibis", reason="needs the extra `tables`")

import duckdb
import numpy as np
import pyarrow as pa

from prudent._validate import ArgumentError
from prudent.release.columns.opening import open_column
from prudent.release.columns.row_values.expressions import parse_condition
from tests.servers import postgres_url  # noqa: F401

TABLE = pa.table(
    {
        "x": [1.0, 2.0, 3.0, 4.0],
        "city": ["Oslo", "Bergen", "oslo's", None],
        "n": pa.array([0, 1, 2**63 - 1, -(2**63)], "int64"),
        "day": [datetime.date(2023, 12, 31), datetime.date(2024, 1, 1), datetime.date.max, None],
        "flag": [True, False, None, True],
        "a b": [1, 2, 3, 4],
    }
)

ANYWHERE: list[tuple[str, list[float]]] = [
    ("x = 2", [2.0]),
    ("x == 2 or x <> 2 and not x < 4", [2.0, 4.0]),
    ("(x = 2 or x != 2) and x >= 3.5", [4.0]),
    ("city in ('Oslo', 'Bergen')", [1.0, 2.0]),
    ("city not in ('Oslo')", [2.0, 3.0]),
    ("city = 'oslo''s'", [3.0]),
    ("x between 2 and 3", [2.0, 3.0]),
    ("x not between 2 and 3", [1.0, 4.0]),
    ("city is null or city is not null and x > 2.5", [3.0, 4.0]),
    ("city like 'O%'", [1.0]),
    ("city not like 'O%'", [2.0, 3.0]),
    ("city ilike 'O%'", [1.0, 3.0]),
    ("lower(city) = 'oslo'", [1.0]),
    ("length(city) > 4", [2.0, 3.0]),
    ("day >= '2024-01-01'", [2.0, 3.0]),
    ("day < date '2024-01-01'", [1.0]),
    ("year(day) = 2024 and month(day) = 1 and day(day) = 1", [2.0]),
    ("flag", [1.0, 4.0]),
    ("not flag", [2.0]),
    ("flag is true", [1.0, 4.0]),
    ("n > -1.5 AND N < 5", []),
    ("n > -1.5 and n < 5", [1.0, 2.0]),
    ('"a b" = 4', [4.0]),
    ("n + n = 2", [2.0]),
    ("7 % n = 0", [2.0]),
    ("1 / n = 1", [2.0]),
    ("-n < 0", [2.0, 3.0]),
    ("abs(n) = 1", [2.0]),
    ("x * 2 - 1 = 3", [2.0]),
    ("cast(city as double) is null", [1.0, 2.0, 3.0, 4.0]),
    ("try_cast(city as double) is null", [1.0, 2.0, 3.0, 4.0]),
    ("city::int = 1", []),
    ("city > 3", []),
]


def kept(text: str, **where: Any) -> list[float]:
    return (
        open_column(**where, column="x", where=parse_condition(text))
        .order_statistics(1, 9)
        .tolist()
    )


@pytest.mark.unhurried
@pytest.mark.parametrize(("text", "rows"), ANYWHERE)
def test_the_rows_of_a_text(text: str, rows: list[float]) -> None:
    if " N " in text:  # names are those of the table, letter by letter
        with pytest.raises(ArgumentError, match=r"unknown column 'N'; did you mean 'n'"):
            kept(text, source=TABLE)
        return
    assert kept(text, source=TABLE) == rows
    assert open_column(TABLE, "x", where=text).order_statistics(1, 9).tolist() == rows


def test_a_column_of_a_text_file_is_read_as_what_it_is_compared_with(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "x,year,day\n1,2024,2024-01-01\n2,n/a,never\n3,2023,2023-12-31\n4,2024.0,infinity\n"
    )
    for text, rows in [
        ("year = 2024", [1.0, 4.0]),
        ("year in (2023, 2022)", [3.0]),
        ("year between 2000 and 2023", [3.0]),
        ("day >= date '2024-01-01'", [1.0, 4.0]),
        ("year = 'n/a'", [2.0]),
        ("year / 0 > 1 or year / 0 is null and year = 2023", [3.0]),  # no value, not an error
    ]:
        assert kept(text, source=tmp_path / "t.csv") == rows, text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x >",
        "x > 1; drop table t",
        "x in (select max(x) from t)",
        "x > max(x)",
        "x > 1 order by x",
        "x > 1 limit 3",
        "rowid < 3",
        "random() < 0.5",
        "current_date > day",
        "row_number() over () < 3",
        "x > (select 1)",
        "case when x > 1 then city end",
        "city like 'O%' escape '!'",
        "city like lower('A')",
        "x::blob is null",
        "day > date 'yesterday'",
        "exists (select 1)",
        "getenv('HOME') = 'a'",
        "x",
        "x + 1",
        'city = "Oslo"',
        "year = 2024",
        "city = x + 'a'",
        "flag = 1",
        "\x00",
        "(" * 5000,
    ],
)
def test_what_is_not_a_condition_is_refused_before_anything_is_read(text: str) -> None:
    with pytest.raises(ValueError, match="where"):
        open_column(TABLE, "x", where=parse_condition(text))


def test_errors_teach() -> None:
    with pytest.raises(
        ArgumentError, match=r"it uses max\. Allowed are comparisons, and, or"
    ) as caught:
        parse_condition("x > max(x)")
    assert caught.value.argument == "where"
    with pytest.raises(ArgumentError, match="Texts are written in single quotes"):
        open_column(TABLE, "x", where='city = "Oslo"')


@pytest.fixture(scope="module")
def in_postgres(postgres_url: str) -> dict[str, Any]:  # noqa: F811
    psycopg = pytest.importorskip("psycopg")
    name = f"t_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url) as connection:
        connection.execute(
            f'CREATE TABLE {name} (x float8, city text, n bigint, day date, flag bool, "a b" int)'
        )
        for row in zip(*TABLE.to_pydict().values(), strict=True):
            connection.execute(f"INSERT INTO {name} VALUES (%s, %s, %s, %s, %s, %s)", row)
    return {"connect": postgres_url, "table": name}


@pytest.mark.thorough
def test_in_postgresql(in_postgres: dict[str, Any]) -> None:
    for text, rows in ANYWHERE:
        if " N " not in text:
            assert kept(text, **in_postgres) == rows, text


LOGIC = [
    *("x = NULL", "x <> NULL", "NOT x IN (1, NULL)", "x NOT IN (1, y)", "x NOT BETWEEN y AND 2"),
    *("CASE x WHEN NULL THEN true ELSE b END", "(NOT b) IS NULL", "(x IN (1, 2)) IS TRUE"),
    *("(NOT b) IS NOT FALSE", "(x BETWEEN 1 AND 2) = b", "(t LIKE 'a%') <> (x IS NULL)"),
    *("(b IS TRUE) = (x = 1)", "(NOT t LIKE 'a') IS NULL", "nullif(NOT b, x <> y) IS NULL"),
    *("(b IS NOT TRUE) IN (true, x > y)", "coalesce(NOT b, x NOT IN (1)) IS NOT TRUE"),
    *("(x IS NULL) IS NULL OR b", "(NOT b) BETWEEN (x = 1) AND (y = 1)", "x NOT IN (NULL)"),
]
ROWS = [*itertools.product((1, 2, None), (1, 2, None), ("a", "b", None), (True, False, None))]
OF_LOGIC = pa.table(
    {"row": list(range(81))}
    | {name: [row[place] for row in ROWS] for place, name in enumerate("xytb")}
)


@pytest.mark.parametrize("text", LOGIC)
def test_logic_has_three_values_as_in_sql(text: str) -> None:
    """An engine asked directly has the same rows; ibis leaves out parentheses around NOT and IN."""
    asked = duckdb.connect().from_arrow(OF_LOGIC).filter(text).fetchall()
    found = open_column(OF_LOGIC, "row", where=text).order_statistics(1, 81)
    assert found[np.isfinite(found)].tolist() == sorted(row for row, *_ in asked)
