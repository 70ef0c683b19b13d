"""One record more, of any kind: nothing changes but what is paid for."""

import datetime
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

pytest.importorskip("ibis")
pytest.importorskip("sklearn")

import pandas as pd
import pyarrow as pa

from prudent.synth import columns
from prudent.synth.engine import TableEngine
from prudent.synth.structure import Structure
from tests.synth.told_again import problems

pytestmark = pytest.mark.usefixtures("quick_prices")

PRICE = {"epsilon": 5.0, "delta": 1e-5}
ROWS = 600

TYPED = pa.schema(
    [
        ("whole", pa.int16()),
        ("real", pa.float64()),
        ("money", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("time", pa.timestamp("us")),
        ("town", pa.string()),
        ("yes", pa.bool_()),
    ]
)

ODD_TYPED = [
    dict.fromkeys(TYPED.names),
    {"whole": 32767, "real": math.nan, "money": Decimal("9999999.99"), "town": ""},
    {"whole": -32768, "real": math.inf, "day": datetime.date(9999, 12, 31), "town": "a\0b"},
    {"real": -math.inf, "time": datetime.datetime(1, 1, 1), "town": "x" * 10_000, "yes": True},
    {"real": 5e-324, "money": Decimal("0.01"), "day": datetime.date(1, 1, 1), "town": "(other)"},
]

ODD_CELLS = [
    (None, None, None),
    (math.nan, "7", float("inf")),
    ("text in numbers", 7, -math.inf),
    (10**400, b"bytes", "2020-01-01"),
    (True, {"a": 1}, "12:30"),
    (1 + 2j, datetime.date(2020, 1, 1), Decimal("NaN")),
]


def typed_rows(count: int) -> list[dict[str, Any]]:
    draw = np.random.default_rng(7)
    start = datetime.datetime(2020, 1, 1)
    return [
        {
            "whole": int(draw.integers(0, 40)),
            "real": float(draw.normal(100, 15)) if draw.random() > 0.1 else None,
            "money": Decimal(int(draw.integers(100, 10_000))).scaleb(-2),
            "day": (start + datetime.timedelta(days=int(draw.integers(0, 300)))).date(),
            "time": start + datetime.timedelta(minutes=int(draw.integers(0, 500_000))),
            "town": str(draw.choice(["Oslo", "Bergen", "Voss"])),
            "yes": bool(draw.random() > 0.3),
        }
        for _ in range(count)
    ]


def cells(count: int) -> list[tuple[Any, ...]]:
    draw = np.random.default_rng(8)
    return [
        (int(draw.integers(0, 9)), str(draw.choice(["a", "b"])), float(draw.normal()))
        for _ in range(count)
    ]


@pytest.mark.unhurried
@pytest.mark.parametrize("odd", range(len(ODD_TYPED)))
def test_an_odd_record_of_a_typed_table_changes_nothing_else(odd: int) -> None:
    rows = typed_rows(ROWS)
    one = pa.Table.from_pylist(rows, TYPED)
    two = pa.Table.from_pylist([*rows, ODD_TYPED[odd]], TYPED)
    assert not problems(*((one, two) if odd % 2 else (two, one)), **PRICE)


def series(values: Any) -> pd.Series:
    """With the type that pandas infers, if it can."""
    try:
        return pd.Series(list(values))
    except OverflowError:
        return pd.Series(list(values), dtype=object)


@pytest.mark.unhurried
@pytest.mark.parametrize("odd", range(len(ODD_CELLS)))
def test_an_odd_record_of_a_frame_changes_nothing_else(odd: int) -> None:
    rows = cells(ROWS)
    one = pd.DataFrame(rows, columns=["n", "t", "x"])
    both = dict(zip("ntx", zip(ODD_CELLS[odd], *rows, strict=True), strict=True))
    two = pd.DataFrame({name: series(values) for name, values in both.items()})
    assert not problems(*((one, two) if odd % 2 else (two, one)), **PRICE)


def test_an_odd_line_of_a_text_file_changes_nothing_else(tmp_path: Path) -> None:
    lines = [f"{n},{t},{x:.3f}" for n, t, x in cells(ROWS)]
    paths = []
    for name, more in (("one", []), ("two", ['"unclosed,1,2'])):
        paths.append(tmp_path / f"{name}.csv")
        paths[-1].write_text("\n".join(["n,t,x", *lines, *more]) + "\n", encoding="utf-8")
    assert not problems(*map(str, paths), **PRICE)


def test_a_unit_changes_no_more_than_its_bound() -> None:
    rows = [{"who": str(place // 3), "a": place % 7, "b": place % 2} for place in range(900)]
    more = [{"who": "new", "a": 999, "b": place} for place in range(50)]
    schema = pa.schema([("who", pa.string()), ("a", pa.int32()), ("b", pa.int32())])
    one, two = (pa.Table.from_pylist(each, schema) for each in (rows, rows + more))
    assert not problems(one, two, rows=4, unit="who", most_rows=4, **PRICE)
    assert problems(one, two, rows=3, unit="who", most_rows=4, **PRICE)


def outlier() -> tuple[pa.Table, pa.Table]:
    rows = typed_rows(ROWS)
    wild = {**rows[0], "real": 1e9, "town": "Nowhere"}
    return pa.Table.from_pylist(rows, TYPED), pa.Table.from_pylist([*rows, wild], TYPED)


def planted(monkeypatch: pytest.MonkeyPatch, name: str, change: Any) -> None:
    """Let the domain of a column depend on its exact values."""
    honest = columns.discover

    def found(field: Any, source: Any, *rest: Any) -> Any:
        clean = honest(field, source, *rest)
        return change(clean, source.values(clean.field)[0]) if field.name == name else clean

    monkeypatch.setattr("prudent.synth.making.discover", found)


@pytest.mark.thorough
def test_a_bin_edge_from_the_data_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(clean: Any, values: Any) -> Any:
        return attrs.evolve(clean, edges=np.append(clean.edges[:-1], values.max()))

    assert not problems(*outlier(), **PRICE)
    planted(monkeypatch, "real", change)
    assert problems(*outlier(), **PRICE)


@pytest.mark.thorough
def test_keys_from_the_data_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(clean: Any, values: Any) -> Any:
        keys = [each.decode() for each in values]
        return columns.Domain(clean.field, tuple(keys), stored=tuple(values))

    planted(monkeypatch, "town", change)
    assert problems(*outlier(), **PRICE)


def test_a_score_of_too_large_a_range_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Structure._scores

    def planted(self: Any, expected: Any) -> Any:
        return {
            key: score * (1 + 20 * (key[0] % 2)) for key, score in honest(self, expected).items()
        }

    monkeypatch.setattr(Structure, "_scores", planted)
    assert any("best of select" in each for each in problems(*outlier(), **PRICE))


@pytest.mark.unhurried
def test_a_missing_noise_part_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every count that leaves is the exact one plus what the source of noise drew for its price."""
    from prudent.release import ReproducibleNoise
    from prudent.synth import synthesize

    class Noted(ReproducibleNoise):
        drawn: list[tuple[float, list[int]]]

        def of_value(self, distribution: Any, scale: float, size: int) -> list[int]:
            found = super().of_value(distribution, scale, size)
            self.drawn.append((scale, found))
            return found

    def audited(method: str, change: Any) -> list[str]:
        noise, faults = Noted(1), []
        noise.drawn = []
        honest = getattr(TableEngine, method)

        def act(self: Any, name: str, *given: Any) -> Any:
            noise.drawn.clear()
            found, exact = change(honest, self, name, *given), given[-1]
            drawn = [each for _, part in noise.drawn for each in part]
            if method == "keys":
                looked = np.flatnonzero(exact >= self.threshold(name)[0]).tolist()
                noisy = [int(exact[at]) + more for at, more in zip(looked, drawn, strict=False)]
                known = dict(zip([given[0][at] for at in looked], noisy, strict=False))
                right = len(drawn) == len(looked) and found.items() <= known.items()
            else:
                right = (found - exact).ravel().tolist() == drawn
            if not right or any(scale < self.deviation(name) for scale, _ in noise.drawn):
                faults.append(name)
            return found

        with monkeypatch.context() as patched:
            patched.setattr(TableEngine, method, act)
            synthesize(outlier()[0].select(["real", "town", "yes"]), noise=noise, **PRICE)
        return faults

    def silent(part: str) -> Any:
        def change(honest: Any, self: Any, name: str, *given: Any) -> Any:
            found, exact = honest(self, name, *given), given[-1]
            if name != part:
                return found
            self._noise.drawn.clear()
            if part != "keys":
                return exact
            return {
                key: many for key, many in zip(given[0], exact.tolist(), strict=True) if many > 9
            }

        return change

    for method, parts in {
        "counts": ["size", "forms", "oneway", "spans", "tables"],
        "keys": ["keys"],
    }.items():
        assert audited(method, silent("")) == []
        for part in parts:
            assert set(audited(method, silent(part))) == {part}
