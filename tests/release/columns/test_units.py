"""What the rows of one unit become: a function of these rows alone, the same on every engine."""

import datetime
import gc
import math
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

ibis = pytest.importorskip("ibis", reason="needs the extra `tables`")

import pyarrow as pa  # noqa: E402

from prudent.release.columns import units as staging  # noqa: E402
from prudent.release.columns.column import (  # noqa: E402
    Column,
    SourceError,
)
from prudent.release.columns.opening import (  # noqa: E402
    open_column,
    open_groups,
    open_private_groups,
)
from tests.oracles.array_column import ArrayColumn  # noqa: E402

INF = math.inf
UNITS: dict[str, list[float]] = {
    "one": [0.1],
    "order matters": [1e16, 1.0, -1e16, 0.1, 0.2, 0.3],
    "huge": [1.7976931348623157e308, 1.7976931348623157e308, 1e300],
    "tiny": [5e-324, 1e-320, -1e-310],
    "wide": [1e300, 1e-300, -1e-5, 3.0],
    "infinite": [INF, 1.0],
    "below": [-INF, 1.0, 2.0],
    "both": [INF, -INF, 3.0],
    "only infinite": [INF, INF],
    "ties": [2.5, 2.5, 2.5, 7.0],
    "many": [float(x) for x in np.random.default_rng(3).normal(50, 9, 40)],
    "zeros": [0.0, -0.0],
    "missing": [math.nan, math.nan],
}
ROWS = [(name, x) for name, values in UNITS.items() for x in values]


QUANTUM = Fraction(1, 2**40)


def total(values: list[float]) -> float:
    """The sum in quanta of 2**-40, from exact sums of limbs of 26 bits, put together in doubles."""
    limit, limbs = Fraction(2) ** 64, [0, 0, 0, 0]
    for x in values:
        rest = max(-limit, min(limit, Fraction(x))) / QUANTUM
        for place in (3, 2, 1):
            limb = math.floor(rest / 2 ** (26 * place))
            limbs[place] += limb
            rest -= limb * 2 ** (26 * place)
        limbs[0] += math.floor(rest + Fraction(1, 2))
    found = float(limbs[3])
    for place in (2, 1, 0):
        found = found * 2.0**26 + limbs[place]
    return found


def infinite(values: list[float]) -> float | None:
    """The value of a unit with infinities; 0 if it has none, None if it has both."""
    signs = {x for x in values if math.isinf(x)}
    return None if len(signs) == 2 else signs.pop() if signs else 0.0


def mean(values: list[float]) -> float | None:
    if min(values) == max(values):
        return values[0]
    if infinite(values) != 0.0:
        return infinite(values)
    return total(values) / len(values) * float(QUANTUM)


def added(values: list[float]) -> float | None:
    if len(values) == 1:
        return values[0]
    if infinite(values) != 0.0:
        return infinite(values)
    return total(values) * float(QUANTUM)


