"""Every statistic of a table, with odd records: PostgreSQL and Spark answer as DuckDB does.

The noise is the same, so an answer is equal only if every count and sum behind it is. What DuckDB
answers of numbers is compared with arrays and exact integers elsewhere (`columns_suite`).
"""

import datetime
import math
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="needs the extra `tables`")

import pyarrow as pa
import pyarrow.parquet

from prudent import release
from prudent.release import statistics
from prudent.release.columns import queries, table_columns
from prudent.release.columns.column import SourceError, together
from prudent.release.columns.opening import ColumnSpec, open_column, open_groups, open_rows
from prudent.release.lattice import Lattice
from prudent.release.noise import ReproducibleNoise
from tests import answered_twice
from tests.oracles.array_column import ArrayColumn
from tests.release.columns.columns_suite import ADVERSARIAL, LATTICES, check_same_clipped_sums

USUAL = 300
DAY, MOMENT = datetime.date(2024, 2, 28), datetime.datetime(2024, 2, 28, 22, 30)
WORDS = ["Oslo", "oslo", "Bergen"]
ODD: dict[str, list[Any]] = {
    "x": [math.nan, math.inf, -math.inf, -0.0, 5e-324, -5e-324, 1.7976931348623157e308, 0.1],
    "y": [-math.inf, math.nan, 1e-310, 2.0**53 + 2, -1.7976931348623157e308],
    "n": [2**63 - 1, -(2**63), 2**53 + 1, 0, -1],
    "amount": [Decimal("-0.01"), Decimal("99999999999999999.99"), Decimal("-9999999999999999.5")],
    "word": ["", " ", "é", "e\u0301", "\u202eabc", "\U0010ffff", "ß", "SS", "'; --"],
    "flag": [True, False],
    "day": [datetime.date.min, datetime.date.max, datetime.date(1969, 12, 31)],
    "moment": [
        datetime.datetime(1, 1, 1),
        datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999),
        datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    ],
    "person": [-1, 10**9],
}
TYPES = {
    "x": (pa.float64(), "float8", "double"),
    "y": (pa.float64(), "float8", "double"),
    "n": (pa.int64(), "bigint", "bigint"),
    "amount": (pa.decimal128(20, 2), "numeric(20, 2)", "decimal(20, 2)"),
    "word": (pa.string(), "text", "string"),
    "flag": (pa.bool_(), "boolean", "boolean"),
    "day": (pa.date32(), "date", "date"),
    "moment": (pa.timestamp("us"), "timestamp", "timestamp_ntz"),
    "person": (pa.int64(), "bigint", "bigint"),
}


