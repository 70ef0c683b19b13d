"""Dates, times, durations and decimals as numbers: exact, the same everywhere, never an error."""

import datetime
import math
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ibis = pytest.importorskip("ibis", reason="needs the extra `tables`")

import pyarrow as pa  # noqa: E402
import pyarrow.parquet  # noqa: E402

from prudent.release.columns.column import Column  # noqa: E402
from prudent.release.columns.opening import open_column  # noqa: E402
from prudent.release.columns.scales import TRUTH, Scale  # noqa: E402
from tests.servers import postgres_url  # noqa: E402, F401

DATES = [datetime.date(1969, 12, 31), datetime.date(2024, 2, 29), datetime.date(1, 1, 1)]
TIMES = [
    datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
    datetime.datetime(2024, 2, 29, 12, 0, 0, 1),
    datetime.datetime(2107, 6, 5, 4, 3, 2, 123457),
    datetime.datetime(1830, 6, 5, 4, 3, 2, 654321),
]
ZONED = [time.replace(tzinfo=datetime.UTC) for time in TIMES]
DURATIONS = [
    datetime.timedelta(days=-1, microseconds=5),
    datetime.timedelta(hours=30),
    datetime.timedelta(microseconds=1),
]
AMOUNTS = [Decimal("12345678901.23"), Decimal("-0.05"), Decimal("0.10"), Decimal("7.00")]
VALUES: dict[str, list[Any]] = {
    "date": DATES,
    "timestamp": TIMES,
    "timestamptz": ZONED,
    "interval": DURATIONS,
    "numeric(20,2)": AMOUNTS,
}
ARROW = {"interval": pa.duration("us"), "numeric(20,2)": pa.decimal128(20, 2)}


def shown(column: Column) -> list[Any]:
    return [column.scale.value(x) for x in column.order_statistics(1, column.count())]


def arrow(name: str) -> pa.Table:
    return pa.table({"c": pa.array([*VALUES[name], None], ARROW.get(name))})


@pytest.mark.unhurried
@pytest.mark.parametrize("name", VALUES)
def test_every_source_shows_the_values_themselves(name: str, tmp_path: Path) -> None:
    expected, table = sorted(VALUES[name]), arrow(name)
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    for source in (table, tmp_path / "t.parquet"):
        column = open_column(source, "c")
        assert shown(column) == expected
    if name != "date" and name != "numeric(20,2)":  # pandas has neither
        pandas = pytest.importorskip("pandas")  # its own types are inferred, those of Arrow not
        frame = table.to_pandas(types_mapper=pandas.ArrowDtype)
        assert shown(open_column(frame[["c"]], "c")) == expected
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(table)
    for source in (frame, frame.lazy()):
        assert shown(open_column(source, "c")) == expected


@pytest.mark.unhurried
@pytest.mark.parametrize("name", VALUES)
def test_postgresql_shows_the_values_themselves(name: str, postgres_url: str) -> None:  # noqa: F811
    where = in_postgres(postgres_url, name, VALUES[name])
    column, local = open_column(**where, column="c"), open_column(arrow(name), "c")
    assert shown(column) == sorted(VALUES[name])
    assert column.scale == local.scale
    edges = local.order_statistics(1, 2)
    np.testing.assert_array_equal(column.counts_below(edges), local.counts_below(edges))


def in_postgres(address: str, kind: str, values: list[Any]) -> dict[str, Any]:
    psycopg = pytest.importorskip("psycopg")
    name = f"t_{uuid.uuid4().hex}"
    with psycopg.connect(address) as connection:
        connection.execute(f"CREATE TABLE {name} (c {kind})")
        for value in values:
            connection.execute(f"INSERT INTO {name} VALUES (%s::{kind})", [value])
    return {"connect": address, "table": name}


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array(DATES, "M8[D]"), DATES),
        (np.array(TIMES, "M8[us]"), TIMES),
        (np.array(TIMES[:2], "M8[ns]"), TIMES[:2]),
        (np.array([1, -1], "M8[W]"), [datetime.date(1970, 1, 8), datetime.date(1969, 12, 25)]),
        (
            np.array(["2024", "1969"], "M8[Y]"),
            [datetime.date(2024, 1, 1), datetime.date(1969, 1, 1)],
        ),
        (np.array([3], "M8[15m]"), [datetime.datetime(1970, 1, 1, 0, 45)]),
        (np.array(DURATIONS, "m8[us]"), DURATIONS),
        (np.array([2], "m8[h]"), [datetime.timedelta(hours=2)]),
        (
            np.array([-1_500, 1_500], "m8[ns]"),
            [datetime.timedelta(microseconds=x) for x in (-1, 1)],
        ),
    ],
)
def test_arrays_of_times(array: Any, expected: list[Any]) -> None:
    column = open_column(array)
    assert shown(column) == sorted(expected)
    missing = np.concatenate([array, np.array(["NaT"], array.dtype)])
    assert open_column(missing).count() == len(expected)


