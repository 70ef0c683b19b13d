"""SQL is parsed into the same questions, never executed, and refused free of charge."""

import datetime
import itertools
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("ibis", reason="needs the extra `tables`")

import pyarrow as pa
import pyarrow.parquet

import prudent
from prudent._validate import ArgumentError
from prudent.cli import main
from prudent.release.columns import queries as queries_of
from prudent.release.columns import table_columns
from prudent.release.columns.table_columns import TableColumn
from tests.release.recording import Book, Silence

X = np.arange(400.0)
TABLE = pa.table(
    {
        "x": X,
        "y": 400 - X,
        "w": X % 3,
        "city": ["oslo", "bergen", "oslo", "paris"] * 100,
        "day": np.datetime64("2024-01-01") + (np.arange(400) % 60).astype("m8[D]"),
        "order": ["a"] * 400,
    }
)


def ask(query: str, **given: Any) -> Any:
    return prudent.sql(query, people=TABLE, **{"epsilon": 1.0, "noise": Silence(), **given})


@pytest.mark.thorough
def test_every_aggregate_is_the_statistic_that_it_names() -> None:
    found = ask(
        "SELECT count(*) AS n, count(DISTINCT city) AS cities, avg(clip(x, 0, 400)) AS mean, "
        "sum(clip(x, 0, 400)) AS total, avg(x > 99) AS share, sum(x * w) / sum(w) AS weighted, "
        "sum(x) / sum(y) AS ratio, corr(clip(x, 0, 400), clip(y, 0, 400)) AS r, "
        "var_pop(clip(x, 0, 400)) AS v, stddev_pop(clip(x, 0, 400)) AS s, "
        "count(*) FILTER (WHERE x < 10) AS few, countif(x < 5) AS fewer, "
        "quantile(x, 0.9) AS q, percentile_disc(0.25) WITHIN GROUP (ORDER BY x) AS p, "
        "median(x) AS m, min(x) AS low, max(x) AS high FROM people",
        epsilon=50.0,
    )
    assert found["n"].value == 400
    assert found["cities"].value == 3
    assert found["mean"].value == pytest.approx(X.mean())
    assert found["total"].value == pytest.approx(X.sum())
    assert found["share"].value == pytest.approx(0.75)
    assert found["r"].value == pytest.approx(-1, abs=1e-4)
    assert found["v"].value == pytest.approx(X.var(), rel=1e-4)
    assert found["s"].value == pytest.approx(X.std(), rel=1e-4)
    assert (found["few"].value, found["fewer"].value) == (10, 5)
    assert found.columns["weighted"] == ("x", "weighted_mean")
    assert found.columns["ratio"] == ("x", "ratio")
    assert found.columns["p"] == ("x", "quantile")


@pytest.mark.unhurried
def test_periods_are_chosen_and_sorted_by_their_first_day_however_they_are_named() -> None:
    of = "SELECT date_trunc('month', day) AS m, count(*) n FROM people GROUP BY m"
    for groups in (["2024-01", "2024-02"], ["2024-01-20", datetime.date(2024, 2, 9)]):
        found = ask(f"{of} ORDER BY m DESC", groups=groups)
        assert list(found["n"]) == groups[::-1]
        found = ask(f"{of} HAVING date_trunc('month', day) > '2024-01-15'", groups=groups)
        assert list(found["n"]) == groups[1:]


def test_a_group_that_may_be_a_column_or_a_value_of_its_name_is_refused() -> None:
    book = Book()
    query = "SELECT upper(city) AS {0}, count(*) n FROM people GROUP BY {1}"
    for name in ("city", "x"):
        with pytest.raises(ArgumentError, match=f"{name} is a column, and a value of that name"):
            ask(query.format(name, name), groups=["OSLO"], ledger=book)
    assert not book.charges
    for query_by in (query.format("city", 1), query.format("town", "town")):
        assert ask(query_by, groups=["OSLO"])["n"]["OSLO"].value == 200


def test_booleans_and_negative_numbers_that_the_query_names_are_groups() -> None:
    found = ask(
        "SELECT x > 99 AS far, count(*) n FROM people WHERE (x > 99) IN (true, false) GROUP BY far"
    )
    assert {group: each.value for group, each in found["n"].items()} == {True: 300, False: 100}
    found = ask("SELECT -w AS k, count(*) n FROM people WHERE -w IN (-1, -2) GROUP BY k")
    assert set(found["n"]) == {-1, -2}


def test_groups_without_group_by_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArgumentError, match="groups only with GROUP BY in the query"):
        ask("SELECT count(*) FROM people", groups=["oslo"])
    assert main(["sql", "SELECT count(*) FROM 't.csv'", "--epsilon=1", "--groups=a"]) == 2
    assert capfd.readouterr().err.startswith("--groups: expected only with GROUP BY")


