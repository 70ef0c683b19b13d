"""Black-box audits: the bound on Gaussian DP, real runs of a small network, and real digits."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from prudent import ArgumentError
from prudent.audit.training.black_box import AuditTarget, _mu, black_box, judge_scores
from prudent.audit.training.curves import epsilon_of_mu
from prudent.training import Plan, Sum, accuracy
from prudent_lab.audited_digits import crafted, cross_entropy

pytestmark = pytest.mark.usefixtures("same_draws")


def plan(noise_multiplier, steps, records, rate=1.0):
    rule = Sum(clip=1.0, noise_multiplier=noise_multiplier)
    return Plan(sampling_rate=rate, steps=steps, aggregation=rule, expected_batch=float(records))


def test_gaussian_scores_are_refuted_as_rarely_as_stated_and_nearly_reach_mu():
    random, mu, runs = np.random.default_rng(4), 2.0, 400
    bounds = []
    for _ in range(1000):
        coins = random.random(runs) < 0.5
        scores = mu * coins + random.standard_normal(runs)
        bounds.append(_mu(scores, coins, 1.0, 0.95)[0])
    assert np.mean(np.array(bounds) > mu) <= 0.05
    assert np.median(bounds) > 1.5


def test_the_result_says_what_kind_of_bound_it_is():
    random, claim = np.random.default_rng(1), plan(2.0, 16, 10)  # μ = 2
    coins = random.random(5000) < 0.5
    scores = 2 * coins + random.standard_normal(5000)
    claimed = claim.epsilon(1e-5)
    result = judge_scores(claim, scores, coins, delta=1e-5, claimed=claimed)
    assert claimed == pytest.approx(epsilon_of_mu(2.0, 1e-5), abs=1e-3)
    assert 0.85 < result.share < 1
    assert "Gaussian DP" in result.notes[0]
    louder = 4 * coins + random.standard_normal(5000)
    assert judge_scores(claim, louder, coins, delta=1e-5, claimed=claimed).refuted


def small_target():
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    inputs = torch.randn(5, 6)
    with torch.no_grad():
        targets = model(inputs).argmax(1)
        canary = 3 * torch.randn(6)
        wrong = model(canary).argmin()
    return AuditTarget(model, cross_entropy, inputs, targets, (canary, wrong))


def test_real_runs_of_a_small_model_tell_the_canary():
    target = small_target()
    before = [p.detach().clone() for p in target.model.parameters()]
    claim = plan(0.2, 1, 5)
    result = black_box(claim, target, delta=1e-5, runs=60, lr=0.1)
    assert result.right > 0.7 * result.guesses
    assert not result.refuted
    for parameter, value in zip(target.model.parameters(), before, strict=True):
        assert torch.equal(parameter, value)  # every run starts from the same weights


def test_sampled_plans_are_refused():
    with pytest.raises(ArgumentError, match="sampling rate 1"):
        black_box(plan(1.0, 1, 5, rate=0.5), small_target(), delta=1e-5)


@pytest.mark.slow
def test_real_digits_from_a_crafted_start_give_away_half_of_the_price():
    target = crafted(50, epochs=5, public=3000)
    assert accuracy(target.inputs, target.targets)(target.model)["accuracy"] > 0.8
    claim = plan(1.0, 4, 50).calibrate(epsilon=10, delta=1e-5)
    assert math.sqrt(4) / claim.aggregation.noise_multiplier == pytest.approx(2, abs=0.01)
    result = black_box(claim, target, delta=1e-5, runs=500, lr=0.2)
    assert 5 < result.lower < 10
