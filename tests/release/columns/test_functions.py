"""Functions of one row: defined for every stored value, and the same in three engines."""

import datetime
import functools
import math
import uuid
from pathlib import Path
from typing import Any

import pytest

ibis = pytest.importorskip("ibis", reason="needs the extra `tables`")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet  # noqa: E402

from prudent.release import Ledger, statistics  # noqa: E402
from prudent.release.columns.dialects import fetched  # noqa: E402
from prudent.release.columns.row_values import conditions  # noqa: E402
from prudent.release.columns.row_values.conditions import total_value  # noqa: E402
from prudent.release.columns.row_values.expressions import parse_value  # noqa: E402
from prudent.release.columns.sources import open_table  # noqa: E402

NUMBERS = [0.0, -0.0, 1.0, -2.5, 2.5, 1e-320, 1e-200, 1e200, -1.7e308, math.inf, -math.inf]
NUMBERS += [math.nan, None, 0.49999999999999994, 4503599627370497.5, 9.3e18, 123.456, -7.0]
WHOLE = [0, 1, -1, 2**63 - 1, -(2**63), None, 7, -7, 2**53 + 1]
TEXTS = ["", " ", "12", "-4.5", "1e5", "1e999", "x", "2024-02-29", "2023-02-29", "0000-01-01"]
TEXTS += ["2024-01-31 13:00", None, "9" * 500, "a" * 1000, "é", " Padded  ", "%_\\", "12,5"]
DATES = [datetime.date.min, datetime.date.max, datetime.date(2024, 2, 29), None]
DATES += [datetime.date(1969, 12, 31), datetime.date(1900, 3, 1), datetime.date(2000, 1, 2)]
TIMES = [datetime.datetime(2024, 2, 29, 23, 59, 59, 999_999), None, datetime.datetime.min]
TIMES += [
    datetime.datetime(9999, 12, 31, 12),
    datetime.datetime(1969, 12, 31, 23),
    datetime.datetime(1970, 1, 1),
]
COUNT = 90
ROWS = [
    {
        "row": k,
        "x": NUMBERS[k % len(NUMBERS)],
        "y": NUMBERS[k * 5 % len(NUMBERS)],
        "n": WHOLE[k % len(WHOLE)],
        "m": WHOLE[k * 2 % len(WHOLE)],
        "t": TEXTS[k % len(TEXTS)],
        "d": DATES[k % len(DATES)],
        "e": DATES[k * 3 % len(DATES)],
        "s": TIMES[k % len(TIMES)],
        "b": [True, False, None][k % 3],
    }
    for k in range(COUNT)
]
TYPES = {"row": "bigint", "x": "float8", "y": "float8", "n": "bigint", "m": "bigint", "t": "text"}
TYPES |= {"d": "date", "e": "date", "s": "timestamp", "b": "bool"}
EXPRESSIONS = [
    *("x + y", "x - y", "x * y", "x / y", "x // y", "n + m", "n * m", "n - m", "n / m", "n % m"),
    *("-n", "-x", "abs(x)", "abs(n)", "floor(x)", "ceil(x)", "round(x)", "round(x, 2)"),
    *("round(n, -2)", "floor(n / 10) * 10", "sqrt(x)", "ln(x)", "exp(x)", "ln(x * y) / exp(y)"),
    *("(x + y) * (x - y) / (x * y - 1)", "1 / (x - x)", "x * 1e-300 * 1e-300", "7 % (n - n)"),
    *("least(x, y)", "least(n, m)", "greatest(n, m, 3)", "clip(x, -5, 5)", "coalesce(x, y, 0)"),
    *(
        "nullif(n, 7)",
        "coalesce(x / y, ln(x), -1)",
        "case when x > 1 then 'a' when b then 'b' else t end",
    ),
    *("case n when 7 then 1 when 0 then 0.5 end", "if(b, d, e)", "x > y or b", "n in (1, 7)"),
    *("lower(t)", "upper(trim(t))", "length(t)", "substr(t, 2, 3)", "left(t, 2)", "right(t, 2)"),
    *("replace(t, '2', 'zz')", "t || '!'", "ltrim(t)", "t like '2%'", "cast(n as text)"),
    *("try_cast(t as double)", "t::int", "try_cast(t as date)", "t::timestamp", "cast(x as int)"),
    *("cast(b as int)", "x::double", "s::date", "d::timestamp", "try_cast(t as double) * 2"),
    *("year(d)", "month(s)", "day(d)", "quarter(s)", "dayofweek(d)", "hour(s)", "minute(s)"),
    *("extract(year from s)", "date_part('month', d)", "date_trunc('month', s)"),
    *("date_trunc('year', d)", "date_trunc('week', d)", "date_trunc('quarter', d)", "d - e"),
    *("date_diff('month', d, e)", "date_diff('year', s, d)", "date_diff('hour', s, d)"),
    *("date_diff('week', e, d)", "year(t)", "x + t", "log10(x)", "log(n)", "sign(x)", "sign(n)"),
    *("concat(t, '!', t)", "starts_with(t, '2024')", "ends_with(t, '5')", "contains(t, '-')"),
]