@pytest.mark.parametrize("unit", ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "as"])
def test_the_farthest_times_of_an_array_do_not_wrap_around(unit: str) -> None:
    far = np.array([-(2**63) + 1, 0, 2**63 - 1]).view(f"M8[{unit}]")
    low, zero, high = open_column(far).order_statistics(1, 3)
    assert low < zero == 0.0 < high
    spans = np.array([-(2**63) + 1, 2**63 - 1]).view(f"m8[{unit}]")
    low, high = open_column(spans).order_statistics(1, 2)
    assert low < 0 < high


@pytest.mark.parametrize(
    ("name", "values", "odd"),
    [
        ("date", DATES, [TIMES, "2024-01-01", 5, None, float("nan"), object()]),
        ("timestamp", TIMES, ["2024-01-01", 5, None]),
        ("duration", DURATIONS, [5, "1", datetime.date(2024, 1, 1)]),
        ("decimal(2)", AMOUNTS, ["1", None, Decimal("sNaN"), object(), True]),
        ("number", [1.5, 2.0], ["1", None]),
    ],
)
def test_a_list_is_read_as_it_is_declared(name: str, values: list[Any], odd: list[Any]) -> None:
    """The types of its records are private, so they decide nothing."""
    assert shown(open_column(values, read_as=name)) == sorted(values)
    assert shown(open_column([*values, *odd], read_as=name)) == sorted(values)
    extremes = open_column([*AMOUNTS, Decimal("Infinity"), 10**400], read_as="decimal(2)")
    assert extremes.order_statistics(5, 6).tolist() == [math.inf, math.inf]


def test_a_text_file_is_read_as_it_is_declared(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "day,at,amount,for\n2024-02-29,2024-02-29 12:00:00.000001,7.05,1.5\n"
        "infinity,x,1e999,\n2024-13-01,0,abc,-1e400\n"
    )
    for column, name, expected in [
        ("day", "date", [datetime.date(2024, 2, 29), datetime.date.max]),  # infinity is a date
        ("at", "timestamp", [datetime.datetime(2024, 2, 29, 12, 0, 0, 1)]),
        ("amount", "decimal(2)", [Decimal("7.05"), Decimal("Infinity")]),
        ("for", "duration", [datetime.timedelta.min, datetime.timedelta(seconds=1.5)]),
    ]:
        assert shown(open_column(tmp_path / "t.csv", column, read_as=name)) == expected
    for name in ("text", "decimal(99)", "decimal"):
        with pytest.raises(ValueError, match="Expected read_as"):
            open_column(tmp_path / "t.csv", "day", read_as=name)
    with pytest.raises(ValueError, match="only with a list or a text column"):
        open_column(arrow("date"), "c", read_as="date")


def test_text_is_refused_before_anything_is_read() -> None:
    table = pa.table({"t": ["a"], "s": [datetime.time(1)]})
    for name in table.column_names:
        with pytest.raises(ValueError, match="column of numbers, dates, times or durations"):
            open_column(table, name)


# --- one odd record -------------------------------------------------------------------------------

USUAL = [f"2024-01-{day:02}" for day in range(1, 30)]


def in_order(column: Column) -> list[float]:
    return column.order_statistics(1, 99).tolist()


def check_one_odd_record(before: list[float], odd: Column) -> None:
    """It adds one value or none, at the place that its order has, and moves no other."""
    after = in_order(odd)
    assert len(after) - len(before) in (0, 1)
    assert set(before) <= set(after)
    lattice = odd.scale.lattice()
    odd.clipped_sum(-1e9, 1e9, lattice)
    odd.sum_between(1, 99, lattice)
    assert all(odd.scale.value(x) is not None for x in after)


