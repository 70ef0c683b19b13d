"""Numbers reach the mechanisms as doubles, whatever an engine computes, and rounding is total."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="needs the extra `tables`")

import duckdb
import numpy as np
import pyarrow as pa

import prudent
from prudent.release.lattice import exponents
from tests.release.recording import Silence

TYPES = ["FLOAT", "DECIMAL(9,2)", "UBIGINT", "HUGEINT", "TINYINT"]
EXPRESSIONS = {"v / 3": 10.0, "v * 0.5": 15.0, "v / v": 1.0}
ASKED = ["avg({})", "median({})", "quantile({}, 0.9)", "sum({})", "var_pop({})"]


@pytest.mark.unhurried
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("records", [3000, 3001])
def test_an_expression_of_any_type_is_read_as_doubles(
    dtype: str, records: int, tmp_path: Path
) -> None:
    """The number of records, odd or even, decided between an error and garbage."""
    place = tmp_path / "v.duckdb"
    with duckdb.connect(str(place)) as made:
        made.execute(f"CREATE TABLE t AS SELECT CAST(30 AS {dtype}) AS v FROM range({records})")
    there = f"duckdb://{place}"
    for text, truth in EXPRESSIONS.items():
        query = f"SELECT {', '.join(each.format(text) for each in ASKED)} FROM t"
        found: Any = prudent.sql(query, connect=there, epsilon=20.0, noise=Silence())
        mean, *quantiles, total, variance = (each.value for each in found.answers.values())
        assert [mean, *quantiles] == pytest.approx([truth] * 3, rel=1e-3)
        assert total == pytest.approx(records * truth, rel=1e-3)
        assert abs(variance) < 1e-3


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["FLOAT", "DECIMAL(9,2)", "DATE"])
def test_numbers_of_spark_are_doubles_and_rounding_is_total(spark_session: Any, dtype: str) -> None:
    value = "'2024-05-31'" if dtype == "DATE" else "30"
    frame = spark_session.sql(
        f"SELECT CAST({value} AS {dtype}) AS v, id div 2 AS p, "
        "IF(id = 7, double('infinity'), 3.5D) AS w FROM range(3001)"
    )
    given: Any = {"unit": "p", "epsilon": 20.0, "noise": Silence()}
    found = str(prudent.median(frame, "v", **given).value)
    assert found.startswith("2024-05-31" if dtype == "DATE" else "30")
    assert prudent.median(frame, "w", **given).value == pytest.approx(3.5)


def test_bits_of_other_types_are_never_read() -> None:
    from prudent.release.columns.dialects import doubles_of

    batch = pa.record_batch({"value": pa.array([1.0, 2.0], pa.float32())})
    with pytest.raises(TypeError, match="float"):
        doubles_of(batch, "value")
    with pytest.raises(AssertionError, match="bits"):
        exponents(np.zeros(4, np.float32))  # type: ignore[arg-type]


MOMENTS = {
    "DATE": "'2024-05-31'",
    "TIMESTAMP": "'2024-05-31 12:00:00'",
    "TIMESTAMPTZ": "'2024-05-31 12:00:00+00'",
    "DOUBLE": "'3.5'",
}


@pytest.mark.parametrize("dtype", MOMENTS)
@pytest.mark.parametrize("rule", ["mean", 2])
def test_one_infinite_value_of_a_person_stops_nothing(
    dtype: str, rule: Any, tmp_path: Path
) -> None:
    place = tmp_path / "d.duckdb"
    with duckdb.connect(str(place)) as made:
        made.execute(
            f"CREATE TABLE t AS SELECT range // 2 AS p, CAST({MOMENTS[dtype]} AS {dtype}) AS v "
            "FROM range(4000)"
        )
        made.execute("INSERT INTO t VALUES (7, 'infinity'), (8, 'infinity'), (8, '-infinity')")
    given: Any = {"connect": f"duckdb://{place}", "table": "t", "column": "v", "unit": "p"}
    found = prudent.median(**given, per_unit=rule, epsilon=1.0, noise=Silence())
    plain = MOMENTS[dtype].strip("'")
    assert str(found.value).startswith(plain.partition("+")[0])


@pytest.mark.unhurried
@pytest.mark.parametrize("read_as", ["date", "timestamp", "decimal(2)", "duration", "number"])
def test_one_infinite_line_of_a_file_stops_nothing(read_as: str, tmp_path: Path) -> None:
    value = "2024-05-31" if read_as in ("date", "timestamp") else "3.5"
    lines = [f"{person // 2},{value}" for person in range(4000)]
    place = tmp_path / "v.csv"
    answers = []
    for more in ([], ["7,infinity"], ["7,-inf", "7,1e308", "7,1e999"]):
        place.write_text("\n".join(["p,v", *lines, *more]) + "\n")
        given: Any = {"unit": "p", "read_as": read_as, "epsilon": 1.0, "noise": Silence()}
        answers.append(prudent.median(place, "v", **given).value)
    assert len(set(map(str, answers))) == 1


def test_one_infinite_value_of_a_person_stops_nothing_in_postgres(postgres_url: str) -> None:
    import psycopg

    kinds = {"date": "2024-05-31", "timestamp": "2024-05-31 12:00", "numeric(9,2)": "3.5"}
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for place, (dtype, value) in enumerate(kinds.items()):
            connection.execute(f"DROP TABLE IF EXISTS infinite_{place}")
            connection.execute(f"CREATE TABLE infinite_{place} (p int, v {dtype})")
            connection.execute(
                f"INSERT INTO infinite_{place} SELECT g / 2, '{value}' "
                "FROM generate_series(0, 999) g"
            )
            end = "NaN" if dtype.startswith("numeric") else "infinity"
            connection.execute(f"INSERT INTO infinite_{place} VALUES (7, '{end}')")
    for place, value in enumerate(kinds.values()):
        given: Any = {"connect": postgres_url, "table": f"infinite_{place}", "unit": "p"}
        found = prudent.median(column="v", **given, epsilon=1.0, noise=Silence())
        assert str(found.value).startswith(value)


def test_an_expression_that_the_engine_lacks_is_refused_before_the_charge(tmp_path: Path) -> None:
    """DuckDB rounds to as many digits as an INTEGER says, and to no BIGINT of them."""
    table = pa.table({"f": [1.25, 2.5] * 100, "i": pa.array([1, 1] * 100, pa.int64())})
    with prudent.Ledger(tmp_path / "l.db", epsilon=1.0, delta=1e-6) as ledger:
        with pytest.raises(ValueError, match="Expected where to look at one row"):
            prudent.mean(table, "f", where=lambda t: t.f.round(t.i) > 0, epsilon=0.5, ledger=ledger)
        assert not ledger.history()
