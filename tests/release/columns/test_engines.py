"""The same column in DuckDB, PostgreSQL and Spark: the same answers, on flights and on ties."""

import datetime
import gc
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

ibis = pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="needs the extra `tables`")

import pyarrow as pa  # noqa: E402

from prudent.release import statistics  # noqa: E402
from prudent.release.columns import table_columns  # noqa: E402
from prudent.release.columns.opening import (  # noqa: E402
    open_column,
    open_groups,
    open_private_groups,
)
from prudent.release.columns.sources import SourceError  # noqa: E402
from prudent.release.columns.table_columns import TableColumn  # noqa: E402
from prudent.release.noise import ReproducibleNoise  # noqa: E402
from prudent.release.outcome import Released  # noqa: E402
from tests.oracles.array_column import ArrayColumn  # noqa: E402
from tests.release.columns.columns_suite import (  # noqa: E402
    ADVERSARIAL,
    LATTICES,
    check_same_answers,
    check_same_window,
    flights,
)
from tests.release.columns.pushdown import check_little_leaves, fetch_everything, growth  # noqa: E402
from tests.release.columns.test_units import ORACLES, ROWS, expected  # noqa: E402

WORDS = ["b", "Z", "é", "a", "a", "É", "Z", None]
FLIGHTS = ["dep_delay", "distance", "tailnum", "origin", "carrier"]


