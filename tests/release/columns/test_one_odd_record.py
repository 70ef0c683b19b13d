"""Neighbouring tables, with one odd record and without: the same outcome, messages and queries.

Whether a release fails, in which words, and what an engine is asked are not charged for. So none of
them may depend on one record, whatever a column of its type can store.
"""

import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import ibis
import pytest

pytest.importorskip("opendp", reason="releases draw their noise with OpenDP")
pytest.importorskip("duckdb", reason="needs pip install 'prudent[tables]'")

import duckdb
import pyarrow as pa
import pyarrow.parquet

from prudent.release.columns import queries as table_queries
from prudent.release.noise import ReproducibleNoise
from prudent.release.outcome import Released
from prudent.release.statistics import iqr, median, mode, quantile, trimmed_mean

USUAL = 300
COST: Any = {"epsilon": 2.0, "delta": 1e-6}


class Case(NamedTuple):
    """A column of one type, in one engine, that one record fills with something odd."""

    engine: str
    type: str
    usual: Any
    odd: Any


DATES = ["infinity", "-infinity", "0044-03-15 (BC)", "10000-01-01", "290000-01-01"]
DUCKDB = [
    *(Case("duckdb", "DATE", "2024-01-01", odd) for odd in DATES),
    *(Case("duckdb", "TIMESTAMP", "2024-01-01", odd) for odd in DATES),
    *(Case("duckdb", "TIMESTAMPTZ", "2024-01-01", odd) for odd in DATES),
    Case("duckdb", "TIMESTAMP_NS", "2024-01-01", "2024-01-01 00:00:00.123456789"),
    Case("duckdb", "TIMESTAMP_NS", "2024-01-01", "infinity"),
    Case("duckdb", "TIMESTAMP_S", "2024-01-01", "290000-01-01"),
    Case("duckdb", "DECIMAL(38,10)", "1.5", "-9999999999999999999999999999.9999999999"),
    Case("duckdb", "HUGEINT", "7", str(-(2**126))),
    Case("duckdb", "UBIGINT", "7", str(2**64 - 1)),
    Case("duckdb", "DOUBLE", "1.5", "infinity"),
    Case("duckdb", "FLOAT", "1.5", "nan"),
    Case("duckdb", "VARCHAR", "a", "\x1b[2J\x00"),
    Case("duckdb", "BLOB", "a", "\\xFF"),
]

POSTGRES_DATES = ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01", "290000-01-01"]
NUMERICS = ["NaN", "Infinity", "-Infinity", "1e50", "1e400", "1e-400", "0." + "1" * 29]
POSTGRES = [
    *(Case("postgres", "date", "2024-01-01", odd) for odd in [*POSTGRES_DATES, "5000000-01-01"]),
    *(Case("postgres", "timestamp", "2024-01-01", odd) for odd in POSTGRES_DATES),
    *(Case("postgres", "timestamptz", "2024-01-01", odd) for odd in POSTGRES_DATES),
    *(Case("postgres", "numeric", "1.5", odd) for odd in NUMERICS),
    Case("postgres", "numeric(9,3)", "1.5", "NaN"),
    Case("postgres", "float8", "1.5", "-Infinity"),
    Case("postgres", "float4", "1.5", "NaN"),
    Case("postgres", "text", "a", "\x1b[2J"),
    Case("postgres", "bytea", "a", "\\xff"),
]