def values(table: Any, *leave_out: str) -> dict[str, list[Any]]:
    """Every expression, by row, as Python has it; those of some types may be left out."""
    every = {text: total_value(parse_value(text)(table), table) for text in EXPRESSIONS}
    every = {text: v for text, v in every.items() if not str(v.type()).startswith(leave_out)}
    whole = {text for text, v in every.items() if leave_out and v.type().is_integer()}
    made = {
        f"c{place}": value.cast("string") if text in whole else value  # as pandas has no others
        for place, (text, value) in enumerate(every.items())
    }
    found = fetched(table.select(row=table["row"], **made).order_by("row"))
    shown = dict(zip(every, (found[name] for name in made), strict=True))
    return shown | {text: [v if v is None else int(v) for v in shown[text]] for text in whole}


def table() -> pa.Table:
    schema = {"n": pa.int64(), "m": pa.int64(), "d": pa.date32(), "e": pa.date32()}
    columns = {name: [row[name] for row in ROWS] for name in TYPES}
    return pa.table({name: pa.array(each, schema.get(name)) for name, each in columns.items()})


@pytest.fixture(scope="module")
def in_duckdb() -> dict[str, list[Any]]:
    return values(open_table(table()).table)


@pytest.mark.unhurried
def test_what_has_no_result_is_null(in_duckdb: dict[str, list[Any]]) -> None:
    def by_row(text: str, of: Any) -> None:
        for row, found in zip(ROWS, in_duckdb[text], strict=True):
            expected = of(row)
            assert found == expected or found == pytest.approx(expected, rel=1e-12), (text, row)

    by_row("1 / (x - x)", lambda row: None)
    by_row("7 % (n - n)", lambda row: None)
    by_row("round(x)", lambda row: _rounded(row["x"]))
    by_row(
        "least(n, m)", lambda row: min((row[c] for c in "nm" if row[c] is not None), default=None)
    )
    by_row("year(d)", lambda row: row["d"] and row["d"].year)
    by_row("dayofweek(d)", lambda row: row["d"] and (row["d"].weekday() + 1) % 7)
    by_row("hour(s)", lambda row: row["s"] and row["s"].hour)
    by_row("d - e", lambda row: (row["d"] - row["e"]).days if row["d"] and row["e"] else None)
    by_row("date_trunc('month', s)", lambda row: row["s"] and row["s"].date().replace(day=1))
    by_row("date_diff('month', d, e)", lambda row: (row["e"].year - row["d"].year) * 12
           + row["e"].month - row["d"].month if row["d"] and row["e"] else None)  # fmt: skip
    by_row("sign(n)", lambda row: row["n"] and (1 if row["n"] > 0 else -1))
    by_row("log(n)", lambda row: math.log10(row["n"]) if row["n"] and row["n"] > 0 else None)
    by_row("concat(t, '!', t)", lambda row: f"{row['t'] or ''}!{row['t'] or ''}")
    by_row(
        "starts_with(t, '2024')", lambda row: None if row["t"] is None else row["t"][:4] == "2024"
    )
    read = {"12": 12.0, "-4.5": -4.5, "1e5": 1e5}
    for row, found in zip(ROWS, in_duckdb["try_cast(t as double) * 2"], strict=True):
        if row["t"] not in ("1e999", "9" * 500):
            assert found == (2 * read[row["t"]] if row["t"] in read else None)
    chosen = ("least(x, y)", "clip(x, -5, 5)", "coalesce(x, y, 0)", "x::double")  # not computed
    for text, found in in_duckdb.items():
        finite = all(not isinstance(each, float) or math.isfinite(each) for each in found)
        assert finite or text in chosen, text


def _rounded(number: float | None) -> int | None:
    small = number is not None and abs(number) < 2**53
    return math.floor(number + 0.5) if small and number is not None else None