@pytest.fixture
def postgres_table(postgres_url: str) -> Any:
    """Loads columns into a table of the server; gives back its address and name."""
    psycopg = pytest.importorskip("psycopg")

    def load(types: dict[str, str], rows: list[tuple[Any, ...]]) -> dict[str, str]:
        name = f"t_{uuid.uuid4().hex}"
        fields = ", ".join(f"{column} {kind}" for column, kind in types.items())
        with psycopg.connect(postgres_url) as connection:
            connection.execute(f"CREATE TABLE {name} ({fields})")
            with connection.cursor().copy(f"COPY {name} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
        return {"connect": postgres_url, "table": name}

    return load


@pytest.fixture
def narrowing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes small columns go the way of large ones."""
    for name in ("FEW", "FEW_READ"):
        monkeypatch.setattr(table_columns, name, 50)
    monkeypatch.setattr(table_columns, "SAMPLE", 100)


def check_words(column: Any) -> None:
    """Ties go by the order of characters, whatever language the engine sorts in."""
    assert column.count() == 7
    assert (column.most_frequent(), column.leaders()) == ("Z", (2, 2, False))
    assert column.counts_of(["é", "b", "z"]).tolist() == [1, 1, 0]


def delays(table: pa.Table) -> np.ndarray:
    return table["dep_delay"].cast("float64").to_numpy(zero_copy_only=False)


def least_by_tail_number(table: pa.Table) -> np.ndarray:
    kept = table.select(["tailnum", "dep_delay"]).drop_null()
    return kept.group_by("tailnum").aggregate([("dep_delay", "min")])["dep_delay_min"].to_numpy()


def check_flights(table: pa.Table, where_it_is: dict[str, Any]) -> None:
    """Departure delays: heavy ties, NULLs; by airport; one flight per aircraft."""
    check_same_window(open_column(**where_it_is, column="dep_delay"), delays(table))
    least = least_by_tail_number(table).astype(np.float64)
    aircraft = open_column(**where_it_is, column="dep_delay", unit="tailnum", per_unit="min")
    check_same_window(aircraft, least)
    airports = open_groups(**where_it_is, column="dep_delay", by="origin", groups=["JFK", "LAX"])
    from_kennedy = delays(table.filter(pa.compute.equal(table["origin"], "JFK")))
    check_same_window(airports["JFK"], from_kennedy)
    assert airports["LAX"].count() == 0
    carriers = open_column(**where_it_is, column="carrier", kind="categories")
    counts = table["carrier"].value_counts().to_pylist()
    expected = sorted(((row["values"], row["counts"]) for row in counts), key=lambda r: -r[1])
    (most, records), (_, fewer) = expected[:2]
    assert carriers.most_frequent() == most
    assert carriers.leaders()[:2] == (records, fewer)


def check_same_releases(
    where_it_is: dict[str, Any], values: np.ndarray, words: tuple[str, list[str | None]]
) -> None:
    """With the same noise, the very same numbers are released as from an array."""
    cost: Any = {"epsilon": 2.0, "delta": 1e-6}

    def same(statistic: Any, of: Any = values, **own: Any) -> None:
        column = own.pop("column", "x")
        array: dict[str, Any] = {"data": of}
        if isinstance(of, np.ndarray) and of.dtype.kind == "i":  # numpy's types are inferred
            array["read_as"] = "integer"
        outcomes = [
            statistic(**data, **own, **cost, noise=ReproducibleNoise(3))
            for data in (array, {**where_it_is, "column": column})
        ]
        assert outcomes[0] == outcomes[1]
        assert isinstance(outcomes[0], Released)

    same(statistics.median, propose=9.0)
    same(statistics.quantile, p="9/10", propose=90.0)
    same(statistics.iqr, propose=30.0)
    same(statistics.trimmed_mean, trim=40, propose=8.0, bounds=(-60.0, 600.0))
    same(statistics.mode, words[1], column=words[0])
    # Without a proposal the answer is one of the values that the column's type can hold.
    whole = values[~np.isnan(values)].astype(np.int64)
    cost.pop("delta")
    same(statistics.median, whole)
    same(statistics.quantile, whole, p="9/10", certify=3.0)
    same(statistics.quantiles, whole, ps=["1/4", "1/2", "3/4"])
    same(statistics.iqr, whole)
    same(statistics.mean, whole)
    same(statistics.mean, whole, bounds=(-60.0, 600.0))
    same(statistics.variance, whole)


@pytest.mark.parametrize("kind", ["double precision", "real"])
def test_groups_of_doubles_are_found_in_postgres(postgres_table: Any, kind: str) -> None:
    held = [0.5, 0.5, -0.0, 0.0, 0.0, float("inf"), float("nan"), None]
    where = postgres_table({"g": kind}, [(each,) for each in held])
    groups = open_private_groups(by="g", **where)
    assert groups.counts() == {0.5: 2, 0.0: 3, float("inf"): 1}
    sizes = {name: column.count() for name, column in groups.columns([0.0, float("inf")]).items()}
    assert sizes == {0.0: 3, float("inf"): 1}


@pytest.mark.unhurried
def test_the_same_releases_from_postgres(postgres_table: Any) -> None:
    table = flights(FLIGHTS).slice(0, 20_000)
    carriers = table["carrier"].to_pylist()
    rows = list(zip(table["dep_delay"].to_pylist(), carriers, strict=True))
    where = postgres_table({"x": "int", "carrier": "text"}, rows)
    check_same_releases(where, delays(table), ("carrier", carriers))


@pytest.mark.thorough
def test_flights_in_duckdb() -> None:
    table = flights(FLIGHTS)
    assert table.num_rows == 336_776
    check_flights(table, {"source": table})


@pytest.mark.unhurried
@pytest.mark.usefixtures("narrowing")
def test_postgres_answers_as_an_array_does(postgres_table: Any) -> None:
    where = postgres_table({"x": "float8"}, [(x,) for x in ADVERSARIAL.tolist()])
    check_same_answers(open_column(column="x", **where), ADVERSARIAL)


def test_postgres_orders_words_by_their_characters(postgres_table: Any) -> None:
    """In the order of a language, "a" would come before "Z" and "é" before "b"."""
    words = {"w": 'text COLLATE "en-x-icu"', "u": "int"}
    where = postgres_table(words, [(word, index) for index, word in enumerate(WORDS)])
    check_words(open_column(column="w", kind="categories", **where))
    check_words(open_column(column="w", kind="categories", unit="u", **where))


@pytest.mark.unhurried
def test_flights_in_postgres(postgres_table: Any) -> None:
    table = flights(FLIGHTS).slice(0, 30_000)
    types = dict.fromkeys(FLIGHTS, "text") | {"dep_delay": "int", "distance": "numeric"}
    rows = list(zip(*(table[name].to_pylist() for name in FLIGHTS), strict=True))
    check_flights(table, postgres_table(types, rows))


def test_postgres_shows_one_state_of_a_live_table(postgres_table: Any, postgres_url: str) -> None:
    """Count and window must be of the same data, or the margin is of neither."""
    psycopg = pytest.importorskip("psycopg")
    where = postgres_table({"x": "float8"}, [(float(x),) for x in range(10)])
    column = open_column(column="x", **where)
    assert column.count() == 10
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"DELETE FROM {where['table']}")
    np.testing.assert_array_equal(column.order_statistics(1, 10), np.arange(10.0))
    assert open_column(column="x", **where).count() == 0


def test_postgres_can_change_nothing(postgres_table: Any) -> None:
    where = postgres_table({"x": "float8"}, [(1.0,)])
    column = open_column(column="x", **where)
    backend = column.rows.get_backend()  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="read-only transaction"):
        backend.raw_sql(f"DELETE FROM {where['table']}")


@pytest.mark.parametrize(
    ("encoding", "stored", "shown"),
    [("SQL_ASCII", "ff", "\\xff"), ("WIN1252", "81", "\\x81"), ("LATIN1", "e9", "é")],
)
def test_postgres_has_an_image_of_every_text(
    postgres_url: str, encoding: str, stored: str, shown: str
) -> None:
    """Some encodings of a database hold bytes that stand for no character elsewhere."""
    psycopg = pytest.importorskip("psycopg")
    name = f"odd_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 "
            "LC_COLLATE 'C' LC_CTYPE 'C'"
        )
    address = f"{postgres_url.rpartition('/')[0]}/{name}"
    with psycopg.connect(address, client_encoding=encoding, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (c text, x float8)")
        connection.execute("INSERT INTO t SELECT 'a', i FROM generate_series(1, 300) AS i")
        connection.execute(f"INSERT INTO t SELECT convert_from('\\x{stored}', '{encoding}'), 1")
        connection.execute("CREATE TABLE odd AS SELECT * FROM t WHERE c <> 'a'")
    where: Any = {"connect": address, "table": "t"}
    outcome = statistics.mode(**where, column="c", epsilon=2.0, delta=1e-6)
    assert isinstance(outcome, Released)
    assert outcome.value == "a"
    assert open_column(**where, column="x", unit="c").count() == 2
    groups = open_groups(**where, column="x", by="c", groups=["a", "b"])
    assert [column.count() for column in groups.values()] == [300, 0]
    odd = open_column(connect=address, table="odd", column="c", kind="categories")
    assert odd.most_frequent() == shown


@pytest.mark.parametrize("address", ["postgres://nobody:secret@127.0.0.1:1/d", "postgresql://[x"])
def test_an_unreachable_server_is_said_without_its_password(address: str) -> None:
    with pytest.raises(SourceError, match="Could not connect") as caught:
        open_column(connect=address, table="t", column="x")
    assert "secret" not in str(caught.value)


def test_a_missing_table_is_said(postgres_url: str) -> None:
    with pytest.raises(SourceError, match="Could not find table 'nowhere' in the database"):
        open_column(connect=postgres_url, table="nowhere", column="x")


@pytest.fixture
def session(spark_session: Any) -> Any:
    """A local Spark session."""
    return spark_session


@pytest.mark.usefixtures("narrowing")
def test_spark_answers_what_a_release_asks(session: Any) -> None:
    """The heart of the longer test below."""
    numbers = session.createDataFrame([(x,) for x in ADVERSARIAL.tolist()], "x double")
    column, array = open_column(numbers, "x"), ArrayColumn(ADVERSARIAL)
    count = array.count()
    assert column.count() == count
    for first, last in [(count // 2 - 5, count // 2 + 5), (count - 2, count + 5)]:
        expected = array.order_statistics(first, last)
        np.testing.assert_array_equal(column.order_statistics(first, last), expected)
    assert column.sum_between(9, 900, LATTICES[0]) == array.sum_between(9, 900, LATTICES[0])
    expected = array.frequencies(LATTICES[0], within=3)
    np.testing.assert_array_equal(column.frequencies(LATTICES[0], within=3), expected)


def test_spark_puts_units_together_as_duckdb_does(session: Any) -> None:
    """One statement for each kind of value; the rest is in the longer test below."""
    frame = session.createDataFrame(ROWS, "who string, x double")
    for how in ("mean", 3):
        column = open_column(frame, "x", unit="who", per_unit=how)
        found = column.order_statistics(1, column.count())
        assert found.tolist() == expected(how)
    assert session.catalog.listTables()
    del column
    gc.collect()
    assert not session.catalog.listTables()


def test_spark_shows_dates_times_and_decimals(session: Any) -> None:
    frame = session.sql(
        "SELECT DATE'1969-12-31' AS day, TIMESTAMP'2024-02-29 12:00:00.000001+00:00' AS at, "
        "TIMESTAMP_NTZ'2024-02-29 12:00:00.000001' AS local, "
        "CAST(-12.05 AS DECIMAL(20,2)) AS price "
        "UNION ALL SELECT DATE'0001-01-01' + 4000000, NULL, NULL, NULL "
        "UNION ALL SELECT date_add(DATE'1970-01-01', 2147483647), NULL, NULL, NULL"
    )
    moment = datetime.datetime(2024, 2, 29, 12, 0, 0, 1)
    for name, values in {
        "day": [datetime.date(1969, 12, 31), datetime.date.max, datetime.date.max],
        "at": [moment],  # in UTC; ibis does not say that Spark stores a moment
        "local": [moment],
        "price": [Decimal("-12.05")],
    }.items():
        column = open_column(frame, name)
        found = column.order_statistics(1, 9)
        assert [column.scale.value(number) for number in found] == values, name


def test_spark_counts_private_groups(session: Any) -> None:
    frame = session.createDataFrame(
        [(who, x, who[0]) for who, x in ROWS], "u string, x double, g string"
    )
    groups = open_private_groups(frame, "x", by="g", unit="u", per_unit="max")
    counts = groups.counts()
    assert sum(counts.values()) == len(expected("count"))
    assert groups.columns(["o"])["o"].count() == counts["o"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ORACLES)
def test_spark_puts_units_together_in_every_way(session: Any, how: Any) -> None:
    column = open_column(
        session.createDataFrame(ROWS, "who string, x double"), "x", unit="who", per_unit=how
    )
    assert column.order_statistics(1, column.count()).tolist() == expected(how)


def test_spark_tells_words_apart_that_a_collation_takes_for_equal(session: Any) -> None:
    words = session.createDataFrame(
        [("Oslo", 1.0), ("oslo", 2.0), ("oslo", 3.0)], "w string, x double"
    )
    frame = words.selectExpr("w COLLATE UTF8_LCASE AS w", "x")
    assert frame.groupBy("w").count().count() == 1  # to Spark they are one
    column = open_column(frame, "w", kind="categories")
    assert (column.most_frequent(), column.leaders()) == ("oslo", (2, 1, True))
    assert column.counts_of(["Oslo", "Bergen"]).tolist() == [1, 0]
    cities = open_groups(frame, "x", by="w", groups=["Oslo", "oslo"])
    assert [cities[city].count() for city in ("Oslo", "oslo")] == [1, 2]


@pytest.mark.parametrize("odd", ["CAST(X'FF' AS STRING)", "DATE'0001-01-01' + 4000000"])
def test_spark_has_an_image_of_every_value(session: Any, odd: str) -> None:
    """What toPandas could not convert: bytes that are no text, a day in the year 10952."""
    usual = "'a'" if "STRING" in odd else "DATE'2024-01-01'"
    shown: Any = "a" if "STRING" in odd else datetime.date(2024, 1, 1)
    frame = session.range(301).selectExpr(
        f"IF(id < 300, {usual}, {odd}) AS c", "CAST(id AS DOUBLE) AS x"
    )
    cost: Any = {"epsilon": 2.0, "delta": 1e-6}
    outcome = statistics.mode(frame, "c", **cost)
    assert isinstance(outcome, Released)
    assert outcome.value == shown
    assert open_column(frame, "x", unit="c").count() == 2
    strange = open_column(frame.where("id = 300"), "c", kind="categories").most_frequent()
    assert strange == ("\\xff" if "STRING" in odd else "+10952-08-18")


@pytest.mark.parametrize("where", [lambda t: t.x / 0 > 1, lambda t: t.x.cast("int8") > 1])
def test_a_condition_that_fails_keeps_no_row_in_spark(session: Any, where: Any) -> None:
    frame = session.range(3).selectExpr("id * 1000.0 AS x", "CAST(id AS STRING) AS s")
    assert open_column(frame, "x", where=where).count() == 0
    column = open_column(frame, "x", where=lambda t: t.s.try_cast("int64") == 1)
    assert column.count() == 1


def test_little_leaves_spark(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FEW", "FEW_READ"):
        monkeypatch.setattr(table_columns, name, 50)
    frame = session.range(5_000).selectExpr("id * 100 / 5000 AS x")
    sent: list[str] = []
    taken: list[int] = []
    ask, take = type(session).sql, type(frame).toPandas

    def asked(self: Any, query: str, *arguments: Any, **options: Any) -> Any:
        sent.append(query)
        return ask(self, query, *arguments, **options)

    def took(self: Any) -> Any:
        found = take(self)
        taken.append(len(found))
        return found

    monkeypatch.setattr(type(session), "sql", asked)
    monkeypatch.setattr(type(frame), "toPandas", took)

    def median() -> list[tuple[str, int]]:
        sent.clear()
        taken.clear()
        statistics.median(frame, "x", propose=1.0, epsilon=1.0, delta=1e-6)
        return list(zip(sent, taken, strict=True))

    questions = median()
    assert len(questions) == 4
    check_little_leaves(questions, dialect="spark")
    monkeypatch.setattr(TableColumn, "order_statistics", fetch_everything)
    with pytest.raises(AssertionError):
        check_little_leaves(median(), dialect="spark")


@pytest.mark.slow
def test_spark_answers_as_an_array_does(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = session.createDataFrame([(x,) for x in ADVERSARIAL.tolist()], "x double")
    check_same_answers(open_column(numbers, "x"), ADVERSARIAL)
    words = session.createDataFrame([(word,) for word in WORDS], "w string")
    check_words(open_column(words, "w", kind="categories"))
    table = flights(FLIGHTS).slice(0, 3_000)
    frame = session.createDataFrame(table.to_pandas().replace({np.nan: None}))
    for name in ("FEW", "FEW_READ"):
        monkeypatch.setattr(table_columns, name, 50)
    check_flights(table, {"source": frame})
    delayed = frame.withColumn("x", frame["dep_delay"].cast("bigint"))
    carriers = table["carrier"].to_pylist()
    check_same_releases({"data": delayed}, delays(table), ("carrier", carriers))
    gc.collect()
    assert not session.catalog.listTables()


SPARK_MEMORY = """
import sys
from pyspark.sql import SparkSession
from prudent.release.statistics import median, trimmed_mean
from prudent.release.columns.table_columns import TableColumn
from tests.release.columns.pushdown import fetch_everything, peak_memory

if sys.argv[1] == "fetching":
    TableColumn.order_statistics = fetch_everything
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name in ("host", "bindAddress"):
    builder = builder.config(f"spark.driver.{name}", "127.0.0.1")
session = builder.getOrCreate()

def peak(rows):
    frame = session.range(rows).selectExpr(f"id * 100 / {rows} AS x")
    median(frame, "x", propose=1.0, epsilon=1.0, delta=1e-6)
    trimmed_mean(frame, "x", trim=40, propose=1.0, epsilon=1.0, delta=1e-6)
    return peak_memory()

before = peak(100_000)
print(peak(1_000_000) - before)
session.stop()
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows_of_spark() -> None:
    assert growth(SPARK_MEMORY, "asking") < 4  # MB, where a copy of the column would be 8
    assert growth(SPARK_MEMORY, "fetching") > 8
