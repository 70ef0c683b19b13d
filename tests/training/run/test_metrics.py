"""What a run shows: the public set exactly, and nothing private."""

import json
import math

import pytest
import torch
from torch import nn

from prudent.accounting import GaussianTest
from prudent.training import Execution, FixedTrim, Mean, Plan, ProposeTestRelease, Sum, fit
from prudent.training.run.metrics import BestModel, Metrics, Recorder
from tests.training.gradients.oracle import cross_entropy
from tests.training.reporting import gathered
from tests.training.run.files import read_metrics

PUBLIC = {"step", "epsilon", "delta", "relation", "pass_rate", "trim", "noise"}


def train(out=None, rule=None, **options):
    torch.manual_seed(0)
    plan = Plan(
        sampling_rate=0.2,
        steps=12,
        aggregation=Sum(clip=2.0, noise_multiplier=1.5) if rule is None else rule,
    )
    data = torch.randn(60, 4), torch.arange(60) % 3
    settings = {"out": out, "evaluate_every": 5, "execution": Execution(seed=1), "lr": 0.1}
    return fit(plan, nn.Linear(4, 3), cross_entropy, data, **gathered(settings | options))


def test_the_public_set_is_exact(tmp_path):
    train(tmp_path, delta=1e-5)
    entries = read_metrics(tmp_path)
    assert [set(entry) for entry in entries] == [PUBLIC] * 3
    assert [entry["step"] for entry in entries] == [5, 10, 12]


def test_evaluations_join_it(tmp_path):
    train(tmp_path, evaluate=lambda model: {"accuracy": 0.5})
    assert set(read_metrics(tmp_path)[0]) == PUBLIC | {"accuracy"}


def test_the_numbers():
    rule = ProposeTestRelease(
        clip=2.0,
        propose=0.5,
        noise_multiplier=1.5,
        test=GaussianTest(1e-3),
        trim=FixedTrim(1.0),
    )
    fitted = train(rule=rule, delta=1e-4)
    for entry in fitted.history:
        exact = fitted.plan.epsilon_after(entry.step, 1e-4)
        assert exact <= entry.epsilon <= exact * 1.02
        assert (entry.delta, entry.trim) == (1e-4, 12)
        assert entry.noise in (pytest.approx(1.5), pytest.approx(3.0))
    assert fitted.history[-1].epsilon == exact  # what was asked for, not more
    weighted = sum(
        entry.pass_rate * steps for entry, steps in zip(fitted.history, (5, 5, 2), strict=True)
    )
    assert weighted / 12 == pytest.approx(fitted.pass_rate)


def test_no_epsilon_without_delta_or_privacy():
    assert train().history[-1].epsilon is None
    assert train().history[-1].relation is None
    fitted = train(rule=Mean(), delta=1e-5)
    assert fitted.history[-1].epsilon is None
    assert fitted.plan.epsilon(1e-5) == math.inf


def test_progress_is_shown_only_when_wanted(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    train(progress=True, delta=1e-5, evaluate=lambda _: {"accuracy": 0.98765})
    shown = capsys.readouterr().err
    assert "12/12" in shown
    assert "accuracy 0.9877" in shown
    train(progress=False)
    assert capsys.readouterr() == ("", "")


def entry(step, **changes):
    values = {"epsilon": 1.0, "delta": 1e-5, "pass_rate": 0.5, "trim": 3, "noise": 1.0}
    return Metrics(step=step, evaluation={}, **(values | changes))


def record(folder, start, *steps):
    with Recorder(folder, start, 100, progress=False) as recorder:
        for step in steps:
            recorder.record(entry(step))


class TestResuming:
    def test_what_came_after_the_checkpoint_is_forgotten(self, tmp_path):
        record(tmp_path, 0, 10, 20, 30)
        record(tmp_path, 20, 25)
        assert [line["step"] for line in read_metrics(tmp_path)] == [10, 20, 25]

    def test_a_line_cut_short_is_dropped(self, tmp_path):
        record(tmp_path, 0, 10)
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write('{"step": 20, "eps')
        record(tmp_path, 20, 30)
        assert [line["step"] for line in read_metrics(tmp_path)] == [10, 30]

    def test_a_new_run_begins_with_an_empty_file(self, tmp_path):
        record(tmp_path, 0, 10)
        record(tmp_path, 0, 5)
        assert [line["step"] for line in read_metrics(tmp_path)] == [5]


def test_lines_are_json(tmp_path):
    record(tmp_path, 0, 1)
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line) == entry(1).plain()


@pytest.mark.parametrize(
    ("pass_rate", "trim", "shown"),
    [(0.0, 0, "pass 0% · F 0"), (None, 5, "F 5"), (None, 0, "")],
)
def test_the_bar_shows_a_test_only_where_there_is_one(pass_rate, trim, shown):
    recorder = Recorder(None, 0, 1, progress=False)
    public = {"epsilon": None, "delta": None, "noise": 1.0, "evaluation": {}}
    recorder.record(Metrics(step=1, pass_rate=pass_rate, trim=trim, **public))
    assert recorder._progress.tasks[0].fields["shown"] == shown


def test_a_run_without_a_test_has_no_pass_rate():
    fitted = train(rule=Sum(clip=1.0, noise_multiplier=1.0))
    assert fitted.pass_rate is None
    assert {entry.pass_rate for entry in fitted.history} == {None}


@pytest.mark.parametrize(
    ("epsilon", "shown"), [(1.4541, "ε 1.455"), (2.0, "ε 2"), (math.inf, "ε ∞")]
)
def test_the_bar_never_shows_less_than_was_spent(epsilon, shown):
    recorder = Recorder(None, 0, 1, progress=False)
    entry = Metrics(
        step=1, epsilon=epsilon, delta=1e-5, pass_rate=0.5, trim=1, noise=1.0, evaluation={}
    )
    recorder.record(entry)
    assert recorder._progress.tasks[0].fields["shown"].startswith(shown)


def test_a_value_that_is_no_number_is_never_the_best():
    plan = Plan(sampling_rate=0.1, steps=3, aggregation=Mean())
    best = BestModel(plan, torch.nn.Linear(1, 1), "public_loss", 2, keeps=True)
    for step, value in enumerate([math.nan, 2.0, 1.0, math.nan], 1):
        best.follow(step, value, torch.nn.Linear(1, 1))
    assert (best.step, best.value, best.waited) == (3, 1.0, 1)
