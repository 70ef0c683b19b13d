"""`prudent paper` writes files and prints tables."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prudent_lab.paper.jobs import published
from prudent_lab.paper.results import COLUMNS

Command = Callable[..., Any]


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


@pytest.fixture
def results(tmp_path: Path) -> Path:
    path = tmp_path / "results.csv"
    row = "mnist,none,ptr,,0,3.0,pld,100,1.1,92.5,0.5,64,"
    path.write_text(f"{','.join(COLUMNS)}\n{row}\n")
    return path


def test_a_table_shows_the_paper_beside_ours(run: Command, results: Path) -> None:
    lines = run("paper", "table", "1", "--results", str(results)).out.splitlines()
    assert lines[0] == "**Table 1: MNIST**"
    (ours,) = (line for line in lines if "92.50" in line)
    assert [cell.strip() for cell in ours.strip("|").split("|")] == [
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
    head = [cell.strip() for cell in lines[2].strip("|").split("|")]
    assert head == ["corruption", "ε", "TSGD+PTR, paper", "TSGD+PTR, RDP", "TSGD+PTR, PLD"]
    assert "random labels" not in "".join(lines)


def test_a_table_of_a_method_that_was_not_run_says_so(run: Command) -> None:
    assert "Not run." in run("paper", "table", "2", "--method", "ours").out


def test_a_table_can_be_of_another_network(run: Command) -> None:
    lines = run("paper", "table", "1", "--dataset", "cifar10-momentum").out.splitlines()
    assert lines[0] == "**Table 1: CIFAR10, tutorial network, momentum 0.9**"
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
    page, overview = tmp_path / "new" / "report.html", tmp_path / "overview.md"
    answer = run(
        "paper", "report", "--no-figures", "--results", str(results), "--out", str(page),
        "--overview", str(overview),
    )  # fmt: skip
    assert answer.out.split() == [str(page), str(overview)]
    for number in ("92.50", "+1.07"):
        assert number in page.read_text("utf-8")
    assert "## Table 1" not in overview.read_text("utf-8")


@pytest.mark.slow
def test_everything_goes_into_one_folder(run: Command, results: Path, tmp_path: Path) -> None:
    answer = run("paper", "report", "--results", str(results), "--out", str(tmp_path / "all"))
    figures = {f"figure{n}.{kind}" for n in range(1, 6) for kind in ("csv", "png", "svg")}
    tables = {f"table{n}.{kind}" for n in range(1, 5) for kind in ("md", "json")}
    assert {Path(line).name for line in answer.out.split()} == figures | tables | {"report.html"}
    page = (tmp_path / "all" / "report.html").read_text("utf-8")
    assert page.count('class="wide"') == 5


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