POSTGRES_ODD = {
    "date": ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01", "5000000-01-01"],
    "timestamp": ["infinity", "-infinity", "0044-03-15 BC", "290000-01-01"],
    "timestamptz": ["infinity", "-infinity", "0044-03-15 BC", "290000-01-01"],
    "numeric(30,3)": ["NaN", "999999999999999999999999999.999"],
    "numeric(1000,2)": ["1e500", "-1e900", "NaN"],
    "numeric": ["NaN", "Infinity", "1e400", "1e-400"],
    "interval": ["178000000 years", "-178000000 years 3 days", "1 month"],
}


@pytest.mark.parametrize("kind", POSTGRES_ODD)
def test_one_odd_record_in_postgresql(kind: str, postgres_url: str) -> None:  # noqa: F811
    moment = kind.startswith(("date", "time"))
    values = USUAL if moment else [f"{x} days" for x in range(9)] if kind == "interval" else ["1.5"]
    before = in_order(open_column(**in_postgres(postgres_url, kind, values), column="c"))
    for odd in POSTGRES_ODD[kind]:
        strange = open_column(**in_postgres(postgres_url, kind, [*values, odd]), column="c")
        check_one_odd_record(before, strange)


# --- a scale by itself ----------------------------------------------------------------------------


def test_public_values_become_numbers_and_back() -> None:
    date, time, span = Scale("date"), Scale("timestamp"), Scale("duration")
    assert date.number("1970-01-11") == date.number(datetime.date(1970, 1, 11)) == 10.0
    assert date.length(7) == date.length(datetime.timedelta(days=7)) == 7.0
    assert date.difference(1.5) == datetime.timedelta(hours=36)
    assert time.length(2) == time.length(datetime.timedelta(seconds=2)) == 2e6
    assert time.number("1970-01-01T00:00:01") == 1e6
    assert time.number(datetime.datetime(1970, 1, 1, 2, tzinfo=datetime.UTC)) == 7.2e9
    assert span.number(datetime.timedelta(seconds=1)) == 1e6
    amount = Scale("decimal", 2)
    assert amount.number("12.34") == amount.number(12.34) == amount.number(Decimal("12.34")) == 1234
    assert str(amount.value(-1234.4)) == "-12.34"
    assert (Scale().value(1), Scale("integer").value(2.5)) == (1.0, 2.5)
    for scale, wrong in [(date, 5), (date, "x"), (time, None), (span, "x"), (amount, "x")]:
        with pytest.raises(ValueError, match="Expected value"):
            scale.number(wrong)
    for scale, wrong in [(date, "x"), (amount, None), (time, True)]:
        with pytest.raises(ValueError, match="Expected value"):
            scale.length(wrong)


@pytest.mark.parametrize("number", [math.inf, -math.inf, 1e300, -1e300, math.nan])
def test_a_number_that_no_value_has_becomes_the_nearest(number: float) -> None:
    high = number > 0
    assert Scale("date").value(number) == (datetime.date.max if high else datetime.date.min)
    for zoned in (False, True):
        end = Scale("timestamp", zoned=zoned).value(number)
        assert end.replace(tzinfo=None) == getattr(datetime.datetime, "max" if high else "min")
    ends = datetime.timedelta.max, datetime.timedelta.min
    assert Scale("duration").value(number) == ends[0 if high else 1]
    assert isinstance(Scale("decimal", 3).value(number), Decimal)


def test_the_lattice_of_a_scale_is_that_of_its_units() -> None:
    assert Scale("date").lattice().spacing == 1.0
    assert Scale().lattice().spacing == 2.0**-20
    bounded = Scale("date").lattice(("1970-01-02", datetime.date(1970, 1, 31)))
    assert (bounded.low, bounded.high) == (1, 30)
    assert (Scale("decimal", 2).lattice((0, "9.99")).high, Scale("integer").lattice().exponent) == (
        999,
        0,
    )
    with pytest.raises(ValueError, match="Expected bounds"):
        Scale("date").lattice(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Expected bounds 0 or 1, got 10"):
        TRUTH.lattice((0, 10))
