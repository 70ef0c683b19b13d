"""Texts in a declared form: each is read by itself, and another form has no value."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ibis = pytest.importorskip("ibis", reason="needs the extra `tables`")
pytest.importorskip("opendp", reason="needs the extra `tables`")

import prudent  # noqa: E402
from prudent import ArgumentError  # noqa: E402
from prudent.release import TextFile  # noqa: E402
from prudent.release.columns.column import SourceError  # noqa: E402
from prudent.release.columns.opening import TextFormat  # noqa: E402
from prudent.release.noise import ReproducibleNoise  # noqa: E402
from tests.cli.conftest import run  # noqa: E402, F401


def _read(declared: str, texts: list[str]) -> list[Any]:
    form = TextFormat.of(declared)
    assert form is not None
    table = ibis.memtable({"place": list(range(len(texts))), "text": texts})
    table = table.mutate(number=form.numbers(table.text)).order_by("place")
    found = ibis.duckdb.connect().to_pyarrow(table)["number"].to_pylist()
    return [None if each is None else float(each) for each in found]


@pytest.mark.parametrize(
    ("declared", "texts", "numbers"),
    [
        (
            "number($1,234.56)",
            [
                "$1,234.56",
                "-$5",
                "$-5",
                "12",
                " 7.5 ",
                "1,234,567.8",
                "1,23.4",
                "12,34",
                "€5",
                "",
                "x",
            ],
            [1234.56, -5, -5, 12, 7.5, 1234567.8, None, None, None, None, None],
        ),
        (
            "number(1.234,56 €)",
            ["1.234,56 €", "5,5", "1.5", "1234", "1.234.567,00€", "--5", "$3"],
            [1234.56, 5.5, None, 1234, 1234567, None, None],
        ),
        ("number(1234,56)", ["3,5", "3.5", "-3,5"], [3.5, None, -3.5]),
        ("number(1'234.56)", ["1'234.5", "1,5"], [1234.5, None]),
    ],
)
def test_numbers(declared: str, texts: list[str], numbers: list[float | None]) -> None:
    assert _read(declared, texts) == numbers


@pytest.mark.parametrize(
    ("declared", "texts", "dates"),
    [
        ("date(31.12.2024)", ["1.2.2020", "29.02.2023", "01.02.20", "2020-02-01"], ["2020-02-01"]),
        ("date(12/31/2024)", ["2/1/2020", "13/1/2020", "x"], ["2020-02-01"]),
        ("date(20241231)", [], None),
    ],
)
def test_dates(declared: str, texts: list[str], dates: list[str] | None) -> None:
    if dates is None:
        with pytest.raises(ArgumentError, match="read_as"):
            TextFormat.of(declared)
        return
    first, *others = _read(declared, texts)
    epoch = datetime.date(1970, 1, 1)
    assert epoch + datetime.timedelta(days=first) == datetime.date.fromisoformat(dates[0])
    assert others == [None] * len(others)


def test_times() -> None:
    first, second = _read("timestamp(31.12.2024 23:59)", ["01.01.1970 0:01", "01.01.1970"])
    assert (first, second) == (60e6, None)


@pytest.mark.parametrize(
    "declared", ["number(5)", "number(1,234,56)", "date(1.2.2024)", "timestamp(31.12.2024 59)"]
)
def test_an_example_of_something_else_is_refused(declared: str) -> None:
    with pytest.raises(ArgumentError, match=r"1234\.56"):
        TextFormat.of(declared)


def test_a_type_alone_is_no_form() -> None:
    assert TextFormat.of("decimal(2)") is None
    assert TextFormat.of("number") is None


def test_columns_of_a_file_have_forms_of_their_own(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    costs = draws.normal(2_000, 100, 500).round(2)
    days = ["31.12.2023", "01.06.2024"] * 250
    lines = [f'"${cost:,.2f}",{day}' for cost, day in zip(costs, days, strict=True)]
    file = tmp_path / "visits.csv"
    file.write_text("\n".join(["cost,day", *lines, '"free",never']))
    forms = {"cost": "number($1,234.56)", "day": "date(31.12.2024)"}
    table = prudent.Table(file, read_as=forms, noise=ReproducibleNoise(1))
    assert table.mean("cost", epsilon=20, bounds=(0, 9_000)).value == pytest.approx(2_000, abs=30)
    assert table.median("day", epsilon=20).value.year in (2023, 2024)
    with pytest.raises(ArgumentError, match="read_as"):
        prudent.Table(file, read_as="number(7)").mean("cost", epsilon=1)


def test_a_file_in_another_way_of_writing(tmp_path: Path) -> None:
    file = tmp_path / "visites.csv"
    rows = [f"{city};{cost},5" for city in ("Orléans", "Nîmes") for cost in range(200)]
    file.write_bytes("\n".join(["ville;coût", *rows]).encode("latin-1"))
    source = TextFile(file, delimiter=";", encoding="latin-1")
    table = prudent.Table(source, read_as="number(1.234,56)", noise=ReproducibleNoise(1))
    assert table.columns == {"ville": "undeclared", "coût": "undeclared"}
    assert table.mean("coût", epsilon=30, bounds=(0, 200)).value == pytest.approx(100, abs=3)
    counts = table.by("ville", groups=["Orléans", "Nîmes"]).count(epsilon=30)
    assert [each.value for each in counts.values()] == pytest.approx([200, 200], abs=2)
    with pytest.raises(SourceError, match="--encoding latin-1"):
        list(prudent.Table(TextFile(file, delimiter=";")).columns)
    plain = tmp_path / "plain.csv"
    plain.write_text("a;b\n1;2\n")
    with pytest.raises(SourceError, match="--delimiter ';'"):
        list(prudent.Table(plain).columns)
    plain.write_text("a,b,a\n1,2,3\n")
    with pytest.raises(SourceError, match="'a' is there more than once: rename"):
        list(prudent.Table(plain).columns)


@pytest.mark.parametrize("wrong", [{"delimiter": "ab"}, {"delimiter": '"'}, {"encoding": "ebcdic"}])
def test_how_a_file_is_written_is_checked(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong))):
        TextFile("visits.csv", **wrong)


def test_the_command_line_names_both(
    run: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    file = tmp_path / "visites.csv"
    file.write_bytes("\n".join(["ville;coût", *["Nîmes;7,5"] * 300]).encode("latin-1"))
    asked = ["release", "median", str(file), "--column", "coût", "--delimiter", ";"]
    asked += ["--encoding", "latin-1", "--read-as", "number(1234,56)", "--epsilon", "2", "--quiet"]
    assert run(*asked).out.startswith("7.5 ")