def columns() -> dict[str, list[Any]]:
    """Usual records, then rows that are odd in every column, each column with NULL once."""
    draw = np.random.default_rng(4)
    usual: dict[str, Any] = {
        "x": draw.normal(50.0, 20.0, USUAL).tolist(),
        "y": draw.lognormal(1.0, 1.0, USUAL).tolist(),
        "n": draw.integers(-1_000, 100_000, USUAL).tolist(),
        "amount": [Decimal(cents) / 100 for cents in draw.integers(0, 10**6, USUAL).tolist()],
        "word": [WORDS[place] for place in draw.integers(0, 3, USUAL)],
        "flag": (draw.random(USUAL) < 0.3).tolist(),
        "day": [DAY + datetime.timedelta(days=i % 3) for i in range(USUAL)],
        "moment": [MOMENT + datetime.timedelta(hours=i % 5) for i in range(USUAL)],
        "person": [i // 3 for i in range(USUAL)],
    }
    most = max(map(len, ODD.values())) + 1
    odd = {name: [([None, *values] * most)[i] for i in range(most)] for name, values in ODD.items()}
    return {name: usual[name] + odd[name] for name in TYPES}


Where = dict[str, Any]
PURE: Any = {"epsilon": 3.0}
PTR: Any = {"epsilon": 8.0, "delta": 1e-6}
ENDS: Any = {"bounds": (-100.0, 200.0)}
BOTH: Any = {**ENDS, "other_bounds": (0.0, 50.0)}
CITIES: Any = {"by": "word", "groups": ["Oslo", "oslo", "é", "nowhere"]}


def of(name: str, column: str | None, **given: Any) -> Callable[[Where], Any]:
    """Ask for a statistic of a column."""

    def ask(where: Where) -> Any:
        return getattr(statistics, name)(
            **where, column=column, **given, noise=ReproducibleNoise(5)
        )

    return ask


def several(where: Where) -> Any:
    questions = ["count(*)", "avg(flag)", "median(x)", "sum(amount)", "stddev_pop(y)", "max(n)"]
    return release.table(
        **where, questions=questions, by="word", groups=WORDS, noise=ReproducibleNoise(5), **PURE
    )


def in_sql(where: Where) -> Any:
    name = where.get("table", "t")
    query = f"SELECT word, COUNT(*), AVG(x), MEDIAN(n) FROM {name} WHERE y > 0 GROUP BY word"
    source = {key: value for key, value in where.items() if key != "table"}
    return release.sql(query, **source, noise=ReproducibleNoise(5), **PTR)


ASKS: dict[str, Callable[[Where], Any]] = {
    "rows": of("count", None, **PURE),
    "persons": of("count", None, unit="person", **PURE),
    "rows of groups": of("count", None, **CITIES, **PURE),
    "proportion of a column": of("proportion", "flag", **PURE),
    "proportion of a condition": of("proportion", "x > 40 AND word <> 'oslo'", **PURE),
    "proportion of persons": of("proportion", "n > 0", unit="person", **PURE),
    "sum": of("sum", "x", **PURE),
    "sum of decimals": of("sum", "amount", **PURE),
    "mean": of("mean", "x", **PURE),
    "mean of large integers": of("mean", "n", **PURE),
    "mean of days": of("mean", "day", **PURE),
    "mean of moments": of("mean", "moment", **PURE),
    "variance": of("variance", "y", **PURE),
    "deviation": of("deviation", "x", **PURE),
    "deviation between bounds": of("deviation", "n", bounds=(-(2**40), 2**40), **PURE),
    "minimum": of("minimum", "x", **PURE),
    "maximum": of("maximum", "amount", **PURE),
    "describe": of("describe", "y", **PURE),
    "histogram": of("histogram", "x", **PURE),
    "top": of("top_k", "word", k=2, **PTR),
    "top of a list": of("top_k", "word", k=2, categories=[*WORDS, "ß"], **PURE),
    "distinct": of("count_distinct", "word", **PURE),
    "distinct numbers": of("count_distinct", "x", **PURE),
    "distinct of persons": of("count_distinct", "word", unit="person", per_unit=2, **PURE),
    "ratio": of("ratio", "x", other="y", **BOTH, **PURE),
    "weighted mean": of("weighted_mean", "x", weights="y", **ENDS, largest_weight=9.0, **PURE),
    "covariance": of("covariance", "x", other="y", **BOTH, **PURE),
    "covariance without bounds": of("covariance", "x", other="y", **PURE),
    "covariance of persons": of("covariance", "x", other="y", unit="person", **BOTH, **PURE),
    "correlation": of("correlation", "n", other="y", **BOTH, **PURE),
    "mean by several": of(
        "mean", "x", by=["word", "flag"], groups=[("Oslo", True), ("é", False)], **ENDS, **PURE
    ),
    "count by several": of("count", None, by=["word", "flag"], groups="private", **PTR),
    "count by day": of("count", None, by="moment:day", groups=["2024-02-28", "2024-02-29"], **PURE),
    "count by week": of("count", None, by="day:week", groups="private", **PTR),
    "count by hour": of("count", None, by="moment:hour", groups="private", **PTR),
    "sum by month": of("sum", "x", by="day:month", groups=["2024-02", "2024-03"], **ENDS, **PURE),
    "count by quarter": of("count", None, by="moment:quarter", groups="private", **PTR),
    "count by year": of("count", None, by="day:year", groups="private", **PTR),
    "table": several,
    "sql": in_sql,
}


@pytest.fixture(scope="module")
def expected() -> Callable[[str], Any]:
    """What DuckDB answers."""
    table = pa.table(columns(), schema=pa.schema({name: kind[0] for name, kind in TYPES.items()}))
    return lambda name: ASKS[name]({"data": table})


@pytest.fixture(scope="module")
def in_postgres(postgres_url: str) -> Where:
    """The table in PostgreSQL."""
    psycopg = pytest.importorskip("psycopg")
    fields = ", ".join(f"{name} {kind[1]}" for name, kind in TYPES.items())
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"CREATE TABLE engine_statistics ({fields})")
        with connection.cursor().copy("COPY engine_statistics FROM STDIN") as copy:
            for row in zip(*columns().values(), strict=True):
                copy.write_row(row)
    return {"connect": postgres_url, "table": "engine_statistics"}


@pytest.fixture(scope="module")
def in_spark(spark_session: Any) -> Where:
    """The table in Spark."""
    fields = ", ".join(f"{name} {kind[2]}" for name, kind in TYPES.items())
    return {
        "data": spark_session.createDataFrame(list(zip(*columns().values(), strict=True)), fields)
    }


@pytest.mark.thorough
@pytest.mark.parametrize("name", ASKS)
def test_postgres_answers_as_duckdb_does(
    name: str, expected: Callable[[str], Any], in_postgres: Where
) -> None:
    assert ASKS[name](in_postgres) == expected(name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ASKS)
def test_spark_answers_as_duckdb_does(
    name: str, expected: Callable[[str], Any], in_spark: Where
) -> None:
    assert ASKS[name](in_spark) == expected(name)


