"""Counts that an engine makes, against the same counts made of the records one by one."""

import datetime
import itertools
import math
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ibis")
pytest.importorskip("sklearn")

import ibis.expr.datatypes as dt
import pyarrow as pa

from prudent.release import ReproducibleNoise
from prudent.release.columns.dialects import scale_of
from prudent.synth import synthesize
from prudent.synth.columns import FARTHEST, FORMS, Domain, Field, Source
from tests.servers import postgres_url, spark_session  # noqa: F401
from tests.synth.test_differential import ODD_TYPED, TYPED, typed_rows

NOTHING = dict.fromkeys(TYPED.names)
ODD = [
    {"real": -0.0, "town": " 12"},
    {"real": 0.0, "town": "NaN"},
    {"real": 1e308, "town": "OSLO"},
    {"real": 2.0**62 + 2.0**11, "town": "'; --"},
    {"real": -5e-324, "town": "é,-\\"},
    {"real": 99.5, "time": datetime.datetime(2262, 4, 12, 0, 0, 0, 1)},
    {"real": math.nextafter(99.5, 0), "day": datetime.date(1969, 12, 31)},
    {"real": 0.1 + 0.2, "time": datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)},
]
RECORDS = [
    {name: "" if value == "a\0b" else value for name, value in (NOTHING | each).items()}
    for each in [*typed_rows(80), *ODD_TYPED, *ODD, *ODD]
]
KINDS = "smallint, double precision, numeric, date, timestamp, text, boolean"


def in_memory(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"source": pa.Table.from_pylist(RECORDS, TYPED)}


def memtable(request: pytest.FixtureRequest) -> dict[str, Any]:
    import ibis

    return {"source": ibis.memtable(pa.Table.from_pylist(RECORDS, TYPED))}


def postgres(request: pytest.FixtureRequest) -> dict[str, Any]:
    psycopg = pytest.importorskip("psycopg")
    address = str(request.getfixturevalue("postgres_url"))
    kinds = zip(TYPED.names, KINDS.split(", "), strict=True)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS hostile")
        connection.execute(f"CREATE TABLE hostile ({', '.join(map(' '.join, kinds))})")
        asked = f"INSERT INTO hostile VALUES ({', '.join(['%s'] * len(TYPED))})"
        connection.cursor().executemany(asked, [tuple(each.values()) for each in RECORDS])
    return {"source": None, "connect": address, "table": "hostile"}


def spark(request: pytest.FixtureRequest) -> dict[str, Any]:
    session = request.getfixturevalue("spark_session")
    kinds = "whole smallint, real double, money decimal(9, 2), day date, time timestamp_ntz, "
    rows = [tuple(each.values()) for each in RECORDS]
    return {"source": session.createDataFrame(rows, kinds + "town string, yes boolean")}


ENGINES = [
    in_memory,
    memtable,
    pytest.param(postgres, marks=pytest.mark.thorough),
    pytest.param(spark, marks=pytest.mark.thorough),
]
EPOCH = datetime.datetime(1970, 1, 1)


def number(value: Any) -> Any:
    """What a value is counted as, by its type alone."""
    match value:
        case None | str():
            return None if value is None else value.encode()
        case datetime.datetime():
            return float((value - EPOCH) / datetime.timedelta(microseconds=1))
        case datetime.date():
            return float(value.toordinal() - EPOCH.toordinal())
        case Decimal():
            return float(value * 100)
        case _ if math.isnan(value):
            return None
    return min(max(float(value), -FARTHEST), FARTHEST)


def form(value: float | None) -> int:
    if value is None:
        return -1
    exact = (digits for digits in range(5) if round(value, digits) == value)
    return next(exact, FORMS.index("number"))


def opened(engine: Callable[..., Any], request: pytest.FixtureRequest) -> Source:
    source = Source(columns=None, unit=None, most_rows=1, **engine(request))
    assert source.read() == len(RECORDS)
    return source