def test_groups_that_the_query_names_are_public() -> None:
    book = Book()
    query = (
        "SELECT city, count(*) n FROM people WHERE city IN ('oslo', 'bergen', 'rome') AND x >= 100 "
        "GROUP BY city ORDER BY n DESC, city LIMIT 2"
    )
    found = ask(query, ledger=book)
    assert {group: each.value for group, each in found["n"].items()} == {"oslo": 150, "bergen": 75}
    assert len(book.charges) == 1
    frame = found.to_frame(wide=True)
    assert frame[["city", "n"]].to_dict("list") == {"city": ["oslo", "bergen"], "n": [150, 75]}
    assert list(frame.columns) == ["city", "n", "n low", "n high", "n notes"]


@pytest.mark.thorough
def test_other_groups_are_given_or_private() -> None:
    query = "SELECT date_trunc('month', day) AS month, count(*) FROM people GROUP BY 1"
    found = ask(query, groups=["2024-01..2024-03"])
    assert [each.value for each in found["COUNT(*)"].values()] == [217, 183, 0]
    found = ask(query, epsilon=9.0, delta=1e-6)
    assert len(found["COUNT(*)"]) == 2
    with pytest.raises(ValueError, match="those with enough records are found privately"):
        ask(query)


REFUSED = {
    "SELECT x FROM people": "Single values are private",
    "SELECT * FROM people": "Name the statistics",
    "SELECT avg(x), x FROM people": "Single values are private",
    "SELECT DISTINCT city FROM people": "count\\(DISTINCT x\\)",
    "SELECT avg(DISTINCT x) FROM people": "a mean of different values has no private answer",
    "SELECT avg(x) FROM people JOIN people b USING (x)": "name it as unit",
    "SELECT avg(x) FROM people JOIN people b ON people.x = b.y": "name it as unit",
    "SELECT avg(x) FROM people JOIN others USING (x)": "FROM one of people",
    "SELECT avg(x) FROM people RIGHT JOIN people b USING (x)": "JOIN and LEFT JOIN",
    "SELECT avg(x) FROM people FULL JOIN people b USING (x)": "JOIN and LEFT JOIN",
    "SELECT avg(x) FROM people SEMI JOIN people b USING (x)": "JOIN and LEFT JOIN",
    "SELECT avg(x) FROM people NATURAL JOIN people b": "JOIN and LEFT JOIN",
    "SELECT avg(x) FROM people CROSS JOIN people b": "JOIN and LEFT JOIN",
    "SELECT avg(x) FROM people JOIN people b ON people.x < b.x": "is not a.key = b.key",
    "SELECT avg(x) FROM people JOIN people b ON people.x = 1": "is not a.key = b.key",
    "SELECT avg(x) FROM people JOIN people USING (x)": "the same name",
    "SELECT avg(x) FROM people a JOIN people b ON a.x = b.x AND a.x = b.y": "named before",
    "SELECT avg(x) FROM people a JOIN people b ON a.x = b.x AND a.y = b.x": "named before",
    "SELECT avg(x) FROM people a LEFT JOIN people b USING (x) JOIN people c ON b.x = c.x": (
        "b was joined by LEFT JOIN"
    ),
    "SELECT avg(x) FROM people JOIN (SELECT 1) b USING (x)": "subquery stands after FROM",
    "SELECT avg(b.x) FROM people": "it names no table b",
    "SELECT avg(x) FROM people, others": "neither ON nor USING",
    "SELECT avg(x) FROM (SELECT y FROM people)": "its subquery has no column x",
    "SELECT avg(x) FROM (SELECT x FROM people LIMIT 3)": "its subquery has LIMIT",
    "SELECT avg(x) FROM (SELECT DISTINCT x FROM people)": "its subquery has DISTINCT",
    "SELECT avg(x) FROM (SELECT max(x) AS x FROM people)": "its subquery has an aggregate",
    "SELECT avg(n) FROM (SELECT city, 1 AS n FROM people GROUP BY city)": "subquery has GROUP",
    "SELECT avg(x) FROM (SELECT x FROM people UNION SELECT 1)": "its subquery has no SELECT",
    "SELECT avg(x) FROM (SELECT rank() OVER () AS x FROM people)": "has an aggregate",
    "WITH t AS (SELECT 1 AS x) SELECT avg(x) FROM t": "no single table after FROM",
    "WITH RECURSIVE t AS (SELECT x FROM t) SELECT avg(x) FROM t": "RECURSIVE",
    "SELECT avg(x) FROM people WHERE x > (SELECT avg(x) FROM people)": "subquery stands after FROM",
    "SELECT avg(x) OVER () FROM people": "Ask by group",
    "SELECT city, count(*) FROM people GROUP BY city HAVING x > 3": "chosen by x, which it lacks",
    "SELECT count(*) FROM people HAVING count(*) > 3": "HAVING without GROUP BY",
    "SELECT city, count(*) FROM people GROUP BY city HAVING count(*)": "Expected query",
    "SELECT max(day) - min(day) FROM people": "an answer that is no number",
    "SELECT mode(city) || 'a' FROM people": "an answer that is no number",
    "SELECT avgg(x) FROM people": "there is no aggregate avgg. Aggregates that can be asked: count",
    "SELECT count(*) + x FROM people": "Single values are private",
    "SELECT count(*) AS a, avg(x) AS a FROM people": "the same name",
    "SELECT avg(x) + random() FROM people": "it uses rand",
    "SELECT count(*) FROM people GROUP BY avg(x)": "which is an aggregate",
    "SELECT string_agg(city, ',') FROM people": "Aggregates that can be asked",
    "SELECT list(x) FROM people": "Aggregates that can be asked",
    "SELECT avg(max(x)) FROM people": "it uses max",
    "SELECT avg(random()) FROM people": "it uses",
    "SELECT count(*) FROM people WHERE rowid < 3": "where: unknown column",
    "SELECT count(*) FROM people WHERE read_text('/etc/passwd') = 'a'": "Expected where",
    "SELECT count(*) FROM read_csv('/etc/passwd')": "no single table after FROM",
    "SELECT count(*) FROM people; DROP TABLE people": "no single SELECT",
    "SELECT count(*) FROM people UNION SELECT 1": "no single SELECT",
    "SELECT count(*) FROM people TABLESAMPLE 1": "no single table after FROM",
    "SELECT count(*) FROM people ORDER BY x": "ordered or chosen by x",
    "SELECT count(*) FROM people LIMIT 0": "its LIMIT or OFFSET leaves no answer",
    "SELECT count(*) FROM people OFFSET 1": "its LIMIT or OFFSET leaves no answer",
    "SELECT DISTINCT ON (x) city, count(*) FROM people GROUP BY city": "it has DISTINCT of rows",
    "SELECT city, count(*) FROM people GROUP BY ROLLUP (city)": "not a list of values",
    "SELECT count(*) FROM people GROUP BY 7": "there is no column 7",
    "SELECT city, count(*) FROM people GROUP BY 1.5": "there is no column 1.5",
    "SELECT max(x, 3) FROM people": "no private question",
    "SELECT count(x, city) FROM people": "counts several values",
    "SELECT avg(clip(x, 1)) FROM people": "clip\\(x, low, high\\)",
    "SELECT percentile_disc(0.9) WITHIN GROUP (ORDER BY x DESC) FROM people": "Ask for 1 - p",
    "SELECT count(*) FROM strangers": "FROM one of people",
    "DELETE FROM people": "no single SELECT",
    "COPY people TO 'x.csv'": "no single SELECT",
    "SELECT": "no single table",
    "not sql at all (": "cannot be parsed",
}


