"""A user's own data sets and corruptions, by the paper's methods."""

import json

import attrs
import numpy as np
import pytest

from prudent._validate import ArgumentError
from prudent_lab.paper import grid
from prudent_lab.paper.grid import Plans, run_job
from prudent_lab.paper.jobs import own_jobs, read_settings
from prudent_lab.paper.report.comparison import own_table, plain_own
from prudent_lab.paper.results import append, read
from tests.cli.conftest import prudent
from tests.lab.corruption.test_written import FAULTS

GRID = """
[datasets.wine]
like = "mnist"
data = "npz:wine.npz"
batch = 8
epsilons = [0.001, 30.0]
curve = []
methods = ["ptr", "dpsgd"]
corruptions = ["none", "faults.py:Swap:0.25"]

[datasets.wine-slow]
like = "wine"
lr = 0.01
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder with 40 records of 4 numbers, a corruption and settings."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    arrays = {"train": 40, "test": 12}
    np.savez(
        tmp_path / "wine.npz",
        classes=3,
        **{f"{k}_features": draw.normal(size=(n, 4)).astype(np.float32) for k, n in arrays.items()},
        **{f"{k}_labels": draw.integers(0, 3, n) for k, n in arrays.items()},
    )
    (tmp_path / "faults.py").write_text(FAULTS)
    (tmp_path / "mine.toml").write_text(GRID)
    return tmp_path


def test_what_is_not_set_is_taken_from_what_it_is_like(mine):
    found = read_settings(mine / "mine.toml")["datasets"]
    assert list(found) == ["wine", "wine-slow"]
    assert (found["wine"]["clip"], found["wine"]["batch"], found["wine"]["lr"]) == (1.0, 8, 0.15)
    assert (found["wine-slow"]["batch"], found["wine-slow"]["lr"]) == (8, 0.01)


def test_runs_of_ones_own_end_in_a_table(mine):
    """Through the same code as the paper's, in this process and cut short."""
    settings = read_settings(mine / "mine.toml")
    jobs = [job for job in own_jobs(settings, 1) if job.dataset == "wine"]
    assert [(job.corrupt, job.column) for job in jobs] == [
        (corrupt, method)
        for corrupt in ("none", "faults.py:Swap:0.25")
        for method in ("ptr", "dpsgd")
    ]
    path = mine / "runs.small.csv"
    plans = Plans(mine / "plans.json", {"npz:wine.npz": 40})
    for job in (job for job in jobs if job.column == "dpsgd"):
        plan, marks = plans.of(job)
        short = [mark._replace(step=1) for mark in marks]
        append(path, run_job(job, plan, short))
    results = read(path)
    table = own_table(results, settings, "wine")
    assert table.header == (
        "corruption", "ε", "DP-SGD, RDP", "DP-SGD, PLD", "TSGD+PTR, RDP", "TSGD+PTR, PLD",
    )  # fmt: skip
    names = [line[0].text for line in table.rows if line[0] is not None]
    assert names == ["clean", "faults.py:Swap 25%"]
    assert "compare with each other alone" in table.note
    cell = results.row(("wine", "faults.py:Swap:0.25", 30.0))["dpsgd", "pld"]
    assert [each.text for each in table.rows[3][3:]] == [f"{cell.mean:.2f}", "not run", "not run"]
    assert [each.text for each in table.rows[2][2:4]] == ["no step within ε"] * 2
    rows = plain_own(results, settings)
    assert {row["dataset"] for row in rows} == {"wine", "wine-slow"}
    assert [row["pld"] for row in rows if row["dataset"] == "wine-slow"] == [None] * 8
    told = prudent(
        "paper", "table", "mine.toml", "--size", "small", "--results", str(path), "--json"
    )
    assert json.loads(told.out) == rows
    shown = prudent("paper", "table", "mine.toml", "--size", "small", "--results", str(path))
    assert "faults.py:Swap 25%" in shown.out


def test_an_epsilon_that_no_step_stays_within_is_named(mine):
    settings = read_settings(mine / "mine.toml")
    job = next(job for job in own_jobs(settings, 1) if job.dataset == "wine")
    plans = Plans(mine / "plans.json", {"npz:wine.npz": 8})  # every record in every batch
    with pytest.raises(ArgumentError, match="a batch of 8 is drawn from 8 records") as caught:
        plans.of(attrs.evolve(job, epsilons=(0.01,)))
    assert caught.value.argument == "datasets.wine.epsilons"


def test_a_corruption_of_ones_own_reaches_the_records(mine):
    (job,) = (
        job
        for job in own_jobs(read_settings(mine / "mine.toml"), 1)
        if (job.dataset, job.corrupt, job.column) == ("wine", "faults.py:Swap:0.25", "ptr")
    )
    records = grid._records(job)
    clean, bad = (grid._corrupted(records.data, c, 0) for c in ("none", records.corrupt))
    assert records.corrupt == job.corrupt
    assert int((clean.train_features != bad.train_features).any(1).sum()) == 10
    assert job.experiment.corruption.ratio == 0.25


def test_a_grid_that_was_not_run_says_how(mine):
    answer = prudent("paper", "table", "mine.toml")
    assert answer.status != 0
    assert "add --run" in answer.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"only tables \[datasets.NAME\]"),
        ("delta = 1.0", r"only tables \[datasets.NAME\]"),
        ("[datasets.a]\nlike = 'b'", "Expected datasets.a.like one of"),
        ("[datasets.a]\nlike = 'mnist'\nbatches = 3", "Expected datasets.a one of .*got 'batches'"),
        ("[datasets.a]\ndata = 'mnist'", "with epsilons, batch, lr"),
        ("[datasets.a]\nlike = 'mnist'\nepsilons = 3", "datasets.a.epsilons a list"),
        ("[datasets.a]\nlike = 'mnist'\nmethods = ['sgd']", "datasets.a.methods one of"),
        ("[datasets.a]\nlike = 'mnist'\ncorruptions = ['x:0.1']", "Expected corruption"),
        ("[datasets", "a TOML file"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, text, message):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_settings(path)