@pytest.mark.unhurried
@pytest.mark.parametrize("engine", ENGINES)
def test_counts_are_those_of_the_records(engine: Any, request: pytest.FixtureRequest) -> None:
    source = opened(engine, request)
    columns = {name: [number(each[name]) for each in RECORDS] for name in TYPED.names}
    if engine is postgres:  # without digits in its type a NUMERIC is a double
        columns["money"] = [None if each is None else each / 100 for each in columns["money"]]
    for name, counts in source.forms().items():
        found = Counter(map(form, columns[name]))
        assert counts.tolist() == [found[place] for place in range(len(FORMS))]
    assert {"real"} <= {*source.forms()} <= {"real", "money"}
    domains, cells = [], []
    for field in source.fields:
        exact = Counter(each for each in columns[field.name] if each is not None)
        values, counts = source.values(field)
        assert dict(zip(values.tolist(), counts.tolist(), strict=True)) == exact
        assert values.tolist() == sorted(exact)
        assert len(source.values(field, 5)[0]) == sum(many >= 5 for many in exact.values())
        stored = sorted(exact)[::3]
        edges = None
        if field.scale is not None and not field.boolean:
            edges = np.unique(np.array(sorted(exact))[::7])
        domains.append(Domain(field, tuple(stored), edges))
        cells.append([cell(domains[-1], each) for each in columns[field.name]])
    source.assign(domains)
    asked = list(itertools.combinations_with_replacement(range(len(domains)), 2))
    for (one, other), counted in source.pairs(asked).items():
        found = {(a, b): many for a, b, many in zip(*map(np.ndarray.tolist, counted), strict=True)}
        assert found == Counter(zip(cells[one], cells[other], strict=True))


def cell(domain: Domain, value: Any) -> int:
    if value is None:
        return 0
    if value in domain.keys:
        return 1 + domain.keys.index(value)
    upto = 0 if domain.edges is None else sum(value >= edge for edge in domain.edges[1:-1])
    return 1 + len(domain.keys) + int(upto)


@pytest.mark.usefixtures("quick_prices")
@pytest.mark.parametrize("engine", ENGINES[1:])
def test_a_release_is_the_same_in_every_engine(engine: Any, request: pytest.FixtureRequest) -> None:
    columns = ["whole", "real", "day", "time", "town", "yes"]

    def made(given: dict[str, Any]) -> Any:
        given["data"] = given.pop("source")
        price = {"epsilon": 20.0, "delta": 1e-5, "noise": ReproducibleNoise(4)}
        return synthesize(**given, **price, columns=columns).to_arrow().to_pydict()

    one, other = made(in_memory(request)), made(engine(request))
    assert {*one} == {*columns}
    assert one == other


STOPPERS = """INSERT INTO odd VALUES
    ('NaN', 'NaN', 'infinity', 'infinity'), ({huge}, '-infinity', '-infinity', '-infinity'),
    (-{huge}, '1e-308', '{last}', '{late}'), (NULL, NULL, NULL, NULL),
    (0.1, '1e308', '{first}', '{early}')"""


def stoppers_in_duckdb(request: pytest.FixtureRequest) -> dict[str, Any]:
    import duckdb

    path = request.getfixturevalue("tmp_path") / "odd.duckdb"
    ends = {"last": "5881580-07-10", "first": "5877642-06-25 (BC)", "huge": "1e300"}
    ends |= {"late": "294247-01-10 04:00:54.775806", "early": "290309-12-22 (BC) 00:00:00"}
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE odd (n DOUBLE, x DOUBLE, d DATE, t TIMESTAMP)")
        connection.execute(STOPPERS.format(**ends))
    return {"source": str(path), "table": "odd"}


def stoppers_in_postgres(request: pytest.FixtureRequest) -> dict[str, Any]:
    psycopg = pytest.importorskip("psycopg")
    address = str(request.getfixturevalue("postgres_url"))
    ends = {"last": "5874897-12-31", "first": "4713-01-01 BC", "huge": "1e400"}
    ends |= {"late": "294276-12-31 23:59:59.999999", "early": "4713-01-01 00:00:00 BC"}
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS odd")
        connection.execute("CREATE TABLE odd (n numeric, x float8, d date, t timestamp)")
        connection.execute(STOPPERS.format(**ends))
    return {"source": None, "connect": address, "table": "odd"}