@pytest.mark.parametrize("query", REFUSED)
def test_what_has_no_private_answer_is_refused_free_of_charge(query: str) -> None:
    book = Book()
    with pytest.raises(ValueError, match=REFUSED[query]):
        ask(query, delta=1e-6, ledger=book)
    assert book.charges == []


@pytest.mark.unhurried
def test_joins_of_persons_and_of_public_tables() -> None:
    places = pa.table({"town": ["oslo", "bergen"], "x": [1.0, 2.0]})
    rows = TABLE.select(["x", "city"]).append_column("id", pa.array(np.arange(400) // 4))
    given: dict[str, Any] = {"epsilon": 9.0, "noise": Silence(), "people": rows}
    found = prudent.sql(
        "SELECT p.town, count(*) n, avg(clip(people.x, 0, 400)) m FROM places p "
        "JOIN people ON people.city = p.town "
        "WHERE p.x < 3 AND town IN ('oslo', 'bergen') GROUP BY p.town",
        places=places,
        public=["p"],
        **given,
    )
    assert [each.value for each in found["n"].values()] == [200, 100]
    assert found["m"]["bergen"].value == pytest.approx(199, abs=1e-3)
    ages = pa.table({"id": np.arange(50), "age": np.arange(50.0)})
    found = prudent.sql(
        "SELECT count(*) n FROM people LEFT JOIN ages a USING (id) "
        "WHERE a.age < 20 OR a.id IS NULL",
        ages=ages,
        unit="id",
        **given,
    )
    assert found["n"].value == 70
    with pytest.raises(ValueError, match="Expected data None for a join"):
        ask("SELECT count(*) FROM people JOIN ages USING (id)", data=rows, unit="id")
    with pytest.raises(ValueError, match="Expected public only with JOIN"):
        ask("SELECT count(*) FROM people", public=["people"])
    with pytest.raises(ValueError, match="either data or connect"):
        ask("SELECT count(*) FROM people", data=rows, connect="duckdb://x.duckdb")
    with pytest.raises(ValueError, match="Expected public"):
        ask("SELECT count(*) FROM people a JOIN people b USING (x)", public=["c"], unit="id")


@pytest.mark.unhurried
def test_a_column_is_that_of_the_table_that_the_query_names() -> None:
    one = pa.table({"u": [1, 2], "k": [1, 1], "x": [3.0, 4.0]})
    two = pa.table({"u": [1, 2], "date": [1.0, 2.0]})
    three = pa.table({"k": [1], "date": [9.0], "X": [7.0]})
    given: dict[str, Any] = {"unit": "u", "epsilon": 9.0, "noise": Silence(), "public": ["c"]}
    given |= {"a": one, "b": two, "c": three}
    rest = "FROM a JOIN b ON a.u = b.u JOIN c ON a.k = c.k"
    for column, total in (("b.date", 3.0), ("c.date", 18.0), ("a.x", 7.0), ("c.X", 14.0)):
        found = prudent.sql(f"SELECT sum(clip({column}, 0, 20)) s {rest}", **given)
        assert found["s"].value == pytest.approx(total, abs=1e-3)
    for column in ("a.date", "b.x", "date"):
        with pytest.raises(ValueError, match=r"no column|unknown column"):
            prudent.sql(f"SELECT sum(clip({column}, 0, 20)) s {rest}", **given)


def test_a_public_table_is_the_one_that_the_query_calls_so() -> None:
    """The table b, which the query calls c, is private: what it calls b is another."""
    given: dict[str, Any] = {"a": pa.table({"k": [1]}), "b": pa.table({"k": [1, 1, 1]})}
    query = "SELECT count(*) n FROM b c JOIN a b USING (k)"
    found = prudent.sql(query, public=["b"], epsilon=1.0, noise=Silence(), **given)
    assert found["n"].value == 3


@pytest.mark.thorough
def test_several_joins_and_those_of_a_database_file(tmp_path: Any) -> None:
    import duckdb

    visits = pa.table({"id": np.arange(300) // 3, "ward": ["a", "b", "c"] * 100, "age": [1] * 300})
    people = pa.table({"id": np.arange(80), "age": np.arange(80.0)})
    wards = pa.table({"ward": ["a", "b"], "city": ["x", "y"]})
    tables = {"visits": visits, "people": people, "wards": wards}
    given: dict[str, Any] = {"unit": "id", "epsilon": 9.0, "noise": Silence(), "public": ["wards"]}
    own = "SELECT count(*) n, avg(clip(p.age, 0, 80)) m FROM visits v "
    for rest in (
        "JOIN people p ON v.id = p.id JOIN wards ON v.ward = wards.ward WHERE city = 'x'",
        "LEFT JOIN wards USING (ward) JOIN people p USING (id) WHERE city = 'x' AND v.age = 1",
    ):
        found = prudent.sql(own + rest, **tables, **given)
        assert found["n"].value == 80
        assert found["m"].value == pytest.approx(39.5, abs=1e-3)
    file = str(tmp_path / "t.duckdb")
    with duckdb.connect(file) as connection:
        for name, each in tables.items():
            connection.register("held", each)
            connection.execute(f"CREATE TABLE {name} AS FROM held")
    book = tmp_path / "budget.db"
    with prudent.Ledger(book, epsilon=99.0, delta=1e-6, data=file) as ledger:
        query = "SELECT count(*) n FROM visits JOIN people USING (id)"
        given |= {"public": (), "ledger": ledger}
        assert prudent.sql(query, data=file, **given)["n"].value == 80


def test_names_with_blanks_and_reserved_words_are_names() -> None:
    table = TABLE.rename_columns(["x", "y z", "w", "city", "day", "order"])
    found: Any = prudent.sql(
        'SELECT avg(clip("y z", 0, 400)) AS a, count("order") FROM people WHERE "y z" > 200',
        people=table,
        epsilon=1.0,
        noise=Silence(),
    )
    assert found["a"].value == pytest.approx(np.arange(201.0, 401).mean())


@pytest.mark.unhurried
def test_a_query_on_the_command_line(tmp_path, capsys) -> None:
    import json

    pa.parquet.write_table(TABLE, tmp_path / "people.parquet")
    query = f"SELECT median(x), count(*) FROM '{tmp_path}/people.parquet' WHERE city = 'oslo'"
    assert main(["sql", query, "--epsilon", "5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["answers"]) == {"median(x)", "count(*)"}
    assert main(["sql", query, "--epsilon", "5", "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "count by laplace: ε = 2.17" in shown  # 1 of 1 + 1.3
    assert "SELECT COUNT(*)" in shown
    assert main(["sql", "SELECT x FROM 'people.parquet'", "--epsilon", "5"]) == 2
    assert "Single values are private" in capsys.readouterr().err
    table = ["release", "table", str(tmp_path / "people.parquet"), "--epsilon", "9", "--json"]
    both = ["--by", "city,w", "--groups", "oslo,paris;0,1"]
    assert main([*table, "--columns", "median(x),quantile(y, 0.9)", *both]) == 0
    groups = json.loads(capsys.readouterr().out)["answers"]["quantile(y, 0.9)"]["groups"]
    assert list(groups) == ["oslo, 0", "oslo, 1", "paris, 0", "paris, 1"]


def test_a_counted_condition_is_joined_with_those_of_the_query_and_of_a_filter() -> None:
    found = ask(
        "SELECT count_if(x >= 50) AS some, count_if(x >= 50) FILTER (WHERE x < 60) AS few "
        "FROM people WHERE x < 100"
    )
    assert [found["some"].value, found["few"].value] == [50, 10]


@pytest.mark.unhurried
def test_what_is_computed_from_answers_is_post_processing() -> None:
    book = Book()
    found = ask(
        "SELECT city AS town, sum(clip(x, 0, 400)) / count(*) AS mean, round(count(*) / 3, 1) r, "
        "sum(CASE WHEN x >= 200 THEN 1 ELSE 0 END) AS late, count(*) AS n, count(*) - 1 AS less "
        "FROM people WHERE city IN ('oslo', 'bergen', 'paris') GROUP BY city "
        "HAVING count(*) > 50 AND town <> 'paris' ORDER BY -count(*) - 0.5, town LIMIT 2",
        epsilon=50.0,
        ledger=book,
    )
    assert len(book.charges) == 1
    (event, _, _), *_ = book.charges
    assert len(event.events) == 3  # type: ignore[attr-defined]  # n is released once
    assert list(found.answers) == ["mean", "r", "late", "n", "less"]
    assert found["mean"].names == ("town",)
    assert {name: each.value for name, each in found["n"].items()} == {"oslo": 200, "bergen": 100}
    assert [each.value for each in found["late"].values()] == pytest.approx([100, 50], abs=0.1)
    assert [each.value for each in found["r"].values()] == [66.7, 33.3]
    assert [each.value for each in found["less"].values()] == [199, 99]
    oslo = found["mean"]["oslo"]
    assert oslo.value == pytest.approx(199.0, abs=0.01)
    assert oslo.mechanism == "post-processing"
    low, high = oslo.interval()
    n_low, n_high = found["n"]["oslo"].interval(0.975)
    assert low < 199 * 200 / n_high < 199 * 200 / n_low < high
    frame = found.to_frame(wide=True)
    assert list(frame["town"]) == ["oslo", "bergen"]


ODD = pa.table(
    {
        "p": pa.array([Decimal(k % 17) / 4 for k in range(60)], pa.decimal128(10, 2)),
        "n": pa.array([k % 3 for k in range(60)], "int64"),
        "d": [datetime.date(2024, 1, 1 + k % 2) for k in range(60)],
        "s": [datetime.datetime(2024, 1, 1, k % 2) for k in range(60)],
        "o": pa.array([datetime.timedelta(hours=k) for k in range(60)], pa.duration("us")),
    }
)
COMPUTED = {
    "SELECT 2 * avg(p) FILTER (WHERE p > 1.5) AS a FROM t": 5.6,
    "SELECT round(median(p) / max(p), 1) AS a FROM t": 0.5,
    "SELECT count(*) AS a FROM t HAVING sum(p) > 0": "HAVING without",
    "SELECT n, count(*) AS a FROM t GROUP BY n HAVING min(p) >= 0 ORDER BY max(p) - n": 20,
    "SELECT count(*) - count(*) FILTER (WHERE n = 1) AS a FROM t": 40,
    "SELECT round(percentile_cont(0.5) WITHIN GROUP (ORDER BY p)) AS a FROM t": 2,
    "SELECT avg(o) AS m, count(*) AS a FROM t ORDER BY m": 60,
    "SELECT nullif(max(o), 0) AS a FROM t": "no number",
    "SELECT try_cast(cast(count(*) AS date) AS double) AS a FROM t": "not the types",
    "SELECT power(avg(p) > 1, 3) AS a FROM t": "not the types",
    "SELECT avg(p) > 1 AS a FROM t": True,
    "SELECT d, day(d) AS a FROM t WHERE d IN ('2024-01-02') GROUP BY d": "no aggregate",
    "SELECT d, day(d) + count(*) AS a FROM t WHERE d IN ('2024-01-02') GROUP BY d": 32,
    "SELECT hour(date_trunc('hour', s)) AS a, count(*) FROM t GROUP BY date_trunc('hour', s) "
    "ORDER BY 1 DESC": 1,
    "SELECT p - p + n AS k, (p - p + n) * 2 AS a, count(*) FROM t GROUP BY k ORDER BY k DESC": 4,
    "SELECT count(*) <> NULL AS a FROM t": None,
    "SELECT count(*) / 0 AS a FROM t": "1 / 0 has no value",
    "SELECT 1e400 * count(*) AS a FROM t": "1e400 has no value",
    "SELECT count(*) / (1 - 1) AS a FROM t": r"1 / \(1 - 1\) has no value",
    "SELECT count(*) * (1e308 * 10) AS a FROM t": "has no value",
    "SELECT n + ln(-1) AS a, count(*) FROM t GROUP BY n": "has no value",
    "SELECT n, count(*) AS a FROM t GROUP BY n HAVING count(*) > ln(0)": "has no value",
    "SELECT CASE WHEN false THEN 1 WHEN count(*) > 5 THEN 2 ELSE null END AS a FROM t": 2,
    "SELECT count(*) AS a FROM t LIMIT 1.5": "LIMIT",
    "SELECT count(*) AS a FROM t LIMIT 'x'": "LIMIT",
}


@pytest.mark.parametrize("query", COMPUTED)
def test_what_cannot_be_computed_is_refused_before_the_charge(query: str) -> None:
    book, expected = Book(), COMPUTED[query]
    given: Any = {"epsilon": 50.0, "delta": 1e-3, "noise": Silence(), "ledger": book, "t": ODD}
    if isinstance(expected, str):
        with pytest.raises(ArgumentError, match=expected):
            prudent.sql(query, **given)
        assert not book.charges
    else:
        answer = prudent.sql(query, **given)["a"]
        found = next(iter(answer.values())) if isinstance(answer, dict) else answer
        assert found.value == (expected and pytest.approx(expected, rel=0.1))


def test_groups_may_be_given_in_several_types() -> None:
    query = "SELECT n, count(*) AS a FROM t GROUP BY n ORDER BY n DESC"
    given = prudent.sql(query, t=ODD, groups=[0, "2", 1], epsilon=9.0)
    assert list(given["a"]) == ["2", 1, 0]
    assert given.to_arrow().column("n").to_pylist() == ["2", "1", "0"]


def test_distinct_groups_are_those_of_the_query_and_an_offset_skips_some() -> None:
    found = ask(
        "SELECT DISTINCT city, count(*) AS n FROM people WHERE city IN ('oslo', 'bergen') "
        "GROUP BY city ORDER BY n DESC LIMIT 2 OFFSET 1"
    )
    assert {group: each.value for group, each in found["n"].items()} == {"bergen": 100}
    named = ask("SELECT iqr(x) AS spread, proportion(x >= 200) AS late, mean(x) FROM people")
    assert [named.columns[name][1] for name in named.answers] == ["iqr", "proportion", "mean"]


def test_groups_are_chosen_by_an_aggregate_that_is_not_selected() -> None:
    found = ask(
        "SELECT city, median(x) AS m FROM people WHERE city IN ('oslo', 'bergen') GROUP BY city "
        "HAVING count(*) > 150 ORDER BY sum(clip(x, 0, 400))",
        epsilon=50.0,
    )
    assert [*found["m"]] == ["oslo"]


@pytest.mark.thorough
def test_intervals_of_computed_numbers_hold() -> None:
    """Each draw is covered with probability 0.95: 12 of 24 are not with a chance below 1e-8."""
    from prudent.release.noise import ReproducibleNoise

    query = "SELECT (count(*) - 2 * sum(clip(w, 0, 2))) / count_if(x < 100) AS a FROM people"
    truth = (400 - 2 * float(sum(TABLE["w"].to_pylist()))) / 100
    held = 0
    for seed in range(24):
        low, high = ask(query, noise=ReproducibleNoise(seed), epsilon=2.0)["a"].interval()
        held += low <= truth <= high
    assert held > 12


def test_intervals_hold_where_large_numbers_cancel() -> None:
    """They are computed exactly; the value, which doubles round, is in them as well."""
    sums = "sum(clip(w, 0, 2))"
    plain = ask(f"SELECT {sums} AS a FROM people", epsilon=9.0)["a"].interval()
    found = ask(f"SELECT {sums} + 1e20 - 1e20 AS a, 7 + 0 * {sums} AS b FROM people", epsilon=9.0)
    low, high = found["a"].interval()
    assert low == found["a"].value == 0.0
    assert high == plain[1]
    assert found["b"].interval() == (7.0, 7.0)


def test_the_ends_of_intervals_are_rounded_as_numbers_are() -> None:
    """A half away from zero, as DuckDB does; of digits without end there is no interval."""
    import duckdb

    from prudent.release.questions.sql import _rounded

    for text, digits in itertools.product(
        ("-2.5", "2.5", "-0.125", "0.125", "15", "-15", "0"), (-1, 0, 2)
    ):
        asked = f"SELECT round({text}::DECIMAL(9, 4), {digits})"
        (expected,) = duckdb.sql(asked).fetchone()
        assert _rounded(Fraction(text), Fraction(digits)) == Fraction(expected)
    with pytest.raises(ValueError, match="digits"):
        _rounded(Fraction(1), Fraction(10**9))


def test_a_computed_number_says_of_which_values_it_is() -> None:
    """Its interval is for those that were clipped, as is that of what it is computed from."""
    found = ask("SELECT avg(x) AS m, 2 * avg(x) + count(*) AS a FROM people", epsilon=5.0)
    about, share = f"The interval is for {found['m'].about}.", found["m"].notes[0]
    assert "clipped to" in about
    assert found["a"].notes == (f"avg(x): {about}", f"avg(x): {share}")


def test_an_interval_needs_a_divisor_of_one_sign() -> None:
    found = ask("SELECT 1 / count_if(x < 1) AS a, count(*) * count(*) AS b FROM people")
    assert found["a"].value == 1.0
    for name in "ab":  # b is not monotone in what it names twice
        with pytest.raises(ValueError, match="without"):
            found[name].interval()


def test_groups_are_values_of_one_row() -> None:
    table = pa.table(
        {
            "age": [18, 25, 29, 31, None, 47] * 10,
            "day": pa.array(["2023-05-01", "2024-01-31", "2024-02-01"] * 20).cast(pa.date32()),
        }
    )

    def counts(query: str, **given: Any) -> dict[Any, Any]:
        found: Any = prudent.sql(query, t=table, epsilon=9.0, noise=Silence(), **given)
        return {group: each.value for group, each in found["n"].items()}

    decades = "SELECT floor(age / 10) * 10 AS decade, count(*) AS n FROM t GROUP BY decade"
    assert counts(decades, groups=[10, 20, 30, 90]) == {10: 10, 20: 20, 30: 10, 90: 0}
    assert counts(decades, groups={"decade": [20]}) == {20: 20}
    years = "SELECT year(day) AS y, count(*) AS n FROM t"
    assert counts(f"{years} WHERE year(day) IN (2023, 2024) GROUP BY 1") == {2023: 20, 2024: 40}
    assert counts(f"{years} GROUP BY year(day)", delta=1e-6) == {2023: 20, 2024: 40}
    young = "CASE WHEN age < 30 THEN 'young' WHEN age >= 30 THEN 'old' ELSE 'unknown' END"
    query = f"SELECT {young} AS kind, count(*) AS n FROM t GROUP BY kind ORDER BY n DESC"
    assert counts(query, groups=["old", "young", "unknown"]) == {
        "young": 30,
        "old": 20,
        "unknown": 10,
    }


def test_subqueries_of_one_row_are_written_out() -> None:
    for query in (
        "SELECT avg(clip(z, 0, 800)) AS a FROM (SELECT x * 2 AS z, city AS town FROM people "
        "WHERE x < 200) t WHERE t.town = 'oslo'",
        "WITH a AS (SELECT x * 2 AS z, * FROM people), b AS (SELECT z, city AS town FROM a WHERE "
        "x < 200) SELECT avg(clip(z, 0, 800)) AS a FROM b WHERE town = 'oslo'",
    ):
        found = ask(query, epsilon=9.0)
        assert found["a"].value == pytest.approx(2 * X[:200:2].mean(), abs=0.1), query
    found = ask("SELECT town, count(*) FROM (SELECT city AS town FROM people) GROUP BY town",
                groups=["oslo"])  # fmt: skip
    assert found["count(*)"].names == ("town",)
    assert found["count(*)"]["oslo"].value == 200


def test_a_value_is_the_one_that_was_parsed() -> None:
    """A quoted name with an operator in it is a name, also beside columns that it could mean."""
    table = pa.table({"a": [1.0] * 9, "b": [2.0] * 9, "a + b": [7.0] * 9})
    given: dict[str, Any] = {"t": table, "epsilon": 9.0, "noise": Silence()}
    found: Any = prudent.sql(
        'SELECT sum(clip("a + b", 0, 9)) AS one, sum(clip(a + b, 0, 9)) AS two FROM t '
        'WHERE "a + b" = 7',
        **given,
    )
    assert [found["one"].value, found["two"].value] == pytest.approx([63.0, 27.0], abs=0.1)
    with pytest.raises(ValueError, match="unknown column"):
        prudent.sql('SELECT sum(clip("a - b", 0, 9)) FROM t', **given)


def test_what_people_write_without_thinking() -> None:
    found = ask(
        "SELECT approx_count_distinct(city) AS cities, sum(CASE WHEN x > 200 THEN 1 END) AS many "
        "FROM people LIMIT 1",
        epsilon=50.0,
    )
    assert found["cities"].value == ask("SELECT count(DISTINCT city) AS n FROM people")["n"].value
    assert found["many"].value == pytest.approx((X > 200).sum(), abs=1)
    by = "SELECT city, x > 200 AS far, count(*) AS n FROM people WHERE city IN ('oslo', 'rome') {}"
    groups = {"city": ["oslo", "rome"], "far": [False, True]}
    one, other = (
        ask(by.format(f"GROUP BY {keys}"), groups=groups)["n"] for keys in ("ALL", "city, far")
    )
    assert {key: each.value for key, each in one.items()} == {
        key: each.value for key, each in other.items()
    }


def test_deviations_and_several_quantiles() -> None:
    found = ask(
        "SELECT stddev(clip(x, 0, 400)) AS s, variance(clip(x, 0, 400)) AS v, "
        "quantile_cont(x, [0.25, 0.75]) AS q, approx_quantile(x, 0.5) AS m, "
        "percentile_cont(0.9) WITHIN GROUP (ORDER BY x) AS p FROM people",
        epsilon=50.0,
    )
    assert found["s"].value == pytest.approx(X.std(), rel=1e-3)
    assert found["v"].value == pytest.approx(X.var(), rel=1e-3)
    assert found["q"].value == pytest.approx((100, 300), abs=5)
    assert found["m"].value == pytest.approx(200, abs=5)
    assert found["p"].value == pytest.approx(360, abs=5)
    assert any("number of records, not one less" in note for note in found.notes)


@pytest.mark.unhurried
def test_a_quotient_of_sums_says_of_which_rows_it_is() -> None:
    found = ask("SELECT sum(x) / sum(y) AS r FROM people")
    assert any("rows that have both values" in note for note in found.notes)
    assert not ask("SELECT sum(clip(x, 0, 400)) / count(*) AS m FROM people").notes
    chosen = "SELECT city, count(*) AS n FROM people GROUP BY city HAVING sum(x) / sum(y) > 0"
    assert any("both values" in note for note in ask(chosen, delta=1e-6).notes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("query", "given"),
    [
        ("SELECT median(x), count(*), avg(clip(x, 0, 400)), corr(x, y) FROM people", {}),
        ("SELECT city, avg(clip(x, 0, 9)) FROM people WHERE city IN ('oslo') GROUP BY city", {}),
        ("SELECT sum(clip(x, 0, 9)) FROM people", {"unit": "w"}),
        ("SELECT count(*) n FROM people JOIN others USING (w)", {"unit": "w"}),
    ],
)
def test_a_dry_run_shows_what_the_engine_will_be_asked(
    query: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for all data, and what is asked then."""

    def plan(rows: Any) -> list[str]:
        found: Any = prudent.sql(
            query, people=rows, others=rows, epsilon=1.0, dry_run=True, **given
        )
        queries = [each for part in found.parts or [found] for each in part.queries]
        return [re.sub(r"prudent_\w+", "t", each) for each in queries]

    shown = plan(TABLE)
    assert plan(TABLE.slice(7)) == shown
    asked: set[str] = set()
    ask_engine = TableColumn._ask

    def noted(column: Any, question: Any, *reader: Any, **options: Any) -> Any:
        asked.add(str(question.__doc__))
        return ask_engine(column, question, *reader, **options)

    for name in ("FEW", "FEW_READ"):
        monkeypatch.setattr(table_columns, name, 50)
    monkeypatch.setattr(TableColumn, "_ask", noted)
    prudent.sql(query, people=TABLE, others=TABLE, epsilon=1.0, noise=Silence(), **given)
    groups = {str(queries_of.sizes_of_groups.__doc__)} if "GROUP" in query else set()
    lines = [each.partition("\n")[0] for each in shown]  # several questions may be one query
    assert not {each for each in asked | groups if not any(each in line for line in lines)}
    assert all("SELECT" in each for each in shown)