def same(one: dict[str, list[Any]], other: dict[str, list[Any]]) -> None:
    """Equal, but for the last bits of logarithms, and numbers far beyond those that are summed."""
    for text, found in one.items():
        for row, expected, each in zip(ROWS, found, other[text], strict=True):
            if expected == each or (expected is None and each is None):
                continue
            odd = [abs(row[name]) for name in "xy" if row[name] is not None and name in text]
            if any(value and not 1e-100 < value < 1e100 for value in odd):
                continue  # PostgreSQL takes tiny numbers for 0, and some that are far for NULL
            if row["t"] in ("1e999", "9" * 500, "0000-01-01"):
                continue  # that DuckDB reads
            assert any(name in text for name in ("ln(", "exp(", "log")), (text, row, expected, each)
            assert each == pytest.approx(expected, rel=1e-12), (text, row)


@pytest.mark.thorough
def test_in_postgresql(
    postgres_url: str, in_duckdb: dict[str, list[Any]], request: pytest.FixtureRequest
) -> None:
    psycopg = pytest.importorskip("psycopg")
    name = f"t_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url) as connection:
        columns = ", ".join(f"{column} {dtype}" for column, dtype in TYPES.items())
        connection.execute(f"CREATE TABLE {name} ({columns})")
        places = ", ".join(["%s"] * len(TYPES))
        rows = [tuple(row.values()) for row in ROWS]
        connection.cursor().executemany(f"INSERT INTO {name} VALUES ({places})", rows)
    opened = open_table(connect=postgres_url, table=name)
    request.addfinalizer(opened.close)
    same(in_duckdb, values(opened.table))
    with psycopg.connect(postgres_url) as connection:
        for day in ("infinity", "-infinity", "4713-01-01 BC", "5874897-12-31"):
            connection.execute(f"INSERT INTO {name} (row, d, e) VALUES (99, '{day}', '{day}')")
        for time in ("infinity", "4713-01-01 BC", "294276-12-31 23:59:59"):
            connection.execute(f"INSERT INTO {name} (row, s) VALUES (99, '{time}')")
    opened = open_table(connect=postgres_url, table=name)  # the first one has its snapshot
    request.addfinalizer(opened.close)
    shown = values(opened.table, "date", "timestamp")  # Python has no infinite ones
    assert all(len(each) == COUNT + 7 for each in shown.values())


@pytest.mark.thorough
def test_in_spark(spark_session: Any, in_duckdb: dict[str, list[Any]], tmp_path: Any) -> None:
    pa.parquet.write_table(table(), tmp_path / "t.parquet")
    frame = spark_session.read.parquet(str(tmp_path / "t.parquet"))
    # A release takes no times out of Spark: pandas, by which they would leave, has not all of them.
    found = values(open_table(frame).table, "timestamp")
    same({text: in_duckdb[text] for text in found}, found)


