"""A join is one person's rows with that person's rows, or with public ones, and nothing else."""

import datetime
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("ibis", reason="needs the extra `tables`")

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

import prudent
from prudent.cli import main
from prudent.release import open_column
from prudent.release.columns import joining
from prudent.release.columns.joining import open_source
from prudent.release.joins import join
from tests.release.recording import Book, Silence

Row = tuple[Any, ...]
SEEDS = [pytest.param(n, marks=[pytest.mark.thorough] * (n > 2)) for n in range(15)]
HUGE = "x" * 100_000
KEYS: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "texts": (pa.string(), ["a", "A", "a ", "", "é", "e\u0301", HUGE, HUGE + "y", None]),
    "integers": (pa.int64(), [0, 1, -1, 2**62, 2**62 + 1, None]),
    "floats": (pa.float64(), [0.0, -0.0, 1.5, float("nan"), float("inf"), 5e-324, None]),
}


def rows_of(source: Any, unit: str | None = None) -> Counter[Row]:
    """The rows of a join, with no regard to their order; NaN and both zeros as one."""
    opened = open_source(source, unit=unit)
    found = opened.table.to_pyarrow().to_pylist()
    return Counter(tuple(map(_plain, row.values())) for row in found)


def _plain(value: Any) -> Any:
    return "nan" if value != value else value + 0.0 if isinstance(value, float) else value


def tables(left: Sequence[Row], right: Sequence[Row], key: pa.DataType) -> tuple[Any, Any]:
    """A table of persons and numbers, and one of persons and letters."""
    one = pa.table({"u": pa.array([r[0] for r in left], key), "x": [r[1] for r in left]})
    two = pa.table(
        {"u": pa.array([r[0] for r in right], key), "y": pa.array([r[1] for r in right], "string")}
    )
    return one, two


def drawn(seed: int) -> tuple[pa.DataType, list[Row], list[Row], Any]:
    """Random rows of few persons, many of them alike, and one of the persons."""
    generator = random.Random(seed)
    dtype, persons = KEYS[list(KEYS)[seed % len(KEYS)]]
    left = [(generator.choice(persons), float(generator.randrange(4))) for _ in range(14)]
    right = [(generator.choice(persons), generator.choice("pq")) for _ in range(10)]
    return dtype, left, right, generator.choice([each for each in persons if each is not None])


def is_of(person: Any, row: Row) -> bool:
    return bool(row[0] == person or (row[0] != row[0] and person != person))


def is_of_one(person: Any, whole: Counter[Row], rest: Counter[Row]) -> bool:
    """Whether a join differs from that without a person by rows of that person alone."""
    return rest <= whole and all(row[0] == _plain(person) for row in whole - rest)