@pytest.mark.parametrize(
    "stored",
    [stoppers_in_duckdb, pytest.param(stoppers_in_postgres, marks=pytest.mark.thorough)],
)
def test_no_stored_value_stops_a_query(stored: Any, request: pytest.FixtureRequest) -> None:
    source = Source(columns=None, unit=None, most_rows=1, **stored(request))
    assert source.read() == 5
    assert sum(counts.sum() for counts in source.forms().values()) == 3 + 3
    domains = []
    for field in source.fields:
        values, counts = source.values(field)
        assert np.abs(values).max() <= FARTHEST
        assert counts.sum() == (3 if field.name in "nx" else 4)
        domains.append(Domain(field, tuple(values[:1].tolist()), values[1:]))
    source.assign(domains)
    asked = list(itertools.combinations_with_replacement(range(4), 2))
    assert all(counts.sum() == 5 for *_, counts in source.pairs(asked).values())


def test_an_unknown_form_is_found_text_by_text(tmp_path: Path) -> None:
    texts = ["1", "2.5", "", "nan", "2020-01-01", "2020-01-01 10:00:00", "12:", "1e999", "abc", '"']
    path = tmp_path / "texts.csv"
    path.write_text("a\n" + "\n".join(f'"{each}"' for each in texts) + "\n", encoding="utf-8")
    source = Source(str(path), None, None, 1)
    source.read()
    (counts,) = source.forms().values()
    known = dict(zip(FORMS, counts.tolist(), strict=True))
    assert known["whole"] == 2  # 1, and what is moved to the largest number
    assert known["decimal(1)"] == known["date"] == known["timestamp"] == 1
    assert sum(known.values()) <= len(texts)


def test_numbers_without_declared_digits_are_made_as_doubles() -> None:
    """Such as those of NUMERIC in PostgreSQL."""
    dtype = dt.Decimal(None, None)
    domain = Domain(Field("x", dtype, scale_of(dtype, "postgres", "x")), (1.5,), np.array([2.0, 3]))
    made = domain.decode(np.array([0, 1, 2]), np.random.default_rng(1))
    assert made.type == pa.float64()
    assert made[:2].to_pylist() == [None, 1.5]
    assert 2 <= made[2].as_py() < 3


@pytest.mark.usefixtures("quick_prices")
def test_rows_are_in_the_cells_that_are_reported() -> None:
    """A value drawn in a bin is no key, and does not round into the next bin."""
    draw = np.random.default_rng(5)
    numbers = np.where(draw.random(10_000) < 0.5, draw.integers(300, 700, 10_000), 400)
    numbers = np.where(draw.random(10_000) < 0.2, 525, numbers)
    first = np.datetime64("2020-01-01")
    table = pa.table(
        {
            "whole": numbers,
            "cents": numbers / 100,
            "days": pa.array(first + numbers.astype("timedelta64[D]"), pa.date32()),
            "money": pa.array([Decimal(int(each)) / 100 for each in numbers], pa.decimal128(9, 2)),
            "real": np.where(numbers == 400, 4.0, numbers + draw.random(10_000)),
        }
    )
    noise = ReproducibleNoise(6)
    made = synthesize(table, epsilon=1.0, delta=1e-6, noise=noise)
    again = Source(made.data, None, None, 1)
    again.read()
    again.assign(made.domains)
    for place, (domain, one) in enumerate(zip(made.domains, made.marginals, strict=False)):
        assert domain.keys
        assert domain.edges is not None
        assert len(domain.edges) > 8
        cells, _, records = again.pairs([(place, place)])[place, place]
        assert dict(zip(cells.tolist(), records.tolist(), strict=True)) == {
            cell: many for cell, many in enumerate(one.made.tolist()) if many
        }