EXTREMES = {
    "TINYINT": ["-128", "127", "0", "-1"],
    "BIGINT": ["-9223372036854775808", "9223372036854775807", "0", "-1"],
    "UBIGINT": ["18446744073709551615", "0"],
    "HUGEINT": [f"-{2**127}", f"{2**127 - 1}", "0"],
    "FLOAT": ["nan", "inf", "-inf", "3.4e38", "1e-45", "-0.0"],
    "DOUBLE": ["nan", "inf", "-inf", "1.7976931348623157e308", "5e-324", "-0.0", "709.9", "1e9"],
    "DECIMAL(38,38)": ["0." + "9" * 38, "-0." + "9" * 38, "0"],
    "DECIMAL(38,0)": ["9" * 38, "-" + "9" * 38, "0"],
    "DATE": ["infinity", "-infinity", "5881580-07-10", "5877642-06-25 (BC)", "2024-02-29"],
    "TIMESTAMP": ["infinity", "-infinity", "294247-01-10 04:00:54.775806", "290309-12-22 (BC)"],
    "TIMESTAMP_S": ["infinity", "-infinity", "294247-01-10 04:00:54", "1969-12-31 23:59:59"],
    "TIMESTAMP_MS": ["infinity", "-infinity", "294247-01-10 04:00:54", "1969-12-31 23:59:59"],
    "TIMESTAMP_NS": ["infinity", "-infinity", "2262-04-11 23:47:16", "1677-09-22 00:00:00"],
    "TIMESTAMPTZ": ["infinity", "-infinity", "294247-01-10 04:00:54+00", "1970-01-01 00:00:00+00"],
    "INTERVAL": ["2147483647 months", "-2147483648 months", "2562047788 hours", "0 days"],
    "VARCHAR": ["", "1e999", "nan", "-infinity", "9" * 400, "290309-12-22 (BC)", "a\u0301", "%_"],
    "BOOLEAN": ["true", "false"],
    "UUID": ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "BLOB": ["\\xFF\\x00", ""],
}
OPERATIONS = [
    *("-c", "abs(c)", "sign(c)", "floor(c)", "ceil(c)", "round(c)", "round(c, 15)"),
    *("round(c, -15)", "ln(c)", "log10(c)", "exp(c)", "sqrt(c)", "c ** 6", "clip(c, -1, 1)"),
    *("nullif(c, 0)", "1 / c"),
    *("nullif(c, e)", "coalesce(c, 1)", "coalesce(c, 'a')", "coalesce(c, date '2024-01-01')"),
    *("lower(c)", "upper(c)", "trim(c)", "ltrim(c)", "rtrim(c)", "length(c)", "substr(c, 1, 2)"),
    *("substr(c, 2147483647, 2147483646)", "left(c, 0)", "right(c, 2147483647)", "c || e"),
    *("replace(c, '', 'x')", "concat(c, e)", "starts_with(c, e)", "contains(c, '')", "c like '%'"),
    *("c ilike '_%'", "year(c)", "quarter(c)", "month(c)", "day(c)", "dayofweek(c)", "hour(c)"),
    *("minute(c)", "extract(dow from c)", "date_trunc('day', c)", "date_trunc('week', c)"),
    *("date_trunc('month', c)", "date_trunc('quarter', c)", "date_trunc('year', c)", "1 % c"),
    *("cast(c as double)", "cast(c as int)", "cast(c as date)", "cast(c as timestamp)", "c % 3"),
    *("cast(c as varchar)", "cast(cast(c as varchar) as double)"),
    *("cast(cast(c as varchar) as date)", "cast(cast(c as varchar) as timestamp)"),
    *("c is null", "c = e", "c < '2024-01-01'"),
    *("c in (1, 2)", "c between e and c", "case when c > e then c else e end", "c // 7"),
    *("case c when e then 2 end", "if(c is null, c, e)", "1e308 * c", "c - e", "c * e", "c / e"),
    *("c + e", "c - date '1970-01-01'", "date '9999-12-31' - c", "date_diff('second', c, e)"),
    *("date_diff('hour', c, e)", "date_diff('day', c, e)", "date_diff('week', c, e)", "c is true"),
    *("c % e", "c // e", "date_diff('month', c, e)", "date_diff('quarter', c, e)"),
    *("least(c, e)", "greatest(c, e)"),
    *("not c", "c and e", "(c = e) is null", "cast(c as double) * 2", "cast(c as int) + 1"),
]


QUICK = ("BIGINT", "UBIGINT", "DECIMAL(38,38)", "DATE")


@pytest.mark.unhurried
@pytest.mark.parametrize(
    "dtype",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in EXTREMES],
)
def test_no_stored_value_stops_an_operation(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not refused by the types alone has a value, or NULL, for every pair of values."""
    duckdb = pytest.importorskip("duckdb")
    values = [*EXTREMES[dtype], None]
    with duckdb.connect(tmp_path / "t.duckdb") as connection:
        connection.execute(f"CREATE TABLE t (c {dtype}, e {dtype})")
        rows = [[one, other] for one in values for other in values]
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)
    rows = open_table(tmp_path / "t.duckdb", table="t").table
    bound = conditions.check_bound
    monkeypatch.setattr(conditions, "check_bound", lambda *_: None)  # here of all at once
    answered = 0
    for text in OPERATIONS:
        try:  # named twice, it is computed outside of what catches errors
            twice = parse_value(f"nullif({text}, {text}) is null and ({text}) is not null")(rows)
            made = {"a": total_value(parse_value(text)(rows), rows), "b": total_value(twice, rows)}
        except ValueError:
            continue
        try:
            found = fetched(rows.select(**{name: v.cast("string") for name, v in made.items()}))
            assert len(found["a"]) == len(values) ** 2
            answered += 1
        except duckdb.Error:
            with pytest.raises(ValueError, match="that the engine can compute"):
                bound(rows.select(**made), "where")
    assert answered > 4


NESTED = ["round({}, 1)", "nullif({}, 7)", "clip({}, 0, 9)", "({}) % 7", "floor({})"]


@pytest.mark.parametrize("call", NESTED)
def test_nested_calls_are_refused_before_a_query_gets_long(call: str, tmp_path: Path) -> None:
    """Arguments are written more than once: twenty nested calls are up to 7**20 operations."""
    table = pa.table({"x": [0.5, 1.5, 2.5]})

    def ask(depth: int) -> Any:
        text = functools.reduce(lambda inner, _: call.format(inner), range(depth), "x")
        return statistics.mean(table, text, bounds=(0, 9), epsilon=1.0, ledger=ledger)

    with Ledger.create(str(tmp_path / "b.db"), epsilon=9.0, delta=1e-6) as ledger:
        ask(1)
        with pytest.raises(ValueError, match="at most 20,000 operations"):
            ask(20)
        assert len(ledger.history()) == 1
