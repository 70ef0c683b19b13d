"""The forty questions of the page, in SQL and in Python, on three engines."""

import datetime
import functools
import re
import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("ibis", reason="needs the extra `tables`")

import pyarrow as pa
import pyarrow.parquet

import prudent
from prudent.release.outcome import Groups
from tests.release.recording import Book, Silence

PAGE = Path(__file__).resolve().parents[3] / "docs" / "questions.md"
QUESTIONS = re.findall(r"^`(.+)` \| `(.+)`$", PAGE.read_text(), re.MULTILINE)

COUNT = 600
DAY = datetime.date(2023, 1, 1)
TABLE = pa.table(
    {
        "ward": ["a", "b", "a", "c"] * (COUNT // 4),
        "cost": [None if k % 50 == 7 else float(k % 97) * 5.25 for k in range(COUNT)],
        "paid": [None if k % 5 else float(k % 31) for k in range(COUNT)],
        "days": pa.array([k % 9 for k in range(COUNT)], "int64"),
        "age": pa.array([k * 7 % 90 for k in range(COUNT)], "int64"),
        "day": [DAY + datetime.timedelta(days=k % 500) for k in range(COUNT)],
        "born": [DAY - datetime.timedelta(days=k * 13 % 30_000) for k in range(COUNT)],
        "note": [["Ache ", " ache", "fever in May"][k % 3] for k in range(COUNT)],
        "code": [["17", " 4.5", "n/a", "", "1e2", "2023-01-01"][k % 6] for k in range(COUNT)],
        "insured": [k % 3 == 0 for k in range(COUNT)],
    }
)
TYPES = {"ward": "text", "cost": "float8", "paid": "float8", "days": "bigint", "age": "bigint"}
TYPES |= {"day": "date", "born": "date", "note": "text", "code": "text", "insured": "bool"}


def plain(answer: Any) -> Any:
    """What was released, apart from the price."""
    if isinstance(answer, prudent.release.questions.tables.ReleasedTable):
        return {name: plain(each) for name, each in answer.answers.items()}
    if isinstance(answer, Groups):
        return [(group, plain(each)) for group, each in answer.items()]
    return getattr(answer, "value", answer)


def in_sql(question: str, source: dict[str, Any], **given: Any) -> Any:
    """The answer to the first half of a line."""
    selected, part, rest = re.match(r"(.*?)( WHERE| GROUP BY|$)(.*)", question).groups()  # type: ignore[union-attr]
    name = "visits" if "data" in source else source["table"]
    source = {key: each for key, each in source.items() if key != "table"}
    query = f"SELECT {selected} FROM {name}{part}{rest}"
    return prudent.sql(query, **source, epsilon=50.0, delta=1e-3, noise=Silence(), **given)


def in_python(question: str, source: dict[str, Any]) -> Any:
    """The answer to the second half of a line."""
    names: dict[str, Any] = {"round": round, "abs": abs}
    for name in set(re.findall(r"\b([a-z_]+)\(", question)) - {*names}:
        function = getattr(prudent, name, None)
        if function is None:  # inside a text
            continue
        options = {"epsilon": 50.0, "noise": Silence(), **source}
        if name == "mode" or ("by=" in question and "groups=" not in question):
            options["delta"] = 1e-3
        if "by=" in question and "groups=" not in question:
            options["groups"] = "private"
        data = [options.pop("data")] if "data" in options else [None]
        names[name] = functools.partial(function, *data, **options)
    return eval(question, {"__builtins__": {}}, names)


def test_there_are_forty() -> None:
    assert len(QUESTIONS) == 40


@pytest.fixture(scope="module")
def in_duckdb() -> dict[str, list[Any]]:
    source = {"data": TABLE}
    return {
        asked: [plain(in_sql(asked, source)), plain(in_python(same, source))]
        for asked, same in QUESTIONS
    }


@pytest.mark.unhurried
def test_each_has_an_answer(in_duckdb: dict[str, list[Any]]) -> None:
    """Those that a count, a rank or a clipped sum determines are as the table has them."""
    found = {asked: next(iter(each[0].values())) for asked, each in in_duckdb.items()}
    rows = TABLE.to_pylist()
    assert found["count(*)"] == in_duckdb["count(*)"][1] == COUNT
    assert found["count(*) WHERE age>60"] == sum(row["age"] > 60 for row in rows)
    assert found["count(paid)"] == sum(row["paid"] is not None for row in rows)
    assert found["count(DISTINCT ward)"] == 3
    assert dict(found["ward,count(*) GROUP BY ward"]) == {"a": 300, "b": 150, "c": 150}
    assert dict(found["ward,count(*) GROUP BY ward HAVING count(*)>150"]) == {"a": 300}
    decades = dict(found["floor(age/10)*10 AS decade,count(*) GROUP BY decade"])
    assert decades[20] == sum(row["age"] // 10 == 2 for row in rows)
    late = found["sum(CASE WHEN cost>100 THEN 1 ELSE 0 END)"]
    assert late == pytest.approx(sum((row["cost"] or 0) > 100 for row in rows), abs=0.01)
    exact = [row["cost"] / row["days"] for row in rows if row["cost"] is not None and row["days"]]
    assert found["avg(cost/days)"] == pytest.approx(sum(exact) / len(exact), rel=0.02)
    ages = sorted((row["day"] - row["born"]).days for row in rows)
    assert found["median(date_diff('day',born,day))"] == pytest.approx(ages[300], rel=0.02)
    assert all(each is not None for both in in_duckdb.values() for each in both)


@pytest.mark.unhurried
def test_a_question_is_charged_once() -> None:
    for asked, _ in QUESTIONS[:40:13]:
        book = Book()
        in_sql(asked, {"data": TABLE}, ledger=book)
        assert len(book.charges) == 1


@pytest.mark.thorough
def test_in_postgresql(postgres_url: str, in_duckdb: dict[str, list[Any]]) -> None:
    psycopg = pytest.importorskip("psycopg")
    name = f"t_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url) as connection:
        columns = ", ".join(f"{column} {dtype}" for column, dtype in TYPES.items())
        connection.execute(f"CREATE TABLE {name} ({columns})")
        places = ", ".join(["%s"] * len(TYPES))
        rows = [tuple(row.values()) for row in TABLE.to_pylist()]
        connection.cursor().executemany(f"INSERT INTO {name} VALUES ({places})", rows)
    source = {"connect": postgres_url, "table": name}
    for asked, same in QUESTIONS:
        assert plain(in_sql(asked, source)) == in_duckdb[asked][0], asked
        assert plain(in_python(same, source)) == in_duckdb[asked][1], same


@pytest.mark.thorough
def test_in_spark(spark_session: Any, in_duckdb: dict[str, list[Any]], tmp_path: Path) -> None:
    pa.parquet.write_table(TABLE, tmp_path / "t.parquet")
    source = {"data": spark_session.read.parquet(str(tmp_path / "t.parquet")).cache()}
    for asked, same in QUESTIONS:
        assert plain(in_sql(asked, source)) == in_duckdb[asked][0], asked
        assert plain(in_python(same, source)) == in_duckdb[asked][1], same
