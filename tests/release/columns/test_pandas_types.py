"""The type that pandas or numpy infers from all records shows in no answer.

Frames are made as a user makes them, with and without one record. Without noise the answers must
be those of a frame whose one record counts, or not: never of another kind, type or reading.
"""

import datetime
from typing import Any

import pytest

pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="needs the extra `tables`")
pytest.importorskip("pandas")

import numpy as np
import pandas as pd
import pyarrow as pa

import prudent
from prudent.release.columns.opening import open_column, open_private_groups
from prudent.release.columns.scales import cells
from tests.release.recording import Silence

QUIET: Any = {"epsilon": 20.0, "noise": Silence()}
DAY = datetime.datetime(2024, 5, 1)
COLUMNS: dict[str, list[Any]] = {
    "integers": [0, 1, 10, 7, 7, 3, 12, 9, 1, 5, 4, 8],
    "floats": [0.5, 1.25, 7.0, 3.0, -2.5, 0.1],
    "booleans": [True, False, True, True],
    "times": [DAY + datetime.timedelta(hours=7 * n) for n in range(6)],
    "numpy times": list(np.array(["2024-05-01", "2024-06-01T10:00"], "M8[s]")),
    "zoned times": [pd.Timestamp(DAY, tz="Europe/Oslo"), pd.Timestamp(DAY, tz="Europe/Oslo")],
    "durations": [datetime.timedelta(hours=n) for n in range(4)],
    "texts": ["a", "b", "a"],
    "long integers": [2**53 + 1, 2**60, 5],
    "nothing": [],
}
RECORDS: dict[str, Any] = {
    "NaN": np.nan,
    "None": None,
    "a text": "x",
    "a float": 2.5,
    "an integer": 5,
    "a boolean": True,
    "a complex number": 1j,
    "a time": datetime.datetime(1999, 1, 1, 12),
    "another zone": pd.Timestamp("1999-01-01", tz="Asia/Tokyo"),
    "a huge integer": 10**30,
}
READINGS = [None, "integer", "decimal(2)", "boolean", "date", "timestamp", "duration"]


def neighbours(name: str, record: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    values = COLUMNS[name]
    return pd.DataFrame({"v": values}), pd.DataFrame({"v": [*values, RECORDS[record]]})


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("record", RECORDS)
def test_a_cell_is_read_alone(name: str, record: str) -> None:
    """Numbers, categories, groups, units, keys and conditions are all made of these texts."""
    without, with_it = (cells(frame.v).to_pylist() for frame in neighbours(name, record))
    assert with_it[:-1] == without


@pytest.mark.parametrize("read_as", READINGS)
def test_one_record_adds_one_value_and_changes_no_other(read_as: str | None) -> None:
    for name, record in (("integers", "a text"), ("times", "None"), ("booleans", "NaN")):
        found = []
        for frame in neighbours(name, record):
            column: Any = open_column(frame, "v", read_as=read_as)
            found.append((column.scale, column.order_statistics(1, column.count()).tolist()))
        (scale, values), (same, more) = found
        assert scale == same
        for value in values:
            more.remove(value)
        assert len(more) <= 1


@pytest.mark.parametrize("record", ["NaN", "a text", "a float"])
def test_one_record_is_in_one_group_and_renames_no_other(record: str) -> None:
    found = []
    for frame in neighbours("integers", record):
        groups = open_private_groups(frame, None, by="v")
        found.append({(type(key).__name__, key): count for key, count in groups.counts().items()})
    without, with_it = found
    changed = {key for key in without | with_it if without.get(key, 0) != with_it.get(key, 0)}
    assert len(changed) <= 1
    assert sum(with_it.values()) - sum(without.values()) in (0, 1)


@pytest.mark.parametrize("record", ["NaN", "a text"])
def test_one_record_changes_no_unit_join_or_condition(record: str) -> None:
    """Units, keys of a join and columns of a condition are compared as they are grouped."""
    people = pa.table({"v": pa.array(range(12)), "w": pa.array([1.5] * 12)})
    counts = []
    for frame in neighbours("integers", record):
        frame["x"] = 1.0
        both = prudent.join(frame, people, on="v", public=True)
        counts.append(
            [
                prudent.count(frame, unit="v", **QUIET).value,
                prudent.count(both, **QUIET).value,
                prudent.count(frame, where="v > 2", **QUIET).value,
                prudent.count(frame, where=lambda t: t.v == "7", **QUIET).value,
                prudent.count(frame, where=lambda t: t.v.try_cast("float64") < 4, **QUIET).value,
            ]
        )
        with pytest.raises(prudent.ArgumentError, match="try_cast"):
            prudent.count(frame, where=lambda t: t.v > 2, **QUIET)
    assert all(0 <= more - few <= 1 for few, more in zip(*counts, strict=True))


@pytest.mark.unhurried
def test_known_leaks_are_closed() -> None:
    """Each of these showed one record in every answer."""
    whole, gap = neighbours("integers", "NaN")
    for frame in (whole, gap):
        assert set(prudent.describe(frame, **QUIET).answers) == {"count(v)"}  # type: ignore[attr-defined]
    truth = [True] * 2100 + [False] * 900
    for extra in ([], [None], ["x"]):
        frame = pd.DataFrame({"v": truth + extra})
        assert prudent.mean(frame, "v", **QUIET).value == pytest.approx(0.7, abs=1e-3)
        assert prudent.proportion(frame, "v", **QUIET).value == pytest.approx(0.7, abs=1e-3)
    days = [DAY + datetime.timedelta(days=n % 60) for n in range(600)]
    for more in ([], ["never"]):
        frame = pd.DataFrame({"v": days + more})
        found = prudent.count(frame, by="v:month", groups=["2024-05", "2024-06"], **QUIET)
        assert [each.value for each in found.values()] == [310, 290, len(more)]
        assert prudent.count(frame, where="v < date '2024-06-01'", **QUIET).value == 310


@pytest.mark.parametrize("record", ["NaN", "None", "a float"])
@pytest.mark.parametrize("made", [np.array, list, pd.Series])
def test_arrays_and_series_are_read_alike(record: str, made: Any) -> None:
    """numpy infers a type from all records, too."""
    values = COLUMNS["integers"] * 30
    scales = set()
    for records in (values, [*values, RECORDS[record]]):
        data = made(records)
        preview: Any = prudent.median(data, **QUIET, dry_run=True)
        scales.add((preview.noise_scale, preview.mechanism, str(preview.notes)))
        found = prudent.mode(data, epsilon=20.0, delta=1e-6, noise=Silence())
        scales.add(repr(getattr(found, "value", None)))
    assert len(scales) == 2


@pytest.mark.unhurried
def test_a_declared_type_is_public() -> None:
    frame = pd.DataFrame(
        {"v": pd.array([1, 2, None], "Int64"), "w": pd.array([True] * 3, "boolean")}
    )
    column: Any = open_column(frame, "v")
    assert column.scale.kind == "integer"
    asked: Any = prudent.describe(frame, epsilon=1.0, dry_run=True)
    assert [part.statistic for part in asked.parts] == ["description", "proportion"]