@pytest.mark.parametrize("how", ["read here", "wide integers", "as for spark"])
def test_limbs_add_up_to_exact_sums(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether an engine adds 64-bit integers to wider ones or not; lattices of 2**53 points."""
    if how != "read here":
        monkeypatch.setattr(queries.ColumnQuery, "reads", False)
    if how == "as for spark":
        for module in (queries, table_columns):
            monkeypatch.setattr(module, "limb_bits", lambda _, factors=1: 26 // factors)
    table = pa.table({"x": ADVERSARIAL, "y": ADVERSARIAL[::-1]})
    column = open_column(table, "x")
    for lattice in LATTICES[1:3]:
        check_same_clipped_sums(column, ADVERSARIAL, lattice)
    one, two = Lattice(-30, -(2**52), 2**52), Lattice(-20, -(2**25), 2**25)
    both: Any = open_rows(ColumnSpec(table, "x", other="y")).column()
    kept = ~(np.isnan(ADVERSARIAL) | np.isnan(ADVERSARIAL[::-1]))
    first, second = (
        [int(step) - lattice.low for step in lattice.steps(values[kept])]
        for values, lattice in ((ADVERSARIAL, one), (ADVERSARIAL[::-1], two))
    )
    assert both.sums(one, two) == table_columns.ProductSums(
        count=len(first),
        first=sum(first),
        second=sum(second),
        product=sum(a * b for a, b in zip(first, second, strict=True)),
        first_squares=sum(a * a for a in first),
        second_squares=sum(b * b for b in second),
    )


@pytest.mark.unhurried
def test_batches_of_several_groups_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What DuckDB hands over a few rows at a time is what arrays of the groups would be."""
    monkeypatch.setattr(queries, "BLOCK", 7)
    first, second = ADVERSARIAL, ADVERSARIAL[::-1]
    group = np.arange(len(first)) % 3
    table = pa.table({"x": first, "y": second, "c": group})
    columns: Any = open_groups(table, "x", by="c", groups=[2, 0, 5, 1], other="y")
    lattice, points = Lattice(-30, -(2**52), 2**52), Lattice(-1, -40, 60)

    def sums(each: Any) -> list[int]:
        return [each.clipped_sum(-9.0, 1e9, lattice), each.clipped_squares(-9.0, 1e9, lattice)]

    found = dict(
        zip(columns, together([partial(sums, each) for each in columns.values()]), strict=True)
    )
    both = together([partial(each.sums, points, lattice) for each in columns.values()])
    for (name, column), pair in zip(columns.items(), both, strict=True):
        own = (group == name) & ~(np.isnan(first) | np.isnan(second))
        array, other = ArrayColumn(first[own]), ArrayColumn(second[own])
        assert found[name] == sums(array)
        for ours, theirs in ((column, array), (column.second, other)):
            for one, two in (
                (ours.half_octaves(), theirs.half_octaves()),
                (ours.frequencies(points, 2**62), theirs.frequencies(points, 2**62)),
                (ours.frequencies(lattice, 2), theirs.frequencies(lattice, 2)),
            ):
                assert [each.tolist() for each in one] == [each.tolist() for each in two]
        steps = [int(step) - points.low for step in points.steps(first[own])]
        others = [int(step) - lattice.low for step in lattice.steps(second[own])]
        assert (pair.first, pair.second) == (sum(steps), sum(others))
        assert pair.product == sum(a * b for a, b in zip(steps, others, strict=True))


def test_no_statistics_of_a_file_let_a_missing_number_in(tmp_path: Any) -> None:
    """The largest value of a row group does not tell of NaN, which a comparison leaves out."""
    values = np.arange(5_000.0)
    values[[7, 4_999]], values[3_000] = math.nan, math.inf
    path = tmp_path / "x.parquet"
    pyarrow.parquet.write_table(pa.table({"x": values}), path, row_group_size=500)
    column = open_column(str(path), "x")
    assert column.count() == 4_998
    assert column.counts_below(np.array([math.inf])).tolist() == [4_997]


READ: dict[str, Callable[[Any], Any]] = {
    "half-octaves": lambda x: x.half_octaves(),
    "ranks": lambda x: x.order_statistics(2, 9),
    "sums": lambda x: x.clipped_sum(-9.0, 9.0, LATTICES[1]),
    "squares": lambda x: x.clipped_squares(-9.0, 9.0, LATTICES[1]),
    "points": lambda x: x.frequencies(Lattice(-1, -40, 60), 9),
    "pairs": lambda x: x.sums(LATTICES[1], LATTICES[1]),
}


@pytest.mark.parametrize("question", READ)
def test_rows_that_answer_otherwise_than_the_engine_fail_a_test_run(
    question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """See `tests/answered_twice.py`. The fault: a row of each block is lost."""
    answered_twice.begin()  # all answers are compared
    rows = pa.table({"x": np.arange(-5.0, 9.0), "y": np.arange(14.0)})

    def asked() -> Any:
        return READ[question](open_rows(ColumnSpec(rows, "x", other="y")).column())

    asked()

    def losing(block: Any, *result: Any) -> Any:
        return queries.Reader(lambda *some: block(*(each[1:] for each in some)), *result)

    monkeypatch.setattr(table_columns, "Reader", losing)
    with pytest.raises(SourceError):  # which withholds the difference
        asked()
    (differing,) = answered_twice.FAILED
    answered_twice.FAILED.clear()
    assert "SQL" in differing
