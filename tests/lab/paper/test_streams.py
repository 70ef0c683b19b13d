"""Runs that take turns are the runs they would be alone."""

import attrs
import pytest
import torch
from torch import nn

from prudent.accounting import GaussianTest
from prudent.lab.corruption import GradientNoise
from prudent.lab.paper.streams import in_turns, training
from prudent.training import AdaptiveTrim, Plan, ProposeTestRelease, Sum, accuracy

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


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))


def records(device):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(RECORDS, 1, 8, 8, generator=generator)
    return features.to(device), (torch.arange(RECORDS) % 3).to(device)


def run(rule, seed, device, histories, corrupt=None):
    plan = Plan(sampling_rate=0.1, steps=9 + seed, aggregation=RULES[rule])
    data, device = records(device), torch.device(device)
    return training(
        plan,
        network(seed),
        data,
        accuracy(*data),
        [4, 9 + seed],
        lambda history: histories.__setitem__((rule, seed), history),
        lr=0.5,
        momentum=0.5,
        seed=seed,
        corrupt=corrupt if corrupt is None else attrs.evolve(corrupt, seed=seed),
        device=device,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "corrupt",
    [pytest.param(None, marks=pytest.mark.slow), GradientNoise(0.2)],
    ids=["clean", "corrupt"],
)
def test_each_run_is_what_it_is_alone(device, corrupt):
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
