"""Suggestions from public gradients: what is suggested passes as often as was asked for."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from prudent.training import Plan, PoissonSampler, ProposeTestRelease
from prudent.training.checking import gradient_norms, suggest_aggregation
from prudent.training.keystream import Key, Purpose
from tests.training.gradients.oracle import cross_entropy

RECORDS, RATE = 6000, 0.05


def long_tailed():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(RECORDS, generator=generator, dtype=torch.float64).exp()


def pass_rate(rule: ProposeTestRelease, norms: torch.Tensor, batch: float, tries: int = 200):
    """How often Poisson batches of these norms pass at the initial trim."""
    sampler = PoissonSampler(RECORDS, RATE, key=Key.from_seed(1))
    words = Key.from_seed(2)
    trim = torch.tensor(rule.trim.start(batch)).floor()
    passed = 0
    for number in range(tries):
        drawn = sampler.batch(number)
        ids, valid = drawn.ids.flatten(), drawn.valid.flatten()
        noise = words.stream(Purpose.TEST).words(2, step=number)
        passed += bool(rule.decide(norms[ids], valid, trim, noise).passed)
    return passed / tries


@pytest.mark.parametrize("wanted", [0.5, 0.9])
@pytest.mark.parametrize("above", [None, 0.05])
def test_batches_pass_as_often_as_asked(wanted, above):
    """At least: the count of long norms and the noise of the test are bounded one by one."""
    norms, batch = long_tailed(), RECORDS * RATE
    rule = suggest_aggregation(norms, expected_batch=batch, pass_probability=wanted, above=above)
    found = pass_rate(rule, norms, batch)
    assert wanted - 0.08 < found < 1
    share = float((norms > rule.proposal).double().mean())
    assert share == pytest.approx(0.125 if above is None else above, abs=1e-3)
    # A test of a scale twice as large fails more often: the suggested one is not too small.
    wider = suggest_aggregation(norms, expected_batch=2 * batch, pass_probability=wanted)
    assert pass_rate(wider, norms, batch) < wanted


def test_the_noise_is_left_to_calibration():
    rule = suggest_aggregation(long_tailed(), expected_batch=300)
    plan = Plan(sampling_rate=RATE, steps=3, aggregation=rule, expected_batch=300)
    assert plan.aggregation.with_noise(2.0).test == rule.test
    assert rule.clip == pytest.approx(rule.proposal / 0.5)
    assert rule.trim.up / (rule.trim.up + rule.trim.down) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"expected_batch": 32}, "large enough for a test of scale 1 or more, got 32"),
        ({"norms": torch.zeros(50)}, "Expected norms with enough norms above 0"),
        ({"norms": torch.full((9,), torch.nan)}, "got 0 that are finite"),
        ({"above": 0.3}, r"Expected above in \(0, 0.25\)"),
        ({"pass_probability": 1.0}, "Expected pass_probability in"),
        ({"propose": 1.0}, "Expected propose in"),
    ],
)
def test_what_is_refused(options, message):
    given = {"norms": long_tailed(), "expected_batch": 300} | options
    with pytest.raises(ValueError, match=message):
        suggest_aggregation(given.pop("norms"), **given)


def test_norms_are_those_of_single_records():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    inputs, targets = torch.randn(20, 4), torch.arange(20) % 3
    inputs[3] = torch.nan
    expected = []
    for one, label in zip(inputs, targets, strict=True):
        model.zero_grad()
        cross_entropy(model(one[None]), label[None]).sum().backward()
        squares = [p.grad.square().sum() for p in model.parameters()]
        expected.append(torch.stack(squares).sum().sqrt())
    before = torch.get_rng_state()
    wanted = torch.stack(expected)[torch.arange(20) != 3]
    for data in ((inputs, targets), list(TensorDataset(inputs, targets))):
        norms = gradient_norms(model, cross_entropy, data, rows=7)
        torch.testing.assert_close(norms, wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(before, torch.get_rng_state())
