"""Runs that take turns are the runs they would be alone."""

import functools

import pytest
import torch

from prudent.accounting import GaussianTest
from prudent.training import AdaptiveTrim, Plan, ProposeTestRelease, Sum
from prudent_lab.datasets import Dataset
from prudent_lab.paper import grid
from prudent_lab.paper.grid import Mark, in_turns
from prudent_lab.paper.jobs import Job

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
RULES = {
    "sum": Sum(clip=1.0, noise_multiplier=1.0),
    "ptr": ProposeTestRelease(
        clip=1.0,
        propose=0.7,
        noise_multiplier=1.0,
        test=GaussianTest(1.0),
        failure=1e-3,
        trim=AdaptiveTrim(first=0.4, up=0.1, down=0.1),
    ),
}
RECORDS = 300


def records(device):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(RECORDS, 1, 8, 8, generator=generator)
    part = features, torch.arange(RECORDS) % 3
    return Dataset("made here", *part, *part, 3, "").to(device)


def run(rule, seed, device, histories, corrupt):
    """A run with momentum, so that its steps follow each other."""
    job = Job("cifar10-momentum", corrupt, "ptr", (7.0,), seed)
    assert job.experiment.optimizer.momentum > 0
    plan = Plan(sampling_rate=0.1, steps=9 + seed, aggregation=RULES[rule])
    marks = [Mark(step, 1.0, "pld") for step in (4, 9 + seed)]
    keep = functools.partial(histories.__setitem__, (rule, seed))
    return grid._work(job, plan, marks, records(device), keep, torch.device(device))


@pytest.mark.thorough
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("corrupt", [pytest.param("none", marks=pytest.mark.slow), "gradient:0.2"])
def test_each_run_is_what_it_is_alone(device, corrupt, monkeypatch):
    monkeypatch.setattr(grid, "_reading", lambda job, plan, mark, entry: entry)
    wanted = [(rule, seed) for rule in RULES for seed in range(2)]
    alone = {}
    for rule, seed in wanted:
        in_turns([run(rule, seed, device, alone, corrupt)], 1, torch.device(device))
    assert len({repr(history) for history in alone.values()}) == len(wanted)
    for at_once in (1, 3):
        together = {}
        works = (run(rule, seed, device, together, corrupt) for rule, seed in wanted)
        in_turns(works, at_once, torch.device(device))
        assert together == alone


def test_works_are_prepared_when_reached():
    under_way, most = 0, 0

    def work(steps):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(steps):
            yield
        under_way -= 1

    in_turns((work(steps) for steps in (3, 1, 4, 1, 5, 0)), 2, torch.device("cpu"))
    assert under_way == 0
    assert most == 2


def test_nothing_to_do():
    in_turns([], 4, torch.device("cpu"))
