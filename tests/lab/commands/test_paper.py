"""`prudent paper` writes files and prints tables and comparisons."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prudent.accounting import LaplaceTest, Run
from prudent_lab.commands import paper
from prudent_lab.paper.convergence import distances
from prudent_lab.paper.jobs import published
from prudent_lab.paper.results import COLUMNS

Command = Callable[..., Any]
SETTING = ("--sampling-rate=0.01", "--noise-multiplier=8", "--steps=100")


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_the_comparison_holds_the_exact_price_and_every_conversion(
    run: Command, tmp_path: Path
) -> None:
    answer = run("paper", "compare", *SETTING, "--json", "--out", str(tmp_path))
    prices = {row["analysis"]: row["epsilon"] for row in json.loads(answer.out)}
    names = [f"Rényi, {name} conversion" for name in ("classic", "improved", "optimal")]
    classic, improved, optimal = (prices[name] for name in names)
    assert classic > improved >= optimal > prices["PLD, noisy margin shown"]
    exact = Run(
        sampling_rate=0.01, steps=100, noise_multiplier=8.0, test=LaplaceTest(1.0), reveals="margin"
    )
    assert prices["PLD, noisy margin shown"] == exact.epsilon(1e-5)
    assert {path.name for path in tmp_path.iterdir()} == {"comparison.png", "comparison.svg"}


@pytest.mark.thorough
def test_the_comparison_refuses_the_white_box_outside_its_conditions(run: Command) -> None:
    told = run("paper", "compare", "--steps=100").out
    (white_box,) = (line for line in told.splitlines() if line.startswith("Rényi, white-box"))
    assert white_box.split()[2] == "–"
    assert "propose * noise_multiplier >= 4" in " ".join(told.split())


@pytest.mark.parametrize(
    "flag", ["--propose=0", "--sampling-rate=0", "--delta=0", "--test-scale=nan"]
)
def test_the_comparison_names_a_bad_flag(run: Command, flag: str) -> None:
    answer = run("paper", "compare", flag)
    assert answer.status == 2
    assert answer.err.startswith(flag.split("=")[0] + ": expected ")
    assert answer.err.count("\n") == 1


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "results.csv"
    row = "mnist,none,ptr,,0,3.0,pld,100,1.1,92.5,0.5,64,"
    path.write_text(f"{','.join(COLUMNS)}\n{row}\n")
    return path


def test_a_table_shows_the_paper_beside_ours(run: Command, results: Path) -> None:
    lines = run("paper", "table", "1", "--results", str(results)).out.splitlines()
    assert lines[0].strip() == "Table 1: MNIST"
    (ours,) = (line for line in lines if "92.50" in line)
    assert re.split(r"\s{2,}", ours.strip()) == [
        "clean", "3", "87.53", "91.43", "no step within ε", "92.50 (+1.07)"
    ]  # fmt: skip
    assert any("emnist-az, a substitute for" in line for line in lines)
    assert "…" not in "".join(lines)


def test_a_table_for_programs(run: Command, results: Path) -> None:
    cells = json.loads(run("paper", "table", "1", "--results", str(results), "--json").out)
    assert len(cells) == sum(cell.table == 1 for cell in published())
    assert cells[1]["pld"] == {"mean": 92.5, "deviation": None, "seeds": 1}
    assert cells[1]["rdp"] is None
    assert {cell["data"] for cell in cells if cell["dataset"] == "emnist"} == {"emnist-az"}


def test_a_table_can_be_of_one_cell(run: Command, results: Path) -> None:
    one = ("--dataset", "mnist", "--corrupt", "none", "--method", "ptr", "--epsilon", "3")
    chosen = ("paper", "table", "1", *one, "--results", str(results))
    (cell,) = json.loads(run(*chosen, "--json").out)
    assert (cell["method"], cell["corrupt"], cell["pld"]["mean"]) == ("ptr", "none", 92.5)
    lines = run(*chosen).out.splitlines()
    assert lines[2].split() == ["corruption", "ε", *("TSGD+PTR,", "paper") , *("TSGD+PTR,", "RDP"),
                                *("TSGD+PTR,", "PLD")]  # fmt: skip
    assert "random labels" not in "".join(lines)


def test_a_table_can_be_of_another_network(run: Command) -> None:
    lines = run("paper", "table", "1", "--dataset", "cifar10-momentum").out.splitlines()
    assert lines[0].strip() == "Table 1: CIFAR10, tutorial network, momentum 0.9"
    assert any("58.92" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["table", "5"], "TABLE: expected one of 1, 2, 3, 4, frontier, got '5'."),
        (["table", "one"], "TABLE: expected one of 1, 2, 3, 4, frontier, got 'one'."),
        (["table", "1", "--size", "tiny"], "--size: expected one of small, full, got 'tiny'."),
        (["table", "1", "--dataset", "svhn"], "--dataset: expected one of cifar10, cifar10-mom"),
        (["table", "1", "--corrupt", "label:0.3"], "--corrupt: expected one of feature:0.1, "),
        (["table", "1", "--method", "dpsgd"], "--method: expected one of ours, ours-dpsgd, ptr"),
        (["table", "1", "--epsilon", "4"], "--epsilon: expected one of 10.0, 2.0, 2.5"),
        (["table", "no.toml"], "Expected a file of settings, got 'no.toml'."),
        (["table", "1", "--seeds", "0"], "--seeds: expected a whole number >= 1, got 0."),
        (["table", "1", "--results", "no.csv"], "no.csv: no such results."),
        (["table", "1", "--results", "a.small.csv"], "--results: expected not ending in .small"),
        (["table", "1", "--size", "small"], "runs/paper/results.small.csv: no small results yet."),
        (["report", "--results", "no.csv"], "no.csv: no such results."),
        (["report", "--seeds", "0"], "--seeds: expected a whole number >= 1, got 0."),
    ],
)
def test_what_is_wrong_with_a_table_is_one_line(
    run: Command, arguments: list[str], start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = run("paper", *arguments)
    assert answer.status == 2
    assert answer.err.startswith(start)
    assert answer.err.count("\n") == 1


def test_the_report_is_a_page_and_its_tables(run: Command, results: Path, tmp_path: Path) -> None:
    page, tables = tmp_path / "new" / "report.html", tmp_path / "tables.md"
    overview = tmp_path / "overview.md"
    answer = run(
        "paper", "report", "--no-figures", "--results", str(results), "--out", str(page),
        "--docs", str(tables), "--overview", str(overview),
    )  # fmt: skip
    assert answer.out.split() == [str(page), str(tables), str(overview)]
    for text in (page.read_text("utf-8"), tables.read_text("utf-8")):
        assert "92.50" in text
        assert "+1.07" in text
    assert "## Table 1" not in overview.read_text("utf-8")


@pytest.mark.slow
def test_everything_goes_into_one_folder(run: Command, results: Path, tmp_path: Path) -> None:
    answer = run("paper", "report", "--results", str(results), "--out", str(tmp_path / "all"))
    figures = {f"figure{n}.{kind}" for n in range(1, 6) for kind in ("csv", "png", "svg")}
    tables = {f"table{n}.{kind}" for n in range(1, 5) for kind in ("md", "json")}
    assert {Path(line).name for line in answer.out.split()} == figures | tables | {"report.html"}
    page = (tmp_path / "all" / "report.html").read_text("utf-8")
    assert page.count('class="wide"') == 5


def test_the_corrected_convergence_bound_stands_beside_the_printed_one(
    run: Command, tmp_path: Path
) -> None:
    rows = distances(**paper._DESCENT)
    assert [row.bad for row in rows] == [0, 1, 2, 5, 10, 20, 30, 40]
    corrected = [row.corrected for row in rows]
    assert corrected == sorted(corrected)
    assert any(row.printed is not None for row in rows)
    run("paper", "figure", "convergence", "--out", str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"convergence.png", "convergence.svg"}


def test_a_rate_that_does_not_contract_is_refused() -> None:
    with pytest.raises(ValueError, match="learning_rate < "):
        distances(**paper._DESCENT, learning_rate=1.0)


@pytest.mark.thorough
def test_the_frontier_is_shown_from_the_shipped_results(run: Command) -> None:
    rows = json.loads(run("paper", "table", "frontier", "--json").out)
    assert {row["ratio"] for row in rows} == {0.1, 0.2, 0.3}
    assert {row["method"] for row in rows} >= {"dpsgd", "ptr", "ours"}
    assert {row["attacker"] for row in rows} == {"records", "gradients"}
    assert all(("success" in row) == (row["attack"] == "backdoor") for row in rows)
    told = run("paper", "table", "frontier").out
    assert told.index("Bad records: MNIST, every run at ε = 3") < told.index("Bad gradients: MNIST")
    assert "backdoor: success" in told
    assert told.endswith("measured, not guaranteed.\n")