def evenly(count: int) -> Callable[[list[float]], list[float]]:
    def chosen(values: list[float]) -> list[float]:
        ordered, n = sorted(values), len(values)
        if n <= count:
            return ordered
        return [ordered[(2 * i - 1) * n // (2 * count)] for i in range(1, count + 1)]

    return chosen


ORACLES: dict[Any, Callable[[list[float]], Any]] = {
    "mean": mean,
    "median": lambda values: sorted(values)[(len(values) - 1) // 2],
    "min": min,
    "max": max,
    "sum": added,
    "count": len,
    1: evenly(1),
    2: evenly(2),
    3: evenly(3),
}


def expected(how: Any) -> list[float]:
    found: list[float] = []
    for values in UNITS.values():
        if kept := [x for x in values if not math.isnan(x)]:
            value = ORACLES[how](kept)
            found.extend(value if isinstance(value, list) else [] if value is None else [value])
    return sorted(found)


def everything(column: Column) -> list[float]:
    return column.order_statistics(1, column.count()).tolist()


def shuffled(seed: int) -> pa.Table:
    rows = [ROWS[place] for place in np.random.default_rng(seed).permutation(len(ROWS))]
    return pa.table({"who": [who for who, _ in rows], "x": [x for _, x in rows]})


@pytest.mark.unhurried
@pytest.mark.parametrize("how", ORACLES)
def test_duckdb_agrees_with_exact_fractions_in_any_order(how: Any) -> None:
    for seed in (0, 1):
        column = open_column(shuffled(seed), "x", unit="who", per_unit=how)
        assert everything(column) == expected(how)
        assert column.contribution.records == (how if isinstance(how, int) else 1)


def test_a_mean_in_the_order_of_the_rows_would_differ() -> None:
    """The reason for all this: two orders of one unit's rows, two sums of doubles."""
    values = UNITS["order matters"]
    assert sum(values) != sum(sorted(values))
    assert abs(mean(values) - math.fsum(values) / 6) <= 1e16 * 6 / 2**50  # type: ignore[operator]
    ordinary = UNITS["many"]
    assert mean(ordinary) == pytest.approx(math.fsum(ordinary) / 40, rel=1e-13)


@pytest.fixture(scope="module")
def in_postgres(postgres_url: str) -> dict[str, Any]:
    psycopg = pytest.importorskip("psycopg")
    name = f"t_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url) as connection:
        connection.execute(f"CREATE TABLE {name} (who text, x float8, city text)")
        with connection.cursor().copy(f"COPY {name} FROM STDIN") as copy:
            for place, (who, x) in enumerate(ROWS):
                copy.write_row((who, x, "ab"[place % 2]))
    return {"connect": postgres_url, "table": name}


@pytest.mark.parametrize("how", ORACLES)
def test_postgresql_agrees(how: Any, in_postgres: dict[str, Any]) -> None:
    column = open_column(**in_postgres, column="x", unit="who", per_unit=how)
    assert everything(column) == expected(how)


def test_postgresql_keeps_the_units_and_needs_no_permission_for_it(
    in_postgres: dict[str, Any], monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    psycopg = pytest.importorskip("psycopg")
    column = open_column(**in_postgres, column="x", unit="who")
    assert everything(column) == expected("mean")
    assert "prudent_" in str(ibis.to_sql(column.share.kept()))  # type: ignore[attr-defined]
    user = f"u_{uuid.uuid4().hex}"
    database = postgres_url.rpartition("/")[2].partition("?")[0]
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {user} LOGIN")
        connection.execute(f"GRANT SELECT ON {in_postgres['table']} TO {user}")
        connection.execute(f"REVOKE TEMPORARY ON DATABASE {database} FROM PUBLIC")
        address = postgres_url.replace("//postgres@", f"//{user}@")
        assert address != postgres_url
        try:
            other = open_column(connect=address, table=in_postgres["table"], column="x", unit="who")
            assert everything(other) == expected("mean")
            assert other.share.kept() is other.rows  # type: ignore[attr-defined]
        finally:
            connection.execute(f"GRANT TEMPORARY ON DATABASE {database} TO PUBLIC")


def test_the_units_are_grouped_once_and_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ibis.duckdb.connect()
    backend.con.register("t", shuffled(0))
    sent: list[str] = []
    run = type(backend).raw_sql

    def watched(self: Any, query: Any, **options: Any) -> Any:
        sent.append(str(query))
        return run(self, query, **options)

    monkeypatch.setattr(type(backend), "raw_sql", watched)
    column = open_column(backend.table("t"), "x", unit="who", per_unit="median")
    assert not [each for each in sent if "CREATE TEMP TABLE" in each]
    everything(column)
    column.counts_below(np.array([1.0]))
    assert len([each for each in sent if "CREATE TEMP TABLE" in each]) == 1

    def tables() -> list[Any]:
        found = backend.con.execute("SELECT table_name FROM duckdb_tables()").fetchall()
        return [name for (name,) in found if name.startswith("prudent_")]

    assert len(tables()) == 1
    del column
    gc.collect()
    assert not tables()


def test_a_failure_while_grouping_quotes_no_record() -> None:
    backend = ibis.duckdb.connect()
    backend.raw_sql(
        "CREATE VIEW t AS SELECT 1 AS who, CAST(s AS DOUBLE) AS x FROM (VALUES ('secret')) v(s)"
    )
    column = open_column(backend.table("t"), "x", unit="who")
    with pytest.raises(SourceError, match="could not be read") as caught:
        column.count()
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


# --- types, groups, words -------------------------------------------------------------------------


def test_dates_of_a_unit_have_a_date_for_a_mean() -> None:
    days = [datetime.date(2024, 1, 1), datetime.date(2024, 1, 4), datetime.date(2025, 1, 1)]
    table = pa.table({"who": [1, 1, 2], "day": days, "n": [1, 2, 5]})
    column = open_column(table, "day", unit="who")
    dates = [column.scale.value(x) for x in everything(column)]
    assert dates == [datetime.date(2024, 1, 3), datetime.date(2025, 1, 1)]
    assert everything(open_column(table, "n", unit="who")) == [1.5, 5.0]
    counts = open_column(table, "day", unit="who", per_unit="count")
    assert (everything(counts), counts.scale.kind) == ([1.0, 2.0], "integer")
    with pytest.raises(ValueError, match="dates have no sum"):
        open_column(table, "day", unit="who", per_unit="sum")


def test_a_sum_of_booleans_of_a_unit_is_not_clipped_to_those_of_one() -> None:
    table = pa.table({"who": [1, 1, 2, 2], "agreed": [True, True, True, True]})
    column = open_column(table, "agreed", unit="who", per_unit="sum")
    assert everything(column) == [2.0, 2.0]
    assert column.scale.own_bounds is None
    assert open_column(table, "agreed", unit="who").scale.own_bounds == (0.0, 1.0)


@pytest.mark.unhurried
@pytest.mark.parametrize("how", [None, "mean", "median", "max", "count", "sum", 2])
def test_a_unit_is_in_the_one_group_with_most_of_its_rows(how: Any) -> None:
    """Removing a unit takes at most `records` values out of one group, and changes no other."""
    chance = np.random.default_rng(1)
    rows: list[Any] = [
        (int(chance.integers(6)), "abc"[chance.integers(3)], float(chance.integers(9)))
        for _ in range(60)
    ]
    # Of no unit, of no group, without a value, at the end of all values.
    rows += [(None, "a", 1.0), (0, None, 2.0), (2, "b", None), (5, "a", math.nan), (5, "b", -INF)]

    def kept(some: list[Any]) -> dict[str, Counter[float]]:
        who, city, x = zip(*some, strict=True)
        table = pa.table({"who": who, "city": city, "x": x})
        opened = open_groups(table, "x", by="city", groups=["a", "b"], unit="who", per_unit=how)
        return {str(name): Counter(everything(column)) for name, column in opened.items()}

    whole = kept(rows)
    for user in (0, 2, 5):
        without = kept([row for row in rows if row[0] != user])
        gone = {city: whole[city] - without[city] for city in whole}
        assert not any(without[city] - whole[city] for city in whole)
        assert sum(bool(each) for each in gone.values()) <= 1
        assert sum(each.total() for each in gone.values()) <= (how if isinstance(how, int) else 1)
        own = defaultdict(list)
        for who, city, x in rows:
            if who == user and city in ("a", "b") and x is not None and not math.isnan(x):
                own[city].append(x)
        city = min(own, key=lambda name: (-len(own[name]), name))
        value = ORACLES[how or "mean"](own[city])
        assert gone[city] == Counter(value if isinstance(value, list) else [value])


def test_what_was_done_is_said() -> None:
    table = pa.table({"who": [1], "x": [1.0], "c": ["a"]})
    for how, words in [
        (None, "Each who counts with the mean of its values."),
        (5, "Each who counts with at most 5 of its values, evenly spaced in their order."),
    ]:
        opened = open_column(table, "x", unit="who", per_unit=how)
        assert opened.contribution.sentence == words
    groups = open_groups(table, "x", by="c", groups=["a"], unit="who", per_unit="max")
    assert groups["a"].contribution.sentence == (
        "Each who counts with the largest of its values, in the group (c) with most of its rows."
    )
    categories = open_column(table, "c", unit="who", kind="categories")
    assert "the first of its values in order" in categories.contribution.sentence
    assert "one record of its own" in open_column(table, "x").contribution.sentence
    assert ArrayColumn([1.0]).contribution.records == 1


@pytest.mark.parametrize("how", ["mode", 0, -1, 2.5, True, 10**7])
def test_what_a_unit_cannot_become_is_said(how: Any) -> None:
    table = pa.table({"who": [1], "x": [1.0]})
    with pytest.raises(ValueError, match="Expected per_unit"):
        open_column(table, "x", unit="who", per_unit=how)


def test_per_unit_needs_a_unit() -> None:
    with pytest.raises(ValueError, match="per_unit only with unit"):
        open_column(pa.table({"x": [1.0]}), "x", per_unit="max")
    with pytest.raises(ValueError, match="per_unit one of min, max"):
        open_column(
            pa.table({"x": ["a"], "u": [1]}), "x", unit="u", per_unit="mean", kind="categories"
        )


# --- private groups -------------------------------------------------------------------------------


def test_private_groups_are_counted_once_and_opened_by_name() -> None:
    table = pa.table(
        {
            "who": [1, 1, 1, 2, 3, None],
            "city": ["a", "b", "b", "a", "é", "a"],
            "x": [1.0, 2.0, 4.0, 5.0, 6.0, 7.0],
        }
    )
    assert open_private_groups(table, by="city").counts() == {"a": 3, "b": 2, "é": 1}
    groups = open_private_groups(table, "x", by="city", unit="who")
    assert groups.counts() == {"a": 1, "b": 1, "é": 1}
    opened = groups.columns(["b", "é"])
    assert {name: everything(column) for name, column in opened.items()} == {"b": [3.0], "é": [6.0]}
    assert groups.contribution.records == 1
    assert open_private_groups(table, by="city").counts(at_least=2) == {"a": 3, "b": 2}
    assert open_private_groups(table, by="who").counts() == {1: 3, 2: 1, 3: 1}
    assert open_private_groups(table, by="x").counts() == dict.fromkeys(table["x"].to_pylist(), 1)
    times = pa.table({"x": pa.array([1, 2], pa.timestamp("us"))})
    with pytest.raises(ValueError, match="Expected by a column of texts"):
        open_private_groups(times, by="x")


def test_names_that_no_text_has_are_no_groups() -> None:
    """Shown as an escape, a name of odd bytes would be that of another group."""
    names = pa.array([b"a", b"caf\xe9", b"caf\\xe9", b"z\x00"], pa.binary()).view(pa.string())
    assert open_private_groups(pa.table({"city": names}), by="city").counts() == {
        "a": 1,
        "caf\\xe9": 1,
    }


def test_private_groups_in_postgresql(in_postgres: dict[str, Any]) -> None:
    count = sum(not math.isnan(x) for _, x in ROWS)
    counts = open_private_groups(**in_postgres, column="x", by="city").counts()
    assert sum(counts.values()) == count
    by_unit = open_private_groups(**in_postgres, column="x", by="city", unit="who", per_unit="min")
    counts = by_unit.counts()
    assert sum(counts.values()) == len(expected("count"))
    columns = by_unit.columns(["a", "b"])
    assert [column.count() for column in columns.values()] == [counts["a"], counts["b"]]


def test_an_engine_that_keeps_nothing_repeats_the_grouping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "backend_name", lambda _: "another")
    column = open_column(shuffled(0), "x", unit="who")
    assert everything(column) == expected("mean")
