"""Runs that fill a table: small and full never mix, and two real ones go all the way to a page."""

import pytest

from prudent_lab.paper.jobs import EVERY, CellChoice, chosen_jobs
from prudent_lab.paper.report.comparison import datasets
from prudent_lab.paper.results import results_path, shipped
from tests.raising import refused


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
    with refused("results"):
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
