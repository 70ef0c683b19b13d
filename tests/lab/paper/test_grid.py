"""A small real grid, end to end."""

import attrs
import pytest
import torch

from prudent_lab.datasets import Dataset
from prudent_lab.paper import grid
from prudent_lab.paper.grid import Mark, planned, run_jobs
from prudent_lab.paper.jobs import (
    PAPER_COLUMNS,
    Job,
    frontier_jobs,
    published,
    settings,
    table_jobs,
)
from prudent_lab.paper.results import read

QUICK = (
    Job("mnist", "label:0.1", "dpsgd", (1.0,), 0),
    Job("mnist", "sign-flip:0.2", "dpsgd", (1.0,), 0),
)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    path = tmp_path_factory.mktemp("grid") / "results.csv"
    run_jobs(QUICK[:1], path, at_once=1, most_steps=6)
    return path


@pytest.mark.slow
def test_a_run_leaves_a_row_for_each_mark(results):
    rows = read(results).readings
    assert {row.run for row in rows} == {QUICK[0].run}
    assert {(row.epsilon, row.accountant) for row in rows} >= {(1.0, "pld")}
    assert {row.steps for row in rows} == {6}
    assert {row.target for row in rows} == {None}
    assert all(0 < row.accuracy < 100 for row in rows)


@pytest.mark.slow
def test_what_is_there_is_not_run_again(results, monkeypatch):
    before = results.read_text()
    monkeypatch.setattr(grid, "_work", None)
    run_jobs(QUICK[:1], results, at_once=1, most_steps=6)
    assert results.read_text() == before


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_features_are_centred_where_the_settings_say_so(dataset, monkeypatch):
    pixels, labels = torch.rand(4, 3), torch.zeros(4, dtype=torch.long)
    data = Dataset(dataset, pixels, labels, pixels, labels, 1, "made here")
    monkeypatch.setattr(grid, "_corrupted", lambda *_: data)
    records = grid._records(Job(dataset, "none", "ptr", (1.0,), 0))
    seen = grid._featured(records, torch.device("cpu"))
    centred = settings()["datasets"][dataset].get("centred", False)
    assert seen.train_features.equal(2 * pixels - 1 if centred else pixels)
    assert centred == (dataset == "cifar10")


class TestPlans:
    @pytest.mark.unhurried
    def test_marks_are_the_last_steps_within_their_price(self):
        plan, marks = planned(Job("mnist", "none", "dpsgd", (1.5,), 0), 60_000)
        assert {(mark.epsilon, mark.accountant) for mark in marks} >= {(1.5, "pld"), (1.0, "pld")}
        assert marks == sorted(marks)
        assert plan.steps == marks[-1].step
        for mark in marks:
            if mark.accountant == "pld":
                assert plan.epsilon_after(mark.step, 1e-5) <= mark.epsilon
                assert plan.epsilon_after(mark.step + 1, 1e-5) > mark.epsilon

    def test_what_costs_nothing_shares_a_plan_and_noise_does_not(self):
        job = Job("cifar10", "none", "dpsgd", (2.0,), 0)
        first, solved = planned(job, 50_000), grid._solved.cache_info().currsize
        for changed in ({"dataset": "cifar10-momentum"}, {"corrupt": "mimic:0.3", "seed": 7}):
            assert planned(attrs.evolve(job, **changed), 50_000) == first
        assert grid._solved.cache_info().currsize == solved
        assert planned(attrs.evolve(job, column="ptr"), 50_000) != first

    def test_our_columns_end_at_their_target(self):
        plan, marks = planned(Job("mnist", "none", "ours-dpsgd", (3.0,), 0), 60_000)
        assert marks[-1] == Mark(settings()["ours"]["ours-dpsgd"]["mnist"]["steps"], 3.0, "pld")
        assert [mark.step for mark in marks] == sorted({mark.step for mark in marks})
        assert 0.99 * 3 < plan.epsilon(1e-5) <= 3
        for mark in marks:  # rounded, but never below what was spent
            assert 0 <= mark.epsilon - plan.epsilon_after(mark.step, 1e-5) < 1e-2


class TestJobs:
    def test_every_cell_of_the_tables_is_filled(self):
        wanted = {job for job in table_jobs({1, 3, 4}, 1) if job.column in PAPER_COLUMNS}
        for cell in published():
            if cell.table != 2:
                epsilons = tuple(settings()["datasets"][cell.dataset]["epsilons"])
                assert cell.epsilon in epsilons
                assert Job(cell.dataset, cell.corrupt, cell.method, epsilons, 0) in wanted

    def test_each_is_there_once(self):
        for every in (list(table_jobs({1, 2, 3, 4}, 2)), list(frontier_jobs(2))):
            assert len(set(every)) == len(every)

    def test_the_settings_of_every_job_are_valid(self):
        every = [*table_jobs({1, 2, 3, 4}, 1), *frontier_jobs(1)]
        alike = {attrs.evolve(job, corrupt="none", seed=0) for job in every if not job.features}
        for job in alike:
            assert job.experiment.privacy.epsilon == max(job.epsilons)

    def test_what_stands_in_for_a_network_fills_its_cells(self):
        cells = [cell for cell in published() if cell.dataset == "cifar10-vgg16"]
        assert len(cells) == 28
        assert next(cell.accuracy for cell in cells if cell.method == "ptr") == 52.09
        assert not any(cell.dataset == "cifar10-vgg11" for cell in published())
        assert settings()["datasets"]["cifar10-vgg16"]["backbone"] == "vgg16"

    def test_other_networks_are_run_only_when_named(self):
        every = {job.dataset for job in table_jobs({1, 2, 3, 4}, 1)}
        assert every == {"mnist", "cifar10", "emnist", "cifar10-vgg16", "cifar10-resnet18"}
        named = list(table_jobs({1}, 1, datasets=["cifar10-momentum"]))
        assert {job.dataset for job in named} == {"cifar10-momentum"}
        assert {job.corrupt for job in named} == {
            cell.corrupt for cell in published() if cell.dataset == "cifar10"
        }


def test_the_settings_choose_the_momentum():
    found = [Job(name, "none", "ptr", (7.0,), 0) for name in ("cifar10", "cifar10-momentum")]
    assert [job.experiment.optimizer.momentum for job in found] == [0.0, 0.9]
