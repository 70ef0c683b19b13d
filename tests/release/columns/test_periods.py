"""Dates and times in periods: the same in Python and in every engine, and for odd dates."""

import datetime
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `tables`")
pytest.importorskip("ibis", reason="needs the extra `tables`")

import ibis
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from prudent._validate import ArgumentError
from prudent.release import count
from prudent.release.columns.row_values import groups
from prudent.release.columns.scales import DATE, Scale
from tests.release.recording import Silence

TIME = Scale("timestamp")


def expected(day: datetime.date, unit: str) -> datetime.date:
    """The first day of a period, by the calendar of Python."""
    return {
        "day": day,
        "week": day - datetime.timedelta(days=day.weekday()),
        "month": day.replace(day=1),
        "quarter": day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1),
        "year": day.replace(month=1, day=1),
    }[unit]


@given(st.dates(min_value=datetime.date(1, 1, 8)))
def test_the_first_day_is_that_of_the_calendar(day: datetime.date) -> None:
    for unit in ("day", "week", "month", "quarter", "year"):
        assert DATE.value(groups.start_of(day, unit, DATE)) == expected(day, unit)


@given(st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)))
def test_the_first_moment_of_an_hour(moment: datetime.datetime) -> None:
    hour = moment.replace(minute=0, second=0, microsecond=0)
    assert TIME.value(groups.start_of(moment, "hour", TIME)) == hour


def test_a_range_holds_all_periods_from_one_to_the_other() -> None:
    months = groups.expanded(["2023-11..2024-02", "2030-01-15"], "month", DATE)
    first = [datetime.date(2023, 11, 1), datetime.date(2023, 12, 1), datetime.date(2024, 1, 1)]
    assert months == [*first, datetime.date(2024, 2, 1), "2030-01-15"]
    assert len(groups.expanded(["2024-01-01..2024-12-31"], "day", DATE)) == 366
    assert len(groups.expanded(["2019..2021"], "year", DATE)) == 3
    with pytest.raises(ArgumentError, match="from an earlier month"):
        groups.expanded(["2024-02..2024-01"], "month", DATE)


DAYS = ["2024-01-31", "2024-02-01", "2024-02-29", "2024-03-01", "1969-12-31", "0044-03-15", None]


@pytest.mark.parametrize("unit", ["day", "week", "month", "quarter", "year"])
def test_an_engine_counts_as_the_calendar_does(unit: str) -> None:
    days = [None if each is None else datetime.date.fromisoformat(each) for each in DAYS]
    found = count(
        pa.table({"d": days}),
        by=f"d:{unit}",
        groups=sorted({expected(day, unit) for day in days if day is not None}),
        epsilon=1.0,
        noise=Silence(),
    )
    wanted: dict[Any, int] = {}
    for day in filter(None, days):
        wanted[expected(day, unit)] = wanted.get(expected(day, unit), 0) + 1
    assert {group: each.value for group, each in found.items()} == wanted


@pytest.mark.parametrize("unit", ["week", "month", "quarter", "year"])
def test_a_period_is_a_short_query(unit: str) -> None:
    """An engine has no names for parts of a value: each is written as often as it is used."""
    table = ibis.table({"d": "float64"}, name="t")
    query = ibis.to_sql(groups.starts(table.d, DATE, unit), dialect="duckdb")
    assert query.count('"d"') <= 100


def test_infinite_dates_are_in_no_period_in_postgres(postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS periods (d date, t timestamptz)")
        connection.execute("DELETE FROM periods")
        for day in ("2024-02-29", "infinity", "-infinity", "5000000-01-01", "4000-01-01 BC"):
            when = "infinity" if day.startswith("5") else day
            connection.execute("INSERT INTO periods VALUES (%s, %s)", [day, when])
    given: Any = {"connect": postgres_url, "table": "periods", "epsilon": 1.0, "noise": Silence()}
    for by in ("d:month", "t:month", "date_trunc('month', d)"):
        found = count(**given, by=by, groups=["2024-02"])
        assert found["2024-02"].value == 1


def test_what_is_no_period_is_said() -> None:
    table = pa.table({"x": [1.0], "t": [datetime.datetime(2024, 1, 1)]})
    given: Any = {"epsilon": 1.0, "dry_run": True}
    with pytest.raises(ArgumentError, match="the month of a column of times or dates"):
        count(table, by="x:month", groups=["2024-01"], **given)
    with pytest.raises(ArgumentError, match="Name a period of it: t:day"):
        count(table, by="t", groups=["2024-01"], **given)
    with pytest.raises(ArgumentError, match="dates such as"):
        count(table, by="t:month", groups=["soon"], **given)