NOT_UTF8 = b"caf\xe9"
FAR = 2**62  # far beyond what a timestamp in microseconds reaches
ARROW_TYPES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "string": (pa.string(), b"a", NOT_UTF8),
    "large_string": (pa.large_string(), b"a", NOT_UTF8),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), b"a", NOT_UTF8),
    "timestamp[s]": (pa.timestamp("s"), 1_700_000_000, FAR // 10**6),
    "timestamp[ms]": (pa.timestamp("ms"), 1_700_000_000_000, FAR // 10**3),
    "timestamp[ms, UTC]": (pa.timestamp("ms", "UTC"), 1_700_000_000_000, FAR // 10**3),
    "timestamp[us]": (pa.timestamp("us"), 1_700_000_000_000_000, -(2**63)),
    "timestamp[ns]": (pa.timestamp("ns"), 1_700_000_000_000_000_000, 1),
    "date32": (pa.date32(), 19_000, 2**31 - 1),
    "date64": (pa.date64(), 19_000 * 86_400_000, FAR),
}
ARROW = [
    Case(engine, name, usual, odd)
    for engine in ("parquet", "arrow")
    for name, (_, usual, odd) in ARROW_TYPES.items()
    if not (engine == "parquet" and name in ("date64", "timestamp[s]"))  # Parquet has none
]

FRAMES = [
    Case("pandas", "object", 7, 10**5000),
    Case("pandas", "object", "a", "\ud800"),
    Case("pandas", "object", 7, Decimal("sNaN")),
    Case("pandas", "category", 7, "a"),
    Case("pandas", "category", "a", ("a", 1)),
    Case("pandas", "category", "a", "\ud800"),
    Case("pandas", "string", "a", "\ud800"),
    Case("polars", "ms", 1_700_000_000_000, FAR // 10**3),
    Case("lazy", "ms", 1_700_000_000_000, FAR // 10**3),
]

CASES = [*DUCKDB, *POSTGRES, *ARROW, *FRAMES]


def name_of(case: Case) -> str:
    huge = isinstance(case.odd, int) and case.odd.bit_length() > 9_999  # too long to be written
    odd = "huge" if huge else ascii(case.odd)[:30]
    return f"{case.engine} {case.type} {odd}"


def stored(case: Case, odd: bool) -> list[Any]:
    return [case.usual] * USUAL + [case.odd] * odd


def numbers(odd: bool) -> list[float]:
    return [50.0 + (i % 7) / 8 for i in range(USUAL)] + [50.0] * odd


def in_duckdb(case: Case, odd: bool, folder: Path) -> dict[str, Any]:
    path = folder / f"{uuid.uuid4().hex}.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            f"CREATE TABLE t AS SELECT CAST(CASE WHEN i < {USUAL} THEN ? ELSE ? END AS {case.type})"
            f" AS c, 50.0 + (i % 7) / 8 AS x, i AS id FROM range({USUAL + odd}) AS r(i)",
            [case.usual, case.odd],
        )
    return {"data": path, "table": "t"}


def arrow_array(case: Case, odd: bool) -> pa.Array:
    """An array of any stored bits, as a foreign writer may leave them: nothing is validated."""
    dtype = ARROW_TYPES[case.type][0]
    if pa.types.is_dictionary(dtype):
        words = pa.array([case.usual, case.odd], pa.binary()).view(pa.string())
        return pa.DictionaryArray.from_arrays(pa.array([0] * USUAL + [1] * odd, pa.int32()), words)
    if isinstance(case.usual, bytes):
        plain = pa.large_binary() if pa.types.is_large_string(dtype) else pa.binary()
        return pa.array(stored(case, odd), plain).view(dtype)
    whole = pa.int32() if pa.types.is_date32(dtype) else pa.int64()
    return pa.array(stored(case, odd), whole).view(dtype)


def in_arrow(case: Case, odd: bool, _: Path) -> dict[str, Any]:
    columns = {"c": arrow_array(case, odd), "x": numbers(odd), "id": list(range(USUAL + odd))}
    return {"data": pa.table(columns)}


def test_a_null_where_none_may_be() -> None:
    schema = pa.schema([pa.field("c", pa.string(), nullable=False)])
    table = pa.table({"c": pa.array(["a"] * USUAL + [None])}).cast(
        pa.schema([pa.field("c", pa.string())])
    )
    broken = pa.Table.from_arrays(table.columns, schema=schema)
    outcome = mode(broken, "c", **COST)
    assert isinstance(outcome, Released)
    assert outcome.value == "a"


def in_parquet(case: Case, odd: bool, folder: Path) -> dict[str, Any]:
    path = folder / f"{uuid.uuid4().hex}.parquet"
    pa.parquet.write_table(in_arrow(case, odd, folder)["data"], path)
    return {"data": path}


def in_pandas(case: Case, odd: bool, _: Path) -> dict[str, Any]:
    pandas = pytest.importorskip("pandas")
    values = pandas.Series(stored(case, odd), dtype=object).astype(case.type)
    return {"data": pandas.DataFrame({"c": values, "x": numbers(odd), "id": range(USUAL + odd)})}


def in_polars(case: Case, odd: bool, _: Path) -> dict[str, Any]:
    polars = pytest.importorskip("polars")
    moments = polars.Series(stored(case, odd), dtype=polars.Int64).cast(polars.Datetime(case.type))
    frame = polars.DataFrame({"c": moments, "x": numbers(odd), "id": range(USUAL + odd)})
    return {"data": frame.lazy() if case.engine == "lazy" else frame}


def in_postgres(case: Case, odd: bool, address: str) -> dict[str, Any]:
    psycopg = pytest.importorskip("psycopg")
    name = f"odd_{uuid.uuid4().hex}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} (c {case.type}, x float8, id int)")
        connection.execute(
            f"INSERT INTO {name} "
            f"SELECT CAST(CASE WHEN i < {USUAL} THEN %s ELSE %s END AS {case.type}), "
            f"50 + (i %% 7) / 8.0, i FROM generate_series(0, {USUAL + odd - 1}) AS i",
            [case.usual, case.odd],
        )
    return {"connect": address, "table": name}


LOADED: dict[str, Callable[[Case, bool, Any], dict[str, Any]]] = {
    "duckdb": in_duckdb,
    "parquet": in_parquet,
    "arrow": in_arrow,
    "pandas": in_pandas,
    "polars": in_polars,
    "lazy": in_polars,
    "postgres": in_postgres,
}

NUMERIC = ("NUMERIC", "DECIMAL", "DOUBLE", "FLOAT", "HUGEINT", "UBIGINT", "OBJECT", "CATEGORY")
STATISTICS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "mode": lambda where: mode(**where, column="c", noise=ReproducibleNoise(1), **COST),
    "mode, unit": lambda where: mode(
        **where, column="c", unit="id", noise=ReproducibleNoise(1), **COST
    ),
    "median, unit": lambda where: median(
        **where, column="x", unit="c", propose=9.0, noise=ReproducibleNoise(1), **COST
    ),
    "median, where": lambda where: median(
        **where,
        column="x",
        where=lambda t: t.c.notnull(),
        propose=9.0,
        noise=ReproducibleNoise(1),
        **COST,
    ),
}
OF_TEXT = {
    "median, by": lambda where: median(
        **where,
        column="x",
        by="c",
        groups=["a", "b"],
        propose=9.0,
        noise=ReproducibleNoise(1),
        **COST,
    ),
    "mode, list": lambda where: mode(
        **where, column="c", categories=["a", "b"], noise=ReproducibleNoise(1), **COST
    ),
    "median, where text": lambda where: median(
        **where,
        column="x",
        where=lambda t: t.c.lower() == "a",
        propose=9.0,
        noise=ReproducibleNoise(1),
        **COST,
    ),
}
OF_NUMBERS = {
    "median": lambda where: median(
        **where, column="c", propose=9.0, noise=ReproducibleNoise(1), **COST
    ),
    "quantile": lambda where: quantile(
        **where, column="c", p="1/4", propose=9.0, noise=ReproducibleNoise(1), **COST
    ),
    "iqr": lambda where: iqr(**where, column="c", propose=9.0, noise=ReproducibleNoise(1), **COST),
    "trimmed mean": lambda where: trimmed_mean(
        **where, column="c", trim=40, propose=9.0, noise=ReproducibleNoise(1), **COST
    ),
    "mode of numbers": lambda where: mode(
        **where, column="c", propose=9.0, noise=ReproducibleNoise(1), **COST
    ),
    "median, where number": lambda where: median(
        **where,
        column="x",
        where=lambda t: t.c > 0.5,
        propose=9.0,
        noise=ReproducibleNoise(1),
        **COST,
    ),
}


def statistics_of(case: Case) -> list[str]:
    text = case.usual in ("a", b"a") and case.type not in ("BLOB", "bytea")
    number = case.type.upper().startswith(NUMERIC) and case.usual != "a"
    chosen = [*STATISTICS, *(OF_TEXT if text else ()), *(OF_NUMBERS if number else ())]
    if case.engine == "pandas" and number:  # there the column is text
        chosen.remove("median, where number")
    return chosen


ALL = STATISTICS | OF_TEXT | OF_NUMBERS


class Seen(NamedTuple):
    """What an onlooker sees of a release that nobody charged for."""

    kind: Any
    words: str
    queries: list[str]


def seen(statistic: str, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Seen:
    queries: list[str] = []
    fetch = table_queries.fetched

    def watched(expression: Any) -> Any:
        text = str(ibis.to_sql(expression))
        queries.append(re.sub(r"(prudent_|odd_|ibis_)\w+", "T", text))
        return fetch(expression)

    with monkeypatch.context() as patch:
        patch.setattr(table_queries, "fetched", watched)
        try:
            outcome = ALL[statistic](where)
        except Exception as error:
            return Seen(type(error), str(error), queries)
    kinds = {key: type(each) for key, each in outcome.items()} if isinstance(outcome, dict) else ()
    value = outcome.value if isinstance(outcome, Released) and "mode" in statistic else None
    return Seen((type(outcome), kinds), repr(value), queries)


@pytest.fixture(scope="module")
def table_with(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Case, bool], dict[str, Any]]:
    """Makes the table of a case, once for all statistics."""
    folder = tmp_path_factory.mktemp("odd")
    made: dict[tuple[int, bool], dict[str, Any]] = {}

    def make(case: Case, odd: bool) -> dict[str, Any]:
        key = (id(case), odd)
        if key not in made:
            server = case.engine == "postgres"
            place = request.getfixturevalue("postgres_url") if server else folder
            made[key] = LOADED[case.engine](case, odd, place)
        return made[key]

    return make


def parameters() -> list[Any]:
    """Each odd value with one statistic, each statistic with one value of each engine.

    All combinations take minutes: the others are slow.
    """
    found = []
    tried: set[tuple[str, str]] = set()
    for turn, case in enumerate(CASES):
        statistics = statistics_of(case)
        for place, statistic in enumerate(statistics):
            quick = place == turn % len(statistics) or (case.engine, statistic) not in tried
            tried.add((case.engine, statistic))
            marks = () if quick else pytest.mark.slow
            found.append(pytest.param(case, statistic, marks=marks))
    return found


@pytest.mark.parametrize(
    ("case", "statistic"),
    parameters(),
    ids=lambda each: name_of(each) if isinstance(each, Case) else each,
)
def test_one_odd_record_changes_nothing_that_is_seen(
    case: Case,
    statistic: str,
    table_with: Callable[[Case, bool], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without, odd = (
        seen(statistic, table_with(case, there), monkeypatch) for there in (False, True)
    )
    assert not (isinstance(without.kind, type) and issubclass(without.kind, Exception)), without
    assert odd.kind == without.kind, odd.words
    assert odd.words == without.words
    assert len(odd.queries) == len(without.queries)
    if "mode" in statistic and "numbers" not in statistic:
        assert odd.queries == without.queries
