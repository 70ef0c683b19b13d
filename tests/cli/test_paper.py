"""`prudent paper` writes files and prints comparisons."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prudent.accounting import LaplaceTest, Run

Command = Callable[..., Any]
SETTING = ("--sampling-rate=0.01", "--noise-multiplier=8", "--steps=100")


def test_a_figure_is_a_table_and_two_drawings(run: Command, tmp_path: Path) -> None:
    answer = run("paper", "figure", "2", "--out", str(tmp_path / "new"))
    paths = [tmp_path / "new" / f"figure2.{kind}" for kind in ("csv", "png", "svg")]
    assert answer.status == 0
    assert answer.out.split() == [str(path) for path in paths]
    assert paths[1].read_bytes().startswith(b"\x89PNG")
    assert "<svg" in paths[2].read_text()
    with paths[0].open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["figure", "panel", "curve", "x", "y"]
    assert {row["figure"] for row in rows} == {"2"}


def test_a_figure_that_cannot_be_written_is_one_line(run: Command, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    answer = run("paper", "figure", "2", "--out", str(tmp_path / "taken"))
    assert answer.status == 2
    assert answer.err == f"{tmp_path / 'taken'}: File exists.\n"


def test_the_comparison_holds_the_exact_price(run: Command, tmp_path: Path) -> None:
    answer = run("paper", "compare", *SETTING, "--json", "--out", str(tmp_path))
    prices = {row["analysis"]: row["epsilon"] for row in json.loads(answer.out)}
    exact = Run(sampling_rate=0.01, steps=100, noise_multiplier=8.0, test=LaplaceTest(1.0))
    assert prices["PLD, noisy margin shown"] == exact.epsilon(1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {"comparison.png", "comparison.svg"}


def test_the_comparison_refuses_the_white_box_outside_its_conditions(run: Command) -> None:
    lines = run("paper", "compare", "--steps=100").out.splitlines()
    (white_box,) = (line for line in lines if "white-box" in line and "PLD" not in line)
    assert white_box.split()[2] == "–"


@pytest.mark.parametrize(
    "flag", ["--propose=0", "--sampling-rate=0", "--delta=0", "--test-scale=nan"]
)
def test_the_comparison_names_a_bad_flag(run: Command, flag: str) -> None:
    answer = run("paper", "compare", flag)
    assert answer.status == 2
    assert answer.err.startswith(flag.split("=")[0] + ": expected ")
    assert answer.err.count("\n") == 1
