"""Runs that fill a table: small and full never mix, and two real ones go all the way to a page."""

import csv
import json

import pytest

from prudent_lab.paper import grid
from prudent_lab.paper.jobs import EVERY, CellChoice, Job, chosen_jobs
from prudent_lab.paper.report.comparison import datasets
from prudent_lab.paper.report.page import as_html
from prudent_lab.paper.results import read, results_path, shipped


def test_where_results_are_read_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert results_path("full", None, running=False) == shipped()
    assert not (tmp_path / "runs").exists()
    small = results_path("small", None, running=True)
    assert small.name.endswith(".small.csv")
    given = tmp_path / "mine.csv"
    assert results_path("full", given, running=True) == given


def test_full_runs_are_added_to_a_copy_of_what_is_shipped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = results_path("full", None, running=True)
    assert path != shipped()
    assert path.read_bytes() == shipped().read_bytes()
    path.write_text("mine")
    assert results_path("full", None, running=True).read_text() == "mine"


@pytest.mark.parametrize(("size", "name"), [("full", "a.small.csv"), ("small", "a.csv")])
def test_small_and_full_never_mix(tmp_path, size, name):
    with pytest.raises(ValueError, match=f"Expected results .* at size {size}"):
        results_path(size, tmp_path / name, running=True)


def test_a_small_table_is_a_part_of_the_full_one():
    every = datasets(1)
    full, small = (list(chosen_jobs(1, every, 1, EVERY, size)) for size in ("full", "small"))
    assert set(small) < set(full)
    assert {job.corrupt for job in small} == {"none", "label:0.1"}
    assert {job.dataset for job in small} == {"mnist", "cifar10", "emnist"}


def test_one_cell_can_be_run_without_the_others():
    def jobs(size="full", **chosen):
        choice = CellChoice.of(1, ["mnist"], **chosen)
        found = chosen_jobs(1, ["mnist"], 1, choice, size)
        return [(job.corrupt, job.column, job.target) for job in found]

    assert jobs(corrupt=["label:0.1"], method=["ptr"]) == [("label:0.1", "ptr", None)]
    assert jobs(corrupt=["none"], method=["ours"], epsilon=[5.0]) == [("none", "ours", 5.0)]
    # The runs of fixed noise fill the cells of every ε.
    assert jobs(corrupt=["none"], method=["ptr"], epsilon=[5.0]) == [("none", "ptr", None)]
    assert {corrupt for corrupt, *_ in jobs("small", corrupt=["feature:0.2"])} == {"feature:0.2"}
    assert {column for _, column, _ in jobs()} == {"ptr", "trimmed", "ours", "ours-dpsgd"}


@pytest.mark.slow  # test_grid.py makes a run, test_pages.py a page: this one joins them
def test_two_real_runs_go_all_the_way_to_a_page(tmp_path, run):
    """Five steps of the paper's PTR and TSGD+Gaussian on MNIST, through the command line."""
    chosen = [Job("mnist", "none", column, (3.0,), 0) for column in ("ptr", "trimmed")]
    path = tmp_path / "tiny.small.csv"
    grid.run_jobs(chosen, path, at_once=1, most_steps=5)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    found = read(path)
    assert found.small
    answer = run("paper", "table", "1", "--size", "small", "--results", str(path), "--json")
    first = {cell["method"]: cell for cell in json.loads(answer.out)[:2]}
    for method in ("ptr", "trimmed"):
        (accuracy,) = {
            float(r["accuracy"])
            for r in rows
            if (r["column"], float(r["epsilon"]), r["accountant"]) == (method, 3.0, "pld")
        }
        assert first[method]["pld"] == {"mean": accuracy, "deviation": None, "seeds": 1}
        assert 0 < accuracy < 100
    page = as_html(found, "prudent paper report")
    assert f"{first['ptr']['pld']['mean']:.2f}" in page
    grid.run_jobs(chosen, path, at_once=1, most_steps=5)
    assert list(csv.DictReader(path.read_text().splitlines())) == rows, (
        "what is there was run again"
    )
