"""Answers as tables: aligned columns on a terminal, CSV, and Parquet."""

import contextlib
import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("duckdb")
pytest.importorskip("ibis")

import pandas as pd

import prudent
from prudent.cli import main
from prudent.release.noise import ReproducibleNoise


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draws = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("answers") / "visits.parquet"
    city = draws.choice(["Oslo", "Rome", "a\nb"], 3_000)
    pd.DataFrame({"city": city, "x": draws.normal(10, 2, 3_000)}).to_parquet(file)
    return file


def _grouped(path: Path) -> prudent.release.GroupedTable:
    return prudent.Table(path, noise=ReproducibleNoise(1)).by("city", groups=["Oslo", "a\nb"])


def test_one_aligned_line_for_each_group(path: Path) -> None:
    lines = _grouped(path).median("x", epsilon=5).table()
    head, first, second = lines[:3]
    assert head.split() == ["city", "value", "95%", "interval"]
    assert first.startswith("Oslo ")
    assert second.startswith(r"a\nb ")  # which cannot pretend to be a line of its own
    end = head.index("value") + len("value")
    assert all(line[end] == " " and line[end - 1].isdigit() for line in (first, second))


@pytest.mark.unhurried
def test_the_head_names_the_least_confidence_of_its_intervals(path: Path) -> None:
    table = prudent.Table(path, noise=ReproducibleNoise(1))
    questions = [prudent.release.Ask("median", "x", confidence=0.5), "mean(x)"]
    assert "50% interval" in table.ask(questions, epsilon=5).table()[0]
    assert "95% interval" in table.ask([questions[1]], epsilon=5).table()[0]


def test_what_holds_for_all_groups_is_said_once(path: Path) -> None:
    clipped = _grouped(path).mean("x", epsilon=5, bounds=(0, 20)).table()
    assert sum("clipped to [0, 20]" in line for line in clipped) == 1
    private = _grouped(path).mean("x", epsilon=5).table()
    assert sum("clipped to" in line for line in private) == 1  # of bounds that groups share


@pytest.mark.unhurried
def test_a_number_without_an_interval_says_why(path: Path) -> None:
    found = _grouped(path).describe("x", epsilon=0.3)
    assert any("(too few records for this ε)" in line for line in found.table())
    assert "no interval" in set(found.to_frame().status)
    none_asked = _grouped(path).median("x", epsilon=5, confidence=0).table()
    assert not any("too few" in line for line in none_asked)


@pytest.mark.unhurried
def test_rows_have_the_names_of_the_caller(path: Path) -> None:
    several = _grouped(path).quantiles("x", ps=[0.25, 0.75], epsilon=5)
    frame = several.to_frame()
    assert list(frame) == ["city", "statistic", "value", "low", "high", "status"]
    assert several.to_arrow().column_names == list(frame)
    assert len(frame) == 4
    assert [each["count"] for each in _grouped(path).histogram("x", epsilon=5, bins=2).records()]
    one = prudent.median(path, "x", epsilon=5)
    assert list(one.records()[0]) == ["value", "low", "high", "status"]


def test_csv_holds_a_row_for_each_number(run: Any, path: Path) -> None:
    asked = ["release", "mean", str(path), "--column", "x", "--by", "city", "--groups", "Oslo,Rome"]
    done = run(*asked, "--epsilon", "4", "--csv", "--quiet")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [row["city"] for row in rows] == ["Oslo", "Rome"]
    for row in rows:
        assert float(row["low"]) <= float(row["value"]) <= float(row["high"])
    asked = ["sql", f"SELECT count(*) FROM '{path}'", "--epsilon", "4", "--csv", "--quiet"]
    assert run(*asked).out.startswith("column,statistic,value,low,high,status\n,count,")


def test_dates_and_numbers_of_one_answer_are_written_as_they_are(run: Any, tmp_path: Path) -> None:
    """A date makes no dates of the numbers below it, and they do not stop it after the charge."""
    data, out = str(tmp_path / "t.parquet"), tmp_path / "answer.parquet"
    days = pd.date_range("2024-01-01", periods=900)
    pd.DataFrame({"d": days, "x": np.full(900, 1.5)}).to_parquet(data)
    bounded = "avg(clip(x, 0, 2))"
    for asked in (f"median(d), {bounded}", f"{bounded}, median(d)"):
        given = ["--epsilon", "40", f"--parquet={out}", "--json", "--quiet"]
        done = run("sql", f"SELECT {asked} FROM '{data}'", *given)
        assert done.status == 0
        shown = [each["value"] for each in json.loads(done.out)["answers"].values()]
        written = pd.read_parquet(out)["value"]
        assert [str(each).replace("T", " ") for each in shown] == list(map(str, written))


def test_both_forms_are_refused_before_any_charge(run: Any, path: Path) -> None:
    done = run("release", "count", str(path), "--epsilon", "1", "--csv", "--json")
    assert done.status == 2
    assert "--csv" in done.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_table(path: Path) -> None:
    asked = ["release", "count", str(path), "--by", "city", "--groups", "Oslo,Rome"]
    with contextlib.redirect_stdout(Terminal()) as shown:
        assert main([*asked, "--epsilon", "4", "--quiet"]) == 0
    assert shown.getvalue().splitlines()[0].split()[:2] == ["city", "value"]