def evenly(rows: list[Row], most: int) -> list[Row]:
    """The rows of places floor((2i - 1) n / 2k) in the order of their values."""
    ordered, n = sorted(rows, key=lambda row: row[1]), len(rows)
    if n <= most:
        return ordered
    return [ordered[(2 * i - 1) * n // (2 * most)] for i in range(1, most + 1)]


@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_person_takes_its_own_rows_out_of_a_join_and_no_others(seed: int, how: Any) -> None:
    dtype, left, right, person = drawn(seed)
    given: dict[str, Any] = {"on": "u", "unit": "u", "how": how, "most_rows": 2}
    without = [[row for row in rows if not is_of(person, row)] for rows in (left, right)]
    whole = rows_of(join(*tables(left, right, dtype), **given), "u")
    rest = rows_of(join(*tables(*without, dtype), **given), "u")
    assert is_of_one(person, whole, rest)
    assert (whole - rest).total() <= 2 * 2
    expected: Counter[Row] = Counter()
    for each in {_plain(row[0]) for row in left} - {None, "nan"}:
        mine = evenly([row for row in left if row[0] == each], 2)
        theirs = evenly([row for row in right if row[0] == each], 2)
        pairs = [(each, x, y) for _, x in mine for _, y in theirs]
        if how == "left":
            matched = [(each, x, each, y) for _, x in mine for _, y in theirs]
            pairs = matched or [(each, x, None, None) for _, x in mine]  # type: ignore[assignment]
        expected.update(pairs)
    assert whole == expected


@pytest.mark.parametrize("seed", SEEDS[2:])  # floats first
def test_a_row_becomes_one_row_beside_a_public_table(seed: int) -> None:
    dtype, left, right, _ = drawn(seed)
    listed = list({_plain(row[0]): row for row in right}.values())
    given: dict[str, Any] = {"on": "u", "public": True, "how": "left"}
    whole = rows_of(join(*tables(left, listed, dtype), **given))
    assert whole.total() == len(left)
    rest = rows_of(join(*tables(left[1:], listed, dtype), **given))
    assert rest <= whole
    assert (whole - rest).total() == 1


def test_rows_that_compare_as_equal_and_are_not_are_chosen_by_their_values() -> None:
    """Else the row of one person that is kept would depend on where others put it."""
    for dtype, values in (
        (pa.float64(), [0.0, -0.0]),
        (pa.month_day_nano_interval(), [(1, 0, 0), (0, 30, 0)]),
    ):
        seen = set()
        for rows in (values, values[::-1]):
            one = pa.table({"u": [1, 1], "x": pa.array(rows, dtype)})
            joined = join(one, pa.table({"u": [1]}), on="u", unit="u", most_rows=1)
            opened = open_source(joined, unit="u")
            table = opened.table
            seen.add(table.select(x=table.x.cast("string")).to_pyarrow()["x"][0].as_py())
        assert len(seen) == 1


def test_columns_that_differ_in_case_alone_are_told_apart() -> None:
    one = pa.table({"k": [1, 1], "x": [1.0, 2.0]})
    joined = join(one, pa.table({"k": [1], "X": [9.0]}), on="k", public=True)
    assert open_source(joined).table.columns == ("k", "left.x", "right.X")
    column: Any = open_column(joined, "right.X")
    assert column.order_statistics(1, 2).tolist() == [9.0, 9.0]


def test_the_unit_is_that_of_the_first_table_beside_a_public_column_of_its_name() -> None:
    one = pa.table({"u": [1, 1, 2], "k": [1, 1, 1]})
    joined = join(one, pa.table({"k": [1], "u": [9]}), on="k", unit="u", public=True)
    assert prudent.count(joined, epsilon=1.0, noise=Silence()).value == 2
    assert open_source(joined, unit="u").table.columns == ("u", "k", "right.u")


def test_pairs_with_rows_of_others_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that the first test is for: texts that are equal for the join alone."""

    def lower(left: Any, name: str, right: Any, other: str) -> Any:
        return left.table[name], right.table[other].lower()

    monkeypatch.setattr(joining, "_comparable", lower)
    one, two = tables([("a", 1.0), ("A", 2.0)], [("A", "p")], pa.string())
    whole = rows_of(join(one, two, on="u", unit="u"), "u")
    rest = rows_of(join(one.slice(0, 1), two.slice(1), on="u", unit="u"), "u")
    assert not is_of_one("A", whole, rest)


def test_a_public_table_that_repeats_a_key_never_amplifies(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tables([("a", 1.0), ("b", 2.0)], [("a", "p"), ("a", "q"), ("b", "p")], pa.string())
    joined = join(one, two, on="u", public=True, how="left")
    with pytest.raises(ValueError, match="one row for each key"):
        open_source(joined)
    monkeypatch.setattr(joining, "redact_errors", lambda *_: {"times": []})  # it comes later
    assert rows_of(joined) == Counter([("a", 1.0, None, None), ("b", 2.0, "b", "p")])


ONE, TWO = tables([("a", 1.0)], [("a", "p")], pa.string())
WHOLE = pa.table({"u": [1], "y": ["p"]})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"on": "x", "unit": "u"}, "Expected unit among the columns that private tables"),
        ({"on": "u"}, "Expected unit among the columns that private tables"),
        ({"on": "u", "unit": "u", "how": "outer"}, "Swap the tables"),
        ({"on": "u", "unit": "u", "how": "cross"}, "Expected how inner or left"),
        ({"on": "z", "unit": "z"}, "on: unknown column"),
        ({"on": [], "unit": "u"}, "Expected on one or more columns"),
        ({"on": {"u": "y"}, "unit": "u", "right": WHOLE.rename_columns(["y", "u"])}, "of one type"),
        ({"on": "u", "unit": "u", "right": WHOLE}, "of one type"),
        ({"on": "u", "unit": "u", "most_rows": 0}, "Expected most_rows"),
        ({"on": "u", "unit": "u", "names": ("t", "t")}, "Expected names two different"),
        ({"on": "u", "unit": "u", "right": 7}, "Expected data"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_any_charge(
    given: dict[str, Any], message: str
) -> None:
    book = Book()
    with pytest.raises(ValueError, match=message):
        prudent.count(join(**{"left": ONE, "right": TWO, **given}), epsilon=1.0, ledger=book)
    assert book.charges == []


def test_a_caller_that_protects_rows_cannot_open_a_join_of_persons() -> None:
    joined = join(ONE, TWO, on="u", unit="u")
    others: list[Callable[[], Any]] = [
        lambda: open_source(joined),
        lambda: open_column(joined, "x"),
        lambda: prudent.mean(joined, "x", unit="x", epsilon=1.0),
        lambda: join(joined, TWO, on="y", unit="y"),
        lambda: join(ONE, joined, on="u", public=True),
        lambda: open_source(open_source(joined, unit="u")),
    ]
    for each in others:
        with pytest.raises(ValueError, match=r"unit|public"):
            each()


@pytest.mark.thorough
def test_every_statistic_takes_a_join_and_its_unit() -> None:
    one, two = tables([(k % 40, 1.0 * (k % 40)) for k in range(120)], [], pa.int64())
    two = pa.table({"id": range(40), "city": ["oslo", "rome"] * 20, "x": [3.0] * 40})
    joined = join(one, two, on={"u": "id"}, unit="u")
    found = prudent.table(
        joined,
        ["count(*)", 'avg(clip("left.x", 0, 40))', 'sum(clip("right.x", 0, 40))'],
        by="city",
        groups=["oslo", "rome"],
        epsilon=5.0,
        noise=Silence(),
    )
    assert [each.value for each in found["COUNT(*)"].values()] == [20, 20]
    means, totals = list(found.answers.values())[1:]
    assert means["rome"].value == pytest.approx(20, abs=1e-3)
    assert totals["rome"].value == pytest.approx(60, abs=1e-3)
    assert "Each u counts" in str(found)


def test_a_statistic_follows_the_unit_of_its_join() -> None:
    joined = join(ONE, TWO, on="u", unit="u")
    found = prudent.count(joined, epsilon=1.0, noise=Silence())
    assert found.notes[0] == "Each u counts with one record."
    assert "only with each other" in str(prudent.count(joined, epsilon=1.0, dry_run=True))


def test_texts_of_files_and_numbers_with_gaps_are_the_numbers_that_they_say(tmp_path: Any) -> None:
    file = tmp_path / "list.csv"
    file.write_text("id,city\n1,oslo\n02,rome\nthree,nowhere\n,nobody\n")
    whole = pa.table({"id": [1, 2, 3, None]})
    gaps = pa.table({"id": [1.0, 2.5, float("nan"), 2.0]})
    for source, ids in ((whole, [1, 2, 3, None]), (gaps, [1, 2.5, None, 2])):
        found = rows_of(join(source, str(file), on="id", public=True, how="left"))
        cities = {1: ("1", "oslo"), 2: ("02", "rome")}
        assert found == Counter((each, *cities.get(each, (None, None))) for each in ids)
    swapped = join(str(file), gaps, on="id", unit="id")
    assert rows_of(swapped, "id") == Counter([(1.0, "oslo"), (2.0, "rome")])


def test_the_command_line_joins_two_files(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pyarrow.parquet.write_table(pa.table({"u": [1, 2, 3] * 30}), "rows.parquet")
    (tmp_path / "list.csv").write_text("id,city\n1,oslo\n2,rome\n")
    asked = ["release", "count", "rows.parquet", "--join", "list.csv", "--on", "u=id"]
    assert main([*asked, "--public", "--where", "city = 'rome'", "--epsilon", "50"]) == 0
    assert capsys.readouterr().out.startswith("30 ")
    assert main([*asked, "--how", "left", "--unit", "u", "--epsilon", "50"]) == 0
    assert capsys.readouterr().out.startswith("3 ")
    assert main([*asked, "--epsilon", "50"]) == 2
    assert "--unit: expected among the columns" in capsys.readouterr().err
    twice = [*asked[:-1], "u=id,u=city", "--unit", "u"]
    assert main([*twice, "--epsilon", "50"]) == 2
    assert "--on: expected different columns" in capsys.readouterr().err
    assert main([*asked[:3], "--on", "u", "--epsilon", "50"]) == 2
    assert "--on: expected only with --join" in capsys.readouterr().err


# --- engines --------------------------------------------------------------------------------------

LEFT = [("a", 1.0), ("a", 2.0), ("b", 3.0), ("B", 4.0), (None, 5.0), ("c", 6.0)]
RIGHT = [("a", "p"), ("a", "q"), ("b", "p"), ("d", "q")]
EXPECTED = {  # the mean of each person; the number of rows beside a public list
    "inner": [1.5, 3.0],
    "left": [1.5, 3.0, 4.0, 6.0],
}


def check_engine(source: Callable[[str], Any], connect: str | None = None) -> None:
    """The same values in every engine; `source` returns the tables left, right and listed."""
    for how in ("inner", "left"):
        joined = join(
            source("left"),
            source("right"),
            on="u",
            unit="u",
            how=how,
            connect=connect,  # type: ignore[arg-type]
        )
        column: Any = open_column(joined, "x", unit="u")
        assert column.count() == len(EXPECTED[how])
        assert column.order_statistics(1, 9).tolist() == EXPECTED[how]
    listed = join(source("left"), source("listed"), on="u", public=True, connect=connect)
    assert open_column(listed, "x", where="y = 'q'").count() == 2
    with pytest.raises(ValueError, match="one row for each key"):
        open_column(
            join(source("left"), source("right"), on="u", public=True, connect=connect), "x"
        )


def arrow_of(name: str) -> Any:
    one, two = tables(LEFT, RIGHT, pa.string())
    return {"left": one, "right": two, "listed": two.slice(1)}[name]


@pytest.mark.thorough
def test_duckdb_joins_frames() -> None:
    check_engine(arrow_of)


@pytest.mark.thorough
def test_duckdb_joins_files_and_its_own_tables(tmp_path: Any) -> None:
    import duckdb
    import ibis

    for name in ("left", "right", "listed"):
        pyarrow.parquet.write_table(arrow_of(name), tmp_path / f"{name}.parquet")
    check_engine(lambda name: tmp_path / f"{name}.parquet")
    check_engine(lambda name: arrow_of(name) if name == "left" else tmp_path / f"{name}.parquet")
    with duckdb.connect(str(tmp_path / "t.duckdb")) as own:
        for name in ("left", "right", "listed"):
            held = arrow_of(name)  # DuckDB reads the variable
            own.execute(f'CREATE TABLE "{name}" AS SELECT * FROM held')
            assert held is not None
    check_engine(lambda name: name, f"duckdb://{tmp_path / 't.duckdb'}")
    connection = ibis.duckdb.connect(str(tmp_path / "t.duckdb"))
    check_engine(connection.table)
    with pytest.raises(ValueError, match="in the engine of the first"):
        check_engine(lambda name: connection.table(name) if name == "left" else arrow_of(name))
    check_public_frame(connection.table("left"))
    connection.disconnect()


PUBLIC = pa.table(
    {
        "u": ["a", "b", "B", None],
        "place": ["'; --", "é", "", None],
        "n": pa.array([1, None, -(2**63), 4]),
        "f": [0.1, float("nan"), 5e-324, None],
        "flag": [True, False, None, True],
        "day": [datetime.date(2024, 2, 29), None, datetime.date(1, 1, 1), None],
    }
)


def check_public_frame(left: Any, connect: str | None = None, *, nan: Any = math.nan) -> None:
    """A small public frame is written into the queries of another engine, value by value."""
    joined = join(left, PUBLIC, on="u", public=True, how="left", connect=connect)
    opened = open_source(joined)
    names = ("u", "place", "n", "f", "flag", "day")
    rows = _fetched(opened, names)
    opened.close()
    found = Counter(tuple(map(_plain, row)) for row in rows)
    whole = arrow_of("left").join(PUBLIC.filter(pa.compute.field("u").is_valid()), "u")
    expected = [[row[name] for name in names] for row in whole.to_pylist()]
    expected = [[nan if each != each else each for each in row] for row in expected]
    assert found == Counter(tuple(map(_plain, row)) for row in expected)
    for wrong in (pa.table({"u": list(map(str, range(1_001)))}), pa.table({"u": [["a"]]})):
        with pytest.raises(ValueError, match="of 1 to 1,000 rows of texts"):
            open_source(join(left, wrong, on="u", public=True, connect=connect))


def _fetched(opened: Any, names: Sequence[str]) -> list[tuple[Any, ...]]:
    columns = joining.fetched(opened.table.select(*names))
    return list(zip(*(columns[name] for name in names), strict=True))


def test_postgres_joins_two_tables_of_a_database(postgres_url: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for name in ("left", "right", "listed"):
            connection.execute(f"DROP TABLE IF EXISTS join_{name}")
            rows = arrow_of(name).to_pylist()
            value = "double precision" if name == "left" else "text"
            other = "x" if name == "left" else "y"
            connection.execute(f"CREATE TABLE join_{name} (u text, {other} {value}, j json)")
            for row in rows:
                connection.execute(
                    f"INSERT INTO join_{name} VALUES (%s, %s, '{{}}')", [row["u"], row[other]]
                )
    check_engine(lambda name: f"join_{name}", postgres_url)
    check_public_frame("join_left", postgres_url)
    found = prudent.sql(
        "SELECT count(*) n FROM join_left l JOIN join_right r ON l.u = r.u WHERE r.y = 'p'",
        connect=postgres_url,
        unit="u",
        epsilon=1.0,
        noise=Silence(),
    )
    assert found["n"].value == 2


def test_spark_joins_two_frames_of_a_session(spark_session: Any) -> None:
    def frame(name: str) -> Any:
        other = "x double" if name == "left" else "y string"
        rows = [tuple(row.values()) for row in arrow_of(name).to_pylist()]
        return spark_session.createDataFrame(rows, f"u string, {other}")

    check_engine(frame)
    check_public_frame(frame("left"), nan=None)  # its answers pass through pandas
